//! The ring as a library: volumes on the caller's own thread, which submits any NVMe command without
//! blocking and takes back what has completed.
//!
//! ```text
//!   submit ---> check ---> queue: device, file, remote ...      nothing is handed to the kernel yet
//!   flush, reap, wait ---> one turn of the reactor: one enter hands over all and takes all
//!   reap <--- Done { token, status, result, data }              the memory comes back with it
//! ```
//!
//! The same calls serve a local device, a file, memory and a remote namespace. A [`Session`] belongs to the
//! thread that made it; nothing of it happens while that thread is elsewhere, but for the admin
//! connections of remote volumes, which a thread of their own keeps alive. So a caller may be idle for as
//! long as it likes.
//!
//! Memory is the pool's ([`Session::allocate`]: registered with the ring, so that the kernel need not
//! look up its pages per command) or ordinary (a `Vec<u8>`, which the session owns while the command is in
//! flight), in one piece or in several ([`Vectors`]). See [`Bytes`].
//!
//! Who has a loop of his own (epoll, libuv, tokio) sleeps there, on a descriptor of the session's: [`Session::poll_fd`].
//!
//! A Copy ([`Submission::copy`]) takes its blocks from any volumes of the session; [`Volume::copy_to_all`] copies to
//! several of them, and [`Volume::copy_range`] is for those who would rather wait.
//!
//! What it does not do: retry, order commands among themselves, or flush a volume when it is closed. What a
//! volume's layers do of that is described where they are.
//!
//! Key constants: [`DEPTH_MAX`] commands in flight, [`CLOSE_WAIT`].

mod bytes;
mod check;
mod copies;
mod copy;
mod flights;
mod groups;
mod overlaps;
mod places;
mod submission;
mod vectors;

pub use bytes::{Bytes, RawBytes};
pub use copies::CopyError;
pub use copy::Ranges;
pub use reactor::OutsideError as PollError;
pub use submission::{Done, Reason, Rejected, Submission};
pub use vectors::Vectors;

use crate::{Error, OpenOptions, Uri};
use flights::Flights;
use namespace::Namespace;
use namespace::copy::Other;
use nvme::limits::Passthrough;
use nvme::{Limits, NSID_ALL, Status, opcode};
use overlaps::Overlaps;
use reactor::{Buffer, BufferPool, Config, Drive, Interval, Reactor};
use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io};
use uring::Kind;

/// Commands that one session may have in flight.
pub const DEPTH_MAX: usize = 32_768;

/// How long the end of a session waits for commands that are not the kernel's any more: delayed
/// ones, and those of a remote volume that has been lost. What the kernel holds is always waited for.
pub const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// Turns that [`Session::arm`] takes while there is something to do that completes no command.
const ROUNDS_MAX: usize = 64;

/// Bytes of a page of memory, as the kernel counts them.
const PAGE_BYTES: usize = 4096;

/// How long what a volume said of itself is relied upon.
const LIMITS_AGE: Duration = Duration::from_secs(1);

/// Entries of the ring's submission queue: more in flight than that is no error.
const ENTRIES: std::ops::RangeInclusive<usize> = 32..=4096;

/// How a session is set up.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Commands in flight, of all volumes together; 1 to [`DEPTH_MAX`].
    pub depth: usize,
    /// Address space for buffers of [`Session::allocate`], in bytes; memory is used as far as needed.
    pub buffer_bytes: usize,
    /// Sizes of the ring's entries. [`Kind::Big`], the default, takes NVMe commands for devices at the
    /// least cost (docs/decisions/0005); [`Kind::Small`] does for all but devices.
    pub kind: Kind,
    /// Never sleep in [`Session::wait`]: a whole core for the time it takes to be woken.
    pub poll: bool,
    /// How long [`Session::wait`] spins before it sleeps, where that has been paying.
    pub spin: Duration,
}

impl Default for SessionConfig {
    fn default() -> SessionConfig {
        let reactor = Config::default();
        SessionConfig {
            depth: 128,
            kind: Kind::Big,
            buffer_bytes: reactor.buffer_bytes,
            poll: false,
            spin: reactor.spin,
        }
    }
}

/// Why a session could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The depth is out of range.
    #[error("a session has 1 to {DEPTH_MAX} commands in flight, not {0}")]
    Depth(usize),
    /// Something is missing, and what takes io_uring's place as well; the message says what would mend it.
    #[error(transparent)]
    Reactor(#[from] reactor::Error),
}

/// Volumes on this thread, with one ring for all of them. Not `Send`: it stays where it was made.
///
/// Dropped, it waits for the commands in flight, since the kernel has their memory, and drops what they
/// would have given back; see [`CLOSE_WAIT`]. Its volumes' handles refuse commands from then on.
pub struct Session {
    core: Rc<Core>,
}

/// A volume that a session has open. Dropped, it takes no more commands; those in flight complete.
pub struct Volume {
    core: Rc<Core>,
    open: Rc<Open>,
}

/// Tells the volumes of a session apart in [`Done`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeId(pub u32);

/// A volume's two sides: the description, and this thread's queue.
struct Open {
    id: VolumeId,
    /// The namespace, and the queue; a Copy from here has them too.
    sides: Rc<Other>,
    /// What it could do at some time: asking costs locks where the volume is remote.
    limits: RefCell<Limits>,
    /// When it is asked again.
    age: Interval,
    /// It is also looked at then whether it has changed its size: that waits for no device.
    looks: bool,
    /// Ordinary memory must lie at a multiple of this, or is copied.
    alignment: usize,
    /// Data may go down in pieces that touch so many pages.
    vectors_pages: u32,
    /// The same of one piece, if it begins at no page.
    unaligned_max: usize,
}

struct Core {
    reactor: Rc<Reactor>,
    flights: Rc<Flights>,
    /// Something was submitted since the last turn.
    fresh: Cell<bool>,
    ended: Cell<bool>,
    overlaps: RefCell<Overlaps>,
}

impl Session {
    /// A session of the calling thread.
    ///
    /// # Errors
    /// A depth out of range; or io_uring is not to be had, and why.
    pub fn new(config: &SessionConfig) -> Result<Session, SessionError> {
        if !(1..=DEPTH_MAX).contains(&config.depth) {
            return Err(SessionError::Depth(config.depth));
        }
        let entries = config.depth.clamp(*ENTRIES.start(), *ENTRIES.end());
        let reactor = Reactor::new(&Config {
            entries: entries as u32,
            kind: config.kind,
            spin: config.spin,
            poll_always: config.poll,
            buffer_bytes: config.buffer_bytes,
            ..Config::default()
        })?;
        let flights = Flights::new(config.depth);
        let ended = Cell::new(false);
        let fresh = Cell::new(false);
        let overlaps = RefCell::default();
        Ok(Session { core: Rc::new(Core { reactor, flights, fresh, ended, overlaps }) })
    }

    /// Opens any volume by its URI, with everything it can do. May block, for a remote one
    /// until it has answered or `connect_timeout` is over.
    pub fn open(&self, uri: &str) -> Result<Volume, Error> {
        let everything = Passthrough::ALL;
        self.open_with(uri, &OpenOptions { passthrough: everything, ..OpenOptions::default() })
    }

    /// As [`Session::open`], with options: read-only, or shared with other programs that say so too. This
    /// session is the only core, and reads are never lent, whatever the options say of that.
    pub fn open_with(&self, uri: &str, options: &OpenOptions) -> Result<Volume, Error> {
        let uri: Uri = uri.parse()?;
        let options = OpenOptions { cores: 1, lend: false, ..*options };
        let namespace = crate::open_uri(&uri, &options)?;
        self.take_in(namespace, uri.has_file(), !uri.has_device())
            .map_err(|source| Error::Queue { uri: uri.to_string(), source })
    }

    /// Takes in a namespace that the caller has made. With `direct`, ordinary memory that does not lie
    /// at whole blocks is copied, as files need that are opened past the page cache. Whether its size has changed is
    /// looked at by [`Volume::limits`] alone, since that may take what it likes.
    pub fn adopt(&self, namespace: Arc<dyn Namespace>, direct: bool) -> io::Result<Volume> {
        self.take_in(namespace, direct, false)
    }

    fn take_in(
        &self,
        namespace: Arc<dyn Namespace>,
        direct: bool,
        looks: bool,
    ) -> io::Result<Volume> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let queue = Arc::clone(&namespace).open_queue(&self.core.reactor)?;
        let limits = namespace.limits();
        let alignment = if direct { limits.block_bytes() as usize } else { 1 };
        let id = VolumeId(NEXT.fetch_add(1, Ordering::Relaxed));
        let limits = RefCell::new(limits);
        let vectors_pages = namespace.vectors_pages();
        let unaligned_max = match vectors_pages {
            0 => usize::MAX,
            pages => (pages as usize - 1) * PAGE_BYTES,
        };
        let sides = Rc::new(Other { namespace, queue });
        let open = Rc::new(Open {
            id,
            sides,
            limits,
            age: Interval::new(LIMITS_AGE),
            looks,
            alignment,
            vectors_pages,
            unaligned_max,
        });
        self.core.flights.opened(&open);
        Ok(Volume { core: Rc::clone(&self.core), open })
    }

    /// Memory of the pool, which stays registered with the ring where the kernel allows it
    /// ([`Session::registration`]). Its bytes are what the last user left. `None` if there is no room now,
    /// or `len` is more than [`Session::BUFFER_BYTES_MAX`].
    pub fn allocate(&self, len: usize) -> Option<Buffer> {
        let buffer = self.core.reactor.buffers().allocate(len)?;
        // Once per piece of the pool: commands then find it registered.
        buffer.ensure_registered();
        Some(buffer)
    }

    /// Largest buffer that [`Session::allocate`] gives, in bytes.
    pub const BUFFER_BYTES_MAX: usize = BufferPool::buffer_len_max();

    /// Bytes of the pool that are registered with the ring, and why not more, if the kernel refused some.
    pub fn registration(&self) -> (usize, Option<String>) {
        let pool = self.core.reactor.buffers();
        (pool.registered(), pool.refusal())
    }

    /// Why io_uring is not used, and what would allow it, where epoll and threads do its work: files are slower then, and NVMe devices
    /// are not to be had. `None` where it is used.
    pub fn refusal(&self) -> Option<String> {
        self.core.reactor.refusal().map(ToString::to_string)
    }

    /// Hands what was submitted to the kernel and to sockets. Never blocks.
    pub fn flush(&self) {
        self.core.turn(Drive::Poll);
    }

    /// Hands over what was submitted, and appends what has completed to `done`, in the order in which it
    /// completed. Never blocks. Returns how many were appended.
    pub fn reap(&self, done: &mut Vec<Done>) -> usize {
        self.reap_up_to(done, usize::MAX)
    }

    /// As [`Session::reap`], but leaves what is more than `most` for the next time.
    pub fn reap_up_to(&self, done: &mut Vec<Done>, most: usize) -> usize {
        // What a wait has brought is there to be taken.
        if self.core.fresh.get() || self.core.flights.ready() == 0 {
            self.core.turn(Drive::Poll);
        }
        self.core.flights.take(done, most)
    }

    /// The command that has completed first of those that wait to be reaped ([`Session::wait`]), if one does; spares a list
    /// that is filled and emptied again. Hands nothing over, and sees nothing new: both are for [`Session::wait`] or
    /// [`Session::flush`], once there are none. Volumes that complete what is submitted at once, such as memory, always have one for
    /// who submits another for each.
    #[inline]
    pub fn reap_one(&self) -> Option<Done> {
        self.core.flights.take_one()
    }

    /// Hands over what was submitted, and sleeps until `min` commands wait to be reaped, or as many as
    /// there are if that is fewer; at most for `timeout`. Returns how many wait.
    pub fn wait(&self, min: usize, timeout: Option<Duration>) -> usize {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.wait_until(min, until.map_or(Drive::Forever, Drive::Until))
    }

    #[inline]
    fn wait_until(&self, min: usize, drive: Drive) -> usize {
        let flights = &self.core.flights;
        let is_over = || flights.ready() >= min || flights.in_flight() == 0;
        if is_over() {
            self.core.turn(Drive::Poll);
            if is_over() {
                return flights.ready();
            }
        }
        loop {
            // False when the time is over, or whoever has the reactor has stopped it.
            let has_worked = self.core.turn(drive);
            let is_late = || matches!(drive, Drive::Until(until) if Instant::now() >= until);
            if !has_worked || is_over() || is_late() {
                return flights.ready();
            }
        }
    }

    /// A descriptor for a loop of the caller's own to poll for reading (`poll`, `epoll`, libuv, tokio's `AsyncFd`), level-
    /// or edge-triggered; to be polled and not to be read. It serves all volumes of the session, and is the same at each
    /// call. Nothing happens by itself while the caller sleeps: before he does he calls [`Session::arm`], each time, and
    /// when it is readable he reaps.
    ///
    /// Take it out of the loop before the session is dropped.
    ///
    /// # Errors
    /// The session never sleeps ([`SessionConfig::poll`]); no descriptor is to be had.
    pub fn poll_fd(&self) -> Result<BorrowedFd<'_>, PollError> {
        self.core.reactor.descriptor()
    }

    /// Hands over what was submitted, and says how many commands wait to be reaped. If that is 0, the caller may sleep on
    /// [`Session::poll_fd`], which becomes readable as soon as there is something for the session to do, now and then
    /// for nothing that the caller would see: data of half a command, the end of a time. Then, and when something was submitted in the meantime,
    /// this is to be called again. Never blocks.
    ///
    /// # Errors
    /// As for [`Session::poll_fd`]; and where commands are in flight whose completions are polled for, or that a thread of the kernel
    /// submits (`poll`, `hybrid`, `sqpoll` of a device): only looking tells of those, by [`Session::wait`] or
    /// [`Session::reap`].
    pub fn arm(&self) -> Result<usize, PollError> {
        self.poll_fd()?;
        let (flights, reactor) = (&self.core.flights, &self.core.reactor);
        for _ in 0..ROUNDS_MAX {
            let has_worked = self.core.turn(Drive::Poll);
            let ready = flights.ready();
            if ready > 0 {
                return Ok(ready);
            }
            if !has_worked && reactor.arm()? {
                return Ok(0);
            }
        }
        // The caller's loop has other things to do as well: this goes on when it comes back, at once.
        reactor.rouse();
        Ok(0)
    }

    /// Commands submitted and not yet reaped: what counts towards the depth.
    pub fn outstanding(&self) -> usize {
        self.core.flights.outstanding()
    }

    /// The loop that drives this session, for its statistics and for what else shall happen on it.
    pub fn reactor(&self) -> &Rc<Reactor> {
        &self.core.reactor
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.core.end();
    }
}

impl Volume {
    /// Starts a command: notes it, to be handed over with the next turn. Never blocks, and hands nothing to
    /// the kernel by itself unless the ring is full of such notes.
    ///
    /// What is wrong with the command itself is told by its completion, with the status that a controller would
    /// give: a length that is not the command's, a range beyond the end.
    ///
    /// # Errors
    /// The depth is reached, or the session has ended; the submission comes back whole.
    #[expect(clippy::result_large_err, reason = "the caller has the command and its memory back")]
    pub fn submit(&self, submission: Submission) -> Result<(), Rejected> {
        if self.core.ended.get() {
            return Err(Rejected { reason: Reason::Ended, submission });
        }
        self.core.fresh.set(true);
        self.core.flights.start(&self.open, &self.core.reactor, submission)
    }

    /// Tells it apart in [`Done`].
    pub fn id(&self) -> VolumeId {
        self.open.id
    }

    /// Block size, capacity, and what it can do, now. May block: looks at a file, and asks an NVMe namespace of this machine
    /// by a command that waits. What cannot be found out is as it was; `namespace().limits()` looks nowhere.
    pub fn limits(&self) -> Limits {
        self.open.refresh();
        self.open.ask()
    }

    /// Its URI in canonical form.
    pub fn uri(&self) -> String {
        self.open.sides.namespace.uri()
    }

    /// The volume as such, for what may be asked of it from any thread: facts, paths, size.
    pub fn namespace(&self) -> &Arc<dyn Namespace> {
        &self.open.sides.namespace
    }
}

impl Open {
    /// How many bytes of a command's data go down, or what is wrong with it. Once a second it is looked what the volume
    /// is now, as a server does, and limits are asked for before anything is refused; a volume that has shrunk in
    /// between refuses by itself.
    #[inline]
    fn check(&self, submission: &Submission, reactor: &Reactor) -> Result<usize, Status> {
        if submission.admin {
            self.check_nsid(submission)?;
        }
        if !self.age.is_over(reactor)
            && let Ok(bytes) = check::check(submission, &self.limits.borrow())
        {
            return Ok(bytes);
        }
        self.check_anew(submission, reactor)
    }

    /// The same of a command with data in several pieces.
    fn check_pieces(&self, submission: &Submission, reactor: &Reactor) -> Result<usize, Status> {
        if submission.admin {
            self.check_nsid(submission)?;
        }
        if !self.age.is_over(reactor)
            && let Ok(bytes) = check::check_pieces(submission, &self.limits.borrow())
        {
            return Ok(bytes);
        }
        self.look(reactor);
        check::check_pieces(submission, &self.ask())
    }

    /// Refuses an admin command for another namespace than the volume's: it would be carried out on that.
    #[cold]
    fn check_nsid(&self, submission: &Submission) -> Result<(), Status> {
        let named = submission.command.nsid.get();
        // Whatever is below: it is one namespace.
        let own = || self.sides.namespace.nsid().unwrap_or(check::NSID);
        match matches!(named, 0 | NSID_ALL) || named == own() {
            true => Ok(()),
            false => Err(Status::INVALID_NAMESPACE.dnr()),
        }
    }

    /// Whether a command's pieces go down as they are: layers look into the data of some commands, and the driver has its
    /// call that blocks for others.
    fn takes_pieces(&self, submission: &Submission) -> bool {
        let Submission { command, admin, data, .. } = submission;
        let Bytes::Vectors(vectors) = data else { return true };
        let in_one = match admin {
            true => matches!(
                command.opcode,
                opcode::admin::FORMAT_NVM
                    | opcode::admin::NAMESPACE_MANAGEMENT
                    | opcode::admin::NAMESPACE_ATTACHMENT
            ),
            false => matches!(
                command.opcode,
                opcode::io::COMPARE | opcode::io::DATASET_MANAGEMENT | opcode::io::COPY
            ),
        };
        // Of admin commands the driver copies what it cannot list.
        let fits = *admin || vectors.pages() <= self.vectors_pages as usize;
        self.vectors_pages > 0
            && !in_one
            && fits
            && vectors.count() <= namespace::Vectors::COUNT_MAX
    }

    /// Whether `bytes` of ordinary memory may touch more pages than the driver takes, where no two lie beside one another.
    #[inline]
    fn is_scattered(&self, data: &Bytes, bytes: usize) -> bool {
        bytes > self.unaligned_max && bytes <= BufferPool::buffer_len_max() && data.is_unaligned()
    }

    #[cold]
    fn check_anew(&self, submission: &Submission, reactor: &Reactor) -> Result<usize, Status> {
        // Of those the length is not known here.
        if submission.is_in_pieces() {
            return Err(Status::INVALID_FIELD.dnr());
        }
        self.look(reactor);
        check::check(submission, &self.ask())
    }

    /// Looks what the volume is now, if that was long ago.
    #[inline]
    fn look(&self, reactor: &Reactor) {
        if self.age.is_over(reactor) {
            self.look_now(reactor);
        }
    }

    #[cold]
    fn look_now(&self, reactor: &Reactor) {
        self.age.restart(reactor);
        if self.looks {
            self.refresh();
        }
        self.ask();
    }

    /// Looks whether the size has changed. Where that cannot be told, commands tell what is wrong.
    fn refresh(&self) {
        let _ = self.sides.namespace.refresh();
    }

    /// What the volume can do, as far as it has been looked.
    fn ask(&self) -> Limits {
        let limits = self.sides.namespace.limits();
        self.limits.replace(limits);
        limits
    }
}

impl Core {
    /// Whether anything was done: not once the reactor was stopped.
    #[inline]
    fn turn(&self, drive: Drive) -> bool {
        self.fresh.set(false);
        self.reactor.turn_for(drive)
    }

    /// Waits for what is in flight, and ends the reactor.
    fn end(&self) {
        if self.ended.replace(true) {
            return;
        }
        let until = Instant::now() + CLOSE_WAIT;
        while self.flights.in_flight() > 0 && Instant::now() < until {
            if !self.turn(Drive::Until(until)) {
                break;
            }
        }
        // Drains: from here on neither the kernel nor a thread has memory of ours, and nobody is
        // called who would touch that of commands which are still waiting for something.
        self.reactor.stop();
        self.reactor.run();
        self.flights.forget();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("outstanding", &self.outstanding()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume").field("uri", &self.uri()).finish_non_exhaustive()
    }
}
