//! What one core tells of its paths: relaxed atomics that it alone writes.

use super::histogram::{Histogram, Summary};
use crate::Access;
use multipath::{Group, GroupStatistics, Policy};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Latencies are halved as often, so that they are those of the last seconds.
const HALVING_NS: u64 = 2_000_000_000;
/// A core that was given no command for so long has no opinion any more, if another has.
const RESTS_NS: u64 = 10_000_000_000;

/// One core's counts.
#[derive(Debug)]
pub struct Core {
    pub paths: Box<[PathCounters]>,
    /// When its counts were last halved, or begun, by the volume's clock. A core without commands halves none.
    halved_ns: AtomicU64,
}

/// One path's on one core.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct PathCounters {
    pub in_flight: Count,
    pub selections: Count,
    pub errors: Count,
    access: AtomicU8,
    share: AtomicU32,
    statistics: [[AtomicU64; FIELDS.len()]; 3],
    pub latencies: Histogram,
}

/// A number that one thread changes and others read.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

/// What cores that are gone had counted on one path.
#[derive(Clone, Debug, Default)]
pub struct Past {
    pub selections: u64,
    pub errors: u64,
    /// Of each group those that count what was.
    statistics: [[u64; FIELDS.len()]; 3],
}

/// How a statistic of several cores becomes one.
#[derive(Clone, Copy, PartialEq)]
enum Together {
    /// Of what was: with that of cores that are gone.
    Count,
    /// Of what is.
    Sum,
    /// Over cores that have one.
    Mean,
}

/// A statistic: its name, how it is added up, whose it is (all policies' if none), and where it is.
type Field = (&'static str, Together, Option<Policy>, fn(&GroupStatistics) -> u64);

const FIELDS: [Field; 16] = {
    use Together::{Count, Mean, Sum};
    const LATENCY: Option<Policy> = Some(Policy::Latency);
    const TIME: Option<Policy> = Some(Policy::CompletionTime);
    [
        ("weight", Mean, LATENCY, |of| of.weight.into()),
        ("credit", Mean, LATENCY, |of| of.credit.into()),
        ("score", Mean, LATENCY, |of| of.score),
        ("slat_ns", Mean, LATENCY, |of| of.slat_ns),
        ("sel", Count, None, |of| of.sel),
        ("nr_samples", Count, LATENCY, |of| of.nr_samples),
        ("nr_ignored", Count, LATENCY, |of| of.nr_ignored),
        ("in_flight", Sum, None, |of| of.in_flight.into()),
        ("queued_work", Sum, TIME, |of| of.queued_work),
        ("latency_ns", Mean, TIME, |of| of.latency_ns),
        ("backlog_work", Sum, TIME, |of| of.backlog_work),
        ("rate", Sum, TIME, |of| of.rate),
        ("least_ns", Mean, TIME, |of| of.least_ns),
        ("silent_ns", Mean, TIME, |of| of.silent_ns),
        ("clipped", Count, TIME, |of| of.clipped),
        ("probes", Count, TIME, |of| of.probes),
    ]
};

impl Count {
    /// Adds. Only for the owning thread.
    #[inline]
    pub fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }

    /// Takes away. Only for the owning thread.
    #[inline]
    pub fn sub(&self, less: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) - less, Ordering::Relaxed);
    }

    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Past {
    /// Keeps what a core had counted on the path.
    pub fn add(&mut self, path: &PathCounters) {
        self.selections += path.selections.read();
        self.errors += path.errors.read();
        for group in Group::ALL {
            let kept = self.statistics[group as usize].iter_mut();
            for ((kept, last), (_, together, ..)) in kept.zip(read(path, group)).zip(&FIELDS) {
                if *together == Together::Count {
                    *kept += last;
                }
            }
        }
    }
}

impl Core {
    pub fn new(paths: usize, now_ns: u64) -> Core {
        let paths = (0..paths).map(|_| PathCounters::default()).collect();
        Core { paths, halved_ns: now_ns.into() }
    }

    /// How often counts are to be halved by now. Only for the owning thread, which then does.
    pub fn fade(&self, now_ns: u64) -> u32 {
        let halvings = self.halvings(now_ns);
        if halvings > 0 {
            self.halved_ns.store(now_ns, Ordering::Relaxed);
        }
        halvings
    }

    /// How often it should have halved its counts since it did.
    fn halvings(&self, now_ns: u64) -> u32 {
        (self.age_ns(now_ns) / HALVING_NS).try_into().unwrap_or(u32::MAX)
    }

    fn age_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.halved_ns.load(Ordering::Relaxed))
    }
}

impl PathCounters {
    pub fn set_access(&self, access: Access) {
        let place = ACCESSES.iter().position(|&known| known == access);
        self.access.store(place.expect("all are known") as u8, Ordering::Relaxed);
    }

    pub fn access(&self) -> Access {
        ACCESSES[usize::from(self.access.load(Ordering::Relaxed))]
    }

    pub fn share(&self) -> u32 {
        self.share.load(Ordering::Relaxed)
    }

    /// Shows what the selector knows.
    pub fn publish(&self, share: u32, groups: &[GroupStatistics; 3]) {
        self.share.store(share, Ordering::Relaxed);
        for (shown, known) in self.statistics.iter().zip(groups) {
            for (value, (_, _, _, of)) in shown.iter().zip(&FIELDS) {
                value.store(of(known), Ordering::Relaxed);
            }
        }
    }
}

/// In the order of [`Access`].
const ACCESSES: [Access; 6] = [
    Access::Optimized,
    Access::NonOptimized,
    Access::Inaccessible,
    Access::Lost,
    Access::Failing,
    Access::Gone,
];

/// The statistics of `path`: for each group that was used, one line of all cores, those that are gone among them, and one
/// of each core if there are several.
pub fn details(cores: &[&Core], past: &Past, path: usize, policy: Policy) -> Vec<(String, String)> {
    let mut details = Vec::new();
    for group in Group::ALL {
        let rows: Vec<[u64; FIELDS.len()]> =
            cores.iter().map(|core| read(&core.paths[path], group)).collect();
        let all = together(&rows, &past.statistics[group as usize]);
        if all[4] == 0 {
            continue;
        }
        details.push((group.name().to_owned(), line(&all, policy)));
        if rows.len() > 1 {
            for (core, row) in rows.iter().enumerate() {
                details.push((format!("{} core {core}", group.name()), line(row, policy)));
            }
        }
    }
    details
}

/// The latencies of `path` on all cores, of the last seconds before `now_ns`.
pub fn latencies(cores: &[&Core], path: usize, now_ns: u64) -> Summary {
    let mut summary = Summary::default();
    cores.iter().for_each(|core| summary.add(&core.paths[path].latencies, core.halvings(now_ns)));
    summary
}

/// The share of commands, of 128, that `path` was given of late: the mean of the cores that give any; where all rest, of
/// those that have.
pub fn share(cores: &[&Core], path: usize, now_ns: u64) -> u32 {
    let mean = |of: &dyn Fn(&Core) -> bool| {
        let shares = cores.iter().filter(|core| of(core)).map(|core| core.paths[path].share());
        let (count, sum) = shares.fold((0, 0), |(count, sum), share| (count + 1, sum + share));
        (count > 0).then(|| sum / count)
    };
    // Cores that have sent nothing have no opinion.
    let has_sent = |core: &Core| core.paths.iter().any(|path| path.share() > 0);
    let is_busy = |core: &Core| has_sent(core) && core.age_ns(now_ns) < RESTS_NS;
    mean(&is_busy).or_else(|| mean(&has_sent)).unwrap_or(0)
}

fn read(path: &PathCounters, group: Group) -> [u64; FIELDS.len()] {
    let shown = &path.statistics[group as usize];
    std::array::from_fn(|field| shown[field].load(Ordering::Relaxed))
}

fn together(rows: &[[u64; FIELDS.len()]], past: &[u64; FIELDS.len()]) -> [u64; FIELDS.len()] {
    std::array::from_fn(|field| {
        let sum: u64 = rows.iter().map(|row| row[field]).sum();
        let having = rows.iter().filter(|row| row[field] > 0).count() as u64;
        match FIELDS[field].1 {
            Together::Count => past[field] + sum,
            Together::Sum => sum,
            Together::Mean => sum / having.max(1),
        }
    })
}

/// `weight=48 credit=3 ...`
fn line(row: &[u64; FIELDS.len()], policy: Policy) -> String {
    let shown =
        FIELDS.iter().zip(row).filter(|((_, _, of, _), _)| of.is_none_or(|of| of == policy));
    shown.map(|((name, ..), value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_added_up_or_averaged() {
        let cores = [Core::new(1, 0), Core::new(1, 0)];
        // Of each statistic another value, twice as large on the second core.
        for (core, times) in cores.iter().zip([2_u32, 4]) {
            let many = u64::from(times);
            let read = GroupStatistics {
                weight: times,
                credit: 10 * times,
                score: 100 * many,
                slat_ns: 1000 * many,
                sel: 3 * many,
                nr_samples: 30 * many,
                nr_ignored: 300 * many,
                in_flight: 5 * times,
                queued_work: 50 * many,
                latency_ns: 500 * many,
                backlog_work: 7 * many,
                rate: 70 * many,
                least_ns: 700 * many,
                silent_ns: 9 * many,
                clipped: 90 * many,
                probes: 900 * many,
            };
            let none = GroupStatistics::default();
            core.paths[0].publish(64, &[read, none, none]);
        }
        let cores: Vec<&Core> = cores.iter().collect();
        let said = details(&cores, &Past::default(), 0, Policy::Latency);
        let names: Vec<_> = said.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["read", "read core 0", "read core 1"]);
        let wanted = "weight=3 credit=30 score=300 slat_ns=3000 sel=18 nr_samples=180 nr_ignored=1800 in_flight=30";
        assert_eq!(said[0].1, wanted);
        let wanted = "weight=2 credit=20 score=200 slat_ns=2000 sel=6 nr_samples=60 nr_ignored=600 in_flight=10";
        assert_eq!(said[1].1, wanted);
        let said = details(&cores, &Past::default(), 0, Policy::CompletionTime);
        let wanted = "sel=18 in_flight=30 queued_work=300 latency_ns=1500 backlog_work=42 rate=420 least_ns=2100 silent_ns=27 clipped=540 probes=5400";
        assert_eq!(said[0].1, wanted);
        // A core that knows nothing is no part of a mean.
        let idle = Core::new(1, 0);
        let said = details(&[cores[0], &idle], &Past::default(), 0, Policy::Latency);
        assert!(said[0].1.starts_with("weight=2 credit=20 score=200 slat_ns=2000"), "{said:?}");
        let said = details(&cores[..1], &Past::default(), 0, Policy::Numa);
        assert_eq!(said, [("read".to_owned(), "sel=6 in_flight=10".to_owned())]);
    }

    #[test]
    fn what_a_core_has_counted_is_kept_when_it_goes() {
        let cores = [Core::new(1, 0), Core::new(1, 0)];
        let read = GroupStatistics {
            weight: 48,
            sel: 10,
            nr_samples: 9,
            nr_ignored: 1,
            in_flight: 3,
            ..GroupStatistics::default()
        };
        let none = GroupStatistics::default();
        cores.iter().for_each(|core| core.paths[0].publish(64, &[read, none, none]));
        let mut past = Past::default();
        past.add(&cores[0].paths[0]);
        let line = |cores: &[&Core]| details(cores, &past, 0, Policy::Latency)[0].1.clone();
        let wanted = "score=0 slat_ns=0 sel=20 nr_samples=18 nr_ignored=2 in_flight=3";
        assert_eq!(line(&[&cores[1]]), format!("weight=48 credit=0 {wanted}"));
        assert!(line(&[]).contains("sel=10 nr_samples=9 nr_ignored=1 in_flight=0"));
    }

    #[test]
    fn a_core_that_rests_is_forgotten_as_if_it_went_on() {
        const S: u64 = 1_000_000_000;
        let cores = [Core::new(2, 0), Core::new(2, 0)];
        let none = [GroupStatistics::default(); 3];
        // A million slow commands by one path on the first core; quick ones by the other on the second.
        (0..1_000_000).for_each(|_| cores[0].paths[0].latencies.record(50_000_000));
        cores[0].paths[0].publish(128, &none);
        cores[1].paths[1].publish(128, &none);
        let all: Vec<&Core> = cores.iter().collect();
        let p99 = |now_ns| latencies(&all, 0, now_ns).quantile_ns(0.99);
        assert!(p99(0).abs_diff(50_000_000) < 50_000_000 / 16, "{}", p99(0));
        assert_eq!([share(&all, 0, 0), share(&all, 1, 0)], [64, 64]);
        for second in 1..=42 {
            (0..1000).for_each(|_| cores[1].paths[0].latencies.record(100_000));
            cores[1].paths[0].latencies.fade(cores[1].fade(second * S));
        }
        assert!(p99(42 * S) < 110_000, "{}: what was slow was 42 s ago", p99(42 * S));
        assert_eq!([share(&all, 0, 42 * S), share(&all, 1, 42 * S)], [0, 128]);
        // Once all rest, the last known shares stay, and no latency does.
        assert_eq!([share(&all, 0, 100 * S), share(&all, 1, 100 * S)], [64, 64]);
        assert_eq!(p99(100 * S), 0);
        // A core that is given a command now and then halves as often as one that is always busy.
        (0..8).for_each(|_| cores[0].paths[1].latencies.record(100_000));
        assert_eq!(cores[0].fade(106 * S), 53);
        assert_eq!(cores[0].fade(107 * S), 0);
        assert_eq!(cores[0].fade(108 * S), 1);
    }

    #[test]
    fn every_access_survives() {
        let path = PathCounters::default();
        for access in ACCESSES {
            path.set_access(access);
            assert_eq!(path.access(), access);
        }
    }
}
