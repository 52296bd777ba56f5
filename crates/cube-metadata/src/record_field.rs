//! The fields of a record: their names, and what a value of each may be (metadata.md). The one
//! place that knows them, for reading a record ([`crate::SandboxRecord`]) and for writing one by
//! hand ([`check_field`]).

use std::fmt;
use std::net::IpAddr;

use cube_route::Port;

use crate::{HostMask, SandboxState};

/// A field of a record that the proxy reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordField {
    /// `HostIP`: the address of the node.
    HostIp,
    /// `SandboxIP`: the address of the sandbox on its node.
    SandboxIp,
    /// A container port: the host port it is mapped to.
    HostPort(Port),
    /// `AllowPublicTraffic`.
    AllowPublicTraffic,
    /// `TrafficAccessToken`.
    TrafficAccessToken,
    /// `MaskRequestHost`.
    MaskRequestHost,
    /// `CreatedAt`.
    CreatedAt,
    /// `Status`.
    Status,
}

impl RecordField {
    /// The fields with a name of their own. Any container port is a field besides.
    const NAMED: [(RecordField, &'static str); 7] = [
        (RecordField::HostIp, "HostIP"),
        (RecordField::SandboxIp, "SandboxIP"),
        (RecordField::AllowPublicTraffic, "AllowPublicTraffic"),
        (RecordField::TrafficAccessToken, "TrafficAccessToken"),
        (RecordField::MaskRequestHost, "MaskRequestHost"),
        (RecordField::CreatedAt, "CreatedAt"),
        (RecordField::Status, "Status"),
    ];

    /// The field with exactly that name; `None`: one that is ignored.
    #[must_use]
    pub fn of(name: &[u8]) -> Option<Self> {
        let named = Self::NAMED.iter().find(|(_, own)| own.as_bytes() == name).map(|(field, _)| *field);
        named.or_else(|| {
            let port = str::from_utf8(name).ok().and_then(|name| Port::parse(name).ok());
            port.map(Self::HostPort)
        })
    }

    /// Whether its value is a secret, not to be shown unasked.
    #[must_use]
    pub fn is_secret(self) -> bool {
        self == Self::TrafficAccessToken
    }

    /// What is wrong with `value`, in words that do not repeat it. Empty is missing, which only
    /// some fields may be.
    fn value_error(self, value: &str) -> Option<&'static str> {
        let (good, otherwise) = match self {
            Self::HostIp => (address(value).is_some(), "must be an address such as 10.0.0.1 or fd00::1"),
            Self::AllowPublicTraffic => (matches!(value, "true" | "false"), "must be true or false"),
            _ if value.is_empty() => return None,
            Self::SandboxIp => {
                (address(value).is_some(), "must be an address such as 192.168.1.100 or fd00::1")
            }
            Self::HostPort(_) => (Port::parse(value).is_ok(), "must be a port of the node, 1 to 65535"),
            Self::TrafficAccessToken => {
                let edges = value.starts_with([' ', '\t']) || value.ends_with([' ', '\t']);
                let good = !edges && !value.chars().any(char::is_control);
                (good, "must be text that a header can carry: no line ends, no spaces around it")
            }
            Self::MaskRequestHost => {
                (HostMask::parse(value).is_some(), "must be host[:port], e.g. localhost:${PORT}")
            }
            Self::CreatedAt => {
                (value.parse::<u64>().is_ok(), "must be a time in unix nanoseconds, digits alone")
            }
            Self::Status => (
                SandboxState::parse(value).is_some(),
                "must be running, pausing, paused, resuming, killing or killed",
            ),
        };
        (!good).then_some(otherwise)
    }
}

/// An address and nothing around it: no port, no zone, no name. `::ffff:a.b.c.d` is `a.b.c.d`.
pub(crate) fn address(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

impl fmt::Display for RecordField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostPort(port) => write!(f, "{port}"),
            field => f.write_str(
                Self::NAMED.iter().find(|(named, _)| named == field).map_or("", |(_, name)| *name),
            ),
        }
    }
}

/// Why a field is refused when an operator writes it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// The field is known, and the value is not one that a record may have.
    #[error("{field} {what}")]
    Value {
        /// The field.
        field: RecordField,
        /// What its value must be; never the value.
        what: &'static str,
    },
    /// No such field is read, but one whose name is nearly the same.
    #[error("{name} is no field of a record; did you mean {near}?")]
    Near {
        /// The name as it was written.
        name: String,
        /// The field whose name is near.
        near: RecordField,
    },
    /// No such field is read, and the name looks like a container port.
    #[error("{0} is no container port: 1 to 65535, digits alone")]
    Port(String),
}

/// Checks a field that an operator is about to write. `Ok(None)`: a field that the proxy does not read,
/// which a record may have.
///
/// # Errors
/// [`FieldError`] for what no record may have, and for names that are nearly those of fields.
pub fn check_field(name: &str, value: &str) -> Result<Option<RecordField>, FieldError> {
    if let Some(field) = RecordField::of(name.as_bytes()) {
        return match field.value_error(value) {
            Some(what) => Err(FieldError::Value { field, what }),
            None => Ok(Some(field)),
        };
    }
    if name.trim_start_matches(['+', '-', ' ']).starts_with(|first: char| first.is_ascii_digit()) {
        return Err(FieldError::Port(name.to_owned()));
    }
    match nearest(name) {
        Some(near) => Err(FieldError::Near { name: name.to_owned(), near }),
        None => Ok(None),
    }
}

/// The field whose name is at most two slips away, or holds this one as a part.
fn nearest(name: &str) -> Option<RecordField> {
    let plain = |name: &str| {
        name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect::<String>()
    };
    let written = plain(name);
    let slips = |own: &str| strsim::damerau_levenshtein(&written, &plain(own));
    let (field, own) = RecordField::NAMED.into_iter().min_by_key(|(_, own)| slips(own))?;
    if slips(own) <= 2 {
        return Some(field);
    }
    let part = |own: &str| written.len() >= 5 && plain(own).contains(&written);
    RecordField::NAMED.into_iter().find(|(_, own)| part(own)).map(|(field, _)| field)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(name: &str, value: &str) -> String {
        check_field(name, value).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn what_a_record_may_have_is_let_through() {
        for (name, value) in [
            ("HostIP", "10.0.0.1"),
            ("HostIP", "fd00::1"),
            ("SandboxIP", "::ffff:10.0.0.1"),
            ("SandboxIP", ""),
            ("8080", "49983"),
            ("8080", ""),
            ("AllowPublicTraffic", "false"),
            ("TrafficAccessToken", "example-token"),
            ("TrafficAccessToken", ""),
            ("MaskRequestHost", "localhost:${PORT}"),
            ("CreatedAt", "1733000000000000000"),
            ("Status", "paused"),
            ("Status", ""),
        ] {
            assert!(matches!(check_field(name, value), Ok(Some(_))), "{name}={value}");
        }
        for name in ["Owner", "TemplateID", "Region", "note"] {
            assert_eq!(check_field(name, "x"), Ok(None), "{name} is ignored, and may be there");
        }
    }

    #[test]
    fn what_no_record_may_have_is_refused_without_repeating_it() {
        for (name, value) in [
            ("HostIP", ""),
            ("HostIP", "999.1.1.1"),
            ("HostIP", "10.0.0.1:80"),
            ("HostIP", "node-7"),
            ("SandboxIP", "fe80::1%eth0"),
            ("3000", "abc"),
            ("3000", "0"),
            ("3000", "65536"),
            ("AllowPublicTraffic", "maybe"),
            ("AllowPublicTraffic", "True"),
            ("AllowPublicTraffic", ""),
            ("TrafficAccessToken", "two\nlines"),
            ("TrafficAccessToken", " example-token"),
            ("MaskRequestHost", "http://localhost"),
            ("CreatedAt", "yesterday"),
            ("Status", "sleeping"),
        ] {
            let said = said(name, value);
            assert!(said.starts_with(&format!("{name} must be ")), "{said}");
            assert!(value.is_empty() || value.len() < 2 || !said.contains(value), "{said}");
        }
    }

    #[test]
    fn a_name_that_is_nearly_one_is_told_which() {
        for (name, near) in [
            ("HostIp", "HostIP"),
            ("hostip", "HostIP"),
            ("host_ip", "HostIP"),
            ("HotsIP", "HostIP"),
            ("SandboxIp", "SandboxIP"),
            ("AllowPublicTrafic", "AllowPublicTraffic"),
            ("AccessToken", "TrafficAccessToken"),
            ("Token", "TrafficAccessToken"),
            ("status", "Status"),
            ("createdAt", "CreatedAt"),
        ] {
            assert_eq!(said(name, "x"), format!("{name} is no field of a record; did you mean {near}?"));
        }
        for name in ["0", "65536", "080", "+80", "8080/tcp", "99999"] {
            assert_eq!(said(name, "80"), format!("{name} is no container port: 1 to 65535, digits alone"));
        }
    }

    #[test]
    fn every_field_reads_its_own_name() {
        for (field, name) in RecordField::NAMED {
            assert_eq!((RecordField::of(name.as_bytes()), field.to_string().as_str()), (Some(field), name));
        }
        assert_eq!(RecordField::of(b"8080").map(|field| field.to_string()).as_deref(), Some("8080"));
        assert_eq!(RecordField::of(b"\xff"), None);
    }
}
