//! Enums with stable names: the enum, the list of its variants and their names are declared in one place.

use thiserror::Error;

/// No variant has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a known name")]
pub struct UnknownName(pub String);

/// Declares an enum with `ALL`, `name()`, `variant()`, `Display`, `FromStr`, `Serialize` and `Deserialize`.
#[macro_export]
macro_rules! named_enum {
    ($(#[$meta:meta])* $vis:vis enum $Name:ident { $($(#[$doc:meta])* $Variant:ident = $name:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        $vis enum $Name {
            $(#[doc = concat!("`", $name, "`.")] $(#[$doc])* $Variant),+
        }

        impl $Name {
            /// All variants, in order.
            $vis const ALL: &'static [Self] = &[$(Self::$Variant),+];

            /// The stable name.
            $vis const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name),+
                }
            }

            /// The name in CamelCase, which is a valid reason of a condition.
            $vis const fn variant(self) -> &'static str {
                match self {
                    $(Self::$Variant => stringify!($Variant)),+
                }
            }
        }

        impl ::std::fmt::Display for $Name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl ::std::str::FromStr for $Name {
            type Err = $crate::named::UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                let found = Self::ALL.iter().find(|it| it.name() == name || it.variant() == name);
                found.copied().ok_or_else(|| $crate::named::UnknownName(name.to_owned()))
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $Name {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let name = <String as ::serde::Deserialize>::deserialize(deserializer)?;
                let found = Self::ALL.iter().find(|it| it.name() == name).copied();
                found.ok_or_else(|| ::serde::de::Error::custom($crate::named::UnknownName(name)))
            }
        }

        impl ::serde::Serialize for $Name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}
