//! The ticket of a preview link: `v1.<expiry>.<port>.<mac>` (previews.md, "The ticket").

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;

use crate::{Port, SandboxId};

/// The fewest bytes of a token that makes tickets: a ticket lets its holder guess its key offline.
pub const MIN_TOKEN: usize = 16;

/// The most bytes of a ticket.
const MAX_TICKET: usize = 128;
/// The most digits of an expiry.
const MAX_DIGITS: usize = 10;
/// Bytes of the mac, and characters of it as a ticket writes it.
const MAC: usize = 32;
const MAC_TEXT: usize = 43;
/// How far two clocks may differ, in seconds.
const CLOCK_SKEW: u64 = 60;

/// Which ports of its sandbox a ticket opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketPort {
    /// All but envd's.
    Any,
    /// This one.
    One(Port),
}

impl TicketPort {
    /// Whether a ticket for these ports opens `port`. Envd runs commands, and its clients can send headers:
    /// no ticket opens it.
    #[must_use]
    pub fn opens(self, port: Port) -> bool {
        port != Port::ENVD && (self == TicketPort::Any || self == TicketPort::One(port))
    }
}

impl fmt::Display for TicketPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TicketPort::Any => f.write_str("any"),
            TicketPort::One(port) => port.fmt(f),
        }
    }
}

/// A ticket of the right shape; whether it opens anything is for [`TicketCheck::judge`] to say.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    expiry: u64,
    port: TicketPort,
    mac: [u8; MAC],
}

impl Ticket {
    /// Reads a ticket as it was presented; none where its shape is wrong.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= MAX_TICKET)?;
        let mut parts = text.strip_prefix("v1.")?.split('.');
        let (Some(expiry), Some(port), Some(mac), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return None;
        };
        let plain = (1..=MAX_DIGITS).contains(&expiry.len())
            && !expiry.starts_with('0')
            && expiry.bytes().all(|b| b.is_ascii_digit());
        let expiry = expiry.parse().ok().filter(|_| plain)?;
        let port = match port {
            "any" => TicketPort::Any,
            port => TicketPort::One(Port::parse(port).ok()?),
        };
        // The decoder refuses padding, other alphabets, and unused bits that are not zero.
        let mac = URL_SAFE_NO_PAD.decode(mac).ok().filter(|_| mac.len() == MAC_TEXT)?;
        Some(Self { expiry, port, mac: mac.try_into().ok()? })
    }

    /// Writes the ticket that `token` makes for these ports of `id`, right until `expiry` (Unix seconds).
    #[must_use]
    pub fn make(token: &[u8], id: &SandboxId, port: TicketPort, expiry: u64) -> String {
        let mac = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, token), &signed(id, port, expiry));
        format!("v1.{expiry}.{port}.{}", URL_SAFE_NO_PAD.encode(mac))
    }
}

/// What the mac is over.
fn signed(id: &SandboxId, port: TicketPort, expiry: u64) -> Vec<u8> {
    format!("cube-preview-v1\n{id}\n{port}\n{expiry}\n").into_bytes()
}

/// What a ticket comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketVerdict {
    /// It opens the sandbox until then (Unix seconds).
    Right(u64),
    /// It did once, not longer ago than tickets may live.
    Expired,
    /// It opens nothing.
    Wrong,
}

/// What a request's tickets are judged by.
#[derive(Debug, Clone, Copy)]
pub struct TicketCheck<'a> {
    /// The sandbox that the request names.
    pub id: &'a SandboxId,
    /// The port that the request names.
    pub port: Port,
    /// When the request's head was read, Unix seconds.
    pub now: u64,
    /// `previews.max_ttl`, in seconds.
    pub max_ttl: u64,
    /// The token of the sandbox's record; none where there is no such sandbox, or it has none.
    pub token: Option<&'a [u8]>,
    /// The key that stands in where no token makes tickets, so that this takes as long.
    pub stand_in: &'a [u8; 32],
}

impl TicketCheck<'_> {
    /// Judges one ticket: its shape, its mac in constant time, its port, its expiry, in this order.
    #[must_use]
    pub fn judge(&self, presented: &[u8]) -> TicketVerdict {
        let Some(ticket) = Ticket::parse(presented) else { return TicketVerdict::Wrong };
        let token = self.token.filter(|token| token.len() >= MIN_TOKEN);
        let key = hmac::Key::new(hmac::HMAC_SHA256, token.unwrap_or(self.stand_in));
        let genuine = hmac::verify(&key, &signed(self.id, ticket.port, ticket.expiry), &ticket.mac).is_ok();
        if !genuine || token.is_none() || !ticket.port.opens(self.port) {
            return TicketVerdict::Wrong;
        }
        match ticket.expiry.checked_sub(self.now) {
            Some(left) if left > self.max_ttl.saturating_add(CLOCK_SKEW) => TicketVerdict::Wrong,
            None | Some(0) if self.now - ticket.expiry > self.max_ttl => TicketVerdict::Wrong,
            None | Some(0) => TicketVerdict::Expired,
            Some(_) => TicketVerdict::Right(ticket.expiry),
        }
    }
}

#[cfg(test)]
mod tests;
