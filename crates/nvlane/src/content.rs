//! `nvlane cat` and `nvlane write`: a volume's bytes for scripts.

use crate::cli::{CatArgs, WriteArgs};
use crate::copy::open::check_end;
use crate::serve::log;
use crate::session::{Reader, Session, Writer};
use crate::size;
use anyhow::{Context, Result, bail, ensure};
use rustix::fd::AsFd;
use std::fs::File;

/// What is logged to standard error: that a path is lost, and that commands wait.
const LOG: &str = "warn";

/// `nvlane cat`.
pub fn cat(args: &CatArgs) -> Result<()> {
    log::to_stderr(LOG)?;
    let session = Session::open(&args.volume, true)?;
    let bytes = session.limits.bytes();
    if args.length.is_none() {
        check_end(&args.volume, &*session.volume, "--length")?;
    }
    let length = args.length.unwrap_or(bytes.saturating_sub(args.offset));
    let end = args.offset.checked_add(length).filter(|&end| end <= bytes);
    let Some(end) = end else {
        bail!(
            "{}: bytes {} and {length} more are not within its {} ({bytes} bytes)",
            session.volume.uri(),
            args.offset,
            size::format(bytes)
        );
    };
    Reader::run(session, args.offset..end, rustix::stdio::stdout())
}

/// `nvlane write`.
pub fn write(args: &WriteArgs) -> Result<()> {
    log::to_stderr(LOG)?;
    // Kept open until the process ends, as standard input is.
    let file = match &args.input {
        Some(path) => {
            let file = File::open(path).with_context(|| path.display().to_string())?;
            Some(&*Box::leak(Box::new(file)))
        }
        None => None,
    };
    let input = file.map_or_else(rustix::stdio::stdin, |file| file.as_fd());
    let session = Session::open(&args.volume, false)?;
    let (uri, limits) = (session.volume.uri(), session.limits);
    let (bytes, block) = (limits.bytes(), u64::from(limits.block_bytes()));
    ensure!(!limits.read_only, "{uri}: it is read-only");
    ensure!(args.offset <= bytes, "{uri}: --offset {} is beyond its end at {bytes}", args.offset);
    ensure!(
        args.offset.is_multiple_of(block),
        "{uri}: --offset {} is not the start of one of its blocks of {block} bytes",
        args.offset
    );
    let total = remaining(input);
    if let Some(total) = total {
        // What can be known is refused before anything is written.
        ensure!(
            total <= bytes - args.offset,
            "{uri}: the input of {total} bytes is longer than the {} bytes from there to the end",
            bytes - args.offset
        );
        ensure!(
            args.pad || total.is_multiple_of(block),
            "the input of {total} bytes is not whole blocks of {block}: give --pad to fill up the last one with zeroes"
        );
    }
    Writer::run(session, args.offset, input, total, args.pad)?;
    Ok(())
}

/// Bytes of a regular file behind where it stands.
fn remaining(input: rustix::fd::BorrowedFd<'_>) -> Option<u64> {
    let stat = rustix::fs::fstat(input).ok()?;
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        return None;
    }
    let at = rustix::fs::tell(input).ok()?;
    Some((stat.st_size as u64).saturating_sub(at))
}
