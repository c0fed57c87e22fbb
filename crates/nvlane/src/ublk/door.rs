//! The control socket of a device's server: the paths to its volume, its programs, and what these keep.

use super::record::{self, Notes, Record};
use super::successor;
use crate::bpf::replace;
use crate::control::method::{DeviceMaps, ProgramNow, VolumePathsOf, VolumeTune};
use crate::control::protocol::{Failure, none, read};
use crate::control::server::{ControlSocket, SocketError};
use crate::paths;
use namespace::Namespace;
use serde_json::{Value, json};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How long the server before us may take to be gone, and how often that is looked at.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);

/// Has the server give the device up.
pub const LEAVE: &str = "device_leave";

/// What the device's volume is called, where volumes have numbers.
const NUMBER: u32 = 1;

/// Answers calls about the volume of device `id` until it is dropped. None, and a line in the log, if there can be
/// no socket: the device is served all the same.
/// `leave` is called when the server is to give the device up to another one.
pub fn open(
    id: u32,
    volume: &Arc<dyn Namespace>,
    notes: &Arc<Notes>,
    leave: impl Fn() + Send + Sync + 'static,
) -> Option<ControlSocket> {
    match begin(id, Arc::downgrade(volume), Arc::clone(notes), leave) {
        Ok(socket) => Some(socket),
        Err(error) => {
            tracing::warn!("/dev/ublkb{id} cannot be asked about its paths and programs: {error}");
            None
        }
    }
}

fn begin(
    id: u32,
    volume: Weak<dyn Namespace>,
    notes: Arc<Notes>,
    leave: impl Fn() + Send + Sync + 'static,
) -> anyhow::Result<ControlSocket> {
    let path = record::socket_of(id);
    let until = Instant::now() + PATIENCE;
    let mut socket = loop {
        match ControlSocket::bind(&path) {
            Err(SocketError::Taken { .. }) if Instant::now() < until => thread::sleep(LOOK),
            bound => break bound?,
        }
    };
    socket.answer(move |method, params| match volume.upgrade() {
        Some(_) if method == LEAVE => {
            none(&params)?;
            leave();
            Ok(Value::Null)
        }
        Some(volume) => answer(id, &*volume, &notes, method, params),
        None => Err(Failure::refused("the server is stopping")),
    })?;
    Ok(socket)
}

fn answer(
    id: u32,
    volume: &dyn Namespace,
    notes: &Notes,
    method: &str,
    params: Value,
) -> Result<Value, Failure> {
    let device = format!("/dev/ublkb{id}");
    // What serves the device after us is to find it as it is now.
    match method {
        "volume_program" => replace::of_device(volume, &read(params)?, &|| {
            let volume = volume.uri();
            let noted = notes.change(|noted| Record { asked: volume.clone(), volume, ..noted });
            noted.map_err(|error| error.to_string())
        }),
        "volume_paths" => {
            let wanted: VolumePathsOf = read(params)?;
            only(&device, wanted.nqn.as_deref(), wanted.nsid.unwrap_or(NUMBER))?;
            Ok(json!([paths::sample(&device, NUMBER, volume)]))
        }
        "volume_tune" => {
            let wanted: VolumeTune = read(params)?;
            only(&device, wanted.nqn.as_deref(), wanted.nsid)?;
            paths::tune(volume, &wanted)?;
            // It is the volume that was asked for all the same.
            let noted = notes.change(|noted| Record { volume: volume.uri(), ..noted });
            noted.map_err(|error| {
                Failure::unsaved(format!(
                    "the setting is made, but its record could not be written: {error}"
                ))
            })?;
            Ok(json!(paths::tuned(&device, NUMBER, volume)))
        }
        "volume_maps" => {
            none(&params)?;
            let programs = volume.programs().into_iter().map(ProgramNow::from).collect();
            Ok(json!(DeviceMaps { device, volume: volume.uri(), programs }))
        }
        "volume_backends" => {
            none(&params)?;
            let mut each = Vec::new();
            volume.each_program(&mut |program| each.push(successor::backends(program)));
            Ok(json!(each))
        }
        other => Err(Failure::method(other)),
    }
}

/// Refuses what is about another volume than the device's only one.
fn only(device: &str, name: Option<&str>, number: u32) -> Result<(), Failure> {
    match (name.is_none_or(|name| name == device), number) {
        (true, NUMBER) => Ok(()),
        _ => Err(Failure::missing(format!("{device} has one volume, which is number {NUMBER}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Wishes;
    use super::*;

    /// As at the daemon's socket.
    #[test]
    fn calls_need_no_parameters_and_take_no_unknown_ones() {
        // Nobody's number.
        let id = u32::MAX;
        let record = Record {
            volume: "mem:1M".into(),
            asked: "mem:1M".into(),
            read_only: false,
            program: None,
            server: 0,
            wishes: Wishes::default(),
        };
        let notes = Notes::new(id, &record);
        let volume = volume::open("mem:1M", &volume::OpenOptions::default()).unwrap();
        for method in ["volume_paths", "volume_maps", "volume_backends"] {
            let call = |params| answer(id, &*volume, &notes, method, params);
            assert_eq!(call(Value::Null), call(json!({})), "{method}");
            assert!(call(Value::Null).is_ok(), "{method}");
            assert_eq!(call(json!({"all": true})).unwrap_err().code, -32602, "{method}");
        }
    }
}
