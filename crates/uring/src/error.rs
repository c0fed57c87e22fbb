//! Why io_uring is not to be had, and the mend.

use std::{fmt, fs, io};

/// An io_uring call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody forbids io_uring here.
    #[error("{call} was refused ({source}): {refusal}")]
    Refused {
        /// The system call.
        call: &'static str,
        /// Who refused, as far as can be seen from inside.
        refusal: Refusal,
        /// What the call returned.
        source: io::Error,
    },
    /// The kernel is too old.
    #[error("this kernel's io_uring lacks {feature}; Linux 6.1 or newer is needed")]
    Unsupported {
        /// What is missing.
        feature: &'static str,
    },
    /// The kernel makes no ring with one of the options asked for.
    #[error("this kernel refuses {option} ({source})")]
    OptionRefused {
        /// Without it there would be a ring.
        option: RingOption,
        /// What the call returned.
        source: io::Error,
    },
    /// The call failed for a reason of its own.
    #[error("{call} failed: {source}")]
    Failed {
        /// The system call.
        call: &'static str,
        /// What the call returned.
        source: io::Error,
    },
}

/// An option of a ring that a kernel may not know or allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingOption {
    /// A submission thread on this processor.
    Processor(u32),
    /// A submission thread.
    Thread,
    /// Hybrid polling.
    Hybrid,
    /// Polling for completions.
    Poll,
    /// Big entries.
    Big,
}

impl fmt::Display for RingOption {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingOption::Processor(cpu) => write!(
                out,
                "a submission thread on processor {cpu}: it must be online and this process be \
                 allowed to use it (see `taskset -p $$`)",
            ),
            RingOption::Thread => {
                out.write_str("a ring with a submission thread (IORING_SETUP_SQPOLL)")
            }
            RingOption::Hybrid => out.write_str(
                "a ring with hybrid polling (IORING_SETUP_HYBRID_IOPOLL, Linux 6.13): poll without",
            ),
            RingOption::Poll => {
                out.write_str("a ring that polls for completions (IORING_SETUP_IOPOLL)")
            }
            RingOption::Big => out.write_str(
                "a ring with entries of 128 bytes (IORING_SETUP_SQE128 and CQE32, Linux 5.19)",
            ),
        }
    }
}

/// Who refuses io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `kernel.io_uring_disabled` has this value, 1 or 2.
    Sysctl(u32),
    /// A seccomp filter is in force on this thread, as container runtimes apply.
    Seccomp,
    /// Not permitted, and neither of the two above: a security module.
    SecurityModule,
    /// The kernel was built without `CONFIG_IO_URING`.
    NotBuilt,
    /// Not enough memory may be locked (`RLIMIT_MEMLOCK`).
    LockedMemory,
    /// The environment says that it is not to be used ([`VARIABLE`]).
    Environment,
}

/// The environment variable that forbids io_uring to this process, if it is `off`: what is left works as where others do.
pub const VARIABLE: &str = "NVLANE_IO_URING";

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Sysctl(1) => out.write_str(
                "sysctl kernel.io_uring_disabled is 1, so only CAP_SYS_ADMIN and the group in \
                 kernel.io_uring_group may use it: join that group, or run \
                 `sysctl -w kernel.io_uring_disabled=0` as root",
            ),
            Refusal::Sysctl(value) => write!(
                out,
                "sysctl kernel.io_uring_disabled is {value}, so nobody may use it: run \
                 `sysctl -w kernel.io_uring_disabled=0` as root",
            ),
            Refusal::Seccomp => out.write_str(
                "a seccomp profile is in force (container runtimes apply one by default): allow \
                 io_uring_setup, io_uring_enter and io_uring_register in it, for example with \
                 `--security-opt seccomp=PROFILE.json`",
            ),
            Refusal::SecurityModule => out.write_str(
                "neither a seccomp profile nor kernel.io_uring_disabled forbids it, so a security \
                 module (SELinux, AppArmor) does: allow io_uring for this program in its policy",
            ),
            Refusal::NotBuilt => out.write_str(
                "the kernel was built without CONFIG_IO_URING: boot one that has it, 6.1 or newer",
            ),
            Refusal::LockedMemory => out.write_str(
                "RLIMIT_MEMLOCK is too small: raise it (`ulimit -l`, or LimitMEMLOCK= in a unit)",
            ),
            Refusal::Environment => write!(out, "{VARIABLE}=off says so: unset it"),
        }
    }
}

impl Error {
    /// What the environment forbids.
    pub(crate) fn of_environment() -> Option<Error> {
        let forbids = std::env::var_os(VARIABLE).is_some_and(|value| value == "off");
        forbids.then(|| Error::Refused {
            call: "io_uring_setup",
            refusal: Refusal::Environment,
            source: io::Error::from_raw_os_error(libc::EPERM),
        })
    }

    /// Explains a failed `call` by what `/proc` tells about this thread and machine.
    pub fn explain(call: &'static str, source: io::Error) -> Error {
        let sysctl = fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
            .ok()
            .and_then(|text| text.trim().parse().ok());
        let seccomp = fs::read_to_string("/proc/thread-self/status").ok().and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("Seccomp:"))?;
            line.trim().parse().ok()
        });
        Self::diagnose(call, source, sysctl.unwrap_or(0), seccomp.unwrap_or(0))
    }

    /// `sysctl` is the value of kernel.io_uring_disabled, `seccomp` the thread's mode (2: filter).
    fn diagnose(call: &'static str, source: io::Error, sysctl: u32, seccomp: u32) -> Error {
        let refusal = match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) if sysctl > 0 => Refusal::Sysctl(sysctl),
            Some(libc::EPERM | libc::EACCES | libc::ENOSYS) if seccomp == 2 => Refusal::Seccomp,
            Some(libc::EPERM | libc::EACCES) => Refusal::SecurityModule,
            Some(libc::ENOSYS) => Refusal::NotBuilt,
            Some(libc::ENOMEM) => Refusal::LockedMemory,
            _ => return Error::Failed { call, source },
        };
        Error::Refused { call, refusal, source }
    }

    /// Whether io_uring as such is not to be had, whatever is asked of it.
    pub fn is_refusal(&self) -> bool {
        match self {
            Error::Refused { refusal, .. } => *refusal != Refusal::LockedMemory,
            Error::Unsupported { .. } => true,
            Error::OptionRefused { .. } | Error::Failed { .. } => false,
        }
    }

    /// The error number of the call, if a call failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Refused { source, .. }
            | Error::OptionRefused { source, .. }
            | Error::Failed { source, .. } => source.raw_os_error(),
            Error::Unsupported { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(errno: i32, sysctl: u32, seccomp: u32) -> Option<Refusal> {
        let source = io::Error::from_raw_os_error(errno);
        match Error::diagnose("io_uring_setup", source, sysctl, seccomp) {
            Error::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }

    #[test]
    fn each_refusal_is_told_apart() {
        assert_eq!(refusal(libc::EPERM, 2, 2), Some(Refusal::Sysctl(2)));
        assert_eq!(refusal(libc::EPERM, 0, 2), Some(Refusal::Seccomp));
        assert_eq!(refusal(libc::ENOSYS, 0, 2), Some(Refusal::Seccomp));
        assert_eq!(refusal(libc::ENOSYS, 0, 0), Some(Refusal::NotBuilt));
        assert_eq!(refusal(libc::EPERM, 0, 0), Some(Refusal::SecurityModule));
        assert_eq!(refusal(libc::ENOMEM, 0, 0), Some(Refusal::LockedMemory));
        assert_eq!(refusal(libc::EMFILE, 0, 0), None);
    }

    #[test]
    fn the_message_names_what_to_allow() {
        let source = io::Error::from_raw_os_error(libc::EPERM);
        let text = Error::diagnose("io_uring_setup", source, 0, 2).to_string();
        for call in ["io_uring_setup", "io_uring_enter", "io_uring_register"] {
            assert!(text.contains(call), "{text}");
        }
    }
}
