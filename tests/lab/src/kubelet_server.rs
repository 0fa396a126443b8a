//! The HTTPS server of a kubelet, of which it has port-forward only. The kube-apiserver connects to it.
//!
//! The protocol is `v4.channel.k8s.io` over a WebSocket, as `k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go` has it:
//! each port has a channel for data and one for errors, and the first message on each is the number of the port.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context as _;
use futures::{SinkExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::{Bytes, Message};

use crate::byte_proxy::foreign;
use crate::kube::Kube;

const PROTOCOL: &str = "v4.channel.k8s.io";
const DATA: u8 = 0;
const ERROR: u8 = 1;

/// The server, with the Node that names its address.
pub struct KubeletServer {
    node: String,
    _tasks: JoinSet<()>,
}

impl KubeletServer {
    /// Serves the ports of all pods of a new Node: a connection to port N of a pod goes to port N of loopback.
    pub async fn start(kube: &Kube, node: &str) -> anyhow::Result<Self> {
        // The kube-apiserver checks the certificate of a kubelet only if it is told its CA.
        let tls = foreign()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let nodes: Api<Node> = Api::all(kube.client());
        let object: Node = serde_json::from_value(json!({"metadata": {"name": node}}))?;
        nodes.create(&PostParams::default(), &object).await?;
        let status = json!({"status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }});
        nodes
            .patch_status(node, &PatchParams::default(), &Patch::Merge(&status))
            .await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, tls));
        Ok(Self {
            node: node.to_owned(),
            _tasks: tasks,
        })
    }

    /// Creates a pod that runs on the Node, with these labels and named ports.
    pub async fn add_pod(
        &self,
        kube: &Kube,
        (namespace, name): (&str, &str),
        labels: &[(&str, &str)],
        ports: &[(&str, u16)],
    ) -> anyhow::Result<()> {
        let labels: serde_json::Map<String, serde_json::Value> = labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect();
        let ports: Vec<serde_json::Value> = ports
            .iter()
            .map(|(name, port)| json!({"name": name, "containerPort": port}))
            .collect();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "nodeName": self.node,
                "containers": [{"name": "main", "image": "lab.invalid/none", "ports": ports}],
            },
        }))?;
        let pods: Api<Pod> = Api::namespaced(kube.client(), namespace);
        pods.create(&PostParams::default(), &pod).await?;
        let running = json!({"status": {"phase": "Running"}});
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&running))
            .await?;
        Ok(())
    }
}

async fn serve(listener: TcpListener, tls: TlsAcceptor) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = connections.join_next() => {}
            Ok((stream, _)) = listener.accept() => {
                let tls = tls.clone();
                connections.spawn(async move {
                    if let Err(error) = forward(stream, &tls).await {
                        tracing::debug!("a port-forward ended: {error:#}");
                    }
                });
            }
        }
    }
}

/// The port in the query of a port-forward.
fn port(request: &Request) -> Option<u16> {
    let uri = request.uri();
    let query = uri.query().filter(|_| uri.path().starts_with("/portForward/"))?;
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .find(|(key, _)| ["port", "ports"].contains(key))?
        .1
        .parse()
        .ok()
}

#[expect(clippy::result_large_err, reason = "the type of tungstenite's callback")]
async fn forward(stream: TcpStream, tls: &TlsAcceptor) -> anyhow::Result<()> {
    let stream = tls.accept(stream).await?;
    let mut asked = None;
    let agree = |request: &Request, mut response: Response| {
        asked = port(request);
        let protocol = HeaderValue::from_static(PROTOCOL);
        response.headers_mut().insert("sec-websocket-protocol", protocol);
        Ok(response)
    };
    let mut socket = tokio_tungstenite::accept_hdr_async(stream, agree).await?;
    let port = asked.context("no port is named")?;
    for channel in [DATA, ERROR] {
        send(&mut socket, channel, &port.to_le_bytes()).await?;
    }
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match TcpStream::connect(target).await {
        Ok(target) => copy(&mut socket, target).await?,
        Err(error) => send(&mut socket, ERROR, format!("dial {target}: {error}").as_bytes()).await?,
    }
    socket.close(None).await?;
    Ok(())
}

type PortSocket = WebSocketStream<TlsStream<TcpStream>>;

/// Sends a message on a channel.
async fn send(socket: &mut PortSocket, channel: u8, bytes: &[u8]) -> anyhow::Result<()> {
    let mut message = vec![channel];
    message.extend_from_slice(bytes);
    socket.send(Message::Binary(Bytes::from(message))).await?;
    Ok(())
}

/// Copies both ways until one side ends.
async fn copy(socket: &mut PortSocket, mut target: TcpStream) -> anyhow::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        tokio::select! {
            biased;
            message = socket.next() => match message.transpose()? {
                Some(Message::Binary(bytes)) => {
                    if let [DATA, data @ ..] = &bytes[..] {
                        target.write_all(data).await?;
                    }
                }
                Some(Message::Close(_)) | None => return Ok(()),
                Some(_) => {}
            },
            read = target.read(&mut buffer) => match read? {
                0 => return Ok(()),
                read => send(socket, DATA, &buffer[..read]).await?,
            },
        }
    }
}
