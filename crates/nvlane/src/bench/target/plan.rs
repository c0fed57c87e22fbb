//! What is measured, and for how long.

use crate::bench::exchange::{Shape, Source};
use crate::bench::initiator::Pattern;
use crate::bench::pipeline::Timing;
use std::time::Duration;

/// Bytes of the memory volume, of the null volume, and of the memory behind the bare exchange.
const MEMORY_BYTES: u64 = 256 << 20;

/// The volumes, in the order of their namespace ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Volume {
    /// `mem:`.
    Memory,
    /// `null:`.
    Null,
    /// `file:` on the machine's disk.
    File,
}

impl Volume {
    /// Namespace id in the bench's own server.
    pub fn nsid(self) -> u32 {
        match self {
            Volume::Memory => 1,
            Volume::Null => 2,
            Volume::File => 3,
        }
    }

    /// Key in rows.
    pub fn name(self) -> &'static str {
        match self {
            Volume::Memory => "memory",
            Volume::Null => "null",
            Volume::File => "file",
        }
    }
}

/// One row: what is done to which volume at which depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// On what.
    pub volume: Volume,
    /// What.
    pub pattern: Pattern,
    /// Bytes per command.
    pub bytes: u32,
    /// Commands in flight.
    pub depth: u16,
}

impl Job {
    /// What figures of this row begin with: `randread_qd1`, `null_read128k_qd4`.
    pub fn figure(&self) -> String {
        let volume = match self.volume {
            Volume::Memory => String::new(),
            other => format!("{}_", other.name()),
        };
        format!("{volume}{}_qd{}", self.operation(), self.depth)
    }

    /// Key in rows.
    pub fn operation(&self) -> &'static str {
        match self.pattern {
            Pattern::RandomRead => "randread",
            Pattern::RandomWrite => "randwrite",
            Pattern::SequentialRead => "read128k",
        }
    }

    /// The bare exchange of the same bytes. Memory reads are gathered from as much memory as the
    /// volume has; null reads and all writes use one hot buffer.
    pub fn shape(&self) -> Shape {
        let bytes = self.bytes as usize;
        let source = match (self.volume, self.pattern) {
            (Volume::Null, _) | (_, Pattern::RandomWrite) => Source::Hot,
            (_, Pattern::RandomRead) => Source::Random,
            (_, Pattern::SequentialRead) => Source::Sequential,
        };
        match self.pattern {
            Pattern::RandomWrite => Shape { request_data: bytes, answer_data: 0, source },
            _ => Shape { request_data: 0, answer_data: bytes, source },
        }
    }
}

/// How thoroughly.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// A window that decides which of the three bare servers is the limit.
    pub choose: Timing,
    /// A window beside the target.
    pub limit: Timing,
    /// A window of the target.
    pub target: Timing,
    /// A window in which system calls are counted.
    pub count: Timing,
    /// Pairs of windows to keep per row.
    pub pairs: usize,
    /// Pairs to try at most, when the limit moves.
    pub tries: usize,
    /// Run time of fio per row.
    pub fio: Duration,
    /// Bytes of the memory volume, of the null volume, and of the memory behind the bare exchange.
    pub memory_bytes: u64,
    /// Bytes of the file volume.
    pub file_bytes: u64,
    /// First I/Os after an idle second.
    pub idle_samples: usize,
    /// Fewer rows.
    pub quick: bool,
}

impl Plan {
    /// Within 45 seconds, or as good as it gets.
    pub fn new(quick: bool) -> Plan {
        let timing = |warm, measure| Timing {
            warm: Duration::from_millis(warm),
            measure: Duration::from_millis(measure),
        };
        if quick {
            Plan {
                choose: timing(5, 35),
                limit: timing(10, 60),
                target: timing(10, 80),
                count: timing(5, 20),
                pairs: 3,
                tries: 12,
                fio: Duration::from_millis(500),
                memory_bytes: MEMORY_BYTES,
                file_bytes: 128 << 20,
                idle_samples: 3,
                quick,
            }
        } else {
            Plan {
                choose: timing(30, 250),
                limit: timing(30, 300),
                target: timing(30, 350),
                count: timing(10, 100),
                pairs: 5,
                tries: 15,
                fio: Duration::from_secs(3),
                memory_bytes: MEMORY_BYTES,
                file_bytes: 1 << 30,
                idle_samples: 15,
                quick,
            }
        }
    }

    /// All rows of a quick run, each as briefly as can be: for tests of what the report says, not
    /// of how fast anything is.
    pub fn tiny() -> Plan {
        let timing = Timing { warm: Duration::ZERO, measure: Duration::from_millis(10) };
        Plan {
            choose: timing,
            limit: timing,
            target: timing,
            count: timing,
            pairs: 1,
            tries: 1,
            memory_bytes: 8 << 20,
            file_bytes: 4 << 20,
            idle_samples: 1,
            ..Plan::new(true)
        }
    }

    /// The rows of one volume.
    pub fn jobs(&self, volume: Volume) -> Vec<Job> {
        let few = self.quick && volume == Volume::File;
        let small: &[u16] = if few { &[1, 32] } else { &[1, 4, 16, 32, 128] };
        let large: &[u16] = match volume {
            Volume::Memory => &[1, 4, 16, 32],
            _ if self.quick => &[],
            _ => &[1, 4, 16, 32],
        };
        let of = |pattern, bytes, depths: &[u16]| -> Vec<Job> {
            depths.iter().map(|&depth| Job { volume, pattern, bytes, depth }).collect()
        };
        let mut jobs = of(Pattern::RandomRead, 4096, small);
        jobs.extend(of(Pattern::RandomWrite, 4096, small));
        jobs.extend(of(Pattern::SequentialRead, 128 << 10, large));
        jobs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_rows_give_the_figures_of_the_contract() {
        for quick in [false, true] {
            let plan = Plan::new(quick);
            let names: Vec<String> = plan.jobs(Volume::Memory).iter().map(Job::figure).collect();
            for depth in [1, 4, 16, 32, 128] {
                assert!(names.contains(&format!("randread_qd{depth}")));
                assert!(names.contains(&format!("randwrite_qd{depth}")));
            }
            for depth in [1, 4, 16, 32] {
                assert!(names.contains(&format!("read128k_qd{depth}")));
            }
            let null: Vec<String> = plan.jobs(Volume::Null).iter().map(Job::figure).collect();
            assert!(null.contains(&"null_randread_qd128".to_owned()));
        }
    }

    #[test]
    fn the_limit_moves_the_bytes_of_nvme() {
        let job = |pattern, bytes| Job { volume: Volume::Memory, pattern, bytes, depth: 1 };
        let read = job(Pattern::RandomRead, 4096).shape();
        assert_eq!((read.request_bytes(), read.answer_bytes()), (72, 4096 + 48));
        let write = job(Pattern::RandomWrite, 4096).shape();
        assert_eq!((write.request_bytes(), write.answer_bytes()), (72 + 4096, 24));
    }
}
