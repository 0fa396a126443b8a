//! The end of the demo: the second maintenance as a trace, and the addresses of the tracing UI.

use std::cell::Cell;

use anyhow::Context as _;
use haulout_lab::fixture::{Fixture, label};
use haulout_lab::wait::until;

use super::printer::{heading, paragraph};
use super::show::Show;
use super::{DEADLINE, waterfall};
use crate::say;
use crate::tracing_ui::TracingUi;
use crate::up;

impl Show<'_> {
    /// Prints the trace of the second maintenance.
    pub(crate) async fn draw(&self, trace_id: &str) -> anyhow::Result<()> {
        let what = format!("Jaeger to have the whole trace {trace_id}");
        let spans = until(&what, DEADLINE, async || {
            let spans = self.jaeger.trace(trace_id).await?;
            let is_whole = spans.iter().any(|span| span.parent.is_none());
            Ok(is_whole.then_some(spans))
        })
        .await?;
        heading("The second maintenance as a trace");
        paragraph(
            "Haulout sends it as OpenTelemetry spans. This is drawn from what Jaeger has stored: one line for each span, \
             indented under its parent.",
        );
        say("");
        for row in waterfall::draw(&spans) {
            say(row.trim_end());
        }
        self.check_page(trace_id).await
    }

    /// The status page shows the same episode.
    async fn check_page(&self, trace_id: &str) -> anyhow::Result<()> {
        let page = episode_page(self.fixture, trace_id)?;
        let client = reqwest::Client::builder().no_proxy().build()?;
        let what = format!("the status page to draw the episode under {page}");
        until(&what, DEADLINE, async || {
            let answer = client.get(&page).send().await?;
            let is_there = answer.status().is_success();
            Ok((is_there && answer.text().await?.contains("<svg")).then_some(()))
        })
        .await
    }

    /// Stops the parts of the demo.
    pub(crate) fn end(&self) {
        self.finished();
        paragraph(
            "make demo KEEP=1 leaves everything running: open this trace in a tracing UI, open Haulout's status page, and use \
             kubectl, kubectl haulout and govc.",
        );
    }

    /// Prints the addresses, and then every event until the program is ended.
    pub(crate) async fn stay(
        &self,
        mut ui: TracingUi,
        trace_id: &str,
        has_finished: &Cell<bool>,
    ) -> anyhow::Result<()> {
        self.finished();
        has_finished.set(true);
        // The node of the first maintenance runs on esx4 and may move back.
        self.fixture.vcenter.exit_maintenance("esx1").await?;
        self.expect_vcenter("esx1 has left maintenance mode", |state| {
            state.host("esx1").is_some_and(|host| !host.in_maintenance)
        })
        .await?;
        heading("Everything keeps running until Ctrl-C. Look around:");
        self.look_around()?;
        ui.wait_ready().await;
        say("The second maintenance, in a browser:");
        say(&format!(
            "Status page:          {}",
            episode_page(self.fixture, trace_id)?
        ));
        ui.say(Some(trace_id));
        heading("What happens from here on:");
        self.printer.begin();
        std::future::pending().await
    }

    /// Prints how to use kubectl, its plugin and govc. The plugin is copied to the folder of the lab's kubectl.
    fn look_around(&self) -> anyhow::Result<()> {
        let link = self.kube.bin().join("kubectl-haulout");
        std::os::unix::fs::symlink(self.binary, &link)
            .with_context(|| format!("linking {}", link.display()))?;
        up::look_around(self.fixture, self.kube, "esx4")?;
        say(&format!("Haulout's log:      {}", self.fixture.log().display()));
        say("");
        say("Haulout's kubectl plugin, in the shell with KUBECONFIG and PATH:");
        say(&format!("  export GPU_NODE_LABEL={}", label(self.fixture.name())));
        say("  kubectl haulout list");
        say(&format!(
            "  kubectl haulout status {}",
            self.fixture.node_name("gpu1")
        ));
        say("");
        Ok(())
    }

    fn finished(&self) {
        heading(&format!(
            "Done in {:.0} s. The operator clicked Enter and Exit Maintenance Mode in vCenter, and Haulout did the rest.",
            self.started.elapsed().as_secs_f64()
        ));
    }
}

fn episode_page(fixture: &Fixture<'_>, id: &str) -> anyhow::Result<String> {
    Ok(format!("{}/episodes/{id}", status_page(fixture)?))
}

/// The address of the status page in Haulout's log.
fn status_page(fixture: &Fixture<'_>) -> anyhow::Result<String> {
    let log = fixture.log_text();
    let address = log
        .split_once("serving the status page on ")
        .and_then(|(_, after)| after.split_whitespace().next());
    let address = address.context("the address of the status page is not in the log of Haulout")?;
    Ok(address.to_owned())
}
