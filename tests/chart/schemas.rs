//! What helm renders, checked with the schemas of Kubernetes: of the oldest release that the chart supports, and of the
//! newest one with a schema.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use haulout_lab::python;
use haulout_lab::run_dir::RunDir;
use haulout_lab::scenario::RUNTIME;
use haulout_lab::tools::{Tool, skip};

use crate::helm::{cases, chart, read, succeed};

/// It contains the schemas of Kubernetes 1.25 to 1.37.
const VALIDATOR: &str = "kubernetes-validate==1.37.0";

/// The oldest release of Kubernetes that the chart supports, and the newest one in the validator. The chart has no upper
/// limit.
const RELEASES: [&str; 2] = ["1.32", "1.37"];

/// Kinds that are not part of Kubernetes: `valid.rs` checks them with the definitions of the Prometheus Operator.
const NOT_OF_KUBERNETES: [&str; 3] = ["PodMonitor", "PrometheusRule", "ServiceMonitor"];

fn judged(python: &Path, release: &str, file: &Path) -> Output {
    Command::new(python)
        .args(["-m", "kubernetes_validate", "--strict", "-k", release])
        .arg(file)
        .output()
        .unwrap()
}

#[test]
fn every_manifest_matches_the_oldest_and_newest_kubernetes_schemas() {
    assert!(
        read("chart/Chart.yaml").contains(&format!("\nkubeVersion: \">={}.0-0\"\n", RELEASES[0])),
        "the oldest release is another"
    );
    let python = match RUNTIME.block_on(python::with(VALIDATOR, "kubernetes_validate")) {
        Ok(Tool::At(python)) => python,
        Ok(Tool::Missing(why)) => {
            let test = "every_manifest_matches_the_oldest_and_newest_kubernetes_schemas";
            return skip(test, &why).unwrap();
        }
        Err(error) => panic!("{error:#}"),
    };
    let dir = RunDir::create().unwrap();
    let (chart, mut unknown) = (chart(), BTreeSet::new());
    for case in cases() {
        let args = [
            "template",
            "haulout",
            chart.to_str().unwrap(),
            "-n",
            "haulout",
            "-f",
        ];
        let text = succeed("helm", &[&args[..], &[case.to_str().unwrap()]].concat());
        let objects = text.lines().filter(|line| line.starts_with("kind: ")).count();
        let file = dir.write("rendered.yaml", &text).unwrap();
        for release in RELEASES {
            let output = judged(&python, release, &file);
            let stdout = String::from_utf8_lossy(&output.stdout);
            let about = format!("{} on {release}", case.display());
            assert!(
                output.status.success(),
                "{about}: {stdout}{}",
                String::from_utf8_lossy(&output.stderr)
            );
            let passed = stdout
                .lines()
                .filter(|line| line.contains(" passed for resource "))
                .count();
            let skipped = stdout
                .lines()
                .filter_map(|line| {
                    line.split_once("Couldn't find schema for kind ")?
                        .1
                        .split_once(' ')
                })
                .map(|(kind, _)| kind.to_owned())
                .collect::<Vec<_>>();
            assert_eq!(passed + skipped.len(), objects, "{about}: {stdout}");
            unknown.extend(skipped);
        }
    }
    let unknown: Vec<&str> = unknown.iter().map(String::as_str).collect();
    assert_eq!(unknown, NOT_OF_KUBERNETES, "kinds without a schema");

    let file = dir
        .write(
            "wrong.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x\ndta: {}\n",
        )
        .unwrap();
    let output = judged(&python, RELEASES[1], &file);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        !output.status.success() && stdout.contains("'dta' was unexpected"),
        "{stdout}"
    );
}
