//! What a server needs of the one before it: its volume, and what its programs have kept.

use super::door;
use super::record::socket_of;
use crate::cli::ProgramPlace;
use crate::control::client::{Client, ClientError};
use crate::control::method::{BackendNow, ProgramBackends};
use crate::patience::Patience;
use crate::settle::{self, CONNECTIONS_CLOSE, Last};
use anyhow::{Context, Result, bail};
use namespace::layer::program::{Routed, check_successor};
use namespace::{Namespace, percent};
use nvme::Limits;
use nvme::limits::{Commands, CopyLimits, DiscardLimits, Passthrough};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};
use ublk_bpf::KeptMaps;
use volume::{Kind, OpenOptions, Uri};

/// How long a server may take to tell of its programs.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// How long the claim of a server that has ended may last.
const CLAIM_PATIENCE: Duration = Duration::from_secs(10);

/// Opens a volume whose last server has just ended, and waits until nothing of that is carried out any more, if it
/// `ended` by a crash.
pub fn open_settled(
    uri: &str,
    options: &OpenOptions,
    ended: Option<Instant>,
    stop: &AtomicBool,
) -> Result<Arc<dyn Namespace>> {
    let volume = open(uri, options)?;
    if let Some(ended) = ended {
        settle(&*volume, ended, stop)?;
    }
    Ok(volume)
}

/// Opens a volume whose last server has just ended. The kernel lets go of what that had in its rings, and
/// so of its claim to the volume, a moment later.
fn open(uri: &str, options: &OpenOptions) -> Result<Arc<dyn Namespace>> {
    Ok(Patience::new(CLAIM_PATIENCE).open(|| volume::open(uri, options))?)
}

/// A volume that was noted for a successor, without what [`check_rings`] refuses: it comes from a version that did not.
pub fn without_rings(noted: String) -> String {
    match noted.parse::<Uri>() {
        Ok(mut uri) if uri.has_ring_beside() => {
            tracing::warn!(
                "{noted}: poll, hybrid and sqpoll are left away: the device outlives its server"
            );
            uri.drop_rings_beside();
            uri.to_string()
        }
        _ => noted,
    }
}

/// Refuses a volume whose commands a successor could not wait for: when a server is killed the driver lets go of its
/// device as soon as the rings have ended that know the device, and what is under way on others could land later.
pub fn check_rings(uri: &str) -> Result<()> {
    // What is no volume shows when it is opened.
    if uri.parse::<Uri>().is_ok_and(|uri| uri.has_ring_beside()) {
        bail!(
            "{uri}: poll, hybrid and sqpoll are not for devices that outlive their server (attach, --recover, recover, upgrade), \
             since a killed server's commands would not be waited for; leave them away"
        );
    }
    Ok(())
}

/// Waits until a server that has crashed is gone. Then its controllers know that it is, and if they drain, they let
/// us connect when its commands have ended.
pub fn await_end(id: u32, uri: &str) -> Result<Instant> {
    ::ublk::await_end(id)?;
    if volume::may_be_remote(uri) {
        thread::sleep(CONNECTIONS_CLOSE);
    }
    Ok(Instant::now())
}

/// Waits until nothing is carried out any more of what a server that ended then has sent.
///
/// # Errors
/// We are told to stop: the device waits for the next server then, as it did for us.
fn settle(volume: &dyn Namespace, ended: Instant, stop: &AtomicBool) -> Result<()> {
    if !settle::settle(volume, Last::Killed, ended, stop) {
        bail!("told to stop; the device waits for its next server");
    }
    Ok(())
}

/// Has the maps of the volume's programs kept for the next server, from the one before if the device is taken over. The
/// volume takes no program whose maps cannot be, from now on.
pub fn keep_maps(volume: &dyn Namespace, taken_over: Option<u32>) -> Result<Vec<Arc<KeptMaps>>> {
    let mut each = Vec::new();
    let mut outcome = Ok(());
    volume.each_program(&mut |program| {
        let number = each.len();
        let kept = taken_over.map_or_else(|| KeptMaps::new(number), |id| KeptMaps::of(id, number));
        let kept = Arc::new(kept);
        if outcome.is_ok() {
            outcome = program.keep_maps(Arc::clone(&kept) as _);
        }
        each.push(kept);
    });
    outcome?;
    Ok(each)
}

/// Whether we could run the programs of a device whose server lives, or the one of `volume` in the place of its only
/// one: asked before that server goes, of the kernel as well if `place` insists on it. One that does not tell is taken as
/// it is.
pub fn check_programs(id: u32, volume: Option<&str>, place: ProgramPlace) -> Result<()> {
    let told = Client::connect(&socket_of(id))
        .map(|server| server.patient_for(ANSWER_PATIENCE))
        .and_then(|mut server| server.call("volume_backends", Value::Null));
    let told = match told {
        Ok(told) => told,
        // One that hangs, or crashes just now, needs a successor all the more.
        Err(error) => {
            tracing::warn!("the programs of /dev/ublkb{id} are not looked at before: {error}");
            return Ok(());
        }
    };
    let mut programs: Vec<ProgramBackends> =
        serde_json::from_value(told).context("the server is of another version")?;
    if let Some(volume) = volume {
        match (&volume.parse::<Uri>()?.kind, &mut programs[..]) {
            (Kind::Program(path, children), [one]) if children.len() == one.backends.len() => {
                one.name = percent::encode(path);
            }
            // Something else altogether: what it is shows when it is opened.
            _ => return Ok(()),
        }
    }
    for (number, program) in programs.iter().enumerate() {
        let name = &program.name;
        let Some(path) = percent::decode(name) else { bail!("{name} is no path") };
        let object = volume::read_program_waiting(&path);
        let object = object.with_context(|| format!("cannot read {}", path.display()))?;
        let backends: Vec<Limits> = program.backends.iter().map(limits).collect();
        if backends.is_empty() {
            bail!("{name} has nothing behind it");
        }
        let kept = KeptMaps::of(id, number);
        let most = check_successor(&object, name, &backends, program.blocks, &kept)?;
        // The volume's program is the first one.
        if number == 0 && place == ProgramPlace::Kernel {
            let batches = ::ublk::comes_in_batches(id).with_context(|| name.clone())?;
            let checked = ublk_bpf::check(&object, backends.len() as u16, &[batches]);
            checked.with_context(|| name.clone())?;
            ::ublk::check_length(id, most).with_context(|| name.clone())?;
        }
    }
    Ok(())
}

/// Asks the server of a device to give it up, where the driver does not do that. One that does not answer is one that does not
/// leave, which is waited for.
pub fn ask_to_leave(id: u32) -> Result<()> {
    let asked = Client::connect(&socket_of(id))
        .map(|server| server.patient_for(ANSWER_PATIENCE))
        .and_then(|mut server| server.call(door::LEAVE, Value::Null));
    match asked {
        Ok(_) => {}
        Err(ClientError::Failed(failure)) => {
            bail!(
                "/dev/ublkb{id} cannot be taken over in use: its server does not leave ({failure})"
            )
        }
        Err(error) => {
            tracing::warn!("the server of /dev/ublkb{id} cannot be asked to leave: {error}")
        }
    }
    Ok(())
}

/// What programs were given, as the server of a device tells it.
pub fn backends(program: &Routed) -> ProgramBackends {
    let each = program.backends().iter().map(|limits| BackendNow {
        block_shift: limits.block_shift,
        blocks: limits.blocks,
        transfer_bytes_max: limits.transfer_bytes_max,
        optimal_write_bytes: limits.optimal_write_bytes,
    });
    ProgramBackends { name: program.name(), blocks: program.blocks(), backends: each.collect() }
}

/// The same as limits; programs are given no more of these.
fn limits(told: &BackendNow) -> Limits {
    let BackendNow { block_shift, blocks, transfer_bytes_max, optimal_write_bytes } = *told;
    Limits {
        block_shift: block_shift.min(31),
        blocks,
        transfer_bytes_max,
        write_zeroes_bytes_max: u32::MAX,
        discard: DiscardLimits::UNLIMITED,
        optimal_write_bytes,
        read_only: false,
        volatile_write_cache: false,
        commands: Commands::default(),
        copy: CopyLimits::NONE,
        metadata_bytes: 0,
        passthrough: Passthrough::NONE,
        lends_reads: false,
        immediate: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::atomic::Ordering;

    #[test]
    fn rings_that_the_device_does_not_wait_for_are_refused() {
        for uri in [
            "/dev/ng0n1?poll",
            "/dev/ng0n1?hybrid",
            "linear:(mem:1M,delay:1ms(/dev/ng0n1?sqpoll=1))",
            "bpf:null.bpf.o(nvme:/dev/other?sqpoll)",
        ] {
            let said = check_rings(uri).unwrap_err().to_string();
            assert!(said.contains(uri) && said.contains("--recover"), "{said}");
        }
        for uri in ["/dev/ng0n1", "/dev/nvme0n1", "linear:(mem:1M,/dev/ng0n1?timeout=1s)", "a:b:"] {
            check_rings(uri).unwrap();
        }
    }

    #[test]
    fn noted_volumes_lose_such_rings_and_nothing_else() {
        let noted =
            "linear:(mem:1M,delay:read=1ms,write=1ms(nvme:/dev/ng0n1?poll&sqpoll=1&timeout=1s))";
        let left = without_rings(noted.to_owned());
        check_rings(&left).unwrap();
        assert!(left.contains("/dev/ng0n1?timeout=1s") && left.starts_with("linear:("), "{left}");
        let plain = "linear:(mem:1M,/dev/ng0n1?timeout=1s)";
        assert_eq!(without_rings(plain.to_owned()), plain);
    }

    #[test]
    fn who_is_told_to_stop_takes_no_device_over() {
        let volume = volume::open("null:1M", &OpenOptions::default()).unwrap();
        let stop = AtomicBool::new(false);
        settle(&*volume, Instant::now(), &stop).unwrap();
        stop.store(true, Ordering::Relaxed);
        let said = settle(&*volume, Instant::now(), &stop).unwrap_err().to_string();
        assert!(said.contains("told to stop"), "{said}");
    }

    #[test]
    fn what_a_server_tells_of_its_programs_is_what_they_were_given() {
        let object = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf/linear.bpf.o");
        let uri = format!("bpf:{object}(mem:192K,mem:64K)");
        let volume = volume::open(&uri, &OpenOptions::default()).unwrap();
        let mut told = Vec::new();
        volume.each_program(&mut |program| told.push(backends(program)));
        assert_eq!(told.len(), 1);
        assert_eq!((told[0].blocks, told[0].backends.len()), (512, 2));
        let limits: Vec<Limits> = told[0].backends.iter().map(limits).collect();
        assert_eq!((limits[0].blocks, limits[1].blocks), (384, 128));
        // It comes to the same volume from these.
        let (object, kept) = (fs::read(object).unwrap(), KeptMaps::new(0));
        let most = check_successor(&object, "linear", &limits, 512, &kept).unwrap();
        assert_eq!(most, u64::from(volume.limits().transfer_bytes_max));
        let said = check_successor(&object, "linear", &limits[..1], 512, &kept).unwrap_err();
        assert!(said.to_string().contains("384 blocks of 512"), "{said}");
        assert!(check_successor(b"", "linear", &limits, 512, &kept).is_err());
    }
}
