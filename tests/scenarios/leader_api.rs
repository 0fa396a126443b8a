//! Plans and reports are made by the leader, which `kubectl haulout` reaches through the kube-apiserver.

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::WAIT_TIMEOUT;
use haulout_lab::kube::User;
use haulout_lab::kubelet_server::KubeletServer;
use haulout_lab::wait::until;
use k8s_openapi::api::rbac::v1::PolicyRule;
use tokio::process::Command;

use crate::fixture::{BINARY, one_node, run_scenario, start};
use crate::kubectl_plugin::{Answer, answer};
use crate::leader_election::{replica_settings, wait_leader, wait_reachable, wait_synced};
use crate::status_page::page;

/// A port of loopback on which nothing listens.
const UNUSED_PORT: u16 = 1;

fn rule(verbs: &[&str], resource: &str) -> PolicyRule {
    PolicyRule {
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        api_groups: Some(vec![String::new()]),
        resources: Some(vec![resource.to_owned()]),
        ..PolicyRule::default()
    }
}

#[test]
fn plan_comes_from_the_leader_by_a_port_forward_to_its_pod() {
    run_scenario(async {
        let fixture = one_node("leader-api").await?;
        let node = fixture.node_name("gpu1");
        let start = |name| {
            let page = [("STATUS_ADDRESS", "127.0.0.1:0")];
            start(
                &fixture,
                &[&replica_settings(&fixture, name)[..], &page[..]].concat(),
            )
        };
        let leader = start("a")?;
        wait_leader(&fixture, "a").await?;
        wait_synced(&fixture, 1).await?;
        let of_leader = page(&fixture).await?;
        let standby = start("b")?;
        wait_reachable(&fixture, 2).await?;
        let of_standby = page(&fixture).await?;
        ensure!(of_leader != of_standby);

        let kube = fixture.kube;
        let kubelet = KubeletServer::start(kube, "leader-api-kubelet").await?;
        let labels = [
            ("app.kubernetes.io/part-of", "haulout"),
            ("app.kubernetes.io/instance", "haulout"),
        ];
        for (pod, port) in [
            ("a-closed", UNUSED_PORT),
            ("b-standby", port_of(&of_standby)?),
            ("c-leader", port_of(&of_leader)?),
        ] {
            let name = (fixture.name(), pod);
            kubelet.add_pod(kube, name, &labels, &[("status", port)]).await?;
        }

        // Nothing but a kubeconfig: no setting of the controller, and no password.
        let asks_as = async |person: &str, words: &[&str]| -> anyhow::Result<Answer> {
            let kubeconfig = kube.kubeconfig(&User::stranger(person))?;
            let mut command = Command::new(BINARY);
            command
                .args(words)
                .arg("--release=leader-api/haulout")
                .env_clear();
            command.env("KUBECONFIG", kubeconfig);
            answer(command).await
        };
        let nobody = asks_as("leader-api-nobody", &["plan", "esx1"]).await?;
        ensure!(
            nobody.code == 1 && nobody.stderr.contains("looking for the pods of Haulout"),
            "{nobody}"
        );
        let reader = User::stranger("leader-api-reader");
        kube.grant(&reader, vec![rule(&["list"], "pods")]).await?;
        until("the port-forward to be forbidden", WAIT_TIMEOUT, async || {
            let answer = asks_as(reader.name(), &["plan", "esx1"]).await?;
            let hint = "In the namespace leader-api, get and create on pods/portforward";
            let is_told = answer.stderr.contains(hint) && answer.stderr.contains("pods/portforward");
            Ok((answer.code == 1 && is_told).then_some(()))
        })
        .await?;
        let person = User::stranger("leader-api-person");
        let rights = [
            rule(&["list"], "pods"),
            rule(&["get", "create"], "pods/portforward"),
        ];
        kube.grant(&person, rights.to_vec()).await?;
        let asks = async |words: &[&str]| asks_as(person.name(), words).await;
        let words = format!("node/{node} (InService, VM ");
        until("the plan", WAIT_TIMEOUT, async || {
            let plan = asks(&["plan", "esx1"]).await?;
            Ok((plan.code == 0 && plan.stdout.contains(&words)).then_some(()))
        })
        .await?;
        let wave = asks(&["plan", "esx1", &node, "-o", "json"]).await?;
        ensure!(wave.code == 0 && wave.stdout.contains("\"rounds\""), "{wave}");
        let report = asks(&["report"]).await?;
        ensure!(report.stdout.contains(&node), "{report}");
        let unknown = asks(&["plan", "nobody"]).await?;
        ensure!(
            unknown.code == 1
                && unknown
                    .stderr
                    .contains("nobody is neither a node that GPU_NODE_LABEL selects nor a host"),
            "{unknown}"
        );

        // Who cannot answer says why.
        leader.kill().await?;
        let none = asks(&["plan", "esx1"]).await?;
        for words in [
            "pod/a-closed: nothing answers on port",
            "pod/b-standby: this replica is a standby",
            "pod/c-leader: nothing answers on port",
        ] {
            ensure!(none.code == 1 && none.stderr.contains(words), "{words}: {none}");
        }
        standby.stop().await
    });
}

fn port_of(page: &str) -> anyhow::Result<u16> {
    let port = page.trim_end_matches('/').rsplit_once(':').context("no port")?.1;
    Ok(port.parse()?)
}
