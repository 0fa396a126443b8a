//! Many connections to vCenter, one after the other, in one session.

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT};
use haulout_lab::kube::{Kube, KubeOptions};
use haulout_lab::vcenter::Bulk;
use haulout_lab::wait::until;
use tokio::time::Instant;

use crate::byte_faults::{self, ByteProxies};
use crate::fixture::{a40, fixture_in, gpu_vm, hosts, run_scenario};

/// How many connections are made after the warm-up: in every run, and where everything is tried.
const RECONNECTS: [usize; 2] = [300, 1_000];
/// Connections until caches and pools have their size.
const WARM_UP: usize = 100;
/// One in so many connections is cut during a call, after which the program pauses for 1 to 2 s.
const CUT_EVERY: usize = 100;
/// How many times all connections are cut during a call, if it is set.
const CUTS: &str = "HAULOUT_CUTS";
/// Cuts until caches and pools have their size.
const WARM_UP_CUTS: usize = 5;
/// Changes of hosts per second: each poll has a reply at once, so that the next one needs another connection.
const CHANGES: u32 = 500;
/// For how many connections one wait lasts.
const STEP: usize = 20;

const MEMORY_MAX: u64 = 5 << 20;
/// Connections that are open at one moment and not at another.
const DESCRIPTORS_MAX: usize = 6;

/// What the process holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    memory: u64,
    descriptors: usize,
}

impl Held {
    fn by(pid: u32) -> anyhow::Result<Self> {
        Ok(Self {
            memory: crate::status_page::resident(pid)?,
            descriptors: std::fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
        })
    }
}

async fn sessions(fixture: &Fixture<'_>) -> anyhow::Result<usize> {
    Ok(fixture.vcenter.state().await?.sessions)
}

/// The sessions and the resources during a scenario.
struct Watch<'f> {
    fixture: &'f Fixture<'f>,
    pid: u32,
    warm: Option<(Held, Instant)>,
    most_sessions: usize,
}

impl<'f> Watch<'f> {
    fn new(fixture: &'f Fixture<'f>, pid: u32) -> Self {
        Self {
            fixture,
            pid,
            warm: None,
            most_sessions: 0,
        }
    }

    fn is_warm(&mut self) -> anyhow::Result<()> {
        self.warm = Some((Held::by(self.pid)?, Instant::now()));
        Ok(())
    }

    async fn look(&mut self) -> anyhow::Result<()> {
        self.most_sessions = self.most_sessions.max(sessions(self.fixture).await?);
        ensure!(self.most_sessions <= 2, "{} sessions", self.most_sessions);
        Ok(())
    }

    /// One session by one login, and no more memory and descriptors than after the warm-up.
    async fn ensure_flat(&self, what: &str) -> anyhow::Result<()> {
        let (before, since) = self.warm.context("no warm-up")?;
        let took = since.elapsed().as_secs_f32();
        let after = Held::by(self.pid)?;
        let most = self.most_sessions;
        println!("{what} in {took:.1} s, {before:?}, then {after:?}, at most {most} sessions");
        let left = sessions(self.fixture).await?;
        ensure!(left == 1, "{left} sessions at the end");
        ensure!(
            after.memory <= before.memory + MEMORY_MAX,
            "{before:?}, then {after:?}"
        );
        ensure!(
            after.descriptors <= before.descriptors + DESCRIPTORS_MAX,
            "{before:?}, then {after:?}"
        );
        let journal = self.fixture.vcenter.journal().await?;
        let logins = journal.iter().filter(|it| it.detail == "login").count();
        ensure!(logins == 1, "{logins} logins");
        Ok(())
    }
}

/// A fixture with some hosts whose properties can change.
async fn changing<'k>(kube: &'k Kube, name: &str) -> anyhow::Result<Fixture<'k>> {
    let mut spec = hosts(&[("esx1", &[a40(1)])]);
    spec.vms = vec![gpu_vm(name, "gpu1", "esx1")];
    spec.bulk = Some(Bulk { hosts: 10, vms: 0 });
    fixture_in(kube, name, &spec).await
}

#[test]
fn reconnects_cost_one_session_and_no_memory() {
    run_scenario(async {
        let kube = Kube::start(&KubeOptions::default()).await?;
        let fixture = changing(&kube, "reconnects").await?;
        let proxies = ByteProxies::start(&fixture).await?;
        let proxy = &proxies.vcenter;
        proxy.close_after_each_reply();
        let haulout = proxies.start_haulout(&fixture, &[])?;
        fixture.wait_for_log("vCenter synced").await?;
        fixture.vcenter.set_change_rate(CHANGES).await?;
        let mut watch = Watch::new(&fixture, haulout.pid().context("it runs")?);
        let first = proxy.connections();
        let reconnects = RECONNECTS[usize::from(byte_faults::all())];
        let mut reached = 0;
        while reached < WARM_UP + reconnects {
            reached += STEP;
            until(&format!("{reached} connections"), WAIT_TIMEOUT, async || {
                Ok((proxy.connections() >= first + reached).then_some(()))
            })
            .await
            .with_context(|| fixture.log_text())?;
            watch.look().await?;
            if reached == WARM_UP {
                watch.is_warm()?;
            }
            if reached.is_multiple_of(CUT_EVERY) {
                proxy.cut();
            }
        }
        fixture.vcenter.set_change_rate(0).await?;
        watch.ensure_flat(&format!("{reconnects} reconnects")).await?;
        haulout.stop().await?;
        ensure!(sessions(&fixture).await? == 0, "it logged out");
        Ok(())
    });
}

/// Each cut ends the stream of updates and the calls under way, and the program builds another stream after 1 to 2 s.
#[test]
fn session_and_memory_stay_when_all_connections_are_cut() {
    run_scenario(async {
        let cuts = std::env::var(CUTS).map_or(Ok(12), |cuts| cuts.parse::<usize>())?;
        let kube = Kube::start(&KubeOptions::default()).await?;
        let fixture = changing(&kube, "cuts").await?;
        let proxies = ByteProxies::start(&fixture).await?;
        let proxy = &proxies.vcenter;
        let haulout = proxies.start_haulout(&fixture, &[])?;
        fixture.wait_for_log("vCenter synced").await?;
        let mut watch = Watch::new(&fixture, haulout.pid().context("it runs")?);
        let polls = || {
            proxy
                .requests()
                .get("WaitForUpdatesEx")
                .copied()
                .unwrap_or_default()
        };
        for cut in 1..=WARM_UP_CUTS + cuts {
            // The new stream waits for changes: the first poll has had its reply.
            let before = polls();
            proxy.cut();
            until(&format!("the stream after cut {cut}"), WAIT_TIMEOUT, async || {
                Ok((polls() >= before + 2).then_some(()))
            })
            .await
            .with_context(|| fixture.log_text())?;
            watch.look().await?;
            if cut == WARM_UP_CUTS {
                watch.is_warm()?;
            }
        }
        watch.ensure_flat(&format!("{cuts} cuts")).await?;
        haulout.stop().await
    });
}
