//! Copies between real files, through a queue.

use super::*;
use crate::file::FileOptions;
use crate::file::ending::End;
use crate::file::offload::is_cached;
use crate::{Namespace, Queue, Sink};
use nvme::Command;
use nvme::copy::{Format, command};
use nvme::opcode::io as opcode;
use reactor::{Config, Reactor};
use std::cell::RefCell;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

const BLOCK: u64 = 512;

fn options(path: &Path, blocks: u64, buffered: bool) -> FileOptions {
    FileOptions { buffered, ..FileOptions::buffered(path, Some(blocks * BLOCK)) }
}

/// A volume of random bytes.
fn filled(path: &Path, blocks: u64, buffered: bool) -> Arc<File> {
    let file = File::open(&options(path, blocks, buffered)).unwrap();
    write(&file, 0, &noise(blocks, path.as_os_str().len() as u64));
    file
}

fn noise(blocks: u64, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..blocks * BLOCK).map(|_| next()).collect()
}

fn outside(file: &File) -> std::fs::File {
    std::fs::File::options().read(true).write(true).open(&file.path).unwrap()
}

fn write(file: &File, block: u64, bytes: &[u8]) {
    let outside = outside(file);
    outside.write_all_at(bytes, block * BLOCK).unwrap();
    outside.sync_all().unwrap();
}

fn contents(file: &File) -> Vec<u8> {
    std::fs::read(&file.path).unwrap()
}

/// Copies to `file` by a queue of its own; gives status and result.
fn copied(file: &Arc<File>, sdlba: u64, ranges: Vec<Source>) -> (Status, u64) {
    let (status, result, begun) = copied_in_part(file, sdlba, ranges);
    assert_eq!(begun, 0, "no range is refused in its middle");
    (status, result)
}

/// The same, and how many blocks of the range that is refused were copied.
fn copied_in_part(file: &Arc<File>, sdlba: u64, ranges: Vec<Source>) -> (Status, u64, u32) {
    let count = ranges.len();
    let request = submitted(file, sdlba, Sources { ranges, ..Sources::default() }, true);
    let Data::Sources(sources) = &request.data else { panic!("sources come back") };
    assert_eq!(sources.ranges.len(), count);
    (request.status, request.result, sources.begun_blocks)
}

/// The request when it has come back.
fn submitted(file: &Arc<File>, sdlba: u64, sources: Sources, fua: bool) -> Box<Request> {
    let config =
        Config { buffer_bytes: 1 << 20, spin: std::time::Duration::ZERO, ..Config::default() };
    let reactor = Reactor::new(&config).unwrap();
    let queue = Arc::clone(file).open_queue(&reactor).unwrap();
    let end = Rc::new(End { reactor: Rc::clone(&reactor), request: Cell::default() });
    let mut request = Request::new();
    request.command = command(1, sdlba, sources.ranges.len(), Format::Short);
    request.command.cdw12 = (request.command.cdw12.get() | u32::from(fua) << 30).into();
    request.data = Data::Sources(Box::new(sources));
    request.push(Rc::clone(&end) as Rc<dyn Sink>, 0);
    queue.submit(request);
    let early = end.request.take();
    if let Some(request) = &early {
        assert!(!request.status.is_success(), "who submits does not wait for the copy");
    }
    early.unwrap_or_else(|| {
        reactor.run();
        end.request.take().expect("the reactor ran until it was there")
    })
}

fn same(slba: u64, blocks: u32) -> Source {
    Source { place: Place::Same, slba, blocks, fast_only: false }
}

fn of(file: &Arc<File>, slba: u64, blocks: u32) -> Source {
    Source { place: Place::Origin(Origin::File(Arc::clone(file))), slba, blocks, fast_only: false }
}

const DONE: (Status, u64) = (Status::SUCCESS, 0);

#[test]
fn ranges_of_two_files_arrive_whatever_their_alignment() {
    let directory = tempfile::tempdir().unwrap();
    for buffered in [false, true] {
        let name = |name: &str| directory.path().join(format!("{name}{buffered}"));
        let (to, from) =
            (filled(&name("to"), 8192, buffered), filled(&name("other"), 8192, buffered));
        let (mut model, other) = (contents(&to), contents(&from));
        let mut target = 3000;
        let mut ranges = Vec::new();
        // Within one page, at its end, congruent with its destination and not, two that are one.
        for (in_other, slba, blocks) in [
            (true, 0, 1),
            (false, 15, 1),
            (true, 3002, 40),
            (true, 3042, 1000),
            (false, 8, 1999),
            (true, 8191, 1),
        ] {
            let bytes = |block: u64| (block * BLOCK) as usize;
            let source = if in_other { other.clone() } else { model.clone() };
            let source = &source[bytes(slba)..bytes(slba + blocks)];
            model[bytes(target)..bytes(target + blocks)].copy_from_slice(source);
            let range =
                if in_other { of(&from, slba, blocks as u32) } else { same(slba, blocks as u32) };
            ranges.push(range);
            target += blocks;
        }
        assert_eq!(copied(&to, 3000, ranges), DONE);
        assert!(contents(&to) == model, "buffered: {buffered}");
        assert!(contents(&from) == other);
    }
}

/// Writes two blocks and reads them back, over and over, while copies go on beside them.
struct Mixer {
    me: Weak<Mixer>,
    reactor: Rc<Reactor>,
    queue: Rc<dyn Queue>,
    from: Arc<File>,
    /// Copies that are still to be made.
    copies: Cell<u32>,
    over: Cell<bool>,
    counts: [Cell<u32>; 2],
    /// Requests by their place in `BESIDE`; the last is the copier's.
    here: RefCell<[Option<Box<Request>>; 3]>,
}

/// Blocks that share a page with the copied ones, the first and the last of which follow and precede them.
const BESIDE: [u64; 2] = [6, 2001];
const COPIER: usize = BESIDE.len();

impl Sink for Mixer {
    fn completed(&self, request: Box<Request>, state: u64) {
        self.here.borrow_mut()[state as usize] = Some(request);
        self.reactor.defer(self.me.upgrade().unwrap(), state);
    }
}

impl Complete for Mixer {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        let place = token as usize;
        let mut request = self.here.borrow_mut()[place].take().unwrap();
        if self.over.get() {
            return;
        }
        assert_eq!(request.status, Status::SUCCESS);
        if place == COPIER {
            let left = self.copies.get();
            if left == 0 {
                self.over.set(true);
                return self.reactor.stop();
            }
            self.copies.set(left - 1);
            request.command = command(1, 7, 1, Format::Short);
            let ranges = vec![of(&self.from, 7 + u64::from(left % 3), 1994)];
            request.data = Data::Sources(Box::new(Sources { ranges, ..Sources::default() }));
        } else {
            let Data::Buffer(buffer) = &mut request.data else { panic!("a buffer") };
            let count = &self.counts[place];
            let reads = request.command.opcode == opcode::WRITE;
            if reads {
                buffer.as_mut_slice().fill(0);
            } else {
                let ours = buffer.as_slice().iter().all(|byte| *byte == count.get() as u8);
                assert!(ours, "block {} is not what was written to it", BESIDE[place]);
                count.set(count.get() + 1);
                buffer.as_mut_slice().fill(count.get() as u8);
            }
            let code = if reads { opcode::READ } else { opcode::WRITE };
            request.command = Command::blocks(code, 1, BESIDE[place], 1);
        }
        request.push(self.me.upgrade().unwrap(), token);
        self.queue.submit(request);
    }
}

#[test]
fn blocks_beside_the_copied_ones_may_be_written_past_the_cache_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let to = filled(&directory.path().join("to"), 4096, false);
    let from = filled(&directory.path().join("other"), 4096, false);
    write(&to, BESIDE[0], &[0; BLOCK as usize]);
    write(&to, BESIDE[1], &[0; BLOCK as usize]);
    let config = Config { buffer_bytes: 1 << 20, ..Config::default() };
    let reactor = Reactor::new(&config).unwrap();
    let requests = [0, 1, 2].map(|place| {
        let mut request = Request::new();
        request.command = Command::blocks(opcode::READ, 1, 0, 1);
        if place != COPIER {
            let mut buffer = reactor.buffers().allocate(BLOCK as usize).unwrap();
            buffer.truncate(BLOCK as usize);
            buffer.as_mut_slice().fill(0);
            request.data = Data::Buffer(buffer);
        }
        Some(request)
    });
    let mixer = Rc::new_cyclic(|me| Mixer {
        me: Weak::clone(me),
        reactor: Rc::clone(&reactor),
        queue: Arc::clone(&to).open_queue(&reactor).unwrap(),
        from: Arc::clone(&from),
        copies: Cell::new(100),
        over: Cell::new(false),
        counts: Default::default(),
        here: RefCell::new(requests),
    });
    for place in 0..3 {
        reactor.defer(Rc::clone(&mixer) as Rc<dyn Complete>, place);
    }
    reactor.run();
    assert!(mixer.counts.iter().all(|count| count.get() > 0));
    // The kernel reports here that a direct write met a page that it could not drop.
    to.flush().unwrap();
    let (to, from) = (contents(&to), contents(&from));
    let (start, len) = (7 * BLOCK as usize, 1994 * BLOCK as usize);
    let source = 8 * BLOCK as usize;
    assert!(to[start..start + len] == from[source..source + len]);
}

#[test]
fn what_is_in_the_page_cache_is_seen() {
    let scratch = tempfile::tempdir().unwrap();
    let file = filled(&scratch.path().join("a"), 4096, true);
    let outside = outside(&file);
    let bytes = 4096 * BLOCK;
    let read = |offset, len| {
        outside.read_exact_at(&mut vec![0; len as usize], offset).unwrap();
    };
    read(0, bytes);
    assert!(is_cached(&outside, 0, bytes));
    assert!(!is_cached(&outside, 0, bytes + 1), "beyond the end");
    // SAFETY: a system call on an open descriptor, without memory.
    let advise = |how| unsafe { libc::posix_fadvise(outside.as_raw_fd(), 0, 0, how) };
    advise(libc::POSIX_FADV_RANDOM);
    // What was written back is thrown out, but for pages that somebody holds at this moment.
    let is_gone = || {
        advise(libc::POSIX_FADV_DONTNEED);
        !is_cached(&outside, 0, bytes)
    };
    assert!((0..1000).any(|_| is_gone()));
    read(0, 4096);
    assert!(is_cached(&outside, 0, 4096));
}

#[test]
fn holes_stay_holes() {
    let directory = tempfile::tempdir().unwrap();
    let blocks = 65_536;
    let from = File::open(&options(&directory.path().join("from"), blocks, false)).unwrap();
    write(&from, 2048, &noise(2048, 7));
    let to = filled(&directory.path().join("to"), blocks, false);
    // What the destination has beyond the copy stays.
    let model = [
        &contents(&from)[..(40_000 * BLOCK) as usize],
        &contents(&to)[(40_000 * BLOCK) as usize..],
    ]
    .concat();
    assert_eq!(copied(&to, 0, vec![of(&from, 0, 40_000)]), DONE);
    assert!(contents(&to) == model);
    let stored = |file: &File, blocks| {
        let runs = file.allocation(0, blocks, 64).unwrap();
        runs.iter().filter(|run| run.is_stored).map(|run| run.blocks).sum::<u64>()
    };
    assert!(
        stored(&from, 40_000) < 40_000,
        "the file system of the temporary files knows no holes"
    );
    assert_eq!(stored(&to, 40_000), stored(&from, 40_000));
}

#[test]
fn what_lies_beyond_the_end_of_a_file_that_was_made_shorter_is_no_hole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("from");
    let from = File::open(&options(&path, 4096, false)).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(2048 * BLOCK).unwrap();
    for (slba, blocks) in [(0, 4096), (1024, 2048), (2048, 2048)] {
        let runs = from.allocation(slba, blocks, 64).unwrap();
        assert!(runs.iter().all(|run| run.is_stored), "{runs:?}");
    }
    assert!(!from.allocation(0, 2048, 64).unwrap()[0].is_stored, "what is there is a hole");
}

#[test]
fn sources_that_the_destination_overlaps_are_left_to_others() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("to");
    let shared = FileOptions { shared: true, ..options(&path, 4096, false) };
    let (to, again) = (File::open(&shared).unwrap(), File::open(&shared).unwrap());
    write(&to, 0, &noise(4096, 3));
    let before = contents(&to);
    let refused = (Status::FAST_COPY_NOT_POSSIBLE, 0);
    assert_eq!(copied(&to, 8, vec![same(0, 16)]), refused);
    assert_eq!(copied(&to, 0, vec![same(8, 16)]), refused);
    // The second range would be of what the first has written.
    assert_eq!(copied(&to, 8, vec![same(64, 8), same(8, 8)]), refused);
    // Another volume on the same file.
    assert_eq!(copied(&to, 8, vec![of(&again, 0, 16)]), refused);
    assert!(contents(&to) == before);
    assert_eq!(copied(&to, 16, vec![same(0, 16)]), DONE);
    assert_eq!(contents(&to)[(16 * BLOCK) as usize..][..64], before[..64]);
}

#[test]
fn nothing_is_copied_from_or_to_beyond_an_end() {
    let directory = tempfile::tempdir().unwrap();
    let to = filled(&directory.path().join("to"), 4096, false);
    let from = filled(&directory.path().join("from"), 4096, false);
    let beyond = Status::LBA_OUT_OF_RANGE.dnr();
    assert_eq!(copied(&to, 4090, vec![of(&from, 0, 8)]), (beyond, 0));
    assert_eq!(copied(&to, 0, vec![of(&from, 0, 8), of(&from, 4090, 8)]), (beyond, 0));
    assert_eq!(copied(&to, u64::MAX - 3, vec![of(&from, 0, 8)]), (beyond, 0));
    // Made smaller behind our back: the first range is there, the second no longer.
    outside(&from).set_len(2048 * BLOCK).unwrap();
    let ranges = vec![of(&from, 0, 8), of(&from, 3000, 8)];
    assert_eq!(copied(&to, 100, ranges), (beyond, 1));
    assert_eq!(contents(&to)[(100 * BLOCK) as usize..][..4096], contents(&from)[..4096]);
    assert_eq!(contents(&to).len() as u64, 4096 * BLOCK);
}

#[test]
fn a_file_that_was_made_smaller_meanwhile_is_not_made_larger_for_good() {
    let directory = tempfile::tempdir().unwrap();
    let to = filled(&directory.path().join("to"), 4096, false);
    let from = filled(&directory.path().join("from"), 4096, false);
    let command = command(1, 3000, 1, Format::Short);
    let sources = Sources { ranges: vec![of(&from, 0, 64)], ..Sources::default() };
    let pieces = to.plan(command.slba(), &sources).unwrap();
    to.resize(1024 * BLOCK).unwrap();
    let job = Job { file: Arc::clone(&to), pieces, fua: false, stop: None };
    assert_eq!(job.run(), Ended { bytes: 0, how: How::OutOfRange });
    assert_eq!(contents(&to).len() as u64, 1024 * BLOCK);
}

#[test]
fn what_was_given_up_while_it_waited_for_a_thread_copies_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let to = filled(&directory.path().join("to"), 4096, false);
    let from = filled(&directory.path().join("from"), 4096, false);
    let before = contents(&to);
    let stop = Arc::new(AtomicBool::new(false));
    let sources = Sources { ranges: vec![of(&from, 0, 64)], ..Sources::default() };
    let job = |at| Job {
        file: Arc::clone(&to),
        pieces: to.plan(at, &sources).unwrap(),
        fua: false,
        stop: Some(Arc::clone(&stop)),
    };
    assert_eq!(job(64).run(), Ended { bytes: 64 * BLOCK, how: How::Whole });
    stop.store(true, Ordering::Relaxed);
    assert_eq!(job(1024).run(), Ended { bytes: 0, how: How::Stopped });
    assert_eq!(contents(&to)[(128 * BLOCK) as usize..], before[(128 * BLOCK) as usize..]);
}

#[test]
fn a_copy_that_is_given_up_before_its_turn_copies_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let to = filled(&directory.path().join("to"), 4096, false);
    let from = filled(&directory.path().join("from"), 4096, false);
    let before = contents(&to);
    for is_given_up in [true, false] {
        let stop = Some(Arc::new(AtomicBool::new(is_given_up)));
        let sources = Sources { ranges: vec![of(&from, 0, 64)], stop, ..Sources::default() };
        let request = submitted(&to, 64, sources, false);
        let wanted = if is_given_up { Status::ABORT_REQUESTED } else { Status::SUCCESS };
        assert_eq!(request.status.code(), wanted.code());
        assert_eq!(contents(&to) == before, is_given_up);
    }
}

/// What is answered is durable where that is asked for, and costs no sync elsewhere.
#[test]
fn a_copy_with_fua_is_synced() {
    let directory = tempfile::tempdir().unwrap();
    for buffered in [false, true] {
        let to = filled(&directory.path().join(format!("to{buffered}")), 4096, buffered);
        let syncs = |fua| {
            let before = to.syncs.begun();
            let sources = Sources { ranges: vec![same(0, 64)], ..Sources::default() };
            assert!(submitted(&to, 1000, sources, fua).status.is_success());
            to.syncs.begun() - before
        };
        // Only once there is something in the page cache they are counted.
        syncs(false);
        assert_eq!([false, true, false].map(syncs), [0, 1, 0], "buffered: {buffered}");
    }
}

#[test]
fn another_file_system_is_refused_and_not_asked_again() {
    let directory = tempfile::tempdir().unwrap();
    let to = filled(&directory.path().join("to"), 4096, false);
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else { return };
    let from = filled(&memory.path().join("from"), 4096, false);
    if to.copying.identity.0 == from.copying.identity.0 {
        // The temporary files are there too.
        return;
    }
    let refused = (Status::FAST_COPY_NOT_POSSIBLE.dnr(), 0);
    assert_eq!(copied(&to, 8, vec![of(&from, 8, 64)]), refused);
    assert!(to.copying.refuses(from.copying.identity.0));
    let sources = Sources { ranges: vec![of(&from, 8, 64)], ..Sources::default() };
    assert_eq!(to.plan(8, &sources).err(), Some(refused.0));
    // Within one it goes on.
    assert_eq!(copied(&to, 8, vec![same(80, 64)]), DONE);
    // Parts of pages are read and written: what was copied before the kernel was asked is told.
    let to = filled(&directory.path().join("other"), 4096, false);
    let in_part = copied_in_part(&to, 3, vec![of(&from, 100, 2), of(&from, 200, 64)]);
    assert_eq!(in_part, (refused.0, 1, 3));
    assert_eq!(contents(&to)[3 * 512..5 * 512], contents(&from)[100 * 512..102 * 512]);
    assert_eq!(contents(&to)[5 * 512..8 * 512], contents(&from)[200 * 512..203 * 512]);
}

#[test]
fn what_the_kernel_may_copy_is_known_before_it_is_asked() {
    let directory = tempfile::tempdir().unwrap();
    let [one, mut other] = ["one", "other"].map(|it| filled(&directory.path().join(it), 64, false));
    assert!(one.may_copy_from(&other) && one.may_copy_from(&one));
    // From and to a disk it never does.
    Arc::get_mut(&mut other).unwrap().kind = Kind::Block;
    assert!(
        !one.may_copy_from(&other) && !other.may_copy_from(&one) && !other.may_copy_from(&other)
    );
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else { return };
    let far = filled(&memory.path().join("far"), 64, false);
    let is_one = far.copying.identity.0 == one.copying.identity.0;
    assert_eq!((one.may_copy_from(&far), far.may_copy_from(&one)), (is_one, is_one));
}

#[test]
fn what_is_no_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let to = filled(&directory.path().join("to"), 64, false);
    let place = Place::Origin(Origin::Subsystem { nqn: "nqn".into(), nsid: 1, numbering: None });
    let refused = (Status::FAST_COPY_NOT_POSSIBLE.dnr(), 0);
    assert_eq!(
        copied(&to, 8, vec![Source { place, slba: 0, blocks: 1, fast_only: false }]),
        refused
    );
    let read_only = FileOptions { read_only: true, shared: true, ..options(&to.path, 64, false) };
    drop(to);
    let to = File::open(&read_only).unwrap();
    assert!(!to.limits().copy.is_offered());
    assert_eq!(copied(&to, 8, vec![same(0, 1)]), (Status::NAMESPACE_WRITE_PROTECTED.dnr(), 0));
}

#[test]
fn a_volume_that_shares_blocks_has_the_blocks_that_it_had() {
    let directory = tempfile::tempdir().unwrap();
    let name = |name: &str| directory.path().join(name);
    let opened = |name: &Path| {
        let options = FileOptions { block_shift: None, ..options(name, 4096, false) };
        let file = File::open(&options).unwrap();
        (file.block_shift, file.is_direct(), file)
    };
    let (shift, is_direct, from) = opened(&name("from"));
    write(&from, 0, &noise(4096, 9));
    let (_, _, to) = opened(&name("to"));
    let blocks = to.blocks() as u32;
    assert_eq!(copied(&to, 0, vec![of(&from, 0, blocks)]), DONE);
    drop((from, to));
    for name in [name("from"), name("to")] {
        let (same_shift, same_direct, file) = opened(&name);
        assert_eq!((same_shift, same_direct), (shift, is_direct), "{name:?}");
        // Written in such blocks, past the page cache or not.
        if shift == 9 {
            assert_eq!(copied(&file, 1, vec![same(4095, 1)]), DONE);
            let bytes = contents(&file);
            assert!(bytes[512..1024] == bytes[4095 * 512..]);
        }
    }
}

/// The file system here shares nothing: so is one that shares, and will not this time.
#[test]
fn where_the_file_system_does_not_share_holes_stay_holes() {
    const BLOCKS: u64 = 8 << 20 >> 9;
    let directory = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        let path = directory.path().join(name);
        let mut file = File::open(&options(&path, BLOCKS, false)).unwrap();
        Arc::get_mut(&mut file).unwrap().copying.shares = true;
        file
    };
    let (to, from) = (open("to"), open("from"));
    // Two blocks here, and some pages there.
    for (at, blocks) in [(13, 2), (4096, 800)] {
        write(&from, at, &noise(blocks, at));
    }
    let stored = |file: &File| file.file.metadata().unwrap().blocks();
    assert!(to.may_share_with(&from) && stored(&from) < 1024);
    for (sdlba, slba, blocks) in [(0, 0, BLOCKS), (3, 11, BLOCKS - 11), (0, 3, 7)] {
        let before = contents(&to);
        assert_eq!(copied(&to, sdlba, vec![of(&from, slba, blocks as u32)]), DONE);
        let [to_at, from_at, len] = [sdlba, slba, blocks].map(|block| (block * BLOCK) as usize);
        let mut wanted = before;
        wanted[to_at..][..len].copy_from_slice(&contents(&from)[from_at..][..len]);
        assert!(contents(&to) == wanted, "{blocks} blocks from {slba} to {sdlba}");
        assert!(stored(&to) < 2048, "holes are filled: {} blocks", stored(&to));
    }
}

/// The same, and it is given up while it moves bytes. (Sharing is one call: that cannot be stopped, and need not.)
#[test]
fn where_the_file_system_does_not_share_a_copy_can_be_given_up_in_its_middle() {
    const LEN: u64 = 32 << 20;
    let directory = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        let path = directory.path().join(name);
        let mut file = File::open(&options(&path, LEN / BLOCK, false)).unwrap();
        Arc::get_mut(&mut file).unwrap().copying.shares = true;
        file
    };
    let (to, from) = (open("to"), open("from"));
    // A hole at the end of every 4 MiB: given up within a run, or between two.
    for at in (0..LEN).step_by(4 << 20) {
        let pages = (0..3 << 20).map(|byte| ((at + byte) / 4096 % 251) as u8 + 1);
        outside(&from).write_all_at(&pages.collect::<Vec<u8>>(), at).unwrap();
    }
    let source = contents(&from);
    let target = outside(&to);
    let has_begun = || {
        let mut byte = [0];
        target.read_exact_at(&mut byte, 0).unwrap();
        byte[0] != 0
    };
    // Gives a copy up that has begun, and says how far it came.
    let given_up = || {
        target.set_len(0).and_then(|()| target.set_len(LEN)).unwrap();
        let piece = Piece { file: Arc::clone(&from), source: 0, target: 0, len: LEN };
        let (stop, is_over) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
        let job = Job {
            file: Arc::clone(&to),
            pieces: vec![piece],
            fua: false,
            stop: Some(Arc::clone(&stop)),
        };
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !has_begun() && !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                stop.store(true, Ordering::Relaxed);
            });
            let ended = job.run();
            is_over.store(true, Ordering::Relaxed);
            ended
        });
        let copied = contents(&to);
        let (done, rest) = copied.split_at(ended.bytes as usize);
        assert!(*done == source[..done.len()], "{ended:?}: that much is done");
        assert!(rest.iter().all(|byte| *byte == 0), "{ended:?}: and nothing beyond it");
        ended
    };
    // Whoever gives it up may come too late.
    let in_the_middle = |ended: Ended| ended.how == How::Stopped && (1..LEN).contains(&ended.bytes);
    assert!((0..100).any(|_| in_the_middle(given_up())), "it was carried out to its end");
}
