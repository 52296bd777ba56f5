//! Compressed headers (RFC 7541), byte for byte: each form arrives as what it says, what does not decode
//! ends the connection, and what decodes to far more than was sent is not taken.

use cube_testkit::h2frames::{PREFACE, block};
use cube_testkit::{Frame, H2Wire};

use super::rfc9113::{Asks, Did, application, fields, watch};
use crate::support::{Tls, patient, tls};

/// `no-cache`, `custom-key` and `custom-value` in the Huffman code (RFC 7541, C.4).
const NO_CACHE: &[u8] = &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf];
const KEY: &[u8] = &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f];
const VALUE: &[u8] = &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf];

/// A string of a literal: its length, with the bit for the Huffman code, and itself.
fn string(bytes: &[u8], huffman: bool) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).unwrap() | if huffman { 0x80 } else { 0 };
    [&[length], bytes].concat()
}

/// A connection on which a request with this block, whose end is what it says, has been sent.
async fn asked(tls: &Tls, block: &[u8]) -> H2Wire {
    let mut wire = tls.frames().await;
    wire.hello(&[]).await;
    wire.send(Frame::new(Frame::HEADERS, 5, 1, block).bytes()).await;
    wire
}

/// 6.1 to 6.3: each form with an indexed and with a new name, plain and in the Huffman code.
#[tokio::test]
async fn every_form_of_a_header_arrives_as_what_it_says() {
    let tls = tls().await;
    let origin = application().await;
    let host = tls.env.sandbox(&origin).await.host();
    let begin = block(&fields("GET", &host, &[(":path", "/x")]));
    // cache-control is 24, which takes six bits in the first form and more than four in the others.
    for (form, indexed, new) in [
        ("with incremental indexing", &[0x58][..], 0x40),
        ("without indexing", &[0x0f, 9], 0x00),
        ("never indexed", &[0x1f, 9], 0x10),
    ] {
        for huffman in [false, true] {
            let text = |plain: &'static [u8], code: &'static [u8]| {
                string(if huffman { code } else { plain }, huffman)
            };
            let (key, value) = (text(b"custom-key", KEY), text(b"custom-value", VALUE));
            let headers = [indexed, &text(b"no-cache", NO_CACHE), &[new], &key, &value].concat();
            let mut wire = asked(&tls, &[&begin[..], &headers].concat()).await;
            assert_eq!(watch(&mut wire).await, Did::Answered(1, Some(200)), "{form}");
            let got = origin.last().headers;
            assert_eq!(got.all("cache-control"), ["no-cache"], "{form}, Huffman: {huffman}");
            assert_eq!(got.all("custom-key"), ["custom-value"], "{form}, Huffman: {huffman}");
        }
    }
    // 6.1: whole entries of the static table.
    let authority = [&[0x01], &string(host.as_bytes(), false)[..]].concat();
    let mut wire = asked(&tls, &[&[0x82, 0x84, 0x87], &authority[..]].concat()).await;
    assert_eq!(watch(&mut wire).await, Did::Answered(1, Some(200)));
    let last = origin.last();
    assert_eq!((last.method.as_str(), last.target.as_str()), ("GET", "/"));
}

/// 2.3.2 and 4.3: what one request has put into the table is there for the next, until it is made small.
#[tokio::test]
async fn the_table_lives_as_long_as_its_connection_and_its_size() {
    let tls = tls().await;
    let origin = application().await;
    let host = tls.env.sandbox(&origin).await.host();
    let begin = block(&fields("GET", &host, &[]));
    let first = [&begin[..], &[0x40], &string(b"x-kept", false), &string(b"1", false)].concat();
    let mut wire = asked(&tls, &first).await;
    assert!(wire.until(Frame::ends).await.is_some());
    let request = |stream, block: Vec<u8>| Frame::new(Frame::HEADERS, 5, stream, block).bytes();
    wire.send(request(3, [&begin[..], &[0xbe]].concat())).await;
    assert!(wire.until(Frame::ends).await.is_some());
    assert_eq!(origin.last().headers.all("x-kept"), ["1"]);
    // 4.2: to nothing and back to 4,096 bytes, in one block: the entry is gone.
    wire.send(request(5, [&[0x20, 0x3f, 0xe1, 0x1f], &begin[..]].concat())).await;
    assert!(wire.until(Frame::ends).await.is_some());
    assert!(!origin.last().headers.has("x-kept"));
    let count = origin.count();
    wire.send(request(7, [&begin[..], &[0xbe]].concat())).await;
    assert!(wire.until(|frame| frame.kind == Frame::GOAWAY).await.is_none_or(|end| end.code() != Some(0)));
    assert_eq!(origin.count(), count);
}

#[tokio::test]
async fn what_does_not_decode_ends_the_connection() {
    let tls = tls().await;
    let origin = application().await;
    let host = tls.env.sandbox(&origin).await.host();
    let begin = block(&fields("GET", &host, &[]));
    let literal = |value: &[u8]| [&[0, 1, b'x'], &string(value, true)[..]].concat();
    let behind = |more: &[u8]| [&begin[..], more].concat();
    for (says, block) in [
        ("2.3.3: a literal whose name nobody set", behind(&[0x7f, 0x40, 1, b'a'])),
        ("4.2: the size of the table at the end of a block", behind(&[0x20])),
        ("5.1: an index without end", behind(&[0xff; 12])),
        (
            "5.1: an index over 64 bits",
            behind(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
        ),
        ("5.2: a string that is longer than its block", behind(&[0, 1, b'x', 9, b'a'])),
        ("5.2: padding of more than seven bits", behind(&literal(&[0x1f, 0xff]))),
        ("5.2: padding of zeros", behind(&literal(&[0x18]))),
        ("5.2: the end of the string in a string", behind(&literal(&[0xff; 4]))),
        ("6.1: index 0", behind(&[0x80])),
        ("6.3: a table that is larger than it may be", [&[0x3f, 0xff, 0xff, 3], &begin[..]].concat()),
    ] {
        let did = watch(&mut asked(&tls, &block).await).await;
        // PROTOCOL_ERROR or COMPRESSION_ERROR (http2.md).
        let ends = Asks::ConnectionError(9).allows(&did) || did == Did::GoneAway(1);
        assert!(ends, "{says}: {did:?}");
    }
    assert_eq!(origin.count(), 0);
}

/// 7.3: a kilobyte of indices that stands for megabytes of headers.
#[tokio::test]
async fn a_block_that_decodes_to_much_more_than_was_sent_is_not_taken() {
    let tls = patient().await;
    let origin = application().await;
    let host = tls.env.sandbox(&origin).await.host();
    let begin = block(&fields("GET", &host, &[]));
    // 3,900 bytes that stay in the table, as a length in seven bits has it.
    let mut large = vec![0x40, 1, b'x', 0x7f, 0xbd, 0x1d];
    large.extend([b'a'; 127 + 0x3d + (0x1d << 7)]);
    let before = tls.env.proxy.rss();
    let mut wire = tls.frames().await;
    wire.send([PREFACE, &Frame::settings(&[]).bytes()].concat()).await;
    let settings = wire.frame().await.expect("settings");
    // SETTINGS_MAX_HEADER_LIST_SIZE: what the library decodes at most, twice `limits.head`.
    assert!(settings.payload.chunks(6).any(|one| one == [0, 6, 0, 2, 0, 0]), "{settings:?}");
    wire.send(Frame::new(Frame::SETTINGS, 1, 0, []).bytes()).await;
    wire.send(Frame::new(Frame::HEADERS, 5, 1, [&begin[..], &large].concat()).bytes()).await;
    assert!(wire.until(Frame::ends).await.is_some());
    assert_eq!(origin.count(), 1);
    for stream in 1..=8 {
        let many = [&begin[..], &[0xbe; 16_000]].concat();
        wire.send(Frame::new(Frame::HEADERS, 5, stream * 2 + 1, many).bytes()).await;
    }
    // Whether with 431, a reset or the end of the connection: none is taken.
    let answered = wire.until(|frame| frame.kind != Frame::SETTINGS && frame.status() == Some(200)).await;
    assert!(answered.is_none());
    assert_eq!(origin.count(), 1);
    let grown = tls.env.proxy.rss().saturating_sub(before);
    assert!(grown < 32 << 20, "grown by {} KiB", grown / 1024);
    tls.h2().await.get(&host, "/after", &[]).await.passed(200);
}
