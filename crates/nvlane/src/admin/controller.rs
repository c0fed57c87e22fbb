//! The Identify Controller data structure (NVMe Base 2.1, Figure 312) as a table.

use super::fields::{Field, More, Table, bit, decimal, either, hex, letters, oui, uuid, value};
use nvme::identify::DATA_BYTES;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Power state descriptors: where they begin, their size, and how many there are at most.
const POWER_STATES: (usize, usize, usize) = (2048, 32, 32);

/// The structure. Names are nvme-cli's.
pub const TABLE: Table = Table {
    name_width: 10,
    fields: FIELDS,
    more: More { text: power_text, json: power_json, shows: |_, _| true },
    vendor_specific: 3072..DATA_BYTES,
};

const FIELDS: &[Field] = &[
    hex("vid", 0, 2),
    hex("ssvid", 2, 2),
    letters("sn", 4, 20),
    letters("mn", 24, 40),
    letters("fr", 64, 8),
    decimal("rab", 72, 1),
    oui("ieee", 73),
    hex("cmic", 76, 1).bits(&[
        bit(3, "Asymmetric Namespace Access Reporting"),
        either(2, "PCI or fabric controller", "SR-IOV virtual function"),
        either(1, "Single Controller", "Multi Controller"),
        either(0, "Single Port", "Multi Port"),
    ]),
    decimal("mdts", 77, 1),
    hex("cntlid", 78, 2),
    hex("ver", 80, 4),
    hex("rtd3r", 84, 4),
    hex("rtd3e", 88, 4),
    hex("oaes", 92, 4).bits(&[
        bit(31, "Discovery Log Page Change Notices"),
        bit(27, "Zone Descriptor Changed Notices"),
        bit(15, "Normal NVM Subsystem Shutdown Event"),
        bit(14, "Endurance Group Event Aggregate Log Page Change Notices"),
        bit(13, "LBA Status Information Notices"),
        bit(12, "Predictable Latency Event Aggregate Log Change Notices"),
        bit(11, "Asymmetric Namespace Access Change Notices"),
        bit(9, "Firmware Activation Notices"),
        bit(8, "Attached Namespace Attribute Notices"),
    ]),
    hex("ctratt", 96, 4).bits(&[
        bit(15, "Extended LBA Formats"),
        bit(11, "Fixed Capacity Management"),
        bit(10, "Multi-Domain Subsystem"),
        bit(9, "UUID List"),
        bit(8, "SQ Associations"),
        bit(7, "Namespace Granularity"),
        bit(6, "Traffic Based Keep Alive"),
        bit(5, "Predictable Latency Mode"),
        bit(4, "Endurance Groups"),
        bit(3, "Read Recovery Levels"),
        bit(2, "NVM Sets"),
        bit(1, "Non-Operational Power State Permissive Mode"),
        bit(0, "128-bit Host Identifier"),
    ]),
    hex("rrls", 100, 2),
    decimal("cntrltype", 111, 1).bits(&[value(
        7,
        0,
        "Controller Type: 1 I/O, 2 discovery, 3 administrative",
    )]),
    uuid("fguid", 112),
    decimal("crdt1", 128, 2),
    decimal("crdt2", 130, 2),
    decimal("crdt3", 132, 2),
    decimal("nvmsr", 253, 1),
    decimal("vwci", 254, 1),
    decimal("mec", 255, 1),
    hex("oacs", 256, 2).bits(&[
        bit(10, "Lockdown"),
        bit(9, "Get LBA Status"),
        bit(8, "Doorbell Buffer Config"),
        bit(7, "Virtualization Management"),
        bit(6, "NVMe-MI Send and Receive"),
        bit(5, "Directives"),
        bit(4, "Device Self-test"),
        bit(3, "Namespace Management and Attachment"),
        bit(2, "Firmware Commit and Image Download"),
        bit(1, "Format NVM"),
        bit(0, "Security Send and Receive"),
    ]),
    decimal("acl", 258, 1),
    decimal("aerl", 259, 1),
    hex("frmw", 260, 1).bits(&[
        bit(5, "Detection of overlapping firmware images"),
        bit(4, "Firmware Activate Without Reset"),
        value(3, 1, "Number of Firmware Slots"),
        either(0, "Firmware Slot 1 Read/Write", "Firmware Slot 1 Read-Only"),
    ]),
    hex("lpa", 261, 1).bits(&[
        bit(6, "Telemetry data area 4"),
        bit(5, "Supported Log Pages and Feature Identifiers Effects logs"),
        bit(4, "Persistent Event log"),
        bit(3, "Telemetry host- and controller-initiated logs"),
        bit(2, "Extended data for Get Log Page"),
        bit(1, "Commands Supported and Effects log"),
        bit(0, "SMART log per namespace"),
    ]),
    decimal("elpe", 262, 1).bits(&[value(7, 0, "Error Log Page Entries, zero-based")]),
    decimal("npss", 263, 1).bits(&[value(7, 0, "Number of Power States, zero-based")]),
    hex("avscc", 264, 1),
    hex("apsta", 265, 1).bits(&[bit(0, "Autonomous Power State Transitions")]),
    decimal("wctemp", 266, 2),
    decimal("cctemp", 268, 2),
    decimal("mtfa", 270, 2),
    decimal("hmpre", 272, 4),
    decimal("hmmin", 276, 4),
    decimal("tnvmcap", 280, 16),
    decimal("unvmcap", 296, 16),
    hex("rpmbs", 312, 4),
    decimal("edstt", 316, 2),
    decimal("dsto", 318, 1),
    decimal("fwug", 319, 1),
    decimal("kas", 320, 2),
    hex("hctma", 322, 2),
    decimal("mntmt", 324, 2),
    decimal("mxtmt", 326, 2),
    hex("sanicap", 328, 4).bits(&[
        value(31, 30, "No-Deallocate Modifies Media After Sanitize"),
        bit(29, "No-Deallocate Inhibited"),
        bit(2, "Overwrite Sanitize"),
        bit(1, "Block Erase Sanitize"),
        bit(0, "Crypto Erase Sanitize"),
    ]),
    decimal("hmminds", 332, 4),
    decimal("hmmaxd", 336, 2),
    decimal("nsetidmax", 338, 2),
    decimal("endgidmax", 340, 2),
    decimal("anatt", 342, 1),
    decimal("anacap", 343, 1).bits(&[
        bit(7, "Non-zero group ID chosen with Namespace Management"),
        either(6, "Group IDs may change", "Group IDs do not change"),
        bit(4, "ANA Change state"),
        bit(3, "ANA Persistent Loss state"),
        bit(2, "ANA Inaccessible state"),
        bit(1, "ANA Non-optimized state"),
        bit(0, "ANA Optimized state"),
    ]),
    decimal("anagrpmax", 344, 4),
    decimal("nanagrpid", 348, 4),
    decimal("pels", 352, 4),
    decimal("domainid", 356, 2),
    decimal("megcap", 368, 16),
    hex("sqes", 512, 1).bits(&[
        value(7, 4, "Maximum SQ Entry Size, a power of two"),
        value(3, 0, "Required SQ Entry Size, a power of two"),
    ]),
    hex("cqes", 513, 1).bits(&[
        value(7, 4, "Maximum CQ Entry Size, a power of two"),
        value(3, 0, "Required CQ Entry Size, a power of two"),
    ]),
    decimal("maxcmd", 514, 2),
    decimal("nn", 516, 4),
    hex("oncs", 520, 2).bits(&[
        bit(12, "Namespace Zeroes"),
        bit(11, "Maximum Write Zeroes with Deallocate"),
        bit(10, "All Fast Copy"),
        bit(9, "Copy Single Atomicity"),
        bit(8, "Copy"),
        bit(7, "Verify"),
        bit(6, "Timestamp"),
        bit(5, "Reservations"),
        bit(4, "Save and Select of features"),
        bit(3, "Write Zeroes"),
        bit(2, "Dataset Management"),
        bit(1, "Write Uncorrectable"),
        bit(0, "Compare"),
    ]),
    hex("fuses", 522, 2).bits(&[bit(0, "Fused Compare and Write")]),
    hex("fna", 524, 1).bits(&[
        bit(3, "Broadcast NSID for Format NVM not"),
        bit(2, "Crypto Erase with Format"),
        either(1, "Erase applies to one namespace", "Erase applies to all namespaces"),
        either(0, "Format applies to one namespace", "Format applies to all namespaces"),
    ]),
    hex("vwc", 525, 1).bits(&[
        value(2, 1, "Flush of NSID FFFFFFFFh: 2 not supported, 3 supported"),
        either(0, "Volatile Write Cache Not Present", "Volatile Write Cache Present"),
    ]),
    decimal("awun", 526, 2),
    decimal("awupf", 528, 2),
    decimal("icsvscc", 530, 1),
    decimal("nwpc", 531, 1).bits(&[
        bit(2, "Permanent Write Protect"),
        bit(1, "Write Protect Until Power Cycle"),
        bit(0, "No Write Protect and Write Protect"),
    ]),
    decimal("acwu", 532, 2),
    hex("ocfs", 534, 2).bits(&[
        bit(3, "Copy Format 3h"),
        bit(2, "Copy Format 2h"),
        bit(1, "Copy Format 1h"),
        bit(0, "Copy Format 0h"),
    ]),
    hex("sgls", 536, 4).bits(&[
        bit(21, "Transport SGL Data Block"),
        bit(20, "Address as offset into the capsule"),
        bit(19, "Metadata Pointer as SGL"),
        bit(18, "SGL length larger than the data"),
        bit(17, "Byte-aligned contiguous metadata buffer"),
        bit(16, "SGL Bit Bucket"),
        bit(2, "Keyed SGL Data Block"),
        value(1, 0, "SGLs: 0 not supported, 1 any alignment, 2 dword alignment"),
    ]),
    decimal("mnan", 540, 4),
    decimal("maxdna", 544, 16),
    decimal("maxcna", 560, 4),
    letters("subnqn", 768, 256),
    decimal("ioccsz", 1792, 4),
    decimal("iorcsz", 1796, 4),
    decimal("icdoff", 1800, 2),
    hex("fcatt", 1802, 1).bits(&[either(0, "Dynamic Controller Model", "Static Controller Model")]),
    decimal("msdbd", 1803, 1),
    decimal("ofcs", 1804, 2).bits(&[bit(0, "Disconnect command")]),
];

/// The power states that there are: NPSS is zero-based.
fn power_states(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (at, size, max) = POWER_STATES;
    let count = usize::from(data[263]) + 1;
    data[at..at + size * max].chunks_exact(size).take(count)
}

fn power_text(data: &[u8], _human: bool) -> String {
    let mut text = String::new();
    for (index, state) in power_states(data).enumerate() {
        let power = u16::from_le_bytes([state[0], state[1]]);
        let (unit, digits) = if state[3] & 1 == 0 { (100, 2) } else { (10_000, 4) };
        let no = if state[3] & 2 == 0 { "" } else { "non-" };
        let _ = writeln!(
            text,
            "ps   {index:4} : mp:{}.{:0digits$}W {no}operational enlat:{} exlat:{} rrt:{} rrl:{} rwt:{} rwl:{}",
            power / unit,
            power % unit,
            dword(state, 4),
            dword(state, 8),
            state[12] & 0x1f,
            state[13] & 0x1f,
            state[14] & 0x1f,
            state[15] & 0x1f,
        );
    }
    text
}

fn power_json(data: &[u8]) -> (&'static str, Value) {
    let states = power_states(data).map(|state| {
        json!({
            "max_power": u16::from_le_bytes([state[0], state[1]]),
            "flags": state[3],
            "entry_lat": dword(state, 4),
            "exit_lat": dword(state, 8),
            "read_tput": state[12] & 0x1f,
            "read_lat": state[13] & 0x1f,
            "write_tput": state[14] & 0x1f,
            "write_lat": state[15] & 0x1f,
            "idle_power": u16::from_le_bytes([state[16], state[17]]),
            "idle_scale": state[18] >> 6,
            "active_power": u16::from_le_bytes([state[20], state[21]]),
            "active_power_work": state[22] & 7,
            "active_scale": state[22] >> 6,
        })
    });
    ("psds", states.collect())
}

fn dword(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::identify::Controller;
    use zerocopy::{FromZeros, IntoBytes};

    /// The offsets are those of the structure that everything else uses.
    #[test]
    fn the_table_agrees_with_the_structure() {
        let mut data = Controller::new_zeroed();
        data.sn = *b"12345678            ";
        data.mdts = 8;
        data.cntlid = 0x102.into();
        data.cntrltype = 1;
        data.oacs = 0x8.into();
        data.kas = 10.into();
        data.anacap = 0x1f;
        data.nanagrpid = 128.into();
        data.nn = 1024.into();
        data.oncs = 0x8c.into();
        data.vwc = 7;
        data.sgls = 0x10_0001.into();
        data.maxcna = 77.into();
        data.subnqn[..3].copy_from_slice(b"nqn");
        data.ioccsz = 516.into();
        data.ofcs = 1.into();
        data.npss_z = 255;
        data.psd[1].enlat = 9.into();
        let json = Value::Object(TABLE.json(data.as_bytes()));
        for (name, value) in [
            ("sn", json!("12345678")),
            ("mdts", json!(8)),
            ("cntlid", json!(0x102)),
            ("cntrltype", json!(1)),
            ("oacs", json!(8)),
            ("kas", json!(10)),
            ("anacap", json!(0x1f)),
            ("nanagrpid", json!(128)),
            ("nn", json!(1024)),
            ("oncs", json!(0x8c)),
            ("vwc", json!(7)),
            ("sgls", json!(0x10_0001)),
            ("maxcna", json!(77)),
            ("subnqn", json!("nqn")),
            ("ioccsz", json!(516)),
            ("ofcs", json!(1)),
        ] {
            assert_eq!(json[name], value, "{name}");
        }
        assert_eq!(json["psds"].as_array().unwrap().len(), 32);
        assert_eq!(json["psds"][1]["entry_lat"], 9);

        let text = TABLE.text(data.as_bytes(), false);
        assert!(text.starts_with("vid       : 0\n"), "{text}");
        assert!(text.contains("\ncntlid    : 0x102\n") && !text.contains('['), "{text}");
        let human = TABLE.text(data.as_bytes(), true);
        assert!(human.contains("  [3:3] : 0x1\tWrite Zeroes Supported\n"), "{human}");
    }
}
