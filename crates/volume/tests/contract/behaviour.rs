//! What the layers are for: late, failed, slow and forgotten commands.

use crate::core::{Core, Order, compare_and_write, read, write};
use namespace::checksum;
use nvme::command::CHECKSUM;
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use volume::OpenOptions;

const BLOCK: usize = 512;

fn open(uri: &str) -> Arc<dyn namespace::Namespace> {
    volume::open(uri, &OpenOptions::default()).expect(uri)
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

#[test]
fn delay_holds_each_kind_back_for_its_own_time() {
    let core = Core::start(open("delay:read=30ms,write=60ms(mem:1M)"));
    // One of several: the machine may be busy with something else.
    let once = |below_ms: u64, work: &dyn Fn()| {
        let mut times = (0..50).map(|_| timed(work));
        times.find(|time| *time < Duration::from_millis(below_ms)).expect("one of fifty is in time")
    };
    let reading = once(59, &|| drop(core.read(0, 1, BLOCK)));
    let writing = once(10_000, &|| _ = core.write(0, vec![1; BLOCK], BLOCK));
    once(29, &|| _ = core.flush());
    assert!(reading >= Duration::from_millis(30) && writing >= Duration::from_millis(60));
    // Not one after another.
    once(32 * 30, &|| {
        let reads: Vec<_> = (0..32).map(|_| core.submit(read(0, 1, BLOCK))).collect();
        reads.iter().for_each(|read| drop(read.recv().expect("answered")));
    });
}

#[test]
fn rate_lets_so_much_through() {
    let core = Core::start(open("rate:bytes=1M,iops=1K(mem:1M)"));
    // 256 KiB at 1 MiB a second, in four commands; one of three times, on a machine that stands still.
    let is_in_time = |_| {
        let bytes = timed(|| {
            for _ in 0..4 {
                core.read(0, 128, BLOCK);
            }
        });
        assert!(bytes >= Duration::from_millis(240), "{bytes:?}");
        bytes < Duration::from_secs(5)
    };
    assert!((0..3).any(is_in_time), "it lets less through");
    let commands = timed(|| {
        let flushes: Vec<_> = (0..100).map(|_| core.submit(Order::default())).collect();
        flushes.iter().for_each(|flush| drop(flush.recv().expect("answered")));
    });
    assert!(commands >= Duration::from_millis(90), "{commands:?}");
}

#[test]
fn fault_fails_what_the_rule_says_and_nothing_else() {
    let uri = "fault:rate=1,op=read,lba=8-15,skip=1,count=2,status=0x281(mem:1M)";
    let core = Core::start(open(uri));
    assert_eq!(core.write(8, vec![1; BLOCK], BLOCK), Status::SUCCESS);
    let statuses: Vec<_> = (0..4).map(|_| core.read(7, 2, BLOCK).status).collect();
    let (good, bad) = (Status::SUCCESS, Status::UNRECOVERED_READ);
    assert_eq!(statuses, [good, bad, bad, good]);
    assert_eq!(core.read(16, 1, BLOCK).status, good);
    // A failed write does not arrive.
    let core = Core::start(open("fault:op=write,count=1(mem:1M)"));
    assert_eq!(core.write(0, vec![1; BLOCK], BLOCK), Status::WRITE_FAULT);
    assert_eq!(core.read(0, 1, BLOCK).data, vec![0; BLOCK]);
    assert_eq!(core.write(0, vec![1; BLOCK], BLOCK), Status::SUCCESS);
}

#[test]
fn fault_replays_from_its_seed() {
    let run = |seed: u64| -> Vec<bool> {
        let core = Core::start(open(&format!("fault:rate=30%,seed={seed}(mem:1M)")));
        (0..64).map(|_| core.read(0, 1, BLOCK).status.is_success()).collect()
    };
    let first = run(5);
    assert_eq!(first, run(5));
    assert_ne!(first, run(6));
    let failed = first.iter().filter(|good| !**good).count();
    assert!((8..32).contains(&failed), "{failed} of 64 failed");
}

#[test]
fn write_uncorrectable_marks_blocks_until_they_are_written() {
    let core = Core::start(open("fault:rate=0(mem:1M)"));
    let mark = |slba, blocks| {
        let command = Command::blocks(opcode::WRITE_UNCORRECTABLE, 1, slba, blocks);
        core.run(Order { command, ..Order::default() }).status
    };
    assert_eq!(mark(10, 10), Status::SUCCESS);
    assert_eq!(mark(2040, 16).code(), Status::LBA_OUT_OF_RANGE);
    assert_eq!(core.read(9, 2, BLOCK).status.code(), Status::UNRECOVERED_READ);
    assert_eq!(core.read(9, 1, BLOCK).status, Status::SUCCESS);
    assert_eq!(core.read(20, 1, BLOCK).status, Status::SUCCESS);
    let verify = Command::blocks(opcode::VERIFY, 1, 19, 1);
    let verify = core.run(Order { command: verify, ..Order::default() });
    assert_eq!(verify.status.code(), Status::UNRECOVERED_READ);
    assert_eq!(core.write(12, vec![3; 2 * BLOCK], BLOCK), Status::SUCCESS);
    assert_eq!(core.read(12, 2, BLOCK).data, vec![3; 2 * BLOCK]);
    for slba in [11, 14] {
        assert_eq!(core.read(slba, 1, BLOCK).status.code(), Status::UNRECOVERED_READ, "{slba}");
    }
}

#[test]
fn a_verify_gives_the_checksum_of_its_blocks_if_it_is_asked_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = format!("file:{}?create&size=4M", directory.path().join("a.img").display());
    let others = ["mem:4M", "mem:2M?bs=4096", "null:4M", "volatile:(mem:4M)", "delay:1us(mem:4M)"];
    let parts = "linear:(mem:1M,null:1M,mem:2M)";
    let spread = "multipath:(delay:1us(mem:4M))";
    for uri in others.into_iter().chain([file.as_str(), parts, spread]) {
        for cores in [1, 2] {
            let options = OpenOptions { cores, ..OpenOptions::default() };
            let namespace = volume::open(uri, &options).expect(uri);
            let block = namespace.limits().block_bytes() as usize;
            assert!(namespace.limits().commands.checksum, "{uri}");
            let core = Core::start(Arc::clone(&namespace));
            let data: Vec<u8> = (0..256 << 10).map(|at: u32| (at * 7 % 251) as u8).collect();
            assert_eq!(core.write(16, data, block), Status::SUCCESS, "{uri}");
            let verify = |slba: u64, blocks: u32, mark: u32| {
                let command = Command::blocks(opcode::VERIFY, 1, slba, blocks);
                let command = Command { cdw13: mark.into(), ..command };
                core.run(Order { command, ..Order::default() })
            };
            // Within what is read at once where it is read, and in several pieces.
            for (slba, blocks) in [(16, 1), (3, 40), (16, 64), (0, 128), (17, 200)] {
                let answer = verify(slba, blocks, CHECKSUM);
                let data = core.read(slba, blocks, block).data;
                let expected = (Status::SUCCESS, checksum::of(&data));
                assert_eq!((answer.status, answer.result), expected, "{uri}: {blocks} from {slba}");
            }
            let beyond = verify(namespace.limits().blocks - 1, 2, CHECKSUM);
            assert_eq!(
                (beyond.status.code(), beyond.result),
                (Status::LBA_OUT_OF_RANGE, 0),
                "{uri}"
            );
            let plain = verify(16, 8, 0);
            assert_eq!((plain.status, plain.result), (Status::SUCCESS, 0), "{uri}");
        }
    }
    // What cannot be read has none.
    let core = Core::start(open("fault:op=read,lba=200(linear:(mem:1M))"));
    let command = Command::blocks(opcode::VERIFY, 1, 0, 256);
    let command = Command { cdw13: CHECKSUM.into(), ..command };
    let answer = core.run(Order { command, ..Order::default() });
    assert_eq!((answer.status.code(), answer.result), (Status::UNRECOVERED_READ, 0));
}

#[test]
fn a_power_cut_forgets_what_was_not_flushed_and_nothing_else() {
    for uri in ["volatile:(mem:1M)", "delay:10us(volatile:(linear:(mem:1K,mem:1023K)))"] {
        let namespace = open(uri);
        assert!(namespace.limits().volatile_write_cache);
        let core = Core::start(Arc::clone(&namespace));
        let fill = |slba, byte| {
            assert_eq!(core.write(slba, vec![byte; 4 * BLOCK], BLOCK), Status::SUCCESS)
        };
        fill(0, 1);
        fill(8, 1);
        assert_eq!(core.flush(), Status::SUCCESS);
        fill(0, 2);
        fill(20, 2);
        let mut fua = write(8, vec![3; 4 * BLOCK], BLOCK);
        fua.command.cdw12 = (fua.command.cdw12.get() | 1 << 30).into();
        assert_eq!(core.run(fua).status, Status::SUCCESS);
        let mut zeroes = Command::blocks(opcode::WRITE_ZEROES, 1, 10, 2);
        zeroes.cdw12 = (zeroes.cdw12.get() | 1 << 30).into();
        let zeroed = core.run(Order { command: zeroes, ..Order::default() });
        assert_eq!(zeroed.status, Status::SUCCESS);
        assert_eq!(core.read(0, 4, BLOCK).data, vec![2; 4 * BLOCK]);
        // Partly kept, partly below.
        assert_eq!(
            core.read(2, 4, BLOCK).data[..],
            [vec![2; 2 * BLOCK], vec![0; 2 * BLOCK]].concat()[..]
        );
        let epoch = namespace.volatile_epoch();
        assert_eq!(namespace.volatile_epoch(), epoch, "{uri}");
        assert_eq!(namespace.cut(), 8, "{uri}");
        assert_ne!(namespace.volatile_epoch(), epoch, "{uri}: a flush would prove nothing");
        assert_eq!(core.read(0, 4, BLOCK).data, vec![1; 4 * BLOCK], "{uri}");
        let written = [vec![3; 2 * BLOCK], vec![0; 2 * BLOCK]].concat();
        assert_eq!(core.read(8, 4, BLOCK).data[..], written[..], "{uri}: FUA");
        assert_eq!(core.read(20, 4, BLOCK).data, vec![0; 4 * BLOCK]);
        // What is written afterwards is kept, and flushed from the control thread.
        fill(30, 4);
        namespace.flush().expect("flushed");
        assert_eq!(namespace.cut(), 0);
        assert_eq!(core.read(30, 4, BLOCK).data, vec![4; 4 * BLOCK]);
    }
}

#[test]
fn a_full_volatile_cache_writes_down_and_goes_on() {
    let namespace = open("volatile:cache=1M(mem:8M)");
    let core = Core::start(Arc::clone(&namespace));
    let writes: Vec<_> = (0..64)
        .map(|number| core.submit(write(number * 256, vec![number as u8; 128 << 10], BLOCK)))
        .collect();
    for write in writes {
        assert_eq!(write.recv().expect("answered").status, Status::SUCCESS);
    }
    for number in 0..64 {
        assert_eq!(core.read(number * 256, 256, BLOCK).data, vec![number as u8; 128 << 10]);
    }
    assert!(namespace.cut() * BLOCK as u64 <= 1 << 20, "the cache is bounded");
}

#[test]
fn scattered_blocks_are_flushed_without_deep_recursion() {
    let namespace = open("volatile:(mem:64M)");
    let core = Core::start(Arc::clone(&namespace));
    let writes: Vec<_> =
        (0..30_000).map(|number| core.submit(write(number * 2, vec![1; BLOCK], BLOCK))).collect();
    writes.iter().for_each(|write| drop(write.recv().expect("answered")));
    assert_eq!(core.flush(), Status::SUCCESS);
    assert_eq!(namespace.cut(), 0);
    assert_eq!(core.read(59_998, 1, BLOCK).data, vec![1; BLOCK]);
}

#[test]
fn read_only_and_shared_volumes_refuse_what_they_must() {
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let namespace = volume::open("mem:1M", &read_only).expect("opened");
    assert!(namespace.limits().read_only && !namespace.limits().commands.compare_and_write);
    let core = Core::start(namespace);
    let refused = Status::NAMESPACE_WRITE_PROTECTED;
    assert_eq!(core.write(0, vec![1; BLOCK], BLOCK).code(), refused);
    assert_eq!(core.read(0, 1, BLOCK).status, Status::SUCCESS);

    let shared = OpenOptions { shared: true, ..OpenOptions::default() };
    let namespace = volume::open("linear:(mem:1M,mem:1M)", &shared).expect("opened");
    assert!(!namespace.limits().commands.compare_and_write);
    let core = Core::start(namespace);
    let pair = compare_and_write(0, vec![0; BLOCK], vec![1; BLOCK], BLOCK);
    assert!(!core.run(pair).status.is_success());
    assert_eq!(core.read(0, 1, BLOCK).data, vec![0; BLOCK]);
}

#[test]
fn memory_lends_to_one_core_and_grows_in_place() {
    let namespace = open("mem:1M");
    assert!(namespace.limits().lends_reads && namespace.limits().immediate);
    let core = Core::start(Arc::clone(&namespace));
    assert_eq!(core.write(0, vec![5; BLOCK], BLOCK), Status::SUCCESS);
    let answer = core.run(Order { lend: true, ..read(0, 2, BLOCK) });
    assert!(answer.lent);
    assert_eq!(answer.data, [vec![5; BLOCK], vec![0; BLOCK]].concat());
    assert_eq!(core.read(2048, 1, BLOCK).status.code(), Status::LBA_OUT_OF_RANGE);
    namespace.resize(2 << 20).expect("grown");
    assert_eq!(core.write(2048, vec![6; BLOCK], BLOCK), Status::SUCCESS);
    namespace.resize(1 << 20).expect("shrunk");
    namespace.resize(2 << 20).expect("grown again");
    assert_eq!(core.read(2048, 1, BLOCK).data, vec![0; BLOCK], "old content came back");
    let two = OpenOptions { cores: 2, ..OpenOptions::default() };
    assert!(!volume::open("mem:1M", &two).expect("opened").limits().lends_reads);
}

#[test]
fn files_get_holes_keep_their_size_and_notice_when_it_changes() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("volume.img");
    let namespace = open(&format!("file:{}?create&size=1M", path.display()));
    assert_eq!(std::fs::metadata(&path).expect("made").blocks(), 0, "made sparse");
    let core = Core::start(Arc::clone(&namespace));
    assert_eq!(core.write(0, vec![1; 1 << 20], BLOCK), Status::SUCCESS);
    let allocated = || std::fs::metadata(&path).expect("there").blocks();
    let full = allocated();
    assert!(full >= 2048);
    if namespace.limits().commands.deallocate {
        let mut zero = Command::blocks(opcode::WRITE_ZEROES, 1, 0, 1024);
        zero.cdw12 = (zero.cdw12.get() | 1 << 25).into();
        assert_eq!(core.run(Order { command: zero, ..Order::default() }).status, Status::SUCCESS);
        assert!(allocated() <= full - 1024, "no hole was made");
        assert_eq!(core.read(0, 1024, BLOCK).data, vec![0; 512 << 10]);
    }
    assert_eq!(core.write(2047, vec![1; 2 * BLOCK], BLOCK).code(), Status::LBA_OUT_OF_RANGE);
    assert_eq!(std::fs::metadata(&path).expect("there").len(), 1 << 20);
    assert!(!namespace.refresh().expect("looked"));
    std::fs::File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(2 << 20))
        .expect("grown");
    assert!(namespace.refresh().expect("looked"));
    assert_eq!(namespace.limits().blocks, 4096);
    namespace.resize(3 << 20).expect("resized");
    assert_eq!(std::fs::metadata(&path).expect("there").len(), 3 << 20);
    assert_eq!(core.write(6143, vec![1; BLOCK], BLOCK), Status::SUCCESS);
}

/// A loop device, where one may be made: whoever can open what makes them can have one.
struct Loop(String);

impl Loop {
    fn over(path: &std::path::Path, sector_bytes: &str) -> Option<Loop> {
        let control = std::fs::File::options().read(true).write(true).open("/dev/loop-control");
        if let Err(error) = control {
            println!("not checked: no loop device may be made here: /dev/loop-control: {error}");
            return None;
        }
        let mut losetup = std::process::Command::new("losetup");
        losetup.args(["--find", "--show", "--sector-size", sector_bytes]).arg(path);
        let output = losetup.output().expect("losetup, where loop devices may be made");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(Loop(String::from_utf8(output.stdout).expect("a path").trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_block_device_is_served_with_its_own_block_size() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("disk.img");
    std::fs::File::create(&path).and_then(|file| file.set_len(8 << 20)).expect("made");
    let Some(device) = Loop::over(&path, "4096") else { return };
    let too_small = volume::open(&format!("{}?bs=512", device.0), &OpenOptions::default());
    let message = too_small.expect_err("smaller than the device's").to_string();
    assert!(message.contains("blocks of 4096") && message.contains("?bs=4096"), "{message}");
    let namespace = open(&device.0);
    let limits = namespace.limits();
    assert_eq!((limits.block_bytes(), limits.bytes()), (4096, 8 << 20));
    assert!(volume::open(&device.0, &OpenOptions::default()).is_err(), "two writers");
    let core = Core::start(Arc::clone(&namespace));
    assert_eq!(core.write(8, vec![7; 16 << 10], 4096), Status::SUCCESS);
    assert_eq!(core.flush(), Status::SUCCESS);
    let mut zero = Command::blocks(opcode::WRITE_ZEROES, 1, 9, 1);
    zero.cdw12 = (zero.cdw12.get() | 1 << 25 | 1 << 30).into();
    assert_eq!(core.run(Order { command: zero, ..Order::default() }).status, Status::SUCCESS);
    let expected = [vec![7; 4096], vec![0; 4096], vec![7; 8192]].concat();
    assert_eq!(core.read(8, 4, 4096).data, expected);
    assert_eq!(core.read(2048, 1, 4096).status.code(), Status::LBA_OUT_OF_RANGE);
    assert!(namespace.resize(16 << 20).is_err());
    drop(core);
    drop(namespace);
}

/// Two ways to one file, of which one is slow and both lose commands now and then.
#[test]
fn multipath_loses_nothing_under_any_policy() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = format!("file:{}?create&size=1M", directory.path().join("a.img").display());
    let lossy = |seed| format!("fault:rate=5%,seed={seed},status=path-error({file})");
    let shared = OpenOptions { shared: true, ..OpenOptions::default() };
    for policy in ["numa", "round-robin", "queue-depth", "latency", "completion-time"] {
        let uri = format!("multipath:policy={policy}({},delay:1ms({}))", lossy(1), lossy(2));
        let namespace = volume::open(&uri, &shared).expect(&uri);
        assert!(namespace.uri().starts_with("multipath:"), "{}", namespace.uri());
        let core = Core::start(Arc::clone(&namespace));
        let answers: Vec<_> = (0..200u64)
            .map(|slba| core.submit(write(slba, vec![slba as u8 ^ 0x5a; 512], 512)))
            .collect();
        assert!(answers.into_iter().all(|answer| answer.recv().unwrap().status.is_success()));
        let answers: Vec<_> = (0..200u64).map(|slba| core.submit(read(slba, 1, 512))).collect();
        for (slba, answer) in answers.into_iter().enumerate() {
            let answer = answer.recv().unwrap();
            assert_eq!(
                (answer.status, answer.data),
                (Status::SUCCESS, vec![slba as u8 ^ 0x5a; 512])
            );
        }
        let paths = namespace.paths();
        assert_eq!(paths.len(), 2);
        // Which path `latency` begins with is chance; both lose as many.
        assert!(paths.iter().any(|path| path.errors > 0), "{policy}: nothing was lost: {paths:?}");
        assert!(paths.iter().all(|path| path.in_flight == 0));
    }
}
