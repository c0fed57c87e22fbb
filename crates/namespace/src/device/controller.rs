//! A controller by its own device, `/dev/nvmeX`: admin commands to it, by a system call each.
//!
//! For commands that are about no namespace, and for controllers that have none. Those that are about a
//! namespace that is in use as a volume go by the volume, which then knows that its blocks may be others.

use super::{DeviceError, check, ioctl, status};
use nvme::{Command, Status};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use uring::{NvmePassthruCmd64, NvmeUringCmd};

/// A controller of this machine.
#[derive(Debug)]
pub struct Controller {
    file: File,
    path: PathBuf,
}

/// Whether a path is one that the kernel gives to controllers: `/dev/nvme0`.
pub fn is_named_like_one(path: &Path) -> bool {
    let digits = path.to_str().and_then(|path| path.strip_prefix("/dev/nvme"));
    digits.is_some_and(|it| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Opens a controller's device, if need be for reading only: who may not write to it may ask all the same, and the
/// kernel decides by the command.
pub fn open_node(path: &Path) -> io::Result<File> {
    let all = OpenOptions::new().read(true).write(true).open(path);
    all.or_else(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => File::open(path),
        _ => Err(error),
    })
}

impl Controller {
    /// Opens the device.
    pub fn open(path: &Path) -> Result<Controller, DeviceError> {
        let failed = |source| DeviceError::Open { path: path.into(), source };
        let file = open_node(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.file_type().is_char_device() || !is_of_class(metadata.rdev()) {
            let what = "it is no NVMe controller; `nvme list -v` shows those that there are".into();
            return Err(DeviceError::Unsuitable { path: path.into(), what });
        }
        Ok(Controller { file, path: path.into() })
    }

    /// Has an admin command carried out: its status, and dwords 0 and 1 of its completion. What is
    /// to be sent is in `data` and `metadata`, or what is received comes there, as the opcode says.
    /// After `timeout_ms` the driver gives the command up; 0: after a time of its own. Blocks.
    pub fn admin(
        &self,
        command: &Command,
        data: &mut [u8],
        metadata: &mut [u8],
        timeout_ms: u32,
    ) -> io::Result<(Status, u64)> {
        if let Err(status) = check::admin_data(command, data.len()) {
            return Ok((status, 0));
        }
        let address = |it: &mut [u8]| if it.is_empty() { 0 } else { it.as_mut_ptr() as u64 };
        let metadata_len = u32::try_from(metadata.len())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "too much metadata"))?;
        let command = NvmeUringCmd {
            opcode: command.opcode,
            flags: command.flags,
            nsid: command.nsid.get(),
            cdw2: command.cdw2.get(),
            cdw3: command.cdw3.get(),
            metadata: address(metadata),
            addr: address(data),
            metadata_len,
            data_len: data.len() as u32,
            cdw10: command.cdw10.get(),
            cdw11: command.cdw11.get(),
            cdw12: command.cdw12.get(),
            cdw13: command.cdw13.get(),
            cdw14: command.cdw14.get(),
            cdw15: command.cdw15.get(),
            timeout_ms,
            ..NvmeUringCmd::default()
        };
        let mut call = NvmePassthruCmd64 { command, result: 0 };
        // SAFETY: `data` and `metadata` are borrowed exclusively until the call returns, and are as long
        // as the command says.
        let answer = unsafe { ioctl::admin(&self.file, &mut call) };
        match u16::try_from(answer) {
            Ok(status) => Ok((Status(status), call.result)),
            Err(_) => {
                let words = status::words(-answer, status::Circumstances::default());
                let error = io::Error::from_raw_os_error(-answer);
                let what = format!("{}: {error}: {words}", self.path.display());
                Err(io::Error::new(error.kind(), what))
            }
        }
    }
}

/// Whether a device is one of the kernel's class of NVMe controllers.
fn is_of_class(device: u64) -> bool {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let class = Path::new("/sys/dev/char").join(format!("{major}:{minor}")).join("subsystem");
    class.canonicalize().is_ok_and(|class| class.file_name().is_some_and(|name| name == "nvme"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_told_from_namespaces_by_name() {
        for (path, is) in [
            ("/dev/nvme0", true),
            ("/dev/nvme12", true),
            ("/dev/nvme0n1", false),
            ("/dev/nvme", false),
            ("/dev/nvme-fabrics", false),
            ("/dev/ng0n1", false),
            ("nvme0", false),
        ] {
            assert_eq!(is_named_like_one(Path::new(path)), is, "{path}");
        }
    }

    #[test]
    fn another_character_device_is_no_controller() {
        let refused = Controller::open(Path::new("/dev/null")).expect_err("it is no controller");
        assert!(refused.to_string().contains("no NVMe controller"), "{refused}");
    }
}
