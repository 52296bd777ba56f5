//! HTTP/2 frame by frame (RFC 9113), right or wrong, for what no library would send or show.

use std::net::SocketAddr;

use rustls_pki_types::CertificateDer;
use tokio::net::TcpStream;

use crate::client::Io;
use crate::{Wire, tls, within};

/// What a client says first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// One of the constants below, or a number that nobody knows.
    pub kind: u8,
    /// Flags.
    pub flags: u8,
    /// The stream; 0 is the connection.
    pub stream: u32,
    /// What follows the nine bytes of the head.
    pub payload: Vec<u8>,
}

impl Frame {
    /// DATA (6.1).
    pub const DATA: u8 = 0;
    /// HEADERS (6.2).
    pub const HEADERS: u8 = 1;
    /// PRIORITY (6.3).
    pub const PRIORITY: u8 = 2;
    /// RST_STREAM (6.4).
    pub const RST_STREAM: u8 = 3;
    /// SETTINGS (6.5).
    pub const SETTINGS: u8 = 4;
    /// PUSH_PROMISE (6.6).
    pub const PUSH_PROMISE: u8 = 5;
    /// PING (6.7).
    pub const PING: u8 = 6;
    /// GOAWAY (6.8).
    pub const GOAWAY: u8 = 7;
    /// WINDOW_UPDATE (6.9).
    pub const WINDOW_UPDATE: u8 = 8;
    /// CONTINUATION (6.10).
    pub const CONTINUATION: u8 = 9;

    /// END_STREAM, and ACK of SETTINGS and PING.
    pub const END_STREAM: u8 = 1;
    /// END_HEADERS.
    pub const END_HEADERS: u8 = 4;
    /// PADDED.
    pub const PADDED: u8 = 8;
    /// PRIORITY, of HEADERS.
    pub const WITH_PRIORITY: u8 = 0x20;

    /// Any frame.
    #[must_use]
    pub fn new(kind: u8, flags: u8, stream: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self { kind, flags, stream, payload: payload.into() }
    }

    /// HEADERS with the whole of a block.
    #[must_use]
    pub fn headers(stream: u32, headers: &[(&str, &str)], end: bool) -> Self {
        let flags = Self::END_HEADERS | if end { Self::END_STREAM } else { 0 };
        Self::new(Self::HEADERS, flags, stream, block(headers))
    }

    /// DATA.
    #[must_use]
    pub fn data(stream: u32, data: &[u8], end: bool) -> Self {
        Self::new(Self::DATA, u8::from(end), stream, data)
    }

    /// RST_STREAM.
    #[must_use]
    pub fn reset(stream: u32, code: u32) -> Self {
        Self::new(Self::RST_STREAM, 0, stream, code.to_be_bytes())
    }

    /// GOAWAY: streams above `last` were not processed.
    #[must_use]
    pub fn go_away(last: u32, code: u32) -> Self {
        Self::new(Self::GOAWAY, 0, 0, [last.to_be_bytes(), code.to_be_bytes()].concat())
    }

    /// WINDOW_UPDATE.
    #[must_use]
    pub fn window(stream: u32, more: u32) -> Self {
        Self::new(Self::WINDOW_UPDATE, 0, stream, more.to_be_bytes())
    }

    /// SETTINGS.
    #[must_use]
    pub fn settings(settings: &[(u16, u32)]) -> Self {
        let pair = |(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
        Self::new(Self::SETTINGS, 0, 0, settings.iter().flat_map(pair).collect::<Vec<_>>())
    }

    /// As it goes over the wire.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).expect("a small payload").to_be_bytes();
        let mut bytes = vec![length[1], length[2], length[3], self.kind, self.flags];
        bytes.extend(self.stream.to_be_bytes());
        bytes.extend(&self.payload);
        bytes
    }

    /// Whether it ends its stream.
    #[must_use]
    pub fn ends(&self) -> bool {
        matches!(self.kind, Self::DATA | Self::HEADERS) && self.flags & Self::END_STREAM > 0
    }

    /// The error code of RST_STREAM and GOAWAY.
    #[must_use]
    pub fn code(&self) -> Option<u32> {
        let from = match self.kind {
            Self::RST_STREAM => 0,
            Self::GOAWAY => 4,
            _ => return None,
        };
        self.payload.get(from..from + 4).and_then(|code| code.try_into().ok()).map(u32::from_be_bytes)
    }

    /// The status at the beginning of a HEADERS frame, where it comes in a form that the proxy
    /// sends on a fresh connection.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match *self.payload.first()? {
            // Whole entries of the static table.
            indexed @ 0x88..=0x8e => Some([200, 204, 206, 304, 400, 404, 500][usize::from(indexed - 0x88)]),
            // The name from the static table, the value as three digits.
            0x08 | 0x48 => digits(self.payload.get(1..)?),
            _ => None,
        }
    }
}

/// Three digits, plain or in the Huffman code of HPACK.
fn digits(value: &[u8]) -> Option<u16> {
    let length = usize::from(value.first()? & 0x7f);
    let text = value.get(1..=length)?;
    if value[0] & 0x80 == 0 {
        return std::str::from_utf8(text).ok()?.parse().ok();
    }
    let mut bits = text.iter().flat_map(|byte| (0..8).rev().map(move |at| u16::from(byte >> at & 1)));
    let mut number = 0;
    for _ in 0..3 {
        // 0, 1 and 2 are 5 bits long, the others 6, from 011001 for 3 on.
        let short = bits.by_ref().take(5).fold(0, |all, bit| all << 1 | bit);
        let digit = if short <= 2 { short } else { (short << 1 | bits.next()?).checked_sub(0b01_1001)? + 3 };
        number = number * 10 + digit;
    }
    Some(number)
}

/// A header block without compression (RFC 7541, 6.2.2: literals that nobody remembers).
#[must_use]
pub fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            integer(&mut block, text.len());
            block.extend(text.as_bytes());
        }
    }
    block
}

/// A length in seven bits, and more where it needs them (RFC 7541, 5.1).
fn integer(block: &mut Vec<u8>, number: usize) {
    let Some(mut rest) = number.checked_sub(127) else {
        block.push(u8::try_from(number).expect("below 127"));
        return;
    };
    block.push(127);
    while rest > 127 {
        block.push(u8::try_from(rest % 128).expect("below 128") | 128);
        rest /= 128;
    }
    block.push(u8::try_from(rest).expect("below 128"));
}

/// A connection that frames go over.
pub struct H2Wire {
    wire: Wire<Box<dyn Io>>,
}

impl H2Wire {
    /// Over TLS with ALPN `h2`; nothing is said yet.
    pub async fn tls(address: SocketAddr, root: &CertificateDer<'static>, name: &str) -> Self {
        Self { wire: Wire::new(Box::new(tls::connect(address, root, name, &["h2"]).await)) }
    }

    /// Plaintext; nothing is said yet.
    pub async fn plain(address: SocketAddr) -> Self {
        let stream = within("a connection", TcpStream::connect(address)).await.expect("a connection");
        stream.set_nodelay(true).unwrap();
        Self { wire: Wire::new(Box::new(stream)) }
    }

    /// The server's side of a connection: the client's preface and settings have been read, its
    /// settings are acknowledged.
    pub async fn serve(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        let mut served = Self { wire: Wire::new(Box::new(stream)) };
        let preface = within("a preface", served.wire.exactly(PREFACE.len())).await.expect("a preface");
        assert_eq!(preface, PREFACE);
        let first = served.frame().await.expect("the client's settings");
        assert_eq!((first.kind, first.flags), (Frame::SETTINGS, 0), "{first:?}");
        served
            .send([Frame::settings(&[]).bytes(), Frame::new(Frame::SETTINGS, 1, 0, []).bytes()].concat())
            .await;
        served
    }

    /// Preface and settings, and the response to the server's settings.
    pub async fn hello(&mut self, settings: &[(u16, u32)]) {
        self.send([PREFACE, &Frame::settings(settings).bytes()].concat()).await;
        let first = self.frame().await.expect("the server's settings");
        assert_eq!((first.kind, first.flags), (Frame::SETTINGS, 0), "{first:?}");
        self.send(Frame::new(Frame::SETTINGS, 1, 0, []).bytes()).await;
    }

    /// Writes bytes; that the other side has closed is noticed by what is read.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = within("the proxy to read", self.wire.send(bytes)).await;
    }

    /// The same without a bound: the other side may stop reading for a while.
    ///
    /// # Errors
    /// What the connection says.
    pub async fn push(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.wire.send(bytes).await
    }

    /// The next frame; `None` at the end of the connection, clean or not.
    pub async fn frame(&mut self) -> Option<Frame> {
        let head = within("a frame", self.wire.exactly(9)).await.ok()?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let payload = within("a frame's payload", self.wire.exactly(length)).await.ok()?;
        let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        Some(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    /// Reads until a frame that `wanted` likes; `None`: the connection ended before.
    pub async fn until(&mut self, mut wanted: impl FnMut(&Frame) -> bool) -> Option<Frame> {
        loop {
            let frame = self.frame().await?;
            if wanted(&frame) {
                return Some(frame);
            }
        }
    }

    /// Whether the connection still answers: a PING comes back.
    pub async fn lives(&mut self) -> bool {
        self.send(Frame::new(Frame::PING, 0, 0, *b"is alive").bytes()).await;
        let response = self.until(|frame| frame.kind == Frame::PING && frame.flags == 1);
        response.await.is_some_and(|frame| frame.payload == b"is alive")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_take_as_many_bytes_as_they_need() {
        let mut bytes = Vec::new();
        integer(&mut bytes, 10);
        integer(&mut bytes, 127);
        integer(&mut bytes, 1337);
        assert_eq!(bytes, [10, 127, 0, 127, 0xba, 9]);
    }

    #[test]
    fn a_status_is_read_in_all_forms_of_a_fresh_connection() {
        let status = |payload: &[u8]| Frame::new(Frame::HEADERS, 4, 1, payload).status();
        assert_eq!(status(&[0x88]), Some(200));
        assert_eq!(status(&[0x8d]), Some(404));
        assert_eq!(status(b"\x08\x03502"), Some(502));
        // "307" and "502" in the Huffman code: RFC 7541, C.6 and its appendix B.
        assert_eq!(status(&[0x48, 0x83, 0x64, 0x0e, 0xff]), Some(307));
        assert_eq!(status(&[0x48, 0x82, 0x6c, 0x02]), Some(502));
    }

    #[tokio::test]
    async fn a_real_server_understands_these_frames() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let mut connection = h2::server::handshake(listener.accept().await.unwrap().0).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                assert_eq!(request.uri(), "http://a.test/x");
                assert_eq!(request.headers()["long"].len(), 5000);
                respond.send_response(http::Response::builder().status(404).body(()).unwrap(), true).unwrap();
            }
        });
        let mut wire = H2Wire::plain(address).await;
        wire.hello(&[]).await;
        let long = "l".repeat(5000);
        let headers = [
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "a.test"),
            (":path", "/x"),
            ("long", &long),
        ];
        wire.send(Frame::headers(1, &headers, true).bytes()).await;
        let response = wire.until(|frame| frame.kind == Frame::HEADERS).await.unwrap();
        assert_eq!((response.status(), response.ends()), (Some(404), true));
        assert!(wire.lives().await);
        serving.abort();
    }
}
