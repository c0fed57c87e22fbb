//! Fabrics commands and properties (NVMe Base 2.1, sections 6 and 3.1.4).

use crate::opcode::{admin, fabrics};
use crate::wire::{open_enum, wire};
use crate::{Command, Sgl};
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// NQN of every discovery subsystem that has none of its own (NVMe Base 2.1, section 4.7).
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Longest NQN in bytes, without the terminating zero (NVMe Base 2.1, section 4.7).
pub const NQN_BYTES_MAX: usize = 223;

/// Controller id in Connect that asks for any controller of the dynamic model.
pub const CNTLID_DYNAMIC: u16 = 0xffff;

wire! {
    /// Connect data (NVMe Base 2.1, Figure 546).
    pub struct ConnectData[1024] {
        /// Host identifier.
        pub hostid: [u8; 16],
        /// Controller id; [`CNTLID_DYNAMIC`] for an admin queue.
        pub cntlid: U16,
        /// Reserved.
        pub reserved18: [u8; 238],
        /// Subsystem NQN, terminated by zero.
        pub subnqn: [u8; 256],
        /// Host NQN, terminated by zero.
        pub hostnqn: [u8; 256],
        /// Reserved.
        pub reserved768: [u8; 256],
    }
}

/// Parameters of the Connect command (NVMe Base 2.1, Figure 545).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Record format: 0.
    pub recfmt: u16,
    /// Queue id; 0 is the admin queue.
    pub qid: u16,
    /// Submission queue size, zero-based.
    pub sqsize_z: u16,
    /// Attributes: bits 1:0 priority, 2 disable SQ flow control, 3 individual queue deletion.
    pub cattr: u8,
    /// Keep alive timeout in milliseconds; admin queue only.
    pub kato_ms: u32,
}

impl Connect {
    /// Attribute bit: the host does without submission queue flow control.
    pub const NO_FLOW_CONTROL: u8 = 1 << 2;

    /// Byte offset of RECFMT in the command.
    pub const RECFMT_OFFSET: u16 = 40;
    /// Byte offset of QID in the command.
    pub const QID_OFFSET: u16 = 42;
    /// Byte offset of SQSIZE in the command.
    pub const SQSIZE_OFFSET: u16 = 44;
    /// Byte offset of KATO in the command.
    pub const KATO_OFFSET: u16 = 48;

    /// Reads the parameters of a Connect command.
    pub fn of(command: &Command) -> Connect {
        let (cdw10, cdw11) = (command.cdw10.get(), command.cdw11.get());
        Connect {
            recfmt: cdw10 as u16,
            qid: (cdw10 >> 16) as u16,
            sqsize_z: cdw11 as u16,
            cattr: (cdw11 >> 16) as u8,
            kato_ms: command.cdw12.get(),
        }
    }

    /// The command, without a data pointer.
    pub fn command(self) -> Command {
        Command {
            cdw10: (u32::from(self.recfmt) | u32::from(self.qid) << 16).into(),
            cdw11: (u32::from(self.sqsize_z) | u32::from(self.cattr) << 16).into(),
            cdw12: self.kato_ms.into(),
            ..fabrics_command(fabrics::CONNECT)
        }
    }
}

/// Dword 0 of a Connect's response (NVMe Base 2.1, Figure 547).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectResult(pub u32);

impl ConnectResult {
    /// An authentication transaction must follow on this queue (AUTHREQ.ATR).
    pub const AUTHENTICATE: u32 = 1 << 17;
    /// So must a secure channel (AUTHREQ.ASCR).
    pub const SECURE_CHANNEL: u32 = 1 << 18;

    /// Controller id.
    pub fn cntlid(self) -> u16 {
        self.0 as u16
    }

    /// Whether the queue takes no command before its host has proved who it is.
    pub fn authenticate(self) -> bool {
        self.0 & ConnectResult::AUTHENTICATE != 0
    }

    /// Whether it demands a secure channel as well.
    pub fn secure_channel(self) -> bool {
        self.0 & ConnectResult::SECURE_CHANNEL != 0
    }
}

open_enum! {
    /// Offset of a property (NVMe Base 2.1, Figure 33).
    pub enum Property: u32 {
        /// Controller Capabilities, 8 bytes.
        CAP = 0x00,
        /// Version.
        VS = 0x08,
        /// Controller Configuration.
        CC = 0x14,
        /// Controller Status.
        CSTS = 0x1c,
        /// NVM Subsystem Reset.
        NSSR = 0x20,
        /// Controller Ready Timeouts.
        CRTO = 0x68,
    }
}

/// Parameters of Property Get and Property Set (NVMe Base 2.1, Figures 551 and 553).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertyAccess {
    /// Size in bytes: 4 or 8; `None` for a reserved encoding.
    pub bytes: Option<u8>,
    /// Which property.
    pub property: Property,
    /// Value to set; zero for Property Get.
    pub value: u64,
}

impl PropertyAccess {
    /// Reads the parameters of a Property Get or Property Set command.
    pub fn of(command: &Command) -> PropertyAccess {
        let bytes = match command.cdw10.get() & 7 {
            0 => Some(4),
            1 => Some(8),
            _ => None,
        };
        PropertyAccess {
            bytes,
            property: Property(command.cdw11.get()),
            value: u64::from(command.cdw12.get()) | u64::from(command.cdw13.get()) << 32,
        }
    }

    /// A Property Get command.
    pub fn read(property: Property) -> Command {
        Command {
            cdw10: u32::from(property == Property::CAP).into(),
            cdw11: property.0.into(),
            ..fabrics_command(fabrics::PROPERTY_GET)
        }
    }

    /// A Property Set command for a property of four bytes.
    pub fn write(property: Property, value: u32) -> Command {
        Command {
            cdw11: property.0.into(),
            cdw12: value.into(),
            ..fabrics_command(fabrics::PROPERTY_SET)
        }
    }
}

/// Parameters of Authentication Send and Authentication Receive (NVMe Base 2.1, sections 6.1 and 6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authentication {
    /// Security protocol.
    pub secp: u8,
    /// Its two specific bytes, SPSP0 first.
    pub spsp: [u8; 2],
    /// Bytes of the message (TL), or of the room for one (AL).
    pub bytes: u32,
}

impl Authentication {
    /// The security protocol of NVMe over Fabrics' in-band authentication.
    pub const SECP: u8 = 0xe9;
    /// What goes with it.
    pub const SPSP: [u8; 2] = [1, 1];

    /// Reads the parameters of a command of the two.
    pub fn of(command: &Command) -> Authentication {
        let [_, spsp0, spsp1, secp] = command.cdw10.get().to_le_bytes();
        Authentication { secp, spsp: [spsp0, spsp1], bytes: command.cdw11.get() }
    }

    /// Sends a message of `bytes`, without a data pointer.
    pub fn send(bytes: u32) -> Command {
        Authentication::command(fabrics::AUTHENTICATION_SEND, bytes)
    }

    /// Fetches a message of at most `bytes`, without a data pointer.
    pub fn receive(bytes: u32) -> Command {
        Authentication::command(fabrics::AUTHENTICATION_RECEIVE, bytes)
    }

    fn command(fctype: u8, bytes: u32) -> Command {
        let [spsp0, spsp1] = Authentication::SPSP;
        let cdw10 = u32::from_le_bytes([0, spsp0, spsp1, Authentication::SECP]);
        Command { cdw10: cdw10.into(), cdw11: bytes.into(), ..fabrics_command(fctype) }
    }

    /// Whether this is what is spoken here.
    pub fn is_in_band(&self) -> bool {
        self.secp == Authentication::SECP && self.spsp == Authentication::SPSP
    }
}

fn fabrics_command(fctype: u8) -> Command {
    Command {
        opcode: admin::FABRICS,
        flags: Sgl::PSDT_SGL,
        nsid: u32::from(fctype).into(),
        ..Command::default()
    }
}

impl Command {
    /// Fabrics command type: byte 4, where other commands have the namespace id.
    #[inline]
    pub fn fctype(&self) -> u8 {
        self.nsid.get() as u8
    }
}

/// The value of CAP, Controller Capabilities (NVMe Base 2.1, Figure 36).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cap(pub u64);

impl Cap {
    /// Contiguous queues required.
    pub const CQR: u64 = 1 << 16;
    /// NVM command set.
    pub const CSS_NVM: u64 = 1 << 37;
    /// I/O command sets by identifier.
    pub const CSS_IOCSS: u64 = 1 << 43;
    /// Controller ready with media.
    pub const CRMS_CRWMS: u64 = 1 << 59;

    /// Maximum queue entries, zero-based.
    pub fn mqes_z(self) -> u16 {
        self.0 as u16
    }

    /// Timeout until ready, in units of 500 ms.
    pub fn timeout(self) -> u8 {
        (self.0 >> 24) as u8
    }
}

/// The value of CC, Controller Configuration (NVMe Base 2.1, Figure 41).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cc(pub u32);

impl Cc {
    /// Enable.
    pub const EN: u32 = 1 << 0;
    /// Normal shutdown notification.
    pub const SHN_NORMAL: u32 = 1 << 14;
    /// Entry sizes of the NVM command set: 64 and 16 bytes.
    pub const ENTRY_SIZES: u32 = 6 << 16 | 4 << 20;

    /// Whether the controller is enabled.
    pub fn enabled(self) -> bool {
        self.0 & Cc::EN != 0
    }

    /// I/O command set selected: 0 NVM, 6 all that are supported, 7 admin only.
    pub fn css(self) -> u8 {
        (self.0 >> 4 & 7) as u8
    }

    /// Memory page size as a power of two above 4 KiB.
    pub fn mps(self) -> u8 {
        (self.0 >> 7 & 0xf) as u8
    }

    /// Arbitration mechanism.
    pub fn ams(self) -> u8 {
        (self.0 >> 11 & 7) as u8
    }

    /// Shutdown notification: 0 none, 1 normal, 2 abrupt.
    pub fn shn(self) -> u8 {
        (self.0 >> 14 & 3) as u8
    }

    /// Submission queue entry size as a power of two.
    pub fn iosqes(self) -> u8 {
        (self.0 >> 16 & 0xf) as u8
    }

    /// Completion queue entry size as a power of two.
    pub fn iocqes(self) -> u8 {
        (self.0 >> 20 & 0xf) as u8
    }
}

/// The value of CSTS, Controller Status (NVMe Base 2.1, Figure 42).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Csts(pub u32);

impl Csts {
    /// Ready.
    pub const RDY: u32 = 1 << 0;
    /// Controller fatal status.
    pub const CFS: u32 = 1 << 1;
    /// Mask of the shutdown status.
    pub const SHST: u32 = 3 << 2;
    /// Shutdown complete.
    pub const SHST_COMPLETE: u32 = 2 << 2;
    /// See [`Csts::SHST`].
    pub const SHST_OCCURRING: u32 = 1 << 2;

    /// Whether the controller is ready.
    pub fn ready(self) -> bool {
        self.0 & Csts::RDY != 0
    }
}
