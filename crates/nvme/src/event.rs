//! Asynchronous events (NVMe Base 2.1, section 5.2 and 5.1.2).

/// What a completed Asynchronous Event Request reports: dword 0 of its completion
/// (NVMe Base 2.1, Figure 147).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Asynchronous Event Type, three bits: 0 error, 1 SMART/health, 2 notice, 6 I/O set, 7 vendor.
    pub kind: u8,
    /// Asynchronous Event Information.
    pub information: u8,
    /// Log page to read, which also clears the event.
    pub log_page: u8,
}

impl AsyncEvent {
    /// Attached Namespace Attribute Changed (NVMe Base 2.1, Figure 151).
    pub const NAMESPACE_ATTRIBUTE: AsyncEvent = AsyncEvent::notice(0x00, 0x04);
    /// Asymmetric Namespace Access Change.
    pub const ANA_CHANGE: AsyncEvent = AsyncEvent::notice(0x03, 0x0c);
    /// Discovery Log Page Change.
    pub const DISCOVERY_CHANGE: AsyncEvent = AsyncEvent::notice(0xf0, 0x70);

    const fn notice(information: u8, log_page: u8) -> AsyncEvent {
        AsyncEvent { kind: 2, information, log_page }
    }

    /// Encodes completion dword 0.
    pub const fn dword0(self) -> u32 {
        (self.kind & 7) as u32 | (self.information as u32) << 8 | (self.log_page as u32) << 16
    }

    /// Decodes completion dword 0.
    pub const fn from_dword0(dword0: u32) -> AsyncEvent {
        AsyncEvent {
            kind: (dword0 & 7) as u8,
            information: (dword0 >> 8) as u8,
            log_page: (dword0 >> 16) as u8,
        }
    }
}

/// Bits of OAES and of the feature Asynchronous Event Configuration (NVMe Base 2.1, Figure 312
/// bytes 95:92 and Figure 391).
pub mod notice {
    /// SMART / health critical warnings (configuration only).
    pub const SMART: u32 = 0xff;
    /// Attached Namespace Attribute Notices.
    pub const NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
    /// Firmware Activation Notices.
    pub const FIRMWARE: u32 = 1 << 9;
    /// Asymmetric Namespace Access Change Notices.
    pub const ANA_CHANGE: u32 = 1 << 11;
    /// Discovery Log Page Change Notification.
    pub const DISCOVERY_CHANGE: u32 = 1 << 31;
}
