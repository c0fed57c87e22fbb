//! Making all volumes durable when a server stops.

use namespace::Namespace;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Volumes that are flushed at a time.
const THREADS: usize = 16;

/// After how long those that have not ended are named.
const PATIENCE: Duration = Duration::from_secs(10);

/// Flushes all of them, each once and several at a time, so that one that hangs keeps few others waiting. What has failed, by its
/// place among them.
pub(crate) fn flush_all(volumes: &[Arc<dyn Namespace>]) -> Vec<(usize, io::Error)> {
    let left: Mutex<VecDeque<usize>> = Mutex::new((0..volumes.len()).collect());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let (sender, ended) = channel();
    let mut failed = thread::scope(|scope| {
        let mut threads = 0;
        for _ in 0..THREADS.min(volumes.len()) {
            let sender = sender.clone();
            let flush = move || {
                while let Some(place) = next() {
                    let _ = sender.send((place, volumes[place].flush()));
                }
            };
            let thread = thread::Builder::new().name("flush-volumes".to_owned());
            threads += usize::from(thread.spawn_scoped(scope, flush).is_ok());
        }
        if threads == 0 {
            while let Some(place) = next() {
                let _ = sender.send((place, volumes[place].flush()));
            }
        }
        drop(sender);
        let (mut failed, mut waiting) = (Vec::new(), (0..volumes.len()).collect::<BTreeSet<_>>());
        loop {
            match ended.recv_timeout(PATIENCE) {
                Ok((place, outcome)) => {
                    waiting.remove(&place);
                    failed.extend(outcome.err().map(|error| (place, error)));
                }
                Err(RecvTimeoutError::Timeout) => {
                    for place in &waiting {
                        tracing::warn!("{}: is not flushed yet", volumes[*place].uri());
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return failed,
            }
        }
    });
    failed.sort_by_key(|(place, _)| *place);
    failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use double::Double;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn all_are_flushed_beside_one_another_and_failures_are_told_in_order() {
        let (met, flushed) = (Arc::new(Barrier::new(2)), Arc::new(AtomicU32::new(0)));
        let below = volume::open("null:1M", &volume::OpenOptions::default()).expect("a volume");
        let volume = |index: usize| -> Arc<dyn Namespace> {
            let (met, flushed) = (Arc::clone(&met), Arc::clone(&flushed));
            Arc::new(Double::over(Arc::clone(&below)).flushing(move |_| {
                flushed.fetch_add(1, Ordering::Relaxed);
                // The first ends no sooner than the last.
                if [0, 39].contains(&index) {
                    met.wait();
                }
                if index % 10 == 9 { Err(io::Error::other(index.to_string())) } else { Ok(()) }
            }))
        };
        let volumes: Vec<_> = (0..40).map(volume).collect();
        let failed = flush_all(&volumes);
        let told: Vec<_> = failed.iter().map(|(at, error)| (*at, error.to_string())).collect();
        assert_eq!(told, [9, 19, 29, 39].map(|index| (index, index.to_string())));
        assert_eq!(flushed.load(Ordering::Relaxed), 40);
        assert!(flush_all(&[]).is_empty());
    }
}
