use super::*;

const DAY: u64 = 86_400;
const TOKEN: &str = "preview-vector-token-one";
const ID: &str = "7c8fbcd45ffe450fb8f7fb223ad45507";

/// The vectors of previews.md.
const VECTORS: [(&str, &str, &str); 3] = [
    (TOKEN, ID, "v1.1900000000.3000.aWo1T2nd4anfmNmKhh-M3YyhNOivbgCYmTV3PREc9BI"),
    (TOKEN, ID, "v1.1900000000.any.buXJn9eLlPZyhp7vQyUXaJTRW2MZgaDMrcy4MfTfcT8"),
    ("preview-vector-token-two-ü", "app-1", "v1.2000000000.8080.m8NWrKAWekRu_GxXdYj6S1XbEShZAtJwXiCAKmEccIM"),
];

fn id(text: &str) -> SandboxId {
    SandboxId::parse(text).unwrap()
}

fn port(number: u16) -> Port {
    Port::new(number).unwrap()
}

/// Judges `ticket` for port 3000 of the first vector's sandbox.
fn judge(ticket: &str, token: Option<&str>, number: u16, now: u64) -> TicketVerdict {
    TicketCheck {
        id: &id(ID),
        port: port(number),
        now,
        max_ttl: DAY,
        token: token.map(str::as_bytes),
        stand_in: &[7; 32],
    }
    .judge(ticket.as_bytes())
}

#[test]
fn the_vectors_hold_both_ways() {
    for (token, sandbox, ticket) in VECTORS {
        let read = Ticket::parse(ticket.as_bytes()).unwrap();
        assert_eq!(Ticket::make(token.as_bytes(), &id(sandbox), read.port, read.expiry), ticket);
        let check = TicketCheck {
            id: &id(sandbox),
            port: match read.port {
                TicketPort::Any => port(3000),
                TicketPort::One(port) => port,
            },
            now: read.expiry - 10,
            max_ttl: DAY,
            token: Some(token.as_bytes()),
            stand_in: &[7; 32],
        };
        assert_eq!(check.judge(ticket.as_bytes()), TicketVerdict::Right(read.expiry));
    }
}

#[test]
fn anything_else_about_the_shape_is_wrong() {
    let good = VECTORS[0].2;
    let mac = good.rsplit('.').next().unwrap();
    assert!(Ticket::parse(good.as_bytes()).is_some());
    for bad in [
        String::new(),
        "v1".into(),
        format!("v2.1900000000.3000.{mac}"),
        format!("V1.1900000000.3000.{mac}"),
        format!("v1..3000.{mac}"),
        format!("v1.01900000000.3000.{mac}"),
        format!("v1.0.3000.{mac}"),
        format!("v1.+1.3000.{mac}"),
        format!("v1.19000000000.3000.{mac}"),
        format!("v1.1900000000.03000.{mac}"),
        format!("v1.1900000000.0.{mac}"),
        format!("v1.1900000000.ANY.{mac}"),
        format!("v1.1900000000..{mac}"),
        format!("v1.1900000000.3000.{mac}="),
        format!("v1.1900000000.3000.{mac}.x"),
        format!("v1.1900000000.3000.{}", &mac[..42]),
        format!("v1.1900000000.3000.{}", mac.replace('-', "+")),
        format!("v1.1900000000.3000.{}", mac.replace('I', "J")), // an unused bit is set
        good.replace('.', "%2E"),
        format!(" {good}"),
        format!("{good} "),
        format!("\"{good}\""),
        "v1.1900000000.3000.".to_owned() + &"a".repeat(128),
    ] {
        assert!(Ticket::parse(bad.as_bytes()).is_none(), "{bad}");
    }
    assert!(Ticket::parse(b"v1.1900000000.3000.\xff").is_none());
}

#[test]
fn a_ticket_is_for_its_sandbox_its_port_and_its_token() {
    let (now, one, any) = (1_900_000_000 - 60, VECTORS[0].2, VECTORS[1].2);
    assert_eq!(judge(one, Some(TOKEN), 3000, now), TicketVerdict::Right(1_900_000_000));
    assert_eq!(judge(any, Some(TOKEN), 8080, now), TicketVerdict::Right(1_900_000_000));
    for (ticket, token, number) in [
        (one, Some(TOKEN), 3001),
        (one, Some("preview-vector-token-two"), 3000),
        (one, None, 3000),
        (any, Some(TOKEN), 49983),
        (VECTORS[2].2, Some(TOKEN), 8080),
    ] {
        assert_eq!(judge(ticket, token, number, now), TicketVerdict::Wrong, "{ticket} {token:?} {number}");
    }
}

/// Neither the port that it names nor `any` opens envd.
#[test]
fn no_ticket_opens_envd() {
    let ticket = Ticket::make(TOKEN.as_bytes(), &id(ID), TicketPort::One(Port::ENVD), 1_000_100);
    assert_eq!(judge(&ticket, Some(TOKEN), 49983, 1_000_000), TicketVerdict::Wrong);
}

#[test]
fn a_short_token_makes_no_ticket() {
    for (token, verdict) in [
        ("123456789012345", TicketVerdict::Wrong),
        ("1234567890123456", TicketVerdict::Right(1_000_100)),
        ("", TicketVerdict::Wrong),
    ] {
        let ticket = Ticket::make(token.as_bytes(), &id(ID), TicketPort::Any, 1_000_100);
        assert_eq!(judge(&ticket, Some(token), 80, 1_000_000), verdict, "{token}");
    }
    // What stands in for a token opens nothing either.
    let ticket = Ticket::make(&[7; 32], &id(ID), TicketPort::Any, 1_000_100);
    assert_eq!(judge(&ticket, None, 80, 1_000_000), TicketVerdict::Wrong);
}

#[test]
fn a_ticket_is_right_before_its_expiry_and_told_apart_for_as_long_as_it_may_live() {
    let now = 10_000_000;
    for (expiry, verdict) in [
        (now + 1, TicketVerdict::Right(now + 1)),
        (now + DAY + 60, TicketVerdict::Right(now + DAY + 60)),
        (now + DAY + 61, TicketVerdict::Wrong),
        (9_999_999_999, TicketVerdict::Wrong),
        (now, TicketVerdict::Expired),
        (now - DAY, TicketVerdict::Expired),
        (now - DAY - 1, TicketVerdict::Wrong),
        (1, TicketVerdict::Wrong),
    ] {
        let ticket = Ticket::make(TOKEN.as_bytes(), &id(ID), TicketPort::Any, expiry);
        assert_eq!(judge(&ticket, Some(TOKEN), 80, now), verdict, "{expiry}");
        // For another port, and with another key, it is never told to have expired.
        let ticket = Ticket::make(TOKEN.as_bytes(), &id(ID), TicketPort::One(port(81)), expiry);
        assert_eq!(judge(&ticket, Some(TOKEN), 80, now), TicketVerdict::Wrong, "{expiry}");
    }
}
