//! A second kube-apiserver of a cluster, which lags behind while its connections to etcd are frozen.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Kube, User, await_apiserver, client_config, local, write_kubeconfig};
use crate::ports::Port;
use crate::process::Process;

/// The second kube-apiserver. Dropping it stops it.
pub struct LaggingApiserver {
    _process: Process,
    port: Port,
    etcd: FreezableRelay,
}

impl Kube {
    /// Starts a second kube-apiserver on the same etcd.
    pub async fn start_lagging_apiserver(&self) -> anyhow::Result<LaggingApiserver> {
        let port = Port::reserve()?;
        let etcd = FreezableRelay::start(local(&self.etcd_port)).await?;
        let spec = self
            .apiserver_files
            .spec("kube-apiserver-2", &port, etcd.address, "audit-2.log");
        let mut process = spec.spawn()?;
        let admin = User::admin("admin");
        let config = client_config(&self.dir, &self.authority, &port, &admin)?;
        let client = kube::Client::try_from(config).context("making the admin's client")?;
        await_apiserver(&client, std::slice::from_mut(&mut process)).await?;
        Ok(LaggingApiserver {
            _process: process,
            port,
            etcd,
        })
    }

    /// The kubeconfig of this user for the second kube-apiserver.
    pub fn kubeconfig_for_lagging(&self, lagging: &LaggingApiserver, user: &User) -> anyhow::Result<PathBuf> {
        write_kubeconfig(&self.dir, &self.authority, &lagging.port, user)
    }
}

impl LaggingApiserver {
    /// It no longer learns of changes, and answers what needs etcd neither with success nor with an error.
    pub fn freeze(&self) {
        self.etcd.is_frozen.send_replace(true);
    }

    /// Its connections to etcd end, and new ones work.
    pub fn thaw(&self) {
        self.etcd.cut();
        self.etcd.is_frozen.send_replace(false);
    }
}

/// A TCP relay that holds all bytes while it is frozen.
struct FreezableRelay {
    address: SocketAddr,
    is_frozen: watch::Sender<bool>,
    cut: watch::Sender<CancellationToken>,
    _end: DropGuard,
}

impl FreezableRelay {
    async fn start(upstream: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (is_frozen, frozen) = watch::channel(false);
        let (cut, cuts) = watch::channel(CancellationToken::new());
        let end = CancellationToken::new();
        let token = end.clone();
        tokio::spawn(token.run_until_cancelled_owned(async move {
            while let Ok((client, _)) = listener.accept().await {
                let until = cuts.borrow().clone();
                let relayed = relay(client, upstream, frozen.clone());
                tokio::spawn(until.run_until_cancelled_owned(relayed));
            }
        }));
        Ok(Self {
            address,
            is_frozen,
            cut,
            _end: end.drop_guard(),
        })
    }

    /// Ends all connections.
    fn cut(&self) {
        self.cut.send_replace(CancellationToken::new()).cancel();
    }
}

impl Drop for FreezableRelay {
    fn drop(&mut self) {
        self.cut();
    }
}

async fn relay(client: TcpStream, upstream: SocketAddr, frozen: watch::Receiver<bool>) {
    // etcd is being restarted: the client tries again.
    let Ok(server) = TcpStream::connect(upstream).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pass(from_client, to_server, frozen.clone()) => {}
        () = pass(from_server, to_client, frozen) => {}
    }
}

/// Passes bytes on until either side ends.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut frozen: watch::Receiver<bool>) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let is_open = frozen.wait_for(|frozen| !frozen).await.is_ok();
        if !is_open || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
