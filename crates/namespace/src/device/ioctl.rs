//! Questions that are asked of the driver with a system call each: when a device is opened, looked at
//! again, or flushed at the end (include/uapi/linux/nvme_ioctl.h).

use nvme::identify::{Cns, DATA_BYTES};
use nvme::{Command, Status, opcode};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use uring::{NvmePassthruCmd64, NvmeUringCmd};

/// `NVME_IOCTL_ID`.
const ID: libc::Ioctl = 0x4e40;
/// After that long the driver gives a question up.
const TIMEOUT_MS: u32 = 30_000;

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    /// The kernel refuses, or the device is gone.
    #[error(transparent)]
    Kernel(#[from] io::Error),
    /// The device says no.
    #[error("{0}")]
    Device(Status),
}

impl From<Unanswered> for io::Error {
    fn from(error: Unanswered) -> io::Error {
        match error {
            Unanswered::Kernel(error) => error,
            Unanswered::Device(status) => io::Error::other(status.to_string()),
        }
    }
}

/// The namespace that the file is the device of.
pub(super) fn nsid(file: &File) -> io::Result<u32> {
    // SAFETY: a request without an argument, on an open descriptor.
    let nsid = unsafe { libc::ioctl(file.as_raw_fd(), ID) };
    u32::try_from(nsid).map_err(|_| io::Error::last_os_error())
}

/// Identify of the device's namespace, or of its controller.
pub(super) fn identify(
    file: &File,
    cns: Cns,
    nsid: u32,
    csi: u8,
) -> Result<Box<[u8; DATA_BYTES]>, Unanswered> {
    let mut data = Box::new([0; DATA_BYTES]);
    let command = Command {
        opcode: opcode::admin::IDENTIFY,
        nsid: nsid.into(),
        cdw10: u32::from(cns.0).into(),
        cdw11: (u32::from(csi) << 24).into(),
        ..Command::default()
    };
    call(file, NvmePassthruCmd64::ADMIN, &command, &mut data[..])?;
    Ok(data)
}

/// Makes durable what the device's cache holds.
pub(super) fn flush(file: &File, nsid: u32) -> Result<(), Unanswered> {
    let command = Command { opcode: opcode::io::FLUSH, nsid: nsid.into(), ..Command::default() };
    call(file, NvmePassthruCmd64::IO, &command, &mut [])
}

/// Any admin command: the driver's status, or `-errno`.
///
/// # Safety
/// The memory that the command names is valid as the command uses it until this returns.
pub(super) unsafe fn admin(file: &File, call: &mut NvmePassthruCmd64) -> i32 {
    let request = NvmePassthruCmd64::ADMIN as libc::Ioctl;
    // SAFETY: the structure that the request takes; for what it points to the caller vouches.
    match unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut *call) } {
        status @ 0.. => status,
        _ => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
    }
}

fn call(file: &File, request: u32, command: &Command, data: &mut [u8]) -> Result<(), Unanswered> {
    let command = NvmeUringCmd {
        opcode: command.opcode,
        nsid: command.nsid.get(),
        addr: if data.is_empty() { 0 } else { data.as_mut_ptr() as u64 },
        data_len: data.len() as u32,
        cdw10: command.cdw10.get(),
        cdw11: command.cdw11.get(),
        timeout_ms: TIMEOUT_MS,
        ..NvmeUringCmd::default()
    };
    let mut passthru = NvmePassthruCmd64 { command, result: 0 };
    let place = &raw mut passthru;
    // SAFETY: the structure that the request takes; it points to `data`, as long as it says, which
    // is borrowed exclusively until the call returns.
    let status = unsafe { libc::ioctl(file.as_raw_fd(), request as libc::Ioctl, place) };
    match status {
        0 => Ok(()),
        1.. => Err(Unanswered::Device(Status(status as u16))),
        _ => Err(Unanswered::Kernel(io::Error::last_os_error())),
    }
}
