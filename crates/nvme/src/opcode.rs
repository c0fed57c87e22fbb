//! Opcodes (NVMe Base 2.1, Figures 141 and 555; NVM 1.1, section 3).

/// Admin commands.
pub mod admin {
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    /// Namespace Management.
    pub const NAMESPACE_MANAGEMENT: u8 = 0x0d;
    /// Firmware Image Download.
    pub const FIRMWARE_DOWNLOAD: u8 = 0x11;
    /// Namespace Attachment.
    pub const NAMESPACE_ATTACHMENT: u8 = 0x15;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Directive Send.
    pub const DIRECTIVE_SEND: u8 = 0x19;
    /// Directive Receive.
    pub const DIRECTIVE_RECEIVE: u8 = 0x1a;
    /// Format NVM.
    pub const FORMAT_NVM: u8 = 0x80;
    /// Security Send.
    pub const SECURITY_SEND: u8 = 0x81;
    /// Security Receive.
    pub const SECURITY_RECEIVE: u8 = 0x82;
    /// Get LBA Status.
    pub const GET_LBA_STATUS: u8 = 0x86;
    /// Fabrics commands (admin and I/O queues).
    pub const FABRICS: u8 = 0x7f;
    /// The first of the vendor specific commands, which go up to FFh (NVMe Base 2.1, Figure 141).
    pub const VENDOR_FIRST: u8 = 0xc0;
}

/// I/O commands of the NVM command set, and of others that devices take as well.
pub mod io {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Write Uncorrectable.
    pub const WRITE_UNCORRECTABLE: u8 = 0x04;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Verify.
    pub const VERIFY: u8 = 0x0c;
    /// Reservation Register.
    pub const RESERVATION_REGISTER: u8 = 0x0d;
    /// Reservation Report.
    pub const RESERVATION_REPORT: u8 = 0x0e;
    /// Reservation Acquire.
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    /// I/O Management Receive.
    pub const IO_MANAGEMENT_RECEIVE: u8 = 0x12;
    /// Reservation Release.
    pub const RESERVATION_RELEASE: u8 = 0x15;
    /// Copy.
    pub const COPY: u8 = 0x19;
    /// I/O Management Send.
    pub const IO_MANAGEMENT_SEND: u8 = 0x1d;
    /// Zone Management Send (Zoned Namespace Command Set 1.2, section 3.4).
    pub const ZONE_MANAGEMENT_SEND: u8 = 0x79;
    /// Zone Management Receive.
    pub const ZONE_MANAGEMENT_RECEIVE: u8 = 0x7a;
    /// Zone Append.
    pub const ZONE_APPEND: u8 = 0x7d;
    /// The first of the vendor specific commands, which go up to FFh.
    pub const VENDOR_FIRST: u8 = 0x80;

    /// Names of I/O commands: of the NVM and the zoned command set, and those of all sets (NVMe Base 2.1, Figure 555;
    /// NVM 1.1, section 3; Zoned Namespace Command Set 1.2, section 3).
    const NAMES: &[(u8, &str)] = &[
        (0x00, "Flush"),
        (0x01, "Write"),
        (0x02, "Read"),
        (0x04, "Write Uncorrectable"),
        (0x05, "Compare"),
        (0x08, "Write Zeroes"),
        (0x09, "Dataset Management"),
        (0x0c, "Verify"),
        (0x0d, "Reservation Register"),
        (0x0e, "Reservation Report"),
        (0x11, "Reservation Acquire"),
        (0x12, "I/O Management Receive"),
        (0x15, "Reservation Release"),
        (0x18, "Cancel"),
        (0x19, "Copy"),
        (0x1d, "I/O Management Send"),
        (0x79, "Zone Management Send"),
        (0x7a, "Zone Management Receive"),
        (0x7d, "Zone Append"),
        (0x7f, "Fabrics"),
    ];

    /// What the specifications call an I/O command.
    pub fn name(opcode: u8) -> Option<&'static str> {
        NAMES.iter().find(|(code, _)| *code == opcode).map(|(_, name)| *name)
    }
}

/// Fabrics command types: the byte at offset 4 of a command with opcode 7Fh.
pub mod fabrics {
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    /// Disconnect.
    pub const DISCONNECT: u8 = 0x08;
}
