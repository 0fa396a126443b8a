//! What the fuzz targets do, without a fuzzer: the seeds, whole and damaged.

use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::maintenance::drain::DrainEnd;
use crate::maintenance::episode::Phase;
use crate::maintenance::waiting::ParkReason;

/// An episode of each phase, and windows.
fn seeds() -> Vec<(String, String)> {
    let to = fixtures::host_named("esx2");
    let phases = [
        Phase::Queued,
        Phase::Draining,
        Phase::Drained,
        Phase::ShuttingDown(DrainEnd::Complete),
        Phase::Relocating { to },
        Phase::AwaitingHost,
        Phase::PoweringOn { by_drs: true },
        Phase::Rejoining,
        Phase::Parked {
            reason: ParkReason::VmMissing,
            resume: Box::new(Phase::AwaitingHost),
            resume_since: fixtures::at(1),
        },
    ];
    let records = phases.into_iter().map(|phase| {
        let name = format!("record/{}.json", phase.name());
        let record = fixtures::record(fixtures::episode(phase, 1));
        (name, write(&record, fixtures::at(1)).episode.unwrap())
    });
    let windows = [
        "22:00-04:00 UTC",
        "Mon,Wed,Sun 23:00-05:30 Europe/Berlin",
        "Sat 02:30-02:45 America/New_York",
    ];
    let windows = windows.into_iter().enumerate();
    let windows = windows.map(|(index, text)| (format!("window/{index}.txt"), text.to_owned()));
    records.chain(windows).collect()
}

#[test]
fn seeds_are_read_and_the_fuzzer_has_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    assert_eq!(
        outdated_seeds(&folder, &seeds()).unwrap(),
        [] as [&str; 0],
        "not current: HAULOUT_WRITE_REFERENCE=1 cargo test -p haulout-core fuzz"
    );
    for (name, text) in seeds() {
        if name.starts_with("record/") {
            assert!(
                matches!(read_record(&annotations(&text)), Record::Episode(_)),
                "{name}"
            );
            record(&text);
        } else {
            assert!(text.parse::<Window>().is_ok(), "{name}");
            window(&text);
        }
    }
}

proptest! {
    // The same cases in every run; `make fuzz` searches.
    #![proptest_config(ProptestConfig {
        cases: 400,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A stretch of a seed is replaced by one of another seed, or by other text.
    #[test]
    fn damaged_seeds_hold_the_same_promises(
        one in 0_usize..12, other in 0_usize..12, at in 0_usize..2_000, length in 0_usize..60, from in 0_usize..2_000, text in ".{0,8}",
    ) {
        let seeds = seeds();
        let (target, other) = (&seeds[one].1, &seeds[other].1);
        let cut = |seed: &str, at: usize, length: usize| -> (String, String, String) {
            let letters: Vec<char> = seed.chars().collect();
            let at = at.min(letters.len());
            let end = at.saturating_add(length).min(letters.len());
            let part = |range: std::ops::Range<usize>| letters[range].iter().collect();
            (part(0..at), part(at..end), part(end..letters.len()))
        };
        let (before, _, after) = cut(target, at, length);
        let (_, taken, _) = cut(other, from, length);
        for middle in [taken, text] {
            let damaged = format!("{before}{middle}{after}");
            record(&damaged);
            window(&damaged);
        }
    }
}
