//! `VCENTER_REPORT`: where vCenter shows episodes.

use std::str::FromStr;

/// Where vCenter shows episodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcenterReport {
    /// In the events of host and VM.
    pub events: bool,
    /// In the custom attribute of host and VM.
    pub attribute: bool,
}

impl FromStr for VcenterReport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut report = Self {
            events: false,
            attribute: false,
        };
        if text.trim() == "none" {
            return Ok(report);
        }
        for name in text.split(',') {
            match name.trim() {
                "events" => report.events = true,
                "attribute" => report.attribute = true,
                _ => return Err("none or a list of events, attribute is expected".to_owned()),
            }
        }
        Ok(report)
    }
}
