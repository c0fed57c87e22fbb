//! What the driver takes and gives: include/uapi/linux/ublk_cmd.h, with its names and numbers.

use std::mem::{offset_of, size_of};

/// The size of a sector, in which the driver counts.
pub const SECTOR_SHIFT: u8 = 9;

/// Most requests in flight of a queue.
pub const DEPTH_MAX: u16 = 4096;

/// Most bytes of one request.
pub const IO_BYTES_MAX: u32 = 32 << 20;

/// Completion of a command that fetches: the device ends, fetch no more (`UBLK_IO_RES_ABORT`).
pub const ABORTED: i32 = -libc::ENODEV;

/// Numbers of commands to `/dev/ublk-control`.
pub mod control {
    use super::{ControlCommand, READ, READ_WRITE, encoded};

    /// Which processors submit to a queue.
    pub const GET_QUEUE_AFFINITY: u32 = encoded::<ControlCommand>(READ, 0x01);
    /// What a device is.
    pub const GET_DEV_INFO: u32 = encoded::<ControlCommand>(READ, 0x02);
    /// Makes a device's character device.
    pub const ADD_DEV: u32 = encoded::<ControlCommand>(READ_WRITE, 0x04);
    /// Takes a device away.
    pub const DEL_DEV: u32 = encoded::<ControlCommand>(READ_WRITE, 0x05);
    /// Makes the block device, once everything fetches.
    pub const START_DEV: u32 = encoded::<ControlCommand>(READ_WRITE, 0x06);
    /// Takes the block device away, and ends what fetches.
    pub const STOP_DEV: u32 = encoded::<ControlCommand>(READ_WRITE, 0x07);
    /// Sets the block device's limits.
    pub const SET_PARAMS: u32 = encoded::<ControlCommand>(READ_WRITE, 0x08);
    /// Tells them.
    pub const GET_PARAMS: u32 = encoded::<ControlCommand>(READ, 0x09);
    /// A new server wants to take a device over whose server is gone.
    pub const START_USER_RECOVERY: u32 = encoded::<ControlCommand>(READ_WRITE, 0x10);
    /// It fetches.
    pub const END_USER_RECOVERY: u32 = encoded::<ControlCommand>(READ_WRITE, 0x11);
    /// As [`GET_DEV_INFO`], of a device of somebody without privileges, whose node is named.
    pub const GET_DEV_INFO2: u32 = encoded::<ControlCommand>(READ, 0x12);
    /// What the driver can do (6.5).
    pub const GET_FEATURES: u32 = encoded::<ControlCommand>(READ, 0x13);
    /// As [`DEL_DEV`], without waiting until the number is free.
    pub const DEL_DEV_ASYNC: u32 = encoded::<ControlCommand>(READ, 0x14);
    /// Changes a device's capacity.
    pub const UPDATE_SIZE: u32 = encoded::<ControlCommand>(READ_WRITE, 0x15);
    /// Makes a device wait for another server.
    pub const QUIESCE_DEV: u32 = encoded::<ControlCommand>(READ_WRITE, 0x16);
    /// As [`STOP_DEV`], if nobody has the block device open.
    pub const TRY_STOP_DEV: u32 = encoded::<ControlCommand>(READ_WRITE, 0x17);
}

/// Numbers of commands to `/dev/ublkcN`.
pub mod io {
    use super::{BatchCommand, IoCommand, READ_WRITE, encoded};

    /// Wants a request.
    pub const FETCH_REQ: u32 = encoded::<IoCommand>(READ_WRITE, 0x20);
    /// Ends a request, and wants the next.
    pub const COMMIT_AND_FETCH_REQ: u32 = encoded::<IoCommand>(READ_WRITE, 0x21);
    /// Tells of many tags that there is a server (7.0), as the two after it.
    pub const PREP_IO_CMDS: u32 = encoded::<BatchCommand>(READ_WRITE, 0x25);
    /// Ends many requests.
    pub const COMMIT_IO_CMDS: u32 = encoded::<BatchCommand>(READ_WRITE, 0x26);
    /// Wants requests, again and again.
    pub const FETCH_IO_CMDS: u32 = encoded::<BatchCommand>(READ_WRITE, 0x27);
}

/// Bits of `ublksrv_ctrl_dev_info.flags` (`UBLK_F_*`).
pub mod flag {
    /// Pages of requests can be registered with the server's ring.
    pub const SUPPORT_ZERO_COPY: u64 = 1 << 0;
    /// A dead server's device waits for another server.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// What was in flight then is given to that one, instead of failing.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// For users without privileges.
    pub const UNPRIVILEGED_DEV: u64 = 1 << 5;
    /// Commands have the numbers of ioctls.
    pub const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    /// The server reads and writes requests' data by pread and pwrite.
    pub const USER_COPY: u64 = 1 << 7;
    /// Zoned devices.
    pub const ZONED: u64 = 1 << 8;
    /// Requests fail while there is no server.
    pub const USER_RECOVERY_FAIL_IO: u64 = 1 << 9;
    /// The capacity can change.
    pub const UPDATE_SIZE: u64 = 1 << 10;
    /// Pages are registered before a request is given to the server.
    pub const AUTO_BUF_REG: u64 = 1 << 11;
    /// A device can be handed to another server.
    pub const QUIESCE: u64 = 1 << 12;
    /// Requests of a queue can go to several threads.
    pub const PER_IO_DAEMON: u64 = 1 << 13;
    /// Pages may be registered by other threads.
    pub const BUF_REG_OFF_DAEMON: u64 = 1 << 14;
    /// Requests are fetched and committed many at a time.
    pub const BATCH_IO: u64 = 1 << 15;
    /// Metadata.
    pub const INTEGRITY: u64 = 1 << 16;
    /// A device can be stopped on condition that nobody uses it.
    pub const SAFE_STOP_DEV: u64 = 1 << 17;
    /// Partitions need not be looked for.
    pub const NO_AUTO_PART_SCAN: u64 = 1 << 18;
    /// Memory shared with clients.
    pub const SHMEM_ZC: u64 = 1 << 19;
    /// Descriptors of requests may be larger.
    pub const IO_DESC_SIZE: u64 = 1 << 20;
}

/// Values of `ublksrv_ctrl_dev_info.state` (`UBLK_S_DEV_*`).
pub mod state {
    /// There is no block device.
    pub const DEAD: u16 = 0;
    /// In use.
    pub const LIVE: u16 = 1;
    /// Without a server; requests wait.
    pub const QUIESCED: u16 = 2;
    /// Without a server; requests fail.
    pub const FAIL_IO: u16 = 3;
}

/// Operations (`UBLK_IO_OP_*`), the lower 8 bits of [`Descriptor::op_flags`].
pub mod operation {
    /// Read.
    pub const READ: u8 = 0;
    /// Write.
    pub const WRITE: u8 = 1;
    /// Make everything durable.
    pub const FLUSH: u8 = 2;
    /// Forget blocks.
    pub const DISCARD: u8 = 3;
    /// Zero blocks.
    pub const WRITE_ZEROES: u8 = 5;
    /// Open a zone.
    pub const ZONE_OPEN: u8 = 10;
    /// Close a zone.
    pub const ZONE_CLOSE: u8 = 11;
    /// Make a zone full.
    pub const ZONE_FINISH: u8 = 12;
    /// Write to where a zone is written next, and tell where.
    pub const ZONE_APPEND: u8 = 13;
    /// Empty all zones.
    pub const ZONE_RESET_ALL: u8 = 14;
    /// Empty a zone.
    pub const ZONE_RESET: u8 = 15;
    /// Tell of zones: as many as [`Descriptor::nr_sectors`](super::Descriptor) says.
    pub const REPORT_ZONES: u8 = 18;
}

/// Flags of a request (`UBLK_IO_F_*`), in [`Descriptor::op_flags`].
pub mod request_flag {
    /// Durable before it completes.
    pub const FUA: u32 = 1 << 13;
    /// The blocks shall stay allocated.
    pub const NOUNMAP: u32 = 1 << 15;
    /// The pages could not be registered.
    pub const NEED_REG_BUF: u32 = 1 << 17;
}

/// `struct ublksrv_ctrl_cmd`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ControlCommand {
    /// Which device.
    pub dev_id: u32,
    /// Which queue, or all ones.
    pub queue_id: u16,
    /// Bytes at `addr`.
    pub len: u16,
    /// What the command takes or gives.
    pub addr: u64,
    /// The same, if it is a number.
    pub data: u64,
    /// Bytes of the path at `addr`, for unprivileged devices.
    pub dev_path_len: u16,
    /// Reserved.
    pub pad: u16,
    /// Reserved.
    pub reserved: u32,
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DeviceInfo {
    /// Queues.
    pub nr_hw_queues: u16,
    /// Requests in flight of each.
    pub queue_depth: u16,
    /// One of [`state`].
    pub state: u16,
    /// Reserved.
    pub pad0: u16,
    /// Most bytes of a request.
    pub max_io_buf_bytes: u32,
    /// The N of `/dev/ublkbN`.
    pub dev_id: u32,
    /// The server's process.
    pub ublksrv_pid: i32,
    /// Reserved.
    pub pad1: u32,
    /// Bits of [`flag`].
    pub flags: u64,
    /// The server's own.
    pub ublksrv_flags: u64,
    /// Who made it.
    pub owner_uid: u32,
    /// The same.
    pub owner_gid: u32,
    /// Reserved.
    pub reserved: [u64; 2],
}

/// `struct ublksrv_io_desc`: a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Descriptor {
    /// One of [`operation`], and bits of [`request_flag`].
    pub op_flags: u32,
    /// How many.
    pub nr_sectors: u32,
    /// The first.
    pub start_sector: u64,
    /// Where the data is copied to and from, where it is.
    pub addr: u64,
}

/// `struct ublksrv_io_cmd`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct IoCommand {
    /// Which queue.
    pub q_id: u16,
    /// Which of its requests.
    pub tag: u16,
    /// Bytes, or `-errno`.
    pub result: i32,
    /// Where the next one's data is copied to and from, where it is; after an append, the sector.
    pub addr: u64,
}

/// `struct ublk_batch_io`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct BatchCommand {
    /// Which queue.
    pub q_id: u16,
    /// Bits of [`batch_flag`].
    pub flags: u16,
    /// Elements at the entry's address, each of which begins as `struct ublk_elem_header`: tag (2 bytes), index of a
    /// registered buffer (2), result (4).
    pub nr_elem: u16,
    /// Bytes of each.
    pub elem_bytes: u8,
    /// Reserved.
    pub reserved: u8,
    /// Reserved.
    pub reserved2: u64,
}

/// Bits of [`BatchCommand::flags`] (`UBLK_BATCH_F_*`).
pub mod batch_flag {
    /// Elements have a further word: where an append went.
    pub const HAS_ZONE_LBA: u16 = 1 << 0;
    /// Elements have a further word: where the next request's data is copied to and from.
    pub const HAS_BUF_ADDR: u16 = 1 << 1;
    /// As [`super::auto_buffer`] has it.
    pub const AUTO_BUF_REG_FALLBACK: u16 = 1 << 2;
}

/// `struct ublk_param_basic`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Basic {
    /// Bits of [`attribute`].
    pub attrs: u32,
    /// Logical block, as a power of two.
    pub logical_bs_shift: u8,
    /// Physical block.
    pub physical_bs_shift: u8,
    /// Best size of requests.
    pub io_opt_shift: u8,
    /// Smallest size without a penalty.
    pub io_min_shift: u8,
    /// Most sectors of a request.
    pub max_sectors: u32,
    /// Boundaries that no request crosses.
    pub chunk_sectors: u32,
    /// Capacity.
    pub dev_sectors: u64,
    /// Where memory may not break.
    pub virt_boundary_mask: u64,
}

/// Bits of [`Basic::attrs`] (`UBLK_ATTR_*`).
pub mod attribute {
    /// Not to be written.
    pub const READ_ONLY: u32 = 1 << 0;
    /// Flushes are needed.
    pub const VOLATILE_CACHE: u32 = 1 << 2;
    /// Writes can be durable by themselves.
    pub const FUA: u32 = 1 << 3;
}

/// `struct ublk_param_discard`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Discard {
    /// In bytes.
    pub discard_alignment: u32,
    /// In bytes.
    pub discard_granularity: u32,
    /// Most sectors of a discard; 0: there is none.
    pub max_discard_sectors: u32,
    /// The same for zeroes.
    pub max_write_zeroes_sectors: u32,
    /// Must be 1.
    pub max_discard_segments: u16,
    /// Reserved.
    pub reserved0: u16,
}

/// `struct ublk_params`. Parts that are not set yet are bytes here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Parameters {
    /// Bytes of all this.
    pub len: u32,
    /// Bits of [`parameter`]: which parts are set.
    pub types: u32,
    /// What every device has.
    pub basic: Basic,
    /// Discard and zeroes.
    pub discard: Discard,
    /// Numbers of the two devices, told by the driver.
    pub devt: [u32; 4],
    /// Zones: most open, most active, most sectors of an append; reserved.
    pub zoned: [u32; 8],
    /// Alignment of memory in bytes, less one.
    pub dma_alignment: u32,
    /// Reserved.
    pub dma_pad: u32,
    /// Scattering of memory.
    pub segment: [u64; 2],
    /// Metadata.
    pub integrity: [u64; 2],
}

impl Parameters {
    /// Whether the kernel was told of a volatile write cache: it asks for no flush otherwise.
    pub fn has_cache(&self) -> bool {
        self.basic.attrs & attribute::VOLATILE_CACHE != 0
    }
}

/// Bits of [`Parameters::types`] (`UBLK_PARAM_TYPE_*`).
pub mod parameter {
    /// [`super::Parameters::basic`].
    pub const BASIC: u32 = 1 << 0;
    /// [`super::Parameters::discard`].
    pub const DISCARD: u32 = 1 << 1;
    /// [`super::Parameters::zoned`].
    pub const ZONED: u32 = 1 << 3;
    /// [`super::Parameters::dma_alignment`].
    pub const DMA_ALIGN: u32 = 1 << 4;
}

/// Where the data of a request is for pread and pwrite (`UBLKSRV_IO_BUF_OFFSET` and what follows).
#[inline]
pub fn data_position(queue: u16, tag: u16, offset: u32) -> u64 {
    const BASE: u64 = 0x8000_0000;
    debug_assert!(offset < 1 << 25);
    BASE + (u64::from(queue) << 41 | u64::from(tag) << 25 | u64::from(offset))
}

/// Where a queue's descriptors are mapped.
pub fn descriptors_position(queue: u16) -> u64 {
    let bytes = usize::from(DEPTH_MAX) * size_of::<Descriptor>();
    u64::from(queue) * bytes.next_multiple_of(rustix::param::page_size()) as u64
}

/// What a command that fetches says in its `addr` where pages are registered for it: the index, and to
/// give the request to the server even where that fails (`UBLK_AUTO_BUF_REG_FALLBACK`).
#[inline]
pub fn auto_buffer(index: u16) -> u64 {
    const FALLBACK: u64 = 1 << 16;
    u64::from(index) | FALLBACK
}

impl Descriptor {
    /// One of [`operation`].
    #[inline]
    pub fn operation(&self) -> u8 {
        self.op_flags as u8
    }

    /// Whether a bit of [`request_flag`] is set.
    #[inline]
    pub fn has(&self, flag: u32) -> bool {
        self.op_flags & flag != 0
    }
}

impl IoCommand {
    /// As the entry for the ring has it.
    #[inline]
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&self.q_id.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.result.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.addr.to_ne_bytes());
        bytes
    }
}

impl BatchCommand {
    /// As the entry for the ring has it.
    #[inline]
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&self.q_id.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.nr_elem.to_ne_bytes());
        bytes[6] = self.elem_bytes;
        bytes
    }
}

impl ControlCommand {
    /// As the entry for the ring has it, followed by zeroes.
    pub fn to_bytes(self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[..4].copy_from_slice(&self.dev_id.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.queue_id.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.len.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.addr.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.data.to_ne_bytes());
        bytes[24..26].copy_from_slice(&self.dev_path_len.to_ne_bytes());
        bytes
    }
}

const READ: u32 = 2 << 30;
const READ_WRITE: u32 = 3 << 30;

/// `_IOR('u', number, T)`, `_IOWR('u', number, T)`.
const fn encoded<T>(direction: u32, number: u32) -> u32 {
    direction | (size_of::<T>() as u32) << 16 | (b'u' as u32) << 8 | number
}

const _: () = {
    assert!(size_of::<ControlCommand>() == 32);
    assert!(
        offset_of!(ControlCommand, data) == 16 && offset_of!(ControlCommand, dev_path_len) == 24
    );
    assert!(size_of::<DeviceInfo>() == 64);
    assert!(offset_of!(DeviceInfo, flags) == 24 && offset_of!(DeviceInfo, owner_uid) == 40);
    assert!(size_of::<Descriptor>() == 24);
    assert!(size_of::<IoCommand>() == 16 && size_of::<BatchCommand>() == 16);
    assert!(size_of::<Basic>() == 32);
    assert!(size_of::<Discard>() == 20);
    assert!(size_of::<Parameters>() == 152);
    assert!(offset_of!(Parameters, discard) == 40 && offset_of!(Parameters, devt) == 60);
    assert!(offset_of!(Parameters, zoned) == 76 && offset_of!(Parameters, dma_alignment) == 108);
    assert!(offset_of!(Parameters, segment) == 120 && offset_of!(Parameters, integrity) == 136);
    assert!(control::ADD_DEV == 0xc020_7504 && control::GET_FEATURES == 0x8020_7513);
    assert!(io::FETCH_REQ == 0xc010_7520 && io::COMMIT_AND_FETCH_REQ == 0xc010_7521);
    assert!(io::PREP_IO_CMDS == 0xc010_7525 && io::FETCH_IO_CMDS == 0xc010_7527);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_the_headers() {
        assert_eq!(data_position(0, 0, 0), 0x8000_0000);
        assert_eq!(data_position(1, 0, 0), 0x8000_0000 + (1 << 41));
        assert_eq!(data_position(0, 3, 512), 0x8000_0000 + (3 << 25) + 512);
        assert_eq!(descriptors_position(2), 2 * 98304);
        assert_eq!(auto_buffer(7), 0x1_0007);
    }

    #[test]
    fn commands_lie_as_in_memory() {
        let io = IoCommand { q_id: 1, tag: 2, result: -5, addr: 0x1234 };
        // SAFETY: plain integers without padding.
        let bytes = unsafe { std::mem::transmute::<IoCommand, [u8; 16]>(io) };
        assert_eq!(io.to_bytes(), bytes);
        let batch = BatchCommand {
            q_id: 1,
            flags: 2,
            nr_elem: 3,
            elem_bytes: 4,
            ..BatchCommand::default()
        };
        // SAFETY: as above.
        let bytes = unsafe { std::mem::transmute::<BatchCommand, [u8; 16]>(batch) };
        assert_eq!(batch.to_bytes(), bytes);
        let control = ControlCommand {
            dev_id: 1,
            queue_id: 2,
            len: 3,
            addr: 4,
            data: 5,
            dev_path_len: 6,
            pad: 0,
            reserved: 0,
        };
        // SAFETY: as above.
        let bytes = unsafe { std::mem::transmute::<ControlCommand, [u8; 32]>(control) };
        assert_eq!(control.to_bytes()[..32], bytes);
    }
}
