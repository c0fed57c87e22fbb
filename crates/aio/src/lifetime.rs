//! `io_setup`, `io_destroy`, `io_cancel`.

use crate::caller;
use crate::context::{Context, Mode, Request, WAKE, state};
use crate::inside::Inside;
use crate::parking::park;
use crate::probe::Reason;
use crate::registry::{Held, Registry};
use crate::ring::Wait;
use crate::stat::Counter;
use crate::system::{self, failure};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// How long to wait at a time for what is in flight, when destroying.
const DRAIN_NS: u64 = 5_000_000;
/// What the user wants: `native`, `ring` (at once), or what is best.
const VARIABLE: &str = "NVLANE_AIO";

/// Contexts that `io_setup` made.
pub static CONTEXTS: Registry<Context> = Registry::new();

/// `io_setup`: the kernel's, and ours beside it.
///
/// # Safety
/// `place` is where a context id belongs; the kernel checks it.
pub unsafe fn setup(nr: i32, place: usize) -> i32 {
    let _inside = Inside::enter();
    // SAFETY: passed on to the caller.
    let code = unsafe { system::io_setup(nr as u32, place) };
    if code != 0 {
        return code;
    }
    // A context that we do not know is the kernel's alone: nothing is lost but speed.
    let Ok(id) = caller::read::<usize>(place) else { return 0 };
    let wish = std::env::var(VARIABLE).unwrap_or_default();
    let (mode, reason) = match wish.as_str() {
        "native" => (Mode::Native, Reason::Asked),
        _ => (Mode::Proving, Reason::None),
    };
    let Some(context) = Context::new(id, mode, reason) else { return 0 };
    if wish == "ring" {
        context.never_rest();
        context.prove();
        context.try_ring();
    }
    // No place left: dropped again, see above.
    drop(CONTEXTS.insert(id, Box::new(context)));
    0
}

/// `io_destroy`: returns once nothing is in flight.
pub fn destroy(held: Held<Context>) -> i32 {
    if !held.retire() {
        return failure(libc::EINVAL);
    }
    let _inside = Inside::enter();
    held.dead.store(true, SeqCst);
    // The kernel takes its ring away, which they look at.
    held.await_switching();
    drain(&held);
    // Wakes those who wait in the kernel, and waits for what is in flight there.
    let code = system::io_destroy(held.id);
    let context = held.reclaim(|context| context.wake_all(&mut context.submitting()));
    if let Some(ring) = context.into_ring()
        && !ring.engine.ring.is_lost()
    {
        ring.engine.ring.interrupts.rest();
        park(Box::new(ring));
    }
    code
}

/// Whether the kernel refuses to cancel any, by a filter that there was not when the ring was set up.
fn cancel_polls(context: &Context) -> bool {
    let Some(engine) = context.engine() else { return false };
    let mut submitting = context.submitting();
    let mut is_refused = false;
    for (index, request) in engine.requests().iter().enumerate() {
        if request.state.load(Relaxed) == state::POLL {
            is_refused |= matches!(-engine.ring.cancel(index as u64), libc::EPERM | libc::ENOSYS);
        }
    }
    context.wake_all(&mut submitting);
    is_refused
}

/// Takes completions, and forgets them, until io_uring holds nothing of the context any more.
fn drain(context: &Context) {
    let Some(engine) = context.engine() else { return };
    loop {
        // Again each time: a submission may have been under way.
        let is_refused = cancel_polls(context);
        let mut reaping = context.reaping();
        let mut taken = 0;
        if let Some(queue) = reaping.queue.as_mut() {
            while let Some(cqe) = queue.next() {
                if cqe.user_data != WAKE {
                    let index = cqe.user_data as u32;
                    engine.request(index).state.store(state::FREE, Relaxed);
                    engine.give_back(index, index);
                    taken += 1;
                }
            }
            queue.release();
        }
        context.outstanding.fetch_sub(taken, SeqCst);
        let left = context.outstanding.load(SeqCst);
        let only_polls = || {
            engine.requests().iter().filter(|request| request.is_poll()).count() == left as usize
        };
        // Where nobody can cancel them, polls end with the ring; they point to no memory.
        if is_refused && only_polls() {
            engine.ring.give_up();
        }
        let over = left == 0 || (engine.ring.is_lost() && only_polls());
        drop(reaping);
        if over {
            return;
        }
        let wait = Wait { min: 1, timeout_ns: Some(DRAIN_NS), signals: 0 };
        if engine.ring.enter(0, wait) < 0 && engine.ring.is_lost() {
            std::thread::sleep(Duration::from_nanos(DRAIN_NS));
        }
    }
}

/// `io_cancel`: only polls can be cancelled; their events still come.
pub fn cancel(context: &Context, iocb: usize, result: usize) -> i32 {
    context.record.add(Counter::Cancels, 1);
    let key = caller::read::<u32>(iocb.wrapping_add(8));
    if let (Some(engine), Ok(0)) = (context.engine(), key) {
        // On this side nothing waits, while submitting may. Requests are given back under this lock, so one that was found is
        // not made another. A signal's handler may have interrupted the holder.
        let inside = Inside::enter();
        let _reaping = inside.as_ref().map(|_| context.reaping());
        let (cancelled, poll) = (state::CANCELLED, state::POLL);
        let is_meant = |request: &Request| request.obj.load(Relaxed) == iocb as u64;
        for (index, request) in engine.requests().iter().enumerate() {
            // Told before: its completion may come at once.
            let found = is_meant(request)
                && request.state.compare_exchange(poll, cancelled, SeqCst, SeqCst).is_ok();
            if !found {
                continue;
            }
            // It may have been free, and another's since.
            if is_meant(request) && engine.ring.cancel(index as u64) >= 0 {
                return failure(libc::EINPROGRESS);
            }
            // Unless its event was taken.
            let _ = request.state.compare_exchange(cancelled, poll, SeqCst, SeqCst);
        }
    }
    system::io_cancel(context.id, iocb, result)
}
