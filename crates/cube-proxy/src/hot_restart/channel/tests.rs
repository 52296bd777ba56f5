use std::io::{Read, Write};
use std::os::fd::AsFd;

use super::*;

#[tokio::test]
async fn messages_arrive_whole_and_in_order_with_their_descriptors() {
    let (one, two) = UnixStream::pair().unwrap();
    let (one, mut two) = (Channel::new(one), Channel::new(two));
    let (mut reader, writer) = std::io::pipe().unwrap();
    let sender = one.sender();
    let sending = tokio::spawn(async move {
        let long = "x".repeat(3 * PIECE);
        let text = long.clone();
        sender.send(&Message::Failed { text }).await.unwrap();
        let sockets = Message::Sockets { pid: 1, sockets: vec![] };
        sender.send_with(&sockets, &[writer.as_fd(), writer.as_fd()]).await.unwrap();
        long
    });
    let Some(Message::Failed { text }) = two.receive().await.unwrap() else { panic!("a long message") };
    assert_eq!(text, sending.await.unwrap());
    assert!(matches!(two.receive().await.unwrap(), Some(Message::Sockets { pid: 1, .. })));
    let mut descriptors = two.take_descriptors();
    assert_eq!(descriptors.len(), 2);
    for descriptor in &descriptors {
        let flags = rustix::io::fcntl_getfd(descriptor).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
    std::fs::File::from(descriptors.pop().unwrap()).write_all(b"through").unwrap();
    drop(descriptors);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "through", "and no copy of it is left open");
    drop(one);
    assert!(two.receive().await.unwrap().is_none());
}

#[tokio::test]
async fn messages_of_two_senders_do_not_mix() {
    let (one, two) = UnixStream::pair().unwrap();
    let (one, mut two) = (Channel::new(one), Channel::new(two));
    let sending: Vec<_> = ["a", "b"]
        .map(|letter| {
            let sender = one.sender();
            // More than the socket holds, so that each waits in the middle.
            let text = letter.repeat(20 * PIECE);
            tokio::spawn(async move { sender.send(&Message::Failed { text }).await.unwrap() })
        })
        .into_iter()
        .collect();
    for _ in 0..2 {
        let Some(Message::Failed { text }) = two.receive().await.unwrap() else { panic!("a message") };
        assert!(
            text.len() == 20 * PIECE
                && (text.trim_matches('a').is_empty() || text.trim_matches('b').is_empty())
        );
    }
    for sent in sending {
        sent.await.unwrap();
    }
}

#[test]
fn what_an_older_or_a_newer_version_says_is_understood_as_far_as_it_goes() {
    let read = |text: &str| serde_json::from_str::<Message>(text).unwrap();
    assert!(matches!(read(r#"{"say":"welcome"}"#), Message::Welcome { reports: false }));
    assert!(matches!(read(r#"{"say":"drainer","protocol":1}"#), Message::Drainer { standing: None, .. }));
    assert!(matches!(read(r#"{"say":"activity","rows":[["a",5]]}"#), Message::Activity { offset: None, .. }));
    let known = read(r#"{"say":"known","listed":7,"drainers":2}"#);
    assert!(matches!(known, Message::Known { listings, drainers: 2, ledger: None } if listings.listed == 7));
    assert!(matches!(read(r#"{"say":"something new","x":[1]}"#), Message::Unknown));
    assert!(matches!(read(r#"{"say":"settled","why":"new"}"#), Message::Settled));
    let forwarded = r#"{"say":"errand","number":1,"method":"GET","target":"/x","body":""}"#;
    assert_eq!(serde_json::to_string(&read(forwarded)).unwrap(), forwarded);
}

#[test]
fn what_a_process_knows_reads_as_it_was_written() {
    let registry = prometheus::Registry::new();
    let seconds = prometheus::HistogramOpts::new("cube_proxy_seconds", "x").buckets(vec![0.000_025, 0.1]);
    let seconds = prometheus::Histogram::with_opts(seconds).unwrap();
    registry.register(Box::new(seconds.clone())).unwrap();
    seconds.observe(0.07);
    let counted = cube_edge::Counted::of(&registry.gather());
    let standing = cube_edge::ProcessStanding { pid: 7, started: u64::MAX, ..Default::default() };
    let ledger = cube_edge::Ledger { service_started: -3, gone: counted.clone(), ..Default::default() };
    let listings = cube_lifecycle::ListingCursors { listed: 5, offset: Some(-4), cursors: vec![(1, 2)] };
    let known =
        Message::Known { listings: listings.clone(), drainers: 1, ledger: Some(Box::new(ledger.clone())) };
    let text = serde_json::to_string(&known).unwrap();
    let Message::Known { listings: l, ledger: Some(read), .. } = serde_json::from_str(&text).unwrap() else {
        panic!("{text}")
    };
    assert_eq!((l, *read), (listings, ledger));
    let text =
        serde_json::to_string(&Message::Report { standing: standing.clone(), counted: counted.clone() });
    let Message::Report { standing: s, counted: c } = serde_json::from_str(&text.unwrap()).unwrap() else {
        panic!("a report")
    };
    assert_eq!((s, c), (standing, counted));
}

#[tokio::test]
async fn what_is_no_message_is_an_error() {
    for bytes in [&b"\0\0\0\x02{}"[..], b"\xff\xff\xff\xff", b"\0\0\0\x04null"] {
        let (one, two) = UnixStream::pair().unwrap();
        one.try_write(bytes).unwrap();
        assert!(Channel::new(two).receive().await.is_err(), "{bytes:?}");
    }
}
