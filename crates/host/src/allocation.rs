//! Which blocks a controller says are allocated: Get LBA Status, by the control thread, for whoever may wait.
//!
//! ```text
//!   Namespace::allocation (a thread that may block) --letter--> control thread: admin command --> controller
//!          ^------------------------ channel --------------------------'
//! ```
//!
//! A controller that does not tell, or not just now, stores everything as far as is known. What it says is believed only
//! where it keeps track of what is allocated (TLBAAG), and makes sense.

use crate::control::Control;
use crate::passed::Passing;
use crate::shared::Shared;
use namespace::Run;
use nvme::identify::{Cns, DATA_BYTES, NvmNamespace};
use nvme::lba_status::{self, Allocated, DESCRIPTOR_BYTES, HEADER_BYTES};
use nvme::{Command, Status, opcode};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

/// How long whoever asks waits in all; no longer than for other admin commands.
const PATIENCE: Duration = Duration::from_secs(5);

/// A controller that has kept somebody waiting is not asked again for so long.
const SILENCE: Duration = Duration::from_secs(60);

/// How long the controller may take before its connection is given up: its disk may hang, which is no fault of the path. Until
/// it has answered it is asked nothing more.
const TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Descriptors that are asked for at once, at most: 16 KiB.
const DESCRIPTORS_MAX: usize = (16 << 10) / DESCRIPTOR_BYTES - 1;

/// Blocks that a command can name, in whole MiB.
const NAMED_MAX: u64 = 0xf000;

/// What is known of the controller.
#[derive(Debug, Default)]
pub(crate) struct Tracking {
    state: Mutex<State>,
    /// Somebody asks: our targets carry out one such command of a host at a time.
    taken: Mutex<bool>,
    left: Condvar,
    /// A command is with the controller, or was given up by whoever waited for it.
    outstanding: Arc<AtomicBool>,
}

/// Each with the number of the [survey](crate::shared::Standing::survey) that it is of.
#[derive(Debug, Default)]
struct State {
    /// Whether the controller keeps track of what is allocated.
    tracks: Option<(u64, bool)>,
    /// It has so many blocks at least.
    blocks: Option<(u64, u64)>,
    /// It is not to be asked before.
    silent_until: Option<(u64, Instant)>,
    /// It was told that its answer makes no sense.
    blamed: Option<u64>,
}

/// Who is asked.
pub(crate) struct Asked<'a> {
    pub(crate) control: &'a Control,
    pub(crate) path: u64,
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) tracking: &'a Tracking,
}

impl Asked<'_> {
    /// See [`namespace::Namespace::allocation`].
    ///
    /// # Errors
    /// The path is not usable, or there was no answer: another path may know.
    pub(crate) fn runs(&self, slba: u64, blocks: u64, runs_max: usize) -> io::Result<Vec<Run>> {
        let stored = || Ok(vec![Run { blocks, is_stored: true }]);
        if runs_max == 0 || blocks == 0 || !self.tells() {
            return stored();
        }
        let until = Instant::now() + PATIENCE.min(self.shared.options.association.admin_timeout);
        let _turn = self.tracking.turn(until).ok_or_else(|| self.unusable())?;
        let Some(survey) = self.tracked(until)? else { return stored() };
        // More than a command can name is asked about up to the end, which is the controller's.
        let asked = match blocks > NAMED_MAX && !self.has_all_blocks(slba, blocks, survey, until)? {
            true => NAMED_MAX,
            false => blocks,
        };
        // Each extent comes with a hole before it.
        let count = (runs_max / 2 + 1).min(DESCRIPTORS_MAX);
        let (status, answer) = self.answer(slba, asked, count, until)?;
        if !status.is_success() {
            // What it does not know, or not of these blocks, is stored.
            return if is_final(status) { stored() } else { Err(self.unusable()) };
        }
        // Of another controller, or another namespace, nobody knows whether it tracks anything.
        if self.shared.standing().survey != survey || !self.tells() {
            return Err(self.unusable());
        }
        match Allocated::read(&answer, slba) {
            Some(allocated) => Ok(runs(&allocated, slba, asked, runs_max)),
            None => {
                let before = self.tracking.lock().blamed.replace(survey);
                if before != Some(survey) {
                    let peer = self.shared.address();
                    tracing::warn!(%peer, "the answer to Get LBA Status makes no sense");
                }
                stored()
            }
        }
    }

    /// Whether the controllers have the command, and what is not allocated is read as zeroes.
    fn tells(&self) -> bool {
        let limits = self.shared.subsystem.limits();
        limits.is_some_and(|limits| limits.commands.allocation)
    }

    /// The survey of which it is known that the controller keeps track of what is allocated, as it says once; none if it does not.
    fn tracked(&self, until: Instant) -> io::Result<Option<u64>> {
        if !self.shared.access().is_usable() {
            return Err(self.unusable());
        }
        let survey = self.shared.standing().survey;
        let known = self.tracking.lock().tracks;
        if let Some((of, tracks)) = known
            && of == survey
        {
            return Ok(tracks.then_some(survey));
        }
        // CSI 0h, the NVM command set, in dword 11.
        let command = Command {
            opcode: opcode::admin::IDENTIFY,
            nsid: self.shared.standing().nsid.into(),
            cdw10: u32::from(Cns::COMMAND_SET_NAMESPACE.0).into(),
            ..Command::default()
        };
        let (status, answer) = self.pass(command, DATA_BYTES as u32, until)?;
        if !status.is_success() && !is_final(status) {
            return Err(self.unusable());
        }
        let found = NvmNamespace::read_from_bytes(&answer).ok().filter(|_| status.is_success());
        let tracks = found.is_some_and(|found| found.tlbaag.get() != 0);
        self.tracking.lock().tracks = Some((survey, tracks));
        Ok(tracks.then_some(survey))
    }

    /// Whether the controller has all of these blocks, and has not been asked before it was made larger: it is asked for the
    /// volume's last one.
    fn has_all_blocks(
        &self,
        slba: u64,
        blocks: u64,
        survey: u64,
        until: Instant,
    ) -> io::Result<bool> {
        let all = self.shared.subsystem.limits().map_or(0, |limits| limits.blocks);
        if slba.checked_add(blocks).is_none_or(|end| end > all) {
            return Ok(false);
        }
        if self.tracking.lock().blocks == Some((survey, all)) {
            return Ok(true);
        }
        let (status, _) = self.answer(all - 1, 1, 1, until)?;
        if status.is_success() {
            self.tracking.lock().blocks = Some((survey, all));
        } else if !is_final(status) {
            return Err(self.unusable());
        }
        Ok(status.is_success())
    }

    /// Asks for so many descriptors at most.
    fn answer(
        &self,
        slba: u64,
        blocks: u64,
        descriptors: usize,
        until: Instant,
    ) -> io::Result<(Status, Vec<u8>)> {
        let bytes = (HEADER_BYTES + descriptors * DESCRIPTOR_BYTES) as u32;
        let nsid = self.shared.standing().nsid;
        self.pass(lba_status::command(nsid, slba, blocks, bytes), bytes, until)
    }

    /// Sends an admin command for the namespace, and waits for what comes.
    fn pass(&self, command: Command, bytes: u32, until: Instant) -> io::Result<(Status, Vec<u8>)> {
        let survey = self.shared.standing().survey;
        let silent = self.tracking.lock().silent_until;
        let is_silent = silent.is_some_and(|(of, until)| of == survey && Instant::now() < until);
        if is_silent || self.tracking.outstanding.swap(true, Ordering::AcqRel) {
            return Err(self.unusable());
        }
        let (sender, receiver) = mpsc::channel();
        let outstanding = Arc::clone(&self.tracking.outstanding);
        // It is called in any case, once.
        let answer = Box::new(move |status: Status, _result, data| {
            outstanding.store(false, Ordering::Release);
            // Whoever waited may have given up.
            let _ = sender.send((status, data));
        });
        let passing = Passing::new(command, Vec::new(), bytes, TIMEOUT, answer);
        self.control.with(self.path, move |driver| driver.pass(passing));
        let left = until.saturating_duration_since(Instant::now());
        let Ok((status, data)) = receiver.recv_timeout(left) else {
            self.tracking.lock().silent_until = Some((survey, Instant::now() + SILENCE));
            return Err(self.unusable());
        };
        if matches!(status.code(), Status::HOST_PATHING_ERROR | Status::HOST_ABORTED) {
            return Err(self.unusable());
        }
        Ok((status, data))
    }

    fn unusable(&self) -> io::Error {
        let what = format!("{} does not tell its holes just now", self.shared.address());
        io::Error::new(io::ErrorKind::NotConnected, what)
    }
}

/// Whether it is of no use to ask again.
fn is_final(status: Status) -> bool {
    status.0 & Status::DNR != 0
}

impl Tracking {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody else asks; none if that takes too long.
    fn turn(&self, until: Instant) -> Option<Turn<'_>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken {
            let left = until.checked_duration_since(Instant::now())?;
            let waited = self.left.wait_timeout(taken, left);
            taken = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *taken = true;
        Some(Turn(self))
    }
}

/// Somebody's turn to ask.
struct Turn<'a>(&'a Tracking);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.left.notify_one();
    }
}

/// What an answer about blocks from `slba` on says of `blocks` blocks there: at least one run.
fn runs(allocated: &Allocated, slba: u64, blocks: u64, runs_max: usize) -> Vec<Run> {
    let end = slba.saturating_add(blocks);
    let extents = allocated.extents.iter().flat_map(|extent| {
        [(extent.slba, false), (extent.slba.saturating_add(extent.blocks), true)]
    });
    let rest = allocated.is_complete.then_some((end, false));
    let mut runs: Vec<Run> = Vec::new();
    let mut at = slba;
    for (until, is_stored) in extents.chain(rest) {
        let until = until.min(end);
        if until <= at {
            continue;
        }
        let (blocks, count) = (until - at, runs.len());
        match runs.last_mut() {
            Some(last) if last.is_stored == is_stored => last.blocks += blocks,
            // What comes after it would be taken for what comes here.
            _ if count == runs_max => break,
            _ => runs.push(Run { blocks, is_stored }),
        }
        at = until;
    }
    if runs.is_empty() {
        runs.push(Run { blocks, is_stored: true });
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::lba_status::Extent;

    #[test]
    fn what_lies_between_extents_is_a_hole_and_what_is_not_told_is_left_open() {
        let of = |extents: &[(u64, u64)], is_complete: bool, runs_max: usize| {
            let extents =
                extents.iter().map(|&(slba, blocks)| Extent { slba, blocks }).collect::<Vec<_>>();
            let runs = runs(&Allocated { extents, is_complete }, 100, 50, runs_max);
            runs.iter().map(|run| (run.blocks, run.is_stored)).collect::<Vec<_>>()
        };
        let (data, hole) = (true, false);
        assert_eq!(of(&[], true, 9), [(50, hole)]);
        // Not even where the first extent would be.
        assert_eq!(of(&[], false, 9), [(50, data)]);
        assert_eq!(of(&[(100, 50)], true, 9), [(50, data)]);
        assert_eq!(of(&[(110, 5)], true, 9), [(10, hole), (5, data), (35, hole)]);
        assert_eq!(of(&[(110, 5)], false, 9), [(10, hole), (5, data)]);
        assert_eq!(of(&[(110, 5), (115, 5)], false, 9), [(10, hole), (10, data)]);
        // The question was about less.
        assert_eq!(of(&[(110, 500), (700, 9)], true, 9), [(10, hole), (40, data)]);
        assert_eq!(of(&[(700, 9)], true, 9), [(50, hole)]);
        assert_eq!(of(&[(110, 5), (120, 5)], true, 3), [(10, hole), (5, data), (5, hole)]);
        assert_eq!(of(&[(110, 5), (120, 5)], true, 1), [(10, hole)]);
    }
}
