//! The schema of NodeMaintenance with its CEL rules, against what the program reads: no object that the kube-apiserver accepts may be
//! unreadable, and what the program writes of it is accepted again.

use fastrand::Rng;
use haulout::cli::Cli;
use haulout::nodemaintenance::kind::{
    MaintenanceAction, MaintenanceWindow, NodeMaintenance, NodeMaintenanceSpec,
};
use haulout::window::WindowError;
use haulout_lab::kube::{Kube, KubeOptions};
use kube::Api;
use kube::api::ListParams;
use serde_json::{Map, Value, json};

/// Objects with several random values, besides one for each value alone.
const COMBINED: usize = 400;
const PATH: &str = "/apis/haulout.dev/v1alpha1/nodemaintenances";

/// Points in time: valid ones, and what a lenient reader takes for one.
fn times() -> Vec<Value> {
    let texts = [
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00.123456789Z",
        "2026-01-01T00:00:00.1234567890123Z",
        "2026-01-01T00:00:00+05:30",
        "2026-01-01T00:00:00+23:59",
        "2026-01-01T00:00:00+24:00",
        "2026-01-01T00:00:00+99:99",
        "2026-01-01T00:00:00-00:00",
        "2026-01-01t00:00:00z",
        "2026-01-01T00:00:00x5Z",
        "2026-01-01T00:00:00Ztomorrow",
        "2026-01-01T00:00:60Z",
        "2016-12-31T23:59:60Z",
        "2026-01-01T24:00:00Z",
        "2026-02-29T00:00:00Z",
        "2026-01-01 00:00:00Z",
        "2026-01-01T00:00Z",
        "2026-01-01",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "9999-12-31T23:59:59-23:59",
        "10000-01-01T00:00:00Z",
        "",
    ];
    let others = [json!(null), json!(0), json!(true), json!({})];
    texts.iter().map(|text| json!(text)).chain(others).collect()
}

fn numbers(max: u64) -> Vec<Value> {
    vec![
        json!(null),
        json!(-1),
        json!(0),
        json!(1),
        json!(1.0),
        json!(1.5),
        json!(1e2),
        json!(max),
        json!(max + 1),
        json!(4_294_967_295_u64),
        json!(4_294_967_296_u64),
        json!(9_007_199_254_740_993_u64),
        json!(1e300),
        json!("1"),
        json!([]),
    ]
}

fn texts(max: usize) -> Vec<Value> {
    vec![
        json!(null),
        json!(""),
        json!("a"),
        json!("a\u{0}\u{1b}[2J\u{202e}b\nc"),
        json!("a".repeat(max)),
        json!("a".repeat(max + 1)),
        json!("\u{1f4a9}".repeat(max)),
        json!(7),
        json!({"a": 1}),
    ]
}

fn windows() -> Vec<Value> {
    let mut all = vec![json!(null), json!({}), json!("22:00-04:00 UTC"), json!([])];
    let window = |key: &str, value: Value| {
        let mut window = json!({"start": "22:00", "end": "04:00"});
        window[key] = value;
        window
    };
    for time in [
        "00:00",
        "23:59",
        "24:00",
        "9:00",
        "22:00:00",
        " 22:00",
        "22:00\n",
        "٢٢:٠٠",
        "",
    ] {
        all.push(window("start", json!(time)));
        all.push(window("end", json!(time)));
    }
    all.extend([json!(null), json!(22)].map(|value| window("start", value)));
    let zones = [
        "UTC",
        "utc",
        "Europe/Berlin",
        "europe/berlin",
        "GMT+1",
        "Etc/GMT-14",
        "+02:00",
        "EST5EDT",
        "Etc/Unknown",
        "No/Where",
        "posix/UTC",
        "/etc/passwd",
        "../UTC",
        "",
    ];
    all.extend(zones.map(|zone| window("timeZone", json!(zone))));
    all.extend([json!(null), json!(1), json!("a".repeat(65))].map(|zone| window("timeZone", zone)));
    let days = [
        json!(null),
        json!([]),
        json!(["Mon"]),
        json!(["Mon", "Sun"]),
        json!(["Mon", "Mon"]),
        json!(["Monday"]),
        json!(["mon"]),
        json!(["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]),
        json!([null]),
        json!("Mon"),
    ];
    all.extend(days.map(|days| window("days", days)));
    all.push(json!({"start": "22:00", "end": "22:00", "timeZone": "UTC", "extra": 1}));
    all
}

/// The fields of a spec with values at and beyond the limits of the schema.
fn spec_values() -> Vec<(&'static str, Vec<Value>)> {
    let names = |more: &[Value]| texts(253).into_iter().chain(more.iter().cloned()).collect();
    let words = |words: &[&str]| {
        let wrong = [json!(null), json!(""), json!("drain"), json!(1)];
        words.iter().map(|word| json!(word)).chain(wrong).collect()
    };
    vec![
        (
            "nodeName",
            names(&[json!("gpu-1.example.com"), json!("GPU_1"), json!("../nodes")]),
        ),
        ("reason", texts(1024)),
        ("requestedBy", texts(253)),
        (
            "action",
            words(&["Drain", "PowerOff", "Relocate", "Reboot", "HostMaintenance"]),
        ),
        ("targetHost", texts(253)),
        ("drainTimeoutSeconds", numbers(604_800)),
        ("drainTimeoutAction", words(&["PowerOff", "Hold"])),
        ("guestShutdownTimeoutSeconds", numbers(86_400)),
        ("notBefore", times()),
        ("window", windows()),
        ("origin", words(&["Request", "Episode"])),
        ("selector", texts(2_000)),
        ("unknown", vec![json!(1)]),
    ]
}

/// The fields of a status, likewise.
fn status_values() -> Vec<(&'static str, Vec<Value>)> {
    let condition = |at: Value| json!([{"type": "Stalled", "status": "True", "reason": "A", "message": "", "lastTransitionTime": at, "observedGeneration": 1}]);
    let lists = vec![json!(null), json!([]), json!(["a/b"]), json!([null])];
    vec![
        ("observedGeneration", numbers(1)),
        ("phase", texts(1)),
        ("totalPods", numbers(1)),
        ("evictionPods", numbers(1)),
        ("drainProgress", numbers(100)),
        ("pendingPods", lists.clone()),
        ("leftBehind", lists),
        (
            "pods",
            vec![
                json!(null),
                json!([]),
                json!([{"namespace": "a", "name": "b", "reason": "c", "state": null}]),
            ],
        ),
        (
            "phases",
            vec![
                json!(null),
                json!([{"phase": "a", "startedAt": "b", "endedAt": null}]),
            ],
        ),
        (
            "waitingOn",
            vec![
                json!(null),
                json!({}),
                json!({"reason": "a", "message": "b", "since": "c", "nextStep": null}),
            ],
        ),
        ("endedAt", texts(1)),
        ("record", texts(1)),
        ("conditions", times().into_iter().map(condition).collect()),
    ]
}

/// Each value alone beside `base`, and random combinations of a few.
fn objects(base: &Map<String, Value>, fields: &[(&str, Vec<Value>)]) -> Vec<Value> {
    let with = |changes: &[(&str, &Value)]| {
        let mut object = base.clone();
        for (name, value) in changes {
            object.insert((*name).to_owned(), (*value).clone());
        }
        Value::Object(object)
    };
    let single = fields
        .iter()
        .flat_map(|(name, values)| values.iter().map(move |value| with(&[(name, value)])));
    let mut objects: Vec<Value> = single.collect();
    let mut rng = Rng::with_seed(0x9e37_79b9_7f4a_7c15);
    for _ in 0..COMBINED {
        let changes: Vec<(&str, &Value)> = (0..=rng.usize(..4))
            .map(|_| {
                let (name, values) = &fields[rng.usize(..fields.len())];
                (*name, &values[rng.usize(..values.len())])
            })
            .collect();
        objects.push(with(&changes));
    }
    objects
}

/// What the kube-apiserver would store; `None` if it refuses the object.
async fn accepted(client: &kube::Client, method: http::Method, path: &str, body: &Value) -> Option<Value> {
    let uri = format!("{path}?dryRun=All&fieldValidation=Ignore");
    let request = http::Request::builder()
        .method(method)
        .uri(uri)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(serde_json::to_vec(body).unwrap())
        .unwrap();
    let reply = tokio::time::timeout(super::DEADLINE, client.request::<Value>(request))
        .await
        .expect("an answer in time");
    match reply {
        Ok(object) => Some(object),
        Err(kube::Error::Api(status)) => {
            assert!(matches!(status.code, 400 | 422), "{body}: {status:?}");
            None
        }
        Err(error) => panic!("{body}: {error}"),
    }
}

fn named(spec: &Value) -> Value {
    json!({"apiVersion": "haulout.dev/v1alpha1", "kind": "NodeMaintenance", "metadata": {"name": "tried"}, "spec": spec})
}

/// The object as the program reads it.
fn readable(object: &Value) -> Result<NodeMaintenance, String> {
    let read = serde_json::from_value::<NodeMaintenance>(object.clone());
    let read = read.map_err(|error| format!("accepted and unreadable ({error}): {object}"))?;
    match read.spec.window.as_ref().map(MaintenanceWindow::read) {
        // No schema lists the time zones, and a wrong one is shown in the status of the request.
        None | Some(Ok(_) | Err(WindowError::TimeZone(_))) => Ok(read),
        Some(Err(wrong)) => Err(format!(
            "accepted with a window that cannot be used ({wrong}): {object}"
        )),
    }
}

async fn check_specs(client: &kube::Client) -> Vec<String> {
    let mut problems = Vec::new();
    let base = json!({"nodeName": "gpu-1"});
    let (mut taken, mut refused) = (0, 0);
    for spec in objects(base.as_object().unwrap(), &spec_values()) {
        let Some(stored) = accepted(client, http::Method::POST, PATH, &named(&spec)).await else {
            refused += 1;
            continue;
        };
        taken += 1;
        let object = match readable(&stored) {
            Ok(object) => object,
            Err(problem) => {
                problems.push(problem);
                continue;
            }
        };
        let written = serde_json::to_value(&object.spec).unwrap();
        match accepted(client, http::Method::POST, PATH, &named(&written)).await {
            Some(again) if again["spec"] == written => {}
            again => problems.push(format!("of {spec} {written} is written, and {again:?} is stored")),
        }
    }
    assert!(
        taken > 150 && refused > 150,
        "{taken} are accepted, {refused} are refused"
    );
    problems
}

/// CEL rules about a change: what they allow keeps these fields.
async fn check_changes(client: &kube::Client, fixed: &[NodeMaintenanceSpec]) -> Vec<String> {
    let mut problems = Vec::new();
    for spec in fixed {
        let first = named(&serde_json::to_value(spec).unwrap());
        let create = format!("{PATH}?fieldValidation=Strict");
        let request = http::Request::post(create).header(http::header::CONTENT_TYPE, "application/json");
        let request = request.body(serde_json::to_vec(&first).unwrap()).unwrap();
        let stored: Value = client.request(request).await.unwrap();
        let path = format!("{PATH}/tried");
        let (mut taken, mut refused) = (0, 0);
        for changed in objects(stored["spec"].as_object().unwrap(), &spec_values()) {
            let mut body = stored.clone();
            body["spec"] = changed;
            let Some(changed) = accepted(client, http::Method::PUT, &path, &body).await else {
                refused += 1;
                continue;
            };
            taken += 1;
            let changed = match readable(&changed) {
                Ok(changed) => changed.spec,
                Err(problem) => {
                    problems.push(problem);
                    continue;
                }
            };
            let kept = |of: &NodeMaintenanceSpec| {
                let NodeMaintenanceSpec {
                    node_name,
                    origin,
                    action,
                    target_host,
                    requested_by,
                    ..
                } = of.clone();
                (node_name, origin, action, target_host, requested_by)
            };
            assert_eq!(kept(&changed), kept(spec), "these cannot be changed");
        }
        assert!(
            taken > 100 && refused > 100,
            "{taken} are accepted, {refused} are refused"
        );
        problems.extend(check_statuses(client, &stored).await);
        let request = http::Request::delete(&path).body(Vec::new()).unwrap();
        client.request::<Value>(request).await.unwrap();
    }
    problems
}

async fn check_statuses(client: &kube::Client, stored: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    let path = format!("{PATH}/tried/status");
    let (mut taken, mut refused) = (0, 0);
    for status in objects(&Map::new(), &status_values()) {
        let mut body = stored.clone();
        body["status"] = status;
        match accepted(client, http::Method::PUT, &path, &body).await {
            Some(changed) => {
                taken += 1;
                problems.extend(readable(&changed).err());
            }
            None => refused += 1,
        }
    }
    assert!(
        taken > 50 && refused > 50,
        "{taken} are accepted, {refused} are refused"
    );
    problems
}

#[tokio::test]
async fn every_accepted_nodemaintenance_is_readable() {
    let kube = Kube::start(&KubeOptions::default()).await.unwrap();
    let client = kube.client();
    let mut problems = check_specs(&client).await;
    let request = NodeMaintenanceSpec {
        node_name: "gpu-1".to_owned(),
        ..NodeMaintenanceSpec::default()
    };
    let relocation = NodeMaintenanceSpec {
        action: MaintenanceAction::Relocate,
        target_host: Some("esx-2.example.com".to_owned()),
        requested_by: Some("ada@example.com".to_owned()),
        ..request.clone()
    };
    problems.extend(check_changes(&client, &[request, relocation]).await);
    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems.join("\n")
    );
    kube.stop().await.unwrap();
}

/// The parts of one requirement of a random selector: a key, an operator and a value, with spaces around.
const REQUIREMENT_PARTS: [&[&str]; 6] = [
    &["", "", "!", "! ", " ", "\u{a0}"],
    &[
        "gpu",
        "in",
        "notin",
        "example.com/gpu",
        "a-b_c.d",
        "A1",
        "x/y/z",
        "-a",
        "",
    ],
    &["", "", " ", "\t", "\n", "\u{b}"],
    &["", "=", "==", "!=", " in ", " notin ", "in", ">"],
    &["", "", " ", "\r", "\u{2003}"],
    &[
        "",
        "a",
        "in",
        "(a)",
        "(a, b)",
        "(a\u{a0},b)",
        "()",
        "(,)",
        "1.2-x",
        "a b",
    ],
];

/// A typing error would end each watch of Nodes with a refusal, so what the setting accepts is accepted by the kube-apiserver.
#[tokio::test]
async fn every_accepted_selector_is_one_for_kubernetes() {
    let kube = Kube::start(&KubeOptions::default()).await.unwrap();
    let nodes: Api<super::core::Node> = Api::all(kube.client());
    let mut rng = Rng::with_seed(0x2545_f491_4f6c_dd1d);
    let mut tried = std::collections::BTreeSet::new();
    for _ in 0..3_000 {
        let mut requirement = || {
            REQUIREMENT_PARTS
                .map(|parts| parts[rng.usize(..parts.len())])
                .concat()
        };
        let (one, two) = (requirement(), requirement());
        tried.insert(if two.len() % 3 == 0 {
            format!("{one},{two}")
        } else {
            one
        });
    }
    let is_accepted = |selector: &String| {
        let args = [
            "haulout",
            "run",
            "--vcenter-host=a",
            "--vcenter-user=b",
            "--vcenter-password=c",
        ]
        .map(Into::into);
        let selector = format!("--gpu-node-label={selector}").into();
        // An empty value is not set.
        selector != "--gpu-node-label=" && Cli::read(args.into_iter().chain([selector])).is_ok()
    };
    let accepted: Vec<&String> = tried.iter().filter(|selector| is_accepted(selector)).collect();
    assert!(accepted.len() > 100, "{} are accepted", accepted.len());
    let mut refused = Vec::new();
    for selector in &accepted {
        let params = ListParams::default().labels(selector.trim()).limit(1);
        let listed = tokio::time::timeout(super::DEADLINE, nodes.list(&params))
            .await
            .expect("an answer in time");
        match listed {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 400 => refused.push(*selector),
            Err(error) => panic!("{selector:?}: {error}"),
        }
    }
    assert_eq!(refused, [] as [&String; 0]);
    kube.stop().await.unwrap();
}
