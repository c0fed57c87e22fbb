//! Zoned volumes: what the driver asks of zones as NVMe commands, and zone reports as it wants them.
//!
//! ```text
//!   report zones                    Zone Management Receive, then 64 bytes to 64 bytes
//!   open, close, finish, reset      Zone Management Send
//!   append                          Zone Append, whose answer says where
//! ```
//!
//! Sections are those of the NVM Express Zoned Namespace Command Set Specification 1.1.

use crate::driver::{SECTOR_SHIFT, operation};
use nvme::Command;
use nvme::opcode::io as opcode;

/// Bytes of a zone in a report, on either side (section 3.4.2.2.3; `struct blk_zone`).
pub const ZONE_BYTES: u32 = 64;

/// Bytes before the zones of an NVMe report (section 3.4.2.2.1).
pub const HEADER_BYTES: u32 = 64;

/// Report only as many zones as there is room for (section 3.4.2.1, command dword 13).
const PARTIAL_REPORT: u32 = 1 << 16;
/// Of all zones, rather than of one (section 3.4.3.1, command dword 13).
const SELECT_ALL: u32 = 1 << 8;

/// The state of a zone that has been written to its end (section 3.4.2.2.3; `BLK_ZONE_COND_FULL`). All
/// states and types have the same numbers on both sides.
const FULL: u8 = 0xe;

/// What the zones of a volume are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zones {
    /// Sectors from the beginning of a zone to that of the next; a power of two.
    pub sectors: u32,
    /// Most open zones; 0 for any number.
    pub open_max: u32,
    /// Most active zones; 0 for any number.
    pub active_max: u32,
    /// Most sectors of one append.
    pub append_sectors_max: u32,
}

/// The command that does something to the zone at `slba`; none if the operation is no such thing.
pub(crate) fn manage(operation: u8, nsid: u32, slba: u64) -> Option<Command> {
    let action = match operation {
        operation::ZONE_CLOSE => 1,
        operation::ZONE_FINISH => 2,
        operation::ZONE_OPEN => 3,
        operation::ZONE_RESET => 4,
        operation::ZONE_RESET_ALL => 4 | SELECT_ALL,
        _ => return None,
    };
    let mut command = Command::blocks(opcode::ZONE_MANAGEMENT_SEND, nsid, slba, 1);
    command.cdw13 = action.into();
    Some(command)
}

/// The command that reports so many zones, from that at `slba` on.
pub(crate) fn report(nsid: u32, slba: u64, zones: u32) -> Command {
    let mut command = Command::blocks(opcode::ZONE_MANAGEMENT_RECEIVE, nsid, slba, 1);
    command.cdw12 = ((HEADER_BYTES + zones * ZONE_BYTES) / 4 - 1).into();
    command.cdw13 = PARTIAL_REPORT.into();
    command
}

/// Makes of an NVMe report, behind its header, what the driver wants; the rest becomes zeroes, which
/// end it.
pub(crate) fn convert(report: &mut [u8], block_shift: u8, zone_sectors: u32) {
    let (header, zones) = report.split_at_mut(HEADER_BYTES as usize);
    let count = number(header, 0);
    for (place, zone) in (0..).zip(zones.chunks_exact_mut(ZONE_BYTES as usize)) {
        if place < count {
            convert_zone(zone, block_shift - SECTOR_SHIFT, zone_sectors.into());
        } else {
            zone.fill(0);
        }
    }
}

fn convert_zone(zone: &mut [u8], shift: u8, len: u64) {
    let [kind, state, attributes] = [zone[0] & 0xf, zone[1] >> 4, zone[2]];
    let [capacity, start, written] = [8, 16, 24].map(|at| number(zone, at) << shift);
    // Zones that cannot be written have no such place.
    let has_place = state != FULL && (start..=start + len).contains(&written);
    let written = if has_place { written } else { start + len };
    zone.fill(0);
    for (at, value) in [(0, start), (8, len), (16, written), (32, capacity)] {
        zone[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
    // Reset Zone Recommended (section 3.4.2.2.3, attribute bit 2).
    let wants_reset = attributes >> 2 & 1;
    zone[24..28].copy_from_slice(&[kind, state, 0, wants_reset]);
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A zone as NVMe has it.
    fn descriptor(state: u8, capacity: u64, start: u64, written: u64) -> [u8; 64] {
        let mut zone = [0xff; 64];
        (zone[0], zone[1], zone[2]) = (2, state << 4, 4);
        for (at, value) in [(8, capacity), (16, start), (24, written)] {
            zone[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        zone
    }

    #[test]
    fn zones_are_reported_in_sectors_and_the_rest_is_zeroes() {
        let mut report = vec![0xff; 64 * 5];
        report[..8].copy_from_slice(&3u64.to_le_bytes());
        report[64..128].copy_from_slice(&descriptor(2, 768, 1024, 1030));
        report[128..192].copy_from_slice(&descriptor(FULL, 768, 2048, u64::MAX));
        report[192..256].copy_from_slice(&descriptor(0xf, 768, 3072, u64::MAX));
        convert(&mut report, 12, 8192);
        let zone = |place: usize| {
            let zone = &report[64 + place * 64..][..64];
            [0, 8, 16, 32].map(|at| number(zone, at))
        };
        assert_eq!(zone(0), [8192, 8192, 8240, 6144]);
        assert_eq!(report[64 + 24..64 + 32], [2, 2, 0, 1, 0, 0, 0, 0]);
        assert!(report[64 + 40..128].iter().all(|byte| *byte == 0));
        assert_eq!(zone(1), [16384, 8192, 24576, 6144]);
        assert_eq!(report[128 + 25], FULL);
        assert_eq!(zone(2)[2], 24576 + 8192);
        assert!(report[256..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn commands_name_the_zone_and_what_is_done() {
        let finish = manage(operation::ZONE_FINISH, 1, 4096).unwrap();
        assert_eq!((finish.opcode, finish.slba(), finish.cdw13.get()), (0x79, 4096, 2));
        assert_eq!(manage(operation::ZONE_RESET_ALL, 1, 0).unwrap().cdw13.get(), 0x104);
        assert_eq!(manage(operation::WRITE, 1, 0), None);
        let report = report(1, 4096, 3);
        assert_eq!((report.opcode, report.cdw12.get()), (0x7a, 63));
    }
}
