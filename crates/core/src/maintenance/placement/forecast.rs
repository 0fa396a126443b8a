//! Where a VM is likely to go, told while it still runs.

use std::fmt;

use super::{PlacementOffer, RejectedHost};
use crate::maintenance::waiting::{few, rejected};

/// Where a VM is likely to go once it is off. Nothing is reserved for it yet, so another VM may take the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementForecast {
    /// DRS chooses its host.
    Drs,
    /// This host could take it when it was surveyed last.
    Host(String),
    /// One of these hosts, if it has a device left.
    OneOf(Vec<String>),
    /// No other host can take it.
    Home {
        /// Its own host.
        home: String,
        /// The others, with the reason.
        refused: Vec<RejectedHost>,
    },
}

impl PlacementForecast {
    /// The forecast of a VM from the offer for it. `unsurveyed` are the names of the hosts that a survey could show to fit.
    pub fn of(offer: &PlacementOffer, is_placed_by_drs: bool, home: &str, unsurveyed: Vec<String>) -> Self {
        if is_placed_by_drs {
            return Self::Drs;
        }
        if let Some((_, name)) = &offer.fits {
            return Self::Host(name.clone());
        }
        let is_refused = |name: &String| offer.refused.iter().any(|refused| refused.host == *name);
        let open: Vec<String> = unsurveyed.into_iter().filter(|name| !is_refused(name)).collect();
        if open.is_empty() {
            Self::Home {
                home: home.to_owned(),
                refused: offer.refused.clone(),
            }
        } else {
            Self::OneOf(open)
        }
    }
}

impl fmt::Display for PlacementForecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drs => f.write_str("its VM will be placed by DRS"),
            Self::Host(host) => write!(f, "its VM can move to {host}"),
            Self::OneOf(hosts) => write!(
                f,
                "its VM can move to {}, if a device is free there",
                few_or(hosts)
            ),
            Self::Home { home, refused } => write!(
                f,
                "no other host can take its VM, which will wait for {home}{}",
                rejected("elsewhere", refused)
            ),
        }
    }
}

fn few_or(hosts: &[String]) -> String {
    match hosts {
        [host] => host.clone(),
        hosts => format!("one of {}", few(hosts)),
    }
}
