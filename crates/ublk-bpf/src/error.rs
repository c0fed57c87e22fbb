//! Why a program does not run in the kernel.

use crate::log::reason;
use std::io;

/// Why a program does not run in the kernel.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel is too old.
    #[error(
        "this kernel has no BPF operations of io_uring; use Linux 7.1 or newer, with CONFIG_IO_URING_BPF_OPS"
    )]
    Kernel,
    /// Privileges are missing.
    #[error("it may not be loaded: that needs CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN")]
    Permission,
    /// The object has nothing for the kernel.
    #[error("it has no {0}: compile it with this version's nvlane_bpf.h")]
    NoRoute(&'static str),
    /// The object brings a loop, as those did that were compiled before nvlane had it itself.
    #[error("it has a loop of its own: compile it anew, with this version's nvlane_bpf.h")]
    OldLoop,
    /// Its program reaches for more than programs may.
    #[error("{0}: only what nvlane_bpf.h offers runs in the kernel")]
    Foreign(String),
    /// Program and loop cannot be linked.
    #[error("it cannot be linked with the loop: {0}")]
    Link(String),
    /// Something of the loop is not there.
    #[error("the loop is not all there")]
    NoLoop,
    /// The verifier, or libbpf, has refused it.
    #[error("the kernel's verifier refuses it: {0}")]
    Refused(String),
    /// It cannot be attached to a ring.
    #[error("it cannot be attached to a ring: {0}")]
    Attach(#[source] io::Error),
    /// A ring cannot be had.
    #[error("a ring cannot be set up: {0}")]
    Ring(#[source] io::Error),
    /// A map cannot be read or written.
    #[error("a map cannot be used: {0}")]
    Map(#[source] io::Error),
    /// Maps cannot be kept for the next server.
    #[error("maps cannot be kept for the next server: {0}")]
    Kept(String),
    /// Maps of servers before cannot be taken away.
    #[error("maps that nobody keeps true any more cannot be forgotten: {0}")]
    Unforgotten(String),
    /// The volume is not made for it.
    #[error("{0}")]
    Volume(String),
}

impl Error {
    /// Loading has failed, and `log` was said.
    pub(crate) fn of_load(error: &libbpf_rs::Error, log: &str) -> Error {
        let is_verdict = log.contains("PROG LOAD LOG");
        let denied = ["-EPERM", "Operation not permitted"];
        match reason(log) {
            said if !is_verdict && denied.iter().any(|word| said.contains(word)) => {
                Error::Permission
            }
            said if said.is_empty() => Error::Refused(error.to_string()),
            said => Error::Refused(said),
        }
    }

    /// Linking has failed, and `log` was said.
    pub(crate) fn of_link(error: &impl ToString, log: &str) -> Error {
        match reason(log) {
            said if said.is_empty() => Error::Link(error.to_string()),
            said => Error::Link(said),
        }
    }

    pub(crate) fn of_map(error: libbpf_rs::Error) -> Error {
        Error::Map(io::Error::other(error.to_string()))
    }
}
