//! Random Copies among remote volumes, random stacks of them and of what is here, against a model: within a namespace, between
//! namespaces of one controller, and from one target to another. Commands fail at the targets, and on the way to them;
//! and paths are lost.
//!
//! `REMOTE_COPY_OPERATIONS` says how many commands (2,400), `COPY_SEED` where the dice start (1), and `COPY_DEVICES` on which
//! devices volumes that are here may lie as well (paths, separated by commas; what is on them is lost).

#[path = "../../namespace/tests/copy/blocks.rs"]
mod blocks;
#[path = "../../namespace/tests/copy/devices.rs"]
mod devices;
#[path = "../../namespace/tests/copy/dice.rs"]
mod dice;
#[path = "../../namespace/tests/copy/leaf.rs"]
#[expect(dead_code, reason = "nobody looks for shared blocks here")]
mod leaf;
mod rig;
#[path = "../../namespace/tests/copy/stacks.rs"]
mod stacks;
#[path = "../../namespace/tests/copy/tally.rs"]
mod tally;
#[path = "../../namespace/tests/copy/world.rs"]
mod world;

use devices::Devices;
use dice::Dice;
use namespace::Namespace;
use namespace::layer::guard::{Guard, GuardOptions};
use namespace::layer::multipath::{Multipath, MultipathOptions};
use rig::{Target, address, memory, options};
use stacks::Maker;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tally::Tally;
use target::PortId;
use world::{SCATTERED, Size, VOLUMES, World};

/// How many worlds there are at least: two with each kind of accident.
const WORLDS: u64 = 10;
/// So many operations are done in several worlds at once.
const MANY: u64 = 10_000;
/// Of so many worlds one is large, that with the given number: in time every accident has had a large one.
const LARGE_EVERY: u64 = 6;
const LARGE_ROUND: u64 = 1;
/// So many commands of a small world take as long as one of a large one.
const LARGE_COSTS: u64 = 8;
/// Commands of one world, at most.
const WORLD_MAX: u64 = 2_000;
/// One in so many Copies that fail may name a range that is copied whole, where they are sent again as a whole: that range was
/// copied before, and failed then.
const NAMED_IN_VAIN: u64 = 500;

/// Less at once no volume of a target's may take.
const TRANSFER_BYTES_MIN: u32 = 8 << 10;

/// What happens in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accident {
    None,
    /// Commands fail at the targets.
    There,
    /// Commands fail before they are sent, or both.
    Here,
    /// Paths are lost.
    Paths,
    /// All of that.
    All,
}

const ACCIDENTS: [Accident; 5] =
    [Accident::There, Accident::Paths, Accident::None, Accident::Here, Accident::All];

/// That of a world.
fn accident(round: u64) -> Accident {
    ACCIDENTS[(round % ACCIDENTS.len() as u64) as usize]
}

/// Targets, and what is reached there.
struct Site<'a> {
    folder: &'a Path,
    /// Those that volumes that are here may be on.
    devices: Option<&'a Devices>,
    block_shift: u8,
    accident: Accident,
    /// One in so many commands fails.
    failures: u64,
    /// Some fail such that they are sent again.
    interrupts: bool,
    targets: [Target; 2],
    /// Of each target, by which it is reached.
    listeners: Vec<[(PortId, SocketAddr); 2]>,
    namespaces: [Cell<u32>; 2],
    remotes: RefCell<Vec<Arc<Multipath>>>,
    /// A target has volumes that keep some blocks twice.
    keeps_two: Cell<bool>,
    tally: Arc<Tally>,
}

/// What became of the Copies of some worlds.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    copied: u64,
    failed: u64,
    /// Named a range that was copied whole, in worlds in which no Copy is sent again as a whole, and in the others.
    in_vain: u64,
    in_vain_again: u64,
    /// By targets.
    offloaded_bytes: u64,
    reconnects: u64,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.copied += other.copied;
        self.failed += other.failed;
        self.in_vain += other.in_vain;
        self.in_vain_again += other.in_vain_again;
        self.offloaded_bytes += other.offloaded_bytes;
        self.reconnects += other.reconnects;
    }
}

impl Site<'_> {
    fn new<'a>(
        folder: &'a Path,
        devices: Option<&'a Devices>,
        block_shift: u8,
        accident: Accident,
        failures: u64,
        interrupts: bool,
        tally: &Arc<Tally>,
    ) -> Site<'a> {
        // Namespace 1 is nobody's: a target has one from the start.
        let targets = [(); 2].map(|()| Target::serve(memory(1 << 20, block_shift, 1), 1, 0));
        let second = |target: &Target| {
            let any = SocketAddr::new(target.address.ip(), 0);
            [(target.port, target.address), target.server.add_listener(any).expect("a listener")]
        };
        let listeners = targets.iter().map(second).collect();
        let (namespaces, remotes) = ([Cell::new(1), Cell::new(1)], RefCell::default());
        let tally = Arc::clone(tally);
        Site {
            folder,
            devices,
            block_shift,
            accident,
            failures,
            interrupts,
            targets,
            listeners,
            namespaces,
            remotes,
            keeps_two: Cell::new(false),
            tally,
        }
    }

    fn maker(&self) -> Maker<'_> {
        Maker {
            tally: Arc::clone(&self.tally),
            varied: true,
            interrupts: self.interrupts,
            ..Maker::new(self.folder, self.block_shift, 1)
        }
    }

    /// A new namespace of one of the targets, by one path or two.
    fn remote(&self, files: &Cell<u32>, blocks: u64, dice: &mut Dice) -> Arc<dyn Namespace> {
        let number = dice.roll(2) as usize;
        let nsid = self.namespaces[number].get() + 1;
        self.namespaces[number].set(nsid);
        let fails = matches!(self.accident, Accident::There | Accident::All)
            || self.accident == Accident::Here && dice.one_in(2);
        let failures = if fails { self.failures } else { 0 };
        let maker = Maker { served: true, failures, files: files.clone(), ..self.maker() };
        // Stacks are of some blocks, and a target has none that take less than it can tell.
        let random = (blocks > 3).then(|| maker.volume(blocks, dice));
        let takes_enough =
            |volume: &Arc<dyn Namespace>| volume.limits().transfer_bytes_max >= TRANSFER_BYTES_MIN;
        let plain = || Guard::new(maker.memory(blocks), GuardOptions::default());
        let volume =
            random.filter(takes_enough).unwrap_or_else(|| -> Arc<dyn Namespace> { plain() });
        files.set(maker.files.get());
        self.keeps_two.set(self.keeps_two.get() || volume.uri().contains(SCATTERED));
        self.targets[number].add(nsid, volume, [0x40 + nsid as u8 * 2 + number as u8; 16]);

        let mut options = options();
        options.association.nsid = Some(nsid);
        let paths = 1 + dice.roll(2) as usize;
        let addresses = self.listeners[number][..paths].iter().map(|(_, at)| address(*at));
        let addresses: Vec<_> = addresses.collect();
        let paths = host::open(&addresses, &options, "").expect("a path");
        let paths = paths.into_iter().map(|path| path as Arc<dyn Namespace>).collect();
        let multipath = Multipath::new(paths, MultipathOptions::default()).expect("its paths");
        self.remotes.borrow_mut().push(Arc::clone(&multipath));
        multipath
    }

    fn volumes(&self, size: Size, dice: &mut Dice) -> Vec<Arc<dyn Namespace>> {
        let files = Cell::new(0);
        let fails = matches!(self.accident, Accident::Here | Accident::All);
        let elsewhere = |blocks: u64, dice: &mut Dice| self.remote(&files, blocks, dice);
        let maker = Maker {
            elsewhere: Some(&elsewhere),
            failures: if fails { self.failures } else { 0 },
            devices: self.devices,
            // Files that are here are not called as those of the targets.
            files: Cell::new(1 << 20),
            ..self.maker()
        };
        let plain = |dice: &mut Dice| -> Arc<dyn Namespace> {
            Guard::new(self.remote(&files, size.blocks(), dice), GuardOptions::default())
        };
        // Half of them are as a URI of one remote volume opens them: Copies go there whole.
        let volume = |_| match dice.one_in(2) {
            true => plain(dice),
            false => maker.volume(size.blocks(), dice),
        };
        (0..VOLUMES).map(volume).collect()
    }
}

/// Has paths to the targets lost, one or two at a time, until it is told to stop. The targets carry out what they have been
/// given before they end its connections.
fn lose_paths(
    targets: &[Target; 2],
    listeners: &mut [[(PortId, SocketAddr); 2]],
    mut dice: Dice,
    stop: &AtomicBool,
) {
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_micros(500 + dice.roll(60_000)));
        let number = dice.roll(2) as usize;
        let server = &targets[number].server;
        let first = dice.roll(2) as usize;
        let which = if dice.one_in(3) { vec![first, 1 - first] } else { vec![first] };
        for &at in &which {
            server.remove_listener(listeners[number][at].0).expect("it listens");
        }
        std::thread::sleep(Duration::from_millis(dice.roll(20)));
        for &at in &which {
            let (port, address) = &mut listeners[number][at];
            (*port, _) = server.add_listener(*address).expect("the port is free again");
        }
    }
}

/// Stops whoever loses paths, also when the model is wrong.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn one_world(
    devices: Option<&Devices>,
    dice: &mut Dice,
    round: u64,
    size: Size,
    operations: u64,
    tally: &Arc<Tally>,
) -> Counts {
    let accident = accident(round);
    let block_shift = match devices {
        Some(devices) => devices.block_shift(dice),
        None if dice.one_in(2) => 9,
        None => 12,
    };
    // Where a Copy is many commands, each fails the less often.
    let often = if size == Size::LARGE { LARGE_COSTS } else { 1 };
    let folder = tempfile::tempdir().expect("a folder");
    let failures = often * (5 + dice.roll(40));
    let interrupts = dice.one_in(2);
    let mut site =
        Site::new(folder.path(), devices, block_shift, accident, failures, interrupts, tally);
    let volumes = site.volumes(size, dice);
    if let Some(devices) = devices {
        devices.clear();
    }
    let core = blocks::Core::new(&volumes, 32 << 20);
    let what = format!("round {round}, {accident:?}, one in {failures}");
    let (losing, stop) = (Dice::new(dice.roll(1 << 30)), AtomicBool::new(false));
    let is_faulty = accident != Accident::None;
    let [copied, failed, in_vain] = std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        if matches!(accident, Accident::Paths | Accident::All) {
            let (targets, listeners) = (&site.targets, &mut site.listeners);
            scope.spawn(|| lose_paths(targets, listeners, losing, &stop));
        }
        let mut world = World::new(core, size, dice, is_faulty, tally);
        world.others_keep_two = site.keeps_two.get();
        world.run(operations, &what)
    });
    let offloaded_bytes = volumes.iter().map(|volume| volume.copied().offloaded_bytes).sum();
    let remotes = site.remotes.borrow();
    let reconnects = remotes.iter().flat_map(|remote| remote.paths()).map(|path| path.reconnects);
    // Where only paths are lost it meets nothing else then.
    let is_sent_again = match accident {
        Accident::None | Accident::Paths => false,
        Accident::There | Accident::Here => interrupts,
        Accident::All => true,
    };
    let (in_vain, in_vain_again) = if is_sent_again { (0, in_vain) } else { (in_vain, 0) };
    let reconnects = reconnects.sum();
    Counts { copied, failed, in_vain, in_vain_again, offloaded_bytes, reconnects }
}

/// Of what size each world is, and how many commands it has.
fn worlds(operations: u64) -> Vec<(Size, u64)> {
    let (mut left, mut worlds) = (operations, Vec::new());
    let small = (operations / WORLDS).clamp(40, WORLD_MAX);
    while left > 0 {
        let (size, here) = match worlds.len() as u64 % LARGE_EVERY {
            LARGE_ROUND => (Size::LARGE, (small / LARGE_COSTS).max(40)),
            _ => (Size::SMALL, small),
        };
        worlds.push((size, here.min(left)));
        left -= here.min(left);
    }
    worlds
}

#[test]
fn copies_of_remote_volumes_leave_what_the_model_says() {
    let read = |name: &str, usual: u64| {
        let given = std::env::var(name).ok();
        given.map_or(usual, |text| text.parse().expect("a number"))
    };
    let (operations, seed) = (read("REMOTE_COPY_OPERATIONS", 2_400), read("COPY_SEED", 1));
    println!("REMOTE_COPY_OPERATIONS={operations} COPY_SEED={seed}");
    let tally = Arc::default();
    let devices = std::env::var("COPY_DEVICES").ok().map(|paths| Devices::open(&paths));
    let many = operations >= MANY && devices.is_none();
    let worlds = worlds(operations);
    let counted = world::each(worlds.len() as u64, many, |round| {
        let mut dice = Dice::of_world(seed, round);
        let (size, here) = worlds[round as usize];
        (accident(round), one_world(devices.as_ref(), &mut dice, round, size, here, &tally))
    });
    let mut of = [Counts::default(); ACCIDENTS.len()];
    for (accident, counts) in counted {
        of[accident as usize].add(counts);
    }
    for accident in ACCIDENTS {
        let counts = of[accident as usize];
        println!("{accident:?}: {counts:?}");
        let Counts { copied, failed, in_vain, in_vain_again, .. } = counts;
        assert!(copied > operations / 40, "{accident:?}: {counts:?}");
        assert!(counts.offloaded_bytes > 0, "{accident:?}: no Copy was carried out by a target");
        match accident {
            Accident::None => {}
            Accident::Paths | Accident::All => {
                assert!(counts.reconnects > 0, "no path was lost");
            }
            Accident::There | Accident::Here => {
                assert!(failed > operations / 500, "faults were injected: {counts:?}");
            }
        }
        assert_eq!(in_vain, 0, "{accident:?}: {counts:?}");
        assert!(in_vain_again <= 1 + failed / NAMED_IN_VAIN, "{accident:?}: {counts:?}");
    }
    println!("met: {}", tally.line());
    tally.insist("memory,file,moved,delay,rate");
}
