//! Measures what decisions 0002 and 0003 rest on. Two cores: the reactor on 0, clients on 1.
//!
//! `cargo run --release -p reactor --example measure [nop] [read FILE] [turn] [sleep] [crowd] [first]`, or
//! `... measure kinds FILE [OPERATIONS]`, or `... measure once KIND nop|FILE DEPTH OPERATIONS`

mod crowd;
mod first;
mod loops;
mod sleep;

use std::time::{Duration, Instant};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("kinds") => {
            let operations = words.get(2).map_or(500_000, |word| word.parse().expect("a number"));
            return loops::kinds(&words[1], operations);
        }
        Some("once") => return loops::once(&words[1..]),
        _ => {}
    }
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    if wanted("nop") {
        loops::nop();
    }
    if wanted("read") {
        let after = words.iter().skip_while(|word| *word != "read").nth(1);
        loops::read(after.map_or("/var/tmp/reactor-measure", |path| path));
    }
    if wanted("turn") {
        loops::turn();
    }
    if wanted("sleep") {
        sleep::rows();
    }
    if wanted("crowd") {
        crowd::rows();
    }
    if wanted("first") {
        first::rows();
    }
}

/// Processor time of the calling thread so far.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills one timespec.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0, "every thread has a clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The value below which `share` of `sorted` lie.
fn quantile(sorted: &[Duration], share: f64) -> Duration {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

fn wait_until(at: Instant) {
    while Instant::now() < at {
        std::hint::spin_loop();
    }
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
