//! Copies a volume to one or several others of the same size, with Copy commands: nothing is read here where the
//! volumes can do without.
//!
//! `cargo run --release -p volume --example copy -- SOURCE TARGET...`
//!
//! The exit status is 1 when anything failed, which standard error says in words.

use anyhow::{Context, Result, bail, ensure};
use nvme::opcode;
use volume::session::{Ranges, Session, SessionConfig, Submission, Volume};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let source = arguments.next().context("usage: copy SOURCE TARGET...")?;
    let session = Session::new(&SessionConfig::default())?;
    let source = session.open(&source)?;
    let targets = arguments.map(|uri| Ok(session.open(&uri)?)).collect::<Result<Vec<Volume>>>()?;
    ensure!(!targets.is_empty(), "usage: copy SOURCE TARGET...");

    let (mut at, mut done) = (0, Vec::new());
    let whole = source.limits().blocks;
    while at < whole {
        // As much as every target takes at once.
        let limits = targets.iter().map(|target| target.limits().copy).reduce(|a, b| a.and(b));
        let limits = limits.expect("there are targets");
        ensure!(limits.is_offered(), "there is a target without Copy");
        let mut ranges = Ranges::new();
        while ranges.len() < limits.ranges_max.into() && at + ranges.blocks() < whole {
            let room = u64::from(limits.blocks_max) - ranges.blocks();
            let left = whole - at - ranges.blocks();
            let blocks = room.min(left).min(limits.range_blocks_max.into());
            if blocks == 0 {
                break;
            }
            ranges.push_from(&source, at + ranges.blocks(), blocks as u32);
        }
        let blocks = ranges.blocks();
        let all: Vec<(&Volume, u64)> = targets.iter().map(|target| (target, at)).collect();
        Volume::copy_to_all(&all, &ranges, at)?;
        session.wait(1, None);
        session.reap(&mut done);
        for done in done.drain(..) {
            if !done.status.is_success() {
                let target = targets[done.result as usize].uri();
                bail!("{target}: Copy to block {at}: {}", done.status.io_text(opcode::io::COPY));
            }
        }
        at += blocks;
    }
    for target in &targets {
        target.submit(Submission::flush()).map_err(|rejected| rejected.reason)?;
    }
    session.wait(targets.len(), None);
    session.reap(&mut done);
    ensure!(done.iter().all(|done| done.status.is_success()), "a Flush has failed");
    println!("copied {whole} blocks to {} volume(s)", targets.len());
    Ok(())
}
