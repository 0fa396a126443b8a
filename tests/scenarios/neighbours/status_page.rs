//! The status page in a browser: its widths, its colours, and names that are HTML.

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::episode;

use super::browser::{Browser, Colours, Until};
use crate::fixture::{a40, fixture, gpu_vm, hosts, run, run_scenario};
use crate::status_page::{SERVED, json, page};

#[test]
fn page_fits_every_width_and_runs_no_script_from_a_name() {
    run_scenario(async {
        let Some(mut browser) = Browser::find("the look at the status page at every width")? else {
            return Ok(());
        };
        let nasty = "esx1<script>document.title='owned'";
        let mut spec = hosts(&[(nasty, &[a40(1)]), ("esx2", &[a40(1)])]);
        spec.vms = vec![
            gpu_vm("browser", "gpu1", nasty),
            gpu_vm("browser", "gpu2", "esx2"),
        ];
        let fixture = fixture("browser", &spec).await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = run(&fixture, &[SERVED]).await?;
        let page = page(&fixture).await?;
        fixture.vcenter.enter_maintenance(nasty).await?;
        fixture
            .wait_for_log("held by PodDisruptionBudget held-budget")
            .await?;
        fixture.vcenter.enter_maintenance("esx2").await?;
        fixture.wait_phase(&fixture.node_name("gpu2"), "queued").await?;
        let overview = json(&format!("{page}/api/v1/overview")).await?;
        ensure!(overview["hosts"].to_string().contains("<script>"), "{overview}");
        let record = episode(&fixture.node(&node).await?).context("an episode stands on the Node")?;
        let id = record["id"].as_str().context("it has an id")?;

        look(&mut browser, &page, &node, id).await?;
        haulout.stop().await
    });
}

async fn look(browser: &mut Browser, page: &str, node: &str, id: &str) -> anyhow::Result<()> {
    let written = browser.dom(page, Until::TwoSeconds).await?;
    ensure!(
        written.contains("Overview \u{b7} Haulout</title>"),
        "a name ran: {written}"
    );
    ensure!(
        written.contains(">live,</span>"),
        "the script of the page runs: {written}"
    );
    let paths = [
        ("overview", String::new()),
        ("node", format!("nodes/{node}")),
        ("episode", format!("episodes/{id}")),
    ];
    for (name, path) in &paths {
        for size in [(390, 844), (1280, 900)] {
            for colours in [Colours::Light, Colours::Dark] {
                let name = format!("{name}-{}-{colours:?}", size.0).to_lowercase();
                let url = format!("{page}/{path}");
                browser
                    .picture(&name, &url, size, colours, Until::TwoSeconds)
                    .await?;
            }
        }
    }
    Ok(())
}
