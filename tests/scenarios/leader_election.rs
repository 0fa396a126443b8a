//! Two replicas with one leader. The leader is killed, frozen or cut off in the middle of its work, and the scenario
//! ends as an undisturbed one.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout::fence::{WriteFence, WriteKind};
use haulout::ids::VmRef;
use haulout::keys::LOGIN_REFUSED;
use haulout::maintenance::effect::PowerOffCause;
use haulout::vsphere::client::{CredentialPart, CredentialSource, Endpoint, Settings, Trust, Vcenter};
use haulout_lab::fault_proxy::{FaultProxy, ForwardedRequest, Moment, Side};
use haulout_lab::fixture::{ANNOTATIONS, Fixture, Haulout, WAIT_TIMEOUT, boot_id, episode};
use haulout_lab::kube::AuditEvent;
use haulout_lab::vcenter::{Power, State};
use haulout_lab::wait::until;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::time::Instant;

use crate::crash_recovery::{Scenario, through_proxy, undisturbed};
use crate::fixture::{
    LOG_EACH_ATTEMPT, one_node, run, run_all, run_scenario, start, wait_for_failed_attempts,
};
use crate::metrics::{SERVED, address, ask};
use crate::status_page::json;

/// The settings of a replica of this name.
pub fn replica_settings<'a>(fixture: &'a Fixture<'_>, name: &'a str) -> [(&'a str, &'a str); 4] {
    [
        ("LEADER_ELECTION", "true"),
        ("LEASE_NAME", fixture.name()),
        ("LEASE_NAMESPACE", fixture.name()),
        ("POD_NAME", name),
    ]
}

/// The defaults. With a shorter Lease, a kube-apiserver that stalls for some seconds on a busy
/// machine deposes the leader, and the scenario is another one.
pub const UNDEPOSED: [(&str, &str); 2] = [
    ("LEASE_DURATION_SECONDS", "15"),
    ("LEASE_RENEW_DEADLINE_SECONDS", "10"),
];

const HARMS: [Harm; 3] = [Harm::Killed, Harm::Frozen, Harm::CutOff];

/// A failure of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    /// SIGKILL after its request was carried out and before it gets the response.
    Killed,
    /// SIGSTOP for longer than the lease, and SIGCONT.
    Frozen,
    /// It reaches vCenter but not the kube-apiserver.
    CutOff,
}

impl Harm {
    fn name(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Frozen => "frozen",
            Self::CutOff => "cut",
        }
    }

    fn moment(self) -> Moment {
        match self {
            Self::Killed => Moment::After,
            Self::Frozen | Self::CutOff => Moment::Before,
        }
    }
}

/// A replica with its own fault proxy.
struct Replica {
    haulout: Haulout,
    proxy: FaultProxy,
}

/// Starts replica `name` behind `proxy`, which may be armed.
fn replica(
    fixture: &Fixture<'_>,
    (proxy, kubeconfig): (FaultProxy, String),
    name: &str,
    more: &[(&str, &str)],
) -> anyhow::Result<Replica> {
    let sdk = proxy.vcenter_sdk();
    let mut changes = vec![
        ("VCENTER_HOST", sdk.as_str()),
        ("KUBECONFIG", kubeconfig.as_str()),
    ];
    changes.extend(replica_settings(fixture, name));
    changes.extend(more);
    let haulout = start(fixture, &changes)?;
    Ok(Replica { haulout, proxy })
}

/// Waits until the replica called `name` holds the Lease.
pub async fn wait_leader(fixture: &Fixture<'_>, name: &str) -> anyhow::Result<()> {
    let leases: Api<Lease> = Api::namespaced(fixture.client(), fixture.name());
    let ours = format!("{name}_");
    let what = format!("{name} to lead");
    let held = until(&what, WAIT_TIMEOUT, async || {
        let lease = leases.get_opt(fixture.name()).await?;
        let holder = lease.and_then(|lease| lease.spec?.holder_identity);
        Ok(holder
            .is_some_and(|holder| holder.starts_with(&ours))
            .then_some(()))
    });
    held.await.with_context(|| fixture.log_text())
}

/// Waits until `count` replicas have probed vCenter successfully and could take over.
pub async fn wait_reachable(fixture: &Fixture<'_>, count: usize) -> anyhow::Result<()> {
    let words = "vCenter answers the probe";
    until(
        &format!("{count} replicas to reach vCenter"),
        WAIT_TIMEOUT,
        async || Ok((fixture.log_text().matches(words).count() >= count).then_some(())),
    )
    .await
}

/// Waits until `count` replicas have led and synced with vCenter.
pub async fn wait_synced(fixture: &Fixture<'_>, count: usize) -> anyhow::Result<()> {
    let words = "vCenter synced";
    until(
        &format!("{count} replicas to sync with vCenter"),
        WAIT_TIMEOUT,
        async || Ok((fixture.log_text().matches(words).count() >= count).then_some(())),
    )
    .await
}

/// The records in the audit log.
fn records(audit: &[AuditEvent]) -> Vec<serde_json::Value> {
    let key = format!("{ANNOTATIONS}/episode");
    let patches = audit
        .iter()
        .filter(|event| event.resource == "nodes" && (200..300).contains(&event.code));
    patches
        .filter_map(|event| {
            let text = event.object.as_ref()?["metadata"]["annotations"][&key].as_str()?;
            serde_json::from_str(text).ok()
        })
        .collect()
}

async fn disturbed(scenario: Scenario, name: &str, number: usize, harm: Harm) -> anyhow::Result<()> {
    let fixture = scenario.create(name).await?;
    let (armed, kubeconfig) = through_proxy(&fixture, "-a").await?;
    armed.stop_at(number, harm.moment());
    let a = replica(&fixture, (armed, kubeconfig), "a", &UNDEPOSED)?;
    wait_leader(&fixture, "a").await?;
    let b = replica(&fixture, through_proxy(&fixture, "-b").await?, "b", &UNDEPOSED)?;
    wait_synced(&fixture, 1).await?;
    wait_reachable(&fixture, 2).await?;
    let Replica { haulout, proxy } = a;
    let disturb = async {
        let request = tokio::time::timeout(WAIT_TIMEOUT, proxy.stopped())
            .await
            .with_context(|| {
                let log = fixture.log_text();
                format!("the scenario never came to its change number {number}; Haulout's log:\n{log}")
            })?;
        let did = match harm {
            Harm::Killed => {
                haulout.kill().await?;
                wait_leader(&fixture, "b").await?;
                proxy.forwarded()
            }
            Harm::Frozen => {
                haulout.freeze()?;
                proxy.open();
                wait_leader(&fixture, "b").await?;
                let did = proxy.forwarded();
                haulout.thaw()?;
                let code = haulout.ended().await?;
                ensure!(
                    code != Some(0),
                    "the deposed leader exits with an error: {code:?}"
                );
                did
            }
            Harm::CutOff => {
                proxy.cut(Side::Kubernetes);
                proxy.open();
                let ended = async {
                    let code = haulout.ended().await?;
                    ensure!(
                        code != Some(0),
                        "the deposed leader exits with an error: {code:?}"
                    );
                    anyhow::Ok(())
                };
                let led = async {
                    wait_leader(&fixture, "b").await?;
                    anyhow::Ok(proxy.forwarded())
                };
                let (ended, did) = tokio::join!(ended, led);
                ended?;
                did?
            }
        };
        anyhow::Ok((request, did))
    };
    let (played, disturbed) = tokio::join!(scenario.play(&fixture), disturb);
    let (request, did) = disturbed?;
    let requests = |forwarded: &[ForwardedRequest]| {
        let requests: Vec<String> = forwarded.iter().map(|it| it.what.clone()).collect();
        format!("{requests:#?}")
    };
    played.with_context(|| {
        format!(
            "{harm:?} at {}; a did {}, b did {}\n{}",
            request.what,
            requests(&did),
            requests(&b.proxy.forwarded()),
            fixture.log_text()
        )
    })?;
    ensure!(
        proxy.forwarded() == did,
        "the deposed leader acted on: it did {} and then {}",
        requests(&did),
        requests(&proxy.forwarded())
    );
    one_episode_of_two_leaders(&fixture, &b.proxy).await?;
    b.haulout.stop().await?;
    let left = fixture.node(&fixture.node_name("gpu1")).await?;
    ensure!(
        episode(&left).is_none(),
        "nothing of the episode is left on the Node"
    );
    Ok(())
}

/// All records have one episode id and trace id, and those of the second leader begin with its epoch.
async fn one_episode_of_two_leaders(fixture: &Fixture<'_>, second: &FaultProxy) -> anyhow::Result<()> {
    let audit = fixture.audit().await?;
    let records = records(&audit);
    let traces: BTreeSet<String> = records
        .iter()
        .map(|record| {
            record["episode"]["traceparent"]
                .as_str()
                .or(record["traceparent"].as_str())
        })
        .map(|trace| trace.unwrap_or("none").to_owned())
        .collect();
    ensure!(
        traces.len() == 1 && !traces.contains("none"),
        "the traces are {traces:?}"
    );
    let did = second.forwarded();
    if let Some(first) = did.first() {
        ensure!(
            first.what.starts_with("PATCH nodes/"),
            "the second leader began with {first}"
        );
    }
    Ok(())
}

fn survives(scenario: Scenario, name: &'static str) {
    run_scenario(async move {
        let changes = undisturbed(scenario, &format!("{name}-ref")).await?;
        let effects: Vec<(usize, &String)> = (1..)
            .zip(&changes)
            .filter(|(_, what)| !what.starts_with("PATCH nodes/"))
            .collect();
        ensure!(
            effects.len() >= 3,
            "the scenario has lost some of its effects: {changes:#?}"
        );
        println!("{HARMS:?} at each of {effects:?}");
        let points: Vec<(usize, Harm)> = HARMS
            .into_iter()
            .flat_map(|harm| effects.iter().map(move |(number, _)| (*number, harm)))
            .collect();
        let runs = points.into_iter().map(|(number, harm)| async move {
            let name = format!("{name}-{}-{number}", harm.name());
            let result = disturbed(scenario, &name, number, harm).await;
            result.context(name)
        });
        run_all(runs).await
    });
}

#[test]
fn leader_fails_at_each_effect_of_an_episode_that_waits() {
    survives(Scenario::Wait, "two-wait");
}

#[test]
fn leader_fails_at_each_effect_of_an_episode_that_moves() {
    survives(Scenario::Migrate, "two-move");
}

/// Waits until the proxy has forwarded a request that begins with `what`, and returns the time since `from`.
async fn first(proxy: &FaultProxy, what: &str, from: Instant) -> anyhow::Result<Duration> {
    until(&format!("the first {what}"), WAIT_TIMEOUT, async || {
        let forwarded = proxy.forwarded();
        Ok(forwarded
            .iter()
            .any(|it| it.what.starts_with(what))
            .then(|| from.elapsed()))
    })
    .await
}

/// The default of `LEASE_DURATION_SECONDS`.
const LEASE_DURATION: Duration = Duration::from_secs(15);

#[test]
fn orderly_exit_is_followed_before_the_lease_expires() {
    run_scenario(async {
        let fixture = Scenario::Wait.create("turns").await?;
        let node = fixture.node_name("gpu1");
        fixture.set_budget("train", 0).await?;
        let started = Instant::now();
        let a = replica(&fixture, through_proxy(&fixture, "-a").await?, "a", &[])?;
        wait_leader(&fixture, "a").await?;
        let b = replica(&fixture, through_proxy(&fixture, "-b").await?, "b", &[])?;
        wait_synced(&fixture, 1).await?;
        wait_reachable(&fixture, 2).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "draining").await?;
        ensure!(b.proxy.forwarded().is_empty(), "a standby changes nothing");
        // A leader that stops in its own quarantine does not release the Lease.
        let acted = "POST pods/train/eviction";
        first(&a.proxy, acted, started).await?;

        let began = Instant::now();
        a.haulout.stop().await?;
        let ended = began.elapsed();
        let follows = first(&b.proxy, acted, Instant::now()).await?;
        println!("SIGTERM: ended after {ended:.1?}, the next leader acted {follows:.1?} after that");
        ensure!(ended < Duration::from_secs(5), "{ended:?}");
        // Two seconds on an idle machine, the interval in which a standby reads the Lease. Earlier than the Lease
        // expires means that it was released.
        ensure!(follows < LEASE_DURATION, "{follows:?}\n{}", fixture.log_text());

        let c = replica(&fixture, through_proxy(&fixture, "-c").await?, "c", &[])?;
        wait_reachable(&fixture, 3).await?;
        let killed = Instant::now();
        b.haulout.kill().await?;
        let follows = first(&c.proxy, "PATCH nodes/", killed).await?;
        let acts = first(&c.proxy, acted, killed).await?;
        println!("SIGKILL: followed after {follows:.1?}, and the first effect came after {acts:.1?}");
        // The last renewal is at most two seconds old when the holder is killed.
        let sooner = LEASE_DURATION - Duration::from_secs(3);
        ensure!(
            follows > sooner && acts > follows,
            "{follows:?} {acts:?}\n{}",
            fixture.log_text()
        );
        c.haulout.stop().await
    });
}

#[test]
fn deleted_lease_does_not_depose_the_leader_or_let_another_act() {
    run_scenario(async {
        let fixture = one_node("deleted-lease").await?;
        let node = fixture.node_name("gpu1");
        let haulout = start(
            &fixture,
            &[&replica_settings(&fixture, "a")[..], &UNDEPOSED[..]].concat(),
        )?;
        wait_leader(&fixture, "a").await?;
        let leases: Api<Lease> = Api::namespaced(fixture.client(), fixture.name());
        leases
            .delete(fixture.name(), &kube::api::DeleteParams::default())
            .await?;
        wait_leader(&fixture, "a").await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        haulout.stop().await
    });
}

#[test]
fn leader_without_vcenter_hands_over_to_a_connected_replica() {
    run_scenario(async {
        let fixture = Scenario::Wait.create("deaf-leader").await?;
        let node = fixture.node_name("gpu1");
        // A lost connection is noticed within seconds.
        let more = [&UNDEPOSED[..], &[("TEST_TIMINGS", "vcenter_call=2")]].concat();
        let a = replica(&fixture, through_proxy(&fixture, "-a").await?, "a", &more)?;
        wait_leader(&fixture, "a").await?;
        let b = replica(&fixture, through_proxy(&fixture, "-b").await?, "b", &more)?;
        wait_synced(&fixture, 1).await?;
        wait_reachable(&fixture, 2).await?;
        a.proxy.cut(Side::Vcenter);
        let cut = Instant::now();
        fixture.vcenter.enter_maintenance("esx1").await?;
        wait_leader(&fixture, "b").await?;
        println!("followed {:.1?} after the cut", cut.elapsed());
        fixture.wait_phase(&node, "awaitingHost").await?;
        ensure!(
            a.proxy.forwarded().is_empty(),
            "the deaf leader changed something"
        );
        let code = a.haulout.ended().await?;
        ensure!(code != Some(0), "a deposed leader says so: {code:?}");
        b.haulout.stop().await
    });
}

#[test]
fn standby_is_ready_and_names_the_leader_and_no_nodes() {
    run_scenario(async {
        let fixture = one_node("standby").await?;
        let start = |name| {
            start(
                &fixture,
                &[&replica_settings(&fixture, name)[..], &SERVED[..]].concat(),
            )
        };
        let a = start("a")?;
        wait_leader(&fixture, "a").await?;
        wait_synced(&fixture, 1).await?;
        let served_by_a = address(&fixture, "health").await?;
        let b = start("b")?;
        wait_reachable(&fixture, 2).await?;
        let ready = |base: String| async move {
            let verbose = format!("{base}/readyz?verbose");
            until("it is ready", WAIT_TIMEOUT, async || {
                let (status, text) = ask(&verbose, "*/*").await?;
                Ok((status == 200 && !text.contains("no replica leads")).then_some(text))
            })
            .await
        };
        let of_a = ready(served_by_a).await?;
        ensure!(
            of_a.contains("[+]leadership ok: this replica leads, epoch "),
            "{of_a}"
        );
        let (health, metrics) = (
            address(&fixture, "health").await?,
            address(&fixture, "metrics").await?,
        );
        let of_b = ready(health.clone()).await?;
        ensure!(of_b.contains("[+]leadership ok: a_"), "{of_b}");
        let metrics = format!("{metrics}/metrics");
        let status = |value| format!("leader_election_master_status{{name=\"standby\"}} {value}");
        let (_, text) = ask(&metrics, "text/plain").await?;
        ensure!(text.contains(&status(0)) && !text.contains("node=\""), "{text}");
        let reachable = |line: &str| line.starts_with("haulout_vcenter_reachable{") && line.ends_with(" 1.0");
        ensure!(text.lines().any(reachable), "{text}");
        let sessions = fixture.vcenter.state().await?.sessions;
        ensure!(
            sessions == 1,
            "{sessions} sessions, where the leader alone has one"
        );

        a.stop().await?;
        wait_leader(&fixture, "b").await?;
        until("b to have metrics of its nodes", WAIT_TIMEOUT, async || {
            let (_, text) = ask(&metrics, "text/plain").await?;
            Ok((text.contains(&status(1)) && text.contains("node=\"standby-gpu1\"")).then_some(()))
        })
        .await?;
        let of_b = ready(health).await?;
        ensure!(
            of_b.contains("[+]leadership ok: this replica leads, epoch "),
            "{of_b}"
        );
        b.stop().await
    });
}

#[test]
fn standby_that_cannot_reach_vcenter_is_not_ready() {
    run_scenario(async {
        let fixture = Scenario::Wait.create("cut-standby").await?;
        let a = start(&fixture, &replica_settings(&fixture, "a"))?;
        wait_leader(&fixture, "a").await?;
        let (proxy, kubeconfig) = through_proxy(&fixture, "-b").await?;
        proxy.cut(Side::Vcenter);
        let more = [&SERVED[..], &[("TEST_TIMINGS", "vcenter_call=2")]].concat();
        let b = replica(&fixture, (proxy, kubeconfig), "b", &more)?;
        let verbose = format!("{}/readyz?verbose", address(&fixture, "health").await?);
        until("it to say so", WAIT_TIMEOUT, async || {
            let (status, text) = ask(&verbose, "*/*").await?;
            let says = text.contains("[-]vcenter failed") && text.contains("[+]kubernetes ok");
            Ok((status == 503 && says && text.contains("a_")).then_some(()))
        })
        .await?;
        a.stop().await?;
        b.haulout.stop().await
    });
}

#[test]
fn wrong_password_is_tried_once_over_fail_overs_and_restarts() {
    run_scenario(async {
        let fixture = one_node("wrong-pair").await?;
        let file = fixture.kube.dir().join("wrong-pair-password");
        let path = file.to_string_lossy().into_owned();
        let write = |password: &str| std::fs::write(&file, password);
        // At the first installation.
        write("not-the-password")?;
        let start = |name| {
            let password = [("VCENTER_PASSWORD", ""), ("VCENTER_PASSWORD_FILE", path.as_str())];
            start(
                &fixture,
                &[
                    &replica_settings(&fixture, name)[..],
                    &UNDEPOSED[..],
                    &password[..],
                    &[LOG_EACH_ATTEMPT],
                ]
                .concat(),
            )
        };
        let a = start("a")?;
        wait_leader(&fixture, "a").await?;
        let b = start("b")?;
        let logins_are = async |taken: usize, refused: usize| {
            let journal = fixture.vcenter.journal().await?;
            let count = |detail: &str| journal.iter().filter(|it| it.detail == detail).count();
            let are = (count("login"), count("login refused"));
            let log = fixture.log_text();
            ensure!(are == (taken, refused), "{are:?} were taken and refused\n{log}");
            anyhow::Ok(())
        };
        let attempts_fail =
            async |why: &str, count: usize| wait_for_failed_attempts(&fixture, why, count).await;
        attempts_fail("changed ones at once", 4).await?;
        logins_are(0, 1).await?;

        write(fixture.vcenter.password())?;
        wait_synced(&fixture, 1).await?;
        logins_are(1, 1).await?;

        // The password is changed to a wrong one while both replicas run.
        write("nor-this-one")?;
        fixture.vcenter.kill_sessions().await?;
        attempts_fail("changed ones at once", 8).await?;
        logins_are(1, 2).await?;

        // The next leader does not try it either, even if it was started later.
        a.kill().await?;
        wait_leader(&fixture, "b").await?;
        attempts_fail("before this replica became the leader", 3).await?;
        let c = start("c")?;
        wait_reachable(&fixture, 3).await?;
        b.kill().await?;
        wait_leader(&fixture, "c").await?;
        attempts_fail("before this replica became the leader", 9).await?;
        logins_are(1, 2).await?;

        write(fixture.vcenter.password())?;
        wait_synced(&fixture, 2).await?;
        logins_are(2, 2).await?;
        ensure!(
            !fixture.log_text().contains("nor-this-one"),
            "the password is in the log"
        );
        let leases: Api<Lease> = Api::namespaced(fixture.client(), fixture.name());
        until("the Lease to say nothing of it", WAIT_TIMEOUT, async || {
            let lease = leases.get(fixture.name()).await?;
            let notes = lease.metadata.annotations.unwrap_or_default();
            Ok((!notes.contains_key(LOGIN_REFUSED)).then_some(()))
        })
        .await?;
        c.stop().await
    });
}

#[test]
fn calls_to_vcenter_name_the_pod_the_epoch_and_the_node() {
    run_scenario(async {
        let fixture = one_node("audited").await?;
        let node = fixture.node_name("gpu1");
        let environment = |name| [&replica_settings(&fixture, name)[..], &UNDEPOSED[..]].concat();
        let a = start(&fixture, &environment("a"))?;
        wait_leader(&fixture, "a").await?;
        wait_synced(&fixture, 1).await?;
        a.stop().await?;
        let b = start(&fixture, &environment("b"))?;
        wait_leader(&fixture, "b").await?;
        wait_synced(&fixture, 2).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;

        let journal = fixture.vcenter.journal().await?;
        let agents: Vec<&str> = journal
            .iter()
            .filter(|it| it.detail == "login")
            .map(|it| it.agent.as_str())
            .collect();
        let agent = |name: &str| format!("haulout/{} ({name})", env!("CARGO_PKG_VERSION"));
        ensure!(agents == [agent("a"), agent("b")], "{agents:?}");
        let acts: Vec<(&str, &str)> = journal
            .iter()
            .filter(|it| it.object == "gpu1" && !it.method.is_empty())
            .map(|it| (it.method.as_str(), it.operation.as_str()))
            .collect();
        let leases: Api<Lease> = Api::namespaced(fixture.client(), fixture.name());
        let spec = leases.get(fixture.name()).await?.spec.unwrap_or_default();
        let epoch = spec.lease_transitions.context("the Lease counts")?;
        let ours = format!("haulout-e{epoch}-{node}-");
        let asked = |name: &str| acts.iter().any(|(method, _)| *method == name);
        ensure!(
            asked("ShutdownGuest")
                && asked("PowerOnVM_Task")
                && acts.iter().all(|(_, operation)| operation.starts_with(&ours)),
            "{acts:?} instead of {ours}"
        );
        b.stop().await
    });
}

/// Powers off `gpu1` as the controller's user, like a late request of a deposed leader.
async fn power_off_as_haulout(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let given = |text: &str| CredentialPart::Given(text.to_owned().into());
    let credentials = CredentialSource {
        user: given(fixture.vcenter.user()),
        password: given(fixture.vcenter.password()),
    };
    let trust = Trust::CaBundle(fixture.kube.authority().to_owned());
    let vcenter = Vcenter::new(Settings::new(
        Endpoint::parse(fixture.vcenter.sdk())?,
        credentials,
        trust,
    ))?;
    let state = fixture.vcenter.state().await?;
    let vm = state.vm("gpu1").context("gpu1 is a VM")?;
    let permit = WriteFence::without_election().permit(WriteKind::Effect)?;
    vcenter
        .power_off(
            &permit,
            &VmRef::new(vm.reference.as_str()),
            &PowerOffCause::Request(None),
        )
        .await?;
    vcenter.logout().await;
    let is_off = |state: &State| state.vm("gpu1").is_some_and(|vm| vm.power == Power::PoweredOff);
    fixture.wait_vcenter("gpu1 is off", is_off).await?;
    Ok(())
}

#[test]
fn late_power_off_of_a_deposed_leader_is_reverted_a_persons_is_not() {
    run_scenario(async {
        let fixture = one_node("stray").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        haulout.stop().await?;
        let boot = boot_id(&fixture.node(&node).await?);
        power_off_as_haulout(&fixture).await?;

        // The next leader only knows what the Node and vCenter show.
        let haulout = start(&fixture, &[])?;
        fixture
            .wait_node(&node, "is on another boot", |node| boot_id(node) != boot)
            .await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (2, 2));

        let asked = async || anyhow::Ok(fixture.vcenter.traffic("haulout").await?.calls);
        let before = asked().await?;
        fixture.vcenter.power_off("gpu1").await?;
        let is_off = |state: &State| state.vm("gpu1").is_some_and(|vm| vm.power == Power::PoweredOff);
        fixture.wait_vcenter("gpu1 is off", is_off).await?;
        // The next poll has read that the VM is off and whose task that was.
        until("both polls to be asked again", WAIT_TIMEOUT, async || {
            Ok((asked().await? >= before + 2).then_some(()))
        })
        .await?;
        ensure!(episode(&fixture.node(&node).await?).is_none());
        haulout.stop().await?;
        let haulout = start(&fixture, &[])?;
        until("vCenter to be synced three times", WAIT_TIMEOUT, async || {
            let count = fixture.log_text().matches("vCenter synced").count();
            Ok((count >= 3).then_some(()))
        })
        .await?;
        haulout.stop().await?;
        ensure!(fixture.power_cycles("gpu1").await? == (3, 2));
        ensure!(episode(&fixture.node(&node).await?).is_none());
        Ok(())
    });
}

#[test]
fn standby_page_names_the_leader_and_shows_what_it_writes() {
    run_scenario(async {
        let fixture = one_node("standby-page").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let start = |name| {
            let page = [("STATUS_ADDRESS", "127.0.0.1:0")];
            start(
                &fixture,
                &[&replica_settings(&fixture, name)[..], &page[..]].concat(),
            )
        };
        let a = start("a")?;
        wait_leader(&fixture, "a").await?;
        wait_synced(&fixture, 1).await?;
        let of_a = address(&fixture, "the status page").await?;
        let b = start("b")?;
        wait_reachable(&fixture, 2).await?;
        let of_b = address(&fixture, "the status page").await?;
        ensure!(of_a != of_b);
        let overview = |base: &str| format!("{base}/api/v1/overview");
        until("each page to show the leader", WAIT_TIMEOUT, async || {
            let (a, b) = (json(&overview(&of_a)).await?, json(&overview(&of_b)).await?);
            let leader = b["leadership"]["leader"].as_str().unwrap_or_default();
            let shows_leader = a["leadership"]["role"] == "leads"
                && b["leadership"]["role"] == "standsBy"
                && leader.starts_with("a_");
            Ok(shows_leader.then_some(()))
        })
        .await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        let seen = std::cell::RefCell::new(None);
        let shown = until("the standby to show the wait", WAIT_TIMEOUT, async || {
            let shown = json(&overview(&of_b)).await?;
            *seen.borrow_mut() = Some(shown.clone());
            let waits = &shown["nodes"][0]["waitsFor"]["reason"];
            Ok((waits == "disruption-budget").then_some(shown))
        })
        .await
        .with_context(|| format!("it shows {:?}", seen.borrow()))?;
        ensure!(
            shown["nodes"][0]["name"] == *node
                && shown["nodes"][0]["state"] == "Draining"
                && shown["figures"]["inEpisode"] == 1,
            "{shown}"
        );
        // The standby shows the host of the record; the leader also shows vCenter's facts.
        ensure!(
            shown["nodes"][0]["host"] == "esx1"
                && shown["hosts"] == serde_json::json!([])
                && shown["vcenterSilent"].is_null(),
            "{shown}"
        );
        let of_node = json(&format!("{of_b}/api/v1/nodes/{node}")).await?;
        ensure!(
            of_node["pods"]["left"][0]["name"] == "standby-page/held",
            "{of_node}"
        );
        let (_, html) = ask(&of_b, "text/html").await?;
        ensure!(
            html.contains("This replica is a standby.")
                && html.contains(" leads; its page shows hosts, VMs and steps."),
            "{html}"
        );
        let (_, html) = ask(&of_a, "text/html").await?;
        ensure!(!html.contains("is a standby"), "{html}");

        fixture.set_budget("held", 1).await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        let id = shown["nodes"][0]["episode"].as_str().context("an episode")?;
        let what = "the standby to show the end as the leader wrote it";
        until(what, WAIT_TIMEOUT, async || {
            let (listed, own) = (
                json(&overview(&of_b)).await?,
                json(&format!("{of_b}/api/v1/episodes/{id}")).await?,
            );
            let is_shown = listed["episodes"][0]["result"] == "Succeeded" && own["result"] == "Succeeded";
            *seen.borrow_mut() = Some(own);
            Ok(is_shown.then_some(()))
        })
        .await
        .with_context(|| format!("it shows {:?}", seen.borrow()))?;

        a.stop().await?;
        wait_leader(&fixture, "b").await?;
        until("its page to show that it leads", WAIT_TIMEOUT, async || {
            let shown = json(&overview(&of_b)).await?;
            let is_shown = shown["leadership"]["role"] == "leads" && shown["hosts"][0]["name"] == "esx1";
            Ok(is_shown.then_some(()))
        })
        .await?;
        b.stop().await
    });
}
