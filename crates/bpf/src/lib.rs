//! Programs in eBPF that say where requests go: a loader, and a machine that is safe against any of them.
//!
//! ```text
//!   prog.bpf.o --load--> Program --Instance::new--> Instance: program + maps, for all cores
//!                                                      |
//!        request --> Machine (one per core) ------------'
//!                      | run: writes a list of actions into the request
//!                      v
//!                 actions::check --> Plan: parts for backends, a status, a delay
//! ```
//!
//! `bpf/nvlane_bpf.h` is the program's side of [`request`]. The machine interprets, or has code run that `bpf-native` has made ([`native`]): every access to memory is
//! checked, a run takes at most [`BUDGET`] instructions, and only the helpers of [`helper`] are there
//! ([decision 6](docs/decisions)). Whatever is wrong with an object or a run is an error that names the
//! instruction.
//!
//! What it does not do: read files or the clock, carry out actions (that is `namespace::layer::program`), or
//! promise that the kernel's verifier takes the program too.
//!
//! Key constants: [`BUDGET`], [`request::PARTS_MAX`], [`load::OBJECT_BYTES_MAX`].

#![forbid(unsafe_code)]

pub mod actions;
mod btf;
mod division;
mod fuse;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod lines;
pub mod load;
mod machine;
mod map;
mod memory;
pub mod native;
mod op;
mod program;
mod region;
pub mod request;
mod sections;
#[cfg(any(test, feature = "strategies"))]
pub mod strategies;
mod table;
mod verify;

pub use load::load;
pub use machine::{BUDGET, Machine, helper};
pub use map::{
    E2BIG, EEXIST, EINVAL, ENOENT, KEY_BYTES_MAX, MAPS_BYTES_MAX, Map, MapDefinition, MapKind,
    VALUE_BYTES_MAX,
};
pub use program::{Entry, Fault, Instance, Location, Program};
pub use region::{Owner, Words};

/// Why an instruction is refused before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such instruction.
    #[error("no instruction has opcode {0:#04x} in this form")]
    Opcode(u8),
    /// Registers are r0 to r10.
    #[error("there are only registers r0 to r10")]
    Register,
    /// r10 is read-only.
    #[error("the frame pointer r10 cannot be changed")]
    FramePointer,
    /// A jump leaves its section, or goes into the middle of an instruction.
    #[error("jumps to where no instruction of the section begins")]
    JumpTarget,
    /// A call of something that is no code.
    #[error("calls something that is no function of the program")]
    CallTarget,
    /// A helper that is not declared.
    #[error("calls helper {0}, which is not among those of nvlane_bpf.h")]
    Helper(i64),
    /// Control could run over the end.
    #[error("the code ends without exit")]
    NoEnd,
}

/// What a program did wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// An address that is in no region: null, or a number.
    #[error("an address that is neither the stack, nor the request, nor a map's value")]
    Wild,
    /// Beyond the end of the region.
    #[error("an access outside of the stack, the request or the map")]
    OutOfBounds,
    /// Not aligned to the size of the access, in a map.
    #[error("an access to a map that is not aligned to its size")]
    Misaligned,
    /// A store to constants.
    #[error("a store to constants")]
    ReadOnly,
    /// Too many functions under way.
    #[error("more than 8 functions under way")]
    TooDeep,
    /// Too many instructions.
    #[error("more than 65536 instructions: an endless loop?")]
    Budget,
    /// A helper was given something else for a map.
    #[error("a helper was given something that is no map")]
    NoMap,
    /// There is no such helper.
    #[error("there is no such helper")]
    NoHelper,
}

/// Why an object cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// It is no proper ELF object.
    #[error("not a proper object file: {0}")]
    Format(String),
    /// It is for another processor.
    #[error("not an object for BPF; compile with clang --target=bpf")]
    NotBpf,
    /// More than there may be.
    #[error("the object has too many {0}")]
    TooMuch(&'static str),
    /// There is no entry.
    #[error("the object has no NVLANE_ROUTE (section nvlane/route)")]
    NoRoute,
    /// A map cannot be had.
    #[error("map {map} {what}")]
    Map {
        /// Its name.
        map: String,
        /// What is wrong.
        what: &'static str,
    },
    /// Something in the code refers to something that is not there.
    #[error("a reference at byte {offset} of section {section} {what}")]
    Relocation {
        /// The section.
        section: String,
        /// Where in it.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// CO-RE.
    #[error(
        "the object adjusts itself to a kernel's structures (CO-RE), which there are none of here"
    )]
    Adjusting,
    /// An instruction is refused.
    #[error("{location}: {refusal}")]
    Refused {
        /// The instruction.
        location: Location,
        /// Why.
        refusal: Refusal,
    },
    /// Its maps take too much memory.
    #[error("its maps would take {} MiB; there may be {}", .0 >> 20, MAPS_BYTES_MAX >> 20)]
    Memory(u64),
}
