//! Commands in, completions out.

use crate::buffer::{Memory, nvl_buffer};
use crate::failure::{Failure, answer};
use crate::handle;
use crate::session::nvl_session;
use crate::volume::nvl_volume;
use libc::iovec;
use nvme::Command;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::rc::Rc;
use volume::session::{Bytes, Done, Ranges, RawBytes, Reason, Submission, Vectors};

/// nvl_command.queue: an I/O command, for the volume.
pub const NVL_IO: u32 = 0;
/// nvl_command.queue: an admin command, for the controller behind the volume.
pub const NVL_ADMIN: u32 = 1;

/// Any NVMe command. What is left zero is zero in the command.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvl_command {
    /// Opcode.
    pub opcode: u8,
    /// Byte 1 of the command: FUSE and PSDT. Fused commands are refused.
    pub flags: u8,
    /// 0.
    pub reserved: u16,
    /// Namespace. Of an I/O command it is the volume's own, whatever stands here; an admin command names none (0), all
    /// (FFFFFFFFh) or the volume's own (1 where that has no such id), or it is refused (Invalid Namespace or Format).
    pub nsid: u32,
    /// Command dword 2.
    pub cdw2: u32,
    /// Command dword 3.
    pub cdw3: u32,
    /// Command dword 10.
    pub cdw10: u32,
    /// Command dword 11.
    pub cdw11: u32,
    /// Command dword 12.
    pub cdw12: u32,
    /// Command dword 13.
    pub cdw13: u32,
    /// Command dword 14.
    pub cdw14: u32,
    /// Command dword 15.
    pub cdw15: u32,
    /// NVL_IO or NVL_ADMIN.
    pub queue: u32,
    /// Milliseconds that a device may take; 0 for its own time-out.
    pub timeout_ms: u32,
    /// What is written, or where is read to; with a buffer, a place in it, or null for its start. It must stay
    /// until the command was reaped.
    pub data: *mut c_void,
    /// Bytes at `data`.
    pub data_len: u32,
    /// Bytes at `metadata`.
    pub metadata_len: u32,
    /// Metadata of the blocks, likewise.
    pub metadata: *mut c_void,
    /// The buffer that `data` lies in; null for other memory.
    pub buffer: *mut nvl_buffer,
    /// Comes back with the completion.
    pub token: u64,
}

/// What became of a command.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvl_completion {
    /// nvl_command.token.
    pub token: u64,
    /// Dwords 0 and 1 of the completion: the block that a Zone Append wrote to, for example.
    pub result: u64,
    /// 0, or SC in bits 7:0, SCT in 10:8, CRD in 12:11, More in 13, Do Not Retry in 14; see nvl_status_text().
    pub status: u16,
    /// 0.
    pub reserved: u16,
    /// nvl_volume_id() of the volume.
    pub volume: u32,
}

/// What a session remembers of each command in flight; nothing is allocated per command.
pub(crate) struct Entries {
    places: RefCell<Vec<Entry>>,
    free: RefCell<Vec<u32>>,
    /// For what is reaped, empty in between.
    done: RefCell<Vec<Done>>,
    /// Room for the ranges of Copies.
    ranges: RefCell<Vec<Ranges>>,
    /// Room for the pieces of data.
    vectors: RefCell<Vec<Vectors>>,
}

#[derive(Default)]
struct Entry {
    token: u64,
    memory: Option<Rc<Memory>>,
}

impl Entries {
    pub(crate) fn new(depth: usize) -> Entries {
        Entries {
            places: RefCell::new((0..depth).map(|_| Entry::default()).collect()),
            free: RefCell::new((0..depth as u32).rev().collect()),
            done: RefCell::new(Vec::with_capacity(depth)),
            ranges: RefCell::default(),
            vectors: RefCell::default(),
        }
    }

    /// Ranges to be filled.
    pub(crate) fn spare_ranges(&self) -> Ranges {
        self.ranges.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps the room of ranges for the next ones.
    pub(crate) fn keep_ranges(&self, mut ranges: Ranges) {
        ranges.clear();
        self.ranges.borrow_mut().push(ranges);
    }

    /// Keeps the room of pieces for the next ones.
    fn keep_vectors(&self, mut vectors: Vectors) {
        vectors.drain();
        self.vectors.borrow_mut().push(vectors);
    }

    /// Nothing is in flight any more.
    pub(crate) fn forget(&self) {
        let mut places = self.places.borrow_mut();
        places.iter_mut().for_each(Entry::release);
        *self.free.borrow_mut() = (0..places.len() as u32).rev().collect();
    }
}

/// A free entry, which is taken once the command was.
pub(crate) struct Memo<'a> {
    entries: &'a Entries,
    index: u32,
}

impl<'a> Memo<'a> {
    /// None if the depth is reached.
    pub(crate) fn new(entries: &'a Entries) -> Option<Memo<'a>> {
        let index = entries.free.borrow().last().copied()?;
        Some(Memo { entries, index })
    }

    /// What the library's completion is to carry.
    pub(crate) fn index(&self) -> u64 {
        self.index.into()
    }

    /// The command was taken.
    pub(crate) fn keep(self, token: u64, memory: Option<Rc<Memory>>) {
        let Memo { entries, index } = self;
        entries.free.borrow_mut().pop();
        if let Some(memory) = &memory {
            memory.users.set(memory.users.get() + 1);
        }
        entries.places.borrow_mut()[index as usize] = Entry { token, memory };
    }
}

impl Entry {
    fn release(&mut self) {
        if let Some(memory) = self.memory.take() {
            memory.users.set(memory.users.get() - 1);
        }
    }
}

/// Starts a command: notes it, to be handed over by nvl_flush(), nvl_wait() or nvl_reap(). Never blocks. What is
/// wrong with the command itself is told by its completion's status.
///
/// Errors: -EAGAIN if the depth is reached, reap first; -ENOBUFS if memory must be copied and the pool is used up;
/// -EINVAL; -ESHUTDOWN after nvl_session_free().
///
/// # Safety
/// `volume` is null or a volume, not closed; `command` is null or readable; its memory is as long as it says, and stays
/// until the command was reaped or the session freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_submit(volume: *mut nvl_volume, command: *const nvl_command) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { submit(volume, command) })
}

/// The same for data in several pieces of memory that is no buffer's, together as long as the command says; `data`,
/// `data_len` and `buffer` are 0. A device of this machine is given the pieces as they are, up to 1,024 of them, but for
/// Compare and Dataset Management; otherwise, and with every other volume, what they hold is copied by way of the
/// session's pool. The list may go as soon as this returns. A Copy's ranges come in one piece: Invalid Field otherwise.
///
/// Errors: as nvl_submit().
///
/// # Safety
/// As for nvl_submit(); `vectors` has `count` elements, or is null if `count` is 0, and what they point to stays until
/// the command was reaped or the session freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_submit_vectors(
    volume: *mut nvl_volume,
    command: *const nvl_command,
    vectors: *const iovec,
    count: u32,
) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { submit_vectors(volume, command, vectors, count) })
}

/// # Safety
/// As for [`nvl_submit_vectors`].
unsafe fn submit_vectors(
    volume: *mut nvl_volume,
    command: *const nvl_command,
    vectors: *const iovec,
    count: u32,
) -> Result<c_int, Failure> {
    // SAFETY: as the caller promised.
    let (command, volume) = unsafe { (read(command)?, handle::of(volume)?) };
    if !command.data.is_null() || command.data_len != 0 || !command.buffer.is_null() {
        return Err(Failure::argument("nvl_command has data, a length or a buffer beside vectors"));
    }
    if vectors.is_null() && count > 0 {
        return Err(Failure::argument("the vectors are null"));
    }
    let memo = Memo::new(&volume.entries).ok_or_else(|| rejected(Reason::Full))?;
    let mut pieces = volume.entries.vectors.borrow_mut().pop().unwrap_or_default();
    // SAFETY: as the caller promised.
    let outcome = unsafe { fill(&mut pieces, vectors, count) }
        // SAFETY: as the caller promised.
        .and_then(|()| unsafe { raw(command.metadata, command.metadata_len, "metadata") });
    let metadata = match outcome {
        Ok(metadata) => metadata,
        Err(failure) => {
            volume.entries.keep_vectors(pieces);
            return Err(failure);
        }
    };
    let submission = Submission {
        command: built(&command),
        admin: command.queue == NVL_ADMIN,
        data: pieces.into(),
        metadata,
        timeout_ms: command.timeout_ms,
        token: memo.index(),
    };
    volume.volume.submit(submission).map_err(|error| {
        if let Bytes::Vectors(pieces) = error.submission.data {
            volume.entries.keep_vectors(pieces);
        }
        rejected(error.reason)
    })?;
    memo.keep(command.token, None);
    Ok(0)
}

/// # Safety
/// As for [`nvl_submit_vectors`].
unsafe fn fill(pieces: &mut Vectors, vectors: *const iovec, count: u32) -> Result<(), Failure> {
    for at in 0..count as usize {
        // SAFETY: as the caller promised.
        let iovec { iov_base, iov_len } = unsafe { vectors.add(at).read_unaligned() };
        if iov_base.is_null() && iov_len > 0 {
            return Err(Failure::argument(format!("vector {at} is null, but has {iov_len} bytes")));
        }
        if u32::try_from(pieces.len() as u64 + iov_len as u64).is_err() {
            return Err(Failure::argument("the vectors have more than 4 GiB"));
        }
        if iov_len > 0 {
            // SAFETY: as the caller promised.
            pieces.push(unsafe { RawBytes::new(iov_base.cast(), iov_len, None) });
        }
    }
    Ok(())
}

/// # Safety
/// `command` is null or readable.
#[inline]
unsafe fn read(command: *const nvl_command) -> Result<nvl_command, Failure> {
    if command.is_null() {
        return Err(Failure::argument("the command is null"));
    }
    // SAFETY: as the caller promised.
    let command = unsafe { command.read_unaligned() };
    if ![NVL_IO, NVL_ADMIN].contains(&command.queue) || command.reserved != 0 {
        return Err(Failure::argument("nvl_command: no such queue, or reserved is not 0"));
    }
    Ok(command)
}

/// # Safety
/// As for [`nvl_submit`].
unsafe fn submit(volume: *mut nvl_volume, command: *const nvl_command) -> Result<c_int, Failure> {
    // SAFETY: as the caller promised.
    let volume = unsafe { handle::of(volume) }?;
    // SAFETY: as the caller promised.
    let command = unsafe { read(command) }?;
    // SAFETY: as the caller promised.
    let (data, memory) = unsafe { data_of(&command, &volume.entries) }?;
    let memo = Memo::new(&volume.entries).ok_or_else(|| rejected(Reason::Full))?;
    // SAFETY: as the caller promised.
    let metadata = unsafe { raw(command.metadata, command.metadata_len, "metadata") }?;
    let submission = Submission {
        command: built(&command),
        admin: command.queue == NVL_ADMIN,
        data,
        metadata,
        timeout_ms: command.timeout_ms,
        token: memo.index(),
    };
    volume.volume.submit(submission).map_err(|error| rejected(error.reason))?;
    memo.keep(command.token, memory);
    Ok(0)
}

/// The command's memory, and the buffer that it is of.
///
/// # Safety
/// As for [`nvl_submit`].
#[inline]
unsafe fn data_of(
    command: &nvl_command,
    entries: &Rc<Entries>,
) -> Result<(Bytes, Option<Rc<Memory>>), Failure> {
    if command.buffer.is_null() {
        // SAFETY: as the caller promised.
        return Ok((unsafe { raw(command.data, command.data_len, "data") }?, None));
    }
    // SAFETY: as the caller promised.
    let memory = unsafe { handle::of(command.buffer) }?;
    let len = command.data_len as usize;
    let start = memory.start as usize;
    let at = if command.data.is_null() { start } else { command.data as usize };
    if at < start || at.checked_add(len).is_none_or(|end| end > start + memory.len()) {
        return Err(Failure::argument("nvl_command.data does not lie in nvl_command.buffer"));
    }
    if len == 0 {
        return Ok((Bytes::None, None));
    }
    let fixed = memory.fixed_index_in(entries);
    // SAFETY: within the buffer, which its entry keeps; its pages are registered under this index.
    let bytes = unsafe { RawBytes::new(memory.start.add(at - start), len, fixed) };
    Ok((Bytes::Raw(bytes), Some(Rc::clone(memory))))
}

/// # Safety
/// `pointer` is null, or has `len` bytes that stay until the command was reaped.
#[inline]
unsafe fn raw(pointer: *mut c_void, len: u32, what: &str) -> Result<Bytes, Failure> {
    if len == 0 {
        return Ok(Bytes::None);
    }
    if pointer.is_null() {
        return Err(Failure::argument(format!(
            "nvl_command.{what} is null, but {what}_len is {len}"
        )));
    }
    // SAFETY: as the caller promised.
    Ok(Bytes::Raw(unsafe { RawBytes::new(pointer.cast(), len as usize, None) }))
}

#[inline]
fn built(command: &nvl_command) -> Command {
    Command {
        opcode: command.opcode,
        flags: command.flags,
        nsid: command.nsid.into(),
        cdw2: command.cdw2.into(),
        cdw3: command.cdw3.into(),
        cdw10: command.cdw10.into(),
        cdw11: command.cdw11.into(),
        cdw12: command.cdw12.into(),
        cdw13: command.cdw13.into(),
        cdw14: command.cdw14.into(),
        cdw15: command.cdw15.into(),
        ..Command::default()
    }
}

pub(crate) fn rejected(reason: Reason) -> Failure {
    let errno = match reason {
        Reason::Full => libc::EAGAIN,
        Reason::NoBuffer => libc::ENOBUFS,
        Reason::Ended => libc::ESHUTDOWN,
        Reason::Foreign => libc::EXDEV,
        Reason::Empty | Reason::Overlap => libc::EINVAL,
    };
    Failure::new(errno, reason.to_string())
}

/// Hands over what was submitted, and fills in up to `most` commands that have completed, in that order. Never
/// blocks. Gives how many.
///
/// # Safety
/// `session` is null or a session, not freed; `completions` is writable for `most` elements, or null if `most` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_reap(
    session: *mut nvl_session,
    completions: *mut nvl_completion,
    most: u32,
) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { handle::of(session) }.and_then(|session| {
        if completions.is_null() && most > 0 {
            return Err(Failure::argument("the place for completions is null"));
        }
        let entries = &session.entries;
        let mut done = entries.done.borrow_mut();
        let count = session.session.reap_up_to(&mut done, most as usize);
        for (at, done) in done.drain(..).enumerate() {
            let mut places = entries.places.borrow_mut();
            let entry = &mut places[done.token as usize];
            entry.release();
            entries.free.borrow_mut().push(done.token as u32);
            let completion = nvl_completion {
                token: entry.token,
                result: done.result,
                status: done.status.0,
                reserved: 0,
                volume: done.volume.0,
            };
            drop(places);
            match done.data {
                Bytes::Ranges(ranges) => entries.keep_ranges(ranges),
                Bytes::Vectors(vectors) => entries.keep_vectors(vectors),
                _ => {}
            }
            // SAFETY: as the caller promised; there are no more than `most`.
            unsafe { completions.add(at).write(completion) };
        }
        Ok(count as c_int)
    }))
}

#[cfg(test)]
mod tests;
