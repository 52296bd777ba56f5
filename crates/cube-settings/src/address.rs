//! Addresses, networks and ranges of ports, as the configuration file writes them.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use ipnet::IpNet;
crate::written_as_text! {
    /// A network such as `10.0.0.0/8`, or a single address.
    pub struct Network for IpNet { read: Network::parse, write: ToString::to_string }
}

impl Network {
    /// The network that `text` writes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<IpNet, String> {
        let network =
            text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).map_err(|_| {
                format!("{text:?} is no network such as 10.0.0.0/8, fd00::/8 or a single address")
            })?;
        canonical(network).ok_or_else(|| {
            format!("{text:?} is no network: an IPv4 address in IPv6 has 96 bits before it; write it as IPv4")
        })
    }
}

/// The network that addresses are looked for in, which are IPv4 ones where IPv4 is mapped into IPv6:
/// `::ffff:10.0.0.0/104` is `10.0.0.0/8`. `None` for an IPv4-mapped address whose prefix ends before
/// the IPv4 part.
fn canonical(network: IpNet) -> Option<IpNet> {
    let mapped = match network {
        IpNet::V6(v6) => v6.addr().to_ipv4_mapped().map(|v4| (v4, v6.prefix_len())),
        IpNet::V4(_) => None,
    };
    let network = match mapped {
        Some((v4, length)) => IpNet::new(v4.into(), length.checked_sub(96)?).ok()?,
        None => network,
    };
    Some(network.trunc())
}

crate::written_as_text! {
    /// An address to listen on, `0.0.0.0:8081` or `[::]:8081`.
    pub struct ListenAddress for SocketAddr {
        read: |text| match text.parse::<SocketAddr>() {
            Ok(address) if address.port() > 0 => Ok(address),
            Ok(_) => Err(format!("{text:?}: port 0 is nowhere to connect to")),
            Err(_) => Err(format!("{text:?} is no address with a port such as 0.0.0.0:8081 or [::]:8081")),
        },
        write: ToString::to_string,
    }
}

crate::written_as_text! {
    /// An address without a port; IPv4 mapped into IPv6 is IPv4.
    pub struct Address for IpAddr {
        read: |text| {
            let address = text.parse::<IpAddr>().map_err(|_| format!("{text:?} is no address"))?;
            Ok(address.to_canonical())
        },
        write: ToString::to_string,
    }
}

crate::written_as_text! {
    /// A range of ports, `1024-65535`, or one port.
    pub struct PortRange for RangeInclusive<u16> {
        read: |text| {
            PortRange::parse(text).ok_or_else(|| format!("{text:?} is no range of ports such as 1024-65535"))
        },
        write: |range| match (range.start(), range.end()) {
            (low, high) if low == high => low.to_string(),
            (low, high) => format!("{low}-{high}"),
        },
    }
}

impl PortRange {
    fn parse(text: &str) -> Option<RangeInclusive<u16>> {
        let (low, high) = text.split_once('-').unwrap_or((text, text));
        let port = |digits: &str| {
            let digits = digits.trim();
            let plain = !digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit());
            if plain { digits.parse::<u16>().ok() } else { None }
        };
        let (low, high) = (port(low)?, port(high)?);
        (low <= high).then_some(low..=high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileForm;

    #[test]
    fn a_range_is_two_ports_or_one() {
        let read = |text: &str| serde_yaml::from_str::<PortRange>(text).map(PortRange::read).ok();
        assert_eq!(read("1024-65535"), Some(1024..=65535));
        assert_eq!(read("\"8080\""), Some(8080..=8080));
        for bad in ["0-10", "1024-65536", "9-8", "a-b", "-", "+1-2", "01-2", "\"\""] {
            assert_eq!(read(bad), None, "{bad}");
        }
        for text in ["1024-65535", "8080"] {
            let range = serde_yaml::from_str::<PortRange>(&format!("{text:?}")).unwrap();
            assert_eq!(serde_yaml::to_string(&range).unwrap().trim().trim_matches('\''), text);
        }
    }

    #[test]
    fn a_place_to_listen_on_has_a_port() {
        let read = |text: &str| {
            serde_yaml::from_str::<ListenAddress>(text)
                .map(ListenAddress::read)
                .map_err(|error| error.to_string())
        };
        assert_eq!(read("\"[::1]:80\""), Ok("[::1]:80".parse().unwrap()));
        assert!(read("\"127.0.0.1:0\"").unwrap_err().contains("port 0 is nowhere"));
        assert!(read("127.0.0.1").unwrap_err().contains("no address with a port"));
        let address = serde_yaml::from_str::<Address>("\"::ffff:10.0.0.1\"").unwrap();
        assert_eq!(address.read(), IpAddr::from([10, 0, 0, 1]));
    }

    #[test]
    fn a_network_of_ipv4_in_ipv6_is_the_one_of_ipv4() {
        assert_eq!(Network::parse("::ffff:10.1.2.3/104"), Network::parse("10.0.0.0/8"));
        assert_eq!(Network::parse("10.0.0.1"), Network::parse("10.0.0.1/32"));
        assert!(Network::parse("::ffff:10.0.0.0/90").unwrap_err().contains("write it as IPv4"));
        assert!(Network::parse("everywhere").unwrap_err().contains("is no network such as"));
    }
}
