//! What the fuzz targets do, without a fuzzer: the seeds, whole and damaged.

use std::path::Path;

use fastrand::Rng;
use haulout_core::fuzz::outdated_seeds;
use serde_json::json;

use super::*;

/// What damage writes: what means something to a reader of JSON, YAML, selectors or settings.
const TOKENS: &[&str] = &[
    "\"",
    "'",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ":",
    ": ",
    ",",
    "=",
    "!",
    "(",
    ")",
    " in ",
    "\n",
    "\n  ",
    "- ",
    "\u{1b}[2J",
    "\u{a0}",
    "\u{b}",
    "\u{202e}",
    "null",
    "-1",
    "0",
    "99999999999999999999",
    "true",
    "&a ",
    "*a",
    "!!binary ",
    "@",
    "%",
    "\u{0}",
    ".",
    "/",
    "-",
];

fn settings_seeds() -> [String; 3] {
    let needed = "VCENTER_HOST=https://user:hidden@vcenter.example.com/sdk\nVCENTER_USER=haulout\nVCENTER_PASSWORD=s3cret-pass-phrase\n";
    let nodes = "GPU_NODE_LABEL=gpu in (a,b),!spare\nGPU_RESOURCES=nvidia.com/*,gpu.amd.com\nNODE_BINDING=provider-id\nGUARDS=medik8s,gardener\n";
    let limits = "MAX_UNAVAILABLE=25%\nMAX_POWER_OFFS_PER_HOUR=3\nADOPT_RELEASES=a/b,c\nLEASE_DURATION_SECONDS=1.5\nLEASE_RENEW_DEADLINE_SECONDS=1\n";
    let wrong = "POLL_INTERVAL_SECONDS=0\nLEASE_NAME=A B\nVCENTER_PASSWORD_FILE=/run/password\nLOG_LEVEL=loud\nMETRICS_ADDRESS=8080\n";
    let others = "LOG_LEVEL=info,kube=debug\nSTATUS_ADDRESS=[::]:8082\nSTATUS_HOSTS=haulout.example.com\nSILENCE_MATCHERS=a=\"b\",c=~\"d|e\"\nVCENTER_SCOPE=/dc1/vm/tenant-a,cluster=b\n";
    [
        format!("{needed}{nodes}{limits}"),
        format!("{needed}{wrong}"),
        format!("{needed}{others}DRY_RUN=yes\nVCENTER_REPORT=attribute\n"),
    ]
}

fn maintenance_seeds() -> [String; 3] {
    let object = |spec: Value, status: Value| {
        json!({"apiVersion": "haulout.dev/v1alpha1", "kind": "NodeMaintenance", "metadata": {"name": "a", "uid": "u", "resourceVersion": "5",
            "generation": 2, "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec, "status": status})
        .to_string()
    };
    [
        object(
            json!({"nodeName": "gpu-1", "reason": "firmware", "action": "Relocate", "targetHost": "esx-2", "drainTimeoutSeconds": 600,
                "drainTimeoutAction": "Hold", "notBefore": "2026-01-01T00:00:00+01:00", "requestedBy": "ada",
                "window": {"days": ["Mon", "Sun"], "start": "22:00", "end": "04:00", "timeZone": "Europe/Berlin"}}),
            json!({"phase": "Running", "state": "Draining", "totalPods": 5, "pods": [{"namespace": "a", "name": "b", "reason": "c"}],
                "waitingOn": {"reason": "Pods", "message": "m", "since": "2026-01-01T00:00:00Z"},
                "phases": [{"phase": "Queued", "startedAt": "2026-01-01T00:00:00Z"}],
                "conditions": [{"type": "Stalled", "status": "False", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}),
        ),
        object(
            json!({"nodeName": "gpu-1", "origin": "Episode", "selector": "gpu", "action": "HostMaintenance"}),
            json!({"record": "{}"}),
        ),
        object(
            json!({"nodeName": "gpu-1", "cordon": true, "waitForCompletion": {"podSelector": "a"}, "drainSpec": {"timeoutSeconds": 0}}),
            json!({}),
        ),
    ]
}

fn kubeconfig_seeds() -> [String; 2] {
    let config = |user: &str, server: &str| {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: lab\nclusters:\n- name: lab\n  cluster:\n    server: {server}\n    insecure-skip-tls-verify: true\ncontexts:\n- name: lab\n  context:\n    cluster: lab\n    user: lab\n    namespace: haulout\nusers:\n- name: lab\n  user:\n{user}"
        )
    };
    [
        config("    token: s3cret-token-of-the-lab\n", "https://127.0.0.1:6443"),
        config(
            "    username: ada\n    password: s3cret\n    client-certificate-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg==\n    client-key-data: bm9uZQ==\n    as: bob\n    as-groups: [a, b]\n",
            "http://[::1]:8080/prefix",
        ),
    ]
}

/// The seeds of each target.
fn seeds() -> Vec<(String, String)> {
    let numbered = |target: &'static str, end: &'static str, texts: &[&str]| {
        let texts = texts.iter().enumerate();
        texts
            .map(|(index, text)| (format!("{target}/{index}.{end}"), (*text).to_owned()))
            .collect::<Vec<_>>()
    };
    let selectors = [
        "gpu",
        "nvidia.com/gpu.present=true, !maintenance ,zone in (a,b),x",
        "gpu notin ( a, b ),c!=d,e==f",
        "haulout.example/gpu",
        " cluster = \"a,\\\"b\\\"\" , severity!=\"critical\",alertname=~\"Kube.*|Node.*\"",
    ];
    let names = [
        "gpu-1.example.com\n00112233445566778899aabbccddeeff\nAB12-cd34/ef56-7890",
        "vsphere://4215e1a2-7c3d-9e4f-0102-030405060708\n\n../x",
        "00-00112233445566778899aabbccddeeff-0123456789abcdef-01",
        "a\u{1b}[31m\u{202e}b",
    ];
    let all = |texts: &[String]| {
        texts
            .iter()
            .map(String::as_str)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let owned = |target, end, texts: Vec<String>| {
        numbered(target, end, &texts.iter().map(String::as_str).collect::<Vec<_>>())
    };
    [
        owned("settings", "txt", all(&settings_seeds())),
        numbered("selector", "txt", &selectors),
        numbered("name", "txt", &names),
        owned("maintenance", "json", all(&maintenance_seeds())),
        owned("kubeconfig", "yaml", all(&kubeconfig_seeds())),
    ]
    .concat()
}

fn run(target: &str, text: &str) {
    match target {
        "settings" => settings(text),
        "selector" => selector(text),
        "name" => name(text),
        "maintenance" => maintenance(text.as_bytes()),
        "kubeconfig" => kubeconfig(text),
        _ => panic!("{target}"),
    }
}

#[test]
fn seeds_are_read_and_the_fuzzer_has_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/seeds");
    assert_eq!(
        outdated_seeds(&folder, &seeds()).unwrap(),
        [] as [&str; 0],
        "not current: HAULOUT_WRITE_REFERENCE=1 cargo test --lib fuzz"
    );
    for (seed, text) in seeds() {
        run(seed.split('/').next().unwrap(), &text);
    }
    for text in maintenance_seeds() {
        assert!(serde_json::from_str::<NodeMaintenance>(&text).is_ok(), "{text}");
    }
    assert_eq!(
        client_of(Kubeconfig::from_yaml(&kubeconfig_seeds()[0]).unwrap()),
        None
    );
    let [settings, ..] = settings_seeds();
    let flags = settings.lines().map(|line| OsString::from(flag(line)));
    let args = ["haulout".into(), "run".into()].into_iter().chain(flags);
    assert!(Cli::read(args).is_ok());
}

/// Removes, repeats or writes over a few stretches of `text`.
fn damaged(text: &str, rng: &mut Rng) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    for _ in 0..=rng.usize(..3) {
        let at = rng.usize(..letters.len() + 1);
        let end = (at + rng.usize(..20)).min(letters.len());
        match rng.usize(..3) {
            0 => drop(letters.drain(at..end)),
            1 => {
                let stretch = letters[at..end].to_vec();
                letters.splice(at..at, stretch);
            }
            _ => {
                let token = TOKENS[rng.usize(..TOKENS.len())];
                letters.splice(at..end.min(at + rng.usize(..3)), token.chars());
            }
        }
    }
    letters.into_iter().collect()
}

#[test]
fn damaged_seeds_hold_the_same_promises() {
    let mut rng = Rng::with_seed(0x9e37_79b9_7f4a_7c15);
    for (seed, text) in seeds() {
        let target = seed.split('/').next().unwrap();
        // Building the command line takes a millisecond and more.
        let cases = if target == "settings" { 60 } else { 600 };
        for _ in 0..cases {
            run(target, &damaged(&text, &mut rng));
        }
    }
}
