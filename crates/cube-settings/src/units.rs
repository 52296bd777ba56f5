//! Units: how the configuration file writes times, sizes and counts, and which of them may be nothing.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::FileForm;

/// No time of the configuration is longer: beyond it sums with a clock could overflow.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// A time, written as a whole number and `ms`, `s`, `m` or `h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

impl Span {
    /// So many seconds.
    #[must_use]
    pub const fn secs(n: u64) -> Self {
        Self(Duration::from_secs(n))
    }

    /// The time that `text` writes; nothing for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Duration> {
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

/// A size in bytes, written so or as a whole number and `KiB`, `MiB` or `GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

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

/// A time that must not be zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NonZeroSpan(Span);

impl<'de> Deserialize<'de> for NonZeroSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let span = Span::deserialize(deserializer)?;
        if span.0.is_zero() {
            return Err(de::Error::custom("must be longer than 0s"));
        }
        Ok(Self(span))
    }
}

impl Serialize for NonZeroSpan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// A number of things, at most 4294967295.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count(u32);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u32::deserialize(deserializer).map(Self)
    }
}

impl Serialize for Count {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// A number of things that must not be zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NonZeroCount(u32);

impl<'de> Deserialize<'de> for NonZeroCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u32::deserialize(deserializer)? {
            0 => Err(de::Error::custom("must be at least 1")),
            number => Ok(Self(number)),
        }
    }
}

impl Serialize for NonZeroCount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl FileForm<Duration> for Span {
    fn read(self) -> Duration {
        self.0
    }

    fn write(value: &Duration) -> Self {
        Self(*value)
    }
}

impl FileForm<Duration> for NonZeroSpan {
    fn read(self) -> Duration {
        self.0.0
    }

    fn write(value: &Duration) -> Self {
        Self(Span(*value))
    }
}

impl FileForm<u64> for Size {
    fn read(self) -> u64 {
        self.0
    }

    fn write(value: &u64) -> Self {
        Self(*value)
    }
}

impl FileForm<usize> for Size {
    fn read(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    fn write(value: &usize) -> Self {
        Self(u64::try_from(*value).unwrap_or(u64::MAX))
    }
}

impl FileForm<usize> for Count {
    fn read(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    fn write(value: &usize) -> Self {
        Self(u32::try_from(*value).unwrap_or(u32::MAX))
    }
}

impl FileForm<usize> for NonZeroCount {
    fn read(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    fn write(value: &usize) -> Self {
        Self(u32::try_from(*value).unwrap_or(u32::MAX))
    }
}

impl FileForm<u32> for NonZeroCount {
    fn read(self) -> u32 {
        self.0
    }

    fn write(value: &u32) -> Self {
        Self(*value)
    }
}

/// A share of things, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share(f64);

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let share = f64::deserialize(deserializer)?;
        if !(0.0..=1.0).contains(&share) {
            return Err(de::Error::custom("must be a share, from 0 to 1"));
        }
        Ok(Self(share))
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl FileForm<f64> for Share {
    fn read(self) -> f64 {
        self.0
    }

    fn write(value: &f64) -> Self {
        Self(*value)
    }
}

/// A bound, where zero is written for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZeroIsNone<W>(W);

impl<'de, W: Deserialize<'de>> Deserialize<'de> for ZeroIsNone<W> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        W::deserialize(deserializer).map(Self)
    }
}

impl<W: Serialize> Serialize for ZeroIsNone<W> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<W: Described> Described for ZeroIsNone<W> {
    fn words() -> String {
        W::words()
    }
}

impl<T: Copy + Default + PartialEq, W: FileForm<T>> FileForm<Option<T>> for ZeroIsNone<W> {
    fn read(self) -> Option<T> {
        Some(self.0.read()).filter(|value| *value != T::default())
    }

    fn write(value: &Option<T>) -> Self {
        Self(W::write(&value.unwrap_or_default()))
    }
}

/// A value in the place of one that may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given<W>(W);

impl<'de, W: Deserialize<'de>> Deserialize<'de> for Given<W> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        W::deserialize(deserializer).map(Self)
    }
}

impl<W: Serialize> Serialize for Given<W> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<W: Described> Described for Given<W> {
    fn words() -> String {
        W::words()
    }
}

impl<T: Default, W: FileForm<T>> FileForm<Option<T>> for Given<W> {
    fn read(self) -> Option<T> {
        Some(self.0.read())
    }

    fn write(value: &Option<T>) -> Self {
        Self(value.as_ref().map_or_else(|| W::write(&T::default()), W::write))
    }
}

/// A value that follows from other keys or from the machine where the file says null. Two are equal when
/// their values are.
#[derive(Debug, Clone, Copy)]
pub struct Auto<T> {
    value: T,
    follows: bool,
}

impl<T> Auto<T> {
    /// A value that nobody wrote.
    pub const fn new(value: T) -> Self {
        Self { value, follows: true }
    }

    /// Makes it `value` where nobody wrote one.
    pub fn follow(&mut self, value: T) {
        if self.follows {
            self.value = value;
        }
    }

    /// Whether nobody wrote one.
    pub const fn follows(&self) -> bool {
        self.follows
    }
}

impl<T> std::ops::Deref for Auto<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: PartialEq> PartialEq for Auto<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: Eq> Eq for Auto<T> {}

impl<T: Default, W: FileForm<T>> FileForm<Auto<T>> for Option<W> {
    fn read(self) -> Auto<T> {
        match self {
            Some(written) => Auto { value: written.read(), follows: false },
            None => Auto::new(T::default()),
        }
    }

    fn write(value: &Auto<T>) -> Self {
        (!value.follows).then(|| W::write(&value.value))
    }
}

/// A kind of value, in the words of docs/configuration.md.
pub trait Described {
    /// The words.
    fn words() -> String;
}

macro_rules! described {
    ($($kind:ty = $words:literal),* $(,)?) => {
        $(impl Described for $kind {
            fn words() -> String {
                $words.to_owned()
            }
        })*
    };
}

described!(
    bool = "true or false",
    u16 = "number to 65535",
    u32 = "number",
    String = "text",
    Span = "time",
    NonZeroSpan = "time",
    Size = "size",
    Count = "number",
    NonZeroCount = "number",
    Share = "number, such as 0.01",
    crate::Secret = "secret text",
);

impl<T: Described> Described for Option<T> {
    fn words() -> String {
        format!("{}, or null", T::words())
    }
}

impl<T: Described> Described for Vec<T> {
    fn words() -> String {
        format!("list of {}", T::words())
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
    fn a_bound_of_zero_is_none() {
        let read =
            |text: &str| -> Option<u64> { serde_yaml::from_str::<ZeroIsNone<Size>>(text).unwrap().read() };
        assert_eq!((read("0"), read("1KiB")), (None, Some(1024)));
        let text = serde_yaml::to_string(&<ZeroIsNone<u32> as FileForm<Option<u32>>>::write(&None)).unwrap();
        assert_eq!(text, "0\n");
    }

    #[test]
    fn what_nobody_wrote_follows_and_what_somebody_wrote_stays() {
        let read = |text: &str| -> Auto<usize> {
            serde_yaml::from_str::<Option<NonZeroCount>>(text).unwrap().read()
        };
        let (mut nobody, mut somebody) = (read("null"), read("7"));
        nobody.follow(5);
        somebody.follow(5);
        assert_eq!((*nobody, *somebody), (5, 7));
        let written =
            |value: &Auto<usize>| serde_yaml::to_string(&Option::<NonZeroCount>::write(value)).unwrap();
        assert_eq!((written(&nobody).as_str(), written(&somebody).as_str()), ("null\n", "7\n"));
    }

    #[test]
    fn what_must_not_be_nothing_is_not() {
        assert!(serde_yaml::from_str::<NonZeroSpan>("1ms").is_ok());
        let nothing = serde_yaml::from_str::<NonZeroSpan>("0s").unwrap_err().to_string();
        assert!(nothing.starts_with("must be longer than 0s"), "{nothing}");
        assert!(serde_yaml::from_str::<NonZeroCount>("1").is_ok());
        let none = serde_yaml::from_str::<NonZeroCount>("0").unwrap_err().to_string();
        assert!(none.starts_with("must be at least 1"), "{none}");
    }
}
