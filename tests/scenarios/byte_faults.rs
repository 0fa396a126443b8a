//! Connections and replies that break at the level of bytes, at each kind of request of an episode. The node ends in service
//! with one power cycle, and nothing is powered off before the drain.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use haulout_lab::byte_proxy::{ACCEPTED, ByteFault, ByteProxy, ByteUpstream, CONNECTION};
use haulout_lab::fault_proxy::Side;
use haulout_lab::fixture::{Fixture, Haulout, WAIT_TIMEOUT};
use haulout_lab::kube::AuditEvent;
use haulout_lab::vcenter::Tls;
use haulout_lab::wait::until;
use k8s_openapi::api::core::v1::Node;
use reqwest::Url;
use tokio::time::Instant;

use crate::assertions::DOWN;
use crate::fixture::{one_node, run_all, run_scenario, start};

/// If it is set, all faults are tried, and each applies to every kind of request in each round, reads from Kubernetes that are held
/// included. Such a read ends after 65 to 90 s.
const ALL: &str = "HAULOUT_ALL_BYTE_FAULTS";
/// The faults of every run: one for each stage of a connection, and the replies that can be taken for right ones.
const OFTEN: [ByteFault; 6] = [
    ByteFault::ForeignCertificate,
    ByteFault::CutRequest,
    ByteFault::CutReply,
    ByteFault::CutReplyBody,
    ByteFault::RepeatedReply,
    ByteFault::OtherReply,
];
/// If it is set, only cases with this text in their names run.
const ONLY: &str = "HAULOUT_BYTE_FAULT";

/// Kinds of requests that are part of each episode, so that each fault has to apply to them.
const OF_VCENTER: [&str; 5] = [
    "Login",
    "PowerOnVM_Task",
    "RetrievePropertiesEx",
    "ShutdownGuest",
    "WaitForUpdatesEx",
];
const WRITES: [&str; 2] = ["PATCH nodes", "POST pods/eviction"];
const READS: [&str; 4] = ["LIST nodes", "LIST pods", "WATCH nodes", "WATCH pods"];

/// Connections of each server that a fault of connections applies to, in each round.
const CONNECTIONS: usize = 3;
/// Requests of each server in a row that get 503.
const BURST: usize = 5;

/// Whether everything is tried.
pub fn all() -> bool {
    std::env::var_os(ALL).is_some()
}

/// The ways of Haulout to both of its servers.
pub struct ByteProxies {
    pub kubernetes: ByteProxy,
    pub vcenter: ByteProxy,
    kubeconfig: String,
}

impl ByteProxies {
    pub async fn start(fixture: &Fixture<'_>) -> anyhow::Result<Self> {
        let (cert, key) = fixture
            .kube
            .server_certificate(&format!("byte-proxy-{}", fixture.name()))?;
        let certificate = Tls { cert, key };
        let authority = fixture.kube.authority();
        let upstream = fixture.kube.byte_upstream(&fixture.user())?;
        let kubernetes = ByteProxy::start(Side::Kubernetes, &certificate, upstream).await?;
        let sdk = Url::parse(fixture.vcenter.sdk())?;
        let address = sdk.socket_addrs(|| None)?[0];
        let upstream = ByteUpstream::trusting(address, authority)?;
        let vcenter = ByteProxy::start(Side::Vcenter, &certificate, upstream).await?;
        let kubeconfig = fixture
            .kube
            .dir()
            .join(format!("byte-proxy-{}.kubeconfig", fixture.name()));
        kubernetes.write_kubeconfig(&kubeconfig, authority)?;
        Ok(Self {
            kubernetes,
            vcenter,
            kubeconfig: kubeconfig.to_string_lossy().into_owned(),
        })
    }

    /// Starts Haulout behind both, with deadlines that end a held connection soon.
    pub fn start_haulout(&self, fixture: &Fixture<'_>, changes: &[(&str, &str)]) -> anyhow::Result<Haulout> {
        let host = format!("{}/sdk", self.vcenter.url());
        let mut all = vec![
            ("VCENTER_HOST", host.as_str()),
            ("KUBECONFIG", self.kubeconfig.as_str()),
            ("TEST_TIMINGS", "vcenter_call=2,vcenter_long_poll=2"),
        ];
        all.extend(changes);
        start(fixture, &all)
    }

    /// From now on the fault applies to each kind of request once more, or to some connections.
    fn strike(&self, case: Case, round: Round) {
        let fault = case.fault;
        for proxy in [&self.kubernetes, &self.vcenter] {
            if fault.is_of_connection() {
                proxy.strike_next(fault, CONNECTIONS);
            } else {
                proxy.strike_each(fault, move |kind| case.applies(kind, round));
            }
            if fault == ByteFault::Unavailable && round == Round::Drain {
                proxy.strike_next(fault, BURST);
            }
        }
    }

    /// How often the fault has applied to requests of this kind.
    fn applied(&self, fault: ByteFault, kind: &str) -> usize {
        let key = (fault, kind.to_owned());
        [&self.kubernetes, &self.vcenter]
            .iter()
            .map(|proxy| proxy.account().get(&key).copied().unwrap_or_default())
            .sum()
    }
}

/// When the fault begins to apply.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    Start,
    Drain,
    HostInMaintenance,
}

/// A fault, and the requests that it applies to.
#[derive(Clone, Copy, Debug)]
struct Case {
    fault: ByteFault,
    /// The server whose requests are struck; `None` for both. A held connection costs seconds with vCenter and tens of seconds
    /// with Kubernetes, so these are separate cases.
    only: Option<Side>,
    all: bool,
}

impl Case {
    fn table() -> Vec<Self> {
        let all = all();
        let faults = ByteFault::ALL.into_iter();
        let cases = faults
            .filter(|fault| all || OFTEN.contains(fault))
            .flat_map(|fault| {
                let sides = match fault.holds() && !fault.is_of_connection() {
                    true => vec![Some(Side::Vcenter), Some(Side::Kubernetes)],
                    false => vec![None],
                };
                sides.into_iter().map(move |only| Self { fault, only, all })
            });
        let only = std::env::var(ONLY).unwrap_or_default();
        cases.filter(|case| case.name().contains(&only)).collect()
    }

    fn name(self) -> String {
        let side = match self.only {
            None => "",
            Some(Side::Vcenter) => "-v",
            Some(Side::Kubernetes) => "-k",
        };
        format!("byte-{:?}{side}", self.fault).to_lowercase()
    }

    fn applies(self, kind: &str, round: Round) -> bool {
        let is_of_kubernetes =
            kind.chars().take_while(char::is_ascii_uppercase).count() > 1 && !kind.contains(" /");
        let side = if is_of_kubernetes {
            Side::Kubernetes
        } else {
            Side::Vcenter
        };
        if self.only.is_some_and(|only| only != side) {
            return false;
        }
        match (self.all, self.fault.holds(), side) {
            (true, ..) => true,
            (false, true, Side::Vcenter) => OF_VCENTER.contains(&kind),
            // Each costs 10 to 20 s.
            (false, true, Side::Kubernetes) => match round {
                Round::Start => kind == WRITES[0],
                Round::Drain => kind == WRITES[1],
                Round::HostInMaintenance => false,
            },
            (false, false, _) => round == Round::Start || self.expected().contains(kind),
        }
    }

    /// Waits several times as long where held reads end one after the other.
    async fn patiently(self, wait: impl AsyncFn() -> anyhow::Result<Node>) -> anyhow::Result<Node> {
        for _ in 0..if self.all { 5 } else { 0 } {
            if let Ok(node) = wait().await {
                return Ok(node);
            }
        }
        wait().await
    }

    /// The kinds that the fault has to apply to.
    fn expected(self) -> BTreeSet<&'static str> {
        if self.fault.is_of_connection() {
            return [CONNECTION].into();
        }
        let reads = READS.iter().filter(|_| self.all || !self.fault.holds());
        let of_vcenter = OF_VCENTER.iter().filter(|_| self.only != Some(Side::Kubernetes));
        let of_kubernetes = WRITES
            .iter()
            .chain(reads)
            .filter(|_| self.only != Some(Side::Vcenter));
        of_vcenter.chain(of_kubernetes).copied().collect()
    }
}

/// Waits until the fault has applied to `kind` for the `count`-th time.
async fn wait_applied(
    proxies: &ByteProxies,
    fault: ByteFault,
    kind: &str,
    count: usize,
) -> anyhow::Result<()> {
    until(
        &format!("{fault:?} at {kind}, {count} times"),
        WAIT_TIMEOUT,
        async || Ok((proxies.applied(fault, kind) >= count).then_some(())),
    )
    .await
}

/// An episode in which the fault applies at the start, while a pod holds the drain, and while the host is in maintenance.
async fn play(fixture: &Fixture<'_>, proxies: &ByteProxies, case: Case) -> anyhow::Result<()> {
    let fault = case.fault;
    let node = fixture.node_name("gpu1");
    fixture.add_pod("held", &node, &[]).await?;
    fixture.set_budget("held", 0).await?;
    if !fault.is_of_connection() {
        proxies.strike(case, Round::Start);
    }
    let timeouts = [
        // Nothing is powered off because the drain has taken too long.
        ("DRAIN_TIMEOUT_SECONDS", "3600"),
        // Where the request for a guest shutdown is lost, this is waited for.
        ("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "5"),
    ];
    let haulout = proxies.start_haulout(fixture, &timeouts)?;
    fixture.vcenter.enter_maintenance("esx1").await?;
    case.patiently(async || fixture.wait_phase(&node, "draining").await)
        .await?;
    // What is read during the drain may be wrong once, and the pod stays.
    let kind = match case {
        _ if fault.is_of_connection() => CONNECTION,
        Case {
            only: Some(Side::Vcenter),
            ..
        } => "RetrievePropertiesEx",
        _ => "POST pods/eviction",
    };
    let before = proxies.applied(fault, kind);
    proxies.strike(case, Round::Drain);
    let applied = async || {
        wait_applied(proxies, fault, kind, before + 1).await?;
        fixture.node(&node).await
    };
    case.patiently(applied).await?;
    let evictions = || {
        let requests = proxies.kubernetes.requests();
        requests.get("POST pods/eviction").copied().unwrap_or_default()
    };
    let before = evictions();
    let more = async || {
        until("two more evictions", WAIT_TIMEOUT, async || {
            Ok((evictions() >= before + 2).then_some(()))
        })
        .await?;
        fixture.node(&node).await
    };
    case.patiently(more).await?;
    ensure!(
        fixture.pods_on(&node).await? == ["held"],
        "the pod is still there"
    );
    ensure!(
        fixture.power_cycles("gpu1").await? == (0, 0),
        "nothing was powered off"
    );
    for method in DOWN {
        ensure!(
            fixture.calls(method, "gpu1").await? == 0,
            "{method} before the drain"
        );
    }
    fixture.set_budget("held", 1).await?;
    case.patiently(async || fixture.wait_phase(&node, "awaitingHost").await)
        .await?;
    fixture.wait_in_maintenance("esx1").await?;
    proxies.strike(case, Round::HostInMaintenance);
    fixture.vcenter.exit_maintenance("esx1").await?;
    case.patiently(async || fixture.wait_in_service(&node).await)
        .await?;
    ensure!(fixture.pods_on(&node).await?.is_empty(), "the pod was evicted");
    let cycles = fixture.power_cycles("gpu1").await?;
    ensure!(cycles == (1, 1), "off and on: {cycles:?}");
    haulout.kill().await
}

async fn survives(case: Case) -> anyhow::Result<()> {
    let fixture = one_node(&case.name()).await?;
    let proxies = ByteProxies::start(&fixture).await?;
    let began = Instant::now();
    let played = play(&fixture, &proxies, case).await;
    let mut account = proxies.kubernetes.account();
    account.extend(proxies.vcenter.account());
    println!(
        "{}: {:.1} s, {account:?}",
        case.name(),
        began.elapsed().as_secs_f32()
    );
    played.with_context(|| format!("{account:#?}\n{}", fixture.log_text()))?;
    ensure!(
        proxies.applied(case.fault, ACCEPTED) == 0,
        "a foreign certificate was accepted"
    );
    for kind in case.expected() {
        let times = proxies.applied(case.fault, kind);
        ensure!(times > 0, "it never applied to {kind}: {account:#?}");
    }
    Ok(())
}

/// The list of pods is the proof of the drain, and the reply to another request may be an empty list.
#[test]
fn drain_is_not_proved_by_replies_to_other_requests() {
    run_scenario(async {
        let fixture = one_node("byte-other-list").await?;
        let node = fixture.node_name("gpu1");
        let proxies = ByteProxies::start(&fixture).await?;
        fixture.add_pod("held", &node, &[]).await?;
        let haulout = proxies.start_haulout(&fixture, &[("DRAIN_TIMEOUT_SECONDS", "3600")])?;
        fixture.wait_for_log("vCenter synced").await?;
        let (fault, kind, count) = (ByteFault::OtherReply, "LIST pods", 4);
        for _ in 0..count {
            proxies.kubernetes.strike_each(fault, move |it| it == kind);
        }
        fixture.vcenter.enter_maintenance("esx1").await?;
        wait_applied(&proxies, fault, kind, count).await?;
        fixture.wait_in_maintenance("esx1").await?;
        let journal = fixture.vcenter.journal().await?;
        let down = journal
            .iter()
            .find(|it| DOWN.iter().any(|method| it.is_call(method)));
        let down = down.context("it was never powered off")?.time;
        let audit = fixture.audit().await?;
        let is_eviction = |it: &&AuditEvent| it.subresource.as_deref() == Some("eviction") && it.code == 201;
        let evicted = audit
            .iter()
            .find(is_eviction)
            .context("the pod was never evicted")?
            .answered;
        ensure!(evicted <= down, "evicted at {evicted}, and powered off at {down}");
        haulout.kill().await
    });
}

#[test]
fn each_byte_fault_at_each_request_leaves_one_power_cycle() {
    run_scenario(async {
        let runs = Case::table().into_iter().map(|case| async move {
            let result = survives(case).await;
            result.with_context(|| case.name())
        });
        run_all(runs).await
    });
}
