//! The client of the baselines, with the same kind of connection as Haulout's.

use std::path::PathBuf;

use anyhow::Context as _;
use haulout_lab::kube::{Kube, User};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};

/// A client as `user`.
///
/// # Errors If the lab's kubeconfig cannot be used.
pub async fn of(kube: &Kube, user: &User) -> anyhow::Result<kube::Client> {
    from(kube.kubeconfig(user)?).await
}

/// A client by a kubeconfig.
///
/// # Errors If it cannot be used.
pub async fn from(kubeconfig: PathBuf) -> anyhow::Result<kube::Client> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    haulout::kubernetes::client::client(config).context("making a client")
}
