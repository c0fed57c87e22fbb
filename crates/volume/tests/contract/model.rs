//! Random commands against a model in memory, on every backend and a number of stacks.

use crate::core::{Core, Order, compare_and_write, read, write};
use namespace::dataset;
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use volume::OpenOptions;

/// Blocks of every volume here: small, so that commands meet.
const BLOCKS: u64 = 96;

#[derive(Clone, Debug)]
enum Op {
    Read { slba: u64, blocks: u32, lend: bool },
    Write { slba: u64, blocks: u32, byte: u8, fua: bool },
    Zero { slba: u64, blocks: u32, deallocate: bool },
    Deallocate { ranges: Vec<(u64, u32)> },
    Compare { slba: u64, blocks: u32, differ: bool },
    Swap { slba: u64, blocks: u32, byte: u8, differ: bool },
    Verify { slba: u64, blocks: u32 },
    Flush,
    Unknown,
}

fn span() -> impl Strategy<Value = (u64, u32)> {
    // Now and then beyond the end.
    (0..BLOCKS + 2, 1u32..40)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (span(), any::<bool>())
            .prop_map(|((slba, blocks), lend)| Op::Read { slba, blocks, lend }),
        4 => (span(), any::<u8>(), any::<bool>())
            .prop_map(|((slba, blocks), byte, fua)| Op::Write { slba, blocks, byte, fua }),
        1 => (span(), any::<bool>())
            .prop_map(|((slba, blocks), deallocate)| Op::Zero { slba, blocks, deallocate }),
        1 => prop::collection::vec((0..BLOCKS, 0u32..20), 1..4)
            .prop_map(|ranges| Op::Deallocate { ranges }),
        1 => (span(), any::<bool>())
            .prop_map(|((slba, blocks), differ)| Op::Compare { slba, blocks, differ }),
        1 => (span(), any::<u8>(), any::<bool>())
            .prop_map(|((slba, blocks), byte, differ)| Op::Swap { slba, blocks, byte, differ }),
        1 => span().prop_map(|(slba, blocks)| Op::Verify { slba, blocks }),
        1 => Just(Op::Flush),
        1 => Just(Op::Unknown),
    ]
}

struct Model {
    bytes: Vec<u8>,
    block: usize,
    lends: bool,
    deallocates: bool,
    salt: u8,
}

impl Model {
    /// Content that differs from byte to byte and from write to write.
    fn fresh(&mut self, blocks: u32, byte: u8) -> Vec<u8> {
        self.salt = self.salt.wrapping_add(1);
        let salt = self.salt.wrapping_mul(31).wrapping_add(byte);
        (0..blocks as usize * self.block).map(|index| (index % 251) as u8 ^ salt).collect()
    }

    fn range(&self, slba: u64, blocks: u32) -> Option<std::ops::Range<usize>> {
        let start = slba as usize * self.block;
        let end = start + blocks as usize * self.block;
        (end <= self.bytes.len()).then_some(start..end)
    }

    /// Content to compare with: the right one, or one wrong byte.
    fn expected(&self, range: std::ops::Range<usize>, differ: bool) -> Vec<u8> {
        let mut bytes = self.bytes[range].to_vec();
        if differ {
            *bytes.last_mut().expect("not empty") ^= 1;
        }
        bytes
    }

    fn apply(&mut self, core: &Core, op: &Op) {
        let out = Status::LBA_OUT_OF_RANGE;
        match *op {
            Op::Read { slba, blocks, lend } => {
                let answer =
                    core.run(Order { lend: lend && self.lends, ..read(slba, blocks, self.block) });
                let Some(range) = self.range(slba, blocks) else {
                    return assert_eq!(answer.status.code(), out);
                };
                assert_eq!(answer.status, Status::SUCCESS);
                assert!(answer.data == self.bytes[range], "{op:?} read something else");
            }
            Op::Write { slba, blocks, byte, fua } => {
                let data = self.fresh(blocks, byte);
                let mut order = write(slba, data.clone(), self.block);
                if fua {
                    order.command.cdw12 = (order.command.cdw12.get() | 1 << 30).into();
                }
                let status = core.run(order).status;
                let Some(range) = self.range(slba, blocks) else {
                    return assert_eq!(status.code(), out);
                };
                assert_eq!(status, Status::SUCCESS);
                self.bytes[range].copy_from_slice(&data);
            }
            Op::Zero { slba, blocks, deallocate } => {
                let mut command = Command::blocks(opcode::WRITE_ZEROES, 1, slba, blocks);
                command.cdw12 =
                    (command.cdw12.get() | u32::from(deallocate && self.deallocates) << 25).into();
                let status = core.run(Order { command, ..Order::default() }).status;
                let Some(range) = self.range(slba, blocks) else {
                    return assert_eq!(status.code(), out);
                };
                assert_eq!(status, Status::SUCCESS);
                self.bytes[range].fill(0);
            }
            Op::Deallocate { ref ranges } => self.deallocate(core, ranges),
            Op::Compare { slba, blocks, differ } => {
                let Some(range) = self.range(slba, blocks) else { return };
                let command = Command::blocks(opcode::COMPARE, 1, slba, blocks);
                let data = self.expected(range, differ);
                let status = core.run(Order { command, data, ..Order::default() }).status;
                let expected = if differ { Status::COMPARE_FAILURE } else { Status::SUCCESS };
                assert_eq!(status.code(), expected);
            }
            Op::Swap { slba, blocks, byte, differ } => {
                let Some(range) = self.range(slba, blocks) else { return };
                let (old, new) = (self.expected(range.clone(), differ), self.fresh(blocks, byte));
                let answer = core.run(compare_and_write(slba, old, new.clone(), self.block));
                if differ {
                    assert_eq!(answer.status.code(), Status::COMPARE_FAILURE);
                    assert_eq!(answer.second, Some(Status::ABORTED_FAILED_FUSED));
                } else {
                    assert_eq!(answer.status, Status::SUCCESS);
                    assert_eq!(answer.second, Some(Status::SUCCESS));
                    self.bytes[range].copy_from_slice(&new);
                }
            }
            Op::Verify { slba, blocks } => {
                let command = Command::blocks(opcode::VERIFY, 1, slba, blocks);
                let status = core.run(Order { command, ..Order::default() }).status;
                let inside = self.range(slba, blocks).is_some();
                assert_eq!(status.code(), if inside { Status::SUCCESS } else { out });
            }
            Op::Flush => assert_eq!(core.flush(), Status::SUCCESS),
            Op::Unknown => {
                let command = Command { opcode: 0x7e, ..Command::default() };
                let status = core.run(Order { command, ..Order::default() }).status;
                assert_eq!(status.code(), Status::INVALID_OPCODE);
            }
        }
    }

    fn deallocate(&mut self, core: &Core, ranges: &[(u64, u32)]) {
        let wire = |&(slba, blocks): &(u64, u32)| {
            dataset::Range { attributes: 0, blocks, slba }.to_bytes()
        };
        let data: Vec<u8> = ranges.iter().flat_map(wire).collect();
        let command = dataset::deallocate(1, ranges.len());
        let status = core.run(Order { command, data, ..Order::default() }).status;
        let inside = ranges.iter().all(|&(slba, blocks)| self.range(slba, blocks).is_some());
        if !inside {
            // Ranges before the bad one may or may not have been carried out.
            assert_eq!(status.code(), Status::LBA_OUT_OF_RANGE);
            let all = core.read(0, BLOCKS as u32, self.block);
            return self.bytes = all.data;
        }
        assert_eq!(status, Status::SUCCESS);
        for &(slba, blocks) in ranges.iter().filter(|_| self.deallocates) {
            let range = self.range(slba, blocks).expect("checked");
            self.bytes[range].fill(0);
        }
    }
}

/// Runs random commands on `uri`, freshly opened for each case.
fn check(uri: &str, options: OpenOptions, cases: u32, prepare: impl Fn()) {
    let mut runner = TestRunner::new(Config {
        cases,
        max_shrink_iters: 400,
        failure_persistence: None,
        ..Config::default()
    });
    runner
        .run(&prop::collection::vec(op(), 1..80), |ops| {
            prepare();
            let namespace = volume::open(uri, &options).expect(uri);
            let limits = namespace.limits();
            assert_eq!(limits.blocks, BLOCKS, "{uri}");
            let core = Core::start(namespace);
            let block = limits.block_bytes() as usize;
            let (lends, deallocates) = (limits.lends_reads, limits.commands.deallocate);
            let bytes = vec![0; BLOCKS as usize * block];
            let mut model = Model { bytes, block, lends, deallocates, salt: 0 };
            for op in &ops {
                model.apply(&core, op);
            }
            model.apply(&core, &Op::Read { slba: 0, blocks: BLOCKS as u32, lend: false });
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{uri}: {error}"));
}

fn one() -> OpenOptions {
    OpenOptions::default()
}

fn two() -> OpenOptions {
    OpenOptions { cores: 2, ..one() }
}

#[test]
fn memory_lent_and_copied() {
    check("mem:48K", one(), 12, || ());
    check("mem:48K", two(), 12, || ());
    check("mem:384K?bs=4096", OpenOptions { lend: false, ..one() }, 6, || ());
}

#[test]
fn files_direct_buffered_and_on_tmpfs() {
    let disk = tempfile::tempdir().expect("a directory");
    let memory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    for (directory, query) in [
        (&disk, "size=48K"),
        (&disk, "size=48K&buffered"),
        (&disk, "size=384K&bs=4096"),
        (&memory, "size=48K"),
    ] {
        let path = directory.path().join("volume.img");
        let remove = || drop(std::fs::remove_file(&path));
        check(&format!("file:{}?create&{query}", path.display()), one(), 6, remove);
        check(&format!("file:{}?create&{query}", path.display()), two(), 3, remove);
    }
}

#[test]
fn layers_over_memory() {
    for uri in [
        "linear:(mem:10K,mem:6K,mem:32K)",
        "delay:0(mem:48K)",
        "delay:read=20us,write=10us(mem:48K)",
        "rate:1G(mem:48K)",
        "fault:rate=0(mem:48K)",
        "volatile:(mem:48K)",
        "multipath:(mem:48K)",
        "multipath:policy=round-robin(fault:rate=20%,op=read,op=dsm,status=path-error(mem:48K))",
        "delay:0(linear:(fault:rate=0(mem:24K),rate:iops=10M(mem:24K)))",
        "volatile:(linear:(mem:24K,volatile:(mem:24K)))?uuid=00112233445566778899aabbccddeeff",
    ] {
        check(uri, one(), 5, || ());
        check(uri, two(), 5, || ());
    }
}

#[test]
fn layers_over_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("volume.img");
    let remove = || drop(std::fs::remove_file(&path));
    let file = |size: &str| format!("file:{}?create&size={size}", path.display());
    check(&format!("volatile:({})", file("48K")), one(), 4, remove);
    check(&format!("linear:(mem:20K,{})", file("28K")), two(), 4, remove);
    check(&format!("delay:50us(volatile:({}))", file("48K")), one(), 3, remove);
}
