//! Commands that take too long and are ended by Abort.

use crate::rig;

use namespace::Namespace;
use namespace::layer::multipath::{Multipath, MultipathOptions};
use nvme::Status;
use rig::tamper::Tamper;
use rig::{Core, PATIENCE, Target, options, pattern, write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// An I/O queue's connection is the second; its ICResp and the answer to Connect come first.
const IO: usize = 1;
const FIRST: usize = 2;
const CAPSULE_RESP: u8 = 5;

/// When Abort is sent: after so long, and up to half a second. After the same once more the path is reset.
const IO_TIMEOUT: Duration = Duration::from_secs(5);

/// Writes 8 KiB. The first answer is kept until the host has sent an Abort, and then says that it was
/// heeded. Returns the identifiers of the answers, and how long all took.
fn aborted_once(options: &host::Options) -> (Vec<u16>, Duration) {
    let target = Target::memory();
    let sent = Arc::<Mutex<Vec<u16>>>::default();
    let aborts = Arc::<AtomicUsize>::default();
    let (seen, heard) = (Arc::clone(&sent), Arc::clone(&aborts));
    let edit = move |pdu: &mut Vec<u8>| {
        assert_eq!(pdu[0], CAPSULE_RESP);
        let mut seen = seen.lock().expect("no panic");
        seen.push(u16::from_le_bytes([pdu[20], pdu[21]]));
        if seen.len() == 1 {
            let until = Instant::now() + PATIENCE;
            while heard.load(Ordering::SeqCst) == 0 {
                assert!(Instant::now() < until, "no Abort comes");
                std::thread::sleep(Duration::from_millis(1));
            }
            pdu[22..24].copy_from_slice(&(Status::ABORT_REQUESTED.0 << 1).to_le_bytes());
        }
        true
    };
    let tamper =
        Tamper::each_noting_aborts(target.address, IO, FIRST, Arc::new(edit), Arc::clone(&aborts));
    let paths = host::open(&[rig::address(tamper.address)], options, "").expect("a path");
    let paths = paths.into_iter().map(|path| path as Arc<dyn Namespace>).collect();
    let multipath = Multipath::new(paths, MultipathOptions::default()).expect("one namespace");
    let core = Core::usable(multipath.clone());
    let data = pattern(1, 8192);
    let begin = Instant::now();
    core.command(write(0, 8192), data.clone()).ok();
    let took = begin.elapsed();
    let sent = sent.lock().expect("no panic").clone();
    let report = multipath.paths().remove(0);
    assert_eq!(report.reconnects, 0, "Abort was enough: {sent:?}, {report:?}");
    // Past the relay, which knows of no reads.
    let direct = Core::usable(rig::connect(target.address, &rig::options()));
    assert!(direct.read(0, 8192) == data);
    (sent, took)
}

#[test]
fn what_our_own_abort_ended_is_sent_again_under_another_identifier() {
    let options = host::Options { io_timeout: IO_TIMEOUT, ..options() };
    let (cids, took) = aborted_once(&options);
    // An Abort that is late must not find another command there.
    let [aborted, again] = cids[..] else { panic!("{cids:?}") };
    assert_ne!(aborted, again);
    assert!(took > IO_TIMEOUT, "{took:?}");
}

#[test]
fn an_identifier_that_rests_is_used_again() {
    let mut options = host::Options { io_timeout: IO_TIMEOUT, ..options() };
    // One command at a time, and so one identifier.
    options.association.queue_entries = 2;
    options.association.admin_timeout = Duration::from_secs(6);
    let (cids, took) = aborted_once(&options);
    assert_eq!(cids, [0, 0]);
    // It rests until Abort was answered for sure: the time for its answer, and five seconds.
    assert!(took > IO_TIMEOUT + Duration::from_secs(11), "{took:?}");
}
