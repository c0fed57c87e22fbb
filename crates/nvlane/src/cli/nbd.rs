//! `nvlane nbd`.

use super::ListFormat;
use crate::config::{Cores, parse_address};
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The port that IANA gave NBD.
pub const NBD_PORT: u16 = 10809;

/// Arguments of `nvlane nbd`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlane nbd disk.img                              qemu-img info nbd://127.0.0.1/
  nvlane nbd disk.img --socket /tmp/disk.sock      nbdinfo 'nbd+unix:///?socket=/tmp/disk.sock'
  nvlane nbd a=disk.img b=mem:1G --listen 0.0.0.0  nbdinfo nbd://192.0.2.1/b
  nvlane nbd 'bpf:prog.bpf.o(a.img)' --control c.sock    nvlane bpf stat --socket c.sock
  nvlane nbd 'tcp://192.0.2.1,192.0.2.2/nqn.2026-11.com.example:a?ns=1' --socket a.sock
  nvlane nbd 'discovery://192.0.2.1:4420/nqn.2026-11.com.example:a?ns=1' --socket a.sock   by all its addresses

A volume without a name is the only export, without a name, or goes by the name of its file, else by
its number. The first one is also what clients get that ask for no name. NAME is made of letters,
digits, '.', '_' and '-'; write ./a=b.img for a file that is called like that.

Whoever can connect can read and write: there is neither a password nor TLS.")]
pub struct NbdArgs {
    /// Volumes: paths or URIs (file:, mem:, tcp:, ...), each with a name before it or without.
    #[arg(value_name = "[NAME=]VOLUME", required = true)]
    pub volumes: Vec<String>,
    /// Unix socket for NBD clients; may be given more than once. (The control socket is --control.)
    #[arg(long, value_name = "PATH")]
    pub socket: Vec<PathBuf>,
    /// Address to listen on, with or without port; may be given more than once. 127.0.0.1:10809 if
    /// there is no --socket either.
    #[arg(long, value_name = "ADDR:PORT", value_parser = listen)]
    pub listen: Vec<SocketAddr>,
    /// Refuse everything that writes.
    #[arg(short, long)]
    pub read_only: bool,
    /// Cores: how many (4) or which (0,2-5; 3-3 for one); one if not given. Connections are spread over them.
    #[arg(long, value_name = "N|LIST")]
    pub cores: Option<Cores>,
    /// Poll without ever sleeping: lower latency, and each core fully used.
    #[arg(long)]
    pub poll: bool,
    /// Control socket, for `nvlane paths`, `ctl volume tune`, `bpf stat` and `bpf replace`: none if not given.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// How to write, once clients can connect, what is served where; JSON is one line.
    #[arg(short, long, value_enum, default_value = "normal")]
    pub output_format: ListFormat,
    /// What to log to standard error: error, warn, info, debug, trace, or a filter such as
    /// nbd=debug,warn.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log: String,
}

fn listen(text: &str) -> Result<SocketAddr, String> {
    parse_address(text, NBD_PORT)
}
