//! A login whose caller is gone leaves no session.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use haulout_core::ids::HostRef;
use tokio::task::JoinSet;

use super::server::{CONTENT, Fake, LOGIN, Reply, Request};

/// Responds to a login after its caller is gone, and to a call in the session from a script.
fn slow_login(call: &Request) -> Option<Reply> {
    (call.method() == "Login").then(|| {
        let login = Reply::Answer {
            status: 200,
            headers: "Set-Cookie: vmware_soap_session=\"late\"; Path=/; HttpOnly\r\n".to_owned(),
            body: LOGIN.to_vec(),
        };
        login.after(Duration::from_millis(200))
    })
}

#[tokio::test]
async fn login_whose_caller_is_gone_is_finished_and_logged_out() {
    let (fake, vcenter, _server) = Fake::start(slow_login).await;
    let mut calls = JoinSet::new();
    let asked = vcenter.clone();
    calls.spawn(async move { asked.survey(&[HostRef::new("host-1")]).await });
    fake.called(|call| call.method() == "Login").await;
    calls.shutdown().await;
    vcenter.logout().await;
    let goodbyes = fake.calls("Logout");
    assert_eq!(goodbyes.len(), 1);
    assert!(goodbyes[0].head.contains("\"late\""), "{}", goodbyes[0].head);
}

#[tokio::test]
async fn login_whose_caller_is_gone_serves_the_next_call() {
    let (fake, vcenter, _server) = Fake::start(slow_login).await;
    let mut calls = JoinSet::new();
    let asked = vcenter.clone();
    calls.spawn(async move { asked.survey(&[HostRef::new("host-1")]).await });
    fake.called(|call| call.method() == "Login").await;
    calls.shutdown().await;
    vcenter.survey(&[HostRef::new("host-1")]).await.unwrap();
    assert_eq!(fake.calls("Login").len(), 1);
}

/// A caller that is gone before its turn does not log in.
#[tokio::test]
async fn caller_that_is_gone_before_its_login_began_makes_none() {
    let refused = AtomicUsize::new(0);
    let (fake, vcenter, _server) = Fake::start(move |call: &Request| match call.method() {
        "RetrieveServiceContent" => Some(match refused.fetch_add(1, Ordering::SeqCst) {
            0 => Reply::new(503, "").after(Duration::from_millis(200)),
            _ => Reply::new(200, CONTENT),
        }),
        _ => None,
    })
    .await;
    let mut first = JoinSet::new();
    let asked = vcenter.clone();
    first.spawn(async move { asked.survey(&[HostRef::new("host-1")]).await });
    fake.called(|call| call.method() == "RetrieveServiceContent")
        .await;
    let mut waiting = JoinSet::new();
    for _ in 0..5 {
        let asked = vcenter.clone();
        waiting.spawn(async move { asked.survey(&[HostRef::new("host-1")]).await });
    }
    tokio::task::yield_now().await;
    waiting.shutdown().await;
    assert!(first.join_next().await.unwrap().unwrap().is_err());
    vcenter.logout().await;
    assert_eq!(fake.calls("RetrieveServiceContent").len(), 1);
    assert!(fake.calls("Login").is_empty());
}
