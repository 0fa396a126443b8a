//! What vCenter's task history lists and nothing works on, and tasks that the account may not read.

use anyhow::{Context as _, ensure};
use haulout::nodemaintenance::kind::MaintenanceAction;
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT, phase};
use haulout_lab::vcenter::{TaskResult, VmState};
use haulout_lab::wait::until;

use crate::assertions::{clock, cordons, node_writes};
use crate::fixture::{a40, fixture, gpu_vm, hosts, one_node, run, run_scenario};
use crate::requests::{ask, withdraw};

/// How the log names rows whose tasks do not exist.
const STALE: &str = "lists tasks as unfinished that do not exist any more";
/// What the log says of tasks that the account may not read.
const WITHHELD: &str = "may not read tasks: ";

/// How many lines of the log say that this row is stale.
fn told(fixture: &Fixture<'_>, task: &str) -> usize {
    let log = fixture.log_text();
    let names_it = |line: &&str| {
        let mut words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        line.contains(STALE) && words.any(|word| word == task)
    };
    log.lines().filter(names_it).count()
}

/// Waits until the log says that this row is stale.
async fn wait_until_told(fixture: &Fixture<'_>, task: &str) -> anyhow::Result<()> {
    until(
        &format!("the row of {task} to be told"),
        WAIT_TIMEOUT,
        async || Ok((told(fixture, task) > 0).then_some(())),
    )
    .await
    .with_context(|| fixture.log_text())
}

#[test]
fn row_of_a_task_that_does_not_exist_begins_no_maintenance() {
    run_scenario(async {
        for pushes in [true, false] {
            let name = if pushes { "stale-rows" } else { "stale-rows-alone" };
            let mut spec = hosts(&[("esx1", &[a40(1)])]);
            spec.vms = vec![gpu_vm(name, "gpu1", "esx1")];
            // Without these updates a maintenance is noticed by the history alone.
            spec.push_recent_task = Some(pushes);
            let fixture = fixture(name, &spec).await?;
            let node = fixture.node_name("gpu1");
            let vcenter = &fixture.vcenter;
            let mut rows = vec![
                vcenter
                    .add_stale_row_of_host("esx1", "EnterMaintenanceMode_Task")
                    .await?,
                vcenter.add_stale_row_of_vm("gpu1", "PowerOffVM_Task").await?,
            ];
            let began = clock();
            let haulout = run(&fixture, &[]).await?;
            for row in &rows {
                wait_until_told(&fixture, row).await?;
            }
            // Each new task makes another page, which has the rows again.
            for _ in 0..5 {
                vcenter.run_host_task("esx1", TaskResult::default()).await?;
            }
            let newer = vcenter
                .add_stale_row_of_host("esx1", "EnterMaintenanceMode_Task")
                .await?;
            rows.push(newer);
            vcenter.run_host_task("esx1", TaskResult::default()).await?;
            wait_until_told(&fixture, &rows[2]).await?;
            ensure!(
                node_writes(&fixture, &node, began).await?.is_empty(),
                "nothing is done to the Node"
            );

            vcenter.enter_maintenance("esx1").await?;
            fixture.wait_in_maintenance("esx1").await?;
            vcenter.exit_maintenance("esx1").await?;
            fixture.wait_in_service(&node).await?;
            ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
            let writes = node_writes(&fixture, &node, began).await?;
            ensure!(cordons(&writes) == [true, false], "{:?}", cordons(&writes));
            for row in &rows {
                ensure!(told(&fixture, row) == 1, "{row}: {}", fixture.log_text());
            }
            haulout.stop().await?;
        }
        Ok(())
    });
}

#[test]
fn tasks_that_may_not_be_read_are_told_once_and_begin_nothing() {
    run_scenario(async {
        let fixture = one_node("withheld-tasks").await?;
        let node = fixture.node_name("gpu1");
        fixture.vcenter.withhold_tasks(true).await?;
        let began = clock();
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_for_log(WITHHELD).await?;
        let log = fixture.log_text();
        let line = log.lines().find(|line| line.contains(WITHHELD));
        let line = line.context("it was told")?;
        ensure!(
            line.contains("System.Read") && line.contains("group-d1"),
            "it names the privilege and the object: {line}"
        );
        for _ in 0..3 {
            fixture
                .vcenter
                .run_host_task("esx1", TaskResult::default())
                .await?;
        }
        // By then everything that was pushed before is decided.
        ask(&fixture, "hold", &node, MaintenanceAction::Drain).await?;
        fixture.wait_phase(&node, "drained").await?;
        let state = fixture.vcenter.state().await?;
        ensure!(state.vm("gpu1").is_some_and(VmState::is_on));
        ensure!(
            phase(&fixture.node(&node).await?).as_deref() == Some("drained"),
            "the host is not known to leave"
        );
        withdraw(&fixture, "hold").await?;
        fixture.wait_in_service(&node).await?;
        let writes = node_writes(&fixture, &node, began).await?;
        ensure!(cordons(&writes) == [true, false], "{:?}", cordons(&writes));
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        let log = fixture.log_text();
        ensure!(log.matches(WITHHELD).count() == 1, "{log}");

        // An administrator gives the right.
        fixture.vcenter.withhold_tasks(false).await?;
        fixture.wait_in_maintenance("esx1").await?;
        haulout.stop().await
    });
}
