//! By what a record names a request.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::facts::foreign_maintenance::{ForeignApi, ForeignOrigin};
use crate::ids::RequestUid;

/// A request in a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestIdentity {
    pub name: String,
    pub uid: RequestUid,
    /// Where it comes from, if it is a NodeMaintenance of another project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign: Option<ForeignOrigin>,
}

impl RequestIdentity {
    /// The other project whose NodeMaintenance it is.
    pub fn foreign_api(&self) -> Option<ForeignApi> {
        self.foreign.as_ref().map(|origin| origin.api)
    }
}

/// The name of the object, which shows whose kind it is.
impl fmt::Display for RequestIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.foreign {
            Some(origin) => f.write_str(&origin.display_name(&self.name)),
            None => f.write_str(&self.name),
        }
    }
}
