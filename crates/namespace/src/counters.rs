//! What clients had of a volume, as front doors count it: by each core for itself, read from anywhere.

mod latency;

use latency::Latencies;
use nvme::Status;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use latency::{LATENCY_BUCKETS, Latency, latency_bound_ns};

/// What a command was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It read, or compared.
    Read,
    /// It wrote.
    Write,
    /// It copied.
    Copy,
    /// Anything else, which moves no bytes.
    Other,
}

/// Counters of one volume on one core: written there only.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Counters {
    succeeded: [Succeeded; 4],
    errors: AtomicU64,
    media_errors: AtomicU64,
}

/// Commands of one kind that succeeded.
#[derive(Debug, Default)]
struct Succeeded {
    count: AtomicU64,
    bytes: AtomicU64,
    latencies: Latencies,
}

/// Counters of a volume, summed over cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Commands that read.
    pub reads: u64,
    /// Commands that wrote.
    pub writes: u64,
    /// Bytes sent to clients.
    pub read_bytes: u64,
    /// Bytes taken from clients.
    pub written_bytes: u64,
    /// Copy commands.
    pub copies: u64,
    /// Bytes that they copied: into this volume, from any.
    pub copied_bytes: u64,
    /// Other commands.
    pub others: u64,
    /// Commands that failed.
    pub errors: u64,
    /// Those of them that failed with a media error (status code type 2h).
    pub media_errors: u64,
    /// How long those took that succeeded: reads, writes, copies and others, in this order.
    pub latencies: [Latency; 4],
}

impl Counters {
    /// Counts a command that has succeeded, with its bytes, after the volume had it for so long. For the owning
    /// core alone.
    #[inline]
    pub fn succeeded(&self, kind: Kind, bytes: u64, took: Duration) {
        let of_kind = &self.succeeded[kind as usize];
        add(&of_kind.count, 1);
        add(&of_kind.bytes, bytes);
        of_kind.latencies.note(took);
    }

    /// Counts a command that has failed. For the owning core alone.
    #[cold]
    pub fn failed(&self, status: Status) {
        add(&self.errors, 1);
        if is_media_error(status) {
            add(&self.media_errors, 1);
        }
    }
}

impl Counted {
    /// What the cores of a volume have counted.
    pub fn of<'a>(cores: impl IntoIterator<Item = &'a Counters>) -> Counted {
        let mut sum = Counted::default();
        for core in cores {
            let [reads, writes, copies, others] = &core.succeeded;
            sum.reads += load(&reads.count);
            sum.writes += load(&writes.count);
            sum.copies += load(&copies.count);
            sum.others += load(&others.count);
            sum.read_bytes += load(&reads.bytes);
            sum.written_bytes += load(&writes.bytes);
            sum.copied_bytes += load(&copies.bytes);
            sum.errors += load(&core.errors);
            sum.media_errors += load(&core.media_errors);
            for (sum, of_kind) in sum.latencies.iter_mut().zip(&core.succeeded) {
                of_kind.latencies.add_to(sum);
            }
        }
        sum
    }
}

/// Adds without a locked instruction: each counter has one writer.
#[inline]
fn add(counter: &AtomicU64, count: u64) {
    counter.store(load(counter).wrapping_add(count), Ordering::Relaxed);
}

#[inline]
fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Whether data could not be stored, or not be read as it was: of the statuses of that type, those of a
/// comparison, of access and of blocks without data say nothing of the media.
fn is_media_error(status: Status) -> bool {
    let others = [Status::COMPARE_FAILURE, Status::ACCESS_DENIED, Status::DEALLOCATED_BLOCK];
    status.sct() == 2 && !others.contains(&status.code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_own_and_failures_are_no_commands() {
        let cores = [Counters::default(), Counters::default()];
        for (core, bytes) in cores.iter().zip([512, 4096]) {
            core.succeeded(Kind::Read, bytes, Duration::from_micros(100));
            core.succeeded(Kind::Other, 0, Duration::ZERO);
        }
        cores[1].succeeded(Kind::Write, 7, Duration::from_secs(1));
        cores[1].succeeded(Kind::Copy, 9, Duration::ZERO);
        for status in [Status::UNRECOVERED_READ, Status::COMPARE_FAILURE, Status::LBA_OUT_OF_RANGE]
        {
            cores[0].failed(status);
        }
        let sum = Counted::of(&cores);
        assert_eq!([sum.reads, sum.writes, sum.copies, sum.others], [2, 1, 1, 2]);
        assert_eq!([sum.read_bytes, sum.written_bytes, sum.copied_bytes], [4608, 7, 9]);
        assert_eq!((sum.errors, sum.media_errors), (3, 1));
        assert_eq!(sum.latencies[0].sum_ns, 200_000);
        assert_eq!(sum.latencies.map(|it| it.buckets.iter().sum::<u64>()), [2, 1, 1, 2]);
    }
}
