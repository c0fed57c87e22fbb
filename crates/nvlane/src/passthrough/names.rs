//! What commands are called.

use nvme::opcode;

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
    let (name, vendor) = match admin {
        true => {
            (ADMIN.iter().find(|(code, _)| *code == opcode).map(|(_, name)| *name), VENDOR_ADMIN)
        }
        false => (opcode::io::name(opcode), VENDOR_IO),
    };
    match name {
        Some(name) => name,
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
        assert!(ADMIN.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
