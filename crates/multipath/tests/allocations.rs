//! A decision allocates nothing.

use multipath::{Group, Outcome, PathSet, Policy, Selector, Settings, Shared, Standing};
use std::sync::Arc;

#[test]
fn nothing_is_allocated() {
    let mut selector = Selector::new(16, Settings::default(), Arc::new(Shared::default()), 1);
    let before = counting_allocator::of_this_thread();
    let mut now_ns = 0;
    let mut probes = 0;
    for policy in Policy::ALL.into_iter().cycle().take(10) {
        selector.configure(Settings { policy, ..Settings::default() });
        for round in 0..5_000u64 {
            now_ns += 50_000;
            let group = Group::ALL[(round % 3) as usize];
            let avoid = PathSet((round % 7) as u16);
            let path = selector.select(now_ns, group, 4096, avoid).expect("some are usable");
            let token = selector.submitted(path, now_ns, group, 4096);
            let outcome = if round % 99 == 0 { Outcome::Failed } else { Outcome::Answered };
            selector.completed(&token, now_ns + 30_000, outcome);
            selector
                .stand(15, if round % 2 == 0 { Standing::Unusable } else { Standing::Optimized });
            selector.share(path, now_ns);
            while let Some(path) = selector.probe(now_ns) {
                let token = selector.probe_submitted(path, now_ns, 4096);
                selector.completed(&token, now_ns + 30_000, Outcome::Answered);
                probes += 1;
            }
        }
    }
    assert_eq!(counting_allocator::of_this_thread(), before);
    assert!(probes > 0, "probes were among it");
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(counting_allocator::of_this_thread(), before + 1, "the count counts");
}
