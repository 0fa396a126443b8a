//! Which types of keys and signatures the peers may have. openssl makes the certificates, and Python serves them, because they know
//! more types than this program.

use std::process::{Command as StdCommand, Stdio};

use haulout::telemetry::trace::export;
use haulout::vsphere::client::{CredentialPart, CredentialSource, Endpoint, Settings, Trust, Vcenter};
use haulout_core::tls_errors::SUPPORTED;
use opentelemetry_sdk::trace::SpanExporter as _;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::peers::{Authority, Files, PATIENCE, Peer, haulout, output};
use crate::receivers;

/// A server that accepts keys of any type and says which requests came.
const SERVER: &str = r#"
import http.server, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def send_error(self, *words):
        # The first line of HTTP/2, which gRPC uses.
        print(self.requestline, flush=True)
        self.close_connection = True
    def answer(self):
        print(self.requestline, flush=True)
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()
    do_GET = do_POST = answer
    def log_message(self, *words): pass
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.set_ciphers("ALL:@SECLEVEL=0")
context.load_cert_chain(sys.argv[1], sys.argv[2])
context.set_alpn_protocols(["http/1.1", "h2"])
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.handle_error = lambda *_: None
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print(server.server_port, flush=True)
server.serve_forever()
"#;

/// The key of the server and that of its CA, as options of `openssl genpkey`, and the options of the CA's signature.
struct Kind {
    name: &'static str,
    leaf: &'static [&'static str],
    ca: &'static [&'static str],
    signature: &'static [&'static str],
    is_supported: bool,
}

const fn rsa(bits: &'static str) -> [&'static str; 4] {
    ["-algorithm", "RSA", "-pkeyopt", bits]
}

const fn ec(curve: &'static str) -> [&'static str; 4] {
    ["-algorithm", "EC", "-pkeyopt", curve]
}

const RSA_2048: &[&str] = &rsa("rsa_keygen_bits:2048");
const RSA_1024: &[&str] = &rsa("rsa_keygen_bits:1024");
const P256: &[&str] = &ec("ec_paramgen_curve:P-256");
const P384: &[&str] = &ec("ec_paramgen_curve:P-384");
const P521: &[&str] = &ec("ec_paramgen_curve:P-521");
const ED25519: &[&str] = &["-algorithm", "ED25519"];

const fn kind(
    name: &'static str,
    leaf: &'static [&'static str],
    ca: &'static [&'static str],
    signature: &'static [&'static str],
) -> Kind {
    Kind {
        name,
        leaf,
        ca,
        signature,
        is_supported: true,
    }
}

impl Kind {
    const fn refused(self) -> Self {
        Self {
            is_supported: false,
            ..self
        }
    }
}

const PSS: &[&str] = &[
    "-sha256",
    "-sigopt",
    "rsa_padding_mode:pss",
    "-sigopt",
    "rsa_pss_saltlen:digest",
];

/// Two of the RSA kinds have smaller keys than a CA would have, because making large ones takes seconds.
const KINDS: &[Kind] = &[
    kind("RSA 2048 by RSA 2048, SHA-256", RSA_2048, RSA_2048, &["-sha256"]),
    kind(
        "RSA 3072 by RSA 2048, SHA-384",
        &rsa("rsa_keygen_bits:3072"),
        RSA_2048,
        &["-sha384"],
    ),
    kind(
        "RSA 4096 by RSA 2048, SHA-512",
        &rsa("rsa_keygen_bits:4096"),
        RSA_2048,
        &["-sha512"],
    ),
    kind("RSA 2048 by RSA 2048, RSASSA-PSS", RSA_2048, RSA_2048, PSS),
    kind("P-256 by P-256, SHA-256", P256, P256, &["-sha256"]),
    kind("P-256 by P-384, SHA-384", P256, P384, &["-sha384"]),
    kind("P-384 by P-256, SHA-384", P384, P256, &["-sha384"]),
    kind("P-384 by RSA 2048, SHA-256", P384, RSA_2048, &["-sha256"]),
    kind("Ed25519 by Ed25519", ED25519, ED25519, &[]),
    kind("P-521 by RSA 2048", P521, RSA_2048, &["-sha256"]).refused(),
    kind("RSA 2048 by P-521", RSA_2048, P521, &["-sha512"]).refused(),
    kind("RSA 2048 by RSA 2048, SHA-1", RSA_2048, RSA_2048, &["-sha1"]).refused(),
    kind(
        "key of RSASSA-PSS by RSA 2048",
        &["-algorithm", "RSA-PSS", "-pkeyopt", "rsa_keygen_bits:2048"],
        RSA_2048,
        &["-sha256"],
    )
    .refused(),
    kind("RSA 2048 by RSA 1024", RSA_2048, RSA_1024, &["-sha256"]).refused(),
];

/// Certificate and key of a server, and the certificate of its CA, as files.
struct Issued {
    chain: String,
    key: String,
    ca: String,
}

fn openssl(args: &[&str]) {
    let run = StdCommand::new("openssl").args(args).output().expect("openssl");
    let shown = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "openssl {args:?}: {shown}");
}

fn key(files: &Files, name: &str, options: &[&str]) -> String {
    let path = files.path(name);
    let mut args = vec!["genpkey", "-out", &path];
    args.extend(options);
    openssl(&args);
    path
}

/// Issues a certificate of the CA or of an intermediate CA, whose own one is then sent with it.
fn issue(files: &Files, kind: &Kind, with_intermediate: bool) -> Issued {
    let (root_key, root) = (key(files, "root.key", kind.ca), files.path("root.crt"));
    let extensions = files.write(
        "extensions",
        "[req]\ndistinguished_name=dn\n[dn]\n[ca]\nbasicConstraints=critical,CA:true\n[leaf]\nbasicConstraints=CA:false\nsubjectAltName=IP:127.0.0.1,DNS:localhost\n",
    );
    let mut args = vec![
        "req",
        "-x509",
        "-new",
        "-key",
        &root_key,
        "-subj",
        "/CN=root",
        "-out",
        &root,
        "-days",
        "2",
        "-config",
        &extensions,
        "-extensions",
        "ca",
    ];
    args.extend(kind.signature);
    openssl(&args);
    let signed = |name: &str, key: &str, section: &str, ca: &str, ca_key: &str| {
        let (request, certificate) = (
            files.path(&format!("{name}.csr")),
            files.path(&format!("{name}.crt")),
        );
        let subject = format!("/CN={name}");
        openssl(&["req", "-new", "-key", key, "-subj", &subject, "-out", &request]);
        let mut args = vec![
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            ca,
            "-CAkey",
            ca_key,
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            &extensions,
            "-extensions",
            section,
            "-out",
            &certificate,
        ];
        args.extend(kind.signature);
        openssl(&args);
        certificate
    };
    let leaf_key = key(files, "leaf.key", kind.leaf);
    let (ca, ca_key) = if with_intermediate {
        let between_key = key(files, "between.key", kind.ca);
        (
            signed("between", &between_key, "ca", &root, &root_key),
            between_key,
        )
    } else {
        (root.clone(), root_key)
    };
    let leaf = signed("leaf", &leaf_key, "leaf", &ca, &ca_key);
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    let chain = if with_intermediate {
        read(&leaf) + &read(&ca)
    } else {
        read(&leaf)
    };
    Issued {
        chain: files.write("chain.crt", chain),
        key: leaf_key,
        ca: root,
    }
}

/// A server with such a certificate.
struct Server {
    port: u16,
    requests: Lines<BufReader<ChildStdout>>,
    _program: Child,
}

impl Server {
    async fn start(issued: &Issued) -> Self {
        let mut program = Command::new("python3")
            .args(["-c", SERVER, &issued.chain, &issued.key])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("python3");
        let mut requests = BufReader::new(program.stdout.take().unwrap()).lines();
        let port = requests.next_line().await.unwrap().expect("it has started");
        Self {
            port: port.parse().unwrap(),
            requests,
            _program: program,
        }
    }

    /// Waits for the first line of a connection of HTTP/2.
    async fn was_asked_by_grpc(&mut self) {
        loop {
            let next = tokio::time::timeout(PATIENCE, self.requests.next_line()).await;
            if next.unwrap().unwrap().expect("it runs") == "PRI * HTTP/2.0" {
                return;
            }
        }
    }
}

/// Why vCenter was not reached; `None` if it answered.
async fn ask_vcenter(port: u16, trust: Trust) -> Option<String> {
    let part = || CredentialPart::Given("someone".to_owned().into());
    let credentials = CredentialSource {
        user: part(),
        password: part(),
    };
    let endpoint = Endpoint::parse(&format!("127.0.0.1:{port}")).unwrap();
    let vcenter = Vcenter::new(Settings::new(endpoint, credentials, trust)).unwrap();
    let error = vcenter.probe().await.err()?.chain();
    (!error.contains("HTTP status 404")).then_some(error)
}

/// Why the kube-apiserver was not reached.
async fn ask_kubernetes(files: &Files, port: u16, ca: &str) -> Option<String> {
    let ca = std::fs::read_to_string(ca).unwrap();
    let kubeconfig = files.kubeconfig(&format!("https://127.0.0.1:{port}"), &ca, &[]);
    let output = output(haulout(&["list"], &[("KUBECONFIG", &kubeconfig)])).await;
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    shown.contains("no connection").then_some(shown)
}

/// Sends spans, of which there are none.
async fn send_spans(port: u16, ca: &str, protocol: &str) -> Result<(), String> {
    let endpoint = format!("https://127.0.0.1:{port}");
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", ca),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
    ];
    let read = |name: &str| {
        let found = variables.iter().find(|(it, _)| *it == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let exporter = export::exporter(read).map_err(|error| error.to_string())?;
    let sent = exporter.unwrap().export(Vec::new()).await;
    sent.map_err(|error| error.to_string())
}

#[tokio::test]
async fn every_type_of_key_and_signature_is_accepted_or_refused_with_the_supported_ones() {
    for kind in KINDS {
        for with_intermediate in [false, true] {
            let files = Files::create("certificates");
            let issued = issue(&files, kind, with_intermediate);
            let mut server = Server::start(&issued).await;
            let name = format!("{}, intermediate: {with_intermediate}", kind.name);

            let vcenter = ask_vcenter(server.port, Trust::CaBundle(issued.ca.clone().into())).await;
            let kubernetes = ask_kubernetes(&files, server.port, &issued.ca).await;
            for (peer, error) in [("vCenter", vcenter), ("kube-apiserver", kubernetes)] {
                match error {
                    None => assert!(kind.is_supported, "{name}: {peer} is reached"),
                    Some(error) => {
                        assert!(!kind.is_supported, "{name}: {peer}: {error}");
                        assert!(error.contains(SUPPORTED), "{name}: {peer}: {error}");
                    }
                }
            }
            let by_http = send_spans(server.port, &issued.ca, "http/protobuf").await;
            let by_grpc = send_spans(server.port, &issued.ca, "grpc").await;
            let address = format!("127.0.0.1:{}", server.port);
            let said = receivers::ask(&address, &issued.ca, kind.is_supported).await;
            println!("{name}\n{by_http:?}\n{by_grpc:?}\n{said}");
            if kind.is_supported {
                server.was_asked_by_grpc().await;
                assert!(by_http.unwrap_err().contains("404"), "{name}: the collector");
                assert!(by_grpc.is_err(), "{name}: the collector knows no gRPC");
                assert!(
                    said.contains("the Alertmanager of ALERTMANAGER_URL_FILE answered"),
                    "{name}: {said}"
                );
                assert!(
                    said.contains("the receiver of NOTIFY_URL_FILE answered 404"),
                    "{name}: {said}"
                );
            } else {
                assert!(said.contains(SUPPORTED), "{name}: {said}");
                // The exporters of OpenTelemetry do not pass the reason on.
                assert!(by_http.is_err() && by_grpc.is_err(), "{name}: the collector");
            }
        }
    }
}

/// Both CAs of the test have one name, as a CA has that was made anew.
pub const OF_SAME_NAME: &str = "signed by another CA of the same name";

#[tokio::test]
async fn certificate_of_an_unknown_ca_is_refused_and_the_error_says_so() {
    let (files, others) = (Files::create("unknown-ca"), Files::create("other-ca"));
    let server = Server::start(&issue(&files, &KINDS[0], false)).await;
    let other = issue(&others, &KINDS[0], false).ca;
    for error in [
        ask_vcenter(server.port, Trust::CaBundle(other.clone().into())).await,
        ask_kubernetes(&files, server.port, &other).await,
    ] {
        let error = error.expect("it is refused");
        assert!(error.contains(OF_SAME_NAME), "{error}");
    }
    // The exporters of OpenTelemetry do not pass the reason on.
    for protocol in ["http/protobuf", "grpc"] {
        assert!(
            send_spans(server.port, &other, protocol).await.is_err(),
            "{protocol}"
        );
    }
}

#[tokio::test]
async fn certificate_of_vcenter_itself_may_be_in_the_bundle() {
    for kind in KINDS.iter().filter(|kind| kind.is_supported) {
        let files = Files::create("pinned");
        let issued = issue(&files, kind, false);
        let server = Server::start(&issued).await;
        let pinned = Trust::CaBundle(issued.chain.clone().into());
        assert_eq!(ask_vcenter(server.port, pinned).await, None, "{}", kind.name);
    }
}

#[tokio::test]
async fn kube_apiserver_that_asks_for_a_certificate_gets_that_of_the_kubeconfig() {
    let (authority, files) = (Authority::create(), Files::create("kubeconfig-mtls"));
    let peer = Peer::server("127.0.0.1:0", Some(authority.acceptor_of_clients(&["127.0.0.1"]))).await;
    let path = files.kubeconfig(&format!("https://{}", peer.address), &authority.pem, &[]);
    output(haulout(&["list"], &[("KUBECONFIG", &path)])).await;
    assert!(peer.seen().is_empty(), "without one, the handshake is refused");
    let (certificate, key) = authority.client();
    let user = serde_json::json!({
        "client-certificate": files.write("client.crt", certificate),
        "client-key": files.write("client.key", key),
    });
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["users"][0]["user"] = user;
    files.write("kubeconfig", config.to_string());
    output(haulout(&["list"], &[("KUBECONFIG", &path)])).await;
    assert!(!peer.seen().is_empty());
}
