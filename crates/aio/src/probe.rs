//! Which way the I/O of a file goes, found out once per file and remembered by descriptor.
//!
//! | file | reads | writes |
//! |---|---|---|
//! | O_DIRECT, and the kernel can submit without blocking | io_uring | io_uring |
//! | through the page cache | preadv2 at once if cached, else io_uring; pread at once where all was cached of late | pwritev2 |
//! | tmpfs | preadv2 | pwritev2 |
//! | O_DIRECT, and the kernel cannot: io_uring would use worker threads | the real io_submit | same |
//! | pipe, socket | the real io_submit, once there is something | the real io_submit |
//! | no file of bytes (directory, terminal) | the real io_submit | same |
//!
//! The kernel's AIO carries out I/O through the page cache within `io_submit` as well, so nothing
//! blocks that did not block before.
//!
//! A descriptor may be closed and used for another file behind our back. What the way chosen refuses goes to the
//! real `io_submit`, and what is remembered is compared with the file from time to time; until then I/O may go a
//! way that is not the best for its file. What is in flight is of the file that it was submitted for. To go on with
//! it takes its descriptor once more, which must be of that file still: see [`Files::mark`].

use crate::abi::op;
use crate::system::call;
use std::mem::MaybeUninit;

/// Uses of a file after which it is looked at again.
const USES_MAX: u32 = 128;
const FILES: usize = 16;
/// A file whose reads keep missing the page cache is tried again after so many reads.
const SKIPS_MAX: u32 = 63;
/// After so many reads in a row that were in the page cache, one that is alone is carried out whether it is there or not, which
/// takes fewer instructions. Native AIO would wait as well.
const SURE: u32 = 64;
/// Of these, one in so many is not to wait, and shows whether the file is in the cache still.
const SHOWS: u32 = 16;

const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;
const EXT4_MAGIC: i64 = 0xef53;
const XFS_MAGIC: i64 = 0x5846_5342;
const BTRFS_MAGIC: i64 = 0x9123_683e;
/// Of pipes without a name.
pub const PIPEFS_MAGIC: i64 = 0x5049_5045;

/// Why a context uses the real system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// It does not, or does so only until its program is known.
    None = 0,
    /// It signals eventfds: whoever waits for those may read the ring itself.
    Eventfd,
    /// The program takes events from the ring by itself.
    RingReader,
    /// io_uring would hand this file's I/O to worker threads.
    Punts,
    /// io_uring is not to be had.
    Refused,
    /// The user said so.
    Asked,
    /// The program has closed the ring's descriptor.
    Lost,
    /// Few requests are submitted at a time, which cost less that way; for as long as that lasts.
    Few,
}

/// The reason's name, from its number.
pub fn reason_name(number: u32) -> &'static str {
    match number {
        1 => "eventfd",
        2 => "ring-reader",
        3 => "file-punts",
        4 => "io_uring-refused",
        5 => "asked",
        6 => "descriptor-closed",
        7 => "few-at-a-time",
        _ => "",
    }
}

/// Which way a file's I/O goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// io_uring.
    Ring,
    /// preadv2 and pwritev2, here; reads try first whether they must wait.
    Cached,
    /// preadv2 and pwritev2, here.
    Here,
    /// The real `io_submit`, this iocb alone.
    Kernel,
    /// The same, of something that reads may have to wait for.
    Stream,
    /// The real `io_submit`, for good.
    Punts,
}

/// What a file was opened for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Access {
    /// Reads.
    pub readable: bool,
    /// Writes.
    pub writable: bool,
    /// It goes past the page cache.
    pub direct: bool,
}

impl Access {
    /// Nothing, where there is no open file.
    pub fn of(fd: i32) -> Access {
        status_flags(fd).map_or(Access::default(), Access::from_status)
    }

    fn from_status(status: i32) -> Access {
        let (named, mode) = (status & libc::O_PATH != 0, status & libc::O_ACCMODE);
        Access {
            readable: !named && mode != libc::O_WRONLY,
            writable: !named && mode != libc::O_RDONLY,
            direct: status & libc::O_DIRECT != 0,
        }
    }

    /// Whether reads (`write` is 0) or writes (1) are allowed, past the page cache where they have to go there.
    #[inline(always)]
    pub fn allows(self, write: u8, direct: bool) -> bool {
        (if write == 0 { self.readable } else { self.writable }) && (!direct || self.direct)
    }
}

/// What is known of a descriptor.
#[derive(Clone, Copy, Debug)]
pub struct File {
    fd: i32,
    /// Which way.
    pub way: Way,
    /// Opened for reading.
    pub readable: bool,
    /// Opened for writing.
    pub writable: bool,
    /// Writes beyond its end are carried out here, as ext4 makes them wait in any case.
    extends_here: bool,
    /// Read through the page cache.
    read_cached: bool,
    /// Read where that is submitted, whether it has to wait or not.
    read_here: bool,
    /// Reads, and writes, that end before this byte go to io_uring without a further question.
    ring_end: [u64; 2],
    uses: u32,
    status: i32,
    device: u64,
    inode: u64,
    misses: u32,
    skips: u32,
    /// Reads in a row that were there when they were tried.
    hits: u32,
    /// Its [`mark`], as of that [`Files::round`].
    mark: (u64, u64),
}

const UNKNOWN: File = File {
    fd: -1,
    way: Way::Kernel,
    readable: false,
    writable: false,
    extends_here: false,
    read_cached: false,
    read_here: false,
    ring_end: [0; 2],
    uses: USES_MAX,
    status: 0,
    device: 0,
    inode: 0,
    misses: 0,
    skips: 0,
    hits: 0,
    mark: (0, 0),
};

/// The descriptors that a context has met.
pub struct Files {
    /// Those of late, by their last bits.
    known: [File; FILES],
    /// While it stays the same, so do the files that descriptors stand for, or a program changes them in the
    /// middle of a call.
    round: u64,
}

impl Files {
    /// None met.
    pub const fn new() -> Files {
        Files { known: [UNKNOWN; FILES], round: 1 }
    }

    /// What is known of `fd`, or is now found out; None when it is no open file.
    #[inline]
    pub fn of(&mut self, fd: i32) -> Option<&mut File> {
        let file = &mut self.known[fd as u32 as usize % FILES];
        if file.fd == fd && file.uses < USES_MAX {
            file.uses += 1;
            return Some(file);
        }
        look(file, fd).then_some(file)
    }

    /// A call begins, or goes on after it has waited: descriptors may stand for other files than before.
    #[inline(always)]
    pub fn begin_round(&mut self) {
        self.round += 1;
    }

    /// What tells later whether `fd` stands for the file still that a request of that kind is submitted for now; 0
    /// where such a request is never gone on with. That is what goes past the page cache: this may not cost it a
    /// system call, and io_uring's workers carry out what waits for them when its thread ends.
    #[inline]
    pub fn mark(&mut self, fd: i32, opcode: u8) -> u64 {
        let (file, round) = (&mut self.known[fd as u32 as usize % FILES], self.round);
        match opcode {
            op::READ if file.fd == fd && file.read_cached => file.mark_in(round),
            op::FSYNC | op::POLL_ADD => mark(fd),
            _ => 0,
        }
    }

    /// What is known of `fd`, without asking the system.
    #[inline(always)]
    pub fn known(&mut self, fd: i32) -> Option<&mut File> {
        let file = &mut self.known[fd as u32 as usize % FILES];
        if file.fd != fd || file.uses >= USES_MAX {
            return None;
        }
        file.uses += 1;
        Some(file)
    }

    /// The present round, for [`File::mark_in`].
    #[inline(always)]
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Notes what came of trying a file that is known.
    #[inline(always)]
    pub fn note_try(&mut self, fd: i32, hit: bool) {
        self.known[fd as u32 as usize % FILES].note_try(hit);
    }

    /// Whether a read of a file that is known, alone, is to be carried out wherever its data is.
    #[inline(always)]
    pub fn may_wait(&self, fd: i32) -> bool {
        self.known[fd as u32 as usize % FILES].may_wait()
    }

    /// Whether all reads of a file that is known are carried out where they are submitted ([`Way::Here`]).
    #[inline(always)]
    pub fn is_read_here(&self, fd: i32) -> bool {
        self.known[fd as u32 as usize % FILES].read_here
    }

    /// Whether a file is open for reads (`write` is 0) or writes (1), and past the page cache where it has to be,
    /// by what is known.
    #[inline(always)]
    pub fn allows(&mut self, fd: i32, write: u8, direct: bool) -> bool {
        let Some(file) = self.known(fd) else { return false };
        file.access().allows(write, direct)
    }

    /// Forgets `fd`, which turned out to be another file.
    pub fn forget(&mut self, fd: i32) {
        let file = &mut self.known[fd as u32 as usize % FILES];
        if file.fd == fd {
            *file = UNKNOWN;
        }
    }
}

impl File {
    /// What it was opened for.
    #[inline(always)]
    pub fn access(&self) -> Access {
        let direct = self.status & libc::O_DIRECT != 0;
        Access { readable: self.readable, writable: self.writable, direct }
    }

    /// Its descriptor's [`mark`], asked for once in a round.
    #[inline]
    pub fn mark_in(&mut self, round: u64) -> u64 {
        if self.mark.1 != round {
            self.mark = (mark(self.fd), round);
        }
        self.mark.0
    }

    /// Whether a write up to `end` extends a file whose file system makes such writes wait.
    #[inline]
    pub fn extends(&mut self, end: u64) -> bool {
        if !self.extends_here || end < self.ring_end[1] {
            return false;
        }
        if let Some(stat) = stat(self.fd) {
            self.note_size(stat.st_size as u64);
        }
        end >= self.ring_end[1]
    }

    /// Derives from the file's size what goes to io_uring.
    fn note_size(&mut self, size: u64) {
        let all = |allowed: bool| if allowed && self.way == Way::Ring { u64::MAX } else { 0 };
        let writes = if self.extends_here { size.saturating_add(1) } else { u64::MAX };
        self.ring_end = [all(self.readable), all(self.writable).min(writes)];
    }

    /// Whether a read is worth trying without waiting.
    #[inline]
    pub fn try_cache(&mut self) -> bool {
        if self.skips == 0 {
            return true;
        }
        self.skips -= 1;
        false
    }

    /// Whether a read (`write` is 0) or write (1) up to `end` goes to io_uring.
    #[inline(always)]
    pub fn goes_by_ring(&self, write: usize, end: u64) -> bool {
        end < self.ring_end[write & 1]
    }

    /// Whether it is read through the page cache.
    #[inline(always)]
    pub fn is_read_cached(&self) -> bool {
        self.read_cached
    }

    /// Whether a read is worth trying without io_uring.
    #[inline(always)]
    pub fn is_worth_trying(&self) -> bool {
        self.read_here || self.is_read_cached() && self.skips == 0
    }

    /// The read was not in the cache: try less often. It was: try again at once.
    #[inline]
    pub fn note_try(&mut self, hit: bool) {
        self.misses = if hit { 0 } else { (self.misses * 2 + 1).min(SKIPS_MAX) };
        self.skips = self.misses;
        self.hits = if hit { self.hits.wrapping_add(1).max(1) } else { 0 };
    }

    #[inline(always)]
    fn may_wait(&self) -> bool {
        self.hits >= SURE && !self.hits.is_multiple_of(SHOWS)
    }
}

/// Finds out about `fd`; false when it is no open file.
#[cold]
fn look(file: &mut File, fd: i32) -> bool {
    let status = status_flags(fd);
    let (Ok(status), Some(stat)) = (status, stat(fd)) else {
        *file = UNKNOWN;
        return false;
    };
    let same = file.fd == fd
        && (file.status, file.device, file.inode) == (status, stat.st_dev, stat.st_ino);
    file.uses = 1;
    if same {
        file.note_size(stat.st_size as u64);
        return true;
    }
    let access = Access::from_status(status);
    let file_system = file_system(fd);
    *file = File {
        fd,
        way: Way::Kernel,
        readable: access.readable,
        writable: access.writable,
        extends_here: file_system == EXT4_MAGIC,
        status,
        device: stat.st_dev,
        inode: stat.st_ino,
        ..*file
    };
    file.misses = 0;
    file.skips = 0;
    file.hits = 0;
    file.mark = (0, 0);
    file.way = way(file, &stat, file_system);
    file.read_cached = file.way == Way::Cached && file.readable;
    file.read_here = file.way == Way::Here && file.readable;
    file.note_size(stat.st_size as u64);
    true
}

fn way(file: &File, stat: &libc::stat, file_system: i64) -> Way {
    let bytes = match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFBLK => file.readable || file.writable,
        libc::S_IFIFO | libc::S_IFSOCK => return Way::Stream,
        _ => false,
    };
    if !bytes {
        return Way::Kernel;
    }
    let block = stat.st_mode & libc::S_IFMT == libc::S_IFBLK;
    if matches!(file_system, TMPFS_MAGIC | RAMFS_MAGIC) && !block {
        return Way::Here;
    }
    let direct = file.status & libc::O_DIRECT != 0;
    match (direct, takes_nowait(file, block, file_system)) {
        (true, true) => Way::Ring,
        (true, false) => Way::Punts,
        (false, true) => Way::Cached,
        (false, false) => Way::Here,
    }
}

/// Whether the kernel can start I/O on the file without blocking (`FMODE_NOWAIT`): else io_uring
/// hands it to worker threads.
fn takes_nowait(file: &File, block: bool, file_system: i64) -> bool {
    let mut byte = 0_u8;
    let vector = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let flags = crate::abi::RWF_NOWAIT;
    if file.readable {
        // One byte, into our own: at most it is read from the page cache.
        let refused = -(libc::EOPNOTSUPP as isize);
        return positioned(libc::SYS_preadv2, file.fd, &vector, 0, flags) != refused;
    }
    if block && file.status & libc::O_DIRECT != 0 {
        // One byte is no block: refused either for the flag, or for the size. Should the number be
        // another file's by now, there is nothing to be written from.
        let vector = libc::iovec { iov_base: std::ptr::without_provenance_mut(1), iov_len: 1 };
        let refused = -(libc::EOPNOTSUPP as isize);
        return positioned(libc::SYS_pwritev2, file.fd, &vector, 0, flags) != refused;
    }
    // Opening it again to read would, on closing, drop the program's locks on it.
    matches!(file_system, EXT4_MAGIC | XFS_MAGIC | BTRFS_MAGIC)
}

/// preadv2 or pwritev2 of one vector.
fn positioned(number: i64, fd: i32, vector: &libc::iovec, offset: i64, flags: u32) -> isize {
    let vector = (&raw const *vector) as usize;
    // SAFETY: one vector that lives as long as the call and points to memory of ours.
    unsafe { call(number, [fd as usize, vector, 1, offset as usize, 0, flags as usize]) }
}

fn status_flags(fd: i32) -> Result<i32, ()> {
    // SAFETY: numbers only.
    let flags = unsafe { call(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    if flags < 0 { Err(()) } else { Ok(flags as i32) }
}

/// Whether reads and writes of `fd` may wait.
pub fn is_blocking(fd: i32) -> bool {
    status_flags(fd).is_ok_and(|flags| flags & libc::O_NONBLOCK == 0)
}

/// Whether `fd` is an open file.
pub fn is_open(fd: i32) -> bool {
    status_flags(fd).is_ok_and(|flags| flags & libc::O_PATH == 0)
}

/// A number that tells files apart that are there at the same time and have inodes of their own; eventfds and the
/// like have one for all of them. 0 when `fd` is no open file.
pub fn mark(fd: i32) -> u64 {
    stat(fd).map_or(0, |stat| mark_of(&stat))
}

/// The same of what is known of a descriptor.
pub fn mark_of(stat: &libc::stat) -> u64 {
    stat.st_dev.rotate_left(32) ^ stat.st_ino
}

/// What the system says of a descriptor; None when it is no open file.
pub fn stat(fd: i32) -> Option<libc::stat> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    let place = stat.as_mut_ptr() as usize;
    // SAFETY: a place for the answer.
    let done = unsafe { call(libc::SYS_fstat, [fd as usize, place, 0, 0, 0, 0]) };
    // SAFETY: the kernel has filled it.
    (done == 0).then(|| unsafe { stat.assume_init() })
}

/// Whether it is a regular file, a directory or a block device.
pub fn has_blocks(fd: i32) -> bool {
    let kinds = [libc::S_IFREG, libc::S_IFDIR, libc::S_IFBLK];
    stat(fd).is_some_and(|stat| kinds.contains(&(stat.st_mode & libc::S_IFMT)))
}

/// Whether a read of a regular file that has come as far as that byte is over, since the file ends there.
#[cold]
pub fn ends_by(fd: i32, end: u64) -> bool {
    stat(fd).is_some_and(|stat| {
        stat.st_mode & libc::S_IFMT == libc::S_IFREG && end >= stat.st_size as u64
    })
}

/// Magic number of its file system.
pub fn file_system(fd: i32) -> i64 {
    let mut answer = MaybeUninit::<libc::statfs>::zeroed();
    let place = answer.as_mut_ptr() as usize;
    // SAFETY: a place for the answer.
    unsafe { call(libc::SYS_fstatfs, [fd as usize, place, 0, 0, 0, 0]) };
    // SAFETY: zeroes, or what the kernel has filled in.
    unsafe { answer.assume_init() }.f_type
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_file_in_memory_is_read_and_written_here_and_a_pipe_by_the_kernel() {
        let mut files = Files::new();
        if let Ok(file) = tempfile::tempfile_in("/dev/shm") {
            assert_eq!(files.of(file.as_raw_fd()).unwrap().way, Way::Here);
        }
        let (read, _write) = std::io::pipe().unwrap();
        // The pipe may have the descriptor that the file had.
        let mut files = Files::new();
        assert_eq!(files.of(read.as_raw_fd()).unwrap().way, Way::Stream);
        assert!(files.of(-1).is_none());
    }

    #[test]
    fn another_file_under_the_same_number_is_noticed_in_time() {
        let mut files = Files::new();
        let first = tempfile::tempfile().unwrap();
        let fd = first.as_raw_fd();
        let inode = files.of(fd).unwrap().inode;
        let second = tempfile::tempfile().unwrap();
        // SAFETY: both are open; `first` now stands for the other file.
        assert_eq!(unsafe { libc::dup2(second.as_raw_fd(), fd) }, fd);
        for _ in 0..USES_MAX {
            files.of(fd).unwrap();
        }
        assert_ne!(files.of(fd).unwrap().inode, inode);
    }

    #[test]
    fn a_request_is_marked_by_the_file_of_its_own_call() {
        let mut files = Files::new();
        let (first, second) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let fd = first.as_raw_fd();
        files.of(fd).unwrap().read_cached = true;
        let before = files.mark(fd, op::READ);
        assert_eq!((before, before), (mark(fd), files.mark(fd, op::FSYNC)));
        // SAFETY: both are open; `first` now stands for the other file.
        assert_eq!(unsafe { libc::dup2(second.as_raw_fd(), fd) }, fd);
        assert_eq!(files.mark(fd, op::READ), before, "no look within a call");
        files.begin_round();
        files.of(fd).unwrap();
        assert_eq!(files.mark(fd, op::READ), mark(second.as_raw_fd()));
        assert_ne!(files.mark(fd, op::READ), before);
        // What goes past the page cache is not asked about.
        assert_eq!((files.mark(fd, op::WRITE), files.mark(fd, op::READV)), (0, 0));
        files.of(fd).unwrap().read_cached = false;
        assert_eq!(files.mark(fd, op::READ), 0);
    }

    #[test]
    fn numbers_that_share_a_place_have_marks_of_their_own() {
        let mut files = Files::new();
        let held: Vec<_> = (0..=FILES).map(|_| tempfile::tempfile().unwrap()).collect();
        for fd in held.iter().map(AsRawFd::as_raw_fd) {
            files.of(fd).unwrap().read_cached = true;
            assert_eq!(files.mark(fd, op::READ), mark(fd));
        }
    }

    #[test]
    fn where_all_was_there_a_read_may_wait_and_some_show_whether_it_still_is() {
        let mut file = UNKNOWN;
        let mut tries = |count: u32| {
            let waits = (0..count).map(|_| {
                let waits = file.may_wait();
                file.note_try(true);
                u32::from(waits)
            });
            waits.sum::<u32>()
        };
        assert_eq!(tries(SURE), 0);
        assert_eq!(tries(10 * SHOWS), 10 * (SHOWS - 1));
        file.note_try(false);
        assert!(!file.may_wait());
        file.note_try(true);
        assert!(!file.may_wait(), "one is not all");
    }

    #[test]
    fn misses_make_tries_rarer_and_a_hit_makes_them_usual() {
        let mut file = UNKNOWN;
        assert!(file.try_cache());
        file.note_try(false);
        assert!(!file.try_cache() && file.try_cache());
        for _ in 0..20 {
            file.note_try(false);
        }
        assert_eq!(file.skips, SKIPS_MAX);
        file.note_try(true);
        assert!(file.try_cache());
    }
}
