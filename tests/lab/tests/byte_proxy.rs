//! What a client sees of each fault of the byte proxy.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::time::Duration;

use haulout_lab::byte_proxy::{ACCEPTED, ByteFault, ByteProxy, ByteUpstream, CONNECTION};
use haulout_lab::fault_proxy::Side;
use haulout_lab::run_dir::RunDir;
use haulout_lab::vcenter::Tls;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// How long a client waits for a reply that is held.
const PATIENCE: Duration = Duration::from_millis(400);

/// Replies with the path of each request, so that one reply is not taken for another one.
async fn upstream() -> ByteUpstream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = Vec::new();
                while tcp.read_buf(&mut request).await? > 0 {
                    let text = String::from_utf8_lossy(&request).into_owned();
                    if text.ends_with("\r\n\r\n") {
                        let path = text.split(' ').nth(1).unwrap();
                        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", path.len());
                        tcp.write_all(format!("{head}{path}").as_bytes()).await?;
                        request.clear();
                    }
                }
                std::io::Result::Ok(())
            });
        }
    });
    ByteUpstream { address, tls: None }
}

/// The body or status that a client sees, or why it sees none.
async fn seen(client: &reqwest::Client, url: String) -> String {
    let whole = async {
        let response = client.get(url).send().await?;
        let status = response.status();
        Ok((status, response.text().await?))
    };
    match whole.await {
        Ok((status, body)) if status.is_success() => body,
        Ok((status, _)) => status.as_u16().to_string(),
        Err(error) if reqwest::Error::is_timeout(&error) => "held".to_owned(),
        Err(_) => "broken".to_owned(),
    }
}

#[tokio::test]
async fn client_sees_each_fault_once_and_then_its_replies() {
    let dir = RunDir::create().unwrap();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let certificate = Tls {
        cert: dir.write("proxy.crt", made.cert.pem()).unwrap(),
        key: dir.write("proxy.key", made.signing_key.serialize_pem()).unwrap(),
    };
    let trusted = reqwest::Certificate::from_pem(made.cert.pem().as_bytes()).unwrap();
    for fault in ByteFault::ALL {
        let proxy = ByteProxy::start(Side::Vcenter, &certificate, upstream().await)
            .await
            .unwrap();
        let client = reqwest::Client::builder()
            .no_proxy()
            .retry(reqwest::retry::never())
            .tls_certs_only([trusted.clone()])
            .timeout(PATIENCE)
            .build()
            .unwrap();
        let url = |path: &str| format!("{}{path}", proxy.url());
        // The reply that may be sent instead of the next one.
        assert_eq!(seen(&client, url("/first")).await, "/first", "{fault:?}");
        let kind = if fault.is_of_connection() {
            proxy.strike_next(fault, 1);
            CONNECTION
        } else {
            proxy.strike_each(fault, |kind| kind == "GET /second");
            "GET /second"
        };
        let expected = match fault {
            _ if fault.holds() => "held",
            ByteFault::Unavailable | ByteFault::UnavailableReply => "503",
            ByteFault::ManyInformational | ByteFault::RepeatedReply => "/second",
            ByteFault::OtherReply => "/first",
            ByteFault::HoldAccept
            | ByteFault::CutAccept
            | ByteFault::HoldHandshake
            | ByteFault::CutHandshake
            | ByteFault::ForeignCertificate
            | ByteFault::HoldRequest
            | ByteFault::CutRequest
            | ByteFault::HoldReply
            | ByteFault::HoldReplyHead
            | ByteFault::HoldReplyBody
            | ByteFault::SlowReply
            | ByteFault::CutReply
            | ByteFault::CutReplyHead
            | ByteFault::CutReplyAfterHead
            | ByteFault::CutReplyBody
            | ByteFault::CutReplyEnd
            | ByteFault::EndlessInformational => "broken",
        };
        let mut got = seen(&client, url("/second")).await;
        if fault.is_of_connection() && proxy.account().is_empty() {
            // The request was sent on the connection that was being cut.
            got = seen(&client, url("/second")).await;
        }
        assert_eq!(got, expected, "{fault:?}");
        let account = proxy.account();
        assert_eq!(account.get(&(fault, kind.to_owned())), Some(&1), "{fault:?}");
        assert_eq!(account.get(&(fault, ACCEPTED.to_owned())), None, "{fault:?}");
        let mut after = seen(&client, url("/third")).await;
        if after == "broken" {
            // The client has used a connection with more than one reply on it.
            after = seen(&client, url("/third")).await;
        }
        assert_eq!(after, "/third", "{fault:?}");
    }
}
