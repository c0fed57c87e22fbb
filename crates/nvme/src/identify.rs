//! Identify data structures (NVMe Base 2.1, section 5.1.13; NVM 1.1, section 4.1.5).

use crate::limits::DiscardLimits;
use crate::wire::{open_enum, wire};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of every Identify data structure in bytes.
pub const DATA_BYTES: usize = 4096;

/// Entries of a namespace list (NVMe Base 2.1, section 4.4.2).
pub const NAMESPACE_LIST_ENTRIES: usize = 1024;

open_enum! {
    /// Controller or Namespace Structure: what Identify returns (NVMe Base 2.1, Figure 310).
    pub enum Cns: u8 {
        /// Identify Namespace data structure of the NVM command set.
        NAMESPACE = 0x00,
        /// Identify Controller data structure.
        CONTROLLER = 0x01,
        /// Active Namespace ID list.
        ACTIVE_NAMESPACES = 0x02,
        /// Namespace Identification Descriptor list.
        NAMESPACE_DESCRIPTORS = 0x03,
        /// I/O Command Set specific Identify Namespace data structure.
        COMMAND_SET_NAMESPACE = 0x05,
        /// I/O Command Set specific Identify Controller data structure.
        COMMAND_SET_CONTROLLER = 0x06,
        /// I/O Command Set specific Active Namespace ID list.
        COMMAND_SET_ACTIVE_NAMESPACES = 0x07,
        /// I/O Command Set Independent Identify Namespace data structure.
        INDEPENDENT_NAMESPACE = 0x08,
        /// Controllers attached to a namespace.
        NAMESPACE_CONTROLLERS = 0x12,
        /// Controllers of the subsystem.
        CONTROLLERS = 0x13,
        /// Identify I/O Command Set data structure.
        COMMAND_SETS = 0x1c,
    }

    /// Namespace Identifier Type (NVMe Base 2.1, Figure 315).
    pub enum Nidt: u8 {
        /// IEEE Extended Unique Identifier, 8 bytes.
        EUI64 = 1,
        /// Namespace Globally Unique Identifier, 16 bytes.
        NGUID = 2,
        /// Namespace UUID, 16 bytes.
        UUID = 3,
        /// Command Set Identifier, 1 byte.
        CSI = 4,
    }

    /// Controller Type (NVMe Base 2.1, Figure 312, byte 111).
    pub enum ControllerType: u8 {
        /// I/O controller.
        IO = 1,
        /// Discovery controller.
        DISCOVERY = 2,
        /// Administrative controller.
        ADMINISTRATIVE = 3,
    }

    /// Discovery Controller Type (NVMe Base 2.1, Figure 312, DCTYPE).
    pub enum DiscoveryType: u8 {
        /// Not reported; of controllers of other types.
        NOT_REPORTED = 0,
        /// Direct discovery controller (DDC): tells what is in its own subsystems.
        DIRECT = 1,
        /// Centralized discovery controller (CDC): tells what others have registered.
        CENTRALIZED = 2,
    }
}

wire! {
    /// Power State Descriptor (NVMe Base 2.1, Figure 313).
    pub struct PowerState[32] {
        /// Maximum power in centiwatts.
        pub mp: U16,
        /// Reserved.
        pub reserved2: u8,
        /// Bit 0: scale of MP; bit 1: non-operational.
        pub flags: u8,
        /// Entry latency in microseconds.
        pub enlat: U32,
        /// Exit latency in microseconds.
        pub exlat: U32,
        /// Relative throughput, latency and power figures.
        pub relative: [u8; 20],
    }

    /// Identify Controller data structure (NVMe Base 2.1, Figure 312).
    pub struct Controller[4096] {
        /// PCI vendor id.
        pub vid: U16,
        /// PCI subsystem vendor id.
        pub ssvid: U16,
        /// Serial number, ASCII, padded with spaces.
        pub sn: [u8; 20],
        /// Model number, ASCII, padded with spaces.
        pub mn: [u8; 40],
        /// Firmware revision, ASCII, padded with spaces.
        pub fr: [u8; 8],
        /// Recommended arbitration burst as a power of two.
        pub rab: u8,
        /// IEEE OUI.
        pub ieee: [u8; 3],
        /// Multi-path and sharing: bit 0 several ports, 1 several controllers, 3 ANA reporting.
        pub cmic: u8,
        /// Maximum data transfer size as a power of two in units of CAP.MPSMIN; 0 is unlimited.
        pub mdts: u8,
        /// Controller id.
        pub cntlid: U16,
        /// Version.
        pub ver: U32,
        /// RTD3 resume latency in microseconds.
        pub rtd3r: U32,
        /// RTD3 entry latency in microseconds.
        pub rtd3e: U32,
        /// Optional asynchronous events supported; see [`crate::event::notice`].
        pub oaes: U32,
        /// Controller attributes: bit 0 128-bit host id, 6 traffic based keep alive.
        pub ctratt: U32,
        /// Read Recovery Levels and NVM subsystem fields that fabrics targets leave zero.
        pub reserved100: [u8; 11],
        /// Controller type.
        pub cntrltype: u8,
        /// FRU globally unique identifier.
        pub fguid: [u8; 16],
        /// Command Retry Delay Times 1 to 3 in units of 100 ms.
        pub crdt: [U16; 3],
        /// Controller reachability capabilities, and reserved.
        pub reserved134: [u8; 119],
        /// NVM subsystem report.
        pub nvmsr: u8,
        /// VPD write cycle information.
        pub vwci: u8,
        /// Management endpoint capabilities.
        pub mec: u8,
        /// Optional admin command support; see [`oacs`].
        pub oacs: U16,
        /// Abort command limit, zero-based.
        pub acl_z: u8,
        /// Asynchronous Event Request limit, zero-based.
        pub aerl_z: u8,
        /// Firmware updates: bit 0 slot 1 read-only, bits 3:1 number of slots.
        pub frmw: u8,
        /// Log page attributes: bit 0 SMART per namespace, 1 effects log, 2 extended data (offset),
        /// 5 supported-log-pages and feature-effects logs.
        pub lpa: u8,
        /// Error log page entries, zero-based.
        pub elpe_z: u8,
        /// Number of power states, zero-based.
        pub npss_z: u8,
        /// Admin vendor specific command configuration.
        pub avscc: u8,
        /// Autonomous power state transition attributes.
        pub apsta: u8,
        /// Warning composite temperature threshold in kelvin.
        pub wctemp: U16,
        /// Critical composite temperature threshold in kelvin.
        pub cctemp: U16,
        /// Maximum time for firmware activation in units of 100 ms.
        pub mtfa: U16,
        /// Host memory buffer preferred size.
        pub hmpre: U32,
        /// Host memory buffer minimum size.
        pub hmmin: U32,
        /// Total NVM capacity in bytes.
        pub tnvmcap: [u8; 16],
        /// Unallocated NVM capacity in bytes.
        pub unvmcap: [u8; 16],
        /// Replay protected memory block support.
        pub rpmbs: U32,
        /// Extended device self-test time in minutes.
        pub edstt: U16,
        /// Device self-test options.
        pub dsto: u8,
        /// Firmware update granularity.
        pub fwug: u8,
        /// Keep alive granularity in units of 100 ms; 0: not supported.
        pub kas: U16,
        /// Host controlled thermal management, sanitize and host memory buffer fields.
        pub reserved322: [u8; 16],
        /// NVM set identifier maximum.
        pub nsetidmax: U16,
        /// Endurance group identifier maximum.
        pub endgidmax: U16,
        /// ANA transition time in seconds.
        pub anatt: u8,
        /// ANA capabilities: bits 0 to 4 states reported, 6 group ids do not change, 7 group ids can
        /// be chosen when a namespace is created.
        pub anacap: u8,
        /// ANA group identifier maximum.
        pub anagrpmax: U32,
        /// Number of ANA group identifiers.
        pub nanagrpid: U32,
        /// Persistent event log size in units of 64 KiB.
        pub pels: U32,
        /// Domain identifier.
        pub domain: U16,
        /// Key per I/O, endurance group and temperature fields.
        pub reserved358: [u8; 28],
        /// Command Quiesce Time in milliseconds: how long after an association has ended the controller
        /// may still carry out its commands; 0 is not reported.
        pub cqt_ms: U16,
        /// Reserved.
        pub reserved388: [u8; 124],
        /// Submission queue entry size: required in bits 3:0, maximum in bits 7:4, powers of two.
        pub sqes: u8,
        /// Completion queue entry size: required in bits 3:0, maximum in bits 7:4, powers of two.
        pub cqes: u8,
        /// Maximum outstanding commands of an I/O queue.
        pub maxcmd: U16,
        /// Number of namespaces: the largest NSID.
        pub nn: U32,
        /// Optional NVM command support; see [`oncs`].
        pub oncs: U16,
        /// Fused operation support: bit 0 Compare and Write.
        pub fuses: U16,
        /// Format NVM attributes.
        pub fna: u8,
        /// Volatile write cache: bit 0 present, bits 2:1 Flush of NSID FFFFFFFFh (2 no, 3 yes).
        pub vwc: u8,
        /// Atomic write unit normal in logical blocks, zero-based.
        pub awun_z: U16,
        /// Atomic write unit power fail in logical blocks, zero-based.
        pub awupf_z: U16,
        /// I/O command set vendor specific command configuration.
        pub icsvscc: u8,
        /// Namespace write protection capabilities.
        pub nwpc: u8,
        /// Atomic compare and write unit in logical blocks, zero-based.
        pub acwu_z: U16,
        /// Copy descriptor formats supported (OCFS): a bit per [`crate::copy::Format`].
        pub cdfs: U16,
        /// SGL support; see [`sgls`].
        pub sgls: U32,
        /// Maximum number of allowed namespaces.
        pub mnan: U32,
        /// Maximum domain namespace attachments.
        pub maxdna: [u8; 16],
        /// Maximum I/O controller namespace attachments.
        pub maxcna: U32,
        /// Discovery, reachability and migration fields, and reserved.
        pub reserved564: [u8; 204],
        /// NVM subsystem NQN, terminated by zero.
        pub subnqn: [u8; 256],
        /// Reserved.
        pub reserved1024: [u8; 768],
        /// I/O queue command capsule supported size in units of 16 bytes.
        pub ioccsz: U32,
        /// I/O queue response capsule supported size in units of 16 bytes.
        pub iorcsz: U32,
        /// In-capsule data offset in units of 16 bytes.
        pub icdoff: U16,
        /// Fabrics controller attributes: bit 0 static controller model.
        pub fcatt: u8,
        /// Maximum SGL data block descriptors in a capsule.
        pub msdbd: u8,
        /// Optional fabrics commands support: bit 0 Disconnect.
        pub ofcs: U16,
        /// Discovery controller type; see [`DiscoveryType`].
        pub dctype: u8,
        /// Reserved.
        pub reserved1807: [u8; 241],
        /// Power state descriptors.
        pub psd: [PowerState; 32],
        /// Vendor specific.
        pub vs: [u8; 1024],
    }

    /// LBA Format (NVM 1.1, section 4.1.5.1).
    pub struct LbaFormat[4] {
        /// Metadata size in bytes.
        pub ms: U16,
        /// LBA data size as a power of two.
        pub lbads: u8,
        /// Relative performance.
        pub rp: u8,
    }

    /// Identify Namespace data structure of the NVM command set (NVM 1.1, section 4.1.5.1).
    pub struct Namespace[4096] {
        /// Namespace size in logical blocks.
        pub nsze: U64,
        /// Namespace capacity in logical blocks.
        pub ncap: U64,
        /// Namespace utilization in logical blocks.
        pub nuse: U64,
        /// Features: bit 0 thin provisioning, 1 NAWUN/NAWUPF/NACWU valid, 2 deallocated error,
        /// 3 identifiers never reused, 5:4 OPTPERF: where not 0, NPWG/NPWA/NOWS are valid, and NPDG/NPDA with bit 4.
        pub nsfeat: u8,
        /// Number of LBA formats, zero-based.
        pub nlbaf_z: u8,
        /// Formatted LBA size: index of the format.
        pub flbas: u8,
        /// Metadata capabilities.
        pub mc: u8,
        /// Data protection capabilities.
        pub dpc: u8,
        /// Data protection settings.
        pub dps: u8,
        /// Multi-path and sharing: bit 0 shared.
        pub nmic: u8,
        /// Reservation capabilities.
        pub rescap: u8,
        /// Format progress.
        pub fpi: u8,
        /// Deallocate features: bits 2:0 what is read (1: zeroes), 3 Write Zeroes with Deallocate.
        pub dlfeat: u8,
        /// Namespace atomic write unit normal in logical blocks, zero-based.
        pub nawun_z: U16,
        /// Namespace atomic write unit power fail in logical blocks, zero-based.
        pub nawupf_z: U16,
        /// Namespace atomic compare and write unit in logical blocks, zero-based.
        pub nacwu_z: U16,
        /// Atomic boundary size normal in logical blocks, zero-based; 0: none.
        pub nabsn_z: U16,
        /// Atomic boundary offset in logical blocks.
        pub nabo: U16,
        /// Atomic boundary size power fail in logical blocks, zero-based; 0: none.
        pub nabspf_z: U16,
        /// Optimal I/O boundary in logical blocks.
        pub noiob: U16,
        /// NVM capacity in bytes.
        pub nvmcap: [u8; 16],
        /// Preferred write granularity in logical blocks, zero-based.
        pub npwg_z: U16,
        /// Preferred write alignment in logical blocks, zero-based.
        pub npwa_z: U16,
        /// Preferred deallocate granularity in logical blocks, zero-based.
        pub npdg_z: U16,
        /// Preferred deallocate alignment in logical blocks, zero-based.
        pub npda_z: U16,
        /// Optimal write size in logical blocks, zero-based.
        pub nows_z: U16,
        /// Maximum single source range length of Copy in logical blocks.
        pub mssrl: U16,
        /// Maximum copy length in logical blocks.
        pub mcl: U32,
        /// Maximum source range count of Copy, zero-based.
        pub msrc_z: u8,
        /// Key per I/O and unique format fields, and reserved.
        pub reserved81: [u8; 11],
        /// ANA group identifier.
        pub anagrpid: U32,
        /// Reserved.
        pub reserved96: [u8; 3],
        /// Namespace attributes: bit 0 write protected.
        pub nsattr: u8,
        /// NVM set identifier.
        pub nvmsetid: U16,
        /// Endurance group identifier.
        pub endgid: U16,
        /// Namespace globally unique identifier; big-endian.
        pub nguid: [u8; 16],
        /// IEEE extended unique identifier; big-endian.
        pub eui64: [u8; 8],
        /// LBA formats.
        pub lbaf: [LbaFormat; 64],
        /// Vendor specific.
        pub vs: [u8; 3712],
    }

    /// I/O Command Set Independent Identify Namespace data structure (NVMe Base 2.1, Figure 319).
    pub struct IndependentNamespace[4096] {
        /// Features: bit 3 identifiers never reused, 4 rotational media, 5 no volatile write cache.
        pub nsfeat: u8,
        /// Multi-path and sharing: bit 0 shared.
        pub nmic: u8,
        /// Reservation capabilities.
        pub rescap: u8,
        /// Format progress.
        pub fpi: u8,
        /// ANA group identifier.
        pub anagrpid: U32,
        /// Namespace attributes: bit 0 write protected.
        pub nsattr: u8,
        /// Reserved.
        pub reserved9: u8,
        /// NVM set identifier.
        pub nvmsetid: U16,
        /// Endurance group identifier.
        pub endgid: U16,
        /// Namespace status: bit 0 ready.
        pub nstat: u8,
        /// Key per I/O status.
        pub kpios: u8,
        /// Maximum key tag.
        pub maxkt: U16,
        /// Reserved.
        pub reserved18: [u8; 2],
        /// Reachability group identifier.
        pub rgrpid: U32,
        /// Reserved.
        pub reserved24: [u8; 4072],
    }

    /// I/O Command Set specific Identify Namespace data structure for the NVM command set
    /// (NVM 1.1, section 4.1.5.3).
    pub struct NvmNamespace[4096] {
        /// Logical block storage tag mask.
        pub lbstm: U64,
        /// Protection information capabilities.
        pub pic: u8,
        /// Protection information format attribute.
        pub pifa: u8,
        /// Reserved.
        pub reserved10: [u8; 2],
        /// Extended LBA formats.
        pub elbaf: [U32; 64],
        /// Preferred deallocate granularity (large) in logical blocks.
        pub npdgl: U32,
        /// Preferred read granularity in logical blocks.
        pub nprg: U32,
        /// Preferred read alignment in logical blocks.
        pub npra: U32,
        /// Optimal read size in logical blocks.
        pub nors: U32,
        /// Preferred deallocate alignment (large) in logical blocks.
        pub npdal: U32,
        /// LBA format placement shard size.
        pub lbapss: U32,
        /// Tracked LBA allocation granularity.
        pub tlbaag: U32,
        /// Reserved.
        pub reserved296: [u8; 3800],
    }

    /// I/O Command Set specific Identify Controller data structure for the NVM command set
    /// (NVM 1.1, section 4.1.5.4).
    pub struct NvmController[4096] {
        /// Verify size limit as a power of two in units of CAP.MPSMIN; 0: unlimited.
        pub vsl: u8,
        /// Write Zeroes size limit as a power of two in units of CAP.MPSMIN; 0: unlimited.
        pub wzsl: u8,
        /// Write Uncorrectable size limit as a power of two in units of CAP.MPSMIN; 0: unlimited.
        pub wusl: u8,
        /// Dataset Management ranges limit; 0: unlimited.
        pub dmrl: u8,
        /// Dataset Management range size limit in logical blocks; 0: unlimited.
        pub dmrsl: U32,
        /// Dataset Management size limit in logical blocks; 0: unlimited.
        pub dmsl: U64,
        /// Key per I/O, deallocating Write Zeroes limit and admin command fields, and reserved.
        pub reserved16: [u8; 4080],
    }

    /// Head of a Namespace Identification Descriptor (NVMe Base 2.1, Figure 315).
    pub struct DescriptorHeader[4] {
        /// Namespace identifier type.
        pub nidt: u8,
        /// Namespace identifier length in bytes.
        pub nidl: u8,
        /// Reserved.
        pub reserved2: [u8; 2],
    }
}

impl Namespace {
    /// Which of the LBA formats is in use, below 64: FLBAS bits 3:0, and bits 6:5 above them (NVM 1.1, Figure 114).
    pub fn format_index(&self) -> usize {
        usize::from(self.flbas & 0xf | self.flbas >> 1 & 0x30)
    }

    /// Blocks that writes do best in multiples of (NPWG); 0 if that is not told.
    pub fn optimal_write_blocks(&self) -> u32 {
        match self.nsfeat & 0b11 << 4 {
            0 => 0,
            _ => u32::from(self.npwg_z.get()) + 1,
        }
    }
}

impl NvmController {
    /// What it says of Dataset Management.
    pub fn discard_limits(&self) -> DiscardLimits {
        let DiscardLimits { ranges_max, range_blocks_max, blocks_max } = DiscardLimits::UNLIMITED;
        DiscardLimits {
            ranges_max: if self.dmrl == 0 { ranges_max } else { self.dmrl.into() },
            range_blocks_max: Some(self.dmrsl.get()).filter(|&n| n > 0).unwrap_or(range_blocks_max),
            blocks_max: Some(self.dmsl.get()).filter(|&n| n > 0).unwrap_or(blocks_max),
        }
    }

    /// Says that of Dataset Management: all three fields, or none of them. A range is no longer than all of them
    /// together may be, as Linux does not look at DMSL.
    pub fn set_discard_limits(&mut self, limits: DiscardLimits) {
        if limits == DiscardLimits::UNLIMITED {
            (self.dmrl, self.dmrsl, self.dmsl) = (0, 0.into(), 0.into());
            return;
        }
        self.dmrl = limits.ranges_max.clamp(1, u8::MAX.into()) as u8;
        self.dmrsl = limits.one_range_blocks_max().into();
        self.dmsl = limits.blocks_max.max(1).into();
    }
}

/// Bytes that a size limit of [`NvmController`] allows, where pages are of `page` bytes (CAP.MPSMIN); `u32::MAX` for all
/// that a command can name.
pub const fn size_limit(power: u8, page: u32) -> u32 {
    if power == 0 || power as u32 > page.leading_zeros() { u32::MAX } else { page << power }
}

/// What nvlane's controllers say of themselves in the vendor specific bytes of Identify Controller: a
/// name of seven bytes, then a byte of flags. Both are zero in other controllers.
pub mod vendor {
    /// The name.
    pub const NAME: [u8; 7] = *b"nvlane\0";
    /// The controller ends a connection (FIN) only when no command of it is with a namespace any more:
    /// whoever sees the end may repeat what was not answered.
    pub const DRAINS: u8 = 1 << 0;

    /// The flags in vendor specific bytes; none if they are another vendor's.
    pub fn flags(vs: &[u8; 1024]) -> u8 {
        if vs[..NAME.len()] == NAME { vs[NAME.len()] } else { 0 }
    }

    /// Writes name and flags.
    pub fn fill(vs: &mut [u8; 1024], flags: u8) {
        vs[..NAME.len()].copy_from_slice(&NAME);
        vs[NAME.len()] = flags;
    }

    /// What a namespace is said to have, in the vendor specific bytes of Identify Namespace.
    const CHECKSUMS: u8 = 1 << 0;
    const NO_WRITE_CACHE: u8 = 1 << 1;

    /// Whether a namespace gives checksums of its blocks ([`crate::Command::wants_checksum`]): bit 0 of byte 391, after
    /// the name.
    pub fn gives_checksums(vs: &[u8; 3712]) -> bool {
        vs[..NAME.len()] == NAME && vs[NAME.len()] & CHECKSUMS != 0
    }

    /// Says that it does.
    pub fn set_gives_checksums(vs: &mut [u8; 3712]) {
        vs[..NAME.len()].copy_from_slice(&NAME);
        vs[NAME.len()] |= CHECKSUMS;
    }

    /// Whether a namespace has no volatile write cache, though its controller has (bit 1 of byte 391): what VWCNP says
    /// in a structure of its own, for hosts that read this one anyway.
    pub fn has_no_write_cache(vs: &[u8; 3712]) -> bool {
        vs[..NAME.len()] == NAME && vs[NAME.len()] & NO_WRITE_CACHE != 0
    }

    /// Says that it has none.
    pub fn set_has_no_write_cache(vs: &mut [u8; 3712]) {
        vs[..NAME.len()].copy_from_slice(&NAME);
        vs[NAME.len()] |= NO_WRITE_CACHE;
    }

    /// Which start of a target this controller is of: a controller with the same number has everything that it had
    /// acknowledged, since neither its process nor its machine was gone in between. Bytes 3080 to 3095; none where
    /// they are zero or another vendor's.
    pub fn instance(vs: &[u8; 1024]) -> Option<[u8; 16]> {
        let ours = vs[..NAME.len()] == NAME;
        let instance = vs[8..24].try_into().expect("16 bytes");
        (ours && instance != [0; 16]).then_some(instance)
    }

    /// Writes the name and the number of a start; zero: none.
    pub fn set_instance(vs: &mut [u8; 1024], instance: [u8; 16]) {
        vs[..NAME.len()].copy_from_slice(&NAME);
        vs[8..24].copy_from_slice(&instance);
    }
}

/// Bits of OACS (NVMe Base 2.1, Figure 312, bytes 257:256).
pub mod oacs {
    /// Get LBA Status.
    pub const GET_LBA_STATUS: u16 = 1 << 9;
}

/// Bits of ONCS (NVMe Base 2.1, Figure 312, bytes 521:520).
pub mod oncs {
    /// Compare.
    pub const COMPARE: u16 = 1 << 0;
    /// Write Uncorrectable.
    pub const WRITE_UNCORRECTABLE: u16 = 1 << 1;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// Save field of Set Features and Select field of Get Features.
    pub const SAVE_SELECT: u16 = 1 << 4;
    /// Reservations.
    pub const RESERVATIONS: u16 = 1 << 5;
    /// Timestamp feature.
    pub const TIMESTAMP: u16 = 1 << 6;
    /// Verify.
    pub const VERIFY: u16 = 1 << 7;
    /// Copy.
    pub const COPY: u16 = 1 << 8;
    /// NVM Copy Single Atomicity: a Copy writes as one Write command would.
    pub const COPY_SINGLE_ATOMICITY: u16 = 1 << 9;
}

/// Bits of SGLS (NVMe Base 2.1, Figure 312, bytes 539:536).
pub mod sgls {
    /// SGLs are supported, without alignment.
    pub const SUPPORTED: u32 = 1 << 0;
    /// Data blocks may be given as an offset into the capsule.
    pub const OFFSET: u32 = 1 << 20;
    /// Transport SGL data block descriptors.
    pub const TRANSPORT: u32 = 1 << 21;
}
