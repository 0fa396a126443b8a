//! Sessions with vCenter: certificates, logins, logouts.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT};
use haulout_lab::vcenter::{Down, RestartEffects};
use haulout_lab::wait;

use crate::fixture::{LOG_EACH_ATTEMPT, one_node, run, run_scenario, start, wait_for_failed_attempts};

/// Why an attempt does not log in: vCenter has refused these credentials.
const NOT_TRIED_AGAIN: &str = "changed ones at once";

/// The environment without the lab's CA.
const NO_BUNDLE: (&str, &str) = ("VCENTER_CA_BUNDLE", "");

/// Checks that no password was sent.
async fn ensure_no_login(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let journal = fixture.vcenter.journal().await?;
    let logins = journal.iter().filter(|it| it.detail.starts_with("login")).count();
    ensure!(logins == 0, "{logins} logins");
    Ok(())
}

#[test]
fn leaf_certificate_is_enough_as_a_bundle() {
    run_scenario(async {
        let fixture = one_node("leaf-bundle").await?;
        let other = fixture.kube.server_certificate("another-vcenter")?.0;
        let other = other.to_string_lossy();
        let haulout = start(&fixture, &[("VCENTER_CA_BUNDLE", &other)])?;
        fixture.wait_for_log("vCenter connection lost").await?;
        fixture.wait_for_log("UnknownIssuer").await?;
        ensure_no_login(&fixture).await?;
        haulout.stop().await?;

        let own = fixture.certificate()?.to_string_lossy();
        let haulout = run(&fixture, &[("VCENTER_CA_BUNDLE", &own)]).await?;
        haulout.stop().await
    });
}

#[test]
fn certificate_with_another_thumbprint_gets_no_password() {
    run_scenario(async {
        let fixture = one_node("thumbprint").await?;
        let wrong = "00".repeat(32);
        let haulout = start(&fixture, &[("VCENTER_THUMBPRINT", &wrong)])?;
        fixture.wait_for_log("not that of VCENTER_THUMBPRINT").await?;
        ensure_no_login(&fixture).await?;
        haulout.stop().await?;

        // The log names the one that was presented.
        let log = fixture.log_text();
        let (_, presented) = log.split_once("SHA-256 thumbprint is ").context("in the log")?;
        let (presented, _) = presented.split_once(',').context("in the log")?;
        let pinned = [
            ("VCENTER_THUMBPRINT", presented),
            NO_BUNDLE,
            ("VCENTER_TLS_VERIFY", "false"),
        ];
        for changes in [&pinned[..1], &pinned] {
            let synced = fixture.log_text().matches("vCenter synced").count();
            let haulout = start(&fixture, changes)?;
            wait::until("vCenter to be synced", WAIT_TIMEOUT, async || {
                let now = fixture.log_text().matches("vCenter synced").count();
                Ok((now > synced).then_some(()))
            })
            .await?;
            haulout.stop().await?;
        }
        Ok(())
    });
}

#[test]
fn unknown_certificate_is_refused_and_no_password_is_sent() {
    run_scenario(async {
        let fixture = one_node("unknown-ca").await?;
        let haulout = start(&fixture, &[NO_BUNDLE])?;
        fixture
            .wait_for_log("vCenter connection lost; maintenance paused until it is back")
            .await?;
        fixture.wait_for_log("certificate").await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .vcenter
            .wait_for_entry("entering", haulout_lab::fixture::WAIT_TIMEOUT, |it| {
                it.detail == "entering"
            })
            .await?;
        ensure_no_login(&fixture).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}

#[test]
fn disabled_tls_verification_is_logged_as_a_warning() {
    run_scenario(async {
        let fixture = one_node("unverified").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[NO_BUNDLE, ("VCENTER_TLS_VERIFY", "false")]).await?;
        let log = fixture.log_text();
        ensure!(
            log.lines()
                .any(|line| line.contains("WARN") && line.contains("VCENTER_TLS_VERIFY")),
            "{log}"
        );
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        haulout.stop().await
    });
}

#[test]
fn orderly_exit_logs_out_and_leaves_no_session_behind() {
    run_scenario(async {
        let fixture = one_node("logout").await?;
        let haulout = run(&fixture, &[]).await?;
        ensure!(
            fixture.vcenter.state().await?.sessions == 1,
            "one session, however many connections"
        );
        haulout.stop().await?;
        let sessions = fixture.vcenter.state().await?.sessions;
        ensure!(sessions == 0, "{sessions} sessions are left");
        Ok(())
    });
}

#[test]
fn wrong_password_is_tried_only_once() {
    run_scenario(async {
        let fixture = one_node("wrong").await?;
        let haulout = start(
            &fixture,
            &[("VCENTER_PASSWORD", "not-the-password"), LOG_EACH_ATTEMPT],
        )?;
        fixture.wait_for_log("vCenter connection lost").await?;
        wait_for_failed_attempts(&fixture, NOT_TRIED_AGAIN, 4).await?;
        let tried = fixture
            .vcenter
            .journal()
            .await?
            .iter()
            .filter(|it| it.detail.contains("login refused") || it.detail.contains("InvalidLogin"))
            .count();
        ensure!(tried == 1, "the password was tried {tried} times");
        ensure!(
            !fixture.log_text().contains("not-the-password"),
            "the password is in the log"
        );
        haulout.stop().await
    });
}

/// A vCenter that starts may refuse a correct password for a while.
#[test]
fn vcenter_that_refuses_logins_as_it_starts_is_back_within_a_minute() {
    run_scenario(async {
        let fixture = one_node("booting").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[LOG_EACH_ATTEMPT]).await?;
        let restarted = tokio::time::Instant::now();
        let effects = RestartEffects {
            refuse_logins: Duration::from_secs(3),
            ..RestartEffects::default()
        };
        fixture
            .vcenter
            .restart_with(Down::Unavailable, Duration::from_secs(1), effects)
            .await?;
        wait_for_failed_attempts(&fixture, NOT_TRIED_AGAIN, 1).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        ensure!(
            restarted.elapsed() < Duration::from_secs(60),
            "{:?}",
            restarted.elapsed()
        );
        let journal = fixture.vcenter.journal().await?;
        let count = |detail: &str| journal.iter().filter(|it| it.detail == detail).count();
        let logins = (count("login"), count("login refused"));
        ensure!(logins == (2, 1), "{logins:?} were accepted and refused");
        haulout.stop().await
    });
}

#[test]
fn changed_password_file_is_used_at_the_next_login() {
    run_scenario(async {
        let fixture = one_node("rotated").await?;
        let node = fixture.node_name("gpu1");
        let file = fixture.kube.dir().join("rotated-password");
        std::fs::write(&file, fixture.vcenter.password())?;
        let path = file.to_string_lossy();
        let haulout = run(
            &fixture,
            &[
                ("VCENTER_PASSWORD", ""),
                ("VCENTER_PASSWORD_FILE", &path),
                LOG_EACH_ATTEMPT,
            ],
        )
        .await?;
        let logins = async |detail: &str| -> anyhow::Result<usize> {
            let journal = fixture.vcenter.journal().await?;
            Ok(journal.iter().filter(|it| it.detail == detail).count())
        };
        ensure!((logins("login").await?, logins("login refused").await?) == (1, 0));

        // The password becomes wrong, and the session ends.
        std::fs::write(&file, "not-the-password")?;
        fixture.vcenter.kill_sessions().await?;
        wait_for_failed_attempts(&fixture, NOT_TRIED_AGAIN, 4).await?;
        let refused = logins("login refused").await?;
        ensure!(refused == 1, "the wrong password was sent {refused} times");

        // The password is corrected without a restart.
        std::fs::write(&file, format!("{}\n", fixture.vcenter.password()))?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        ensure!((logins("login").await?, logins("login refused").await?) == (2, 1));
        ensure!(
            !fixture.log_text().contains("not-the-password"),
            "the password is in the log"
        );
        haulout.stop().await
    });
}
