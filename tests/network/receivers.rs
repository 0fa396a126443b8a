//! Alertmanager and the receiver of notifications. Both are trusted by the CAs of the system, which a variable names, so they are
//! asked in a process of its own.

use std::time::Duration;

use haulout::controller::observer::Observer as _;
use haulout::fence::WriteFence;
use haulout::ids::NodeName;
use haulout::telemetry::client::client;
use haulout::telemetry::link::Links;
use haulout::telemetry::notify::{Notifications, Webhook};
use haulout::telemetry::silences::{AlertmanagerApi as _, LeaderAlertmanager};
use haulout::telemetry::sink;
use haulout_core::fixtures;
use haulout_core::maintenance::episode::{Phase, Record};
use haulout_core::maintenance::observed::BoundVm;
use haulout_core::maintenance::waiting::WaitingOn;
use haulout_core::status::node_event::NodeEvent;
use prometheus_client::metrics::counter::Counter;
use tokio::process::Command;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::addresses::HOSTS;
use crate::certificates::OF_SAME_NAME;
use crate::peers::{Authority, Files, Peer, output};

/// The server that is asked in the process of its own.
const ADDRESS: &str = "HAULOUT_TEST_RECEIVER";

/// Whether a notification is sent there, which is tried four times if there is no answer.
const NOTIFIES: &str = "HAULOUT_TEST_NOTIFIES";

/// Asks `address`, where the CAs of the system are those of the file `ca`. Returns what was said of Alertmanager, and the log.
pub async fn ask(address: &str, ca: &str, notifies: bool) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "receivers::certificates_of_receivers_are_verified_by_the_cas_of_the_system",
            "--exact",
            "--nocapture",
        ])
        .env("SSL_CERT_FILE", ca)
        .env(ADDRESS, address)
        .env(NOTIFIES, notifies.to_string())
        .kill_on_drop(true);
    let output = output(command).await;
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    said
}

/// In the process of its own.
async fn ask_here(address: &str) {
    let files = Files::create("receivers");
    let url_file = |name: &str, path: &str| files.write(name, format!("https://{address}{path}\n")).into();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let api = LeaderAlertmanager {
        client: client().unwrap(),
        url_file: url_file("alertmanager", ""),
        fence: WriteFence::without_election(),
    };
    println!("{}", api.silences().await.unwrap_err());
    if std::env::var(NOTIFIES).is_ok_and(|it| it == "false") {
        return;
    }
    tracing_subscriber::fmt().with_writer(std::io::stdout).init();
    let notifications = Notifications::new("r", Links::default(), || fixtures::at(0));
    let record = Record::Episode(fixtures::episode(Phase::Draining, 1).into());
    let waits = NodeEvent::Waits {
        node: None,
        vm: &BoundVm::NoVm,
        record: &record,
        on: &WaitingOn::Skip,
    };
    notifications.observe(&NodeName::new("gpu-1"), &fixtures::beat(waits, fixtures::at(0)));
    let webhook = Webhook {
        client: client().unwrap(),
        url_file: url_file("webhook", "/hook"),
    };
    let (lost, stop) = (Counter::<u64>::default(), CancellationToken::new());
    let until_lost = async {
        while lost.get() == 0 {
            sleep(Duration::from_millis(10)).await;
        }
        stop.cancel();
    };
    let sending = sink::run(&webhook, notifications.outbox(), lost.clone(), stop.clone());
    tokio::join!(sending, until_lost);
}

#[tokio::test]
async fn certificates_of_receivers_are_verified_by_the_cas_of_the_system() {
    if let Ok(address) = std::env::var(ADDRESS) {
        return ask_here(&address).await;
    }
    let (authority, other) = (Authority::create(), Authority::create());
    let files = Files::create("cas");
    let ca = files.write("ca.crt", &authority.pem);
    let names = ["127.0.0.1", "localhost", "::1"];
    for (at, host) in HOSTS {
        let peer = Peer::server(at, Some(authority.acceptor(&names))).await;
        let said = ask(&format!("{host}:{}", peer.port()), &ca, true).await;
        assert!(
            said.contains("the Alertmanager of ALERTMANAGER_URL_FILE answered")
                && said.contains("the receiver of NOTIFY_URL_FILE answered 404"),
            "{host}: {said}"
        );
        let asked = peer.seen();
        assert!(asked[0].starts_with("GET /api/v2/silences"), "{host}: {asked:?}");
        assert_eq!(asked[1], "POST /hook HTTP/1.1", "{host}");
    }

    let peer = Peer::server("127.0.0.1:0", Some(authority.acceptor(&names))).await;
    let address = peer.address.to_string();
    let said = ask(&address, &files.write("other.crt", &other.pem), true).await;
    for receiver in [
        "the Alertmanager of ALERTMANAGER_URL_FILE was not reached: ",
        "the receiver of NOTIFY_URL_FILE was not reached: ",
    ] {
        let line = said.lines().find(|line| line.contains(receiver));
        assert!(line.is_some_and(|line| line.contains(OF_SAME_NAME)), "{said}");
    }
    assert_eq!(peer.seen(), [""; 0]);
}
