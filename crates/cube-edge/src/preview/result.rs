//! What previews come to.

/// What a preview came to, for the metric (previews.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreviewResult {
    /// Sent to the same without the ticket, with a cookie.
    Redirected,
    /// Let in by the ticket in its query.
    Query,
    /// Let in by a cookie.
    Cookie,
    /// Its ticket was right once.
    Expired,
    /// It had a cookie, and another site may have made the browser send it.
    CrossSite,
    /// Its ticket opens nothing.
    Wrong,
    /// Sent to log in.
    Login,
}

impl PreviewResult {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Redirected,
        Self::Query,
        Self::Cookie,
        Self::Expired,
        Self::CrossSite,
        Self::Wrong,
        Self::Login,
    ];

    /// The word in the metric label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Redirected => "redirected",
            Self::Query => "query",
            Self::Cookie => "cookie",
            Self::Expired => "expired",
            Self::CrossSite => "cross_site",
            Self::Wrong => "wrong",
            Self::Login => "login",
        }
    }
}
