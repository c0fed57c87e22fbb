//! `nvlane show-regs`: the properties of a controller (NVMe Base 2.1, section 3.1.4).

use super::connect::Remote;
use super::fields::{Bits, bit, either, meaning, value};
use super::json;
use crate::cli::{ListFormat, ShowRegsArgs};
use crate::stdout;
use anyhow::Result;
use host::client::Client;
use nvme::fabrics::Property;
use serde_json::Value;
use std::fmt::Write as _;

/// A property: where it is, its names in text and in JSON as nvme-cli has them, whether every
/// controller of a fabric has it, and what its bits mean.
struct Register {
    property: Property,
    text: &'static str,
    json: &'static str,
    mandatory: bool,
    bits: &'static [Bits],
}

const REGISTERS: [Register; 6] = [
    Register {
        property: Property::CAP,
        text: "cap",
        json: "cap",
        mandatory: true,
        bits: &[
            value(60, 59, "Controller Ready Modes Supported: bit 0 with media, bit 1 independent"),
            value(55, 52, "Memory Page Size Maximum, a power of two above 4 KiB"),
            value(51, 48, "Memory Page Size Minimum, a power of two above 4 KiB"),
            either(44, "I/O Command Sets", "Only Admin Command Set"),
            bit(43, "Several I/O Command Sets"),
            bit(37, "NVM Command Set"),
            bit(36, "NVM Subsystem Reset"),
            value(31, 24, "Timeout until ready, in 500 ms"),
            value(18, 17, "Arbitration Mechanisms Supported"),
            either(16, "Queues need not be contiguous", "Contiguous Queues Required"),
            value(15, 0, "Maximum Queue Entries Supported, zero-based"),
        ],
    },
    Register {
        property: Property::VS,
        text: "version",
        json: "vs",
        mandatory: true,
        bits: &[
            value(31, 16, "Major Version"),
            value(15, 8, "Minor Version"),
            value(7, 0, "Tertiary Version"),
        ],
    },
    Register {
        property: Property::CC,
        text: "cc",
        json: "cc",
        mandatory: true,
        bits: &[
            value(23, 20, "I/O Completion Queue Entry Size, a power of two"),
            value(19, 16, "I/O Submission Queue Entry Size, a power of two"),
            value(15, 14, "Shutdown Notification: 0 none, 1 normal, 2 abrupt"),
            value(13, 11, "Arbitration Mechanism Selected"),
            value(10, 7, "Memory Page Size, a power of two above 4 KiB"),
            value(6, 4, "I/O Command Set Selected: 0 NVM, 6 all, 7 admin only"),
            either(0, "Disabled", "Enabled"),
        ],
    },
    Register {
        property: Property::CSTS,
        text: "csts",
        json: "csts",
        mandatory: true,
        bits: &[
            either(5, "Processing is not paused", "Processing is paused"),
            either(4, "No NVM subsystem reset occurred", "NVM subsystem reset occurred"),
            value(3, 2, "Shutdown Status: 0 none, 1 occurring, 2 complete"),
            either(1, "No fatal status", "Controller Fatal Status"),
            either(0, "Not ready", "Ready"),
        ],
    },
    Register { property: Property::NSSR, text: "nssr", json: "nssr", mandatory: false, bits: &[] },
    Register {
        property: Property::CRTO,
        text: "crto",
        json: "crto",
        mandatory: false,
        bits: &[
            value(31, 16, "Controller Ready Independent of Media Timeout, in 500 ms"),
            value(15, 0, "Controller Ready With Media Timeout, in 500 ms"),
        ],
    },
];

/// `nvlane show-regs`.
pub fn show_regs(args: &ShowRegsArgs) -> Result<()> {
    let remote = Remote::of(args.device.as_deref(), &args.remote, args.nqn.as_deref())?;
    let values = read(&mut remote.connect()?)?;
    let out = match args.output_format {
        ListFormat::Normal => text_of(&values, args.human_readable).into_bytes(),
        ListFormat::Json => json::write(
            values.iter().map(|(one, value)| (one.json.to_owned(), Value::from(*value))).collect(),
        ),
    };
    stdout::write(out)
}

/// The properties that the controller has.
fn read(client: &mut Client) -> Result<Vec<(&'static Register, u64)>> {
    let mut values = Vec::new();
    for register in &REGISTERS {
        match client.property(register.property) {
            Ok(value) => values.push((register, value)),
            Err(error) if register.mandatory || error.status().is_none() => {
                return Err(error.into());
            }
            // It says that it has none.
            Err(_) => {}
        }
    }
    Ok(values)
}

fn text_of(values: &[(&Register, u64)], human: bool) -> String {
    let mut out = String::new();
    for (register, value) in values {
        let _ = writeln!(out, "{:<8}: {value:x}", register.text);
        if human {
            out.push_str(&meaning(register.bits, *value));
        }
    }
    out
}
