//! Status codes (NVMe Base 2.1, section 4.2.3).

use std::fmt;

/// The status field of a completion without the phase tag: SC in bits 7:0, SCT in 10:8, CRD in
/// 12:11, More in 13, Do Not Retry in 14. Unknown values survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:expr, $words:expr;)*) => {
        impl Status {
            $($(#[$doc])* #[doc = $words] pub const $name: Status = Status($value);)*

            /// The specification's words for this status type and code, if known.
            pub fn words(self) -> Option<&'static str> {
                match self.0 & 0x7ff { $($value => Some($words),)* _ => None }
            }
        }
    };
}

statuses! {
    SUCCESS = 0x000, "Successful Completion";
    INVALID_OPCODE = 0x001, "Invalid Command Opcode";
    INVALID_FIELD = 0x002, "Invalid Field in Command";
    CID_CONFLICT = 0x003, "Command ID Conflict";
    DATA_TRANSFER_ERROR = 0x004, "Data Transfer Error";
    POWER_LOSS = 0x005, "Commands Aborted due to Power Loss Notification";
    INTERNAL = 0x006, "Internal Error";
    ABORT_REQUESTED = 0x007, "Command Abort Requested";
    ABORTED_SQ_DELETION = 0x008, "Command Aborted due to SQ Deletion";
    ABORTED_FAILED_FUSED = 0x009, "Command Aborted due to Failed Fused Command";
    ABORTED_MISSING_FUSED = 0x00a, "Command Aborted due to Missing Fused Command";
    INVALID_NAMESPACE = 0x00b, "Invalid Namespace or Format";
    COMMAND_SEQUENCE_ERROR = 0x00c, "Command Sequence Error";
    INVALID_SGL_DESCRIPTOR = 0x00d, "Invalid SGL Segment Descriptor";
    INVALID_SGL_COUNT = 0x00e, "Invalid Number of SGL Descriptors";
    SGL_LENGTH_INVALID = 0x00f, "Data SGL Length Invalid";
    SGL_TYPE_INVALID = 0x011, "SGL Descriptor Type Invalid";
    ATOMIC_WRITE_UNIT_EXCEEDED = 0x014, "Atomic Write Unit Exceeded";
    OPERATION_DENIED = 0x015, "Operation Denied";
    SGL_OFFSET_INVALID = 0x016, "SGL Offset Invalid";
    HOST_ID_INCONSISTENT = 0x018, "Host Identifier Inconsistent Format";
    KEEP_ALIVE_EXPIRED = 0x019, "Keep Alive Timer Expired";
    KEEP_ALIVE_INVALID = 0x01a, "Keep Alive Timeout Invalid";
    NAMESPACE_WRITE_PROTECTED = 0x020, "Namespace is Write Protected";
    COMMAND_INTERRUPTED = 0x021, "Command Interrupted";
    TRANSIENT_TRANSPORT = 0x022, "Transient Transport Error";
    LBA_OUT_OF_RANGE = 0x080, "LBA Out of Range";
    CAPACITY_EXCEEDED = 0x081, "Capacity Exceeded";
    NAMESPACE_NOT_READY = 0x082, "Namespace Not Ready";
    RESERVATION_CONFLICT = 0x083, "Reservation Conflict";
    FORMAT_IN_PROGRESS = 0x084, "Format In Progress";
    INVALID_QUEUE_IDENTIFIER = 0x101, "Invalid Queue Identifier";
    INVALID_LOG_PAGE = 0x109, "Invalid Log Page";
    AER_LIMIT_EXCEEDED = 0x105, "Asynchronous Event Request Limit Exceeded";
    ABORT_LIMIT_EXCEEDED = 0x103, "Abort Command Limit Exceeded";
    FEATURE_NOT_SAVEABLE = 0x10d, "Feature Identifier Not Saveable";
    FEATURE_NOT_CHANGEABLE = 0x10e, "Feature Not Changeable";
    FEATURE_NOT_NAMESPACE = 0x10f, "Feature Not Namespace Specific";
    INCOMPATIBLE_FORMAT = 0x180, "Connect Incompatible Format";
    CONTROLLER_BUSY = 0x181, "Connect Controller Busy";
    CONNECT_INVALID_PARAMETERS = 0x182, "Connect Invalid Parameters";
    CONNECT_RESTART_DISCOVERY = 0x183, "Connect Restart Discovery";
    CONNECT_INVALID_HOST = 0x184, "Connect Invalid Host";
    INVALID_QUEUE_TYPE = 0x185, "Invalid Queue Type";
    DISCOVER_RESTART = 0x190, "Discover Restart";
    AUTHENTICATION_REQUIRED = 0x191, "Authentication Required";
    WRITE_FAULT = 0x280, "Write Fault";
    UNRECOVERED_READ = 0x281, "Unrecovered Read Error";
    GUARD_CHECK = 0x282, "End-to-end Guard Check Error";
    COMPARE_FAILURE = 0x285, "Compare Failure";
    ACCESS_DENIED = 0x286, "Access Denied";
    DEALLOCATED_BLOCK = 0x287, "Deallocated or Unwritten Logical Block";
    INTERNAL_PATH_ERROR = 0x300, "Internal Path Error";
    ANA_PERSISTENT_LOSS = 0x301, "Asymmetric Access Persistent Loss";
    ANA_INACCESSIBLE = 0x302, "Asymmetric Access Inaccessible";
    ANA_TRANSITION = 0x303, "Asymmetric Access Transition";
    HOST_PATHING_ERROR = 0x370, "Host Pathing Error";
    HOST_ABORTED = 0x371, "Command Aborted By Host";
}

/// Statuses specific to I/O commands: the numbers mean something else as an answer to other commands.
impl Status {
    /// Attempted Write to Read Only Range (NVM 1.1, Figure 14).
    pub const WRITE_TO_READ_ONLY: Status = Status(0x182);
    /// Command Size Limit Exceeded: more ranges or blocks than one Copy may have.
    pub const SIZE_LIMIT_EXCEEDED: Status = Status(0x183);
    /// Incompatible Namespace or Format: source and destination of a Copy differ in their blocks.
    pub const INCOMPATIBLE_NAMESPACE: Status = Status(0x185);
    /// Fast Copy Not Possible. From below a guard: nothing was copied; with Do Not Retry, nothing
    /// from there ever can be.
    pub const FAST_COPY_NOT_POSSIBLE: Status = Status(0x186);
    /// Overlapping I/O Range: a source of a Copy overlaps its destination.
    pub const OVERLAPPING_RANGE: Status = Status(0x187);
    /// Insufficient Resources: not enough of them for this Copy.
    pub const INSUFFICIENT_RESOURCES: Status = Status(0x189);

    /// The specification's words for a status as an answer to I/O command `opcode`.
    pub fn io_words(self, opcode: u8) -> Option<&'static str> {
        Some(match (opcode, self.code()) {
            (_, Status::WRITE_TO_READ_ONLY) => "Attempted Write to Read Only Range",
            (_, Status::SIZE_LIMIT_EXCEEDED) => "Command Size Limit Exceeded",
            (crate::opcode::io::COPY, Status::INCOMPATIBLE_NAMESPACE) => {
                "Incompatible Namespace or Format"
            }
            (crate::opcode::io::COPY, Status::FAST_COPY_NOT_POSSIBLE) => "Fast Copy Not Possible",
            (crate::opcode::io::COPY, Status::OVERLAPPING_RANGE) => "Overlapping I/O Range",
            (crate::opcode::io::COPY, Status::INSUFFICIENT_RESOURCES) => "Insufficient Resources",
            (_, code) if code.sct() == 1 => return None,
            _ => return self.words(),
        })
    }

    /// The status as it is told after I/O command `opcode`: words and numbers.
    pub fn io_text(self, opcode: u8) -> impl fmt::Display {
        Text { status: self, words: self.io_words(opcode) }
    }
}

/// A status with the words that it has where it was given.
struct Text {
    status: Status,
    words: Option<&'static str>,
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (status, words) = (self.status, self.words.unwrap_or("unknown status"));
        write!(f, "{words} (SCT {:#x} SC {:#04x}", status.sct(), status.0 & 0xff)?;
        if status.0 & Status::DNR != 0 {
            f.write_str(", do not retry")?;
        }
        f.write_str(")")
    }
}

impl Status {
    /// Do Not Retry.
    pub const DNR: u16 = 1 << 14;
    /// More information is in the error log.
    pub const MORE: u16 = 1 << 13;

    /// Whether the command succeeded (type and code are zero).
    #[inline]
    pub fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// The same status with Do Not Retry set.
    #[inline]
    pub const fn dnr(self) -> Status {
        Status(self.0 | Status::DNR)
    }

    /// Status code type and code without CRD, More and Do Not Retry.
    #[inline]
    pub const fn code(self) -> Status {
        Status(self.0 & 0x7ff)
    }

    /// Status code type.
    pub const fn sct(self) -> u8 {
        (self.0 >> 8 & 7) as u8
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Text { status: *self, words: self.words() }.fmt(f)
    }
}
