use serde_json::{Value, json};

use super::*;
use crate::kubernetes::lease::HeldLeadership;
use crate::kubernetes::stand_in::{RequestLog, ScriptedReply, refusal, server};
use crate::kubernetes::watch::tests;

fn node(name: &str, annotations: Value) -> Value {
    json!({"metadata": {"name": name, "uid": format!("uid-{name}"), "annotations": annotations}})
}

fn selection() -> Selection {
    Selection {
        keys: crate::keys::Keys::under("one.example"),
        ..tests::selection("gpu=true")
    }
}

fn page(nodes: &[Value], continue_token: &str) -> ScriptedReply {
    ScriptedReply::Json(
        200,
        json!({
            "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": "9", "continue": continue_token},
            "items": nodes,
        }),
    )
}

/// Answers lists of all Nodes from `pages`, and of those that the selector matches with `selected`.
fn cluster(mut pages: Vec<ScriptedReply>, selected: Vec<Value>) -> (kube::Client, RequestLog) {
    pages.reverse();
    server(move |seen| {
        if seen.query.contains("labelSelector=gpu%3Dtrue") {
            return page(&selected, "");
        }
        pages.pop().unwrap_or_else(|| page(&[], ""))
    })
}

fn fields(stranded: &[StrandedNode]) -> Vec<(&str, &str, &str, bool, bool)> {
    let all = stranded.iter();
    all.map(|it| {
        (
            it.name.as_str(),
            it.uid.as_str(),
            it.prefix.as_str(),
            it.is_ours,
            it.is_selected,
        )
    })
    .collect()
}

#[tokio::test]
async fn episodes_on_one_node_do_not_hide_those_of_others() {
    let open = "{\"version\":1}";
    let mut many: serde_json::Map<String, Value> = (0..2_000)
        .map(|n| (format!("p{n}/episode"), json!(open)))
        .collect();
    many.insert("one.example/episode".to_owned(), json!(open));
    let nodes = [
        node("a", many.into()),
        node("b", json!({"one.example/episode": open})),
    ];
    let (client, _) = cluster(vec![page(&nodes, "")], Vec::new());
    let stranded = scan(&client, &selection()).await.unwrap();
    let ours = stranded.iter().filter(|it| it.is_ours).map(|it| it.name.as_str());
    assert_eq!(ours.collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(stranded.len(), OF_ONE_NODE_MAX + 1);
}

#[tokio::test]
async fn episodes_are_found_on_every_page_and_under_every_prefix() {
    let open = "{\"version\":1,\"id\":\"x\"}";
    let (client, log) = cluster(
        vec![
            page(
                &[
                    node("a", json!({"one.example/episode": open})),
                    node("b", json!(null)),
                ],
                "more",
            ),
            page(
                &[node(
                    "c",
                    json!({"two.example/episode": open, "two.example/state": "draining"}),
                )],
                "",
            ),
        ],
        vec![node("c", json!(null))],
    );
    let stranded = scan(&client, &selection()).await.unwrap();
    assert_eq!(
        fields(&stranded),
        [
            ("a", "uid-a", "one.example", true, false),
            ("c", "uid-c", "two.example", false, true),
        ]
    );
    let asked = log.all();
    assert_eq!(asked.len(), 3);
    assert!(asked[1].query.contains("continue=more") && asked[1].query.contains("limit=100"));
    assert!(asked.iter().all(|seen| seen.line == "GET /api/v1/nodes"));
}

#[tokio::test]
async fn scan_without_an_episode_needs_no_second_list() {
    let (client, log) = cluster(
        vec![page(&[node("a", json!({"x/state": "draining"}))], "")],
        vec![],
    );
    assert!(scan(&client, &selection()).await.unwrap().is_empty());
    assert_eq!(log.count(), 1);
}

#[test]
fn only_a_versioned_episode_of_bounded_size_counts() {
    let prefixes_of = |key: &str, value: &str| {
        prefixes(
            &BTreeMap::from([(key.to_owned(), value.to_owned())]),
            &selection().keys,
        )
    };
    assert_eq!(prefixes_of("p.example/episode", "{\"version\":2}"), ["p.example"]);
    for (key, value) in [
        ("p.example/episode", "{}"),
        ("p.example/episode", "{\"version\":\"1\"}"),
        ("p.example/episode", "[]"),
        ("p.example/episode", "draining"),
        ("p.example/last-episode", "{\"version\":1}"),
        ("episode", "{\"version\":1}"),
    ] {
        assert!(prefixes_of(key, value).is_empty(), "{key}: {value}");
    }
    let long = format!("{{\"version\":1,\"x\":\"{}\"}}", "x".repeat(VALUE_BYTES_MAX));
    assert!(prefixes_of("p.example/episode", &long).is_empty());
}

#[tokio::test(start_paused = true)]
async fn list_that_never_ends_is_aborted() {
    let (client, log) = server(|_| page(&[], "more"));
    assert!(scan(&client, &selection()).await.is_err());
    assert_eq!(log.count(), PAGES_MAX);
}

#[tokio::test]
async fn number_of_reported_episodes_is_limited() {
    let open = json!({"p.example/episode": "{\"version\":1}"});
    let many: Vec<Value> = (0..STRANDED_MAX + 5)
        .map(|number| node(&format!("n{number}"), open.clone()))
        .collect();
    let (client, _) = cluster(vec![page(&many, "")], vec![]);
    assert_eq!(scan(&client, &selection()).await.unwrap().len(), STRANDED_MAX);
}

#[tokio::test(start_paused = true)]
async fn a_scan_follows_the_start_each_leadership_and_ten_minutes() {
    let refused = || refusal(403, "Forbidden", "no", Value::Null);
    let (client, log) = cluster(vec![refused(), page(&[], "")], vec![]);
    let (lead, status) = watch::channel(ElectionStatus::default());
    let (context, mut updates) = tests::context(client);
    let stop = context.stop.clone();
    let scanning = run(selection(), status, context);
    let begin = tokio::time::Instant::now();
    let reading = async {
        let mut next = async || {
            let update = tokio::time::timeout(EVERY * 2, updates.recv()).await.unwrap();
            assert_eq!(update, Some(KubernetesUpdate::Scanned { stranded: Vec::new() }));
            begin.elapsed().as_secs()
        };
        let first = next().await;
        assert!((1..=2).contains(&first), "after the refusal, at {first} s");
        lead.send_modify(|status| status.leader = Some("somebody".to_owned()));
        let second = next().await;
        assert!((600..=603).contains(&second), "{second} s");
        let lead_by = |epoch| {
            let lead_on = HeldLeadership {
                epoch,
                quarantine: Duration::ZERO,
                yields: false,
            };
            lead.send_modify(|status| status.leadership = Some(lead_on));
        };
        lead_by(7);
        assert_eq!(next().await, second, "at the start of the leadership");
        lead_by(7);
        assert_eq!(next().await, second + 600, "which is the same still");
        stop.cancel();
    };
    futures::join!(scanning, reading);
    assert_eq!(log.count(), 5);
}

#[test]
fn ended_episode_counts_while_its_requests_may_still_stop_the_vm() {
    use crate::maintenance::clock::Timer;
    use crate::maintenance::episode::{InFlight, Phase};
    use crate::maintenance::record::{EndedEpisode, LastEpisode, write_last};
    use haulout_core::fixtures::{at, episode, moment};
    let ended = |in_flight| {
        write_last(&LastEpisode {
            ended: None,
            at: at(9),
            episode: EndedEpisode {
                in_flight,
                ..EndedEpisode::of(&episode(Phase::Rejoining, 1))
            },
        })
    };
    let asked = InFlight {
        guest_shutdown: Some(Timer::start(moment(1))),
        ..InFlight::default()
    };
    let keys = selection().keys;
    for (value, counts) in [
        (ended(asked), true),
        (ended(InFlight::default()), false),
        ("{}".to_owned(), false),
    ] {
        let annotations = BTreeMap::from([(keys.last_episode.clone(), value)]);
        assert_eq!(prefixes(&annotations, &keys).len(), usize::from(counts));
    }
}
