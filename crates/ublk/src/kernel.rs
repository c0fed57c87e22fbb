//! Queues that the kernel serves by itself, by a volume's program.

use crate::control::Control;
use crate::descriptors::Descriptors;
use crate::device::DeviceOptions;
use crate::driver::{self, Parameters, SECTOR_SHIFT};
use crate::error::Error;
use crate::path::DataPath;
use crate::threads::{Caller, Event, Seed, Teller, be_io_flusher};
use namespace::Namespace;
use namespace::layer::program::Elsewhere;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use ublk_bpf::{Fetching, KernelProgram, KernelQueue, Place, Queues};

/// Where a volume's program is to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgramPlace {
    /// In the kernel where that is possible and comes to the same, otherwise in user space.
    #[default]
    Auto,
    /// In user space.
    User,
    /// In the kernel, or the device is not made; also where commands on the same blocks ought to be kept apart.
    Kernel,
}

/// Where it runs.
#[derive(Clone, Debug)]
pub enum Runs {
    /// The volume is no program.
    Nowhere,
    /// In the kernel.
    InKernel(Arc<KernelProgram>),
    /// In user space, for this reason.
    InUserSpace(String),
}

impl fmt::Display for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Runs::Nowhere => f.write_str("no program"),
            Runs::InKernel(_) => f.write_str(IN_KERNEL),
            Runs::InUserSpace(why) => write!(f, "{IN_USER_SPACE}{why}"),
        }
    }
}

const IN_KERNEL: &str = "program in the kernel";
const IN_USER_SPACE: &str = "program in user space: ";

/// What the words of [`Runs`], also those of other versions, say for programs: `kernel` or `user`, and why it is not the kernel
/// if it is not.
pub fn place_and_reason(words: &str) -> Option<(&'static str, Option<&str>)> {
    match words.strip_prefix(IN_USER_SPACE) {
        Some(why) => Some(("user", Some(why))),
        None => (words == IN_KERNEL).then_some(("kernel", None)),
    }
}

impl Runs {
    /// Chooses for a volume whose data goes that way, by those queues; `made` is the device, if it is there already.
    pub fn choose(
        options: &DeviceOptions,
        volume: &dyn Namespace,
        path: DataPath,
        queues: Queues,
        made: Option<&Parameters>,
    ) -> Result<Runs, Error> {
        let asked = options.program;
        // The volume's program is the first that is met.
        let kept = options.kept.first();
        if asked != ProgramPlace::Kernel && !volume.uri().starts_with("bpf:") {
            return Ok(Runs::Nowhere);
        }
        let why_not = match asked {
            ProgramPlace::User => "as asked for".to_owned(),
            _ if path != DataPath::ZeroCopy => format!("data goes by {path}"),
            _ if options.poll => "--poll is for user space".to_owned(),
            _ if options.threads > 1 => "several threads per queue are for user space".to_owned(),
            _ => match KernelProgram::new(volume, queues, kept) {
                Ok(program) => match unsuited(volume, &program, asked, made) {
                    Some(why) => why,
                    None => {
                        let program = Arc::new(program);
                        hand_over(volume, &program);
                        return Ok(Runs::InKernel(program));
                    }
                },
                Err(error) => error.to_string(),
            },
        };
        match asked {
            ProgramPlace::Kernel => Err(Error::NotInKernel(why_not)),
            ProgramPlace::Auto | ProgramPlace::User => Ok(Runs::InUserSpace(why_not)),
        }
    }

    /// The program, if it is the kernel's.
    pub fn kernel(&self) -> Option<&Arc<KernelProgram>> {
        match self {
            Runs::InKernel(program) => Some(program),
            Runs::Nowhere | Runs::InUserSpace(_) => None,
        }
    }

    /// Puts what has gone wrong in the kernel into the log.
    pub fn tell_mistakes(&self) {
        let Runs::InKernel(program) = self else { return };
        let told = program.tell_mistakes(&mut |program, count, what| {
            tracing::error!(program, count, "request failed: {what}");
        });
        if let Err(error) = told {
            tracing::warn!("what the program does wrong cannot be told: {error}");
        }
    }
}

/// Tells the volume, whose program is the first.
fn hand_over(volume: &dyn Namespace, program: &Arc<KernelProgram>) {
    let mut is_first = true;
    volume.each_program(&mut |routed| {
        if std::mem::take(&mut is_first) {
            let program: Arc<dyn Elsewhere> = Arc::clone(program) as _;
            routed.hand_over(program);
        }
    });
}

/// Why a program that the kernel would take is not to run there.
fn unsuited(
    volume: &dyn Namespace,
    program: &KernelProgram,
    asked: ProgramPlace,
    made: Option<&Parameters>,
) -> Option<String> {
    if asked == ProgramPlace::Auto && !program.has_one_place() {
        let why = "it may keep a block in several places (no NVLANE_ONE_PLACE), and the kernel does not keep \
                   writes to the same blocks apart; --bpf kernel insists";
        return Some(why.to_owned());
    }
    let parameters = made?;
    if volume.limits().volatile_write_cache && !parameters.has_cache() {
        let why = "the device was made without a write cache, and the kernel does not make each write durable";
        return Some(why.to_owned());
    }
    is_longer(parameters, program.io_bytes_max()).then(|| TOO_LONG.to_owned())
}

/// What is said of a device whose requests a program in the kernel could not take: nobody cuts them there.
const TOO_LONG: &str = "the device's requests are longer than the program takes at once";

/// Whether a device has requests of more bytes than `most`.
fn is_longer(parameters: &Parameters, most: u64) -> bool {
    let Parameters { basic, discard, .. } = parameters;
    let sectors =
        [basic.max_sectors, discard.max_discard_sectors, discard.max_write_zeroes_sectors];
    sectors.iter().any(|sectors| u64::from(*sectors) << SECTOR_SHIFT > most)
}

/// Whether a program in the kernel that takes that many bytes at once can serve a device, whose requests nobody cuts there.
///
/// # Errors
/// They are longer.
pub fn check_length(id: u32, bytes: u64) -> Result<(), Error> {
    let parameters = Control::open()?.parameters(id)?;
    if is_longer(&parameters, bytes) {
        Err(Error::NotInKernel(TOO_LONG.to_owned()))
    } else {
        Ok(())
    }
}

/// Whether requests of a device come many at a time.
///
/// # Errors
/// There is none of that number, or the driver does not tell.
pub fn comes_in_batches(id: u32) -> Result<bool, Error> {
    Ok(Control::open()?.info(id)?.flags & driver::flag::BATCH_IO != 0)
}

/// Requests of every kind are at most as long as the program takes: nobody in the kernel cuts them.
pub fn limit(parameters: &mut Parameters, program: &KernelProgram) {
    let most = (program.io_bytes_max() >> SECTOR_SHIFT).min(u32::MAX.into()) as u32;
    let discard = &mut parameters.discard;
    discard.max_discard_sectors = discard.max_discard_sectors.min(most);
    discard.max_write_zeroes_sectors = discard.max_write_zeroes_sectors.min(most);
}

/// How requests come, many at a time or one by one.
pub fn fetching(batches: bool) -> Fetching {
    match batches {
        false => Fetching::Single {
            fetch: driver::io::FETCH_REQ,
            commit: driver::io::COMMIT_AND_FETCH_REQ,
        },
        true => Fetching::Batches {
            prepare: driver::io::PREP_IO_CMDS,
            fetch: driver::io::FETCH_IO_CMDS,
            commit: driver::io::COMMIT_IO_CMDS,
        },
    }
}

/// Serves a queue until all of its tags have ended: the thread sleeps in the kernel. Whether they have, without an error.
pub fn run(
    seed: &Seed,
    program: &Arc<KernelProgram>,
    started: &Sender<Result<Caller, Error>>,
) -> bool {
    let (number, depth) = (seed.config.queue, seed.config.depth);
    be_io_flusher();
    if let Some(cpu) = seed.reactor.cpu
        && let Err(error) = reactor::pin(cpu)
    {
        tracing::warn!(cpu, "a queue's thread cannot be kept on its core: {error}");
    }
    let opened = Descriptors::map(&seed.node, number, depth).and_then(|descriptors| {
        let place = Place {
            device: seed.node.as_fd(),
            queue: number,
            descriptors: descriptors.address(),
            held: seed.config.held,
        };
        let queue = KernelQueue::open(program, &place).map_err(io::Error::other)?;
        Ok((queue, descriptors))
    });
    let (mut queue, _descriptors) = match opened {
        Ok(opened) => opened,
        Err(source) => {
            let _ = started.send(Err(Error::Queue { queue: number, source }));
            return false;
        }
    };
    let _ = started.send(Ok(Caller { thread: queue.caller(), unheard: None }));
    let (error, returns) = serve(&mut queue, &seed.teller, depth);
    if let Ok(state) = queue.state() {
        let ublk_bpf::abi::QueueState { requests, steps, entries, .. } = state;
        tracing::debug!(queue = number, requests, steps, entries, returns, "a queue has ended");
    }
    // The driver's file is in the ring until here, and nobody could delete the device.
    drop(queue);
    seed.teller.tell(Event::Ended(seed.teller.thread, error));
    error.is_none()
}

/// Until all tags have ended, or the loop has stopped with an error: that, if any, and how many times the
/// kernel has come back.
fn serve(queue: &mut KernelQueue, teller: &Teller, depth: u16) -> (Option<i32>, u64) {
    let (mut ending, mut idle, mut returns) = (false, false, 0);
    loop {
        let state = match queue.serve() {
            Ok(state) => state,
            Err(error) => {
                tracing::error!("a queue that the kernel serves has failed: {error}");
                return (Some(error.raw_os_error().unwrap_or(libc::EIO)), returns);
            }
        };
        returns += 1;
        if (state.ended > 0 || state.over > 0) && state.error == 0 && !ending {
            ending = true;
            teller.tell(Event::Ending(teller.thread, None));
        }
        if ending && state.busy == 0 && !idle {
            idle = true;
            teller.tell(Event::Idle(teller.thread));
        }
        if queue.has_left() {
            teller.tell(Event::Idle(teller.thread));
            // The process ends next, and the thread with it.
            loop {
                std::thread::park();
            }
        }
        // Nothing turns the loop any more, whatever tags the driver still has.
        if state.error != 0 {
            return (Some(state.error), returns);
        }
        if state.ended >= u32::from(depth) {
            return (None, returns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_where_a_program_runs_and_why() {
        assert_eq!(place_and_reason(IN_KERNEL), Some(("kernel", None)));
        let words = Runs::InUserSpace("as asked for: by me".into()).to_string();
        assert_eq!(place_and_reason(&words), Some(("user", Some("as asked for: by me"))));
        assert_eq!(place_and_reason(&Runs::Nowhere.to_string()), None);
    }

    #[test]
    fn no_request_of_any_kind_is_longer_than_the_program_takes() {
        let mut parameters = Parameters::default();
        parameters.basic.max_sectors = 32;
        assert!(!is_longer(&parameters, 16 << 10) && is_longer(&parameters, (16 << 10) - 1));
        parameters.discard.max_discard_sectors = 64;
        assert!(!is_longer(&parameters, 32 << 10) && is_longer(&parameters, 16 << 10));
        parameters.discard.max_write_zeroes_sectors = 128;
        assert!(!is_longer(&parameters, 64 << 10) && is_longer(&parameters, 32 << 10));
    }
}
