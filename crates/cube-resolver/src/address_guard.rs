//! What may never be dialled, whatever a record says (metadata.md "Route").

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use ipnet::IpNet;
use nix::sys::socket::SockaddrStorage;

/// Where clouds hand a machine's credentials to whoever asks from inside of it:
/// metadata services, credential endpoints of container services, and the host agents beside them.
/// Never dialled, not even when a configured list names them.
const METADATA_ADDRESSES: [IpAddr; 15] = [
    // AWS, Azure, Google, DigitalOcean, Hetzner, OpenStack, Oracle and most others.
    v4(169, 254, 169, 254),
    // AWS over IPv6.
    v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254]),
    // AWS ECS: credentials of a task.
    v4(169, 254, 170, 2),
    // AWS EKS: credentials of a pod.
    v4(169, 254, 170, 23),
    v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23]),
    // Google over IPv6.
    v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254]),
    // Azure: the host agent.
    v4(168, 63, 129, 16),
    // Alibaba.
    v4(100, 100, 100, 200),
    // Tencent.
    v4(169, 254, 0, 23),
    // Oracle, classic; and over IPv6.
    v4(192, 0, 0, 192),
    v6([0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe]),
    // Scaleway.
    v4(169, 254, 42, 42),
    v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42]),
    // Akamai (Linode) over IPv6.
    v6([0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1]),
    // OpenStack over IPv6.
    v6([0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe]),
];

/// How often the addresses of the local interfaces are read again.
const REFRESH: Duration = Duration::from_secs(10);

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

const fn v6(s: [u16; 8]) -> IpAddr {
    let [a, b, c, d, e, f, g, h] = s;
    IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h))
}

/// Which field of the record an address comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressKind {
    /// The node: HostIP, with a mapped port.
    Node,
    /// The sandbox itself: SandboxIP, with the container port.
    Sandbox,
}

/// Why the guard refuses an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialRefusal {
    /// Where clouds give credentials away.
    Metadata,
    /// `0.0.0.0/8` or `::`.
    Unspecified,
    /// A socket that this proxy itself listens on.
    OwnSocket,
    /// A port outside `upstream.host_ports`.
    HostPort,
    /// Outside of the networks of `upstream.cidrs`.
    Unlisted,
    /// An address of this machine as SandboxIP, without a list.
    Interface,
    /// Loopback, link-local, multicast or broadcast, without a list.
    Special,
}

impl DialRefusal {
    /// The key of the configuration that decides; `None`: none allows it.
    #[must_use]
    pub fn key(self) -> Option<&'static str> {
        match self {
            DialRefusal::Metadata | DialRefusal::Unspecified | DialRefusal::OwnSocket => None,
            DialRefusal::HostPort => Some("upstream.host_ports"),
            DialRefusal::Unlisted | DialRefusal::Interface | DialRefusal::Special => Some("upstream.cidrs"),
        }
    }
}

impl fmt::Display for DialRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DialRefusal::Metadata => "a cloud metadata address, which no key allows",
            DialRefusal::Unspecified => "it stands for this machine itself, which no key allows",
            DialRefusal::OwnSocket => "this proxy listens there itself, which no key allows",
            DialRefusal::HostPort => "the port is outside upstream.host_ports",
            DialRefusal::Unlisted => "it is in no network of upstream.cidrs",
            DialRefusal::Interface => {
                "an address of this machine is no sandbox while upstream.cidrs is null; a list there may allow it"
            }
            DialRefusal::Special => {
                "loopback, link-local and multicast are refused while upstream.cidrs is null; a list there may \
                 allow it"
            }
        })
    }
}

/// Decides which addresses may be dialled (metadata.md "Route").
#[derive(Debug)]
pub struct AddressGuard {
    cidrs: Option<Vec<IpNet>>,
    host_ports: RangeInclusive<u16>,
    own_sockets: Vec<SocketAddr>,
    interfaces: ArcSwap<HashSet<IpAddr>>,
}

impl AddressGuard {
    /// A guard with `upstream.cidrs` (`None`: the built-in rules), `upstream.host_ports`, and the
    /// sockets this proxy listens on. Reads the addresses of the local interfaces.
    #[must_use]
    pub fn new(
        cidrs: Option<Vec<IpNet>>,
        host_ports: RangeInclusive<u16>,
        own_sockets: Vec<SocketAddr>,
    ) -> Self {
        let own_sockets = own_sockets.into_iter().map(canonical).collect();
        let guard = Self { cidrs, host_ports, own_sockets, interfaces: ArcSwap::default() };
        guard.refresh();
        guard
    }

    /// Whether it decides by the same configuration as `other`.
    #[must_use]
    pub fn same_rules(&self, other: &Self) -> bool {
        self.cidrs == other.cidrs
            && self.host_ports == other.host_ports
            && self.own_sockets == other.own_sockets
    }

    /// Reads the addresses of the local interfaces again every 10 s, until nobody else holds the
    /// guard. To be spawned.
    pub async fn run(self: Arc<Self>) {
        let mut every = tokio::time::interval(REFRESH);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        every.tick().await;
        let guard = Arc::downgrade(&self);
        drop(self);
        loop {
            every.tick().await;
            let Some(guard) = guard.upgrade() else { return };
            // A node has an interface a sandbox: the list may take the kernel milliseconds.
            if tokio::task::spawn_blocking(move || guard.refresh()).await.is_err() {
                return;
            }
        }
    }

    /// Reads the addresses of the local interfaces; those known stay when that fails.
    pub fn refresh(&self) {
        match interface_addresses() {
            Ok(addresses) if addresses != **self.interfaces.load() => {
                self.interfaces.store(Arc::new(addresses));
            }
            Ok(_) => {}
            Err(error) => tracing::warn!("cannot read the addresses of the local interfaces: {error}"),
        }
    }

    /// Whether `address` may be dialled.
    #[must_use]
    pub fn check(&self, address: SocketAddr, dial: AddressKind) -> bool {
        self.refusal(address, dial).is_none()
    }

    /// Why `address` may not be dialled; `None`: it may.
    #[must_use]
    pub fn refusal(&self, address: SocketAddr, dial: AddressKind) -> Option<DialRefusal> {
        let address = canonical(address);
        let ip = address.ip();
        let embedded = embedded_ipv4(ip);
        let reached = || embedded.into_iter().flatten().chain([ip]);
        if reached().any(|ip| METADATA_ADDRESSES.contains(&ip)) {
            return Some(DialRefusal::Metadata);
        }
        // It reaches this host's loopback, our own sockets among it, so no list allows it.
        if reached().any(is_this_network) {
            return Some(DialRefusal::Unspecified);
        }
        if reached().any(|ip| self.is_own_socket(SocketAddr::new(ip, address.port()))) {
            return Some(DialRefusal::OwnSocket);
        }
        if dial == AddressKind::Node && !self.host_ports.contains(&address.port()) {
            return Some(DialRefusal::HostPort);
        }
        match &self.cidrs {
            // Who lists a translator's prefix means the addresses in it.
            Some(allowed) => (!allowed.iter().any(|net| net.contains(&ip))).then_some(DialRefusal::Unlisted),
            None if dial == AddressKind::Sandbox
                && reached().any(|ip| self.interfaces.load().contains(&ip)) =>
            {
                Some(DialRefusal::Interface)
            }
            None => reached().any(is_never_a_sandbox).then_some(DialRefusal::Special),
        }
    }

    /// Whether a client can connect to one of `sockets` of this machine at the address `ip`.
    #[must_use]
    pub fn is_reachable_at(&self, ip: IpAddr, sockets: &[SocketAddr]) -> bool {
        let ip = ip.to_canonical();
        sockets.iter().map(|socket| canonical(*socket).ip()).any(|bound| match bound {
            IpAddr::V4(all) if all.is_unspecified() => ip.is_ipv4() && self.is_here(ip),
            IpAddr::V6(all) if all.is_unspecified() => self.is_here(ip),
            bound => bound == ip,
        })
    }

    /// A socket bound to all addresses is reached by every address of this machine.
    fn is_own_socket(&self, address: SocketAddr) -> bool {
        self.own_sockets.iter().any(|own| {
            let all = match own.ip() {
                IpAddr::V4(bound) => bound.is_unspecified() && address.is_ipv4(),
                // Bound to `::` means IPv4 too, unless the system says otherwise.
                IpAddr::V6(bound) => bound.is_unspecified(),
            };
            own.port() == address.port() && (own.ip() == address.ip() || all && self.is_here(address.ip()))
        })
    }

    fn is_here(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || is_this_network(ip) || self.interfaces.load().contains(&ip)
    }
}

/// Whether no sandbox and no other node can have this address.
fn is_never_a_sandbox(ip: IpAddr) -> bool {
    let special = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    special || ip.is_loopback() || ip.is_multicast() || is_this_network(ip)
}

/// `0.0.0.0/8` ("this network", which Linux takes for this machine) and `::`.
fn is_this_network(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets().first() == Some(&0),
        IpAddr::V6(ip) => ip.is_unspecified(),
    }
}

/// The IPv4 addresses that a translator or a tunnel on the way would deliver to: a packet to such
/// an IPv6 address may end at the IPv4 address in it. Mapped addresses are unmapped before.
fn embedded_ipv4(ip: IpAddr) -> [Option<IpAddr>; 2] {
    let IpAddr::V6(ip) = ip else { return [None, None] };
    let v4 =
        |high: u16, low: u16| Some(IpAddr::V4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))));
    match ip.segments() {
        // Loopback and unspecified are no IPv4-compatible addresses.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => [None, None],
        // IPv4-compatible (RFC 4291, 2.5.5.1); NAT64, well-known (RFC 6052) and local-use (RFC 8215).
        [0, 0, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 1, _, _, _, high, low] => [v4(high, low), None],
        // Translated by SIIT (RFC 2765); ISATAP (RFC 5214), below any prefix.
        [0, 0, 0, 0, 0xffff, 0, high, low] | [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => {
            [v4(high, low), None]
        }
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => [v4(high, low), None],
        // Teredo (RFC 4380): the server, and the client with its bits inverted.
        [0x2001, 0, server_high, server_low, _, _, high, low] => {
            [v4(server_high, server_low), v4(!high, !low)]
        }
        _ => [None, None],
    }
}

/// An IPv4-mapped IPv6 address is the IPv4 address in it.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The addresses of the local interfaces, with the broadcast addresses of their networks.
fn interface_addresses() -> io::Result<HashSet<IpAddr>> {
    let ip = |address: SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    };
    let interfaces = nix::ifaddrs::getifaddrs().map_err(io::Error::from)?;
    let both = interfaces.flat_map(|interface| [interface.address, interface.broadcast]);
    Ok(both.flatten().filter_map(ip).map(|ip| ip.to_canonical()).collect())
}

#[cfg(test)]
mod tests;
