//! `FOREIGN_NODE_MAINTENANCES`: the other projects whose NodeMaintenance objects are requests.

use std::collections::BTreeSet;
use std::str::FromStr;

use crate::foreign_maintenance::ForeignApi;

/// The projects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignMaintenances(pub BTreeSet<ForeignApi>);

impl FromStr for ForeignMaintenances {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "none" {
            return Ok(Self::default());
        }
        // Only the names of the setting, and not those of the variants.
        let api = |name: &str| {
            ForeignApi::ALL
                .iter()
                .find(|api| api.name() == name.trim())
                .copied()
        };
        let apis: Option<BTreeSet<ForeignApi>> = text.split(',').map(api).collect();
        let names: Vec<&str> = ForeignApi::ALL.iter().map(|api| api.name()).collect();
        apis.map(Self)
            .ok_or_else(|| format!("none or a list of {} is expected", names.join(", ")))
    }
}
