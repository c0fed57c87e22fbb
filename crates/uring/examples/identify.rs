//! Identify, and reads and writes of a scratch NVMe device, through a ring of each kind and purpose.
//!
//! `identify /dev/nvme0 /dev/ng0n1` (as root; **overwrites** the first MiB of the namespace). One
//! line per combination; fails if one does not do what it should.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use uring::{Completion, Kind, NvmeOp, NvmeUringCmd, Ring, RingOptions, SqPoll, Wait, entry};

const BLOCKS: u32 = 8;
const ROUNDS: u64 = 64;

/// What is tried on a ring.
struct Trial<'a> {
    options: RingOptions,
    registered: bool,
    controller: &'a File,
    namespace: &'a File,
    nsid: u32,
    block_bytes: u32,
}

fn main() {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let [controller, namespace] = names.as_slice() else {
        panic!("usage: identify /dev/nvmeX /dev/ngXnY");
    };
    let open = |name: &String| {
        OpenOptions::new().read(true).write(true).open(name).unwrap_or_else(|error| {
            panic!("{name}: {error}");
        })
    };
    let (controller, namespace) = (open(controller), open(namespace));
    const NVME_IOCTL_ID: libc::Ioctl = 0x4e40;
    // SAFETY: the call takes no argument.
    let nsid = unsafe { libc::ioctl(namespace.as_raw_fd(), NVME_IOCTL_ID) };
    assert!(nsid > 0, "the second is a namespace's character device");
    let block_bytes = block_bytes(&controller, nsid as u32);
    println!("namespace {nsid}, blocks of {block_bytes} bytes");
    let plain = RingOptions { entries: 16, ..RingOptions::default() };
    let sqpoll = Some(SqPoll { cpu: None, idle_ms: 5 });
    let purposes = [
        ("plain", plain),
        ("sqpoll", RingOptions { sqpoll, ..plain }),
        ("iopoll", RingOptions { iopoll: true, ..plain }),
        ("hybrid", RingOptions { hybrid_iopoll: true, ..plain }),
        ("iopoll sqpoll", RingOptions { iopoll: true, sqpoll, ..plain }),
    ];
    for kind in [Kind::Big, Kind::Mixed] {
        // Linux 7.3 has been seen to sleep for ever in a hybrid poll of a queue that is not polled.
        let no_hybrid = std::env::var_os("NO_HYBRID").is_some();
        for (purpose, options) in purposes.iter().filter(|(_, it)| !(no_hybrid && it.hybrid_iopoll))
        {
            for registered in [false, true] {
                let options = RingOptions { kind, ..*options };
                let (controller, namespace, nsid) = (&controller, &namespace, nsid as u32);
                let trial = Trial { options, registered, controller, namespace, nsid, block_bytes };
                let (granted, time) = trial.run();
                println!("{kind:?} (is {granted:?}) {purpose}, registered {registered}: {time:?}");
            }
        }
    }
}

/// Bytes of a logical block, from Identify Namespace.
fn block_bytes(controller: &File, nsid: u32) -> u32 {
    let options = RingOptions { entries: 4, kind: Kind::Mixed, ..RingOptions::default() };
    let mut ring = Ring::with_options(&options).expect("a ring");
    let mut data = vec![0u8; 4096];
    let done = identify(&mut ring, controller, nsid, 0, &mut data);
    assert_eq!(done.result, 0, "Identify: {}", nvme_status(done.result));
    let format = usize::from(data[26] & 15);
    let lba_data_size = data[128 + format * 4 + 2];
    1 << lba_data_size
}

fn identify(ring: &mut Ring, file: &File, nsid: u32, cns: u32, data: &mut [u8]) -> Completion {
    let command = NvmeUringCmd {
        opcode: 6,
        nsid,
        addr: data.as_mut_ptr() as u64,
        data_len: data.len() as u32,
        cdw10: cns,
        timeout_ms: 10_000,
        ..NvmeUringCmd::default()
    };
    let file = uring::File::Fd(file.as_raw_fd());
    one(ring, &entry::nvme_command(file, &command, NvmeOp::Admin, None).user_data(cns.into()))
}

/// A result in words.
fn nvme_status(result: i32) -> String {
    if result < 0 {
        return std::io::Error::from_raw_os_error(-result).to_string();
    }
    format!("status code type {:x}h, status code {:02x}h", result >> 8 & 7, result & 0xff)
}

/// Does one command. What it points to outlives it, since this waits.
fn one(ring: &mut Ring, entry: &uring::BigEntry) -> Completion {
    // SAFETY: callers pass memory of theirs that they borrow during this call.
    unsafe { ring.push_big(entry) }.expect("room");
    let begin = Instant::now();
    let mut completions = Vec::with_capacity(1);
    while completions.is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(20), "the command hangs");
        ring.enter(Wait::No).expect("sound");
        ring.reap(&mut completions);
    }
    completions[0]
}

impl Trial<'_> {
    /// The kind granted, and the mean time of a read.
    fn run(&self) -> (Kind, Duration) {
        let mut ring = Ring::with_options(&self.options).expect("a ring");
        let kind = ring.setup().kind;
        let polls = self.options.iopoll || self.options.hybrid_iopoll;
        let mut data = vec![0u8; 4096];
        let done = identify(&mut ring, self.controller, 0, 1, &mut data);
        if polls && done.result == -libc::EOPNOTSUPP {
            assert!(self.options.explain(done.result).is_some());
        } else {
            assert_eq!(done.result, 0, "Identify: {}", nvme_status(done.result));
            assert!(data[..4].iter().any(|byte| *byte != 0), "a vendor identifier");
        }
        let mut memory = vec![0u8; (2 * BLOCKS * self.block_bytes) as usize];
        let (mut file, mut fixed) = (uring::File::Fd(self.namespace.as_raw_fd()), None);
        if self.registered {
            ring.register_files(1).expect("a table");
            ring.update_file(0, self.namespace.as_raw_fd()).expect("a place");
            ring.register_buffers(1).expect("a table");
            // SAFETY: the memory outlives the ring's last operation.
            unsafe { ring.update_buffer(0, memory.as_mut_ptr(), memory.len()) }
                .expect("lockable memory");
            (file, fixed) = (uring::File::Fixed(0), Some(0));
        }
        let half = memory.len() / 2;
        let mut reads = Duration::ZERO;
        for round in 0..ROUNDS {
            let (out, back) = memory.split_at_mut(half);
            out.fill(round as u8 + 1);
            back.fill(0);
            for (opcode, bytes) in [(1, out.as_mut_ptr()), (2, back.as_mut_ptr())] {
                let command = NvmeUringCmd {
                    opcode,
                    nsid: self.nsid,
                    addr: bytes as u64,
                    data_len: half as u32,
                    cdw10: (round as u32 % 16) * BLOCKS,
                    cdw12: BLOCKS - 1,
                    ..NvmeUringCmd::default()
                };
                let entry = entry::nvme_command(file, &command, NvmeOp::Io, fixed);
                let begin = Instant::now();
                let done = one(&mut ring, &entry.user_data(round));
                if opcode == 2 {
                    reads += begin.elapsed();
                }
                assert_eq!(done.result, 0, "{opcode}: {}", nvme_status(done.result));
                assert_eq!(done.user_data, round);
            }
            assert_eq!(memory[..half], memory[half..], "what was written is read");
        }
        let beyond = NvmeUringCmd {
            opcode: 2,
            nsid: self.nsid,
            addr: memory.as_mut_ptr() as u64,
            data_len: half as u32,
            cdw11: 0x1000_0000,
            cdw12: BLOCKS - 1,
            ..NvmeUringCmd::default()
        };
        let done = one(&mut ring, &entry::nvme_command(file, &beyond, NvmeOp::Io, fixed));
        assert_eq!(done.result & 0x7ff, 0x80, "LBA Out of Range: {}", nvme_status(done.result));
        (kind, reads / ROUNDS as u32)
    }
}
