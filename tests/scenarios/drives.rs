//! Images in the drives of a VM, and its files, on a datastore that only its own host has.

use anyhow::ensure;
use haulout_lab::fixture::Fixture;
use haulout_lab::vcenter::{ImageSpec, Spec};

use crate::fixture::{fixture, run, run_scenario, wait_described};
use crate::placement::{cluster, runs_on};

/// The VM on `esx1`, which alone has the datastore `esx1-local`.
fn with_local_datastore(name: &str) -> Spec {
    let mut spec = cluster(name, &["esx1", "esx2"], "esx1");
    spec.clusters[0].hosts[0].datastores.push("esx1-local".to_owned());
    spec
}

fn image(connected: bool) -> ImageSpec {
    ImageSpec {
        datastore: "esx1-local".to_owned(),
        connected,
    }
}

/// The VM waits for its own host, and the wait contains `why`.
async fn waits_for_its_host(fixture: &Fixture<'_>, why: &str) -> anyhow::Result<()> {
    let haulout = run(fixture, &[]).await?;
    fixture.vcenter.enter_maintenance("esx1").await?;
    fixture.wait_for_log(why).await?;
    fixture.wait_in_maintenance("esx1").await?;
    wait_described(fixture, &fixture.node_name("gpu1"), "esx1-local").await?;
    ensure!(fixture.calls("RelocateVM_Task", "gpu1").await? == 0);
    fixture.vcenter.exit_maintenance("esx1").await?;
    runs_on(fixture, "esx1").await?;
    ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
    haulout.stop().await
}

#[test]
fn vm_with_an_image_that_is_not_connected_moves_to_a_host_without_it() {
    run_scenario(async {
        let mut spec = with_local_datastore("drive");
        spec.vms[0].image = Some(image(false));
        let fixture = fixture("drive", &spec).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        runs_on(&fixture, "esx2").await?;
        fixture.wait_for_log("vCenter warns of the relocation: ").await?;
        ensure!(fixture.calls("RelocateVM_Task", "gpu1").await? == 1);
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn vm_with_a_connected_image_waits_for_its_host_and_names_the_datastore() {
    run_scenario(async {
        let mut spec = with_local_datastore("drive-connected");
        spec.vms[0].image = Some(image(true));
        let fixture = fixture("drive-connected", &spec).await?;
        waits_for_its_host(&fixture, "uses backing '[esx1-local] images/seed.iso'").await
    });
}

#[test]
fn vm_with_its_files_on_a_local_datastore_waits_for_its_host_and_names_it() {
    run_scenario(async {
        let mut spec = with_local_datastore("drive-files");
        spec.vms[0].datastore = "esx1-local".to_owned();
        let fixture = fixture("drive-files", &spec).await?;
        let why = "esx2 does not see datastore esx1-local of the VM's files";
        waits_for_its_host(&fixture, why).await
    });
}
