//! A broken or hostile controller as one of two paths: reads and writes go on by the other one, with right data.

use crate::rig;

use host::Options;
use namespace::Access;
use namespace::layer::multipath::{Policy, Settings};
use rig::registers::{Checker, await_path, open_each, shared_volume};
use rig::rogue::{Rogue, Spoil, Then};
use rig::{PATIENCE, Target, options, pattern};
use std::time::{Duration, Instant};

const CAPSULE_RESP: u8 = 0x05;
const C2H_DATA: u8 = 0x07;
const R2T: u8 = 0x09;

/// One PDU of so many is spoiled.
const EVERY: u64 = 7;
/// So many are, before it is enough.
const SPOILED: u64 = 5;
/// Rounds of writes and reads at least, and how long one may take.
const ROUNDS: u32 = 10;
const ROUND_MAX: Duration = Duration::from_secs(10);

/// What a spoiled PDU does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Harm {
    /// The connection is given up.
    Path,
    /// One command is sent again.
    Command,
}

/// By turns: a policy that looks for the better path would find it.
fn beside_a_good_path(options: &Options, harm: Harm, spoil: Spoil) {
    beside(options, harm, (EVERY, spoil), Policy::RoundRobin);
}

/// Small blocks go in capsules and by the receive buffer, large ones are asked for and received in place.
/// The good path has as much time as any.
fn beside(bad: &Options, harm: Harm, (every, spoil): (u64, Spoil), policy: Policy) {
    let good = Options { io_timeout: options().io_timeout, ..bad.clone() };
    for block in [4096, 16384] {
        let volume = shared_volume();
        let targets = [(); 2].map(|()| Target::serve(volume.clone(), 1, 0));
        let rogue = Rogue::before(targets[0].address, every, spoil);
        let paths = [(rogue.address, bad), (targets[1].address, &good)];
        let settings = Settings { policy, ..Settings::default() };
        let namespace = open_each(&paths, settings);
        await_path(&namespace, 0, Access::is_usable);
        await_path(&namespace, 1, Access::is_usable);
        let mut checker = Checker::sized(namespace.clone(), block);
        let until = Instant::now() + PATIENCE;
        let mut rounds = 0;
        while rounds < ROUNDS || rogue.spoiled() < SPOILED {
            checker.round();
            rounds += 1;
            assert!(Instant::now() < until, "{} spoiled: {:?}", rogue.spoiled(), namespace.paths());
        }
        let [bad, good] = &namespace.paths()[..] else { panic!("two paths") };
        let lost = bad.reconnects > 0 || !bad.access.is_usable();
        assert_eq!(lost, harm == Harm::Path, "{bad:?}");
        // A policy that measures may know by its probes alone, which are nobody's commands.
        assert!(bad.errors > 0 || policy == Policy::CompletionTime, "{bad:?}");
        assert!(good.access.is_usable() && (good.errors, good.reconnects) == (0, 0), "{good:?}");
        assert!(checker.longest < ROUND_MAX, "{:?}", checker.longest);
    }
}

#[test]
fn garbage() {
    beside_a_good_path(&options(), Harm::Path, |pdu, number| {
        *pdu = pattern(number, pdu.len());
        Then::GoOn
    });
}

#[test]
fn wrong_header_digests() {
    let options = Options { header_digest: true, ..options() };
    beside_a_good_path(&options, Harm::Path, |pdu, _| {
        pdu[24] ^= 1;
        Then::GoOn
    });
}

#[test]
fn wrong_data_digests() {
    let options = Options { data_digest: true, ..options() };
    beside_a_good_path(&options, Harm::Command, |pdu, _| {
        if pdu[0] == C2H_DATA {
            *pdu.last_mut().expect("a digest") ^= 0x80;
        }
        Then::GoOn
    });
}

/// Commands that prefer this path, each time.
#[test]
fn nothing_but_wrong_data_digests() {
    let options = Options { data_digest: true, ..options() };
    let spoil: Spoil = |pdu, _| {
        if pdu[0] == C2H_DATA {
            *pdu.last_mut().expect("a digest") ^= 0x80;
        }
        Then::GoOn
    };
    for policy in [Policy::Numa, Policy::CompletionTime] {
        beside(&options, Harm::Command, (1, spoil), policy);
    }
}

#[test]
fn pdus_that_are_longer_than_they_may_be() {
    beside_a_good_path(&options(), Harm::Path, |pdu, _| {
        let more = pdu.len() as u32 + 512;
        pdu[4..8].copy_from_slice(&more.to_le_bytes());
        pdu.resize(more as usize, 0x77);
        Then::GoOn
    });
}

#[test]
fn pdus_that_are_cut() {
    beside_a_good_path(&options(), Harm::Path, |pdu, number| {
        pdu.truncate(pdu.len() * (number as usize % 5) / 5);
        Then::Close
    });
}

#[test]
fn pdus_that_lack_their_end() {
    // What comes next is taken for it: without digests nobody could tell. Where nothing comes, time is over.
    let mut options = Options { header_digest: true, data_digest: true, ..options() };
    options.io_timeout = Duration::from_millis(500);
    beside_a_good_path(&options, Harm::Path, |pdu, _| {
        pdu.truncate(pdu.len() - 4);
        Then::GoOn
    });
}

#[test]
fn success_with_half_of_the_data() {
    beside_a_good_path(&options(), Harm::Path, |pdu, _| {
        if pdu[0] == C2H_DATA {
            let half = (pdu.len() - 24) / 2;
            pdu.truncate(24 + half);
            pdu[4..8].copy_from_slice(&(24 + half as u32).to_le_bytes());
            pdu[16..20].copy_from_slice(&(half as u32).to_le_bytes());
        }
        Then::GoOn
    });
}

#[test]
fn success_without_data() {
    beside_a_good_path(&options(), Harm::Command, |pdu, _| {
        if pdu[0] == C2H_DATA {
            let cid = [pdu[8], pdu[9]];
            *pdu = vec![CAPSULE_RESP, 0, 24, 0, 24, 0, 0, 0];
            pdu.extend([0; 12]);
            pdu.extend(cid);
            pdu.extend([0; 2]);
        }
        Then::GoOn
    });
}

#[test]
fn answers_to_other_commands() {
    beside_a_good_path(&options(), Harm::Path, |pdu, number| {
        let at = if pdu[0] == CAPSULE_RESP { 20 } else { 8 };
        let cid = [200u16, 0xffff][number as usize % 2];
        pdu[at..at + 2].copy_from_slice(&cid.to_le_bytes());
        Then::GoOn
    });
}

#[test]
fn everything_twice() {
    beside_a_good_path(&options(), Harm::Path, |pdu, _| {
        pdu.extend(pdu.clone());
        Then::GoOn
    });
}

#[test]
fn asking_for_what_is_not_there() {
    beside_a_good_path(&options(), Harm::Path, |pdu, _| {
        let cid = if pdu[0] == CAPSULE_RESP { [pdu[20], pdu[21]] } else { [pdu[8], pdu[9]] };
        let mut asked = vec![R2T, 0, 24, 0, 24, 0, 0, 0];
        asked.extend(cid);
        asked.extend([0; 2]);
        asked.extend((1u32 << 20).to_le_bytes());
        asked.extend(4096u32.to_le_bytes());
        asked.extend([0; 4]);
        pdu.splice(..0, asked);
        Then::GoOn
    });
}

#[test]
fn silence() {
    let mut options = options();
    options.io_timeout = Duration::from_millis(200);
    beside_a_good_path(&options, Harm::Path, |pdu, _| {
        pdu.clear();
        Then::Stall
    });
}

#[test]
fn an_end_out_of_nothing() {
    beside_a_good_path(&options(), Harm::Path, |pdu, _| {
        pdu.clear();
        Then::Close
    });
}
