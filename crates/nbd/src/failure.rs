//! Why a request failed: the protocol's error values, and which of them an NVMe status becomes.

use nvme::Status;
use std::fmt;

/// An error value ("Error values").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    /// Operation not permitted.
    Perm = 1,
    /// Input/output error.
    Io = 5,
    /// Invalid argument.
    Inval = 22,
    /// No space left on device.
    NoSpc = 28,
    /// Value too large.
    Overflow = 75,
    /// Operation not supported.
    NotSup = 95,
    /// The server is stopping.
    Shutdown = 108,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For the client's program.
    pub code: Code,
    /// For people.
    pub why: Why,
}

/// What went wrong, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The request is wrong.
    Request(&'static str),
    /// The volume said so.
    Volume(Status),
}

impl Failure {
    /// A request that is refused.
    pub const fn refused(code: Code, why: &'static str) -> Failure {
        Failure { code, why: Why::Request(why) }
    }

    /// The volume failed a command of a request; `writes` if the request changes anything.
    pub fn of(status: Status, writes: bool) -> Failure {
        let code = match status.code() {
            Status::NAMESPACE_WRITE_PROTECTED
            | Status::ACCESS_DENIED
            | Status::RESERVATION_CONFLICT => Code::Perm,
            Status::CAPACITY_EXCEEDED => Code::NoSpc,
            // "ENOSPC if it receives a write request including one or more sectors beyond the size
            // of the device", EINVAL for the others.
            Status::LBA_OUT_OF_RANGE if writes => Code::NoSpc,
            Status::LBA_OUT_OF_RANGE | Status::INVALID_FIELD | Status::INVALID_OPCODE => {
                Code::Inval
            }
            Status::ABORT_REQUESTED => Code::Shutdown,
            _ => Code::Io,
        };
        Failure { code, why: Why::Volume(status) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why {
            Why::Request(words) => f.write_str(words),
            Why::Volume(status) => write!(f, "{status}"),
        }
    }
}

/// A peer that breaks the protocol in a way that cannot be answered: it is disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misbehaved {
    /// Client flags that were not offered.
    #[error("client flags {0:#x} were not offered")]
    ClientFlags(u32),
    /// An option does not begin as options do.
    #[error("an option begins with {0:#018x}")]
    OptionMagic(u64),
    /// An export that does not exist was chosen by the option that has no reply.
    #[error("an export of that name does not exist")]
    UnknownExport,
    /// The client never comes to the point.
    #[error("more than {0} options")]
    TooManyOptions(u32),
    /// A request does not begin as requests do.
    #[error("a request begins with {0:#010x}")]
    RequestMagic(u32),
    /// A write of more than anybody may send.
    #[error("a write of {0} bytes")]
    Payload(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_become_the_errors_that_the_protocol_names() {
        for (status, writes, code) in [
            (Status::CAPACITY_EXCEEDED, true, Code::NoSpc),
            (Status::LBA_OUT_OF_RANGE.dnr(), true, Code::NoSpc),
            (Status::LBA_OUT_OF_RANGE.dnr(), false, Code::Inval),
            (Status::NAMESPACE_WRITE_PROTECTED.dnr(), true, Code::Perm),
            (Status::UNRECOVERED_READ, false, Code::Io),
            (Status::HOST_PATHING_ERROR, true, Code::Io),
            (Status::ABORT_REQUESTED, true, Code::Shutdown),
        ] {
            assert_eq!(Failure::of(status, writes).code, code, "{status}");
        }
    }
}
