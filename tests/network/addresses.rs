//! Names, IPv4 and IPv6 addresses of every peer, and of what the program listens on.

use std::process::Stdio;

use haulout::fence::WriteFence;
use haulout::telemetry::silences::{AlertmanagerApi as _, LeaderAlertmanager};
use haulout::telemetry::trace::export;
use haulout::vsphere::client::{CredentialPart, CredentialSource, Endpoint, Settings, Trust, Vcenter};
use opentelemetry_sdk::trace::SpanExporter as _;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::peers::{Authority, Files, PATIENCE, Peer, haulout, http_client, output};

/// The address of a server on loopback, and the host by which it is asked.
pub const HOSTS: [(&str, &str); 3] = [
    ("127.0.0.1:0", "127.0.0.1"),
    ("127.0.0.1:0", "localhost"),
    ("[::1]:0", "[::1]"),
];

#[tokio::test]
async fn every_peer_is_reached_by_name_and_by_both_kinds_of_address() {
    let authority = Authority::create();
    let files = Files::create("addresses");
    let ca = files.write("vcenter.crt", &authority.pem);
    let names = ["127.0.0.1", "localhost", "::1"];
    for (at, host) in HOSTS {
        let server = async || Peer::server(at, Some(authority.acceptor(&names))).await;

        let kubernetes = server().await;
        let url = format!("https://{host}:{}", kubernetes.port());
        let kubeconfig = files.kubeconfig(&url, &authority.pem, &[]);
        let listed = output(haulout(&["list"], &[("KUBECONFIG", &kubeconfig)])).await;
        assert!(
            !kubernetes.seen().is_empty(),
            "{url}: {}",
            String::from_utf8_lossy(&listed.stderr)
        );

        let proxy = Peer::proxy("[::1]:0", None, kubernetes.address).await;
        let proxy_url = format!("http://{}", proxy.address);
        let kubeconfig = files.kubeconfig(&url, &authority.pem, &[("proxy-url", &proxy_url)]);
        output(haulout(&["list"], &[("KUBECONFIG", &kubeconfig)])).await;
        assert_eq!(
            proxy.seen()[0],
            format!("CONNECT {host}:{} HTTP/1.1", kubernetes.port())
        );

        let vcenter = server().await;
        let part = || CredentialPart::Given("someone".to_owned().into());
        let credentials = CredentialSource {
            user: part(),
            password: part(),
        };
        let endpoint = Endpoint::parse(&format!("{host}:{}", vcenter.port())).unwrap();
        let trust = Trust::CaBundle(ca.clone().into());
        let client = Vcenter::new(Settings::new(endpoint, credentials, trust)).unwrap();
        assert!(client.probe().await.is_err(), "it answers with 404");
        assert!(!vcenter.seen().is_empty(), "{host}");

        for protocol in ["grpc", "http/protobuf"] {
            let collector = server().await;
            let url = format!("https://{host}:{}", collector.port());
            let read = |name: &str| match name {
                "OTEL_EXPORTER_OTLP_ENDPOINT" => Some(url.clone()),
                "OTEL_EXPORTER_OTLP_PROTOCOL" => Some(protocol.to_owned()),
                "OTEL_EXPORTER_OTLP_CERTIFICATE" => Some(ca.clone()),
                _ => None,
            };
            let exporter = export::exporter(read).unwrap().unwrap();
            let sent = async {
                tokio::select! {
                    biased;
                    () = collector.asked() => {}
                    failed = exporter.export(Vec::new()) => panic!("{url}: {failed:?}"),
                }
            };
            tokio::time::timeout(PATIENCE, sent).await.unwrap();
        }

        let alertmanager = Peer::server(at, None).await;
        let url = format!("http://{host}:{}/prefix\n", alertmanager.port());
        let api = LeaderAlertmanager {
            client: http_client(),
            url_file: files.write("alertmanager", &url).into(),
            fence: WriteFence::without_election(),
        };
        assert!(api.silences().await.is_err(), "it answers with 404");
        assert!(
            alertmanager.seen()[0].starts_with("GET /prefix/api/v2/silences?"),
            "{url}"
        );
    }
}

/// The status of a GET request over HTTP/1.1.
async fn status(address: &str, path: &str) -> String {
    let mut connection = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn what_is_served_is_served_on_both_kinds_of_address() {
    let files = Files::create("listen");
    let authority = Authority::create();
    let kubernetes = Peer::server("127.0.0.1:0", Some(authority.acceptor(&["127.0.0.1"]))).await;
    let url = format!("https://{}", kubernetes.address);
    let kubeconfig = files.kubeconfig(&url, &authority.pem, &[]);
    for (metrics, health) in [("127.0.0.1:0", "[::1]:0"), ("[::1]:0", "127.0.0.1:0")] {
        let mut command = haulout(
            &["run"],
            &[
                ("KUBECONFIG", kubeconfig.as_str()),
                // Nobody listens there.
                ("VCENTER_HOST", "127.0.0.1:1"),
                ("VCENTER_USER", "someone"),
                ("VCENTER_PASSWORD", "something"),
                ("METRICS_ADDRESS", metrics),
                ("HEALTH_ADDRESS", health),
                ("LEADER_ELECTION", "false"),
            ],
        );
        let mut program = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(program.stdout.take().unwrap()).lines();
        for (what, path, at) in [("metrics", "/metrics", metrics), ("health", "/livez", health)] {
            let words = format!("serving {what} on http://");
            let served = loop {
                let line = tokio::time::timeout(PATIENCE, log.next_line())
                    .await
                    .unwrap()
                    .unwrap();
                let line = line.expect("it runs");
                if let Some((_, address)) = line.split_once(&words) {
                    break address.split('/').next().unwrap().to_owned();
                }
            };
            assert!(served.starts_with(at.trim_end_matches('0')), "{served}");
            let status = status(&served, path).await;
            assert!(status.starts_with("HTTP/1.1 "), "{served}: {status}");
        }
        program.kill().await.unwrap();
    }
}
