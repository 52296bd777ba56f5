//! Web origins: `scheme://host[:port]`.

use crate::ClientHost;

/// Why a text of the configuration is no origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OriginError {
    /// `*` or `null`, which would let in everybody.
    #[error("must be one origin: neither \"*\" nor \"null\" is")]
    Everybody,
    /// Not as browsers write it.
    #[error(
        "must be an origin as browsers write it: http:// or https://, a host in lower case, a port that is \
         not the scheme's own, and nothing behind it"
    )]
    Shape,
}

/// Checks that `text` is an origin exactly as browsers write it.
///
/// # Errors
/// [`OriginError`].
pub fn check_origin(text: &str) -> Result<(), OriginError> {
    if matches!(text.trim(), "*" | "null") {
        return Err(OriginError::Everybody);
    }
    let (scheme, authority) = text.split_once("://").ok_or(OriginError::Shape)?;
    let default = match scheme {
        "http" => "80",
        "https" => "443",
        _ => return Err(OriginError::Shape),
    };
    let host = ClientHost::parse(authority).ok_or(OriginError::Shape)?;
    let port = authority.rsplit_once(':').map(|(_, port)| port).filter(|_| !authority.ends_with(']'));
    let plain = !authority.bytes().any(|b| b.is_ascii_uppercase())
        && !host.name().is_empty()
        && port.is_none_or(|port| port != default && !port.starts_with('0') && !port.is_empty());
    if plain { Ok(()) } else { Err(OriginError::Shape) }
}

/// Whether `url` has this scheme and host; `whole`: and nothing else. `null` has none.
pub(super) fn same_origin(url: &[u8], scheme: &str, host: &ClientHost<'_>, whole: bool) -> bool {
    let Ok(url) = std::str::from_utf8(url) else { return false };
    let Some((its_scheme, rest)) = url.split_once("://") else { return false };
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    let Some((authority, behind)) = rest.split_at_checked(end) else { return false };
    let port = if scheme == "https" { 443 } else { 80 };
    its_scheme.eq_ignore_ascii_case(scheme)
        && (behind.is_empty() || !whole)
        && ClientHost::parse(authority).is_some_and(|its_host| its_host.same_with_default(host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_written_as_browsers_do() {
        for good in
            ["https://a.example", "http://a.example:8080", "http://localhost:3000", "https://[::1]:8443"]
        {
            assert_eq!(check_origin(good), Ok(()), "{good}");
        }
        for bad in ["*", "null"] {
            assert_eq!(check_origin(bad), Err(OriginError::Everybody), "{bad}");
        }
        for bad in [
            "",
            "a.example",
            "https://",
            "https://a.example/",
            "https://A.example",
            "HTTPS://a.example",
            "https://a.example:443",
            "http://a.example:80",
            "https://a.example:",
            "https://*.example",
            "ws://a.example",
            "https://u@a.example",
        ] {
            assert_eq!(check_origin(bad), Err(OriginError::Shape), "{bad}");
        }
    }
}
