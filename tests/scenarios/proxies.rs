//! A whole maintenance behind a proxy: names that only the proxy can resolve, and a vCenter that is reached without it.

use std::sync::{Arc, Mutex};

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT};
use haulout_lab::wait::until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::fixture::{one_node, run, run_scenario};

/// A proxy that opens tunnels, and answers every other request itself with an empty list.
struct Proxy {
    url: String,
    /// Method and address of each request.
    seen: Arc<Mutex<Vec<String>>>,
    _serves: JoinSet<()>,
}

impl Proxy {
    async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = seen.clone();
        let mut serves = JoinSet::new();
        serves.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                connections.spawn(serve(tcp, log.clone()));
            }
        });
        Ok(Self {
            url,
            seen,
            _serves: serves,
        })
    }

    fn has_seen(&self, request: &str) -> bool {
        self.seen.lock().unwrap().iter().any(|it| it.starts_with(request))
    }
}

/// Serves the first request of a connection.
async fn serve(mut tcp: TcpStream, log: Arc<Mutex<Vec<String>>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match tcp.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let line = head.lines().next().unwrap_or_default();
    log.lock().unwrap().push(line.to_owned());
    let Some(target) = line.strip_prefix("CONNECT ").and_then(|it| it.split(' ').next()) else {
        let header = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(": "));
            lines
                .find(|(it, _)| it.eq_ignore_ascii_case(name))
                .map(|(_, value)| value.to_owned())
        };
        let length = header("content-length")
            .and_then(|it| it.parse().ok())
            .unwrap_or_default();
        let _ = tcp.read_exact(&mut vec![0; length]).await;
        let answer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]";
        let _ = tcp.write_all(answer.as_bytes()).await;
        return;
    };
    let Ok(mut target) = TcpStream::connect(target).await else {
        return;
    };
    let _ = tcp.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
    let _ = tokio::io::copy_bidirectional(&mut tcp, &mut target).await;
}

/// Writes a file beside the log of the fixture.
fn file(fixture: &Fixture<'_>, name: &str, content: &str) -> anyhow::Result<String> {
    let path = fixture.log().with_file_name(name);
    std::fs::write(&path, content)?;
    Ok(path.to_str().context("a path")?.to_owned())
}

#[test]
fn maintenance_behind_a_proxy_uses_it_for_all_but_vcenter() {
    run_scenario(async {
        let fixture = one_node("proxies").await?;
        let node = fixture.node_name("gpu1");
        let proxy = Proxy::start().await?;
        let webhook = file(&fixture, "proxies-notify-url", "http://hooks.invalid/hook")?;
        let alertmanager = file(
            &fixture,
            "proxies-alertmanager-url",
            "http://alertmanager.invalid:9093",
        )?;
        let settings = [
            ("HTTP_PROXY", proxy.url.as_str()),
            ("HTTPS_PROXY", proxy.url.as_str()),
            ("NO_PROXY", ".svc,.cluster.local"),
            ("NOTIFY_URL_FILE", webhook.as_str()),
            ("ALERTMANAGER_URL_FILE", alertmanager.as_str()),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.invalid:4318"),
        ];
        let haulout = run(&fixture, &settings).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;

        for request in [
            "CONNECT 127.0.0.1:",
            "POST http://hooks.invalid/hook ",
            "GET http://alertmanager.invalid:9093/api/v2/silences",
            "POST http://collector.invalid:4318/v1/traces ",
        ] {
            until(request, WAIT_TIMEOUT, async || {
                Ok(proxy.has_seen(request).then_some(()))
            })
            .await?;
        }
        let vcenter = fixture.vcenter.sdk();
        let vcenter = vcenter
            .rsplit_once(':')
            .context("a port")?
            .1
            .trim_end_matches("/sdk");
        ensure!(
            !proxy.has_seen(&format!("CONNECT 127.0.0.1:{vcenter}")),
            "vCenter was reached through the proxy"
        );
        haulout.stop().await
    });
}
