//! `nvlane bpf replace`: another program in the place of one that routes a volume's requests.

use crate::cli::{BpfReplaceArgs, ListFormat};
use crate::control::client::Client;
use crate::control::method::{DeviceProgram, ProgramReplaced, Volume, VolumeProgram};
use crate::control::path;
use crate::control::protocol::Failure;
use crate::stdout;
use crate::ublk;
use anyhow::{Context, Result, bail};
use namespace::layer::program::{ProgramError, Replaced, Routed};
use namespace::{Namespace, percent};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Asks whoever serves the volume or device.
pub fn command(args: &BpfReplaceArgs) -> Result<()> {
    let name = args.program.display();
    // The server has a directory of its own.
    let object = fs::canonicalize(&args.program).with_context(|| format!("cannot read {name}"))?;
    let Some(object) = object.to_str().map(str::to_owned) else {
        bail!("{name}: the path is not UTF-8, and cannot be sent")
    };
    let replaces = args.replaces.clone();
    let answer = match ublk::device_number(&args.volume) {
        Some(id) => {
            let wanted = DeviceProgram { object, replaces };
            super::device_client(id, args.timeout)?
                .call("volume_program", serde_json::to_value(&wanted).expect("plain data"))?
        }
        None => {
            let patience = Duration::from_millis(args.timeout);
            let socket = args.socket.clone().unwrap_or_else(path::socket);
            let mut client = Client::connect(&socket)?.patient_for(patience);
            let (nqn, nsid) = find(&mut client, &args.volume)?;
            let wanted = VolumeProgram { nqn, nsid, object, replaces };
            client.call("volume_program", serde_json::to_value(&wanted).expect("plain data"))?
        }
    };
    let text = match args.output_format {
        ListFormat::Json => format!("{answer:#}\n"),
        ListFormat::Normal => {
            let done =
                serde_json::from_value(answer).context("the server is of another version")?;
            text_of(&done)
        }
    };
    stdout::write(text)
}

/// The namespace that is meant: `NSID`, `NQN/NSID`, or a volume's URI as the daemon has it.
fn find(client: &mut Client, volume: &str) -> Result<(Option<String>, u32)> {
    if let Ok(nsid) = volume.parse() {
        return Ok((None, nsid));
    }
    if let Some((nqn, nsid)) = volume.rsplit_once('/')
        && (nqn.starts_with("nqn.") || nqn.starts_with("nbd:"))
        && let Ok(nsid) = nsid.parse()
    {
        return Ok((Some(nqn.to_owned()), nsid));
    }
    let volumes: Vec<Volume> = serde_json::from_value(client.call("volume_list", Value::Null)?)
        .context("the daemon is of another version")?;
    let canonical = volume.parse::<volume::Uri>().ok().map(|uri| uri.to_string());
    let is_it = |it: &&Volume| it.volume == volume || Some(&it.volume) == canonical.as_ref();
    let found: Vec<&Volume> = volumes.iter().filter(is_it).collect();
    match found[..] {
        [one] => Ok((Some(one.nqn.clone()), one.nsid)),
        [] => bail!(
            "the server has no volume {volume}; `nvlane ctl volume list` at its socket shows them, with their numbers"
        ),
        _ => bail!("the server has {volume} more than once: name it by its number, or NQN/NSID"),
    }
}

fn text_of(done: &ProgramReplaced) -> String {
    let mut text = format!("{}\n", done.volume);
    let maps = [
        (&done.kept, "stays as it is"),
        (&done.fresh, "begins empty"),
        (&done.dropped, "is gone with the old program"),
    ];
    for (names, what) in maps {
        names.iter().for_each(|name| text.push_str(&format!("  map {name} {what}\n")));
    }
    text
}

/// Puts the program in the file `object` in the place of the one of `volume`, or of the one called `replaces`; `note` is
/// done before that routes anything.
pub fn in_volume(
    volume: &dyn Namespace,
    object: &str,
    replaces: Option<&str>,
    note: &dyn Fn() -> Result<(), String>,
) -> Result<ProgramReplaced, Failure> {
    let path = Path::new(object);
    if !path.is_absolute() {
        return Err(Failure::params(format!("{object} is not an absolute path")));
    }
    let bytes = volume::read_program(path)
        .map_err(|error| Failure::volume(format!("cannot read the program {object}: {error}")))?;
    let mut names = Vec::new();
    volume.each_program(&mut |program| names.push(program.name()));
    let meant = |name: &str| {
        replaces.is_none_or(|replaces| {
            let file = name.rsplit('/').next();
            name == replaces
                || name == percent::encode(Path::new(replaces))
                || file == Some(replaces)
        })
    };
    match names.iter().filter(|name| meant(name)).count() {
        1 => {}
        0 if names.is_empty() => {
            return Err(Failure::params(format!("{} has no program", volume.uri())));
        }
        0 => {
            let (replaces, names) = (replaces.unwrap_or_default(), names.join(", "));
            return Err(Failure::missing(format!("there is no program {replaces} but {names}")));
        }
        _ => {
            let names = names.join(", ");
            return Err(Failure::params(format!("say which program is replaced, of {names}")));
        }
    }
    let mut outcome: Option<Result<Replaced, ProgramError>> = None;
    volume.each_program(&mut |program: &Routed| {
        if outcome.is_none() && meant(&program.name()) {
            outcome = Some(program.replace_noted(&bytes, percent::encode(path), note));
        }
    });
    let outcome = outcome.expect("one was counted, and only we change them");
    let Replaced { kept, fresh, dropped } = outcome.map_err(|error| match error {
        ProgramError::Unnoted(_) => Failure::unsaved(error.to_string()),
        _ => Failure::volume(error.to_string()),
    })?;
    Ok(ProgramReplaced { volume: volume.uri(), kept, fresh, dropped })
}

/// The same, as a method's parameters and result.
pub fn of_device(
    volume: &dyn Namespace,
    wanted: &DeviceProgram,
    note: &dyn Fn() -> Result<(), String>,
) -> Result<Value, Failure> {
    let done = in_volume(volume, &wanted.object, wanted.replaces.as_deref(), note)?;
    Ok(json!(done))
}
