//! WebSockets frame by frame: what is behind the proxy decides, as if the proxy were not there
//! (connections.md, "WebSocket and upgrades"). The cases are those of the usual conformance
//! suites: framing, fragmentation, control frames, reserved bits and opcodes, UTF-8, close codes,
//! compression. Each is told to the application directly and through the proxy, and what comes
//! back must be the same bytes; and to an application that sends every byte back, in both of whose
//! directions nothing may change.

use std::net::SocketAddr;

use cube_testkit::{Client, Exchange, ExchangeResult, Origin, scripts};

use crate::support::{A_SECOND, cube, patient, tls};

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const FIN: u8 = 0x80;

/// A frame of a client; `first` is FIN, the reserved bits and the opcode.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0x37, 0xfa, 0x21, 0x3d];
    let mut bytes = vec![first];
    match payload.len() {
        short @ ..=125 => bytes.push(0x80 | u8::try_from(short).unwrap()),
        middle @ ..=0xffff => {
            bytes.push(0x80 | 126);
            bytes.extend(u16::try_from(middle).unwrap().to_be_bytes());
        }
        long => {
            bytes.push(0x80 | 127);
            bytes.extend((long as u64).to_be_bytes());
        }
    }
    bytes.extend(mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

fn close(code: u16, reason: &[u8]) -> Vec<u8> {
    frame(FIN | CLOSE, &[&code.to_be_bytes()[..], reason].concat())
}

/// What clients say, right and wrong.
fn cases() -> Vec<(String, Vec<u8>)> {
    let mut cases = Vec::new();
    let mut case = |name: String, frames: &[Vec<u8>]| {
        // The application ends what is right by answering this, and what is wrong before it.
        cases.push((name, [frames.concat(), close(1000, b"")].concat()));
    };
    for size in [0, 1, 125, 126, 127, 128, 65_535, 65_536, 65_537, 1 << 20] {
        for opcode in [TEXT, BINARY] {
            case(format!("{size} bytes, opcode {opcode}"), &[frame(FIN | opcode, &vec![b'*'; size])]);
        }
    }
    let long: Vec<u8> = (0..1 << 18).map(|n: u32| n.to_le_bytes()[0]).collect();
    for piece in [1000, 4096, 100_000] {
        let count = long.chunks(piece).count();
        let frames: Vec<_> = (0..count)
            .zip(long.chunks(piece))
            .map(|(n, part)| {
                let first = if n == 0 { BINARY } else { 0 } | if n + 1 == count { FIN } else { 0 };
                frame(first, part)
            })
            .collect();
        case(format!("in frames of {piece}"), &frames);
    }
    for size in [0, 8, 125, 126] {
        case(format!("a ping of {size}"), &[frame(FIN | PING, &vec![0xfe; size])]);
        case(format!("an unasked pong of {size}"), &[frame(FIN | PONG, &vec![0xfe; size])]);
    }
    case("ten pings".into(), &(0..10).map(|n| frame(FIN | PING, &[n])).collect::<Vec<_>>());
    case(
        "a ping within a message".into(),
        &[frame(TEXT, b"one "), frame(FIN | PING, b"?"), frame(FIN, b"two")],
    );
    case("a ping in two parts".into(), &[frame(PING, b"one"), frame(FIN, b"two")]);
    case("a part without a beginning".into(), &[frame(FIN, b"two")]);
    case("a message within a message".into(), &[frame(TEXT, b"one"), frame(FIN | TEXT, b"two")]);
    case("empty parts".into(), &[frame(TEXT, b""), frame(0, b""), frame(FIN, b"")]);
    for bits in [0x10, 0x20, 0x40, 0x70] {
        case(format!("reserved bits {bits:#x}"), &[frame(FIN | bits | TEXT, b"text")]);
        case(format!("reserved bits {bits:#x} of a ping"), &[frame(FIN | bits | PING, b"?")]);
    }
    for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        case(format!("opcode {opcode}"), &[frame(FIN | opcode, b"x")]);
    }
    for (name, text) in [
        ("UTF-8", "κόσμε 𐍈 \u{fffe}".as_bytes()),
        ("half a character", b"\xce"),
        ("a surrogate", b"\xed\xa0\x80edited"),
        ("an overlong slash", b"\xc0\xaf"),
        ("beyond the last character", b"\xf4\x90\x80\x80"),
    ] {
        case(name.into(), &[frame(FIN | TEXT, text)]);
        case(
            format!("{name}, cut within"),
            &[frame(TEXT, &text[..text.len() / 2]), frame(FIN, &text[text.len() / 2..])],
        );
    }
    let codes = [0, 999, 1016, 1100, 2000, 2999, 3000, 3999, 4000, 4999, 5000, 65535];
    for code in (1000..=1015).chain(codes) {
        case(format!("close {code}"), &[close(code, b"why")]);
    }
    case("close without a code".into(), &[frame(FIN | CLOSE, b"")]);
    case("close with half a code".into(), &[frame(FIN | CLOSE, b"\x03")]);
    case("close with the longest reason".into(), &[close(1000, &[b'*'; 123])]);
    case("close with a longer one".into(), &[close(1000, &[b'*'; 124])]);
    case(
        "close with a reason that is no text".into(),
        &[close(1000, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xed\xa0\x80")],
    );
    case("a message after the close".into(), &[close(1000, b""), frame(FIN | TEXT, b"late")]);
    cases
}

const EXTENSION: &str = "permessage-deflate; client_max_window_bits";

/// A client after its handshake; the response's extension with it.
async fn shaken(mut client: Client, host: &str) -> (Client, Option<String>) {
    let headers = [
        ("Host", host),
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Extensions", EXTENSION),
    ];
    client.request("GET", "/ws", &headers).await;
    let head = client.head().await;
    assert_eq!(head.status, 101);
    assert_eq!(head.headers.get("Sec-WebSocket-Accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    (client, head.headers.get("Sec-WebSocket-Extensions").map(str::to_owned))
}

/// Says it all, and gives everything that comes back until the end. A client that was refused may
/// find its last bytes reset.
async fn told(address: SocketAddr, host: &str, bytes: &[u8]) -> Vec<u8> {
    let (mut client, _) = shaken(Client::connect(address).await, host).await;
    client.send(bytes).await;
    let mut all = Vec::new();
    while let Ok(piece) = cube_testkit::within("the end", client.wire().some(1 << 16)).await {
        if piece.is_empty() {
            break;
        }
        all.extend(piece);
    }
    all
}

#[tokio::test]
async fn an_application_behaves_as_if_the_proxy_were_not_there() {
    let env = cube().await;
    let origin = Origin::scripted(scripts::websocket).await;
    let host = env.sandbox(&origin).await.host();
    let mut different = Vec::new();
    for (name, bytes) in cases() {
        let direct = told(origin.address(), &host, &bytes).await;
        let proxied = told(env.proxy.http(), &host, &bytes).await;
        if direct != proxied {
            different.push((name, direct.len(), proxied.len()));
        }
    }
    assert!(different.is_empty(), "case, bytes direct, bytes through the proxy: {different:?}");
}

/// A server that shakes hands, with compression, and then sends every byte back.
async fn mirror(mut exchange: Exchange) -> ExchangeResult {
    assert_eq!(exchange.request.headers.all("Sec-WebSocket-Extensions"), [EXTENSION]);
    let response = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        ("Sec-WebSocket-Extensions", "permessage-deflate"),
    ];
    exchange.start(101, &response).await?;
    loop {
        let piece = exchange.wire().some(1 << 16).await?;
        if piece.is_empty() {
            return exchange.close().await;
        }
        exchange.send(piece).await?;
    }
}

#[tokio::test]
async fn not_a_bit_changes_on_the_way() {
    let tls = tls().await;
    let origin = Origin::scripted(mirror).await;
    let host = tls.env.sandbox(&origin).await.host();
    for secure in [false, true] {
        let client = if secure { tls.h1().await } else { tls.env.client().await };
        let (mut client, extension) = shaken(client, &host).await;
        assert_eq!(extension.as_deref(), Some("permessage-deflate"));
        // "Hello", compressed (RFC 7692, 7.2.3.1), then everything else on the same connection.
        let hello = frame(FIN | 0x40 | TEXT, &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00]);
        for (name, bytes) in std::iter::once(("compressed".to_owned(), hello)).chain(cases()) {
            // In parts: nobody reads what comes back while a part is written.
            for part in bytes.chunks(1 << 14) {
                client.send(part).await;
                let back = cube_testkit::within(&name, client.wire().exactly(part.len())).await.unwrap();
                assert!(back == part, "{name}, TLS: {secure}");
            }
        }
    }
}

#[tokio::test]
async fn a_half_close_by_either_side_ends_the_tunnel() {
    let env = cube().await;
    let origin = Origin::scripted(mirror).await;
    let host = env.sandbox(&origin).await.host();
    let (mut client, _) = shaken(env.client().await, &host).await;
    client.wire().finish().await.unwrap();
    let begin = std::time::Instant::now();
    assert!(client.ended().await);
    cube_testkit::eventually("the end at the application", || async {
        (origin.open_connections() == 0).then_some(())
    })
    .await;
    assert!(begin.elapsed() < A_SECOND, "{:?}", begin.elapsed());

    let origin = Origin::scripted(|mut exchange: Exchange| async move {
        exchange
            .start(
                101,
                &[
                    ("Upgrade", "websocket"),
                    ("Connection", "Upgrade"),
                    ("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
                ],
            )
            .await?;
        exchange.send(b"bye").await?;
        exchange.wire().finish().await?;
        exchange.gone().await;
        exchange.close().await
    })
    .await;
    let host = env.sandbox(&origin).await.host();
    let (mut client, _) = shaken(env.client().await, &host).await;
    assert_eq!(cube_testkit::within("the last words", client.wire().exactly(3)).await.unwrap(), b"bye");
    assert!(client.ended().await);
    cube_testkit::eventually("the end at the application", || async {
        (origin.open_connections() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn messages_pass_over_tls() {
    let tls = tls().await;
    let origin = Origin::scripted(scripts::websocket).await;
    let mut socket = tls.websocket(&tls.env.sandbox(&origin).await).await;
    assert_eq!(socket.say("hello").await, "hello");
    assert_eq!(origin.last().headers.all("X-Forwarded-Proto"), ["https"]);
    socket.close().await;
}

/// Half of them over TLS; each speaks while all are open, and again when all have spoken.
#[tokio::test]
async fn a_thousand_are_open_at_once() {
    let tls = patient().await;
    let origin = Origin::scripted(scripts::websocket).await;
    let sandbox = tls.env.sandbox(&origin).await;
    let mut open = Vec::new();
    for n in 0..1000 {
        open.push(if n % 2 == 0 {
            let opened = tls.env.websocket(cube_testkit::By::Path, &sandbox, "/ws", &[]).await;
            opened.expect("a 101")
        } else {
            tls.websocket(&sandbox).await
        });
    }
    assert_eq!(origin.open_connections(), 1000);
    for round in 0..2 {
        for (n, socket) in open.iter_mut().enumerate() {
            let text = format!("{n} in round {round}");
            assert_eq!(socket.say(&text).await, text);
        }
    }
    drop(open);
    cube_testkit::eventually("the end of all of them", || async {
        (origin.open_connections() == 0).then_some(())
    })
    .await;
}
