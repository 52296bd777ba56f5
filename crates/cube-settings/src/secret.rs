//! A secret: a password, a token, or a URL that may hold one.

use std::fmt;

use constant_time_eq::constant_time_eq;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};
use zeroize::Zeroize;

/// Bytes that must not be shown. It has no `Display`, `Debug` and serialisation do not show it, comparing
/// takes the same time wherever two secrets of one length differ, and its memory is overwritten when it is
/// dropped.
#[derive(Clone)]
pub struct Secret(Box<[u8]>);

impl Secret {
    /// Wraps `bytes`, which may be none.
    #[must_use]
    pub fn new(bytes: impl AsRef<[u8]>) -> Self {
        Self(bytes.as_ref().into())
    }

    /// Wraps `bytes`; `None` where there are none, which is no secret.
    #[must_use]
    pub fn non_empty(bytes: impl AsRef<[u8]>) -> Option<Self> {
        (!bytes.as_ref().is_empty()).then(|| Self::new(bytes))
    }

    /// The secret itself, for whoever has to present it.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// The secret as text; empty where it is no UTF-8, which no secret of the configuration is.
    #[must_use]
    pub fn expose_text(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `presented` is this secret, in constant time.
    #[must_use]
    pub fn matches(&self, presented: &[u8]) -> bool {
        constant_time_eq(&self.0, presented)
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.matches(&other.0)
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("(secret)")
    }
}

/// What is no text is refused without being repeated in the message.
impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        fn refuse<E: de::Error>() -> Result<Secret, E> {
            Err(E::custom("a secret must be text: put it in quotes"))
        }

        impl<'de> Visitor<'de> for Text {
            type Value = Secret;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Secret, E> {
                Ok(Secret::new(text))
            }

            fn visit_bool<E: de::Error>(self, _: bool) -> Result<Secret, E> {
                refuse()
            }

            fn visit_i64<E: de::Error>(self, _: i64) -> Result<Secret, E> {
                refuse()
            }

            fn visit_u64<E: de::Error>(self, _: u64) -> Result<Secret, E> {
                refuse()
            }

            fn visit_f64<E: de::Error>(self, _: f64) -> Result<Secret, E> {
                refuse()
            }

            fn visit_unit<E: de::Error>(self) -> Result<Secret, E> {
                refuse()
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, _: A) -> Result<Secret, A::Error> {
                refuse()
            }

            fn visit_map<A: de::MapAccess<'de>>(self, _: A) -> Result<Secret, A::Error> {
                refuse()
            }
        }

        deserializer.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_shown() {
        let secret: Secret = serde_yaml::from_str("example-token").unwrap();
        assert_eq!((secret.expose_text(), secret.expose()), ("example-token", &b"example-token"[..]));
        assert!(!format!("{secret:?}{}", serde_yaml::to_string(&secret).unwrap()).contains("example"));
        for other in ["918273645", "-918273645", "9182.73645", "[918273645]", "{a: 918273645}", "true", "~"] {
            let message = serde_yaml::from_str::<Secret>(other).unwrap_err().to_string();
            assert!(message.contains("quotes") && !message.contains("918273645"), "{message}");
        }
    }

    #[test]
    fn only_the_same_bytes_match() {
        let secret = Secret::new("example-token");
        assert!(secret.matches(b"example-token"));
        for other in ["example-toke", "example-tokens", "Example-token", ""] {
            assert!(!secret.matches(other.as_bytes()), "{other}");
        }
        assert_eq!(secret, secret.clone());
        assert_ne!(secret, Secret::new("other"));
        assert_eq!(Secret::non_empty(""), None);
        assert!(Secret::new("").is_empty());
    }
}
