//! Hop-by-hop headers (RFC 9110, 7.6.1): what of a message is for one connection alone, in both directions.

use http::{HeaderMap, HeaderName, StatusCode, Version, header};
use pingora::Result;
use pingora::http::{RequestHeader, ResponseHeader};

/// Headers of a request that end at the proxy, whatever they say.
static IN_REQUESTS: [HeaderName; 6] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::TRAILER,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
];

/// Headers of a response that end at the proxy.
static IN_RESPONSES: [HeaderName; 5] = [
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::UPGRADE,
];
/// The header names that `Connection` nominates.
pub(crate) fn connection_tokens(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|b| *b == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|token| !token.is_empty())
}

/// Takes from a request what is for this hop alone. `upgrade`: an upgrade that is asked for goes on; `grpc`: so
/// does `TE: trailers`.
pub(crate) fn remove_from_request(request: &mut RequestHeader, upgrade: bool, grpc: bool) {
    if request.headers.contains_key(header::CONNECTION) {
        let nominated: Vec<HeaderName> = connection_tokens(&request.headers)
            .filter_map(|token| HeaderName::from_bytes(token).ok())
            // A length is framing, not a header of this hop's own; Upgrade has its own rule.
            .filter(|name| *name != header::CONTENT_LENGTH && *name != header::UPGRADE)
            .collect();
        for name in &nominated {
            request.remove_header(name);
        }
    }
    // One walk over the headers tells whether there is anything to remove: most often there is not.
    if request.headers.keys().any(|name| IN_REQUESTS.contains(name)) {
        for name in &IN_REQUESTS {
            request.remove_header(name);
        }
    }
    if !upgrade {
        request.remove_header(&header::UPGRADE);
    }
    // gRPC asks for trailers; nothing else of TE is for the next hop.
    if request.headers.contains_key(header::TE) {
        let trailers = grpc
            && request
                .headers
                .get_all(header::TE)
                .iter()
                .any(|value| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"trailers"));
        request.remove_header(&header::TE);
        if trailers {
            // Cannot fail: both are valid; and a lost TE is no fault of the request.
            let _ = request.insert_header(header::TE, "trailers");
        }
    }
}

/// Takes from a response what is for this hop alone, for a client of this version.
///
/// # Errors
/// None of the headers that are set is refused.
pub(crate) fn remove_from_response(response: &mut ResponseHeader, client: Version) -> Result<()> {
    let switching = response.status == StatusCode::SWITCHING_PROTOCOLS;
    let keeps_upgrade = switching || asks_for_upgrade(response, client);
    if response.headers.contains_key(header::CONNECTION) {
        let nominated: Vec<HeaderName> = connection_tokens(&response.headers)
            .filter_map(|token| HeaderName::from_bytes(token).ok())
            .filter(|name| {
                // Framing is Pingora's; an upgrade's own headers stay with it.
                *name != header::CONTENT_LENGTH
                    && *name != header::TRANSFER_ENCODING
                    && !(keeps_upgrade && *name == header::UPGRADE)
            })
            .collect();
        for name in &nominated {
            response.remove_header(name);
        }
        response.remove_header(&header::CONNECTION);
    }
    if switching {
        response.insert_header(header::CONNECTION, "Upgrade")?;
    }
    // One walk over the headers tells whether there is anything to remove: most often there is not.
    if response.headers.keys().any(|name| IN_RESPONSES.contains(name)) {
        for name in IN_RESPONSES.iter().filter(|name| !(keeps_upgrade && **name == header::UPGRADE)) {
            response.remove_header(name);
        }
    }
    Ok(())
}

/// Whether this is a 426 whose `Upgrade` says to what (RFC 9110, 15.5.22), for a client that can do so
/// through this proxy: over HTTP/1.1, and to anything but `h2c`.
fn asks_for_upgrade(response: &ResponseHeader, client: Version) -> bool {
    response.status == StatusCode::UPGRADE_REQUIRED
        && client == Version::HTTP_11
        && !response
            .headers
            .get_all(header::UPGRADE)
            .iter()
            .flat_map(|value| value.as_bytes().split(|b| *b == b','))
            .any(|protocol| protocol.trim_ascii().eq_ignore_ascii_case(b"h2c"))
}
