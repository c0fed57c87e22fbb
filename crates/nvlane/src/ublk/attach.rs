//! `nvlane attach` and `nvlane detach`: a volume, mostly one of another machine, and its block device in one step,
//! with the server in the background.

use super::record::{self, Record};
use super::{delete, list};
use crate::cli::{AttachArgs, DetachArgs};
use ::ublk::Control;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Starts a server and waits until the device is there.
pub fn attach(args: &AttachArgs) -> Result<()> {
    // Said by us, rather than by a server whose words go to a file.
    drop(Control::open()?);
    let log = record::log_of_new_server(std::process::id());
    if let Some(directory) = log.parent() {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    let made = start(args, &log);
    let said = fs::read_to_string(&log).unwrap_or_default();
    let id = match made {
        Ok(id) => id,
        Err(error) => {
            let _ = fs::remove_file(&log);
            let why = said.lines().rev().find(|line| !line.trim().is_empty());
            bail!(
                "{}",
                why.map_or(error.to_string(), |line| line.trim_start_matches("nvlane: ").into())
            );
        }
    };
    fs::rename(&log, record::log_of(id)).with_context(|| log.display().to_string())?;
    println!("/dev/ublkb{id}");
    Ok(())
}

/// The number of the device that the server has made.
fn start(args: &AttachArgs, log: &Path) -> Result<u64> {
    let program = std::env::current_exe().context("cannot find out which program this is")?;
    let errors = File::create(log).with_context(|| log.display().to_string())?;
    let mut command = Command::new(program);
    command.args(["ublk", "add", "--recover", "-o", "json", &args.volume]);
    command.args(["-q", &args.queues.to_string(), "-d", &args.depth.to_string()]);
    if let Some(id) = args.id {
        command.args(["-n", &id.to_string()]);
    }
    if args.read_only {
        command.arg("--read-only");
    }
    // A group of its own: what is typed into our terminal is not meant for it.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).process_group(0);
    let mut server = command.spawn().context("cannot start the server")?;
    let mut line = String::new();
    let output = server.stdout.take().expect("piped");
    BufReader::new(output).read_line(&mut line).context("cannot hear the server")?;
    let made: Value = serde_json::from_str(&line).unwrap_or_default();
    match made["id"].as_u64() {
        Some(id) => Ok(id),
        None => {
            let status = server.wait().context("cannot wait for the server")?;
            bail!("the server ended: {status}")
        }
    }
}

/// Takes devices away, by number, name, or volume.
pub fn detach(args: &DetachArgs) -> Result<()> {
    let mut control = Control::open()?;
    for name in &args.devices {
        let Some(id) = id_of(name) else {
            bail!("{name} is no device of ublk, nor the volume of one")
        };
        delete(&mut control, id, args.force).with_context(|| format!("/dev/ublkb{id}"))?;
    }
    Ok(())
}

/// The N of `/dev/ublkbN` and `ublkbN`.
pub fn device_number(name: &str) -> Option<u32> {
    name.strip_prefix("/dev/").unwrap_or(name).strip_prefix("ublkb")?.parse().ok()
}

fn id_of(name: &str) -> Option<u32> {
    if let Some(id) = name.parse().ok().or_else(|| device_number(name)) {
        return Some(id);
    }
    // As it is noted: in its canonical form.
    let canonical = name.parse::<volume::Uri>().ok().map(|uri| uri.to_string());
    list::ids().into_iter().find(|id| {
        Record::read(*id).is_some_and(|Record { volume, asked, .. }| {
            volume == name || asked == name || Some(&volume) == canonical.as_ref()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_go_by_number_and_by_name() {
        assert_eq!(id_of("7"), Some(7));
        assert_eq!(id_of("ublkb7"), Some(7));
        assert_eq!(id_of("/dev/ublkb12"), Some(12));
        assert_eq!(id_of("/dev/sda"), None);
    }
}
