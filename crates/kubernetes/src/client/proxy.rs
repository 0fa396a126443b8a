//! The proxy to the kube-apiserver: `proxy-url` of the kubeconfig, or else what the proxy variables say, as with kubectl. The service
//! account of a pod never uses one.
//!
//! kube itself takes `HTTPS_PROXY` for each kubeconfig and compares `NO_PROXY` with the proxy's own address.

use http::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use kube::config::{Cluster, Kubeconfig};

const EXCLUDED: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// The proxy for the kube-apiserver that `context` of `kubeconfig` names. `variable` reads a variable.
///
/// The kubeconfig then names this proxy and no other, so that kube does not look for one.
///
/// # Errors
/// When there is one that cannot be used. It may hold a password, so its address is not shown.
pub(super) fn choose(
    kubeconfig: &mut Kubeconfig,
    context: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Intercept>, String> {
    let Some(cluster) = cluster_of(kubeconfig, context) else {
        // kube says what is missing.
        return Ok(None);
    };
    let server = cluster.server.as_deref().unwrap_or_default().parse::<Uri>();
    let Ok(server) = server else { return Ok(None) };
    let found = match filled(cluster.proxy_url.take()) {
        Some(address) => Some(("proxy-url of the kubeconfig", address, String::new())),
        None => {
            let value = |name: &&str| filled(variable(name));
            let excluded = EXCLUDED.iter().find_map(value).unwrap_or_default();
            let mut names = variables_for(&server).iter();
            names.find_map(|name| Some((*name, value(name)?, excluded.clone())))
        }
    };
    let Some((source, address, excluded)) = found else {
        return Ok(None);
    };
    let matched = |address: &str| {
        let matcher = Matcher::builder().all(address).no(excluded.as_str()).build();
        matcher.intercept(&server)
    };
    if matched("http://any.example").is_none() {
        return Ok(None);
    }
    let Some(proxy) = matched(&address) else {
        return Err(format!(
            "{source} is no address of a proxy, such as http://proxy.example.com:3128"
        ));
    };
    match proxy.uri().scheme_str() {
        Some("http" | "https" | "socks5" | "socks5h") => {}
        other => {
            let scheme = other.unwrap_or_default();
            return Err(format!(
                "{source} has the scheme {scheme}; http, https or socks5 is expected"
            ));
        }
    }
    cluster.proxy_url = Some(address);
    Ok(Some(proxy))
}

/// The variables for this scheme, the first one that is set counts.
fn variables_for(server: &Uri) -> &'static [&'static str] {
    match server.scheme_str() {
        Some("https") => &["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"],
        Some("http") => &["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"],
        Some(_) | None => &[],
    }
}

/// The value without spaces and line ends around it, if there is one.
fn filled(value: Option<String>) -> Option<String> {
    let value = value?.trim().to_owned();
    (!value.is_empty()).then_some(value)
}

fn cluster_of<'a>(kubeconfig: &'a mut Kubeconfig, context: Option<&str>) -> Option<&'a mut Cluster> {
    let context = context.or(kubeconfig.current_context.as_deref())?;
    let mut contexts = kubeconfig.contexts.iter();
    let name = contexts
        .find(|it| it.name == context)?
        .context
        .as_ref()?
        .cluster
        .as_str();
    let cluster = kubeconfig.clusters.iter_mut().find(|it| it.name == name)?;
    cluster.cluster.as_mut()
}
