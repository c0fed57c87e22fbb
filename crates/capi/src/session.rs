//! Sessions: one ring, one thread.

use crate::errno;
use crate::failure::{Failure, answer};
use crate::handle::{self, Handle};
use crate::submission::Entries;
use crate::volume::write_text;
use std::ffi::{c_char, c_int};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Duration;
use volume::session::{Session, SessionConfig};

/// Commands that one session may have in flight.
pub const NVL_DEPTH_MAX: u32 = 32768;
/// nvl_config.flags: nvl_wait() never sleeps.
pub const NVL_POLL: u32 = 1;

const _: () = assert!(NVL_DEPTH_MAX as usize == volume::session::DEPTH_MAX);

/// How a session is set up. Zeroes are defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvl_config {
    /// sizeof(struct nvl_config): later versions may have more fields.
    pub size: u32,
    /// Commands in flight, at most NVL_DEPTH_MAX; 0 for 128.
    pub depth: u32,
    /// Address space for buffers of nvl_buffer_new(), in bytes; 0 for 32 MiB.
    pub buffer_bytes: u64,
    /// NVL_POLL.
    pub flags: u32,
    /// Microseconds for which nvl_wait() spins before it sleeps, where that pays; 0 for 50.
    pub spin_us: u32,
}

/// Volumes with one ring for all of them. It belongs to the thread that made it.
pub struct nvl_session(());

/// What is behind a session.
pub(crate) struct State {
    pub(crate) session: Session,
    pub(crate) entries: Rc<Entries>,
}

impl Handle for nvl_session {
    type State = State;
    const KIND: u64 = 0x6e76_6c5f_7365_7373;
    const NAME: &'static str = "a session";
}

/// Makes a session of the calling thread; `config` may be null for defaults.
///
/// Where io_uring is refused, epoll and threads do its work: nvl_refusal() tells.
///
/// Errors: -EINVAL; -EMFILE, -ENOMEM and others where something is missing, and nvl_error() says what would mend it.
///
/// # Safety
/// `config` is null or points to a structure of `config->size` bytes; `session` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_session_new(
    config: *const nvl_config,
    session: *mut *mut nvl_session,
) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { new(config, session) })
}

/// # Safety
/// As for [`nvl_session_new`].
unsafe fn new(config: *const nvl_config, out: *mut *mut nvl_session) -> Result<c_int, Failure> {
    // SAFETY: as the caller promised.
    unsafe { handle::place(out) }?;
    let mut options = SessionConfig::default();
    if !config.is_null() {
        // SAFETY: as the caller promised; the size comes first.
        let size = unsafe { config.cast::<u32>().read_unaligned() } as usize;
        if size != size_of::<nvl_config>() {
            return Err(Failure::argument(format!(
                "nvl_config.size is {size}, not {}: set it to sizeof(struct nvl_config)",
                size_of::<nvl_config>()
            )));
        }
        // SAFETY: as the caller promised.
        let config = unsafe { config.read_unaligned() };
        configure(&mut options, &config)?;
    }
    let depth = options.depth;
    let session = Session::new(&options).map_err(|error| errno::of_session(&error))?;
    let entries = Rc::new(Entries::new(depth));
    // SAFETY: as the caller promised.
    Ok(unsafe { handle::give(State { session, entries }, out) })
}

fn configure(options: &mut SessionConfig, config: &nvl_config) -> Result<(), Failure> {
    if config.flags & !NVL_POLL != 0 {
        return Err(Failure::argument(format!(
            "nvl_config.flags {:#x}: unknown bits",
            config.flags
        )));
    }
    if config.depth > NVL_DEPTH_MAX {
        return Err(Failure::argument(format!(
            "nvl_config.depth {} is more than {NVL_DEPTH_MAX}",
            config.depth
        )));
    }
    if config.depth != 0 {
        options.depth = config.depth as usize;
    }
    if config.buffer_bytes != 0 {
        options.buffer_bytes = usize::try_from(config.buffer_bytes).unwrap_or(usize::MAX);
    }
    if config.spin_us != 0 {
        options.spin = Duration::from_micros(config.spin_us.into());
    }
    options.poll = config.flags & NVL_POLL != 0;
    Ok(())
}

/// Ends a session: waits for its commands, and forgets what they give back. Its volumes and buffers take no more
/// commands (-ESHUTDOWN) and are still to be closed and freed.
///
/// # Safety
/// `session` is null or a session, not freed; it is not used again if this returns 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_session_free(session: *mut nvl_session) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { handle::take(session) }.map(|session| {
        let State { session, entries } = session;
        drop(session);
        entries.forget();
        0
    }))
}

/// Hands what was submitted to the kernel and to sockets. Never blocks.
///
/// # Safety
/// `session` is null or a session, not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_flush(session: *mut nvl_session) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { handle::of(session) }.map(|session| {
        session.session.flush();
        0
    }))
}

/// Hands over what was submitted, and sleeps until `min` commands can be reaped, or as many as there are if that is
/// fewer; at most for `timeout_ns` nanoseconds, or for as long as it takes if that is negative. Gives how many can
/// be reaped. Signals do not end it.
///
/// # Safety
/// `session` is null or a session, not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_wait(session: *mut nvl_session, min: u32, timeout_ns: i64) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { handle::of(session) }.map(|session| {
        let timeout = u64::try_from(timeout_ns).ok().map(Duration::from_nanos);
        session.session.wait(min as usize, timeout) as c_int
    }))
}

/// Gives a descriptor for a loop of the program's own to poll for reading (poll, epoll, libuv), level- or edge-triggered;
/// to be polled, and neither read nor closed. It serves all volumes of the session, and is the same at each call. Before
/// sleeping call nvl_arm(), each time; when it is readable, nvl_reap(). Take it out of the loop before
/// nvl_session_free().
///
/// Errors: -EOPNOTSUPP with NVL_POLL; what the kernel says where there is no descriptor to be had.
///
/// # Safety
/// `session` is null or a session, not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_poll_fd(session: *mut nvl_session) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { handle::of(session) }.and_then(|session| {
        let fd = session.session.poll_fd().map_err(|error| errno::of_poll(&error))?;
        Ok(fd.as_raw_fd())
    }))
}

/// Hands over what was submitted, and gives how many commands can be reaped. If that is 0, the program may sleep on
/// nvl_poll_fd(), which becomes readable as soon as there is something for the session to do; now and then for nothing that
/// the program would see. Then, and when something was submitted meanwhile, this is to be called again. Never blocks.
///
/// Errors: as for nvl_poll_fd(); -EOPNOTSUPP also where commands are in flight whose completions are polled for, or that a thread of
/// the kernel submits (poll, hybrid, sqpoll of a device): only nvl_wait() and nvl_reap() tell of those.
///
/// # Safety
/// `session` is null or a session, not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_arm(session: *mut nvl_session) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { handle::of(session) }.and_then(|session| {
        let ready = session.session.arm().map_err(|error| errno::of_poll(&error))?;
        Ok(ready as c_int)
    }))
}

/// Gives how many commands were submitted and not yet reaped: what counts towards the depth.
///
/// # Safety
/// `session` is null or a session, not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_outstanding(session: *mut nvl_session) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { handle::of(session) }.map(|session| session.session.outstanding() as c_int))
}

/// Writes why io_uring is not used, and what would allow it, with a zero at the end, cut off where it is longer than `bytes`. Until
/// then files are slower and NVMe devices are not to be had. Gives its length without the zero, as snprintf does: 0 where io_uring is
/// used.
///
/// # Safety
/// `session` is null or a session, not freed; `text` is writable for `bytes` bytes, or null if `bytes` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_refusal(
    session: *mut nvl_session,
    text: *mut c_char,
    bytes: usize,
) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { handle::of(session) }.and_then(|session| {
        let why = session.session.refusal().unwrap_or_default();
        // SAFETY: as the caller promised.
        unsafe { write_text(&why, text, bytes) }
    }))
}
