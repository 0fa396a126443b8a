//! A connection to a port of a pod through the kube-apiserver and the kubelet, which reaches ports on the pod's loopback too.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use tokio::io::DuplexStream;

use super::answer::{self, ApiRefusal};

/// Limit for the kube-apiserver and the kubelet to connect.
const DEADLINE: Duration = Duration::from_secs(15);

/// How long the kubelet's reason is waited for once the connection has failed.
const REASON_DEADLINE: Duration = Duration::from_secs(1);

/// Opens a connection to `port` of a pod. The future beside it is the kubelet's reason, if the connection has failed and it gives one.
///
/// # Errors
/// When the kube-apiserver or the kubelet refuses it. That nothing listens on the port shows only when the connection is used.
pub async fn open(
    client: &kube::Client,
    namespace: &str,
    pod: &str,
    port: u16,
) -> Result<(DuplexStream, impl Future<Output = Option<String>> + use<>), ApiRefusal> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut forwarder = answer::within(DEADLINE, pods.portforward(pod, &[port])).await?;
    let reason = forwarder.take_error(port);
    let stream = forwarder.take_stream(port);
    let stream = stream.ok_or_else(|| ApiRefusal::Unreachable(format!("no stream for port {port}")))?;
    let reason = async move {
        tokio::time::timeout(REASON_DEADLINE, reason?)
            .await
            .ok()
            .flatten()
    };
    Ok((stream, reason))
}
