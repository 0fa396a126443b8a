//! Serves the handlers of the simulation over TLS on loopback.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use bytes::Bytes;
use haulout_show::peers::Click;
use haulout_sim::world::{Shared, lock};
use haulout_sim::{kube_api, soap};
use haulout_vsphere::client::ConnectionPool;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep_until;
use tokio_rustls::TlsAcceptor;

use crate::simulated::click;

/// The only replica of Haulout.
const REPLICA: usize = 0;

/// A request to the kube-apiserver that was answered.
#[derive(Debug, Clone)]
pub(crate) struct Answered {
    /// Method and path.
    pub(crate) line: String,
    pub(crate) code: u16,
    pub(crate) received: Timestamp,
    pub(crate) answered: Timestamp,
}

/// The requests to the kube-apiserver that changed something, or were to.
pub(crate) type Audit = Arc<Mutex<Vec<Answered>>>;

/// Lets happen what is due in the world.
pub(crate) async fn drive(world: Shared) {
    let wake = Arc::clone(&lock(&world).queue.wake);
    loop {
        let next = lock(&world).queue.next();
        let due = async {
            match next {
                Some(at) => sleep_until(haulout_sim::clock::instant(at)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {}
            () = wake.notified() => continue,
        }
        let mut world = lock(&world);
        while let Some(event) = world.queue.take() {
            world.happens(event);
        }
    }
}

/// Serves the kube-apiserver.
pub(crate) async fn kubernetes(
    world: &Shared,
    audit: &Audit,
    tls: &TlsAcceptor,
    servers: &mut JoinSet<()>,
) -> anyhow::Result<SocketAddr> {
    let (world, audit) = (Arc::clone(world), Arc::clone(audit));
    serve(tls, servers, move |request| {
        let (world, audit) = (Arc::clone(&world), Arc::clone(&audit));
        async move {
            let is_read = request.method() == http::Method::GET;
            let line = format!("{} {}", request.method(), request.uri().path());
            let received = Timestamp::now();
            let reply = kube_api::answer(world, REPLICA, request).await;
            if let (false, Ok(reply)) = (is_read, &reply) {
                audit
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(Answered {
                        line,
                        code: reply.status().as_u16(),
                        received,
                        answered: Timestamp::now(),
                    });
            }
            reply.map_err(|error| broken(&error))
        }
    })
    .await
}

/// Serves vCenter.
pub(crate) async fn vcenter(
    world: &Shared,
    tls: &TlsAcceptor,
    servers: &mut JoinSet<()>,
) -> anyhow::Result<SocketAddr> {
    let world = Arc::clone(world);
    serve(tls, servers, move |request| {
        let world = Arc::clone(&world);
        async move {
            let request = request.map(|body| body.to_vec());
            // Faults tell the pools apart, and there are none.
            let reply = soap::exchange(&world, REPLICA, ConnectionPool::Calls, request)
                .await
                .map_err(|error| broken(&error))?;
            let mut response = Response::new(Full::new(Bytes::from(reply.body)));
            *response.status_mut() = reply.status;
            *response.headers_mut() = reply.headers;
            Ok(response)
        }
    })
    .await
}

/// Serves what a person does in vCenter's client.
pub(crate) async fn client(world: &Shared, servers: &mut JoinSet<()>) -> anyhow::Result<SocketAddr> {
    let (listener, address) = listen().await?;
    let router = Router::new()
        .route("/hosts/{host}/{what}", post(clicked))
        .with_state(Arc::clone(world));
    servers.spawn(async move {
        // It ends with the demo.
        let _ = axum::serve(listener, router).await;
    });
    Ok(address)
}

async fn clicked(State(world): State<Shared>, Path((host, what)): Path<(String, String)>) -> StatusCode {
    let what = match what.as_str() {
        "enter" => Click::Enter,
        "cancel" => Click::Cancel,
        "exit" => Click::Exit,
        _ => return StatusCode::NOT_FOUND,
    };
    match click(&world, what, &host) {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::NOT_FOUND,
    }
}

/// Why a connection ends without a reply.
fn broken(error: &impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

async fn listen() -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .context("listening on loopback")?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Serves HTTP/1 over TLS on a free port. An error of `answer` ends the connection.
async fn serve<A, F, B>(tls: &TlsAcceptor, servers: &mut JoinSet<()>, answer: A) -> anyhow::Result<SocketAddr>
where
    A: Fn(Request<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = io::Result<Response<B>>> + Send + 'static,
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let (listener, address) = listen().await?;
    let tls = tls.clone();
    servers.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                continue;
            };
            while connections.try_join_next().is_some() {}
            // As a kube-apiserver and a vCenter do it.
            let _ = stream.set_nodelay(true);
            let (tls, answer) = (tls.clone(), answer.clone());
            connections.spawn(async move {
                let Ok(stream) = tls.accept(stream).await else {
                    return;
                };
                let service = service_fn(move |request: Request<Incoming>| {
                    let answer = answer.clone();
                    async move {
                        let (head, body) = request.into_parts();
                        match body.collect().await {
                            Ok(body) => answer(Request::from_parts(head, body.to_bytes())).await,
                            Err(error) => Err(broken(&error)),
                        }
                    }
                });
                // It ends when its client is gone.
                let _ = http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    Ok(address)
}
