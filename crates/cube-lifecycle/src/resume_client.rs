//! The HTTP call that has the manager resume a sandbox (lifecycle.md, "Resume"): one connection for each
//! call, and on it the exact bytes of the contract.

use bytes::Bytes;
use cube_route::SandboxId;
use cube_settings::Secret;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, HOST};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::net::TcpStream;

use crate::LifecycleError;

/// Everything but RFC 3986's unreserved characters.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Where resume calls are sent.
pub(crate) struct ResumeEndpoint {
    host: Box<str>,
    port: u16,
    authority: HeaderValue,
    path: Box<str>,
}

/// Why a call brought no status.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResumeCallError {
    #[error("cannot connect: {0}")]
    Connect(#[from] std::io::Error),
    #[error("no response: {0}")]
    Exchange(#[from] hyper::Error),
    #[error("the request cannot be built: {0}")]
    Request(#[from] http::Error),
}

impl ResumeEndpoint {
    pub(crate) fn parse(url: &str) -> Result<Self, LifecycleError> {
        let wrong = LifecycleError::ResumeUrl;
        let uri: Uri = url.parse().map_err(|_| wrong("not a URL"))?;
        if uri.scheme_str() != Some("http") {
            return Err(wrong("only http:// is spoken to the manager"));
        }
        let authority = uri.authority().ok_or(wrong("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("a user or password does not belong here; use resume.token_file"));
        }
        if uri.query().is_some() {
            return Err(wrong("must not have a query"));
        }
        let named = authority.host();
        let host = named.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(named);
        if host.is_empty() {
            return Err(wrong("names no host"));
        }
        let port = match authority.port_u16() {
            Some(0) => return Err(wrong("port 0 cannot be dialled")),
            Some(port) => port,
            None if authority.as_str() == named => 80,
            None => return Err(wrong("the port is no number from 1 to 65535")),
        };
        Ok(Self {
            host: host.into(),
            port,
            authority: HeaderValue::from_str(authority.as_str()).map_err(|_| wrong("not a host"))?,
            path: uri.path().trim_end_matches('/').into(),
        })
    }

    /// Asks for `id` and reads the head of the response.
    pub(crate) async fn call(
        &self,
        id: &SandboxId,
        request_id: &str,
        authorization: Option<&HeaderValue>,
    ) -> Result<StatusCode, ResumeCallError> {
        let request = self.request(id, request_id, authorization)?;
        let stream = TcpStream::connect((&*self.host, self.port)).await?;
        let (mut sender, driver) =
            http1::Builder::new().title_case_headers(true).handshake(TokioIo::new(stream)).await?;
        let response = sender.send_request(request);
        tokio::pin!(response, driver);
        let response = tokio::select! {
            biased;
            response = &mut response => response,
            // The driver has handed over what it read before it ends.
            _ = &mut driver => response.await,
        };
        Ok(response?.status())
    }

    fn request(
        &self,
        id: &SandboxId,
        request_id: &str,
        authorization: Option<&HeaderValue>,
    ) -> Result<Request<Empty<Bytes>>, http::Error> {
        let target = format!(
            "{}/internal/resume?sandbox_id={}&request_id={}",
            self.path,
            utf8_percent_encode(id.as_str(), RESERVED),
            utf8_percent_encode(request_id, RESERVED),
        );
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(target)
            .header(HOST, &self.authority)
            .header(CONTENT_LENGTH, HeaderValue::from_static("0"));
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.body(Empty::new())
    }
}

/// `Authorization` with a bearer token. White space around the token (the line end of a file) is not part
/// of it.
pub(crate) fn authorization(token: &Secret) -> Result<HeaderValue, LifecycleError> {
    let token = token.expose_text().trim();
    if token.is_empty() {
        return Err(LifecycleError::ResumeToken);
    }
    let mut value =
        HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| LifecycleError::ResumeToken)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_is_trimmed_checked_and_never_shown() {
        let header = authorization(&Secret::new(" example-token\r\n")).unwrap();
        assert_eq!(header, "Bearer example-token");
        assert!(!format!("{header:?}").contains("example-token"));
        for bad in ["", " \n", "a\nb", "a\0b"] {
            assert!(authorization(&Secret::new(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_url_says_where_to_dial_and_what_to_name() {
        for (url, host, port, authority, path) in [
            ("http://127.0.0.1:8083", "127.0.0.1", 8083, "127.0.0.1:8083", ""),
            ("http://manager/", "manager", 80, "manager", ""),
            ("http://manager.local:80/cube/", "manager.local", 80, "manager.local:80", "/cube"),
            ("http://[fd00::1]:9", "fd00::1", 9, "[fd00::1]:9", ""),
        ] {
            let endpoint = ResumeEndpoint::parse(url).unwrap();
            assert_eq!((&*endpoint.host, endpoint.port, &*endpoint.path), (host, port, path), "{url}");
            assert_eq!(endpoint.authority, authority, "{url}");
        }
    }

    #[test]
    fn a_url_that_cannot_be_called_is_refused() {
        for url in [
            "",
            "manager:8083",
            "https://manager",
            "/internal",
            "http://",
            "http://u:p@manager",
            "http://manager:0",
            "http://manager:",
            "http://manager:99999",
            "http://manager/?a=b",
            "http://mana ger",
        ] {
            assert!(ResumeEndpoint::parse(url).is_err(), "{url:?}");
        }
    }
}
