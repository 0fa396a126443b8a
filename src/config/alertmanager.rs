//! Settings of the silences in an Alertmanager.

use std::path::PathBuf;

use super::parse::path;
use crate::telemetry::silences::matchers::{LabelMatchers, label_name};

const ALERTMANAGER: &str = "Silences in an Alertmanager";

/// Which alerts are silenced during the maintenance of a node, and where.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct AlertmanagerSettings {
    /// File with the address of an Alertmanager that silences the alerts of a node during its maintenance (an http or https URL)
    ///
    /// It is read again for each request. It is a file, because the address may hold a password. Alerts whose names begin with
    /// Haulout are never silenced.
    #[arg(long, env, value_name = "FILE", help_heading = ALERTMANAGER, value_parser = path)]
    pub alertmanager_url_file: Option<PathBuf>,
    /// The label of alerts that has the name of the node as its value (a label name)
    #[arg(long, env, value_name = "LABEL", help_heading = ALERTMANAGER, value_parser = label_name, default_value = "node", hide_short_help = true)]
    pub silence_node_label: String,
    /// Further matchers that an alert has to meet to be silenced (a list such as cluster="east",severity!="critical")
    ///
    /// Clusters that share an Alertmanager and have nodes of the same name need a matcher that tells them apart.
    #[arg(long, env, value_name = "MATCHERS", help_heading = ALERTMANAGER, hide_short_help = true)]
    pub silence_matchers: Option<LabelMatchers>,
}
