//! TCP between a host and a portal, as far as messages notice it.

use super::faults::{Fault, FaultKind};
use super::{Event, World};
use crate::model::{RTO_NS, US};
use nvme::{Command, Completion};
use subsystem::ControllerId;

/// A path's link: when nothing passes.
#[derive(Debug)]
pub struct Link {
    holes: Vec<(u64, u64)>,
}

/// A connection.
#[derive(Debug)]
pub struct Wire {
    pub path: usize,
    pub is_admin: bool,
    /// Of the association.
    pub generation: u64,
    /// The host still wants to hear from it; a wire that it has given up may be watched for its end.
    pub host_cares: bool,
    /// The host has closed it and takes nothing more.
    pub host_closed: bool,
    /// The host has reset it: what its kernel had still to send is forgotten.
    pub is_reset: bool,
    /// Messages that the host has sent and that have not arrived.
    pub unacknowledged: u32,
    pub portal: PortalEnd,
    /// When the last message of a direction arrives: none overtakes another.
    last_up_ns: u64,
    last_down_ns: u64,
}

/// A portal's end of a wire.
#[derive(Debug, Default)]
pub struct PortalEnd {
    pub is_open: bool,
    /// Which life of the portal it belongs to.
    pub life: u64,
    pub controller: Option<(ControllerId, u16)>,
    /// Commands that its device works on.
    pub in_flight: u32,
    /// It takes nothing more and closes once nothing is in flight.
    pub is_closing: bool,
}

/// A message.
#[derive(Debug)]
pub enum Packet {
    Syn,
    /// The connection is made and initialized.
    SynAck,
    Capsule {
        command: Box<Command>,
        data: Vec<u8>,
        /// What a write is to store.
        value: u64,
    },
    Answer {
        completion: Completion,
        data: Vec<u8>,
        /// What a read has found.
        value: u64,
    },
    /// Nothing more comes.
    Fin,
    /// There is no such connection.
    Rst,
}

impl Link {
    pub fn new(faults: &[Fault], path: usize) -> Link {
        let holes = faults.iter().filter(|it| it.path == path && it.kind == FaultKind::BlackHole);
        Link { holes: holes.map(|hole| (hole.from_ns, hole.until_ns)).collect() }
    }

    fn is_open(&self, at_ns: u64) -> bool {
        !self.holes.iter().any(|(from_ns, until_ns)| (*from_ns..*until_ns).contains(&at_ns))
    }

    /// When a message that is sent now gets through: at once, or with a retransmission.
    fn passes(&self, now_ns: u64) -> u64 {
        let (mut at_ns, mut wait_ns) = (now_ns, RTO_NS);
        while !self.is_open(at_ns) {
            at_ns += wait_ns;
            wait_ns *= 2;
        }
        at_ns
    }
}

impl Wire {
    pub fn new(path: usize, is_admin: bool, generation: u64) -> Wire {
        Wire {
            path,
            is_admin,
            generation,
            host_cares: true,
            host_closed: false,
            is_reset: false,
            unacknowledged: 0,
            portal: PortalEnd::default(),
            last_up_ns: 0,
            last_down_ns: 0,
        }
    }
}

impl World {
    /// Sends from the host to the portal.
    pub fn send_up(&mut self, wire: usize, packet: Packet) {
        let Some((at_ns, is_late)) = self.arrival(wire, &packet, true) else { return };
        self.wires[wire].unacknowledged += 1;
        self.agenda.at(at_ns, Event::ToPortal { wire, packet, is_late });
    }

    /// Sends from the portal to the host.
    pub fn send_down(&mut self, wire: usize, packet: Packet) {
        let Some((at_ns, _)) = self.arrival(wire, &packet, false) else { return };
        self.agenda.at(at_ns, Event::ToHost { wire, packet });
    }

    fn arrival(&mut self, number: usize, packet: &Packet, up: bool) -> Option<(u64, bool)> {
        let now_ns = self.agenda.now_ns();
        let latency_ns = 50 * US + self.random.below(100 * US);
        let wire = &mut self.wires[number];
        let passes_ns = self.links[wire.path].passes(now_ns);
        // Nobody sends a reset again.
        if matches!(packet, Packet::Rst) && passes_ns > now_ns {
            return None;
        }
        let last_ns = if up { &mut wire.last_up_ns } else { &mut wire.last_down_ns };
        let at_ns = (passes_ns + latency_ns).max(*last_ns + 1);
        *last_ns = at_ns;
        Some((at_ns, passes_ns > now_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MS;

    #[test]
    fn holes_delay_until_a_retransmission() {
        let link = Link { holes: vec![(1_000 * MS, 2_000 * MS), (2_300 * MS, 2_500 * MS)] };
        assert_eq!(link.passes(999 * MS), 999 * MS);
        // Sent again after 0.2, 0.6 and 1.4 s; the last falls into the second hole, and so 3 s.
        assert_eq!(link.passes(1_000 * MS), 4_000 * MS);
        assert_eq!(link.passes(1_900 * MS), 2_100 * MS);
        assert_eq!(link.passes(2_000 * MS), 2_000 * MS);
    }
}
