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

/// Where clouds answer whoever asks from inside a machine, with that machine's credentials:
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
    /// HostIP and a mapped port.
    Node,
    /// SandboxIP and the container port.
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

/// The address guard.
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
mod tests {
    use super::*;

    fn guard() -> AddressGuard {
        AddressGuard::new(None, 1024..=65535, Vec::new())
    }

    fn nets(list: &[&str]) -> Option<Vec<IpNet>> {
        Some(list.iter().map(|net| net.parse().unwrap()).collect())
    }

    fn dials(guard: &AddressGuard, address: &str) -> bool {
        let address = address.parse().unwrap();
        let (node, sandbox) =
            (guard.check(address, AddressKind::Node), guard.check(address, AddressKind::Sandbox));
        assert_eq!(node, sandbox, "{address}");
        node
    }

    #[test]
    fn what_no_sandbox_can_have_is_not_dialled() {
        for address in [
            "127.0.0.1:8080",
            "127.9.9.9:8080",
            "[::1]:8080",
            "169.254.1.1:8080",
            "[fe80::1]:8080",
            "0.0.0.0:8080",
            "0.1.2.3:8080",
            "[::]:8080",
            "224.0.0.1:8080",
            "[ff02::1]:8080",
            "255.255.255.255:8080",
            "[::ffff:127.0.0.1]:8080",
            "[::ffff:169.254.169.254]:8080",
        ] {
            assert!(!dials(&guard(), address), "{address}");
        }
        for address in ["10.0.0.1:8080", "192.168.1.1:8080", "[fd00::1]:8080", "[::ffff:10.0.0.1]:8080"] {
            assert!(dials(&guard(), address), "{address}");
        }
    }

    #[test]
    fn metadata_services_are_never_dialled_even_when_listed() {
        let all = AddressGuard::new(nets(&["0.0.0.0/0", "::/0"]), 1..=65535, Vec::new());
        for ip in METADATA_ADDRESSES {
            for guard in [&guard(), &all] {
                assert!(!dials(guard, &SocketAddr::new(ip, 8080).to_string()), "{ip}");
            }
        }
        assert!(dials(&all, "169.254.169.1:8080"));
    }

    #[test]
    fn an_address_that_embeds_ipv4_is_judged_by_what_it_embeds() {
        for address in [
            "[64:ff9b::127.0.0.1]:8080",
            "[64:ff9b::169.254.169.254]:8080",
            "[64:ff9b::a9fe:101]:8080",
            "[64:ff9b:1::127.0.0.1]:8080",
            "[64:ff9b:1:abcd::0.0.0.0]:8080",
            "[2002:7f00:1::]:8080",
            "[2002:a9fe:a9fe::1]:8080",
            "[::127.0.0.1]:8080",
            "[::169.254.169.254]:8080",
            "[::ffff:0:127.0.0.1]:8080",
            "[2001:db8::5efe:127.0.0.1]:8080",
            "[2001:db8::200:5efe:169.254.169.254]:8080",
            // Teredo: by its server, and by its client, whose bits are inverted.
            "[2001:0:7f00:1:0:0:f5ff:fffe]:8080",
            "[2001:0:0a00:1:0:0:80ff:fffe]:8080",
        ] {
            assert!(!dials(&guard(), address), "{address}");
        }
        for address in [
            "[64:ff9b::10.0.0.1]:8080",
            "[2002:a00:1::1]:8080",
            "[::10.0.0.1]:8080",
            "[2001:0:0a00:1:0:0:f5ff:fffe]:8080",
            "[2001:db8::7f00:1]:8080",
        ] {
            assert!(dials(&guard(), address), "{address}");
        }
    }

    #[test]
    fn no_list_allows_a_metadata_service_or_an_own_socket_behind_a_translator() {
        let own = vec!["0.0.0.0:8082".parse().unwrap()];
        let all = AddressGuard::new(nets(&["0.0.0.0/0", "::/0"]), 1..=65535, own);
        assert!(!dials(&all, "[64:ff9b::169.254.169.254]:8080"));
        assert!(!dials(&all, "[2002:a9fe:a9fe::]:8080"));
        assert!(!dials(&all, "[64:ff9b::127.0.0.1]:8082"));
        assert!(dials(&all, "[64:ff9b::169.254.1.1]:8080"), "what is listed is meant");
        assert!(dials(&all, "[::1]:8080"));
    }

    #[test]
    fn an_address_of_this_machine_is_no_sandbox_behind_a_translator_either() {
        let guard = guard();
        guard.interfaces.store(Arc::new(HashSet::from(["10.77.0.1".parse().unwrap()])));
        let address = "[64:ff9b::10.77.0.1]:8080".parse().unwrap();
        assert!(!guard.check(address, AddressKind::Sandbox));
        assert!(guard.check(address, AddressKind::Node));
    }

    #[test]
    fn a_configured_list_allows_what_it_names_and_nothing_else() {
        let listed = AddressGuard::new(nets(&["127.0.0.0/16", "::1/128"]), 1024..=65535, Vec::new());
        for (address, good) in [
            ("127.0.0.9:8080", true),
            ("[::1]:8080", true),
            ("[::ffff:127.0.0.9]:8080", true),
            ("127.1.0.1:8080", false),
            ("10.0.0.1:8080", false),
        ] {
            assert_eq!(dials(&listed, address), good, "{address}");
        }
        assert!(!dials(&AddressGuard::new(nets(&[]), 1024..=65535, Vec::new()), "10.0.0.1:8080"));
    }

    #[test]
    fn only_mapped_ports_are_bounded() {
        let low = "10.0.0.1:80".parse().unwrap();
        assert!(!guard().check(low, AddressKind::Node));
        assert!(guard().check(low, AddressKind::Sandbox));
        let narrow = AddressGuard::new(None, 40000..=50000, Vec::new());
        assert!(narrow.check("10.0.0.1:50000".parse().unwrap(), AddressKind::Node));
        assert!(!narrow.check("10.0.0.1:50001".parse().unwrap(), AddressKind::Node));
    }

    #[test]
    fn an_address_of_this_machine_is_no_sandbox() {
        let guard = guard();
        let mine: IpAddr = "10.77.0.1".parse().unwrap();
        guard.interfaces.store(Arc::new(HashSet::from([mine])));
        let address = SocketAddr::new(mine, 8080);
        assert!(!guard.check(address, AddressKind::Sandbox));
        assert!(guard.check(address, AddressKind::Node), "another proxy's node_ip may be ours");
    }

    #[test]
    fn the_own_listening_sockets_are_not_dialled() {
        let loopback = nets(&["127.0.0.0/8", "::1/128", "10.0.0.0/8"]);
        let own =
            |socket: &str| AddressGuard::new(loopback.clone(), 1..=65535, vec![socket.parse().unwrap()]);
        assert!(!dials(&own("0.0.0.0:8081"), "127.0.0.5:8081"));
        assert!(dials(&own("0.0.0.0:8081"), "127.0.0.5:8082"));
        assert!(dials(&own("0.0.0.0:8081"), "[::1]:8081"));
        assert!(dials(&own("0.0.0.0:8081"), "10.0.0.9:8081"), "another node's proxy port");
        assert!(!dials(&own("[::]:8081"), "127.0.0.5:8081"));
        assert!(!dials(&own("127.0.0.1:8082"), "127.0.0.1:8082"));
        assert!(dials(&own("127.0.0.1:8082"), "127.0.0.2:8082"));
        assert!(!dials(&own("[::ffff:127.0.0.1]:8082"), "127.0.0.1:8082"));
    }

    #[test]
    fn no_list_allows_the_unspecified_address_which_reaches_our_own_sockets() {
        let everything = vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()];
        let own = vec!["127.0.0.1:8082".parse().unwrap(), "[::1]:8082".parse().unwrap()];
        let guard = AddressGuard::new(Some(everything), 1024..=65535, own);
        for address in
            ["0.0.0.0:8082", "[::]:8082", "[::ffff:0.0.0.0]:8082", "0.1.2.3:8082", "127.0.0.1:8082"]
        {
            let address = address.parse().unwrap();
            assert!(
                !guard.check(address, AddressKind::Node) && !guard.check(address, AddressKind::Sandbox),
                "{address}"
            );
        }
        assert!(guard.check("127.0.0.1:8083".parse().unwrap(), AddressKind::Node));
    }

    #[test]
    fn a_refusal_says_why_and_which_key_decides() {
        let own =
            AddressGuard::new(nets(&["10.0.0.0/8"]), 1024..=65535, vec!["10.0.0.5:8081".parse().unwrap()]);
        own.interfaces.store(Arc::new(HashSet::from(["10.0.0.5".parse().unwrap()])));
        let cidrs = Some("upstream.cidrs");
        for (guard, address, dial, why, key) in [
            (&guard(), "169.254.169.254:8080", AddressKind::Node, DialRefusal::Metadata, None),
            (&guard(), "0.0.0.0:8080", AddressKind::Node, DialRefusal::Unspecified, None),
            (&own, "10.0.0.5:8081", AddressKind::Node, DialRefusal::OwnSocket, None),
            (&own, "10.0.0.6:22", AddressKind::Node, DialRefusal::HostPort, Some("upstream.host_ports")),
            (&own, "192.168.0.1:8080", AddressKind::Sandbox, DialRefusal::Unlisted, cidrs),
            (&guard(), "127.0.0.1:8080", AddressKind::Node, DialRefusal::Special, cidrs),
        ] {
            let refusal = guard.refusal(address.parse().unwrap(), dial).unwrap();
            assert_eq!((refusal, refusal.key()), (why, key), "{address}");
            assert!(key.is_none_or(|key| refusal.to_string().contains(key)), "{refusal}");
        }
        assert_eq!(own.refusal("10.0.0.6:8080".parse().unwrap(), AddressKind::Node), None);
    }

    #[test]
    fn clients_connect_where_a_socket_of_this_machine_is() {
        let guard = guard();
        guard
            .interfaces
            .store(Arc::new(HashSet::from(["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()])));
        let reached =
            |ip: &str, socket: &str| guard.is_reachable_at(ip.parse().unwrap(), &[socket.parse().unwrap()]);
        assert!(reached("10.0.0.5", "0.0.0.0:8081") && reached("10.0.0.5", "[::]:8081"));
        assert!(reached("::ffff:10.0.0.5", "0.0.0.0:8081") && reached("127.0.0.1", "0.0.0.0:8081"));
        assert!(reached("fd00::5", "[::]:8081") && !reached("fd00::5", "0.0.0.0:8081"));
        assert!(!reached("10.0.0.6", "0.0.0.0:8081"), "another machine's");
        assert!(reached("10.0.0.5", "10.0.0.5:8081") && !reached("127.0.0.1", "10.0.0.5:8081"));
    }

    #[test]
    fn the_interfaces_of_this_machine_are_known() {
        assert!(interface_addresses().unwrap().contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }
}
