//! What one core tells of its paths: relaxed atomics that it alone writes.

use super::histogram::{Histogram, Summary};
use crate::Access;
use multipath::{Group, GroupStatistics, Policy};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// One core's counts.
#[derive(Debug)]
pub struct Core {
    pub paths: Box<[PathCounters]>,
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

/// How a statistic of several cores becomes one.
#[derive(Clone, Copy, PartialEq)]
enum Together {
    Sum,
    /// Over cores that have one.
    Mean,
}

/// A statistic: its name, how it is added up, whose it is (all policies' if none), and where it is.
type Field = (&'static str, Together, Option<Policy>, fn(&GroupStatistics) -> u64);

const FIELDS: [Field; 16] = {
    use Together::{Mean, Sum};
    const LATENCY: Option<Policy> = Some(Policy::Latency);
    const TIME: Option<Policy> = Some(Policy::CompletionTime);
    [
        ("weight", Mean, LATENCY, |of| of.weight.into()),
        ("credit", Mean, LATENCY, |of| of.credit.into()),
        ("score", Mean, LATENCY, |of| of.score),
        ("slat_ns", Mean, LATENCY, |of| of.slat_ns),
        ("sel", Sum, None, |of| of.sel),
        ("nr_samples", Sum, LATENCY, |of| of.nr_samples),
        ("nr_ignored", Sum, LATENCY, |of| of.nr_ignored),
        ("in_flight", Sum, None, |of| of.in_flight.into()),
        ("queued_work", Sum, TIME, |of| of.queued_work),
        ("latency_ns", Mean, TIME, |of| of.latency_ns),
        ("backlog_work", Sum, TIME, |of| of.backlog_work),
        ("rate", Sum, TIME, |of| of.rate),
        ("least_ns", Mean, TIME, |of| of.least_ns),
        ("silent_ns", Mean, TIME, |of| of.silent_ns),
        ("clipped", Sum, TIME, |of| of.clipped),
        ("probes", Sum, TIME, |of| of.probes),
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

impl Core {
    pub fn new(paths: usize) -> Core {
        Core { paths: (0..paths).map(|_| PathCounters::default()).collect() }
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

/// The statistics of `path`: for each group that was used, one line of all cores, and one of each
/// core if there are several.
pub fn details(cores: &[&Core], path: usize, policy: Policy) -> Vec<(String, String)> {
    let mut details = Vec::new();
    for group in Group::ALL {
        let rows: Vec<[u64; FIELDS.len()]> =
            cores.iter().map(|core| read(&core.paths[path], group)).collect();
        let all = together(&rows);
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

/// The latencies of `path` on all cores.
pub fn latencies(cores: &[&Core], path: usize) -> Summary {
    let mut summary = Summary::default();
    cores.iter().for_each(|core| summary.add(&core.paths[path].latencies));
    summary
}

fn read(path: &PathCounters, group: Group) -> [u64; FIELDS.len()] {
    let shown = &path.statistics[group as usize];
    std::array::from_fn(|field| shown[field].load(Ordering::Relaxed))
}

fn together(rows: &[[u64; FIELDS.len()]]) -> [u64; FIELDS.len()] {
    std::array::from_fn(|field| {
        let sum: u64 = rows.iter().map(|row| row[field]).sum();
        let having = rows.iter().filter(|row| row[field] > 0).count() as u64;
        match FIELDS[field].1 {
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
        let cores = [Core::new(1), Core::new(1)];
        for (core, weight) in cores.iter().zip([48, 32]) {
            let read = GroupStatistics { weight, sel: 10, rate: 7, ..GroupStatistics::default() };
            let none = GroupStatistics::default();
            core.paths[0].publish(64, &[read, none, none]);
        }
        let cores: Vec<&Core> = cores.iter().collect();
        let said = details(&cores, 0, Policy::Latency);
        let names: Vec<_> = said.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["read", "read core 0", "read core 1"]);
        let wanted =
            "weight=40 credit=0 score=0 slat_ns=0 sel=20 nr_samples=0 nr_ignored=0 in_flight=0";
        assert_eq!(said[0].1, wanted);
        assert!(said[1].1.starts_with("weight=48 credit=0") && !said[1].1.contains("rate"));
        let said = details(&cores[..1], 0, Policy::CompletionTime);
        assert_eq!(said.len(), 1);
        assert!(said[0].1.contains("rate=7") && !said[0].1.contains("weight"), "{}", said[0].1);
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
