use haulout_core::fixtures::RELEASE;
use serde_json::{Value, json};

use super::*;
use crate::lease::HeldLeadership;
use crate::stand_in::{RequestLog, ScriptedReply, refusal, server};
use crate::watch::tests;

fn node(name: &str, annotations: Value) -> Value {
    json!({"metadata": {"name": name, "uid": format!("uid-{name}"), "annotations": annotations}})
}

fn selection() -> Selection {
    tests::selection("gpu=true")
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

fn fields(stranded: &[StrandedNode]) -> Vec<(&str, &str, bool)> {
    let all = stranded.iter();
    all.map(|it| (it.name.as_str(), it.uid.as_str(), it.is_selected))
        .collect()
}

#[tokio::test]
async fn episodes_are_found_on_every_page() {
    let open = "{\"version\":1,\"id\":\"x\"}";
    let (client, log) = cluster(
        vec![
            page(
                &[
                    node("a", json!({EPISODE: open})),
                    node("b", json!({"other.example/episode": open})),
                ],
                "more",
            ),
            page(
                &[node("c", json!({EPISODE: open, "haulout.dev/state": "draining"}))],
                "",
            ),
        ],
        vec![node("c", json!(null))],
    );
    let stranded = scan(&client, &selection()).await.unwrap();
    assert_eq!(fields(&stranded), [("a", "uid-a", false), ("c", "uid-c", true)]);
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
    let counts = |key: &str, value: &str| {
        let annotations = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        has_episode(&annotations, &selection().releases)
    };
    assert!(counts(EPISODE, "{\"version\":2}"));
    for (key, value) in [
        (EPISODE, "{}"),
        (EPISODE, "{\"version\":\"1\"}"),
        (EPISODE, "[]"),
        (EPISODE, "draining"),
        (LAST_EPISODE, "{\"version\":1}"),
        ("episode", "{\"version\":1}"),
    ] {
        assert!(!counts(key, value), "{key}: {value}");
    }
    let long = format!("{{\"version\":1,\"x\":\"{}\"}}", "x".repeat(VALUE_BYTES_MAX));
    assert!(!counts(EPISODE, &long));
}

#[tokio::test(start_paused = true)]
async fn list_that_never_ends_is_aborted() {
    let (client, log) = server(|_| page(&[], "more"));
    assert!(scan(&client, &selection()).await.is_err());
    assert_eq!(log.count(), PAGES_MAX);
}

#[tokio::test]
async fn number_of_reported_episodes_is_limited() {
    let open = json!({EPISODE: "{\"version\":1}"});
    let many: Vec<Value> = (0..STRANDED_MAX + 5)
        .map(|number| node(&format!("n{number}"), open.clone()))
        .collect();
    let (client, _) = cluster(vec![page(&many, "")], vec![]);
    assert_eq!(scan(&client, &selection()).await.unwrap().len(), STRANDED_MAX);
}

#[tokio::test]
async fn episodes_of_another_release_do_not_displace_ours() {
    let of = |release: Value| json!({EPISODE: json!({"version": 1, "release": release}).to_string()});
    let mut nodes: Vec<Value> = (0..STRANDED_MAX + 5)
        .map(|number| node(&format!("n{number}"), of(json!("other/other"))))
        .collect();
    for (name, release) in [
        ("ours", json!(RELEASE)),
        ("adopted", json!("adopted/haulout")),
        ("nameless", json!(null)),
        ("garbled", json!(7)),
    ] {
        nodes.push(node(name, of(release)));
    }
    let (client, _) = cluster(vec![page(&nodes, "")], vec![]);
    let stranded = scan(&client, &selection()).await.unwrap();
    let names: Vec<&str> = stranded.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["ours", "adopted", "nameless", "garbled"]);
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
    for (value, counts) in [
        (ended(asked), true),
        (ended(InFlight::default()), false),
        ("{}".to_owned(), false),
    ] {
        let annotations = BTreeMap::from([(LAST_EPISODE.to_owned(), value)]);
        assert_eq!(has_episode(&annotations, &selection().releases), counts);
    }
}
