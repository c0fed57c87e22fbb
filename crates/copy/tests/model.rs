//! The window against a Copy in memory that is moved range by range: whatever order things complete in,
//! and whatever fails.

use copy::{Range, Window};
use proptest::prelude::*;

/// Blocks of each of the two volumes.
const BLOCKS: usize = 96;

#[derive(Clone, Debug)]
struct Case {
    ranges: Vec<(bool, usize, usize)>,
    destination: usize,
    piece: u64,
    flights: usize,
    /// Which of what is in flight completes next, or whether something is begun first.
    dice: Vec<u8>,
    /// One in so many completions fails; never if zero.
    failures: u8,
}

fn cases() -> impl Strategy<Value = Case> {
    let range = (any::<bool>(), 0..BLOCKS - 24, 1..=24usize);
    (
        prop::collection::vec(range, 1..=4),
        0..=BLOCKS,
        1..=9u64,
        1..=8usize,
        prop::collection::vec(any::<u8>(), 1..64),
        prop_oneof![Just(0u8), 2..40u8],
    )
        .prop_map(|(mut ranges, destination, piece, flights, dice, failures)| {
            // Sources shrink until they fit the volume.
            let total: usize = ranges.iter().map(|range| range.2).sum();
            let destination = destination.min(BLOCKS - total.min(BLOCKS));
            ranges.truncate(4);
            Case { ranges, destination, piece, flights, dice, failures }
        })
}

/// The two volumes: the destination, and another.
type Volumes = [Vec<u32>; 2];

fn volumes() -> Volumes {
    [(0..BLOCKS as u32).collect(), (1000..1000 + BLOCKS as u32).collect()]
}

/// Range by range, each read whole before it is written.
fn model(case: &Case, ranges: usize) -> Volumes {
    let mut volumes = volumes();
    let mut at = case.destination;
    for &(is_same, slba, blocks) in &case.ranges[..ranges] {
        let read = volumes[usize::from(!is_same)][slba..slba + blocks].to_vec();
        volumes[0][at..at + blocks].copy_from_slice(&read);
        at += blocks;
    }
    volumes
}

struct Rolls<'a>(std::iter::Cycle<std::slice::Iter<'a, u8>>, u64);

impl Rolls<'_> {
    /// A number below `below`. The dice are mixed with a count, so that no cycle goes on forever.
    fn roll(&mut self, below: usize) -> usize {
        self.1 = self.1.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let die = u64::from(*self.0.next().expect("an endless cycle"));
        ((self.1 >> 33) + die) as usize % below
    }
}

/// A read or a write that has touched its first `done` blocks: those at its start, the others when it ends.
struct Flight {
    number: u64,
    piece: copy::Piece,
    writes: bool,
    data: Vec<u32>,
    done: usize,
}

impl Flight {
    fn touch(&mut self, volumes: &mut Volumes, until: usize) {
        let (source, destination) = (self.piece.source as usize, self.piece.destination as usize);
        for block in self.done..until {
            match self.writes {
                true => volumes[0][destination + block] = self.data[block],
                false => {
                    let volume = usize::from(!self.piece.is_same);
                    self.data.push(volumes[volume][source + block]);
                }
            }
        }
        self.done = until;
    }
}

/// Runs the case; returns what the volumes hold, and the lowest range that was not copied.
fn run(case: &Case) -> (Volumes, Option<usize>) {
    let mut volumes = volumes();
    let mut rolls = Rolls(case.dice.iter().cycle(), 1);
    let mut window = Window::new(case.flights);
    let ranges = case.ranges.iter().map(|&(is_same, slba, blocks)| Range {
        slba: slba as u64,
        blocks: blocks as u64,
        is_same,
    });
    window.begin(case.destination as u64, ranges);
    let mut flights: Vec<Flight> = Vec::new();
    let mut failed = false;
    while !window.has_ended() {
        while window.abandoned().is_some() {}
        let begins = rolls.roll(3) > 0 || flights.is_empty();
        let begun = if begins && rolls.roll(2) == 0 {
            window.start_write().map(|(number, piece, data)| (number, piece, data, true))
        } else if begins && let Some(piece) = window.next_read(case.piece) {
            let (number, piece) = window.start_read(1 + rolls.roll(piece.blocks as usize) as u64);
            Some((number, piece, Vec::new(), false))
        } else {
            None
        };
        if let Some((number, piece, data, writes)) = begun {
            let mut flight = Flight { number, piece, writes, data, done: 0 };
            flight.touch(&mut volumes, rolls.roll(piece.blocks as usize + 1));
            flights.push(flight);
        }
        assert!(flights.len() <= case.flights);
        if flights.is_empty() || rolls.roll(2) == 0 {
            continue;
        }
        let index = rolls.roll(flights.len());
        let mut flight = flights.swap_remove(index);
        if case.failures > 0 && rolls.roll(usize::from(case.failures)) == 0 {
            failed = true;
            window.fail(flight.number);
            continue;
        }
        flight.touch(&mut volumes, flight.piece.blocks as usize);
        match flight.writes {
            true => window.written(flight.number),
            false => window.read(flight.number, flight.data),
        }
    }
    assert!(flights.is_empty() && !window.is_busy());
    assert_eq!(failed, window.lowest().is_some());
    (volumes, window.lowest())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn leaves_what_moving_range_by_range_leaves(case in cases()) {
        let total: usize = case.ranges.iter().map(|range| range.2).sum();
        prop_assume!(case.destination + total <= BLOCKS);
        let (volumes, lowest) = run(&case);
        let whole = model(&case, case.ranges.len());
        let Some(lowest) = lowest else {
            prop_assert_eq!(volumes, whole);
            return Ok(());
        };
        let before = model(&case, lowest);
        let copied: usize = case.ranges[..lowest].iter().map(|range| range.2).sum();
        prop_assert_eq!(&volumes[1], &before[1]);
        for block in 0..BLOCKS {
            let (is, was, would) = (volumes[0][block], before[0][block], whole[0][block]);
            let later = (case.destination + copied..case.destination + total).contains(&block);
            // Of the ranges that were not copied whole, some blocks may have been.
            prop_assert!(is == was || later && is == would, "block {}: {} {} {}", block, is, was, would);
        }
    }
}
