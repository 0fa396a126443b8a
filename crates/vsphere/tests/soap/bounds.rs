//! Bounds: a server that responds without end, and a watch set that changes all the time.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use haulout_core::ids::{HostRef, TaskRef, VmUuid};
use haulout_vsphere::update::{VmKey, VsphereUpdate, WatchSet};
use tokio::sync::watch;

use super::server::{Fake, Reply, Request, change, follow, host, is_reread};

fn first_set() -> String {
    host("enter", "host-1", &change("name", "esx1"))
}

fn is_page(call: &Request) -> bool {
    call.method().ends_with("RetrievePropertiesEx")
}

#[tokio::test]
async fn reading_of_pages_without_an_end_is_given_up() {
    let object = r#"<objects><obj type="VirtualMachine">vm-1</obj></objects>"#;
    let page = format!(
        "<returnval><token>more</token>{}</returnval>",
        object.repeat(20_000)
    );
    let (fake, vcenter, _server) =
        Fake::start(move |call: &Request| is_page(call).then(|| Reply::of(call.method(), &page))).await;
    let error = vcenter.survey(&[HostRef::new("host-1")]).await.unwrap_err();
    assert!(
        error.chain().contains("no end after 200000 objects"),
        "{}",
        error.chain()
    );
    assert_eq!(fake.calls("ContinueRetrievePropertiesEx").len(), 10);
}

#[tokio::test]
async fn set_without_an_end_breaks_the_stream() {
    let sent = AtomicUsize::new(0);
    let (_fake, vcenter, _server) = Fake::start(move |call: &Request| {
        (call.method() == "WaitForUpdatesEx").then(|| {
            let n = sent.fetch_add(1, Ordering::SeqCst);
            let set = format!("<returnval><version>{n}</version><truncated>true</truncated></returnval>");
            Reply::of("WaitForUpdatesEx", &set)
        })
    })
    .await;
    let mut stream = follow(&vcenter, WatchSet::default());
    let why = stream.lost().await;
    assert!(why.contains("no end after 1000 parts of one set"), "{why}");
    stream.stop().await;
}

#[tokio::test]
async fn set_that_is_too_large_is_asked_for_in_smaller_parts() {
    for content in [" ".repeat(33 << 20), "<a/>".repeat(500_001)] {
        let large = Reply::of("WaitForUpdatesEx", &content);
        let (fake, vcenter, _server) = Fake::start(move |call: &Request| {
            let is_first = call.method() == "WaitForUpdatesEx" && call.value("version") == Some("");
            is_first.then(|| match call.value("maxObjectUpdates") {
                Some("100" | "50") => large.clone(),
                _ => {
                    let set = format!(
                        "<returnval><version>1</version><filterSet>{}</filterSet></returnval>",
                        first_set()
                    );
                    Reply::of("WaitForUpdatesEx", &set)
                }
            })
        })
        .await;
        let mut stream = follow(&vcenter, WatchSet::default());
        for _ in 0..2 {
            stream.lost().await;
        }
        stream.settled().await;
        let polls = fake.calls("WaitForUpdatesEx");
        let first = polls.iter().filter(|call| call.value("version") == Some(""));
        let sizes: Vec<_> = first
            .take(3)
            .filter_map(|call| call.value("maxObjectUpdates"))
            .collect();
        assert_eq!(sizes, ["100", "50", "25"]);
        stream.stop().await;
    }
}

#[tokio::test]
async fn watch_set_that_changes_constantly_does_not_starve_the_reread() {
    let watch_set: Arc<OnceLock<watch::Sender<WatchSet>>> = Arc::default();
    let changing = watch_set.clone();
    let mut count = 0;
    let (fake, vcenter, _server) = Fake::start_with(
        move |call: &Request| {
            // The next change comes as soon as one is handled.
            if call.method() == "ModifyListView"
                && let Some(watch_set) = changing.get()
            {
                count += 1;
                watch_set.send_modify(|watch_set| {
                    watch_set.tasks = [TaskRef::new(format!("task-{count}"))].into()
                });
            }
            None
        },
        |settings| settings.reread_every = Duration::from_millis(50),
    )
    .await;
    fake.push(1, &first_set());
    let mut stream = follow(&vcenter, WatchSet::default());
    stream.settled().await;
    stream
        .watch_set
        .send_modify(|watch_set| watch_set.tasks = [TaskRef::new("task-0")].into());
    watch_set.set(stream.watch_set.clone()).unwrap();
    for rereads in 1..=3 {
        fake.counted_where(is_reread, rereads).await;
    }
    stream.stop().await;
}

#[tokio::test]
async fn new_keys_beyond_the_rate_are_read_later() {
    let asked = Arc::new(Mutex::new(BTreeSet::new()));
    let asking = asked.clone();
    let (fake, vcenter, _server) = Fake::start(move |call: &Request| {
        if call.method() == "FindAllByUuid" {
            asking
                .lock()
                .unwrap()
                .insert(call.value("uuid").unwrap().to_owned());
        }
        None
    })
    .await;
    fake.push(1, &first_set());
    let mut stream = follow(&vcenter, WatchSet::default());
    stream.settled().await;
    let uuid = |n: u32| VmUuid::parse(&format!("42160000-0000-4000-8000-{n:012x}")).unwrap();
    let keys: BTreeSet<VmKey> = (0..1_003).map(|n| VmKey::Uuid(uuid(n))).collect();
    stream
        .watch_set
        .send_modify(|watch_set| watch_set.vms = keys.into());
    let mut found = 0;
    let is_found = |update: &VsphereUpdate| matches!(update, VsphereUpdate::Found { .. }).then_some(());
    stream.until(is_found).await;
    found += 1;
    // The rest is read some tenths of a second later.
    assert!(asked.lock().unwrap().len() < 2 * 1_003);
    while found < 1_003 {
        stream.until(is_found).await;
        found += 1;
    }
    assert_eq!(asked.lock().unwrap().len(), 2 * 1_003);
    stream.stop().await;
}
