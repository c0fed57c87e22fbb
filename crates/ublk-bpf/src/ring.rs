//! The ring that a loop in the kernel turns.

use crate::abi::{
    BUFFER_BYTES, BUFFERS, BUFFERS_AT, DEPTH_MAX, FILES, MEMORY_BYTES, PREPARED, QUEUE_AT,
    RESULT_BYTES, RESULTS_AT, SQ_ENTRIES, TAG_BYTES, TAGS_AT,
};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};

const SETUP_CQSIZE: u32 = 1 << 3;
const SETUP_SUBMIT_ALL: u32 = 1 << 7;
const SETUP_SINGLE_ISSUER: u32 = 1 << 12;
const SETUP_DEFER_TASKRUN: u32 = 1 << 13;
const SETUP_NO_SQARRAY: u32 = 1 << 16;
/// Every submission begins with the first entry.
const SETUP_SQ_REWIND: u32 = 1 << 20;

const REGISTER_FILES: u32 = 2;
const UNREGISTER_FILES: u32 = 3;
const REGISTER_BUFFERS2: u32 = 15;
const REGISTER_BUFFER_RING: u32 = 22;
const REGISTER_MEM_REGION: u32 = 34;
const REGION_OF_USER: u32 = 1;
const SPARSE: u32 = 1;
const ENTER_GETEVENTS: u32 = 1;
const OFFSET_RING: i64 = 0;
const OFFSET_ENTRIES: i64 = 0x1000_0000;

const ENTRY_BYTES: usize = 64;
const COMPLETION_BYTES: usize = 16;
/// Most completions that the kernel has room for.
const COMPLETIONS_MAX: u32 = 1 << 16;
/// Completions that one request may have at once: its parts.
const PER_REQUEST: u32 = 32;

/// `IORING_OP_URING_CMD`, with a registered file.
const COMMAND: u64 = 46 | 1 << 8;
/// The same, which takes buffers that are provided (`IOSQE_BUFFER_SELECT`), for as often as it completes.
const COMMAND_SELECT: u64 = COMMAND | 1 << 13;
const COMMAND_MULTISHOT: u64 = 1 << 33;
/// `IORING_OP_POLL_ADD`, for as often as there is something to read.
const POLL: u64 = 6;
const POLL_MULTISHOT: u64 = 1;
const POLL_READABLE: u64 = (libc::POLLIN as u64) << 32;

/// `struct io_uring_params`, with the offsets of the completion queue.
#[repr(C)]
#[derive(Default)]
struct Parameters {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    sq_offsets: [u32; 10],
    cq: CompletionOffsets,
}

/// `struct io_cqring_offsets`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct CompletionOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    overflow: u32,
    cqes: u32,
    flags: u32,
    reserved: [u32; 3],
}

/// `struct io_uring_rsrc_register`.
#[repr(C)]
#[derive(Default)]
struct Table {
    count: u32,
    flags: u32,
    reserved: u64,
    data: u64,
    tags: u64,
}

/// `struct io_uring_region_desc`.
#[repr(C)]
#[derive(Default)]
struct Region {
    address: u64,
    bytes: u64,
    flags: u32,
    id: u32,
    mmap_offset: u64,
    reserved: [u64; 4],
}

/// `struct io_uring_mem_region_reg`.
#[repr(C)]
#[derive(Default)]
struct RegionRegistration {
    region: u64,
    flags: u64,
    reserved: [u64; 2],
}

/// `struct io_uring_buf_reg`.
#[repr(C)]
#[derive(Default)]
struct BufferRing {
    address: u64,
    entries: u32,
    group: u16,
    flags: u16,
    reserved: [u64; 3],
}

/// `struct io_uring_buf`; the first one's last field is the tail.
#[repr(C)]
struct Buffer {
    address: u64,
    bytes: u32,
    id: u16,
    tail: u16,
}

/// How the driver gives requests to a queue: the numbers of its commands.
#[derive(Clone, Copy, Debug)]
pub enum Fetching {
    /// One by one, each fetched by the command that commits the one before it in its tag.
    Single {
        /// Fetches the first.
        fetch: u32,
        /// Commits, and fetches the next.
        commit: u32,
    },
    /// Many at a time, and many results at a time.
    Batches {
        /// Says once that there is a server for each tag.
        prepare: u32,
        /// Fetches, for good.
        fetch: u32,
        /// Commits.
        commit: u32,
    },
}

impl Fetching {
    /// Whether requests come many at a time.
    pub fn is_batches(&self) -> bool {
        matches!(self, Fetching::Batches { .. })
    }
}

/// Where the completion queue is, in the ring's own memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Bytes of that memory.
    pub bytes: u32,
    /// The head.
    pub head: u32,
    /// The tail.
    pub tail: u32,
    /// The entries.
    pub entries: u32,
    /// How many, less one.
    pub mask: u32,
}

/// A ring without an array of indexes, with files, a table of buffers and a region of memory.
#[derive(Debug)]
pub struct Ring {
    /// Go first, both hold the ring: a command that fetches writes to the memory for as long as there is one.
    fd: OwnedFd,
    entries: Mapping,
    memory: Mapping,
    places: Places,
    has_files: bool,
}

impl Ring {
    /// For a queue of `depth` requests.
    pub fn new(depth: u16) -> io::Result<Ring> {
        assert!((1..=DEPTH_MAX).contains(&depth));
        let completions = (u32::from(depth) * (PER_REQUEST + 1)).next_power_of_two();
        let mut parameters = Parameters {
            flags: SETUP_CQSIZE
                | SETUP_SUBMIT_ALL
                | SETUP_SINGLE_ISSUER
                | SETUP_DEFER_TASKRUN
                | SETUP_NO_SQARRAY
                | SETUP_SQ_REWIND,
            cq_entries: completions.clamp(2 * SQ_ENTRIES, COMPLETIONS_MAX),
            ..Parameters::default()
        };
        // SAFETY: the structure is the system call's, and lives during it.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, SQ_ENTRIES, &mut parameters) };
        let fd = RawFd::try_from(checked(fd)?).expect("a descriptor");
        // SAFETY: a new descriptor that is nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let Parameters { cq, cq_entries, sq_entries, .. } = parameters;
        assert_eq!(sq_entries, SQ_ENTRIES, "a power of two is made as it is");
        let entries = Mapping::new(SQ_ENTRIES as usize * ENTRY_BYTES, Some((&fd, OFFSET_ENTRIES)))?;
        let memory = Mapping::new(MEMORY_BYTES, None)?;
        let places = Places {
            bytes: cq.cqes + cq_entries * COMPLETION_BYTES as u32,
            head: cq.head,
            tail: cq.tail,
            entries: cq.cqes,
            mask: cq_entries - 1,
        };
        let ring = Ring { fd, entries, memory, places, has_files: false };
        let mut region = Region {
            address: ring.memory_address(),
            bytes: MEMORY_BYTES as u64,
            flags: REGION_OF_USER,
            ..Region::default()
        };
        let registration =
            RegionRegistration { region: &raw mut region as u64, ..RegionRegistration::default() };
        ring.register(REGISTER_MEM_REGION, (&raw const registration).cast(), 1)?;
        let table = Table { count: depth.into(), flags: SPARSE, ..Table::default() };
        ring.register(REGISTER_BUFFERS2, (&raw const table).cast(), size_of::<Table>() as u32)?;
        Ok(ring)
    }

    /// Registers the files that entries name; -1 is none.
    pub fn register_files(&mut self, files: &[RawFd; FILES]) -> io::Result<()> {
        self.register(REGISTER_FILES, files.as_ptr().cast(), FILES as u32)?;
        self.has_files = true;
        Ok(())
    }

    fn register(&self, what: u32, argument: *const libc::c_void, count: u32) -> io::Result<()> {
        let fd = self.fd.as_raw_fd();
        // SAFETY: the argument is what this registration takes, and lives during the call; what it points to
        // stays as long as the ring.
        checked(unsafe { libc::syscall(libc::SYS_io_uring_register, fd, what, argument, count) })
            .map(drop)
    }

    /// Its descriptor.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Says to the loop whose ring it is.
    pub fn belong_to(&mut self, queue: u16) {
        // SAFETY: within the mapping; the loop does not run yet.
        unsafe { self.memory.start.add(QUEUE_AT).cast::<u32>().write(queue.into()) };
    }

    /// Where its completion queue is.
    pub fn places(&self) -> Places {
        self.places
    }

    /// The address of its region of memory.
    pub fn memory_address(&self) -> u64 {
        self.memory.start.as_ptr() as u64
    }

    /// Has the driver, whose file is the first one, give the requests of a queue. Not while a loop turns the ring.
    pub fn fetch(&self, fetching: Fetching, queue: u16, depth: u16) -> io::Result<()> {
        match fetching {
            Fetching::Single { fetch, .. } => self.command_all(fetch, queue, depth)?,
            Fetching::Batches { prepare, fetch, .. } => {
                self.provide()?;
                self.prepare(prepare, queue, depth)?;
                self.check_taken()?;
                let command = u64::from(queue) | u64::from(TAG_BYTES) << 48;
                let words = [COMMAND_SELECT, fetch.into(), 0, COMMAND_MULTISHOT, 0, 0, command, 0];
                self.submit(words)?;
            }
        }
        self.check_taken()
    }

    /// Provides the buffers for tags.
    fn provide(&self) -> io::Result<()> {
        let (tags, ring) = (self.memory_address() + TAGS_AT as u64, BUFFERS_AT);
        for id in 0..BUFFERS {
            let address = tags + u64::from(id) * u64::from(BUFFER_BYTES);
            let buffer = Buffer {
                address,
                bytes: BUFFER_BYTES.into(),
                id,
                tail: if id == 0 { BUFFERS } else { 0 },
            };
            // SAFETY: within the mapping, where nobody else writes before the kernel knows of it.
            unsafe { self.memory.start.add(ring).cast::<Buffer>().add(id.into()).write(buffer) };
        }
        let address = self.memory_address() + ring as u64;
        let registration = BufferRing { address, entries: BUFFERS.into(), ..BufferRing::default() };
        self.register(REGISTER_BUFFER_RING, (&raw const registration).cast(), 1)
    }

    /// Says that there is a server for each tag.
    fn prepare(&self, operation: u32, queue: u16, depth: u16) -> io::Result<()> {
        for tag in 0..depth {
            // A request's pages are put at the place of its tag.
            let element = u64::from(tag) | u64::from(tag) << 16;
            // SAFETY: within the mapping; the kernel reads it when the command is submitted.
            unsafe {
                let results = self.memory.start.add(RESULTS_AT).cast::<u64>();
                results.add(tag.into()).write(element);
            }
        }
        let command = u64::from(queue) | u64::from(depth) << 32 | u64::from(RESULT_BYTES) << 48;
        let results = self.memory_address() + RESULTS_AT as u64;
        self.submit([COMMAND, operation.into(), results, 0, PREPARED, 0, command, 0])
    }

    /// Submits one entry.
    fn submit(&self, words: [u64; 8]) -> io::Result<()> {
        // SAFETY: within the mapping; the kernel reads entries during a submission only.
        unsafe { self.entries.start.cast::<[u64; 8]>().write(words) };
        match self.enter(1, 0)? {
            1 => Ok(()),
            _ => Err(io::Error::other("the ring does not take its commands")),
        }
    }

    /// What the driver refuses it refuses at once.
    fn check_taken(&self) -> io::Result<()> {
        let Some(refusal) = self.refusal()? else { return Ok(()) };
        let why = format!("the driver refuses its commands: {refusal}");
        Err(io::Error::new(refusal.kind(), why))
    }

    /// One command per tag; no more of them than fit are submitted together.
    fn command_all(&self, operation: u32, queue: u16, depth: u16) -> io::Result<()> {
        let tags: Vec<u16> = (0..depth).collect();
        for batch in tags.chunks(SQ_ENTRIES as usize) {
            for (place, tag) in batch.iter().enumerate() {
                let tag = u64::from(*tag);
                let command = u64::from(queue) | tag << 16 | u64::from(u32::MAX) << 32;
                let words = [COMMAND, operation.into(), tag, 0, tag, 0, command, 0];
                // SAFETY: within the mapping; the kernel reads entries during a submission only.
                unsafe { self.entries.start.cast::<[u64; 8]>().add(place).write(words) };
            }
            if self.enter(batch.len() as u32, 0)? != batch.len() {
                return Err(io::Error::other("the ring does not take its commands"));
            }
        }
        Ok(())
    }

    /// Has a completion about `about` come each time that `file` is written to. Not while a loop turns the ring.
    pub fn listen(&self, file: BorrowedFd<'_>, about: u64) -> io::Result<()> {
        let file = u64::from(file.as_raw_fd() as u32) << 32;
        let words = [POLL | file, 0, 0, POLL_MULTISHOT | POLL_READABLE, about, 0, 0, 0];
        self.submit(words)
    }

    /// What a completion says that has come and is an error. To be asked for before a loop takes completions.
    fn refusal(&self) -> io::Result<Option<io::Error>> {
        let Places { bytes, head, tail, entries, mask } = self.places;
        let queue = Mapping::new(bytes as usize, Some((&self.fd, OFFSET_RING)))?;
        // SAFETY: the kernel's offsets, all within `bytes`; whole words that the kernel writes.
        let word = |at: u32| unsafe { queue.start.add(at as usize).cast::<u32>().read_volatile() };
        let (from, to) = (word(head), word(tail));
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        let there = (0..to.wrapping_sub(from)).map(|number| from.wrapping_add(number) & mask);
        let mut results =
            there.map(|place| word(entries + place * COMPLETION_BYTES as u32 + 8) as i32);
        Ok(results.find(|result| *result < 0).map(|result| io::Error::from_raw_os_error(-result)))
    }

    /// Turns the loop until it stops, or a signal comes: whether it stopped.
    pub fn turn(&self) -> io::Result<bool> {
        match self.enter(0, 1) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            turned => turned.map(|_| true),
        }
    }

    fn enter(&self, submit: u32, wait: u32) -> io::Result<usize> {
        let (fd, flags) = (self.fd.as_raw_fd(), if wait > 0 { ENTER_GETEVENTS } else { 0 });
        let none = ptr::null::<libc::c_void>();
        // SAFETY: no memory is passed; what the entries name belongs to the ring, or lives longer.
        let done = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, fd, submit, wait, flags, none, 0_usize)
        };
        checked(done).map(|done| done as usize)
    }
}

impl Drop for Ring {
    /// The driver's device can be deleted only when no ring has its file.
    fn drop(&mut self) {
        if self.has_files {
            let _ = self.register(UNREGISTER_FILES, ptr::null(), 0);
        }
    }
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Memory that is mapped.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory of this process.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Of a ring, or new memory.
    fn new(bytes: usize, of: Option<(&OwnedFd, i64)>) -> io::Result<Mapping> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (flags, fd, offset) = match of {
            Some((fd, offset)) => (libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd(), offset),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
        };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { start: NonNull::new(start.cast()).expect("a mapping is not at 0"), bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping; the ring that knows its pages has its own hold on them.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
