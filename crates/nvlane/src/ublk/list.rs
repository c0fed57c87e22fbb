//! `nvlane ublk list` and `nvlane ublk features`.

use super::SCHEMA_VERSION;
use super::record::Record;
use crate::cli::ListFormat;
use crate::size;
use crate::stdout;
use ::ublk::driver::{SECTOR_SHIFT, flag, state};
use ::ublk::{DataPath, Features};
use anyhow::Result;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;

/// Where the kernel lists the devices.
const CLASS: &str = "/sys/class/ublk-char";

/// The numbers of all devices, in order.
pub fn ids() -> Vec<u32> {
    let entries = fs::read_dir(CLASS).into_iter().flatten().flatten();
    let number = |name: &str| name.strip_prefix("ublkc")?.parse().ok();
    let mut ids: Vec<u32> =
        entries.filter_map(|entry| number(entry.file_name().to_str()?)).collect();
    ids.sort_unstable();
    ids
}

/// `nvlane ublk list`.
pub fn devices(format: ListFormat) -> Result<()> {
    let mut control = super::open_control()?;
    let mut rows = Vec::new();
    for id in ids() {
        // It may go while we look.
        let (Ok(info), Ok(parameters)) = (control.info(id), control.parameters(id)) else {
            continue;
        };
        let record = Record::read(id);
        let (place, reason) = record.as_ref().map_or((None, None), Record::place);
        rows.push(json!({
            "id": id,
            "device": format!("/dev/ublkb{id}"),
            "state": state_name(info.state),
            "server": (info.state == state::LIVE).then_some(info.ublksrv_pid),
            "bytes": parameters.basic.dev_sectors << SECTOR_SHIFT,
            "queues": info.nr_hw_queues,
            "threads": record.as_ref().map(|record| record.wishes.threads()),
            "depth": info.queue_depth,
            "io_bytes_max": info.max_io_buf_bytes,
            "data_path": DataPath::of_flags(info.flags).to_string(),
            "batches": info.flags & flag::BATCH_IO != 0,
            "recoverable": info.flags & flag::USER_RECOVERY != 0,
            "program": record.as_ref().and_then(|record| record.program.clone()),
            "program_place": place,
            "program_reason": reason,
            "volume": record.map(|record| record.volume),
        }));
    }
    let text = match format {
        ListFormat::Json => {
            format!("{}\n", json!({ "version": SCHEMA_VERSION, "devices": rows }))
        }
        ListFormat::Normal => table(&rows),
    };
    stdout::write(text)
}

fn state_name(number: u16) -> &'static str {
    match number {
        state::DEAD => "dead",
        state::LIVE => "live",
        state::QUIESCED => "waits for a server",
        state::FAIL_IO => "fails without a server",
        _ => "unknown",
    }
}

fn table(rows: &[Value]) -> String {
    let mut text = String::new();
    for row in rows {
        let word = |key: &str| match &row[key] {
            Value::String(word) => word.clone(),
            Value::Null => "-".to_owned(),
            other => other.to_string(),
        };
        let bytes = size::format(row["bytes"].as_u64().unwrap_or(0));
        let _ = writeln!(
            text,
            "{}  {}  server {}  {bytes}  {} x {}  {}  {}{}",
            word("device"),
            word("state"),
            word("server"),
            word("queues"),
            word("depth"),
            word("data_path"),
            word("volume"),
            row["program"].as_str().map(|runs| format!("  ({runs})")).unwrap_or_default(),
        );
    }
    text
}

/// `nvlane ublk features`.
pub fn features(format: ListFormat) -> Result<()> {
    let control = super::open_control()?;
    let driver = control.features();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let best = |takes_registered| {
        DataPath::choose(None, driver, takes_registered).expect("copying needs nothing").to_string()
    };
    let programs = ublk_bpf::is_there();
    let text = match format {
        ListFormat::Json => {
            let each: Vec<Value> = driver
                .each()
                .map(|(feature, there)| {
                    json!({
                        "name": feature.name,
                        "there": there,
                        "since": feature.since,
                        "gives": feature.gives,
                        "used": feature.is_used,
                    })
                })
                .collect();
            let all = json!({
                "version": SCHEMA_VERSION,
                "kernel": release.trim(),
                "mask": driver.mask(),
                "features": each,
                "data_path": { "files_and_devices": best(true), "others": best(false) },
                "programs_in_kernel": programs.is_ok(),
            });
            format!("{all}\n")
        }
        ListFormat::Normal => {
            let mut text = match control.is_encoded() {
                true => feature_table(driver, release.trim()),
                false => format!(
                    "ublk of Linux {}\nit cannot be asked what it has: use Linux 6.5 or newer\n",
                    release.trim()
                ),
            };
            let _ =
                writeln!(text, "data of files, devices and remote volumes goes by {}", best(true));
            let _ = writeln!(text, "data of other volumes goes by {}", best(false));
            let _ = match programs {
                Ok(()) => writeln!(text, "programs (bpf:) can run in the kernel"),
                Err(error) => writeln!(text, "programs (bpf:) run in user space: {error}"),
            };
            text
        }
    };
    stdout::write(text)
}

fn feature_table(driver: Features, release: &str) -> String {
    let mut text = format!("ublk of Linux {release}\n");
    for (feature, there) in driver.each() {
        let has = if there { "yes" } else { "no " };
        let mend = match (there, feature.is_used) {
            (true, true) => String::new(),
            (true, false) => "; not used".into(),
            (false, true) => format!("; use Linux {} or newer", feature.since),
            (false, false) => format!("; not used; Linux {} has it", feature.since),
        };
        let _ = writeln!(text, "{has} {:<23} {}{mend}", feature.name, feature.gives);
    }
    if driver.unknown() != 0 {
        let _ = writeln!(text, "    others, unknown here: {:#x}", driver.unknown());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_mend() {
        let text = feature_table(Features::new(flag::USER_COPY), "6.12.1");
        let line = |name: &str| {
            let found = text.lines().find(|line| line.split_whitespace().nth(1) == Some(name));
            found.unwrap_or_else(|| panic!("{name} is not in {text}")).to_owned()
        };
        assert!(line("USER_COPY").starts_with("yes") && !line("USER_COPY").contains("use Linux"));
        assert!(line("AUTO_BUF_REG").ends_with("use Linux 6.16 or newer"));
        let unused = line("INTEGRITY");
        assert!(unused.starts_with("no ") && unused.contains("not used"));
    }

    #[test]
    fn devices_are_told_in_lines() {
        let row = json!({ "device": "/dev/ublkb3", "state": "live", "server": 17, "bytes": 4096,
            "queues": 2, "depth": 64, "data_path": "zero copy", "volume": null });
        let text = table(&[row]);
        assert_eq!(text, "/dev/ublkb3  live  server 17  4 KiB  2 x 64  zero copy  -\n");
    }
}
