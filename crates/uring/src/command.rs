//! Entries of 128 bytes: NVMe commands that pass through the kernel as they are
//! (`IORING_OP_URING_CMD`; include/uapi/linux/nvme_ioctl.h).

use crate::entry::{BigEntry, File, NOP, URING_CMD};
use std::{mem, ptr};

/// Flag of an entry: `fd` is an index into the table of registered files.
const FIXED_FILE: u8 = 1 << 0;
/// The buffer is a registered one (`IORING_URING_CMD_FIXED`).
const COMMAND_FIXED: u32 = 1 << 0;
/// A no-operation completes with 32 bytes, the further ones taken from the entry
/// (`IORING_NOP_CQE32`, 6.18).
const NOP_CQE32: u32 = 1 << 5;

/// An NVMe command for the kernel: `struct nvme_uring_cmd`. Fields are the command's, in the
/// machine's byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NvmeUringCmd {
    /// Operation code.
    pub opcode: u8,
    /// Must be 0: no fused commands, no choice of PRP or SGL.
    pub flags: u8,
    /// Reserved.
    pub rsvd1: u16,
    /// Namespace; that of the device for I/O commands.
    pub nsid: u32,
    /// Command double word 2.
    pub cdw2: u32,
    /// Command double word 3.
    pub cdw3: u32,
    /// Address of the metadata.
    pub metadata: u64,
    /// Address of the data, or of vectors ([`NvmeOp::IoVec`], [`NvmeOp::AdminVec`]). Within a
    /// registered buffer if the entry names one.
    pub addr: u64,
    /// Bytes of metadata.
    pub metadata_len: u32,
    /// Bytes of data, or count of vectors.
    pub data_len: u32,
    /// Command double word 10.
    pub cdw10: u32,
    /// Command double word 11.
    pub cdw11: u32,
    /// Command double word 12.
    pub cdw12: u32,
    /// Command double word 13.
    pub cdw13: u32,
    /// Command double word 14.
    pub cdw14: u32,
    /// Command double word 15.
    pub cdw15: u32,
    /// After that many milliseconds the kernel aborts the command; 0 stands for its own choice.
    pub timeout_ms: u32,
    /// Reserved.
    pub rsvd2: u32,
}

/// The same for a system call that waits until the command has ended (`NVME_IOCTL_IO64_CMD`,
/// `NVME_IOCTL_ADMIN64_CMD`): `struct nvme_passthru_cmd64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NvmePassthruCmd64 {
    /// The command.
    pub command: NvmeUringCmd,
    /// Completion double words 0 and 1, set by the kernel.
    pub result: u64,
}

impl NvmeUringCmd {
    /// Bytes of a command as controllers are given it (NVMe Base 2.1, Figure 92). The kernel's structure begins as that
    /// does, with lengths in place of the second half of the data pointer.
    pub const SHARED: usize = 64;

    /// Takes over a command as it is, with all its fields: places and lengths of memory, namespace and time are to be set then.
    #[inline]
    pub fn copy_from(&mut self, command: &[u8; Self::SHARED]) {
        const { assert!(cfg!(target_endian = "little"), "a command's fields are little-endian") };
        // SAFETY: it has as many bytes, of which every pattern is a value: plain integers without padding.
        unsafe { ptr::from_mut(self).cast::<[u8; Self::SHARED]>().write(*command) };
        (self.timeout_ms, self.rsvd2) = (0, 0);
    }
}

impl NvmePassthruCmd64 {
    /// The request for I/O commands: `_IOWR('N', 0x48, struct nvme_passthru_cmd64)`.
    pub const IO: u32 = request::<NvmePassthruCmd64>(0x48);
    /// The request for admin commands: `_IOWR('N', 0x47, struct nvme_passthru_cmd64)`.
    pub const ADMIN: u32 = request::<NvmePassthruCmd64>(0x47);
}

/// `_IOWR('N', number, T)`.
const fn request<T>(number: u32) -> u32 {
    const READ_WRITE: u32 = 3 << 30;
    READ_WRITE | (mem::size_of::<T>() as u32) << 16 | (b'N' as u32) << 8 | number
}

/// How a command is given to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvmeOp {
    /// An I/O command, data in one piece; on `/dev/ngXnY`.
    Io,
    /// An I/O command, data in vectors; on `/dev/ngXnY`.
    IoVec,
    /// An admin command, data in one piece; on `/dev/nvmeX`.
    Admin,
    /// An admin command, data in vectors; on `/dev/nvmeX`.
    AdminVec,
}

impl NvmeOp {
    /// `_IOWR('N', number, struct nvme_uring_cmd)`.
    const fn code(self) -> u32 {
        request::<NvmeUringCmd>(match self {
            NvmeOp::Io => 0x80,
            NvmeOp::IoVec => 0x81,
            NvmeOp::Admin => 0x82,
            NvmeOp::AdminVec => 0x83,
        })
    }
}

/// A submission queue entry of 128 bytes: `struct io_uring_sqe` with its fields as
/// `IORING_OP_URING_CMD` names them, and the 64 bytes behind it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Layout {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    cmd_op: u32,
    pad: u32,
    addr: u64,
    len: u32,
    command_flags: u32,
    user_data: u64,
    buf_index: u16,
    personality: u16,
    file_index: u32,
    command: NvmeUringCmd,
    rest: u64,
}

const _: () = {
    assert!(mem::size_of::<NvmeUringCmd>() == 72);
    assert!(mem::size_of::<NvmePassthruCmd64>() == 80);
    assert!(NvmePassthruCmd64::IO == 0xc050_4e48 && NvmePassthruCmd64::ADMIN == 0xc050_4e47);
    assert!(mem::offset_of!(NvmeUringCmd, addr) == 24);
    assert!(mem::offset_of!(NvmeUringCmd, cdw10) == 40);
    assert!(mem::offset_of!(NvmeUringCmd, timeout_ms) == 64);
    assert!(mem::size_of::<Layout>() == 128);
    assert!(mem::offset_of!(Layout, command_flags) == 28);
    assert!(mem::offset_of!(Layout, user_data) == 32);
    assert!(mem::offset_of!(Layout, buf_index) == 40);
    assert!(mem::offset_of!(Layout, command) == 48);
    assert!(NvmeOp::Io.code() == 0xc048_4e80);
};

impl BigEntry {
    /// What the completion will carry.
    #[inline]
    #[must_use]
    pub fn user_data(mut self, user_data: u64) -> BigEntry {
        self.0.user_data = user_data;
        self
    }

    /// The NVMe command, of an entry of [`nvme_command`].
    pub fn command(&self) -> &NvmeUringCmd {
        &self.0.command
    }

    /// The same, to be changed.
    #[inline]
    pub fn command_mut(&mut self) -> &mut NvmeUringCmd {
        &mut self.0.command
    }

    /// Makes it what [`nvme_command`] gives, in place, but for the command: what is to be changed of it is returned.
    #[inline]
    pub fn set_nvme_command(
        &mut self,
        file: File,
        operation: NvmeOp,
        fixed: Option<u16>,
    ) -> &mut NvmeUringCmd {
        let (fd, flags) = number_of(file);
        let (command_flags, buf_index) = fixed.map_or((0, 0), |index| (COMMAND_FIXED, index));
        let entry = &mut self.0;
        (entry.opcode, entry.flags, entry.ioprio, entry.fd) = (URING_CMD, flags, 0, fd);
        (entry.cmd_op, entry.pad, entry.addr, entry.len) = (operation.code(), 0, 0, 0);
        (entry.command_flags, entry.user_data, entry.buf_index) = (command_flags, 0, buf_index);
        (entry.personality, entry.file_index, entry.rest) = (0, 0, 0);
        &mut entry.command
    }

    /// What its completion carries, to be changed.
    #[inline]
    pub fn set_user_data(&mut self, user_data: u64) {
        self.0.user_data = user_data;
    }

    /// The file that it is for.
    pub fn file(&self) -> File {
        match self.0.flags & FIXED_FILE {
            0 => File::Fd(self.0.fd),
            _ => File::Fixed(self.0.fd as u32),
        }
    }

    /// The registered buffer that its data lies in, if it says so.
    pub fn fixed_buffer(&self) -> Option<u16> {
        (self.0.command_flags & COMMAND_FIXED != 0).then_some(self.0.buf_index)
    }

    /// What the driver is asked to do: its number for that.
    pub fn operation(&self) -> u32 {
        self.0.cmd_op
    }

    #[inline]
    fn new(opcode: u8) -> BigEntry {
        BigEntry(Layout {
            opcode,
            flags: 0,
            ioprio: 0,
            fd: -1,
            cmd_op: 0,
            pad: 0,
            addr: 0,
            len: 0,
            command_flags: 0,
            user_data: 0,
            buf_index: 0,
            personality: 0,
            file_index: 0,
            command: NvmeUringCmd::default(),
            rest: 0,
        })
    }
}

/// A file as entries have it: number and flags.
#[inline]
fn number_of(file: File) -> (i32, u8) {
    match file {
        File::Fd(fd) => (fd, 0),
        File::Fixed(index) => (index as i32, FIXED_FILE),
    }
}

/// An NVMe command for `file`, a character device of the nvme driver. Completes with the NVMe
/// status if the result is positive, `-errno` if it is negative, and in `extra` with double words
/// 0 and 1 of the device's completion.
///
/// `fixed` is the index of the registered buffer in which `addr` and `data_len` lie.
#[inline]
pub fn nvme_command(
    file: File,
    command: &NvmeUringCmd,
    operation: NvmeOp,
    fixed: Option<u16>,
) -> BigEntry {
    let (fd, flags) = number_of(file);
    let (command_flags, buf_index) = fixed.map_or((0, 0), |index| (COMMAND_FIXED, index));
    // At once as it is to be: nothing is written twice.
    BigEntry(Layout {
        opcode: URING_CMD,
        flags,
        ioprio: 0,
        fd,
        cmd_op: operation.code(),
        pad: 0,
        addr: 0,
        len: 0,
        command_flags,
        user_data: 0,
        buf_index,
        personality: 0,
        file_index: 0,
        command: *command,
        rest: 0,
    })
}

/// A command of up to 80 bytes that only the driver behind `file` understands.
pub fn big_uring_cmd(file: File, operation: u32, command: &[u8; 80]) -> BigEntry {
    // What an NVMe command is to other drivers is bytes.
    let (head, rest) = command.split_at(mem::size_of::<NvmeUringCmd>());
    let head: [u8; mem::size_of::<NvmeUringCmd>()] = head.try_into().expect("split there");
    // SAFETY: plain integers without padding, of which every pattern is a value.
    let head = unsafe { mem::transmute::<[u8; 72], NvmeUringCmd>(head) };
    let mut entry = nvme_command(file, &head, NvmeOp::Io, None);
    entry.0.cmd_op = operation;
    entry.0.rest = u64::from_ne_bytes(rest.try_into().expect("eight are left"));
    entry
}

/// Does nothing and completes with 0 and, if given, with `extra` (6.18).
pub fn big_nop(extra: Option<u64>) -> BigEntry {
    let mut entry = BigEntry::new(NOP);
    let layout = &mut entry.0;
    if let Some(extra) = extra {
        layout.command_flags = NOP_CQE32;
        // `sqe->off`, which in memory is `cmd_op` and what follows it.
        let halves = extra.to_ne_bytes();
        let [low, high] = [&halves[..4], &halves[4..]].map(|half| half.try_into());
        layout.cmd_op = u32::from_ne_bytes(low.expect("four bytes"));
        layout.pad = u32::from_ne_bytes(high.expect("four bytes"));
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(entry: &BigEntry) -> [u8; 128] {
        // SAFETY: 128 bytes without padding, all initialised.
        unsafe { mem::transmute(entry.0) }
    }

    /// Byte by byte as the kernel's headers have it, against a slip of a field's place.
    #[test]
    fn a_command_lies_where_the_kernel_looks_for_it() {
        let command = NvmeUringCmd {
            opcode: 2,
            nsid: 3,
            metadata: 0x1111,
            addr: 0x2222,
            metadata_len: 8,
            data_len: 4096,
            cdw10: 10,
            cdw15: 15,
            timeout_ms: 77,
            ..NvmeUringCmd::default()
        };
        let entry = nvme_command(File::Fixed(9), &command, NvmeOp::AdminVec, Some(5)).user_data(6);
        assert_eq!((entry.file(), entry.fixed_buffer()), (File::Fixed(9), Some(5)));
        let bytes = bytes(&entry);
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four"));
        assert_eq!((bytes[0], bytes[1], word(4)), (URING_CMD, 1, 9));
        assert_eq!((word(8), word(28), bytes[40]), (0xc048_4e83, 1, 5));
        assert_eq!((word(32), bytes[48], word(52)), (6, 2, 3));
        assert_eq!((word(64), word(72), word(80), word(84)), (0x1111, 0x2222, 8, 4096));
        assert_eq!((word(88), word(108), word(112)), (10, 15, 77));
        assert!(bytes[120..].iter().all(|byte| *byte == 0));
        // The same in place, over whatever was there.
        let mut placed = BigEntry(Layout { rest: 7, len: 7, pad: 7, ..entry.0 });
        *placed.set_nvme_command(File::Fixed(9), NvmeOp::AdminVec, Some(5)) = command;
        placed.set_user_data(6);
        assert_eq!(self::bytes(&placed), bytes);
    }

    #[test]
    fn a_command_for_controllers_is_read_as_it_lies() {
        let mut command = NvmeUringCmd { timeout_ms: 1, rsvd2: 1, ..NvmeUringCmd::default() };
        command.copy_from(&std::array::from_fn(|index| index as u8));
        let word = |at: u32| u32::from_le_bytes([0, 1, 2, 3].map(|byte| (at + byte) as u8));
        assert_eq!((command.opcode, command.flags, command.rsvd1), (0, 1, 0x0302));
        assert_eq!((command.nsid, command.cdw2, command.cdw3), (word(4), word(8), word(12)));
        assert_eq!((command.metadata as u32, command.addr as u32), (word(16), word(24)));
        assert_eq!((command.metadata_len, command.data_len), (word(32), word(36)));
        let words = [command.cdw10, command.cdw11, command.cdw12, command.cdw13];
        assert_eq!(words, [40, 44, 48, 52].map(word));
        assert_eq!((command.cdw14, command.cdw15), (word(56), word(60)));
        assert_eq!((command.timeout_ms, command.rsvd2), (0, 0));
    }

    #[test]
    fn the_bytes_of_another_drivers_command_keep_their_order() {
        let payload = std::array::from_fn(|index| index as u8);
        let bytes = bytes(&big_uring_cmd(File::Fd(7), 0xc020_7504, &payload));
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four"));
        assert_eq!((bytes[0], word(4), word(8)), (URING_CMD, 7, 0xc020_7504));
        assert_eq!(bytes[48..], payload);
    }
}
