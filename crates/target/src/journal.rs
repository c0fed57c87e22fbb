//! What people are told of hosts, in the log: a bounded number of lines, whatever peers do.
//!
//! ```text
//!   tell(subject) --> room in this second: the line
//!                 \-> none: counted; how many there were is told when the second is over
//! ```
//!
//! Key constants: [`HOSTS_PER_SECOND`], [`REFUSALS_PER_SECOND`], [`FAULTS_PER_SECOND`], [`QUEUES_PER_SECOND`].

use crate::report::Owner;
use dhchap::Failure;
use namespace::Namespace;
use reactor::{Complete, Reactor};
use std::cell::Cell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};
use subsystem::{DropReason, Refusal};
use tls::UpgradeError;

/// Lines about hosts that come and go.
pub(crate) const HOSTS_PER_SECOND: u32 = 20;
/// Lines about hosts that are refused.
pub(crate) const REFUSALS_PER_SECOND: u32 = 5;
/// Lines about what peers do wrong, on each core.
pub(crate) const FAULTS_PER_SECOND: u32 = 5;
/// Lines about volumes to which no queue can be opened, on each core.
pub(crate) const QUEUES_PER_SECOND: u32 = 5;

/// The time for which lines are counted.
const PERIOD: Duration = Duration::from_secs(1);

/// What a line is about; each has a bound of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Hosts that come and go.
    Hosts,
    /// Hosts that are refused.
    Refusals,
    /// What peers do wrong.
    Faults,
    /// Volumes to which no queue can be opened.
    Queues,
}

const SUBJECTS: [Subject; 4] =
    [Subject::Hosts, Subject::Refusals, Subject::Faults, Subject::Queues];

impl Subject {
    fn per_second(self) -> u32 {
        match self {
            Subject::Hosts => HOSTS_PER_SECOND,
            Subject::Refusals => REFUSALS_PER_SECOND,
            Subject::Faults => FAULTS_PER_SECOND,
            Subject::Queues => QUEUES_PER_SECOND,
        }
    }

    /// Tells how many lines were left out.
    fn tell_left_out(self, count: u64) {
        match self {
            Subject::Hosts => tracing::info!(count, "more hosts came or went within a second"),
            Subject::Refusals => tracing::warn!(count, "more hosts were refused within a second"),
            Subject::Faults => tracing::warn!(count, "more faults of peers within a second"),
            Subject::Queues => {
                tracing::error!(count, "more commands found no queue within a second");
            }
        }
    }
}

/// The lines of one core.
pub(crate) struct Journal {
    me: Weak<Journal>,
    reactor: Rc<Reactor>,
    quotas: [Quota; SUBJECTS.len()],
    refused: Cell<Refused>,
    closed: Cell<bool>,
}

/// How many were not let in, since the server's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// By a Connect that was refused, for a reason that somebody may mend.
    pub connects: u64,
    /// For want of a proof of who they are.
    pub proofs: u64,
    /// For want of a TLS session.
    pub sessions: u64,
}

/// How much was told about a subject.
#[derive(Default)]
struct Quota {
    /// When the second is over; none before the first line.
    until: Cell<Option<Instant>>,
    told: Cell<u32>,
    left_out: Cell<u64>,
}

impl Journal {
    pub(crate) fn new(reactor: &Rc<Reactor>) -> Rc<Journal> {
        Rc::new_cyclic(|me| Journal {
            me: me.clone(),
            reactor: Rc::clone(reactor),
            quotas: Default::default(),
            refused: Cell::default(),
            closed: Cell::new(false),
        })
    }

    /// Writes `line`, or counts it if there were enough about that in this second.
    pub(crate) fn tell(&self, subject: Subject, line: impl FnOnce()) {
        if self.closed.get() {
            return;
        }
        let now = self.reactor.now();
        self.settle(subject, now);
        let quota = &self.quotas[subject as usize];
        let until = quota.until.get().unwrap_or_else(|| {
            quota.until.set(Some(now + PERIOD));
            now + PERIOD
        });
        if quota.told.get() < subject.per_second() {
            quota.told.set(quota.told.get() + 1);
            return line();
        }
        quota.left_out.set(quota.left_out.get() + 1);
        if quota.left_out.get() == 1
            && let Some(me) = self.me.upgrade()
        {
            self.reactor.timer(until, me, subject as u64);
        }
    }

    /// Begins another second if this one is over.
    fn settle(&self, subject: Subject, now: Instant) {
        let quota = &self.quotas[subject as usize];
        if quota.until.get().is_some_and(|until| until <= now) {
            self.finish(subject);
        }
    }

    fn finish(&self, subject: Subject) {
        let quota = &self.quotas[subject as usize];
        quota.until.set(None);
        quota.told.set(0);
        let left_out = quota.left_out.take();
        if left_out > 0 {
            subject.tell_left_out(left_out);
        }
    }

    /// Tells what was left out, and nothing more: the server ends, and so do all its connections.
    pub(crate) fn close(&self) {
        if !self.closed.replace(true) {
            SUBJECTS.into_iter().for_each(|subject| self.finish(subject));
        }
    }

    /// A command comes to nothing, as there is no queue to `volume`.
    #[cold]
    pub(crate) fn no_queue(&self, volume: &dyn Namespace, error: &io::Error) {
        self.tell(Subject::Queues, || {
            tracing::error!(%error, volume = volume.uri(), "cannot open a queue");
        });
    }

    /// A host has a controller now.
    pub(crate) fn connected(&self, owner: &Owner) {
        let Owner { controller, nqn, host_nqn, .. } = owner;
        let peer = owner.peer.map(tracing::field::display);
        if owner.discovery {
            tracing::debug!(controller, host = ?host_nqn, peer, "host connected for discovery");
            return;
        }
        self.tell(Subject::Hosts, || {
            tracing::info!(controller, host = ?host_nqn, peer, subsystem = ?nqn, "host connected");
        });
    }

    /// Its controller has come to its end.
    pub(crate) fn ended(&self, owner: &Owner, why: Why, lasted: Duration) {
        let Owner { controller, nqn, host_nqn, .. } = owner;
        let peer = owner.peer.map(tracing::field::display);
        if owner.discovery {
            tracing::debug!(controller, host = ?host_nqn, peer, %why, "discovery has ended");
            return;
        }
        self.tell(Subject::Hosts, || {
            let (host, subsystem, seconds) = (host_nqn, nqn, lasted.as_secs());
            if why == Why::ShutDown {
                tracing::info!(
                    controller, ?host, peer, ?subsystem, seconds, %why, "host disconnected"
                );
            } else {
                tracing::info!(controller, ?host, peer, ?subsystem, seconds, %why, "host lost");
            }
        });
    }

    /// Of those that were told of, and of those that were left out.
    pub(crate) fn refused_count(&self) -> Refused {
        self.refused.get()
    }

    fn count(&self, add: impl FnOnce(&mut Refused)) {
        let mut refused = self.refused.get();
        add(&mut refused);
        self.refused.set(refused);
    }

    /// A host could not prove who it is.
    pub(crate) fn unproven(
        &self,
        owner: &Owner,
        queue_id: u16,
        peer: Option<SocketAddr>,
        failure: Failure,
    ) {
        self.count(|refused| refused.proofs += 1);
        let Owner { nqn, host_nqn, .. } = owner;
        // Of this connection: at an I/O queue it may be another than the controller's host.
        let peer = peer.map(tracing::field::display);
        self.tell(Subject::Refusals, || {
            let (host, subsystem) = (host_nqn, nqn);
            tracing::warn!(
                ?host, peer, ?subsystem, queue_id, why = %failure, "host refused: authentication has failed"
            );
        });
    }

    /// A connection that is not encrypted after all. Of an identity, what anybody may have sent is told as text in quotation marks.
    pub(crate) fn unsecured(&self, peer: SocketAddr, error: &UpgradeError) {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        if let UpgradeError::Socket(error) = error {
            // As who connects and goes away elsewhere.
            return tracing::debug!(%peer, %error, "no TLS session");
        }
        self.count(|refused| refused.sessions += 1);
        self.tell(Subject::Refusals, || {
            tracing::warn!(%peer, why = %error, "host refused: no TLS session");
        });
    }

    /// A Connect was refused. `who` gives the connection's peer, and the names of host and subsystem as the host gave
    /// them, whatever is in them.
    pub(crate) fn refused(
        &self,
        reason: Refusal,
        who: impl FnOnce() -> (Option<SocketAddr>, String, String),
    ) {
        let why = match reason {
            Refusal::UnknownSubsystem => "there is no such subsystem",
            Refusal::HostNotAllowed => "it is not on the subsystem's list",
            Refusal::NotSecured => "it has a key for TLS, and comes without",
            Refusal::OtherIdentity => {
                "the connection is encrypted by another host's key, or for another subsystem"
            }
            Refusal::NoControllerId => "all controller ids are in use",
            Refusal::Invalid => return tracing::debug!("a Connect that cannot be is refused"),
        };
        self.count(|refused| refused.connects += 1);
        self.tell(Subject::Refusals, || {
            let (peer, host, subsystem) = who();
            let peer = peer.map(tracing::field::display);
            tracing::warn!(?host, peer, ?subsystem, why, "host refused");
        });
    }
}

impl Complete for Journal {
    fn complete(&self, token: u64, result: i32, _flags: u32) {
        if result >= 0 && !self.closed.get() {
            self.settle(SUBJECTS[token as usize], self.reactor.now());
        }
    }
}

/// Why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The host has closed it.
    Closed,
    /// The socket has failed.
    Failed(io::ErrorKind),
    /// The host broke the protocol, and was told so.
    Protocol,
    /// The host says that this side broke the protocol.
    Terminated,
    /// The host let nothing go of memory that others waited for.
    Stalled,
    /// The host did not read its answers, and there were too many.
    Unread,
    /// The host did not prove who it is.
    Unproven,
    /// This server did not run for so long that the host has given up.
    Paused,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Closed => f.write_str("closed by the host"),
            End::Failed(kind) => kind.fmt(f),
            End::Protocol => f.write_str("protocol error of the host"),
            End::Terminated => f.write_str("terminated by the host for a protocol error"),
            End::Unproven => f.write_str("it did not prove who it is"),
            End::Paused => f.write_str("this server did not run for longer than the host waits"),
            End::Unread => f.write_str("it did not read its answers"),
            End::Stalled => f.write_str("it held buffers that others waited for"),
        }
    }
}

/// Why a controller has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The host has shut it down.
    ShutDown,
    /// Its admin queue's connection has ended.
    Connection(End),
    /// It had to go.
    Dropped(DropReason),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::ShutDown => "shut down by the host",
            Why::Connection(end) => return end.fmt(f),
            Why::Dropped(reason) => match reason {
                DropReason::KeepAliveExpired => "keep alive expired",
                DropReason::Idle => "nothing was heard of it",
                DropReason::Shutdown => "shut down by the host, which did not leave",
                DropReason::Reset => "reset by the host, which did not come back",
                DropReason::AdminDisconnected => "its admin queue has ended",
                DropReason::SubsystemRemoved => "the subsystem was removed",
                DropReason::PortRemoved => "the listener was removed",
                DropReason::HostDisallowed => "the host is no longer allowed",
                DropReason::TransferLimit => {
                    "a volume takes less at once than the host was told: it is to connect again"
                }
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal() -> (Rc<Reactor>, Rc<Journal>) {
        let reactor = Reactor::new(&reactor::Config::default()).unwrap();
        let journal = Journal::new(&reactor);
        (reactor, journal)
    }

    /// Lines that come through of so many.
    fn told(journal: &Journal, subject: Subject, lines: u32) -> u32 {
        let told = Cell::new(0);
        (0..lines).for_each(|_| journal.tell(subject, || told.set(told.get() + 1)));
        told.get()
    }

    #[test]
    fn no_more_lines_than_a_second_has_room_for() {
        let (_reactor, journal) = journal();
        assert_eq!(told(&journal, Subject::Refusals, 1000), REFUSALS_PER_SECOND);
        assert_eq!(journal.quotas[Subject::Refusals as usize].left_out.get(), 995);
        // Others have a bound of their own.
        assert_eq!(told(&journal, Subject::Hosts, 3), 3);
        // The next second has room again, and what was left out is told once.
        let quota = &journal.quotas[Subject::Refusals as usize];
        journal.settle(Subject::Refusals, quota.until.get().unwrap());
        assert_eq!((quota.left_out.get(), quota.until.get()), (0, None));
        assert_eq!(told(&journal, Subject::Refusals, 2), 2);
    }

    #[test]
    fn what_was_left_out_is_told_though_nothing_follows() {
        let (reactor, journal) = journal();
        told(&journal, Subject::Faults, FAULTS_PER_SECOND + 1);
        let quota = &journal.quotas[Subject::Faults as usize];
        let since = Instant::now();
        while quota.left_out.get() > 0 {
            assert!(since.elapsed() < Duration::from_secs(30));
            reactor.turn_for(reactor::Drive::Until(Instant::now() + PERIOD));
        }
        assert!(since.elapsed() >= PERIOD / 2);
    }

    #[test]
    fn a_closed_journal_says_nothing() {
        let (_reactor, journal) = journal();
        journal.close();
        assert_eq!(told(&journal, Subject::Hosts, 2), 0);
    }
}
