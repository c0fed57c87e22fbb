//! A session in a loop of the program's own, which sleeps in poll(2): reads blocks with several commands in flight, while
//! other things come by another descriptor.
//!
//! `cargo run --release -p volume --example poll -- /dev/ng0n1`, or a file, `mem:1G`, `tcp://192.0.2.1:4420/NQN?ns=1`
//!
//! The exit status is 1 when anything failed, which standard error says in words.

use anyhow::{Context, Result, bail};
use nvme::limits::Passthrough;
use nvme::opcode;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;
use std::{io, thread};
use volume::OpenOptions;
use volume::session::{Session, SessionConfig, Submission};

const DEPTH: usize = 8;
const COMMANDS: u64 = 64;

fn main() -> Result<()> {
    let uri = std::env::args().nth(1).context("usage: poll VOLUME")?;
    let session = Session::new(&SessionConfig { depth: DEPTH, ..SessionConfig::default() })?;
    let passthrough = Passthrough::ALL;
    let options = OpenOptions { read_only: true, passthrough, ..OpenOptions::default() };
    let volume = session.open_with(&uri, &options)?;
    let limits = volume.limits();
    let block_bytes = limits.block_bytes() as usize;
    let mut other = other_things()?;
    let mut idle: Vec<Vec<u8>> = (0..DEPTH).map(|_| vec![0; block_bytes]).collect();
    let mut done = Vec::with_capacity(DEPTH);
    let (mut sent, mut ended, mut sum, mut others) = (0, 0, 0, 0);
    while ended < COMMANDS {
        while sent < COMMANDS
            && let Some(memory) = idle.pop()
        {
            let submission = Submission::read(sent % limits.blocks, 1, memory).token(sent);
            volume.submit(submission).map_err(|rejected| rejected.reason)?;
            sent += 1;
        }
        // The last before sleeping, each time: hands over what was submitted, and says whether one may sleep.
        if session.arm()? == 0 {
            let [_, is_other] = poll([session.poll_fd()?, other.as_fd()])?;
            if is_other {
                other.read_exact(&mut [0])?;
                others += 1;
            }
        }
        session.reap(&mut done);
        for done in done.drain(..) {
            if !done.status.is_success() {
                bail!("Read {}: {}", done.token, done.status.io_text(opcode::io::READ));
            }
            sum += done.data.as_slice().iter().map(|byte| u64::from(*byte)).sum::<u64>();
            if let volume::session::Bytes::Owned(memory) = done.data {
                idle.push(memory);
            }
            ended += 1;
        }
    }
    println!("read {ended} blocks of {block_bytes} bytes, sum of their bytes {sum}");
    eprintln!("{others} other things meanwhile");
    Ok(())
}

/// What else a program may wait for: here a byte every millisecond.
fn other_things() -> io::Result<io::PipeReader> {
    let (from, mut to) = io::pipe()?;
    thread::spawn(move || {
        while to.write_all(&[0]).is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
    });
    Ok(from)
}

/// Sleeps until some of the descriptors are readable, and says which.
fn poll<const COUNT: usize>(fds: [BorrowedFd<'_>; COUNT]) -> io::Result<[bool; COUNT]> {
    let event =
        |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut events = fds.map(event);
    // SAFETY: as many structures as it is told, which the call fills in.
    if unsafe { libc::poll(events.as_mut_ptr(), COUNT as libc::nfds_t, -1) } < 0 {
        let error = io::Error::last_os_error();
        // Nothing has come but a signal.
        return if error.kind() == ErrorKind::Interrupted {
            Ok([false; COUNT])
        } else {
            Err(error)
        };
    }
    Ok(events.map(|event| event.revents != 0))
}
