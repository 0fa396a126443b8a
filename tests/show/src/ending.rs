//! The end of the demo: the second maintenance as a trace, and what is left running.

use std::cell::Cell;

use anyhow::Context as _;

use crate::peers::{Click, Peers};
use crate::printer::{heading, paragraph, say};
use crate::show::{DEADLINE, Show};
use crate::wait::until;
use crate::waterfall;

impl<P: Peers> Show<'_, P> {
    /// Prints the trace of the second maintenance.
    pub(crate) async fn draw(&self, trace_id: &str) -> anyhow::Result<()> {
        let what = format!("the whole trace {trace_id} to be received");
        let spans = until(&what, DEADLINE, async || {
            let spans = self.peers.trace(trace_id).await?;
            let is_whole = spans.iter().any(|span| span.parent.is_none());
            Ok(is_whole.then_some(spans))
        })
        .await?;
        heading("The second maintenance as a trace");
        paragraph(
            "Haulout sends it as OpenTelemetry spans. This is drawn from what the collector has received: one line for each span, \
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
        let page = self.episode_page(trace_id)?;
        // An error means that a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build()?;
        let what = format!("the status page to draw the episode under {page}");
        until(&what, DEADLINE, async || {
            let answer = client.get(&page).send().await?;
            let is_there = answer.status().is_success();
            Ok((is_there && answer.text().await?.contains("<svg")).then_some(()))
        })
        .await
    }

    /// Says that the demo ends here.
    pub(crate) fn end(&self) {
        self.finished();
        paragraph(self.peers.cast().kept);
    }

    /// Prints the addresses, and then every event until the program is ended.
    pub(crate) async fn stay(&self, trace_id: &str, has_finished: &Cell<bool>) -> anyhow::Result<()> {
        self.finished();
        has_finished.set(true);
        // The node of the first maintenance may move back.
        let home = &self.peers.cast().mover.home;
        self.peers.click(Click::Exit, home).await?;
        self.expect_vcenter(&format!("{home} has left maintenance mode"), |seen| {
            seen.host(home).is_some_and(|host| !host.in_maintenance)
        })
        .await?;
        heading("Everything keeps running until Ctrl-C. Look around:");
        let page = self.episode_page(trace_id)?;
        self.peers.say_how_to_look(&page, trace_id).await?;
        heading("What happens from here on:");
        self.printer.begin();
        std::future::pending().await
    }

    fn finished(&self) {
        heading(&format!(
            "Done in {:.0} s. The operator clicked Enter and Exit Maintenance Mode in vCenter, and Haulout did the rest.",
            self.started.elapsed().as_secs_f64()
        ));
    }

    fn episode_page(&self, id: &str) -> anyhow::Result<String> {
        let log = self.program.log_text();
        let address = log
            .split_once("serving the status page on ")
            .and_then(|(_, after)| after.split_whitespace().next())
            .context("the address of the status page is not in the log of Haulout")?;
        Ok(format!("{address}/episodes/{id}"))
    }
}
