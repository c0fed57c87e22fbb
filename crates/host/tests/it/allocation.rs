//! Which blocks a remote volume stores: asked of its controller, and believed only where that makes sense.

use crate::rig;

use double::Double;
use namespace::layer::multipath::{Multipath, MultipathOptions};
use namespace::memory::Memory;
use namespace::{Namespace, Run};
use rig::tamper::Tamper;
use rig::{Core, PATIENCE, Target, connect, memory, options, pattern};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

const BLOCKS: u64 = 1 << 17;
/// A PDU with data of the controller's, and where that begins without digests.
const C2H_DATA: u8 = 0x07;
const DATA: usize = 24;

fn volume() -> Arc<Memory> {
    memory(BLOCKS << 9, 9, 1)
}

/// A volume that says what `tell` says.
fn telling(
    tell: impl Fn(u64, u64, usize) -> io::Result<Vec<Run>> + Send + Sync + 'static,
) -> Arc<dyn Namespace> {
    Arc::new(Double::over(volume()).telling(tell))
}

/// Of 100 blocks each, the first 30 are stored.
fn islands(slba: u64, blocks: u64, runs_max: usize) -> Vec<Run> {
    let (mut runs, mut at, end) = (Vec::new(), slba, slba + blocks);
    while at < end && runs.len() < runs_max {
        let is_stored = at % 100 < 30;
        let next = at - at % 100 + if is_stored { 30 } else { 100 };
        let blocks = next.min(end) - at;
        runs.push(Run { blocks, is_stored });
        at += blocks;
    }
    runs
}

fn stored(blocks: u64) -> Vec<Run> {
    vec![Run { blocks, is_stored: true }]
}

/// Two paths to one target, as one volume.
fn multipath(paths: &[Arc<host::Path>]) -> Arc<dyn Namespace> {
    let paths = paths.iter().map(|path| Arc::clone(path) as Arc<dyn Namespace>).collect();
    Multipath::new(paths, MultipathOptions::default()).expect("paths")
}

/// What follows `runs` of `blocks` blocks from `slba` on, asked again and again as a copy does.
fn all(volume: &dyn Namespace, slba: u64, blocks: u64, runs_max: usize) -> Vec<Run> {
    let (mut at, end) = (slba, slba + blocks);
    let mut runs: Vec<Run> = Vec::new();
    while at < end {
        let more = volume.allocation(at, end - at, runs_max).expect("it tells");
        assert!((1..=runs_max).contains(&more.len()), "{more:?}");
        for run in more {
            at += run.blocks;
            match runs.last_mut() {
                Some(last) if last.is_stored == run.is_stored => last.blocks += run.blocks,
                _ => runs.push(run),
            }
        }
    }
    assert_eq!(at, end, "not more than was asked about");
    runs
}

#[test]
fn the_controller_tells() {
    let target = Target::serve(telling(|at, blocks, most| Ok(islands(at, blocks, most))), 1, 0);
    let path = connect(target.address, &options());
    let both = multipath(&[Arc::clone(&path), connect(target.address, &options())]);
    assert!(path.limits().commands.allocation && both.limits().commands.allocation);
    for volume in [path as Arc<dyn Namespace>, both] {
        // Less and more than a command can name.
        for (slba, blocks) in [(0, 1), (7, 29), (35, 900), (0, BLOCKS), (BLOCKS - 70_000, 70_000)] {
            for runs_max in [1, 2, 7, 1024, 1 << 20] {
                // Each answer is a round trip.
                if blocks > 10_000 && runs_max < 100 {
                    continue;
                }
                let expected = islands(slba, blocks, usize::MAX);
                assert!(all(&*volume, slba, blocks, runs_max) == expected, "{slba} {blocks}");
            }
        }
    }
}

#[test]
fn a_controller_without_is_not_asked() {
    let target = Target::memory();
    let path = connect(target.address, &options());
    assert!(!path.limits().commands.allocation);
    assert_eq!(path.allocation(5, 70, 9).unwrap(), stored(70));
}

#[test]
fn a_gateway_passes_the_question_on() {
    let target = Target::serve(telling(|at, blocks, most| Ok(islands(at, blocks, most))), 1, 0);
    let near = multipath(&[connect(target.address, &options())]);
    let gateway = Target::serve(near, 1, 0);
    let path = connect(gateway.address, &options());
    assert!(all(&*path, 0, BLOCKS, 1024) == islands(0, BLOCKS, usize::MAX));
}

#[test]
fn what_is_not_known_while_paths_are_lost_is_stored() {
    let target = Target::serve(telling(|at, blocks, most| Ok(islands(at, blocks, most))), 1, 0);
    let other = Target::serve(telling(|at, blocks, most| Ok(islands(at, blocks, most))), 1, 0);
    let paths = [connect(target.address, &options()), connect(other.address, &options())];
    let both = multipath(&paths);
    let lost = |path: &host::Path| {
        let until = Instant::now() + PATIENCE;
        while path.access().is_usable() {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    drop(target);
    lost(&paths[0]);
    assert!(paths[0].allocation(0, 500, 99).is_err());
    assert_eq!(both.allocation(0, 500, 99).unwrap(), islands(0, 500, 99));
    drop(other);
    lost(&paths[1]);
    assert_eq!(both.allocation(0, 500, 99).unwrap(), stored(500));
}

/// What a path makes of answers that are edited on their way.
fn edited(edit: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Vec<Run> {
    let target = Target::serve(telling(|at, blocks, most| Ok(islands(at, blocks, most))), 1, 0);
    let edit = move |pdu: &mut Vec<u8>| {
        if pdu[0] == C2H_DATA {
            edit(&mut pdu[DATA..]);
        }
        true
    };
    let tamper = Tamper::each(target.address, 0, 2, Arc::new(edit));
    let path = connect(tamper.address, &options());
    let runs = path.allocation(0, 500, 99).expect("it is answered");
    assert_eq!(path.paths()[0].reconnects, 0);
    assert!(path.access().is_usable());
    runs
}

#[test]
fn answers_that_make_no_sense_leave_no_block_out() {
    // As long as no other answer.
    let bytes = 8 + 50 * 16;
    assert_eq!(edited(|_| {}), islands(0, 500, 99));
    let of = move |at: usize, value: u8| {
        edited(move |data| {
            if data.len() == bytes {
                data[at] = value;
            }
        })
    };
    assert_eq!(of(4, 0), stored(500), "no completion condition");
    assert_eq!(of(0, 0xff), stored(500), "more descriptors than there is room for");
    assert_eq!(of(21, 0), stored(500), "another status than was asked for");
    assert_eq!(of(8 + 16 + 7, 0xff), stored(500), "beyond all blocks");
    assert_eq!(of(8 + 16, 10), stored(500), "overlapping");
    // Fewer, all of them good: there is no telling.
    assert_eq!(
        of(0, 1),
        [Run { blocks: 30, is_stored: true }, Run { blocks: 470, is_stored: false }]
    );
}

/// A controller that lists what it tracks, and tracks nothing, would have all of it left out.
#[test]
fn a_controller_that_does_not_track_is_not_believed() {
    let granularity = std::mem::offset_of!(nvme::identify::NvmNamespace, tlbaag);
    let runs = edited(move |data| {
        let is_it =
            data.len() == 4096 && data.iter().map(|byte| u32::from(*byte)).sum::<u32>() == 1;
        if is_it && data[granularity] == 1 {
            data[granularity] = 0;
        }
        if data.len() == 8 + 50 * 16 {
            data.fill(0);
            data[4] = 2;
        }
    });
    assert_eq!(runs, stored(500));
    // The answer alone is believed: so this shows something.
    let runs = edited(|data| {
        if data.len() == 8 + 50 * 16 {
            data.fill(0);
            data[4] = 2;
        }
    });
    assert_eq!(runs, [Run { blocks: 500, is_stored: false }]);
}

#[test]
fn one_that_keeps_silent_is_left_alone_and_goes_on_serving() {
    let (sender, wait) = mpsc::channel::<()>();
    let (wait, asked) = (Mutex::new(wait), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&asked);
    let target = Target::serve(
        telling(move |_, blocks, _| {
            count.fetch_add(1, Ordering::SeqCst);
            let _ = wait.lock().unwrap().recv();
            Ok(stored(blocks))
        }),
        1,
        0,
    );
    // The target ends only when its volume has answered, also if this fails.
    let go = sender;
    let mut options = options();
    options.association.admin_timeout = Duration::from_secs(2);
    let path = connect(target.address, &options);
    let core = Core::usable(path.clone());
    let begun = Instant::now();
    for _ in 0..100 {
        assert!(path.allocation(0, 500, 99).is_err());
    }
    assert!(begun.elapsed() < PATIENCE, "it is not asked each time");
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    core.write(0, &pattern(1, 4096));
    assert!(core.read(0, 4096) == pattern(1, 4096));
    assert_eq!(path.paths()[0].reconnects, 0);
    drop(go);
}

#[test]
fn several_who_ask_at_once_are_answered_one_after_another() {
    let slow = telling(|at, blocks, most| {
        std::thread::sleep(Duration::from_millis(20));
        Ok(islands(at, blocks, most))
    });
    let target = Target::serve(slow, 1, 0);
    let path = connect(target.address, &options());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..3 {
                    assert_eq!(path.allocation(0, 500, 99).unwrap(), islands(0, 500, 99));
                }
            });
        }
    });
}

/// What is stored of a volume that another target has made larger, and this one has not looked at, it does not know.
#[test]
fn blocks_beyond_the_controllers_end_are_no_hole() {
    let told = |_: u64, blocks: u64, _: usize| Ok(vec![Run { blocks, is_stored: false }]);
    let small = Double::over(memory((BLOCKS / 2) << 9, 9, 1)).telling(told);
    let (small, large) = (Target::serve(Arc::new(small), 1, 0), Target::serve(telling(told), 1, 0));
    let addresses = [small.address, large.address].map(rig::address);
    let paths = host::open(&addresses, &options(), "").expect("paths");
    // Whatever the volume's size is taken to be, it is not the small one's to tell.
    let slba = BLOCKS / 2 - 10_000;
    let blocks = BLOCKS - slba;
    let runs = paths[0].allocation(slba, blocks, 99).expect("it is answered");
    let holes: u64 = runs.iter().filter(|run| !run.is_stored).map(|run| run.blocks).sum();
    assert!(holes <= 10_000, "{runs:?}");
    // The last that it has it tells.
    assert_eq!(paths[0].allocation(BLOCKS / 2 - 9, 9, 99).unwrap()[0].blocks, 9);
}
