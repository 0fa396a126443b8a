//! As much of HTTP/1.1 as the proxy needs: where a message ends, and what a request asks for.

use std::io;

use http::Method;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::fault_proxy::{Side, request};

/// A connection, with or without TLS.
pub(super) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// Bytes of one read.
const READ: usize = 16 * 1024;
/// The end of a head.
const BLANK_LINE: &[u8] = b"\r\n\r\n";

/// One end of the proxy, with bytes that were read and not used.
pub(super) struct Peer {
    socket: Box<dyn Socket>,
    read: Vec<u8>,
}

/// A complete request, or a reply as far as it was read.
pub(super) struct HttpMessage {
    pub(super) bytes: Vec<u8>,
    /// The length of the head, with its blank line.
    pub(super) head: usize,
    end: MessageEnd,
}

/// What follows until the message ends.
enum MessageEnd {
    Reached,
    Bytes(usize),
    Chunks(ChunkScanner),
    /// The body ends with the connection.
    Closed,
}

impl Peer {
    pub(super) fn new(socket: impl Socket + 'static) -> Self {
        Self {
            socket: Box::new(socket),
            read: Vec::new(),
        }
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes).await?;
        self.socket.flush().await
    }

    /// Reads a complete request; `None` if the client has closed the connection.
    pub(super) async fn request(&mut self) -> io::Result<Option<HttpMessage>> {
        let Some(head) = self.head().await? else {
            return Ok(None);
        };
        let mut request = HttpMessage::new(head, false)?;
        while let Some(bytes) = self.rest(&mut request).await? {
            request.bytes.extend(bytes);
        }
        Ok(Some(request))
    }

    /// Reads the head of a reply to a request of this method.
    pub(super) async fn reply_head(&mut self, method: &Method) -> io::Result<HttpMessage> {
        let head = self.head().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let has_no_body = method == Method::HEAD || [" 204 ", " 304 "].iter().any(|it| status_is(&head, it));
        let mut reply = HttpMessage::new(head, true)?;
        if has_no_body {
            reply.end = MessageEnd::Reached;
        }
        Ok(reply)
    }

    /// More bytes of `message`, which it does not keep; `None` at its end.
    pub(super) async fn rest(&mut self, message: &mut HttpMessage) -> io::Result<Option<Vec<u8>>> {
        if message.is_complete() {
            return Ok(None);
        }
        if self.read.is_empty() && self.fill().await? == 0 {
            return match message.end {
                MessageEnd::Closed => Ok(None),
                MessageEnd::Reached | MessageEnd::Bytes(_) | MessageEnd::Chunks(_) => {
                    Err(io::ErrorKind::UnexpectedEof.into())
                }
            };
        }
        let used = message.advance(&self.read)?;
        Ok(Some(self.read.drain(..used).collect()))
    }

    /// Returns when the other side has closed the connection. What it sends until then is not used.
    pub(super) async fn closed(&mut self) {
        self.read.clear();
        while matches!(self.fill().await, Ok(count) if count > 0) {
            self.read.clear();
        }
    }

    async fn head(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(at) = self
                .read
                .windows(BLANK_LINE.len())
                .position(|it| it == BLANK_LINE)
            {
                return Ok(Some(self.read.drain(..at + BLANK_LINE.len()).collect()));
            }
            if self.fill().await? == 0 {
                return match self.read.is_empty() {
                    true => Ok(None),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }

    async fn fill(&mut self) -> io::Result<usize> {
        self.read.reserve(READ);
        self.socket.read_buf(&mut self.read).await
    }
}

impl HttpMessage {
    fn new(head: Vec<u8>, is_reply: bool) -> io::Result<Self> {
        let end = if header(&head, "transfer-encoding").is_some_and(|it| it.eq_ignore_ascii_case("chunked")) {
            MessageEnd::Chunks(ChunkScanner::default())
        } else if let Some(length) = header(&head, "content-length") {
            let length = length.parse().map_err(|_| io::ErrorKind::InvalidData)?;
            MessageEnd::Bytes(length)
        } else if is_reply {
            MessageEnd::Closed
        } else {
            MessageEnd::Reached
        };
        Ok(Self {
            head: head.len(),
            bytes: head,
            end,
        })
    }

    fn is_complete(&self) -> bool {
        match self.end {
            MessageEnd::Reached | MessageEnd::Bytes(0) => true,
            MessageEnd::Bytes(_) | MessageEnd::Chunks(_) | MessageEnd::Closed => false,
        }
    }

    /// How many of these bytes belong to the message.
    fn advance(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.end {
            MessageEnd::Reached => Ok(0),
            MessageEnd::Closed => Ok(bytes.len()),
            MessageEnd::Bytes(left) => {
                let used = bytes.len().min(*left);
                *left -= used;
                Ok(used)
            }
            MessageEnd::Chunks(chunks) => match chunks.end(bytes)? {
                None => Ok(bytes.len()),
                Some(used) => {
                    self.end = MessageEnd::Reached;
                    Ok(used)
                }
            },
        }
    }

    /// Adds a header to a head without its body yet.
    pub(super) fn announce_close(&mut self) {
        self.bytes.truncate(self.head - 2);
        self.bytes.extend(b"Connection: close\r\n\r\n");
        self.head = self.bytes.len();
    }

    fn body(&self) -> &[u8] {
        &self.bytes[self.head..]
    }

    /// The method of a request.
    pub(super) fn method(&self) -> Method {
        let text = self.first_line().split(' ').next().unwrap_or_default().to_owned();
        text.parse().unwrap_or_default()
    }

    /// What a request asks for: `PowerOffVM_Task`, `GET /sdk/vimServiceVersions.xml`, `PATCH nodes`, `LIST pods`.
    pub(super) fn what(&self, side: Side) -> String {
        let line = self.first_line();
        let (method, path) = line.split_once(' ').unwrap_or((line, ""));
        let path = path.split_once(' ').map_or(path, |(path, _version)| path);
        match side {
            Side::Vcenter => request::soap_method(self.body()).unwrap_or_else(|| format!("{method} {path}")),
            Side::Kubernetes => request::kind(method, path),
        }
    }

    fn first_line(&self) -> &str {
        let line = self.bytes.split(|it| *it == b'\r').next().unwrap_or_default();
        std::str::from_utf8(line).unwrap_or_default()
    }
}

/// The value of the header of this name, in lower case.
fn header<'h>(head: &'h [u8], name: &str) -> Option<&'h str> {
    let head = std::str::from_utf8(head).ok()?;
    let mut headers = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
    headers
        .find(|(it, _)| it.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
}

fn status_is(head: &[u8], status: &str) -> bool {
    let line = head.split(|it| *it == b'\r').next().unwrap_or_default();
    String::from_utf8_lossy(line).contains(status)
}

/// Finds the end of a chunked body.
#[derive(Default)]
struct ChunkScanner {
    part: ChunkPart,
    line: Vec<u8>,
}

#[derive(Default)]
enum ChunkPart {
    #[default]
    Size,
    /// The bytes of a chunk that are left, with the line break after it.
    Data(usize),
    Trailer,
}

impl ChunkScanner {
    /// Where in these bytes the body ends.
    fn end(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            if let ChunkPart::Data(left) = &mut self.part {
                let used = (*left).min(bytes.len() - at);
                *left -= used;
                at += used;
                if *left == 0 {
                    self.part = ChunkPart::Size;
                }
                continue;
            }
            at += 1;
            if *byte != b'\n' {
                self.line.push(*byte);
                continue;
            }
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.line))
                .trim()
                .to_owned();
            match self.part {
                ChunkPart::Trailer if line.is_empty() => return Ok(Some(at)),
                ChunkPart::Trailer | ChunkPart::Data(_) => {}
                ChunkPart::Size => {
                    let size = line.split(';').next().unwrap_or_default();
                    let size = usize::from_str_radix(size, 16).map_err(|_| io::ErrorKind::InvalidData)?;
                    self.part = match size {
                        0 => ChunkPart::Trailer,
                        size => ChunkPart::Data(size + 2),
                    };
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// A peer that has sent these bytes, one at a time, and closed the connection.
    fn sent(bytes: &'static [u8]) -> Peer {
        let (near, mut far) = tokio::io::duplex(1);
        tokio::spawn(async move { far.write_all(bytes).await });
        Peer::new(near)
    }

    async fn body(peer: &mut Peer) -> Vec<u8> {
        let mut reply = peer.reply_head(&Method::GET).await.unwrap();
        let mut body = Vec::new();
        while let Some(bytes) = peer.rest(&mut reply).await.unwrap() {
            body.extend(bytes);
        }
        body
    }

    #[tokio::test]
    async fn replies_end_where_their_heads_say() {
        let mut peer = sent(
            b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc\
              HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nde\r\nA\r\n0123456789\r\n0\r\nT: v\r\n\r\n\
              HTTP/1.1 204 No Content\r\n\r\n\
              HTTP/1.0 200 OK\r\n\r\nto the end",
        );
        assert_eq!(body(&mut peer).await, b"abc");
        assert_eq!(
            body(&mut peer).await,
            b"2;x=y\r\nde\r\nA\r\n0123456789\r\n0\r\nT: v\r\n\r\n"
        );
        assert_eq!(body(&mut peer).await, b"");
        assert_eq!(body(&mut peer).await, b"to the end");
    }

    #[tokio::test]
    async fn requests_are_named_by_what_they_ask_for() {
        let soap = "<E:Envelope xmlns:E='e'><E:Body><ShutdownGuest xmlns='urn:vim25'/></E:Body></E:Envelope>";
        let requests = [
            (
                Side::Vcenter,
                format!(
                    "POST /sdk HTTP/1.1\r\nContent-Length: {}\r\n\r\n{soap}",
                    soap.len()
                ),
                "ShutdownGuest",
            ),
            (
                Side::Vcenter,
                "GET /sdk/vimServiceVersions.xml HTTP/1.1\r\n\r\n".to_owned(),
                "GET /sdk/vimServiceVersions.xml",
            ),
            (
                Side::Kubernetes,
                "GET /api/v1/nodes?&limit=500 HTTP/1.1\r\n\r\n".to_owned(),
                "LIST nodes",
            ),
            (
                Side::Kubernetes,
                "GET /api/v1/nodes?watch=true HTTP/1.1\r\n\r\n".to_owned(),
                "WATCH nodes",
            ),
            (
                Side::Kubernetes,
                "GET /api/v1/namespaces/ml HTTP/1.1\r\n\r\n".to_owned(),
                "GET namespaces",
            ),
            (
                Side::Kubernetes,
                "PATCH /api/v1/nodes/gpu-1 HTTP/1.1\r\n\r\n".to_owned(),
                "PATCH nodes",
            ),
            (
                Side::Kubernetes,
                "PATCH /apis/haulout.dev/v1/nodemaintenances/a/status HTTP/1.1\r\n\r\n".to_owned(),
                "PATCH nodemaintenances/status",
            ),
            (
                Side::Kubernetes,
                "POST /api/v1/namespaces/ml/pods/a/eviction HTTP/1.1\r\n\r\n".to_owned(),
                "POST pods/eviction",
            ),
            (
                Side::Kubernetes,
                "GET /version HTTP/1.1\r\n\r\n".to_owned(),
                "LIST version",
            ),
        ];
        for (side, bytes, what) in requests {
            let (near, mut far) = tokio::io::duplex(1024);
            far.write_all(bytes.as_bytes()).await.unwrap();
            drop(far);
            let mut peer = Peer::new(near);
            assert_eq!(peer.request().await.unwrap().unwrap().what(side), what);
            assert!(peer.request().await.unwrap().is_none());
        }
    }
}
