//! Volumes of a session.

use crate::errno;
use crate::failure::{Failure, answer};
use crate::handle::{self, Handle};
use crate::paths::Sent;
use crate::session::nvl_session;
use crate::submission::Entries;
use nvme::limits::Passthrough;
use std::ffi::{CStr, c_char, c_int};
use std::rc::Rc;
use volume::OpenOptions;
use volume::session::Volume;

/// nvl_open(): refuse to write.
pub const NVL_READ_ONLY: u32 = 1;
/// nvl_open(): others may have the volume open too, if they say so as well.
pub const NVL_SHARED: u32 = 2;

/// nvl_limits.flags: the volume takes no writes.
pub const NVL_LIMITS_READ_ONLY: u32 = 1;
/// nvl_limits.flags: what was written survives a power cut only after a Flush.
pub const NVL_LIMITS_VOLATILE: u32 = 2;
/// nvl_limits.flags: I/O commands beyond the NVM command set reach what is behind the volume.
pub const NVL_LIMITS_PASSES_IO: u32 = 4;
/// nvl_limits.flags: so do admin commands.
pub const NVL_LIMITS_PASSES_ADMIN: u32 = 8;

/// A volume that a session has open.
pub struct nvl_volume(());

/// What is behind a volume.
pub(crate) struct State {
    pub(crate) volume: Volume,
    pub(crate) entries: Rc<Entries>,
    /// What nvl_paths() has told of.
    pub(crate) sent: Sent,
}

impl Handle for nvl_volume {
    type State = State;
    const KIND: u64 = 0x6e76_6c5f_766f_6c75;
    const NAME: &'static str = "a volume";
}

/// What a volume is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvl_limits {
    /// Logical blocks.
    pub blocks: u64,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Bytes of the largest data transfer of one command.
    pub transfer_bytes_max: u32,
    /// Bytes of metadata of each block, where they are transferred apart.
    pub metadata_bytes: u32,
    /// NVL_LIMITS_*.
    pub flags: u32,
    /// Blocks of all source ranges of one Copy together; 0 where there is no Copy.
    pub copy_blocks_max: u32,
    /// Blocks of one of them.
    pub copy_range_blocks_max: u32,
    /// How many there may be.
    pub copy_ranges_max: u32,
    /// 0.
    pub reserved: u32,
}

/// Opens any volume by its path or URI: "/dev/ng0n1", "disk.img", "mem:1G", "tcp://192.0.2.1:4420/NQN?ns=1". May
/// block, for a remote one until it has answered. `flags` are NVL_READ_ONLY, NVL_SHARED.
///
/// Errors: -EINVAL, also for a URI that makes no sense; -ENOENT, -EACCES, -EBUSY, -EHOSTUNREACH and what else the kernel
/// says. nvl_error() names the mend.
///
/// # Safety
/// `session` is null or a session, not freed; `uri` is null or a text that ends with a zero; `volume` is null or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_open(
    session: *mut nvl_session,
    uri: *const c_char,
    flags: u32,
    volume: *mut *mut nvl_volume,
) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { open(session, uri, flags, volume) })
}

/// # Safety
/// As for [`nvl_open`].
unsafe fn open(
    session: *mut nvl_session,
    uri: *const c_char,
    flags: u32,
    out: *mut *mut nvl_volume,
) -> Result<c_int, Failure> {
    // SAFETY: as the caller promised.
    let (session, ()) = unsafe { (handle::of(session)?, handle::place(out)?) };
    if uri.is_null() {
        return Err(Failure::argument("the volume's URI is null"));
    }
    if flags & !(NVL_READ_ONLY | NVL_SHARED) != 0 {
        return Err(Failure::argument(format!("nvl_open: flags {flags:#x}: unknown bits")));
    }
    // SAFETY: as the caller promised.
    let uri = unsafe { CStr::from_ptr(uri) };
    let uri = uri.to_str().map_err(|_| Failure::argument("the volume's URI is not UTF-8"))?;
    let options = OpenOptions {
        read_only: flags & NVL_READ_ONLY != 0,
        shared: flags & NVL_SHARED != 0,
        passthrough: Passthrough::ALL,
        ..OpenOptions::default()
    };
    let volume =
        session.session.open_with(uri, &options).map_err(|error| errno::of_volume(&error))?;
    let entries = Rc::clone(&session.entries);
    // SAFETY: as the caller promised.
    Ok(unsafe { handle::give(State { volume, entries, sent: Sent::default() }, out) })
}

/// Closes a volume. It takes no more commands; those in flight complete.
///
/// # Safety
/// `volume` is null or a volume, not closed; it is not used again if this returns 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_close(volume: *mut nvl_volume) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { handle::take(volume) }.map(|volume| {
        drop(volume);
        0
    }))
}

/// Fills in what the volume is now. Its size may change while it is open: this looks at it, and may block for as long as
/// that takes (a look at a file, a command to an NVMe namespace of this machine). Commands are checked against the size of
/// such namespaces as it was found by the last call of this, of other volumes as it was within the last second or two.
///
/// # Safety
/// `volume` is null or a volume, not closed; `limits` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_volume_limits(
    volume: *mut nvl_volume,
    limits: *mut nvl_limits,
) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { handle::of(volume) }.and_then(|volume| {
        if limits.is_null() {
            return Err(Failure::argument("the place for limits is null"));
        }
        let facts = volume.volume.limits();
        let flags = [
            (facts.read_only, NVL_LIMITS_READ_ONLY),
            (facts.volatile_write_cache, NVL_LIMITS_VOLATILE),
            (facts.passthrough.io, NVL_LIMITS_PASSES_IO),
            (facts.passthrough.admin, NVL_LIMITS_PASSES_ADMIN),
        ];
        let filled = nvl_limits {
            blocks: facts.blocks,
            block_bytes: facts.block_bytes(),
            transfer_bytes_max: facts.transfer_bytes_max,
            metadata_bytes: facts.metadata_bytes.into(),
            flags: flags.iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum(),
            copy_blocks_max: facts.copy.blocks_max,
            copy_range_blocks_max: facts.copy.range_blocks_max,
            copy_ranges_max: facts.copy.ranges_max.into(),
            reserved: 0,
        };
        // SAFETY: as the caller promised.
        unsafe { limits.write(filled) };
        Ok(0)
    }))
}

/// Gives what completions call the volume: a number above 0.
///
/// # Safety
/// `volume` is null or a volume, not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_volume_id(volume: *mut nvl_volume) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { handle::of(volume) }.map(|volume| volume.volume.id().0 as c_int))
}

/// Writes the volume's URI in canonical form, with a zero at the end, cut off where it is longer than `bytes`. Gives its
/// length without the zero, as snprintf does.
///
/// # Safety
/// `volume` is null or a volume, not closed; `text` is writable for `bytes` bytes, or null if `bytes` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_uri(
    volume: *mut nvl_volume,
    text: *mut c_char,
    bytes: usize,
) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { handle::of(volume) }.and_then(|volume| {
        // SAFETY: as the caller promised.
        unsafe { write_text(&volume.volume.uri(), text, bytes) }
    }))
}

/// Writes `from` as a text of C.
///
/// # Safety
/// `text` is writable for `bytes` bytes, or null.
pub(crate) unsafe fn write_text(
    from: &str,
    text: *mut c_char,
    bytes: usize,
) -> Result<c_int, Failure> {
    if text.is_null() && bytes > 0 {
        return Err(Failure::argument("the place for a text is null"));
    }
    if bytes > 0 {
        let len = from.len().min(bytes - 1);
        // SAFETY: `len` and a zero fit.
        unsafe {
            text.copy_from_nonoverlapping(from.as_ptr().cast(), len);
            text.add(len).write(0);
        }
    }
    Ok(from.len() as c_int)
}
