//! Devices that a run is given: each backend on one has blocks of its own there.

use crate::blocks::Core;
use crate::dice::Dice;
use crate::leaf::Leaf;
use crate::tally::{Means, Tally};
use namespace::Namespace;
use namespace::device::block::{Beside, with_copy};
use namespace::device::{Device, DeviceOptions};
use namespace::file::{File, FileOptions};
use nvme::limits::Passthrough;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Parts begin at multiples of it: no two of them have a page in common.
const PART_BYTES: u64 = 4096;
const CORES: usize = 2;

/// Opened once, and used by one world after another.
#[derive(Debug)]
pub struct Devices {
    all: Vec<(Arc<dyn Namespace>, Means)>,
    /// Of the smallest.
    bytes: u64,
    taken: Mutex<Taken>,
}

/// By this world. What two devices have at one place may be the same block.
#[derive(Debug, Default)]
struct Taken {
    next: u64,
    bytes: u64,
    /// Device, first block, how many.
    parts: Vec<(usize, u64, u64)>,
}

impl Devices {
    /// Those in `paths`, separated by commas. What is on them is lost.
    pub fn open(paths: &str) -> Devices {
        let all: Vec<_> = paths.split(',').map(|path| open(Path::new(path))).collect();
        let bytes = all.iter().map(|(one, _)| one.limits().blocks << one.limits().block_shift);
        let bytes = bytes.min().expect("a path");
        Devices { all, bytes, taken: Mutex::default() }
    }

    /// The size of the blocks of one of them.
    pub fn block_shift(&self, dice: &mut Dice) -> u8 {
        let index = dice.roll(self.all.len() as u64) as usize;
        self.all[index].0.limits().block_shift
    }

    /// Blocks that nobody else has in this world, if there is a device with such. They hold anything until [`Devices::clear`].
    pub fn part(
        &self,
        blocks: u64,
        block_shift: u8,
        dice: &mut Dice,
        tally: &Arc<Tally>,
    ) -> Option<Arc<Leaf>> {
        let fits = |index: &usize| self.all[*index].0.limits().block_shift == block_shift;
        let fitting: Vec<usize> = (0..self.all.len()).filter(fits).collect();
        let index = match fitting.len() {
            0 => return None,
            count => fitting[dice.roll(count as u64) as usize],
        };
        let (device, means) = &self.all[index];
        let bytes = (blocks << block_shift).next_multiple_of(PART_BYTES);
        let mut taken = self.taken.lock().expect("no panic");
        if taken.next + bytes > self.bytes {
            taken.bytes += self.bytes - taken.next;
            taken.next = 0;
        }
        let start = taken.next >> block_shift;
        taken.next += bytes;
        taken.bytes += bytes;
        assert!(taken.bytes <= self.bytes, "a device of {} bytes is too small", self.bytes);
        taken.parts.push((index, start, blocks));
        Some(Leaf::part(Arc::clone(device), start, blocks, *means, tally))
    }

    /// Writes zeroes to what was taken. What is taken from now on is another world's.
    pub fn clear(&self) {
        let mut taken = self.taken.lock().expect("no panic");
        taken.bytes = 0;
        let parts = std::mem::take(&mut taken.parts);
        for (index, start, blocks) in parts {
            let core = Core::new(&[Arc::clone(&self.all[index].0)], 2 << 20);
            let step = u64::from(core.blocks_max(0));
            for at in (0..blocks).step_by(step as usize) {
                let zeroes = vec![0; step.min(blocks - at) as usize];
                let status = core.run(vec![(0, core.write(start + at, &zeroes))])[0].status;
                assert!(status.is_success(), "{status}");
            }
        }
    }
}

fn open(path: &Path) -> (Arc<dyn Namespace>, Means) {
    let shown = path.display();
    let kind = path.metadata().unwrap_or_else(|error| panic!("{shown}: {error}")).file_type();
    if kind.is_char_device() {
        let device = Device::open(DeviceOptions {
            path: path.to_owned(),
            read_only: false,
            passthrough: Passthrough::NONE,
            iopoll: false,
            hybrid_iopoll: false,
            sqpoll: None,
            cores: CORES,
            timeout_ms: 0,
            retries: true,
            uuid: None,
            uri: format!("nvme:{shown}"),
        });
        return (device.expect("a namespace's character device"), Means::Device);
    }
    let file = File::open(&FileOptions {
        path: path.to_owned(),
        create_bytes: None,
        block_shift: None,
        read_only: false,
        shared: false,
        buffered: false,
        uuid: None,
        is_path: false,
        made: None,
    });
    let means = if kind.is_block_device() { Means::Block } else { Means::File };
    (with_copy(file.expect("a file or device"), Beside { cores: CORES, retries: true }), means)
}
