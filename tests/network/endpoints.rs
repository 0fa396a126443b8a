//! Every form of endpoint, header, timeout and certificate that the variables of OpenTelemetry allow, and what is refused.

use haulout::telemetry::trace::export;
use opentelemetry_sdk::trace::SpanExporter as _;

use crate::peers::{Authority, Files, PATIENCE, Peer};

type Variables<'a> = &'a [(&'a str, &'a str)];

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
const TRACES_PROTOCOL: &str = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL";

/// The exporter of these variables; `fill` fills placeholders in.
fn exporter(
    variables: Variables<'_>,
    fill: impl Fn(&str) -> String,
) -> Result<Option<opentelemetry_otlp::SpanExporter>, String> {
    let read = |name: &str| {
        let found = variables.iter().find(|(it, _)| *it == name);
        found.map(|(_, value)| fill(value))
    };
    export::exporter(read).map_err(|error| error.to_string())
}

/// Sends spans, of which there are none, until `peer` was asked.
async fn send(variables: Variables<'_>, fill: impl Fn(&str) -> String, peer: &Peer) {
    let exporter = exporter(variables, fill).unwrap().expect("an endpoint is set");
    let sent = async {
        tokio::select! {
            biased;
            () = peer.asked() => {}
            failed = exporter.export(Vec::new()) => panic!("{variables:?}: {failed:?}"),
        }
    };
    tokio::time::timeout(PATIENCE, sent).await.unwrap();
}

#[tokio::test]
async fn http_endpoint_is_used_in_each_form() {
    let cases: &[(Variables<'_>, &str)] = &[
        (&[(ENDPOINT, "http://PEER")], "/v1/traces"),
        (&[(ENDPOINT, "http://PEER/")], "/v1/traces"),
        (&[(ENDPOINT, "HTTP://PEER")], "/v1/traces"),
        (&[(ENDPOINT, "http://PEER\n")], "/v1/traces"),
        (&[(ENDPOINT, "http://localhost:PORT")], "/v1/traces"),
        (&[(ENDPOINT, "http://PEER/base")], "/base/v1/traces"),
        (&[(ENDPOINT, "http://PEER/base/")], "/base/v1/traces"),
        (&[(ENDPOINT, "http://PEER/v1/traces")], "/v1/traces/v1/traces"),
        (&[(TRACES_ENDPOINT, "http://PEER/custom")], "/custom"),
        (&[(TRACES_ENDPOINT, "http://PEER")], "/"),
        (
            &[
                (ENDPOINT, "http://127.0.0.1:1"),
                (TRACES_ENDPOINT, "http://PEER/v1/traces"),
            ],
            "/v1/traces",
        ),
        (
            &[
                (ENDPOINT, "http://PEER"),
                (PROTOCOL, "grpc"),
                (TRACES_PROTOCOL, "http/protobuf"),
            ],
            "/v1/traces",
        ),
    ];
    for (variables, line) in cases {
        let peer = Peer::server("127.0.0.1:0", None).await;
        let fill = |text: &str| {
            let text = text.replace("PEER", &peer.address.to_string());
            text.replace("PORT", &peer.port().to_string())
        };
        send(variables, fill, &peer).await;
        assert_eq!(peer.seen(), [format!("POST {line} HTTP/1.1")], "{variables:?}");
    }
}

#[tokio::test]
async fn grpc_endpoint_is_used_with_and_without_a_scheme() {
    let authority = Authority::create();
    let files = Files::create("grpc");
    let ca = files.write("ca.crt", &authority.pem);
    const GRPC: (&str, &str) = (PROTOCOL, "grpc");
    let cases: &[(Variables<'_>, bool)] = &[
        (&[GRPC, (ENDPOINT, "http://PEER")], false),
        (&[GRPC, (ENDPOINT, "http://PEER/a/path")], false),
        (
            &[(TRACES_PROTOCOL, "grpc"), (TRACES_ENDPOINT, "http://PEER")],
            false,
        ),
        (
            &[GRPC, (ENDPOINT, "PEER"), ("OTEL_EXPORTER_OTLP_INSECURE", "true")],
            false,
        ),
        (
            &[
                GRPC,
                (TRACES_ENDPOINT, "PEER"),
                ("OTEL_EXPORTER_OTLP_TRACES_INSECURE", "TRUE"),
            ],
            false,
        ),
        (
            &[
                GRPC,
                (ENDPOINT, "https://PEER"),
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", "CA"),
            ],
            true,
        ),
        (
            &[GRPC, (ENDPOINT, "PEER"), ("OTEL_EXPORTER_OTLP_CERTIFICATE", "CA")],
            true,
        ),
        (
            &[
                GRPC,
                (ENDPOINT, "PEER\r\n"),
                ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "CA\n"),
            ],
            true,
        ),
        (
            // The scheme counts.
            &[
                GRPC,
                (ENDPOINT, "https://PEER"),
                ("OTEL_EXPORTER_OTLP_INSECURE", "true"),
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", "CA"),
            ],
            true,
        ),
    ];
    for (variables, with_tls) in cases {
        let tls = with_tls.then(|| authority.acceptor(&["127.0.0.1"]));
        let peer = Peer::server("127.0.0.1:0", tls).await;
        let fill = |text: &str| text.replace("PEER", &peer.address.to_string()).replace("CA", &ca);
        send(variables, fill, &peer).await;
        assert_eq!(peer.seen()[0], "PRI * HTTP/2.0", "{variables:?}");
    }
}

#[tokio::test]
async fn collector_that_asks_for_a_certificate_gets_the_configured_one() {
    let authority = Authority::create();
    let files = Files::create("mtls");
    let (certificate, key) = authority.client();
    let paths = [
        ("CA", files.write("ca.crt", &authority.pem)),
        ("CERTIFICATE_FILE", files.write("client.crt", certificate)),
        ("KEY_FILE", files.write("client.key", key)),
    ];
    for infix in ["", "TRACES_"] {
        for protocol in ["grpc", "http/protobuf"] {
            let name = |name: &str| format!("OTEL_EXPORTER_OTLP_{infix}{name}");
            let peer = Peer::server("127.0.0.1:0", Some(authority.acceptor_of_clients(&["127.0.0.1"]))).await;
            let endpoint = format!("https://{}", peer.address);
            let names = [
                "ENDPOINT",
                "PROTOCOL",
                "CERTIFICATE",
                "CLIENT_CERTIFICATE",
                "CLIENT_KEY",
            ]
            .map(name);
            let values = [endpoint.as_str(), protocol, "CA", "CERTIFICATE_FILE", "KEY_FILE"];
            let variables: Vec<(&str, &str)> = names.iter().map(String::as_str).zip(values).collect();
            let fill = |text: &str| {
                let path = paths.iter().find(|(it, _)| *it == text);
                path.map_or_else(|| text.to_owned(), |(_, path)| path.clone())
            };
            send(&variables, fill, &peer).await;
            // Without it, the handshake is refused.
            let without: Vec<(&str, &str)> = variables[..3].to_vec();
            let exporter = exporter(&without, fill).unwrap().unwrap();
            if protocol == "http/protobuf" {
                assert!(exporter.export(Vec::new()).await.is_err());
                assert_eq!(peer.seen().len(), 1, "{infix}");
            }
        }
    }
}

#[tokio::test]
async fn headers_are_sent_decoded_and_without_the_line_end_of_a_file() {
    for (name, value) in [
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "api-key=a%20secret==, x-other = two\n",
        ),
        (
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
            "x-other=two,api-key=a secret==\r\n",
        ),
    ] {
        let peer = Peer::server("127.0.0.1:0", None).await;
        let fill = |text: &str| text.replace("PEER", &peer.address.to_string());
        send(&[(ENDPOINT, "http://PEER"), (name, value)], fill, &peer).await;
        let head = &peer.heads()[0];
        assert!(
            head.contains("api-key: a secret==\r\n") && head.contains("x-other: two\r\n"),
            "{head}"
        );
    }
}

#[tokio::test]
async fn value_that_cannot_be_used_is_named_and_what_is_expected() {
    const HERE: (&str, &str) = (ENDPOINT, "http://127.0.0.1:1");
    const GRPC: (&str, &str) = (PROTOCOL, "grpc");
    let files = Files::create("wrong-otlp");
    let authority = Authority::create();
    let (certificate, key) = authority.client();
    let (certificate, key) = (
        files.write("client.crt", certificate),
        files.write("client.key", key),
    );
    let (certificate, key) = (certificate.as_str(), key.as_str());
    let text = files.write("text", "s3cret");
    let cases: &[(Variables<'_>, &str)] = &[
        (
            &[(ENDPOINT, "collector:4318")],
            "an http or https URL is expected",
        ),
        (
            &[(ENDPOINT, "127.0.0.1:4318")],
            "an http or https URL is expected",
        ),
        (
            &[(ENDPOINT, "ftp://collector")],
            "an http or https URL is expected",
        ),
        (&[(ENDPOINT, "http://someone:s3cret@")], ENDPOINT),
        (
            &[GRPC, (ENDPOINT, "unix:///run/otlp")],
            "host:port or an http or https URL",
        ),
        (&[GRPC, (ENDPOINT, "a b")], "host:port or an http or https URL"),
        (
            &[HERE, (PROTOCOL, "http/json")],
            "grpc or http/protobuf is expected",
        ),
        (
            &[HERE, ("OTEL_TRACES_EXPORTER", "jaeger")],
            "otlp or none is expected",
        ),
        (&[HERE, ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s")], "milliseconds"),
        (
            &[HERE, ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0")],
            "milliseconds",
        ),
        (&[HERE, ("OTEL_EXPORTER_OTLP_HEADERS", "s3cret")], "name=value"),
        (
            &[HERE, ("OTEL_EXPORTER_OTLP_HEADERS", "a b=s3cret")],
            "name=value",
        ),
        (
            &[HERE, ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such.pem")],
            "/no/such.pem",
        ),
        (
            &[HERE, ("OTEL_EXPORTER_OTLP_CERTIFICATE", &text)],
            "no PEM certificate",
        ),
        (
            &[HERE, ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", certificate)],
            "OTEL_EXPORTER_OTLP_CLIENT_KEY is not set",
        ),
        (
            &[HERE, ("OTEL_EXPORTER_OTLP_CLIENT_KEY", key)],
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE is not set",
        ),
        (
            &[
                HERE,
                ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", certificate),
                ("OTEL_EXPORTER_OTLP_CLIENT_KEY", &text),
            ],
            "no PEM private key",
        ),
    ];
    for (variables, expected) in cases {
        let refused = exporter(variables, str::to_owned).err().unwrap();
        assert!(refused.contains(expected), "{variables:?}: {refused}");
        assert!(!refused.contains("s3cret"), "{refused}");
    }
    // Sent without compression, which the log says.
    let compressed = [HERE, ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")];
    assert!(exporter(&compressed, str::to_owned).unwrap().is_some());
}
