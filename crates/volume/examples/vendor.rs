//! A vendor's commands: an I/O command that reads, and an admin command, by opcodes from the command line. What a
//! volume does not know, it says by its status.
//!
//! `cargo run --release -p volume --example vendor -- /dev/ng0n1 0x92 0xc2`
//!
//! The exit status is 1 when anything failed, which standard error says in words.

use anyhow::{Context, Result, bail};
use nvme::Command;
use std::process::ExitCode;
use volume::session::{Session, SessionConfig, Submission};

const BYTES: usize = 4096;
const IO: u64 = 1;
const ADMIN: u64 = 2;

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [uri, io, admin] = &arguments[..] else {
        bail!("usage: vendor VOLUME IO_OPCODE ADMIN_OPCODE")
    };
    let (io, admin) = (opcode(io)?, opcode(admin)?);
    let session = Session::new(&SessionConfig { depth: 2, ..SessionConfig::default() })?;
    let volume = session.open(uri)?;
    let command = |opcode| Command { opcode, ..Command::default() };
    for submission in [
        Submission::new(command(io)).data(vec![0; BYTES]).token(IO),
        Submission::admin(command(admin)).data(vec![0; BYTES]).token(ADMIN),
    ] {
        volume.submit(submission).map_err(|rejected| rejected.reason)?;
    }
    session.wait(2, None);
    let mut done = Vec::new();
    session.reap(&mut done);
    let mut outcome = ExitCode::SUCCESS;
    for done in done {
        let (queue, opcode) = if done.token == IO { ("I/O", io) } else { ("admin", admin) };
        if done.status.is_success() {
            println!("{queue} command {opcode:#04x}: result {:#x}", done.result);
        } else {
            let status = match done.token {
                IO => done.status.io_text(opcode).to_string(),
                _ => done.status.to_string(),
            };
            eprintln!("{queue} command {opcode:#04x}: {status}");
            outcome = ExitCode::FAILURE;
        }
    }
    Ok(outcome)
}

fn opcode(text: &str) -> Result<u8> {
    let digits = text.strip_prefix("0x").context("an opcode is written 0x92")?;
    Ok(u8::from_str_radix(digits, 16)?)
}
