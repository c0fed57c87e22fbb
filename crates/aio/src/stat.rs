//! What a process did through this library, readable by others while it runs.
//!
//! ```text
//!   counters --> memfd "nvlane-aio" <-- /proc/PID/fd/N <-- nvlane aio stat PID
//!            `-> $NVLANE_AIO_STAT/nvlane-aio.PID.N <------ nvlane aio run --stat
//! ```
//!
//! Nothing is left behind when the process ends, unless a folder is named for it. A child has inherited its
//! parent's file; the pid in it says whose it is. Counters are plain stores under a context's lock, or relaxed additions:
//! a reader sees each a little early or late.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Name of the memfd.
pub const NAME: &str = "nvlane-aio";
/// Names the folder that keeps what processes did.
pub const VARIABLE: &CStr = c"NVLANE_AIO_STAT";
/// Programs that one process may turn into with a file for each.
const FILES_MAX: u32 = 16;
const MAGIC: u64 = u64::from_le_bytes(*b"nvlnaio1");
/// Contexts with a record of their own; those beyond share the last one.
pub const RECORDS: usize = 64;
const COUNTERS: usize = 16;

/// What is counted per context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Calls of `io_submit`.
    Submits,
    /// Iocbs that went through io_uring.
    Ring,
    /// Iocbs carried out within `io_submit` by preadv2 and pwritev2, as the kernel does with them.
    Inline,
    /// Iocbs that the real `io_submit` took.
    Native,
    /// Iocbs refused.
    Refused,
    /// Calls of `io_uring_enter` that submitted.
    Enters,
    /// Calls of `io_getevents` and `io_pgetevents`.
    Reaps,
    /// Events handed out.
    Events,
    /// Calls of `io_uring_enter` that waited.
    Waits,
    /// Calls of the real `io_getevents`.
    NativeReaps,
    /// Polls through io_uring (also counted as `Ring`).
    Polls,
    /// Calls of `io_cancel`.
    Cancels,
    /// Reads tried inline that were not in the page cache.
    Misses,
}

/// Names of the counters, in the order of [`Counter`].
pub const NAMES: [&str; 13] = [
    "submits",
    "ring",
    "inline",
    "native",
    "refused",
    "enters",
    "reaps",
    "events",
    "waits",
    "native_reaps",
    "polls",
    "cancels",
    "misses",
];

/// One context's record, in shared memory.
#[repr(C)]
#[derive(Debug)]
pub struct Record {
    id: AtomicU64,
    /// Of `context::Mode`.
    pub mode: AtomicU32,
    /// Of `probe::Reason`.
    pub reason: AtomicU32,
    nr: AtomicU32,
    extended: AtomicU32,
    counters: [AtomicU64; COUNTERS],
}

/// The file.
#[repr(C)]
struct Page {
    magic: AtomicU64,
    pid: AtomicU32,
    records: AtomicU32,
    contexts: AtomicU64,
    ended: [AtomicU64; COUNTERS],
    table: [Record; RECORDS],
}

impl Record {
    /// Adds to a counter.
    #[inline]
    pub fn add(&self, counter: Counter, count: u64) {
        self.counters[counter as usize].fetch_add(count, Relaxed);
    }

    /// A counter.
    #[inline(always)]
    pub fn count(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].load(Relaxed)
    }

    /// Adds to a counter that only the holder of one lock writes.
    #[inline]
    pub fn add_locked(&self, counter: Counter, count: u64) {
        let place = &self.counters[counter as usize];
        place.store(place.load(Relaxed) + count, Relaxed);
    }
}

/// Where records go that could not be had.
static NOWHERE: Record = Record {
    id: AtomicU64::new(0),
    mode: AtomicU32::new(0),
    reason: AtomicU32::new(0),
    nr: AtomicU32::new(0),
    extended: AtomicU32::new(0),
    counters: [const { AtomicU64::new(0) }; COUNTERS],
};
static PAGE: AtomicPtr<Page> = AtomicPtr::new(std::ptr::null_mut());

/// A record for a new context.
pub fn open(id: usize, nr: u32, extended: bool) -> &'static Record {
    let Some(page) = page() else { return &NOWHERE };
    page.contexts.fetch_add(1, Relaxed);
    let free =
        |record: &&Record| record.id.compare_exchange(0, id as u64, Relaxed, Relaxed).is_ok();
    let record = page.table[..RECORDS - 1].iter().find(free).unwrap_or(&page.table[RECORDS - 1]);
    record.id.store(id as u64, Relaxed);
    record.nr.store(nr, Relaxed);
    record.extended.store(u32::from(extended), Relaxed);
    record
}

/// The context has ended: its counts go to the process's.
pub fn close(record: &'static Record) {
    let Some(page) = page() else { return };
    let shared = std::ptr::eq(record, &page.table[RECORDS - 1]);
    if shared || std::ptr::eq(record, &NOWHERE) {
        return;
    }
    for (ended, counter) in page.ended.iter().zip(&record.counters) {
        ended.fetch_add(counter.swap(0, Relaxed), Relaxed);
    }
    record.mode.store(0, Relaxed);
    record.reason.store(0, Relaxed);
    record.id.store(0, Relaxed);
}

/// This process's page, made when first wanted; anew in a child.
fn page() -> Option<&'static Page> {
    let known = PAGE.load(Relaxed);
    // SAFETY: no preconditions.
    let pid = unsafe { libc::getpid() } as u32;
    // SAFETY: mappings of pages are never undone.
    if !known.is_null() && unsafe { (*known).pid.load(Relaxed) } == pid {
        // SAFETY: as above.
        return Some(unsafe { &*known });
    }
    let made = make(pid)?;
    match PAGE.compare_exchange(known, made, Relaxed, Relaxed) {
        // SAFETY: as above.
        Ok(_) => Some(unsafe { &*made }),
        // SAFETY: as above. Another thread was faster; the second file stays open, and empty.
        Err(other) => Some(unsafe { &*other }),
    }
}

fn make(pid: u32) -> Option<*mut Page> {
    let fd = match kept(pid) {
        fd @ 0.. => fd,
        _ => unkept(),
    };
    if fd < 0 {
        return None;
    }
    // SAFETY: the descriptor is ours; the rest are numbers and a mapping of the kernel's choice.
    unsafe {
        let command = libc::F_DUPFD_CLOEXEC as usize;
        let higher = crate::system::call(libc::SYS_fcntl, [fd as usize, command, 256, 0, 0, 0]);
        let fd = if higher < 0 {
            fd as i32
        } else {
            crate::system::call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]);
            higher as i32
        };
        let len = size_of::<Page>();
        let sized = crate::system::call(libc::SYS_ftruncate, [fd as usize, len, 0, 0, 0, 0]);
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let address = libc::mmap(std::ptr::null_mut(), len, both, libc::MAP_SHARED, fd, 0);
        if sized < 0 || address == libc::MAP_FAILED {
            return None;
        }
        let page: *mut Page = address.cast();
        (*page).records.store(RECORDS as u32, Relaxed);
        (*page).pid.store(pid, Relaxed);
        (*page).magic.store(MAGIC, Relaxed);
        Some(page)
    }
}

/// A file that ends with the process, or `-errno`.
fn unkept() -> isize {
    let (name, flags) = (c"nvlane-aio".as_ptr() as usize, libc::MFD_CLOEXEC as usize);
    // SAFETY: the name is a C string.
    unsafe { crate::system::call(libc::SYS_memfd_create, [name, flags, 0, 0, 0, 0]) }
}

/// A new file in the folder that was named for it, or `-errno`.
fn kept(pid: u32) -> isize {
    // SAFETY: what the variable's value points to is read at once.
    let folder = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    if folder.is_null() {
        return -(libc::ENOENT as isize);
    }
    // SAFETY: a C string.
    let folder = unsafe { CStr::from_ptr(folder) }.to_bytes();
    let flags = (libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC) as usize;
    let mut path = [0; libc::PATH_MAX as usize];
    let mut fd = -(libc::ENAMETOOLONG as isize);
    for n in 0..FILES_MAX {
        let mut rest = &mut path[..];
        let written = rest.write_all(folder).and_then(|()| write!(rest, "/{NAME}.{pid}.{n}\0"));
        if written.is_err() {
            return -(libc::ENAMETOOLONG as isize);
        }
        let (at, name, mode) = (libc::AT_FDCWD as usize, path.as_ptr() as usize, 0o600);
        // SAFETY: the name ends with a zero.
        fd = unsafe { crate::system::call(libc::SYS_openat, [at, name, flags, mode, 0, 0]) };
        if fd != -(libc::EEXIST as isize) {
            break;
        }
    }
    fd
}

/// What another process did.
#[derive(Clone, Debug)]
pub struct Report {
    /// Contexts made until now.
    pub contexts: u64,
    /// Counts of contexts that have ended.
    pub ended: [u64; NAMES.len()],
    /// Contexts that are open.
    pub open: Vec<Open>,
}

/// An open context.
#[derive(Clone, Debug)]
pub struct Open {
    /// Its id.
    pub id: u64,
    /// Which way its I/O goes: "proving", "ring", "native".
    pub mode: &'static str,
    /// Why natively.
    pub reason: &'static str,
    /// Events that it can hold.
    pub nr: u32,
    /// Made by `io_setup2`.
    pub extended: bool,
    /// Counts.
    pub counts: [u64; NAMES.len()],
}

impl Report {
    /// Reads the file of the process; `NotFound` when it has made no context through this library.
    pub fn of(pid: u32) -> io::Result<Report> {
        let status =
            fs::read_to_string(format!("/proc/{pid}/status")).map_err(|error| {
                match error.kind() {
                    io::ErrorKind::NotFound => {
                        io::Error::new(error.kind(), format!("there is no process {pid}"))
                    }
                    _ => error,
                }
            })?;
        let own = own_number(&status).unwrap_or(pid);
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
            let path = entry?.path();
            if is_ours(&path)
                && let Ok(Some(words)) = words(&path)
                && let Some(report) = Report::parse(&words, own)
            {
                return Ok(report);
            }
        }
        let what = format!("process {pid} has made no context of asynchronous I/O through nvlane");
        Err(io::Error::new(io::ErrorKind::NotFound, what))
    }

    /// Reads the files that processes have left in a folder, with their pids.
    pub fn kept_in(folder: &Path) -> io::Result<Vec<(u32, Report)>> {
        let mut reports = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let pid = name.strip_prefix(NAME).and_then(|rest| rest.split('.').nth(1)?.parse().ok());
            if let Some(pid) = pid
                && let Some(words) = words(&path)?
                && let Some(report) = Report::parse(&words, pid)
            {
                reports.push((pid, report));
            }
        }
        reports.sort_by_key(|(pid, _)| *pid);
        Ok(reports)
    }

    /// The sum over all contexts, open and ended.
    pub fn total(&self, counter: Counter) -> u64 {
        let index = counter as usize;
        sum([self.ended[index]].into_iter().chain(self.open.iter().map(|open| open.counts[index])))
    }

    fn parse(words: &[u64], pid: u32) -> Option<Report> {
        let (page, record) = (size_of::<Page>() / 8, size_of::<Record>() / 8);
        if words.len() < page || words[0] != MAGIC || words[1] as u32 != pid {
            return None;
        }
        let counts = |from: usize| std::array::from_fn(|index| words[from + index]);
        let first = page - RECORDS * record;
        let open = (0..RECORDS).map(|index| first + index * record).filter(|&at| words[at] != 0);
        Some(Report {
            contexts: words[2],
            ended: counts(3),
            open: open
                .map(|at| Open {
                    id: words[at],
                    mode: crate::context::mode_name(words[at + 1] as u32),
                    reason: crate::probe::reason_name((words[at + 1] >> 32) as u32),
                    nr: words[at + 2] as u32,
                    extended: words[at + 2] >> 32 != 0,
                    counts: counts(at + 3),
                })
                .collect(),
        })
    }
}

/// The number that a process knows itself by, which in a container is another one: the last that its `status` below
/// `/proc` has.
fn own_number(status: &str) -> Option<u32> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().last()?.parse().ok()
}

/// The sum of counters, which are whatever another process has there.
pub fn sum(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

/// Whether an open file is named like one of [`make`].
fn is_ours(path: &Path) -> bool {
    fs::read_link(path).is_ok_and(|name| {
        let name = name.file_name().unwrap_or_default().to_string_lossy();
        name.strip_prefix("memfd:").unwrap_or(&name).starts_with(NAME)
    })
}

/// A page's words; none of what is no file, and may never end.
fn words(path: &Path) -> io::Result<Option<Vec<u64>>> {
    // A pipe would be waited for until somebody writes to it.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(size_of::<Page>() as u64).read_to_end(&mut bytes)?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok(Some(words.iter().map(|word| u64::from_le_bytes(*word)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_in_a_container_has_a_number_of_its_own() {
        assert_eq!(own_number("Pid:\t4711\nNSpid:\t4711\t33\t1\nNSpgid:\t4711\t9\n"), Some(1));
        assert_eq!(own_number("Pid:\t4711\nNSpid:\t4711\n"), Some(4711));
        assert_eq!(own_number("Pid:\t4711\n"), None, "a kernel without such namespaces");
    }

    #[test]
    fn another_process_reads_what_was_counted() {
        let record = open(0x7000, 127, false);
        record.add(Counter::Ring, 5);
        record.add_locked(Counter::Events, 3);
        let report = Report::of(std::process::id()).unwrap();
        let mine = report.open.iter().find(|open| open.id == 0x7000).unwrap();
        assert_eq!(mine.counts[Counter::Ring as usize], 5);
        assert_eq!(mine.nr, 127);
        let before = report.total(Counter::Ring);
        close(record);
        let report = Report::of(std::process::id()).unwrap();
        assert!(report.open.iter().all(|open| open.id != 0x7000));
        assert_eq!(report.total(Counter::Ring), before);
        assert_eq!(NAMES[Counter::Misses as usize], "misses");
    }

    #[test]
    fn what_is_named_like_a_file_of_ours_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join(format!("{NAME}.1.0"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(words(&pipe).unwrap().is_none());
        std::os::unix::fs::symlink("/dev/zero", folder.path().join(format!("{NAME}.2.0"))).unwrap();
        assert!(Report::kept_in(folder.path()).unwrap().is_empty());
        // This process has it open, and is told of all the same.
        let open = File::options().read(true).write(true).open(&pipe).unwrap();
        let record = super::open(0x7001, 1, false);
        assert!(Report::of(std::process::id()).unwrap().contexts > 0);
        close(record);
        drop(open);
        // Files of others that lie in a folder of that name are not looked at.
        let folder = tempfile::Builder::new().prefix("nvlane-aio-").tempdir().unwrap();
        let other = File::create(folder.path().join("other")).unwrap();
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&other));
        assert!(!is_ours(Path::new(&link)));
    }

    #[test]
    fn counters_of_others_may_be_any_numbers() {
        let report = Report { contexts: 1, ended: [u64::MAX; NAMES.len()], open: Vec::new() };
        let open =
            Open { id: 1, mode: "", reason: "", nr: 1, extended: false, counts: [1; NAMES.len()] };
        let report = Report { open: vec![open], ..report };
        assert_eq!(report.total(Counter::Ring), u64::MAX);
    }
}
