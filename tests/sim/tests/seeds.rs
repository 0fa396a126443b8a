//! A few seeds of the simulation in every test run. `make simulate` runs thousands.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

use haulout_sim::run::{Outcome, run};
use haulout_sim::story::Telling;

/// Seeds that once broke a rule, with the rule. A change of what a seed draws makes another run of it; then this list is no loss.
const REGRESSIONS: &[(u64, &str)] = &[
    (
        61,
        "an episode began with a VM that a re-read had told in part, and without its UUID",
    ),
    (
        1196,
        "a forged record was copied, and the copy made another node the owner of a VM",
    ),
    (
        1698,
        "the cordon of an earlier Node, from a restored etcd, was taken for that of a person",
    ),
    (
        2949,
        "a VM was shut down on the host on which a person had started it meanwhile",
    ),
    (
        4436,
        "a VM was shut down for a request that was withdrawn while the watch was silent",
    ),
    (
        4544,
        "a guest was asked twice and lost its power, because the record was removed meanwhile",
    ),
    (
        5054,
        "the forged record of a deleted Node claimed the VM of another node",
    ),
    (
        5473,
        "a restored Node was taken over with the cordon that a later Node had",
    ),
];

/// Seeds of each test run: small and large, with and without faults.
const SEEDS: std::ops::Range<u64> = 0..24;

fn outcomes(seeds: impl IntoIterator<Item = u64>) -> Vec<Outcome> {
    std::thread::scope(|scope| {
        let runs: Vec<_> = seeds
            .into_iter()
            .map(|seed| scope.spawn(move || run(seed, Telling::Nothing).unwrap()))
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    })
}

#[test]
fn seeds_break_no_rule() {
    for outcome in outcomes(SEEDS.chain(REGRESSIONS.iter().map(|(seed, _)| *seed))) {
        let Outcome { seed, violations, .. } = outcome;
        assert!(
            violations.is_empty(),
            "seed {seed}: {violations:?}; make simulate SEED={seed} tells its story"
        );
    }
}

/// A patch that does not apply any more would be noticed only by the hour-long `make simulate-defects`.
#[test]
fn planted_defects_apply_and_are_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let table = std::fs::read_to_string(root.join("docs/development/mutants.md")).unwrap();
    let patches = std::fs::read_dir(root.join("tests/sim/defects")).unwrap();
    let patches = patches.map(|entry| entry.unwrap().path());
    let patches = patches.filter(|path| path.extension().is_some_and(|it| it == "patch"));
    let mut count = 0;
    for patch in patches {
        count += 1;
        let name = patch.file_stem().unwrap().to_str().unwrap();
        assert!(
            table.contains(&format!("| `{name}` |")),
            "{name} is not in mutants.md"
        );
        let mut check = Command::new("git");
        check.args(["apply", "--check"]).arg(&patch).current_dir(&root);
        let output = check.output().unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name} does not apply: {why}");
    }
    assert!(count > 0);
}
