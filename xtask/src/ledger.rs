//! Did a device keep its promises? Writes blocks, notes in a ledger every write that the device
//! acknowledged as durable, and later checks that each is still there.
//!
//! ```text
//! write:   block, sequence ──> device ──> Flush (or the write had FUA) ──acknowledged──> ledger
//! verify:  ledger's newest sequence of each block <= the sequence found in every sector of it
//! ```
//!
//! Where it is asked to, it also reads between its writes, while the accident happens: a block is a register, which gives what
//! was last written to it. A write that was acknowledged and undone, or an old one that comes late, shows even if it is written over later.
//!
//! A block may hold something newer than the ledger promises: it was written and not yet noted. It
//! may never hold something older, nor bytes that were never written. The ledger belongs where the
//! accident cannot reach it: outside the server that is killed, outside the guest whose power is cut.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};

/// Bytes of a block, the unit of writing.
const BLOCK: usize = 4096;
/// Blocks that verifying reads at once, beside writers that take most of what the device does.
const READ_AT_ONCE: usize = 16;
/// Bytes that a device may not tear. Each carries its own header.
const SECTOR: usize = 512;
/// Words of a sector: magic, seed, block, sector, sequence, filling..., checksum.
const WORDS: usize = SECTOR / 8;
/// First word of each sector that we wrote.
const MAGIC: u64 = u64::from_be_bytes(*b"nvledger");
/// Writes before a Flush, at most.
const BATCH_MAX: u64 = 16;
/// Lost blocks that are listed; the rest is counted.
const LISTED: usize = 10;

/// What was asked.
#[derive(Args, Debug)]
pub struct LedgerArguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Write blocks and note each durable write, until the time is up.
    Write(WriteArguments),
    /// Check that the device holds all that the ledger notes; exit status 1 if not.
    Verify {
        /// Block device or file.
        #[arg(long)]
        device: PathBuf,
        /// Written by `write`.
        #[arg(long)]
        ledger: PathBuf,
        /// Fail when the ledger notes fewer writes: a test that wrote nothing proves nothing.
        #[arg(long, default_value_t = 1)]
        at_least: usize,
    },
}

#[derive(Args, Debug)]
struct WriteArguments {
    /// Block device or file of the right size.
    #[arg(long)]
    device: PathBuf,
    /// Appended to.
    #[arg(long)]
    ledger: PathBuf,
    /// Write for that long.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Writers at once, each with blocks of its own.
    #[arg(long, default_value_t = 4)]
    threads: u64,
    /// Blocks of 4 KiB to write to, from the device's start.
    #[arg(long, default_value_t = 4096)]
    blocks: u64,
    /// Which blocks, in which order, with what in them.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How a write becomes durable.
    #[arg(long, value_enum, default_value_t = Durability::Flush)]
    by: Durability,
    /// What to do when the device fails a write or Flush.
    #[arg(long, value_enum, default_value_t = OnError::Fail)]
    on_error: OnError,
    /// Read blocks between writes: each has to be what was last written to it, nothing older.
    #[arg(long)]
    read_back: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Durability {
    /// Some writes, then fdatasync.
    Flush,
    /// NVMe writes with the FUA bit, sent as passthrough commands: no Flush at all.
    Fua,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnError {
    /// Exit status 1.
    Fail,
    /// Exit status 0: the accident was meant to break the device.
    Stop,
    /// Go on; what failed is not noted.
    Retry,
}

/// Writes or verifies; an error is a broken promise or a device that fails.
pub fn run(arguments: LedgerArguments) -> Result<u8> {
    match arguments.action {
        Action::Write(arguments) => write(&arguments)?,
        Action::Verify { device, ledger, at_least } => verify(&device, &ledger, at_least)?,
    }
    Ok(0)
}

/// A block's memory, aligned as O_DIRECT wants it.
#[repr(align(4096))]
struct Block([u8; BLOCK]);

impl Block {
    fn filled(seed: u64, block: u64, sequence: u64) -> Self {
        let mut bytes = [0; BLOCK];
        for (sector, out) in (0..).zip(bytes.chunks_exact_mut(SECTOR)) {
            let words = sector_words(seed, block, sector, sequence);
            for (word, out) in words.iter().zip(out.chunks_exact_mut(8)) {
                out.copy_from_slice(&word.to_le_bytes());
            }
        }
        Self(bytes)
    }
}

/// Memory of several blocks, aligned as O_DIRECT wants it.
#[repr(align(4096))]
struct Blocks([[u8; BLOCK]; READ_AT_ONCE]);

/// The oldest sequence in the bytes of a block, or why they are none of our writes.
fn oldest_sequence(bytes: &[u8; BLOCK], seed: u64, block: u64) -> Result<u64, String> {
    let mut oldest = u64::MAX;
    for (sector, bytes) in (0..).zip(bytes.chunks_exact(SECTOR)) {
        let word = |index: usize| {
            let bytes = bytes[index * 8..][..8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes)
        };
        let sequence = word(4);
        let wanted = sector_words(seed, block, sector, sequence);
        if (0..WORDS).any(|index| word(index) != wanted[index]) {
            let zero = bytes.iter().all(|byte| *byte == 0);
            let what = if zero { "zeroes" } else { "bytes that nobody wrote" };
            return Err(format!("sector {sector} holds {what}"));
        }
        oldest = oldest.min(sequence);
    }
    Ok(oldest)
}

fn sector_words(seed: u64, block: u64, sector: u64, sequence: u64) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[..5].copy_from_slice(&[MAGIC, seed, block, sector, sequence]);
    let mut random =
        Random(seed ^ block.rotate_left(17) ^ sector.rotate_left(37) ^ (sequence << 1));
    for word in &mut words[5..] {
        *word = random.next();
    }
    words
}

/// `SplitMix64`: small, seeded, good enough to choose blocks and to fill them.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn write(arguments: &WriteArguments) -> Result<()> {
    let blocks_each = arguments.blocks / arguments.threads;
    ensure!(blocks_each > 0, "fewer blocks than threads");
    let mut ledger = OpenOptions::new().create(true).append(true).open(&arguments.ledger)?;
    if ledger.metadata()?.len() == 0 {
        writeln!(ledger, "seed {}", arguments.seed)?;
    }
    // Sequences go on where an earlier run with the same ledger stopped.
    let notes = Notes::read(&arguments.ledger)?;
    ensure!(notes.seed == arguments.seed, "the ledger was begun with seed {}", notes.seed);
    let first = notes.newest.values().max().unwrap_or(&0) + 1_000_000;
    let ledger = Mutex::new(ledger);
    let until = Instant::now() + Duration::from_secs(arguments.seconds);
    let failed = AtomicBool::new(false);

    let writers = thread::scope(|scope| {
        let writers: Vec<_> = (0..arguments.threads)
            .map(|thread| {
                let (ledger, failed) = (&ledger, &failed);
                scope.spawn(move || {
                    let random = Random(arguments.seed ^ first ^ (thread << 48));
                    let mut writer = Writer {
                        arguments,
                        thread,
                        random,
                        sequence: first,
                        noted: 0,
                        held: BTreeMap::new(),
                        read: 0,
                        longest: Duration::ZERO,
                    };
                    let result = writer.run(ledger, until, failed);
                    // Others end as well, and the program with them: whoever looks whether it runs is to know.
                    failed.fetch_or(result.is_err(), Ordering::Relaxed);
                    result.map(|()| writer)
                })
            })
            .collect();
        let joined = writers.into_iter().map(|writer| writer.join().expect("a writer panicked"));
        joined.collect::<Result<Vec<Writer<'_>>>>()
    })?;
    let sum = |count: fn(&Writer<'_>) -> u64| writers.iter().map(count).sum::<u64>();
    println!("ledger: {} durable writes noted", sum(|writer| writer.noted));
    if arguments.read_back {
        println!("ledger: {} blocks read back", sum(|writer| writer.read));
    }
    let longest = writers.iter().map(|writer| writer.longest).max().unwrap_or_default();
    println!("ledger: the longest call took {} ms", longest.as_millis());
    Ok(())
}

/// One thread's writes to its own blocks: those whose number is `thread` modulo the threads.
struct Writer<'a> {
    arguments: &'a WriteArguments,
    thread: u64,
    random: Random,
    sequence: u64,
    noted: u64,
    /// What each block was last written with, as far as that is known.
    held: BTreeMap<u64, u64>,
    /// Blocks read back.
    read: u64,
    /// The longest that one call to the device took.
    longest: Duration,
}

impl Writer<'_> {
    /// Writes until then, or until one of the writers has `failed`.
    fn run(&mut self, ledger: &Mutex<File>, until: Instant, failed: &AtomicBool) -> Result<()> {
        let path = &self.arguments.device;
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .with_context(|| path.display().to_string())?;
        while Instant::now() < until && !failed.load(Ordering::Relaxed) {
            let done = self.batch(&device).and_then(|notes| {
                let read = if self.arguments.read_back { notes.len() } else { 0 };
                self.read_back(&device, read).map(|stale| (notes, stale))
            });
            match done {
                Ok((_, Some(stale))) => bail!("{}: {stale}", path.display()),
                Ok((notes, None)) => {
                    // One write call: a cut leaves whole lines and at most one torn at the end.
                    let lines: String = notes
                        .iter()
                        .map(|(block, sequence)| format!("{block} {sequence}\n"))
                        .collect();
                    ledger.lock().expect("no writer panics").write_all(lines.as_bytes())?;
                    self.noted += notes.len() as u64;
                }
                Err(error) => match self.arguments.on_error {
                    OnError::Fail => {
                        return Err(error).with_context(|| path.display().to_string());
                    }
                    OnError::Stop => {
                        println!("ledger: the device failed ({error}); stopping, as asked");
                        return Ok(());
                    }
                    OnError::Retry => thread::sleep(Duration::from_millis(50)),
                },
            }
        }
        Ok(())
    }

    /// Writes some blocks and makes them durable; returns them with their sequences.
    fn batch(&mut self, device: &File) -> io::Result<BTreeMap<u64, u64>> {
        let writes = match self.arguments.by {
            Durability::Flush => 1 + self.random.next() % BATCH_MAX,
            Durability::Fua => 1,
        };
        let threads = self.arguments.threads;
        let mut notes = BTreeMap::new();
        for _ in 0..writes {
            self.sequence += 1;
            let choice = self.random.next() % (self.arguments.blocks / threads);
            let block = choice * threads + self.thread;
            let data = Block::filled(self.arguments.seed, block, self.sequence);
            // Of a write that fails nobody knows.
            self.held.remove(&block);
            self.timed(|by| match by {
                Durability::Flush => device.write_all_at(&data.0, block * BLOCK as u64),
                Durability::Fua => write_fua(device, block, &data),
            })?;
            self.held.insert(block, self.sequence);
            notes.insert(block, self.sequence);
        }
        if self.arguments.by == Durability::Flush {
            self.timed(|_| device.sync_data())?;
        }
        Ok(notes)
    }

    /// Reads `count` of the blocks that were written in this run; what is wrong with one.
    fn read_back(&mut self, device: &File, count: usize) -> io::Result<Option<String>> {
        for _ in 0..count {
            let Some(choice) = self.random.next().checked_rem(self.held.len() as u64) else {
                break;
            };
            let (&block, &sequence) = self.held.iter().nth(choice as usize).expect("one of them");
            let mut data = Block([0; BLOCK]);
            self.timed(|_| device.read_exact_at(&mut data.0, block * BLOCK as u64))?;
            let found = match oldest_sequence(&data.0, self.arguments.seed, block) {
                Ok(found) if found == sequence => {
                    self.read += 1;
                    continue;
                }
                Ok(found) => format!("sequence {found}"),
                Err(what) => what,
            };
            return Ok(Some(format!(
                "block {block} was written with sequence {sequence}, found {found}"
            )));
        }
        Ok(None)
    }

    fn timed<T>(&mut self, call: impl FnOnce(Durability) -> io::Result<T>) -> io::Result<T> {
        let begun = Instant::now();
        let result = call(self.arguments.by);
        self.longest = self.longest.max(begun.elapsed());
        result
    }
}

/// `struct nvme_user_io` of linux/nvme_ioctl.h.
#[repr(C)]
struct NvmeUserIo {
    opcode: u8,
    flags: u8,
    control: u16,
    blocks_z: u16,
    reserved: u16,
    metadata: u64,
    address: u64,
    start: u64,
    dataset_management: u32,
    reference_tag: u32,
    application_tag: u16,
    application_mask: u16,
}

/// `NVME_IOCTL_SUBMIT_IO`: _IOW('N', 0x42, struct nvme_user_io).
const SUBMIT_IO: libc::c_ulong = 0x4030_4e42;
/// `BLKSSZGET`: the logical block size.
const LOGICAL_BLOCK_BYTES: libc::c_ulong = 0x1268;

const _: () = assert!(size_of::<NvmeUserIo>() == 0x30);

/// Writes with FUA set (NVM Command Set 1.1, Write, command dword 12 bit 30). A block device
/// written with O_DSYNC would get a Flush as well, which hides a lost FUA.
fn write_fua(device: &File, block: u64, data: &Block) -> io::Result<()> {
    let mut logical: libc::c_int = 0;
    // SAFETY: the ioctl writes one int to the pointer, which is valid for that.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOGICAL_BLOCK_BYTES, &raw mut logical) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let per_block = BLOCK as u64 / u64::from(logical.unsigned_abs());
    let command = NvmeUserIo {
        opcode: 0x01,
        flags: 0,
        control: 1 << 14, // FUA, counted from bit 16 of the dword
        blocks_z: (per_block - 1) as u16,
        reserved: 0,
        metadata: 0,
        address: data.0.as_ptr() as u64,
        start: block * per_block,
        dataset_management: 0,
        reference_tag: 0,
        application_tag: 0,
        application_mask: 0,
    };
    // SAFETY: the command's layout is the kernel's, its address covers the `blocks_z + 1` blocks
    // that the kernel reads, and both live until the call returns.
    match unsafe { libc::ioctl(device.as_raw_fd(), SUBMIT_IO, &raw const command) } {
        0 => Ok(()),
        status if status > 0 => Err(io::Error::other(format!("NVMe status {status:#x}"))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A ledger, read.
struct Notes {
    seed: u64,
    newest: BTreeMap<u64, u64>,
    count: usize,
}

impl Notes {
    fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Self::parse(&text).with_context(|| format!("{}: not a ledger", path.display()))
    }

    fn parse(text: &str) -> Option<Self> {
        // What follows the last newline was torn by the accident: a promise never made.
        let (whole, _) = text.rsplit_once('\n')?;
        let mut lines = whole.lines();
        let seed = lines.next()?.strip_prefix("seed ")?.parse().ok()?;
        let mut newest = BTreeMap::new();
        let mut count = 0;
        for line in lines {
            let (block, sequence) = line.split_once(' ')?;
            let sequence: u64 = sequence.parse().ok()?;
            let entry = newest.entry(block.parse().ok()?).or_insert(0);
            *entry = sequence.max(*entry);
            count += 1;
        }
        Some(Self { seed, newest, count })
    }
}

fn verify(device: &Path, ledger: &Path, at_least: usize) -> Result<()> {
    let notes = Notes::read(ledger)?;
    ensure!(
        notes.count >= at_least,
        "the ledger notes only {} durable writes, {at_least} are wanted",
        notes.count
    );
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(device)
        .with_context(|| device.display().to_string())?;
    let mut lost = 0;
    let mut data = Blocks([[0; BLOCK]; READ_AT_ONCE]);
    let newest: Vec<(u64, u64)> = notes.newest.iter().map(|(block, at)| (*block, *at)).collect();
    for near in newest.chunk_by(|(a, _), (b, _)| a / READ_AT_ONCE as u64 == b / READ_AT_ONCE as u64)
    {
        let (first, last) = (near[0].0, near[near.len() - 1].0);
        let data = &mut data.0[..=(last - first) as usize];
        file.read_exact_at(data.as_flattened_mut(), first * BLOCK as u64)
            .with_context(|| format!("{}: blocks {first} to {last}", device.display()))?;
        for (block, promised) in near {
            let bytes = &data[(block - first) as usize];
            let complaint = match oldest_sequence(bytes, notes.seed, *block) {
                Ok(found) if found >= *promised => continue,
                Ok(found) => format!("sequence {found}"),
                Err(what) => what,
            };
            lost += 1;
            if lost <= LISTED {
                println!("ledger: block {block} promised sequence {promised}, found {complaint}");
            }
        }
    }
    if lost > 0 {
        bail!("{lost} of {} blocks lost a durable write", notes.newest.len());
    }
    println!("ledger: {} durable writes to {} blocks are there", notes.count, notes.newest.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_tells_its_oldest_sector() {
        let mut block = Block::filled(7, 3, 20);
        assert_eq!(oldest_sequence(&block.0, 7, 3), Ok(20));
        block.0[SECTOR..2 * SECTOR].copy_from_slice(&Block::filled(7, 3, 19).0[SECTOR..2 * SECTOR]);
        assert_eq!(
            oldest_sequence(&block.0, 7, 3),
            Ok(19),
            "a torn block is as old as its oldest part"
        );
        assert!(oldest_sequence(&block.0, 7, 4).is_err(), "another block's data");
        assert!(oldest_sequence(&block.0, 8, 3).is_err(), "another run's data");
        block.0[SECTOR - 1] ^= 1;
        assert!(oldest_sequence(&block.0, 7, 3).is_err(), "a flipped bit");
        assert!(oldest_sequence(&[0; BLOCK], 7, 3).unwrap_err().contains("zeroes"));
    }

    /// Writes to the file `device` of that folder, for a minute.
    fn arguments(directory: &Path, threads: u64, blocks: u64) -> WriteArguments {
        WriteArguments {
            device: directory.join("device"),
            ledger: directory.join("ledger"),
            seconds: 60,
            threads,
            blocks,
            seed: 5,
            by: Durability::Flush,
            on_error: OnError::Fail,
            read_back: true,
        }
    }

    #[test]
    fn where_one_writer_fails_all_end() {
        // Not on tmpfs, of which older kernels have no direct I/O.
        let name = format!("ledger-{}", std::process::id());
        let directory = crate::process::target_directory().unwrap().join(name);
        fs::create_dir_all(&directory).unwrap();
        let mut device = OpenOptions::new();
        let device = device.write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
        let device = device.open(directory.join("device")).unwrap();
        device.set_len(2 * BLOCK as u64).unwrap();
        // A block for each of two writers, and somebody else who writes to the first's.
        let arguments = arguments(&directory, 2, 2);
        let begun = Instant::now();
        let error = thread::scope(|scope| {
            let writing = scope.spawn(|| write(&arguments).unwrap_err().to_string());
            while !writing.is_finished() {
                device.write_all_at(&Block::filled(6, 0, 1).0, 0).unwrap();
            }
            writing.join().unwrap()
        });
        fs::remove_dir_all(&directory).unwrap();
        assert!(error.contains("block 0 was written with sequence"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(arguments.seconds), "the other went on");
    }

    #[test]
    fn a_block_that_goes_back_in_time_is_seen_while_it_does() {
        let directory = std::env::temp_dir().join(format!("ledger-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("device");
        let device =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        let device = device.unwrap();
        device.set_len(8 * BLOCK as u64).unwrap();
        let arguments = arguments(&directory, 1, 8);
        let (random, held) = (Random(1), BTreeMap::new());
        let longest = Duration::ZERO;
        let mut writer = Writer {
            arguments: &arguments,
            thread: 0,
            random,
            sequence: 0,
            noted: 0,
            held,
            read: 0,
            longest,
        };
        writer.batch(&device).unwrap();
        assert_eq!(writer.read_back(&device, 20).unwrap(), None);
        assert_eq!(writer.read, 20);
        let (block, older) =
            writer.held.first_key_value().map(|(block, at)| (*block, *at)).unwrap();
        while writer.held[&block] == older {
            writer.batch(&device).unwrap();
        }
        device.write_all_at(&Block::filled(5, block, older).0, block * BLOCK as u64).unwrap();
        let stale = writer.read_back(&device, 200).unwrap().expect("it is looked at");
        assert!(stale.contains(&format!("found sequence {older}")), "{stale}");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_torn_last_line_promises_nothing() {
        let notes = Notes::parse("seed 9\n4 10\n4 12\n4 11\n5 1").unwrap();
        assert_eq!((notes.seed, notes.count), (9, 3));
        assert_eq!(notes.newest, BTreeMap::from([(4, 12)]));
        assert!(Notes::parse("seed x\n").is_none());
    }
}
