//! Pieces that are read and written, several at once.

use crate::{Order, Piece, Range};
use std::collections::VecDeque;

/// Pieces in flight, each with a `T`: the memory that it is read into.
///
/// ```text
///   start_read -> (reading) -> read -> start_write -> (writing) -> written
/// ```
#[derive(Debug)]
pub struct Window<T> {
    order: Order,
    /// In the order of the plan. What is done leaves as soon as all before it have.
    flights: VecDeque<Flight<T>>,
    /// Number of the first of them; pieces are numbered as they start.
    first: u64,
    /// The lowest piece that failed.
    failed: Option<u64>,
    flights_max: usize,
}

#[derive(Debug)]
struct Flight<T> {
    piece: Piece,
    stage: Stage<T>,
}

#[derive(Debug)]
enum Stage<T> {
    Reading,
    /// It was read, and waits to be written.
    Read(T),
    Writing,
    Done,
    Failed,
}

impl<T> Window<T> {
    /// For plans with `flights_max` pieces in flight, at least one.
    pub fn new(flights_max: usize) -> Window<T> {
        assert!(flights_max > 0, "something has to be in flight");
        let flights = VecDeque::with_capacity(flights_max);
        Window { order: Order::default(), flights, first: 0, failed: None, flights_max }
    }

    /// Starts with `ranges`, which go to the blocks from `destination` on.
    ///
    /// # Panics
    /// If something of an earlier plan is in flight.
    pub fn begin(&mut self, destination: u64, ranges: impl IntoIterator<Item = Range>) {
        assert!(!self.is_busy(), "the last plan has ended");
        self.order.begin(destination, ranges);
        self.flights.clear();
        (self.first, self.failed) = (0, None);
    }

    /// The piece of at most `blocks_max` blocks that may be read now, if there is one.
    pub fn next_read(&self, blocks_max: u64) -> Option<Piece> {
        if self.failed.is_some() || self.flights.len() >= self.flights_max {
            return None;
        }
        let piece = self.order.peek(blocks_max)?;
        let unwritten = |flight: &Flight<T>| !matches!(flight.stage, Stage::Done);
        let waits = |flight: &Flight<T>| unwritten(flight) && piece.reads_of(&flight.piece);
        (!self.flights.iter().any(waits)).then_some(piece)
    }

    /// Has the piece of `blocks` blocks that may be read now read. Returns its number.
    ///
    /// # Panics
    /// If there is none; see [`Window::next_read`].
    pub fn start_read(&mut self, blocks: u64) -> (u64, Piece) {
        assert!(self.next_read(blocks).is_some(), "there is something to read");
        let piece = self.order.take(blocks);
        self.flights.push_back(Flight { piece, stage: Stage::Reading });
        (self.first + self.flights.len() as u64 - 1, piece)
    }

    /// Piece `number` was read into `memory`.
    pub fn read(&mut self, number: u64, memory: T) {
        let flight = self.flight(number);
        assert!(matches!(flight.stage, Stage::Reading), "it was being read");
        flight.stage = Stage::Read(memory);
    }

    /// Has the next piece that may be written now written: its number, and what it was read into.
    pub fn start_write(&mut self) -> Option<(u64, Piece, T)> {
        let before_failure =
            self.failed.map_or(self.flights.len(), |it| (it - self.first) as usize);
        let ready = |index: &usize| {
            let flight = &self.flights[*index];
            let read_by = |earlier: &Flight<T>| {
                matches!(earlier.stage, Stage::Reading) && earlier.piece.reads_of(&flight.piece)
            };
            matches!(flight.stage, Stage::Read(_)) && !self.flights.range(..*index).any(read_by)
        };
        let index = (0..before_failure).find(ready)?;
        let flight = &mut self.flights[index];
        match std::mem::replace(&mut flight.stage, Stage::Writing) {
            Stage::Read(memory) => Some((self.first + index as u64, flight.piece, memory)),
            _ => unreachable!("it was found read"),
        }
    }

    /// Piece `number` was written.
    pub fn written(&mut self, number: u64) {
        let flight = self.flight(number);
        assert!(matches!(flight.stage, Stage::Writing), "it was being written");
        flight.stage = Stage::Done;
        while matches!(self.flights.front(), Some(Flight { stage: Stage::Done, .. })) {
            self.flights.pop_front();
            self.first += 1;
        }
    }

    /// Reading or writing piece `number` has failed. Returns whether no earlier one has: what
    /// this one met is then what the whole Copy is told.
    pub fn fail(&mut self, number: u64) -> bool {
        let flight = self.flight(number);
        assert!(matches!(flight.stage, Stage::Reading | Stage::Writing), "it was in flight");
        flight.stage = Stage::Failed;
        let is_lowest = self.failed.is_none_or(|failed| number < failed);
        if is_lowest {
            self.failed = Some(number);
        }
        is_lowest
    }

    /// Gives up what is not being written yet: nothing more is read or written. Returns whether that is
    /// anything.
    pub fn stop(&mut self) -> bool {
        let waits = |flight: &Flight<T>| matches!(flight.stage, Stage::Reading | Stage::Read(_));
        let place = self.flights.iter().position(waits);
        if self.failed.is_some() || place.is_none() && self.order.lowest().is_none() {
            return false;
        }
        self.failed = Some(self.first + place.unwrap_or(self.flights.len()) as u64);
        true
    }

    /// Memory of a piece that will not be written, since an earlier one has failed.
    pub fn abandoned(&mut self) -> Option<T> {
        let after = (self.failed? - self.first) as usize;
        let mut later = self.flights.range_mut(after..);
        let flight = later.find(|flight| matches!(flight.stage, Stage::Read(_)))?;
        match std::mem::replace(&mut flight.stage, Stage::Failed) {
            Stage::Read(memory) => Some(memory),
            _ => unreachable!("it was found read"),
        }
    }

    /// Whether something is being read or written.
    pub fn is_busy(&self) -> bool {
        let busy = |flight: &Flight<T>| matches!(flight.stage, Stage::Reading | Stage::Writing);
        self.flights.iter().any(busy)
    }

    /// Whether nothing is in flight and nothing will be.
    pub fn has_ended(&self) -> bool {
        let waits = |flight: &Flight<T>| matches!(flight.stage, Stage::Read(_));
        let left = self.failed.is_none() && self.order.lowest().is_some();
        !left && !self.is_busy() && !self.flights.iter().any(waits)
    }

    /// The lowest range that was not copied whole so far; none when all were.
    pub fn lowest(&self) -> Option<usize> {
        match self.flights.front() {
            Some(flight) => Some(flight.piece.range),
            None => self.order.lowest(),
        }
    }

    fn flight(&mut self, number: u64) -> &mut Flight<T> {
        let index = number.checked_sub(self.first).expect("the piece is in flight");
        self.flights.get_mut(index as usize).expect("the piece is in flight")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stopped_writes_what_it_is_writing_and_no_more() {
        let four = [1, 1, 1, 1].map(|blocks| Range { slba: 50, blocks, is_same: false });
        let mut window = Window::new(3);
        window.begin(0, four);
        let started = [(); 3].map(|()| window.start_read(1).0);
        window.read(0, 'a');
        window.read(2, 'c');
        assert_eq!(window.start_write().map(|write| write.0), Some(0));
        assert!(window.stop() && !window.stop());
        assert_eq!((started, window.next_read(1), window.start_write()), ([0, 1, 2], None, None));
        assert_eq!((window.abandoned(), window.abandoned()), (Some('c'), None));
        window.read(1, 'b');
        window.written(0);
        assert_eq!((window.start_write(), window.abandoned()), (None, Some('b')));
        assert!(window.has_ended());
        assert_eq!(window.lowest(), Some(1));
        // Between two pieces, and when all are written.
        window.begin(0, four);
        window.start_read(1);
        window.read(0, 'a');
        window.start_write();
        assert!(window.stop() && !window.has_ended());
        window.written(0);
        assert!(window.has_ended());
        assert_eq!((window.lowest(), window.next_read(1)), (Some(1), None));
        window.begin(0, [four[0]]);
        window.start_read(1);
        window.read(0, 'a');
        window.start_write();
        assert!(!window.stop());
        window.written(0);
        assert_eq!(window.lowest(), None);
    }

    #[test]
    fn the_earliest_failure_is_told_and_nothing_later_is_written() {
        let mut window = Window::new(4);
        window.begin(0, [1, 1, 1, 1].map(|blocks| Range { slba: 50, blocks, is_same: false }));
        let started = [(); 4].map(|()| window.start_read(1).0);
        assert_eq!((started, window.next_read(1)), ([0, 1, 2, 3], None));
        window.read(3, "memory of the last");
        assert!(window.fail(2) && window.fail(1), "each was the earliest so far");
        assert_eq!(window.start_write(), None);
        assert_eq!((window.abandoned(), window.abandoned()), (Some("memory of the last"), None));
        window.read(0, "memory of the first");
        assert!(!window.has_ended() && !window.is_busy());
        assert_eq!(
            window.start_write().map(|write| (write.0, write.2)),
            Some((0, "memory of the first"))
        );
        window.written(0);
        assert!(window.has_ended());
        assert_eq!(window.lowest(), Some(1));
    }
}
