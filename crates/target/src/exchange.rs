//! The commands of one connection, each from its capsule until its response is sent.

use crate::view::NamespaceView;
use namespace::Request;
use nvme::{Command, Status};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use subsystem::io::Direction;

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

/// Source ranges of Copies that a connection may have in memory, some tens of bytes each: those of a
/// queue of 128 entries (Linux's default), all of the longest, if as many are free ([`crate::core`]). More
/// is answered Command Interrupted.
const COPY_RANGES_MAX: usize = 128 * 128;

/// Where a command stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The slot is free.
    Free,
    /// An I/O command waits for a buffer of the pool.
    Waiting,
    /// Data is on its way from the host.
    Receiving,
    /// Not wanted any more, though its data may still be on its way.
    Cancelled,
    /// First of a fused pair, complete with its data, waiting for the second.
    Paired,
    /// With the namespace, or held by the controller (Asynchronous Event Request).
    Running,
    /// The response is queued.
    Sending,
}

/// One command.
pub(crate) struct Exchange {
    pub(crate) cid: u16,
    pub(crate) stage: Stage,
    pub(crate) direction: Direction,
    /// Length of the data in bytes.
    pub(crate) bytes: u32,
    /// First block of an I/O command, by the host's count: layers below may count otherwise.
    pub(crate) slba: u64,
    /// When the namespace was given the command, unless it has ended it at once.
    pub(crate) begun: Option<Instant>,
    /// Blocks that a Copy is to copy; zero for other commands.
    pub(crate) copy_blocks: u32,
    /// Source ranges that it holds in memory.
    copy_ranges: u16,
    /// Stops the Copy that is with the namespace; made by the slot's first.
    pub(crate) stop: Option<Arc<AtomicBool>>,
    /// Bytes of the core's buffer pool that it was given.
    pool_bytes: u32,
    /// It held some, and waited for the peer, when [`Exchanges::stalled`] last looked.
    seen_holding: bool,
    /// The first command of a fused pair, for the second to be held against.
    pub(crate) command: Command,
    /// The other command of a fused pair.
    pub(crate) partner: u32,
    /// What a cancelled command is answered with.
    pub(crate) status: Status,
    /// The request, unless the namespace has it.
    pub(crate) request: Option<Box<Request>>,
    /// The namespace, until the response is queued or the command is cancelled.
    pub(crate) view: Option<Rc<NamespaceView>>,
    /// In-capsule data of a command that waits for a buffer, or an admin command and its data.
    pub(crate) kept: Option<Box<Kept>>,
}

/// What a command that cannot run yet must remember.
pub(crate) struct Kept {
    pub(crate) command: Command,
    pub(crate) data: Vec<u8>,
}

/// A command that may not begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// The command identifier is in use.
    CidInUse,
    /// The host has more commands outstanding than the queue has entries.
    QueueOverrun,
}

impl Exchange {
    /// What stops the Copy that is about to begin.
    pub(crate) fn begin_copy(&mut self) -> Arc<AtomicBool> {
        let stop = self.stop.get_or_insert_default();
        stop.store(false, Ordering::Relaxed);
        Arc::clone(stop)
    }

    /// Has the Copy that is with the namespace end, if it is one.
    pub(crate) fn stop_copy(&self) {
        if let Some(stop) = &self.stop {
            stop.store(true, Ordering::Relaxed);
        }
    }
}

/// The table of commands. Grows as the host uses the queue: an idle queue costs almost nothing.
pub(crate) struct Exchanges {
    slots: Vec<Exchange>,
    free: Vec<u32>,
    entries_max: usize,
    /// Pool memory of all slots.
    pool_bytes: usize,
    /// Source ranges of all slots.
    copy_ranges: usize,
    /// A command that held pool memory has ended since [`Exchanges::stalled`] last looked.
    ended: bool,
    /// Commands in use by the low byte of their identifier: zero means surely not in use.
    in_use: [u16; 256],
}

impl Exchanges {
    pub(crate) fn new(entries_max: usize) -> Exchanges {
        Exchanges {
            slots: Vec::new(),
            free: Vec::new(),
            entries_max,
            pool_bytes: 0,
            copy_ranges: 0,
            ended: false,
            in_use: [0; 256],
        }
    }

    pub(crate) fn set_entries_max(&mut self, entries_max: usize) {
        self.entries_max = entries_max;
    }

    /// Takes a slot for command `cid`.
    #[inline]
    pub(crate) fn begin(&mut self, cid: u16) -> Result<u32, Refused> {
        let count = &mut self.in_use[usize::from(cid & 0xff)];
        if *count != 0 && self.slots.iter().any(|slot| slot.stage != Stage::Free && slot.cid == cid)
        {
            return Err(Refused::CidInUse);
        }
        if self.slots.len() - self.free.len() >= self.entries_max {
            return Err(Refused::QueueOverrun);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.slots.push(Exchange {
                    cid: 0,
                    stage: Stage::Free,
                    direction: Direction::None,
                    bytes: 0,
                    slba: 0,
                    begun: None,
                    copy_blocks: 0,
                    stop: None,
                    copy_ranges: 0,
                    pool_bytes: 0,
                    seen_holding: false,
                    command: Command::default(),
                    partner: NONE,
                    status: Status::SUCCESS,
                    request: None,
                    view: None,
                    kept: None,
                });
                (self.slots.len() - 1) as u32
            }
        };
        *count += 1;
        let slot = &mut self.slots[index as usize];
        debug_assert_eq!(slot.stage, Stage::Free);
        slot.cid = cid;
        slot.stage = Stage::Running;
        slot.direction = Direction::None;
        slot.bytes = 0;
        slot.copy_blocks = 0;
        slot.partner = NONE;
        Ok(index)
    }

    /// The response of `index` is sent: the slot and its identifier are free.
    #[inline]
    pub(crate) fn end(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        assert!(slot.stage != Stage::Free, "an exchange ends once");
        debug_assert!(slot.request.is_none() && slot.view.is_none());
        slot.stage = Stage::Free;
        slot.kept = None;
        self.in_use[usize::from(slot.cid & 0xff)] -= 1;
        self.copy_ranges -= usize::from(std::mem::take(&mut slot.copy_ranges));
        self.free.push(index);
        self.give_back(index);
    }

    /// Notes that `index` holds `ranges` source ranges of a Copy until it ends. False, with nothing
    /// noted, if the connection would hold more than [`COPY_RANGES_MAX`], or than the `free` ones: it never holds
    /// more than is left to others, who may always have one Copy.
    pub(crate) fn hold_ranges(&mut self, index: u32, ranges: usize, free: usize) -> bool {
        if self.copy_ranges != 0 && self.copy_ranges + ranges > COPY_RANGES_MAX.min(free) {
            return false;
        }
        self.copy_ranges += ranges;
        self.slots[index as usize].copy_ranges += ranges as u16;
        true
    }

    /// Notes that `index` was given `bytes` of the pool, until it ends.
    #[inline]
    pub(crate) fn give(&mut self, index: u32, bytes: usize) {
        self.pool_bytes += bytes;
        self.slots[index as usize].pool_bytes += bytes as u32;
    }

    /// Notes that `index`, which was not given any, has come back with `bytes` of the pool: a volume that was to lend its memory took
    /// a buffer instead.
    #[cold]
    pub(crate) fn brings(&mut self, index: u32, bytes: usize) {
        if self.slots[index as usize].pool_bytes == 0 {
            self.give(index, bytes);
        }
    }

    /// Notes that what `index` was given of the pool is free again.
    #[inline]
    pub(crate) fn give_back(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.pool_bytes != 0 {
            self.pool_bytes -= std::mem::take(&mut slot.pool_bytes) as usize;
            self.ended = true;
        }
    }

    /// Bytes of the pool that commands in progress were given.
    #[inline]
    pub(crate) fn pool_bytes(&self) -> usize {
        self.pool_bytes
    }

    /// Whether the peer sits on pool memory: it has some that waits for nobody else, as when this was
    /// last asked, and nothing that had any has ended since. So the same command has it still.
    pub(crate) fn stalled(&mut self) -> bool {
        let mut for_long = false;
        for slot in &mut self.slots {
            let waits_for_peer =
                matches!(slot.stage, Stage::Receiving | Stage::Cancelled | Stage::Sending);
            let holding = waits_for_peer && slot.pool_bytes != 0;
            for_long |= std::mem::replace(&mut slot.seen_holding, holding) && holding;
        }
        !std::mem::take(&mut self.ended) && for_long
    }

    /// Data that waits on the heap: in capsules of commands without a buffer, or of admin commands.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.slots.iter().filter_map(|slot| slot.kept.as_ref()).map(|kept| kept.data.len()).sum()
    }

    /// Whether data of any command is on its way from the host.
    pub(crate) fn receiving(&self) -> bool {
        self.slots.iter().any(|slot| matches!(slot.stage, Stage::Receiving | Stage::Cancelled))
    }

    #[inline]
    pub(crate) fn slot(&mut self, index: u32) -> &mut Exchange {
        &mut self.slots[index as usize]
    }

    /// Whether a command beside `index` has begun and is not answered yet.
    pub(crate) fn others_begun(&self, index: u32) -> bool {
        let begun = |slot: &Exchange| !matches!(slot.stage, Stage::Free | Stage::Sending);
        self.slots.iter().enumerate().any(|(at, slot)| at != index as usize && begun(slot))
    }

    /// The slot of command `cid` in stage `stage`.
    pub(crate) fn find(&self, cid: u16, stage: Stage) -> Option<u32> {
        let at = self.slots.iter().position(|slot| slot.stage == stage && slot.cid == cid)?;
        Some(at as u32)
    }

    /// The slot of command `cid`, if it waits for its data, a buffer or its partner: nothing of it
    /// has been started.
    pub(crate) fn find_unstarted(&self, cid: u16) -> Option<u32> {
        self.unstarted(|slot| slot.cid == cid)
    }

    /// The slot of a command like that on a namespace.
    pub(crate) fn find_unstarted_on(&self, view: &Rc<NamespaceView>) -> Option<u32> {
        self.unstarted(|slot| slot.view.as_ref().is_some_and(|it| Rc::ptr_eq(it, view)))
    }

    /// The slot of any such command, or of one that is not wanted any more.
    pub(crate) fn next_unstarted(&self) -> Option<u32> {
        let cancelled = || self.slots.iter().position(|slot| slot.stage == Stage::Cancelled);
        self.unstarted(|_| true).or_else(|| cancelled().map(|at| at as u32))
    }

    fn unstarted(&self, which: impl Fn(&Exchange) -> bool) -> Option<u32> {
        let unstarted = |slot: &Exchange| {
            matches!(slot.stage, Stage::Waiting | Stage::Receiving | Stage::Paired)
        };
        let at = self.slots.iter().position(|slot| unstarted(slot) && which(slot))?;
        Some(at as u32)
    }

    /// Has the Copy `cid`, which is with its namespace, end as soon as it can.
    pub(crate) fn stop_copy(&self, cid: u16) {
        let running = |slot: &&Exchange| slot.stage == Stage::Running && slot.copy_blocks > 0;
        if let Some(slot) = self.slots.iter().filter(running).find(|slot| slot.cid == cid) {
            slot.stop_copy();
        }
    }

    /// All slots, to be torn down.
    pub(crate) fn slots_mut(&mut self) -> impl Iterator<Item = &mut Exchange> {
        self.slots.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_holds_no_more_ranges_than_are_free_but_always_some() {
        let mut exchanges = Exchanges::new(200);
        let first = exchanges.begin(0).unwrap();
        assert!(exchanges.hold_ranges(first, 128, 0), "there is always room for one");
        let second = exchanges.begin(1).unwrap();
        assert!(
            !exchanges.hold_ranges(second, 128, 255) && exchanges.hold_ranges(second, 128, 256)
        );
        exchanges.end(first);
        assert!(!exchanges.hold_ranges(second, 1, 128) && exchanges.hold_ranges(second, 1, 129));
        exchanges.end(second);
        for cid in 0..128 {
            let slot = exchanges.begin(cid).unwrap();
            assert!(exchanges.hold_ranges(slot, 128, usize::MAX));
        }
        let slot = exchanges.begin(128).unwrap();
        assert!(!exchanges.hold_ranges(slot, 1, usize::MAX));
    }

    #[test]
    fn identifiers_in_use_are_refused_until_their_response_is_sent() {
        let mut exchanges = Exchanges::new(3);
        let a = exchanges.begin(7).unwrap();
        let b = exchanges.begin(7 + 256).unwrap();
        assert_eq!(exchanges.begin(7), Err(Refused::CidInUse));
        assert_eq!(exchanges.begin(7 + 256), Err(Refused::CidInUse));
        exchanges.end(a);
        let c = exchanges.begin(7).unwrap();
        assert_ne!(b, c);
        assert_eq!(exchanges.begin(7), Err(Refused::CidInUse));
    }

    #[test]
    fn more_commands_than_entries_are_an_overrun() {
        let mut exchanges = Exchanges::new(2);
        exchanges.begin(1).unwrap();
        exchanges.begin(2).unwrap();
        assert_eq!(exchanges.begin(3), Err(Refused::QueueOverrun));
    }

    #[test]
    fn a_peer_stalls_when_it_held_the_same_memory_before() {
        let mut exchanges = Exchanges::new(4);
        let receive = |exchanges: &mut Exchanges, cid| {
            let slot = exchanges.begin(cid).unwrap();
            exchanges.give(slot, 4096);
            exchanges.slot(slot).stage = Stage::Receiving;
            slot
        };
        assert!(!exchanges.stalled());
        let first = receive(&mut exchanges, 1);
        assert!(!exchanges.stalled(), "for a moment only");
        assert!(exchanges.stalled());
        exchanges.end(first);
        let again = receive(&mut exchanges, 1);
        assert_eq!(again, first, "the same slot");
        assert!(!exchanges.stalled(), "another command");
        exchanges.slot(again).stage = Stage::Running;
        assert!(!exchanges.stalled(), "the namespace has it");
        receive(&mut exchanges, 2);
        exchanges.slot(again).stage = Stage::Sending;
        assert!(!exchanges.stalled(), "both for a moment");
        assert!(exchanges.stalled());
    }
}
