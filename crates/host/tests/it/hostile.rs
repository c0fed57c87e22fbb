//! Controllers that break the protocol: commands fail, the path says why and comes back.

use crate::rig;

use association::Reason;
use host::Path;
use host::client::{Client, HostIdentity, Peer};
use namespace::{Access, Namespace};
use nvme::Status;
use rig::relay::Relay;
use rig::tamper::{Edit, Tamper};
use rig::{Core, PATIENCE, Target, connect, options, pattern, read};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const C2H_DATA: u8 = 0x07;
const CAPSULE_RESP: u8 = 0x05;

/// An I/O queue's connection is the second; its ICResp and the answer to Connect come first.
const IO: usize = 1;
const FIRST: usize = 2;

/// Reads 8 KiB while the PDU that answers is edited. How that ended, and what was said.
fn tampered(
    options: &host::Options,
    edit: impl Fn(&mut Vec<u8>) -> bool + Send + Sync + 'static,
) -> (Status, String) {
    let target = Target::memory();
    let tamper = Tamper::with(target.address, IO, FIRST, Arc::new(edit));
    let path = connect(tamper.address, options);
    let core = Core::usable(path.clone());
    let done = core.command(read(0, 8192), vec![0xee; 8192]);
    assert!(tamper.done.load(Ordering::SeqCst), "the PDU was edited");
    // The path recovers, whatever it was; if it went down at all, it said why.
    let until = Instant::now() + PATIENCE;
    loop {
        core.await_access(Access::is_usable);
        let again = core.command(read(0, 8192), vec![0xee; 8192]);
        if again.status.is_success() {
            assert!(again.data.iter().all(|byte| *byte == 0));
            break;
        }
        assert!(Instant::now() < until, "{}", again.status);
        std::thread::sleep(Duration::from_millis(10));
    }
    let report = path.paths().remove(0);
    assert!(report.name.contains(&tamper.address.to_string()));
    (done.status, path.reason().to_string())
}

/// Why the path was lost, as the control thread says once it has heard of it.
fn why_lost(path: &Path) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let reason = path.reason();
        if reason != Reason::Connecting || Instant::now() > until {
            return reason.to_string();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until so many commands are with the path, and has had time to send what can be sent.
fn await_in_flight(path: &Path, count: u64) {
    let until = Instant::now() + PATIENCE;
    while path.paths()[0].in_flight < count {
        assert!(Instant::now() < until, "{:?}", path.paths());
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(300));
}

#[track_caller]
fn lost(words: &str, edit: impl Fn(&mut Vec<u8>) -> bool + Send + Sync + 'static) {
    let (status, reason) = tampered(&options(), edit);
    assert_eq!(status, Status::HOST_PATHING_ERROR, "{reason}");
    assert!(reason.contains("I/O queue 1") && reason.contains(words), "{reason}");
}

#[test]
fn a_pdu_that_is_cut() {
    lost("closed", |pdu| {
        pdu.truncate(pdu.len() / 2);
        false
    });
    lost("closed", |pdu| {
        pdu.truncate(5);
        false
    });
}

#[test]
fn a_pdu_that_is_too_long() {
    lost("Header Field", |pdu| {
        pdu[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        true
    });
}

#[test]
fn an_identifier_that_was_not_sent() {
    for cid in [77u16, 0xffff] {
        lost("Header Field", move |pdu| {
            assert_eq!(pdu[0], C2H_DATA);
            pdu[8..10].copy_from_slice(&cid.to_le_bytes());
            true
        });
    }
}

#[test]
fn unasked_data_and_answers() {
    // Once more for a command that has its answer, which was good.
    let (status, reason) = tampered(&options(), |pdu| {
        let mut again = pdu.clone();
        pdu.append(&mut again);
        true
    });
    assert_eq!(status, Status::SUCCESS);
    assert!(reason.contains("Header Field"), "{reason}");
    lost("Header Field", |pdu| {
        let mut answer = vec![CAPSULE_RESP, 0, 24, 0, 24, 0, 0, 0];
        answer.extend([0; 12]);
        answer.extend(99u16.to_le_bytes());
        answer.extend([0; 2]);
        pdu.splice(..0, answer);
        true
    });
    // An R2T for a read.
    lost("Header Field", |pdu| {
        let mut r2t = vec![9, 0, 24, 0, 24, 0, 0, 0];
        r2t.extend(&pdu[8..10]);
        r2t.extend([0; 6]);
        r2t.extend(4096u32.to_le_bytes());
        r2t.extend([0; 4]);
        pdu.splice(..0, r2t);
        true
    });
    // A second ICResp.
    lost("Sequence", |pdu| {
        let mut response = vec![1, 0, 128, 0, 128, 0, 0, 0];
        response.resize(128, 0);
        pdu.splice(..0, response);
        true
    });
}

/// The kernel may find room in a full socket at any time, and a read goes before the writes that wait: then
/// it was sent, and its data is welcome. So this is tried until it was not.
#[test]
fn data_for_a_command_that_was_not_sent() {
    assert!((0..20).any(|_| unsent_read_is_answered() == Status::HOST_ABORTED));
}

/// Fills the socket with writes, so that a read stays here; then the controller sends data for it: the
/// header first, the data when the host has had time to look at that.
fn unsent_read_is_answered() -> Status {
    const WRITES: u16 = 1000;
    let target = Target::memory();
    let relay = Relay::to(target.address);
    let mut options = options();
    options.association.queue_entries = 1024;
    let path = connect(relay.address, &options);
    let core = Core::usable(path.clone());
    relay.hold(Some(IO));
    for at in 0..u64::from(WRITES) {
        core.issue(rig::write(at % 100 * 8192, 8192), vec![1; 8192]);
    }
    await_in_flight(&path, WRITES.into());
    let reading = core.issue(read(0, 8192), vec![0xee; 8192]);
    await_in_flight(&path, u64::from(WRITES) + 1);
    // C2HData, LAST and SUCCESS; identifiers were given in order.
    let mut header = vec![C2H_DATA, 0xc, 24, 24];
    header.extend((24 + 8192u32).to_le_bytes());
    header.extend(WRITES.to_le_bytes());
    header.extend([0; 6]);
    header.extend(8192u32.to_le_bytes());
    header.extend([0; 4]);
    assert!(relay.inject(IO, &header));
    std::thread::sleep(Duration::from_millis(200));
    relay.inject(IO, &[0x55; 8192]);
    let done = reading.recv_timeout(PATIENCE).expect("an answer");
    if done.status == Status::HOST_ABORTED {
        assert!(done.data.iter().all(|byte| *byte == 0xee), "its buffer was written to");
        let reason = why_lost(&path);
        assert!(reason.contains("before it was sent"), "{reason}");
    }
    relay.hold(None);
    core.await_access(Access::is_usable);
    done.status
}

#[test]
fn data_that_does_not_fit() {
    lost("Out of Range", |pdu| {
        pdu[12..16].copy_from_slice(&(1u32 << 30).to_le_bytes());
        true
    });
    lost("Header Field", |pdu| {
        pdu[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        true
    });
}

#[test]
fn a_kind_that_does_not_exist() {
    lost("Header Field", |pdu| {
        pdu[0] = 0x42;
        true
    });
    lost("Header Field", |pdu| {
        pdu[0] = 0;
        true
    });
}

#[test]
fn a_controller_that_ends_the_connection() {
    lost("ended the connection", |pdu| {
        *pdu = vec![3, 0, 24, 0, 24, 0, 0, 0, 2, 0];
        pdu.resize(24, 0);
        true
    });
}

#[test]
fn digests_that_are_wrong() {
    let data = host::Options { data_digest: true, ..options() };
    let (status, _) = tampered(&data, |pdu| {
        let at = pdu.len() - 100;
        pdu[at] ^= 1;
        true
    });
    // Only this command's data is of no use.
    assert_eq!(status, Status::TRANSIENT_TRANSPORT);
    let header = host::Options { header_digest: true, ..options() };
    let (status, reason) = tampered(&header, |pdu| {
        pdu[24] ^= 1;
        true
    });
    assert_eq!(status, Status::HOST_PATHING_ERROR);
    assert!(reason.contains("Header Digest"), "{reason}");
}

/// Takes what ICResp says of digests out of it.
fn declines() -> Edit {
    Arc::new(|pdu| {
        pdu[11] = 0;
        true
    })
}

#[test]
fn digests_that_are_declined() {
    let target = Target::memory();
    let refused = |header_digest, data_digest| {
        let tamper = Tamper::with(target.address, 0, 0, declines());
        let options = host::Options { header_digest, data_digest, ..options() };
        let refused = host::open(&[rig::address(tamper.address)], &options, "");
        refused.expect_err("no connection").to_string()
    };
    let words = refused(true, false);
    assert!(words.contains("the controller does not use header digests"), "{words}");
    let words = refused(true, true);
    assert!(words.contains("does not use header digests and data digests"), "{words}");
    // By an I/O queue.
    let tamper = Tamper::with(target.address, IO, 0, declines());
    let path = connect(tamper.address, &host::Options { data_digest: true, ..options() });
    let core = Core::new(path.clone());
    core.await_access(Access::is_usable);
    let words = why_lost(&path);
    assert!(words.ends_with("the controller does not use data digests"), "{words}");
    // By whoever only asks.
    let tamper = Tamper::with(target.address, 0, 0, declines());
    let peer = Peer { address: tamper.address, subsystem: rig::NQN.into() };
    let host = HostIdentity { nqn: rig::HOST_NQN.into(), id: [7; 16] };
    let asked = host::client::Options { data_digest: true, ..Default::default() };
    let words = Client::connect(&peer, &host, &asked).expect_err("no connection").to_string();
    assert!(words.ends_with("it does not use data digests"), "{words}");
}

#[test]
fn success_without_data_is_no_success() {
    let (status, _) = tampered(&options(), |pdu| {
        let cid = [pdu[8], pdu[9]];
        *pdu = vec![CAPSULE_RESP, 0, 24, 0, 24, 0, 0, 0];
        pdu.extend([0; 12]);
        pdu.extend(cid);
        pdu.extend([0; 2]);
        true
    });
    assert_eq!(status, Status::TRANSIENT_TRANSPORT);
}

/// Writes 128 KiB while the R2T is edited.
fn tampered_write(edit: impl Fn(&mut Vec<u8>) + Send + Sync + 'static) -> (Status, String) {
    const R2T: u8 = 9;
    let target = Target::memory();
    let edit = move |pdu: &mut Vec<u8>| {
        assert_eq!(pdu[0], R2T);
        edit(pdu);
        true
    };
    let tamper = Tamper::with(target.address, IO, FIRST, Arc::new(edit));
    let path = connect(tamper.address, &options());
    let core = Core::usable(path.clone());
    let done = core.command(rig::write(0, 131_072), pattern(1, 131_072));
    let is_lost = done.status == Status::HOST_PATHING_ERROR;
    (done.status, if is_lost { why_lost(&path) } else { String::new() })
}

#[test]
fn a_write_that_is_refused_after_its_data_was_asked_for() {
    let (status, _) = tampered_write(|pdu| {
        let cid = [pdu[8], pdu[9]];
        pdu.extend([CAPSULE_RESP, 0, 24, 0, 24, 0, 0, 0]);
        pdu.extend([0; 12]);
        pdu.extend(cid);
        pdu.extend((Status::WRITE_FAULT.0 << 1).to_le_bytes());
    });
    assert_eq!(status, Status::WRITE_FAULT);
}

#[test]
fn data_that_is_asked_for_twice_or_is_not_there() {
    let (status, reason) = tampered_write(|pdu| pdu.extend(pdu.clone()));
    assert_eq!(status, Status::HOST_PATHING_ERROR);
    assert!(reason.contains("Sequence"), "{reason}");
    // Half of it, then the other half before it has the first.
    let (status, reason) = tampered_write(|pdu| {
        pdu[16..20].copy_from_slice(&65_536u32.to_le_bytes());
        let mut second = pdu.clone();
        second[12..16].copy_from_slice(&65_536u32.to_le_bytes());
        pdu.append(&mut second);
    });
    assert_eq!(status, Status::HOST_PATHING_ERROR);
    assert!(reason.contains("Limit"), "{reason}");
    let (_, reason) = tampered_write(|pdu| {
        pdu[16..20].copy_from_slice(&(1u32 << 20).to_le_bytes());
    });
    assert!(reason.contains("Out of Range"), "{reason}");
}

/// The bytes of a response that tell how far the controller has fetched from the submission queue.
const SQHD: std::ops::Range<usize> = 16..18;

/// A queue of eight entries with flow control, whose responses tell `head` instead.
fn with_head(head: u16) -> (Target, Arc<Path>, Core) {
    let target = Target::memory();
    let edit = move |pdu: &mut Vec<u8>| {
        if pdu[0] == CAPSULE_RESP {
            pdu[SQHD].copy_from_slice(&head.to_le_bytes());
        }
        true
    };
    let tamper = Tamper::each(target.address, IO, FIRST, Arc::new(edit));
    let mut options = host::Options { flow_control: true, ..options() };
    options.association.queue_entries = 8;
    let path = connect(tamper.address, &options);
    let core = Core::usable(path.clone());
    (target, path, core)
}

#[test]
fn a_submission_queue_is_never_overfilled() {
    // Connect was fetched, and nothing since, though all is answered.
    let (_target, _path, core) = with_head(1);
    for _ in 0..7 {
        core.read(0, 512);
    }
    let eighth = core.issue(read(0, 512), vec![0; 512]);
    std::thread::sleep(Duration::from_millis(300));
    assert!(eighth.try_recv().is_err(), "it was sent to a queue that is full");
}

#[test]
fn successes_without_a_response_leave_room_also_with_flow_control() {
    let target = Target::memory();
    let edit = |pdu: &mut Vec<u8>| {
        match pdu[0] {
            C2H_DATA => pdu[1] |= nvme_tcp::pdu::flags::SUCCESS,
            _ => pdu.clear(),
        }
        true
    };
    let tamper = Tamper::each(target.address, IO, FIRST, Arc::new(edit));
    let mut options = host::Options { flow_control: true, ..options() };
    options.association.queue_entries = 8;
    let core = Core::usable(connect(tamper.address, &options));
    for _ in 0..20 {
        assert_eq!(core.read(0, 512), vec![0; 512]);
    }
}

#[test]
fn a_submission_queue_head_that_cannot_be() {
    for head in [5, 200] {
        let (_target, path, core) = with_head(head);
        let done = core.command(read(0, 512), vec![0; 512]);
        assert_eq!(done.status, Status::HOST_PATHING_ERROR);
        let reason = why_lost(&path);
        assert!(reason.contains("SQ head pointer"), "{reason}");
    }
}

#[test]
fn a_controller_that_insists_on_flow_control_has_it() {
    let target = Target::memory();
    // Connect is refused for its attributes, once.
    let edit = |pdu: &mut Vec<u8>| {
        assert_eq!(pdu[0], CAPSULE_RESP);
        pdu[8..12].copy_from_slice(&46u32.to_le_bytes());
        let status = Status::CONNECT_INVALID_PARAMETERS.dnr().0 << 1;
        pdu[22..24].copy_from_slice(&status.to_le_bytes());
        true
    };
    let tamper = Tamper::with(target.address, IO, 1, Arc::new(edit));
    let path = connect(tamper.address, &options());
    let core = Core::usable(path.clone());
    assert_eq!(core.read(0, 512), vec![0; 512]);
    // To the target it was a second Connect on a connected queue, which it refuses for that alone.
    let reason = path.reason().to_string();
    assert!(reason.contains("Command Sequence Error"), "{reason}");
}

#[test]
fn nothing_of_admin_answers_is_believed() {
    let target = Target::memory();
    // Each of the PDUs of the connect sequence in turn, cut, or filled with ones behind its header.
    for pdu in 0..14 {
        for cut in [true, false] {
            let edit = move |pdu: &mut Vec<u8>| {
                if cut {
                    pdu.truncate(pdu.len() - 1);
                } else {
                    pdu[8..].fill(0xff);
                }
                !cut
            };
            let tamper = Tamper::with(target.address, 0, pdu, Arc::new(edit));
            let mut quick = options();
            quick.association.admin_timeout = Duration::from_secs(2);
            // The first attempt fails, or what was edited concerns nobody; the second succeeds.
            match host::open(&[rig::address(tamper.address)], &quick, "") {
                Ok(paths) => drop(paths),
                Err(error) => {
                    let words = error.to_string();
                    assert!(words.contains(&tamper.address.to_string()), "{words}");
                }
            }
        }
    }
    let core = Core::usable(connect(target.address, &options()));
    core.write(0, &pattern(1, 4096));
}
