//! Networks and ranges of ports, as the configuration file writes them.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use serde::de::{self, Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};

use crate::{Described, FileForm};

/// A network such as `10.0.0.0/8`, or a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network(IpNet);

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

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map(Self).map_err(de::Error::custom)
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl Described for Network {
    fn words() -> String {
        "text".to_owned()
    }
}

impl FileForm<Vec<IpNet>> for Vec<Network> {
    fn read(self) -> Vec<IpNet> {
        self.into_iter().map(|Network(network)| network).collect()
    }

    fn write(value: &Vec<IpNet>) -> Self {
        value.iter().map(|network| Network(*network)).collect()
    }
}

/// A range of ports, `1024-65535`, or one port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRange(RangeInclusive<u16>);

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

impl<'de> Deserialize<'de> for PortRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let refuse = || de::Error::custom(format!("{text:?} is no range of ports such as 1024-65535"));
        Self::parse(&text).map(Self).ok_or_else(refuse)
    }
}

impl Serialize for PortRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.start() == self.0.end() {
            return serializer.collect_str(self.0.start());
        }
        serializer.collect_str(&format_args!("{}-{}", self.0.start(), self.0.end()))
    }
}

impl Described for PortRange {
    fn words() -> String {
        "text".to_owned()
    }
}

impl FileForm<RangeInclusive<u16>> for PortRange {
    fn read(self) -> RangeInclusive<u16> {
        self.0
    }

    fn write(value: &RangeInclusive<u16>) -> Self {
        Self(value.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_network_of_ipv4_in_ipv6_is_the_one_of_ipv4() {
        assert_eq!(Network::parse("::ffff:10.1.2.3/104"), Network::parse("10.0.0.0/8"));
        assert_eq!(Network::parse("10.0.0.1"), Network::parse("10.0.0.1/32"));
        assert!(Network::parse("::ffff:10.0.0.0/90").unwrap_err().contains("write it as IPv4"));
        assert!(Network::parse("everywhere").unwrap_err().contains("is no network such as"));
    }
}
