//! Small reads on a volume that is opened to see how its paths are.

use super::Output;
use crate::cli::PathsArgs;
use crate::session::Session;
use anyhow::{Result, bail};
use namespace::{Request, Sink};
use reactor::Complete;
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

/// How often each path is read over.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);
/// Probes that may be unanswered: a path that says nothing is not sent ever more.
const IN_FLIGHT_MAX: usize = 64;
/// Policy for probing: every path has its turn.
const POLICY: (&str, &str) = ("policy", "round-robin");
/// Tokens: send probes; show a sample.
const PROBE: u64 = 0;
const SHOW: u64 = 1;

struct Probe {
    this: Weak<Probe>,
    session: Session,
    watch: bool,
    interval: Duration,
    state: RefCell<State>,
}

struct State {
    #[expect(clippy::vec_box, reason = "requests travel in the boxes that they rest in")]
    idle: Vec<Box<Request>>,
    in_flight: usize,
    /// The last answer that was an error.
    refusal: Option<nvme::Status>,
    output: Output,
    show_at: Instant,
    /// No more probes: what is in flight is given up.
    ending: bool,
    failure: Option<anyhow::Error>,
}

/// Opens `volume`, probes it, and shows its paths.
pub fn run(volume: &str, args: &PathsArgs) -> Result<()> {
    let session = Session::open(volume, true)?;
    if session.volume.paths().is_empty() {
        bail!("{}: it has no paths, it is a local volume", session.volume.uri());
    }
    let chosen = volume.contains("policy=");
    // A volume that has but one way of choosing is probed its way.
    let spread = !chosen && session.volume.tune(POLICY.0, POLICY.1).is_ok();
    let note = if spread {
        "probing with small reads, round-robin\n"
    } else {
        "probing with small reads, spread by the volume's policy\n"
    };
    let started = Instant::now();
    let probe = Rc::new_cyclic(|this| Probe {
        this: Weak::clone(this),
        session,
        watch: args.watch,
        interval: args.interval,
        state: RefCell::new(State {
            idle: Vec::new(),
            in_flight: 0,
            refusal: None,
            output: Output::new(args, note),
            show_at: started + args.interval,
            ending: false,
            failure: None,
        }),
    });
    let reactor = Rc::clone(&probe.session.reactor);
    let this = || Rc::clone(&probe) as Rc<dyn Complete>;
    reactor.timer(started + args.interval, this(), SHOW);
    probe.session.run(this(), PROBE);
    let mut state = probe.state.borrow_mut();
    if let Some(failure) = state.failure.take() {
        return Err(failure);
    }
    match state.refusal {
        Some(status) => bail!("{volume}: a probe failed: {status}"),
        None => Ok(()),
    }
}

impl Probe {
    fn this(&self) -> Rc<Probe> {
        self.this.upgrade().expect("a job that is running is alive")
    }

    /// As many reads as there are paths, and a timer for the next ones.
    fn send(&self) {
        if self.state.borrow().ending {
            return;
        }
        let paths = self.session.volume.paths().len();
        for _ in 0..paths {
            let mut state = self.state.borrow_mut();
            if state.in_flight >= IN_FLIGHT_MAX {
                break;
            }
            let mut request = state.idle.pop().unwrap_or_else(Request::new);
            state.in_flight += 1;
            drop(state);
            let block = self.session.limits.block_bytes() as usize;
            self.session.give_buffer(&mut request, block);
            self.session.submit_blocks(nvme::opcode::io::READ, 0, request, self.this(), 0);
        }
        let next = self.session.reactor.now() + PROBE_INTERVAL;
        self.session.reactor.timer(next, self.this(), PROBE);
    }

    fn show(&self) {
        let volume = &self.session.volume;
        let sample = super::sample("", 0, &**volume);
        let mut state = self.state.borrow_mut();
        let shown = state.output.show(&[sample]);
        if let Err(error) = shown {
            state.failure = Some(error);
        }
        if !self.watch || state.failure.is_some() {
            state.ending = true;
            // Reads that wait for a path are forgotten with the queue.
            self.session.reactor.stop();
            return;
        }
        state.show_at += self.interval;
        self.session.reactor.timer(state.show_at, self.this(), SHOW);
    }
}

impl Sink for Probe {
    fn completed(&self, request: Box<Request>, _state: u64) {
        let mut state = self.state.borrow_mut();
        state.in_flight -= 1;
        if !request.status.is_success() {
            state.refusal = Some(request.status);
        }
        state.idle.push(request);
    }
}

impl Complete for Probe {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        match token {
            SHOW => self.show(),
            _ => self.send(),
        }
    }
}
