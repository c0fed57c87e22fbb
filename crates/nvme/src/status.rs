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
    METADATA_SGL_LENGTH_INVALID = 0x010, "Metadata SGL Length Invalid";
    SGL_TYPE_INVALID = 0x011, "SGL Descriptor Type Invalid";
    MEMORY_BUFFER_MISUSED = 0x012, "Invalid Use of Controller Memory Buffer";
    PRP_OFFSET_INVALID = 0x013, "PRP Offset Invalid";
    ATOMIC_WRITE_UNIT_EXCEEDED = 0x014, "Atomic Write Unit Exceeded";
    OPERATION_DENIED = 0x015, "Operation Denied";
    SGL_OFFSET_INVALID = 0x016, "SGL Offset Invalid";
    HOST_ID_INCONSISTENT = 0x018, "Host Identifier Inconsistent Format";
    KEEP_ALIVE_EXPIRED = 0x019, "Keep Alive Timer Expired";
    KEEP_ALIVE_INVALID = 0x01a, "Keep Alive Timeout Invalid";
    PREEMPTED = 0x01b, "Command Aborted due to Preempt and Abort";
    SANITIZE_FAILED = 0x01c, "Sanitize Failed";
    SANITIZE_IN_PROGRESS = 0x01d, "Sanitize In Progress";
    SGL_GRANULARITY_INVALID = 0x01e, "SGL Data Block Granularity Invalid";
    QUEUE_IN_MEMORY_BUFFER = 0x01f, "Command Not Supported for Queue in CMB";
    NAMESPACE_WRITE_PROTECTED = 0x020, "Namespace is Write Protected";
    COMMAND_INTERRUPTED = 0x021, "Command Interrupted";
    TRANSIENT_TRANSPORT = 0x022, "Transient Transport Error";
    COMMAND_LOCKED = 0x023, "Command Prohibited by Command and Feature Lockdown";
    MEDIA_NOT_READY = 0x024, "Admin Command Media Not Ready";
    PLACEMENT_DISABLED = 0x029, "FDP Disabled";
    PLACEMENT_HANDLES_INVALID = 0x02a, "Invalid Placement Handle List";
    LBA_OUT_OF_RANGE = 0x080, "LBA Out of Range";
    CAPACITY_EXCEEDED = 0x081, "Capacity Exceeded";
    NAMESPACE_NOT_READY = 0x082, "Namespace Not Ready";
    RESERVATION_CONFLICT = 0x083, "Reservation Conflict";
    FORMAT_IN_PROGRESS = 0x084, "Format In Progress";
    COMPLETION_QUEUE_INVALID = 0x100, "Completion Queue Invalid";
    INVALID_QUEUE_IDENTIFIER = 0x101, "Invalid Queue Identifier";
    INVALID_QUEUE_SIZE = 0x102, "Invalid Queue Size";
    ABORT_LIMIT_EXCEEDED = 0x103, "Abort Command Limit Exceeded";
    AER_LIMIT_EXCEEDED = 0x105, "Asynchronous Event Request Limit Exceeded";
    INVALID_FIRMWARE_SLOT = 0x106, "Invalid Firmware Slot";
    INVALID_FIRMWARE_IMAGE = 0x107, "Invalid Firmware Image";
    INVALID_INTERRUPT_VECTOR = 0x108, "Invalid Interrupt Vector";
    INVALID_LOG_PAGE = 0x109, "Invalid Log Page";
    INVALID_FORMAT = 0x10a, "Invalid Format";
    FIRMWARE_NEEDS_CONVENTIONAL_RESET = 0x10b, "Firmware Activation Requires Conventional Reset";
    INVALID_QUEUE_DELETION = 0x10c, "Invalid Queue Deletion";
    FEATURE_NOT_SAVEABLE = 0x10d, "Feature Identifier Not Saveable";
    FEATURE_NOT_CHANGEABLE = 0x10e, "Feature Not Changeable";
    FEATURE_NOT_NAMESPACE = 0x10f, "Feature Not Namespace Specific";
    FIRMWARE_NEEDS_SUBSYSTEM_RESET = 0x110, "Firmware Activation Requires NVM Subsystem Reset";
    FIRMWARE_NEEDS_CONTROLLER_RESET = 0x111, "Firmware Activation Requires Controller Level Reset";
    FIRMWARE_TAKES_TOO_LONG = 0x112, "Firmware Activation Requires Maximum Time Violation";
    FIRMWARE_PROHIBITED = 0x113, "Firmware Activation Prohibited";
    FIRMWARE_RANGES_OVERLAP = 0x114, "Overlapping Range";
    NAMESPACE_CAPACITY = 0x115, "Namespace Insufficient Capacity";
    NAMESPACE_IDENTIFIER = 0x116, "Namespace Identifier Unavailable";
    NAMESPACE_ATTACHED = 0x118, "Namespace Already Attached";
    NAMESPACE_PRIVATE = 0x119, "Namespace Is Private";
    NAMESPACE_NOT_ATTACHED = 0x11a, "Namespace Not Attached";
    NO_THIN_PROVISIONING = 0x11b, "Thin Provisioning Not Supported";
    CONTROLLER_LIST_INVALID = 0x11c, "Controller List Invalid";
    SELF_TEST_IN_PROGRESS = 0x11d, "Device Self-test In Progress";
    BOOT_PARTITION_PROTECTED = 0x11e, "Boot Partition Write Prohibited";
    INVALID_CONTROLLER_IDENTIFIER = 0x11f, "Invalid Controller Identifier";
    ANA_GROUP_INVALID = 0x124, "ANA Group Identifier Invalid";
    ANA_ATTACH_FAILED = 0x125, "ANA Attach Failed";
    INSUFFICIENT_CAPACITY = 0x126, "Insufficient Capacity";
    ATTACHMENT_LIMIT_EXCEEDED = 0x127, "Namespace Attachment Limit Exceeded";
    COMMAND_SET_NOT_SUPPORTED = 0x129, "I/O Command Set Not Supported";
    COMMAND_SET_NOT_ENABLED = 0x12a, "I/O Command Set Not Enabled";
    COMMAND_SETS_REJECTED = 0x12b, "I/O Command Set Combination Rejected";
    INVALID_COMMAND_SET = 0x12c, "Invalid I/O Command Set";
    IDENTIFIER_UNAVAILABLE = 0x12d, "Identifier Unavailable";
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
    APPLICATION_TAG_CHECK = 0x283, "End-to-end Application Tag Check Error";
    REFERENCE_TAG_CHECK = 0x284, "End-to-end Reference Tag Check Error";
    COMPARE_FAILURE = 0x285, "Compare Failure";
    ACCESS_DENIED = 0x286, "Access Denied";
    DEALLOCATED_BLOCK = 0x287, "Deallocated or Unwritten Logical Block";
    STORAGE_TAG_CHECK = 0x288, "End-to-End Storage Tag Check Error";
    INTERNAL_PATH_ERROR = 0x300, "Internal Path Error";
    ANA_PERSISTENT_LOSS = 0x301, "Asymmetric Access Persistent Loss";
    ANA_INACCESSIBLE = 0x302, "Asymmetric Access Inaccessible";
    ANA_TRANSITION = 0x303, "Asymmetric Access Transition";
    CONTROLLER_PATHING_ERROR = 0x360, "Controller Pathing Error";
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
            (_, Status(0x180)) => "Conflicting Attributes",
            (_, Status(0x181)) => "Invalid Protection Information",
            (_, Status::WRITE_TO_READ_ONLY) => "Attempted Write to Read Only Range",
            (_, Status::SIZE_LIMIT_EXCEEDED) => "Command Size Limit Exceeded",
            (crate::opcode::io::COPY, Status::INCOMPATIBLE_NAMESPACE) => {
                "Incompatible Namespace or Format"
            }
            (crate::opcode::io::COPY, Status::FAST_COPY_NOT_POSSIBLE) => "Fast Copy Not Possible",
            (crate::opcode::io::COPY, Status::OVERLAPPING_RANGE) => "Overlapping I/O Range",
            (crate::opcode::io::COPY, Status::INSUFFICIENT_RESOURCES) => "Insufficient Resources",
            // Zoned Namespace Command Set 1.1, section 3.1.
            (_, Status(0x1b8)) => "Zone Boundary Error",
            (_, Status(0x1b9)) => "Zone Is Full",
            (_, Status(0x1ba)) => "Zone Is Read Only",
            (_, Status(0x1bb)) => "Zone Is Offline",
            (_, Status(0x1bc)) => "Zone Invalid Write",
            (_, Status(0x1bd)) => "Too Many Active Zones",
            (_, Status(0x1be)) => "Too Many Open Zones",
            (_, Status(0x1bf)) => "Invalid Zone State Transition",
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
