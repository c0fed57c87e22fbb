//! Reads through `volume::session`, as a user of the library makes them.

use super::device::Device;
use super::{BYTES, Runs, Window};
use crate::bench::pipeline::histogram;
use crate::bench::random::Random;
use crate::bench::usage;
use anyhow::{Context, ensure};
use std::time::{Duration, Instant};
use volume::session::{Bytes, Done, Session, SessionConfig, Submission, Volume};

/// Of the measured time, for so much longer stages are timed: reading a thread's clock costs as much as a stage, so
/// that it is not done where commands are counted.
const STAGES_SHARE: u32 = 4;

/// A session with the device open.
pub struct Library<'a> {
    device: &'a Device,
    volume: Volume,
    session: Session,
    polls: bool,
    random: Random,
}

impl<'a> Library<'a> {
    /// Opens it; `polls` for completions where asked to.
    pub fn new(device: &'a Device, polls: bool) -> anyhow::Result<Library<'a>> {
        // Without spinning, as the others: where processors share time, a spin takes from the device's.
        let session =
            Session::new(&SessionConfig { spin: Duration::ZERO, ..SessionConfig::default() })?;
        let option = if polls { "&poll" } else { "" };
        let volume = session.open(&format!("{}?ro{option}", device.path.display()))?;
        Ok(Library { device, volume, session, polls, random: Random::new(1) })
    }

    fn submit(&mut self, token: u64, data: Bytes) -> anyhow::Result<()> {
        let place = self.random.below(self.device.places);
        let (slba, blocks) = self.device.blocks_of(place);
        let submission = Submission::read(slba, blocks, data).token(token);
        self.volume.submit(submission).map_err(|rejected| anyhow::anyhow!("{}", rejected.reason))
    }
}

impl Runs for Library<'_> {
    fn name(&self) -> String {
        if self.polls { "library_iopoll" } else { "library" }.to_owned()
    }

    fn run(&mut self, depth: usize, warm: Duration, measure: Duration) -> anyhow::Result<Window> {
        let mut latency = histogram();
        let mut begun = vec![Instant::now(); depth];
        let mut done: Vec<Done> = Vec::with_capacity(depth);
        let start = Instant::now();
        for at in 0..depth {
            let buffer = self.session.allocate(BYTES as usize).context("no buffer")?;
            self.submit(at as u64, Bytes::Fixed(buffer))?;
        }
        let (mut in_flight, mut ios) = (depth, 0);
        let mut watched: Option<(Instant, usage::Usage)> = None;
        let mut ended: Option<(Duration, usage::Usage)> = None;
        let (mut stages, mut staged) = ([Duration::ZERO; 3], 0u64);
        let length = warm + measure + measure / STAGES_SHARE;
        while in_flight > 0 {
            let timed = ended.is_some();
            let entered = if timed { usage::thread_clock()? } else { Duration::ZERO };
            self.session.wait(1, None);
            let woken = if timed { usage::thread_clock()? } else { Duration::ZERO };
            // One by one where they are counted; to be timed apart from submitting, they are listed.
            if timed {
                self.session.reap(&mut done);
            }
            let now = Instant::now();
            if watched.is_none() && now - start >= warm {
                watched = Some((now, usage::of_this_thread()?));
            }
            if let (Some((since, _)), None) = (watched, ended)
                && now - since >= measure
            {
                ended = Some((now - since, usage::of_this_thread()?));
            }
            let drains = ended.is_some() && now - start >= length;
            let reaped = if timed { usage::thread_clock()? } else { Duration::ZERO };
            let count = done.len() as u64;
            while let Some(Done { token, status, data, .. }) =
                if timed { done.pop() } else { self.session.reap_one() }
            {
                ensure!(status.is_success(), "a read ended with {status:?}");
                let at = token as usize;
                if drains {
                    in_flight -= 1;
                    continue;
                }
                if watched.is_some() && ended.is_none() {
                    ios += 1;
                    latency.saturating_record((now - begun[at]).as_nanos() as u64);
                }
                begun[at] = now;
                self.submit(token, data)?;
            }
            if timed && !drains {
                let submitted = usage::thread_clock()?;
                stages[0] += submitted - reaped;
                stages[1] += woken - entered;
                stages[2] += reaped - woken;
                staged += count;
            }
        }
        let ((_, before), (time, after)) = watched.zip(ended).context("it was watched")?;
        let cpu = after.since(before).cpu;
        // Of the commands that were timed, to all.
        let share = ios as f64 / staged.max(1) as f64;
        let stages = (staged > 0).then(|| stages.map(|stage| stage.mul_f64(share)));
        Ok(Window { ios, seconds: time.as_secs_f64(), cpu, latency, stages })
    }
}
