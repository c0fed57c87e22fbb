//! `nvlane aio`.

use super::ListFormat;
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// `nvlane aio`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  nvlane aio run -- fio --name=a --filename=disk.img --ioengine=libaio --direct=1 --iodepth=32
  nvlane aio stat $(pidof qemu-system-x86_64)")]
pub enum AioCommand {
    /// Run a program that uses libaio, unmodified, over io_uring.
    #[command(after_help = "Examples:
  nvlane aio run -- qemu-system-x86_64 -drive file=disk.img,format=raw,aio=native,cache=none ...
  nvlane aio run --mode native -- fio job.fio          to compare with
  nvlane aio run --stat - -- sysbench fileio run       with its counts at the end

The program gets nvlane's libaio.so.1 through LD_PRELOAD. Programs that make the system calls by
themselves, that are linked statically or that run set-user-ID do not notice.")]
    Run(AioRunArgs),
    /// Show what a process did through nvlane's libaio.
    #[command(after_help = "Examples:
  nvlane aio stat 4711
  nvlane aio stat 4711 -o json | jq .total.ring

`ring` went through io_uring, `inline` was carried out within io_submit (as the kernel does with the
page cache), `native` went to the kernel's own AIO, for the reason given.")]
    Stat(AioStatArgs),
}

/// `nvlane aio run`.
#[derive(Debug, Args)]
pub struct AioRunArgs {
    /// Which way I/O goes.
    #[arg(long, value_enum, default_value_t = AioMode::Auto)]
    pub mode: AioMode,
    /// The library; else $NVLANE_AIO_LIBRARY, or what lies beside nvlane or in ../lib/nvlane.
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
    /// When the program has ended, write what it and its children did to FILE, as JSON; `-`: as text to
    /// standard error. Processes that have become another user before their first context are left out.
    #[arg(long, value_name = "FILE")]
    pub stat: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// Which way I/O goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AioMode {
    /// Whichever is best, once it is known how the program takes its events.
    Auto,
    /// Through io_uring from the first request on; not for programs that read the ring of events
    /// themselves.
    Ring,
    /// Through the kernel's own AIO.
    Native,
}

/// `nvlane aio stat`.
#[derive(Debug, Args)]
pub struct AioStatArgs {
    /// The process.
    pub pid: u32,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t = ListFormat::Normal)]
    pub output_format: ListFormat,
}
