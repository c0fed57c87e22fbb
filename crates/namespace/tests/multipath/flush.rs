//! Flush over paths with caches of their own.

use crate::core::{Core, Fake, World};
use namespace::layer::multipath::{Multipath, MultipathOptions, Policy, Settings};
use namespace::{Access, Namespace};
use nvme::Status;
use nvme::opcode::io::{FLUSH, WRITE};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The number of Flushes; writes have others.
const NUMBER: u64 = 100;

/// Paths that have written, and what is on them has been flushed once.
struct Stage {
    fakes: Vec<Arc<Fake>>,
    core: Core,
}

impl Stage {
    fn new(count: usize) -> Stage {
        let fakes: Vec<_> = (0..count).map(|at| Arc::new(Fake::new(&at.to_string()))).collect();
        fakes.iter().for_each(|fake| fake.limits.lock().unwrap().volatile_write_cache = true);
        let paths = fakes.iter().map(|fake| Arc::clone(fake) as Arc<dyn Namespace>).collect();
        let settings = Settings { policy: Policy::RoundRobin, ..Settings::default() };
        let options = MultipathOptions { tuning: settings.into(), ..MultipathOptions::default() };
        let core = Core::over(Multipath::new(paths, options).expect("they go together"));
        Stage { fakes, core }
    }

    /// Each path has something to flush.
    fn written(count: usize) -> Stage {
        let stage = Stage::new(count);
        stage.flush_all();
        stage.write();
        stage
    }

    /// Writes once by each usable path.
    fn write(&self) {
        self.core.run(|world| {
            (0..world.paths.len() as u64).for_each(|at| world.send(WRITE, at));
            world.paths.iter().for_each(|path| path.answer_all(Status::SUCCESS));
            assert!(world.done().iter().all(|done| done.status.is_success()));
        });
    }

    fn flush_all(&self) {
        self.core.run(|world| world.send(FLUSH, NUMBER));
        assert_eq!(self.answer(), Status::SUCCESS);
    }

    /// Answers all that comes, until the Flush has ended so.
    fn answer(&self) -> Status {
        self.core.until(|world| {
            world.paths.iter().for_each(|path| path.answer_all(Status::SUCCESS));
            ended(world)
        })
    }

    /// Changes how a path stands, and its queue.
    fn stand(&self, path: usize, access: Access) {
        *self.fakes[path].access.lock().unwrap() = access;
        self.stand_here(path, access);
    }

    /// Changes how its queue on this core stands alone.
    fn stand_here(&self, path: usize, access: Access) {
        self.core.run(move |world| {
            world.paths[path].stand(access);
            let refuses = access >= Access::Lost;
            world.paths[path].answer.set(refuses.then_some(Status::HOST_ABORTED));
        });
        self.core.settle();
    }

    fn epoch(&self) -> u64 {
        self.core.namespace.volatile_epoch()
    }

    /// Flushes that each path was sent.
    fn flushes(&self) -> Vec<usize> {
        self.core.run(|world| {
            let of = |command: &&nvme::Command| command.opcode == FLUSH;
            let count = |path: &std::rc::Rc<crate::core::FakeQueue>| {
                path.seen.borrow().iter().filter(of).count()
            };
            world.paths.iter().map(count).collect()
        })
    }
}

/// How the Flush has ended, if it has.
fn ended(world: &World) -> Option<Status> {
    world.done().iter().find(|done| done.number == NUMBER).map(|done| done.status)
}

#[test]
fn what_a_lost_path_has_is_flushed_when_it_comes_back() {
    let stage = Stage::written(2);
    let before = stage.epoch();
    stage.stand(1, Access::Lost);
    stage.flush_all();
    let told = stage.epoch();
    assert!(told > before);
    stage.flush_all();
    assert_eq!(stage.epoch(), told, "once");
    stage.stand(1, Access::Optimized);
    let flushes = stage.flushes();
    stage.flush_all();
    assert_eq!(stage.flushes(), [flushes[0], flushes[1] + 1]);
    assert_eq!(stage.epoch(), told);
}

#[test]
fn what_is_written_after_a_loss_was_told_is_lost_anew() {
    let stage = Stage::written(2);
    for _ in 0..3 {
        let before = stage.epoch();
        stage.stand(1, Access::Lost);
        stage.flush_all();
        let told = stage.epoch();
        assert!(told > before);
        stage.stand(1, Access::Optimized);
        stage.write();
        assert_eq!(stage.epoch(), told);
    }
}

#[test]
fn a_core_without_a_queue_does_not_succeed_without_its_path() {
    let stage = Stage::written(2);
    let before = stage.epoch();
    stage.stand_here(1, Access::Lost);
    stage.core.run(|world| world.send(FLUSH, NUMBER));
    // Others may have it: it is not lost.
    for _ in 0..20 {
        let ended = stage.core.run(|world| {
            world.paths[0].answer_all(Status::SUCCESS);
            ended(world)
        });
        assert_eq!(ended, None);
        std::thread::sleep(Duration::from_millis(1));
    }
    // Before the core can send one.
    let flushes = stage.flushes();
    stage.stand_here(1, Access::Optimized);
    assert_eq!(stage.answer(), Status::SUCCESS);
    assert!(stage.flushes()[1] > flushes[1]);
    assert_eq!(stage.epoch(), before);
}

#[test]
fn a_live_path_that_fails_a_flush_is_not_left_out() {
    // The Flush itself, and the one beside it.
    for path in [0, 1] {
        let stage = Stage::written(2);
        let before = stage.epoch();
        stage.core.run(move |world| {
            world.send(FLUSH, NUMBER);
            world.paths[path].answer_one(Status::INTERNAL_PATH_ERROR);
        });
        assert_eq!(stage.answer(), Status::SUCCESS);
        stage.core.settle();
        let flushes = stage.flushes();
        assert!(flushes[path] >= 3, "one at first, one failed, and one more: {flushes:?}");
        let sent: usize = flushes.iter().sum();
        stage.flush_all();
        assert_eq!(stage.flushes().iter().sum::<usize>(), sent + 1, "nothing was left");
        assert_eq!(stage.epoch(), before);
    }
}

#[test]
fn those_on_their_way_are_not_sent_again() {
    // One of them is the Flush itself.
    for path in 0..3 {
        let stage = Stage::written(3);
        let before = stage.flushes();
        stage.core.run(|world| world.send(FLUSH, NUMBER));
        for _ in 0..2 {
            stage.core.run(move |world| world.paths[path].answer_all(Status::INTERNAL_PATH_ERROR));
            stage.core.settle();
        }
        let sent = stage.flushes();
        for other in (0..3).filter(|other| *other != path) {
            assert_eq!(sent[other], before[other] + 1);
        }
        assert_eq!(stage.answer(), Status::SUCCESS);
    }
}

#[test]
fn a_controller_beside_says_how_long_to_wait() {
    // One of them is the Flush itself.
    for path in [0, 1] {
        let stage = Stage::written(2);
        let begun = Instant::now();
        stage.core.run(move |world| {
            world.send(FLUSH, NUMBER);
            let later = Status(Status::COMMAND_INTERRUPTED.0 | 3 << 11);
            world.paths[1 - path].answer_all(Status::SUCCESS);
            world.paths[path].answer_all(later);
        });
        assert_eq!(stage.answer(), Status::SUCCESS);
        assert!(begun.elapsed() >= Duration::from_millis(400), "Command Retry Delay 3");
    }
}

#[test]
fn the_first_flush_goes_by_every_path_and_nothing_was_lost_before() {
    let stage = Stage::new(3);
    let before = stage.epoch();
    stage.stand(2, Access::Lost);
    stage.flush_all();
    assert_eq!(stage.flushes(), [1, 1, 0]);
    assert_eq!(stage.epoch(), before);
    stage.stand(2, Access::Optimized);
    stage.flush_all();
    assert_eq!(stage.flushes()[2], 1);
    let sent: usize = stage.flushes().iter().sum();
    stage.flush_all();
    assert_eq!(stage.flushes().iter().sum::<usize>(), sent + 1);
}

#[test]
fn flushing_by_itself_fails_with_any_path_that_needs_it() {
    let stage = Stage::written(2);
    let (namespace, fakes) = (&stage.core.namespace, &stage.fakes);
    let counts = || fakes.iter().map(|it| it.flushes.load(Ordering::Relaxed)).collect::<Vec<_>>();
    fakes[1].flush_fails.store(true, Ordering::Relaxed);
    assert_eq!(namespace.flush().unwrap_err().to_string(), "1");
    assert_eq!(namespace.flush().unwrap_err().to_string(), "1", "the other has none left");
    assert_eq!(counts(), [1, 2]);
    let before = stage.epoch();
    stage.stand(1, Access::Lost);
    assert!(namespace.flush().is_err());
    assert!(stage.epoch() > before);
    namespace.flush().expect("that was told");
    stage.stand(1, Access::Optimized);
    assert!(namespace.flush().is_err(), "it has it still");
    fakes[1].flush_fails.store(false, Ordering::Relaxed);
    namespace.flush().expect("both can");
}
