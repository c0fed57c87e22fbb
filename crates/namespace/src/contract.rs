//! The contract between front doors, layers and backends.

use crate::Data;
use nvme::{Command, Limits, Status};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;
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
    /// The command. Layers may rewrite it; one that needs the original again must keep it.
    pub command: Command,
    /// The data to write, the buffer to read into, or the lent memory that was read.
    pub data: Data,
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

    /// Looks whether the size has changed outside; true if `limits` differs from before. May block;
    /// called from the control thread about once a second.
    fn refresh(&self) -> io::Result<bool>;

    /// Changes the capacity. May block; control thread only.
    fn resize(&self, bytes: u64) -> io::Result<()>;

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

    /// Plays a power cut: forgets every acknowledged write that was neither flushed nor made
    /// with FUA, and returns how many blocks were forgotten. For tests: only `volatile:` forgets
    /// anything, and layers pass the call on.
    fn cut(&self) -> u64 {
        0
    }
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
}

impl Request {
    /// An empty request, to be kept in a pool and used again.
    pub fn new() -> Box<Request> {
        Box::new(Request {
            command: Command::default(),
            data: Data::None,
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
        frames.items[frames.len] = Some(Frame { sink, state });
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
