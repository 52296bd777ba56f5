//! The responses the proxy makes itself (errors.md), in one place.
//!
//! Whatever goes wrong is a [`ProxyError`]; [`render`] turns it into bytes for the one who asked, in
//! the dialect of the process. Nothing else in the crate writes an error body.

mod format;
mod html;
mod render;
pub(crate) mod send;
mod table;
#[cfg(test)]
mod tests;

pub use format::{ResponseFormat, is_preflight};
pub(crate) use format::{is_navigation, navigates};
pub use render::{OwnResponse, render};
pub use table::{ProxyError, Reason};

use cube_settings::Auto;

cube_settings::choice! {
    /// How the proxy's own responses look: `errors.dialect`, one for the process.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum Dialect {
        /// The old gateway's: `{"error":"<text>"}`.
        #[default]
        Cube = "cube",
        /// What E2B's own edge says, as its SDKs expect it.
        E2b = "e2b",
    }
}

impl Dialect {
    /// The word in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Dialect::Cube => "cube",
            Dialect::E2b => "e2b",
        }
    }
}

cube_settings::section! {
    /// What decides how responses look, beside the request (config.md, `errors`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Settings in "errors" {
        /// Whose clients are answered: one for the process.
        restart dialect: Dialect = Dialect::Cube,
        /// Whether a refused token looks exactly as an unknown sandbox does. Follows from the dialect.
        live mask_existence: Auto<bool> as Option<bool> = Auto::new(false),
    }
}

impl Settings {
    /// The defaults of a dialect: masked in `cube`, not in `e2b`.
    #[must_use]
    pub fn of(dialect: Dialect) -> Self {
        Self { dialect, mask_existence: Auto::new(dialect == Dialect::Cube) }
    }
}
