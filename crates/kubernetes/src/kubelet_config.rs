//! The configuration of a running kubelet, as far as `check` looks at it.
//!
//! It is read through the kube-apiserver (`nodes/proxy`) with the rights of the person who runs the command. That right is close to
//! root on the node, so the controller does not have it.

use std::time::Duration;

use http::Request;
use jiff::SignedDuration;
use serde::Deserialize;

use super::answer::{self, ApiRefusal};
use super::reads::ReadError;
use crate::ids::NodeName;

/// The deadline of the read: the kube-apiserver may have to wait for a kubelet that is gone.
const DEADLINE: Duration = Duration::from_secs(5);

/// The longest configuration that is parsed. Usual ones have 10 KiB.
const BYTES_MAX: usize = 1024 * 1024;

#[derive(Deserialize)]
struct Configz {
    kubeletconfig: KubeletConfig,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KubeletConfig {
    #[serde(default)]
    shutdown_grace_period: String,
    #[serde(default)]
    shutdown_grace_period_by_pod_priority: Vec<PriorityGrace>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PriorityGrace {
    #[serde(default)]
    shutdown_grace_period_seconds: u64,
}

/// How long the kubelet of `node` delays a shutdown so that its pods can terminate; zero without graceful node shutdown.
pub async fn shutdown_grace(client: &kube::Client, node: &NodeName) -> Result<Duration, ReadError> {
    let what = format!("the configuration of the kubelet of node/{node}");
    let request = Request::get(format!("/api/v1/nodes/{node}/proxy/configz")).body(Vec::new());
    let call = async {
        let request = request.map_err(kube::Error::HttpError)?;
        client.request_text(request).await
    };
    let text = answer::within(DEADLINE, call).await;
    let text = text.map_err(|refusal| ReadError::new(&what, &refusal))?;
    parse(&text).ok_or_else(|| {
        let unreadable = ApiRefusal::Unreachable("it is not a configuration of a kubelet".to_owned());
        ReadError::new(&what, &unreadable)
    })
}

fn parse(text: &str) -> Option<Duration> {
    if text.len() > BYTES_MAX {
        return None;
    }
    let config = serde_json::from_str::<Configz>(text).ok()?.kubeletconfig;
    // Of the two, only one may be set. The periods of the priorities follow each other.
    let by_priority = config.shutdown_grace_period_by_pod_priority.iter();
    let seconds = by_priority.fold(0_u64, |sum, it| {
        sum.saturating_add(it.shutdown_grace_period_seconds)
    });
    if seconds > 0 {
        return Some(Duration::from_secs(seconds));
    }
    match config.shutdown_grace_period.as_str() {
        "" | "0" => Some(Duration::ZERO),
        // As Go writes it, such as `1h2m3.5s`.
        period => period.parse::<SignedDuration>().ok()?.try_into().ok(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::stand_in::{ScriptedReply, refusal, server};

    fn config(period: &str) -> String {
        json!({"kubeletconfig": {"port": 10250, "shutdownGracePeriod": period}}).to_string()
    }

    #[test]
    fn shutdown_grace_period_is_read_in_each_form() {
        let seconds = |text: &str| parse(text).map(|grace| grace.as_secs_f64());
        for (period, expected) in [
            ("0s", 0.0),
            ("", 0.0),
            ("0", 0.0),
            ("30s", 30.0),
            ("5m0s", 300.0),
            ("1h1m1.5s", 3_661.5),
            ("1500ms", 1.5),
        ] {
            assert_eq!(seconds(&config(period)), Some(expected), "{period}");
        }
        for wrong in ["5", "5x", "s", "-5s", "1e400s"] {
            assert_eq!(seconds(&config(wrong)), None, "{wrong}");
        }
        let by_priority = json!({"kubeletconfig": {
            "shutdownGracePeriod": "0s",
            "shutdownGracePeriodByPodPriority": [
                {"priority": 100_000, "shutdownGracePeriodSeconds": 10},
                {"priority": 0, "shutdownGracePeriodSeconds": 180},
            ],
        }});
        assert_eq!(seconds(&by_priority.to_string()), Some(190.0));
        for wrong in ["", "{}", "[]"] {
            assert_eq!(seconds(wrong), None);
        }
    }

    #[tokio::test]
    async fn kubelet_is_asked_through_the_apiserver() {
        let node = NodeName::new("gpu-1");
        let (client, log) =
            server(|_| ScriptedReply::Json(200, json!({"kubeletconfig": {"shutdownGracePeriod": "5m0s"}})));
        let grace = shutdown_grace(&client, &node).await;
        assert_eq!(grace, Ok(Duration::from_secs(300)));
        assert_eq!(log.lines(), ["GET /api/v1/nodes/gpu-1/proxy/configz"]);
        let (client, _) = server(|_| refusal(403, "Forbidden", "no", json!({})));
        let refused = shutdown_grace(&client, &node).await.unwrap_err().to_string();
        assert!(refused.contains("no (HTTP 403)"), "{refused}");
    }
}
