//! A kube-apiserver that lags behind another one of its cluster: nothing is done on what it showed before.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, Member, WAIT_TIMEOUT, episode, is_cordoned};
use haulout_lab::kube::{Kube, KubeOptions, LaggingApiserver};
use haulout_lab::vcenter::VmState;
use haulout_lab::wait::until;

use crate::assertions::{entries_during, journal_end};
use crate::end_by_hand::skip;
use crate::fixture::{a40, gpu_vm, hosts, run, run_scenario, start};

/// A cluster with two kube-apiservers, one of which can lag.
struct Cluster {
    kube: Kube,
    lagging: LaggingApiserver,
}

impl Cluster {
    async fn start() -> anyhow::Result<Self> {
        let kube = Kube::start(&KubeOptions::default()).await?;
        let lagging = kube.start_lagging_apiserver().await?;
        Ok(Self { kube, lagging })
    }

    /// A fixture with one node on the only host, and the kubeconfig of Haulout for the kube-apiserver that lags.
    async fn fixture(&self, name: &str) -> anyhow::Result<(Fixture<'_>, PathBuf)> {
        let mut spec = hosts(&[("esx1", &[a40(1)])]);
        let vm = gpu_vm(name, "gpu1", "esx1");
        let members = vec![Member::new(name, "gpu1", &vm.uuid)];
        spec.vms = vec![vm];
        let fixture = Fixture::create(&self.kube, name, &spec, members, true).await?;
        let kubeconfig = self.kube.kubeconfig_for_lagging(&self.lagging, &fixture.user())?;
        Ok((fixture, kubeconfig))
    }
}

/// How long vCenter must not be changed by a process that knows only what was.
const WATCHED: Duration = Duration::from_secs(10);

#[test]
fn restart_at_a_kube_apiserver_that_lags_continues_once_it_is_current() {
    run_scenario(async {
        let cluster = Cluster::start().await?;
        let (fixture, kubeconfig) = cluster.fixture("lag-restart").await?;
        let kubeconfig = kubeconfig.to_string_lossy();
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;
        // It still shows a node in service when the VM is off and the host is back.
        cluster.lagging.freeze();
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        haulout.kill().await?;
        fixture.vcenter.exit_maintenance("esx1").await?;

        let haulout = start(&fixture, &[("KUBECONFIG", &kubeconfig)])?;
        fixture.wait_for_log("could not be searched for episodes").await?;
        let before = journal_end(&fixture).await?;
        ensure!(entries_during(&fixture, before, WATCHED).await?.is_empty());
        cluster.lagging.thaw();
        fixture.wait_in_service(&node).await?;
        let cycles = fixture.power_cycles("gpu1").await?;
        ensure!(cycles == (1, 1), "off {} times, on {} times", cycles.0, cycles.1);
        haulout.stop().await
    });
}

#[test]
fn skip_set_while_the_kube_apiserver_lags_keeps_the_node_untouched() {
    run_scenario(async {
        let cluster = Cluster::start().await?;
        let (fixture, kubeconfig) = cluster.fixture("lag-skip").await?;
        let kubeconfig = kubeconfig.to_string_lossy();
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[("KUBECONFIG", &kubeconfig)]).await?;
        // Haulout learns of the maintenance, and not of what a person did before.
        cluster.lagging.freeze();
        fixture.person_cordons(&node, true).await?;
        skip(&fixture, &node, Some("true")).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        // On a busy machine the watches may end before the write is sent, and then nothing is written.
        until("Haulout to miss the kube-apiserver", WAIT_TIMEOUT, async || {
            let log = fixture.log_text();
            let is_missed = ["was written is unknown", "Kubernetes connection lost"];
            Ok(is_missed.iter().any(|words| log.contains(words)).then_some(()))
        })
        .await?;

        // The watches of the kube-apiserver begin at a version that etcd no longer has.
        cluster.kube.compact_etcd().await?;
        cluster.lagging.thaw();
        fixture.wait_for_log("waiting for a person to remove").await?;
        let after = fixture.node(&node).await?;
        ensure!(is_cordoned(&after) && episode(&after).is_none(), "{after:#?}");
        let vcenter = fixture.vcenter.state().await?;
        ensure!(vcenter.vm("gpu1").is_some_and(VmState::is_on));
        haulout.stop().await.with_context(|| fixture.log_text())
    });
}
