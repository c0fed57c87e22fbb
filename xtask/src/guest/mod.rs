//! `cargo xtask guest -- COMMAND`: a command in a stock Linux kernel, with this machine's files.

pub mod light;
pub mod machine;
mod nearby;
pub mod nvme;
pub mod on_purpose;
pub mod power_cut;
pub mod session;

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;

use crate::kernel::{Kernel, NEWEST_SUITE};
use crate::packages::{self, List};
use crate::process::shell_quoted;
use crate::tls;
use machine::{Bus, Disk, Ending, Machine};

/// Exit status when the time was up, as timeout(1) has it.
const STATUS_TIMED_OUT: u8 = 124;
/// Exit status when the guest itself failed, as timeout(1) and docker(1) have it.
const STATUS_NO_GUEST: u8 = 125;

/// Run a command in a guest: a stock Debian kernel with this machine's root file system.
#[derive(Args, Debug)]
pub struct GuestArguments {
    /// Debian suite whose newest kernel to boot.
    #[arg(long, value_name = "SUITE", default_value = NEWEST_SUITE)]
    kernel: String,
    /// Look for a newer kernel than the cached one.
    #[arg(long)]
    refresh: bool,
    /// Memory.
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    mem: String,
    /// Virtual processors.
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// A raw image as /dev/vdX; with a size it is created when missing. It outlives the guest.
    #[arg(long, value_name = "FILE[:SIZE]")]
    disk: Vec<String>,
    /// A raw image as an NVMe controller with one namespace.
    #[arg(long, value_name = "FILE[:SIZE]")]
    nvme: Vec<String>,
    /// The NVMe devices that tests have: `modprobe nvme` shows them.
    #[arg(long)]
    nvme_devices: bool,
    /// Have tlshd and an nvme-cli for TLS, at $TLS_TOOLS in the guest: for tests/guest/_tls.sh.
    #[arg(long)]
    tls: bool,
    /// Kill the guest after that many seconds (exit status 124).
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// A directory that the guest may write to, at the same path; $SHARE in the guest.
    #[arg(long, value_name = "DIRECTORY")]
    share: Option<PathBuf>,
    /// Set a variable for the command. Those named NVLANE_* go along by themselves.
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// More words for the kernel's command line.
    #[arg(long, value_name = "WORDS", default_value = "", allow_hyphen_values = true)]
    append: String,
    /// One more argument for QEMU; repeat it.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    qemu: Vec<String>,
    /// Repeatable timing: one instruction is one nanosecond, one thread emulates all.
    #[arg(long)]
    exact: bool,
    /// Keep the run's directory (console, kernel log, scripts) even when the command succeeds.
    #[arg(long)]
    keep: bool,
    /// One argument is a shell line; several are a program and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs the command; returns the exit status to end with.
pub fn run(arguments: GuestArguments) -> Result<u8> {
    packages::install(List::Test)?;
    let mut machine = machine_of(&arguments)?;
    let _devices = if arguments.nvme_devices {
        let folder = machine::folder_of_this_process("devices")?;
        Some(nvme::Devices::attach(&mut machine, nvme::Set::Usual, &folder)?)
    } else {
        None
    };
    let mut guest = machine.boot(&command_line(&arguments.command))?;
    let (stdout, stderr) = guest.output();
    let copies = [copied(stdout, io::stdout()), copied(stderr, io::stderr())];
    let ending = guest.wait(Duration::from_secs(arguments.timeout))?;
    for copy in copies {
        copy.join().expect("copying output does not panic");
    }
    let logs = guest.run_directory().display();
    match ending {
        Ending::Exited(_) => {}
        Ending::TimedOut => eprintln!("guest: killed after {} s", arguments.timeout),
        Ending::Died => {
            eprintln!("guest: ended without an exit status; its console said:");
            eprintln!("{}", guest.console_tail());
        }
    }
    let status = status_of(ending);
    if status == 0 && !arguments.keep {
        guest.discard_logs()?;
    } else {
        eprintln!("guest: exit status {status}; logs in {logs}");
    }
    Ok(status)
}

/// The exit status to end with: the command's, or the one that says what became of the guest.
fn status_of(ending: Ending) -> u8 {
    match ending {
        Ending::Exited(status) => u8::try_from(status).unwrap_or(u8::MAX),
        Ending::TimedOut => STATUS_TIMED_OUT,
        Ending::Died => STATUS_NO_GUEST,
    }
}

fn machine_of(arguments: &GuestArguments) -> Result<Machine> {
    let kernel = Kernel::of_suite(&arguments.kernel, arguments.refresh)?;
    let mut machine = Machine::new(kernel)?;
    machine.memory.clone_from(&arguments.mem);
    machine.cpus = arguments.cpus;
    machine.append.clone_from(&arguments.append);
    machine.qemu_arguments.clone_from(&arguments.qemu);
    machine.exact = arguments.exact;
    machine.directory = std::env::current_dir()?;
    if let Some(share) = &arguments.share {
        std::fs::create_dir_all(share)?;
        machine.share = share.canonicalize()?;
    }
    for (specifications, bus) in [(&arguments.disk, Bus::Virtio), (&arguments.nvme, Bus::Nvme)] {
        for specification in specifications {
            machine.disks.push(disk(specification, bus)?);
        }
    }
    machine.environment =
        std::env::vars().filter(|(name, _)| name.starts_with("NVLANE_")).collect();
    if arguments.tls {
        machine.environment.extend(tls::tools()?);
    }
    for variable in &arguments.env {
        let (name, value) = variable.split_once('=').context("--env wants NAME=VALUE")?;
        machine.environment.push((name.to_owned(), value.to_owned()));
    }
    Ok(machine)
}

/// `FILE` or `FILE:SIZE`.
fn disk(specification: &str, bus: Bus) -> Result<Disk> {
    let (image, bytes) = match specification.rsplit_once(':') {
        Some((image, size)) => (image, Some(bytes_of(size)?)),
        None => (specification, None),
    };
    Ok(Disk { image: std::path::absolute(image)?, bytes, bus })
}

/// `8G` is 8 * 2^30.
fn bytes_of(size: &str) -> Result<u64> {
    let digits = size.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &size[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        unit => anyhow::bail!("{size}: {unit} is not a unit; use K, M, G or T"),
    };
    let count: u64 = digits.parse().with_context(|| format!("{size}: not a size"))?;
    count.checked_mul(1 << shift).with_context(|| format!("{size}: too large"))
}

fn command_line(command: &[String]) -> String {
    match command {
        [line] => format!("{line}\n"),
        words => {
            let words: Vec<String> = words.iter().map(|word| shell_quoted(word)).collect();
            format!("exec {}\n", words.join(" "))
        }
    }
}

/// Copies all of `from` to `to` on a thread, as it comes.
pub fn copied(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count) = from.read(&mut buffer)
            && count > 0
        {
            // Our reader may be gone (| head): the guest runs on, and its status still counts.
            let _ = to.write_all(&buffer[..count]).and_then(|()| to.flush());
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_ends_with_the_status_of_its_command() {
        for (ending, status) in [
            (Ending::Exited(0), 0),
            (Ending::Exited(3), 3),
            (Ending::Exited(255), 255),
            // None that a command has; but never 0.
            (Ending::Exited(256), 255),
            (Ending::Exited(-1), 255),
            (Ending::TimedOut, 124),
            (Ending::Died, 125),
        ] {
            assert_eq!(status_of(ending), status, "{ending:?}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(bytes_of("512").unwrap(), 512);
        assert_eq!(bytes_of("8G").unwrap(), 8 << 30);
        assert!(bytes_of("8Q").is_err() && bytes_of("G").is_err());
        assert!(bytes_of("99999999999T").is_err());
    }

    #[test]
    fn one_argument_is_a_line_and_many_are_words() {
        assert_eq!(command_line(&["a | b".into()]), "a | b\n");
        assert_eq!(command_line(&["a".into(), "b c".into()]), "exec a 'b c'\n");
    }
}
