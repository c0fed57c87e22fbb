//! `nvlane io` and `nvlane admin`: one command as it is, to any volume.
//!
//! ```text
//!   flags --> Command --> volume::session, or a controller's device --> text, JSON, or the data as it came
//! ```
//!
//! The flags, and what becomes of data, are those of nvme-cli's `io-passthru` and `admin-passthru`: what is
//! sent is read from `--input-file` or standard input, and filled up with `--prefill` where that is too
//! short; what is received goes to `--input-file`, or is shown.
//!
//! What it does not do: know what commands mean. What a volume cannot do, it says by its status.

mod names;
mod show;

use crate::cli::{AdminArgs, Format, IoArgs, PassthroughArgs};
use crate::patience::{MOMENT, Patience};
use crate::serve::log;
use crate::stdout;
use anyhow::{Context, Result, bail, ensure};
use namespace::device::controller::{self, Controller};
use nvme::limits::Passthrough;
use nvme::{Command, NSID_ALL, Status, opcode};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use volume::session::{Bytes, Done, Session, SessionConfig, Submission};
use volume::{Kind, OpenOptions, Uri};

/// What is logged to standard error: that a path is lost, and that commands wait.
const LOG: &str = "warn";

/// Bits of an opcode that tell which way data goes: to the controller, to the host.
const WRITES: u8 = 1;
const READS: u8 = 2;

/// `nvlane io`.
pub fn io(args: &IoArgs) -> Result<()> {
    run(&args.volume, false, &args.command)
}

/// `nvlane admin`.
pub fn admin(args: &AdminArgs) -> Result<()> {
    run(&args.volume, true, &args.command)
}

/// What is asked for, and what has come of it.
struct Exchange<'a> {
    uri: &'a str,
    admin: bool,
    args: &'a PassthroughArgs,
    command: Command,
    reads: bool,
}

/// How a command has ended.
struct Outcome {
    status: Status,
    result: u64,
    data: Bytes,
    metadata: Bytes,
}

/// Who carries the command out.
enum Recipient {
    Volume(Box<Uri>),
    /// A controller of this machine, by its own device.
    Controller(PathBuf),
}

impl Recipient {
    fn of(uri: &str, admin: bool, nsid: u32) -> Result<Recipient> {
        let mut volume: Uri = uri.parse()?;
        if let Kind::File { path, .. } = &volume.kind
            && controller::is_named_like_one(path)
        {
            ensure!(admin, "{uri} is a controller; I/O commands go to a namespace, like {uri}n1");
            return Ok(Recipient::Controller(path.clone()));
        }
        address(&mut volume, nsid)?;
        Ok(Recipient::Volume(Box::new(volume)))
    }
}

fn run(uri: &str, admin: bool, args: &PassthroughArgs) -> Result<()> {
    log::to_stderr(LOG)?;
    let recipient = Recipient::of(uri, admin, args.namespace_id)?;
    let (reads, writes) = direction(args)?;
    let command = command(args);
    let exchange = Exchange { uri, admin, args, command, reads };
    let json = args.format() == Format::Json;
    if args.dry_run {
        let text = if json { show::request_json(&exchange) } else { show::request(&exchange) };
        return stdout::write(text);
    }
    let mut shown = Ok(());
    if args.show_command && !json {
        // Not among data that was asked for as it is.
        match args.format() {
            Format::Binary => crate::stderr::text(show::request(&exchange)),
            // The command is sent, whoever reads of it.
            _ => shown = stdout::write(show::request(&exchange)),
        }
    }
    let (outcome, time) = match &recipient {
        Recipient::Volume(uri) => by_volume(uri, &exchange, writes)?,
        Recipient::Controller(path) => by_controller(path, &exchange, writes)?,
    };
    report(&exchange, &outcome, time).and(shown)
}

fn by_volume(uri: &Uri, exchange: &Exchange<'_>, writes: bool) -> Result<(Outcome, Duration)> {
    let session = Session::new(&SessionConfig { depth: 1, ..SessionConfig::default() })?;
    let buffer = |len: usize| session.allocate(len).map_or(Bytes::None, Bytes::Fixed);
    let (data, metadata) = bytes(exchange.args, writes, buffer)?;
    let (command, timeout_ms) = (exchange.command, exchange.args.timeout);
    let submission =
        Submission { command, admin: exchange.admin, data, metadata, timeout_ms, token: 0 };
    carry_out(&session, uri, submission)
}

fn by_controller(
    path: &Path,
    exchange: &Exchange<'_>,
    writes: bool,
) -> Result<(Outcome, Duration)> {
    let controller = Controller::open(path)?;
    let (mut data, mut metadata) = bytes(exchange.args, writes, |_| Bytes::None)?;
    let (command, timeout_ms) = (&exchange.command, exchange.args.timeout);
    let begin = Instant::now();
    let memory = (data.as_mut_slice(), metadata.as_mut_slice());
    let (status, result) = controller.admin(command, memory.0, memory.1, timeout_ms)?;
    Ok((Outcome { status, result, data, metadata }, begin.elapsed()))
}

/// Whether data comes, and whether it goes: by the flags, and by the opcode where it says.
fn direction(args: &PassthroughArgs) -> Result<(bool, bool)> {
    ensure!(!(args.read && args.write) || args.opcode & 3 == 3, "give --read or --write, not both");
    let reads = args.read || args.opcode & READS != 0;
    let writes = args.write || args.opcode & WRITES != 0;
    ensure!(
        !(reads && writes) || args.opcode & 3 == 3,
        "opcode {:#04x} has its data go {}: leave --{} away",
        args.opcode,
        if args.opcode & READS != 0 { "to the host" } else { "to the controller" },
        if args.opcode & READS != 0 { "write" } else { "read" },
    );
    // Drivers take the direction from the opcode: they would hand over memory to be written to.
    ensure!(
        !writes || args.opcode & WRITES != 0,
        "opcode {:#04x} sends no data to the controller (its bit 0 is 0): leave --write away",
        args.opcode
    );
    ensure!(
        args.data_len == 0 || reads || writes,
        "--data-len {}: opcode {:#04x} does not say which way data goes; give --read",
        args.data_len,
        args.opcode
    );
    Ok((reads, writes))
}

fn command(args: &PassthroughArgs) -> Command {
    Command {
        opcode: args.opcode,
        flags: args.flags,
        cid: args.rsvd.into(),
        nsid: args.namespace_id.into(),
        cdw2: args.cdw2.into(),
        cdw3: args.cdw3.into(),
        cdw10: args.cdw10.into(),
        cdw11: args.cdw11.into(),
        cdw12: args.cdw12.into(),
        cdw13: args.cdw13.into(),
        cdw14: args.cdw14.into(),
        cdw15: args.cdw15.into(),
        ..Command::default()
    }
}

/// A command for a namespace goes to the volume's own: another one that is named must not be taken for it.
fn address(volume: &mut Uri, nsid: u32) -> Result<()> {
    if matches!(nsid, 0 | NSID_ALL) {
        return Ok(());
    }
    let own = match &mut volume.kind {
        Kind::Remote(remote) => *remote.options.association.nsid.get_or_insert(nsid),
        Kind::Device(device) => namespace_of(&device.path)?,
        Kind::Delay(..)
        | Kind::Rate(..)
        | Kind::Fault(..)
        | Kind::Volatile(..)
        | Kind::Multipath(..) => {
            return volume.children_mut().iter_mut().try_for_each(|child| address(child, nsid));
        }
        // Whatever is below: it is one namespace.
        _ => 1,
    };
    ensure!(own == nsid, "--namespace-id {nsid}: {volume} is namespace {own}");
    Ok(())
}

/// The namespace that an NVMe device node is of.
fn namespace_of(path: &Path) -> Result<u32> {
    /// `NVME_IOCTL_ID` (linux/nvme_ioctl.h).
    const IOCTL_ID: libc::c_ulong = 0x4e40;
    let file = File::open(path).with_context(|| path.display().to_string())?;
    // SAFETY: the call takes no argument.
    let nsid = unsafe { libc::ioctl(file.as_raw_fd(), IOCTL_ID) };
    let refused = |_| anyhow::Error::from(io::Error::last_os_error());
    u32::try_from(nsid).map_err(refused).with_context(|| path.display().to_string())
}

/// The command's data and metadata, in memory of `special` where it has some, with what is to be sent in it.
fn bytes(
    args: &PassthroughArgs,
    writes: bool,
    special: impl Fn(usize) -> Bytes,
) -> Result<(Bytes, Bytes)> {
    let buffer = |len: u32| {
        let len = len as usize;
        if len == 0 {
            return Bytes::None;
        }
        let mut bytes = match special(len) {
            Bytes::None => Bytes::Owned(vec![0; len]),
            bytes => bytes,
        };
        bytes.as_mut_slice().fill(args.prefill);
        bytes
    };
    let data = fill(buffer(args.data_len), writes, args.input_file.as_deref())?;
    let metadata = buffer(args.metadata_len);
    let metadata = match &args.metadata {
        Some(path) => fill(metadata, writes, Some(path))?,
        None => metadata,
    };
    Ok((data, metadata))
}

/// Takes what is to be sent from `path` or standard input, as far as there is something.
fn fill(mut bytes: Bytes, writes: bool, path: Option<&Path>) -> Result<Bytes> {
    if !writes || bytes.is_empty() {
        return Ok(bytes);
    }
    let mut input: Box<dyn Read> = match path {
        Some(path) => Box::new(File::open(path).with_context(|| path.display().to_string())?),
        None => Box::new(io::stdin().lock()),
    };
    let what =
        || path.map_or_else(|| "standard input".to_owned(), |path| path.display().to_string());
    let mut rest = bytes.as_mut_slice();
    while !rest.is_empty() {
        match input.read(rest) {
            Ok(0) => break,
            Ok(count) => rest = &mut rest[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).with_context(what),
        }
    }
    Ok(bytes)
}

/// Sends the one command and waits for it.
fn carry_out(session: &Session, uri: &Uri, submission: Submission) -> Result<(Outcome, Duration)> {
    // Who may only read can read.
    let read_only = !submission.admin && submission.command.opcode == opcode::io::READ;
    let passthrough = Passthrough::ALL;
    let options = OpenOptions { read_only, passthrough, ..OpenOptions::default() };
    let volume = Patience::new(MOMENT).open(|| session.open_with(&uri.to_string(), &options))?;
    let begin = Instant::now();
    if let Err(rejected) = volume.submit(submission) {
        bail!("{uri}: {}", rejected.reason);
    }
    session.wait(1, None);
    let time = begin.elapsed();
    let mut done = Vec::with_capacity(1);
    session.reap(&mut done);
    let done = done.pop().context("a command that was waited for has ended")?;
    let Done { status, result, data, metadata, .. } = done;
    Ok((Outcome { status, result, data, metadata }, time))
}

/// Shows what became of the command; a status that is no success is an error.
fn report(exchange: &Exchange<'_>, done: &Outcome, time: Duration) -> Result<()> {
    let args = exchange.args;
    let success = done.status.is_success();
    let format = args.format();
    let received = exchange.reads && success;
    let kept = received && args.input_file.is_some() && !done.data.is_empty();
    if received {
        for (path, bytes) in [(&args.input_file, &done.data), (&args.metadata, &done.metadata)] {
            if let Some(path) = path.as_ref().filter(|_| !bytes.is_empty()) {
                fs::write(path, bytes.as_slice()).with_context(|| path.display().to_string())?;
            }
        }
    }
    let latency = args.latency.then_some(time);
    let mut printed = Ok(());
    match format {
        Format::Json => {
            printed = stdout::write(show::outcome_json(exchange, done, latency, received));
        }
        Format::Binary => {
            if received && !kept {
                printed = stdout::write(done.data.as_slice());
            }
            crate::stderr::text(show::outcome(exchange, done, latency));
        }
        Format::Normal => {
            let mut text = show::outcome(exchange, done, latency);
            if received && !kept {
                text.push_str(&show::dump(done));
            }
            printed = stdout::write(text);
        }
    }
    if success {
        return printed;
    }
    // What has failed has, whoever reads of it.
    let (queue, name) = show::title(exchange);
    bail!("{}: {queue} command {name}: {}", exchange.uri, show::status_text(exchange, done.status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    /// The flags as the command line has them.
    fn parsed(flags: &[&str]) -> PassthroughArgs {
        let line = ["nvlane", "io", "mem:1M"].into_iter().chain(flags.iter().copied());
        let cli = crate::cli::Cli::try_parse_from(line).expect("flags of nvme-cli");
        let crate::cli::Command::Io(args) = cli.command else { panic!("it is `io`") };
        args.command
    }

    /// Numbers of more than 53 bits are rounded by jq, which is how scripts read them.
    #[test]
    fn all_digits_of_a_result_are_told_as_text() {
        let args = parsed(&["-O", "0x7d"]);
        let command = command(&args);
        let exchange = Exchange { uri: "mem:1M", admin: false, args: &args, command, reads: false };
        for (result, told) in [(u64::MAX, "0xffffffffffffffff"), (0, "0x0")] {
            let status = Status::SUCCESS;
            let done = Outcome { status, result, data: Bytes::None, metadata: Bytes::None };
            let json = show::outcome_json(&exchange, &done, None, false);
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(
                (json["result"].as_u64(), &json["result_hex"]),
                (Some(result), &told.into())
            );
        }
    }

    #[test]
    fn flags_become_the_command() {
        let long = [
            "--opcode=0x93",
            "--flags=0x40",
            "--rsvd=7",
            "--namespace-id=0x10",
            "--cdw2=2",
            "--cdw3=3",
            "--cdw10=10",
            "--cdw11=11",
            "--cdw12=0xc",
            "--cdw13=13",
            "--cdw14=14",
            "--cdw15=4294967295",
            "--data-len=512",
            "--metadata-len=8",
            "--timeout=100",
            "--prefill=0xff",
        ];
        let short = [
            "-O",
            "0x93",
            "-f",
            "64",
            "-R",
            "7",
            "-n",
            "16",
            "-2",
            "2",
            "-3",
            "3",
            "-4",
            "10",
            "-5",
            "11",
            "-6",
            "12",
            "-7",
            "13",
            "-8",
            "14",
            "-9",
            "4294967295",
            "-l",
            "512",
            "-m",
            "8",
            "-t",
            "100",
            "-p",
            "255",
        ];
        let (long, short) = (parsed(&long), parsed(&short));
        let sent = command(&long);
        assert_eq!(sent, command(&short));
        assert_eq!((sent.opcode, sent.flags, sent.cid.get(), sent.nsid.get()), (0x93, 0x40, 7, 16));
        assert_eq!((sent.cdw2.get(), sent.cdw3.get(), sent.cdw10.get()), (2, 3, 10));
        assert_eq!((sent.cdw11.get(), sent.cdw12.get(), sent.cdw13.get()), (11, 12, 13));
        assert_eq!((sent.cdw14.get(), sent.cdw15.get()), (14, u32::MAX));
        assert_eq!(
            (long.data_len, long.metadata_len, long.timeout, long.prefill),
            (512, 8, 100, 255)
        );
        assert_eq!((short.data_len, short.metadata_len, short.prefill), (512, 8, 255));
    }

    #[test]
    fn the_opcode_tells_the_direction_and_flags_where_it_does_not() {
        let of = |flags: &[&str]| direction(&parsed(flags));
        assert_eq!(of(&["-O", "2", "-l", "512"]).unwrap(), (true, false));
        assert_eq!(of(&["-O", "1", "-l", "512"]).unwrap(), (false, true));
        assert_eq!(of(&["-O", "0x84", "-l", "512", "-r"]).unwrap(), (true, false));
        assert_eq!(of(&["-O", "0x80"]).unwrap(), (false, false));
        assert!(of(&["-O", "0x80", "-l", "512"]).unwrap_err().to_string().contains("give --read"));
        assert!(of(&["-O", "2", "-w"]).unwrap_err().to_string().contains("--write away"));
        assert!(of(&["-O", "1", "-r"]).unwrap_err().to_string().contains("--read away"));
        for opcode in ["0x80", "0x84", "0"] {
            let refused = of(&["-O", opcode, "-l", "512", "-w"]).unwrap_err().to_string();
            assert!(refused.contains("--write away"), "{refused}");
        }
        assert_eq!(of(&["-O", "0x81", "-l", "512", "-w"]).unwrap(), (false, true));
        // Both ways, as the opcode says.
        assert_eq!(of(&["-O", "0x83", "-l", "512", "-r", "-w"]).unwrap(), (true, true));
    }

    #[test]
    fn another_namespace_is_not_taken_for_the_volumes() {
        let mut uri: Uri = "tcp://192.0.2.1/nqn.x:y?ns=1".parse().unwrap();
        assert!(address(&mut uri, 2).unwrap_err().to_string().contains("is namespace 1"));
        address(&mut uri, 1).unwrap();
        let mut uri: Uri = "tcp://192.0.2.1/nqn.x:y".parse().unwrap();
        address(&mut uri, NSID_ALL).unwrap();
        address(&mut uri, 0).unwrap();
        assert!(!uri.to_string().contains("ns="), "{uri}");
        address(&mut uri, 2).unwrap();
        assert!(uri.to_string().ends_with("?ns=2"), "{uri}");
        let mut uri: Uri = "mem:1M".parse().unwrap();
        address(&mut uri, 1).unwrap();
        assert!(address(&mut uri, 7).is_err());
        let mut uri: Uri =
            "multipath:(delay:1ms(tcp://192.0.2.1/nqn.x:y?ns=3),tcp://192.0.2.2/nqn.x:y)"
                .parse()
                .unwrap();
        assert!(address(&mut uri, 1).unwrap_err().to_string().contains("is namespace 3"));
        address(&mut uri, 3).unwrap();
        assert!(uri.to_string().ends_with("192.0.2.2:4420/nqn.x:y?ns=3)"), "{uri}");
    }

    #[test]
    fn a_controller_takes_admin_commands_for_any_namespace() {
        let recipient = Recipient::of("/dev/nvme3", true, 7).unwrap();
        assert!(
            matches!(recipient, Recipient::Controller(path) if path == Path::new("/dev/nvme3"))
        );
        let refused = Recipient::of("/dev/nvme3", false, 1).err().unwrap().to_string();
        assert!(refused.contains("like /dev/nvme3n1"), "{refused}");
        assert!(matches!(Recipient::of("mem:1M", true, 0), Ok(Recipient::Volume(_))));
    }
}
