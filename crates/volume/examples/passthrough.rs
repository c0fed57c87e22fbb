//! Raw passthrough: reads blocks by their command dwords, with several commands in flight, from any volume.
//!
//! `cargo run --release -p volume --example passthrough -- /dev/ng0n1`, or a file, `mem:1G`,
//! `tcp://192.0.2.1:4420/NQN?ns=1`
//!
//! The exit status is 1 when anything failed, which standard error says in words.

use anyhow::{Context, Result, bail};
use nvme::limits::Passthrough;
use nvme::{Command, opcode};
use volume::OpenOptions;
use volume::session::{Session, SessionConfig, Submission};

const READ: u8 = 0x02;
const DEPTH: usize = 8;
const COMMANDS: u64 = 64;

fn main() -> Result<()> {
    let uri = std::env::args().nth(1).context("usage: passthrough VOLUME")?;
    let session = Session::new(&SessionConfig { depth: DEPTH, ..SessionConfig::default() })?;
    let passthrough = Passthrough::ALL;
    let options = OpenOptions { read_only: true, passthrough, ..OpenOptions::default() };
    let volume = session.open_with(&uri, &options)?;
    let limits = volume.limits();
    let block_bytes = limits.block_bytes() as usize;
    // Registered with the ring, where the kernel allows it. They travel with the commands and come back.
    let buffers = (0..DEPTH).map(|_| session.allocate(block_bytes));
    let mut idle = buffers.collect::<Option<Vec<_>>>().context("the pool has no room")?;
    let mut done = Vec::with_capacity(DEPTH);
    let (mut sent, mut ended, mut sum) = (0, 0, 0);
    while ended < COMMANDS {
        while sent < COMMANDS
            && let Some(buffer) = idle.pop()
        {
            let slba = sent % limits.blocks;
            let command = Command {
                opcode: READ,
                cdw10: (slba as u32).into(),
                cdw11: ((slba >> 32) as u32).into(),
                // One block, zero-based.
                cdw12: 0.into(),
                ..Command::default()
            };
            let submission = Submission::new(command).data(buffer).token(sent);
            volume.submit(submission).map_err(|rejected| rejected.reason)?;
            sent += 1;
        }
        // One call into the kernel hands over all of them, and waits for the first.
        session.wait(1, None);
        session.reap(&mut done);
        for done in done.drain(..) {
            if !done.status.is_success() {
                bail!("Read {}: {}", done.token, done.status.io_text(opcode::io::READ));
            }
            sum += done.data.as_slice().iter().map(|byte| u64::from(*byte)).sum::<u64>();
            if let volume::session::Bytes::Fixed(buffer) = done.data {
                idle.push(buffer);
            }
            ended += 1;
        }
    }
    println!("read {ended} blocks of {block_bytes} bytes, sum of their bytes {sum}");
    Ok(())
}
