//! What the configuration says of previews.

use std::time::Duration;

use cube_route::preview::{LinkBase, LoginUrl, check_origin};
use cube_settings::NonZeroSpan;
use http::{HeaderMap, HeaderValue, Method};

use crate::error_response::is_navigation;

cube_settings::section! {
    /// The `previews` section of config.md: links that open private sandboxes in a browser.
    #[derive(Debug, Clone, PartialEq)]
    pub struct PreviewSettings in "previews" {
        /// Whether tickets are taken.
        live enabled: bool = true,
        /// How long before its end, and after it, a ticket may be presented.
        live max_ttl: Duration as NonZeroSpan = Duration::from_secs(86_400),
        /// Whether a navigation with a ticket gets a cookie.
        live cookie: bool = true,
        /// Whether it does in the path form too, where all sandboxes share one origin.
        live path_cookie: bool = false,
        /// Where links lead; `None`: what the first routing domain makes, or nowhere.
        live base_url: Option<LinkBase> as Option<BaseUrl> = None,
        /// Where a browser is sent that may not enter; `None`: nowhere.
        live login_url: Option<LoginUrl> as Option<LoginTemplate> = None,
        /// Origins that may frame what a cookie lets in.
        live frame_ancestors: Vec<String> as Vec<WebOrigin> = Vec::new(),
        /// Origins that may send cookies across sites.
        live allowed_origins: Vec<String> as Vec<WebOrigin> = Vec::new(),
    }
    beside {
        /// The `Content-Security-Policy` that follows from `frame_ancestors`; see [`PreviewSettings::settle`].
        frame_policy: HeaderValue = HeaderValue::from_static(FRAMED_BY_ITSELF),
    }
}

const FRAMED_BY_ITSELF: &str = "frame-ancestors 'self'";

cube_settings::written_as_text! {
    struct BaseUrl for LinkBase {
        read: |text| {
            LinkBase::parse(text).ok_or_else(|| "must be scheme://domain[:port], http or https".to_owned())
        },
        write: ToString::to_string,
    }
}

cube_settings::written_as_text! {
    struct LoginTemplate for LoginUrl {
        read: |text| LoginUrl::parse(text).map_err(|error| error.to_string()),
        write: ToString::to_string,
    }
}

cube_settings::written_as_text! {
    struct WebOrigin for String {
        read: |text| check_origin(text).map(|()| text.to_owned()).map_err(|error| error.to_string()),
        write: Clone::clone,
    }
}

impl PreviewSettings {
    /// Makes what follows from the keys. `base`: where links lead if the file does not say it.
    #[must_use]
    pub fn settle(mut self, base: Option<LinkBase>) -> Self {
        let policy = self
            .frame_ancestors
            .iter()
            .fold(FRAMED_BY_ITSELF.to_owned(), |policy, origin| policy + " " + origin);
        if let Ok(policy) = HeaderValue::try_from(policy) {
            self.frame_policy = policy;
        }
        self.base_url = self.base_url.or(base);
        self
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
