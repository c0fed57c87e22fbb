//! `nvlane list`: namespaces with their sizes.

use super::connect::Remote;
use super::topology::Topology;
use super::{json, text};
use crate::cli::{ListArgs, ListFormat};
use crate::control::client::Client as Control;
use crate::control::method::Volume;
use crate::control::path;
use crate::patience;
use crate::size;
use crate::stdout;
use anyhow::{Context, Result};
use host::client::{Client, ClientError, Descriptor, lba_format};
use nvme::identify::{Controller, Namespace, Nidt};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::time::Duration;
use uuid::Uuid;

/// A namespace, or a volume that is none yet.
#[derive(Default)]
pub struct Device {
    pub node: String,
    pub subsystem: String,
    /// 0 for a volume that is none.
    pub nsid: u32,
    serial: String,
    model: String,
    firmware: String,
    uuid: String,
    used_blocks: u64,
    blocks: u64,
    block_bytes: u64,
    metadata_bytes: u16,
}

/// What is to be listed.
pub enum Source {
    /// What a daemon serves.
    Daemon(Box<Control>),
    /// A subsystem, or a namespace of it.
    Remote(Box<Remote>),
    /// A volume of this machine, by its URI.
    Local(String),
}

/// `nvlane list`.
pub fn list(args: &ListArgs) -> Result<()> {
    let sources = sources(args)?;
    let out = if args.verbose {
        let topology = Topology::of(sources)?;
        match args.output_format {
            ListFormat::Normal => topology.text().into_bytes(),
            ListFormat::Json => json::write(Map::from_iter([
                devices_json(topology.devices()),
                ("Subsystems".to_owned(), topology.json()),
            ])),
        }
    } else {
        let mut devices = Vec::new();
        for source in sources {
            add(source, &mut devices)?;
        }
        match args.output_format {
            ListFormat::Normal => table(&devices).into_bytes(),
            ListFormat::Json => json::write(Map::from_iter([devices_json(&devices)])),
        }
    };
    stdout::write(out)
}

fn sources(args: &ListArgs) -> Result<Vec<Source>> {
    if args.remote.traddr.is_some() {
        let nqn = args.nqn.as_deref();
        return Ok(vec![Source::Remote(Box::new(Remote::of(None, &args.remote, nqn)?))]);
    }
    if args.volumes.is_empty() {
        let patience = Duration::from_millis(args.remote.timeout);
        let socket = args.socket.clone().unwrap_or_else(path::socket);
        return Ok(vec![Source::Daemon(Box::new(
            Control::connect(&socket)?.patient_for(patience),
        ))]);
    }
    let source = |volume: &String| {
        Ok(if volume::is_remote(volume) {
            Source::Remote(Box::new(Remote::parse(volume, &args.remote)?))
        } else {
            Source::Local(volume.clone())
        })
    };
    args.volumes.iter().map(source).collect()
}

fn add(source: Source, devices: &mut Vec<Device>) -> Result<()> {
    match source {
        Source::Daemon(mut daemon) => {
            devices.extend(served_volumes(&mut daemon)?.into_iter().map(Device::from));
        }
        Source::Remote(remote) => list_remote(&remote, devices)?,
        Source::Local(volume) => devices.push(local(&volume)?),
    }
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
        let device = Device::ask(&mut client, &controller, nsid, &namespace)?;
        devices.push(Device { node: remote.uri(nsid), subsystem: remote.nqn.clone(), ..device });
    }
    Ok(())
}

/// The volumes that a daemon serves.
pub fn served_volumes(daemon: &mut Control) -> Result<Vec<Volume>> {
    let volumes = daemon.call("volume_list", json!({}))?;
    serde_json::from_value(volumes).context("the daemon is of another version")
}

impl Device {
    /// Namespace `nsid` as a controller tells it, without its node and subsystem.
    pub fn ask(
        client: &mut Client,
        controller: &Controller,
        nsid: u32,
        namespace: &Namespace,
    ) -> Result<Device, ClientError> {
        let format = lba_format(namespace);
        Ok(Device {
            nsid,
            serial: text::of_field(&controller.sn),
            model: text::of_field(&controller.mn),
            firmware: text::of_field(&controller.fr),
            uuid: uuid_of(client, nsid)?,
            used_blocks: namespace.nuse.get(),
            blocks: namespace.nsze.get(),
            block_bytes: 1 << format.lbads,
            metadata_bytes: format.ms.get(),
            ..Device::default()
        })
    }

    fn used_bytes(&self) -> u64 {
        self.used_blocks.saturating_mul(self.block_bytes)
    }

    fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(self.block_bytes)
    }

    /// What is in use, and how much there is.
    pub fn usage_text(&self) -> String {
        format!("{} / {}", size::format(self.used_bytes()), size::format(self.bytes()))
    }

    /// Bytes of a block and of its metadata.
    pub fn format_text(&self) -> String {
        format!("{} B + {} B", self.block_bytes, self.metadata_bytes)
    }

    /// As one of the subsystem's, of which the rest is told beside it.
    pub fn json_in_subsystem(&self) -> Value {
        json!({
            "DevicePath": self.node,
            "NSID": self.nsid,
            "UUID": self.uuid,
            "UsedBytes": self.used_bytes(),
            "MaximumLBA": self.blocks,
            "PhysicalSize": self.bytes(),
            "SectorSize": self.block_bytes,
        })
    }

    fn json(&self) -> Value {
        json!({
            "NameSpace": self.nsid,
            "DevicePath": self.node,
            "SubsystemNQN": self.subsystem,
            "UUID": self.uuid,
            "Firmware": self.firmware,
            "ModelNumber": self.model,
            "SerialNumber": self.serial,
            "UsedBytes": self.used_bytes(),
            "MaximumLBA": self.blocks,
            "PhysicalSize": self.bytes(),
            "SectorSize": self.block_bytes,
        })
    }
}

impl From<Volume> for Device {
    /// What a daemon serves.
    fn from(volume: Volume) -> Device {
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
}

/// The namespace's UUID; empty if it has none, or the controller does not tell names.
fn uuid_of(client: &mut Client, nsid: u32) -> Result<String, ClientError> {
    let descriptors = match client.descriptors(nsid) {
        Ok(descriptors) => descriptors,
        Err(error) if error.status().is_some() => Vec::new(),
        Err(error) => return Err(error),
    };
    let uuid = |one: &Descriptor| Uuid::from_slice(&one.id).ok();
    let found = descriptors.iter().filter(|one| one.nidt == Nidt::UUID).find_map(uuid);
    Ok(found.map(|uuid| uuid.to_string()).unwrap_or_default())
}

/// A volume of this machine.
pub fn local(volume: &str) -> Result<Device> {
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
        [
            device.node.clone(),
            device.serial.clone(),
            device.model.clone(),
            nsid_text(device.nsid),
            device.usage_text(),
            device.format_text(),
            device.firmware.clone(),
        ]
    });
    columns(&head, &rows.collect::<Vec<_>>())
}

/// A namespace id; a dash for a volume that has none.
pub fn nsid_text(nsid: u32) -> String {
    if nsid == 0 { "-".to_owned() } else { format!("{nsid:#x}") }
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

fn devices_json<'a>(devices: impl IntoIterator<Item = &'a Device>) -> (String, Value) {
    ("Devices".to_owned(), devices.into_iter().map(Device::json).collect())
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
