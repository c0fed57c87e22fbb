//! Submission queue flow control (NVMe Base 2.1, section 3.3.1.2.1, and Connect's CATTR).

/// How many more commands a submission queue takes.
///
/// The controller tells in each completion how far it has fetched (SQHD). A queue of `entries`
/// takes one command less, so that full and empty differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    entries: u16,
    tail: u16,
    head: u16,
    /// Flow control is in force.
    on: bool,
}

impl Credits {
    /// Of an empty queue; with `on` unset there is always room.
    pub fn new(entries: u16, on: bool) -> Credits {
        assert!(entries >= 2, "a queue has two entries at least");
        Credits { entries, tail: 0, head: 0, on }
    }

    /// Whether there is room for one more command. Connect counts too.
    #[inline]
    pub fn has_room(&self) -> bool {
        let next = if self.tail + 1 == self.entries { 0 } else { self.tail + 1 };
        !self.on || next != self.head
    }

    /// A command is sent.
    #[inline]
    pub fn sent(&mut self) {
        debug_assert!(self.has_room());
        self.tail = if self.tail + 1 == self.entries { 0 } else { self.tail + 1 };
    }

    /// A command that counts as sent is not sent after all, as none after it was.
    pub fn withdrawn(&mut self) {
        self.tail = self.tail.checked_sub(1).unwrap_or(self.entries - 1);
    }

    /// A completion tells `sqhd`. `false` if the controller cannot be there: it has fetched what was
    /// never sent.
    #[inline]
    #[must_use]
    pub fn fetched(&mut self, sqhd: u16) -> bool {
        if !self.on {
            return true;
        }
        let entries = u32::from(self.entries);
        let ahead = |from: u16, to: u16| (u32::from(to) + entries - u32::from(from)) % entries;
        if sqhd >= self.entries || ahead(self.head, sqhd) > ahead(self.head, self.tail) {
            return false;
        }
        self.head = sqhd;
        true
    }

    /// A command has ended without a word of how far the controller has fetched: it keeps no flow control, whatever it
    /// has said, and from now on there is always room. What is in flight at once must be bounded otherwise.
    #[inline]
    pub fn untold(&mut self) {
        self.on = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_takes_one_less_than_its_entries() {
        let mut credits = Credits::new(4, true);
        for _ in 0..3 {
            assert!(credits.has_room());
            credits.sent();
        }
        assert!(!credits.has_room());
        assert!(credits.fetched(1));
        assert!(credits.has_room());
        credits.sent();
        assert!(!credits.has_room());
        // The tail is at 0 now; the controller cannot be at 4, which does not exist.
        assert!(!credits.fetched(4));
        assert!(credits.fetched(0));
        assert!(!credits.fetched(1), "nothing more was sent");
        assert!((0..3).all(|_| {
            let room = credits.has_room();
            credits.sent();
            room
        }));
    }

    #[test]
    fn what_is_withdrawn_makes_room() {
        let mut credits = Credits::new(4, true);
        for _ in 0..3 {
            credits.sent();
        }
        assert!(credits.fetched(3));
        credits.sent();
        let one = credits;
        credits.sent();
        credits.withdrawn();
        assert_eq!(credits, one);
        credits.withdrawn();
        assert!(!credits.fetched(0), "nothing more was sent");
    }

    #[test]
    fn a_controller_that_does_not_tell_does_without() {
        let mut credits = Credits::new(2, true);
        credits.sent();
        assert!(!credits.has_room());
        credits.untold();
        assert!(credits.has_room() && credits.fetched(0xffff));
    }

    #[test]
    fn without_flow_control_there_is_room() {
        let mut credits = Credits::new(2, false);
        for _ in 0..10 {
            assert!(credits.has_room() && credits.fetched(0xffff));
            credits.sent();
        }
    }
}
