//! Values of our own as text: written straight to where the line grows. The formatting machinery
//! of the standard library costs several times as much, and a line has a dozen of them.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use cube_otlp::TraceId;

/// A value that knows how it looks in a line.
pub(super) trait Put {
    fn put(&self, out: &mut Vec<u8>);
}

impl Put for &str {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }
}

impl Put for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(itoa::Buffer::new().format(*self).as_bytes());
    }
}

impl Put for u32 {
    fn put(&self, out: &mut Vec<u8>) {
        u64::from(*self).put(out);
    }
}

impl Put for u16 {
    fn put(&self, out: &mut Vec<u8>) {
        u64::from(*self).put(out);
    }
}

impl Put for TraceId {
    fn put(&self, out: &mut Vec<u8>) {
        // Writing to memory does not fail; few requests are traced.
        let _ = write!(out, "{self}");
    }
}

/// An IPv4-mapped IPv6 address is written as the IPv4 address that it stands for.
impl Put for IpAddr {
    fn put(&self, out: &mut Vec<u8>) {
        match self.to_canonical() {
            IpAddr::V4(ip) => put_v4(ip, out),
            // Writing to memory does not fail.
            IpAddr::V6(ip) => drop(write!(out, "{ip}")),
        }
    }
}

/// Written as it was dialled, `address:port`, mapped or not.
impl Put for SocketAddr {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            SocketAddr::V4(address) => {
                put_v4(*address.ip(), out);
                out.push(b':');
                address.port().put(out);
            }
            SocketAddr::V6(address) => drop(write!(out, "{address}")),
        }
    }
}

fn put_v4(ip: Ipv4Addr, out: &mut Vec<u8>) {
    let [first, rest @ ..] = ip.octets();
    u16::from(first).put(out);
    for octet in rest {
        out.push(b'.');
        u16::from(octet).put(out);
    }
}

/// Seconds with milliseconds.
impl Put for Duration {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_secs().put(out);
        out.push(b'.');
        out.extend_from_slice(&three_digits(self.subsec_millis()));
    }
}

/// `a, b`; `-` for an absent one.
pub(super) struct List<I>(pub(super) I);

impl<T: Put, I: Iterator<Item = Option<T>> + Clone> Put for List<I> {
    fn put(&self, out: &mut Vec<u8>) {
        for (at, value) in self.0.clone().enumerate() {
            if at > 0 {
                out.extend_from_slice(b", ");
            }
            match value {
                Some(value) => value.put(out),
                None => out.push(b'-'),
            }
        }
    }
}

/// A number below 1000.
pub(super) fn three_digits(number: u32) -> [u8; 3] {
    [100, 10, 1].map(|place| b'0' + u8::try_from(number / place % 10).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &impl Put) -> String {
        let mut out = Vec::new();
        value.put(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn values_look_as_the_standard_library_writes_them() {
        for ip in ["0.0.0.0", "127.0.0.1", "255.10.9.100", "::1", "2001:db8::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            assert_eq!(text(&ip), ip.to_string());
            let address = SocketAddr::new(ip, 65535);
            assert_eq!(text(&address), address.to_string());
        }
        assert_eq!(text(&"::ffff:10.0.0.1".parse::<IpAddr>().unwrap()), "10.0.0.1");
        for number in [0_u16, 7, 10, 65535] {
            assert_eq!(text(&number), number.to_string());
        }
        assert_eq!(text(&u64::MAX), u64::MAX.to_string());
    }

    #[test]
    fn durations_are_seconds_with_three_digits() {
        for (ms, seconds) in [(0, "0.000"), (7, "0.007"), (999, "0.999"), (61_050, "61.050")] {
            assert_eq!(text(&Duration::from_millis(ms)), seconds);
        }
    }

    #[test]
    fn a_list_has_a_dash_where_a_value_is_absent() {
        assert_eq!(text(&List([None, Some(7_u16), Some(12)].into_iter())), "-, 7, 12");
    }
}
