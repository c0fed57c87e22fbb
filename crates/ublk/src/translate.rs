//! From a request of the driver to an NVMe command. Pure.

use crate::driver::{Descriptor, SECTOR_SHIFT, operation, request_flag};
use crate::zoned::{self, HEADER_BYTES, ZONE_BYTES, Zones};
use namespace::dataset::{self, Range};
use nvme::opcode::io as opcode;
use nvme::{Command, Limits};

/// Force Unit Access (NVM 1.1, section 3.2.6; command dword 12, bit 30).
const FUA: u32 = 1 << 30;
/// Deallocate of Write Zeroes (NVM 1.1, section 3.2.8; command dword 12, bit 25).
const DEAC: u32 = 1 << 25;
/// Most blocks of a command (the count is 16 bits, zero-based).
const BLOCKS_MAX: u32 = 1 << 16;
/// There is but one namespace.
const NSID: u32 = 1;

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// None.
    Nothing,
    /// From the volume into the request: so many bytes.
    Read(u32),
    /// From the request to the volume: so many bytes.
    Write(u32),
    /// The command brings the range that it is about.
    Range(Range),
    /// So many zones from the volume into the request.
    Report(u32),
}

/// What is to be done for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// What the volume is told.
    pub command: Command,
    /// With what data.
    pub transfer: Transfer,
    /// The request's pages were not registered, although they should have been.
    pub is_unregistered: bool,
}

/// What of a volume matters for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Logical block as a power of two.
    pub block_shift: u8,
    /// Most bytes of a request with data.
    pub io_bytes_max: u32,
    /// Write Zeroes may deallocate.
    pub deallocates: bool,
    /// Most blocks of a Write Zeroes.
    pub zero_blocks_max: u32,
    /// Most blocks of a discard.
    pub discard_blocks_max: u32,
    /// The volume has a volatile write cache and the device, made of it when it had none or of another, has not: the kernel
    /// asks for no flush, so that each write has to be durable by itself.
    pub writes_through: bool,
    /// Sectors of a zone; 0: there are none.
    pub zone_sectors: u32,
}

impl Shape {
    /// That of a volume behind a device whose requests are that long at most.
    pub fn of(limits: &Limits, io_bytes_max: u32) -> Shape {
        let deallocates = limits.commands.deallocate;
        Shape {
            block_shift: limits.block_shift,
            io_bytes_max,
            deallocates,
            zero_blocks_max: limits.zero_blocks_max(),
            discard_blocks_max: limits.discard.one_range_blocks_max(),
            writes_through: false,
            zone_sectors: 0,
        }
    }

    /// The same behind a device of which the kernel was told whether there is a volatile write cache.
    #[must_use]
    pub fn behind(self, has_cache: bool, limits: &Limits) -> Shape {
        Shape { writes_through: limits.volatile_write_cache && !has_cache, ..self }
    }

    /// The same of a volume with zones.
    #[must_use]
    pub fn with(self, zones: Option<Zones>) -> Shape {
        Shape { zone_sectors: zones.map_or(0, |zones| zones.sectors), ..self }
    }

    /// The command for a request; the error is a number for the kernel. The driver keeps to the
    /// limits that it was given, so that errors mean that it does not.
    #[inline]
    pub fn translate(&self, request: &Descriptor) -> Result<Work, i32> {
        let is_unregistered = request.has(request_flag::NEED_REG_BUF);
        let work = |command, transfer| Work { command, transfer, is_unregistered };
        if request.operation() == operation::FLUSH {
            let command =
                Command { opcode: opcode::FLUSH, nsid: NSID.into(), ..Command::default() };
            return Ok(work(command, Transfer::Nothing));
        }
        if self.zone_sectors > 0
            && let Some((command, transfer)) = self.translate_zoned(request)?
        {
            return Ok(work(command, transfer));
        }
        let (slba, blocks) = self.blocks(request)?;
        match request.operation() {
            // Fewer than when the device was made: nothing has to be discarded.
            operation::DISCARD if blocks > self.discard_blocks_max => Err(libc::EOPNOTSUPP),
            operation::DISCARD => {
                let range = Range { attributes: 0, blocks, slba };
                Ok(work(dataset::deallocate(NSID, 1), Transfer::Range(range)))
            }
            operation::READ => {
                let bytes = self.bytes(blocks)?;
                Ok(work(Command::blocks(opcode::READ, NSID, slba, blocks), Transfer::Read(bytes)))
            }
            operation::WRITE => {
                let bytes = self.bytes(blocks)?;
                let mut command = Command::blocks(opcode::WRITE, NSID, slba, blocks);
                set(&mut command, FUA, self.is_durable(request));
                Ok(work(command, Transfer::Write(bytes)))
            }
            operation::WRITE_ZEROES if blocks <= BLOCKS_MAX => {
                // Fewer than when the device was made: the kernel writes zeroes as data then.
                if blocks > self.zero_blocks_max {
                    return Err(libc::EOPNOTSUPP);
                }
                let mut command = Command::blocks(opcode::WRITE_ZEROES, NSID, slba, blocks);
                set(&mut command, FUA, self.is_durable(request));
                set(&mut command, DEAC, self.deallocates && !request.has(request_flag::NOUNMAP));
                Ok(work(command, Transfer::Nothing))
            }
            operation::WRITE_ZEROES => Err(libc::EINVAL),
            _ => Err(libc::EOPNOTSUPP),
        }
    }

    /// Whether what is written is to be durable before the request ends.
    #[inline]
    fn is_durable(&self, request: &Descriptor) -> bool {
        self.writes_through || request.has(request_flag::FUA)
    }

    /// What only zoned devices are asked for.
    fn translate_zoned(&self, request: &Descriptor) -> Result<Option<(Command, Transfer)>, i32> {
        // Those but append have a place, and no length.
        let place = Descriptor { nr_sectors: 1 << (self.block_shift - SECTOR_SHIFT), ..*request };
        let zoned = match request.operation() {
            operation::REPORT_ZONES => {
                // A shorter report is asked for the rest.
                let room = self.io_bytes_max.saturating_sub(HEADER_BYTES) / ZONE_BYTES;
                let zones = request.nr_sectors.min(room);
                if zones == 0 {
                    return Err(libc::EINVAL);
                }
                let (slba, _) = self.blocks(&place)?;
                (zoned::report(NSID, slba, zones), Transfer::Report(zones))
            }
            operation::ZONE_APPEND => {
                let (slba, blocks) = self.blocks(request)?;
                let bytes = self.bytes(blocks)?;
                let mut command = Command::blocks(opcode::ZONE_APPEND, NSID, slba, blocks);
                set(&mut command, FUA, self.is_durable(request));
                (command, Transfer::Write(bytes))
            }
            other => {
                let (slba, _) = self.blocks(&place)?;
                match zoned::manage(other, NSID, slba) {
                    Some(command) => (command, Transfer::Nothing),
                    None => return Ok(None),
                }
            }
        };
        Ok(Some(zoned))
    }

    /// First block and count, at least one.
    #[inline]
    fn blocks(&self, request: &Descriptor) -> Result<(u64, u32), i32> {
        let shift = self.block_shift - SECTOR_SHIFT;
        let mask = (1 << shift) - 1;
        let is_aligned =
            request.nr_sectors & mask == 0 && request.start_sector & u64::from(mask) == 0;
        if request.nr_sectors == 0 || !is_aligned {
            return Err(libc::EINVAL);
        }
        Ok((request.start_sector >> shift, request.nr_sectors >> shift))
    }

    #[inline]
    fn bytes(&self, blocks: u32) -> Result<u32, i32> {
        let bytes = u64::from(blocks) << self.block_shift;
        if bytes > u64::from(self.io_bytes_max) || blocks > BLOCKS_MAX {
            return Err(libc::EINVAL);
        }
        Ok(bytes as u32)
    }
}

#[inline]
fn set(command: &mut Command, bit: u32, on: bool) {
    if on {
        command.cdw12 = (command.cdw12.get() | bit).into();
    }
}

/// That of a volume of 512-byte blocks which takes whatever a command can say.
#[cfg(test)]
pub(crate) const SHAPE: Shape = Shape {
    block_shift: 9,
    io_bytes_max: 1 << 20,
    deallocates: true,
    zero_blocks_max: BLOCKS_MAX,
    discard_blocks_max: u32::MAX,
    writes_through: false,
    zone_sectors: 0,
};

#[cfg(test)]
mod tests {
    use super::*;
    use namespace::Namespace;
    use proptest::prelude::*;

    const SHAPE: Shape = Shape { block_shift: 12, ..super::SHAPE };

    fn request(operation: u8, start_sector: u64, nr_sectors: u32) -> Descriptor {
        Descriptor { op_flags: operation.into(), nr_sectors, start_sector, addr: 0 }
    }

    #[test]
    fn sectors_become_blocks() {
        let work = SHAPE.translate(&request(operation::READ, 80, 16)).unwrap();
        assert_eq!((work.command.slba(), work.command.block_count()), (10, 2));
        assert_eq!((work.command.opcode, work.transfer), (opcode::READ, Transfer::Read(8192)));
        assert_eq!(SHAPE.translate(&request(operation::READ, 81, 16)), Err(libc::EINVAL));
        assert_eq!(SHAPE.translate(&request(operation::WRITE, 80, 15)), Err(libc::EINVAL));
        assert_eq!(SHAPE.translate(&request(operation::WRITE, 80, 0)), Err(libc::EINVAL));
        assert_eq!(SHAPE.translate(&request(operation::WRITE, 0, 2056)), Err(libc::EINVAL));
        assert_eq!(SHAPE.translate(&request(15, 0, 8)), Err(libc::EOPNOTSUPP));
    }

    #[test]
    fn flags_are_carried_over() {
        let mut write = request(operation::WRITE, 8, 8);
        assert!(!SHAPE.translate(&write).unwrap().command.fua());
        write.op_flags |= request_flag::FUA | request_flag::NEED_REG_BUF;
        let work = SHAPE.translate(&write).unwrap();
        assert!(work.command.fua() && work.is_unregistered);
        let mut zeroes = request(operation::WRITE_ZEROES, 8, 8);
        assert!(SHAPE.translate(&zeroes).unwrap().command.deac());
        zeroes.op_flags |= request_flag::NOUNMAP;
        assert!(!SHAPE.translate(&zeroes).unwrap().command.deac());
        let keeps = Shape { deallocates: false, ..SHAPE };
        assert!(!keeps.translate(&request(operation::WRITE_ZEROES, 8, 8)).unwrap().command.deac());
    }

    #[test]
    fn behind_a_device_without_a_cache_each_write_is_durable_by_itself() {
        let volume = |volatile_write_cache| Limits {
            volatile_write_cache,
            write_zeroes_bytes_max: 1 << 20,
            ..namespace::null::Null::open(1 << 30, 12, None).unwrap().limits()
        };
        for (cached, has_cache, durable) in
            [(true, false, true), (true, true, false), (false, false, false), (false, true, false)]
        {
            let limits = volume(cached);
            let shape = Shape { zone_sectors: 8192, ..Shape::of(&limits, 1 << 20) };
            let shape = shape.behind(has_cache, &limits);
            for operation in [operation::WRITE, operation::WRITE_ZEROES, operation::ZONE_APPEND] {
                let mut write = request(operation, 8, 8);
                assert_eq!(shape.translate(&write).unwrap().command.fua(), durable);
                write.op_flags |= request_flag::FUA;
                assert!(shape.translate(&write).unwrap().command.fua());
            }
            assert!(!shape.translate(&request(operation::READ, 8, 8)).unwrap().command.fua());
        }
    }

    #[test]
    fn zeroes_that_the_volume_takes_not_at_once_are_written_by_the_kernel() {
        let shape = Shape { zero_blocks_max: 256, ..SHAPE };
        let zeroes = |sectors| shape.translate(&request(operation::WRITE_ZEROES, 0, sectors));
        assert_eq!(zeroes(2048).unwrap().command.block_count(), 256);
        assert_eq!(zeroes(2056), Err(libc::EOPNOTSUPP));
        // Its driver keeps to what it was told.
        assert_eq!(
            SHAPE.translate(&request(operation::WRITE_ZEROES, 0, 1 << 20)),
            Err(libc::EINVAL)
        );
    }

    #[test]
    fn a_discard_brings_its_range() {
        let work = SHAPE.translate(&request(operation::DISCARD, 1 << 40, 1 << 30)).unwrap();
        let range = Range { attributes: 0, blocks: 1 << 27, slba: 1 << 37 };
        assert_eq!(work.transfer, Transfer::Range(range));
        assert!(dataset::deallocates(&work.command) && dataset::range_count(&work.command) == 1);
        let shape = Shape { discard_blocks_max: 256, ..SHAPE };
        let discard = |sectors| shape.translate(&request(operation::DISCARD, 0, sectors));
        assert!(discard(2048).is_ok());
        assert_eq!(discard(2056), Err(libc::EOPNOTSUPP));
    }

    #[test]
    fn zones_are_asked_for_where_there_are_zones() {
        let zoned = Shape { zone_sectors: 8192, ..SHAPE };
        let request = |operation: u8, nr_sectors| Descriptor {
            op_flags: operation.into(),
            nr_sectors,
            start_sector: 8192,
            addr: 0,
        };
        for operation in [operation::ZONE_RESET, operation::REPORT_ZONES, operation::ZONE_APPEND] {
            assert_eq!(SHAPE.translate(&request(operation, 8)), Err(libc::EOPNOTSUPP));
        }
        let reset = zoned.translate(&request(operation::ZONE_RESET, 0)).unwrap();
        assert_eq!((reset.command.slba(), reset.transfer), (1024, Transfer::Nothing));
        let append = zoned.translate(&request(operation::ZONE_APPEND, 8)).unwrap();
        assert_eq!(append.transfer, Transfer::Write(4096));
        assert_eq!(append.command.opcode, opcode::ZONE_APPEND);
        let report = zoned.translate(&request(operation::REPORT_ZONES, 1 << 20)).unwrap();
        assert_eq!(report.transfer, Transfer::Report((1 << 14) - 1));
        assert_eq!(zoned.translate(&request(operation::REPORT_ZONES, 0)), Err(libc::EINVAL));
        // And what all devices are asked for is as it was.
        let write = request(operation::WRITE, 8);
        assert_eq!(zoned.translate(&write), SHAPE.translate(&write));
    }

    proptest! {
        /// Whatever the descriptor says: refused, or exactly the sectors that it names.
        #[test]
        fn a_command_covers_the_request_exactly(
            op_flags in any::<u32>(),
            nr_sectors in prop_oneof![any::<u32>(), 0u32..4096],
            start_sector in any::<u64>(),
            block_shift in 9u8..=12,
        ) {
            let shape = Shape { block_shift, deallocates: false, ..SHAPE };
            let request = Descriptor { op_flags, nr_sectors, start_sector, addr: 0 };
            let Ok(work) = shape.translate(&request) else { return Ok(()) };
            let shift = block_shift - SECTOR_SHIFT;
            let (slba, blocks) = match work.transfer {
                Transfer::Range(range) => (range.slba, range.blocks),
                _ if work.command.opcode == opcode::FLUSH => return Ok(()),
                _ => (work.command.slba(), work.command.block_count()),
            };
            prop_assert_eq!(slba << shift, start_sector);
            prop_assert_eq!(u64::from(blocks) << shift, u64::from(nr_sectors));
            if let Transfer::Read(bytes) | Transfer::Write(bytes) = work.transfer {
                prop_assert_eq!(u64::from(bytes), u64::from(nr_sectors) << SECTOR_SHIFT);
                prop_assert!(bytes <= shape.io_bytes_max);
            }
        }
    }
}
