//! What goes wrong, drawn from the seed.

use super::FAULTS_UNTIL_NS;
use super::host::KEEP_ALIVE_NS;
use super::portal::LATE_NS;
use crate::model::{MS, S};
use crate::random::Random;

/// Something that happens to a path for a while.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub path: usize,
    pub kind: FaultKind,
    pub from_ns: u64,
    pub until_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Nothing passes; TCP sends again what was lost.
    BlackHole,
    /// The target's process dies: its kernel closes the connections; later it is started again.
    Kill,
    /// The target's machine loses power: nobody closes anything; later it boots.
    PowerOff,
    /// The target's process stands still (SIGSTOP, a machine asleep); what is sent to it waits in sockets, and its device goes on.
    Freeze,
    /// The device takes up to half a second per command.
    Slow,
    /// The target closes all connections.
    Reset,
    /// The ANA state is inaccessible.
    Inaccessible,
}

/// Each of the first `paths` paths has faults with pauses between them, independently of others:
/// there are times when all are gone. Only portals that drain also look at the clock before they go on: others stand still
/// for no longer than hosts wait.
pub fn plan(random: &mut Random, paths: usize, drains: impl Fn(usize) -> bool) -> Vec<Fault> {
    let mut faults = Vec::new();
    for path in 0..paths {
        let mut at_ns = 2 * S + random.below(5 * S);
        while at_ns < FAULTS_UNTIL_NS {
            let (kind, longest_ns) = match random.below(11) {
                0..=1 => (FaultKind::BlackHole, 12 * S),
                2..=3 => (FaultKind::BlackHole, 2 * S),
                4 => (FaultKind::Kill, 3 * S),
                5 => (FaultKind::PowerOff, 8 * S),
                6 => (FaultKind::Slow, 3 * S),
                7 => (FaultKind::Reset, MS),
                8 if drains(path) => (FaultKind::Freeze, 24 * S),
                8 => (FaultKind::Freeze, 2 * KEEP_ALIVE_NS - 2 * MS),
                _ => (FaultKind::Inaccessible, 3 * S),
            };
            // A machine does not boot within the time that its last commands may take.
            let shortest_ns = if kind == FaultKind::PowerOff { LATE_NS + S } else { MS };
            let until_ns = at_ns + shortest_ns + random.below(longest_ns);
            faults.push(Fault { path, kind, from_ns: at_ns, until_ns });
            // Often soon after: connections that are just being given up or made are the hard part.
            let pause_ns = match random.below(4) {
                0 => 300 * MS,
                1 => S,
                _ => 8 * S,
            };
            at_ns = until_ns + random.below(pause_ns) + MS;
        }
    }
    faults
}
