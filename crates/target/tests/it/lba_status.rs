//! Get LBA Status: what a namespace stores, told to a host by an admin command.

use crate::host;

use double::Double;
use host::rig::{Rig, directory, file};
use host::{Bytes, Queue};
use namespace::null::Null;
use namespace::{Namespace, Run};
use nvme::lba_status::{self, Allocated, Extent};
use nvme::{Status, opcode};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// Blocks of 4 KiB.
const BLOCKS: u64 = 16 << 10;

fn ask(admin: &mut Queue, nsid: u32, slba: u64, blocks: u64, bytes: u32) -> Option<Allocated> {
    let command = lba_status::command(nsid, slba, blocks, bytes);
    let done = admin.command(command, Bytes::Wanted(bytes as usize));
    assert_eq!(done.status, Status::SUCCESS);
    Allocated::read(&done.data, slba)
}

fn extents(of: &[(u64, u64)]) -> Vec<Extent> {
    of.iter().map(|&(slba, blocks)| Extent { slba, blocks }).collect()
}

/// A volume that says what `tell` says.
fn telling(
    tell: impl Fn(u64, u64, usize) -> io::Result<Vec<Run>> + Send + Sync + 'static,
) -> Arc<dyn Namespace> {
    let null = Null::open(BLOCKS << 12, 12, None).expect("a volume");
    Arc::new(Double::over(null).telling(tell))
}

/// Every second block of `BLOCKS` is stored, the first is not.
fn every_second(slba: u64, blocks: u64, runs_max: usize) -> Vec<Run> {
    let runs = (slba..slba + blocks).take(runs_max);
    runs.map(|block| Run { blocks: 1, is_stored: block % 2 == 1 }).collect()
}

#[test]
fn holes_of_a_file_are_told_as_they_come_and_go() {
    let (directory, rig) = (directory(), Rig::empty(2));
    rig.add(1, file(&directory, BLOCKS << 12, 12, 2, Duration::ZERO));
    let (mut admin, mut io) = rig.connect();
    assert_eq!(
        ask(&mut admin, 1, 0, BLOCKS, 4096),
        Some(Allocated { extents: vec![], is_complete: true })
    );
    // By the host, and by somebody else.
    io.write(1, 1000, 16, &[7; 16 << 12]);
    let path = directory.path().join("volume.img");
    let other = std::fs::File::options().write(true).open(path).unwrap();
    other.write_all_at(&[1; 4096], 5 << 12).unwrap();
    let whole = Allocated { extents: extents(&[(5, 1), (1000, 16)]), is_complete: true };
    assert_eq!(ask(&mut admin, 1, 0, BLOCKS, 4096).as_ref(), Some(&whole));
    assert_eq!(ask(&mut admin, 1, 0, 0, 4096), Some(whole), "up to the end");
    // Not beyond what was asked about.
    let part = ask(&mut admin, 1, 1004, 4, 4096).unwrap();
    assert_eq!(part, Allocated { extents: extents(&[(1004, 4)]), is_complete: true });
    // Room for one only.
    let one = ask(&mut admin, 1, 0, 0, 24).unwrap();
    assert_eq!(one, Allocated { extents: extents(&[(5, 1)]), is_complete: false });
    let none = ask(&mut admin, 1, 0, 0, 8).unwrap();
    assert_eq!(none, Allocated { extents: vec![], is_complete: false });
}

#[test]
fn more_extents_than_an_answer_holds_are_told_one_answer_after_another() {
    let rig = Rig::empty(1);
    rig.add(1, telling(|slba, blocks, runs_max| Ok(every_second(slba, blocks, runs_max))));
    let (mut admin, _io) = rig.connect();
    let mut ask_all = || {
        let (mut at, mut answers, mut found) = (0, 0, Vec::new());
        loop {
            let told = ask(&mut admin, 1, at, 0, 64 << 10).expect("it makes sense");
            answers += 1;
            found.extend(told.extents.iter().copied());
            at = found.last().map_or(0, |last: &Extent| last.slba + last.blocks);
            if told.is_complete {
                return Some((answers, found));
            }
            if told.extents.len() != lba_status::descriptors_in(64 << 10) {
                return None;
            }
        }
    };
    // An answer ends early if it takes long, which a machine that stalls may do once.
    let told = (0..3).find_map(|_| ask_all());
    let (answers, found) = told.expect("all answers but the last are full");
    let all: Vec<_> = (0..BLOCKS / 2).map(|pair| (2 * pair + 1, 1)).collect();
    assert!(found == extents(&all), "each is told once");
    assert_eq!(answers, 3);
}

#[test]
fn what_a_volume_cannot_tell_is_stored() {
    let rig = Rig::empty(1);
    rig.add(1, telling(|_, _, _| Err(io::Error::other("not today"))));
    rig.add(2, telling(|_, _, _| Ok(Vec::new())));
    // The first blocks only, and not the others.
    rig.add(
        3,
        telling(|slba, blocks, _| match slba {
            0 => Ok(vec![Run { blocks: 10, is_stored: false }, Run { blocks: 2, is_stored: true }]),
            12 => Ok(vec![Run { blocks: 8, is_stored: false }]),
            _ => Err(io::Error::other(format!("{blocks} blocks more"))),
        }),
    );
    // More than it was asked about.
    rig.add(4, telling(|_, _, _| Ok(vec![Run { blocks: u64::MAX, is_stored: true }])));
    let (mut admin, _io) = rig.connect();
    let all = extents(&[(0, BLOCKS)]);
    for (nsid, expected) in
        [(1, all.clone()), (2, all.clone()), (3, extents(&[(10, 2), (20, BLOCKS - 20)])), (4, all)]
    {
        let told = ask(&mut admin, nsid, 0, 0, 4096);
        assert_eq!(told, Some(Allocated { extents: expected, is_complete: true }), "{nsid}");
    }
}

#[test]
fn one_that_takes_long_keeps_nobody_from_io_and_the_next_is_to_come_again() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let rig = Rig::empty(1);
    rig.add(
        1,
        telling(move |_, blocks, _| {
            let _ = wait.lock().unwrap().recv();
            Ok(vec![Run { blocks, is_stored: true }])
        }),
    );
    let (mut admin, mut io) = rig.connect();
    let (mut other, _io) = rig.connect();
    let command = lba_status::command(1, 0, 0, 4096);
    let first = admin.issue(command, Bytes::Wanted(4096));
    let second = admin.command(command, Bytes::Wanted(4096));
    assert_eq!(second.status.code(), Status::COMMAND_INTERRUPTED.code());
    io.read(1, 5, 1, 4096);
    let keep_alive = nvme::Command { opcode: opcode::admin::KEEP_ALIVE, ..Default::default() };
    admin.command(keep_alive, Bytes::None).ok();
    // Its host goes away meanwhile.
    let gone = other.issue(command, Bytes::Wanted(4096));
    drop((other, gone));
    go.send(()).unwrap();
    assert_eq!(admin.complete(first).status, Status::SUCCESS);
    go.send(()).unwrap();
    // There is room for another.
    go.send(()).unwrap();
    assert!(ask(&mut admin, 1, 0, 0, 4096).is_some());
}

#[test]
fn questions_of_several_hosts_are_asked_one_after_another() {
    static ASKED: AtomicU64 = AtomicU64::new(0);
    let rig = Rig::empty(1);
    rig.add(
        1,
        telling(|_, blocks, _| {
            assert_eq!(ASKED.fetch_add(1, Ordering::SeqCst), 0, "somebody else is asking");
            std::thread::sleep(Duration::from_millis(5));
            ASKED.fetch_sub(1, Ordering::SeqCst);
            Ok(vec![Run { blocks, is_stored: true }])
        }),
    );
    let mut admins: Vec<Queue> = (0..5).map(|_| rig.host().enabled()).collect();
    let command = lba_status::command(1, 0, 0, 4096);
    for _ in 0..4 {
        let cids: Vec<u16> =
            admins.iter_mut().map(|admin| admin.issue(command, Bytes::Wanted(4096))).collect();
        // One goes before it is answered.
        drop(admins.pop());
        for (admin, cid) in admins.iter_mut().zip(cids) {
            assert_eq!(admin.complete(cid).status, Status::SUCCESS);
        }
    }
}

#[test]
fn who_asks_on_comes_farther_also_through_a_hole_that_takes_long() {
    let rig = Rig::empty(1);
    rig.add(
        1,
        telling(|_, _, _| {
            std::thread::sleep(Duration::from_millis(100));
            Ok(vec![Run { blocks: 10, is_stored: false }])
        }),
    );
    let mut admin = rig.host().enabled();
    let mut comes_to = || {
        let told = ask(&mut admin, 1, 0, 0, 4096).expect("it makes sense");
        assert!(!told.is_complete);
        let [Extent { slba, blocks: 1 }] = told.extents[..] else { panic!("{told:?}") };
        slba
    };
    // Unless the time was over before the volume was asked.
    assert!((0..3).any(|_| comes_to() >= 10));
}

#[test]
fn a_volume_that_panics_is_to_be_asked_again() {
    let rig = Rig::empty(1);
    rig.add(1, telling(|_, _, _| panic!("on purpose")));
    let (mut admin, mut io) = rig.connect();
    for _ in 0..2 {
        let done = admin.command(lba_status::command(1, 0, 0, 4096), Bytes::Wanted(4096));
        assert_eq!(done.status.code(), Status::COMMAND_INTERRUPTED.code());
    }
    io.read(1, 5, 1, 4096);
}

#[test]
fn a_question_that_waits_keeps_no_volume_open_that_is_removed() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let rig = Rig::empty(1);
    let slow = telling(move |_, blocks, _| {
        let _ = wait.lock().unwrap().recv();
        Ok(vec![Run { blocks, is_stored: true }])
    });
    let other = telling(|_, blocks, _| Ok(vec![Run { blocks, is_stored: true }]));
    let watch = Arc::downgrade(&other);
    rig.add(1, slow);
    rig.add(2, other);
    let (mut first, mut second) = (rig.host().enabled(), rig.host().enabled());
    let asked = first.issue(lba_status::command(1, 0, 0, 4096), Bytes::Wanted(4096));
    // It is being asked once another of that queue is refused.
    first.command(lba_status::command(1, 0, 0, 4096), Bytes::Wanted(4096));
    let waits = second.issue(lba_status::command(2, 0, 0, 4096), Bytes::Wanted(4096));
    second.command(lba_status::command(2, 0, 0, 4096), Bytes::Wanted(4096));
    rig.server.remove_namespace(host::rig::NQN, 2).expect("it is there");
    assert!(watch.upgrade().is_none(), "it is still open");
    go.send(()).unwrap();
    assert_eq!(first.complete(asked).status, Status::SUCCESS);
    assert_eq!(second.complete(waits).status.code(), Status::COMMAND_INTERRUPTED.code());
}
