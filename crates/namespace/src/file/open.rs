//! Opening: what kind of file, who else uses it, what alignment it asks for.

use super::copy::Copying;
use super::made::{self, Made, Own};
use super::syncs::Syncs;
use super::{File, Kind, ZeroesBy};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, io, thread};

/// The reason for the page cache that is the user's wish.
pub(super) const ASKED_FOR: &str = "asked for";

/// How often a file is opened again that others make or take away at the same moment, and after how long.
const ATTEMPTS_MAX: u32 = 100;
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(1);

/// How a file volume is opened.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// The file or block device.
    pub path: PathBuf,
    /// Make a sparse file of this size if there is none.
    pub create_bytes: Option<u64>,
    /// Logical block size as a power of two, 9 or 12. Without it 512 bytes, or 4096 where
    /// O_DIRECT asks for that.
    pub block_shift: Option<u8>,
    /// Refuse writes, and share the file with other readers.
    pub read_only: bool,
    /// Share the file with other servers that say so too.
    pub shared: bool,
    /// Never bypass the page cache.
    pub buffered: bool,
    /// The volume's UUID, if it was given one.
    pub uuid: Option<[u8; 16]>,
    /// One of several ways, among which somebody above chooses.
    pub is_path: bool,
    /// Who may not want in the end what is made.
    pub made: Option<Arc<Made>>,
}

#[cfg(test)]
impl FileOptions {
    /// For tests: blocks of 512 bytes, in the page cache.
    pub(crate) fn buffered(path: impl Into<PathBuf>, create_bytes: Option<u64>) -> FileOptions {
        FileOptions {
            path: path.into(),
            create_bytes,
            block_shift: Some(9),
            read_only: false,
            shared: false,
            buffered: true,
            uuid: None,
            is_path: false,
            made: None,
        }
    }
}

/// Why a file cannot be served. Every message is one line and names the mend.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such file.
    #[error("{} does not exist; add ?create&size=10G to make it", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Its directory does not exist, so it cannot be made either.
    #[error("{} cannot be made: the directory {} does not exist", path.display(), directory.display())]
    MissingDirectory {
        /// The file.
        path: PathBuf,
        /// What is missing.
        directory: PathBuf,
    },
    /// The user may not open it.
    #[error("{} is not {}: permission denied; check its owner and mode{}", path.display(),
        if *read_only { "readable" } else { "readable and writable" },
        if *read_only { "" } else { ", or add ?ro" })]
    Denied {
        /// The file.
        path: PathBuf,
        /// Whether only reading was asked for.
        read_only: bool,
    },
    /// It lies on a read-only file system.
    #[error("{} is on a read-only file system; add ?ro to serve it read-only", path.display())]
    ReadOnlyFileSystem {
        /// The file.
        path: PathBuf,
    },
    /// It is a directory, a socket, a character device.
    #[error("{} is {what}, not a file or a block device", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is instead.
        what: &'static str,
    },
    /// Somebody else has it.
    #[error("{} is already served {} by another process; stop that one{}", path.display(),
        if *read_only { "read-write" } else { "or in use" },
        if *shared { "" } else { ", or, if both are `nvlane serve`, say --shared on both" })]
    Busy {
        /// The file.
        path: PathBuf,
        /// Whether only reading was asked for.
        read_only: bool,
        /// Whether sharing was asked for.
        shared: bool,
    },
    /// Mounted, or part of something else.
    #[error("{} is in use (mounted, or part of another device); unmount it, or add ?ro", path.display())]
    DeviceBusy {
        /// The device.
        path: PathBuf,
    },
    /// Not even one block fits.
    #[error("{} holds {bytes} bytes, less than one block of {block_bytes}; make it larger", path.display())]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The block size.
        block_bytes: u32,
    },
    /// The device's blocks are larger than those asked for.
    #[error("{} has blocks of {device_bytes} bytes, so it cannot serve blocks of {block_bytes}; \
        use ?bs={device_bytes}", path.display())]
    BlockSize {
        /// The device.
        path: PathBuf,
        /// The block size asked for.
        block_bytes: u32,
        /// The device's own.
        device_bytes: u32,
    },
    /// The size asked for is not a whole number of blocks.
    #[error("{}: a size of {bytes} is not aligned to blocks of {block_bytes} bytes", path.display())]
    Misaligned {
        /// The file.
        path: PathBuf,
        /// The size.
        bytes: u64,
        /// The block size.
        block_bytes: u32,
    },
    /// Anything else the kernel said.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl File {
    /// Opens and locks the file, and finds out what it allows.
    pub fn open(options: &FileOptions) -> Result<Arc<File>, OpenError> {
        let path = &options.path;
        let io = |action| move |source| OpenError::Io { path: path.clone(), action, source };
        // What it owns goes first if this fails.
        let Found { file, kind, created, own } = find(options)?;
        if created {
            let bytes = options.create_bytes.expect("only made when a size is given");
            // Durable before anybody is told that it exists.
            if let Err(source) =
                file.set_len(bytes).and_then(|()| file.sync_all()).and_then(|()| sync_parent(path))
            {
                // Nothing half-made is left behind.
                let _ = fs::remove_file(path);
                return Err(io("set its size")(source));
            }
        }
        let bytes = size(&file, kind).map_err(io("read its size"))?;
        let (block_shift, buffered) = choose_block(&file, kind, options)?;
        if buffered.is_none() {
            set_direct(&file).map_err(io("set O_DIRECT"))?;
        }
        if bytes >> block_shift == 0 {
            return Err(OpenError::TooSmall {
                path: path.clone(),
                bytes,
                block_bytes: 1 << block_shift,
            });
        }
        let left = bytes & ((1 << block_shift) - 1);
        if left > 0 {
            let (file, block) = (path.display(), 1 << block_shift);
            tracing::info!(%file, "its last {left} bytes are no whole block of {block}, and not part of the volume");
        }
        let copying = Copying::of(&file, kind).map_err(io("look at it"))?;
        let punches = !options.read_only && punches(&file, kind, bytes);
        Ok(Arc::new(File {
            _own: own,
            path: lasting(path),
            kind,
            block_shift,
            blocks: AtomicU64::new(bytes >> block_shift),
            read_only: options.read_only,
            buffered,
            uuid: options.uuid,
            punches,
            zeroes_by: ZeroesBy::default(),
            overrun: AtomicBool::new(false),
            shrunk: Mutex::new(None),
            copying,
            syncs: Syncs::default(),
            within_block: if kind == Kind::Regular { within_block(&file) } else { 0 },
            has_parts: AtomicBool::new(false),
            failed_syncs: AtomicU64::default(),
            dropped: AtomicU64::default(),
            dropped_at: Mutex::default(),
            is_path: options.is_path,
            file,
        }))
    }
}

/// Where the file's name is.
fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The path as it is to be named from now on. One with a symbolic link in it stays as it was given, since what the link
/// leads to may be another device after the next boot; any other has one form.
pub fn lasting(path: &Path) -> PathBuf {
    let Ok(absolute) = std::path::absolute(path) else { return path.to_owned() };
    let mut plain = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    match fs::canonicalize(&absolute) {
        Ok(found) if found == plain => plain,
        _ => absolute,
    }
}

/// Makes the name of a new file durable.
fn sync_parent(path: &Path) -> io::Result<()> {
    fs::File::open(directory(path))?.sync_all()
}

/// What kind of file it is or will be.
fn classify(options: &FileOptions) -> Result<Kind, OpenError> {
    let path = options.path.clone();
    let kind = match fs::metadata(&path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let Some(bytes) = options.create_bytes else {
                return Err(OpenError::Missing { path });
            };
            let directory = directory(&path);
            if !directory.is_dir() {
                let directory = directory.to_owned();
                return Err(OpenError::MissingDirectory { directory, path });
            }
            let block_bytes = 1 << options.block_shift.unwrap_or(9);
            if bytes < u64::from(block_bytes) {
                return Err(OpenError::TooSmall { path, bytes, block_bytes });
            }
            if !bytes.is_multiple_of(u64::from(block_bytes)) {
                return Err(OpenError::Misaligned { path, bytes, block_bytes });
            }
            return Ok(Kind::Regular);
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(OpenError::Denied { path, read_only: options.read_only });
        }
        Err(source) => return Err(OpenError::Io { path, action: "look at it", source }),
    };
    let what = if kind.is_file() {
        return Ok(Kind::Regular);
    } else if kind.is_block_device() {
        return Ok(Kind::Block);
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_char_device() {
        "a character device"
    } else {
        "a pipe or a socket"
    };
    Err(OpenError::NotAFile { path, what })
}

/// A file that is open and locked, and has its name still. Its fields are dropped as they stand here.
struct Found {
    own: Option<Own>,
    file: fs::File,
    kind: Kind,
    /// It was made just now, and has no size yet.
    created: bool,
}

/// Opens and locks the file, or makes it. Others may do so too, and take away what they have made: nobody is to go on with
/// what has no name any more.
fn find(options: &FileOptions) -> Result<Found, OpenError> {
    let path = &options.path;
    let io = |action| move |source| OpenError::Io { path: path.clone(), action, source };
    for attempt in 1.. {
        if attempt > 1 {
            thread::sleep(ATTEMPT_INTERVAL);
        }
        let is_last = attempt >= ATTEMPTS_MAX;
        let kind = classify(options)?;
        let writes_device = kind == Kind::Block && !options.read_only;
        let file = match open(options, writes_device && !options.shared) {
            Err(OpenError::Missing { .. }) if options.create_bytes.is_some() => {
                match create(options) {
                    // Somebody else makes it at this moment.
                    Err(OpenError::Io { source, .. })
                        if source.kind() == io::ErrorKind::AlreadyExists && !is_last =>
                    {
                        continue;
                    }
                    made => return made,
                }
            }
            Err(OpenError::Missing { .. }) if !is_last => continue,
            opened => opened?,
        };
        lock(&file, options)?;
        if writes_device && options.shared {
            // Whoever shares it keeps no file system, and no other device of this machine, from it as whoever has it
            // alone does: that there is none is seen once. Others who look at this moment are waited for.
            match open(options, true) {
                Err(OpenError::DeviceBusy { .. }) if !is_last => continue,
                looked => drop(looked?),
            }
        }
        let metadata = file.metadata().map_err(io("look at it"))?;
        let is_it = fs::metadata(path).is_ok_and(|now| made::id(&now) == made::id(&metadata));
        // Who makes it has not given it its size yet.
        let is_half_made = kind == Kind::Regular && metadata.len() == 0;
        match is_it {
            // Nobody is at it, since we have it alone: whoever made it was killed then. There is nothing to lose.
            true if is_last && is_half_made && may_finish(options) => {
                return Ok(Found { own: None, file, kind, created: true });
            }
            true if is_last || !is_half_made || options.create_bytes.is_none() => {
                return Ok(Found { own: None, file, kind, created: false });
            }
            false if is_last => {
                let others = io::Error::other("others replace it again and again");
                return Err(io("open it")(others));
            }
            _ => {}
        }
    }
    unreachable!("the last attempt ends it")
}

/// Opens the file that is there, a device `alone`: as nobody else of this machine has it.
fn open(options: &FileOptions, alone: bool) -> Result<fs::File, OpenError> {
    let path = options.path.clone();
    let mut open = OpenOptions::new();
    open.read(true).write(!options.read_only);
    if alone {
        open.custom_flags(libc::O_EXCL);
    }
    open.open(&path).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT) => OpenError::Missing { path },
        Some(libc::EACCES | libc::EPERM) => {
            OpenError::Denied { path, read_only: options.read_only }
        }
        Some(libc::EROFS) => OpenError::ReadOnlyFileSystem { path },
        Some(libc::EBUSY) => OpenError::DeviceBusy { path },
        _ => OpenError::Io { path, action: "open it", source: error },
    })
}

/// Makes the file, and locks it before anybody else does.
fn create(options: &FileOptions) -> Result<Found, OpenError> {
    let path = &options.path;
    let failed = |source| OpenError::Io { path: path.clone(), action: "make it", source };
    let make = || {
        let mut open = OpenOptions::new();
        let file = open.read(true).write(true).create_new(true).open(path).map_err(failed)?;
        // Whoever has opened it meanwhile gives it back, since it is empty.
        let mut attempt = 1;
        loop {
            match lock(&file, options) {
                Err(OpenError::Busy { .. }) if attempt < ATTEMPTS_MAX => {
                    thread::sleep(ATTEMPT_INTERVAL);
                }
                locked => return locked.map(|()| file),
            }
            attempt += 1;
        }
    };
    let kind = Kind::Regular;
    let Some(made) = &options.made else {
        return Ok(Found { own: None, file: make()?, kind, created: true });
    };
    let (file, own) = made.make(path, make, failed)?;
    Ok(Found { own: Some(own), file, kind, created: true })
}

/// One writer, or any number of readers, or any number that agreed to share.
fn lock(file: &fs::File, options: &FileOptions) -> Result<(), OpenError> {
    let share = options.shared || options.read_only;
    let operation = if share { libc::LOCK_SH } else { libc::LOCK_EX };
    // SAFETY: a system call on an open descriptor, without memory.
    if unsafe { libc::flock(file.as_raw_fd(), operation | libc::LOCK_NB) } == 0 {
        return Ok(());
    }
    let source = io::Error::last_os_error();
    let path = options.path.clone();
    if source.kind() == io::ErrorKind::WouldBlock {
        return Err(OpenError::Busy { path, read_only: options.read_only, shared: options.shared });
    }
    Err(OpenError::Io { path, action: "lock it", source })
}

/// Size in bytes now.
pub(super) fn size(file: &fs::File, kind: Kind) -> io::Result<u64> {
    if kind == Kind::Regular {
        return Ok(file.metadata()?.len());
    }
    const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
    let mut bytes = 0u64;
    // SAFETY: the request writes one u64 (linux/fs.h).
    if unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &mut bytes) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(bytes)
}

/// The block size as a power of two, and why the page cache is needed, if it is.
fn choose_block(
    file: &fs::File,
    kind: Kind,
    options: &FileOptions,
) -> Result<(u8, Option<&'static str>), OpenError> {
    if kind == Kind::Block {
        let device_bytes = sector_bytes(file).map_err(|source| OpenError::Io {
            path: options.path.clone(),
            action: "read its block size",
            source,
        })?;
        let block_bytes = 1 << options.block_shift.unwrap_or(9);
        let refused = options.block_shift.is_some() && block_bytes < device_bytes;
        if refused || device_bytes > 4096 {
            let path = options.path.clone();
            return Err(OpenError::BlockSize { path, block_bytes, device_bytes });
        }
    }
    let wanted = options.block_shift.unwrap_or(9);
    if options.buffered {
        let least = if kind == Kind::Block { sector_bytes(file).unwrap_or(512) } else { 512 };
        return Ok((wanted.max(least.ilog2() as u8), Some(ASKED_FOR)));
    }
    let Some(align) = direct_align(file) else {
        return Ok((wanted, Some("the file system has no O_DIRECT")));
    };
    match options.block_shift {
        Some(shift) if align > 1 << shift => {
            Ok((shift, Some("O_DIRECT needs larger blocks than ?bs= says")))
        }
        Some(shift) => Ok((shift, None)),
        None if align <= 512 => Ok((9, None)),
        None if align <= 4096 => Ok((12, None)),
        None => Ok((12, Some("O_DIRECT needs blocks larger than 4096"))),
    }
}

/// What O_DIRECT asks of offsets, lengths and memory; none where it is refused.
fn direct_align(file: &fs::File) -> Option<u32> {
    // SAFETY: an all-zero statx is valid, and the call fills it.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is an empty C string, which AT_EMPTY_PATH takes as the descriptor itself.
    let result = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN | libc::STATX_DIO_READ_ALIGN,
            &mut stat,
        )
    };
    if result == 0 && stat.stx_mask & libc::STATX_DIOALIGN != 0 {
        // Of a file that shares blocks XFS says that it is to be written in whole ones. It takes smaller
        // ones as before, and puts them through the page cache by itself: the block size of a volume
        // must not change because the volume was copied.
        let offset = match stat.stx_mask & libc::STATX_DIO_READ_ALIGN {
            0 => stat.stx_dio_offset_align,
            _ => stat.stx_dio_offset_align.min(stat.stx_dio_read_offset_align),
        };
        // Zero means that this file cannot be read directly.
        return (offset != 0).then_some(offset.max(stat.stx_dio_mem_align));
    }
    // The file system does not say: try the flag, and a page, which satisfies everybody.
    set_direct(file).ok()?;
    let found = [512usize, 4096].into_iter().find(|&len| reads_directly(file, len));
    set_flags(file, 0).ok()?;
    found.map(|len| len as u32)
}

/// Whether `len` bytes at offset `len` can be read into memory aligned to `len`.
fn reads_directly(file: &fs::File, len: usize) -> bool {
    #[repr(align(4096))]
    struct Page([u8; 8192]);
    let mut page = Box::new(Page([0; 8192]));
    // SAFETY: `len` bytes from `len` on lie within the page pair.
    let result = unsafe {
        libc::pread(file.as_raw_fd(), page.0.as_mut_ptr().add(len).cast(), len, len as libc::off_t)
    };
    result >= 0
}

fn set_direct(file: &fs::File) -> io::Result<()> {
    set_flags(file, libc::O_DIRECT)
}

/// Sets the descriptor's status flags that matter here.
fn set_flags(file: &fs::File, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: a system call on an open descriptor, without memory.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A block device's logical block size.
fn sector_bytes(file: &fs::File) -> io::Result<u32> {
    const BLKSSZGET: libc::c_ulong = 0x1268;
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int (linux/fs.h).
    if unsafe { libc::ioctl(file.as_raw_fd(), BLKSSZGET, &mut bytes) } != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Whether an empty file that is locked may be given the size of one that is made.
fn may_finish(options: &FileOptions) -> bool {
    options.create_bytes.is_some() && !options.shared && !options.read_only
}

/// The bits of an offset within one of the file system's blocks.
fn within_block(file: &fs::File) -> u64 {
    let bytes = rustix::fs::fstatvfs(file).map_or(4096, |system| system.f_frsize);
    bytes.max(1).next_power_of_two() - 1
}

/// Whether holes can be made, found out without touching any data.
fn punches(file: &fs::File, kind: Kind, bytes: u64) -> bool {
    use std::os::unix::fs::MetadataExt;
    if kind == Kind::Block {
        let Ok(metadata) = file.metadata() else { return false };
        let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
        return device_punches(Path::new(&format!("/sys/dev/block/{major}:{minor}")));
    }
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let Ok(end) = libc::off_t::try_from(bytes) else { return false };
    // Beyond the end there is nothing to lose.
    // SAFETY: a system call on an open descriptor, without memory.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, end, 4096) == 0 }
}

/// The same of the block device that sysfs tells of in `directory`. The kernel makes a hole by a Write Zeroes that may unmap, which
/// is not all that can discard: dm-thin and many disks cannot, and would leave the data.
fn device_punches(directory: &Path) -> bool {
    let limit = |place: &str, name: &str| {
        fs::read_to_string(directory.join(place).join(name)).ok()?.trim().parse::<u64>().ok()
    };
    // A partition's queue is its parent's.
    let can = |name| limit("queue", name).or_else(|| limit("../queue", name)) > Some(0);
    can("discard_max_bytes") && can("write_zeroes_max_bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_makes_holes_if_it_discards_and_zeroes_without_data() {
        let directory = tempfile::tempdir().unwrap();
        let (disk, queue) = (directory.path().join("sda"), directory.path().join("sda/queue"));
        for path in [&queue, &disk.join("sda1")] {
            fs::create_dir_all(path).unwrap();
        }
        let punches = || [device_punches(&disk), device_punches(&disk.join("sda1"))];
        assert_eq!(punches(), [false; 2]);
        for (discard, zeroes, can) in [(4096, 4096, true), (4096, 0, false), (0, 4096, false)] {
            fs::write(queue.join("discard_max_bytes"), format!("{discard}\n")).unwrap();
            fs::write(queue.join("write_zeroes_max_bytes"), format!("{zeroes}\n")).unwrap();
            assert_eq!(punches(), [can; 2], "{discard} {zeroes}");
        }
    }
}
