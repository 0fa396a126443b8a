//! The ended maintenances of nodes.

use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Serialize;

use super::out::{Items, Output};
use super::reading::{WantedNodes, read_nodes};
use super::table::Table;
use super::{Format, NodesArgs};
use crate::kubernetes::answer::plain;
use crate::nodemaintenance::kind::{MaintenanceOrigin, NodeMaintenance};
use crate::status::Took;

/// One ended maintenance.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct PastMaintenance {
    node: String,
    name: String,
    result: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    /// Where the VM was moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<String>,
    ended_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Prints the kept episodes of nodes.
pub(super) async fn perform(args: NodesArgs, out: Output) -> anyhow::Result<u8> {
    let (client, settings) = args.flags.connect(out).await?;
    let names = args.nodes.names(&client, &settings).await?;
    let reading = read_nodes(&client, &settings, WantedNodes::Named(&names)).await?;
    let mut past: Vec<PastMaintenance> = reading.objects.iter().filter_map(past).collect();
    past.sort_by(|a, b| b.ended_at.cmp(&a.ended_at));
    let format = args.flags.output.output;
    if past.is_empty() && matches!(format, Format::Table | Format::Wide) {
        out.progress(&format!(
            "No ended maintenance of node/{} is kept.",
            plain(&names.join(", node/"))
        ));
        return Ok(0);
    }
    out.print_value(format, &Items { items: &past }, || {
        if format == Format::Name {
            let names = past
                .iter()
                .map(|it| format!("nodemaintenance.haulout.dev/{}", plain(&it.name)));
            return names.collect::<Vec<_>>().join("\n");
        }
        let has_nodes = names.len() > 1;
        table(
            &past,
            has_nodes,
            format == Format::Wide,
            !args.flags.output.no_headers,
        )
    })?;
    Ok(0)
}

/// `None` for a request, and for an episode that goes on.
fn past(object: &NodeMaintenance) -> Option<PastMaintenance> {
    let status = object.status.as_ref()?;
    (object.spec.origin == MaintenanceOrigin::Episode).then_some(())?;
    Some(PastMaintenance {
        node: object.spec.node_name.clone(),
        name: object.name_any(),
        result: status.result.clone().unwrap_or_else(|| "Unknown".to_owned()),
        host: status.host.clone(),
        target: status.target.clone(),
        started_at: status.started_at.clone(),
        ended_at: status.ended_at.clone()?,
        reason: object.spec.reason.clone(),
    })
}

/// `has_nodes`: with a column for the node.
fn table(past: &[PastMaintenance], has_nodes: bool, wide: bool, headers: bool) -> String {
    let mut columns = if has_nodes { vec!["NODE"] } else { Vec::new() };
    columns.extend(["ENDED", "RESULT", "HOST", "MOVED TO", "TOOK"]);
    if wide {
        columns.extend(["REASON", "NAME"]);
    }
    let mut table = Table::new(&columns);
    for it in past {
        let at = |text: &str| text.parse::<Timestamp>().ok();
        let took = it
            .started_at
            .as_deref()
            .and_then(at)
            .zip(at(&it.ended_at))
            .map(|(began, ended)| Took(ended.duration_since(began)).to_string());
        let ended = at(&it.ended_at).map_or_else(|| it.ended_at.clone(), |at| format!("{at:.0}"));
        let mut cells: Vec<String> = has_nodes.then(|| it.node.clone()).into_iter().collect();
        cells.extend([
            ended,
            it.result.clone(),
            it.host.clone().unwrap_or_default(),
            it.target.clone().unwrap_or_default(),
            took.unwrap_or_default(),
        ]);
        if wide {
            cells.extend([it.reason.clone().unwrap_or_default(), it.name.clone()]);
        }
        table.row(cells);
    }
    table.render(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_shows_result_and_duration() {
        let past = PastMaintenance {
            node: "gpu-1".to_owned(),
            name: "gpu-1-1".to_owned(),
            result: "Succeeded".to_owned(),
            host: Some("esx-1".to_owned()),
            target: None,
            started_at: Some("2026-11-23T03:00:00.000Z".to_owned()),
            ended_at: "2026-11-23T03:12:30.400Z".to_owned(),
            reason: None,
        };
        assert_eq!(
            table(&[past], false, false, true).trim_end(),
            "ENDED                  RESULT      HOST    MOVED TO   TOOK\n\
             2026-11-23T03:12:30Z   Succeeded   esx-1   <none>     12m30s"
        );
    }
}
