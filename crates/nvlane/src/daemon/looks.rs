//! Looks at the sizes of volumes, one after the other on a thread. One that does not answer keeps that thread, and nobody else
//! waiting: the others are looked at by another.
//!
//! ```text
//!   run, once a second --begin--> round: a thread, and what it has still to look at
//!        ^-------------ended------- (namespace, whether its size has changed)
//! ```

use namespace::Namespace;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Subsystem and namespace id.
type Key = (String, u32);

/// How long a look takes that does not hang.
const QUICK: Duration = Duration::from_secs(1);

/// The rounds that have not ended. All but the last wait for one volume each.
#[derive(Default)]
pub struct Looks {
    rounds: Vec<Round>,
}

struct Round {
    work: Arc<Mutex<Work>>,
    outcomes: Receiver<(Key, io::Result<bool>)>,
    /// It was left to its one volume.
    hangs: bool,
}

struct Work {
    /// Nobody waits for a volume that is to be looked at later, should it be removed.
    left: VecDeque<(Key, Weak<dyn Namespace>)>,
    at: Option<At>,
}

/// What is being looked at.
struct At {
    key: Key,
    volume: Weak<dyn Namespace>,
    since: Instant,
}

impl Looks {
    /// Whether outcomes are to come soon.
    pub fn are_under_way(&self) -> bool {
        self.rounds.last().is_some_and(|round| !round.hangs)
    }

    /// Begins a round, unless one is under way: without what others wait for. Gives back what has come to hang since the last time.
    pub fn begin(&mut self, volumes: &BTreeMap<Key, Arc<dyn Namespace>>) -> io::Result<Vec<Key>> {
        let mut hanging = Vec::new();
        if let Some(round) = self.rounds.last_mut().filter(|round| !round.hangs) {
            let mut work = work(&round.work);
            match &work.at {
                Some(at) if at.since.elapsed() >= QUICK => {
                    hanging.push(at.key.clone());
                    work.left.clear();
                }
                _ => return Ok(hanging),
            }
            drop(work);
            round.hangs = true;
        }
        let is_looked_at = |volume: &_| self.rounds.iter().any(|round| round.is_at(volume));
        let left = volumes.iter().filter(|(_, volume)| !is_looked_at(volume));
        let left = left.map(|(key, volume)| (key.clone(), Arc::downgrade(volume))).collect();
        let work = Arc::new(Mutex::new(Work { left, at: None }));
        let (sender, outcomes) = channel();
        let its = Arc::clone(&work);
        let begun = thread::Builder::new().name("look-volumes".to_owned());
        begun.spawn(move || look(&its, &sender))?;
        self.rounds.push(Round { work, outcomes, hangs: false });
        Ok(hanging)
    }

    /// What has come since.
    pub fn ended(&mut self) -> Vec<(Key, io::Result<bool>)> {
        let mut ended = Vec::new();
        self.rounds.retain(|round| {
            loop {
                match round.outcomes.try_recv() {
                    Ok(outcome) => ended.push(outcome),
                    Err(TryRecvError::Empty) => return true,
                    Err(TryRecvError::Disconnected) => return false,
                }
            }
        });
        ended
    }
}

impl Round {
    fn is_at(&self, volume: &Arc<dyn Namespace>) -> bool {
        let volume = Arc::downgrade(volume);
        work(&self.work).at.as_ref().is_some_and(|at| at.volume.ptr_eq(&volume))
    }
}

fn work(work: &Mutex<Work>) -> MutexGuard<'_, Work> {
    work.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread of a round.
fn look(its: &Mutex<Work>, outcomes: &Sender<(Key, io::Result<bool>)>) {
    loop {
        let (key, volume) = {
            let mut work = work(its);
            work.at = None;
            let Some((key, volume)) = work.left.pop_front() else { return };
            let (key_at, volume_at) = (key.clone(), volume.clone());
            work.at = Some(At { key: key_at, volume: volume_at, since: Instant::now() });
            (key, volume)
        };
        let Some(volume) = volume.upgrade() else { continue };
        let outcome = volume.refresh();
        // Before anybody is told: the volume may be removed then.
        drop(volume);
        if outcomes.send((key, outcome)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use double::Double;
    use std::sync::Barrier;
    use volume::{OpenOptions, open};

    /// One that answers each look once somebody else has come to `gate` as well, where it has one.
    fn volume(gate: Option<Arc<Barrier>>) -> Arc<dyn Namespace> {
        let uri = "null:1M";
        let below = open(uri, &OpenOptions::default()).expect("it needs nothing");
        Arc::new(Double::over(below).refreshing(move |_| {
            gate.as_ref().map(|gate| gate.wait());
            Ok(true)
        }))
    }

    /// What has ended when there are `count` of them.
    fn ended(looks: &mut Looks, count: usize) -> Vec<u32> {
        let (begun, mut all) = (Instant::now(), Vec::new());
        while all.len() < count && begun.elapsed() < Duration::from_secs(60) {
            all.extend(looks.ended());
            thread::sleep(Duration::from_millis(1));
        }
        assert!(all.iter().all(|(_, outcome)| matches!(outcome, Ok(true))), "{all:?}");
        all.into_iter().map(|((_, nsid), _)| nsid).collect()
    }

    #[test]
    fn one_that_does_not_answer_keeps_no_other_waiting() {
        let gate = Arc::new(Barrier::new(2));
        let key = |nsid| ("nqn.2026-11.com.example:a".to_owned(), nsid);
        let all = [None, Some(Arc::clone(&gate)), None].map(volume);
        let mut volumes: BTreeMap<Key, Arc<dyn Namespace>> = (1..).map(key).zip(all).collect();
        let mut looks = Looks::default();
        assert_eq!(looks.begin(&volumes).expect("a thread"), []);
        assert_eq!(ended(&mut looks, 1), [1]);
        assert!(looks.are_under_way());
        assert_eq!(looks.begin(&volumes).expect("a thread"), [], "it may be slow");
        thread::sleep(QUICK);
        assert_eq!(looks.begin(&volumes).expect("a thread"), [key(2)]);
        assert_eq!(ended(&mut looks, 2), [1, 3]);
        // As long as it hangs it is not looked at again, nor told of.
        while looks.are_under_way() {
            assert!(looks.ended().is_empty());
        }
        assert_eq!(looks.begin(&volumes).expect("a thread"), []);
        assert_eq!(ended(&mut looks, 2), [1, 3]);
        // Another that takes its place is.
        let hung = volumes.insert(key(2), volume(None)).expect("it was there");
        while looks.are_under_way() {
            assert!(looks.ended().is_empty());
        }
        assert_eq!(looks.begin(&volumes).expect("a thread"), []);
        assert_eq!(ended(&mut looks, 3), [1, 2, 3]);
        gate.wait();
        assert_eq!(ended(&mut looks, 1), [2], "in the end");
        while !looks.rounds.is_empty() {
            assert!(looks.ended().is_empty());
        }
        assert_eq!(Arc::strong_count(&hung), 1);
    }
}
