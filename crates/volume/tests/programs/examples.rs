//! Every example does what its first comment says, by random commands against a model.

use crate::core::{Core, Order, read, write};
use crate::program;
use namespace::dataset;
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::sync::Arc;
use std::time::Instant;
use volume::OpenOptions;

const BLOCK: usize = 4096;
/// Of each device here.
const BLOCKS: u64 = 192;

#[derive(Clone, Debug)]
enum Op {
    Read { slba: u64, blocks: u32, lend: bool },
    Write { slba: u64, blocks: u32, byte: u8, fua: bool },
    Zero { slba: u64, blocks: u32, deallocate: bool },
    Deallocate(Vec<(u64, u32)>),
    Compare { slba: u64, blocks: u32, differ: bool },
    Flush,
    Unknown,
}

fn op(all: u64) -> impl Strategy<Value = Op> {
    let span = move || {
        (0..all, 1_u32..100).prop_map(move |(slba, blocks)| (slba, blocks.min((all - slba) as u32)))
    };
    prop_oneof![
        4 => (span(), any::<bool>())
            .prop_map(|((slba, blocks), lend)| Op::Read { slba, blocks, lend }),
        4 => (span(), any::<u8>(), any::<bool>())
            .prop_map(|((slba, blocks), byte, fua)| Op::Write { slba, blocks, byte, fua }),
        1 => (span(), any::<bool>())
            .prop_map(|((slba, blocks), deallocate)| Op::Zero { slba, blocks, deallocate }),
        1 => prop::collection::vec(span(), 1..4).prop_map(Op::Deallocate),
        1 => (span(), any::<bool>())
            .prop_map(|((slba, blocks), differ)| Op::Compare { slba, blocks, differ }),
        1 => Just(Op::Flush),
        1 => Just(Op::Unknown),
    ]
}

struct Model {
    bytes: Vec<u8>,
    lends: bool,
    read_max: u32,
    salt: u8,
}

impl Model {
    fn range(slba: u64, blocks: u32) -> std::ops::Range<usize> {
        let start = slba as usize * BLOCK;
        start..start + blocks as usize * BLOCK
    }

    fn apply(&mut self, core: &Core, op: &Op) {
        let ok = |order: Order| assert_eq!(core.run(order).status, Status::SUCCESS, "{op:?}");
        match *op {
            Op::Read { slba, blocks, lend } => {
                let blocks = blocks.min(self.read_max);
                let answer =
                    core.run(Order { lend: lend && self.lends, ..read(slba, blocks, BLOCK) });
                assert_eq!(answer.status, Status::SUCCESS, "{op:?}");
                assert!(
                    answer.data == self.bytes[Self::range(slba, blocks)],
                    "{op:?} read something else"
                );
            }
            Op::Write { slba, blocks, byte, fua } => {
                let blocks = blocks.min(self.read_max);
                self.salt = self.salt.wrapping_add(1);
                let salt = self.salt.wrapping_mul(31).wrapping_add(byte);
                let data: Vec<u8> = (0..blocks as usize * BLOCK)
                    .map(|at| (at % 251) as u8 ^ salt ^ (at >> 12) as u8)
                    .collect();
                self.bytes[Self::range(slba, blocks)].copy_from_slice(&data);
                let mut order = write(slba, data, BLOCK);
                order.command.cdw12 = (order.command.cdw12.get() | u32::from(fua) << 30).into();
                ok(order);
            }
            Op::Zero { slba, blocks, deallocate } => {
                let mut command = Command::blocks(opcode::WRITE_ZEROES, 1, slba, blocks);
                command.cdw12 = (command.cdw12.get() | u32::from(deallocate) << 25).into();
                ok(Order { command, ..Order::default() });
                self.bytes[Self::range(slba, blocks)].fill(0);
            }
            Op::Deallocate(ref ranges) => {
                let wire = |&(slba, blocks): &(u64, u32)| {
                    dataset::Range { attributes: 0, blocks, slba }.to_bytes()
                };
                let data: Vec<u8> = ranges.iter().flat_map(wire).collect();
                ok(Order {
                    command: dataset::deallocate(1, ranges.len()),
                    data,
                    ..Order::default()
                });
                for &(slba, blocks) in ranges {
                    self.bytes[Self::range(slba, blocks)].fill(0);
                }
            }
            Op::Compare { slba, blocks, differ } => {
                let blocks = blocks.min(self.read_max);
                let mut data = self.bytes[Self::range(slba, blocks)].to_vec();
                data[0] ^= u8::from(differ);
                let command = Command::blocks(opcode::COMPARE, 1, slba, blocks);
                let status = core.run(Order { command, data, ..Order::default() }).status;
                let expected = if differ { Status::COMPARE_FAILURE } else { Status::SUCCESS };
                assert_eq!(status.code(), expected);
            }
            Op::Flush => assert_eq!(core.flush(), Status::SUCCESS),
            Op::Unknown => {
                let command = Command { opcode: 0x7e, ..Command::default() };
                let status = core.run(Order { command, ..Order::default() }).status;
                assert_eq!(status.code(), Status::INVALID_OPCODE);
            }
        }
    }
}

/// Runs random commands on a volume of [`BLOCKS`] zeroes, freshly opened for each case.
fn check(uri: &str, cases: u32, cores: usize) {
    check_sized(uri, BLOCKS, cases, cores);
}

/// The same on one of `blocks`.
fn check_sized(uri: &str, blocks: u64, cases: u32, cores: usize) {
    let options = OpenOptions { cores, ..OpenOptions::default() };
    let mut runner = TestRunner::new(Config {
        cases,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..Config::default()
    });
    let ran = runner.run(&prop::collection::vec(op(blocks), 1..60), |ops| {
        let namespace = volume::open(uri, &options).expect(uri);
        let limits = namespace.limits();
        assert_eq!((limits.blocks, limits.block_bytes()), (blocks, BLOCK as u32), "{uri}");
        assert_eq!(namespace.uri(), uri, "it is named as it was opened");
        let core = Core::start(namespace);
        let mut model = Model {
            bytes: vec![0; blocks as usize * BLOCK],
            lends: limits.lends_reads,
            read_max: limits.transfer_bytes_max / BLOCK as u32,
            salt: 0,
        };
        for op in &ops {
            model.apply(&core, op);
        }
        for slba in (0..blocks).step_by(32) {
            model.apply(&core, &Op::Read { slba, blocks: 32, lend: false });
        }
        Ok(())
    });
    ran.unwrap_or_else(|error| panic!("{uri}: {error}"));
}

#[test]
fn linear_is_one_after_another() {
    check(&program("linear", "mem:40K?bs=4096,mem:80K?bs=4096,mem:648K?bs=4096"), 8, 1);
    check(&program("linear", "mem:768K?bs=4096"), 4, 2);
}

#[test]
fn stripes_are_dealt_in_turn() {
    check(&program("stripe", "mem:256K?bs=4096,mem:256K?bs=4096,mem:256K?bs=4096"), 8, 1);
    check(&program("stripe", "mem:384K?bs=4096,mem:384K?bs=4096"), 4, 2);
}

#[test]
fn a_mirror_is_whole_while_reads_fail_on_one_side() {
    check(&program("mirror", "mem:768K?bs=4096,mem:768K?bs=4096"), 6, 1);
    let failing = "fault:rate=0.5,op=read(mem:768K?bs=4096)";
    check(&program("mirror", &format!("{failing},mem:768K?bs=4096")), 6, 2);
}

#[test]
fn passing_on_changes_nothing() {
    check(&program("statistics", "mem:768K?bs=4096"), 6, 2);
    check(&program("rate", "mem:768K?bs=4096"), 2, 1);
    check(&program("linear", &program("stripe", "mem:384K?bs=4096,mem:384K?bs=4096")), 4, 1);
}

#[test]
fn a_snapshot_takes_writes_beside_what_stays() {
    check(&program("snapshot", "mem:768K?bs=4096,mem:768K?bs=4096"), 8, 1);
    let directory = tempfile::tempdir().expect("a directory");
    let base = directory.path().join("base.img");
    let before: Vec<u8> = (0..BLOCKS as usize * BLOCK).map(|at| (at / BLOCK) as u8).collect();
    std::fs::write(&base, &before).expect("written");
    let uri = program("snapshot", &format!("file:{}?bs=4096&ro,mem:768K?bs=4096", base.display()));
    let core = Core::start(volume::open(&uri, &OpenOptions::default()).expect(&uri));
    assert_eq!(core.write(7, vec![0xaa; 2 * BLOCK], BLOCK), Status::SUCCESS);
    assert_eq!(core.write(11, vec![0xbb; BLOCK], BLOCK), Status::SUCCESS);
    let mut expected = before[5 * BLOCK..15 * BLOCK].to_vec();
    expected[2 * BLOCK..4 * BLOCK].fill(0xaa);
    expected[6 * BLOCK..7 * BLOCK].fill(0xbb);
    assert!(core.read(5, 10, BLOCK).data == expected);
    assert_eq!(core.flush(), Status::SUCCESS);
    drop(core);
    assert!(std::fs::read(&base).expect("read") == before, "the base is as it was");
}

#[test]
fn a_thin_volume_is_larger_than_what_is_behind_it() {
    // Room for all chunks of the device, since each first one stays empty.
    let five = ["mem:5M?bs=4096"; 5].join(",");
    check_sized(&program("thin", &five), 20 << 8, 4, 1);
    let uri = program("thin", "mem:2M,mem:3M");
    let core = Core::start(volume::open(&uri, &OpenOptions::default()).expect(&uri));
    let chunk = (1 << 20) / 512;
    // Three have a place, where most room is; the fourth has none, and the others are as they were.
    for (number, wanted) in
        [(7, Status::SUCCESS), (2, Status::SUCCESS), (5, Status::SUCCESS), (3, Status(0x81).dnr())]
    {
        let status = core.write(number * chunk + 2047, vec![number as u8; 512], 512);
        assert_eq!(status, wanted, "chunk {number}");
    }
    for (number, byte) in [(7, 7), (2, 2), (5, 5), (3, 0), (0, 0)] {
        let data = core.read(number * chunk + 2046, 2, 512).data;
        assert_eq!((data[0], data[512]), (0, byte), "chunk {number}");
    }
}

#[test]
fn queues_that_give_a_chunk_a_place_at_once_agree_on_it() {
    let options = OpenOptions { cores: 2, ..OpenOptions::default() };
    let uri = program("thin", "mem:40M?bs=4096,mem:40M?bs=4096");
    let volume = volume::open(&uri, &options).expect(&uri);
    let cores = [0, 1].map(|_| Core::start(Arc::clone(&volume)));
    let chunk = (1 << 20) / BLOCK as u64;
    let byte = |number: u64, core: usize| (number * 2 + core as u64 + 1) as u8;
    for number in 0..32 {
        // Each core writes half of the chunk.
        let half = |core: usize| number * chunk + core as u64 * chunk / 2;
        let answers = [0, 1].map(|core| {
            cores[core].submit(write(half(core), vec![byte(number, core); 4 * BLOCK], BLOCK))
        });
        for answer in answers {
            assert_eq!(answer.recv().expect("answered").status, Status::SUCCESS);
        }
    }
    for number in 0..32 {
        for core in [0, 1] {
            let at = number * chunk + core as u64 * chunk / 2;
            let data = cores[1 - core].read(at, 5, BLOCK).data;
            let (there, behind) = data.split_at(4 * BLOCK);
            assert!(there.iter().all(|it| *it == byte(number, core)), "chunk {number}");
            assert!(behind.iter().all(|it| *it == 0), "chunk {number}");
        }
    }
}

#[test]
fn null_forgets_and_reads_zeroes() {
    let uri = program("null", "null:768K?bs=4096");
    let core = Core::start(volume::open(&uri, &OpenOptions::default()).expect(&uri));
    assert_eq!(core.write(3, vec![1; 4 * BLOCK], BLOCK), Status::SUCCESS);
    let answer = core.read(0, 16, BLOCK);
    assert_eq!(answer.status, Status::SUCCESS);
    assert!(answer.data.iter().all(|byte| *byte == 0), "no memory of anybody's");
    let lent = core.run(Order { lend: true, ..read(0, 16, BLOCK) });
    assert!(lent.data.len() == 16 * BLOCK && lent.data.iter().all(|byte| *byte == 0));
    assert_eq!(core.flush(), Status::SUCCESS);
}

#[test]
fn a_rate_holds_back() {
    let uri = program("rate", "null:2G");
    let core = Core::start(volume::open(&uri, &OpenOptions::default()).expect(&uri));
    let second_gib = 1 << (30 - 9);
    // Each GiB by itself: what goes to the second does not stand behind what waits in the first. This thread may be late to
    // see that once, but not always.
    let overtook = (0..10).any(|_| {
        let start = Instant::now();
        let answers: Vec<_> =
            (0..160).map(|at| core.submit(write(at * 256, vec![0; 128 << 10], 512))).collect();
        assert_eq!(core.write(second_gib, vec![0; 4096], 512), Status::SUCCESS);
        let (last, others) = answers.split_last().expect("some");
        let early = last.try_recv().ok();
        let waits = early.is_none();
        for answer in others {
            assert_eq!(answer.recv().expect("answered").status, Status::SUCCESS);
        }
        let last = early.unwrap_or_else(|| last.recv().expect("answered"));
        assert_eq!(last.status, Status::SUCCESS);
        // 20 MiB at 64 MiB/s, less what may be used up ahead.
        assert!(start.elapsed().as_millis() >= 290, "{:?}", start.elapsed());
        waits
    });
    assert!(overtook, "the second GiB waits for the first");
}

/// A block device's users keep apart what overlaps, but they cannot know of a mirror's two places.
#[test]
fn only_a_program_with_several_places_is_guarded_under_a_block_device() {
    let whole = |uri: &str| {
        let options = OpenOptions { block_device: true, ..OpenOptions::default() };
        let volume = volume::open(uri, &options).unwrap();
        let mut facts = Vec::new();
        volume.describe(&mut facts);
        facts.into_iter().find(|(name, _)| name == "whole blocks").unwrap().1
    };
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| format!("file:{}?size=1M&create", folder.path().join(name).display());
    let plain = "as far as the file or device below does";
    assert_eq!(whole(&file("plain")), plain);
    assert_eq!(whole(&program("linear", &format!("{},{}", file("a"), file("b")))), plain);
    let mirror = program("mirror", &format!("{},{}", file("c"), file("d")));
    let guarded = "overlapping commands follow one another";
    assert_eq!(whole(&mirror), guarded);
    assert_eq!(whole(&format!("delay:read=0({mirror})")), guarded);
}
