//! How every wire structure of this crate is declared.

/// Declares a little-endian structure without padding, and checks its size at compile time.
macro_rules! wire {
    ($($(#[$meta:meta])* pub struct $name:ident[$size:expr] { $($body:tt)* })*) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
        pub struct $name { $($body)* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}
pub(crate) use wire;

/// Declares an open enumeration: a newtype with named values, in which unknown values survive.
macro_rules! open_enum {
    ($($(#[$meta:meta])* pub enum $name:ident: $repr:ty {
        $($(#[$value_meta:meta])* $value:ident = $number:expr,)*
    })*) => {$(
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
        pub struct $name(pub $repr);
        impl $name {
            $($(#[$value_meta])* pub const $value: $name = $name($number);)*
        }
    )*};
}
pub(crate) use open_enum;
