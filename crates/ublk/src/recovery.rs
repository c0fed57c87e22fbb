//! Devices whose server is gone, or gives them up.

use crate::control::Control;
use crate::device::{Device, DeviceOptions, LOOK_EVERY, Wake, check_threads};
use crate::driver::{DeviceInfo, Parameters, SECTOR_SHIFT, flag, state};
use crate::error::Error;
use crate::kernel::{self, Runs};
use crate::path::DataPath;
use namespace::Namespace;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{mem, thread};
use ublk_bpf::Queues;

/// How long a killed server may take to be gone.
const RECOVERY_PATIENCE: Duration = Duration::from_secs(30);
/// How long its process may take to die.
const DEATH_PATIENCE: Duration = Duration::from_secs(10);

/// How long one that lives may take to flush and end.
const UPGRADE_PATIENCE: Duration = Duration::from_secs(60);
/// How often the driver is told again that it is to. A queue is told nothing of which the server has all requests at that
/// moment (`ublk_count_busy_req` of Linux 7.3 counts those that it has not), and waits for ever; soon they are done.
const QUIESCE_AGAIN: Duration = Duration::from_secs(1);
/// How long it may take until it is killed. What was in flight comes again, as after a crash. Long enough for one that has
/// been told and waits for slow volumes.
const LEAVE_PATIENCE: Duration = Duration::from_secs(30);

/// How long a device may take until each of its queues can be handed over.
const QUIESCE_PATIENCE_MS: u64 = 10_000;
/// And when the driver is told again.
const QUIESCE_AGAIN_PATIENCE_MS: u64 = 1000;

impl Device {
    /// Takes over a device whose server is gone. Of `options`, where and how threads run counts. `note` notes for the next
    /// server what it is served from, when nobody else can serve it any more and before we do. `begins` is told true before
    /// the driver is told of us, which it may refuse, and false once another successor could be told again: drivers
    /// without [`flag::QUIESCE`] do not survive one in between.
    ///
    /// Where this fails the device stays, and waits for the next attempt: end the process then, whose threads may have it.
    pub fn recover(
        id: u32,
        namespace: Arc<dyn Namespace>,
        options: &DeviceOptions,
        wake: &Wake,
        begins: impl Fn(bool) -> Result<(), Error>,
        note: impl FnOnce(u32, &Runs) -> Result<(), Error>,
    ) -> Result<Device, Error> {
        let mut control = Control::open()?;
        let info = control.info(id)?;
        if info.flags & flag::USER_RECOVERY == 0 {
            let why = "was not made with --recover: its requests fail when its server is gone";
            return Err(Error::NotRecoverable { id, why });
        }
        let parameters = control.parameters(id)?;
        let path = DataPath::of_flags(info.flags);
        check_volume(id, &info, &parameters, path, namespace.as_ref())?;
        let (volume, depth) = (namespace.as_ref(), info.queue_depth);
        let fetching = kernel::fetching(info.flags & flag::BATCH_IO != 0);
        let queues = Queues { count: info.nr_hw_queues, depth, fetching };
        let runs = Runs::choose(options, volume, path, queues, Some(&parameters))?;
        check_threads(options.threads, depth, info.flags)?;
        await_recovery(&mut control, id, &begins)?;
        let mut device = Device::new(control, info, namespace, path, runs);
        device.sectors = parameters.basic.dev_sectors;
        if let Err(error) = device.take_over(&parameters, options, wake, &begins, note) {
            // To stop it would take the disk from its users, and its threads end with the process.
            mem::forget(device);
            return Err(error);
        }
        if let Err(error) = device.resize() {
            // It is served all the same, at the size that it has.
            tracing::warn!("{}: {error}", device.node().display());
        }
        Ok(device)
    }

    /// Named, noted, rid of what is not kept true any more, and only then let run: a kill at any point leaves a volume
    /// with its own maps (docs/decisions/0009).
    fn take_over(
        &mut self,
        parameters: &Parameters,
        options: &DeviceOptions,
        wake: &Wake,
        begins: &dyn Fn(bool) -> Result<(), Error>,
        note: impl FnOnce(u32, &Runs) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let id = self.id();
        self.start_queues(parameters, options, true, wake)?;
        begins(false)?;
        // Another successor may have come and gone between our look at the maps and here.
        options.kept.iter().try_for_each(|kept| kept.check_names()).map_err(Error::Kept)?;
        note(id, self.runs())?;
        ublk_bpf::kept::forget_others(id, &options.kept).map_err(Error::Kept)?;
        self.control.end_recovery(id)?;
        self.threads.go();
        Ok(())
    }
}

/// Whether a volume can be behind a device that was made for it.
pub(crate) fn check_volume(
    id: u32,
    info: &DeviceInfo,
    parameters: &Parameters,
    path: DataPath,
    namespace: &dyn Namespace,
) -> Result<(), Error> {
    let (limits, basic) = (namespace.limits(), &parameters.basic);
    let what = if limits.block_shift > basic.logical_bs_shift {
        format!(
            "it had blocks of {} bytes, not {}",
            1 << basic.logical_bs_shift,
            limits.block_bytes()
        )
    } else if limits.bytes() >> SECTOR_SHIFT < basic.dev_sectors {
        format!("it had {} bytes, not {}", basic.dev_sectors << SECTOR_SHIFT, limits.bytes())
    } else if limits.transfer_bytes_max < info.max_io_buf_bytes && !cuts(namespace) {
        let most = limits.transfer_bytes_max;
        format!("it took {} bytes per command, not {most}", info.max_io_buf_bytes)
    } else if path == DataPath::ZeroCopy && !namespace.takes_registered() {
        "it took its data by zero copy".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::Mismatch { id, what })
}

/// Whether a volume cuts what is longer than it takes at once: programs in user space, to which requests go piece by
/// piece. Whether one may move into the kernel is looked at where that is chosen.
pub(crate) fn cuts(namespace: &dyn Namespace) -> bool {
    namespace.uri().starts_with("bpf:")
}

/// Takes a device from its server when that is gone.
fn await_recovery(
    control: &mut Control,
    id: u32,
    begins: &dyn Fn(bool) -> Result<(), Error>,
) -> Result<(), Error> {
    let until = Instant::now() + RECOVERY_PATIENCE;
    loop {
        if gone(control, id)? == state::DEAD {
            let why = "is dead: `nvlane ublk del` clears it away";
            return Err(Error::NotRecoverable { id, why });
        }
        begins(true)?;
        let Err(error) = control.start_recovery(id) else { return Ok(()) };
        begins(false)?;
        if error.errno() != Some(libc::EBUSY) {
            return Err(error.into());
        }
        if Instant::now() >= until {
            return Err(Error::NotRecoverable { id, why: STILL_SERVED });
        }
        thread::sleep(LOOK_EVERY);
    }
}

const STILL_SERVED: &str = "still has its server";

/// Waits until a device has lost its server: its state then.
fn gone(control: &mut Control, id: u32) -> Result<u16, Error> {
    let begun = Instant::now();
    let mut is_told = false;
    loop {
        let info = control.info(id)?;
        if info.state != state::LIVE {
            return Ok(info.state);
        }
        if !mem::replace(&mut is_told, true) {
            tracing::info!(id, process = info.ublksrv_pid, "waits for the device's server to end");
        }
        let lives = is_alive(info.ublksrv_pid);
        if lives && begun.elapsed() >= DEATH_PATIENCE {
            let why = "has a server: `nvlane ublk upgrade` takes it over";
            return Err(Error::NotRecoverable { id, why });
        }
        if begun.elapsed() >= RECOVERY_PATIENCE {
            return Err(Error::NotRecoverable { id, why: STILL_SERVED });
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Whether a process runs. One that was killed and waits for its parent does not.
pub(crate) fn is_alive(process: i32) -> bool {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return false };
    // proc_pid_stat(5): the state follows the name, which is in parentheses and may hold any.
    let state = text.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// Whether a device can be taken over, since its server is gone.
pub fn waits_for_server(info: &DeviceInfo) -> bool {
    let is_gone = info.state != state::LIVE || !is_alive(info.ublksrv_pid);
    info.flags & flag::USER_RECOVERY != 0 && info.state != state::DEAD && is_gone
}

/// Waits until a server that has crashed is gone, with what it had in its rings.
///
/// # Errors
/// It lives, also after the time that one takes to die that was just killed.
pub fn await_end(id: u32) -> Result<(), Error> {
    gone(&mut Control::open()?, id).map(drop)
}

/// Has the server of a device give it up to the one that comes next, without an error to its users, and
/// waits until it is gone, with its claim to the volume. One that does not leave is killed. Its process.
///
/// Of a device with batches the driver would fail the requests: `ask` has the server [leave](Device::hand_over) by itself.
pub fn quiesce<E: From<Error>>(id: u32, ask: impl FnOnce() -> Result<(), E>) -> Result<i32, E> {
    let mut control = Control::open().map_err(Error::from)?;
    let info = control.info(id).map_err(Error::from)?;
    let is_told = info.flags & flag::QUIESCE != 0;
    let can_leave = info.flags & flag::USER_RECOVERY != 0 && info.flags & flag::BATCH_IO != 0;
    if !is_told && !can_leave {
        let why = "cannot be taken over in use: make it with --recover, on Linux 6.16 or newer";
        return Err(Error::NotRecoverable { id, why }.into());
    }
    // Names this very process, whatever gets its number when it is gone.
    let server = Pid::from_raw(info.ublksrv_pid);
    let mut server = server.and_then(|server| pidfd_open(server, PidfdFlags::empty()).ok());
    match is_told {
        true => control.quiesce(id, QUIESCE_PATIENCE_MS).map_err(Error::from)?,
        false => ask()?,
    }
    let begun = Instant::now();
    let mut next = begun + QUIESCE_AGAIN;
    loop {
        let is_live = control.info(id).map_err(Error::from)?.state == state::LIVE;
        if !is_live && !is_alive(info.ublksrv_pid) {
            return Ok(info.ublksrv_pid);
        }
        if is_told && is_live && Instant::now() >= next {
            // Refused where requests are with the server for longer than that: there is another time.
            let _ = control.quiesce(id, QUIESCE_AGAIN_PATIENCE_MS);
            next = Instant::now() + QUIESCE_AGAIN;
        }
        if begun.elapsed() >= UPGRADE_PATIENCE {
            return Err(Error::NotRecoverable { id, why: STILL_SERVED }.into());
        }
        if is_live
            && begun.elapsed() >= LEAVE_PATIENCE
            && let Some(server) = server.take()
        {
            tracing::warn!(id, "the server does not leave the device, and is killed");
            let _ = pidfd_send_signal(&server, Signal::KILL);
        }
        thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters;
    use namespace::layer::program::Routed;
    use namespace::layer::volatile::Volatile;
    use namespace::null::Null;

    const BYTES: u64 = 1 << 20;

    fn null() -> Arc<dyn Namespace> {
        Null::open(BYTES, 9, None).expect("a size")
    }

    fn program(name: &str) -> Arc<dyn Namespace> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf");
        let object = std::fs::read(format!("{folder}/{name}.bpf.o")).expect("an object");
        Routed::new(&object, name.to_owned(), vec![null(), null()], 1).expect("it loads")
    }

    /// Whether `next` can be behind a device that was made for `first`.
    fn follows(first: &dyn Namespace, next: &dyn Namespace) -> Result<(), String> {
        let (limits, path) = (first.limits(), DataPath::UserCopy);
        let max_io_buf_bytes = parameters::io_bytes_max(&limits, path, None);
        let made = parameters::of(&limits, path, max_io_buf_bytes, None);
        let info = DeviceInfo { max_io_buf_bytes, ..DeviceInfo::default() };
        check_volume(0, &info, &made, path, next).map_err(|error| error.to_string())
    }

    #[test]
    fn a_program_that_takes_less_at_once_can_follow() {
        let (mirror, snapshot) = (program("mirror"), program("snapshot"));
        let most = |volume: &dyn Namespace| volume.limits().transfer_bytes_max;
        assert!(most(&*snapshot) < most(&*mirror), "the case of this test");
        assert_eq!(follows(&*mirror, &*snapshot), Ok(()));
        assert_eq!(follows(&*null(), &*snapshot), Ok(()));
    }

    #[test]
    fn a_volume_with_a_cache_may_follow_one_without_and_the_other_way_round() {
        let cached: Arc<dyn Namespace> = Volatile::new(null(), 4096);
        for (first, next) in [(null(), cached.clone()), (cached.clone(), null())] {
            assert_eq!(follows(&*first, &*next), Ok(()));
        }
    }
}
