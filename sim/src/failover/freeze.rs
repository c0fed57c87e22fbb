//! A portal that stands still, as `crates/target/src/pause.rs` goes on afterwards.
//!
//! Its kernel acknowledges what hosts send, which lies in sockets; what its device had begun is carried out. When it runs again,
//! connections whose hosts have given up meanwhile end unread, and everything else is done before timers are looked at.

use super::host::KEEP_ALIVE_NS;
use super::network::Packet;
use super::portal::Work;
use super::{Breach, World};

/// What has happened since.
#[derive(Debug)]
pub struct Frozen {
    since_ns: u64,
    /// What has arrived, by wire, and whether it had been sent again.
    pub unread: Vec<(usize, Packet, bool)>,
    /// What the device has carried out, and what the block held then.
    pub done: Vec<(Work, u64)>,
}

impl World {
    pub fn freeze(&mut self, path: usize) {
        let since_ns = self.agenda.now_ns();
        self.portals[path].frozen = Some(Frozen { since_ns, unread: Vec::new(), done: Vec::new() });
    }

    pub fn wake(&mut self, path: usize) {
        let Some(frozen) = self.portals[path].frozen.take() else { return };
        let paused_ns = self.agenda.now_ns() - frozen.since_ns;
        if paused_ns > 2 * KEEP_ALIVE_NS && self.breach != Breach::Stale {
            for wire in self.connected(path, |_| true) {
                self.portal_hears_the_end(wire);
            }
        }
        for (work, value) in frozen.done {
            self.portal_hears_of(work, value);
        }
        for (wire, packet, is_late) in frozen.unread {
            self.portal_takes(wire, packet, is_late);
        }
        self.portal_timer(path);
    }
}
