//! A volume's limits as the block device's.

use crate::driver::{Basic, Discard, IO_BYTES_MAX, Parameters, SECTOR_SHIFT, attribute, parameter};
use crate::path::DataPath;
use crate::zoned::Zones;
use nvme::Limits;
use reactor::BufferPool;
use std::mem::size_of;

/// Most sectors of a discard: 2 GiB, so that one is over in a moment.
const DISCARD_SECTORS_MAX: u32 = 1 << 22;

/// Largest physical block that Linux knows, as a power of two.
const PHYSICAL_SHIFT_MAX: u8 = 12;

/// Kernel pages that are given to files as they are must suit `O_DIRECT`.
const ALIGNMENT_MASK: u32 = 511;

/// Bytes that requests are cut to: what the volume takes, what one buffer holds, and what was asked for.
/// At least a page, at most what the driver allows.
pub fn io_bytes_max(limits: &Limits, path: DataPath, asked: Option<u32>) -> u32 {
    let page = rustix::param::page_size() as u32;
    let buffer = match path {
        DataPath::ZeroCopy => IO_BYTES_MAX,
        DataPath::Copy | DataPath::UserCopy => BufferPool::buffer_len_max() as u32,
    };
    let most = limits.transfer_bytes_max.min(buffer).min(IO_BYTES_MAX);
    // A copy by hand, where pages cannot be registered, must fit too.
    let most = most.min(BufferPool::buffer_len_max() as u32);
    let most = asked.map_or(most, |asked| asked.min(most));
    (most & !(page - 1)).max(page)
}

/// The parameters of a device for a volume.
pub fn of(limits: &Limits, path: DataPath, io_bytes_max: u32, zones: Option<Zones>) -> Parameters {
    let sectors = |blocks: u64| blocks << (limits.block_shift - SECTOR_SHIFT);
    let optimal = limits.optimal_write_bytes.max(limits.block_bytes());
    let optimal_shift = optimal.next_power_of_two().trailing_zeros() as u8;
    let physical_shift = optimal_shift.min(PHYSICAL_SHIFT_MAX).max(limits.block_shift);
    let flags = [
        (limits.read_only, attribute::READ_ONLY),
        (limits.volatile_write_cache, attribute::VOLATILE_CACHE | attribute::FUA),
    ];
    let attrs = flags.iter().filter(|(set, _)| *set).fold(0, |all, (_, bits)| all | bits);
    let can = limits.commands;
    let when = |can: bool, sectors: u32| if can && !limits.read_only { sectors } else { 0 };
    let discard = sectors(limits.discard.one_range_blocks_max().into());
    let mut types = parameter::BASIC;
    // Zones are emptied by resets.
    if zones.is_none() && !limits.read_only && (can.deallocate || can.write_zeroes) {
        types |= parameter::DISCARD;
    }
    if path == DataPath::ZeroCopy {
        types |= parameter::DMA_ALIGN;
    }
    let mut zoned = [0; 8];
    if let Some(zones) = zones {
        types |= parameter::ZONED;
        let append = zones.append_sectors_max.min(io_bytes_max >> SECTOR_SHIFT);
        zoned[..3].copy_from_slice(&[zones.open_max, zones.active_max, append]);
    }
    Parameters {
        len: size_of::<Parameters>() as u32,
        types,
        basic: Basic {
            attrs,
            logical_bs_shift: limits.block_shift,
            physical_bs_shift: physical_shift,
            io_opt_shift: optimal_shift,
            io_min_shift: physical_shift,
            max_sectors: io_bytes_max >> SECTOR_SHIFT,
            chunk_sectors: zones.map_or(0, |zones| zones.sectors),
            dev_sectors: sectors(limits.blocks),
            virt_boundary_mask: 0,
        },
        discard: Discard {
            discard_alignment: 0,
            discard_granularity: limits.block_bytes(),
            max_discard_sectors: when(
                can.deallocate,
                discard.min(DISCARD_SECTORS_MAX.into()) as u32,
            ),
            max_write_zeroes_sectors: when(
                can.write_zeroes,
                sectors(limits.zero_blocks_max().into()) as u32,
            ),
            max_discard_segments: 1,
            reserved0: 0,
        },
        zoned,
        dma_alignment: ALIGNMENT_MASK,
        ..Parameters::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::limits::{Commands, CopyLimits, DiscardLimits, Passthrough};

    fn limits() -> Limits {
        Limits {
            block_shift: 12,
            blocks: 1000,
            transfer_bytes_max: (1 << 20) + 512,
            write_zeroes_bytes_max: u32::MAX,
            discard: DiscardLimits::UNLIMITED,
            optimal_write_bytes: 16384,
            read_only: false,
            volatile_write_cache: true,
            commands: Commands { write_zeroes: true, deallocate: true, ..Commands::default() },
            copy: CopyLimits::NONE,
            metadata_bytes: 0,
            passthrough: Passthrough::NONE,
            lends_reads: false,
            immediate: false,
        }
    }

    #[test]
    fn limits_become_parameters() {
        let bytes = io_bytes_max(&limits(), DataPath::UserCopy, None);
        assert_eq!(bytes, 1 << 20);
        assert_eq!(io_bytes_max(&limits(), DataPath::ZeroCopy, Some(70_000)), 69632);
        let parameters = of(&limits(), DataPath::ZeroCopy, bytes, None);
        let Basic { attrs, dev_sectors, max_sectors, .. } = parameters.basic;
        assert_eq!((attrs, dev_sectors, max_sectors), (12, 8000, 2048));
        assert_eq!((parameters.basic.logical_bs_shift, parameters.basic.io_opt_shift), (12, 14));
        assert_eq!(parameters.discard.max_write_zeroes_sectors, 65536 * 8);
        assert_eq!(parameters.types, parameter::BASIC | parameter::DISCARD | parameter::DMA_ALIGN);
        let limits = Limits { write_zeroes_bytes_max: 8 << 20, ..limits() };
        let parameters = of(&limits, DataPath::UserCopy, bytes, None);
        assert_eq!(parameters.discard.max_write_zeroes_sectors, 8 << 11);
        assert_eq!(parameters.discard.max_discard_sectors, 1 << 22);
    }

    #[test]
    fn a_discard_is_one_range_that_the_volume_takes() {
        let sectors = |discard| {
            let limits = Limits { discard, ..limits() };
            let found = of(&limits, DataPath::UserCopy, 4096, None).discard;
            assert_eq!(found.max_discard_segments, 1);
            found.max_discard_sectors
        };
        let unlimited = DiscardLimits::UNLIMITED;
        assert_eq!(sectors(DiscardLimits { range_blocks_max: 1000, ..unlimited }), 8000);
        assert_eq!(sectors(DiscardLimits { range_blocks_max: 1 << 30, ..unlimited }), 1 << 22);
        assert_eq!(sectors(DiscardLimits { blocks_max: 3, ..unlimited }), 24);
        assert_eq!(sectors(DiscardLimits { ranges_max: 1, ..unlimited }), 1 << 22);
    }

    #[test]
    fn what_a_volume_cannot_do_is_not_offered() {
        let limits = Limits { read_only: true, volatile_write_cache: false, ..limits() };
        let parameters = of(&limits, DataPath::Copy, 4096, None);
        assert_eq!((parameters.basic.attrs, parameters.types), (1, parameter::BASIC));
        let none = Limits { commands: Commands::default(), read_only: false, ..limits };
        assert_eq!(of(&none, DataPath::Copy, 4096, None).types, parameter::BASIC);
    }

    #[test]
    fn zones_come_with_their_bounds_and_without_discard() {
        let zones =
            Zones { sectors: 8192, open_max: 3, active_max: 5, append_sectors_max: 1 << 20 };
        let parameters = of(&limits(), DataPath::UserCopy, 1 << 20, Some(zones));
        assert_eq!(parameters.basic.chunk_sectors, 8192);
        assert_eq!(parameters.zoned[..4], [3, 5, 2048, 0]);
        assert_eq!(parameters.types, parameter::BASIC | parameter::ZONED);
    }
}
