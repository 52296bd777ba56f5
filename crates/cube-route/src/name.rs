//! The names a request can carry: sandbox id and container port, as types that cannot hold a
//! wrong value.

use std::borrow::Borrow;
use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;

use crate::byte_class;

/// The most bytes a sandbox id may have.
const MAX_ID: usize = 128;

/// Why a piece of text is no sandbox id or no port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Empty, longer than 128 bytes, or with a byte outside `[A-Za-z0-9_-]`.
    #[error("not a sandbox id: 1 to 128 of A-Z a-z 0-9 _ -")]
    Id,
    /// Not a decimal in 1..=65535, or written with a sign or a leading zero.
    #[error("not a port: 1 to 65535, no sign, no leading zero")]
    Port,
}

/// The identity of a sandbox: `[a-z0-9_-]{1,128}`, folded to lower case.
///
/// The id becomes part of store keys, so this type is the guarantee that no `:`, `{`, `%`, `/`,
/// dot or control byte of a request ever reaches one. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SandboxId(Arc<str>);

impl SandboxId {
    /// Checks `text` and folds it to lower case.
    ///
    /// # Errors
    /// [`NameError::Id`] when it is empty, too long or has a byte that no id has.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.is_empty() || text.len() > MAX_ID {
            return Err(NameError::Id);
        }
        match byte_class::among(text) {
            byte_class::ID => Ok(Self(text.into())),
            seen if seen & (byte_class::DOT | byte_class::OTHER) == 0 => {
                Ok(Self(text.to_ascii_lowercase().into()))
            }
            _ => Err(NameError::Id),
        }
    }

    /// The id as text, in lower case.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for SandboxId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A port inside the sandbox, 1..=65535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Port(NonZeroU16);

impl Port {
    /// Where envd, the agent inside a sandbox, listens.
    pub const ENVD: Port = match NonZeroU16::new(49983) {
        Some(port) => Port(port),
        None => unreachable!(),
    };

    /// Reads a decimal without sign and without leading zero.
    ///
    /// # Errors
    /// [`NameError::Port`] for everything else.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.is_empty() || text.starts_with('0') || !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(NameError::Port);
        }
        text.parse().map(Port).map_err(|_| NameError::Port)
    }

    /// A port from a number; none for 0.
    #[must_use]
    pub fn new(port: u16) -> Option<Self> {
        NonZeroU16::new(port).map(Port)
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0.get()
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a request named its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RoutingForm {
    /// `<port>-<id>[.<domain>]` in Host or `:authority`.
    Host,
    /// `E2b-Sandbox-Id` and `E2b-Sandbox-Port` on a shared host.
    Header,
    /// `/sandbox/<id>/<port>[/<rest>]`.
    Path,
}

impl RoutingForm {
    /// The name in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            RoutingForm::Host => "host",
            RoutingForm::Header => "header",
            RoutingForm::Path => "path",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_folded_to_lower_case() {
        assert_eq!(SandboxId::parse("AbC_9-x").unwrap().as_str(), "abc_9-x");
    }

    #[test]
    fn an_id_holds_nothing_that_could_leave_its_key() {
        for bad in
            ["", "a:b", "a{b", "a}b", "a%41", "a/b", "a.b", "a b", "a\r\nb", "é", "a\0", &"a".repeat(129)]
        {
            assert_eq!(SandboxId::parse(bad), Err(NameError::Id), "{bad:?}");
        }
        assert!(SandboxId::parse(&"a".repeat(128)).is_ok());
    }

    #[test]
    fn a_port_is_a_plain_decimal() {
        for bad in ["", "0", "00", "08080", "+80", "-1", "65536", "99999999999", "80a", " 80", "8 0", "٣"] {
            assert_eq!(Port::parse(bad), Err(NameError::Port), "{bad:?}");
        }
        assert_eq!(Port::parse("65535").unwrap().get(), 65535);
        assert_eq!(Port::parse("1").unwrap().get(), 1);
        assert_eq!(Port::ENVD.get(), 49983);
    }
}
