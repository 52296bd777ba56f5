//! The label values of the edge's metrics: closed lists, so that no client can add to them.

use cube_route::RoutingForm;
use http::Method;

/// Declares an enum of label values with their words.
macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$each])* $variant,)*
        }

        impl $name {
            /// All of them, in order of declaration.
            pub const ALL: [$name; [$($name::$variant),*].len()] = [$($name::$variant),*];

            /// The value of the label.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)*
                }
            }
        }
    };
}

labels! {
    /// Label `method` of the old gateway.
    MethodClass {
        /// GET.
        Get = "GET",
        /// POST.
        Post = "POST",
        /// Any other method.
        Other = "other",
    }
}

impl MethodClass {
    /// The class of a method.
    #[must_use]
    pub fn of(method: &Method) -> Self {
        match *method {
            Method::GET => MethodClass::Get,
            Method::POST => MethodClass::Post,
            _ => MethodClass::Other,
        }
    }
}

labels! {
    /// Label `route` of the old gateway: what of envd a request is for.
    RouteClass {
        /// `/process.Process/*`.
        Exec = "sandbox_exec",
        /// `/files`.
        Files = "sandbox_files",
        /// Everything else.
        Other = "other",
    }
}

impl RouteClass {
    /// The class of a path as it goes upstream, without its query.
    #[must_use]
    pub fn of(path: &str) -> Self {
        if path == "/files" {
            return RouteClass::Files;
        }
        if path.starts_with("/process.Process/") { RouteClass::Exec } else { RouteClass::Other }
    }
}

labels! {
    /// Label `form`: how a request named its sandbox.
    FormClass {
        /// The host name says which sandbox is meant.
        Host = "host",
        /// Headers say it.
        Header = "header",
        /// The path says it.
        Path = "path",
        /// Not a sandbox: forwarded to the control plane.
        ControlPlane = "control_plane",
        /// The request names no sandbox, or was not read so far.
        Unnamed = "none",
    }
}

impl From<Option<RoutingForm>> for FormClass {
    fn from(form: Option<RoutingForm>) -> Self {
        match form {
            Some(RoutingForm::Host) => FormClass::Host,
            Some(RoutingForm::Header) => FormClass::Header,
            Some(RoutingForm::Path) => FormClass::Path,
            None => FormClass::Unnamed,
        }
    }
}

labels! {
    /// Label `outcome` of `upstream_connects_total`.
    ConnectOutcome {
        /// Connected.
        Ok = "ok",
        /// Refused by the backend.
        Refused = "refused",
        /// Not connected in time.
        TimedOut = "timeout",
        /// No way to the node.
        Unreachable = "unreachable",
        /// Any other error.
        Other = "other",
    }
}

labels! {
    /// Label `outcome` of `tls_handshakes_total`.
    TlsOutcome {
        /// The handshake was made.
        Ok = "ok",
        /// Refused by either side.
        Failed = "failed",
        /// Not done in time.
        TimedOut = "timeout",
    }
}

labels! {
    /// Label `listener` of the connection metrics: the data listeners.
    ListenerClass {
        /// `listen.http`.
        Http = "http",
        /// `listen.https`.
        Https = "https",
        /// `listen.grpc`.
        Grpc = "grpc",
    }
}

labels! {
    /// Label `protocol` of the connection metrics.
    ProtocolClass {
        /// HTTP/1.x.
        H1 = "h1",
        /// HTTP/2.
        H2 = "h2",
    }
}

labels! {
    /// Label `direction` of `bytes_total`, seen from the proxy.
    Direction {
        /// From clients to sandboxes.
        In = "in",
        /// From sandboxes to clients.
        Out = "out",
    }
}

labels! {
    /// Label `limit` of `client_connections_refused_total`.
    ConnectionLimit {
        /// `limits.connections`.
        Total = "connections",
        /// `limits.connections_per_ip`.
        Address = "connections_per_ip",
        /// The limit of open files.
        Descriptors = "open_files",
        /// No header of the PROXY protocol where there has to be one.
        ProxyProtocol = "proxy_protocol",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_told_by_the_path_that_goes_upstream() {
        for (path, class) in [
            ("/files", RouteClass::Files),
            ("/files/x", RouteClass::Other),
            ("/filesystem", RouteClass::Other),
            ("/process.Process/Start", RouteClass::Exec),
            ("/process.Process", RouteClass::Other),
            ("/", RouteClass::Other),
            ("", RouteClass::Other),
        ] {
            assert_eq!(RouteClass::of(path), class, "{path}");
        }
    }

    #[test]
    fn a_method_of_the_clients_own_is_other() {
        assert_eq!(MethodClass::of(&Method::GET), MethodClass::Get);
        assert_eq!(MethodClass::of(&Method::POST), MethodClass::Post);
        assert_eq!(MethodClass::of(&Method::from_bytes(b"BREW").unwrap()), MethodClass::Other);
    }
}
