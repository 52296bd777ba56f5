//! Values as the file writes them: `3s`, `64KiB`, and text that must not be shown.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::types::Secret;

/// No time of the configuration is longer: beyond it sums with a clock could overflow.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// A duration: a whole number and `ms`, `s`, `m` or `h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span(pub(super) Duration);

impl Span {
    pub(super) const fn secs(n: u64) -> Self {
        Self(Duration::from_secs(n))
    }

    pub(super) fn parse(text: &str) -> Option<Duration> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at_checked(digits)?;
        let factor = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        let span = Duration::from_millis(number.parse::<u64>().ok()?.checked_mul(factor)?);
        (span <= LONGEST).then_some(span)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Span;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration of at most a year such as 500ms, 3s, 10m or 1h")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                Span::parse(text).map(Span).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ms = self.0.as_millis();
        let text = [(3_600_000, "h"), (60_000, "m"), (1000, "s")]
            .into_iter()
            .find(|(unit, _)| ms > 0 && ms.is_multiple_of(*unit))
            .map_or_else(|| format!("{ms}ms"), |(unit, name)| format!("{}{name}", ms / unit));
        serializer.serialize_str(&text)
    }
}

/// A size: bytes, or a whole number and `KiB`, `MiB` or `GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size(pub(super) u64);

impl Size {
    fn parse(text: &str) -> Option<u64> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at_checked(digits)?;
        let factor = match unit {
            "" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return None,
        };
        number.parse::<u64>().ok()?.checked_mul(factor)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Size;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as 4096, 64KiB, 256MiB or 1GiB")
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                Size::parse(text).map(Size).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Bytes)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]
            .into_iter()
            .find(|(unit, _)| self.0 > 0 && self.0.is_multiple_of(*unit))
            .map_or_else(|| self.0.to_string(), |(unit, name)| format!("{}{name}", self.0 / unit));
        serializer.serialize_str(&text)
    }
}

/// A secret in the file. What is no text is refused without being repeated in the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SecretText(pub(super) Secret);

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match serde_yaml::Value::deserialize(deserializer)? {
            serde_yaml::Value::String(text) => Ok(Self(Secret::new(text))),
            _ => Err(de::Error::custom("a secret must be text: put it in quotes")),
        }
    }
}

impl Serialize for SecretText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(text: &str) -> Result<Duration, String> {
        serde_yaml::from_str::<Span>(text).map(|span| span.0).map_err(|error| error.to_string())
    }

    fn size(text: &str) -> Result<u64, String> {
        serde_yaml::from_str::<Size>(text).map(|size| size.0).map_err(|error| error.to_string())
    }

    #[test]
    fn durations_are_a_whole_number_and_a_unit() {
        assert_eq!(span("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(span("3s"), Ok(Duration::from_secs(3)));
        assert_eq!(span("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(span("\"1h\""), Ok(Duration::from_secs(3600)));
        assert_eq!(span("0s"), Ok(Duration::ZERO));
        for bad in [
            "fast",
            "3",
            "3 s",
            "-3s",
            "+3s",
            "1.5s",
            "3sec",
            "3S",
            "s",
            "''",
            "1h30m",
            "[3s]",
            "99999999999999999999s",
            "8785h",
            "18446744073709551615h",
            "٣s",
        ] {
            let message = span(bad).unwrap_err();
            assert!(message.contains("such as 500ms, 3s, 10m or 1h"), "{bad}: {message}");
        }
    }

    #[test]
    fn sizes_are_bytes_or_a_binary_unit() {
        assert_eq!(size("512"), Ok(512));
        assert_eq!(size("\"512\""), Ok(512));
        assert_eq!(size("64KiB"), Ok(65_536));
        assert_eq!(size("256MiB"), Ok(268_435_456));
        assert_eq!(size("1GiB"), Ok(1_073_741_824));
        assert_eq!(size("0"), Ok(0));
        for bad in ["64kb", "64K", "64 KiB", "-1", "1.5MiB", "much", "[1]", "99999999999GiB", "true"] {
            let message = size(bad).unwrap_err();
            assert!(message.contains("such as 4096, 64KiB"), "{bad}: {message}");
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        for text in ["1ms", "1500ms", "7206s", "10m", "1h"] {
            let value: Span = serde_yaml::from_str(text).unwrap();
            assert_eq!(serde_yaml::to_string(&value).unwrap().trim(), text);
        }
        for text in ["1KiB", "256MiB", "1GiB"] {
            let value: Size = serde_yaml::from_str(text).unwrap();
            assert_eq!(serde_yaml::to_string(&value).unwrap().trim(), text);
        }
    }

    #[test]
    fn a_secret_is_never_shown() {
        let secret: SecretText = serde_yaml::from_str("example-token").unwrap();
        assert_eq!(secret.0.expose(), "example-token");
        assert!(!format!("{secret:?}{}", serde_yaml::to_string(&secret).unwrap()).contains("example"));
        let message = serde_yaml::from_str::<SecretText>("918273645").unwrap_err().to_string();
        assert!(message.contains("quotes") && !message.contains("918273645"), "{message}");
    }
}
