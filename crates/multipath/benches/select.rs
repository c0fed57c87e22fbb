//! What a decision costs: `cargo bench -p multipath`.

use criterion::{Criterion, criterion_group, criterion_main};
use multipath::{Group, Outcome, PathSet, Policy, Selector, Settings, Shared};
use std::hint::black_box;
use std::sync::Arc;

const US: u64 = 1_000;

/// A selector whose paths have answered, with some commands in flight.
fn warm(policy: Policy, paths: usize) -> Selector {
    let settings = Settings { policy, ..Settings::default() };
    let mut selector = Selector::new(paths, settings, Arc::new(Shared::default()), 1);
    for round in 0..1000 {
        let sent_ns = round * 20 * US;
        for path in 0..paths {
            let token = selector.submitted(path, sent_ns, Group::Read, 4096);
            let latency_ns = (80 + 7 * path as u64) * US;
            selector.completed(&token, sent_ns + latency_ns, Outcome::Answered);
        }
    }
    for path in 0..paths {
        selector.submitted(path, 20_000 * US, Group::Read, 4096);
    }
    selector
}

fn select(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("select");
    for policy in Policy::ALL {
        for paths in [2, 4, 16] {
            let mut selector = warm(policy, paths);
            // Paths that owe their answers for no longer than they are expected to.
            let now_ns = 20_010 * US;
            group.bench_function(format!("{policy}/{paths}"), |bencher| {
                bencher
                    .iter(|| selector.select(black_box(now_ns), Group::Read, 4096, PathSet::EMPTY));
            });
        }
    }
}

fn cycle(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("select, submitted and completed");
    for policy in Policy::ALL {
        let mut selector = warm(policy, 4);
        let mut now_ns = 20_010 * US;
        group.bench_function(format!("{policy}/4"), |bencher| {
            bencher.iter(|| {
                now_ns += 10 * US;
                let path = selector
                    .select(black_box(now_ns), Group::Read, 4096, PathSet::EMPTY)
                    .expect("all are usable");
                let token = selector.submitted(path, now_ns, Group::Read, 4096);
                selector.completed(&token, now_ns + 90 * US, Outcome::Answered);
            });
        });
    }
}

criterion_group!(benches, select, cycle);
criterion_main!(benches);
