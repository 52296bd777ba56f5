//! One line's values between the request and the log's thread: numbers as they are, texts packed
//! into the batch's buffer.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use cube_route::Port;

use super::{Entry, UpstreamTry};
use crate::reason::Reason;
use crate::retcode::Retcode;

/// How many attempts at an upstream a line lists.
pub(super) const TRIES: usize = 4;

/// How many texts a line has.
const TEXTS: usize = 11;

/// The texts of a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Texts<'a> {
    pub(super) host: &'a [u8],
    pub(super) x_real_ip: &'a [u8],
    pub(super) x_forwarded_for: &'a [u8],
    pub(super) x_forwarded_proto: &'a [u8],
    pub(super) method: &'a [u8],
    pub(super) request_uri: &'a [u8],
    pub(super) uri: &'a [u8],
    pub(super) user_agent: &'a [u8],
    pub(super) request_id: &'a [u8],
    pub(super) instance_id: &'a [u8],
    pub(super) sandbox_id: &'a [u8],
}

/// The rest of a line.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) time: SystemTime,
    pub(super) server_addr: Option<IpAddr>,
    pub(super) protocol: Option<&'static str>,
    pub(super) status: Option<u16>,
    pub(super) body_bytes_sent: u64,
    pub(super) took: Duration,
    pub(super) connection_requests: u64,
    pub(super) upstreams: [Option<UpstreamTry>; TRIES],
    pub(super) retcode: Retcode,
    pub(super) port: Option<Port>,
    pub(super) reason: Reason,
    lengths: [u32; TEXTS],
}

impl Record {
    /// Copies `entry`: its texts to the end of `buffer`, if it stays within `limit` bytes.
    pub(super) fn pack(entry: &Entry<'_>, buffer: &mut Vec<u8>, limit: usize) -> Option<Self> {
        let id = entry.sandbox.map(|(id, _)| id.as_str().as_bytes());
        let texts = [
            entry.host,
            entry.x_real_ip,
            entry.x_forwarded_for,
            entry.x_forwarded_proto,
            entry.method,
            entry.request_uri,
            entry.uri,
            entry.user_agent,
            entry.request_id,
            entry.instance_id,
            id,
        ]
        .map(Option::unwrap_or_default);
        let size: usize = texts.iter().map(|text| text.len()).sum();
        if buffer.len().saturating_add(size) > limit {
            return None;
        }
        for text in texts {
            buffer.extend_from_slice(text);
        }
        let mut upstreams = [None; TRIES];
        for (slot, attempt) in upstreams.iter_mut().zip(entry.upstreams) {
            *slot = Some(*attempt);
        }
        if let (Some(slot), [.., last]) = (upstreams.last_mut(), entry.upstreams)
            && entry.upstreams.len() > TRIES
        {
            *slot = Some(*last);
        }
        Some(Self {
            time: entry.time,
            server_addr: entry.server_addr,
            protocol: entry.protocol,
            status: entry.status,
            body_bytes_sent: entry.body_bytes_sent,
            took: entry.took,
            connection_requests: entry.connection_requests,
            upstreams,
            retcode: entry.retcode,
            port: entry.sandbox.map(|(_, port)| port),
            reason: entry.reason,
            // `limit` is far below what a u32 holds.
            lengths: texts.map(|text| u32::try_from(text.len()).unwrap_or(u32::MAX)),
        })
    }

    /// Bytes of all texts.
    pub(super) fn size(&self) -> usize {
        self.lengths.iter().map(|length| *length as usize).sum()
    }

    /// The texts out of this record's part of the buffer.
    pub(super) fn texts<'a>(&self, packed: &'a [u8]) -> Texts<'a> {
        let mut rest = packed;
        let mut next = self.lengths.iter().map(|length| {
            let (text, after) = rest.split_at_checked(*length as usize).unwrap_or_default();
            rest = after;
            text
        });
        let mut text = || next.next().unwrap_or_default();
        Texts {
            host: text(),
            x_real_ip: text(),
            x_forwarded_for: text(),
            x_forwarded_proto: text(),
            method: text(),
            request_uri: text(),
            uri: text(),
            user_agent: text(),
            request_id: text(),
            instance_id: text(),
            sandbox_id: text(),
        }
    }
}
