//! Structures and numbers of the protocol (doc/proto.md of the NBD project), all big-endian.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! wire {
    ($($(#[$meta:meta])* pub struct $name:ident[$size:expr] { $($body:tt)* })*) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
        pub struct $name { $($body)* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

wire! {
    /// What the server says first ("Newstyle negotiation").
    pub struct Greeting[18] {
        /// [`magic::PASSWORD`].
        pub password: U64,
        /// [`magic::OPTION`].
        pub magic: U64,
        /// [`handshake_flag`]s.
        pub flags: U16,
    }

    /// Head of an option; its data follows.
    pub struct OptionHeader[16] {
        /// [`magic::OPTION`].
        pub magic: U64,
        /// What is asked: [`option`].
        pub option: U32,
        /// Bytes of data.
        pub length: U32,
    }

    /// Head of a reply to an option; its data follows.
    pub struct OptionReply[20] {
        /// [`magic::OPTION_REPLY`].
        pub magic: U64,
        /// The option that is answered.
        pub option: U32,
        /// What the reply says: [`rep`].
        pub kind: U32,
        /// Bytes of data.
        pub length: U32,
    }

    /// The answer to `NBD_OPT_EXPORT_NAME`, and with its type before it `NBD_INFO_EXPORT`.
    pub struct ExportReply[10] {
        /// Size of the export in bytes.
        pub bytes: U64,
        /// [`transmission_flag`]s.
        pub flags: U16,
    }

    /// Data of `NBD_INFO_BLOCK_SIZE` after its type.
    pub struct BlockSizes[12] {
        /// Bytes to which requests are aligned.
        pub minimum: U32,
        /// Bytes from which on requests are efficient.
        pub preferred: U32,
        /// Most bytes of a payload.
        pub payload_max: U32,
    }

    /// A request; the data of a write follows.
    pub struct RequestHeader[28] {
        /// [`magic::REQUEST`].
        pub magic: U32,
        /// [`command_flag`]s.
        pub flags: U16,
        /// What is asked: [`command`].
        pub kind: U16,
        /// The client's name for it.
        pub cookie: U64,
        /// First byte.
        pub offset: U64,
        /// Bytes.
        pub length: U32,
    }

    /// A simple reply; the data of a read follows if there is no error.
    pub struct SimpleReply[16] {
        /// [`magic::SIMPLE_REPLY`].
        pub magic: U32,
        /// Zero or an error.
        pub error: U32,
        /// The request's.
        pub cookie: U64,
    }

    /// Head of a chunk of a structured reply; its payload follows.
    pub struct ChunkHeader[20] {
        /// [`magic::STRUCTURED_REPLY`].
        pub magic: U32,
        /// [`CHUNK_DONE`] on the last of a reply.
        pub flags: U16,
        /// What the payload is: [`chunk`].
        pub kind: U16,
        /// The request's.
        pub cookie: U64,
        /// Bytes of payload.
        pub length: U32,
    }

    /// One extent in a reply to `NBD_CMD_BLOCK_STATUS`.
    pub struct Descriptor[8] {
        /// Bytes, at least one.
        pub length: U32,
        /// [`STATE_HOLE`], [`STATE_ZERO`].
        pub state: U32,
    }
}

/// What messages begin with.
pub mod magic {
    /// The server's first word: `NBDMAGIC`.
    pub const PASSWORD: u64 = 0x4e42_444d_4147_4943;
    /// The server's second word, and each option's first: `IHAVEOPT`.
    pub const OPTION: u64 = 0x4948_4156_454f_5054;
    /// A reply to an option.
    pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
    /// A request.
    pub const REQUEST: u32 = 0x2560_9513;
    /// A simple reply.
    pub const SIMPLE_REPLY: u32 = 0x6744_6698;
    /// A chunk of a structured reply.
    pub const STRUCTURED_REPLY: u32 = 0x668e_33ef;
}

/// Handshake flags and client flags, which have the same bits.
pub mod handshake_flag {
    /// Fixed newstyle.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No 124 zeroes after `NBD_OPT_EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags.
pub mod transmission_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// Flush.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// Force unit access.
    pub const SEND_FUA: u16 = 1 << 3;
    /// Trim.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// Write zeroes.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// Reads in one piece; with structured replies only.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// Cache.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// Write zeroes only if that is fast.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Options.
pub mod option {
    /// Choose an export, without a reply that could tell an error.
    pub const EXPORT_NAME: u32 = 1;
    /// Leave.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// TLS.
    pub const STARTTLS: u32 = 5;
    /// Tell of an export.
    pub const INFO: u32 = 6;
    /// Choose an export.
    pub const GO: u32 = 7;
    /// Structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Kinds of replies to options.
pub mod rep {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export.
    pub const SERVER: u32 = 2;
    /// Something about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is not known.
    pub const ERR_UNSUP: u32 = 1 << 31 | 1;
    /// The option makes no sense.
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    /// The option is too large.
    pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;
}

/// What can be told of an export.
pub mod info {
    /// Size and flags.
    pub const EXPORT: u16 = 0;
    /// Its canonical name.
    pub const NAME: u16 = 1;
    /// Words for people.
    pub const DESCRIPTION: u16 = 2;
    /// Size constraints.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Requests.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write.
    pub const WRITE: u16 = 1;
    /// Disconnect.
    pub const DISC: u16 = 2;
    /// Flush.
    pub const FLUSH: u16 = 3;
    /// Trim.
    pub const TRIM: u16 = 4;
    /// Cache.
    pub const CACHE: u16 = 5;
    /// Write zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// Block status.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod command_flag {
    /// Durable before it is answered.
    pub const FUA: u16 = 1 << 0;
    /// Zeroes that take room.
    pub const NO_HOLE: u16 = 1 << 1;
    /// A read in one piece.
    pub const DF: u16 = 1 << 2;
    /// One extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Zeroes only if that is fast.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Kinds of chunks.
pub mod chunk {
    /// Nothing: the end.
    pub const NONE: u16 = 0;
    /// Data, after its offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Extents, after their context.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error.
    pub const ERROR: u16 = 1 << 15 | 1;
}

/// The last chunk of a reply.
pub const CHUNK_DONE: u16 = 1 << 0;

/// Of an extent: takes no room.
pub const STATE_HOLE: u32 = 1 << 0;
/// Of an extent: reads as zeroes.
pub const STATE_ZERO: u32 = 1 << 1;

/// The metadata context that tells of holes.
pub const BASE_ALLOCATION: &[u8] = b"base:allocation";
