//! Zone Append: adds a block to a zone, and says where it went. For zoned namespaces (`/dev/ngXnY`); a volume
//! without zones says that it has no such command.
//!
//! `cargo run --release -p volume --example zone_append -- /dev/ng0n1 [ZONE_START_LBA]`
//!
//! The exit status is 1 when anything failed, which standard error says in words.

use anyhow::{Context, Result, bail};
use nvme::{Command, opcode};
use volume::session::{Session, SessionConfig, Submission};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let uri = arguments.next().context("usage: zone_append VOLUME [ZONE_START_LBA]")?;
    let zone: u64 = arguments.next().map_or(Ok(0), |text| text.parse())?;
    let session = Session::new(&SessionConfig { depth: 1, ..SessionConfig::default() })?;
    let volume = session.open(&uri)?;
    let command = Command {
        opcode: opcode::io::ZONE_APPEND,
        cdw10: (zone as u32).into(),
        cdw11: ((zone >> 32) as u32).into(),
        // One block, zero-based.
        cdw12: 0.into(),
        ..Command::default()
    };
    // Ordinary memory, which the session owns until the command has ended.
    let block = vec![b'a'; volume.limits().block_bytes() as usize];
    let submission = Submission::new(command).data(block).timeout_ms(10_000);
    volume.submit(submission).map_err(|rejected| rejected.reason)?;
    session.wait(1, None);
    let mut done = Vec::new();
    session.reap(&mut done);
    for done in done {
        if !done.status.is_success() {
            bail!("Zone Append: {}", done.status.io_text(opcode::io::ZONE_APPEND));
        }
        println!("appended at block {}", done.result);
    }
    Ok(())
}
