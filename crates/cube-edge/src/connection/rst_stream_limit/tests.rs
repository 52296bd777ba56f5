use super::*;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    let mut bytes = vec![0, 0, length, kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn talk() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[0; 12]));
    bytes.extend(frame(HEADERS, 1 | END_HEADERS, 1, b"block"));
    bytes.extend(frame(HEADERS, 0, 3, b"half"));
    bytes.extend(frame(CONTINUATION, END_HEADERS, 3, b"other half"));
    bytes.extend(frame(0, 0, 3, b"data"));
    bytes.extend(frame(HEADERS, 1 | END_HEADERS, 3, b"trailers"));
    bytes.extend(frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]));
    bytes.extend(frame(DATA, END_STREAM, 7, b"last"));
    bytes.extend(frame(HEADERS, 1, 9, b"half"));
    bytes.extend(frame(CONTINUATION, END_HEADERS, 9, b""));
    bytes
}

#[test]
fn events_are_the_same_wherever_the_reads_cut() {
    let bytes = talk();
    let expected = [
        FrameEvent::Opened { stream: 1, ends: true },
        FrameEvent::Opened { stream: 3, ends: false },
        FrameEvent::Ended(3),
        FrameEvent::Reset(1),
        FrameEvent::Ended(7),
        FrameEvent::Opened { stream: 9, ends: true },
    ];
    for piece in [1, 2, 5, 9, 17, bytes.len()] {
        let mut reader = FrameReader::new();
        let mut events = Vec::new();
        for mut piece in bytes.chunks(piece) {
            while !piece.is_empty() {
                let (followed, event) = reader.follow(piece);
                events.extend(event);
                piece = &piece[followed..];
            }
        }
        // The last frame has no payload: it is over with its head.
        events.extend(reader.then);
        assert_eq!(events, expected, "pieces of {piece}");
    }
}

#[tokio::test]
async fn a_reset_reaches_the_request_that_came_on_its_stream() {
    let numbers = Arc::new(StreamNumbers::default());
    let mut watch = FrameWatch::new(numbers.clone());
    let mut open = OpenStreams::new(Arc::default());
    let bytes = talk();
    let (one, two) = (Arc::new(Kill::default()), Arc::new(Kill::default()));
    let mut at = watch.follow(&bytes, &mut open);
    assert!(watch.waits());
    let _first = numbers.take(one.clone());
    assert!(!watch.waits());
    at += watch.follow(&bytes[at..], &mut open);
    let _second = numbers.take(two.clone());
    at += watch.follow(&bytes[at..], &mut open);
    one.killed().await;
    assert!(!two.is_killed());
    assert_eq!(at, bytes.len());
    // A head that Pingora has refused is nobody's, and reading is put off once for it.
    assert!(watch.waits() && !watch.waits());
    numbers.turn();
    assert!(!watch.waits());
}

#[test]
fn a_head_that_is_coming_in_is_told_from_everything_else() {
    let mut reader = FrameReader::new();
    let mut seen = Vec::new();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(DATA, 0, 1, b"data"));
    bytes.extend(frame(HEADERS, END_STREAM, 3, b"ab"));
    bytes.extend(frame(CONTINUATION, END_HEADERS, 3, b"cd"));
    bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, 5, b"e"));
    for byte in bytes {
        reader.follow(&[byte]);
        seen.push(reader.within_head());
    }
    let none = |count| vec![None; count];
    let some = |certain, count, which| vec![Some(Coming { which, certain }); count];
    // Before its kind is known, with the fourth byte, each frame may be a head.
    let expected = [
        none(24),
        some(false, 3, 1),
        none(6 + 4),
        some(false, 3, 2),
        some(true, 6 + 2 + 9 + 1, 2),
        none(1),
        some(false, 3, 3),
        some(true, 6, 3),
        none(1),
    ]
    .concat();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn resets_without_end_are_told_from_those_of_a_client_that_finishes_its_requests() {
    let reset = |numbers: &Arc<StreamNumbers>, stream| {
        let number = numbers.take(Arc::new(Kill::default()));
        numbers.reset(stream);
        drop(number);
    };
    let busy = Arc::new(StreamNumbers::default());
    for _ in 0..5 * RESETS {
        drop(busy.take(Arc::new(Kill::default())));
        reset(&busy, 0);
    }
    assert!(!busy.flooded.is_killed());
    let hostile = Arc::new(StreamNumbers::default());
    for _ in 0..2 * RESETS {
        reset(&hostile, 0);
    }
    hostile.flooded().await;
}
