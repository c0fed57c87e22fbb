//! The contract between front doors, layers and backends.

use crate::copy::{CopyCounters, Located, OnThreads};
use crate::layer::program::Routed;
use crate::{Data, Lost};
use nvme::{Command, Limits, Status};
use reactor::Reactor;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

/// Layers that one request may pass; a deeper stack is refused when it is opened.
pub const DEPTH_MAX: usize = 8;

/// One NVMe command in flight, with its data.
///
/// A request is owned by whoever works on it: a front door takes it from its pool, a layer notes
/// what it needs in a frame and passes it on, a backend completes it, and it goes back the way
/// it came, frame by frame. Nobody else can reach it, so nothing of it is freed while the kernel
/// holds its buffers: the pending operation owns the box.
pub struct Request {
    /// The command. Layers may rewrite it, and do not undo that; one that needs the original again must keep it.
    pub command: Command,
    /// For a front door that may want it again: what it was, which nobody else looks at.
    pub asked: Command,
    /// The data to write, the buffer to read into, or the lent memory that was read.
    pub data: Data,
    /// Metadata of the blocks, where `limits.metadata_bytes` is not 0; a buffer or a part.
    pub metadata: Data,
    /// Time in milliseconds after which whoever executes the command is to give it up; 0 is his own
    /// time-out. Only namespaces that pass commands through look at it.
    pub timeout_ms: u32,
    /// Where `status` is a failure: errno, if a backend has it from the kernel; else zero, as whoever sends the request
    /// has set it.
    pub os_error: i32,
    /// Set by whoever completes the request.
    pub status: Status,
    /// Command-specific result: completion dwords 0 and 1.
    pub result: u64,
    /// For the backend while it holds the request.
    pub scratch: [u64; 4],
    /// The second command of a fused pair, with its data: this request is the Compare, `fused`
    /// the Write. Both go down and come back as one; each has its own status. A namespace whose
    /// `limits.commands.compare_and_write` is unset is never given one.
    pub fused: Option<Box<Request>>,
    frames: Frames,
}

struct Frames {
    len: usize,
    items: [Option<Frame>; DEPTH_MAX],
}

struct Frame {
    sink: Rc<dyn Sink>,
    state: u64,
}

/// Where a completed request goes next: the layer above, or the front door.
pub trait Sink {
    /// Takes a completed request; `state` is what was pushed with this sink.
    ///
    /// A layer changes the result or passes it up with [`Request::complete`], or sends the
    /// request down again. A front door only notes it and returns: it must not submit from here
    /// (a backend that completes at once would recurse).
    fn completed(&self, request: Box<Request>, state: u64);
}

/// A volume, seen from any thread.
///
/// Implementers: `submit` happens on queues, one per core; this side must not block a reactor.
pub trait Namespace: Send + Sync + fmt::Debug {
    /// Capacity, block size and capabilities now. Cheap: read from memory.
    fn limits(&self) -> Limits;

    /// Opens this core's way to the namespace. May block briefly (called at connect time, not per I/O).
    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>>;

    /// Looks whether the size has changed outside; true if `limits` differs from before. May block, and
    /// hang; called about once a second, by one thread at a time.
    fn refresh(&self) -> io::Result<bool>;

    /// Changes the capacity. May block, and hang; never on a core's thread.
    fn resize(&self, bytes: u64) -> io::Result<()>;

    /// Makes `file`, which must not exist, what the volume is at one moment, without moving its data. May block for long; on
    /// threads of the caller's own.
    ///
    /// # Errors
    /// It exists, or cannot be made; only a file on a file system that shares blocks has snapshots (`Unsupported`).
    fn snapshot(&self, file: &Path) -> io::Result<()> {
        let what = "only a file: volume has snapshots, on a file system that shares blocks";
        let _ = file;
        Err(io::Error::new(io::ErrorKind::Unsupported, what))
    }

    /// Makes everything acknowledged durable, at shutdown. May block; control thread only.
    fn flush(&self) -> io::Result<()>;

    /// The volume's URI in canonical form, with its layers, for people and for state files.
    fn uri(&self) -> String;

    /// One `key: value` pair per fact worth showing (means chosen, fall-backs taken).
    fn describe(&self, facts: &mut Vec<(String, String)>);

    /// The volume's own persistent UUID if it carries or was given one.
    fn uuid(&self) -> Option<[u8; 16]>;

    /// Whether a logical block is read and written whole even while other commands on the same
    /// block are in flight, on this core or another. If not, the layer that `volume::open` puts
    /// on top keeps overlapping commands apart.
    fn keeps_blocks_whole(&self) -> bool {
        false
    }

    /// Whether Read and Write may come with [`Data::Registered`], pages of the kernel, on queues of
    /// reactors whose own ring takes NVMe commands ([`Reactor::takes_commands`]).
    fn takes_registered(&self) -> bool {
        false
    }

    /// How many pages the data of an I/O command may touch that comes with [`Data::Vectors`], in several pieces: all may but
    /// Compare, Copy and Dataset Management, which layers look into. 0 where none may. What comes in one piece may touch as
    /// many, if it is no memory of the pool.
    fn vectors_pages(&self) -> u32 {
        0
    }

    /// The id by which its controller knows the namespace, where that is known. Admin commands that name any id but 0 and
    /// [`nvme::NSID_ALL`] are for this one, and go down as such: whoever passes on another's must look first.
    fn nsid(&self) -> Option<u32> {
        None
    }

    /// Plays a power cut: forgets every acknowledged write that was neither flushed nor made
    /// with FUA, and returns how many blocks were forgotten. For tests: only `volatile:` forgets
    /// anything, and layers pass the call on.
    fn cut(&self) -> u64 {
        0
    }

    /// Changes whenever what was acknowledged here and not flushed may be gone: power was cut, or the way to a
    /// controller has ended that had acknowledged something and not flushed it, whether it comes back or not. It has
    /// changed before a Flush that does not cover such a command succeeds. Whoever wants to rely on a Flush looks before the first of the commands that it is to make
    /// durable, and again when it has succeeded; if it has changed they are to be sent again. A number never comes
    /// back while the volume is open. Cheap, but not for every command.
    ///
    /// NVMe has no such number: a Flush says nothing of what was lost before it (Base 2.1, section 7.2).
    fn volatile_epoch(&self) -> u64 {
        0
    }

    /// How often data was lost that had been acknowledged, and that a Flush was to make durable, where each such loss is told by
    /// one Flush of each queue. Whoever serves several users by one queue tells the others ([`Told`](crate::Told)). Cheap, but
    /// not for every command.
    fn lost(&self) -> Lost {
        Lost::default()
    }

    /// Whether the checksum that a Verify may be asked for ([`Command::wants_checksum`]) comes from where the blocks are. A
    /// guard gives one of any volume, but reads what it is of through what is below it.
    fn gives_checksums(&self) -> bool {
        self.limits().commands.checksum
    }

    /// How this way stands, whichever core asks: a core's own [`Queue::access`] may be worse, where its connection is
    /// still to be made. Cheap, but not for every command.
    fn access(&self) -> Access {
        Access::Optimized
    }

    /// Whether there is a volatile write cache ([`Limits::volatile_write_cache`]). Waits for nobody, unlike
    /// [`Namespace::limits`] of some.
    fn writes_back(&self) -> bool {
        self.limits().volatile_write_cache
    }

    /// A Flush has succeeded in spite of what this way had acknowledged, and cannot flush now: for multipath, so that
    /// [`Namespace::volatile_epoch`] changes where that was still open.
    fn write_off(&self) {}

    /// The ways to what is stored, for people and for statistics: one report per path, of all
    /// cores together. Empty where there is but one way and nothing is known of it.
    fn paths(&self) -> Vec<PathReport> {
        Vec::new()
    }

    /// The programs that route requests in this volume, with what they keep in their maps: for people and for
    /// statistics. Copies the maps: not for the data path.
    fn programs(&self) -> Vec<ProgramReport> {
        let mut all = Vec::new();
        self.each_program(&mut |program| all.push(program.report()));
        all
    }

    /// Calls `visit` with each layer in this volume that a program routes, from above.
    fn each_program(&self, visit: &mut dyn FnMut(&Routed)) {
        let _ = visit;
    }

    /// The file or block device that is this volume as it is, block by block, if there is one: whoever has it
    /// may read and write there instead of here.
    fn plain_file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The NUMA node of the device by which the storage is reached, where that is known and matters.
    fn numa_node(&self) -> Option<u32> {
        None
    }

    /// How long a command is to wait that comes back with Command Retry Delay 1, 2 or 3 (NVMe Base 2.1, section 4.2.3);
    /// zero where nobody has said. Cheap, but not for every command.
    fn retry_delays(&self) -> [Duration; 3] {
        [Duration::ZERO; 3]
    }

    /// Which of `blocks` blocks from `slba` on are stored, as consecutive runs: at least one, at most
    /// `runs_max`, together no longer than asked for, and shorter where finding out more would take
    /// long. What is not known counts as stored. May block: not for a reactor's thread.
    ///
    /// NVMe has Get LBA Status for this (NVM 1.1, section 4.2.1), an admin command, by which targets tell it and remote
    /// volumes ask. On this machine it is a call, as there is no admin queue between volumes and a front door. Where
    /// [`nvme::limits::Commands::allocation`] is not set all blocks count as stored.
    fn allocation(&self, slba: u64, blocks: u64, runs_max: usize) -> io::Result<Vec<Run>> {
        let _ = (slba, runs_max);
        Ok(vec![Run { blocks, is_stored: true }])
    }

    /// What keeps block `slba`, and up to `blocks` blocks from there on as far as they are kept one after
    /// another: for a Copy from this volume into another, by whoever can reach it there. None where
    /// they have to be read. Cheap: asked per source range.
    fn origin(self: Arc<Self>, slba: u64, blocks: u64) -> Option<Located> {
        let _ = (slba, blocks);
        None
    }

    /// Who writes block `slba`, and up to `blocks` blocks from there on, when a Copy goes down to here, told as
    /// [`Namespace::origin`] tells who keeps them; mostly it is the same. None where Copies are read and written. It only
    /// says what to expect: whether a Copy can be done is known when it is tried.
    fn destination(self: Arc<Self>, slba: u64, blocks: u64) -> Option<Located> {
        self.origin(slba, blocks)
    }

    /// Whether Copies are carried out by calls that block, on threads of which a core has few
    /// ([`Sources::line`](crate::copy::Sources::line)): the guard above has one ready before it holds any blocks.
    fn copies_on_threads(&self) -> OnThreads {
        OnThreads::No
    }

    /// The number of the guard in this volume, on top or further down, that was made last: by it those
    /// go who hold blocks of several volumes (`layer::guard`).
    fn last_guard(&self) -> Option<u64> {
        None
    }

    /// What has become of Copies to this volume; all zero where nobody counts.
    fn copied(&self) -> CopyCounters {
        CopyCounters::default()
    }

    /// Changes a setting while the namespace is in use, `("policy", "round-robin")`. Layers that do
    /// not know the name pass the call on. May block; control thread only.
    fn tune(&self, name: &str, value: &str) -> io::Result<()> {
        let what = format!("{name}={value}: nothing here has such a setting");
        Err(io::Error::new(io::ErrorKind::Unsupported, what))
    }
}

/// Consecutive blocks of which all are stored, or none is; see [`Namespace::allocation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// How many, at least one.
    pub blocks: u64,
    /// Something is kept for them. Others take no room, and read as zeroes.
    pub is_stored: bool,
}

/// A program as `nvlane bpf stat` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramReport {
    /// Its object file, as it is named in the URI.
    pub name: String,
    /// Requests that failed because of what the program did.
    pub mistakes: u64,
    /// Its maps, global variables included.
    pub maps: Vec<MapReport>,
}

/// A map of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapReport {
    /// The variable's name; the section's for global variables.
    pub name: String,
    /// `array`, `per-core array`, `hash`, `variables`.
    pub kind: &'static str,
    /// Entries that there can be.
    pub entries_max: u32,
    /// Key, and value on each core that has its own: of arrays, only entries that are not all zero.
    pub entries: Vec<(Vec<u8>, Vec<Vec<u8>>)>,
    /// Entries that were left out, the map being large.
    pub left_out: u64,
}

/// One path as `nvlane paths` shows it; counts are since the volume was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathReport {
    /// What tells it from the others: `tcp://192.0.2.1:4420`. Without a name it is room for a path, which nobody is told of.
    pub name: String,
    /// Its best state on any core.
    pub access: Access,
    /// It is kept for when no other can be used.
    pub standby: bool,
    /// Why it is not live, in words; empty otherwise.
    pub reason: String,
    /// Commands in flight.
    pub in_flight: u64,
    /// Commands sent.
    pub selections: u64,
    /// Commands that came back with an error of the path.
    pub errors: u64,
    /// Connections made after the first.
    pub reconnects: u64,
    /// What the policy gives it, 0 to 128, averaged over cores.
    pub weight: u32,
    /// Latency in nanoseconds of the last some seconds: half are below.
    pub p50_ns: u64,
    /// The same: 99 of 100 are below.
    pub p99_ns: u64,
    /// After the end of a process, what it has sent by this path may still be carried out for so long.
    pub settles: Duration,
    /// The same of paths to the same volume that are known no longer.
    pub settles_unseen: Duration,
    /// What only some policies or transports know, by name.
    pub details: Vec<(String, String)>,
}

/// One core's way to a namespace: the counterpart of an NVMe submission and completion queue.
pub trait Queue {
    /// Starts a command. It is completed exactly once through [`Request::complete`], during this
    /// call or later, in any order, with `status` and `result` set.
    ///
    /// The caller has checked that an addressed range lies within `limits` and that `data` has
    /// the length the command implies: `data` is a buffer of exactly that length, or for a
    /// read, when `limits.lends_reads`, possibly [`Data::None`] to ask for lent memory. Such a
    /// read is answered with [`Data::Lent`], or with a [`Data::Buffer`] of the implementer's
    /// where the range cannot be lent in one piece; `Data::as_ptr` serves both.
    /// The implementer may still meet a namespace that has shrunk, and answers LBA Out of Range.
    /// The caller keeps the queue until everything submitted has come back: a command that waits
    /// here (for a timer, or for another command on its blocks) is forgotten with its queue.
    /// Unknown commands: an identity layer passes them on, others answer Invalid Command Opcode.
    fn submit(&self, request: Box<Request>);

    /// Starts an admin command, as [`Queue::submit`] starts an I/O command: its opcode means something
    /// else. `data` has the length that the caller chose, and the direction is in bits 1:0 of the
    /// opcode. Identity layers pass it on; where `limits.passthrough.admin` is unset it is refused.
    fn submit_admin(&self, request: Box<Request>) {
        request.finish(Status::INVALID_OPCODE.dnr());
    }

    /// How this way to the namespace stands now. Cheap: multipath asks per command.
    fn access(&self) -> Access {
        Access::Optimized
    }

    /// Has `watcher` told, in the reactor's turn, after [`Queue::access`] has changed. One watcher
    /// at a time; a queue whose access never changes drops it.
    fn watch_access(&self, watcher: std::rc::Weak<dyn AccessWatcher>) {
        drop(watcher);
    }

    /// Lets go of all commands that have not come back. The reactor has ended: nothing is carried out any more, and nobody
    /// waits. What holds requests drops them, after those below have, since a request keeps the layers above that
    /// want to see it again, and they this queue.
    fn forget(&self);
}

/// How one way to a namespace stands, the better the smaller: ANA's states (NVMe Base 2.1, section
/// 8.1.1) and what a host knows of its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Live; ANA optimized, or no ANA.
    #[default]
    Optimized,
    /// Live; ANA non-optimized: used where there is nothing optimized.
    NonOptimized,
    /// Live, but commands would fail: ANA inaccessible, persistent loss or change.
    Inaccessible,
    /// No connection now; one is being made.
    Lost,
    /// No connection, and commands that wait for one are to fail (`fast_io_fail_tmo`); one is still
    /// being tried.
    Failing,
    /// Given up (`ctrl_loss_tmo`), for good.
    Gone,
}

impl Access {
    /// Whether commands may be sent.
    #[inline]
    pub fn is_usable(self) -> bool {
        self <= Access::NonOptimized
    }
}

/// Is told of a queue's [`Queue::access`].
pub trait AccessWatcher {
    /// It may have changed. Must not submit from here: note it and [`Reactor::defer`].
    fn access_changed(&self);
}

impl Request {
    /// An empty request, to be kept in a pool and used again.
    pub fn new() -> Box<Request> {
        Box::new(Request {
            command: Command::default(),
            asked: Command::default(),
            data: Data::None,
            metadata: Data::None,
            timeout_ms: 0,
            os_error: 0,
            status: Status::SUCCESS,
            result: 0,
            scratch: [0; 4],
            fused: None,
            frames: Frames { len: 0, items: [const { None }; DEPTH_MAX] },
        })
    }

    /// Notes that `sink` is to see the completion, before whoever pushed earlier.
    ///
    /// # Panics
    /// If more than [`DEPTH_MAX`] are pushed: stacks are checked when opened.
    #[inline]
    pub fn push(&mut self, sink: Rc<dyn Sink>, state: u64) {
        let frames = &mut self.frames;
        let place = &mut frames.items[frames.len];
        debug_assert!(place.is_none(), "frames that were completed are empty");
        // Nothing is there that would have to be dropped.
        std::mem::forget(place.replace(Frame { sink, state }));
        frames.len += 1;
    }

    /// Hands the request to the sink pushed last.
    ///
    /// # Panics
    /// If no sink is left: a request was completed twice.
    #[inline]
    pub fn complete(mut self: Box<Self>) {
        let frames = &mut self.frames;
        frames.len = frames.len.checked_sub(1).expect("a request is completed once");
        let frame = frames.items[frames.len].take().expect("pushed frames are filled");
        frame.sink.completed(self, frame.state);
    }

    /// How many more sinks may be pushed.
    #[inline]
    pub fn depth_left(&self) -> usize {
        DEPTH_MAX - self.frames.len
    }

    /// Completes with `status` and no result; a fused second command is given the same status,
    /// or, when the first failed, Command Aborted due to Failed Fused Command.
    #[inline]
    pub fn finish_pair(mut self: Box<Self>, status: Status) {
        if let Some(second) = self.fused.as_deref_mut() {
            second.status = if status.is_success() { status } else { Status::ABORTED_FAILED_FUSED };
            second.result = 0;
        }
        self.finish(status);
    }

    /// Completes with `status` and no result. For a fused pair see [`Request::finish_pair`].
    #[inline]
    pub fn finish(mut self: Box<Self>, status: Status) {
        self.status = status;
        self.result = 0;
        self.complete();
    }
}
