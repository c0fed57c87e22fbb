//! What a controller and its namespace say of themselves, as far as a host needs it.

use crate::{ANA_GROUPS_MAX, Reason};
use nvme::Limits;
use nvme::copy::{self, Format};
use nvme::identify::{self, DescriptorHeader, Nidt, oacs, oncs};
use nvme::limits::{Commands, CopyLimits, DiscardLimits, Passthrough};
use nvme::log::ana::AnaState;
use std::fmt;
use std::time::Duration;
use zerocopy::FromBytes;

/// Smallest memory page, the unit of MDTS: CAP.MPSMIN of fabrics controllers is 0.
const PAGE_BYTES: u32 = 4096;

/// Largest data transfer that front doors make, in bytes.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// Namespaces named in a message.
const NAMED_MAX: usize = 16;

/// Identify Controller, as far as a host needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controller {
    /// Controller id.
    pub cntlid: u16,
    /// Model, trimmed.
    pub model: String,
    /// Serial number, trimmed.
    pub serial: String,
    /// Firmware revision, trimmed.
    pub firmware: String,
    /// Largest data transfer of one command in bytes, as far as it concerns us.
    pub transfer_bytes_max: u32,
    /// Data that may travel in the capsule of an I/O command, in bytes.
    pub in_capsule_bytes: u32,
    /// Commands outstanding on an I/O queue; 0: as many as it has entries.
    pub maxcmd: u16,
    /// Granularity of the keep alive timer.
    pub keep_alive_granularity: Duration,
    /// The keep alive timer is traffic based (TBKAS).
    pub traffic_based: bool,
    /// How long after an association has ended its commands may still be carried out (CQT); zero where
    /// the controller does not say.
    pub command_quiesce_time: Duration,
    /// It ends a connection only when none of its commands is being carried out any more.
    pub drains: bool,
    /// The start of one of our targets that it is of: [`identify::vendor::instance`].
    pub instance: Option<[u8; 16]>,
    /// Command Retry Delay Times 1 to 3.
    pub retry_delays: [Duration; 3],
    /// Asynchronous events supported (OAES).
    pub oaes: u32,
    /// ANA groups; 0: no ANA reporting.
    pub ana_groups: u32,
    /// Aborts that may be outstanding.
    pub aborts_max: u16,
    /// I/O queues granted.
    pub io_queues: u16,
    /// Descriptor formats of Copy that may be used, a bit each ([`Format::bit`]): those that it has, less
    /// those that it did not let us enable. None where there is no Copy.
    pub copy_formats: u16,
    /// One of ours: it copies each source range as if it were read whole before any of it is written, and
    /// one after another. The specification promises nothing of ranges that overlap.
    pub copies_overlapping: bool,
    oncs: u16,
    oacs: u16,
    vwc: bool,
}

/// What tells one namespace from another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// NGUID, zero if there is none.
    pub nguid: [u8; 16],
    /// UUID, zero if there is none.
    pub uuid: [u8; 16],
    /// EUI-64, zero if there is none.
    pub eui64: [u8; 8],
}

/// The namespace that the association is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Namespace id.
    pub nsid: u32,
    /// What it can do.
    pub limits: Limits,
    /// Which it is.
    pub identity: Identity,
    /// Its ANA group.
    pub ana_group: u32,
    /// Its state; Optimized where there is no ANA.
    pub ana: AnaState,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, bytes): (&str, &[u8]) = match self {
            _ if self.uuid != [0; 16] => ("UUID", &self.uuid),
            _ if self.nguid != [0; 16] => ("NGUID", &self.nguid),
            _ if self.eui64 != [0; 8] => ("EUI-64", &self.eui64),
            _ => return f.write_str("no identifier"),
        };
        write!(f, "{name} ")?;
        bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Controller {
    /// Reads Identify Controller data.
    pub(crate) fn parse(data: &[u8]) -> Result<Controller, Reason> {
        let malformed = || Reason::Malformed { what: "Identify Controller data" };
        let data = identify::Controller::read_from_bytes(data).map_err(|_| malformed())?;
        let ana_groups = if data.cmic & 1 << 3 == 0 { 0 } else { data.nanagrpid.get() };
        if ana_groups > ANA_GROUPS_MAX {
            return Err(malformed());
        }
        let mdts = match data.mdts {
            0 => TRANSFER_BYTES_MAX,
            shift => PAGE_BYTES
                .checked_shl(shift.into())
                .filter(|&b| b >= PAGE_BYTES)
                .unwrap_or(TRANSFER_BYTES_MAX),
        };
        // A capsule holds the command and, at offset ICDOFF, data.
        let capsule = data.ioccsz.get().saturating_mul(16);
        let in_capsule_bytes = match data.icdoff.get() {
            0 => capsule.saturating_sub(64).min(TRANSFER_BYTES_MAX),
            _ => 0,
        };
        let units = |count: u16| Duration::from_millis(u64::from(count) * 100);
        Ok(Controller {
            cntlid: data.cntlid.get(),
            model: text(&data.mn),
            serial: text(&data.sn),
            firmware: text(&data.fr),
            transfer_bytes_max: mdts.min(TRANSFER_BYTES_MAX),
            in_capsule_bytes,
            maxcmd: data.maxcmd.get(),
            keep_alive_granularity: units(data.kas.get()),
            traffic_based: data.ctratt.get() & 1 << 6 != 0,
            command_quiesce_time: Duration::from_millis(data.cqt_ms.get().into()),
            drains: identify::vendor::flags(&data.vs) & identify::vendor::DRAINS != 0,
            instance: identify::vendor::instance(&data.vs),
            retry_delays: data.crdt.map(|time| units(time.get())),
            oaes: data.oaes.get(),
            ana_groups,
            aborts_max: u16::from(data.acl_z) + 1,
            io_queues: 0,
            copy_formats: match data.oncs.get() & oncs::COPY {
                0 => 0,
                _ => data.cdfs.get() & copy::FORMATS,
            },
            copies_overlapping: identify::vendor::flags(&data.vs) & identify::vendor::DRAINS != 0,
            oncs: data.oncs.get(),
            oacs: data.oacs.get(),
            vwc: data.vwc & 1 != 0,
        })
    }
}

impl Controller {
    /// It tells when a command is to be tried again.
    pub(crate) fn delays_retries(&self) -> bool {
        self.retry_delays.iter().any(|time| !time.is_zero())
    }

    /// It has something that a host must enable by Host Behavior Support (NVMe Base 2.1, Figure 407).
    pub(crate) fn wants_host_behavior(&self) -> bool {
        self.delays_retries() || self.copy_formats & copy::FORMATS_TO_ENABLE != 0
    }
}

/// Reads Identify Namespace data; `None` for a namespace that is not there.
pub(crate) fn namespace(
    nsid: u32,
    data: &[u8],
    controller: &Controller,
) -> Result<Option<Namespace>, Reason> {
    let Ok(data) = identify::Namespace::read_from_bytes(data) else {
        return Err(Reason::Malformed { what: "Identify Namespace data" });
    };
    if data.nsze.get() == 0 {
        return Ok(None);
    }
    let unsupported = |what: String| Err(Reason::Unsupported { nsid, what });
    let format = usize::from(data.flbas & 0xf | data.flbas >> 1 & 0x30);
    let Some(format) = data.lbaf.get(format) else {
        return unsupported(format!("LBA format {format}"));
    };
    let block_shift = format.lbads;
    if block_shift != 9 && block_shift != 12 {
        return unsupported(format!("blocks of 2^{block_shift} bytes; 512 and 4096 are"));
    }
    if format.ms.get() != 0 {
        return unsupported(format!("{} bytes of metadata per block", format.ms.get()));
    }
    if data.nsze.get() > u64::MAX >> block_shift {
        return Err(Reason::Malformed { what: "Identify Namespace data" });
    }
    let can = |bit: u16| controller.oncs & bit != 0;
    let write_zeroes = can(oncs::WRITE_ZEROES);
    // Bits 2:0: deallocated blocks read as zeroes; bit 3: Write Zeroes may deallocate.
    let reads_zeroes = data.dlfeat & 7 == 1 && (!write_zeroes || data.dlfeat & 8 != 0);
    let optimal = u64::from(data.optimal_write_blocks()) << block_shift;
    let limits = Limits {
        block_shift,
        blocks: data.nsze.get(),
        transfer_bytes_max: controller.transfer_bytes_max,
        write_zeroes_bytes_max: u32::MAX,
        discard: DiscardLimits::UNLIMITED,
        optimal_write_bytes: optimal.clamp(PAGE_BYTES.into(), TRANSFER_BYTES_MAX.into()) as u32,
        read_only: data.nsattr & 1 != 0,
        // Whether this one has none of it stands in another structure (VWCNP, NVMe Base 2.1, Figure 320), which is
        // not asked for: bits 5:4 of NSFEAT here are OPTPERF. Our own targets say so here too.
        volatile_write_cache: controller.vwc && !identify::vendor::has_no_write_cache(&data.vs),
        commands: Commands {
            write_zeroes,
            deallocate: can(oncs::DATASET_MANAGEMENT) && reads_zeroes,
            write_uncorrectable: can(oncs::WRITE_UNCORRECTABLE),
            compare: can(oncs::COMPARE),
            compare_and_write: false,
            verify: can(oncs::VERIFY),
            checksum: can(oncs::VERIFY) && identify::vendor::gives_checksums(&data.vs),
            // Whether it keeps track of that stands in another structure, which is asked for when it matters (TLBAAG).
            allocation: controller.oacs & oacs::GET_LBA_STATUS != 0 && data.dlfeat & 7 == 1,
        },
        copy: copy_limits(&data, controller),
        metadata_bytes: 0,
        passthrough: Passthrough::NONE,
        lends_reads: false,
        immediate: false,
    };
    Ok(Some(Namespace {
        nsid,
        limits,
        identity: Identity { nguid: data.nguid, uuid: [0; 16], eui64: data.eui64 },
        ana_group: data.anagrpid.get(),
        ana: AnaState::OPTIMIZED,
    }))
}

/// What one Copy may ask for, where there is a Copy and its format 0h.
fn copy_limits(data: &identify::Namespace, controller: &Controller) -> CopyLimits {
    if controller.copy_formats & Format::Short.bit() == 0 {
        return CopyLimits::NONE;
    }
    CopyLimits {
        ranges_max: u16::from(data.msrc_z) + 1,
        range_blocks_max: data.mssrl.get().into(),
        blocks_max: data.mcl.get(),
    }
}

/// Takes limits out of the Identify Controller data structure of the NVM command set.
pub(crate) fn command_set(data: &[u8], limits: &mut Limits) -> Result<(), Reason> {
    let Ok(data) = identify::NvmController::ref_from_bytes(data) else {
        return Err(Reason::Malformed { what: "Identify data of the NVM command set" });
    };
    limits.write_zeroes_bytes_max = identify::size_limit(data.wzsl, PAGE_BYTES);
    limits.discard = data.discard_limits();
    // Whoever verifies does it in pieces as large as those that are read.
    let takes_reads = limits.transfer_bytes_max <= identify::size_limit(data.vsl, PAGE_BYTES);
    limits.commands.verify &= takes_reads;
    limits.commands.checksum &= takes_reads;
    Ok(())
}

/// Takes identifiers out of a Namespace Identification Descriptor list.
pub(crate) fn descriptors(mut list: &[u8], identity: &mut Identity) -> Result<(), Reason> {
    let malformed = Reason::Malformed { what: "the Namespace Identification Descriptor list" };
    while let Ok((head, rest)) = DescriptorHeader::read_from_prefix(list) {
        if head.nidl == 0 {
            break;
        }
        let Some((bytes, rest)) = rest.split_at_checked(head.nidl.into()) else {
            return Err(malformed);
        };
        match (Nidt(head.nidt), bytes.len()) {
            (Nidt::NGUID, 16) => identity.nguid.copy_from_slice(bytes),
            (Nidt::UUID, 16) => identity.uuid.copy_from_slice(bytes),
            (Nidt::EUI64, 8) => identity.eui64.copy_from_slice(bytes),
            (Nidt::NGUID | Nidt::UUID | Nidt::EUI64, _) => return Err(malformed),
            _ => {}
        }
        list = rest;
    }
    Ok(())
}

/// The ids in a list of active namespaces.
pub(crate) fn active(list: &[u8]) -> impl Iterator<Item = u32> {
    list.chunks_exact(4)
        .map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")))
        .take_while(|&nsid| nsid != 0)
}

/// Chooses the namespace from a list of active ones.
pub(crate) fn choose(list: &[u8], wanted: Option<u32>) -> Result<u32, Reason> {
    let found: Vec<u32> = active(list).collect();
    match (wanted, found.as_slice()) {
        (Some(nsid), _) if found.contains(&nsid) => Ok(nsid),
        (None, [only]) => Ok(*only),
        (None, [_, _, ..]) => Err(Reason::ChooseNamespace { found: names(&found) }),
        _ => Err(Reason::NoNamespace { nsid: wanted, found: names(&found) }),
    }
}

fn names(nsids: &[u32]) -> String {
    if nsids.is_empty() {
        return "none".into();
    }
    let named: Vec<String> = nsids.iter().take(NAMED_MAX).map(u32::to_string).collect();
    let more = if nsids.len() > NAMED_MAX { ", ..." } else { "" };
    format!("{}{more}", named.join(", "))
}

/// Padded ASCII from the wire, fit to be shown.
fn text(field: &[u8]) -> String {
    let printable = |&byte: &u8| if matches!(byte, b' '..=b'~') { char::from(byte) } else { '?' };
    let len = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    field[..len].iter().map(printable).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromZeros, IntoBytes};

    #[test]
    fn namespaces_are_chosen_or_listed() {
        let list = |nsids: &[u32]| {
            let mut bytes: Vec<u8> = nsids.iter().flat_map(|nsid| nsid.to_le_bytes()).collect();
            bytes.resize(4096, 0);
            bytes
        };
        assert_eq!(choose(&list(&[7]), None), Ok(7));
        assert_eq!(choose(&list(&[1, 2]), Some(2)), Ok(2));
        let several = choose(&list(&[1, 2]), None).unwrap_err();
        assert!(several.to_string().contains("1, 2"), "{several}");
        let missing = choose(&list(&[1, 2]), Some(3)).unwrap_err();
        assert!(missing.to_string().contains("no namespace 3"), "{missing}");
        assert!(choose(&list(&[]), None).is_err());
    }

    #[test]
    fn hostile_identify_data_is_refused() {
        let controller = Controller { transfer_bytes_max: 4096, ..Controller::default() };
        let mut data = identify::Namespace::new_zeroed();
        assert_eq!(namespace(1, data.as_bytes(), &controller), Ok(None));
        data.nsze = u64::MAX.into();
        data.lbaf[0].lbads = 63;
        assert!(namespace(1, data.as_bytes(), &controller).is_err());
        data.lbaf[0].lbads = 12;
        assert!(namespace(1, data.as_bytes(), &controller).is_err(), "too many bytes");
        data.nsze = 100.into();
        assert!(namespace(1, data.as_bytes(), &controller).is_ok());
        data.lbaf[0].ms = 8.into();
        assert!(namespace(1, data.as_bytes(), &controller).is_err(), "metadata");
        data.flbas = 0xff;
        assert!(namespace(1, data.as_bytes(), &controller).is_err(), "no such format");
        assert!(namespace(1, &data.as_bytes()[1..], &controller).is_err(), "cut");
    }

    #[test]
    fn the_write_cache_is_the_controllers_whatever_the_namespace_says_of_its_performance() {
        let mut data = identify::Namespace::new_zeroed();
        (data.nsze, data.lbaf[0].lbads) = (100.into(), 12);
        for (vwc, nsfeat) in
            [(0, 0), (0, 0xff), (1, 0), (1, 1 << 4), (1, 0b10 << 4), (1, 0b11 << 4), (1, 0xff)]
        {
            let mut of = identify::Controller::new_zeroed();
            of.vwc = vwc;
            let controller = Controller::parse(of.as_bytes()).unwrap();
            data.nsfeat = nsfeat;
            data.npwg_z = 15.into();
            let found = namespace(1, data.as_bytes(), &controller).unwrap().unwrap();
            assert_eq!(found.limits.volatile_write_cache, vwc == 1, "NSFEAT {nsfeat:#x}");
            let optimal = if nsfeat & 0b11 << 4 != 0 { 16 * 4096 } else { PAGE_BYTES };
            assert_eq!(found.limits.optimal_write_bytes, optimal, "NSFEAT {nsfeat:#x}");
            // One of ours without a cache, beside others that have one.
            let mut ours = data;
            identify::vendor::set_has_no_write_cache(&mut ours.vs);
            let found = namespace(1, ours.as_bytes(), &controller).unwrap().unwrap();
            assert!(!found.limits.volatile_write_cache);
        }
    }

    #[test]
    fn what_one_command_takes_the_command_set_tells() {
        let mut data = identify::Namespace::new_zeroed();
        (data.nsze, data.lbaf[0].lbads) = (100.into(), 12);
        identify::vendor::set_gives_checksums(&mut data.vs);
        let mut of = identify::Controller::new_zeroed();
        (of.oncs, of.mdts) = (oncs::VERIFY.into(), 5);
        let controller = Controller::parse(of.as_bytes()).unwrap();
        let told = |bytes: &[u8]| {
            let mut page = [0; 4096];
            page[..bytes.len()].copy_from_slice(bytes);
            let mut limits = namespace(1, data.as_bytes(), &controller).unwrap().unwrap().limits;
            command_set(&page, &mut limits).unwrap();
            limits
        };
        let without = told(&[]);
        let expected = (u32::MAX, DiscardLimits::UNLIMITED);
        assert_eq!((without.write_zeroes_bytes_max, without.discard), expected);
        assert!(without.commands.verify && without.commands.checksum);
        // VSL, WZSL, WUSL, DMRL, DMRSL and DMSL.
        let limits = told(&[5, 1, 0, 2, 0, 1, 0, 0, 0x34, 0x12, 0, 0, 0, 0, 0, 0]);
        let discard = DiscardLimits { ranges_max: 2, range_blocks_max: 256, blocks_max: 0x1234 };
        assert_eq!((limits.write_zeroes_bytes_max, limits.discard), (8192, discard));
        assert!(limits.commands.verify && limits.commands.checksum);
        let less = told(&[4]);
        assert!(!less.commands.verify && !less.commands.checksum, "less than a transfer");
    }

    #[test]
    fn there_is_a_copy_where_the_controller_has_one_and_its_limits_are_not_zero() {
        let mut data = identify::Controller::new_zeroed();
        data.cdfs = 0b1101.into();
        let parse = |data: &identify::Controller| Controller::parse(data.as_bytes()).unwrap();
        assert_eq!(parse(&data).copy_formats, 0);
        data.oncs = oncs::COPY.into();
        let controller = parse(&data);
        assert_eq!(controller.copy_formats, 0b1101);
        let mut data = identify::Namespace::new_zeroed();
        (data.nsze, data.lbaf[0].lbads) = (100.into(), 12);
        let limits = |data: &identify::Namespace, controller: &Controller| {
            namespace(1, data.as_bytes(), controller).unwrap().unwrap().limits.copy
        };
        assert!(!limits(&data, &controller).is_offered());
        (data.mssrl, data.mcl, data.msrc_z) = (8.into(), 20.into(), 255);
        let most = CopyLimits { ranges_max: 256, range_blocks_max: 8, blocks_max: 20 };
        assert_eq!(limits(&data, &controller), most);
        let without = Controller { copy_formats: 0b1100, ..controller };
        assert_eq!(limits(&data, &without), CopyLimits::NONE);
    }

    #[test]
    fn descriptors_are_read_and_bounded() {
        let mut list = vec![3, 16, 0, 0];
        list.extend([9; 16]);
        let mut identity = Identity::default();
        assert_eq!(descriptors(&list, &mut identity), Ok(()));
        assert_eq!(identity.uuid, [9; 16]);
        assert!(descriptors(&list[..10], &mut identity).is_err());
        assert!(descriptors(&[3, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &mut identity).is_err());
    }
}
