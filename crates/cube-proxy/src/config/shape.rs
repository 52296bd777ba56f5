//! What the file's values look like, for the reference: read off the types of `file`.

use cube_edge::ResponseCacheSettings;
use cube_settings::{Described, Secret, Section, Span};

use super::file::{Certificate, HeaderFile};
use super::types::{Drain, LogFormat};

/// A section with its keys in order, or a value in words.
pub(super) enum Shape {
    Section(Vec<(&'static str, Shape)>),
    Value(String),
}

/// A type of the file.
pub(super) trait Shaped {
    fn shape() -> Shape;
}

macro_rules! values {
    ($($kind:ty = $words:literal),* $(,)?) => {
        $(impl Shaped for $kind {
            fn shape() -> Shape {
                Shape::Value($words.to_owned())
            }
        })*
    };
}

values!(
    bool = "true or false",
    u16 = "number to 65535",
    u32 = "number",
    f64 = "number, such as 0.01",
    String = "text",
    Span = "time",
    Secret = "secret text",
    Certificate = "`{ cert: PATH, key: PATH }`",
    HeaderFile = "`{ name: NAME, file: PATH }`",
);

impl<T: Shaped> Shaped for Option<T> {
    fn shape() -> Shape {
        match T::shape() {
            Shape::Value(words) => Shape::Value(format!("{words}, or null")),
            section => section,
        }
    }
}

impl<T: Shaped> Shaped for Vec<T> {
    fn shape() -> Shape {
        match T::shape() {
            Shape::Value(words) => Shape::Value(format!("list of {words}")),
            section => section,
        }
    }
}

/// Settings that the crates declare themselves.
macro_rules! sections {
    ($($kind:ty),* $(,)?) => {
        $(impl Shaped for $kind {
            fn shape() -> Shape {
                let keys = <$kind as Section>::described().into_iter();
                Shape::Section(keys.map(|(key, words)| (key, Shape::Value(words))).collect())
            }
        })*
    };
}

sections!(
    cube_resolver::Settings,
    cube_lifecycle::Settings,
    cube_breaker::Settings,
    cube_edge::UpstreamSettings,
    cube_edge::Limits,
    ResponseCacheSettings,
    Drain,
);

/// Words that the crates declare themselves.
macro_rules! choices {
    ($($kind:ty),* $(,)?) => {
        $(impl Shaped for $kind {
            fn shape() -> Shape {
                Shape::Value(<$kind as Described>::words())
            }
        })*
    };
}

choices!(cube_edge::Dialect, cube_edge::LogFormat, LogFormat);
