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

/// A key of a section.
pub struct KeyOf<S: ?Sized> {
    /// Dotted path in the file.
    pub name: &'static str,
    /// When another value takes effect.
    pub takes: Takes,
    /// Whether it has the same value in both.
    pub same: fn(&S, &S) -> bool,
}

/// Settings that are a section of the configuration file; see [`section!`](crate::section!).
pub trait Section: Sized + 'static {
    /// Its keys, in the order of the file.
    fn keys() -> Vec<KeyOf<Self>>;

    /// The last part of each key's name, and its kind of value in words.
    fn described() -> Vec<(&'static str, String)>;

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

as_they_are!(bool, u16, u32, String, crate::Secret, Vec<String>, Vec<u16>);

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

/// Declares settings that are one section of the configuration file.
///
/// A key is `live` or `restart` (which of the two says [`Takes`]), a name, its type, how the file writes it
/// where that is another type (units are types of their own, [`Span`](crate::Span) and others), and its
/// default:
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
        $vis:vis struct $name:ident in $path:literal {
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

            impl $crate::Section for $name {
                fn keys() -> ::std::vec::Vec<$crate::KeyOf<Self>> {
                    ::std::vec![$($crate::KeyOf {
                        name: concat!($path, ".", stringify!($key)),
                        takes: $crate::takes!($takes),
                        same: |one, other| one.$key == other.$key,
                    }),+]
                }

                fn described() -> ::std::vec::Vec<(&'static str, ::std::string::String)> {
                    ::std::vec![$((
                        stringify!($key),
                        <$crate::written!($kind $(, $wire)?) as $crate::Described>::words(),
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

#[doc(hidden)]
#[macro_export]
macro_rules! takes {
    (live) => {
        $crate::Takes::Live
    };
    (restart) => {
        $crate::Takes::Restart
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! keep_running {
    (live, $key:expr, $running:expr) => {};
    (restart, $key:expr, $running:expr) => {
        $key = ::core::clone::Clone::clone(&$running)
    };
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{NonZeroCount, NonZeroSpan, Size};

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
        assert_eq!(text, "interval: 500ms\nwater: 1KiB\nbeds: 1\nnames:\n- rose\n");
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
            ]
        );
        let words: Vec<_> = Garden::described().into_iter().map(|(_, words)| words).collect();
        assert_eq!(words, ["time", "size, or null", "number", "list of text"]);
    }

    #[test]
    fn what_only_a_new_process_can_take_is_left_as_it_runs() {
        let running = Garden::default();
        let mut new = read("{interval: 1s, beds: 9, names: [x]}").unwrap();
        let differing = |new: &Garden| {
            Garden::keys()
                .iter()
                .filter(|key| !(key.same)(&running, new))
                .map(|key| key.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(differing(&new), ["garden.interval", "garden.beds", "garden.names"]);
        new.keep_running(&running);
        assert_eq!(differing(&new), ["garden.interval"]);
    }
}
