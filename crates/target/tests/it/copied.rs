//! Copy over real sockets between real volumes: the bytes are where they should be, by whichever means.

use crate::host;

use host::rig::{NQN, Rig, directory};
use host::{Bytes, Done, Queue};
use namespace::Namespace;
use nvme::copy::{self, Entry, Format};
use nvme::{Command, Status, opcode};
use std::sync::Arc;
use std::time::{Duration, Instant};
use target::NamespaceOptions;
use tempfile::TempDir;

/// Blocks of each volume.
const BLOCKS: u64 = 512;

/// A server with two volumes, and what they should hold.
struct Pair {
    rig: Rig,
    /// The controller goes with it.
    _admin: Queue,
    io: Queue,
    block: usize,
    models: [Vec<u8>; 2],
    _directory: TempDir,
}

impl Pair {
    /// `{file}` in a URI is a path of its own, `{size}`, `{half}` and `{bs}` are bytes of the volume, of
    /// half of it, and of a block.
    fn new(uris: [&str; 2], block: usize, cores: usize) -> Pair {
        let directory = directory();
        let rig = Rig::empty(cores);
        for (index, uri) in uris.into_iter().enumerate() {
            let path = directory.path().join(index.to_string());
            let uri = uri.replace("{file}", path.to_str().expect("text"));
            let size = BLOCKS * block as u64;
            let uri = uri.replace("{size}", &size.to_string()).replace("{bs}", &block.to_string());
            let uri = uri.replace("{half}", &(size / 2).to_string());
            rig.add(index as u32 + 1, opened(&uri, cores));
        }
        let (mut admin, io) = rig.connect();
        let mut behavior = [0; 512];
        behavior[4] = 0b1100;
        let opcode = opcode::admin::SET_FEATURES;
        let enable = Command { opcode, cdw10: 0x16.into(), ..Command::default() };
        admin.command(enable, Bytes::InCapsule(&behavior)).ok();
        let models = [(); 2].map(|()| vec![0; BLOCKS as usize * block]);
        let mut pair = Pair { rig, _admin: admin, io, block, models, _directory: directory };
        for nsid in 1..=2 {
            let data: Vec<u8> = (0..BLOCKS as usize * block)
                .map(|at| (at / block * 7 + at % 251 + nsid * 101) as u8)
                .collect();
            for (index, part) in data.chunks(128 << 10).enumerate() {
                let blocks = part.len() / block;
                pair.io.write(nsid as u32, (index * blocks) as u64, blocks as u32, part);
            }
            pair.models[nsid - 1] = data;
        }
        pair
    }

    fn copy(&mut self, nsid: u32, format: Format, sdlba: u64, entries: &[Entry]) -> Done {
        let mut list = vec![0; entries.len() * format.entry_bytes()];
        for (entry, bytes) in entries.iter().zip(list.chunks_exact_mut(format.entry_bytes())) {
            entry.write(format, bytes);
        }
        let mut command = copy::command(nsid, sdlba, entries.len(), format);
        command.nsid = nsid.into();
        let bytes = if list.len().is_multiple_of(80) {
            Bytes::OnRequest(&list)
        } else {
            Bytes::InCapsule(&list)
        };
        self.io.command(command, bytes)
    }

    /// The same with the model, `whole` ranges of it.
    fn model(&mut self, nsid: u32, sdlba: u64, entries: &[Entry]) {
        let mut to = sdlba as usize * self.block;
        for entry in entries {
            let (from, len) =
                (entry.slba as usize * self.block, entry.blocks as usize * self.block);
            let data = self.models[entry.nsid as usize - 1][from..from + len].to_vec();
            self.models[nsid as usize - 1][to..to + len].copy_from_slice(&data);
            to += len;
        }
    }

    #[track_caller]
    fn check(&mut self, what: &str) {
        for nsid in 1..=2 {
            let per_read = (256 << 10) / self.block as u64;
            for slba in (0..BLOCKS).step_by(per_read as usize) {
                let blocks = per_read.min(BLOCKS - slba);
                let len = blocks as usize * self.block;
                let data = self.io.read(nsid, slba, blocks as u32, len);
                let model = &self.models[nsid as usize - 1][slba as usize * self.block..][..len];
                let wrong =
                    data.chunks(self.block).zip(model.chunks(self.block)).position(|(a, b)| a != b);
                assert_eq!(wrong.map(|at| at as u64 + slba), None, "{what}: block of {nsid}");
            }
        }
    }

    fn carry_out(&mut self, nsid: u32, format: Format, sdlba: u64, entries: &[Entry]) {
        let what = format!("{format:?} to {sdlba} of {nsid}: {entries:?}");
        let done = self.copy(nsid, format, sdlba, entries);
        assert!(done.status.is_success(), "{what}: {}", done.status);
        self.model(nsid, sdlba, entries);
        self.check(&what);
    }
}

fn opened(uri: &str, cores: usize) -> Arc<dyn Namespace> {
    let options = volume::OpenOptions { cores, ..volume::OpenOptions::default() };
    volume::open(uri, &options).unwrap_or_else(|error| panic!("{uri}: {error:#}"))
}

fn entry(nsid: u32, slba: u64, blocks: u32) -> Entry {
    Entry { nsid, slba, blocks, fast_only: false }
}

const MEMORY: &str = "mem:{size}?bs={bs}";
const FILE: &str = "file:{file}?create&size={size}&bs={bs}";

/// All that a host can ask for between two volumes, whatever they are.
fn copies(uris: [&str; 2], block: usize, cores: usize) {
    let mut pair = Pair::new(uris, block, cores);
    for nsid in 1..=2 {
        let other = 3 - nsid;
        for format in [Format::Short, Format::Long] {
            pair.carry_out(nsid, format, 100, &[entry(nsid, 0, 1)]);
            pair.carry_out(nsid, format, 200, &[entry(nsid, 5, 33), entry(nsid, 300, 7)]);
            // Forwards and backwards over itself.
            pair.carry_out(nsid, format, 13, &[entry(nsid, 10, 40)]);
            pair.carry_out(nsid, format, 10, &[entry(nsid, 13, 40)]);
            // The second source was written by the first.
            pair.carry_out(nsid, format, 400, &[entry(nsid, 50, 8), entry(nsid, 400, 8)]);
        }
        for format in [Format::Namespaces, Format::NamespacesLong] {
            pair.carry_out(nsid, format, 64, &[entry(other, 64, 64)]);
            let mixed = [entry(other, 0, 9), entry(nsid, 300, 9), entry(other, 500, 12)];
            pair.carry_out(nsid, format, 350, &mixed);
            let many: Vec<_> =
                (0..100).map(|at| entry(1 + at % 2, 200 + u64::from(at), 1)).collect();
            pair.carry_out(nsid, format, 20, &many);
        }
        // To the last block.
        pair.carry_out(nsid, Format::Short, BLOCKS - 8, &[entry(nsid, 0, 8)]);
    }
}

#[test]
fn between_memory() {
    for block in [512, 4096] {
        for cores in [1, 2] {
            copies([MEMORY, MEMORY], block, cores);
        }
    }
}

#[test]
fn between_files() {
    for block in [512, 4096] {
        copies([FILE, FILE], block, 1);
    }
}

#[test]
fn between_memory_and_a_file() {
    for block in [512, 4096] {
        copies([MEMORY, FILE], block, 2);
    }
}

#[test]
fn between_parts_of_a_linear_volume_and_a_file() {
    let linear = "linear:(mem:{half}?bs={bs},mem:{half}?bs={bs})";
    copies([linear, FILE], 512, 2);
    copies([FILE, linear], 4096, 1);
}

/// Without means of its own on one side, or on both.
#[test]
fn with_volumes_that_only_read_and_write() {
    let volatile: &str = "volatile:(mem:{size}?bs={bs})";
    copies([volatile, MEMORY], 4096, 1);
    copies([volatile, volatile], 512, 2);
}

#[test]
fn fast_copy_only_is_refused_where_it_would_be_read_and_written() {
    let mut pair = Pair::new([MEMORY, FILE], 4096, 1);
    let fast = |nsid| [Entry { fast_only: true, ..entry(nsid, 0, 8) }];
    let done = pair.copy(1, Format::Namespaces, 100, &fast(2));
    assert_eq!((done.status.code(), done.result), (Status::FAST_COPY_NOT_POSSIBLE, 0));
    pair.check("nothing was copied");
    pair.copy(1, Format::Namespaces, 100, &fast(1)).ok();
    pair.model(1, 100, &fast(1));
    pair.check("within memory");
}

/// It holds for the range that has it (NVM 1.1, section 3.3.2.1), and for no other.
#[test]
fn fast_copy_only_of_one_range_is_not_the_others() {
    let fast = |nsid, slba| Entry { fast_only: true, ..entry(nsid, slba, 8) };
    for nsid in [1, 2] {
        let mut pair = Pair::new([MEMORY, FILE], 4096, 1);
        let other = 3 - nsid;
        // Of the other volume: read and written. Of the same one: copied where it lies.
        let passes: [&[Entry]; 3] = [
            &[entry(other, 0, 8), fast(nsid, 8)],
            &[fast(nsid, 16), entry(other, 24, 8)],
            &[fast(nsid, 0), entry(nsid, 8, 8), entry(other, 16, 8), fast(nsid, 24)],
        ];
        for entries in passes {
            pair.carry_out(nsid, Format::Namespaces, 100, entries);
        }
        let refused: [(&[Entry], usize); 4] = [
            (&[fast(other, 200), entry(nsid, 208, 8)], 0),
            (&[fast(nsid, 216), fast(other, 224)], 1),
            // Both are read and written, if any is.
            (&[entry(other, 232, 8), fast(other, 240)], 1),
            (&[entry(nsid, 248, 8), entry(other, 256, 8), fast(other, 264), fast(nsid, 272)], 2),
        ];
        for (entries, lowest) in refused {
            let done = pair.copy(nsid, Format::Namespaces, 300, entries);
            let wanted = (Status::FAST_COPY_NOT_POSSIBLE, lowest as u64);
            assert_eq!((done.status.code(), done.result), wanted, "{entries:?}");
            pair.model(nsid, 300, &entries[..lowest]);
            pair.check("what comes before the range, and nothing else");
        }
    }
}

#[test]
fn a_failure_names_the_range_and_all_before_it_are_copied() {
    let faulty = "fault:op=read,lba=300-301,status=0x281(mem:{size}?bs={bs})";
    let mut pair = Pair::new([MEMORY, faulty], 4096, 1);
    let entries = [entry(2, 0, 8), entry(1, 200, 8), entry(2, 296, 8), entry(2, 8, 8)];
    let done = pair.copy(1, Format::Namespaces, 100, &entries);
    assert_eq!((done.status.code(), done.result), (Status::UNRECOVERED_READ, 2));
    pair.model(1, 100, &entries[..2]);
    let len = 16 * pair.block;
    let copied = pair.io.read(1, 100, 16, len);
    assert!(copied == pair.models[0][100 * 4096..][..len]);
}

/// A source on its way out: the Copy ends well, whatever comes first.
#[test]
fn a_source_is_removed_while_it_is_copied_from() {
    let slow = "delay:read=150ms(mem:{size}?bs={bs})";
    let mut pair = Pair::new([MEMORY, slow], 4096, 2);
    let entries = [entry(2, 0, 64), entry(2, 100, 64)];
    let format = Format::Namespaces;
    let mut list = vec![0; 2 * format.entry_bytes()];
    for (entry, bytes) in entries.iter().zip(list.chunks_exact_mut(format.entry_bytes())) {
        entry.write(format, bytes);
    }
    let cid = pair.io.issue(copy::command(1, 300, 2, format), Bytes::InCapsule(&list));
    // Commands of one connection begin in order, and this one is answered at once.
    pair.io.command(Command::blocks(opcode::io::FLUSH, 1, 0, 1), Bytes::None).ok();
    pair.rig.server.remove_namespace(NQN, 2).expect("it was there");
    pair.io.complete(cid).ok();
    pair.model(1, 300, &entries);
    let len = 128 * pair.block;
    assert!(pair.io.read(1, 300, 128, len) == pair.models[0][300 * 4096..][..len]);
    let done = pair.copy(1, format, 300, &entries);
    done.refused(Status::INVALID_FIELD.dnr());
    // The namespace comes back: it is a source again.
    let options = NamespaceOptions { nsid: Some(2), uuid: [9; 16], nguid: [0; 16], ana_group: 1 };
    let bytes = BLOCKS * 4096;
    let volume = opened(&format!("mem:{bytes}?bs=4096"), 2);
    pair.rig.server.add_namespace(NQN, &options, volume).expect("a namespace");
    pair.models[1].fill(0);
    pair.carry_out(1, format, 300, &entries);
}

/// A Copy takes long, and its host gives it up: it must not write any more when the host has written
/// something else there.
#[test]
fn a_copy_that_is_given_up_stops() {
    const SLOW: &str = "volatile:(delay:read=100ms(mem:64M?bs=4096))";
    /// Pieces of 128 KiB, eight at a time: 3.2 s.
    const COPIED: u32 = 32 << 20 >> 12;
    const LAST: u64 = (64 << 20 >> 12) - 1;
    let rig = Rig::empty(1);
    rig.add(1, opened(SLOW, 1));
    let (mut admin, mut io) = rig.connect();
    io.write(1, u64::from(COPIED) - 1, 1, &[7; 4096]);
    let mut list = [0; 32];
    entry(0, 0, COPIED).write(Format::Short, &mut list);
    let command = copy::command(1, u64::from(COPIED), 1, Format::Short);
    let cid = io.issue(command, Bytes::InCapsule(&list));
    io.settle();
    std::thread::sleep(Duration::from_millis(300));
    let cdw10 = (1 | u32::from(cid) << 16).into();
    let abort = Command { opcode: opcode::admin::ABORT, cdw10, ..Command::default() };
    // It was started, and ends by itself.
    assert_eq!(admin.command(abort, Bytes::None).ok().result & 1, 1);
    let done = io.complete(cid);
    assert_eq!((done.status.code(), done.result), (Status::ABORT_REQUESTED, 0));
    assert_eq!(io.read(1, LAST, 1, 4096), [0; 4096], "it went on to the end");
    // The slot's next Copy is another one.
    let mut one = [0; 32];
    entry(0, u64::from(COPIED) - 1, 1).write(Format::Short, &mut one);
    let again = copy::command(1, LAST - 1, 1, Format::Short);
    io.command(again, Bytes::InCapsule(&one)).ok();
    assert_eq!(io.read(1, LAST - 1, 1, 4096), [7; 4096]);
    // A connection that ends: the next one of this host is let in when nothing of it is left.
    io.issue(command, Bytes::InCapsule(&list));
    io.settle();
    std::thread::sleep(Duration::from_millis(300));
    let since = Instant::now();
    drop((admin, io));
    let (_admin, mut io) = rig.connect();
    std::thread::sleep(Duration::from_secs(4).saturating_sub(since.elapsed()));
    assert_eq!(io.read(1, LAST, 1, 4096), [0; 4096], "it went on to the end");
}
