//! What the configuration says of previews.

use std::time::Duration;

use cube_route::preview::{LinkBase, LoginUrl};
use http::{HeaderMap, HeaderValue, Method};

use crate::error_response::is_navigation;

/// The `previews` section of config.md.
#[derive(Debug, Clone)]
pub struct PreviewSettings {
    /// `previews.enabled`.
    pub enabled: bool,
    /// `previews.max_ttl`: how long before its end, and after it, a ticket may be presented.
    pub max_ttl: Duration,
    /// `previews.cookie`: a navigation gets a cookie.
    pub cookie: bool,
    /// `previews.path_cookie`: in the path form too.
    pub path_cookie: bool,
    /// `previews.base_url`, or what the first routing domain makes: where links lead. `None`: nowhere.
    pub base_url: Option<LinkBase>,
    /// `previews.login_url`.
    pub login_url: Option<LoginUrl>,
    /// `previews.allowed_origins`.
    pub allowed_origins: Vec<String>,
    frame_policy: HeaderValue,
}

impl PreviewSettings {
    /// The defaults, with the origins of `previews.frame_ancestors`, which were checked.
    #[must_use]
    pub fn with_frame_ancestors(origins: &[String]) -> Self {
        let mut policy = "frame-ancestors 'self'".to_owned();
        for origin in origins {
            policy.push(' ');
            policy.push_str(origin);
        }
        Self {
            enabled: true,
            max_ttl: Duration::from_secs(86_400),
            cookie: true,
            path_cookie: false,
            base_url: None,
            login_url: None,
            allowed_origins: Vec::new(),
            frame_policy: HeaderValue::try_from(policy)
                .unwrap_or_else(|_| HeaderValue::from_static("frame-ancestors 'self'")),
        }
    }

    /// Whether such a request is sent to log in where it may not enter, or there is nothing to enter. One with a
    /// ticket in its query is not: a link made with an old token would run in a circle.
    pub(crate) fn sends_to_log_in(&self, method: &Method, headers: &HeaderMap, with_ticket: bool) -> bool {
        self.enabled && self.login_url.is_some() && !with_ticket && is_navigation(method, headers)
    }

    /// The origins whose pages may send cookies across sites.
    pub(crate) fn allowed_origins(&self) -> &[String] {
        if self.enabled { &self.allowed_origins } else { &[] }
    }

    /// The `Content-Security-Policy` of responses to requests that a cookie let in.
    pub(crate) fn frame_policy(&self) -> &HeaderValue {
        &self.frame_policy
    }
}

impl Default for PreviewSettings {
    fn default() -> Self {
        Self::with_frame_ancestors(&[])
    }
}
