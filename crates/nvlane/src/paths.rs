//! `nvlane paths`: the paths to volumes, once or live.
//!
//! ```text
//!   server --volume_paths--> sample \
//!   volume opened here --> probe ----> difference to the sample before --> table or JSON
//! ```

mod probe;
mod table;

use crate::admin;
use crate::cli::{ListFormat, PathsArgs};
use crate::control::client::Client;
use crate::control::method::{PathNow, Volume, VolumePaths, VolumePathsOf, VolumeTune};
use crate::control::path;
use crate::control::protocol::Failure;
use crate::stdout;
use crate::ublk;
use anyhow::{Context, Result};
use namespace::Namespace;
use serde_json::{Map, Value, json};
use std::io::{self, IsTerminal};
use std::path::Path;
use std::thread;
use std::time::Duration;

use table::Shares;
pub use table::table_of;

/// The fact that names the policy of a volume with several paths ([`Namespace::describe`]).
const POLICY: &str = "policy";

/// How commands are spread over the paths of a volume, where that can be chosen.
pub fn policy(volume: &dyn Namespace) -> Option<String> {
    let mut facts = Vec::new();
    volume.describe(&mut facts);
    facts.into_iter().find(|(name, _)| name == POLICY).map(|(_, value)| value)
}

/// The ways to a volume that is served as that namespace.
pub fn sample(nqn: &str, nsid: u32, volume: &dyn Namespace) -> VolumePaths {
    VolumePaths {
        nqn: nqn.to_owned(),
        nsid,
        volume: volume.uri(),
        policy: policy(volume),
        paths: volume.paths().into_iter().map(PathNow::from).collect(),
    }
}

/// Changes a setting of an open volume.
pub fn tune(volume: &dyn Namespace, wanted: &VolumeTune) -> Result<(), Failure> {
    let tuned = volume.tune(&wanted.name, &wanted.value);
    tuned.map_err(|error| Failure::volume(format!("{}: {error}", volume.uri())))
}

/// What is told of a volume that is no namespace of a target's, after its setting was changed.
pub fn tuned(name: &str, number: u32, volume: &dyn Namespace) -> Volume {
    let limits = volume.limits();
    Volume {
        nqn: name.to_owned(),
        nsid: number,
        volume: volume.uri(),
        uuid: uuid::Uuid::from_bytes(volume.uuid().unwrap_or_default()),
        nguid: uuid::Uuid::nil(),
        ana_group: 1,
        bytes: limits.bytes(),
        block_bytes: limits.block_bytes(),
    }
}

/// Clears a terminal and goes to its first line.
pub const CLEAR: &str = "\x1b[H\x1b[2J";

/// `nvlane paths`.
pub fn run(args: &PathsArgs) -> Result<()> {
    // The server of a block device of ours knows what its own I/O meets.
    let server = args.volume.as_deref().and_then(ublk::device_number).map(ublk::socket_of);
    match (&args.volume, server.filter(|socket| socket.exists())) {
        (_, Some(socket)) => of_server(&socket, args),
        (Some(volume), None) => probe::run(volume, args),
        (None, None) => of_server(&args.socket.clone().unwrap_or_else(path::socket), args),
    }
}

/// The paths of the volumes of whoever listens at `socket`: as they are, or every interval.
fn of_server(socket: &Path, args: &PathsArgs) -> Result<()> {
    let wanted = VolumePathsOf { nqn: args.nqn.clone(), nsid: args.nsid };
    let wanted = serde_json::to_value(&wanted).expect("plain data");
    let patience = Duration::from_millis(args.timeout);
    let mut output = Output::new(args, "");
    loop {
        // For each sample anew: who says nothing for a minute is hung up on.
        let volumes =
            Client::connect(socket)?.patient_for(patience).call("volume_paths", wanted.clone())?;
        let volumes: Vec<VolumePaths> =
            serde_json::from_value(volumes).context("the daemon is of another version")?;
        output.show(&volumes)?;
        if !args.watch {
            return Ok(());
        }
        thread::sleep(args.interval);
    }
}

/// Where samples go, and the one before: shares are of the time between.
struct Output {
    format: ListFormat,
    watch: bool,
    clear: bool,
    note: &'static str,
    shares: Shares,
}

impl Output {
    fn new(args: &PathsArgs, note: &'static str) -> Output {
        let clear = args.watch && io::stdout().is_terminal();
        let (format, watch) = (args.output_format, args.watch);
        Output { format, watch, clear, note, shares: Shares::default() }
    }

    fn show(&mut self, volumes: &[VolumePaths]) -> Result<()> {
        let shares = self.shares.since_last(volumes);
        let text = match self.format {
            ListFormat::Json => {
                let object = json_of(volumes, &shares);
                if self.watch { format!("{object}\n") } else { format!("{object:#}\n") }
            }
            ListFormat::Normal => {
                let clear = if self.clear { CLEAR } else { "" };
                format!("{clear}{}{}", self.note, table::text(volumes, &shares))
            }
        };
        stdout::write(text)
    }
}

fn json_of(volumes: &[VolumePaths], shares: &[Vec<f64>]) -> Value {
    let volumes = volumes.iter().zip(shares).map(|(volume, shares)| {
        let mut value = serde_json::to_value(volume).expect("plain data");
        let paths = value["paths"].as_array_mut().expect("an array");
        for (path, share) in paths.iter_mut().zip(shares) {
            path["share"] = json!(share);
        }
        value
    });
    let volumes: Vec<Value> = volumes.collect();
    admin::json_object(Map::from_iter([("volumes".to_owned(), volumes.into())]))
}
