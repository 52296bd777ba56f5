//! `MaskRequestHost` of a record: the template of the Host that a sandbox sees.

use std::net::Ipv6Addr;

use cube_route::Port;

const PORT_PLACEHOLDER: &str = "${PORT}";

/// The Host a sandbox sees (routing.md): `host[:port]`, in which each `${PORT}` stands for the
/// container port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostMask(Box<str>);

impl HostMask {
    /// `None` when what comes out of the template is not `host[:port]`.
    #[must_use]
    pub fn parse(template: &str) -> Option<Self> {
        // The longest port is the hardest to fit.
        is_host_and_port(&template.replace(PORT_PLACEHOLDER, "65535")).then(|| Self(template.into()))
    }

    /// The Host for requests to `container`.
    #[must_use]
    pub fn render(&self, container: Port) -> String {
        self.0.replace(PORT_PLACEHOLDER, &container.to_string())
    }
}

fn is_host_and_port(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let good_host = match bracketed {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => {
            let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
            !host.is_empty() && host.len() <= 253 && host.bytes().all(good)
        }
    };
    good_host && port.is_none_or(|port| Port::parse(port).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_takes_the_container_port() {
        let port = Port::new(8080).unwrap();
        for (template, host) in [
            ("localhost:${PORT}", "localhost:8080"),
            ("x-${PORT}:${PORT}", "x-8080:8080"),
            ("${PORT}.app.internal", "8080.app.internal"),
            ("app.internal", "app.internal"),
            ("[::1]", "[::1]"),
            ("[fd00::1]:${PORT}", "[fd00::1]:8080"),
        ] {
            assert_eq!(HostMask::parse(template).unwrap().render(port), host);
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for bad in [
            "",
            ":80",
            "a:",
            "a:b",
            "a:0",
            "a:65536",
            "a:1${PORT}",
            "a b",
            "a/b",
            "a@b",
            "a\r\nX: y",
            "::1",
            "[::1",
            "[::1]x",
            "[fe80::1%eth0]",
            "${HOST}",
            "é",
        ] {
            assert_eq!(HostMask::parse(bad), None, "{bad:?}");
        }
    }
}
