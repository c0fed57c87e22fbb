//! `nvlane list`: namespaces with their sizes.

use super::connect::Remote;
use super::{json, text};
use crate::cli::{ListArgs, ListFormat};
use crate::control::client::Client as Control;
use crate::control::method::Volume;
use crate::control::path;
use crate::patience;
use crate::size;
use anyhow::{Context, Result};
use host::client::{Client, Descriptor, lba_format};
use nvme::identify::Nidt;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::io::{self, Write};
use uuid::Uuid;

/// A namespace, or a volume that is none yet.
#[derive(Default)]
struct Device {
    node: String,
    subsystem: String,
    nsid: u32,
    serial: String,
    model: String,
    firmware: String,
    uuid: String,
    used_blocks: u64,
    blocks: u64,
    block_bytes: u64,
    metadata_bytes: u16,
}

/// `nvlane list`.
pub fn list(args: &ListArgs) -> Result<()> {
    let mut devices = Vec::new();
    if let Some(nqn) = &args.nqn {
        list_remote(&Remote::at(&args.remote, host::PORT, nqn)?, &mut devices)?;
    } else if args.remote.traddr.is_some() {
        Remote::of(None, &args.remote, None)?;
    } else if args.volumes.is_empty() {
        let socket = args.socket.clone().unwrap_or_else(path::socket);
        let volumes = Control::connect(&socket)?.call("volume_list", json!({}))?;
        let volumes: Vec<Volume> =
            serde_json::from_value(volumes).context("the daemon is of another version")?;
        devices.extend(volumes.into_iter().map(served));
    }
    for volume in &args.volumes {
        if volume::is_remote(volume) {
            list_remote(&Remote::parse(volume, &args.remote)?, &mut devices)?;
        } else {
            devices.push(local(volume)?);
        }
    }
    let out = match args.output_format {
        ListFormat::Normal => table(&devices).into_bytes(),
        ListFormat::Json => {
            let devices: Vec<Value> = devices.iter().map(json_of).collect();
            json::write(Map::from_iter([("Devices".to_owned(), devices.into())]))
        }
    };
    io::stdout().write_all(&out)?;
    Ok(())
}

fn list_remote(remote: &Remote, devices: &mut Vec<Device>) -> Result<()> {
    let mut client = remote.connect()?;
    let controller = client.identify_controller()?;
    let nsids = match remote.nsid {
        Some(nsid) => vec![nsid],
        None => client.active_namespaces()?,
    };
    for nsid in nsids {
        let namespace = client.identify_namespace(nsid)?;
        let format = lba_format(&namespace);
        devices.push(Device {
            node: remote.uri(nsid),
            subsystem: remote.nqn.clone(),
            nsid,
            serial: text::of_field(&controller.sn),
            model: text::of_field(&controller.mn),
            firmware: text::of_field(&controller.fr),
            uuid: uuid_of(&mut client, nsid)?,
            used_blocks: namespace.nuse.get(),
            blocks: namespace.nsze.get(),
            block_bytes: 1 << format.lbads,
            metadata_bytes: format.ms.get(),
        });
    }
    Ok(())
}

/// The namespace's UUID; empty if it has none, or the controller does not tell names.
fn uuid_of(client: &mut Client, nsid: u32) -> Result<String> {
    let descriptors = match client.descriptors(nsid) {
        Ok(descriptors) => descriptors,
        Err(error) if error.status().is_some() => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let uuid = |one: &Descriptor| Uuid::from_slice(&one.id).ok();
    let found = descriptors.iter().filter(|one| one.nidt == Nidt::UUID).find_map(uuid);
    Ok(found.map(|uuid| uuid.to_string()).unwrap_or_default())
}

/// What a daemon serves.
fn served(volume: Volume) -> Device {
    let blocks = volume.bytes / u64::from(volume.block_bytes.max(1));
    Device {
        node: volume.volume,
        subsystem: volume.nqn,
        nsid: volume.nsid,
        uuid: volume.uuid.to_string(),
        used_blocks: blocks,
        blocks,
        block_bytes: volume.block_bytes.into(),
        ..Device::default()
    }
}

/// A volume of this machine.
fn local(volume: &str) -> Result<Device> {
    let options = volume::OpenOptions { read_only: true, ..volume::OpenOptions::default() };
    let volume = patience::open(volume, &options)?;
    let limits = volume.limits();
    Ok(Device {
        node: volume.uri(),
        uuid: volume.uuid().map(|id| Uuid::from_bytes(id).to_string()).unwrap_or_default(),
        used_blocks: limits.blocks,
        blocks: limits.blocks,
        block_bytes: limits.block_bytes().into(),
        ..Device::default()
    })
}

fn table(devices: &[Device]) -> String {
    let head = ["Node", "SN", "Model", "Namespace", "Usage", "Format", "FW Rev"];
    let rows = devices.iter().map(|device| {
        let used = size::format(device.used_blocks.saturating_mul(device.block_bytes));
        let all = size::format(device.blocks.saturating_mul(device.block_bytes));
        let nsid = if device.nsid == 0 { "-".to_owned() } else { format!("{:#x}", device.nsid) };
        [
            device.node.clone(),
            device.serial.clone(),
            device.model.clone(),
            nsid,
            format!("{used} / {all}"),
            format!("{} B + {} B", device.block_bytes, device.metadata_bytes),
            device.firmware.clone(),
        ]
    });
    columns(&head, &rows.collect::<Vec<_>>())
}

/// Rows below their heads and a line, columns as wide as they need.
pub fn columns<const N: usize>(head: &[&str; N], rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut out = String::new();
    let mut line = |cells: [&str; N]| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let text = padded.collect::<Vec<_>>().join(" ");
        let _ = writeln!(out, "{}", text.trim_end());
    };
    line(*head);
    let dashes: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
    line(std::array::from_fn(|column| dashes[column].as_str()));
    for row in rows {
        line(std::array::from_fn(|column| row[column].as_str()));
    }
    out
}

fn json_of(device: &Device) -> Value {
    json!({
        "NameSpace": device.nsid,
        "DevicePath": device.node,
        "SubsystemNQN": device.subsystem,
        "UUID": device.uuid,
        "Firmware": device.firmware,
        "ModelNumber": device.model,
        "SerialNumber": device.serial,
        "UsedBytes": device.used_blocks.saturating_mul(device.block_bytes),
        "MaximumLBA": device.blocks,
        "PhysicalSize": device.blocks.saturating_mul(device.block_bytes),
        "SectorSize": device.block_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_need() {
        let text = columns(&["a", "long"], &[["xyz".into(), "1".into()]]);
        assert_eq!(text, "a   long\n--- ----\nxyz 1\n");
    }
}
