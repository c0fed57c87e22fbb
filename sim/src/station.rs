//! A place where one thing is served after the other: a direction of a link, a port's processor,
//! the device behind all ports.

use crate::model::Queueing;
use std::collections::VecDeque;

/// What waits: a message or a command.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Whose it is.
    pub attempt: u32,
    /// Its size.
    pub bytes: u32,
    /// Which queue of [`Queueing::Fair`].
    pub flow: u32,
    /// A command without data, for [`Queueing::CommandsFirst`].
    pub command: bool,
}

/// One server with its queue.
#[derive(Debug)]
pub struct Station {
    ns_per_byte: f64,
    cost_ns: f64,
    slowness: f64,
    queueing: Queueing,
    serving: Option<Job>,
    commands: VecDeque<Job>,
    data: VecDeque<Job>,
    flows: Vec<Flow>,
    /// Flows that have something, in turn.
    turns: VecDeque<u32>,
}

/// A queue of [`Queueing::Fair`], served by deficit round robin.
#[derive(Debug, Default)]
struct Flow {
    jobs: VecDeque<Job>,
    /// Bytes it may send before it has to wait for its next turn.
    credit: u32,
}

/// Bytes that each flow may send in its turn: an Ethernet frame.
const QUANTUM: u32 = 1514;

impl Station {
    /// One that takes `cost_ns` per job and serves `bytes_per_s`.
    pub fn new(bytes_per_s: f64, cost_ns: f64, queueing: Queueing) -> Station {
        Station {
            ns_per_byte: 1e9 / bytes_per_s,
            cost_ns,
            slowness: 1.0,
            queueing,
            serving: None,
            commands: VecDeque::new(),
            data: VecDeque::new(),
            flows: Vec::new(),
            turns: VecDeque::new(),
        }
    }

    /// Whether it takes no time at all.
    pub fn is_instant(&self) -> bool {
        self.ns_per_byte == 0.0 && self.cost_ns == 0.0
    }

    /// Takes `slowness` times as long from the next job on.
    pub fn slow_down(&mut self, slowness: f64) {
        self.slowness = slowness;
    }

    /// Takes a job. The time it takes, if it is served at once; otherwise it waits.
    pub fn offer(&mut self, job: Job) -> Option<f64> {
        if self.serving.is_none() {
            self.serving = Some(job);
            return Some(self.time_ns(&job));
        }
        match self.queueing {
            Queueing::CommandsFirst if job.command => self.commands.push_back(job),
            Queueing::Fifo | Queueing::CommandsFirst => self.data.push_back(job),
            Queueing::Fair => {
                let flow = job.flow as usize;
                if self.flows.len() <= flow {
                    self.flows.resize_with(flow + 1, Flow::default);
                }
                if self.flows[flow].jobs.is_empty() {
                    self.turns.push_back(job.flow);
                    self.flows[flow].credit = 0;
                }
                self.flows[flow].jobs.push_back(job);
            }
        }
        None
    }

    /// The job that was served is done; the time that the next one takes, if there is one.
    ///
    /// # Panics
    /// If none was served.
    pub fn served(&mut self) -> (Job, Option<f64>) {
        let done = self.serving.take().expect("a job is served");
        self.serving = self.next();
        (done, self.serving.map(|job| self.time_ns(&job)))
    }

    /// The job to be served now.
    fn next(&mut self) -> Option<Job> {
        if let Some(job) = self.commands.pop_front().or_else(|| self.data.pop_front()) {
            return Some(job);
        }
        loop {
            let turn = *self.turns.front()?;
            let flow = &mut self.flows[turn as usize];
            let bytes = flow.jobs.front().expect("a flow in turn has a job").bytes;
            if flow.credit >= bytes {
                flow.credit -= bytes;
                let job = flow.jobs.pop_front();
                if flow.jobs.is_empty() {
                    self.turns.pop_front();
                }
                return job;
            }
            flow.credit += QUANTUM;
            self.turns.rotate_left(1);
        }
    }

    fn time_ns(&self, job: &Job) -> f64 {
        (self.cost_ns + f64::from(job.bytes) * self.ns_per_byte) * self.slowness
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(queueing: Queueing) -> Vec<u32> {
        let mut station = Station::new(1e9, 10.0, queueing);
        // Flow 0 has jobs of two turns each.
        let job = |attempt, flow, command| {
            let bytes = if flow == 0 { 3000 } else { 100 };
            Job { attempt, bytes, flow, command }
        };
        assert_eq!(station.offer(job(0, 0, false)), Some(3010.0));
        for (attempt, flow, command) in [(1, 0, false), (2, 0, false), (3, 1, true), (4, 1, false)]
        {
            assert_eq!(station.offer(job(attempt, flow, command)), None);
        }
        let mut order = Vec::new();
        loop {
            let (done, next) = station.served();
            order.push(done.attempt);
            if next.is_none() {
                return order;
            }
        }
    }

    #[test]
    fn who_is_next() {
        assert_eq!(order(Queueing::Fifo), [0, 1, 2, 3, 4]);
        assert_eq!(order(Queueing::CommandsFirst), [0, 3, 1, 2, 4]);
        assert_eq!(order(Queueing::Fair), [0, 3, 4, 1, 2]);
    }

    #[test]
    fn a_slow_station_takes_longer() {
        let mut station = Station::new(1e9, 10.0, Queueing::Fifo);
        station.slow_down(10.0);
        assert_eq!(
            station.offer(Job { attempt: 0, bytes: 90, flow: 0, command: false }),
            Some(1e3)
        );
        assert!(!station.is_instant());
        assert!(Station::new(f64::INFINITY, 0.0, Queueing::Fifo).is_instant());
    }
}
