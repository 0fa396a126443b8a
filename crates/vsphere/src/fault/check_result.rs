//! Decodes what `CheckRelocate_Task` found.

use crate::fault::{Fault, read_localized};
use crate::xml::Element;

/// The most errors and warnings that are kept of a check.
const MAX_FINDINGS: usize = 20;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CheckFindings {
    /// "An error means that the given provisioning operation would fail" (API reference, `CheckResult`).
    pub errors: Vec<Fault>,
    /// Problems that are not fatal.
    pub warnings: Vec<Fault>,
}

/// Decodes an `ArrayOfCheckResult`; `None` for another type.
pub(crate) fn findings(result: &Element<'_>) -> Option<CheckFindings> {
    if result.xsi_type() != Some("ArrayOfCheckResult") {
        return None;
    }
    let of = |name: &'static str| {
        let results = result.children();
        let faults = results.flat_map(move |check| check.children_named(name));
        faults.take(MAX_FINDINGS).map(read_localized).collect()
    };
    Some(CheckFindings {
        errors: of("error"),
        warnings: of("warning"),
    })
}
