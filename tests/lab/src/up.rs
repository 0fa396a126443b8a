//! Keeps a small lab running, and prints how to use `kubectl`, `govc` and `haulout` with it.

use std::ffi::OsStr;
use std::time::{Duration, Instant};

use haulout_lab::fixture::{Fixture, Member};
use haulout_lab::kube::{Kube, KubeOptions, User};
use haulout_lab::vcenter::{ClusterSpec, DeviceSpec, DrsAutomation, DrsSpec, Gpu, HostSpec, Spec, VmSpec};

use crate::say;
use crate::tracing_ui::TracingUi;

/// The fixture's name.
const FIXTURE: &str = "lab";
/// An NVIDIA A40.
const A40: u16 = 0x2235;
/// The interval in which the end of vCenter is noticed.
const LOOK: Duration = Duration::from_secs(1);

/// The options of the lab.
#[derive(Debug, clap::Args)]
pub(crate) struct UpArguments {
    /// The node monitor grace in seconds (production: 40).
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=3600))]
    node_monitor_grace_seconds: u64,
}

/// Runs the lab until a part of it ends unexpectedly.
pub(crate) async fn run(arguments: &UpArguments) -> anyhow::Result<()> {
    let started = Instant::now();
    let options = KubeOptions {
        node_monitor_grace: Duration::from_secs(arguments.node_monitor_grace_seconds),
        ..KubeOptions::default()
    };
    let mut ui = TracingUi::start().await?;
    let (kube, jaeger) = tokio::try_join!(Kube::start(&options), ui.start_jaeger())?;
    let spec = inventory();
    let members = spec.vms.iter().map(|vm| {
        let mut member = Member::new(FIXTURE, &vm.name, &vm.uuid);
        member.machine.gpus = 1;
        member
    });
    let fixture = Fixture::create(&kube, FIXTURE, &spec, members.collect(), true).await?;
    say(&format!(
        "The lab is up after {:.1} s: a cluster of 4 hosts, esx1 to esx4, each with an NVIDIA A40; the GPU nodes lab-gpu1 \
         on esx1 and lab-gpu2 on esx2; the pods' namespace is {FIXTURE}.",
        started.elapsed().as_secs_f64()
    ));
    look_around(&fixture, &kube, "esx1")?;
    say("");
    say("Start Haulout beside it, in a shell with these variables:");
    let mut environment = fixture.environment()?;
    environment.insert(
        "OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(),
        jaeger.otlp_http().into(),
    );
    if let Some(template) = ui.template() {
        environment.insert("TRACE_UI_URL_TEMPLATE".to_owned(), template.into());
    }
    environment.insert("STATUS_ADDRESS".to_owned(), "127.0.0.1:0".into());
    for (name, value) in environment {
        // Only needed if the shell has a proxy.
        if value.is_empty() && std::env::var_os(&name).is_none() {
            continue;
        }
        say(&format!("  export {name}={}", quote(&value)));
    }
    say("  cargo run --bin haulout -- run");
    say("");
    ui.wait_ready().await;
    ui.say(None);
    say("");
    say("Ctrl-C ends everything and removes its files.");
    let mut rev = fixture.vcenter.state().await?.rev;
    loop {
        rev = fixture.vcenter.state_after(rev, LOOK).await?.rev;
        kube.check_running().await?;
    }
}

/// Prints how to inspect a fixture, and how to put a host into maintenance.
pub(crate) fn look_around(fixture: &Fixture<'_>, kube: &Kube, host: &str) -> anyhow::Result<()> {
    let (vcenter, control) = (&fixture.vcenter, fixture.vcenter.control().trim_end_matches('/'));
    let kubeconfig = kube.kubeconfig(&User::admin("admin"))?;
    say("");
    say("Kubernetes, as an administrator:");
    say(&format!("  export KUBECONFIG={}", quote(kubeconfig.as_os_str())));
    say(&format!(
        "  export PATH={}:$PATH    # kubectl, if you have none",
        quote(kube.bin().as_os_str())
    ));
    say("  kubectl get nodes");
    say("");
    say("vCenter, with govc:");
    say(&format!("  export GOVC_URL={}", vcenter.sdk()));
    say(&format!("  export GOVC_USERNAME={}", vcenter.user()));
    say(&format!("  export GOVC_PASSWORD={}", vcenter.password()));
    say(&format!(
        "  export GOVC_TLS_CA_CERTS={}",
        quote(kube.authority().as_os_str())
    ));
    say("  govc ls -l 'host/*'");
    say(&format!("  govc host.maintenance.enter {host}"));
    say("");
    say("vCenter, without govc:");
    for (verb, what) in [
        (
            "enter",
            "Enter Maintenance Mode; the task runs on until no VM is powered on there",
        ),
        ("cancel", "cancel that task"),
        ("exit", "Exit Maintenance Mode"),
    ] {
        let command = format!("curl -sX POST -d '{{}}' {control}/hosts/{host}/{verb}");
        say(&format!("  {command:<68} # {what}"));
    }
    say(&format!(
        "  {:<68} # all hosts and VMs",
        format!("curl -s {control}/state")
    ));
    say(&format!(
        "  {:<68} # every call that changed something",
        format!("curl -s {control}/journal")
    ));
    say("");
    say(&format!("Kubernetes' logs:   {}/*.log", kube.dir().display()));
    Ok(())
}

/// A value quoted for a shell.
fn quote(value: &OsStr) -> String {
    let text = value.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/:._-@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

fn inventory() -> Spec {
    let host = |number: u8| HostSpec {
        name: format!("esx{number}"),
        devices: vec![DeviceSpec::gpu("0000:3b:00.0", A40)],
        datastores: vec!["storage".to_owned()],
        ..HostSpec::default()
    };
    let vm = |number: u8| VmSpec {
        name: format!("gpu{number}"),
        uuid: format!("4217a90c-0000-4000-8000-0000000000{number:02x}"),
        host: format!("esx{number}"),
        gpu: Gpu::nvidia(A40),
        shutdown_ms: 1000,
        ..VmSpec::default()
    };
    Spec {
        clusters: vec![ClusterSpec {
            name: "cluster".to_owned(),
            drs: DrsSpec {
                enabled: false,
                behavior: DrsAutomation::Manual,
                ..DrsSpec::default()
            },
            hosts: (1..=4).map(host).collect(),
            ..ClusterSpec::default()
        }],
        vms: (1..=2).map(vm).collect(),
        ..Spec::default()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::quote;

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        assert_eq!(quote(OsStr::new("/tmp/a-b")), "/tmp/a-b");
        assert_eq!(quote(OsStr::new("")), "''");
        assert_eq!(quote(OsStr::new("it's $x")), r"'it'\''s $x'");
    }
}
