//! The settings of each module, from the configuration.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};

use super::connections::Connections;
use crate::config::{Config, without_password};
use crate::controller::event_loop::InventoryRequest;
use crate::inventory::InventorySettings;
use crate::kubernetes::facts::GpuResources;
use crate::kubernetes::lease::election::{Timing, YIELD_AFTER};
use crate::kubernetes::machine_guard::MachineApi;
use crate::kubernetes::{guards, lease};
use crate::maintenance::policy::{GuardPolicy, Policy, Releases};
use crate::plan::DrainLimits;
use crate::plan::planner::{ANSWERS, Planner};
use crate::plan::view::{PlanSettings, PlanSources};
use crate::telemetry::misconfigured::Misconfigured;
use crate::vsphere;
use crate::vsphere::client::{Endpoint, Thumbprint, Trust, Vcenter};

/// The first wait after a refusal.
const RETRY_MIN: Duration = Duration::from_secs(1);

pub(crate) fn vcenter_settings(config: &Config) -> Result<vsphere::client::Settings, Misconfigured> {
    let endpoint = endpoint(config)?;
    let timings = config.timings();
    let trust = match (&config.vcenter_ca_bundle, config.verifies_tls()) {
        // A CA bundle takes precedence over disabled verification, as in the Python controller.
        (Some(bundle), _) => Trust::CaBundle(bundle.clone()),
        (None, true) => Trust::SystemRoots,
        (None, false) => Trust::Nothing,
    };
    Ok(vsphere::client::Settings {
        scope: config.binding.vcenter_scope.clone().unwrap_or_default(),
        call_deadline: timings.vcenter_call,
        long_poll: timings.vcenter_long_poll,
        reread_every: config.poll_interval,
        retry_min: RETRY_MIN,
        retry_max: timings.retry_max,
        thumbprint: thumbprint(config)?,
        ..vsphere::client::Settings::new(endpoint, config.vcenter_credentials(), trust)
    })
}

pub(super) fn endpoint(config: &Config) -> Result<Endpoint, Misconfigured> {
    Endpoint::parse(&config.vcenter_host)
        .map_err(|error| Misconfigured::new("VCENTER_HOST", &without_password(&config.vcenter_host), error))
}

fn thumbprint(config: &Config) -> Result<Option<Thumbprint>, Misconfigured> {
    let Some(text) = &config.vcenter_thumbprint else {
        return Ok(None);
    };
    let expected = "the 64 hexadecimal digits of a SHA-256 thumbprint are expected, with or without colons";
    let thumbprint = Thumbprint::parse(text);
    let thumbprint = thumbprint.ok_or_else(|| Misconfigured::new("VCENTER_THUMBPRINT", text, expected));
    thumbprint.map(Some)
}

pub(super) async fn policy(
    config: &Config,
    client: &kube::Client,
    machines: &MachineApi,
    gpu_resources: &GpuResources,
) -> Policy {
    let has_machines = config.guards.machines && !config.dry_run && machines.is_served().await;
    let timings = config.timings();
    Policy {
        drain_timeout: config.drain_timeout,
        drain_wait_max: config.drain_wait_max,
        drain_timeout_action: config.drain_timeout_action,
        eviction_retry: timings.eviction_retry,
        volume_detach_timeout: config.volume_detach_timeout,
        guest_shutdown_timeout: config.guest_shutdown_timeout,
        relocate_timeout: timings.relocate,
        power_on_timeout: config.power_on_timeout,
        power_off_timeout: timings.power_off,
        survey_every: config.poll_interval,
        node_monitor_grace: timings.node_monitor_grace,
        maintenance_retry_grace: config.maintenance_retry_grace,
        vmotion_grace: config.vmotion_grace,
        unanswered_for: timings.vcenter_call + config.poll_interval * 2,
        hook_timeout: config.hook_timeout,
        hook_timeout_action: config.hook_timeout_action,
        guards: GuardPolicy {
            maintenance_taint: config.maintenance_taint,
            out_of_service_taint: config.out_of_service_taint,
            enabled: guards::of_use(client, &config.guards.nodes).await,
            machines: has_machines,
        },
        releases: releases(config, client),
        gpu_resources: gpu_resources.clone(),
        require_approval: config.pace.require_approval,
        retry_min: RETRY_MIN,
        retry_max: timings.retry_max,
    }
}

fn releases(config: &Config, client: &kube::Client) -> Releases {
    let leadership = &config.leadership;
    Releases {
        own: format!("{}/{}", lease_namespace(config, client), leadership.lease_name).into(),
        adopted: Arc::new(leadership.adopted()),
    }
}

pub(crate) fn inventory_settings(config: &Config, client: &kube::Client) -> InventorySettings {
    InventorySettings {
        releases: releases(config, client),
        concurrent_drains: config.pace.max_concurrent_drains,
        unavailable: config.pace.max_unavailable,
        unavailable_gpus: config.pace.max_unavailable_gpus,
        power_offs: config.pace.max_power_offs_per_hour,
        binding: config.binding.node_binding,
        require_approval: config.pace.require_approval,
        device_slices: GpuResources::parse(&config.gpu_resources).is_ok_and(|gpus| gpus.has_drivers()),
        node_maintenances: true,
        foreign_maintenances: config.foreign_node_maintenances.0.clone(),
        drain_slot: config.drain_slot(),
        static_devices: config.static_devices,
        host_settle: config.host_settle,
        vmotion_grace: config.vmotion_grace,
    }
}

/// What answers questions about maintenances to come.
pub(super) fn planner(
    config: &Config,
    connections: &Connections,
    vcenter: &Vcenter,
    inventory: mpsc::Sender<InventoryRequest>,
) -> Planner {
    Planner {
        inventory,
        sources: Arc::new(PlanSources {
            vcenter: vcenter.clone(),
            client: connections.nodes.clone(),
            management: config
                .management_kubeconfig
                .as_ref()
                .map(|_| connections.machines.clone()),
            settings: PlanSettings {
                selector: config.gpu_node_label.clone(),
                limits: DrainLimits {
                    timeout: config.drain_timeout,
                    action: config.drain_timeout_action,
                    wait_max: config.drain_wait_max,
                },
                static_devices: config.static_devices,
                guards_machines: config.guards.machines,
            },
        }),
        clock: connections.clocks.decisions,
        turns: Arc::new(Semaphore::new(ANSWERS)),
    }
}

pub(super) fn election(config: &Config, connections: &Connections) -> lease::Settings {
    let leadership = &config.leadership;
    lease::Settings {
        namespace: lease_namespace(config, &connections.nodes),
        name: leadership.lease_name.clone(),
        identity: connections.identity.clone(),
        timing: Timing {
            lease: leadership.lease_duration,
            renew_deadline: leadership.renew_deadline,
            retry: leadership.retry_period(),
            yield_after: YIELD_AFTER,
        },
        clock: connections.clocks.wall,
    }
}

fn lease_namespace(config: &Config, client: &kube::Client) -> String {
    let configured = config.leadership.lease_namespace.clone();
    configured.unwrap_or_else(|| client.default_namespace().to_owned())
}
