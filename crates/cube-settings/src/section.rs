//! The declaration of a section of the configuration file.

use crate::Described;

/// When another value of a key takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// At SIGHUP.
    Live,
    /// With a new process: a hot restart or a restart.
    Restart,
}

/// Whether a key has the same value in two settings.
pub type Same<S> = dyn Fn(&S, &S) -> bool + Send + Sync;

/// A key of a section. One that names a file with a secret stands for the secret in it.
pub struct KeyOf<S: ?Sized> {
    /// Dotted path in the file.
    pub name: &'static str,
    /// When another value takes effect.
    pub takes: Takes,
    /// Whether it has the same value in both.
    pub same: Box<Same<S>>,
}

/// How a key is written in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// A section with its keys in order.
    Section(Vec<(&'static str, Shape)>),
    /// A value, its kind in words.
    Value(String),
}

/// Settings that are a section of the configuration file; see [`section!`](crate::section!).
pub trait Section: Sized + 'static {
    /// Its keys, in the order of the file.
    fn keys() -> Vec<KeyOf<Self>>;

    /// The last part of each key's name, and how it is written.
    fn described() -> Vec<(&'static str, Shape)>;

    /// Leaves the keys that only a new process can take as they are in `running`.
    fn keep_running(&mut self, running: &Self);
}

/// How a value of `T` is written in the file.
pub trait FileForm<T>: Described {
    /// The value.
    fn read(self) -> T;

    /// How it is written.
    fn write(value: &T) -> Self;
}

impl<T, W: FileForm<T>> FileForm<Option<T>> for Option<W> {
    fn read(self) -> Option<T> {
        self.map(W::read)
    }

    fn write(value: &Option<T>) -> Self {
        value.as_ref().map(W::write)
    }
}

impl<T, W: FileForm<T>> FileForm<Vec<T>> for Vec<W> {
    fn read(self) -> Vec<T> {
        self.into_iter().map(W::read).collect()
    }

    fn write(value: &Vec<T>) -> Self {
        value.iter().map(W::write).collect()
    }
}

/// Values that are written as they are.
macro_rules! as_they_are {
    ($($kind:ty),*) => {
        $(impl FileForm<$kind> for $kind {
            fn read(self) -> $kind {
                self
            }

            fn write(value: &$kind) -> Self {
                value.clone()
            }
        })*
    };
}

as_they_are!(bool, u16, u32, String, crate::Secret);

/// Declares a key's words: an enum whose variants are written as these.
#[macro_export]
macro_rules! choice {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $( $(#[$variant_meta:meta])* $variant:ident = $word:literal ),+ $(,)? }
    ) => {
        $(#[$meta])*
        #[derive($crate::serde::Deserialize, $crate::serde::Serialize)]
        #[serde(crate = "cube_settings::serde")]
        pub enum $name {
            $( $(#[$variant_meta])* #[serde(rename = $word)] $variant ),+
        }

        impl $crate::Described for $name {
            fn words() -> ::std::string::String {
                [$(concat!("`", $word, "`")),+].join(", ")
            }
        }

        impl $crate::FileForm<$name> for $name {
            fn read(self) -> $name {
                self
            }

            fn write(value: &$name) -> Self {
                value.clone()
            }
        }
    };
}

/// Declares how the file writes values of another type as text: `read` judges it, and says what is wrong with it.
///
/// ```
/// cube_settings::written_as_text! {
///     /// A colour without its `#`.
///     pub struct Colour for u32 {
///         read: |text| u32::from_str_radix(text, 16).map_err(|_| format!("{text:?} is no colour")),
///         write: |colour| format!("{colour:06x}"),
///     }
/// }
/// ```
#[macro_export]
macro_rules! written_as_text {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident for $kind:ty { read: $read:expr, write: $write:expr $(,)? }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        $vis struct $name($kind);

        const _: () = {
            use $crate::serde;

            impl<'de> serde::Deserialize<'de> for $name {
                fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> ::core::result::Result<Self, D::Error> {
                    let read: fn(&str) -> ::core::result::Result<$kind, ::std::string::String> = $read;
                    let text = <::std::string::String as serde::Deserialize>::deserialize(deserializer)?;
                    read(&text).map(Self).map_err(serde::de::Error::custom)
                }
            }

            impl serde::Serialize for $name {
                fn serialize<S: serde::Serializer>(&self, serializer: S) -> ::core::result::Result<S::Ok, S::Error> {
                    let write: fn(&$kind) -> ::std::string::String = $write;
                    serializer.serialize_str(&write(&self.0))
                }
            }

            impl $crate::Described for $name {
                fn words() -> ::std::string::String {
                    "text".to_owned()
                }
            }

            impl $crate::FileForm<$kind> for $name {
                fn read(self) -> $kind {
                    self.0
                }

                fn write(value: &$kind) -> Self {
                    Self(::core::clone::Clone::clone(value))
                }
            }
        };
    };
}

/// Declares settings that are one section of the configuration file.
///
/// A key is `live` or `restart` (which of the two says [`Takes`]), a name, its type, how the file writes it
/// where that is another type (units are types of their own, [`Span`](crate::Span) and others), and its
/// default. A `section` in place of the two is settings of their own, whose path is this one's and the name.
///
/// ```
/// cube_settings::section! {
///     /// The `garden` section of config.md.
///     #[derive(Debug, Clone, PartialEq)]
///     pub struct Settings in "garden" {
///         /// Between two waterings.
///         live interval: std::time::Duration as cube_settings::NonZeroSpan = std::time::Duration::from_secs(5),
///         /// Name of the gardener.
///         restart gardener: String = "nobody".to_owned(),
///     }
/// }
/// assert_eq!(Settings::default().gardener, "nobody");
/// ```
///
/// A second block, `beside { .. }`, has fields that are no keys of the section.
#[macro_export]
macro_rules! section {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident in $path:tt {
            $( $(#[$key_meta:meta])* $takes:ident $key:ident : $kind:ty $(as $wire:ty)? = $default:expr ),+ $(,)?
        }
        $(beside { $( $(#[$other_meta:meta])* $other:ident : $other_kind:ty = $other_default:expr ),+ $(,)? })?
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $( $(#[$key_meta])* $vis $key: $kind, )+
            $($( $(#[$other_meta])* $vis $other: $other_kind, )+)?
        }

        impl ::core::default::Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)+ $($($other: $other_default,)+)? }
            }
        }

        const _: () = {
            use $crate::serde;

            #[derive(serde::Deserialize, serde::Serialize)]
            #[serde(crate = "serde", deny_unknown_fields, default, rename_all = "snake_case")]
            struct Written { $($key: $crate::written!($kind $(, $wire)?),)+ }

            impl Written {
                fn of(settings: &$name) -> Self {
                    Self { $($key: $crate::FileForm::<$kind>::write(&settings.$key),)+ }
                }
            }

            impl ::core::default::Default for Written {
                fn default() -> Self {
                    Self::of(&$name::default())
                }
            }

            impl<'de> serde::Deserialize<'de> for $name {
                fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> ::core::result::Result<Self, D::Error> {
                    let written = <Written as serde::Deserialize>::deserialize(deserializer)?;
                    Ok(Self {
                        $($key: $crate::FileForm::<$kind>::read(written.$key),)+
                        $($($other: $other_default,)+)?
                    })
                }
            }

            impl serde::Serialize for $name {
                fn serialize<S: serde::Serializer>(&self, serializer: S) -> ::core::result::Result<S::Ok, S::Error> {
                    serde::Serialize::serialize(&Written::of(self), serializer)
                }
            }

            impl $crate::Described for $name {
                fn words() -> ::std::string::String {
                    "section".to_owned()
                }
            }

            impl $crate::FileForm<$name> for $name {
                fn read(self) -> $name {
                    self
                }

                fn write(value: &$name) -> Self {
                    ::core::clone::Clone::clone(value)
                }
            }

            impl $crate::Section for $name {
                fn keys() -> ::std::vec::Vec<$crate::KeyOf<Self>> {
                    let keys = [$($crate::keys_of!($takes, $path, $key, $kind)),+];
                    keys.into_iter().flatten().collect()
                }

                fn described() -> ::std::vec::Vec<(&'static str, $crate::Shape)> {
                    ::std::vec![$((
                        stringify!($key),
                        $crate::shape!($takes, $kind, $crate::written!($kind $(, $wire)?)),
                    )),+]
                }

                fn keep_running(&mut self, running: &Self) {
                    $($crate::keep_running!($takes, self.$key, running.$key);)+
                }
            }
        };
    };
}

/// How the file writes a key.
#[doc(hidden)]
#[macro_export]
macro_rules! written {
    ($kind:ty) => {
        $kind
    };
    ($kind:ty, $wire:ty) => {
        $wire
    };
}

/// The name of a key; the file as a whole has none of its own.
#[doc(hidden)]
#[macro_export]
macro_rules! key_name {
    ("", $key:ident) => {
        stringify!($key)
    };
    ($path:literal, $key:ident) => {
        concat!($path, ".", stringify!($key))
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! keys_of {
    (live, $path:tt, $key:ident, $kind:ty) => {
        $crate::keys_of!(@one Live, $path, $key)
    };
    (restart, $path:tt, $key:ident, $kind:ty) => {
        $crate::keys_of!(@one Restart, $path, $key)
    };
    (section, $path:tt, $key:ident, $kind:ty) => {{
        let keys = <$kind as $crate::Section>::keys().into_iter();
        let of_all = |$crate::KeyOf { name, takes, same }| $crate::KeyOf {
            name,
            takes,
            same: ::std::boxed::Box::new(move |one: &Self, other: &Self| same(&one.$key, &other.$key)),
        };
        keys.map(of_all).collect::<::std::vec::Vec<$crate::KeyOf<Self>>>()
    }};
    (@one $takes:ident, $path:tt, $key:ident) => {
        ::std::vec![$crate::KeyOf {
            name: $crate::key_name!($path, $key),
            takes: $crate::Takes::$takes,
            same: ::std::boxed::Box::new(|one: &Self, other: &Self| one.$key == other.$key),
        }]
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! shape {
    (section, $kind:ty, $written:ty) => {
        $crate::Shape::Section(<$kind as $crate::Section>::described())
    };
    ($takes:ident, $kind:ty, $written:ty) => {
        $crate::Shape::Value(<$written as $crate::Described>::words())
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! keep_running {
    (live, $key:expr, $running:expr) => {};
    (restart, $key:expr, $running:expr) => {
        $key = ::core::clone::Clone::clone(&$running)
    };
    (section, $key:expr, $running:expr) => {
        $crate::Section::keep_running(&mut $key, &$running)
    };
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{NonZeroCount, NonZeroSpan, Size};

    crate::section! {
        /// A section in a section.
        #[derive(Debug, Clone, PartialEq)]
        struct Fence in "garden.fence" {
            /// Its height.
            live height: u32 = 2,
            /// What it is of.
            restart posts: String = "wood".to_owned(),
        }
    }

    crate::section! {
        /// A section.
        #[derive(Debug, Clone, PartialEq)]
        struct Garden in "garden" {
            /// Between two waterings.
            live interval: Duration as NonZeroSpan = Duration::from_secs(5),
            /// The most water.
            live water: Option<u64> as Option<Size> = None,
            /// Beds.
            restart beds: usize as NonZeroCount = 3,
            /// Names.
            restart names: Vec<String> = Vec::new(),
            /// What is around it.
            section fence: Fence = Fence::default(),
        }
        beside {
            /// Not in the file.
            weeds: usize = 7,
        }
    }

    fn read(text: &str) -> Result<Garden, String> {
        serde_yaml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_section_is_read_and_written_with_its_units_and_defaults() {
        assert_eq!(read("{}"), Ok(Garden::default()));
        let garden = read("{interval: 500ms, water: 1KiB, beds: 1, names: [rose]}").unwrap();
        assert_eq!((garden.interval, garden.water, garden.beds), (Duration::from_millis(500), Some(1024), 1));
        assert_eq!(garden.weeds, 7);
        let text = serde_yaml::to_string(&garden).unwrap();
        assert_eq!(
            text,
            "interval: 500ms\nwater: 1KiB\nbeds: 1\nnames:\n- rose\nfence:\n  height: 2\n  posts: wood\n"
        );
        for (bad, message) in [
            ("{interval: 0s}", "must be longer than 0s"),
            ("{beds: 0}", "must be at least 1"),
            ("{weeds: 1}", "unknown field `weeds`"),
            ("{interval: fast}", "such as 500ms"),
        ] {
            let error = read(bad).unwrap_err();
            assert!(error.contains(message), "{bad}: {error}");
        }
    }

    #[test]
    fn a_key_says_what_it_is_and_when_it_takes_effect() {
        let keys: Vec<_> = Garden::keys().iter().map(|key| (key.name, key.takes)).collect();
        assert_eq!(
            keys,
            [
                ("garden.interval", Takes::Live),
                ("garden.water", Takes::Live),
                ("garden.beds", Takes::Restart),
                ("garden.names", Takes::Restart),
                ("garden.fence.height", Takes::Live),
                ("garden.fence.posts", Takes::Restart),
            ]
        );
        let value = |words: &str| Shape::Value(words.to_owned());
        let shapes: Vec<_> = Garden::described().into_iter().map(|(_, shape)| shape).collect();
        let fence = Shape::Section(vec![("height", value("number")), ("posts", value("text"))]);
        assert_eq!(
            shapes,
            [value("time"), value("size, or null"), value("number"), value("list of text"), fence]
        );
    }

    #[test]
    fn what_only_a_new_process_can_take_is_left_as_it_runs() {
        let running = Garden::default();
        let mut new = read("{interval: 1s, beds: 9, names: [x], fence: {height: 3, posts: stone}}").unwrap();
        let differing = |new: &Garden| {
            Garden::keys()
                .iter()
                .filter(|key| !(key.same)(&running, new))
                .map(|key| key.name)
                .collect::<Vec<_>>()
        };
        let all =
            ["interval", "beds", "names", "fence.height", "fence.posts"].map(|key| format!("garden.{key}"));
        assert_eq!(differing(&new), all);
        new.keep_running(&running);
        assert_eq!(differing(&new), ["garden.interval", "garden.fence.height"]);
    }
}
