//! The kube-apiserver behind proxies, for the command line and for the controller.

use std::process::Stdio;

use crate::peers::{Authority, Files, PATIENCE, Peer, haulout, output};

/// How the kube-apiserver is to be reached.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Direct,
    /// With these credentials.
    Proxy(&'static str),
}

/// A kube-apiserver and a proxy to it.
struct Place {
    files: Files,
    authority: Authority,
    server: Peer,
    proxy: Peer,
}

/// A name that only the proxy can resolve.
const BEHIND: &str = "apiserver.invalid";

impl Place {
    async fn create(test: &str) -> Self {
        let authority = Authority::create();
        let server = Peer::server("127.0.0.1:0", Some(authority.acceptor(&["127.0.0.1", BEHIND]))).await;
        let proxy = Peer::proxy("127.0.0.1:0", None, server.address).await;
        Self {
            files: Files::create(test),
            authority,
            server,
            proxy,
        }
    }

    /// `PROXY` in a text is the address of the proxy.
    fn fill(&self, text: &str) -> String {
        text.replace("PROXY", &self.proxy.address.to_string())
    }

    fn kubeconfig(&self, proxy_url: Option<&str>) -> String {
        let server = format!("https://{}", self.server.address);
        let proxy_url = proxy_url.map(|it| self.fill(it));
        let more: Vec<(&str, &str)> = proxy_url.iter().map(|it| ("proxy-url", it.as_str())).collect();
        self.files.kubeconfig(&server, &self.authority.pem, &more)
    }

    /// The requests that have come, and how.
    fn came(&self) -> (bool, Option<Way>) {
        let target = format!("CONNECT {} HTTP/1.1", self.server.address);
        let seen = self.proxy.seen();
        let way = match seen.first().map(String::as_str) {
            None => Some(Way::Direct),
            Some(line) if line == target => Some(Way::Proxy("")),
            // "someone:s3cr:t"
            Some(line) if line == target.clone() + " Basic c29tZW9uZTpzM2NyOnQ=" => {
                Some(Way::Proxy("someone"))
            }
            Some(_) => None,
        };
        (!self.server.seen().is_empty(), way)
    }
}

/// A `proxy-url`, variables, and the way that they ask for.
type Case = (Option<&'static str>, &'static [(&'static str, &'static str)], Way);

const CASES: &[Case] = &[
    (None, &[], Way::Direct),
    (
        None,
        &[
            ("HTTPS_PROXY", "http://PROXY"),
            ("NO_PROXY", "127.0.0.1,localhost"),
        ],
        Way::Direct,
    ),
    (
        None,
        &[
            ("https_proxy", "http://PROXY"),
            ("no_proxy", "10.0.0.0/8, 127.0.0.0/8"),
        ],
        Way::Direct,
    ),
    (
        None,
        &[
            ("HTTPS_PROXY", "http://PROXY"),
            ("NO_PROXY", "10.0.0.0/8,.svc,.cluster.local"),
        ],
        Way::Proxy(""),
    ),
    (None, &[("HTTPS_PROXY", "http://PROXY")], Way::Proxy("")),
    (None, &[("HTTPS_PROXY", "PROXY")], Way::Proxy("")),
    (None, &[("HTTPS_PROXY", "http://PROXY\n")], Way::Proxy("")),
    (None, &[("https_proxy", "http://PROXY/")], Way::Proxy("")),
    (None, &[("ALL_PROXY", "http://PROXY")], Way::Proxy("")),
    (
        None,
        &[("HTTPS_PROXY", "http://someone:s3cr%3At@PROXY")],
        Way::Proxy("someone"),
    ),
    // For traces only: the kube-apiserver is https.
    (None, &[("HTTP_PROXY", "http://PROXY")], Way::Direct),
    (None, &[("HTTPS_PROXY", ""), ("https_proxy", "")], Way::Direct),
    (Some("http://PROXY"), &[], Way::Proxy("")),
    (
        Some("http://someone:s3cr%3At@PROXY"),
        &[("NO_PROXY", "127.0.0.1")],
        Way::Proxy("someone"),
    ),
    (
        Some("http://PROXY"),
        &[("HTTPS_PROXY", "http://127.0.0.1:1")],
        Way::Proxy(""),
    ),
];

#[tokio::test]
async fn kube_apiserver_is_reached_as_the_proxy_settings_say() {
    for (proxy_url, variables, way) in CASES {
        let place = Place::create("proxies").await;
        let kubeconfig = place.kubeconfig(*proxy_url);
        let filled: Vec<(&str, String)> = variables
            .iter()
            .map(|(name, it)| (*name, place.fill(it)))
            .collect();
        let mut environment = vec![("KUBECONFIG", kubeconfig.as_str())];
        environment.extend(filled.iter().map(|(name, value)| (*name, value.as_str())));
        let output = output(haulout(&["list"], &environment)).await;
        let shown = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            place.came(),
            (true, Some(*way)),
            "proxy-url {proxy_url:?}, {variables:?}: {:?} {shown}",
            place.proxy.seen()
        );
        assert!(!shown.contains("s3cr"), "{shown}");
    }
}

#[tokio::test]
async fn controller_starts_behind_each_kind_of_proxy_setting() {
    for (proxy_url, variables, way) in [CASES[1], CASES[4], CASES[12]] {
        let place = Place::create("controller-proxies").await;
        let kubeconfig = place.kubeconfig(proxy_url);
        let filled: Vec<(&str, String)> = variables
            .iter()
            .map(|(name, it)| (*name, place.fill(it)))
            .collect();
        let mut environment = vec![
            ("KUBECONFIG", kubeconfig.as_str()),
            // Nobody listens there.
            ("VCENTER_HOST", "127.0.0.1:1"),
            ("VCENTER_USER", "someone"),
            ("VCENTER_PASSWORD", "something"),
            ("METRICS_ADDRESS", "off"),
            ("HEALTH_ADDRESS", "off"),
            ("LEADER_ELECTION", "false"),
        ];
        environment.extend(filled.iter().map(|(name, value)| (*name, value.as_str())));
        let mut command = haulout(&["run"], &environment);
        let mut program = command.stdout(Stdio::null()).spawn().unwrap();
        let asks = async {
            tokio::select! {
                biased;
                () = place.server.asked() => {}
                ended = program.wait() => panic!("{variables:?}: it has ended: {ended:?}"),
            }
        };
        tokio::time::timeout(PATIENCE, asks).await.unwrap();
        assert_eq!(place.came(), (true, Some(way)), "{variables:?}");
        program.kill().await.unwrap();
    }
}

#[tokio::test]
async fn name_of_a_kube_apiserver_is_resolved_by_the_proxy() {
    let place = Place::create("names").await;
    let socks = Peer::socks("127.0.0.1:0", place.server.address).await;
    let of_proxy = Authority::create();
    let over_tls = Peer::proxy(
        "127.0.0.1:0",
        Some(of_proxy.acceptor(&["127.0.0.1"])),
        place.server.address,
    )
    .await;
    // As with kubectl, the CA of the kubeconfig is also that of an https proxy.
    let both = place.authority.pem.clone() + &of_proxy.pem;
    for (port, proxy_url) in [
        ("", format!("socks5://{}", socks.address)),
        ("", format!("http://{}", place.proxy.address)),
        (":6443", format!("https://{}", over_tls.address)),
    ] {
        let server = format!("https://{BEHIND}{port}");
        let kubeconfig = place
            .files
            .kubeconfig(&server, &both, &[("proxy-url", &proxy_url)]);
        let asked = place.server.seen().len();
        let output = output(haulout(&["list"], &[("KUBECONFIG", &kubeconfig)])).await;
        let shown = String::from_utf8_lossy(&output.stderr);
        assert!(place.server.seen().len() > asked, "{proxy_url}: {shown}");
    }
    assert_eq!(socks.seen()[0], format!("{BEHIND}:443"));
    assert_eq!(place.proxy.seen()[0], format!("CONNECT {BEHIND}:443 HTTP/1.1"));
    assert_eq!(over_tls.seen()[0], format!("CONNECT {BEHIND}:6443 HTTP/1.1"));
}

#[tokio::test]
async fn token_in_a_file_is_sent_without_a_line_end_after_it() {
    let place = Place::create("tokens").await;
    for (field, text) in [
        ("tokenFile", "a-token\n"),
        ("tokenFile", "a-token"),
        ("token", "a-token\r\n"),
    ] {
        let value = match field {
            "tokenFile" => place.files.write("token", text),
            _ => text.to_owned(),
        };
        let kubeconfig = std::fs::read_to_string(place.kubeconfig(None)).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&kubeconfig).unwrap();
        config["users"][0]["user"] = serde_json::json!({ field: value });
        let kubeconfig = place.files.write("kubeconfig", config.to_string());
        let asked = place.server.heads().len();
        let output = output(haulout(&["list"], &[("KUBECONFIG", &kubeconfig)])).await;
        let shown = String::from_utf8_lossy(&output.stderr);
        let heads = place.server.heads();
        assert!(heads.len() > asked, "{field} {text:?}: {shown}");
        let head = heads.last().unwrap().to_ascii_lowercase();
        assert!(
            head.contains("authorization: bearer a-token\r\n"),
            "{field} {text:?}: {head}"
        );
    }
}

#[tokio::test]
async fn proxy_that_cannot_be_used_is_named_without_its_password() {
    let place = Place::create("refused").await;
    for (proxy_url, variables, expected) in [
        (
            Some("ftp://someone:s3cret@127.0.0.1:1"),
            ("A", "b"),
            "proxy-url of the kubeconfig",
        ),
        (Some("socks4://127.0.0.1:1"), ("A", "b"), "socks4"),
        (
            None,
            ("HTTPS_PROXY", "http://someone:s3cret@ a"),
            "HTTPS_PROXY is no address of a proxy",
        ),
        // Nobody listens there.
        (
            None,
            ("HTTPS_PROXY", "http://someone:s3cret@127.0.0.1:1"),
            "through the proxy http://127.0.0.1:1",
        ),
    ] {
        let kubeconfig = place.kubeconfig(proxy_url);
        let output = output(haulout(&["list"], &[("KUBECONFIG", &kubeconfig), variables])).await;
        let shown = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{shown}");
        assert!(
            shown.contains(expected) && !shown.contains("s3cret"),
            "{expected}: {shown}"
        );
    }
    assert!(place.server.seen().is_empty() && place.proxy.seen().is_empty());
}
