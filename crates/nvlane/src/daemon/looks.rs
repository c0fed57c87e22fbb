//! Looks at the sizes of volumes, one after the other on a thread. One that does not answer keeps that thread, and nobody else
//! waiting: the others are looked at by another.
//!
//! ```text
//!   run, once a second --begin--> round: a thread, and what it has still to look at
//!        ^-------------ended------- (namespace, its volume, whether that has another size)
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

/// A volume that was looked at, as what, and what came of it.
pub type Outcome = (Key, Weak<dyn Namespace>, io::Result<bool>);

/// The rounds that have not ended. All but the last wait for one volume each.
#[derive(Default)]
pub struct Looks {
    rounds: Vec<Round>,
}

struct Round {
    work: Arc<Mutex<Work>>,
    outcomes: Receiver<Outcome>,
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

    /// What has come to hang since the last time; it is left to its round, and the rest to the next.
    pub fn hanging(&mut self) -> Option<Key> {
        let round = self.rounds.last_mut().filter(|round| !round.hangs)?;
        let mut work = work(&round.work);
        let at = work.at.as_ref().filter(|at| at.since.elapsed() >= QUICK)?;
        let key = at.key.clone();
        work.left.clear();
        drop(work);
        round.hangs = true;
        Some(key)
    }

    /// Begins a round, unless one is under way: without what others wait for.
    pub fn begin(&mut self, volumes: &BTreeMap<Key, Arc<dyn Namespace>>) -> io::Result<()> {
        if self.are_under_way() {
            return Ok(());
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
        Ok(())
    }

    /// It is removed: nobody begins to look at it any more.
    pub fn forget(&self, key: &Key) {
        for round in &self.rounds {
            work(&round.work).left.retain(|(other, _)| other != key);
        }
    }

    /// What has come since.
    pub fn ended(&mut self) -> Vec<Outcome> {
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
fn look(its: &Mutex<Work>, outcomes: &Sender<Outcome>) {
    loop {
        let (key, volume) = {
            let mut work = work(its);
            work.at = None;
            let Some((key, volume)) = work.left.pop_front() else { return };
            let (key_at, volume_at) = (key.clone(), volume.clone());
            work.at = Some(At { key: key_at, volume: volume_at, since: Instant::now() });
            (key, volume)
        };
        let Some(there) = volume.upgrade() else { continue };
        let outcome = there.refresh();
        // Before anybody is told: the volume may be removed then.
        drop(there);
        if outcomes.send((key, volume, outcome)).is_err() {
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
        assert!(all.iter().all(|(.., outcome)| matches!(outcome, Ok(true))), "{all:?}");
        all.into_iter().map(|((_, nsid), ..)| nsid).collect()
    }

    /// Waits for the end of a round of which all outcomes are there.
    fn over(looks: &mut Looks) {
        while looks.are_under_way() {
            assert!(looks.ended().is_empty());
        }
    }

    #[test]
    fn one_that_does_not_answer_keeps_no_other_waiting() {
        let gate = Arc::new(Barrier::new(2));
        let key = |nsid| ("nqn.2026-11.com.example:a".to_owned(), nsid);
        let all = [None, Some(Arc::clone(&gate)), None].map(volume);
        let mut volumes: BTreeMap<Key, Arc<dyn Namespace>> = (1..).map(key).zip(all).collect();
        let mut looks = Looks::default();
        looks.begin(&volumes).expect("a thread");
        assert_eq!(ended(&mut looks, 1), [1]);
        assert!(looks.are_under_way());
        looks.begin(&volumes).expect("it may be slow, and then there is no other");
        assert_eq!(looks.rounds.len(), 1);
        let begun = Instant::now();
        let hanging = loop {
            if let Some(key) = looks.hanging() {
                break key;
            }
            assert!(begun.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(5));
        };
        assert_eq!((hanging, looks.hanging()), (key(2), None));
        // As long as it hangs it is not looked at again, nor told of.
        for _ in 0..2 {
            looks.begin(&volumes).expect("a thread");
            assert_eq!(ended(&mut looks, 2), [1, 3]);
            over(&mut looks);
        }
        // Another that takes its place is.
        let hung = volumes.insert(key(2), volume(None)).expect("it was there");
        looks.begin(&volumes).expect("a thread");
        assert_eq!(ended(&mut looks, 3), [1, 2, 3]);
        over(&mut looks);
        gate.wait();
        assert_eq!(ended(&mut looks, 1), [2], "in the end");
        while !looks.rounds.is_empty() {
            assert!(looks.ended().is_empty());
        }
        assert_eq!(Arc::strong_count(&hung), 1);
    }
}
