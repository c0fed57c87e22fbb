//! What is written is what is read: every command that touches data, over the wire.

use crate::host;

use host::rig::{Rig, directory, file, memory};
use host::{Bytes, Queue};
use namespace::Namespace;
use nvme::dataset::Range;
use nvme::fabrics::Connect;
use nvme::{Command, Status, opcode};
use nvme_tcp::pdu::dgst;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

const MIB: usize = 1 << 20;

/// Bytes that tell where they belong.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64 / 8)
        .flat_map(|at| (at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect()
}

/// A volume of 16 MiB of each kind in blocks of `1 << shift` bytes.
fn volumes(shift: u8) -> Vec<(&'static str, Option<tempfile::TempDir>, Arc<dyn Namespace>)> {
    let directory = directory();
    let on_disk = file(&directory, 16 << 20, shift, 1, Duration::ZERO);
    vec![("memory", None, memory(16 << 20, shift, 1)), ("file", Some(directory), on_disk)]
}

/// Writes `blocks` blocks from `slba`, on request or in the capsule, and reads them back.
#[track_caller]
fn round_trip(io: &mut Queue, shift: u8, slba: u64, blocks: u32, bytes_of: fn(&[u8]) -> Bytes<'_>) {
    let len = (blocks as usize) << shift;
    let data = pattern(len, slba << 32 | u64::from(blocks));
    let write = Command::blocks(opcode::io::WRITE, 1, slba, blocks);
    io.command(write, bytes_of(&data)).ok();
    assert!(io.read(1, slba, blocks, len) == data, "{blocks} blocks at {slba}");
}

#[test]
fn reads_give_what_writes_took_whatever_the_digests() {
    for shift in [9, 12] {
        for (name, _directory, volume) in volumes(shift) {
            let rig = Rig::empty(1);
            let blocks = volume.limits().blocks;
            rig.add(1, volume);
            let digests = if name == "memory" { 0..4 } else { 3..4 };
            for dgst in digests {
                let mut host = rig.host();
                host.dgst = dgst;
                let admin = host.enabled();
                let mut io = host.io(&admin, 1);
                let trip = |io: &mut Queue, slba, count, bytes_of: fn(&[u8]) -> Bytes<'_>| {
                    round_trip(io, shift, slba, count, bytes_of);
                };
                trip(&mut io, 0, 1, |data| Bytes::InCapsule(data));
                trip(&mut io, 7, 1, |data| Bytes::OnRequest(data));
                trip(&mut io, 3, 16384 >> shift, |data| Bytes::InCapsule(data));
                trip(&mut io, 5, 20480 >> shift, |data| Bytes::OnRequest(data));
                trip(&mut io, blocks - 1, 1, |data| Bytes::InCapsule(data));
                // The largest, at any alignment, in H2CData PDUs of any length.
                for (slba, h2c_max) in [(0, 1 << 20), (1, 4096), (13, 10_004), (255, 1 << 17)] {
                    io.h2c_max = h2c_max;
                    trip(&mut io, slba, (MIB >> shift) as u32, |data| Bytes::OnRequest(data));
                }
                let end = blocks - (MIB >> shift) as u64;
                trip(&mut io, end, (MIB >> shift) as u32, |data| Bytes::OnRequest(data));
            }
            assert_eq!(
                rig.server.stats().expect("running").namespaces[0].counted.errors,
                0,
                "{name}"
            );
        }
    }
}

#[test]
fn many_large_transfers_at_once_are_kept_apart() {
    for (name, _directory, volume) in volumes(12) {
        for dgst in [0, dgst::HEADER | dgst::DATA] {
            let rig = Rig::empty(1);
            rig.add(1, volume.clone());
            let mut host = rig.host();
            host.dgst = dgst;
            let admin = host.enabled();
            let mut io = host.io(&admin, 1);
            let data: Vec<_> = (0..16).map(|index| pattern(MIB, index)).collect();
            let writes: Vec<_> = (0..16)
                .map(|index| {
                    let write = Command::blocks(opcode::io::WRITE, 1, index * 256, 256);
                    io.issue(write, Bytes::OnRequest(&data[index as usize]))
                })
                .collect();
            for cid in writes {
                io.complete(cid).ok();
            }
            let reads: Vec<_> = (0..16)
                .map(|index| {
                    let read = Command::blocks(opcode::io::READ, 1, index * 256, 256);
                    io.issue(read, Bytes::Wanted(MIB))
                })
                .collect();
            for (index, cid) in reads.into_iter().enumerate() {
                assert!(io.complete(cid).ok().data == data[index], "{name}, {index}");
            }
        }
    }
}

/// In the capsule if it fits, else on request.
fn in_place(data: &[u8]) -> Bytes<'_> {
    if data.len() <= 16384 { Bytes::InCapsule(data) } else { Bytes::OnRequest(data) }
}

/// Dataset Management that deallocates `ranges` of namespace 1.
fn deallocate(ranges: &[Range]) -> Command {
    Command {
        opcode: opcode::io::DATASET_MANAGEMENT,
        nsid: 1.into(),
        cdw10: (ranges.len() as u32 - 1).into(),
        cdw11: 4.into(),
        ..Command::default()
    }
}

#[test]
fn zeroes_are_written_and_deallocated_ranges_read_as_zeroes() {
    for shift in [9, 12] {
        for (name, _directory, volume) in volumes(shift) {
            let rig = Rig::empty(1);
            rig.add(1, volume);
            let (_admin, mut io) = rig.connect();
            let blocks = (MIB >> shift) as u32;
            let block = 1usize << shift;
            let mut expected = pattern(MIB, 1);
            io.write(1, 0, blocks, &expected);
            let mut zero = |ranges: &[(usize, usize)], io: &mut Queue, what: &str| {
                for (from, count) in ranges {
                    expected[from * block..(from + count) * block].fill(0);
                }
                let read = io.read(1, 0, blocks, MIB);
                assert!(read == expected, "{name}, blocks of {block}: {what}");
            };
            let mut command = Command::blocks(opcode::io::WRITE_ZEROES, 1, 3, 5);
            io.command(command, Bytes::None).ok();
            zero(&[(3, 5)], &mut io, "Write Zeroes");
            command = Command::blocks(opcode::io::WRITE_ZEROES, 1, 17, 100);
            command.cdw12 = (99 | 1 << 25).into();
            io.command(command, Bytes::None).ok();
            zero(&[(17, 100)], &mut io, "Write Zeroes with Deallocate");
            let range = |slba: u64, blocks: u32| Range {
                attributes: 0.into(),
                blocks: blocks.into(),
                slba: slba.into(),
            };
            let ranges = [range(130, 1), range(0, 0), range(140, 70)];
            io.command(deallocate(&ranges), Bytes::InCapsule(ranges.as_bytes())).ok();
            zero(&[(130, 1), (140, 70)], &mut io, "three ranges, one empty");
            // As Linux sends it: room for all 256 ranges.
            let mut page = vec![0xff; 4096];
            page[..16].copy_from_slice(range(211, 9).as_bytes());
            io.command(deallocate(&[range(211, 9)]), Bytes::OnRequest(&page)).ok();
            zero(&[(211, 9)], &mut io, "a range on request");
            let ranges: Vec<_> = (0..256).map(|index| range(index * 2 % 256, 1)).collect();
            io.command(deallocate(&ranges), Bytes::OnRequest(ranges.as_bytes())).ok();
            for index in 0..256 {
                let from = index * 2 % 256;
                expected[from * block..(from + 1) * block].fill(0);
            }
            assert!(io.read(1, 0, blocks, MIB) == expected, "{name}: 256 ranges");
            // Without Deallocate they are hints, and change nothing.
            let mut hint = deallocate(&ranges);
            hint.cdw11 = 1.into();
            io.write(1, 0, blocks, &pattern(MIB, 2));
            io.command(hint, Bytes::OnRequest(ranges.as_bytes())).ok();
            assert!(io.read(1, 0, blocks, MIB) == pattern(MIB, 2), "{name}: hints");
        }
    }
}

#[test]
fn compare_tells_the_smallest_difference_and_verify_reads_all() {
    for shift in [9, 12] {
        for (name, _directory, volume) in volumes(shift) {
            let rig = Rig::empty(1);
            rig.add(1, volume);
            let (_admin, mut io) = rig.connect();
            for (slba, len) in [(0u64, 16384), (3, MIB)] {
                let blocks = (len >> shift) as u32;
                let data = pattern(len, slba);
                io.write(1, slba, blocks, &data);
                let compare = Command::blocks(opcode::io::COMPARE, 1, slba, blocks);
                io.command(compare, in_place(&data)).ok();
                for at in [0, 511, len / 2, len - 1] {
                    let mut other = data.clone();
                    other[at] ^= 1;
                    let status = io.command(compare, in_place(&other)).status;
                    assert_eq!(status.code(), Status::COMPARE_FAILURE, "{name}: byte {at}");
                }
                assert!(io.read(1, slba, blocks, len) == data, "{name}: compared only");
                let verify = Command::blocks(opcode::io::VERIFY, 1, slba, blocks);
                io.command(verify, Bytes::None).ok();
            }
            io.command(Command { nsid: 1.into(), ..Command::default() }, Bytes::None).ok();
            let mut durable = Command::blocks(opcode::io::WRITE, 1, 9, 1);
            durable.cdw12 = (1 << 30).into();
            io.command(durable, Bytes::InCapsule(&vec![8; 1 << shift])).ok();
            assert_eq!(io.read(1, 9, 1, 1 << shift), vec![8; 1 << shift]);
        }
    }
}

#[test]
fn the_submission_queue_head_follows_the_host() {
    let rig = Rig::memory(2);
    for entries in [2, 5, 32, 1024] {
        let mut host = rig.host();
        host.entries = entries;
        // Connect is the first command of every queue.
        let mut fetched = 3;
        let mut admin = host.enabled();
        let identify =
            Command { opcode: opcode::admin::IDENTIFY, cdw10: 1.into(), ..Command::default() };
        for _ in 0..2 * entries.min(64) {
            let done = admin.command(identify, Bytes::Wanted(4096)).ok();
            fetched += 1;
            assert_eq!(done.sqhd, fetched % entries, "admin queue of {entries}");
        }
        for qid in [1, 2] {
            let mut io = host.io(&admin, qid);
            let mut fetched = 1;
            for _ in 0..2 * entries.min(64) {
                let read = Command::blocks(opcode::io::READ, 1, 0, 1);
                let done = io.command(read, Bytes::Wanted(4096)).ok();
                fetched += 1;
                assert!(!done.by_flag);
                assert_eq!(done.sqhd, fetched % entries, "I/O queue of {entries}");
            }
        }
    }
}

#[test]
fn without_flow_control_success_comes_with_the_data() {
    for dgst in 0..=3 {
        let rig = Rig::memory(2);
        let mut host = rig.host();
        host.dgst = dgst;
        host.attributes = Connect::NO_FLOW_CONTROL;
        let admin = host.enabled();
        for qid in [1, 2] {
            let (mut io, done) = host.connect(qid, admin.cntlid);
            assert_eq!(done.ok().sqhd, 0xffff, "the controller agrees");
            let data = pattern(MIB, 3);
            io.write(1, 0, 256, &data);
            for _ in 0..3 {
                let read = Command::blocks(opcode::io::READ, 1, 0, 256);
                let done = io.command(read, Bytes::Wanted(MIB)).ok();
                assert!(done.by_flag, "no response capsule follows");
                assert!(done.data == data);
            }
            // Without data there is a response, and so there is for a failure.
            let verify = Command::blocks(opcode::io::VERIFY, 1, 0, 1);
            assert!(!io.command(verify, Bytes::None).ok().by_flag);
            let beyond = Command::blocks(opcode::io::READ, 1, 1 << 40, 1);
            let done = io.command(beyond, Bytes::Wanted(4096));
            done.refused(Status::LBA_OUT_OF_RANGE.dnr());
            assert!(!done.by_flag);
        }
    }
}

#[test]
fn data_for_the_host_is_aligned_as_it_asks() {
    use nvme_tcp::pdu::{Kind, flags};
    let rig = Rig::memory(1);
    let admin = rig.host().enabled();
    for (hpda_z, dgst) in [(3, 0), (31, 0), (15, 3), (31, 3)] {
        let mut socket = host::Socket::open(rig.address);
        socket.send(&host::ic_req(|request| {
            request.hpda_z = hpda_z;
            request.dgst = dgst;
        }));
        assert_eq!(socket.pdu().expect("an ICResp").common.kind, Kind::IC_RESP);
        socket.format.header_digest = dgst & 1 != 0;
        socket.format.data_digest = dgst & 2 != 0;
        let mut io = Queue::fresh(socket);
        let data = rig.host().connect_data(admin.cntlid);
        let connect = rig.host().connect_parameters(u16::from(hpda_z) + u16::from(dgst));
        io.command(connect.command(), Bytes::InCapsule(data.as_bytes())).ok();
        io.write(1, 0, 2, &pattern(8192, 4));
        let read = Command::blocks(opcode::io::READ, 1, 0, 2);
        let cid = io.issue(read, Bytes::Wanted(8192));
        let pdu = io.socket.pdu().expect("data");
        assert_eq!(pdu.common.kind, Kind::C2H_DATA);
        assert_eq!(usize::from(pdu.common.pdo) % (4 * (usize::from(hpda_z) + 1)), 0);
        assert_eq!(pdu.common.flags & flags::DDGST != 0, dgst & 2 != 0);
        assert!(pdu.data == pattern(8192, 4));
        io.complete(cid).ok();
    }
}

#[test]
fn blocks_marked_uncorrectable_fail_until_they_are_written() {
    let rig = Rig::empty(1);
    let options = volume::OpenOptions { cores: 1, ..volume::OpenOptions::default() };
    let volume = volume::open("fault:rate=0(mem:16M?bs=4096)", &options).expect("a volume");
    rig.add(1, volume);
    let (_admin, mut io) = rig.connect();
    let old = pattern(8 * 4096, 1);
    io.write(1, 0, 8, &old);
    let mark = Command::blocks(opcode::io::WRITE_UNCORRECTABLE, 1, 2, 3);
    assert!(io.command(mark, Bytes::None).ok().data.is_empty());

    // Any read that touches a marked block fails, at its edges too; its neighbours are as they were.
    for (slba, blocks) in [(2, 1), (4, 1), (2, 3), (0, 8), (1, 2), (4, 2)] {
        let read = Command::blocks(opcode::io::READ, 1, slba, blocks);
        let done = io.command(read, Bytes::Wanted(blocks as usize * 4096));
        assert_eq!(done.status.code(), Status::UNRECOVERED_READ, "{slba}+{blocks}");
    }
    assert!(io.read(1, 0, 2, 8192) == old[..8192]);
    assert!(io.read(1, 5, 3, 12288) == old[5 * 4096..]);

    // Writing mends what it writes and no more.
    let new = pattern(4096, 2);
    io.write(1, 3, 1, &new);
    assert!(io.read(1, 3, 1, 4096) == new);
    for slba in [2, 4] {
        let read = Command::blocks(opcode::io::READ, 1, slba, 1);
        let status = io.command(read, Bytes::Wanted(4096)).status;
        assert_eq!(status.code(), Status::UNRECOVERED_READ, "{slba}");
    }
    let all = pattern(8 * 4096, 3);
    io.write(1, 0, 8, &all);
    assert!(io.read(1, 0, 8, all.len()) == all);
}

#[test]
fn a_volume_that_cannot_mark_blocks_refuses_to() {
    let rig = Rig::memory(1);
    let (_admin, mut io) = rig.connect();
    io.write(1, 2, 1, &pattern(4096, 4));
    let mark = Command::blocks(opcode::io::WRITE_UNCORRECTABLE, 1, 2, 1);
    let status = io.command(mark, Bytes::None).status;
    assert_eq!(status.code(), Status::INVALID_OPCODE, "{status}");
    assert!(io.read(1, 2, 1, 4096) == pattern(4096, 4));
}

/// Memory that is to be lent and cannot be: a read is sent once more with a buffer, for the blocks that the host named, though
/// whoever refused it had counted from the beginning of a part.
#[test]
fn a_read_that_is_sent_again_with_a_buffer_is_of_the_same_blocks() {
    const PART: usize = 64 << 10;
    let again = format!("fault:op=read,status=interrupted,count=1(mem:{PART})");
    let volume = volume::open(
        &format!("linear:(mem:{PART},{again})"),
        &volume::OpenOptions { lend: true, ..Default::default() },
    )
    .expect("a volume");
    assert!(volume.limits().lends_reads, "or this test tests nothing");
    let rig = Rig::empty(1);
    rig.add(1, volume);
    let (_admin, mut io) = rig.connect();
    let (data, blocks) = (pattern(2 * PART, 5), (PART / 512) as u64);
    for (number, part) in data.chunks(PART).enumerate() {
        let write = Command::blocks(opcode::io::WRITE, 1, number as u64 * blocks, blocks as u32);
        io.command(write, Bytes::OnRequest(part)).ok();
    }
    let read = io.read(1, blocks + 3, 2, 1024);
    assert!(read == data[PART + 3 * 512..][..1024], "other blocks");
}
