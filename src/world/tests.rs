use std::convert::Infallible;

use http::{Request, Response};
use kube::client::Body;
use secrecy::SecretString;
use tokio::sync::mpsc;

use super::*;
use crate::keys::DEFAULT_PREFIX;
use crate::vsphere::client::{CredentialPart, CredentialSource, Endpoint, Settings, Trust};

/// How long the kube-apiserver takes for a list.
const SLOW: Duration = Duration::from_secs(7);

/// A world whose kube-apiserver takes its time and lists no pods, and what it finds.
fn world() -> (World, mpsc::Receiver<Finding>) {
    let service = tower::service_fn(|_: Request<Body>| async {
        tokio::time::sleep(SLOW).await;
        let pods = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []});
        Ok::<_, Infallible>(Response::new(Body::from(pods.to_string().into_bytes())))
    });
    let given = || CredentialPart::Given(SecretString::from("nobody"));
    let credentials = CredentialSource {
        user: given(),
        password: given(),
    };
    let endpoint = Endpoint::parse("https://vcenter.test/sdk").unwrap();
    let (findings, found) = mpsc::channel(8);
    let (nodes, _) = mpsc::channel(8);
    let world = World {
        gate: Gate::without_election(),
        vcenter: Vcenter::new(Settings::new(endpoint, credentials, Trust::Nothing)).unwrap(),
        client: kube::Client::new(service, "default"),
        keys: Keys::under(DEFAULT_PREFIX),
        gpu_resources: GpuResources::parse("nvidia.com/*").unwrap(),
        drain: DrainSettings::default(),
        dry_run: false,
        events: crate::cluster::events::queue().0,
        on_evictions: Box::new(|_, _| {}),
        findings,
        nodes,
    };
    (world, found)
}

#[tokio::test(start_paused = true)]
async fn a_list_of_pods_is_no_younger_than_the_beginning_of_its_round() {
    let (world, mut found) = world();
    let begun = Now::at(Timestamp::UNIX_EPOCH, 1_000);
    let until = begun.monotonic.after(Duration::from_secs(600));
    let effect = Effect::DrainRound {
        pods_revision: 5,
        in_turn: false,
        until,
    };
    let (name, began) = (NodeName::new("gpu-1"), Instant::now());
    world.perform(&name, &Record::InService, &effect, begun).await;
    assert_eq!(began.elapsed(), SLOW);
    let mut report = None;
    while let Ok(finding) = found.try_recv() {
        if let Found::Drain(drain) = finding.found {
            report = Some(drain);
        }
    }
    let report = report.unwrap();
    assert_eq!(report.listed_at, begun.monotonic);
    assert_eq!(report.pods_revision, 5, "that of the beginning as well");
}
