//! Two cores copy between two volumes, in both directions, and write and read the same blocks meanwhile:
//! no block is ever seen half old and half new, and nobody waits for ever.

use crate::blocks::{Core, Span};
use crate::dice::Dice;
use crate::stacks::Maker;
use namespace::layer::guard::{Guard, GuardOptions};
use namespace::layer::linear::Linear;
use namespace::{Namespace, Request};
use std::sync::Arc;

const BLOCKS: u64 = 96;
/// Commands of each core in flight at once, and how often.
const IN_FLIGHT: usize = 12;
const ROUNDS: u64 = 150;

fn guarded(child: Arc<dyn Namespace>) -> Arc<dyn Namespace> {
    let options = GuardOptions { cores: 2, ..GuardOptions::default() };
    Guard::new(child, options)
}

/// A command on any blocks, and whether it reads.
fn any_command(core: &Core, dice: &mut Dice, number: u64) -> (usize, Box<Request>, bool) {
    let volumes = core.volumes.len() as u64;
    let volume = dice.roll(volumes) as usize;
    let blocks = 1 + dice.roll(24);
    let slba = dice.roll(BLOCKS - blocks + 1);
    match dice.roll(4) {
        0 => (volume, core.write(slba, &vec![number; blocks as usize]), false),
        1 => (volume, core.reading(slba, blocks as u32), true),
        _ => {
            let (mut spans, mut left): (Vec<Span>, u64) = (Vec::new(), BLOCKS - slba);
            for _ in 0..1 + dice.roll(4) {
                if left == 0 {
                    break;
                }
                let blocks = 1 + dice.roll(left.min(24));
                let from = dice.roll(volumes) as usize;
                spans.push((from, dice.roll(BLOCKS - blocks + 1), blocks as u32));
                left -= blocks;
            }
            (volume, core.copy(volume, slba, &spans, false), false)
        }
    }
}

fn drive(volumes: &[Arc<dyn Namespace>], seed: u64) {
    let core = Core::new(volumes, 8 << 20);
    let mut dice = Dice::new(seed);
    for round in 0..ROUNDS {
        let mut reads = Vec::new();
        let mut requests = Vec::new();
        for index in 0..IN_FLIGHT {
            let number = seed << 48 | round << 16 | index as u64;
            let (volume, request, is_read) = any_command(&core, &mut dice, number);
            requests.push((volume, request));
            reads.push(is_read);
        }
        for (outcome, is_read) in core.run(requests).iter().zip(reads) {
            assert!(outcome.status.is_success(), "{}", outcome.status);
            if is_read {
                let torn = core.numbers(outcome).iter().filter(|number| number.is_none()).count();
                assert_eq!(torn, 0, "torn blocks, round {round} of core {seed}");
            }
        }
    }
}

/// What both volumes are made of, by whether files are buffered.
fn volumes(maker: &Maker<'_>, case: u64) -> Vec<Arc<dyn Namespace>> {
    let backend = |blocks, file| match file {
        true => maker.file(blocks, true),
        false => maker.memory(blocks),
    };
    let linear = |files: [bool; 2]| -> Arc<dyn Namespace> {
        let children = files.map(|file| backend(BLOCKS / 2, file));
        Linear::new(children.into()).expect("blocks of one size")
    };
    match case {
        0 => vec![guarded(backend(BLOCKS, true)), guarded(backend(BLOCKS, true))],
        1 => vec![guarded(backend(BLOCKS, true)), guarded(linear([true, false]))],
        2 => vec![guarded(backend(BLOCKS, false)), guarded(backend(BLOCKS, false))],
        // Guards below guards: of the whole, and of a part.
        3 => vec![guarded(guarded(linear([true, true]))), guarded(backend(BLOCKS, true))],
        4 => {
            let parts = vec![guarded(linear([true, true])), guarded(linear([true, true]))];
            let parts: Arc<dyn Namespace> = Linear::new(parts).expect("blocks of one size");
            vec![guarded(backend(2 * BLOCKS, true)), guarded(parts)]
        }
        // A guard below the later blocks of one, that is also a volume of its own; made before the third, and after.
        _ => {
            let over = |part: &Arc<dyn Namespace>| {
                let parts = vec![backend(BLOCKS / 2, true), Arc::clone(part)];
                guarded(Linear::new(parts).expect("blocks of one size"))
            };
            let early = (case == 5).then(|| guarded(backend(BLOCKS, true)));
            let part = guarded(backend(BLOCKS, true));
            let other = early.unwrap_or_else(|| guarded(backend(BLOCKS, true)));
            vec![over(&part), part, other]
        }
    }
}

#[test]
fn blocks_stay_whole_and_nobody_waits_for_ever() {
    for case in 0..7 {
        let folder = tempfile::tempdir().expect("a folder");
        let block_shift = if case % 2 == 0 { 12 } else { 9 };
        let maker = Maker::new(folder.path(), block_shift, 2);
        let volumes = volumes(&maker, case);
        std::thread::scope(|scope| {
            let cores: Vec<_> = (1..=2)
                .map(|seed| {
                    let volumes = &volumes;
                    scope.spawn(move || drive(volumes, seed))
                })
                .collect();
            for core in cores {
                core.join().unwrap_or_else(|_| panic!("case {case}"));
            }
        });
    }
}

/// More Copies than may be in progress at a time, from two cores.
#[test]
fn copies_that_wait_in_line_are_begun_by_whichever_core_ends_one() {
    const LARGE: u64 = 24 << 10;
    const COPIES: usize = 8;
    let folder = tempfile::tempdir().expect("a folder");
    let maker = Maker::new(folder.path(), 12, 2);
    // Holes: what is not written costs nothing.
    let volumes = vec![guarded(maker.file(2 * LARGE, true))];
    let all = |core: &Core| {
        (0..COPIES)
            .map(|_| (0, core.copy(0, LARGE, &[(0, 0, LARGE as u32)], false)))
            .collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let drive = || {
            let core = Core::new(&volumes, 8 << 20);
            core.run(vec![(0, core.write(7, &[7]))]);
            for outcome in core.run(all(&core)) {
                assert!(outcome.status.is_success(), "{}", outcome.status);
            }
            assert_eq!(core.read(0, LARGE + 7, 1), [Some(7)]);
        };
        for core in [(); 2].map(|()| scope.spawn(drive)) {
            core.join().expect("all are begun");
        }
    });
}
