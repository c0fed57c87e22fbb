//! `mem:`: a volume in anonymous memory, zero at the start and gone at the end.
//!
//! ```text
//!   one core:       Read -> Data::Lent into the mapping      Write -> copied during submit
//!   several cores:  Read -> copied under a chunk's lock      Write -> copied under a chunk's lock
//!   Copy -> within this memory, or from another volume's
//! ```
//!
//! Every command is finished before `submit` returns, but for a Dataset Management that clears more than 4 MiB: it goes on
//! turn by turn, beside others. A logical block never spans two chunks, so
//! with several cores every block is read and written whole; a longer transfer is not atomic as
//! a whole, which NVMe does not ask for. The fused pair holds the locks of its whole range.

mod clear;
mod copy;
mod locks;
mod mapping;
pub mod stream;

pub use mapping::{Mapping, PAGE_BYTES};

use crate::checksum::Sum;
use crate::copy::{Located, Origin};
use crate::{Data, Lent, Namespace, Queue, Request, dataset};
use clear::Clearings;
use locks::{CHUNK_BYTES, Locks};
use nvme::limits::{Commands, DiscardLimits, Passthrough};
use nvme::opcode::io as opcode;
use nvme::{Command, Limits, Status};
use reactor::Reactor;
use std::any::Any;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Largest data transfer of one command: the largest buffer of the pool.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// From this length on, zeroes are pages given back; below, filling is quicker than asking.
const DISCARD_BYTES_MIN: usize = 64 << 10;
/// Pages given back under one hold of the locks.
const DISCARD_BYTES_MAX: usize = 256 << 10;

/// How a memory volume is set up.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// Capacity in bytes: a multiple of the block size, at least one block.
    pub bytes: u64,
    /// Logical block size as a power of two: 9 or 12.
    pub block_shift: u8,
    /// Cores that will open queues.
    pub cores: usize,
    /// Answer reads with memory of the mapping. Ignored when several cores serve: another core's
    /// write could tear a block that is being sent.
    pub lend: bool,
    /// The volume's UUID, if it was given one.
    pub uuid: Option<[u8; 16]>,
}

/// A volume in memory.
#[derive(Debug)]
pub struct Memory {
    mapping: Arc<Mapping>,
    blocks: AtomicU64,
    options: MemoryOptions,
    locks: Option<Locks>,
}

impl Memory {
    /// Maps the memory; pages are taken when they are first written.
    ///
    /// # Panics
    /// If the options are not as their fields say; `volume` checks them.
    pub fn open(options: MemoryOptions) -> io::Result<Arc<Memory>> {
        let blocks = options.bytes >> options.block_shift;
        assert!(blocks > 0 && blocks << options.block_shift == options.bytes);
        assert!(1 << options.block_shift <= CHUNK_BYTES);
        let bytes = usize::try_from(options.bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Arc::new(Memory {
            mapping: Arc::new(Mapping::new(bytes)?),
            blocks: AtomicU64::new(blocks),
            options: MemoryOptions { lend: options.lend && options.cores == 1, ..options },
            locks: (options.cores > 1).then(Locks::new),
        }))
    }
}

impl Namespace for Memory {
    fn limits(&self) -> Limits {
        Limits {
            block_shift: self.options.block_shift,
            blocks: self.blocks.load(Ordering::Relaxed),
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            write_zeroes_bytes_max: u32::MAX,
            discard: DiscardLimits::UNLIMITED,
            optimal_write_bytes: CHUNK_BYTES as u32,
            read_only: false,
            volatile_write_cache: false,
            commands: Commands {
                write_zeroes: true,
                deallocate: true,
                write_uncorrectable: false,
                compare: true,
                compare_and_write: true,
                verify: true,
                checksum: true,
                allocation: false,
            },
            copy: copy::limits(self.options.block_shift),
            metadata_bytes: 0,
            passthrough: Passthrough::NONE,
            lends_reads: self.options.lend,
            immediate: true,
        }
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        Ok(MemoryQueue::open(self, reactor))
    }

    fn refresh(&self) -> io::Result<bool> {
        Ok(false)
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        let blocks = bytes >> self.options.block_shift;
        if blocks == 0 || blocks << self.options.block_shift != bytes {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a whole number of blocks",
            ));
        }
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let before = self.limits().bytes() as usize;
        if bytes > before {
            self.mapping.grow(bytes)?;
            // What an earlier shrinking left behind must not come back.
            let start = before.next_multiple_of(PAGE_BYTES);
            let end = bytes.next_multiple_of(PAGE_BYTES);
            // SAFETY: whole pages inside the mapping, beyond the capacity: no command reaches them.
            unsafe { self.mapping.discard(start, end.saturating_sub(start)) };
            let tail = start.min(bytes) - before;
            // SAFETY: bytes inside the mapping and beyond the capacity.
            unsafe { self.mapping.base().add(before).write_bytes(0, tail) };
        }
        self.blocks.store(blocks, Ordering::Relaxed);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn uri(&self) -> String {
        let size = crate::human::format_bytes(self.limits().bytes());
        let uuid = crate::uuid::query(self.options.uuid.as_ref());
        format!("mem:{size}?bs={}{uuid}", self.limits().block_bytes())
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        let reads = if self.options.lend { "lent" } else { "copied" };
        facts.push(("memory reads".into(), reads.into()));
        facts.push(("copy".into(), "by the processor, from memory to memory".into()));
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.options.uuid
    }

    fn keeps_blocks_whole(&self) -> bool {
        true
    }

    fn origin(self: Arc<Self>, slba: u64, blocks: u64) -> Option<Located> {
        let here = self.blocks.load(Ordering::Relaxed).saturating_sub(slba).min(blocks);
        (here > 0).then(|| Located {
            origin: Origin::Memory(self),
            slba,
            blocks: here,
            guard: None,
        })
    }
}

struct MemoryQueue {
    memory: Arc<Memory>,
    base: *mut u8,
    /// Keeps the mapping while any of it is lent.
    owner: Rc<dyn Any>,
    reactor: Rc<Reactor>,
    clearings: Clearings,
    me: Weak<MemoryQueue>,
}

impl Queue for MemoryQueue {
    #[inline]
    fn submit(&self, mut request: Box<Request>) {
        if request.fused.is_some() {
            return self.compare_and_write(request);
        }
        let Request { command, data, .. } = &mut *request;
        if command.opcode == opcode::COPY {
            let Data::Sources(sources) = data else {
                return request.finish(Status::INVALID_FIELD.dnr());
            };
            (request.status, request.result) = copy::execute(&self.memory, command, sources);
            return request.complete();
        }
        if command.wants_checksum() {
            let (status, sum) = self.checksum(command);
            (request.status, request.result) = (status, sum);
            return request.complete();
        }
        if command.opcode == opcode::DATASET_MANAGEMENT {
            return self.dataset(request);
        }
        let status = self.execute(command, data);
        request.finish(status);
    }

    fn forget(&self) {
        self.clearings.forget();
    }
}

impl MemoryQueue {
    fn open(memory: Arc<Memory>, reactor: &Rc<Reactor>) -> Rc<MemoryQueue> {
        Rc::new_cyclic(|me| MemoryQueue {
            base: memory.mapping.base(),
            owner: Rc::new(Arc::clone(&memory.mapping)),
            memory,
            reactor: Rc::clone(reactor),
            clearings: Clearings::default(),
            me: me.clone(),
        })
    }

    fn me(&self) -> Rc<MemoryQueue> {
        self.me.upgrade().expect("the queue lives while it is called")
    }

    #[inline]
    fn execute(&self, command: &Command, data: &mut Data) -> Status {
        match command.opcode {
            opcode::READ => self.with_range(command, |start, len| self.read(start, len, data)),
            opcode::WRITE => self.with_range(command, |start, len| self.write(start, len, data)),
            opcode::FLUSH => Status::SUCCESS,
            opcode::COMPARE => {
                self.with_range(command, |start, len| self.compare(start, len, data))
            }
            opcode::WRITE_ZEROES => {
                self.with_range(command, |start, len| self.zero(start, len, command.deac()))
            }
            opcode::VERIFY => self.with_range(command, |_, _| Status::SUCCESS),
            _ => Status::INVALID_OPCODE.dnr(),
        }
    }

    /// Calls `work` with the first byte and the length that the command addresses.
    #[inline]
    fn with_range(&self, command: &Command, work: impl FnOnce(usize, usize) -> Status) -> Status {
        let (slba, count) = (command.slba(), command.block_count());
        let blocks = self.memory.blocks.load(Ordering::Relaxed);
        if slba.checked_add(u64::from(count)).is_none_or(|end| end > blocks) {
            return Status::LBA_OUT_OF_RANGE.dnr();
        }
        let shift = self.memory.options.block_shift;
        work((slba << shift) as usize, (count as usize) << shift)
    }

    /// Calls `work` for pieces of a range, each under its lock where cores share the memory.
    #[inline]
    fn pieces(&self, start: usize, len: usize, mut work: impl FnMut(usize, usize)) {
        let Some(locks) = &self.memory.locks else {
            return work(start, len);
        };
        let end = start + len;
        let mut at = start;
        while at < end {
            let next = (at + 1).next_multiple_of(CHUNK_BYTES).min(end);
            let _lock = locks.chunk(at);
            work(at, next - at);
            at = next;
        }
    }

    #[inline]
    fn read(&self, start: usize, len: usize, data: &mut Data) -> Status {
        if matches!(data, Data::None) && self.memory.options.lend {
            // SAFETY: the range lies in the mapping, which `owner` keeps.
            *data =
                Data::Lent(unsafe { Lent::new(self.base.add(start), len, Rc::clone(&self.owner)) });
            return Status::SUCCESS;
        }
        assert_eq!(data.len(), len, "a read comes with a buffer of its length");
        let target = data.as_mut_ptr().expect("a read comes with a buffer");
        self.pieces(start, len, |at, count| {
            // SAFETY: both ranges hold `count` bytes, and the mapping does not overlap a buffer.
            unsafe { target.add(at - start).copy_from_nonoverlapping(self.base.add(at), count) }
        });
        Status::SUCCESS
    }

    #[inline]
    fn write(&self, start: usize, len: usize, data: &Data) -> Status {
        assert_eq!(data.len(), len, "a write comes with data of its length");
        let source = data.as_ptr();
        let large = self.memory.blocks.load(Ordering::Relaxed) << self.memory.options.block_shift
            >= stream::VOLUME_BYTES_MIN;
        if large && matches!(data, Data::Buffer(_) | Data::Transient(_)) {
            self.pieces(start, len, |at, count| {
                // SAFETY: both ranges hold `count` bytes; buffers and transient bytes are no part
                // of the mapping; blocks are multiples of 64 bytes in place and length.
                unsafe { stream::copy(self.base.add(at), source.add(at - start), count) }
            });
            return Status::SUCCESS;
        }
        self.pieces(start, len, |at, count| {
            // SAFETY: both ranges hold `count` bytes. `copy_from` since data lent by this very
            // mapping may be written back to it.
            unsafe { self.base.add(at).copy_from(source.add(at - start), count) }
        });
        Status::SUCCESS
    }

    fn compare(&self, start: usize, len: usize, data: &Data) -> Status {
        assert_eq!(data.len(), len, "a compare comes with data of its length");
        let mut same = true;
        self.pieces(start, len, |at, count| same &= self.equals(at, count, data, at - start));
        if same { Status::SUCCESS } else { Status::COMPARE_FAILURE.dnr() }
    }

    #[cold]
    fn checksum(&self, command: &Command) -> (Status, u64) {
        let mut sum = Sum::default();
        let status = self.with_range(command, |start, len| {
            self.pieces(start, len, |at, count| {
                // SAFETY: `count` bytes of the mapping; nobody writes to them now: this core is here, and other cores
                // are kept out by the lock.
                sum.add(unsafe { std::slice::from_raw_parts(self.base.add(at), count) });
            });
            Status::SUCCESS
        });
        (status, if status.is_success() { sum.value() } else { 0 })
    }

    /// Whether `count` bytes of the volume equal those `offset` bytes into `data`. The caller
    /// holds the lock.
    fn equals(&self, at: usize, count: usize, data: &Data, offset: usize) -> bool {
        // SAFETY: both hold `count` bytes; nobody writes to the mapping now: this core is here,
        // and other cores are kept out by the lock.
        unsafe {
            std::slice::from_raw_parts(self.base.add(at), count)
                == std::slice::from_raw_parts(data.as_ptr().add(offset), count)
        }
    }

    /// Zeroes a range; gives whole pages back where the caller wants that or it is quicker.
    fn zero(&self, start: usize, len: usize, deallocate: bool) -> Status {
        let fill = |from: usize, to: usize| {
            self.pieces(from, to - from, |at, count| {
                // SAFETY: the range lies in the mapping.
                unsafe { self.base.add(at).write_bytes(0, count) }
            });
        };
        let end = start + len;
        let pages = start.next_multiple_of(PAGE_BYTES)..end & !(PAGE_BYTES - 1);
        if pages.is_empty() || !deallocate && len < DISCARD_BYTES_MIN {
            fill(start, end);
            return Status::SUCCESS;
        }
        fill(start, pages.start);
        for at in pages.clone().step_by(DISCARD_BYTES_MAX) {
            let count = DISCARD_BYTES_MAX.min(pages.end - at);
            // SAFETY: whole pages within the mapping; the locks keep other cores away.
            let discard = || unsafe { self.memory.mapping.discard(at, count) };
            match &self.memory.locks {
                None => discard(),
                Some(locks) => locks.with_range(at, count, discard),
            }
        }
        fill(pages.end, end);
        Status::SUCCESS
    }

    #[cold]
    fn dataset(&self, mut request: Box<Request>) {
        let Request { command, data, .. } = &*request;
        let blocks = self.memory.blocks.load(Ordering::Relaxed);
        // SAFETY: the request holds its data during this call.
        let ranges = match unsafe { dataset::ranges(command, data.as_ptr(), data.len(), blocks) } {
            Ok(ranges) => ranges,
            Err(status) => return request.finish(status.dnr()),
        };
        if dataset::deallocates(command) {
            let ranges = ranges.filter(|range| range.blocks > 0);
            let shift = self.memory.options.block_shift;
            let bytes: u64 = ranges.clone().map(|range| u64::from(range.blocks) << shift).sum();
            if bytes > clear::TURN_BYTES as u64 {
                let ranges = ranges.collect();
                if let Data::Transient(_) = data {
                    // It is the caller's again when this returns.
                    request.data = Data::None;
                }
                if self.clearings.add(request, ranges) {
                    self.reactor.defer(self.me(), 0);
                }
                return;
            }
            for range in ranges {
                self.zero((range.slba << shift) as usize, (range.blocks as usize) << shift, true);
            }
        }
        request.finish(Status::SUCCESS);
    }

    /// The fused pair: both commands under the locks of their range, which is the same for both.
    fn compare_and_write(&self, mut request: Box<Request>) {
        let Request { command, data, fused, .. } = &mut *request;
        let second = fused.as_deref_mut().expect("a fused pair has two commands");
        let status = self.with_range(command, |start, len| {
            let same_range = second.command.slba() == command.slba()
                && second.command.block_count() == command.block_count();
            if !same_range {
                return Status::INVALID_FIELD.dnr();
            }
            assert!(data.len() == len && second.data.len() == len, "data fits the commands");
            let swap = || {
                if !self.equals(start, len, data, 0) {
                    return Status::COMPARE_FAILURE.dnr();
                }
                // SAFETY: the mapping and the data hold `len` bytes.
                unsafe { self.base.add(start).copy_from(second.data.as_ptr(), len) };
                Status::SUCCESS
            };
            match &self.memory.locks {
                None => swap(),
                Some(locks) => locks.with_range(start, len, swap),
            }
        });
        request.finish_pair(status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Part, Sink};
    use reactor::{Config, Drive};
    use std::cell::RefCell;

    /// The end of a command.
    #[derive(Default)]
    struct End(RefCell<Option<Box<Request>>>);

    impl Sink for End {
        fn completed(&self, request: Box<Request>, _state: u64) {
            *self.0.borrow_mut() = Some(request);
        }
    }

    impl End {
        fn status(&self) -> Option<Status> {
            self.0.borrow().as_ref().map(|request| request.status)
        }
    }

    /// All of a volume, 256 times: others have their turns, and the data may be gone when `submit` returns.
    #[test]
    fn clearing_much_goes_on_beside_others() {
        const BYTES: u64 = 64 << 20;
        let options =
            MemoryOptions { bytes: BYTES, block_shift: 12, cores: 1, lend: true, uuid: None };
        let memory = Memory::open(options).unwrap();
        let reactor = Reactor::new(&Config::default()).unwrap();
        let queue = MemoryQueue::open(Arc::clone(&memory), &reactor);
        let submit = |command, data| {
            let end = Rc::new(End::default());
            let mut request = Request::new();
            (request.command, request.data) = (command, data);
            request.push(Rc::clone(&end) as Rc<dyn Sink>, 0);
            queue.submit(request);
            end
        };
        let (first, last) = (0, (BYTES as usize) - 1);
        let fill = |value| {
            for at in [first, last] {
                // SAFETY: within the mapping, and nobody else is here.
                unsafe { memory.mapping.base().add(at).write(value) };
            }
        };
        // SAFETY: as above.
        let seen = || [first, last].map(|at| unsafe { memory.mapping.base().add(at).read() });
        let range = dataset::Range { attributes: 0, blocks: (BYTES >> 12) as u32, slba: 0 };
        let mut list = range.to_bytes().repeat(dataset::RANGES_MAX);
        let data = |list: &[u8]| {
            // SAFETY: the list outlives the commands' use of it, which ends with `submit`.
            Data::Part(unsafe { Part::new(list.as_ptr().cast_mut(), list.len(), None) })
        };
        fill(7);
        let ended = submit(dataset::deallocate(1, dataset::RANGES_MAX), data(&list));
        list.fill(0xff);
        assert!(ended.status().is_none(), "it is not done at once");
        assert_eq!(seen(), [7, 7]);
        let read = submit(Command::blocks(opcode::READ, 1, 0, 1), Data::None);
        assert_eq!(read.status(), Some(Status::SUCCESS), "others go on");
        let before = reactor.stats().turns;
        while ended.status().is_none() {
            reactor.turn_for(Drive::Poll);
        }
        assert_eq!((ended.status(), seen()), (Some(Status::SUCCESS), [0, 0]));
        let turns = BYTES / clear::TURN_BYTES as u64 * dataset::RANGES_MAX as u64;
        assert!(reactor.stats().turns - before >= turns, "a piece per turn");
        // What a turn may take is done at once.
        fill(7);
        let one = dataset::Range { blocks: (clear::TURN_BYTES >> 12) as u32, ..range }.to_bytes();
        let ended = submit(dataset::deallocate(1, 1), data(&one));
        assert_eq!(ended.status(), Some(Status::SUCCESS));
        assert_eq!(seen(), [0, 7]);
        // What is outside is refused, however much it is, and what is forgotten is gone.
        let more = dataset::Range { slba: 1, ..range }.to_bytes();
        let ended = submit(dataset::deallocate(1, 1), data(&more));
        assert_eq!(ended.status(), Some(Status::LBA_OUT_OF_RANGE.dnr()));
        let ended = submit(dataset::deallocate(1, 1), data(&range.to_bytes()));
        queue.forget();
        assert_eq!((Rc::strong_count(&ended), seen()), (1, [0, 7]));
    }
}
