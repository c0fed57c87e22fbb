//! The Identify Namespace data structure of the NVM command set (NVM 1.1, section 4.1.5.1) as a
//! table.

use super::fields::{Field, More, Table, bit, bytes, decimal, either, hex, hex_text, value};
use nvme::identify::{DATA_BYTES, LbaFormat, Namespace};
use serde_json::{Value, json};
use std::fmt::Write as _;
use zerocopy::FromBytes;

/// OPTPERF in bits 5:4 of NSFEAT: NPWG, NPWA and NOWS are valid where any is set.
const OPTIMAL_WRITES: u8 = 0b11 << 4;
/// NPDG and NPDA are valid as well; without it NPDGL and NPDAL, of another structure, replace them.
const OPTIMAL_DEALLOCATION: u8 = 1 << 4;

/// The structure. Names are nvme-cli's.
pub const TABLE: Table = Table {
    name_width: 8,
    fields: FIELDS,
    more: More { text: formats_text, json: formats_json, shows },
    vendor_specific: 384..DATA_BYTES,
};

const FIELDS: &[Field] = &[
    hex("nsze", 0, 8),
    hex("ncap", 8, 8),
    hex("nuse", 16, 8),
    hex("nsfeat", 24, 1).bits(&[
        value(
            5,
            4,
            "Optimal I/O: 0 not reported, 1 NPWG, NPWA, NPDG, NPDA and NOWS, 2 NPDGL and NPDAL for NPDG and NPDA, 3 all",
        ),
        either(3, "NGUID and EUI64 may be reused", "NGUID and EUI64 are never reused"),
        bit(2, "Deallocated or Unwritten Logical Block error"),
        bit(1, "Namespace atomic units NAWUN, NAWUPF and NACWU"),
        bit(0, "Thin Provisioning"),
    ]),
    decimal("nlbaf", 25, 1),
    hex("flbas", 26, 1).bits(&[
        either(
            4,
            "Metadata Transferred in Separate Contiguous Buffer",
            "Metadata Transferred at End of Data",
        ),
        value(3, 0, "Current LBA Format, lower bits"),
    ]),
    hex("mc", 27, 1).bits(&[
        bit(1, "Metadata in a separate buffer"),
        bit(0, "Metadata as part of an extended LBA"),
    ]),
    hex("dpc", 28, 1).bits(&[
        bit(4, "Protection Information in the last bytes of metadata"),
        bit(3, "Protection Information in the first bytes of metadata"),
        bit(2, "Protection Information Type 3"),
        bit(1, "Protection Information Type 2"),
        bit(0, "Protection Information Type 1"),
    ]),
    hex("dps", 29, 1).bits(&[
        either(
            3,
            "Protection Information in the last bytes",
            "Protection Information in the first bytes",
        ),
        value(2, 0, "Protection Information Type, 0 disabled"),
    ]),
    hex("nmic", 30, 1).bits(&[either(0, "Private namespace", "Shared by several controllers")]),
    hex("rescap", 31, 1).bits(&[
        bit(6, "Exclusive Access - All Registrants"),
        bit(5, "Write Exclusive - All Registrants"),
        bit(4, "Exclusive Access - Registrants Only"),
        bit(3, "Write Exclusive - Registrants Only"),
        bit(2, "Exclusive Access"),
        bit(1, "Write Exclusive"),
        bit(0, "Persist Through Power Loss"),
    ]),
    hex("fpi", 32, 1).bits(&[bit(7, "Format Progress Indicator")]),
    decimal("dlfeat", 33, 1).bits(&[
        either(4, "Guard of deallocated blocks is FFFFh", "Guard of deallocated blocks is a CRC"),
        bit(3, "Deallocate bit of Write Zeroes"),
        value(2, 0, "Deallocated blocks read as: 0 not reported, 1 zeroes, 2 FFh"),
    ]),
    decimal("nawun", 34, 2),
    decimal("nawupf", 36, 2),
    decimal("nacwu", 38, 2),
    decimal("nabsn", 40, 2),
    decimal("nabo", 42, 2),
    decimal("nabspf", 44, 2),
    decimal("noiob", 46, 2),
    decimal("nvmcap", 48, 16),
    decimal("npwg", 64, 2),
    decimal("npwa", 66, 2),
    decimal("npdg", 68, 2),
    decimal("npda", 70, 2),
    decimal("nows", 72, 2),
    decimal("mssrl", 74, 2),
    decimal("mcl", 76, 4),
    decimal("msrc", 80, 1),
    decimal("nulbaf", 82, 1),
    decimal("anagrpid", 92, 4),
    decimal("nsattr", 99, 1),
    decimal("nvmsetid", 100, 2),
    decimal("endgid", 102, 2),
    bytes("nguid", 104, 16),
    bytes("eui64", 120, 8),
];

fn shows(field: &Field, data: &[u8]) -> bool {
    let any_of = match field.name {
        "npwg" | "npwa" | "nows" => OPTIMAL_WRITES,
        "npdg" | "npda" => OPTIMAL_DEALLOCATION,
        _ => return true,
    };
    data[24] & any_of != 0
}

/// The LBA formats that there are, and the index of the one in use.
fn formats(data: &[u8]) -> (Vec<LbaFormat>, usize) {
    let namespace = Namespace::ref_from_bytes(data).expect("a whole structure of bytes");
    // NLBAF is zero-based; formats with attributes of their own follow (NULBAF).
    let count = usize::from(namespace.nlbaf_z) + 1 + usize::from(data[82]);
    let formats = namespace.lbaf.iter().copied().take(count).collect();
    (formats, namespace.format_index())
}

fn formats_text(data: &[u8], human: bool) -> String {
    const PERFORMANCE: [&str; 4] = ["Best", "Better", "Good", "Degraded"];
    let mut text = String::new();
    let (formats, used) = formats(data);
    for (index, format) in formats.iter().enumerate() {
        let LbaFormat { ms, lbads, rp } = format;
        let (ms, rp) = (ms.get(), rp & 3);
        let words = PERFORMANCE[usize::from(rp)];
        let rp = hex_text(rp.into());
        let used = if index == used { " (in use)" } else { "" };
        let _ = if human {
            let bytes = 1u64.checked_shl((*lbads).into()).unwrap_or(0);
            writeln!(
                text,
                "LBA Format {index:2} : Metadata Size: {ms:<3} bytes - Data Size: {bytes:<2} bytes - Relative Performance: {rp} {words}{used}"
            )
        } else {
            writeln!(text, "lbaf {index:2} : ms:{ms:<3} lbads:{lbads:<2} rp:{rp}{used}")
        };
    }
    text
}

fn formats_json(data: &[u8]) -> (&'static str, Value) {
    let (formats, _) = formats(data);
    let json = formats
        .iter()
        .map(|format| json!({"ms": format.ms.get(), "ds": format.lbads, "rp": format.rp & 3}));
    ("lbafs", json.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromZeros, IntoBytes};

    #[test]
    fn the_table_agrees_with_the_structure() {
        let mut data = Namespace::new_zeroed();
        data.nsze = 0x1_0000_0001.into();
        data.nlbaf_z = 1;
        data.flbas = 1;
        data.nmic = 1;
        data.dlfeat = 9;
        data.noiob = 8.into();
        data.npwg_z = 7.into();
        data.mssrl = 5.into();
        data.anagrpid = 3.into();
        data.nguid = [0xab; 16];
        data.lbaf[0].lbads = 9;
        data.lbaf[1].lbads = 12;
        let json = Value::Object(TABLE.json(data.as_bytes()));
        for (name, value) in [
            ("nsze", json!(0x1_0000_0001u64)),
            ("nmic", json!(1)),
            ("dlfeat", json!(9)),
            ("noiob", json!(8)),
            ("mssrl", json!(5)),
            ("anagrpid", json!(3)),
            ("nguid", json!("ab".repeat(16))),
            ("lbafs", json!([{"ms": 0, "ds": 9, "rp": 0}, {"ms": 0, "ds": 12, "rp": 0}])),
        ] {
            assert_eq!(json[name], value, "{name}");
        }
        let text = TABLE.text(data.as_bytes(), false);
        assert!(text.starts_with("nsze    : 0x100000001\n"), "{text}");
        assert!(text.contains("lbaf  1 : ms:0   lbads:12 rp:0 (in use)\n"), "{text}");
        assert!(TABLE.text(data.as_bytes(), true).contains("Data Size: 4096 bytes"));
    }

    #[test]
    fn fields_of_optimal_io_are_shown_where_they_are_valid() {
        let mut data = Namespace::new_zeroed();
        (data.npwg_z, data.npwa_z, data.nows_z) = (7.into(), 8.into(), 9.into());
        (data.npdg_z, data.npda_z) = (10.into(), 11.into());
        for (optperf, writes, deallocation) in
            [(0b00, false, false), (0b01, true, true), (0b10, true, false), (0b11, true, true)]
        {
            data.nsfeat = optperf << 4 | 0b1111;
            let json = TABLE.json(data.as_bytes());
            for (name, value, valid) in [
                ("npwg", 7, writes),
                ("npwa", 8, writes),
                ("npdg", 10, deallocation),
                ("npda", 11, deallocation),
                ("nows", 9, writes),
            ] {
                assert_eq!(json.get(name), valid.then_some(&json!(value)), "{optperf:#b}: {name}");
            }
            let text = TABLE.text(data.as_bytes(), true);
            let bits = format!("  [5:4] : {}\tOptimal I/O: ", hex_text(optperf.into()));
            assert!(text.contains(&bits), "{text}");
        }
    }

    #[test]
    fn one_format_is_in_use_of_several_that_are_alike() {
        let mut data = Namespace::new_zeroed();
        (data.nlbaf_z, data.lbaf) = (40, [LbaFormat { lbads: 12, ..LbaFormat::new_zeroed() }; 64]);
        // Bits 6:5 are above bits 3:0.
        for (flbas, used) in [(0, 0), (2, 2), (0x10 | 2, 2), (1 << 5 | 3, 19), (2 << 5, 32)] {
            data.flbas = flbas;
            for human in [false, true] {
                let text = TABLE.text(data.as_bytes(), human);
                let mut marked = text.lines().filter(|line| line.contains("(in use)"));
                let line = marked.next().expect("one is in use").to_lowercase();
                assert!(line.contains(&format!(" {used:2} :")), "{line}");
                assert_eq!(marked.next(), None, "another one");
            }
        }
    }
}
