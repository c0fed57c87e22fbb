//! The kernel's answers as NVMe statuses.

use nvme::Status;

/// What an errno means depends on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Circumstances {
    /// The device is the head of several controllers' ways, and none of them can be used.
    pub(super) no_path: bool,
    /// The device has been removed.
    pub(super) gone: bool,
    /// The device is one of several ways, among which somebody above chooses.
    pub(super) is_path: bool,
    /// Whoever made the command wanted it to be given up after some time.
    pub(super) has_timeout: bool,
    /// Completions are polled for, and the data is in a registered buffer.
    pub(super) is_polled_fixed: bool,
}

/// The status that tells an error of the kernel best. Those that `association::retry` lets be tried
/// again are chosen so: what surely was not carried out, or was cancelled because its controller is
/// being reset.
pub(super) fn of_errno(errno: i32, now: Circumstances) -> Status {
    match errno {
        // The reactor is stopping.
        libc::ECANCELED => Status::ABORT_REQUESTED.dnr(),
        _ if now.gone => removed(now),
        // Cancelled by the driver: a time-out, a reset (which a time-out may be the cause of, so that there is no path
        // now), or the removal of the device.
        libc::EINTR if now.has_timeout => Status::ABORT_REQUESTED.dnr(),
        _ if now.no_path => Status::HOST_PATHING_ERROR,
        libc::EINTR => Status::HOST_PATHING_ERROR,
        // Linux 7.2 says so of polled commands with registered buffers that it could not start at once,
        // because their controller is being reset.
        libc::EFAULT if now.is_polled_fixed => Status::COMMAND_INTERRUPTED,
        // Memory of the caller's that is not there, or may not be written to.
        libc::EFAULT => Status::DATA_TRANSFER_ERROR.dnr(),
        libc::EAGAIN | libc::EBUSY | libc::ENOMEM | libc::ENOBUFS => Status::COMMAND_INTERRUPTED,
        libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN => removed(now),
        libc::EACCES | libc::EPERM | libc::EBADF => Status::OPERATION_DENIED.dnr(),
        libc::EROFS => Status::NAMESPACE_WRITE_PROTECTED.dnr(),
        libc::EINVAL => Status::INVALID_FIELD.dnr(),
        libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS => Status::INVALID_OPCODE.dnr(),
        libc::ENOSPC => Status::CAPACITY_EXCEEDED.dnr(),
        libc::ETIMEDOUT => Status::ABORT_REQUESTED.dnr(),
        _ => Status::INTERNAL,
    }
}

/// The way is gone, or the namespace itself.
fn removed(now: Circumstances) -> Status {
    if now.is_path { Status::HOST_PATHING_ERROR } else { Status::NAMESPACE_NOT_READY.dnr() }
}

/// What to tell people about it, once.
pub(super) fn words(errno: i32, now: Circumstances) -> &'static str {
    match errno {
        _ if now.gone => "the device was removed",
        libc::EINTR if now.has_timeout => {
            "the driver cancelled a command, which timed out or whose controller is reset"
        }
        _ if now.no_path => {
            "no controller of the subsystem leads to it now; what may be is tried again"
        }
        libc::EINTR => "the driver cancelled a command: it timed out, or its controller is reset",
        libc::EACCES | libc::EPERM => {
            "the kernel does not let this user pass the command: vendor specific and most admin \
             commands take CAP_SYS_ADMIN, others a device that can be written to and that lists \
             them in its Commands Supported and Effects log; nobody may set the features that are \
             the driver's own (number of queues, host behavior support, host memory)"
        }
        libc::EBADF => "the device was opened for reading only",
        libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN => "the device is gone, or being removed",
        libc::EINVAL => {
            "the kernel finds the command invalid: too long, data that is not aligned to four \
             bytes, or metadata on a namespace that has none"
        }
        libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS => {
            "the kernel's driver does not pass commands in this way"
        }
        libc::EFAULT if !now.is_polled_fixed => "a command's memory is not there",
        libc::EAGAIN | libc::EBUSY | libc::ENOMEM | libc::ENOBUFS | libc::EFAULT => {
            "the kernel is short of something; what may be is tried again"
        }
        _ => "the kernel could not carry out a command",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use association::retry::{Retry, may_retry};
    use nvme::{Command, opcode};

    #[test]
    fn every_errno_has_the_status_that_says_most() {
        let plain = Circumstances::default();
        let timed = Circumstances { has_timeout: true, ..plain };
        let no_path = Circumstances { no_path: true, ..plain };
        let gone = Circumstances { gone: true, no_path: true, ..plain };
        let path = Circumstances { is_path: true, ..plain };
        let polled = Circumstances { is_polled_fixed: true, ..plain };
        let table = [
            (libc::EINTR, plain, Status::HOST_PATHING_ERROR),
            (libc::EINTR, timed, Status::ABORT_REQUESTED.dnr()),
            (libc::EINTR, Circumstances { no_path: true, ..timed }, Status::ABORT_REQUESTED.dnr()),
            (libc::EINTR, no_path, Status::HOST_PATHING_ERROR),
            (libc::EINTR, gone, Status::NAMESPACE_NOT_READY.dnr()),
            (libc::EINVAL, plain, Status::INVALID_FIELD.dnr()),
            (libc::EINVAL, no_path, Status::HOST_PATHING_ERROR),
            (libc::EINVAL, gone, Status::NAMESPACE_NOT_READY.dnr()),
            (libc::EIO, plain, Status::INTERNAL),
            (libc::EIO, no_path, Status::HOST_PATHING_ERROR),
            (libc::EAGAIN, plain, Status::COMMAND_INTERRUPTED),
            (libc::ENODEV, plain, Status::NAMESPACE_NOT_READY.dnr()),
            (libc::ENODEV, path, Status::HOST_PATHING_ERROR),
            (libc::EINTR, Circumstances { gone: true, ..path }, Status::HOST_PATHING_ERROR),
            (libc::EINVAL, path, Status::INVALID_FIELD.dnr()),
            (libc::EACCES, plain, Status::OPERATION_DENIED.dnr()),
            (libc::EOPNOTSUPP, plain, Status::INVALID_OPCODE.dnr()),
            (libc::ENOTTY, plain, Status::INVALID_OPCODE.dnr()),
            (libc::EFAULT, plain, Status::DATA_TRANSFER_ERROR.dnr()),
            (libc::EFAULT, path, Status::DATA_TRANSFER_ERROR.dnr()),
            (libc::EFAULT, polled, Status::COMMAND_INTERRUPTED),
            (libc::EFAULT, gone, Status::NAMESPACE_NOT_READY.dnr()),
            (libc::ECANCELED, gone, Status::ABORT_REQUESTED.dnr()),
        ];
        for (errno, now, status) in table {
            assert_eq!(of_errno(errno, now), status, "errno {errno} {now:?}");
        }
        for errno in 1..200 {
            assert!(!of_errno(errno, plain).is_success());
            assert!(!words(errno, plain).is_empty() && !words(errno, polled).is_empty());
        }
    }

    #[test]
    fn what_is_tried_again_is_what_may_be() {
        let read = Command { opcode: opcode::io::READ, ..Command::default() };
        let append = Command { opcode: opcode::io::ZONE_APPEND, ..Command::default() };
        let plain = Circumstances::default();
        for (errno, retried) in [
            (libc::EINTR, true),
            (libc::EAGAIN, true),
            (libc::EFAULT, false),
            (libc::EINVAL, false),
            (libc::ENODEV, false),
            (libc::EACCES, false),
            (libc::ECANCELED, false),
        ] {
            let status = of_errno(errno, plain);
            assert_eq!(may_retry(&read, false, status) != Retry::No, retried, "errno {errno}");
            assert_eq!(may_retry(&append, false, status), Retry::No, "errno {errno}");
        }
    }
}
