//! Copies as controllers are sent them, and what becomes of them on a path that dies.

use crate::rig;

use host::{Options, Path};
use namespace::layer::guard::{Guard, GuardOptions};
use namespace::layer::multipath::{Multipath, MultipathOptions, Policy, Settings};
use namespace::layer::volatile::Volatile;
use namespace::{Access, Namespace};
use nvme::copy::{Entry, Format, entries};
use nvme::limits::CopyLimits;
use nvme::log::ana::AnaState;
use nvme::{Command, Status};
use rig::registers::open;
use rig::script::{Copier, Script, Seen};
use rig::{Core, NQN, PATIENCE, Range, Target, connect, memory, options, pattern};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use target::NamespaceOptions;

const DONE: Option<(Status, u64)> = Some((Status::SUCCESS, 0));
const NOT_POSSIBLE: Status = Status::FAST_COPY_NOT_POSSIBLE;

/// A path to namespace `nsid` at `script`.
fn path(script: &Script, nsid: u32) -> Arc<Path> {
    let mut options = options();
    options.association.nsid = Some(nsid);
    connect(script.address, &options)
}

/// A range of the same namespace.
fn own(slba: u64, blocks: u32) -> Range {
    Range { of: None, slba, blocks, fast_only: false }
}

/// Ranges of the same namespace.
fn same<const N: usize>(ranges: [(u64, u32); N]) -> Vec<Range> {
    ranges.into_iter().map(|(slba, blocks)| own(slba, blocks)).collect()
}

/// A range of what is behind another path, once that is usable: what its controller told last may come late.
fn of(path: &Arc<Path>, slba: u64, blocks: u32) -> Range {
    let until = Instant::now() + PATIENCE;
    let located = loop {
        match Arc::clone(path).origin(slba, blocks.into()) {
            Some(located) => break located,
            None => assert!(Instant::now() < until, "it is not usable"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!((located.slba, located.blocks), (slba, u64::from(blocks)));
    Range { of: Some(located.origin), ..own(slba, blocks) }
}

/// The only Copy that has come, and its entries.
fn only(script: &Script) -> (Seen, Vec<Entry>) {
    let mut copies = script.copies();
    assert_eq!(copies.len(), 1);
    let seen = copies.remove(0);
    let list = entries(&seen.command, &seen.list).expect("a list").collect();
    (seen, list)
}

fn short(slba: u64, blocks: u32) -> Entry {
    Entry { nsid: 0, slba, blocks, fast_only: false }
}

/// A Copy to `sdlba` with Force Unit Access: what is not the list's is left as it is.
fn with_fua(sdlba: u64) -> Command {
    let mut command = nvme::copy::command(1, sdlba, 1, Format::Short);
    command.cdw12 = (command.cdw12.get() | 1 << 30).into();
    command
}

#[test]
fn within_a_namespace_it_is_format_0h() {
    for in_capsule in [true, false] {
        let target = Target::memory();
        let copier = Copier { formats: 0b0001, in_capsule, ..Copier::default() };
        let script = Script::before(target.address, copier);
        let path = path(&script, 1);
        let limits = CopyLimits { ranges_max: 16, range_blocks_max: 100, blocks_max: 1000 };
        assert_eq!(path.limits().copy, limits);
        let core = Core::usable(path);
        assert!(script.enabled().is_empty(), "there is nothing to enable");
        script.answer(Some((Status::UNRECOVERED_READ, 1)));
        let ranges = same([(5, 100), (0x1_0000_0000, 1), (7, 1)]);
        let done = core.copy(with_fua(0x2_0000_0003), ranges);
        assert_eq!((done.status, done.result), (Status::UNRECOVERED_READ, 1));
        let (seen, list) = only(&script);
        assert_eq!(list, [short(5, 100), short(0x1_0000_0000, 1), short(7, 1)]);
        assert_eq!(seen.list.len(), 3 * 32);
        assert_eq!((seen.command.slba(), seen.command.nsid.get()), (0x2_0000_0003, 1));
        assert_eq!(seen.command.cdw12.get(), 1 << 30 | 2);
        // The memory of the list is used again.
        script.answer(DONE);
        core.copy(with_fua(0), same([(9, 1)])).ok();
        assert_eq!(script.copies()[1].list.len(), 32);
    }
}

#[test]
fn between_namespaces_it_is_format_3h_where_that_is_all() {
    let target = Target::memory();
    target.add(2, memory(1 << 20, 9, 1), [0x43; 16]);
    let script = Script::before(target.address, Copier { formats: 0b1001, ..Copier::default() });
    let (one, two) = (path(&script, 1), path(&script, 2));
    assert!(script.enabled().iter().all(|formats| *formats == 0b1000));
    let core = Core::usable(one);
    script.answer(DONE);
    let ranges = vec![of(&two, 3, 4), own(50, 2)];
    core.copy(with_fua(10), ranges).ok();
    let (seen, list) = only(&script);
    let entry = |nsid, slba, blocks| Entry { nsid, slba, blocks, fast_only: false };
    assert_eq!(list, [entry(2, 3, 4), entry(1, 50, 2)]);
    assert_eq!((seen.list.len(), seen.command.cdw12.get()), (2 * 40, 1 << 30 | 3 << 8 | 1));
    core.copy(with_fua(10), same([(3, 4)])).ok();
    assert_eq!(script.copies()[1].command.cdw12.get(), 1 << 30, "format 0h");
}

#[test]
fn between_namespaces_it_is_format_2h_where_that_was_enabled() {
    let target = Target::memory();
    target.add(2, memory(1 << 20, 9, 1), [0x43; 16]);
    let script = Script::before(target.address, Copier::default());
    let (one, two) = (path(&script, 1), path(&script, 2));
    assert!(script.enabled().iter().all(|formats| *formats == 0b1100));
    let core = Core::usable(one.clone());
    script.answer(DONE);
    let ranges = vec![of(&two, 3, 4), own(50, 2), of(&one, 60, 1)];
    core.copy(with_fua(10), ranges).ok();
    let (seen, list) = only(&script);
    let entry = |nsid, slba, blocks| Entry { nsid, slba, blocks, fast_only: false };
    assert_eq!(list, [entry(2, 3, 4), entry(1, 50, 2), entry(1, 60, 1)]);
    assert_eq!(seen.command.cdw12.get(), 1 << 30 | 2 << 8 | 2);
    // What another volume on the same namespace has is overlapped all the same.
    let refused = core.copy(with_fua(10), vec![of(&two, 3, 4), of(&one, 13, 1)]);
    assert_eq!(refused.status, NOT_POSSIBLE);
    assert_eq!(script.copies().len(), 1);
    // A controller that does not know the other namespace has done nothing.
    script.answer(Some((Status::INVALID_NAMESPACE.dnr(), 0)));
    // For now: it may come back.
    assert_eq!(core.copy(with_fua(10), vec![of(&two, 3, 4)]).status, NOT_POSSIBLE);
    assert_eq!(core.copy(with_fua(10), same([(3, 4)])).status, Status::INVALID_NAMESPACE.dnr());
    // So our own targets call one that is inactive.
    script.answer(Some((Status::INVALID_FIELD.dnr(), 0)));
    assert_eq!(core.copy(with_fua(10), vec![of(&two, 3, 4)]).status, NOT_POSSIBLE);
    script.answer(Some((Status::INCOMPATIBLE_NAMESPACE.dnr(), 0)));
    assert_eq!(core.copy(with_fua(10), vec![of(&two, 3, 4)]).status, NOT_POSSIBLE.dnr());
    // The source's group may be in another state than this path's: that is no news of the path.
    script.answer(Some((Status::ANA_INACCESSIBLE, 0)));
    let refused = core.copy(with_fua(10), vec![of(&two, 3, 4)]);
    assert_eq!(refused.status, Status::ANA_INACCESSIBLE);
    assert!(core.access().is_usable());
}

/// Format 0h has no Fast Copy Only, and without it a target may read and write.
#[test]
fn fast_copy_only_is_told_within_a_namespace_too() {
    let target = Target::memory();
    let fast = |slba, blocks| Range { fast_only: true, ..own(slba, blocks) };
    for (formats, number) in [(0b1111, 2), (0b1001, 3)] {
        let script = Script::before(target.address, Copier { formats, ..Copier::default() });
        let core = Core::usable(path(&script, 1));
        script.answer(DONE);
        core.copy(with_fua(10), vec![own(3, 4), fast(50, 2)]).ok();
        let (seen, list) = only(&script);
        let entry = |slba, blocks, fast_only| Entry { nsid: 1, slba, blocks, fast_only };
        assert_eq!(list, [entry(3, 4, false), entry(50, 2, true)]);
        assert_eq!(seen.command.cdw12.get(), 1 << 30 | number << 8 | 1);
        // These formats forbid it, and the other cannot tell.
        assert_eq!(core.copy(with_fua(10), vec![fast(9, 2)]).status, NOT_POSSIBLE);
        assert_eq!(script.copies().len(), 1);
    }
    // What is copied within a namespace by a controller that cannot be told is copied where it lies.
    let script = Script::before(target.address, Copier { formats: 0b0011, ..Copier::default() });
    let core = Core::usable(path(&script, 1));
    script.answer(DONE);
    core.copy(with_fua(10), vec![fast(50, 2)]).ok();
    assert_eq!(only(&script).1, [short(50, 2)]);
}

#[test]
fn our_own_target_reads_and_writes_nothing_if_that_is_told() {
    // Memory copies by itself, and a cache over it cannot.
    let slow = Volatile::new(memory(1 << 20, 9, 1), 1 << 20);
    for (volume, is_fast) in [(guarded(), true), (guarded_over(slow), false)] {
        let target = Target::serve(volume, 1, 0);
        let core = Core::usable(connect(target.address, &options()));
        let data = pattern(7, 8 << 9);
        core.write(0, &data);
        let range = |fast_only| vec![Range { fast_only, ..own(0, 8) }];
        let done = core.copy(with_fua(8), range(true));
        assert_eq!(done.status.is_success(), is_fast, "{}", done.status);
        assert!(is_fast || done.status.code() == NOT_POSSIBLE, "{}", done.status);
        let wanted = if is_fast { data.clone() } else { vec![0; 8 << 9] };
        assert!(core.read(8 << 9, 8 << 9) == wanted);
        core.copy(with_fua(8), range(false)).ok();
        assert!(core.read(8 << 9, 8 << 9) == data);
    }
}

#[test]
fn who_takes_no_namespaces_is_not_asked_again() {
    let target = Target::memory();
    target.add(2, memory(1 << 20, 9, 1), [0x43; 16]);
    let script = Script::before(target.address, Copier { ours: false, ..Copier::default() });
    let (one, two) = (path(&script, 1), path(&script, 2));
    script.answer(Some((Status::INVALID_FIELD.dnr(), 0)));
    let core = Core::usable(one);
    assert_eq!(core.copy(with_fua(10), vec![of(&two, 3, 4)]).status, NOT_POSSIBLE.dnr());
}

/// The offload between two namespaces of our target outlives that one of them is gone for a while.
#[test]
fn a_source_that_was_inactive_is_copied_by_the_target_again() {
    let target = Target::serve(guarded(), 1, 0);
    let source = guarded();
    target.add(2, source.clone(), [0x43; 16]);
    let path = |nsid| {
        let mut options = options();
        options.association.nsid = Some(nsid);
        connect(target.address, &options)
    };
    let (one, two) = (path(1), path(2));
    let (core, other) = (Core::usable(one), Core::usable(two.clone()));
    let data = pattern(3, 8 << 9);
    other.write(0, &data);
    let ranges = vec![of(&two, 0, 8)];
    target.server.remove_namespace(NQN, 2).expect("it was there");
    assert_eq!(core.copy(with_fua(8), ranges.clone()).status, NOT_POSSIBLE);
    target.add(2, source, [0x43; 16]);
    // That it was gone the path may hear only now, after which it looks for it again: until then it has no id.
    let until = Instant::now() + PATIENCE;
    let mut done = core.copy(with_fua(8), ranges.clone());
    while done.status == NOT_POSSIBLE && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
        done = core.copy(with_fua(8), ranges.clone());
    }
    done.ok();
    assert!(core.read(8 << 9, 8 << 9) == data);
}

#[test]
fn nothing_is_sent_that_the_controller_has_no_format_for() {
    let target = Target::memory();
    target.add(2, memory(1 << 20, 9, 1), [0x43; 16]);
    let refuses = Copier { behavior: Status::INVALID_FIELD.dnr(), ..Copier::default() };
    for copier in [refuses, Copier { formats: 0b0011, ..Copier::default() }] {
        let script = Script::before(target.address, copier);
        let (one, two) = (path(&script, 1), path(&script, 2));
        let core = Core::usable(one);
        script.answer(DONE);
        assert_eq!(core.copy(with_fua(10), vec![of(&two, 3, 4)]).status, NOT_POSSIBLE.dnr());
        assert!(script.copies().is_empty());
        core.copy(with_fua(10), same([(3, 4)])).ok();
    }
    let none = Script::before(target.address, Copier { formats: 0, ..Copier::default() });
    assert!(!path(&none, 1).limits().copy.is_offered());
}

#[test]
fn one_that_is_put_off_waits_for_as_long_as_the_controller_says() {
    let target = Target::memory();
    let copier = Copier { retry_delays: [0, 10, 36_000], ..Copier::default() };
    let script = Script::before(target.address, copier);
    let options = Options { io_timeout: Duration::from_secs(3), ..options() };
    let core = Core::usable(open(&[script.address], &options));
    script.answer(DONE);
    // An hour is longer than a command may take.
    for (number, seconds) in [(2, 1), (3, 3)] {
        script.answer_first(1, Status(Status::COMMAND_INTERRUPTED.0 | number << 11));
        let begun = Instant::now();
        core.copy(with_fua(10), same([(3, 4)])).ok();
        assert!(begun.elapsed() >= Duration::from_secs(seconds), "{number}");
    }
    assert_eq!(script.copies().len(), 4);
}

#[test]
fn a_subsystem_elsewhere_is_another_one_whatever_its_name() {
    let (here, there) = (Target::memory(), Target::memory());
    let (here, there) = (Script::before(here.address, Copier::default()), there.address);
    let other = connect(there, &options());
    let core = Core::usable(path(&here, 1));
    here.answer(DONE);
    assert_eq!(core.copy(with_fua(10), vec![of(&other, 3, 4)]).status, NOT_POSSIBLE.dnr());
    assert!(here.copies().is_empty());
}

#[test]
fn ranges_that_overlap_go_to_our_own_targets_only() {
    let target = Target::memory();
    for ours in [true, false] {
        let script = Script::before(target.address, Copier { ours, ..Copier::default() });
        let core = Core::usable(path(&script, 1));
        script.answer(DONE);
        let done = core.copy(with_fua(10), same([(0, 4), (13, 1)]));
        assert_eq!(done.status, if ours { Status::SUCCESS } else { NOT_POSSIBLE });
        assert_eq!(script.copies().len(), usize::from(ours));
    }
}

/// A volume with whatever a Copy needs.
fn guarded() -> Arc<dyn Namespace> {
    guarded_over(memory(1 << 20, 9, 1))
}

fn guarded_over(child: Arc<dyn Namespace>) -> Arc<dyn Namespace> {
    Guard::new(child, GuardOptions::default())
}

#[test]
fn our_own_target_copies_where_the_data_is() {
    let target = Target::serve(guarded(), 1, 0);
    target.add(2, guarded(), [0x43; 16]);
    let path = |nsid| {
        let mut options = options();
        options.association.nsid = Some(nsid);
        connect(target.address, &options)
    };
    let (one, two) = (path(1), path(2));
    assert_eq!(one.limits().copy, namespace::copy::limits(9));
    let (core, other) = (Core::usable(one), Core::usable(two.clone()));
    let (first, second) = (pattern(1, 64 << 9), pattern(2, 64 << 9));
    core.write(0, &first);
    other.write(0, &second);
    // To blocks 16 to 64: the last 40 of the other, and 8 of this one that are not written.
    let ranges = vec![of(&two, 24, 40), own(4, 8)];
    core.copy(with_fua(16), ranges).ok();
    let wanted = [&first[..16 << 9], &second[24 << 9..], &first[4 << 9..12 << 9]].concat();
    assert!(core.read(0, 64 << 9) == wanted);
    // Over itself, by one block.
    core.copy(with_fua(1), same([(0, 60)])).ok();
    assert!(core.read(512, 60 << 9) == wanted[..60 << 9]);
    assert!(other.read(0, 64 << 9) == second);
}

/// Where 2h is offered as well our host takes that.
#[test]
fn our_own_target_copies_by_format_3h_where_that_is_all() {
    let target = Target::serve(guarded(), 1, 0);
    target.add(2, guarded(), [0x43; 16]);
    for in_capsule in [true, false] {
        let copier = Copier { formats: 0b1001, in_capsule, passes: true, ..Copier::default() };
        let script = Script::before(target.address, copier);
        let (one, two) = (path(&script, 1), path(&script, 2));
        let (core, other) = (Core::usable(one), Core::usable(two.clone()));
        let (first, second) = (pattern(1, 128 << 9), pattern(2, 64 << 9));
        core.write(0, &first);
        other.write(0, &second);
        let fast = Range { fast_only: true, ..of(&two, 0, 6) };
        core.copy(with_fua(16), vec![of(&two, 24, 40), own(4, 8), fast]).ok();
        let mut wanted = first.clone();
        wanted[16 << 9..56 << 9].copy_from_slice(&second[24 << 9..]);
        wanted[56 << 9..64 << 9].copy_from_slice(&first[4 << 9..12 << 9]);
        wanted[64 << 9..70 << 9].copy_from_slice(&second[..6 << 9]);
        assert!(core.read(0, 128 << 9) == wanted);
        // All ranges are looked at before anything is copied.
        let beyond = Range { slba: 1 << 40, ..of(&two, 0, 1) };
        let done = core.copy(with_fua(100), vec![of(&two, 8, 2), beyond]);
        assert_eq!((done.status.code(), done.result), (Status::LBA_OUT_OF_RANGE, 0));
        assert!(core.read(0, 128 << 9) == wanted && other.read(0, 64 << 9) == second);
        let formats = script.copies().into_iter().map(|seen| seen.command.cdw12.get() >> 8 & 0xf);
        assert_eq!(formats.collect::<Vec<_>>(), [3, 3]);
        let in_capsules = script.copies().iter().all(|seen| seen.list.is_empty() != in_capsule);
        assert!(in_capsules, "lists went another way");
    }
}

/// The path's id of before has become another namespace's: who was told it cannot use it any more.
#[test]
fn a_source_is_copied_by_the_id_that_it_has_now() {
    let port = std::cell::Cell::new(0);
    let kept = [(); 3].map(|()| guarded());
    let serve = |which: usize, nsid| {
        let target = Target::serve(kept[2].clone(), 1, port.get());
        target.add(nsid, kept[which].clone(), [0x43 + which as u8; 16]);
        port.set(target.address.port());
        target
    };
    let target = serve(0, 2);
    let path = |nsid| {
        let mut options = options();
        options.association.nsid = Some(nsid);
        connect(target.address, &options)
    };
    let (one, two) = (path(1), path(2));
    let (core, source) = (Core::usable(one), Core::usable(two.clone()));
    let (data, before) = (pattern(1, 8 << 9), pattern(2, 8 << 9));
    source.write(0, &data);
    core.write(0, &before);
    let told = of(&two, 0, 8);
    let range = || vec![told.clone()];
    core.copy(with_fua(8), range()).ok();
    assert!(core.read(8 << 9, 8 << 9) == data);

    drop(target);
    let target = serve(1, 2);
    assert!(core.until_served(rig::read(0, 8 << 9), &[0; 8 << 9]) == before);
    assert_eq!(core.copy(with_fua(0), range()).status, NOT_POSSIBLE, "it is not there");
    assert!(core.read(0, 8 << 9) == before, "another's data");

    drop(target);
    let _target = serve(0, 3);
    source.until_served(rig::read(0, 512), &[0; 512]);
    core.until_served(rig::read(0, 512), &[0; 512]);
    core.copy(with_fua(0), range()).ok();
    assert!(core.read(0, 8 << 9) == data);
}

/// Namespace 1 by both addresses in turn, and a path to namespace 2 by the first.
fn in_turn(addresses: [SocketAddr; 2]) -> (Core, Arc<Path>) {
    let mut one = options();
    one.association.nsid = Some(1);
    let paths = host::open(&addresses.map(rig::address), &one, "").expect("paths");
    let paths: Vec<_> = paths.into_iter().map(|path| path as Arc<dyn Namespace>).collect();
    let settings = Settings { policy: Policy::RoundRobin, ..Settings::default() };
    let options = MultipathOptions { tuning: settings.into(), ..MultipathOptions::default() };
    let multipath = Multipath::new(paths, options).expect("one namespace");
    let core = Core::new(multipath.clone());
    let until = Instant::now() + PATIENCE;
    while !multipath.paths().iter().all(|path| path.access.is_usable()) {
        assert!(Instant::now() < until, "{:?}", multipath.paths());
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut two = rig::options();
    two.association.nsid = Some(2);
    (core, connect(addresses[0], &two))
}

#[test]
fn an_ana_status_between_namespaces_sends_a_copy_another_way_first() {
    let target = Target::memory();
    target.add(2, memory(1 << 20, 9, 1), [0x43; 16]);
    let scripts = [(); 2].map(|()| Script::before(target.address, Copier::default()));
    let (core, two) = in_turn(scripts.each_ref().map(|script| script.address));
    let came = || scripts.each_ref().map(|script| script.copies().len());
    let source = || vec![of(&two, 3, 4)];
    // One cannot, the other can: both have their turn.
    scripts[0].answer(Some((Status::ANA_INACCESSIBLE, 0)));
    scripts[1].answer(DONE);
    (0..4).for_each(|_| drop(core.copy(with_fua(10), source()).ok()));
    let [refused, done] = came();
    assert!(refused > 0 && done == 4, "{refused} and {done}");
    // Both cannot for a moment.
    scripts.iter().for_each(|script| script.answer(DONE));
    scripts.iter().for_each(|script| script.answer_first(2, Status::ANA_TRANSITION));
    core.copy(with_fua(10), source()).ok();
    // Both cannot: then it is the source.
    for status in [Status::ANA_INACCESSIBLE, Status::ANA_PERSISTENT_LOSS] {
        scripts.iter().for_each(|script| script.answer(Some((status, 0))));
        let before = came();
        assert_eq!(core.copy(with_fua(10), source()).status, NOT_POSSIBLE);
        let tried: Vec<_> = came().into_iter().zip(before).map(|(now, then)| now - then).collect();
        assert!(tried.iter().sum::<usize>() == 10 && tried.iter().all(|it| *it > 1), "{tried:?}");
    }
    scripts.iter().for_each(|script| script.answer(Some((Status::ANA_INACCESSIBLE.dnr(), 0))));
    let before = came().iter().sum::<usize>();
    assert_eq!(core.copy(with_fua(10), source()).status, NOT_POSSIBLE);
    assert_eq!(came().iter().sum::<usize>(), before + 1);
    assert!(core.access().is_usable());
}

#[test]
fn a_source_is_copied_by_the_path_that_reaches_its_group() {
    let target = Target::serve(guarded(), 1, 0);
    let other = NamespaceOptions { nsid: Some(2), uuid: [0x43; 16], nguid: [0; 16], ana_group: 2 };
    target.server.add_namespace(NQN, &other, guarded()).expect("a namespace");
    let (port, address) =
        target.server.add_listener(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a listener");
    let (core, two) = in_turn([target.address, address]);
    let source = Core::usable(two.clone());
    let data = pattern(5, 8 << 9);
    source.write(0, &data);
    for (round, blind) in [(1, target.port), (2, port)] {
        let set = |state| target.server.set_ana_state(NQN, blind, 2, state).expect("a state");
        // Found while that is so, or it would have no place.
        let ranges = vec![of(&two, 0, 8)];
        set(AnaState::INACCESSIBLE);
        for at in 0..4 {
            core.copy(with_fua(round * 64 + at * 8), ranges.clone()).ok();
        }
        assert!(core.read(round << 15, 32 << 9) == data.repeat(4));
        set(AnaState::OPTIMIZED);
        source.await_access(Access::is_usable);
    }
}

#[test]
fn a_copy_on_a_path_that_dies_goes_by_the_other_one_if_it_may_be_done_twice() {
    let target = Target::memory();
    let scripts = [(); 2].map(|()| Script::before(target.address, Copier::default()));
    let addresses = scripts.each_ref().map(|script| rig::address(script.address));
    let paths = host::open(&addresses, &options(), "").expect("paths");
    let paths = paths.into_iter().map(|path| path as Arc<dyn Namespace>).collect();
    let multipath = Multipath::new(paths, MultipathOptions::default()).expect("one namespace");
    assert!(multipath.limits().copy.is_offered());
    let core = Core::usable(multipath);
    let came = || scripts.each_ref().map(|script| script.copies().len());
    for (source, status) in [(100, Status::SUCCESS), (13, Status::HOST_PATHING_ERROR)] {
        // Held by whichever path has it.
        scripts.iter().for_each(|script| script.answer(None));
        let before = came();
        let answer = core.issue_copy(with_fua(10), same([(0, 4), (source, 4)]));
        let until = Instant::now() + PATIENCE;
        while came() == before {
            assert!(Instant::now() < until, "no Copy comes");
            std::thread::sleep(Duration::from_millis(1));
        }
        let first = usize::from(came()[0] == before[0]);
        scripts.iter().for_each(|script| script.answer(DONE));
        scripts[first].hang_up();
        let done = answer.recv_timeout(PATIENCE).expect("an answer");
        assert_eq!(done.status, status);
        let total = before.iter().sum::<usize>() + if status.is_success() { 2 } else { 1 };
        assert_eq!(came().iter().sum::<usize>(), total);
        core.await_access(Access::is_usable);
    }
}
