//! The local or remote decision (metadata.md "Route").

use std::net::{IpAddr, SocketAddr};

use cube_metadata::{FieldValue, RecordWarning, SandboxRecord};
use cube_route::Port;

use crate::address_guard::{AddressGuard, AddressKind, DialRefusal};

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// What is dialled.
    pub address: SocketAddr,
    /// The node the sandbox runs on.
    pub node: IpAddr,
    /// Whether that is this node.
    pub local: bool,
}

/// Why a record gives no route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// `310507`.
    #[error("the record has no HostIP")]
    NoHostIp,
    /// `310507`; a local sandbox needs it.
    #[error("the record has no SandboxIP")]
    NoSandboxIp,
    /// `310507`; this container port is not mapped on the node.
    #[error("the record maps no port of the node to container port {0}")]
    NoMapping(Port),
    /// `310508`: a field that this request needs is not what it should be.
    #[error("{0}")]
    Malformed(RecordWarning),
    /// `310508`: the address guard refuses it.
    #[error("{address} may not be dialled: {why}")]
    Forbidden {
        /// What would have been dialled.
        address: SocketAddr,
        /// What forbids it.
        why: DialRefusal,
    },
}

/// The route of a request for `port`, seen from the node `node_ip`.
///
/// # Errors
/// [`RouteError`]; a field that this request does not need harms nothing.
pub fn route(
    record: &SandboxRecord,
    port: Port,
    node_ip: IpAddr,
    guard: &AddressGuard,
) -> Result<Route, RouteError> {
    let node = needed(record.host_ip, RouteError::NoHostIp, RecordWarning::HostIp)?.to_canonical();
    let local = node == node_ip.to_canonical();
    let (address, dial) = if local {
        let ip = needed(record.sandbox_ip, RouteError::NoSandboxIp, RecordWarning::SandboxIp)?;
        (SocketAddr::new(ip.to_canonical(), port.get()), AddressKind::Sandbox)
    } else {
        let mapped = record.host_port(port);
        let mapped = needed(mapped, RouteError::NoMapping(port), RecordWarning::HostPort(port))?;
        (SocketAddr::new(node, mapped.get()), AddressKind::Node)
    };
    if let Some(why) = guard.refusal(address, dial) {
        return Err(RouteError::Forbidden { address, why });
    }
    Ok(Route { address, node, local })
}

fn needed<T>(field: FieldValue<T>, missing: RouteError, malformed: RecordWarning) -> Result<T, RouteError> {
    match field {
        FieldValue::Value(value) => Ok(value),
        FieldValue::Missing => Err(missing),
        FieldValue::Malformed => Err(RouteError::Malformed(malformed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "10.0.0.1";

    fn of(fields: &[(&str, &str)]) -> Result<(String, bool), RouteError> {
        let guard = AddressGuard::new(None, 1024..=65535, Vec::new());
        let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        route(&SandboxRecord::parse(fields, 0), Port::new(8080).unwrap(), HERE.parse().unwrap(), &guard)
            .map(|route| (route.address.to_string(), route.local))
    }

    #[test]
    fn a_sandbox_here_is_dialled_at_its_own_port() {
        let inside = ("SandboxIP", "192.168.1.7");
        assert_eq!(of(&[("HostIP", HERE), inside]), Ok(("192.168.1.7:8080".into(), true)));
        assert_eq!(
            of(&[("HostIP", HERE), inside, ("8080", "rubbish")]),
            Ok(("192.168.1.7:8080".into(), true))
        );
        assert_eq!(of(&[("HostIP", "::ffff:10.0.0.1"), inside]), Ok(("192.168.1.7:8080".into(), true)));
    }

    #[test]
    fn a_sandbox_elsewhere_is_dialled_at_the_mapped_port_of_its_node() {
        let there = ("HostIP", "10.0.0.2");
        assert_eq!(of(&[there, ("8080", "49983")]), Ok(("10.0.0.2:49983".into(), false)));
        assert_eq!(of(&[there, ("8080", "49983"), ("SandboxIP", "?")]), Ok(("10.0.0.2:49983".into(), false)));
        assert_eq!(of(&[("HostIP", "fd00::2"), ("8080", "49983")]), Ok(("[fd00::2]:49983".into(), false)));
    }

    #[test]
    fn what_is_missing_is_told_from_what_is_malformed() {
        let (here, there) = (("HostIP", HERE), ("HostIP", "10.0.0.2"));
        let port = Port::new(8080).unwrap();
        assert_eq!(of(&[("8080", "49983")]), Err(RouteError::NoHostIp));
        assert_eq!(of(&[("HostIP", "localhost")]), Err(RouteError::Malformed(RecordWarning::HostIp)));
        assert_eq!(of(&[here, ("8080", "49983")]), Err(RouteError::NoSandboxIp));
        assert_eq!(
            of(&[here, ("SandboxIP", "fe80:::1")]),
            Err(RouteError::Malformed(RecordWarning::SandboxIp))
        );
        assert_eq!(of(&[there, ("8081", "49983")]), Err(RouteError::NoMapping(port)));
        assert_eq!(of(&[there, ("8080", "0")]), Err(RouteError::Malformed(RecordWarning::HostPort(port))));
    }

    #[test]
    fn a_refused_address_gives_no_route_and_is_named() {
        for (fields, address, why) in [
            ([("HostIP", "127.0.0.1"), ("8080", "49983")], "127.0.0.1:49983", DialRefusal::Special),
            ([("HostIP", "10.0.0.2"), ("8080", "22")], "10.0.0.2:22", DialRefusal::HostPort),
            (
                [("HostIP", HERE), ("SandboxIP", "169.254.169.254")],
                "169.254.169.254:8080",
                DialRefusal::Metadata,
            ),
        ] {
            let error = of(&fields).unwrap_err();
            assert_eq!(error, RouteError::Forbidden { address: address.parse().unwrap(), why });
            assert!(error.to_string().starts_with(address), "{error}");
        }
    }
}
