//! `nvlane paths`: the paths to volumes, once or live.
//!
//! ```text
//!   daemon --volume_paths--> sample \
//!   volume opened here --> probe ----> difference to the sample before --> table or JSON
//! ```

mod probe;
mod table;

use crate::admin;
use crate::cli::{ListFormat, PathsArgs};
use crate::control::client::Client;
use crate::control::method::{VolumePaths, VolumePathsOf};
use crate::control::path;
use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use std::io::{self, IsTerminal, Write};
use std::thread;

use table::Shares;
pub use table::table_of;

/// Clears a terminal and goes to its first line.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// `nvlane paths`.
pub fn run(args: &PathsArgs) -> Result<()> {
    match &args.volume {
        Some(volume) => probe::run(volume, args),
        None => of_daemon(args),
    }
}

/// The paths of a daemon's volumes: as they are, or every interval.
fn of_daemon(args: &PathsArgs) -> Result<()> {
    let socket = args.socket.clone().unwrap_or_else(path::socket);
    let wanted = VolumePathsOf { nqn: args.nqn.clone(), nsid: args.nsid };
    let wanted = serde_json::to_value(&wanted).expect("plain data");
    let mut client = Client::connect(&socket)?;
    let mut output = Output::new(args, "");
    loop {
        let volumes = client.call("volume_paths", wanted.clone())?;
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
        let mut out = io::stdout();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(())
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
