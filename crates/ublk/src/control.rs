//! Commands to `/dev/ublk-control`, one at a time. They block.

use crate::driver::{ControlCommand, DeviceInfo, Parameters, control, parameter, state};
use crate::features::Features;
use crate::recovery::{is_alive, waits_for_server};
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;
use std::{ptr, slice, thread};
use uring::{Kind, Ring, RingOptions, Wait, entry};

/// The driver's door.
pub const CONTROL_PATH: &str = "/dev/ublk-control";

/// Where the kernel lists the devices that were not deleted.
const CLASS: &str = "/sys/class/ublk-char";

/// Not for a queue.
const NO_QUEUE: u16 = u16::MAX;

/// How long a kernel that is short of memory is left alone.
const PAUSE: Duration = Duration::from_millis(10);

/// Why the driver cannot be told anything, or refused.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// There is no driver.
    #[error(
        "this machine has no ublk: load the driver with `modprobe ublk_drv` (CONFIG_BLK_DEV_UBLK; \
         Debian's Linux 6.12 has it, its 6.1 has not)"
    )]
    NoDriver,
    /// It may not be used.
    #[error("{CONTROL_PATH}: {0}; run as root, or see \"Without root\" in docs/ublk.md")]
    Open(#[source] io::Error),
    /// There is no ring.
    #[error("ublk is driven by io_uring: {0}")]
    Ring(#[from] uring::Error),
    /// There is no such device.
    #[error("there is no ublk device {0}; `nvlane ublk list` shows those that there are")]
    NoDevice(u32),
    /// The number is another device's.
    #[error("/dev/ublkb{id} {}", taken.text(*id))]
    Taken {
        /// The device.
        id: u32,
        /// What it does.
        taken: Taken,
    },
    /// The driver refused.
    #[error("the driver refuses {command}: {source}")]
    Refused {
        /// As the header calls it.
        command: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// What a device does whose number is wanted for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is served, as far as we can tell.
    Served,
    /// It waits for a server.
    Waits,
    /// It is of no use any more, and not cleared away.
    Dead,
    /// It is deleted, and its server has it open yet: it flushes what is behind it.
    Going,
}

impl Taken {
    fn of(info: &DeviceInfo) -> Taken {
        match info.state {
            _ if waits_for_server(info) => Taken::Waits,
            // One that is just being made looks the same, and has its maker.
            state::DEAD if !is_alive(info.ublksrv_pid) => Taken::Dead,
            _ => Taken::Served,
        }
    }

    fn text(self, id: u32) -> String {
        match self {
            Taken::Served => "exists already: see `nvlane ublk list`".to_owned(),
            Taken::Waits => format!(
                "waits for a server: `nvlane ublk recover {id}` serves it, `nvlane ublk del {id}` takes it away"
            ),
            Taken::Dead => format!("is dead: `nvlane ublk del {id}` clears it away"),
            Taken::Going => "is deleted, and its server has not ended yet: try again".to_owned(),
        }
    }
}

impl ControlError {
    /// The number of the driver's refusal.
    pub fn errno(&self) -> Option<i32> {
        match self {
            ControlError::NoDevice(_) => Some(libc::ENODEV),
            ControlError::Taken { .. } => Some(libc::EEXIST),
            ControlError::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

/// A way to the driver, of the thread that opened it.
#[derive(Debug)]
pub struct Control {
    file: File,
    ring: Ring,
    features: Features,
    /// The driver knows commands by the numbers of ioctls.
    encoded: bool,
    /// Commands about devices name the device's node, by which the driver tells who may give them.
    names_node: bool,
}

impl Control {
    /// Opens the way, and asks the driver what it can do.
    pub fn open() -> Result<Control, ControlError> {
        let file = OpenOptions::new().read(true).write(true).open(CONTROL_PATH);
        let file = file.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => ControlError::NoDriver,
            _ => ControlError::Open(error),
        })?;
        let options = RingOptions { entries: 4, kind: Kind::Big, ..RingOptions::default() };
        let ring = Ring::with_options(&options)?;
        let mut control = Control {
            file,
            ring,
            features: Features::new(0),
            encoded: true,
            names_node: !is_root(),
        };
        let mut mask = 0u64;
        match control.exchange("GET_FEATURES", control::GET_FEATURES, u32::MAX, &mut mask) {
            Ok(()) => control.features = Features::new(mask),
            // Before 6.5 nobody could ask, and before 6.4 numbers were plain.
            Err(_) => control.encoded = false,
        }
        Ok(control)
    }

    /// What the driver can do; nothing of it where it cannot be asked.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Whether the driver knows commands by the numbers of ioctls.
    pub fn is_encoded(&self) -> bool {
        self.encoded
    }

    /// Makes a device, `info.dev_id` or any if that is all ones; returns what became of the wishes.
    pub fn add(&mut self, info: &DeviceInfo) -> Result<DeviceInfo, ControlError> {
        let mut made = *info;
        // There is no node yet.
        let command = command_with(info.dev_id, &mut made);
        match self.call("ADD_DEV", control::ADD_DEV, command) {
            Ok(_) => Ok(made),
            Err(error) if error.errno() == Some(libc::EEXIST) => {
                self.check_free(info.dev_id)?;
                // It is somebody else's, who alone is told of it.
                Err(ControlError::Taken { id: info.dev_id, taken: Taken::Served })
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a number can be a new device's, as far as this user is told.
    ///
    /// # Errors
    /// [`ControlError::Taken`].
    pub fn check_free(&mut self, id: u32) -> Result<(), ControlError> {
        match self.info(id) {
            Ok(info) => {
                let is_going = info.state == state::DEAD && !is_listed(id);
                let taken = if is_going { Taken::Going } else { Taken::of(&info) };
                Err(ControlError::Taken { id, taken })
            }
            Err(_) => Ok(()),
        }
    }

    /// Tells what a device is.
    pub fn info(&mut self, id: u32) -> Result<DeviceInfo, ControlError> {
        let mut info = DeviceInfo::default();
        let operation =
            if self.names_node { control::GET_DEV_INFO2 } else { control::GET_DEV_INFO };
        self.exchange("GET_DEV_INFO", operation, id, &mut info)?;
        Ok(info)
    }

    /// Sets the limits of a device that is not started.
    pub fn set_parameters(&mut self, id: u32, wanted: &Parameters) -> Result<(), ControlError> {
        self.exchange("SET_PARAMS", control::SET_PARAMS, id, &mut { *wanted })
    }

    /// Tells the limits of a device.
    pub fn parameters(&mut self, id: u32) -> Result<Parameters, ControlError> {
        let mut parameters = Parameters {
            len: size_of::<Parameters>() as u32,
            types: parameter::BASIC,
            ..Parameters::default()
        };
        self.exchange("GET_PARAMS", control::GET_PARAMS, id, &mut parameters)?;
        Ok(parameters)
    }

    /// Makes the block device, once all tags fetch.
    pub fn start(&mut self, id: u32) -> Result<(), ControlError> {
        self.tell("START_DEV", control::START_DEV, id, own_process())
    }

    /// Takes the block device away when what is in flight is done, and ends what fetches.
    pub fn stop(&mut self, id: u32) -> Result<(), ControlError> {
        self.tell("STOP_DEV", control::STOP_DEV, id, 0)
    }

    /// The same, if nobody has it open; `EBUSY` if somebody has.
    pub fn try_stop(&mut self, id: u32) -> Result<(), ControlError> {
        self.tell("TRY_STOP_DEV", control::TRY_STOP_DEV, id, 0)
    }

    /// Takes the whole device away, and waits until its server has let go of it.
    pub fn delete(&mut self, id: u32) -> Result<(), ControlError> {
        self.tell("DEL_DEV", control::DEL_DEV, id, 0)
    }

    /// The same without waiting.
    pub fn delete_async(&mut self, id: u32) -> Result<(), ControlError> {
        self.tell("DEL_DEV_ASYNC", control::DEL_DEV_ASYNC, id, 0)
    }

    /// We take a device over, whose server is gone; `EBUSY` while it is not quite.
    pub fn start_recovery(&mut self, id: u32) -> Result<(), ControlError> {
        self.tell("START_USER_RECOVERY", control::START_USER_RECOVERY, id, 0)
    }

    /// We have, once all tags fetch.
    pub fn end_recovery(&mut self, id: u32) -> Result<(), ControlError> {
        self.tell("END_USER_RECOVERY", control::END_USER_RECOVERY, id, own_process())
    }

    /// Has a device wait for another server; `EBUSY` if it cannot within `timeout_ms`.
    pub fn quiesce(&mut self, id: u32, timeout_ms: u64) -> Result<(), ControlError> {
        self.tell("QUIESCE_DEV", control::QUIESCE_DEV, id, timeout_ms)
    }

    /// Changes a device's capacity.
    pub fn update_size(&mut self, id: u32, sectors: u64) -> Result<(), ControlError> {
        self.tell("UPDATE_SIZE", control::UPDATE_SIZE, id, sectors)
    }

    /// Processors whose requests come by a queue.
    pub fn affinity(&mut self, id: u32, queue: u16) -> Result<Vec<usize>, ControlError> {
        // The kernel wants room for as many processors as there may be.
        let mut mask = [0u64; 128];
        let command = ControlCommand { data: queue.into(), ..command_with(id, &mut mask) };
        self.call("GET_QUEUE_AFFINITY", control::GET_QUEUE_AFFINITY, command)?;
        let is_set = |cpu: &usize| mask[cpu / 64] & 1 << (cpu % 64) != 0;
        Ok((0..mask.len() * 64).filter(is_set).collect())
    }

    fn tell(
        &mut self,
        name: &'static str,
        operation: u32,
        id: u32,
        data: u64,
    ) -> Result<(), ControlError> {
        let command =
            ControlCommand { dev_id: id, queue_id: NO_QUEUE, data, ..ControlCommand::default() };
        if !self.names_node {
            return self.call(name, operation, command).map(drop);
        }
        let path = node_path(id);
        let (addr, len) = (path.as_ptr() as u64, path.len() as u16);
        let command = ControlCommand { addr, len, dev_path_len: len, ..command };
        self.call(name, operation, command).map(drop)
    }

    /// Gives a command about a device that takes or gives `value`, plain numbers.
    fn exchange<T: Copy>(
        &mut self,
        name: &'static str,
        operation: u32,
        id: u32,
        value: &mut T,
    ) -> Result<(), ControlError> {
        if !self.names_node || id == u32::MAX {
            return self.call(name, operation, command_with(id, value)).map(drop);
        }
        let mut memory = node_path(id);
        let path_len = memory.len();
        let start: *const u8 = ptr::from_ref(value).cast();
        // SAFETY: all of the value's bytes, which are those of plain numbers without gaps.
        memory.extend_from_slice(unsafe { slice::from_raw_parts(start, size_of::<T>()) });
        let command = ControlCommand {
            addr: memory.as_mut_ptr() as u64,
            len: memory.len() as u16,
            dev_path_len: path_len as u16,
            ..command_with(id, value)
        };
        self.call(name, operation, command)?;
        // SAFETY: so many bytes are there, and any are a value of plain numbers.
        *value = unsafe { memory[path_len..].as_ptr().cast::<T>().read_unaligned() };
        Ok(())
    }

    /// Gives a command to the driver and waits for the answer. What it points to is the caller's and
    /// alive.
    fn call(
        &mut self,
        name: &'static str,
        operation: u32,
        command: ControlCommand,
    ) -> Result<i32, ControlError> {
        let operation = if self.encoded { operation } else { operation & 0xff };
        let file = uring::File::Fd(self.file.as_raw_fd());
        let entry = entry::big_uring_cmd(file, operation, &command.to_bytes());
        // SAFETY: what the command points to lives until this returns, which is when it has ended.
        unsafe { self.ring.push_big(&entry) }.expect("a ring of big entries without any");
        let refused = |source| ControlError::Refused { command: name, source };
        let mut completions = Vec::with_capacity(1);
        while completions.is_empty() {
            match self.ring.enter(Wait::Forever) {
                Ok(_) => {}
                // Not given up: the next call would hand the command over as well, whose memory is nobody's by then.
                Err(error) if is_transient(&error) => thread::sleep(PAUSE),
                Err(error) => panic!("io_uring_enter on a sound ring: {error}"),
            }
            self.ring.reap(&mut completions);
        }
        let result = completions[0].result;
        match -result {
            ..=0 => Ok(result),
            libc::ENODEV if command.dev_id != u32::MAX => {
                Err(ControlError::NoDevice(command.dev_id))
            }
            // The node went with the device.
            libc::ENOENT if command.dev_path_len > 0 => Err(ControlError::NoDevice(command.dev_id)),
            errno => Err(refused(io::Error::from_raw_os_error(errno))),
        }
    }
}

/// Whether the kernel is short of memory, or of room for completions.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM))
}

fn command_with<T>(id: u32, value: &mut T) -> ControlCommand {
    ControlCommand {
        dev_id: id,
        queue_id: NO_QUEUE,
        len: size_of::<T>() as u16,
        addr: (&raw mut *value) as u64,
        ..ControlCommand::default()
    }
}

/// Whether the driver lets us do everything. Others may have devices of their own.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Whether there is a device of that number which was not deleted.
pub(crate) fn is_listed(id: u32) -> bool {
    Path::new(&format!("{CLASS}/ublkc{id}")).exists()
}

/// The node by which the driver tells whose a device is, with the zero behind it.
fn node_path(id: u32) -> Vec<u8> {
    format!("/dev/ublkc{id}\0").into_bytes()
}

fn own_process() -> u64 {
    u64::from(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::flag;

    #[test]
    fn a_number_that_is_taken_is_told_with_what_to_do() {
        let own = std::process::id() as i32;
        let said = |state, flags, ublksrv_pid| {
            let info = DeviceInfo { state, flags, ublksrv_pid, ..DeviceInfo::default() };
            ControlError::Taken { id: 5, taken: Taken::of(&info) }.to_string()
        };
        let served = "/dev/ublkb5 exists already: see `nvlane ublk list`";
        assert_eq!(said(state::LIVE, flag::USER_RECOVERY, own), served);
        let waits = said(state::QUIESCED, flag::USER_RECOVERY, own);
        assert!(waits.starts_with("/dev/ublkb5 waits for a server: `nvlane ublk recover 5`"));
        for flags in [0, flag::USER_RECOVERY] {
            assert_eq!(said(state::DEAD, flags, own), served, "it is being made");
            let dead = said(state::DEAD, flags, i32::MAX);
            assert_eq!(dead, "/dev/ublkb5 is dead: `nvlane ublk del 5` clears it away");
        }
        let going = ControlError::Taken { id: 5, taken: Taken::Going }.to_string();
        assert!(going.starts_with("/dev/ublkb5 is deleted, and its server has not ended"));
    }
}
