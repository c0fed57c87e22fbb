//! Making volumes durable before they are closed.

use namespace::Namespace;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Volumes that are flushed at a time.
const THREADS: usize = 16;

/// How often those are named that have not ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// What becomes of the volume of a number.
enum Step {
    Begun,
    Ended(io::Result<()>),
}

/// Flushes all of them, each once and several at a time, and closes each as soon as that is done: one that hangs keeps few others
/// waiting, and is named in the log. What has failed, by their URIs.
pub fn flush_all(volumes: Vec<Arc<dyn Namespace>>) -> Vec<(String, io::Error)> {
    let uris: Vec<String> = volumes.iter().map(|volume| volume.uri()).collect();
    let threads = THREADS.min(volumes.len());
    let left = Mutex::new(volumes.into_iter().enumerate().collect::<VecDeque<_>>());
    let flush = |steps: Sender<(usize, Step)>| {
        let next = || left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        while let Some((number, volume)) = next() {
            let _ = steps.send((number, Step::Begun));
            let outcome = volume.flush();
            drop(volume);
            let _ = steps.send((number, Step::Ended(outcome)));
        }
    };
    let (sender, steps) = channel();
    let mut failed = thread::scope(|scope| {
        let begin = || {
            let sender = sender.clone();
            let thread = thread::Builder::new().name("flush-volumes".to_owned());
            thread.spawn_scoped(scope, || flush(sender)).is_ok()
        };
        let begun = (0..threads).filter(|_| begin()).count();
        if begun == 0 {
            flush(sender.clone());
        }
        drop(sender);
        let (mut failed, mut waiting) = (Vec::new(), BTreeSet::new());
        let mut named_at = Instant::now() + PATIENCE;
        loop {
            match steps.recv_timeout(named_at.saturating_duration_since(Instant::now())) {
                Ok((number, Step::Begun)) => drop(waiting.insert(number)),
                Ok((number, Step::Ended(outcome))) => {
                    waiting.remove(&number);
                    failed.extend(outcome.err().map(|error| (number, error)));
                }
                Err(RecvTimeoutError::Timeout) => {
                    for &number in &waiting {
                        tracing::warn!("{}: is not flushed yet", uris[number]);
                    }
                    named_at = Instant::now() + PATIENCE;
                }
                Err(RecvTimeoutError::Disconnected) => return failed,
            }
        }
    });
    failed.sort_by_key(|(number, _)| *number);
    failed.into_iter().map(|(number, error)| (uris[number].clone(), error)).collect()
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
        let volume = |index: usize| -> Arc<dyn Namespace> {
            let uri = format!("null:{}M", index + 1);
            let below = volume::open(&uri, &volume::OpenOptions::default()).expect("a volume");
            let (met, flushed) = (Arc::clone(&met), Arc::clone(&flushed));
            Arc::new(Double::over(below).flushing(move |_| {
                flushed.fetch_add(1, Ordering::Relaxed);
                // The first ends no sooner than the last.
                if [0, 39].contains(&index) {
                    met.wait();
                }
                if index % 10 == 9 { Err(io::Error::other(index.to_string())) } else { Ok(()) }
            }))
        };
        let volumes: Vec<_> = (0..40).map(volume).collect();
        let first = Arc::downgrade(&volumes[0]);
        let failed = flush_all(volumes);
        let told: Vec<_> = failed.iter().map(|(uri, error)| format!("{uri} {error}")).collect();
        let expected = [9, 19, 29, 39].map(|index| format!("null:{}M?bs=512 {index}", index + 1));
        assert_eq!(told, expected);
        assert_eq!(flushed.load(Ordering::Relaxed), 40);
        assert!(first.upgrade().is_none(), "it is closed");
        assert!(flush_all(Vec::new()).is_empty());
    }
}
