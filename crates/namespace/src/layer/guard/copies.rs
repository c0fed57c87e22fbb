//! A guard's Copies: what its child is offered, and what is held meanwhile.

use super::Guard;
use super::claims::{Claim, Thread};
use super::queue::GuardQueue;
use crate::copy::{
    CopyCounters, End, Ground, Load, OnThreads, Other, Place, Reader, Route, Sources,
    TURN_BYTES_MAX, threads,
};
use crate::layer::conflicts::Range;
use crate::{Data, Request, human};
use ::copy::{Piece, Room};
use nvme::{Command, Status};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Marks the number of a claim among those of slots.
pub(super) const CLAIM: u64 = 1 << 62;
/// Marks the number of a Copy in line.
pub(super) const COPY: u64 = 1 << 61;

/// Bytes that go down at once while their blocks are held: a file system without reflinks moves them,
/// and whoever writes to them waits that long, some tens of milliseconds. With reflinks it is no
/// slower than in one piece.
const HELD_BYTES_MAX: u64 = 32 << 20;

/// Bytes copied so far, by whom.
#[derive(Debug, Default)]
pub(super) struct Copied {
    by_child: AtomicU64,
    /// Here, or further down by `linear` or `bpf`.
    moved: AtomicU64,
}

impl Guard {
    /// By which means Copies are carried out.
    pub(super) fn describe_copies(&self, facts: &mut Vec<(String, String)>) {
        let told = facts.iter().any(|(fact, _)| fact == "copy");
        let means = match self.child.limits().copy.is_offered() {
            false => Some("read and written here"),
            true if self.refuses(&Place::Same, Instant::now()) => {
                Some("read and written here: refused below")
            }
            // By which means of its own, the backend has said.
            true => (!told).then_some("by the backend"),
        };
        facts.extend(means.map(|means| ("copy".into(), means.into())));
        let CopyCounters { offloaded_bytes, moved_bytes } = self.copy_counters();
        if offloaded_bytes + moved_bytes > 0 {
            let (offloaded, moved) =
                (human::format_bytes(offloaded_bytes), human::format_bytes(moved_bytes));
            let what = format!("{offloaded} by the backend, {moved} read and written");
            facts.push(("copied".into(), what));
        }
    }

    /// What was copied so far.
    pub(super) fn copy_counters(&self) -> CopyCounters {
        CopyCounters {
            offloaded_bytes: self.copied.by_child.load(Ordering::Relaxed),
            moved_bytes: self.copied.moved.load(Ordering::Relaxed),
        }
    }

    /// Whether `other` is this very volume.
    fn is(&self, other: &Other) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&other.namespace), self)
    }

    /// Whether the child has refused to copy from there, and is not to be asked again at `now`.
    fn refuses(&self, place: &Place, now: Instant) -> bool {
        self.refusals.has(place, &self.child.limits().copy, now)
    }

    /// Whether the child is a guard, which keeps the blocks from `slba` on apart.
    fn is_over(&self, slba: u64) -> bool {
        let below = Arc::clone(&self.child).origin(slba, 1).and_then(|here| here.guard);
        below.is_some_and(|(guard, _)| {
            std::ptr::addr_eq(Arc::as_ptr(&guard), Arc::as_ptr(&self.child))
        })
    }

    /// By which means of the child's blocks of another volume can be copied, if by any.
    fn means(&self, other: &Rc<Other>, piece: &Piece, now: Instant) -> Option<Means> {
        let located = Arc::clone(&other.namespace).origin(piece.source, piece.blocks)?;
        if let Some((guard, _)) = &located.guard
            && self.below.is_some_and(|below| guard.number <= below)
        {
            // The source's table would be entered before those further down, out of order (`claims`). A guard
            // just below enters both by itself.
            return self.is_over(piece.destination).then(|| Means {
                place: Place::Other(Rc::clone(other)),
                slba: piece.source,
                blocks: piece.blocks,
                guard: None,
            });
        }
        let place = Place::Origin(located.origin);
        (!self.refuses(&place, now)).then_some(Means {
            place,
            slba: located.slba,
            blocks: located.blocks.min(piece.blocks),
            guard: located.guard,
        })
    }
}

/// Where a child finds blocks of another volume.
struct Means {
    place: Place,
    slba: u64,
    blocks: u64,
    guard: Option<(Arc<Guard>, u64)>,
}

impl Ground for GuardQueue {
    fn may_begin(&self, copy: u64, bytes: u64, sources: &Sources) -> bool {
        let asker = match sources.asker {
            // Apart from the numbers that hosts have.
            0 => self.user(0).queue | 1 << 63,
            asker => asker,
        };
        let ticket = self.guard.line.enter(self.user(COPY | copy), asker, bytes, &self.share);
        if let Some(ticket) = ticket {
            self.waits_in_line(copy, ticket, sources);
        }
        ticket.is_none()
    }

    fn ended(&self, _copy: u64, bytes: u64) {
        let mut next = self.next_list();
        self.guard.line.leave(bytes, &self.share, &mut next);
        self.wake_next(next);
    }

    fn is_same(&self, place: &Place) -> bool {
        match place {
            Place::Same => true,
            Place::Other(other) => self.guard.is(other),
            Place::Origin(_) => false,
        }
    }

    fn route(&self, _copy: u64, _command: &Command, place: &Place, piece: &Piece) -> Route {
        let limits = self.guard.child.limits();
        let mut route = Route {
            blocks: piece.blocks,
            child: 0,
            destination: piece.destination,
            fast: None,
            reader: None,
            guard: None,
        };
        let (offered, now) = (limits.copy.is_offered(), self.reactor.now());
        let end = match place {
            Place::Other(other) if !piece.is_same => {
                if let Some(means) = offered.then(|| self.guard.means(other, piece, now)).flatten()
                {
                    route.fast = Some((means.place, means.slba));
                    route.blocks = means.blocks;
                    route.guard = means.guard;
                }
                Some(End::Queue(other.queue.clone()))
            }
            Place::Same | Place::Other(_) => {
                if offered && !self.guard.refuses(&Place::Same, now) {
                    route.fast = Some((Place::Same, piece.source));
                }
                Some(End::Own)
            }
            Place::Origin(_) => {
                if offered && !self.guard.refuses(place, now) {
                    route.fast = Some((place.clone(), piece.source));
                }
                None
            }
        };
        if limits.metadata_bytes == 0 {
            let (slba, is_writer) = (piece.source, piece.is_same);
            route.reader = end.map(|end| Reader { end, slba, is_writer });
        }
        route
    }

    fn room(&self, _child: usize, guarded: bool) -> Room {
        let limits = self.guard.child.limits();
        let bytes_max = match () {
            () if limits.immediate => TURN_BYTES_MAX as u64,
            () if guarded || self.guard.truce.is_always() => HELD_BYTES_MAX,
            () => u64::MAX,
        };
        Room {
            ranges: usize::from(limits.copy.ranges_max).max(1),
            range_blocks: u64::from(limits.copy.range_blocks_max).max(1),
            blocks: u64::from(limits.copy.blocks_max).min(bytes_max >> self.shift).max(1),
        }
    }

    fn send(&self, _child: usize, mut request: Box<Request>, routes: &[Route]) {
        let enters = self.guard.truce.is_on();
        let needs_thread = self.needs_thread(&mut request);
        if !enters && !needs_thread && routes.iter().all(|route| route.guard.is_none()) {
            return self.pass(request);
        }
        let mut claim = Claim::new(request, !enters);
        let range = |start, blocks, exclusive| Range { start, end: start + blocks, exclusive };
        for route in routes {
            if enters {
                claim.add(&self.guard, range(route.destination, route.blocks, true));
                if let Some((Place::Same, slba)) = &route.fast {
                    claim.add(&self.guard, range(*slba, route.blocks, false));
                }
            }
            if let Some((guard, slba)) = &route.guard {
                claim.add(guard, range(*slba, route.blocks, false));
            }
        }
        if !enters {
            self.will_pass();
        }
        let claim = CLAIM | self.claims.insert(claim);
        if needs_thread && !self.obtain_thread(claim) {
            return;
        }
        self.enter_claim(claim);
    }

    fn refused(&self, _child: usize, place: &Place) {
        let limits = self.guard.child.limits().copy;
        self.guard.refusals.note(place, &limits, self.reactor.now());
    }

    fn writer(&self, _child: usize) -> End {
        End::Own
    }

    fn transfer_bytes_max(&self, sources: &Sources) -> usize {
        let other = |place: &Place| match place {
            Place::Other(other) => other.namespace.limits().transfer_bytes_max,
            Place::Same | Place::Origin(_) => u32::MAX,
        };
        let others = sources.ranges.iter().map(|range| other(&range.place)).min();
        let own = self.guard.child.limits().transfer_bytes_max;
        own.min(others.unwrap_or(u32::MAX)) as usize
    }

    fn copied(&self, bytes: u64, is_fast: bool) {
        let count = if is_fast { &self.guard.copied.by_child } else { &self.guard.copied.moved };
        count.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl GuardQueue {
    /// A Copy that was in line may begin.
    pub(super) fn turn_of_copy(&self, number: u64) {
        let copy = number & !COPY;
        self.in_line.borrow_mut().remove(&copy);
        self.carrier.begin(copy);
    }

    /// Whether a Copy that is to go down needs a thread that nobody above has for it; from here on somebody has.
    fn needs_thread(&self, request: &mut Request) -> bool {
        let Data::Sources(sources) = &mut request.data else {
            unreachable!("a Copy goes down with its sources")
        };
        let needs = self.on_threads != OnThreads::No && sources.thread_of.is_none();
        if needs {
            sources.thread_of = Some(self.guard.number);
        }
        needs
    }

    /// Whether there is a thread for a claim at once.
    fn obtain_thread(&self, number: u64) -> bool {
        let (volume, user) = (self.guard.number, self.user(number));
        let is_ready = self.claims.with(number & !CLAIM, |claim| {
            let blocks = claim.sources().map_or(0, Sources::blocks);
            // Of several disks the one that others wait for may be another's than theirs.
            let load = match self.on_threads {
                OnThreads::Several => Load::Long,
                one => Load::of(blocks << self.shift, one == OnThreads::Shares),
            };
            let is_ready = threads::obtain(&self.reactor, volume, user, load, self.me.clone());
            claim.thread = if is_ready { Thread::Ready(load) } else { Thread::Awaited(load) };
            is_ready
        });
        if !is_ready {
            self.claim_waits(number);
        }
        is_ready
    }

    /// Goes on entering, and sends the Copy down once all is entered.
    fn enter_claim(&self, number: u64) {
        let user = self.user(number);
        let request = self.claims.with(number & !CLAIM, |claim| {
            claim.enter(user).then(|| claim.request.take().expect("it was not sent down yet"))
        });
        let Some(mut request) = request else { return self.claim_waits(number) };
        if matches!(&request.data, Data::Sources(sources) if sources.is_stopped()) {
            return self.drop_claim(number, request);
        }
        request.push(self.sink(), number);
        self.child.submit(request);
    }

    /// A claim's Copy was given up while it waited: what it would write over may be newer.
    pub(super) fn drop_claim(&self, number: u64, mut request: Box<Request>) {
        (request.status, request.result) = (Status::ABORT_REQUESTED, 0);
        self.leave_claim(number, request);
    }

    /// A claim that waited, for somebody's blocks or for a thread, may go on.
    pub(super) fn turn_of_claim(&self, number: u64) {
        self.claims.with(number & !CLAIM, |claim| match claim.thread {
            Thread::Awaited(load) => claim.thread = Thread::Ready(load),
            Thread::None | Thread::Ready(_) => claim.turn(),
        });
        self.enter_claim(number);
    }

    /// A Copy has come back from the child.
    pub(super) fn leave_claim(&self, number: u64, request: Box<Request>) {
        let mut claim = self.claims.take(number & !CLAIM);
        let mut next = self.next_list();
        claim.leave(self.user(number), &mut next);
        self.wake_next(next);
        if let Thread::Ready(load) = claim.thread {
            threads::release(&self.reactor, self.guard.number, load);
        }
        if claim.passes {
            self.has_passed();
        }
        request.complete();
    }
}
