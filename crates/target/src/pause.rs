//! A core that has not run for a while: its process was stopped, its machine asleep.
//!
//! What a host had sent by then lies in sockets, acknowledged by a kernel that went on. The host may have given up meanwhile, and
//! have written the same blocks by another path: Linux does as soon as a Keep Alive is not answered within its time-out, ours
//! after twice that ([`association`](../association/index.html)). So after a pause of one time-out its connections end, as those of a
//! host do of which nothing was heard for so long; one that had not given up connects again. Timers are of no help, since they
//! stood still as well, and sockets are read before they are looked at. Also after shorter pauses what a host has closed meanwhile is
//! not read any more: the end of a stream is told behind what came before it, which the host may have sent by another path. So whoever has read something, or goes on with what
//! has waited, looks at the clock first, and at the processor's counter before each command. What namespaces have been given by then
//! they carry out. A virtual machine that is stopped with its clock is not seen.

use crate::connection::{Connection, Inner, Role};
use crate::core::{Core, TOKEN_PULSE};
use crate::journal::End;
use reactor::Moment;
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A core with connections runs at least as often: a pause is taken to be longer by as much.
const PULSE: Duration = Duration::from_millis(250);

/// Longer than a core is without a pulse: hosts may have closed connections meanwhile, for whatever reason, behind what is unread.
const PAUSE_MIN: Duration = Duration::from_millis(400);

/// When a core was last seen to run.
#[derive(Default)]
pub(crate) struct Pulse {
    /// Of a clock that goes on while the machine sleeps.
    at: Cell<Duration>,
    /// The same, for whoever asks at each command.
    moment: Moment,
    /// A timer sees to it that this is never long ago.
    beats: Cell<bool>,
}

impl Core {
    /// There is a connection from now on.
    pub(crate) fn begin_pulse(&self) {
        if !self.pulse.beats.replace(true) {
            self.pulse.at.set(clock());
            self.pulse.moment.tell();
            self.beat_later();
        }
    }

    /// The timer of the pulse.
    pub(crate) fn beat(&self) {
        self.pulse();
        if self.has_connections() {
            self.beat_later();
        } else {
            self.pulse.beats.set(false);
        }
    }

    fn beat_later(&self) {
        self.reactor.timer(self.reactor.now() + PULSE, Core::here(), TOKEN_PULSE);
    }

    /// Notes that this core runs. If it has not for longer than hosts wait, their connections end; for how long it has not is
    /// given to whoever notices, whose own connection stays while it is in its turn.
    #[inline]
    pub(crate) fn pulse(&self) -> Option<Duration> {
        let now = clock();
        let pause = now.saturating_sub(self.pulse.at.replace(now));
        self.pulse.moment.tell();
        if pause < PAUSE_MIN { None } else { self.end_what_paused(pause) }
    }

    /// Whether this core may not have run for some time since it was last seen to: then it is to be looked again before
    /// anything is begun.
    #[inline]
    pub(crate) fn may_have_paused(&self) -> bool {
        self.pulse.moment.may_be_past()
    }

    /// When this core was last seen to run, for another that goes on with a connection.
    pub(crate) fn seen(&self) -> Duration {
        self.pulse.at.get()
    }

    #[cold]
    fn end_what_paused(&self, pause: Duration) -> Option<Duration> {
        let over = |connection: &Connection| {
            let inner = connection.inner.try_borrow().ok()?;
            connection.end_after(&inner, pause)
        };
        let mut connections = 0;
        for connection in self.connections(|connection| over(connection).is_some()) {
            let Some(end) = over(&connection) else { continue };
            connections += u32::from(matches!(end, End::Paused));
            connection.ends(end);
            connection.close();
        }
        if connections > 0 {
            let seconds = pause.as_secs();
            tracing::warn!(
                seconds,
                connections,
                "this server did not run: its hosts have given up"
            );
        }
        Some(pause)
    }
}

impl Connection {
    /// To be called within a turn, before anything is done with what has come or has waited. Whether that is too old: then
    /// this is closed.
    #[inline]
    pub(crate) fn is_out_of_time(&self, inner: &Inner) -> bool {
        self.core.pulse().is_some_and(|pause| self.give_up_after(inner, pause))
    }

    #[cold]
    fn give_up_after(&self, inner: &Inner, pause: Duration) -> bool {
        let end = self.end_after(inner, pause);
        let is_over = end.is_some();
        if let Some(end) = end {
            self.ends(end);
            self.close();
        }
        is_over
    }

    /// Why this is over, if it is, when this core has not run for so long.
    fn end_after(&self, inner: &Inner, pause: Duration) -> Option<End> {
        if self.is_given_up(inner, pause) {
            return Some(End::Paused);
        }
        self.is_abandoned().then_some(End::Closed)
    }

    /// Whether its host has given up, if this core has not run for so long.
    fn is_given_up(&self, inner: &Inner, pause: Duration) -> bool {
        let milliseconds = match &inner.role {
            Role::Fresh => 0,
            Role::Admin(controller) => {
                let control = self.core.control.get();
                control.map_or(0, |it| it.shared(*controller).kato_ms.load(Ordering::Relaxed))
            }
            Role::Unproven(link) => link.shared.kato_ms.load(Ordering::Relaxed),
            Role::Io(queue) => queue.link.shared.kato_ms.load(Ordering::Relaxed),
        };
        is_longer_than_hosts_wait(pause, milliseconds)
    }
}

/// Whether a host with that keep alive time-out has given up, if its connection was seen then by another core.
pub(crate) fn has_given_up(seen: Duration, kato_ms: u32) -> bool {
    is_longer_than_hosts_wait(clock().saturating_sub(seen), kato_ms)
}

fn is_longer_than_hosts_wait(pause: Duration, kato_ms: u32) -> bool {
    kato_ms > 0 && pause >= Duration::from_millis(kato_ms.into())
}

fn clock() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
