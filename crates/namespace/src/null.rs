//! `null:`: reads as zero, forgets what is written. For measuring everything else.

use crate::checksum::Sum;
use crate::memory::Mapping;
use crate::{Data, Lent, Namespace, Queue, Request, dataset};
use nvme::limits::{Commands, DiscardLimits, Passthrough};
use nvme::opcode::io as opcode;
use nvme::{Command, Limits, Status};
use reactor::Reactor;
use std::any::Any;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Largest data transfer of one command, and bytes of zeroes that are mapped to be lent.
const TRANSFER_BYTES_MAX: usize = 1 << 20;

/// A volume that completes everything at once.
#[derive(Debug)]
pub struct Null {
    blocks: AtomicU64,
    block_shift: u8,
    uuid: Option<[u8; 16]>,
    zeroes: &'static Mapping,
}

impl Null {
    /// A volume of `bytes`: a multiple of the block size 2^`block_shift`, at least one block.
    ///
    /// # Panics
    /// If it is not; `volume` checks.
    pub fn open(bytes: u64, block_shift: u8, uuid: Option<[u8; 16]>) -> io::Result<Arc<Null>> {
        static ZEROES: OnceLock<Mapping> = OnceLock::new();
        let zeroes = match ZEROES.get() {
            Some(zeroes) => zeroes,
            None => {
                let mapping = Mapping::zeroes(TRANSFER_BYTES_MAX)?;
                ZEROES.get_or_init(|| mapping)
            }
        };
        let blocks = bytes >> block_shift;
        assert!(blocks > 0 && blocks << block_shift == bytes);
        Ok(Arc::new(Null { blocks: AtomicU64::new(blocks), block_shift, uuid, zeroes }))
    }
}

impl Namespace for Null {
    fn limits(&self) -> Limits {
        Limits {
            block_shift: self.block_shift,
            blocks: self.blocks.load(Ordering::Relaxed),
            transfer_bytes_max: TRANSFER_BYTES_MAX as u32,
            write_zeroes_bytes_max: u32::MAX,
            discard: DiscardLimits::UNLIMITED,
            optimal_write_bytes: 4096,
            read_only: false,
            volatile_write_cache: false,
            commands: Commands {
                write_zeroes: true,
                deallocate: true,
                write_uncorrectable: false,
                compare: true,
                compare_and_write: true,
                verify: true,
                checksum: true,
                allocation: false,
            },
            copy: crate::copy::limits(self.block_shift),
            metadata_bytes: 0,
            passthrough: Passthrough::NONE,
            lends_reads: true,
            immediate: true,
        }
    }

    fn open_queue(self: Arc<Self>, _reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        let zeroes = self.zeroes.base();
        Ok(Rc::new(NullQueue { null: self, zeroes, owner: Rc::new(()) }))
    }

    fn refresh(&self) -> io::Result<bool> {
        Ok(false)
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        let blocks = bytes >> self.block_shift;
        if blocks == 0 || blocks << self.block_shift != bytes {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a whole number of blocks",
            ));
        }
        self.blocks.store(blocks, Ordering::Relaxed);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn uri(&self) -> String {
        let size = crate::human::format_bytes(self.limits().bytes());
        let uuid = crate::uuid::query(self.uuid.as_ref());
        format!("null:{size}?bs={}{uuid}", self.limits().block_bytes())
    }

    fn describe(&self, _facts: &mut Vec<(String, String)>) {}

    fn uuid(&self) -> Option<[u8; 16]> {
        self.uuid
    }

    fn keeps_blocks_whole(&self) -> bool {
        true
    }
}

struct NullQueue {
    null: Arc<Null>,
    zeroes: *const u8,
    /// The zeroes stay mapped for good; lending needs somebody to name all the same.
    owner: Rc<dyn Any>,
}

impl Queue for NullQueue {
    #[inline]
    fn submit(&self, mut request: Box<Request>) {
        let Request { command, data, .. } = &mut *request;
        let checksum = command.wants_checksum();
        let status = self.execute(command, data);
        if checksum && status.is_success() {
            request.result = self.checksum(&request.command);
            request.status = status;
            return request.complete();
        }
        request.finish_pair(status);
    }

    /// Nothing waits here.
    fn forget(&self) {}
}

impl NullQueue {
    #[inline]
    fn execute(&self, command: &Command, data: &mut Data) -> Status {
        let blocks = self.null.blocks.load(Ordering::Relaxed);
        match command.opcode {
            opcode::FLUSH => return Status::SUCCESS,
            opcode::DATASET_MANAGEMENT => {
                // SAFETY: the request holds its data during this call.
                let ranges = unsafe { dataset::ranges(command, data.as_ptr(), data.len(), blocks) };
                return ranges.map_or_else(Status::dnr, |_| Status::SUCCESS);
            }
            opcode::COPY => return copy(command, data, blocks),
            opcode::READ
            | opcode::WRITE
            | opcode::COMPARE
            | opcode::WRITE_ZEROES
            | opcode::VERIFY => {}
            _ => return Status::INVALID_OPCODE.dnr(),
        }
        let count = command.block_count();
        if command.slba().checked_add(u64::from(count)).is_none_or(|end| end > blocks) {
            return Status::LBA_OUT_OF_RANGE.dnr();
        }
        match command.opcode {
            opcode::READ => self.read((count as usize) << self.null.block_shift, data),
            opcode::COMPARE => compare(data),
            _ => Status::SUCCESS,
        }
    }

    /// Of as many zeroes.
    #[cold]
    fn checksum(&self, command: &Command) -> u64 {
        let mut left = (command.block_count() as usize) << self.null.block_shift;
        let mut sum = Sum::default();
        while left > 0 {
            let len = left.min(TRANSFER_BYTES_MAX);
            // SAFETY: so many bytes are mapped for good, and nobody writes to them.
            sum.add(unsafe { std::slice::from_raw_parts(self.zeroes, len) });
            left -= len;
        }
        sum.value()
    }

    #[inline]
    fn read(&self, len: usize, data: &mut Data) -> Status {
        if matches!(data, Data::None) {
            assert!(len <= TRANSFER_BYTES_MAX, "a read is within the transfer limit");
            // SAFETY: `len` bytes are mapped for good.
            *data = Data::Lent(unsafe { Lent::new(self.zeroes, len, Rc::clone(&self.owner)) });
            return Status::SUCCESS;
        }
        assert_eq!(data.len(), len, "a read comes with a buffer of its length");
        let target = data.as_mut_ptr().expect("a read comes with a buffer");
        // SAFETY: the buffer holds `len` bytes.
        unsafe { target.write_bytes(0, len) };
        Status::SUCCESS
    }
}

/// Wherever it comes from, it is forgotten.
fn copy(command: &Command, data: &Data, blocks: u64) -> Status {
    let Data::Sources(sources) = data else {
        return Status::INVALID_FIELD.dnr();
    };
    let end = command.slba().checked_add(sources.blocks());
    let within = end.is_some_and(|end| end <= blocks);
    if within { Status::SUCCESS } else { Status::LBA_OUT_OF_RANGE.dnr() }
}

fn compare(data: &Data) -> Status {
    // SAFETY: the data is readable for its length during this call.
    let bytes = unsafe { std::slice::from_raw_parts(data.as_ptr(), data.len()) };
    let same = bytes.iter().all(|&byte| byte == 0);
    if same { Status::SUCCESS } else { Status::COMPARE_FAILURE.dnr() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::{Place, Source, Sources};

    #[test]
    fn a_copy_ends_where_the_volume_does() {
        let copied = |sdlba, blocks| {
            let command = nvme::copy::command(1, sdlba, 2, nvme::copy::Format::Short);
            let range = Source { place: Place::Same, slba: 0, blocks, fast_only: false };
            let ranges = vec![range.clone(), range];
            copy(&command, &Data::Sources(Box::new(Sources { ranges, ..Sources::default() })), 100)
        };
        assert_eq!(copied(90, 5), Status::SUCCESS);
        assert_eq!(copied(91, 5), Status::LBA_OUT_OF_RANGE.dnr());
        assert_eq!(copied(u64::MAX, 1), Status::LBA_OUT_OF_RANGE.dnr());
    }
}
