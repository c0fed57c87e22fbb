//! The command line.

mod admin;
mod aio;
mod bpf;
mod content;
mod copy;
mod ctl;
mod key;
mod nbd;
mod passthrough;
mod serve;
mod ublk;

pub use admin::{
    DiscoverArgs, Format, GetLogArgs, IdCtrlArgs, IdNsArgs, KickstartArgs, ListArgs, ListFormat,
    ListSubsysArgs, RemoteArgs, ShowArgs, ShowRegsArgs,
};
pub use aio::{AioCommand, AioMode, AioRunArgs, AioStatArgs};
pub use bpf::{BpfCheckArgs, BpfCommand, BpfReplaceArgs, BpfStatArgs};
pub use content::{CatArgs, PathsArgs, WriteArgs};
pub use copy::{CopyArgs, JobsArgs, JobsCommand};
pub use ctl::{
    AnaCommand, ControllerCommand, CtlArgs, CtlCommand, HostCommand, ListenerCommand, Output,
    SubsystemCommand, VolumeCommand,
};
pub use key::{KeyCommand, KeyHash};
pub use nbd::{NBD_PORT, NbdArgs};
pub use passthrough::{AdminArgs, DoctorArgs, IoArgs, PassthroughArgs};
pub use serve::ServeArgs;
pub use ublk::{
    AttachArgs, DetachArgs, ProgramPlace, UblkAddArgs, UblkCommand, UblkDelArgs, UblkMakeArgs,
    UblkRecoverArgs, UblkServeArgs,
};

use clap::{Args, CommandFactory, Parser, Subcommand};
use std::path::PathBuf;

/// Both ends of NVMe/TCP in user space: serves volumes to stock Linux hosts, uses remote ones by several paths, copies
/// them, makes them block devices.
#[derive(Debug, Parser)]
#[command(
    name = "nvlane",
    version,
    propagate_version = true,
    max_term_width = 100,
    after_help = "Examples:
  nvlane serve                            a 4 GiB volume in the data directory, on 127.0.0.1:4420
  nvlane serve disk.img --listen 0.0.0.0:4420
  nvlane ctl volume add mem:1G            another volume, while the daemon runs
  nvlane attach 'tcp://192.0.2.1,192.0.2.2/nqn.2026-11.com.example:a?ns=1'    /dev/ublkb0
  nvlane copy a.img b.img --create --verify
  nvlane COMMAND --help                   examples of each command"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve volumes over NVMe/TCP until stopped.
    Serve(Box<ServeArgs>),
    /// Serve volumes over NBD until stopped: for qemu-img, nbdcopy, fio, nbd-client.
    Nbd(NbdArgs),
    /// Make volumes block devices of this machine: /dev/ublkbN.
    #[command(subcommand)]
    Ublk(UblkCommand),
    /// Make a volume a block device, served in the background: mostly one of another machine.
    Attach(AttachArgs),
    /// Take such devices away.
    Detach(DetachArgs),
    /// Look into a running daemon, and change it.
    Ctl(CtlArgs),
    /// Import, check and show configurations.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Make and check keys, by which hosts and subsystems prove who they are.
    #[command(subcommand)]
    Key(KeyCommand),
    /// Show what a volume is and can do.
    Info(InfoArgs),
    /// Write a volume's bytes to standard output.
    Cat(CatArgs),
    /// Write standard input, or a file, to a volume.
    Write(WriteArgs),
    /// Copy volumes, or parts of them, to others.
    Copy(Box<CopyArgs>),
    /// Look after the copies that the daemon does.
    Jobs(JobsArgs),
    /// Show the paths to volumes: state, latency, share of the I/O.
    Paths(PathsArgs),
    /// Ask a discovery controller which subsystems there are.
    Discover(DiscoverArgs),
    /// Ask a centralized discovery controller to fetch which subsystems this machine has.
    Kickstart(KickstartArgs),
    /// List namespaces, with their sizes.
    List(ListArgs),
    /// List subsystems, with the paths to them.
    ListSubsys(ListSubsysArgs),
    /// Show the Identify Controller data structure.
    IdCtrl(IdCtrlArgs),
    /// Show the Identify Namespace data structure.
    IdNs(IdNsArgs),
    /// Read a log page.
    GetLog(GetLogArgs),
    /// Show a controller's properties.
    ShowRegs(ShowRegsArgs),
    /// Send one I/O command to a volume, as it is.
    Io(Box<IoArgs>),
    /// Send one admin command to a volume's controller, as it is.
    Admin(Box<AdminArgs>),
    /// Find out what this machine allows, and what would mend what it does not.
    Doctor(DoctorArgs),
    /// Run programs that use libaio over io_uring, and see what they did.
    #[command(subcommand)]
    Aio(AioCommand),
    /// Check programs that route requests, and see what they keep.
    #[command(subcommand)]
    Bpf(BpfCommand),
    /// Measure nvlane beside its peers.
    Bench(crate::bench::BenchArgs),
    /// Print the completion script of a shell.
    Completions(CompletionsArgs),
    /// Print the manual page, or write those of all commands.
    Man(ManArgs),
}

/// `nvlane config`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  nvlane config import /etc/nvmet/config.json -o nvlane.toml
  nvlane config check nvlane.toml
  nvlane config show nvlane.toml --json")]
pub enum ConfigCommand {
    /// Translate the configuration that nvmetcli saved for the kernel's target.
    #[command(after_help = "Examples:
  nvlane config import /etc/nvmet/config.json > nvlane.toml
  nvlane config import config.json -o nvlane.json     JSON, by the name
  nvlane config import config.json --keys-dir /etc/nvlane > nvlane.toml

What has no counterpart (other transports, disabled namespaces) is named on standard error. Keys of hosts are written to files that
only their owner may read, and the configuration names those.")]
    Import {
        /// The file that nvmetcli saved.
        file: PathBuf,
        /// Write there instead of to standard output; JSON if the name ends in .json.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Write keys of hosts into this directory; FILE.keys if not given.
        #[arg(long, value_name = "DIR")]
        keys_dir: Option<PathBuf>,
        /// Write JSON, not TOML.
        #[arg(long)]
        json: bool,
    },
    /// Check a configuration file without opening a volume, and say which changes by `nvlane ctl` a restart would drop, and
    /// which namespaces get another UUID or NGUID.
    #[command(after_help = "Examples:
  nvlane config check /etc/nvlane.toml && systemctl restart nvlane
  nvlane config check nvlane.toml --data-dir /srv/nvlane      the state that `serve` has there
  nvlane config check nvlane.toml --socket /run/nvlane.sock   beside what is served now")]
    Check {
        /// The configuration file.
        file: PathBuf,
        /// The --data-dir that the server has; without it, beside the file and in the usual data directory.
        #[arg(long, value_name = "DIR")]
        data_dir: Option<PathBuf>,
        /// Control socket of the daemon that serves it now, whose UUIDs and NGUIDs the file's are to be compared with; without it,
        /// those of the state, if `nvlane ctl` has changed anything.
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
        /// How long its answer may take, in milliseconds; 0: for ever.
        #[arg(long, value_name = "MS", default_value_t = 30_000, requires = "socket")]
        timeout: u64,
    },
    /// Show a configuration file with everything filled in that it leaves out.
    #[command(after_help = "Example:
  nvlane config show /etc/nvlane.toml
  nvlane ctl config                       what a running daemon has")]
    Show {
        /// The configuration file.
        file: PathBuf,
        /// Write JSON, not TOML.
        #[arg(long)]
        json: bool,
    },
}

/// `nvlane info`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane info disk.img
  nvlane info 'delay:1ms(mem:1G)' -o json
  nvlane info disk.img clone.img             # also by which means the one is copied to the other

The volume is opened as `serve` opens it: one that is being served is refused.")]
pub struct InfoArgs {
    /// The volume: a path or a URI.
    pub volume: String,
    /// Another volume: tell by which means the first is copied to it.
    pub target: Option<String>,
    /// How to write it.
    #[arg(short, long, value_enum, default_value = "normal")]
    pub output_format: ListFormat,
    /// The same as -o json.
    #[arg(long)]
    pub json: bool,
}

/// `nvlane completions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane completions bash > ~/.local/share/bash-completion/completions/nvlane
  nvlane completions fish > ~/.config/fish/completions/nvlane.fish")]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: clap_complete::Shell,
}

/// `nvlane man`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane man | man -l -
  nvlane man --dir /usr/local/share/man/man1")]
pub struct ManArgs {
    /// Write a page for every command into this directory.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// The command line's description, for completions and manual pages.
pub fn command() -> clap::Command {
    Cli::command()
}

/// What clap says about a wrong command line, in one line.
pub fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let said: Vec<&str> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty())
        .collect();
    said.join("; ").trim_start_matches("error: ").replace(":; ", ": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    /// By the letters that nvme-cli has for `discover`, and those of them that others have, too.
    #[test]
    fn letters_are_nvme_clis() {
        let line = "nvlane discover -a 192.0.2.1 -s 4420 -w 192.0.2.7 -f eth0 -k 30 -r log.bin";
        let Command::Discover(args) = Cli::try_parse_from(line.split(' ')).unwrap().command else {
            panic!("{line}")
        };
        assert_eq!(args.remote.host_traddr, Some([192, 0, 2, 7].into()));
        assert_eq!(args.remote.host_iface.as_deref(), Some("eth0"));
        assert_eq!((args.keep_alive_tmo, args.watch), (30, false));
        assert_eq!(args.raw, Some("log.bin".into()));
        let line = "nvlane get-log -i 2 -l 512 -r -w ::1 -f eth0 -a ::2 --nqn nqn.x";
        let Command::GetLog(args) = Cli::try_parse_from(line.split(' ')).unwrap().command else {
            panic!("{line}")
        };
        assert!(args.rae && args.remote.host_iface.is_some(), "{args:?}");
        let told = |seconds| Cli::try_parse_from(["nvlane", "discover", "-k", seconds]).is_ok();
        assert_eq!(["0", "4294967", "4294968"].map(told), [true, true, false]);
    }

    #[test]
    fn every_command_has_examples() {
        fn visit(command: &clap::Command, path: &str) {
            if command.get_name() == "help" {
                return;
            }
            let path = format!("{path} {}", command.get_name());
            let help = command.get_after_help().or(command.get_after_long_help());
            let help = help.map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{path} has no example");
            assert!(command.get_about().is_some(), "{path} says nothing about itself");
            command.get_subcommands().for_each(|command| visit(command, &path));
        }
        visit(&command(), "");
    }

    #[test]
    fn wrong_command_lines_are_told_in_one_line() {
        for (line, part) in [
            (&["nvlane", "serve", "--lisen", "x"][..], "'--lisen'"),
            (&["nvlane", "info"], "<VOLUME>"),
            (&["nvlane", "serve", "--listen", "here"], "`here` is no address"),
            (&["nvlane", "serve", "--cores", "0"], "0 cores"),
            (&["nvlane", "serve", "--shared"], "--nqn"),
            (&["nvlane", "serve", "--config", "a.toml", "mem:1G"], "--config"),
        ] {
            let said = one_line(&Cli::try_parse_from(line).unwrap_err());
            assert!(said.contains(part) && !said.contains('\n'), "{line:?}: {said}");
        }
    }
}
