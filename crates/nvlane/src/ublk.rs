//! `nvlane ublk`: volumes as block devices of this machine's kernel.

mod attach;
mod background;
mod door;
mod list;
mod made;
mod record;
mod successor;
mod zones;

pub use attach::{attach, detach, device_id, device_number};
pub use record::socket_of;

use crate::cli::{
    ListFormat, ProgramPlace, UblkCommand, UblkDelArgs, UblkMakeArgs, UblkRecoverArgs,
    UblkServeArgs,
};
use crate::doctor::kernel_without;
use crate::origin::pinned;
use crate::serve::{log, raise_descriptor_limit};
use crate::stdout;
use crate::{patience, signals, size};
use ::ublk::driver::DeviceInfo;
use ::ublk::{Control, ControlError, Device, DeviceOptions, Ending, Runs, Wake, driver};
use anyhow::{Context, Result, anyhow, bail};
use namespace::Namespace;
use nvme::limits::Passthrough;
use record::{Notes, Record, Wishes, words};
use sd_notify::NotifyState;
use serde_json::json;
use std::cell::Cell;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;
use volume::OpenOptions;

/// Time between two looks at the volume's size.
const REFRESH_PERIOD: Duration = Duration::from_secs(1);

/// Version of the JSON that is written (docs/ublk.md).
const SCHEMA_VERSION: u32 = 1;

/// The driver's.
const MODULE: &str = "ublk_drv";

/// `nvlane ublk COMMAND`.
pub fn command(command: &UblkCommand) -> Result<()> {
    match command {
        UblkCommand::Add(args) if args.background => background::add(args),
        UblkCommand::Add(args) => add(&args.make, args.recover),
        UblkCommand::Del(args) => del(args),
        UblkCommand::List(args) => list::devices(args.output_format),
        UblkCommand::Recover(args) if args.background => background::recover("recover", args),
        UblkCommand::Upgrade(args) if args.background => background::recover("upgrade", args),
        UblkCommand::Recover(args) => recover(args, false),
        UblkCommand::Upgrade(args) => recover(args, true),
        UblkCommand::Features(args) => list::features(args.output_format),
    }
}

fn add(args: &UblkMakeArgs, recover: bool) -> Result<()> {
    let waiting = args.id.filter(|_| recover).and_then(waiting_device);
    let taken_over = waiting.and(args.id);
    let found = taken_over.and_then(Record::read);
    let signals = Signals::begin(wishes(&args.serve, found.as_ref()).log())?;
    // Told before a volume is made or locked.
    let mut control = open_control()?;
    if let (Some(id), None) = (args.id, taken_over) {
        control.check_free(id)?;
    }
    drop(control);
    let mut record = to_be_served(args, taken_over, found.clone(), signals::is_service())?;
    if recover {
        successor::check_rings(&record.volume)?;
    }
    if let Some(made) = waiting.as_ref().filter(|_| args.read_only && !record.read_only) {
        bail!(
            "/dev/ublkb{0} was made to be written to, and stays so: leave out --read-only, or `nvlane ublk del {0}` first",
            made.dev_id
        );
    }
    // One that is taken over keeps its queues, each of which has threads of its own.
    let (queues, depth) = made::shape(args, waiting.as_ref());
    let zones = zones::of(&record.volume);
    let options = OpenOptions {
        cores: usize::from(queues) * usize::from(record.wishes.threads()),
        read_only: record.read_only,
        block_device: true,
        // What is done to zones is no command of all volumes.
        passthrough: Passthrough { io: zones.is_some(), admin: false },
        ..OpenOptions::default()
    };
    let namespace = match taken_over {
        Some(id) => {
            let ended = successor::await_end(id, &record.volume)?;
            successor::open_settled(&record.volume, &options, Some(ended), &signals.stop)?
        }
        None => patience::open(&record.volume, &options)?,
    };
    let kept = if recover { successor::keep_maps(&*namespace, taken_over)? } else { Vec::new() };
    record.volume = namespace.uri();
    if let Some(made) = &waiting {
        made::warn_of_others(args, made, &*namespace);
    }
    let options = DeviceOptions {
        id: args.id,
        queues,
        depth,
        path: made::path(args),
        io_bytes_max: args.max_io,
        batch: made::batch(args),
        recovery: recover,
        zones,
        kept,
        ..serve_options(&record.wishes)
    };
    let made = Cell::new(None);
    let device = match taken_over {
        Some(id) => take_over(id, namespace, &options, &signals.wake, &record, found.as_ref()),
        None => Device::add(namespace, &options, &signals.wake, |id, runs| {
            made.set(Some(id));
            record.of_ours(runs).write_new(id, recover)
        }),
    };
    if let (Err(_), Some(id)) = (&device, made.get()) {
        Record::remove_own(id);
    }
    let device = device?;
    // In the background of a service it goes on with this process.
    signals::notify(&[NotifyState::MainPid(process::id())]);
    serve(device, &record, &args.serve, &signals)
}

fn take_over(
    id: u32,
    namespace: Arc<dyn Namespace>,
    options: &DeviceOptions,
    wake: &Wake,
    record: &Record,
    found: Option<&Record>,
) -> Result<Device, ::ublk::Error> {
    let survives = Control::open()?.features().has(driver::flag::QUIESCE);
    let begins = |does| if survives { Ok(()) } else { record::begins(id, does) };
    let note = |id, runs: &Runs| record.of_ours(runs).write_next(id, found);
    Device::recover(id, namespace, options, wake, begins, note)
}

/// What `add` is to serve: the volume that is asked for, or that of the device that is taken over. It may have another
/// program by now, and then what was written since is where that one has put it.
///
/// # Errors
/// The device that would be taken over is another volume's, as far as anybody knows: who asked would take it for his. A
/// service's device is the one of its number, whatever its file has come to say since it was made.
fn to_be_served(
    args: &UblkMakeArgs,
    taken_over: Option<u32>,
    noted: Option<Record>,
    is_service: bool,
) -> Result<Record> {
    let asked = &args.volume;
    let noted = match (taken_over, noted) {
        (Some(id), Some(noted)) => {
            let volume = &noted.volume;
            match (noted.is_of(asked), is_service) {
                (true, _) => {}
                (false, true) => tracing::warn!(
                    "/dev/ublkb{id} is served from {volume}, which it has, not from {asked}"
                ),
                (false, false) => bail!(
                    "/dev/ublkb{id} waits for a server and has another volume, {volume}: `nvlane ublk recover {id}` \
                     serves it, `nvlane ublk del {id}` takes it away"
                ),
            }
            noted
        }
        (Some(id), None) if !is_service => bail!(
            "/dev/ublkb{id} waits for a server, and nobody noted its volume: `nvlane ublk recover {id} VOLUME` serves \
             it, `nvlane ublk del {id}` takes it away"
        ),
        _ => {
            // Its next server has to find the same, wherever a link leads by then.
            let (volume, asked) = (pinned(asked), words(asked));
            let wishes = Wishes::of(&args.serve, Wishes::default());
            let (read_only, program) = (args.read_only, None);
            return Ok(Record { volume, asked, read_only, program, server: 0, wishes });
        }
    };
    let wishes = Wishes::of(&args.serve, noted.wishes);
    Ok(Record { wishes, volume: successor::without_rings(noted.volume), ..noted })
}

/// The way to the driver. Where there is none, it is said whether it could be loaded.
fn open_control() -> Result<Control> {
    Control::open().map_err(|error| match (&error, kernel_without(MODULE)) {
        (ControlError::NoDriver, Some(kernel)) => anyhow!(
            "this machine has no ublk: its kernel ({kernel}) comes without the module {MODULE}; use one that has it \
             (CONFIG_BLK_DEV_UBLK: Debian's Linux 6.12, not its 6.1)"
        ),
        _ => error.into(),
    })
}

/// A device that is there and whose server is not: who starts us again after a crash wants that one.
fn waiting_device(id: u32) -> Option<DeviceInfo> {
    let info = Control::open().and_then(|mut control| control.info(id));
    info.ok().filter(::ublk::waits_for_server)
}

fn recover(args: &UblkRecoverArgs, upgrade: bool) -> Result<()> {
    let id = args.id;
    let mut found = Record::read(id);
    let signals = Signals::begin(wishes(&args.serve, found.as_ref()).log())?;
    let info = open_control()?.info(id)?;
    let mut record = to_be_recovered(args, found.clone())?;
    let (mut changed, mut left) = (None, false);
    // Before the old server is asked to go.
    successor::check_rings(&record.volume)?;
    if upgrade {
        let place = record.wishes.bpf.unwrap_or_default();
        successor::check_programs(id, args.volume.as_deref(), place)?;
        let server = ::ublk::quiesce(id, || successor::ask_to_leave(id))?;
        left = record::has_left(id, server);
        if !left {
            tracing::warn!(
                "the server of /dev/ublkb{id} ended without leaving it in order: taken over as after a crash"
            );
        }
        // Until then the old server may have been given another program, whose maps these are now.
        let checked = record.volume;
        found = Record::read(id);
        record = to_be_recovered(args, found.clone())?;
        let now = found.as_ref().map(|found| &found.volume);
        changed = now.filter(|now| **now != checked).map(|now| {
            format!("/dev/ublkb{id} waits for a server: {checked} was looked at, and {now} was its volume at last")
        });
    }
    let recovered = || -> Result<(Device, Record)> {
        let options = OpenOptions {
            cores: usize::from(info.nr_hw_queues) * usize::from(record.wishes.threads()),
            read_only: record.read_only,
            block_device: true,
            ..OpenOptions::default()
        };
        let ended = if left { None } else { Some(successor::await_end(id, &record.volume)?) };
        let namespace = successor::open_settled(&record.volume, &options, ended, &signals.stop)?;
        let kept = successor::keep_maps(&*namespace, Some(id))?;
        let record = Record { volume: namespace.uri(), ..record };
        let options = DeviceOptions { kept, ..serve_options(&record.wishes) };
        let device = take_over(id, namespace, &options, &signals.wake, &record, found.as_ref())?;
        Ok((device, record))
    };
    let (device, record) = match (recovered(), changed) {
        (Err(error), Some(changed)) => return Err(error.context(changed)),
        (recovered, _) => recovered?,
    };
    // A service goes on with this process in place of the one that it was started with.
    signals::notify(&[NotifyState::MainPid(process::id())]);
    serve(device, &record, &args.serve, &signals)
}

/// What `recover` and `upgrade` are to serve: the volume that is named, or else what was noted.
fn to_be_recovered(args: &UblkRecoverArgs, noted: Option<Record>) -> Result<Record> {
    let record = match &args.volume {
        None => {
            noted.map(|noted| Record { volume: successor::without_rings(noted.volume), ..noted })
        }
        Some(volume) => {
            let (read_only, wishes) =
                noted.map_or_else(Default::default, |noted| (noted.read_only, noted.wishes));
            let (volume, asked) = (pinned(volume), words(volume));
            Some(Record { volume, asked, read_only, program: None, server: 0, wishes })
        }
    };
    let Some(record) = record else {
        bail!("nobody noted which volume /dev/ublkb{} was made of: name it", args.id);
    };
    Ok(Record { wishes: Wishes::of(&args.serve, record.wishes.clone()), ..record })
}

/// How a device is to be served of which that is noted.
fn wishes(args: &UblkServeArgs, noted: Option<&Record>) -> Wishes {
    Wishes::of(args, noted.map(|noted| noted.wishes.clone()).unwrap_or_default())
}

fn serve_options(wishes: &Wishes) -> DeviceOptions {
    let cpus = wishes.cores.as_ref().map(|cores| cores.cpus().to_vec()).unwrap_or_default();
    let program = match wishes.bpf.unwrap_or_default() {
        ProgramPlace::Auto => ::ublk::ProgramPlace::Auto,
        ProgramPlace::Kernel => ::ublk::ProgramPlace::Kernel,
        ProgramPlace::User => ::ublk::ProgramPlace::User,
    };
    let threads = wishes.threads();
    DeviceOptions { cpus, threads, poll: wishes.poll, program, ..DeviceOptions::default() }
}

/// What ends a server, or wakes it.
struct Signals {
    wake: Wake,
    woken: Receiver<()>,
    stop: Arc<AtomicBool>,
}

impl Signals {
    /// From here on, signals that ask the server to stop do so in order.
    fn begin(log: &str) -> Result<Signals> {
        log::to_stderr(log)?;
        raise_descriptor_limit();
        let (sender, woken) = sync_channel(1);
        let wake: Wake = Arc::new(move || {
            // One that is under way is enough.
            let _ = sender.try_send(());
        });
        let stop = Arc::new(AtomicBool::new(false));
        let (told, waker) = (Arc::clone(&stop), Arc::clone(&wake));
        signals::on_stop(move || {
            told.store(true, Ordering::Relaxed);
            waker();
        })?;
        Ok(Signals { wake, woken, stop })
    }
}

/// Serves until the device ends, or a signal ends it.
fn serve(
    mut device: Device,
    record: &Record,
    args: &UblkServeArgs,
    signals: &Signals,
) -> Result<()> {
    let id = device.id();
    let record = &record.of_ours(device.runs());
    let notes = Arc::new(Notes::new(id, record));
    let leave = Arc::new(AtomicBool::new(false));
    let _door = door::open(id, device.namespace(), &notes, {
        let (leave, wake) = (Arc::clone(&leave), Arc::clone(&signals.wake));
        move || {
            leave.store(true, Ordering::Relaxed);
            wake();
        }
    });
    // Somebody who closed our output still wants to be served.
    let _ = stdout::write(announce(&device, record, args.output_format));
    signals::notify(&[NotifyState::Ready]);
    let mut is_unwell = false;
    loop {
        let timed_out = signals.woken.recv_timeout(REFRESH_PERIOD).is_err();
        if timed_out {
            device.look();
        }
        if leave.swap(false, Ordering::Relaxed) {
            tracing::info!("/dev/ublkb{id} is asked for by another server");
            if let Err(error) = device.hand_over() {
                tracing::warn!("{error}");
            }
        }
        match device.ending() {
            Some(Ending::HandedOver) => {
                device.leave()?;
                record::leaves(id);
                tracing::info!("/dev/ublkb{id} has another server; everything is flushed");
                // The driver lets the next one in when this process is gone.
                process::exit(0);
            }
            Some(Ending::Stopped) => {
                tracing::info!("/dev/ublkb{id} was taken away");
                break;
            }
            // Which queue and why has been said.
            Some(Ending::Failed) => break,
            None if signals.stop.load(Ordering::Relaxed) && !device.is_leaving() => {
                tracing::info!("stopping");
                break;
            }
            // It should take no longer than a volume takes for a request.
            None if timed_out && device.is_leaving() => {
                let threads = device.threads_busy();
                tracing::warn!(
                    threads,
                    "/dev/ublkb{id} is not left yet: requests are with the volume, or results with the driver"
                );
            }
            None if timed_out => refresh(&mut device, &mut is_unwell),
            None => {}
        }
    }
    signals::notify(&[NotifyState::Stopping]);
    device.stop(|| notes.forget())?;
    tracing::info!("stopped; everything is flushed");
    Ok(())
}

/// Has the device follow its volume's size. That it cannot be looked at is told once, until it can.
fn refresh(device: &mut Device, is_unwell: &mut bool) {
    let refreshed = device.refresh();
    let was_unwell = std::mem::replace(is_unwell, refreshed.is_err());
    match refreshed {
        Ok(true) => tracing::info!(bytes = device.bytes(), "the size has changed"),
        Ok(false) => {}
        Err(error) if was_unwell => tracing::debug!("{error}"),
        Err(error) => tracing::warn!("{error}"),
    }
}

fn announce(device: &Device, record: &Record, format: ListFormat) -> String {
    let (node, info) = (device.node(), device.info());
    let (queues, depth) = (info.nr_hw_queues, info.queue_depth);
    let threads = record.wishes.threads();
    let batches = info.flags & driver::flag::BATCH_IO != 0;
    if format == ListFormat::Json {
        let (place, reason) = record.place();
        let made = json!({
            "version": SCHEMA_VERSION,
            "id": device.id(),
            "device": node,
            "volume": record.volume,
            "bytes": device.bytes(),
            "queues": queues,
            "threads": threads,
            "depth": depth,
            "io_bytes_max": info.max_io_buf_bytes,
            "data_path": device.path().to_string(),
            "batches": batches,
            "recoverable": info.flags & driver::flag::USER_RECOVERY != 0,
            "program": record.program,
            "program_place": place,
            "program_reason": reason,
        });
        return format!("{made}\n");
    }
    let bytes = size::format(device.bytes());
    let most = size::format(info.max_io_buf_bytes.into());
    let program = record.program.as_ref().map(|runs| format!(", {runs}")).unwrap_or_default();
    format!(
        "{}: {bytes}, {queues} queue(s) of {depth} requests of up to {most}{}, {}{}, from {}{program}\nready\n",
        node.display(),
        if threads > 1 { format!(" with {threads} threads each") } else { String::new() },
        device.path(),
        if batches { " in batches" } else { "" },
        record.volume,
    )
}

fn del(args: &UblkDelArgs) -> Result<()> {
    let mut control = open_control()?;
    let ids = if args.all { list::ids() } else { args.ids.clone() };
    attach::each(&ids, |id| {
        delete(&mut control, *id, args.force).with_context(|| format!("/dev/ublkb{id}"))
    })
}

/// Takes one device away, and what is noted of it before its number may be another one's. Its server sees it end, and lets
/// go of it.
fn delete(control: &mut Control, id: u32, force: bool) -> Result<()> {
    control.info(id)?;
    let asks_first = !force && control.features().has(driver::flag::SAFE_STOP_DEV);
    let stopped = if asks_first { control.try_stop(id) } else { control.stop(id) };
    match stopped.map_err(|error| (error.errno(), error)) {
        Err((Some(libc::EBUSY), _)) => {
            bail!("somebody has it open: unmount or close it, or give --force")
        }
        // One that is dead has no block device any more.
        Ok(()) | Err((Some(libc::ENODEV), _)) => {}
        Err((_, error)) => return Err(error.into()),
    }
    Record::remove(id);
    match control.delete(id) {
        // Its server was quicker.
        Err(error) if error.errno() == Some(libc::ENODEV) => Ok(()),
        deleted => Ok(deleted?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::UblkAddArgs;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        add: UblkAddArgs,
    }

    #[test]
    fn a_device_is_taken_over_by_who_means_its_volume() {
        let served = |volume: &str, taken_over, noted: Option<&Record>, is_service| {
            let line = Line::parse_from(["add", volume, "--recover", "-n", "7"]);
            let record = to_be_served(&line.add.make, taken_over, noted.cloned(), is_service);
            record.map(|record| record.volume).map_err(|error| error.to_string())
        };
        let noted = Record {
            volume: "bpf:/srv/new.bpf.o(file:/srv/a)".into(),
            asked: words("bpf:/srv/new.bpf.o(/srv/link)"),
            read_only: false,
            program: None,
            server: 1,
            wishes: Wishes::default(),
        };
        let (its, noted) = (Ok(noted.volume.clone()), Some(&noted));
        for name in [
            "bpf:/srv/new.bpf.o(/srv/a)",
            "bpf:/srv/new.bpf.o(file:/srv/a)",
            "bpf:/srv/new.bpf.o(/srv/link)",
        ] {
            assert_eq!(served(name, Some(7), noted, false), its);
        }
        for other in ["mem:1M", "/srv/a", "bpf:/srv/old.bpf.o(/srv/a)"] {
            let said = served(other, Some(7), noted, false).unwrap_err();
            assert!(said.contains("another volume, bpf:/srv/new.bpf.o(file:/srv/a)"), "{said}");
            assert!(said.contains("ublk recover 7`") && said.contains("ublk del 7`"), "{said}");
            assert_eq!(served(other, Some(7), noted, true), its, "a service's device is its own");
        }
        let said = served("mem:1M", Some(7), None, false).unwrap_err();
        assert!(said.contains("nobody noted") && said.contains("recover 7 VOLUME`"), "{said}");
        assert_eq!(served("mem:1M", Some(7), None, true), Ok("mem:1M".to_owned()));
        assert_eq!(served("mem:1M", None, None, false), Ok("mem:1M".to_owned()));
    }
}
