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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

/// How long whoever asks waits for an answer; no longer than for other admin commands.
const PATIENCE: Duration = Duration::from_secs(5);

/// A controller that has kept somebody waiting is not asked again for so long.
const SILENCE: Duration = Duration::from_secs(60);

/// How long the controller may take before its connection is given up: its disk may hang, which is no fault of the path.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// Descriptors that are asked for at once, at most: 16 KiB.
const DESCRIPTORS_MAX: usize = (16 << 10) / DESCRIPTOR_BYTES - 1;

/// What is known of the controller.
#[derive(Debug, Default)]
pub(crate) struct Tracking {
    state: Mutex<State>,
    /// Held by whoever asks: our targets carry out one such command of a host at a time.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether it keeps track of what is allocated, and the association that it was asked by.
    tracks: Option<(u64, bool)>,
    /// Not to be asked before.
    silent_until: Option<Instant>,
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
        let limits = self.shared.subsystem.limits();
        let tells = limits.is_some_and(|limits| limits.commands.allocation);
        if !tells || runs_max == 0 || blocks == 0 {
            return stored();
        }
        let _turn = self.tracking.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(association) = self.tracked_by()? else { return stored() };
        // Each extent comes with a hole before it.
        let count = (runs_max / 2 + 1).min(DESCRIPTORS_MAX);
        let bytes = (HEADER_BYTES + count * DESCRIPTOR_BYTES) as u32;
        let nsid = self.shared.standing().nsid;
        let command = lba_status::command(nsid, slba, blocks, bytes);
        let (status, answer) = self.answer(command, bytes)?;
        if !status.is_success() {
            // What it does not know, or not of these blocks, is stored.
            return if status.0 & Status::DNR != 0 { stored() } else { Err(self.unusable()) };
        }
        // Of another controller nobody knows whether it tracks anything.
        if self.shared.standing().association != association {
            return Err(self.unusable());
        }
        match Allocated::read(&answer, slba) {
            Some(allocated) => Ok(runs(&allocated, slba, blocks, runs_max)),
            None => {
                let peer = self.shared.address();
                tracing::warn!(%peer, "the answer to Get LBA Status makes no sense");
                stored()
            }
        }
    }

    /// The association by whose controller it is kept track of what is allocated, as that says once; if it is.
    fn tracked_by(&self) -> io::Result<Option<u64>> {
        if !self.shared.access().is_usable() {
            return Err(self.unusable());
        }
        let association = self.shared.standing().association;
        let known = self.tracking.lock().tracks;
        if let Some((of, tracks)) = known
            && of == association
        {
            return Ok(tracks.then_some(association));
        }
        // CSI 0h, the NVM command set, in dword 11.
        let command = Command {
            opcode: opcode::admin::IDENTIFY,
            nsid: self.shared.standing().nsid.into(),
            cdw10: u32::from(Cns::COMMAND_SET_NAMESPACE.0).into(),
            ..Command::default()
        };
        let (status, answer) = self.answer(command, DATA_BYTES as u32)?;
        let found = NvmNamespace::read_from_bytes(&answer).ok().filter(|_| status.is_success());
        let tracks = found.is_some_and(|found| found.tlbaag.get() != 0);
        self.tracking.lock().tracks = Some((association, tracks));
        Ok(tracks.then_some(association))
    }

    /// Sends an admin command for the namespace, and waits for what comes.
    fn answer(&self, command: Command, bytes: u32) -> io::Result<(Status, Vec<u8>)> {
        if self.tracking.lock().silent_until.is_some_and(|until| Instant::now() < until) {
            return Err(self.unusable());
        }
        let (sender, receiver) = mpsc::channel();
        let answer = Box::new(move |status: Status, _result, data| {
            // Whoever waited may have given up.
            let _ = sender.send((status, data));
        });
        let passing = Passing::new(command, Vec::new(), bytes, TIMEOUT, answer);
        self.control.with(self.path, move |driver| driver.pass(passing));
        let patience = PATIENCE.min(self.shared.options.association.admin_timeout);
        let Ok((status, data)) = receiver.recv_timeout(patience) else {
            self.tracking.lock().silent_until = Some(Instant::now() + SILENCE);
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

impl Tracking {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
