//! As which node a request that is only looked at is judged.

use std::net::{IpAddr, Ipv4Addr};

use cube_metadata::FieldValue;
use cube_resolver::RouteEntry;

use super::explain_query::ExplainQuery;
use crate::settings::Settings;

/// As what node a request is judged. Without `node_ip` that is the local address of its connection,
/// which a query does not have: it is assumed, and said.
pub(super) struct SeenFrom {
    pub(super) node_ip: IpAddr,
    /// The address of this machine that the client is taken to connect to.
    pub(super) assumed: Option<IpAddr>,
    /// Whether another one would make the route another.
    matters: bool,
}

/// No connection's local address, so that every sandbox is another node's.
pub(super) const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl SeenFrom {
    /// `node_ip` where it is set. Else the address in the URL, where clients reach this proxy there;
    /// else HostIP, where they do: a client that comes to the node of the sandbox. Where HostIP is no
    /// address of this machine, every request goes to another node, and nothing is assumed.
    pub(super) fn of(settings: &Settings, query: &ExplainQuery, entry: &RouteEntry) -> Self {
        if let Some(node_ip) = settings.node_ip {
            return Self { node_ip, assumed: None, matters: false };
        }
        let reached = |ip: &IpAddr| settings.guard.is_reachable_at(*ip, &settings.listens);
        let host_ip = match entry.record.host_ip {
            FieldValue::Value(ip) => Some(ip).filter(reached),
            FieldValue::Missing | FieldValue::Malformed => None,
        };
        let assumed = query.connects_to.filter(reached).or(host_ip).filter(|_| host_ip.is_some());
        Self {
            node_ip: assumed.unwrap_or(ELSEWHERE),
            assumed,
            matters: assumed.is_some() && assumed == host_ip,
        }
    }

    /// The assumption in words. `otherwise`: what a client gets that connects to another address.
    pub(super) fn says(&self, otherwise: impl FnOnce() -> String) -> String {
        match self.assumed {
            Some(address) if self.matters => format!(
                " (node_ip is null; assumed: the client connects to {address}. Through another address of this \
                 machine it is {})",
                otherwise()
            ),
            Some(address) => {
                format!(" (node_ip is null; the client connects to {address}, which is not HostIP)")
            }
            None => String::new(),
        }
    }
}
