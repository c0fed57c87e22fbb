//! Random Copies among remote volumes, and between them and one that is here, against a model: within a namespace,
//! between namespaces of one controller, and from one target to another.
//!
//! `REMOTE_COPY_OPERATIONS` says how many commands (1,200), `COPY_SEED` where the dice start (1).

#[path = "../../namespace/tests/copy/blocks.rs"]
mod blocks;
#[path = "../../namespace/tests/copy/dice.rs"]
mod dice;
mod rig;
#[path = "../../namespace/tests/copy/tally.rs"]
mod tally;
#[path = "../../namespace/tests/copy/world.rs"]
mod world;

use dice::Dice;
use namespace::Namespace;
use namespace::layer::guard::{Guard, GuardOptions};
use namespace::layer::multipath::{Multipath, MultipathOptions};
use rig::{Target, connect, memory, options};
use std::sync::Arc;
use tally::Tally;
use world::{Size, World};

fn guarded(child: Arc<dyn Namespace>) -> Arc<dyn Namespace> {
    let options = GuardOptions::default();
    Guard::new(child, options)
}

/// As a URI would open it: a guard over one path.
fn remote(target: &Target, nsid: u32) -> Arc<dyn Namespace> {
    let mut options = options();
    options.association.nsid = Some(nsid);
    let path = connect(target.address, &options);
    let multipath = Multipath::new(vec![path], MultipathOptions::default()).expect("one path");
    guarded(multipath)
}

/// Two namespaces of one target, and a third volume: of another target, or in this process.
fn one_world(dice: &mut Dice, round: u64, operations: u64, tally: &Arc<Tally>) -> (u64, u64, u64) {
    let block_shift = if dice.one_in(2) { 9 } else { 12 };
    let (size, operations) = match round {
        2 => (Size::LARGE, operations / 8),
        _ => (Size::SMALL, operations),
    };
    let volume = || memory(size.blocks() << block_shift, block_shift, 1);
    let target = Target::serve(guarded(volume()), 1, 0);
    target.add(2, guarded(volume()), [0x43; 16]);
    let other = (!round.is_multiple_of(2)).then(|| Target::serve(guarded(volume()), 1, 0));
    let third = match &other {
        Some(other) => remote(other, 1),
        None => guarded(volume()),
    };
    let volumes = [remote(&target, 1), remote(&target, 2), third];
    let core = blocks::Core::new(&volumes, 32 << 20);
    let [copied, failed, in_vain] =
        World::new(core, size, dice, false, tally).run(operations, &format!("round {round}"));
    assert_eq!(in_vain, 0, "nothing fails in the middle");
    let offloaded = volumes.iter().map(|volume| volume.copied().offloaded_bytes).sum();
    (copied, failed, offloaded)
}

#[test]
fn copies_of_remote_volumes_leave_what_the_model_says() {
    let read = |name: &str, usual: u64| {
        let given = std::env::var(name).ok();
        given.map_or(usual, |text| text.parse().expect("a number"))
    };
    let operations = read("REMOTE_COPY_OPERATIONS", 1_200);
    let mut dice = Dice::new(read("COPY_SEED", 1));
    let (mut copied, mut failed, mut offloaded) = (0, 0, 0);
    let tally = Arc::default();
    for round in 0..4 {
        let (good, bad, bytes) = one_world(&mut dice, round, operations / 4, &tally);
        (copied, failed, offloaded) = (copied + good, failed + bad, offloaded + bytes);
    }
    println!("{copied} Copies succeeded, {failed} were refused, {offloaded} bytes stayed there");
    assert!(copied > operations / 4, "{copied} of {operations}");
    assert!(offloaded > 0, "no Copy was carried out by a target");
    // Between one target and another.
    tally.insist("moved");
}
