//! Several cores on the same blocks.

use crate::core::{Core, compare_and_write, read, write};
use nvme::Status;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use volume::OpenOptions;

const BLOCK: usize = 4096;
/// Bytes that everybody writes and reads.
const BYTES: usize = 256 << 10;

/// Cores that race; a divisor of 128, so that each has bytes of its own.
const CORES: u8 = 4;

/// Rounds of each core at least, however slow the machine is at the moment.
const LEAST: u32 = 20;

/// Reads have met writes within this time, or never do.
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes whole transfers of one byte each from all cores, reads them from all, and looks
/// whether every block is of one byte. Unless it orders what overlaps, reads and writes do meet: some reads find blocks of two
/// writes. Where both go at one speed from block to block, neither overtakes the other but while it is kept from its
/// processor: hence more cores than processors.
fn no_torn_block(uri: &str, orders: bool) {
    let options = OpenOptions { cores: CORES.into(), ..OpenOptions::default() };
    let namespace = volume::open(uri, &options).expect(uri);
    let block_bytes = namespace.limits().block_bytes() as usize;
    let blocks = (BYTES / block_bytes) as u32;
    let met = Arc::<AtomicBool>::default();
    let begin = Instant::now();
    let until = begin + Duration::from_millis(700);
    let mut threads = Vec::new();
    for number in 0..CORES {
        let (core, met) = (Core::start(Arc::clone(&namespace)), Arc::clone(&met));
        threads.push(std::thread::spawn(move || {
            let (mut byte, mut mixed, mut reads) = (number, 0, 0);
            while Instant::now() < until
                || reads < LEAST
                || !(orders || met.load(Ordering::Relaxed))
            {
                assert!(begin.elapsed() < PATIENCE, "no read of {reads} has met a write");
                byte = byte.wrapping_add(CORES);
                // Several at once, so that commands of one core meet too.
                let writes = [byte, byte ^ 0x80]
                    .map(|byte| core.submit(write(0, vec![byte; BYTES], block_bytes)));
                let read = core.submit(read(0, blocks, block_bytes));
                let answer = read.recv().expect("answered");
                assert_eq!(answer.status, Status::SUCCESS);
                // As whole pieces of memory: what takes long here is time in which nothing can meet.
                let mut blocks = answer.data.chunks_exact(block_bytes);
                assert!(blocks.all(|block| block[1..] == block[..block_bytes - 1]), "torn");
                let mut blocks = answer.data.chunks_exact(block_bytes);
                let meets = blocks.any(|block| block[0] != answer.data[0]);
                mixed += u32::from(meets);
                met.fetch_or(meets, Ordering::Relaxed);
                reads += 1;
                for write in writes {
                    assert_eq!(write.recv().expect("answered").status, Status::SUCCESS);
                }
            }
            (mixed, reads)
        }));
    }
    for thread in threads {
        let (mixed, reads) = thread.join().expect("no torn block");
        println!("{uri}: {mixed} of {reads} reads met a write");
    }
}

#[test]
fn memory_has_no_torn_block() {
    no_torn_block("mem:256K?bs=4096", false);
    no_torn_block("mem:256K?bs=512", false);
}

#[test]
fn files_have_no_torn_block() {
    let directory = tempfile::tempdir().expect("a directory");
    for query in ["bs=4096", "bs=512", "bs=4096&buffered", "bs=512&buffered"] {
        let path = directory.path().join(query);
        no_torn_block(&format!("file:{}?create&size=256K&{query}", path.display()), true);
    }
}

#[test]
fn stacks_have_no_torn_block() {
    no_torn_block("linear:(mem:100K?bs=4096,mem:156K?bs=4096)", true);
    no_torn_block("volatile:(mem:256K?bs=4096)", true);
}

/// Both cores count up in one block by Compare-and-Write, and write and read around it.
fn one_winner(uri: &str) {
    let options = OpenOptions { cores: 2, ..OpenOptions::default() };
    let namespace = volume::open(uri, &options).expect(uri);
    assert!(namespace.limits().commands.compare_and_write);
    let until = Instant::now() + Duration::from_millis(700);
    let mut threads = Vec::new();
    let block = |count: u64| {
        let mut block = vec![0; BLOCK];
        block[..8].copy_from_slice(&count.to_le_bytes());
        block[BLOCK - 8..].copy_from_slice(&count.to_le_bytes());
        block
    };
    let value = |block: &[u8]| {
        let count = u64::from_le_bytes(block[..8].try_into().expect("eight bytes"));
        assert_eq!(block[BLOCK - 8..], count.to_le_bytes(), "a torn block");
        count
    };
    for number in 0..2u64 {
        let core = Core::start(Arc::clone(&namespace));
        threads.push(std::thread::spawn(move || {
            let (mut wins, mut losses) = (0, 0u32);
            while Instant::now() < until || losses < LEAST {
                let before = core.read(3, 1, BLOCK);
                let count = value(&before.data);
                // Two attempts at once from this core as well; and ordinary commands beside.
                let attempts = [(), ()].map(|()| {
                    core.submit(compare_and_write(3, block(count), block(count + 1), BLOCK))
                });
                let aside = core.submit(write(4 + number, vec![7; BLOCK], BLOCK));
                let over = core.submit(read(2, 4, BLOCK));
                for attempt in attempts {
                    let answer = attempt.recv().expect("answered");
                    match (answer.status.code(), answer.second) {
                        (Status::SUCCESS, Some(Status::SUCCESS)) => wins += 1,
                        (Status::COMPARE_FAILURE, Some(Status::ABORTED_FAILED_FUSED)) => {
                            losses += 1;
                        }
                        other => panic!("unexpected {other:?}"),
                    }
                }
                assert_eq!(aside.recv().expect("answered").status, Status::SUCCESS);
                value(&over.recv().expect("answered").data[BLOCK..2 * BLOCK]);
            }
            (core, wins)
        }));
    }
    let mut total = 0;
    let mut cores = Vec::new();
    for thread in threads {
        let (core, wins): (Core, u64) = thread.join().expect("no surprise");
        total += wins;
        cores.push(core);
    }
    assert_eq!(value(&cores[0].read(3, 1, BLOCK).data), total, "{uri}: two winners at once");
}

/// Does `check` to a volume of each kind that tells pairs and other commands on the same blocks apart.
fn each_volume(check: fn(&str)) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("volume.img");
    check("mem:64K?bs=4096");
    check(&format!("file:{}?create&size=64K&bs=4096", path.display()));
    check("linear:(mem:16K?bs=4096,mem:48K?bs=4096)");
    check("delay:20us(linear:(mem:16K?bs=4096,mem:48K?bs=4096))");
    check("volatile:(mem:64K?bs=4096)");
}

#[test]
fn fused_pairs_have_one_winner() {
    each_volume(one_winner);
}

/// A block of these two numbers, at its beginning and at its end.
fn numbered(epoch: u64, count: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    for at in [0, BLOCK - 16] {
        block[at..at + 8].copy_from_slice(&epoch.to_le_bytes());
        block[at + 8..at + 16].copy_from_slice(&count.to_le_bytes());
    }
    block
}

fn numbers(block: &[u8]) -> (u64, u64) {
    assert_eq!(block[..16], block[BLOCK - 16..], "a torn block");
    let number = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
    (number(0), number(8))
}

/// One core begins epochs by plain writes, another counts within them by Compare-and-Write, in the same block.
fn writers_beside_fused(uri: &str) {
    let options = OpenOptions { cores: 2, ..OpenOptions::default() };
    let namespace = volume::open(uri, &options).expect(uri);
    let until = Instant::now() + Duration::from_millis(700);
    let [writer, counter] = [(); 2].map(|()| Core::start(Arc::clone(&namespace)));
    let done = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&done);
    let counting = std::thread::spawn(move || {
        let (mut wins, mut losses) = (0u32, 0u32);
        while !over.load(Ordering::Relaxed) || wins < LEAST || losses < LEAST {
            let (epoch, count) = numbers(&counter.read(3, 1, BLOCK).data);
            let pair = [numbered(epoch, count), numbered(epoch, count + 1)];
            let [before, after] = pair;
            // The second loses at the latest to the first.
            let attempts = [(); 2].map(|()| {
                counter.submit(compare_and_write(3, before.clone(), after.clone(), BLOCK))
            });
            for attempt in attempts {
                match attempt.recv().expect("answered").status.code() {
                    Status::SUCCESS => wins += 1,
                    Status::COMPARE_FAILURE => losses += 1,
                    other => panic!("{other}"),
                }
            }
        }
        (wins, losses)
    });
    let (mut epoch, mut met) = (0, 0);
    while Instant::now() < until || !counting.is_finished() && epoch < 1_000_000 {
        epoch += 1;
        let answers =
            [writer.submit(write(3, numbered(epoch, 0), BLOCK)), writer.submit(read(3, 1, BLOCK))];
        for answer in answers {
            assert_eq!(answer.recv().expect("answered").status, Status::SUCCESS);
        }
        // Whoever counts cannot bring an epoch back that is over.
        let (now, count) = numbers(&writer.read(3, 1, BLOCK).data);
        assert_eq!(now, epoch, "{uri}: a pair wrote after a comparison that was not true any more");
        met += u64::from(count > 0);
        if Instant::now() >= until {
            done.store(true, Ordering::Relaxed);
        }
    }
    done.store(true, Ordering::Relaxed);
    let (wins, losses) = counting.join().expect("counts");
    println!("{uri}: {epoch} epochs, {met} of which were counted in; {wins} wins, {losses} losses");
}

#[test]
fn pairs_and_writes_of_one_block_follow_one_another() {
    each_volume(writers_beside_fused);
}

#[test]
fn overlapping_commands_on_a_file_follow_one_another() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("volume.img");
    let uri = format!("delay:write=50ms(file:{}?create&size=64K&bs=4096)", path.display());
    let namespace = volume::open(&uri, &OpenOptions { cores: 2, ..OpenOptions::default() });
    let namespace = namespace.expect("opened");
    let (one, two) = (Core::start(Arc::clone(&namespace)), Core::start(namespace));
    let writing = one.submit(write(0, vec![1; 2 * BLOCK], BLOCK));
    // Known to have begun: commands of a core are taken in order.
    assert_eq!(one.read(8, 1, BLOCK).status, Status::SUCCESS);
    // Left to themselves, these would overtake the write.
    assert_eq!(one.read(1, 2, BLOCK).data, [vec![1; BLOCK], vec![0; BLOCK]].concat());
    let again = one.submit(write(0, vec![2; BLOCK], BLOCK));
    assert_eq!(one.read(8, 1, BLOCK).status, Status::SUCCESS);
    assert_eq!(two.read(0, 1, BLOCK).data, vec![2; BLOCK]);
    for write in [writing, again] {
        assert_eq!(write.recv().expect("answered").status, Status::SUCCESS);
    }
}

#[test]
fn commands_that_need_memory_get_through_an_exhausted_pool() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("volume.img");
    let uri = format!("file:{}?create&size=4M&bs=4096", path.display());
    let namespace = volume::open(&uri, &OpenOptions::default()).expect("opened");
    // Sixteen writes and compares of 256 KiB more than fill the pool; each compare needs more to
    // read into.
    let core = Core::with_pool(namespace, 2 << 20);
    assert_eq!(core.write(0, vec![9; 256 << 10], BLOCK), Status::SUCCESS);
    let compare = || {
        let order = write(0, vec![9; 256 << 10], BLOCK);
        let command = nvme::Command { opcode: nvme::opcode::io::COMPARE, ..order.command };
        core.submit(crate::core::Order { command, ..order })
    };
    let again = || core.submit(write(0, vec![9; 256 << 10], BLOCK));
    let answers: Vec<_> = (0..8).flat_map(|_| [compare(), again()]).collect();
    for answer in answers {
        let answer = answer.recv_timeout(Duration::from_secs(20)).expect("nobody stands still");
        assert_eq!(answer.status, Status::SUCCESS);
    }
}
