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
    let own = |socket: &str| AddressGuard::new(loopback.clone(), 1..=65535, vec![socket.parse().unwrap()]);
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
    for address in ["0.0.0.0:8082", "[::]:8082", "[::ffff:0.0.0.0]:8082", "0.1.2.3:8082", "127.0.0.1:8082"] {
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
    let own = AddressGuard::new(nets(&["10.0.0.0/8"]), 1024..=65535, vec!["10.0.0.5:8081".parse().unwrap()]);
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
