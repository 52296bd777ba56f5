//! What a request presents of previews, and by which right it reaches its sandbox (previews.md).

use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use cube_metadata::{Access, SandboxRecord};
use cube_resolver::TokenVerdict;
use cube_route::preview::query::{Parameter, take_parameter};
use cube_route::preview::{CookieRequest, TicketCheck, TicketVerdict, cookie};
use cube_route::{ClientHost, RoutingForm, SandboxTarget};
use http::{HeaderMap, Method, header};

use super::result::PreviewResult;
use super::settings::PreviewSettings;
use crate::error_response::{ProxyError, is_navigation};

/// By which right a request reaches its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// No token is asked for on the port.
    ExemptPort,
    /// The sandbox is public.
    Public,
    /// The traffic token in a header.
    Token,
    /// A ticket in the query, right until then (Unix seconds).
    Query(u64),
    /// A ticket in a cookie.
    Cookie,
}

/// Why a request is refused for its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Missing,
    Wrong,
    /// By a ticket that was right once.
    Expired,
}

impl Refusal {
    pub(crate) fn error(self) -> ProxyError {
        match self {
            Refusal::Missing => ProxyError::TokenMissing,
            Refusal::Wrong => ProxyError::TokenWrong,
            Refusal::Expired => ProxyError::PreviewExpired,
        }
    }
}

/// How a request was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub(crate) right: Result<Right, Refusal>,
    /// Where a ticket decided.
    pub(crate) result: Option<PreviewResult>,
}

/// The head of a request, as far as previews go.
pub(crate) struct PreviewHead<'a> {
    pub(crate) method: &'a Method,
    pub(crate) headers: &'a HeaderMap,
    /// Path and query as the client meant them.
    pub(crate) origin_form: &'a [u8],
    pub(crate) form: RoutingForm,
    pub(crate) host: ClientHost<'a>,
    /// The client speaks TLS, with this proxy or with a trusted one.
    pub(crate) tls: bool,
}

/// The tickets of a request and what is known of where they come from. Has no `Debug`: a ticket is a secret.
pub(crate) struct Presented {
    /// When the head was read, Unix seconds: what expires while the request is held has not expired.
    now: u64,
    parameter: Option<Option<Bytes>>,
    /// Path and query with the parameter.
    origin_form: Bytes,
    cookies: Vec<Bytes>,
    /// By where it comes from, a cookie counts.
    cookie_passes: bool,
    navigation: bool,
    tls: bool,
    cookie_name: Option<&'static str>,
}

impl Presented {
    /// Reads a request's tickets; none where it has none. With it, its path and query without the parameter,
    /// where that is there.
    pub(crate) fn read(
        head: &PreviewHead<'_>,
        settings: &PreviewSettings,
    ) -> Option<(Self, Option<Vec<u8>>)> {
        let taken = take_parameter(head.origin_form);
        let cookie_name = cookie::name(head.form, head.tls, settings.path_cookie);
        let values = head.headers.get_all(header::COOKIE).iter().map(|value| value.as_bytes());
        let cookies: Vec<Bytes> = match cookie_name {
            Some(name) => cookie::tickets(values, name).map(Bytes::copy_from_slice).collect(),
            None => Vec::new(),
        };
        if taken.is_none() && cookies.is_empty() {
            return None;
        }
        let navigation = is_navigation(head.method, head.headers);
        let cookie_passes = !cookies.is_empty()
            && CookieRequest {
                method: head.method,
                headers: head.headers,
                navigation,
                scheme: if head.tls { "https" } else { "http" },
                host: head.host,
                allowed_origins: settings.allowed_origins(),
            }
            .passes();
        let parameter = taken.as_ref().map(|(_, parameter)| match parameter {
            Parameter::Once(ticket) => Some(Bytes::copy_from_slice(ticket)),
            Parameter::Malformed => None,
        });
        let presented = Self {
            now: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            parameter,
            origin_form: if taken.is_some() {
                Bytes::copy_from_slice(head.origin_form)
            } else {
                Bytes::new()
            },
            cookies,
            cookie_passes,
            navigation,
            tls: head.tls,
            cookie_name,
        };
        Some((presented, taken.map(|(rest, _)| rest)))
    }

    /// The `Set-Cookie` for a request that passes by its query's ticket, which is right until `expiry`; `path`
    /// is what it covers.
    pub(crate) fn set_cookie(&self, expiry: u64, path: &str) -> Option<String> {
        let ticket = std::str::from_utf8(self.parameter.as_ref()?.as_ref()?).ok()?;
        Some(cookie::set_cookie(self.cookie_name?, ticket, path, self.tls, expiry.saturating_sub(self.now)))
    }

    /// Whether the query has the parameter, right or wrong.
    pub(crate) fn has_parameter(&self) -> bool {
        self.parameter.is_some()
    }

    /// Path and query as they came, where the parameter was taken out of them.
    pub(crate) fn origin_form(&self) -> Option<&[u8]> {
        self.has_parameter().then_some(&self.origin_form[..])
    }

    /// Whether a request that passes by `right` gets a cookie, and the same without the parameter to ask for.
    pub(crate) fn redirects(&self, right: Right, settings: &PreviewSettings) -> bool {
        matches!(right, Right::Query(_)) && settings.cookie && self.navigation && self.cookie_name.is_some()
    }

    /// The ticket in the query, or else in a cookie, and what it comes to.
    fn judge(&self, check: &TicketCheck<'_>) -> (Result<Right, Refusal>, PreviewResult) {
        if let Some(ticket) = &self.parameter {
            let verdict = ticket.as_ref().map_or(TicketVerdict::Wrong, |ticket| check.judge(ticket));
            return match verdict {
                TicketVerdict::Right(expiry) => (Ok(Right::Query(expiry)), PreviewResult::Query),
                TicketVerdict::Expired => (Err(Refusal::Expired), PreviewResult::Expired),
                TicketVerdict::Wrong => (Err(Refusal::Wrong), PreviewResult::Wrong),
            };
        }
        if !self.cookie_passes {
            return (Err(Refusal::Missing), PreviewResult::CrossSite);
        }
        let mut found = (Err(Refusal::Wrong), PreviewResult::Wrong);
        for ticket in &self.cookies {
            match check.judge(ticket) {
                TicketVerdict::Right(_) => return (Ok(Right::Cookie), PreviewResult::Cookie),
                TicketVerdict::Expired => found = (Err(Refusal::Expired), PreviewResult::Expired),
                TicketVerdict::Wrong => {}
            }
        }
        found
    }
}

/// Says by which right a request reaches `target`, whose record is `record`; without one there is no such
/// sandbox, and the same is worked out for nothing, so that it takes as long. `exempt_port`: no token is asked
/// for on the port.
pub(crate) fn judge(
    settings: &PreviewSettings,
    target: &SandboxTarget,
    exempt_port: bool,
    record: Option<&SandboxRecord>,
    headers: &HeaderMap,
    presented: Option<&Presented>,
) -> Judgement {
    let of_right = |right| Judgement { right, result: None };
    if exempt_port {
        return of_right(Ok(Right::ExemptPort));
    }
    let token = match record.map(|record| &record.access) {
        Some(Access::Public) => return of_right(Ok(Right::Public)),
        Some(Access::Token(token)) => Some(token),
        Some(Access::Closed) | None => None,
    };
    let presented = match presented {
        Some(presented) if !cube_resolver::presents_token(headers) => presented,
        _ => {
            let verdict =
                record.map_or(TokenVerdict::Missing, |record| cube_resolver::authorise(record, headers));
            return of_right(match verdict {
                TokenVerdict::Authorised => Ok(Right::Token),
                TokenVerdict::Missing => Err(Refusal::Missing),
                TokenVerdict::Wrong => Err(Refusal::Wrong),
            });
        }
    };
    if !settings.enabled {
        return Judgement { right: Err(Refusal::Wrong), result: Some(PreviewResult::Wrong) };
    }
    let check = TicketCheck {
        id: &target.id,
        port: target.port,
        now: presented.now,
        max_ttl: settings.max_ttl.as_secs(),
        token: token.map(cube_settings::Secret::expose),
        stand_in: &STAND_IN,
    };
    let (right, result) = presented.judge(&check);
    Judgement { right, result: Some(result) }
}

/// The key of this process for tickets that no token can have made.
static STAND_IN: LazyLock<[u8; 32]> = LazyLock::new(|| {
    let mut key = [0; 32];
    for part in key.chunks_mut(8) {
        let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), part.len());
        part.copy_from_slice(&random.to_ne_bytes());
    }
    key
});
