//! What may be sent again after a path failed it.

use nvme::log::{GetLogPage, Lid};
use nvme::opcode::{admin, io as opcode};
use nvme::{Command, Fuse, Status};
use std::time::Duration;

/// What to do with a command that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Nothing: this is its result.
    No,
    /// Send it on another path, or on the same one once that is usable again.
    OtherPath,
    /// Send it again, on any path, after the controller's Command Retry Delay Time of this number,
    /// 1 to 3; 0: at once (NVMe Base 2.1, section 4.2.3, CRD).
    Delayed(u8),
}

/// A status that a controller gave. Some have commands Aborted By Host that may have been carried out (Linux's nvmet,
/// where its own device was reset), which means to us that they were never sent: those get Host Pathing Error.
#[inline]
pub fn of_controller(status: Status) -> Status {
    match status.code() {
        Status::HOST_ABORTED => Status(Status::HOST_PATHING_ERROR.0 | status.0 & !0x7ff),
        _ => status,
    }
}

/// Whether a command that came back with `status` may be sent again, and how. `fused`: it is a
/// fused pair. The command was not necessarily carried out, nor necessarily not.
#[inline]
pub fn may_retry(command: &Command, fused: bool, status: Status) -> Retry {
    if status.is_success() {
        return Retry::No;
    }
    retry_failed(is_idempotent(command, fused), status)
}

/// The same of a Copy, which does not say itself where it copies from. `repeats`: it writes to none of the
/// blocks that it reads, so that doing it twice is as good as once.
#[inline]
pub fn may_retry_copy(repeats: bool, status: Status) -> Retry {
    if status.is_success() {
        return Retry::No;
    }
    retry_failed(repeats, status)
}

/// The same of an admin command. Only those are sent again that change nothing, which the others' opcodes do not tell of:
/// a command that was refused may have had its effect.
#[inline]
pub fn may_retry_admin(command: &Command, status: Status) -> Retry {
    if status.is_success() || !admin_changes_nothing(command) {
        return Retry::No;
    }
    retry_failed(true, status)
}

#[cold]
fn retry_failed(is_idempotent: bool, status: Status) -> Retry {
    match status.code() {
        // It never reached the peer.
        Status::HOST_ABORTED => Retry::OtherPath,
        _ if status.0 & Status::DNR != 0 => Retry::No,
        // The controller refused it before doing anything.
        Status::ANA_INACCESSIBLE | Status::ANA_TRANSITION | Status::ANA_PERSISTENT_LOSS => {
            Retry::OtherPath
        }
        code if code.sct() == 3 && is_idempotent => Retry::OtherPath,
        // By our own Abort after the I/O timeout, or because the queue went away under it.
        Status::ABORT_REQUESTED | Status::ABORTED_SQ_DELETION if is_idempotent => Retry::OtherPath,
        // Not carried out, or may be carried out again.
        Status::COMMAND_INTERRUPTED | Status::NAMESPACE_NOT_READY | Status::TRANSIENT_TRANSPORT
            if is_idempotent =>
        {
            Retry::Delayed((status.0 >> 11 & 3) as u8)
        }
        _ => Retry::No,
    }
}

/// Whether doing the command twice is as good as once, provided that nothing else happens to its
/// blocks in between. Vendor specific and unknown commands are not, nor is Zone Append; of a Copy see
/// [`may_retry_copy`].
#[inline]
pub fn is_idempotent(command: &Command, fused: bool) -> bool {
    let writes = matches!(
        command.opcode,
        opcode::WRITE
            | opcode::WRITE_UNCORRECTABLE
            | opcode::WRITE_ZEROES
            | opcode::DATASET_MANAGEMENT
    );
    (writes || opcode_changes_nothing(command.opcode)) && !fused && command.fuse() == Fuse::None
}

/// Whether the command leaves everything as it was: when it is lost, what becomes of it on the old
/// connection concerns nobody.
#[inline]
pub fn changes_nothing(command: &Command) -> bool {
    opcode_changes_nothing(command.opcode) && command.fuse() == Fuse::None
}

/// Whether I/O commands of this opcode surely leave the namespace as it is. A vendor's may do anything.
#[inline]
pub fn opcode_changes_nothing(code: u8) -> bool {
    matches!(
        code,
        opcode::FLUSH
            | opcode::READ
            | opcode::COMPARE
            | opcode::VERIFY
            | opcode::RESERVATION_REPORT
            | opcode::IO_MANAGEMENT_RECEIVE
            | opcode::ZONE_MANAGEMENT_RECEIVE
    )
}

/// Whether an admin command surely leaves the controller as it is: Identify, Get Features, and Get Log Page if it keeps
/// the page's event (RAE). Pages do something at some values of LSP (Telemetry Host-Initiated, Persistent Event), and
/// a vendor's may at any (NVMe Base 2.1, section 5.1.12).
#[inline]
pub fn admin_changes_nothing(command: &Command) -> bool {
    const LID_VENDOR: Lid = Lid(0xc0);
    let reads = match command.opcode {
        admin::IDENTIFY | admin::GET_FEATURES => true,
        admin::GET_LOG_PAGE => {
            let page = GetLogPage::of(command);
            page.retain_event && page.lsp == 0 && page.lid.0 < LID_VENDOR.0
        }
        _ => false,
    };
    reads && command.fuse() == Fuse::None
}

/// How often a command is tried again for users who know of no other paths and do not try by themselves, such as block devices
/// and NBD clients; a volume with paths, or of a device, has done what it can before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tries(u8);

impl Tries {
    const MAX: u8 = 5;
    /// The first pause; each next is twice the last.
    const PAUSE: Duration = Duration::from_millis(10);

    /// For how long to wait before the next, of a command by itself that came back with that status; None if that is its result.
    pub fn next(&mut self, command: &Command, status: Status) -> Option<Duration> {
        if self.0 == Self::MAX || may_retry(command, false, status) == Retry::No {
            return None;
        }
        let pause = Self::PAUSE * (1 << self.0);
        self.0 += 1;
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZONE_APPEND: u8 = 0x7d;
    const VENDOR: u8 = 0x81;

    fn command(opcode: u8) -> Command {
        Command { opcode, ..Command::default() }
    }

    #[test]
    fn what_is_retried() {
        let crd_2 = Status(Status::COMMAND_INTERRUPTED.0 | 2 << 11);
        let vendor_path = Status(0x3c0);
        let table = [
            (opcode::READ, false, Status::SUCCESS, Retry::No),
            (opcode::READ, false, Status::HOST_ABORTED, Retry::OtherPath),
            (ZONE_APPEND, false, Status::HOST_ABORTED, Retry::OtherPath),
            (VENDOR, false, Status::HOST_ABORTED, Retry::OtherPath),
            (opcode::COMPARE, true, Status::HOST_ABORTED, Retry::OtherPath),
            (opcode::READ, false, Status::HOST_PATHING_ERROR, Retry::OtherPath),
            (opcode::WRITE, false, Status::HOST_PATHING_ERROR, Retry::OtherPath),
            (opcode::FLUSH, false, Status::HOST_PATHING_ERROR, Retry::OtherPath),
            (ZONE_APPEND, false, Status::HOST_PATHING_ERROR, Retry::No),
            (opcode::RESERVATION_REPORT, false, Status::HOST_PATHING_ERROR, Retry::OtherPath),
            (opcode::IO_MANAGEMENT_RECEIVE, false, Status::HOST_PATHING_ERROR, Retry::OtherPath),
            (opcode::IO_MANAGEMENT_SEND, false, Status::HOST_PATHING_ERROR, Retry::No),
            (opcode::ZONE_MANAGEMENT_RECEIVE, false, Status::HOST_PATHING_ERROR, Retry::OtherPath),
            (opcode::ZONE_MANAGEMENT_SEND, false, Status::HOST_PATHING_ERROR, Retry::No),
            (VENDOR, false, Status::HOST_PATHING_ERROR, Retry::No),
            (opcode::RESERVATION_ACQUIRE, false, Status::HOST_PATHING_ERROR, Retry::No),
            (opcode::COPY, false, Status::HOST_PATHING_ERROR, Retry::No),
            (opcode::COMPARE, true, Status::HOST_PATHING_ERROR, Retry::No),
            (opcode::WRITE, false, Status::HOST_PATHING_ERROR.dnr(), Retry::No),
            (opcode::WRITE, false, Status::INTERNAL_PATH_ERROR, Retry::OtherPath),
            (opcode::WRITE, false, vendor_path, Retry::OtherPath),
            (ZONE_APPEND, false, Status::ANA_INACCESSIBLE, Retry::OtherPath),
            (opcode::READ, false, Status::ANA_TRANSITION, Retry::OtherPath),
            (opcode::READ, false, Status::ANA_PERSISTENT_LOSS.dnr(), Retry::No),
            (opcode::WRITE, false, Status::ABORT_REQUESTED, Retry::OtherPath),
            (opcode::READ, false, Status::ABORTED_SQ_DELETION, Retry::OtherPath),
            (ZONE_APPEND, false, Status::ABORT_REQUESTED, Retry::No),
            (opcode::WRITE, false, Status::ABORT_REQUESTED.dnr(), Retry::No),
            (opcode::READ, false, Status::COMMAND_INTERRUPTED, Retry::Delayed(0)),
            (opcode::READ, false, crd_2, Retry::Delayed(2)),
            (opcode::ZONE_MANAGEMENT_RECEIVE, false, crd_2, Retry::Delayed(2)),
            (opcode::ZONE_MANAGEMENT_RECEIVE, false, Status::ABORT_REQUESTED, Retry::OtherPath),
            (opcode::WRITE, false, crd_2.dnr(), Retry::No),
            (opcode::WRITE, false, Status::NAMESPACE_NOT_READY, Retry::Delayed(0)),
            (opcode::WRITE, false, Status::TRANSIENT_TRANSPORT, Retry::Delayed(0)),
            (VENDOR, false, Status::COMMAND_INTERRUPTED, Retry::No),
            (opcode::READ, false, Status::UNRECOVERED_READ, Retry::No),
            (opcode::COMPARE, false, Status::COMPARE_FAILURE, Retry::No),
            (opcode::WRITE, false, Status::LBA_OUT_OF_RANGE.dnr(), Retry::No),
        ];
        for (opcode, fused, status, expected) in table {
            let got = may_retry(&command(opcode), fused, status);
            assert_eq!(got, expected, "opcode {opcode:#04x}, fused {fused}, {status}");
        }
    }

    #[test]
    fn admin_commands_that_change_nothing_are_retried() {
        const KEEPS: u32 = 1 << 15;
        let lsp = |value: u32| value << 8;
        let table = [
            (admin::IDENTIFY, 1, true),
            (admin::GET_FEATURES, 7, true),
            (admin::GET_LOG_PAGE, KEEPS | 2, true),
            (admin::GET_LOG_PAGE, 2, false),
            (admin::GET_LOG_PAGE, KEEPS | lsp(1) | 7, false),
            (admin::GET_LOG_PAGE, KEEPS | 0xc0, false),
            // Those of I/O commands of the same number are.
            (opcode::FLUSH, KEEPS, false),
            (opcode::WRITE, KEEPS, false),
            (admin::SET_FEATURES, 7, false),
            (admin::FORMAT_NVM, 0, false),
            (0xc1, 0, false),
        ];
        for (opcode, cdw10, repeats) in table {
            let command = Command { opcode, cdw10: cdw10.into(), ..Command::default() };
            let got = |status| may_retry_admin(&command, status) != Retry::No;
            for status in [
                Status::HOST_PATHING_ERROR,
                Status::COMMAND_INTERRUPTED,
                Status::ABORT_REQUESTED,
                Status::ANA_TRANSITION,
            ] {
                assert_eq!(got(status), repeats, "opcode {opcode:#04x}, {cdw10:#x}, {status}");
                assert!(!got(status.dnr()));
            }
            assert!(!got(Status::SUCCESS) && !got(Status::INVALID_FIELD));
        }
    }

    #[test]
    fn what_a_controller_says_of_its_host_is_not_about_us() {
        let bits = Status::MORE | 2 << 11;
        for dnr in [0, Status::DNR] {
            let status = of_controller(Status(Status::HOST_ABORTED.0 | bits | dnr));
            assert_eq!(status, Status(Status::HOST_PATHING_ERROR.0 | bits | dnr));
            for opcode in [ZONE_APPEND, VENDOR, opcode::RESERVATION_ACQUIRE] {
                assert_eq!(may_retry(&command(opcode), false, status), Retry::No);
            }
        }
        let write = may_retry(&command(opcode::WRITE), false, of_controller(Status::HOST_ABORTED));
        assert_eq!(write, Retry::OtherPath);
        for code in (0..0x7ff).filter(|code| *code != Status::HOST_ABORTED.0) {
            assert_eq!(of_controller(Status(code | bits)), Status(code | bits));
        }
    }

    #[test]
    fn a_copy_is_sent_again_if_it_writes_to_no_block_that_it_reads() {
        let table = [
            (Status::SUCCESS, Retry::No, Retry::No),
            (Status::HOST_ABORTED, Retry::OtherPath, Retry::OtherPath),
            (Status::ANA_TRANSITION, Retry::OtherPath, Retry::OtherPath),
            (Status::HOST_PATHING_ERROR, Retry::OtherPath, Retry::No),
            (Status::ABORT_REQUESTED, Retry::OtherPath, Retry::No),
            (Status::COMMAND_INTERRUPTED, Retry::Delayed(0), Retry::No),
            (Status::HOST_PATHING_ERROR.dnr(), Retry::No, Retry::No),
            (Status::FAST_COPY_NOT_POSSIBLE, Retry::No, Retry::No),
            (Status::UNRECOVERED_READ, Retry::No, Retry::No),
        ];
        for (status, apart, overlapping) in table {
            assert_eq!(may_retry_copy(true, status), apart, "{status}");
            assert_eq!(may_retry_copy(false, status), overlapping, "{status}");
        }
    }

    #[test]
    fn half_of_a_fused_pair_is_not_idempotent() {
        let half = Command { flags: 1, ..command(opcode::WRITE) };
        assert!(!is_idempotent(&half, false) && is_idempotent(&command(opcode::WRITE), false));
        let half = Command { flags: 1, ..command(opcode::COMPARE) };
        assert!(!changes_nothing(&half) && changes_nothing(&command(opcode::COMPARE)));
    }

    #[test]
    fn what_changes_nothing_is_idempotent() {
        for opcode in 0..=255 {
            let command = command(opcode);
            assert!(!changes_nothing(&command) || is_idempotent(&command, false), "{opcode:#04x}");
        }
        for opcode in [opcode::IO_MANAGEMENT_RECEIVE, opcode::ZONE_MANAGEMENT_RECEIVE] {
            assert!(changes_nothing(&command(opcode)), "{opcode:#04x}");
        }
        assert!(!changes_nothing(&command(opcode::WRITE)));
        assert!(!changes_nothing(&command(opcode::DATASET_MANAGEMENT)));
        assert!(!changes_nothing(&command(ZONE_APPEND)));
    }

    #[test]
    fn a_user_waits_ever_longer_and_not_for_ever() {
        let read = Command { opcode: opcode::READ, ..Command::default() };
        let mut tries = Tries::default();
        let next = |tries: &mut Tries| tries.next(&read, Status::COMMAND_INTERRUPTED);
        let pauses: Vec<Duration> = std::iter::from_fn(|| next(&mut tries)).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160].map(Duration::from_millis));
        assert_eq!(Tries::default().next(&read, Status::UNRECOVERED_READ), None);
        let compare = Command { flags: 1, ..read };
        assert_eq!(Tries::default().next(&compare, Status::COMMAND_INTERRUPTED), None);
    }
}
