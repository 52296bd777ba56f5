//! The `routing` section: which requests name a sandbox, and whom to believe.

use cube_route::{ClientHost, Rules};
use cube_settings::{Auto, FilePath, Given, Network};
use ipnet::IpNet;

use crate::tls_trust::TrustFile;

cube_settings::section! {
    /// The `routing` section of config.md.
    #[derive(Debug, Clone, PartialEq)]
    pub struct RoutingSettings in "routing" {
        /// Base domains accepted in hosts, in lower case without a trailing dot; empty: any.
        live domains: Vec<String> as Vec<Domain> = Vec::new(),
        /// Peers whose X-Forwarded-For and -Proto are believed.
        live trusted_proxies: Vec<IpNet> as Vec<Network> = Vec::new(),
        /// Whether traffic tokens and `E2b-Sandbox-*` reach the sandbox.
        live forward_credentials: bool = false,
        /// Where requests go that name no sandbox.
        section control_plane: ControlPlaneKeys = ControlPlaneKeys::default(),
        /// Peers that may call envd's control routes; `None`: everyone, empty: nobody. Follows from the dialect.
        live envd_control_from: Auto<Option<Vec<IpNet>>> as Option<Given<Vec<Network>>> = Auto::new(None),
    }
}

cube_settings::section! {
    /// The API behind the same address as its sandboxes (config.md, `routing.control_plane`), as it is written;
    /// [`ControlPlaneSettings`](crate::ControlPlaneSettings) is what it means.
    #[derive(Debug, Clone, PartialEq)]
    pub struct ControlPlaneKeys in "routing.control_plane" {
        /// `http` or `https`, host and port; `None`: such requests are a 400.
        live url: Option<String> = None,
        /// By whom the certificate of an `https` URL must be signed; `None`: the system's authorities.
        live ca_file: Option<TrustFile> as Option<FilePath> = None,
        /// Hosts (no port, lower case) whose requests go there.
        live hosts: Vec<String> as Vec<HostName> = Vec::new(),
    }
}

cube_settings::written_as_text! {
    /// A base domain.
    struct Domain for String {
        read: |text| {
            let rules = Rules::new(&[text.to_owned()], false).map_err(|error| error.to_string())?;
            Ok(rules.domains().iter().map(ToString::to_string).collect())
        },
        write: Clone::clone,
    }
}

cube_settings::written_as_text! {
    /// A host as clients name it, without a port.
    struct HostName for String {
        read: |text| {
            let literal = text.parse::<std::net::Ipv6Addr>().is_ok();
            let host = ClientHost::parse(text).filter(|host| host.port().is_none() && !text.ends_with(':'));
            let host = host.map(|host| host.name()).or_else(|| literal.then_some(text));
            host.map(str::to_ascii_lowercase)
                .ok_or_else(|| format!("{text:?} is no host name or address without a port"))
        },
        write: Clone::clone,
    }
}
