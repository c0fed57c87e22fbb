//! Rings of each kind, with entries of both sizes. Where the kernel has no mixed rings, those are
//! big ones.

use std::collections::HashMap;
use std::sync::OnceLock;
use uring::{BigRefusal, Completion, Kind, Ring, RingOptions, Wait, entry};

const KINDS: [Kind; 3] = [Kind::Small, Kind::Mixed, Kind::Big];
/// `IORING_OP_NOP128` and `IORING_OP_URING_CMD128`.
const CODES_OF_MIXED: [u8; 2] = [63, 64];

fn ring(entries: u32, kind: Kind) -> Ring {
    Ring::with_options(&RingOptions { entries, kind, ..RingOptions::default() })
        .expect("io_uring is allowed where tests run")
}

/// An entry of either size.
#[derive(Clone, Copy, Debug)]
enum Nop {
    Small,
    Big(Option<u64>),
}

impl Nop {
    fn push(self, ring: &mut Ring, user_data: u64) -> bool {
        // SAFETY: no-operations point to nothing.
        unsafe {
            match self {
                Nop::Small => ring.push(&entry::nop().user_data(user_data)).is_ok(),
                Nop::Big(extra) => {
                    match ring.push_big(&entry::big_nop(extra).user_data(user_data)) {
                        Ok(()) => true,
                        Err(BigRefusal::Full) => false,
                        Err(BigRefusal::Small) => panic!("the ring takes big entries"),
                    }
                }
            }
        }
    }

    /// With a further word, where the kernel's no-operations have one (6.18).
    fn big(extra: u64) -> Nop {
        static HAVE: OnceLock<bool> = OnceLock::new();
        let have = *HAVE.get_or_init(|| {
            let mut ring = ring(1, Kind::Big);
            assert!(Nop::Big(Some(1)).push(&mut ring, 0));
            ring.enter(Wait::Forever).expect("sound");
            let mut completions = Vec::with_capacity(1);
            ring.reap(&mut completions);
            completions[0].result == 0
        });
        Nop::Big(have.then_some(extra))
    }

    fn extra(self) -> u64 {
        if let Nop::Big(Some(extra)) = self { extra } else { 0 }
    }
}

/// Numbers that look random, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn nop(&mut self, kind: Kind) -> Nop {
        match self.roll(4) {
            _ if kind == Kind::Small => Nop::Small,
            0 | 1 => Nop::Small,
            2 => Nop::Big(None),
            _ => Nop::big(self.0),
        }
    }
}

/// Pushes an entry of a random size that the ring takes, if there is room.
fn push_any(ring: &mut Ring, dice: &mut Dice, open: &mut HashMap<u64, Nop>, number: u64) -> bool {
    let nop = dice.nop(if ring.takes_big() { Kind::Mixed } else { Kind::Small });
    let pushed = nop.push(ring, number);
    if pushed {
        open.insert(number, nop);
    }
    pushed
}

/// Notes completions, each of which must be awaited.
fn settle(open: &mut HashMap<u64, Nop>, completions: impl IntoIterator<Item = Completion>) {
    for completion in completions {
        let Completion { user_data, result, extra, .. } = completion;
        let nop = open.remove(&user_data);
        let nop = nop.unwrap_or_else(|| panic!("submitted, and completed once: {completion:?}"));
        assert_eq!((result, extra), (0, nop.extra()), "{nop:?}");
    }
}

#[test]
fn mixed_rings_are_made_where_the_kernel_has_them() {
    let ring = ring(8, Kind::Mixed);
    let has_them = CODES_OF_MIXED.iter().all(|code| ring.supports(*code));
    assert_eq!(ring.setup().kind, if has_them { Kind::Mixed } else { Kind::Big });
}

/// Batches of all sizes, so that entries of two slots meet the end of the ring in every way, and
/// completions of two slots too.
#[test]
fn entries_of_both_sizes_complete_interleaved() {
    for kind in KINDS {
        let mut ring = ring(8, kind);
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
        let mut completions = Vec::with_capacity(5);
        let (mut open, mut number) = (HashMap::new(), 0);
        for _ in 0..20_000 {
            for _ in 0..=dice.roll(9) {
                number += u64::from(push_any(&mut ring, &mut dice, &mut open, number));
            }
            ring.enter(Wait::No).expect("sound");
            assert_eq!(ring.queued(), 0, "no-operations are taken at once");
            while ring.has_completions() {
                ring.reap(&mut completions);
                settle(&mut open, completions.drain(..));
            }
        }
        assert!(open.is_empty(), "{kind:?}: {} are missing", open.len());
        assert!(number > 50_000);
    }
}

#[test]
fn a_full_queue_says_so_and_loses_nothing() {
    for kind in KINDS {
        let mut ring = ring(4, kind);
        let mut completions = Vec::with_capacity(64);
        // In a mixed ring, big entries at every place relative to its end.
        for first in 0..4 {
            let nop = if kind == Kind::Small { Nop::Small } else { Nop::Big(None) };
            let mut open = HashMap::new();
            for number in 0..first {
                assert!(Nop::Small.push(&mut ring, number));
                open.insert(number, Nop::Small);
            }
            ring.enter(Wait::No).expect("sound");
            let mut number = first;
            while nop.push(&mut ring, number) {
                open.insert(number, nop);
                number += 1;
            }
            let pushed = number - first;
            match ring.setup().kind {
                Kind::Small | Kind::Big => assert_eq!(pushed, 4),
                Kind::Mixed => assert!((1..=2).contains(&pushed), "{pushed}"),
            }
            ring.enter(Wait::Forever).expect("sound");
            while ring.has_completions() {
                ring.reap(&mut completions);
                settle(&mut open, completions.drain(..));
            }
            assert!(open.is_empty(), "{kind:?} from {first}: {open:?}");
        }
    }
}

/// Completions that find the queue full wait in the kernel, big ones as well. The queue is reaped
/// by a few at a time, so that it is full with its end at every place.
#[test]
fn completions_beyond_the_queue_come_later() {
    for kind in KINDS {
        let mut ring = ring(8, kind);
        let queue = ring.setup().completions as usize;
        let mut dice = Dice(77);
        let mut open = HashMap::new();
        let (mut number, mut stuck) = (0, 0);
        let mut completions = Vec::with_capacity(64);
        while number < 20_000 || !open.is_empty() {
            let before = (number, open.len());
            let most = queue + dice.roll(queue as u64) as usize;
            while number < 20_000 && open.len() < most {
                let nop = dice.nop(kind);
                if !nop.push(&mut ring, number) {
                    break;
                }
                open.insert(number, nop);
                number += 1;
            }
            // May be refused while completions wait: reaping mends it.
            let _ = ring.enter(Wait::No);
            let mut few = Vec::with_capacity(dice.roll(queue as u64 / 2) as usize);
            ring.reap(&mut few);
            completions.append(&mut few);
            settle(&mut open, completions.drain(..));
            stuck = if before == (number, open.len()) { stuck + 1 } else { 0 };
            assert!(stuck < 1000, "{kind:?}: {} of {number} are missing", open.len());
        }
    }
}

/// As whoever submits what completions ask for takes them: one at a time, with entries and completions coming in between,
/// of which none is taken before its turn.
#[test]
fn completions_are_taken_one_at_a_time_while_others_come() {
    for kind in KINDS {
        let mut ring = ring(8, kind);
        let mut dice = Dice(0x1234_5678_9abc_def1);
        let (mut open, mut number) = (HashMap::new(), 0);
        for _ in 0..20_000 {
            for _ in 0..=dice.roll(9) {
                number += u64::from(push_any(&mut ring, &mut dice, &mut open, number));
            }
            ring.enter(Wait::No).expect("sound");
            let (due, noted) = (open.len(), number);
            ring.note_completed();
            let mut taken = 0;
            while let Some(completion) = ring.next_noted() {
                assert!(completion.user_data < noted, "{kind:?}: it came later");
                settle(&mut open, [completion]);
                taken += 1;
                if dice.roll(3) == 0 {
                    number += u64::from(push_any(&mut ring, &mut dice, &mut open, number));
                    let _ = ring.enter(Wait::No);
                }
            }
            assert!(taken <= due);
        }
        let mut idle = 0;
        while !open.is_empty() && idle < 1000 {
            ring.enter(Wait::No).expect("sound");
            ring.note_completed();
            idle += 1;
            while let Some(completion) = ring.next_noted() {
                settle(&mut open, [completion]);
                idle = 0;
            }
        }
        assert!(open.is_empty(), "{kind:?}: {} are missing", open.len());
        assert!(number > 50_000 && !ring.has_completions());
    }
}

/// The case that makes some kernels repeat a completion: see `Completions::next_mixed`.
#[test]
fn a_big_completion_without_room_at_the_end_of_the_queue() {
    for kind in [Kind::Mixed, Kind::Big] {
        for left in 0..3 {
            let mut ring = ring(8, kind);
            let queue = u64::from(ring.setup().completions);
            let mut open = HashMap::new();
            let mut submit = |ring: &mut Ring, nop: Nop| {
                let number = open.len() as u64;
                assert!(nop.push(ring, number));
                let _ = ring.enter(Wait::No);
                open.insert(number, nop);
            };
            (0..queue - 1).for_each(|_| submit(&mut ring, Nop::Small));
            let mut completions = Vec::with_capacity(left);
            ring.reap(&mut completions);
            submit(&mut ring, Nop::big(9));
            submit(&mut ring, Nop::Small);
            submit(&mut ring, Nop::Small);
            settle(&mut open, completions.drain(..));
            let mut completions = Vec::with_capacity(64);
            for _ in 0..100 {
                ring.reap(&mut completions);
                settle(&mut open, completions.drain(..));
                ring.enter(Wait::No).expect("there is room");
            }
            assert!(open.is_empty(), "{kind:?}, {left} free: {open:?}");
            assert!(!ring.has_completions());
        }
    }
}

#[test]
fn a_small_ring_takes_no_big_entry() {
    let mut ring = ring(8, Kind::Small);
    // SAFETY: a no-operation points to nothing.
    let refused = unsafe { ring.push_big(&entry::big_nop(None)) };
    assert_eq!((refused, ring.queued()), (Err(BigRefusal::Small), 0));
    assert!(!ring.takes_big());
}
