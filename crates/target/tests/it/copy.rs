//! Copy over real sockets: what a namespace is given, what is refused, and what becomes of sources
//! that go away.

use crate::host;
use crate::noting;

use host::rig::{NQN, Rig};
use host::{Bytes, PATIENCE, Queue};
use noting::{COPY, Notes, Noting, Seen};
use nvme::copy::{self, Entry, Format};
use nvme::fabrics::{Csts, Property};
use nvme::limits::{CopyLimits, Passthrough};
use nvme::{Command, Limits, Status, opcode};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use subsystem::AnaState;
use target::NamespaceOptions;

const FIELD: Status = Status::INVALID_FIELD.dnr();
const SIZE: Status = Status::SIZE_LIMIT_EXCEEDED.dnr();

fn entry(nsid: u32, slba: u64, blocks: u32) -> Entry {
    Entry { nsid, slba, blocks, fast_only: false }
}

/// A Copy to namespace 1, and its list.
fn listed(format: Format, sdlba: u64, entries: &[Entry]) -> (Command, Vec<u8>) {
    let mut list = vec![0; entries.len() * format.entry_bytes()];
    for (entry, bytes) in entries.iter().zip(list.chunks_exact_mut(format.entry_bytes())) {
        entry.write(format, bytes);
    }
    (copy::command(1, sdlba, entries.len(), format), list)
}

/// Sets Host Behavior's CDFE.
fn set_formats(admin: &mut Queue, cdfe: u16) -> host::Done {
    let mut behavior = [0; 512];
    behavior[4..6].copy_from_slice(&cdfe.to_le_bytes());
    let opcode = opcode::admin::SET_FEATURES;
    let command = Command { opcode, cdw10: 0x16.into(), ..Command::default() };
    admin.command(command, Bytes::InCapsule(&behavior))
}

/// Namespaces 1 and 2, alike; 3 has blocks of 512 bytes, 4 is in ANA group 2, 5 is smaller than 1.
struct Served {
    rig: Rig,
    notes: Vec<Arc<Notes>>,
    admin: Queue,
    io: Queue,
}

fn served(cores: usize, edit: impl Fn(u32, &mut Limits)) -> Served {
    let rig = Rig::empty(cores);
    let mut notes = Vec::new();
    for nsid in 1..=5 {
        let mut limits = noting::LIMITS;
        match nsid {
            3 => limits.block_shift = 9,
            5 => limits.blocks = 100,
            _ => {}
        }
        edit(nsid, &mut limits);
        let namespace = Noting::new(&format!("noting:{nsid}"), limits);
        notes.push(namespace.notes.clone());
        let mut uuid = [0x42; 16];
        uuid[15] = nsid as u8;
        let ana_group = if nsid == 4 { 2 } else { 1 };
        let options = NamespaceOptions { nsid: Some(nsid), uuid, nguid: [0; 16], ana_group };
        rig.server.add_namespace(NQN, &options, namespace).expect("a namespace");
    }
    let (admin, io) = rig.connect();
    Served { rig, notes, admin, io }
}

impl Served {
    /// What namespace 1 was asked to copy since it was last looked at.
    fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.notes[0].seen.lock().unwrap())
    }

    fn copy(&mut self, format: Format, sdlba: u64, entries: &[Entry]) -> host::Done {
        let (command, list) = listed(format, sdlba, entries);
        self.io.command(command, Bytes::InCapsule(&list))
    }

    fn buffers_free(&self) -> usize {
        self.rig.server.stats().expect("running").cores.iter().map(|it| it.buffer_bytes_free).sum()
    }
}

fn soon(what: &str, happens: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happens() {
        assert!(Instant::now() < deadline, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn lists_of_every_format_reach_the_namespace() {
    for cores in [1, 2] {
        let mut served = served(cores, |_, _| {});
        set_formats(&mut served.admin, 0b1100).ok();
        for format in Format::ALL {
            let name = |nsid| if format.names_namespaces() { nsid } else { 1 };
            for entries in [
                vec![entry(1, 700, 16)],
                vec![entry(name(2), 0, 100), entry(1, 7, 1)],
                (0..COPY.ranges_max).map(|at| entry(name(1 + u32::from(at) % 2), 9, 2)).collect(),
            ] {
                let (command, list) = listed(format, 500, &entries);
                for bytes in [Bytes::InCapsule(&list), Bytes::OnRequest(&list)] {
                    let done = served.io.command(command, bytes).ok();
                    assert_eq!(done.result, 0);
                    let sources = entries.iter().map(|it| match it.nsid {
                        1 => (None, it.slba, it.blocks),
                        nsid => (Some(format!("noting:{nsid}")), it.slba, it.blocks),
                    });
                    let (sources, fast_only) = (sources.collect(), vec![false; entries.len()]);
                    let wanted = Seen { sdlba: 500, sources, fast_only, delayed: false };
                    assert_eq!(served.seen(), [wanted], "{format:?}");
                }
            }
        }
    }
}

#[test]
fn fast_copy_only_is_passed_on_for_the_range_that_has_it() {
    let mut served = served(1, |_, _| {});
    set_formats(&mut served.admin, 0b1100).ok();
    let fast = Entry { fast_only: true, ..entry(2, 0, 8) };
    for format in Format::ALL {
        let named = format.names_namespaces();
        served.copy(format, 500, &[entry(1, 0, 8), fast, entry(1, 8, 8)]).ok();
        assert_eq!(served.seen()[0].fast_only, [false, named, false], "{format:?}");
        served.copy(format, 500, &[entry(1, 0, 8)]).ok();
        assert_eq!(served.seen()[0].fast_only, [false]);
    }
}

/// What is wrong, the format, the first block of the destination, the sources, and the status.
type Refusal = (&'static str, Format, u64, Vec<Entry>, Status);

fn refusals() -> Vec<Refusal> {
    let range = Status::LBA_OUT_OF_RANGE.dnr();
    let unknown = Status::INVALID_NAMESPACE.dnr();
    let (format, overlap) = (Status::INCOMPATIBLE_NAMESPACE.dnr(), Status::OVERLAPPING_RANGE.dnr());
    let behind = vec![entry(2, 0, 9), entry(1, 509, 1)];
    let many = |count: usize| vec![entry(1, 0, 1); count];
    use Format::{Long, Namespaces, NamespacesLong, Short};
    vec![
        ("a range more than MSRC", Short, 500, many(9), SIZE),
        ("as many as can be", Long, 500, many(256), SIZE),
        ("a range longer than MSSRL", Short, 500, vec![entry(1, 0, 101)], SIZE),
        ("the longest that can be", Long, 500, vec![entry(1, 0, 65_536)], SIZE),
        ("more than MCL", Short, 500, vec![entry(1, 0, 100); 5], SIZE),
        ("lengths that add up to much", Short, 500, vec![entry(1, 0, 65_536); 8], SIZE),
        ("a source past the end", Short, 500, vec![entry(1, 1023, 2)], range),
        ("a source past all ends", Short, 500, vec![entry(1, u64::MAX, 2)], range),
        ("a destination past the end", Short, 1023, vec![entry(1, 0, 2)], range),
        ("a destination past all ends", Long, u64::MAX, vec![entry(1, 0, 2)], range),
        ("past the end of another", Namespaces, 500, vec![entry(5, 99, 2)], range),
        ("no namespace", Namespaces, 500, vec![entry(0, 0, 1)], unknown),
        ("an inactive namespace", NamespacesLong, 500, vec![entry(77, 0, 1)], FIELD),
        ("beyond NN", NamespacesLong, 500, vec![entry(8193, 0, 1)], unknown),
        ("all namespaces", Namespaces, 500, vec![entry(nvme::NSID_ALL, 0, 1)], unknown),
        ("other blocks", Namespaces, 500, vec![entry(3, 0, 1)], format),
        ("overlap", Namespaces, 500, vec![entry(1, 499, 2)], overlap),
        ("overlap of the second", NamespacesLong, 500, behind, overlap),
    ]
}

#[test]
fn what_is_refused_says_why_and_reaches_nobody() {
    let mut served = served(2, |_, _| {});
    let mut witness = served.rig.connect();
    set_formats(&mut served.admin, 0b1100).ok();
    let errors =
        |served: &Served| served.rig.server.stats().expect("running").namespaces[0].counted.errors;
    for (what, format, sdlba, entries, status) in refusals() {
        let (command, list) = listed(format, sdlba, &entries);
        for bytes in [Bytes::InCapsule(&list), Bytes::OnRequest(&list)] {
            let before = errors(&served);
            let done = served.io.command(command, bytes);
            assert_eq!((done.status, done.result), (status, 0), "{what}");
            assert_eq!(errors(&served), before + 1, "{what}");
        }
    }
    assert_eq!(served.seen(), []);
    // Overlap is allowed where no namespace is named.
    served.copy(Format::Short, 500, &[entry(1, 499, 2)]).ok();
    assert_eq!(served.seen().len(), 1);
    witness.1.command(Command::blocks(opcode::io::FLUSH, 1, 0, 1), Bytes::None).ok();
}

#[test]
fn lists_of_another_length_are_refused() {
    let mut served = served(1, |_, _| {});
    let (command, mut list) = listed(Format::Short, 500, &[entry(1, 0, 8), entry(1, 8, 8)]);
    list.resize(4096, 0);
    for length in [4, 32, 63, 65, 80, 4096] {
        for bytes in [Bytes::InCapsule(&list[..length]), Bytes::OnRequest(&list[..length])] {
            served.io.command(command, bytes).refused(Status::SGL_LENGTH_INVALID.dnr());
        }
    }
    for number in 4..16u32 {
        let mut unknown = command;
        unknown.cdw12 = (1 | number << 8).into();
        served.io.command(unknown, Bytes::InCapsule(&list[..64])).refused(FIELD);
    }
    assert_eq!(served.seen(), []);
    served.io.command(command, Bytes::InCapsule(&list[..64])).ok();
    assert_eq!(served.seen().len(), 1);
}

#[test]
fn a_namespace_that_does_not_copy_or_is_not_written_to_refuses() {
    let read_only = |nsid, limits: &mut Limits| limits.read_only = nsid == 1;
    let mut served_read_only = served(1, read_only);
    let done = served_read_only.copy(Format::Short, 500, &[entry(1, 0, 1)]);
    done.refused(Status::NAMESPACE_WRITE_PROTECTED.dnr());
    assert_eq!(served_read_only.seen(), []);

    let without = |nsid, limits: &mut Limits| {
        if nsid == 1 {
            limits.copy = CopyLimits::NONE;
        }
    };
    let mut served_without = served(1, without);
    set_formats(&mut served_without.admin, 0b1100).ok();
    let done = served_without.copy(Format::Short, 500, &[entry(1, 0, 1)]);
    done.refused(Status::INVALID_OPCODE.dnr());
    // It is a source all the same.
    let (mut command, list) = listed(Format::Namespaces, 500, &[entry(1, 0, 1)]);
    command.nsid = 2.into();
    served_without.io.command(command, Bytes::InCapsule(&list)).ok();
    let seen = served_without.notes[1].seen.lock().unwrap().pop().expect("it was asked to");
    assert_eq!(seen.sources, [(Some("noting:1".into()), 0, 1)]);
}

/// As commands nobody knows, with the bytes of their data: whatever those are.
#[test]
fn where_commands_are_passed_and_copy_is_not_offered_its_bytes_are_passed() {
    let mut served = served(1, |_, limits| {
        limits.copy = CopyLimits::NONE;
        limits.passthrough = Passthrough { io: true, admin: false };
        limits.immediate = false;
    });
    let (command, list) = listed(Format::NamespacesLong, 500, &[entry(9, 0, 65_536); 256]);
    served.io.command(command, Bytes::InCapsule(&list)).ok();
    served.io.command(command, Bytes::OnRequest(&list[..77])).ok();
    assert_eq!(served.seen(), []);
    let wanted = [list[..].to_vec(), list[..77].to_vec()];
    assert!(*served.notes[0].bytes.lock().unwrap() == wanted, "as they were sent");
    let stats = served.rig.server.stats().expect("running").namespaces;
    assert_eq!((stats[0].counted.copies, stats[0].counted.others), (0, 2));
}

#[test]
fn formats_that_name_namespaces_are_enabled_per_controller_and_on_every_core() {
    let mut served = served(2, |_, _| {});
    let other_admin = served.rig.host().enabled();
    let mut other = served.rig.host().io(&other_admin, 2);
    let mut queues: Vec<Queue> =
        (2..=4).map(|qid| served.rig.host().io(&served.admin, qid)).collect();
    let (command, list) = listed(Format::Namespaces, 500, &[entry(2, 0, 8)]);
    let (long, long_list) = listed(Format::NamespacesLong, 500, &[entry(2, 0, 8)]);
    for (cdfe, short_passes, long_passes) in
        [(0, false, false), (0b0100, true, false), (0b1000, false, true), (0b1100, true, true)]
    {
        set_formats(&mut served.admin, cdfe).ok();
        for queue in &mut queues {
            let done = queue.command(command, Bytes::InCapsule(&list));
            assert_eq!(done.status, if short_passes { Status::SUCCESS } else { FIELD });
            let done = queue.command(long, Bytes::InCapsule(&long_list));
            assert_eq!(done.status, if long_passes { Status::SUCCESS } else { FIELD });
        }
        other.command(command, Bytes::InCapsule(&list)).refused(FIELD);
    }
    // A refusal leaves what was enabled.
    for reserved in [0b1, 0b10, 1 << 4, 1 << 15] {
        set_formats(&mut served.admin, reserved).refused(FIELD);
    }
    // Also for a queue that comes later.
    let mut late = served.rig.host().io(&served.admin, 5);
    late.command(command, Bytes::InCapsule(&list)).ok();
    set_formats(&mut served.admin, 0).ok();
    late.command(command, Bytes::InCapsule(&list)).refused(FIELD);
    // A host that resets its controller has enabled none any more.
    set_formats(&mut served.admin, 0b1100).ok();
    late.command(command, Bytes::InCapsule(&list)).ok();
    served.admin.set_property(Property::CC, 0);
    let until = Instant::now() + PATIENCE;
    while Csts(served.admin.property(Property::CSTS) as u32).ready() {
        assert!(Instant::now() < until, "the reset does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    served.admin.enable();
    let mut anew = served.rig.host().io(&served.admin, 6);
    anew.command(command, Bytes::InCapsule(&list)).refused(FIELD);
    let (short, short_list) = listed(Format::Short, 500, &[entry(1, 0, 8)]);
    anew.command(short, Bytes::InCapsule(&short_list)).ok();
}

#[test]
fn a_failure_tells_the_lowest_range_that_was_not_copied() {
    let mut served = served(2, |_, _| {});
    *served.notes[0].answer.lock().unwrap() = (Status::WRITE_FAULT, 3);
    let entries = [entry(1, 0, 8); 8];
    let done = served.copy(Format::Short, 500, &entries);
    assert_eq!((done.status, done.result), (Status::WRITE_FAULT, 3));
    *served.notes[0].answer.lock().unwrap() = (Status::SUCCESS, 0);
    served.copy(Format::Long, 500, &entries).ok();
    let stats = served.rig.server.stats().expect("running").namespaces;
    assert_eq!(
        (stats[0].counted.copies, stats[0].counted.copied_bytes, stats[0].counted.errors),
        (1, 64 * 4096, 1)
    );
    assert_eq!(
        (stats[0].counted.reads, stats[0].counted.writes, stats[0].counted.others),
        (0, 0, 0)
    );
    // The error log has it.
    let log = Command {
        opcode: opcode::admin::GET_LOG_PAGE,
        cdw10: (1 | 15 << 16).into(),
        ..Command::default()
    };
    let entry = served.admin.command(log, Bytes::Wanted(64)).ok().data;
    assert_eq!((entry[12], entry[13], entry[31]), (0, 5, opcode::io::COPY), "Write Fault");
    assert_eq!((entry[16], entry[17], entry[24]), (0xf4, 0x01, 1), "first block, namespace");
}

#[test]
fn the_ana_state_of_a_source_counts() {
    let mut served = served(1, |_, _| {});
    set_formats(&mut served.admin, 0b1100).ok();
    let port = served.rig.port;
    for (state, status) in [
        (AnaState::INACCESSIBLE, Status::ANA_INACCESSIBLE),
        (AnaState::NON_OPTIMIZED, Status::SUCCESS),
        (AnaState::PERSISTENT_LOSS, Status::ANA_PERSISTENT_LOSS),
        (AnaState::CHANGE, Status::ANA_TRANSITION),
        (AnaState::OPTIMIZED, Status::SUCCESS),
    ] {
        served.rig.server.set_ana_state(NQN, port, 2, state).expect("a state");
        let done = served.copy(Format::Namespaces, 500, &[entry(2, 0, 1), entry(4, 0, 1)]);
        assert_eq!(done.status.code(), status, "{state:?}");
        served.copy(Format::Namespaces, 500, &[entry(2, 0, 1)]).ok();
    }
}

#[test]
fn the_ana_state_of_the_destination_counts_wherever_the_source_is() {
    let mut served = served(1, |_, _| {});
    set_formats(&mut served.admin, 0b1100).ok();
    let port = served.rig.port;
    let server = &served.rig.server;
    server.set_ana_state(NQN, port, 1, AnaState::INACCESSIBLE).expect("a state");
    // The destination's is told, not that there is no fast way; also where the source's is worse.
    let entries = [Entry { fast_only: true, ..entry(4, 0, 1) }];
    let done = served.copy(Format::Namespaces, 500, &entries);
    assert_eq!((done.status.code(), done.result), (Status::ANA_INACCESSIBLE, 0));
    let server = &served.rig.server;
    server.set_ana_state(NQN, port, 2, AnaState::PERSISTENT_LOSS).expect("a state");
    let done = served.copy(Format::Namespaces, 500, &entries);
    assert_eq!((done.status.code(), done.result), (Status::ANA_INACCESSIBLE, 0));
    assert!(served.seen().is_empty());
}

#[test]
fn a_source_is_read_through_the_port_that_is_slow() {
    let mut served = served(1, |_, _| {});
    set_formats(&mut served.admin, 0b1100).ok();
    let copy = |served: &mut Served| {
        served.copy(Format::Namespaces, 500, &[entry(2, 0, 1)]).ok();
        served.seen()[0].delayed
    };
    assert!(!copy(&mut served));
    let delays = namespace::layer::delay::Delays::all(Duration::from_millis(1));
    served.rig.server.set_delay(served.rig.port, delays).expect("running");
    assert!(copy(&mut served) && copy(&mut served));
    served.rig.server.set_delay(served.rig.port, Default::default()).expect("running");
    assert!(!copy(&mut served));
}

/// A copy that runs holds what it needs of a source, and nothing of the pool.
#[test]
fn a_source_that_is_removed_stays_until_the_copy_has_ended() {
    let mut served = served(2, |_, _| {});
    set_formats(&mut served.admin, 0b1100).ok();
    let free = served.buffers_free();
    served.notes[1].hold.store(true, Ordering::SeqCst);
    let (command, list) = listed(Format::Namespaces, 500, &[entry(2, 0, 8), entry(1, 0, 8)]);
    let cid = served.io.issue(command, Bytes::OnRequest(&list));
    while served.notes[1].held.load(Ordering::SeqCst) == 0 {
        served.io.socket.stream.set_read_timeout(Some(Duration::from_millis(20))).expect("TCP");
        let _ = served.io.step();
    }
    served.io.socket.stream.set_read_timeout(Some(PATIENCE)).expect("TCP");
    assert_eq!(served.buffers_free(), free, "the list's buffer is free again");
    served.rig.server.remove_namespace(NQN, 2).expect("it was there");
    assert_eq!(served.notes[1].queues.load(Ordering::SeqCst), 1, "in use");
    // From now on there is no such source.
    let late = listed(Format::Namespaces, 600, &[entry(2, 0, 8)]);
    let done = served.io.command(late.0, Bytes::InCapsule(&late.1));
    done.refused(FIELD);
    served.notes[1].hold.store(false, Ordering::SeqCst);
    served.io.complete(cid).ok();
    soon("the end of the source's queue", || served.notes[1].queues.load(Ordering::SeqCst) == 0);
}

#[test]
fn what_a_copy_holds_outlives_its_connection() {
    for cores in [1, 2] {
        let mut served = served(cores, |_, _| {});
        set_formats(&mut served.admin, 0b1100).ok();
        served.notes[1].hold.store(true, Ordering::SeqCst);
        let (command, list) = listed(Format::Namespaces, 500, &[entry(2, 0, 8)]);
        served.io.issue(command, Bytes::InCapsule(&list));
        soon("the Copy", || served.notes[1].held.load(Ordering::SeqCst) == 1);
        served.io.socket.stream.shutdown(Shutdown::Both).expect("connected");
        served.rig.server.remove_namespace(NQN, 2).expect("it was there");
        served.rig.server.remove_namespace(NQN, 1).expect("it was there");
        assert_eq!(served.notes[1].queues.load(Ordering::SeqCst), 1, "in use");
        served.notes[1].hold.store(false, Ordering::SeqCst);
        for notes in &served.notes[..2] {
            soon("the end of a queue", || notes.queues.load(Ordering::SeqCst) == 0);
        }
        assert!(served.notes.iter().all(|notes| !notes.forgotten.load(Ordering::SeqCst)));
    }
}

/// However many Copies of however many ranges a host has outstanding, they take little memory.
#[test]
fn a_connection_holds_so_many_ranges() {
    let mut served = served(1, |_, limits| {
        limits.copy = CopyLimits { ranges_max: 256, blocks_max: 1000, ..COPY };
    });
    let mut host = served.rig.host();
    host.entries = 256;
    let mut io = host.io(&served.admin, 2);
    let (command, list) = listed(Format::Long, 500, &[entry(1, 0, 1); 256]);
    for _ in 0..2 {
        served.notes[0].hold.store(true, Ordering::SeqCst);
        let held: Vec<_> = (0..64).map(|_| io.issue(command, Bytes::InCapsule(&list))).collect();
        let one = listed(Format::Short, 500, &[entry(1, 0, 1)]);
        io.command(one.0, Bytes::InCapsule(&one.1)).refused(Status::COMMAND_INTERRUPTED);
        // Others have their own.
        let other = served.io.issue(one.0, Bytes::InCapsule(&one.1));
        served.notes[0].hold.store(false, Ordering::SeqCst);
        for cid in held {
            io.complete(cid).ok();
        }
        served.io.complete(other).ok();
        io.command(one.0, Bytes::InCapsule(&one.1)).ok();
    }
}

/// Ranges are free again when Copies are back from the namespace, whether their connection is there or not.
#[test]
fn ranges_of_ended_connections_are_free_again() {
    let mut served = served(1, |_, limits| {
        limits.copy = CopyLimits { ranges_max: 256, blocks_max: 1000, ..COPY };
    });
    let mut host = served.rig.host();
    host.entries = 256;
    let (command, list) = listed(Format::Long, 500, &[entry(1, 0, 1); 256]);
    let held = |served: &Served| served.notes[0].held.load(Ordering::SeqCst);
    // More than a core has, all together.
    for round in 0..6 {
        let admin = host.enabled();
        let mut io = host.io(&admin, 1);
        served.notes[0].hold.store(true, Ordering::SeqCst);
        for _ in 0..64 {
            io.issue(command, Bytes::InCapsule(&list));
        }
        soon("the Copies", || held(&served) == 65 * round + 64);
        // Who comes while its connection has ended has what is left.
        io.socket.stream.shutdown(Shutdown::Both).expect("connected");
        let other = served.io.issue(command, Bytes::InCapsule(&list));
        soon("another Copy", || held(&served) == 65 * round + 65);
        served.notes[0].hold.store(false, Ordering::SeqCst);
        served.io.complete(other).ok();
    }
}

#[test]
fn a_copy_that_waits_for_its_list_is_aborted() {
    let mut served = served(2, |_, _| {});
    let (command, list) = listed(Format::Short, 500, &[entry(1, 0, 8)]);
    let cid = served.io.issue(command, Bytes::OnRequest(&list));
    served.io.await_word();
    let cdw10 = (1 | u32::from(cid) << 16).into();
    let abort = Command { opcode: opcode::admin::ABORT, cdw10, ..Command::default() };
    assert_eq!(served.admin.command(abort, Bytes::None).ok().result & 1, 0);
    assert_eq!(served.io.complete(cid).status.code(), Status::ABORT_REQUESTED);
    assert_eq!(served.seen(), []);
}

/// Limits may change while queues are connected, as with the size.
#[test]
fn limits_that_change_count_from_then_on() {
    let mut served = served(2, |_, _| {});
    served.copy(Format::Short, 500, &[entry(1, 0, 100)]).ok();
    let limits =
        Limits { blocks: 550, copy: CopyLimits { range_blocks_max: 50, ..COPY }, ..noting::LIMITS };
    *served.notes[0].limits.lock().unwrap() = limits;
    served.rig.server.namespace_changed(NQN, 1).expect("running");
    served.copy(Format::Short, 500, &[entry(1, 0, 100)]).refused(SIZE);
    served.copy(Format::Short, 501, &[entry(1, 0, 50)]).refused(Status::LBA_OUT_OF_RANGE.dnr());
    served.copy(Format::Short, 500, &[entry(1, 0, 50)]).ok();
    let identify = |cns: u32, nsid: u32| Command {
        opcode: opcode::admin::IDENTIFY,
        nsid: nsid.into(),
        cdw10: cns.into(),
        ..Command::default()
    };
    let data = served.admin.command(identify(0, 1), Bytes::Wanted(4096)).ok().data;
    assert_eq!(data[74..81], [50, 0, 0x90, 1, 0, 0, 7], "MSSRL, MCL, MSRC");
    let data = served.admin.command(identify(1, 0), Bytes::Wanted(4096)).ok().data;
    assert_eq!((data[521] & 1, data[534]), (1, 0b1111), "ONCS, OCFS");
}
