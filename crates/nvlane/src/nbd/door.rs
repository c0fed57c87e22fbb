//! The control socket of `nvlane nbd`: counters, paths and programs of its exports, by the methods of the daemon's that are about them. An
//! export's number, counted from 1, stands for the namespace's, `nbd:` and its name for the subsystem's.

use crate::bpf::replace;
use crate::control::method::{ProgramNow, VolumeMaps, VolumePathsOf, VolumeProgram, VolumeTune};
use crate::control::protocol::{Failure, none, read};
use crate::control::server::{ControlSocket, SocketError};
use crate::daemon::{NamespaceStatistics, Started, Statistics};
use crate::paths;
use ::nbd::{Activity, Export};
use anyhow::{Context, Result};
use namespace::Namespace;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, Weak};

/// An export, for as long as it is served.
struct Served {
    name: String,
    number: u32,
    volume: Weak<dyn Namespace>,
}

/// What is asked about.
struct Exports {
    served: Vec<Served>,
    activity: Arc<Activity>,
    started: Started,
}

impl Exports {
    fn statistics(&self) -> Statistics {
        let namespaces = self.served.iter().zip(self.activity.exports());
        let namespaces = namespaces.map(|(export, counted)| {
            NamespaceStatistics::new(export.name.clone(), export.number, &counted)
        });
        Statistics::of(self.started, self.activity.connections(), namespaces.collect(), Vec::new())
    }
}

/// Answers calls about the exports until it is dropped.
pub fn open(path: &Path, exports: &[Export], activity: Arc<Activity>) -> Result<ControlSocket> {
    let served = (1..).zip(exports).map(|(number, export)| Served {
        name: format!("nbd:{}", export.name),
        number,
        volume: Arc::downgrade(&export.namespace),
    });
    let exports = Exports { served: served.collect(), activity, started: Started::now() };
    let mut socket = ControlSocket::bind(path).map_err(|error| match error {
        SocketError::Taken { path, process } => {
            anyhow::anyhow!("control socket {path:?} belongs to another nvlane (process {process})")
        }
        error => error.into(),
    })?;
    let begun = socket.answer(move |method, params| answer(&exports, method, params));
    begun.context("the control socket has no thread")?;
    Ok(socket)
}

fn answer(exports: &Exports, method: &str, params: Value) -> Result<Value, Failure> {
    let served = &exports.served[..];
    match method {
        "stats" => none(&params).map(|()| json!(exports.statistics())),
        "volume_maps" => {
            let wanted: VolumePathsOf = read(params)?;
            let meant = meant(served, wanted.nqn.as_deref(), wanted.nsid);
            let maps = meant.filter_map(|export| {
                let volume = export.volume.upgrade()?;
                let programs = volume.programs().into_iter().map(ProgramNow::from).collect();
                let (nqn, nsid) = (export.name.clone(), export.number);
                Some(VolumeMaps { nqn, nsid, volume: volume.uri(), programs })
            });
            let maps: Vec<VolumeMaps> = maps.filter(|it| !it.programs.is_empty()).collect();
            Ok(json!(maps))
        }
        "volume_program" => {
            let wanted: VolumeProgram = read(params)?;
            let (_, volume) = only(served, wanted.nqn.as_deref(), wanted.nsid)?;
            let replaces = wanted.replaces.as_deref();
            Ok(json!(replace::in_volume(&*volume, &wanted.object, replaces, &|| Ok(()))?))
        }
        "volume_paths" => {
            let wanted: VolumePathsOf = read(params)?;
            if let Some(number) = wanted.nsid {
                only(served, wanted.nqn.as_deref(), number)?;
            }
            let meant = meant(served, wanted.nqn.as_deref(), wanted.nsid);
            let samples = meant.filter_map(|export| {
                let volume = export.volume.upgrade()?;
                Some(paths::sample(&export.name, export.number, &*volume))
            });
            let samples = samples.filter(|it| !it.paths.is_empty() || wanted.nsid.is_some());
            Ok(json!(samples.collect::<Vec<_>>()))
        }
        "volume_tune" => {
            let wanted: VolumeTune = read(params)?;
            let (export, volume) = only(served, wanted.nqn.as_deref(), wanted.nsid)?;
            paths::tune(&*volume, &wanted)?;
            Ok(json!(paths::tuned(&export.name, export.number, &*volume)))
        }
        "volume_list" => {
            none(&params)?;
            let volumes = served.iter().filter_map(|export| {
                let volume = export.volume.upgrade()?;
                Some(paths::tuned(&export.name, export.number, &*volume))
            });
            Ok(json!(volumes.collect::<Vec<_>>()))
        }
        other => Err(Failure::method(other)),
    }
}

/// The one of that number, which is open.
fn only<'a>(
    served: &'a [Served],
    name: Option<&'a str>,
    number: u32,
) -> Result<(&'a Served, Arc<dyn Namespace>), Failure> {
    let export = meant(served, name, Some(number)).next();
    let export =
        export.ok_or_else(|| Failure::missing(format!("there is no export number {number}")))?;
    let volume = export.volume.upgrade();
    Ok((export, volume.ok_or_else(|| Failure::refused("the server is stopping"))?))
}

/// Those of such a name and number.
fn meant<'a>(
    served: &'a [Served],
    name: Option<&'a str>,
    number: Option<u32>,
) -> impl Iterator<Item = &'a Served> {
    served.iter().filter(move |export| {
        name.is_none_or(|name| name == export.name)
            && number.is_none_or(|number| number == export.number)
    })
}
