//! NVMe commands to any volume: a local device, a file, a remote namespace.
//!
//! ```text
//!   nvme URI io OPCODE [FIELD=VALUE]...      one I/O command: cdw2= ... cdw15=, nsid=, timeout=MS,
//!   nvme URI admin OPCODE [FIELD=VALUE]...   data=FILE, or read=BYTES, which go to standard output
//!   nvme URI load DEPTH SECONDS              random reads and writes, each read checked; errors
//!                                            are counted and the work goes on; until=FILE: for
//!                                            longer, until there is that file
//! ```
//!
//! `memory=vec` takes ordinary memory in place of registered buffers, `memory=pieces` takes three pieces of it, `kind=small|big|mixed` says what
//! the session's ring is. `after=FILE` gives the command once there is that file, `again=FILE,...` gives it at once, and
//! once more as each file appears; what it does then is said.

use anyhow::{Context, Result, bail, ensure};
use nvme::{Command, Status};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};
use uring::Kind;
use volume::session::{Bytes, Done, Session, SessionConfig, Submission, Vectors, Volume};

/// Blocks that the load touches, and those of each of its commands.
const SPAN: u64 = 4096;
const BLOCKS: u32 = 8;

fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).without_time().with_ansi(false).init();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [uri, what, rest @ ..] = &words[..] else {
        bail!("usage: nvme URI io|admin OPCODE [FIELD=VALUE]... | nvme URI load DEPTH SECONDS")
    };
    let (fields, numbers): (Vec<&str>, Vec<&str>) = rest.iter().partition(|it| it.contains('='));
    let fields: BTreeMap<&str, &str> =
        fields.into_iter().filter_map(|field| field.split_once('=')).collect();
    let numbers: Vec<u64> = numbers.into_iter().map(number).collect::<Result<_>>()?;
    let kind = match fields.get("kind") {
        None | Some(&"mixed") => Kind::Mixed,
        Some(&"big") => Kind::Big,
        Some(&"small") => Kind::Small,
        Some(other) => bail!("kind={other}: small, big or mixed"),
    };
    let session = Session::new(&SessionConfig { kind, ..SessionConfig::default() })?;
    let volume = session.open(uri)?;
    if let Some(carrier) = fact(&volume, "commands go by") {
        eprintln!("commands go by: {carrier}");
    }
    match (*what, &numbers[..]) {
        ("io" | "admin", &[opcode]) => one(&session, &volume, *what == "admin", opcode, &fields),
        ("load", &[depth, seconds]) => {
            let begun = Instant::now();
            let goes_on = || {
                let awaited = fields.get("until").is_some_and(|file| !Path::new(file).exists());
                awaited || begun.elapsed() < Duration::from_secs(seconds)
            };
            load(&session, &volume, depth, goes_on)
        }
        _ => bail!("{what}: give io or admin and an opcode, or load, a depth and seconds"),
    }
}

/// What the volume says of itself under that name.
fn fact(volume: &Volume, name: &str) -> Option<String> {
    let mut facts = Vec::new();
    volume.namespace().describe(&mut facts);
    facts.into_iter().find_map(|(found, value)| (found == name).then_some(value))
}

/// A number, hexadecimal with `0x`.
fn number(text: &str) -> Result<u64> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.with_context(|| format!("{text:?} is not a number"))
}

/// Carries out one command, as often as it is to be; fails with its status.
fn one(
    session: &Session,
    volume: &Volume,
    admin: bool,
    opcode: u64,
    fields: &BTreeMap<&str, &str>,
) -> Result<()> {
    await_file(fields.get("after").copied());
    let mut bytes = give(session, volume, admin, opcode, fields)?;
    for file in fields.get("again").into_iter().flat_map(|files| files.split(',')) {
        await_file(Some(file));
        bytes = give(session, volume, admin, opcode, fields)?;
    }
    if fields.contains_key("read") {
        match &bytes {
            Bytes::Vectors(vectors) => {
                for piece in vectors.pieces() {
                    std::io::stdout().write_all(piece.as_slice())?;
                }
            }
            bytes => std::io::stdout().write_all(bytes.as_slice())?,
        }
    }
    Ok(())
}

/// Waits until there is that file.
fn await_file(file: Option<&str>) {
    let Some(file) = file else { return };
    eprintln!("waits for {file}");
    while !Path::new(file).exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Carries out one command: its data.
fn give(
    session: &Session,
    volume: &Volume,
    admin: bool,
    opcode: u64,
    fields: &BTreeMap<&str, &str>,
) -> Result<Bytes> {
    let mut command = Command { opcode: u8::try_from(opcode)?, ..Command::default() };
    let mut submission = Submission::default();
    for (name, value) in fields {
        let value_of = || number(value).and_then(|value| Ok(u32::try_from(value)?));
        match *name {
            "nsid" => command.nsid = value_of()?.into(),
            "cdw2" => command.cdw2 = value_of()?.into(),
            "cdw3" => command.cdw3 = value_of()?.into(),
            "cdw10" => command.cdw10 = value_of()?.into(),
            "cdw11" => command.cdw11 = value_of()?.into(),
            "cdw12" => command.cdw12 = value_of()?.into(),
            "cdw13" => command.cdw13 = value_of()?.into(),
            "cdw14" => command.cdw14 = value_of()?.into(),
            "cdw15" => command.cdw15 = value_of()?.into(),
            "timeout" => submission.timeout_ms = value_of()?,
            "data" => submission.data = memory(session, &std::fs::read(value)?, fields)?,
            "read" => submission.data = memory(session, &vec![0; value_of()? as usize], fields)?,
            "memory" | "kind" | "after" | "again" => {}
            other => bail!("{other}: no such field"),
        }
    }
    (submission.command, submission.admin) = (command, admin);
    let begun = Instant::now();
    volume.submit(submission).map_err(|rejected| rejected.reason)?;
    let mut done = Vec::new();
    session.wait(1, None);
    session.reap(&mut done);
    let Some(Done { status, result, data, .. }) = done.pop() else { bail!("nothing completed") };
    eprintln!("status {:#x} {status}", status.0);
    eprintln!("result {result:#x}, after {:?}", begun.elapsed());
    ensure!(status.is_success(), "{status}");
    Ok(data)
}

/// `content` in memory of the kind that is wanted.
fn memory(session: &Session, content: &[u8], fields: &BTreeMap<&str, &str>) -> Result<Bytes> {
    if content.is_empty() {
        return Ok(Bytes::default());
    }
    match fields.get("memory") {
        Some(&"vec") => return Ok(content.to_vec().into()),
        Some(&"pieces") => {
            let (first, rest) = content.split_at(content.len().min(512));
            let (second, third) = rest.split_at(rest.len().min(7));
            let pieces = [first, second, third].map(<[u8]>::to_vec);
            return Ok(pieces.into_iter().collect::<Vectors>().into());
        }
        _ => {}
    }
    let mut buffer = session.allocate(content.len()).context("no buffer that large")?;
    buffer.as_mut_slice().copy_from_slice(content);
    Ok(buffer.into())
}

/// Reads and writes at random as long as it `goes_on`; every block that is read holds what was written last.
fn load(session: &Session, volume: &Volume, depth: u64, goes_on: impl Fn() -> bool) -> Result<()> {
    let bytes = BLOCKS as usize * volume.limits().block_bytes() as usize;
    let places = SPAN / u64::from(BLOCKS);
    ensure!(depth < places, "fewer commands than places");
    // What each place holds: nothing known before it was written, or after a write failed.
    let mut holds: Vec<Option<u8>> = vec![None; places as usize];
    let mut busy = vec![false; places as usize];
    let (mut random, mut round) = (0x9e37_79b9_7f4a_7c15u64, 0u8);
    let mut spare = Vec::new();
    for _ in 0..depth {
        spare.push(Bytes::from(session.allocate(bytes).context("no buffer")?));
    }
    let (mut counts, mut errors) = ([0u64; 2], BTreeMap::<String, u64>::new());
    let mut slowest = Duration::ZERO;
    let mut since = vec![Instant::now(); places as usize];
    let mut done = Vec::new();
    loop {
        let more = goes_on();
        if !more && session.outstanding() == 0 {
            break;
        }
        while more && let Some(mut data) = spare.pop() {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let place = random >> 33 & (places - 1);
            if std::mem::replace(&mut busy[place as usize], true) {
                spare.push(data);
                continue;
            }
            since[place as usize] = Instant::now();
            let slba = place * u64::from(BLOCKS);
            let writes = random >> 60 & 1 == 1 || holds[place as usize].is_none();
            let submission = if writes {
                round = round.wrapping_add(1);
                data.as_mut_slice().fill(round);
                Submission::write(slba, BLOCKS, data).token(place << 9 | 1 << 8 | u64::from(round))
            } else {
                Submission::read(slba, BLOCKS, data).token(place << 9)
            };
            volume.submit(submission).map_err(|rejected| rejected.reason)?;
        }
        session.wait(1, Some(Duration::from_millis(100)));
        session.reap(&mut done);
        for Done { token, status, data, .. } in done.drain(..) {
            let (place, writes) = ((token >> 9) as usize, token >> 8 & 1 == 1);
            slowest = slowest.max(since[place].elapsed());
            busy[place] = false;
            counts[usize::from(writes)] += 1;
            if !status.is_success() {
                *errors.entry(words(status)).or_default() += 1;
                if writes {
                    holds[place] = None;
                }
            } else if writes {
                holds[place] = Some(token as u8);
            } else {
                let expected = holds[place].context("only what is known is read")?;
                let same = data.as_slice().iter().all(|byte| *byte == expected);
                ensure!(same, "block {} holds other bytes than were written", place * 8);
            }
            spare.push(data);
        }
    }
    println!("{} reads, {} writes, the slowest took {slowest:?}", counts[0], counts[1]);
    if let Some(count) = fact(volume, "commands tried again") {
        println!("{count} commands tried again");
    }
    for (status, count) in errors {
        println!("{count} times {status}");
    }
    Ok(())
}

fn words(status: Status) -> String {
    status.to_string()
}
