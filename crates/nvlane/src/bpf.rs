//! `nvlane bpf`: programs that route requests, checked, and what they keep.
//!
//! ```text
//!   check: object --load--> trial: requests of every kind --> what is refused, what it costs
//!            `--> the verifier of the running kernel
//!   stat:  daemon --volume_maps--> text or JSON
//!   replace: object --volume_program--> daemon, or the server of a block device
//! ```

mod check;
pub mod replace;
mod trial;

use crate::cli::{BpfCommand, BpfStatArgs, ListFormat};
use crate::control::client::{Client, ClientError};
use crate::control::method::{DeviceMaps, ProgramNow, VolumeMaps, VolumePathsOf};
use crate::control::path;
use crate::stdout;
use crate::ublk;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fmt::Write as _;
use std::time::Duration;

/// `nvlane bpf`.
pub fn command(command: &BpfCommand) -> Result<()> {
    match command {
        BpfCommand::Check(args) => check::command(args),
        BpfCommand::Stat(args) => stat(args),
        BpfCommand::Replace(args) => replace::command(args),
    }
}

fn stat(args: &BpfStatArgs) -> Result<()> {
    if let Some(device) = &args.device {
        return stat_device(device, args.timeout, args.output_format);
    }
    let socket = args.socket.clone().unwrap_or_else(path::socket);
    let wanted = VolumePathsOf { nqn: args.nqn.clone(), nsid: args.nsid };
    let wanted = serde_json::to_value(&wanted).expect("plain data");
    let patience = Duration::from_millis(args.timeout);
    let volumes = Client::connect(&socket)?.patient_for(patience).call("volume_maps", wanted)?;
    let text = match args.output_format {
        ListFormat::Json => format!("{volumes:#}\n"),
        ListFormat::Normal => {
            let volumes: Vec<VolumeMaps> =
                serde_json::from_value(volumes).context("the daemon is of another version")?;
            if volumes.is_empty() {
                bail!("no volume there has a program; write bpf:PROG.bpf.o(VOLUME)");
            }
            let text = volumes.iter().map(|it| {
                format!(
                    "{} namespace {}: {}\n{}",
                    it.nqn,
                    it.nsid,
                    it.volume,
                    text_of(&it.programs)
                )
            });
            text.collect()
        }
    };
    stdout::write(text)
}

fn stat_device(device: &str, timeout_ms: u64, format: ListFormat) -> Result<()> {
    let Some(id) = ublk::device_number(device) else {
        bail!("{device} is no device of ublk: write /dev/ublkbN")
    };
    let told = device_client(id, timeout_ms)?.call("volume_maps", Value::Null)?;
    let text = match format {
        ListFormat::Json => format!("{told:#}\n"),
        ListFormat::Normal => {
            let DeviceMaps { device, volume, programs } =
                serde_json::from_value(told).context("the server is of another version")?;
            if programs.is_empty() {
                bail!("{device} has no program; it is {volume}");
            }
            format!("{device}: {volume}\n{}", text_of(&programs))
        }
    };
    stdout::write(text)
}

/// A connection to the server of a block device.
fn device_client(id: u32, timeout_ms: u64) -> Result<Client> {
    match Client::connect(&ublk::socket_of(id)) {
        Ok(client) => Ok(client.patient_for(Duration::from_millis(timeout_ms))),
        Err(ClientError::Connect { .. }) => bail!("/dev/ublkb{id} has no server that can be asked"),
        Err(error) => Err(error.into()),
    }
}

fn text_of(programs: &[ProgramNow]) -> String {
    let mut text = String::new();
    for program in programs {
        let _ = writeln!(text, "  {}: {} requests failed by it", program.name, program.mistakes);
        for map in &program.maps {
            let (name, kind) = (&map.name, &map.kind);
            let _ = writeln!(text, "    {name}, {kind} of {} entries", map.entries_max);
            for entry in &map.entries {
                let values: Vec<String> = entry.values.iter().map(|value| number(value)).collect();
                let _ = writeln!(text, "      {}: {}", number(&entry.key), values.join(" | "));
            }
            if map.left_out > 0 {
                let _ = writeln!(text, "      and {} more", map.left_out);
            }
        }
    }
    text
}

/// Bytes in hexadecimal as people read them: numbers of eight or four bytes, where they fit.
fn number(hex: &str) -> String {
    let bytes: Option<Vec<u8>> = hex
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect();
    let Some(bytes) = bytes else { return hex.to_owned() };
    let width = match bytes.len() {
        len if len % 8 == 0 => 8,
        len if len % 4 == 0 => 4,
        _ => return hex.to_owned(),
    };
    let little =
        |word: &[u8]| word.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    let words: Vec<String> = bytes.chunks(width).map(|word| little(word).to_string()).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbers_where_they_fit() {
        assert_eq!(number("0100000000000000ff00000000000000"), "1 255");
        assert_eq!(number("02000000"), "2");
        assert_eq!(number("0102030405"), "0102030405");
    }
}
