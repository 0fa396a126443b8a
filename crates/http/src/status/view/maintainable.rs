//! The data of the page about obstacles, a pure function of state and time.

use super::overview::page_of;
use super::{ListFilter, MaintainablePage, MaintainableRow, ObstacleRow, View};
use haulout_core::ids::NodeName;
use haulout_core::maintenance::observed::BoundVm;
use haulout_core::status::{NodeEntry, Obstacle};

/// The command that reads pods and budgets as well.
const REPORT: &str = "kubectl haulout report";

impl View<'_> {
    pub(in crate::status) fn maintainable(self, filter: &ListFilter) -> MaintainablePage {
        let nodes = self.board.nodes.iter();
        let mut rows: Vec<MaintainableRow> = nodes
            .filter_map(|(name, entry)| maintainable_row(name, entry))
            .collect();
        let all = rows.len();
        let with_obstacles = rows.iter().filter(|row| !row.obstacles.is_empty()).count();
        let blocked = rows.iter().filter(|row| row.is_blocked()).count();
        rows.sort_by_key(|row| (!row.is_blocked(), row.obstacles.is_empty(), row.is_known));
        let wanted = filter.q.to_lowercase();
        let matches = |name: &str| name.to_lowercase().contains(&wanted);
        rows.retain(|row| matches(&row.name) || row.host.as_deref().is_some_and(matches));
        let node_pages = page_of(&mut rows, filter.nodes);
        MaintainablePage {
            frame: self.frame(),
            filter: filter.clone(),
            all,
            with_obstacles,
            blocked,
            nodes: rows,
            node_pages,
            report: REPORT,
        }
    }

    /// How many nodes a maintenance would stop at.
    pub(super) fn blocked(self) -> usize {
        let blocks = |entry: &&NodeEntry| {
            let status = entry.status.as_ref();
            status.is_some_and(|status| status.obstacles().into_iter().any(Obstacle::blocks))
        };
        self.board.nodes.values().filter(blocks).count()
    }
}

fn maintainable_row(name: &NodeName, entry: &NodeEntry) -> Option<MaintainableRow> {
    let status = entry.status.as_ref()?;
    let mut obstacles: Vec<ObstacleRow> = status
        .obstacles()
        .into_iter()
        .map(|kind| ObstacleRow {
            kind,
            words: kind.words(),
            blocks: kind.blocks(),
        })
        .collect();
    obstacles.sort_by_key(|obstacle| !obstacle.blocks);
    Some(MaintainableRow {
        name: name.to_string(),
        host: status.host().map(|(host, _)| host.to_owned()),
        is_known: status.vm != BoundVm::NotLookedUp,
        obstacles,
    })
}

impl MaintainableRow {
    pub(crate) fn is_blocked(&self) -> bool {
        self.obstacles.iter().any(|obstacle| obstacle.blocks)
    }
}
