//! What a namespace can do, from its Identify data and from what the kernel takes.

use super::protection::Protection;
use super::shape::Shape;
use super::sysfs::QueueLimits;
use nvme::Limits;
use nvme::copy::Format;
use nvme::identify::{self, DATA_BYTES, oncs};
use nvme::limits::{Commands, CopyLimits, Passthrough};
use std::sync::Arc;
use zerocopy::FromBytes;

/// Smallest memory page, the unit of MDTS and its like: every controller that Linux drives has it.
const PAGE_BYTES: u64 = 4096;

/// Largest data transfer of one command: the largest buffer of the pool.
const TRANSFER_BYTES_MAX: u64 = 1 << 20;
/// Pieces where the driver does not say how many it takes, and the most that are passed on.
const SEGMENTS_MAX: u32 = crate::Vectors::COUNT_MAX as u32;

/// Where the Zoned Namespace Command Set specific Identify Namespace data structure has its LBA format
/// extensions, 16 bytes each, and in them the Zone Descriptor Extension Size in units of 64 bytes (Zoned
/// Namespace Command Set 1.2, section 4.1.5.1).
const ZONE_FORMATS: usize = 2816;
const ZONE_FORMAT_BYTES: usize = 16;
const ZONE_EXTENSION_AT: usize = 8;
const ZONE_EXTENSION_UNIT: u32 = 64;

/// What a Zone Descriptor Extension can have at most, in bytes.
pub(super) const ZONE_EXTENSION_BYTES_MAX: u32 = ZONE_EXTENSION_UNIT * 255;

/// Identify data of the two structures that every controller has, and of those specific to command
/// sets where there are such.
pub(super) struct Identified<'a> {
    pub(super) controller: &'a [u8; DATA_BYTES],
    pub(super) namespace: &'a [u8; DATA_BYTES],
    pub(super) nvm_controller: Option<&'a [u8; DATA_BYTES]>,
    pub(super) nvm_namespace: Option<&'a [u8; DATA_BYTES]>,
    pub(super) zoned_namespace: Option<&'a [u8; DATA_BYTES]>,
}

/// Facts beside the limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// NGUID, if it has one.
    pub(super) nguid: Option<[u8; 16]>,
    /// Protection information, if it is all of the metadata: a controller can add it to what is written
    /// and take it off what is read.
    pub(super) protection: Option<Protection>,
    /// Bytes of a Zone Descriptor Extension: as many as the format has, or the most where the device
    /// does not say.
    pub(super) zone_extension_bytes: u32,
    /// Pieces of memory of which no two lie beside one another that a command may have, as the driver says.
    pub(super) segments_max: u32,
    /// NQN of the subsystem. This very object tells the device from others of the same name (`names`).
    pub(super) nqn: Option<Arc<str>>,
    /// Why the device's own Copy is not used; none where it is.
    pub(super) no_copy: Option<&'static str>,
}

/// Limits and facts, or what this namespace has that cannot be used.
pub(super) fn limits(
    data: &Identified<'_>,
    queue: &QueueLimits,
) -> Result<(Limits, Facts, Shape), String> {
    let controller = identify::Controller::read_from_bytes(&data.controller[..]);
    let namespace = identify::Namespace::read_from_bytes(&data.namespace[..]);
    let (Ok(controller), Ok(namespace)) = (controller, namespace) else {
        unreachable!("Identify data is as long as its structures")
    };
    let shape = Shape::of(&namespace).ok_or("it has no such LBA format as it says")?;
    let Shape { block_shift, metadata_bytes, is_extended, .. } = shape;
    if is_extended {
        return Err(format!(
            "its blocks end with {metadata_bytes} bytes of metadata (extended LBA), which cannot be \
             served; format it with metadata in a buffer of its own, or without"
        ));
    }
    if !matches!(block_shift, 9 | 12) {
        return Err(match block_shift {
            0 => "it is not formatted".into(),
            1..=31 => format!("its blocks are of {} bytes, not 512 or 4096", 1u64 << block_shift),
            _ => "its block size cannot be".into(),
        });
    }
    let blocks = namespace.nsze.get();
    if blocks.checked_mul(1 << block_shift).is_none() {
        return Err("it has more bytes than can be counted".into());
    }
    let transfer = transfer_bytes(controller.mdts, queue);
    // Zeroes are no limits, or none that are told.
    let specific = data.nvm_controller.unwrap_or(&[0; DATA_BYTES]);
    let Ok(specific) = identify::NvmController::ref_from_bytes(specific) else {
        unreachable!("Identify data is as long as its structures")
    };
    let copy = copy(&controller, &namespace, metadata_bytes);
    let zone_format = data.zoned_namespace.map(|data| {
        let at = ZONE_FORMATS + namespace.format_index() * ZONE_FORMAT_BYTES;
        u32::from(data[at + ZONE_EXTENSION_AT]) * ZONE_EXTENSION_UNIT
    });
    let facts = Facts {
        nguid: Some(namespace.nguid).filter(|nguid| *nguid != [0; 16]),
        protection: Protection::of(&namespace, metadata_bytes, data.nvm_namespace),
        zone_extension_bytes: zone_format.unwrap_or(ZONE_EXTENSION_BYTES_MAX),
        segments_max: queue
            .segments_max
            .map_or(SEGMENTS_MAX, |count| count.clamp(1, SEGMENTS_MAX.into()) as u32),
        nqn: nqn(&controller.subnqn),
        no_copy: copy.err(),
    };
    let optimal = u64::from(namespace.optimal_write_blocks()) << block_shift;
    let mut commands = commands(&controller, &namespace, specific.vsl, transfer);
    // It would have to bring the protection information, which nobody has whom it is offered to.
    commands.compare &= facts.protection.is_none();
    let limits = Limits {
        block_shift,
        blocks,
        transfer_bytes_max: transfer as u32,
        write_zeroes_bytes_max: identify::size_limit(specific.wzsl, PAGE_BYTES as u32),
        discard: specific.discard_limits(),
        optimal_write_bytes: optimal.clamp(PAGE_BYTES, TRANSFER_BYTES_MAX) as u32,
        read_only: namespace.nsattr & 1 != 0 || queue.read_only,
        volatile_write_cache: controller.vwc & 1 != 0
            && !identify::vendor::has_no_write_cache(&namespace.vs),
        commands,
        copy: copy.unwrap_or(CopyLimits::NONE),
        metadata_bytes,
        passthrough: Passthrough::NONE,
        lends_reads: false,
        immediate: false,
    };
    Ok((limits, facts, shape))
}

/// What the device's own Copy takes, or why it is not used.
fn copy(
    controller: &identify::Controller,
    namespace: &identify::Namespace,
    metadata_bytes: u16,
) -> Result<CopyLimits, &'static str> {
    if controller.oncs.get() & oncs::COPY == 0 {
        return Err("the device has none");
    }
    if controller.cdfs.get() & Format::Short.bit() == 0 {
        return Err("the device's does not take descriptor format 0h");
    }
    // Protection information would have to be told in each range.
    if metadata_bytes != 0 {
        return Err("not used, as blocks have metadata");
    }
    let limits = CopyLimits {
        ranges_max: u16::from(namespace.msrc_z) + 1,
        range_blocks_max: namespace.mssrl.get().into(),
        blocks_max: namespace.mcl.get(),
    };
    if limits.is_offered() { Ok(limits) } else { Err("the device's takes no blocks") }
}

/// An NQN up to its terminating zero; none if it is empty, or no text.
fn nqn(field: &[u8; 256]) -> Option<Arc<str>> {
    let len = field.iter().position(|&byte| byte == 0)?;
    let text = std::str::from_utf8(&field[..len]).ok()?;
    (!text.is_empty()).then(|| text.into())
}

/// What the device, the driver and the pool all take: of memory in pages, of which no two are beside
/// one another.
fn transfer_bytes(mdts: u8, queue: &QueueLimits) -> u64 {
    let device = match mdts {
        0 => TRANSFER_BYTES_MAX,
        // Bits that are shifted out are gone without a word.
        shift => PAGE_BYTES
            .checked_shl(shift.into())
            .filter(|bytes| *bytes >= PAGE_BYTES)
            .unwrap_or(TRANSFER_BYTES_MAX),
    };
    let pieces = queue.segments_max.map_or(TRANSFER_BYTES_MAX, |count| count * PAGE_BYTES);
    let driver = queue.bytes_max.unwrap_or(TRANSFER_BYTES_MAX);
    let most = TRANSFER_BYTES_MAX.min(device).min(pieces).min(driver);
    // Whole pages, two at least: less cannot be told in MDTS.
    (most & !(PAGE_BYTES - 1)).max(2 * PAGE_BYTES)
}

fn commands(
    controller: &identify::Controller,
    namespace: &identify::Namespace,
    vsl: u8,
    transfer: u64,
) -> Commands {
    let can = |bit: u16| controller.oncs.get() & bit != 0;
    let write_zeroes = can(oncs::WRITE_ZEROES);
    // Bits 2:0: deallocated blocks read as zeroes; bit 3: Write Zeroes may deallocate.
    let zeroes = namespace.dlfeat & 7 == 1 && (!write_zeroes || namespace.dlfeat & 8 != 0);
    let most = identify::size_limit(vsl, PAGE_BYTES as u32);
    let verify = can(oncs::VERIFY) && transfer <= u64::from(most);
    Commands {
        write_zeroes,
        deallocate: can(oncs::DATASET_MANAGEMENT) && zeroes,
        write_uncorrectable: can(oncs::WRITE_UNCORRECTABLE),
        compare: can(oncs::COMPARE),
        // The driver passes no fused commands.
        compare_and_write: false,
        verify,
        checksum: verify && identify::vendor::gives_checksums(&namespace.vs),
        // Nobody asks the device.
        allocation: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::limits::DiscardLimits;
    use zerocopy::{FromZeros, IntoBytes};

    fn controller(edit: impl FnOnce(&mut identify::Controller)) -> [u8; DATA_BYTES] {
        let mut data = identify::Controller::new_zeroed();
        data.oncs =
            (oncs::COMPARE | oncs::DATASET_MANAGEMENT | oncs::WRITE_ZEROES | oncs::VERIFY).into();
        data.vwc = 1;
        data.mdts = 7;
        edit(&mut data);
        data.as_bytes().try_into().unwrap()
    }

    fn namespace(edit: impl FnOnce(&mut identify::Namespace)) -> [u8; DATA_BYTES] {
        let mut data = identify::Namespace::new_zeroed();
        data.nsze = 1000.into();
        data.lbaf[0].lbads = 9;
        data.lbaf[1].lbads = 12;
        data.dlfeat = 9;
        edit(&mut data);
        data.as_bytes().try_into().unwrap()
    }

    fn of(
        controller: &[u8; DATA_BYTES],
        namespace: &[u8; DATA_BYTES],
        queue: QueueLimits,
    ) -> Result<(Limits, Facts), String> {
        let identified = Identified {
            controller,
            namespace,
            nvm_controller: None,
            nvm_namespace: None,
            zoned_namespace: None,
        };
        limits(&identified, &queue).map(|(limits, facts, _)| (limits, facts))
    }

    fn plain(edit: impl FnOnce(&mut identify::Namespace)) -> Result<(Limits, Facts), String> {
        of(&controller(|_| ()), &namespace(edit), QueueLimits::default())
    }

    #[test]
    fn a_plain_namespace() {
        let (limits, facts) = plain(|_| ()).unwrap();
        assert_eq!((limits.block_shift, limits.blocks), (9, 1000));
        assert_eq!(limits.transfer_bytes_max, 512 << 10);
        assert!(limits.volatile_write_cache && !limits.read_only);
        let commands = limits.commands;
        assert!(
            commands.compare && commands.deallocate && commands.write_zeroes && commands.verify
        );
        assert!(!commands.compare_and_write && !commands.write_uncorrectable);
        assert_eq!(limits.passthrough, Passthrough::NONE);
        let expected = Facts {
            zone_extension_bytes: ZONE_EXTENSION_BYTES_MAX,
            no_copy: Some("the device has none"),
            segments_max: SEGMENTS_MAX,
            ..Facts::default()
        };
        assert_eq!(facts, expected);
        let (limits, _) = plain(|data| (data.flbas, data.nsattr) = (1, 1)).unwrap();
        assert!(limits.block_shift == 12 && limits.read_only);
    }

    #[test]
    fn transfers_suit_the_device_the_driver_and_the_pool() {
        let bytes = |mdts, bytes_max, segments_max| {
            let queue = QueueLimits { bytes_max, segments_max, ..QueueLimits::default() };
            let controller = controller(|data| data.mdts = mdts);
            of(&controller, &namespace(|_| ()), queue).unwrap().0.transfer_bytes_max
        };
        assert_eq!(bytes(0, None, None), 1 << 20);
        assert_eq!(bytes(5, None, None), 128 << 10);
        assert_eq!(bytes(0, Some(256 << 10), None), 256 << 10);
        assert_eq!(bytes(0, None, Some(127)), 127 * 4096);
        assert_eq!(bytes(7, Some(1280 << 10), Some(33)), 33 * 4096);
        assert_eq!(bytes(255, Some(1), Some(1)), 8192);
        for mdts in [52, 63, 64] {
            assert_eq!(bytes(mdts, None, None), 1 << 20, "{mdts}");
        }
    }

    #[test]
    fn verify_takes_a_transfer_or_is_not_offered_and_others_have_limits_of_their_own() {
        let limits_of = |data: identify::NvmController| {
            let mut nvm = [0; DATA_BYTES];
            nvm[..data.as_bytes().len()].copy_from_slice(data.as_bytes());
            let (controller, namespace) = (controller(|_| ()), namespace(|_| ()));
            let identified = Identified {
                controller: &controller,
                namespace: &namespace,
                nvm_controller: Some(&nvm),
                nvm_namespace: None,
                zoned_namespace: None,
            };
            limits(&identified, &QueueLimits::default()).unwrap().0
        };
        let offered = |vsl, wzsl| {
            let mut data = identify::NvmController::new_zeroed();
            (data.vsl, data.wzsl) = (vsl, wzsl);
            let limits = limits_of(data);
            assert!(limits.commands.write_zeroes);
            assert_eq!(limits.discard, DiscardLimits::UNLIMITED);
            (limits.commands.verify, limits.write_zeroes_bytes_max)
        };
        assert_eq!(offered(0, 0), (true, u32::MAX));
        assert_eq!(offered(7, 11), (true, 8 << 20));
        assert_eq!(offered(6, 1), (false, 8192));
        assert_eq!(offered(19, 19), (true, 1 << 31));
        assert_eq!(offered(20, 255), (true, u32::MAX));
        let mut data = identify::NvmController::new_zeroed();
        (data.dmrl, data.dmrsl, data.dmsl) = (2, 100.into(), 150.into());
        let discard = DiscardLimits { ranges_max: 2, range_blocks_max: 100, blocks_max: 150 };
        assert_eq!(limits_of(data).discard, discard);
    }

    #[test]
    fn what_deallocated_blocks_read_as_decides() {
        let deallocates =
            |dlfeat| plain(|data| data.dlfeat = dlfeat).unwrap().0.commands.deallocate;
        assert!(deallocates(9) && !deallocates(1) && !deallocates(0) && !deallocates(2));
    }

    #[test]
    fn copy_is_offered_as_the_device_has_it() {
        let with = |oncs: u16, cdfs: u16, mcl: u32, metadata: u16| {
            let controller = controller(|data| {
                (data.oncs, data.cdfs) = (oncs.into(), cdfs.into());
                data.subnqn[..7].copy_from_slice(b"nqn.x:y");
            });
            let namespace = namespace(|data| {
                (data.mssrl, data.mcl, data.msrc_z) = (128.into(), mcl.into(), 127);
                data.lbaf[0].ms = metadata.into();
            });
            let (limits, facts) = of(&controller, &namespace, QueueLimits::default()).unwrap();
            assert_eq!(facts.nqn.as_deref(), Some("nqn.x:y"));
            assert_eq!(limits.copy.is_offered(), facts.no_copy.is_none());
            limits.copy
        };
        let offered = CopyLimits { ranges_max: 128, range_blocks_max: 128, blocks_max: 128 };
        assert_eq!(with(oncs::COPY, 1, 128, 0), offered);
        assert_eq!(with(oncs::COPY, 0xf, 128, 0), offered);
        for (oncs, cdfs, mcl, metadata) in [
            (oncs::VERIFY, 1, 128, 0),
            (oncs::COPY, 0xe, 128, 0),
            (oncs::COPY, 1, 0, 0),
            (oncs::COPY, 1, 128, 8),
        ] {
            assert_eq!(with(oncs, cdfs, mcl, metadata), CopyLimits::NONE);
        }
    }

    #[test]
    fn zone_descriptors_have_the_extension_of_the_format_in_use() {
        let controller = controller(|_| ());
        let namespace = namespace(|data| data.flbas = 1);
        let mut zoned = [0; DATA_BYTES];
        zoned[2816 + 8] = 9;
        zoned[2816 + 16 + 8] = 2;
        let identified = Identified {
            controller: &controller,
            namespace: &namespace,
            nvm_controller: None,
            nvm_namespace: None,
            zoned_namespace: Some(&zoned),
        };
        let (_, facts, _) = limits(&identified, &QueueLimits::default()).unwrap();
        assert_eq!(facts.zone_extension_bytes, 128);
    }

    #[test]
    fn metadata_is_told_or_refused() {
        let with = |flbas, dps, bytes: u16| {
            plain(|data| {
                (data.flbas, data.dps) = (flbas, dps);
                data.lbaf[0].ms = bytes.into();
            })
        };
        let (limits, facts) = with(0, 0, 8).unwrap();
        assert!(limits.metadata_bytes == 8 && facts.protection.is_none());
        assert!(limits.commands.compare, "by whoever brings metadata, as with reads and writes");
        let (limits, facts) = with(0, 1, 8).unwrap();
        assert!(facts.protection.is_some() && !limits.commands.compare);
        assert!(with(0, 1, 64).unwrap().1.protection.is_none());
        assert!(with(1 << 4, 0, 8).unwrap_err().contains("extended LBA"));
        assert!(with(1 << 4, 0, 0).is_ok());
    }

    #[test]
    fn a_device_that_talks_nonsense_is_refused() {
        assert!(plain(|data| data.lbaf[0].lbads = 0).unwrap_err().contains("not formatted"));
        assert!(plain(|data| data.lbaf[0].lbads = 16).unwrap_err().contains("65536"));
        assert!(plain(|data| data.lbaf[0].lbads = 255).is_err());
        assert!(plain(|data| data.nsze = u64::MAX.into()).is_err());
        assert!(plain(|data| data.flbas = 0xff).is_err());
    }
}
