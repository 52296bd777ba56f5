//! Media types, as far as they decide how a request is treated.

use http::{HeaderMap, header};

/// A media type without its parameters.
pub(crate) fn essence(kind: &[u8]) -> &[u8] {
    kind.split(|b| *b == b';').next().unwrap_or_default().trim_ascii()
}

/// Whether the request is gRPC (connections.md, "HTTP/2 and gRPC"): `application/grpc`, alone or with
/// the suffix of a message format (`+proto`). `application/grpc-web` is another media type: an
/// ordinary HTTP request, whose trailers are a part of its body.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return false };
    essence(kind.as_bytes())
        .split_at_checked(GRPC.len())
        .is_some_and(|(name, rest)| name.eq_ignore_ascii_case(GRPC) && matches!(rest, [] | [b'+', ..]))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn grpc_is_a_media_type_and_not_the_beginning_of_one() {
        for (kind, grpc) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc+json; charset=utf-8", true),
            ("application/grpc;x=1", true),
            ("application/grpc ; x=1", true),
            ("Application/GRPC+Proto", true),
            ("application/grpc-web", false),
            ("application/grpc-web+proto", false),
            ("application/grpc-web-text", false),
            ("application/grpcfoo", false),
            ("application/grpc/x", false),
            ("application/grp", false),
            ("text/plain; application/grpc", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]);
            assert_eq!(is_grpc(&headers), grpc, "{kind}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }
}
