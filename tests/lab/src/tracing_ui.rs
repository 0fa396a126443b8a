//! The tracing UI of the demo and of `lab up`: Zipkin if Java and Maven are installed, and a command line for the
//! official Jaeger image if there is a container runtime.

use haulout_lab::jaeger::Jaeger;
use haulout_lab::ports::Port;
use haulout_lab::tools::{Tool, on_path};
use haulout_lab::zipkin::{self, Zipkin};

use crate::say;

/// The official image of Jaeger. The Go module that the lab builds has no web UI.
const JAEGER_IMAGE: &str = "cr.jaegertracing.io/jaegertracing/jaeger:2.15.0";
/// The container runtimes.
const RUNTIMES: [&str; 3] = ["docker", "podman", "nerdctl"];
/// The port of its web UI inside the container.
const PAGES: u16 = 16686;
/// The OTLP port inside the container.
const OTLP: u16 = 4318;

/// The tracing UIs.
#[derive(Debug)]
pub(crate) struct TracingUi {
    /// The UI, or the reason why there is none.
    zipkin: Result<Zipkin, String>,
    container: Option<Container>,
}

/// A container that a person may start at any time; traces are retried until then.
#[derive(Debug)]
struct Container {
    runtime: &'static str,
    pages: Port,
    otlp: Port,
}

impl TracingUi {
    /// Starts the available UI. A missing one is no error.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let zipkin = match zipkin::jar().await? {
            Tool::At(jar) => Ok(Zipkin::start(&jar).await?),
            Tool::Missing(why) => Err(why),
        };
        let container = match RUNTIMES.into_iter().find(|runtime| on_path(&[runtime]).is_some()) {
            Some(runtime) => Some(Container {
                runtime,
                pages: Port::reserve()?,
                otlp: Port::reserve()?,
            }),
            None => None,
        };
        Ok(Self { zipkin, container })
    }

    /// A Jaeger that forwards all traces to the UI.
    pub(crate) async fn start_jaeger(&self) -> anyhow::Result<Jaeger> {
        let zipkin = self.zipkin.iter().map(|it| it.otlp().to_owned());
        let container = self.container.iter().map(|it| loopback(&it.otlp));
        Jaeger::start_forwarding(&zipkin.chain(container).collect::<Vec<_>>()).await
    }

    /// For `TRACE_UI_URL_TEMPLATE`.
    pub(crate) fn template(&self) -> Option<String> {
        self.zipkin.as_ref().ok().map(|it| it.page("{trace_id}"))
    }

    /// Waits until it responds. If it does not, it is treated as missing.
    pub(crate) async fn wait_ready(&mut self) {
        if let Ok(zipkin) = &mut self.zipkin
            && let Err(error) = zipkin.wait_ready().await
        {
            self.zipkin = Err(format!("{error:#}"));
        }
    }

    /// Prints the address of the UI, or of one trace.
    pub(crate) fn say(&self, trace_id: Option<&str>) {
        let path = |prefix: &str| trace_id.map_or_else(String::new, |id| format!("{prefix}{id}"));
        match &self.zipkin {
            Ok(zipkin) => say(&format!(
                "Tracing UI (Zipkin):  {}",
                trace_id.map_or_else(|| zipkin.url(), |id| zipkin.page(id))
            )),
            Err(why) => say(&format!("Tracing UI:           none: {why}")),
        }
        if let Some(container) = &self.container {
            let (pages, otlp) = (container.pages.number(), container.otlp.number());
            say("The same in Jaeger's UI, with a container:");
            say(&format!(
                "  {} run --rm -p 127.0.0.1:{pages}:{PAGES} -p 127.0.0.1:{otlp}:{OTLP} {JAEGER_IMAGE}",
                container.runtime
            ));
            say(&format!("  {}{}", loopback(&container.pages), path("/trace/")));
        }
    }
}

fn loopback(port: &Port) -> String {
    format!("http://127.0.0.1:{}", port.number())
}
