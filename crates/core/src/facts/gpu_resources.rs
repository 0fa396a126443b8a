//! What counts as a GPU.

use std::fmt;

use thiserror::Error;

/// What counts as a GPU: resources of Nodes, by name or by a prefix such as `nvidia.com/*`, and the devices of drivers of Dynamic
/// Resource Allocation, by the driver's name, such as `gpu.nvidia.com`. A driver's name has no slash, a resource's has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuResources(Vec<Pattern>);

/// One entry of [`GpuResources`].
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Driver(String),
    Exact(String),
    /// The first part of the name, with the slash.
    Prefix(String),
}

/// A list of GPU resources that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{entry:?} is no GPU resource: a comma-separated list of resource names (nvidia.com/gpu), prefixes (nvidia.com/*) or DRA drivers (gpu.nvidia.com) is expected"
)]
pub struct GpuResourcesError {
    pub entry: String,
}

impl GpuResources {
    /// Reads a comma-separated list. Spaces around the entries are ignored.
    pub fn parse(list: &str) -> Result<Self, GpuResourcesError> {
        list.split(',')
            .map(|entry| Pattern::parse(entry.trim()))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether `resource` is a GPU.
    pub fn matches(&self, resource: &str) -> bool {
        self.0.iter().any(|pattern| match pattern {
            Pattern::Driver(name) | Pattern::Exact(name) => name == resource,
            Pattern::Prefix(prefix) => resource.len() > prefix.len() && resource.starts_with(prefix.as_str()),
        })
    }

    /// Whether ResourceSlices have to be read.
    pub fn has_drivers(&self) -> bool {
        self.0.iter().any(|pattern| matches!(pattern, Pattern::Driver(_)))
    }
}

impl fmt::Display for GpuResources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pattern) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match pattern {
                Pattern::Driver(name) | Pattern::Exact(name) => write!(f, "{comma}{name}")?,
                Pattern::Prefix(prefix) => write!(f, "{comma}{prefix}*")?,
            }
        }
        Ok(())
    }
}

impl Pattern {
    fn parse(entry: &str) -> Result<Self, GpuResourcesError> {
        let wrong = || GpuResourcesError {
            entry: entry.to_owned(),
        };
        let is_name = |text: &str| {
            !text.is_empty()
                && text
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        };
        let Some((domain, name)) = entry.split_once('/') else {
            // Without a dot it is rather a resource whose domain was forgotten.
            let is_driver = is_name(entry) && entry.contains('.');
            return is_driver
                .then(|| Self::Driver(entry.to_owned()))
                .ok_or_else(wrong);
        };
        if !is_name(domain) {
            return Err(wrong());
        }
        if name == "*" {
            return Ok(Self::Prefix(format!("{domain}/")));
        }
        if is_name(name) {
            return Ok(Self::Exact(entry.to_owned()));
        }
        Err(wrong())
    }
}
