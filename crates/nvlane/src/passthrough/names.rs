//! What commands are called.

/// Names of I/O commands: of the NVM and the zoned command set, and those of all sets (NVMe Base 2.1, Figure 555;
/// NVM 1.1, section 3; Zoned Namespace Command Set 1.2, section 3).
const IO: &[(u8, &str)] = &[
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

/// Names of admin commands (NVMe Base 2.1, Figure 141).
const ADMIN: &[(u8, &str)] = &[
    (0x00, "Delete I/O Submission Queue"),
    (0x01, "Create I/O Submission Queue"),
    (0x02, "Get Log Page"),
    (0x04, "Delete I/O Completion Queue"),
    (0x05, "Create I/O Completion Queue"),
    (0x06, "Identify"),
    (0x08, "Abort"),
    (0x09, "Set Features"),
    (0x0a, "Get Features"),
    (0x0c, "Asynchronous Event Request"),
    (0x0d, "Namespace Management"),
    (0x10, "Firmware Commit"),
    (0x11, "Firmware Image Download"),
    (0x14, "Device Self-test"),
    (0x15, "Namespace Attachment"),
    (0x18, "Keep Alive"),
    (0x19, "Directive Send"),
    (0x1a, "Directive Receive"),
    (0x1c, "Virtualization Management"),
    (0x1d, "NVMe-MI Send"),
    (0x1e, "NVMe-MI Receive"),
    (0x20, "Capacity Management"),
    (0x24, "Lockdown"),
    (0x7c, "Doorbell Buffer Config"),
    (0x7f, "Fabrics"),
    (0x80, "Format NVM"),
    (0x81, "Security Send"),
    (0x82, "Security Receive"),
    (0x84, "Sanitize"),
    (0x86, "Get LBA Status"),
];

/// The first vendor specific opcodes.
const VENDOR_IO: u8 = 0x80;
const VENDOR_ADMIN: u8 = 0xc0;

/// What the specification calls the command.
pub fn of(admin: bool, opcode: u8) -> &'static str {
    let (names, vendor) = if admin { (ADMIN, VENDOR_ADMIN) } else { (IO, VENDOR_IO) };
    match names.iter().find(|(code, _)| *code == opcode) {
        Some((_, name)) => name,
        None if opcode >= vendor => "Vendor Specific",
        None => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_has_names_of_its_own() {
        assert_eq!((of(false, 2), of(true, 2)), ("Read", "Get Log Page"));
        assert_eq!((of(false, 0x80), of(true, 0x80)), ("Vendor Specific", "Format NVM"));
        assert_eq!((of(false, 0x30), of(true, 0xff)), ("Unknown", "Vendor Specific"));
        for names in [IO, ADMIN] {
            assert!(names.windows(2).all(|pair| pair[0].0 < pair[1].0));
        }
    }
}
