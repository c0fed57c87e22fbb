//! Selection, retries and waiting.

use crate::core::{Core, Done, Fake, limits};
use namespace::layer::delay::{Delay, Delays};
use namespace::layer::linear::Linear;
use namespace::layer::multipath::{Multipath, MultipathOptions, Policy, Settings};
use namespace::{Access, Namespace};
use nvme::opcode::io::{FLUSH, READ, WRITE};
use nvme::{Command, Limits, Status};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const ZONE_APPEND: u8 = 0x7d;
const VENDOR: u8 = 0x82;

#[test]
fn commands_go_round_and_come_back() {
    let core = Core::two(Policy::RoundRobin);
    core.run(|world| (0..6).for_each(|slba| world.send(READ, slba)));
    assert_eq!(core.counts(), [(3, 3), (3, 3)]);
    let done = core.run(|world| {
        assert_eq!(world.paths[0].places(), [0, 2, 4]);
        assert_eq!(world.paths[1].places(), [1, 3, 5]);
        world.paths[1].answer_all(Status::SUCCESS);
        world.paths[0].answer_one(Status::UNRECOVERED_READ);
        world.paths[0].answer_all(Status::SUCCESS);
        world.done()
    });
    // What is no error of the path is nobody's to retry.
    let failed: Vec<_> = done.iter().filter(|done| !done.status.is_success()).collect();
    assert_eq!(
        (failed.len(), failed[0].number, failed[0].status),
        (1, 0, Status::UNRECOVERED_READ)
    );
    assert_eq!(done.len(), 6);
    assert_eq!(core.counts(), [(0, 3), (0, 3)]);
    assert!(core.namespace.paths().iter().all(|path| path.errors == 0 && path.p50_ns > 0));
}

#[test]
fn better_paths_come_first_and_others_never() {
    for policy in Policy::ALL {
        let with = |name: &str, first_access| Fake { first_access, ..Fake::new(name) };
        let core = Core::start(
            vec![
                with("gone", Access::Inaccessible),
                with("far", Access::NonOptimized),
                with("near", Access::Optimized),
                with("lost", Access::Lost),
            ],
            policy,
        );
        core.run(|world| {
            (0..10).for_each(|slba| world.send(WRITE, slba));
            world.paths[2].stand(Access::Lost);
        });
        core.run(|world| {
            (10..20).for_each(|slba| world.send(WRITE, slba));
            world.paths[0].stand(Access::Optimized);
            world.paths[1].stand(Access::Inaccessible);
        });
        core.run(|world| (20..30).for_each(|slba| world.send(WRITE, slba)));
        core.settle();
        let sent: Vec<u64> = core.counts().iter().map(|(_, sent)| *sent).collect();
        assert_eq!(sent, [10, 10, 10, 0], "{policy}");
        let states: Vec<Access> = core.namespace.paths().iter().map(|path| path.access).collect();
        let (ana, lost) = (Access::Inaccessible, Access::Lost);
        assert_eq!(states, [Access::Optimized, ana, lost, lost]);
    }
}

#[test]
fn volumes_in_a_row_are_usable_while_each_of_them_is() {
    let fake = |name| Arc::new(Fake::new(name)) as Arc<dyn Namespace>;
    let row = Linear::new(vec![fake("a"), fake("b")]).expect("they go together");
    let whole =
        Fake { limits: Mutex::new(Limits { blocks: 2 << 20, ..limits() }), ..Fake::new("c") };
    let settings = Settings { policy: Policy::Numa, ..Settings::default() };
    let options = MultipathOptions { tuning: settings.into(), ..MultipathOptions::default() };
    let namespace = Multipath::new(vec![row, Arc::new(whole)], options).expect("one volume");
    let core = Core::over(namespace);
    let sent = |core: &Core| core.counts().iter().map(|(_, sent)| *sent).collect::<Vec<_>>();
    core.run(|world| {
        world.paths.iter().for_each(|path| path.answer.set(Some(Status::SUCCESS)));
        world.send(READ, 0);
        world.send(READ, 1 << 20);
        world.paths[1].stand(Access::Lost);
    });
    // Where the first would be as well: the path is what both are.
    core.run(|world| world.send(READ, 0));
    core.run(|world| world.paths[1].stand(Access::NonOptimized));
    core.run(|world| world.send(READ, 0));
    core.settle();
    assert_eq!(sent(&core), [2, 2]);
    core.run(|world| world.paths[1].stand(Access::Optimized));
    core.run(|world| world.send(READ, 0));
    core.settle();
    assert_eq!(sent(&core), [3, 2]);
}

#[test]
fn a_lost_copy_is_sent_again_unless_it_reads_what_it_writes() {
    let core = Core::two(Policy::Numa);
    let done = core.run(|world| {
        // Apart; one range that begins where the destination ends; one of what another has written.
        world.send_copy(100, &[(0, 8), (8, 8)]);
        world.send_copy(200, &[(208, 8)]);
        world.send_copy(300, &[(0, 8), (301, 4)]);
        world.paths[0].stand(Access::Lost);
        world.paths[0].answer_all(Status::HOST_PATHING_ERROR);
        world.done()
    });
    assert_eq!(done.iter().map(|done| done.number).collect::<Vec<_>>(), [300]);
    assert_eq!(done[0].status, Status::HOST_PATHING_ERROR);
    core.settle();
    core.run(|world| {
        assert_eq!(world.paths[1].places(), [100, 200]);
        world.paths[1].answer_all(Status::SUCCESS);
        assert_eq!(world.numbers(), [100, 200]);
        // What no path has begun goes on in any case.
        world.paths[0].stand(Access::Optimized);
        world.paths[1].stand(Access::Lost);
    });
    core.run(|world| {
        world.send_copy(300, &[(301, 4)]);
        world.paths[0].answer_one(Status::HOST_ABORTED);
        world.paths[1].stand(Access::Optimized);
    });
    core.settle();
    core.run(|world| {
        world.paths.iter().for_each(|path| path.answer_all(Status::SUCCESS));
        let done = world.done();
        assert_eq!((done.len(), done[0].status), (1, Status::SUCCESS));
    });
}

#[test]
fn what_a_path_lost_is_sent_on_another_as_it_was() {
    let core = Core::two(Policy::Numa);
    core.run(|world| {
        world.send(READ, 1);
        world.send(WRITE, 2);
        world.send(FLUSH, 3);
        world.paths[0].stand(Access::Lost);
        world.paths[0].answer_all(Status::HOST_PATHING_ERROR);
    });
    core.settle();
    let done = core.run(|world| {
        let [one, other] = &world.paths[..] else { panic!("there are two") };
        assert_eq!(*one.seen.borrow(), *other.seen.borrow(), "paths rewrite what they are given");
        assert_eq!(world.done(), []);
        other.answer_all(Status::SUCCESS);
        world.done()
    });
    assert!(done.len() == 3 && done.iter().all(|done| done.status.is_success()));
    let errors: Vec<u64> = core.namespace.paths().iter().map(|path| path.errors).collect();
    assert_eq!(errors, [3, 0]);
}

#[test]
fn what_cannot_be_done_twice_is_not_retried_once_it_was_sent() {
    let core = Core::two(Policy::Numa);
    core.run(|world| {
        world.send(ZONE_APPEND, 1);
        world.send(VENDOR, 2);
        world.send_pair(3);
        world.paths[0].answer_all(Status::HOST_PATHING_ERROR);
    });
    core.settle();
    let done = core.run(|world| {
        assert_eq!(world.paths[1].held(), 0);
        world.done()
    });
    let lost =
        |number, second| Done { number, status: Status::HOST_PATHING_ERROR, second, byte: None };
    assert_eq!(done, [lost(1, None), lost(2, None), lost(3, Some(Status::ABORTED_FAILED_FUSED))]);

    // What never left may go another way, whatever it is, the pair with both of its commands.
    core.run(|world| {
        world.paths.iter().for_each(|path| drop(path.seen.take()));
        world.send(ZONE_APPEND, 4);
        world.send(VENDOR, 5);
        world.send_pair(6);
        world.paths[0].stand(Access::Lost);
        world.paths[0].answer_all(Status::HOST_ABORTED);
    });
    core.settle();
    let done = core.run(|world| {
        assert_eq!(world.paths[1].places(), [4, 5, 6]);
        let pair = world.paths[1].held.borrow().back().map(|pair| pair.fused.is_some());
        assert_eq!(pair, Some(true));
        world.paths[1].answer_all(Status::SUCCESS);
        world.done()
    });
    assert!(done.len() == 3 && done.iter().all(|done| done.status.is_success()));
    assert_eq!(done[2].second, Some(Status::SUCCESS));
}

/// Remote volumes are multipath themselves, whose commands wait while they have no path.
#[test]
fn what_a_path_of_several_paths_cannot_take_goes_another_way() {
    let several = |name: &str| -> Arc<dyn Namespace> {
        let options = MultipathOptions { is_path: true, ..MultipathOptions::default() };
        Multipath::new(vec![Arc::new(Fake::new(name))], options).unwrap()
    };
    let settings = Settings { policy: Policy::Numa, ..Settings::default() };
    let options = MultipathOptions { tuning: settings.into(), ..MultipathOptions::default() };
    let core = Core::over(Multipath::new(vec![several("a"), several("b")], options).unwrap());
    // In flight when the path is lost: the first was on its way and is dead now, the others never left.
    core.run(|world| {
        world.send(WRITE, 1);
        world.send(ZONE_APPEND, 2);
        world.send_pair(3);
        assert_eq!((world.paths[0].held(), world.paths[1].held()), (3, 0));
        world.paths[0].stand(Access::Lost);
        world.paths[0].answer_one(Status::HOST_PATHING_ERROR);
        world.paths[0].answer_all(Status::HOST_ABORTED);
    });
    core.settle();
    core.settle();
    core.run(|world| {
        assert_eq!(world.paths[1].places(), [1, 2, 3]);
        world.paths[1].answer_all(Status::SUCCESS);
        assert_eq!(world.numbers(), [1, 2, 3]);
    });
    // With no path at all they wait above, and go by the first that is there again.
    core.run(|world| {
        world.paths[1].stand(Access::Lost);
        world.send(WRITE, 4);
    });
    core.settle();
    core.run(|world| {
        assert_eq!((world.paths[0].held(), world.paths[1].held()), (0, 0));
        assert_eq!(world.numbers(), []);
        world.paths[0].stand(Access::Optimized);
    });
    core.settle();
    core.run(|world| {
        assert_eq!(world.paths[0].held(), 1);
        world.paths[0].answer_all(Status::SUCCESS);
        assert_eq!(world.numbers(), [4]);
    });
}

#[test]
fn both_commands_of_a_pair_are_restored() {
    let core = Core::two(Policy::Numa);
    core.run(|world| {
        world.send_pair(9);
        world.paths[0].stand(Access::Lost);
        world.paths[0].answer_all(Status::HOST_ABORTED);
        assert_eq!(world.paths[1].held(), 0, "not from within the path's call");
    });
    core.settle();
    core.run(|world| {
        let [one, other] = &world.paths[..] else { panic!("there are two") };
        assert_eq!(other.held(), 1);
        assert_eq!(*one.seen.borrow(), *other.seen.borrow());
        assert_eq!(*one.seconds.borrow(), *other.seconds.borrow());
        assert_eq!(other.seconds.borrow()[0], Command::blocks(WRITE, 1, 9, 1));
        other.answer_all(Status::SUCCESS);
    });
    assert_eq!(core.run(|world| world.numbers()), [9]);
}

#[test]
fn commands_wait_in_order_while_no_path_is_usable() {
    let core = Core::two(Policy::QueueDepth);
    core.run(|world| {
        world.paths[1].stand(Access::Inaccessible);
        world.send(WRITE, 0);
        world.paths[0].stand(Access::Lost);
        world.paths[0].answer_all(Status::HOST_ABORTED);
    });
    core.run(|world| (1..100).for_each(|slba| world.send(WRITE, slba)));
    std::thread::sleep(Duration::from_millis(50));
    core.run(|world| {
        assert_eq!(world.numbers(), [0; 0], "nothing fails as long as a path may return");
        world.paths[1].seen.take();
        world.paths[1].stand(Access::NonOptimized);
        // It does not overtake.
        world.send(WRITE, 100);
    });
    core.settle();
    core.run(|world| {
        assert_eq!(world.paths[1].places(), (0..=100).collect::<Vec<_>>());
        world.paths[1].answer_all(Status::SUCCESS);
        assert_eq!(world.numbers(), (0..=100).collect::<Vec<_>>());
    });
    assert!(core.counts().iter().all(|(in_flight, _)| *in_flight == 0));
}

#[test]
fn commands_fail_once_no_path_will_return() {
    let core = Core::two(Policy::CompletionTime);
    core.run(|world| {
        world.paths[0].stand(Access::Lost);
        world.paths[1].stand(Access::Lost);
        world.send(WRITE, 1);
        world.send_pair(2);
    });
    core.run(|world| world.paths[0].stand(Access::Gone));
    core.settle();
    core.run(|world| {
        assert_eq!(world.numbers(), [0; 0], "one path may still return");
        world.paths[1].stand(Access::Failing);
    });
    core.settle();
    let done = core.run(|world| {
        world.send(READ, 3);
        world.done()
    });
    assert_eq!(done.len(), 2);
    assert!(done.iter().all(|done| done.status == Status::HOST_PATHING_ERROR), "{done:?}");
    core.settle();
    assert_eq!(core.run(|world| world.numbers()), [3]);
    // It is tried all the while (fast_io_fail_tmo), and what comes later is served.
    core.run(|world| {
        world.paths[1].stand(Access::Optimized);
        world.paths[1].answer.set(Some(Status::SUCCESS));
        world.send(READ, 4);
    });
    assert_eq!(core.until(|world| world.done().pop()).status, Status::SUCCESS);
}

#[test]
fn a_path_that_only_seems_usable_is_tried_with_pauses() {
    let core = Core::start(vec![Fake::new("a")], Policy::CompletionTime);
    let begun = Instant::now();
    core.run(|world| {
        world.paths[0].answer.set(Some(Status::INTERNAL_PATH_ERROR));
        world.send(READ, 1);
    });
    // After 1 + 2 + 4 + ... + 64 ms it has been tried nine times.
    core.until(|world| (world.paths[0].seen.borrow().len() >= 9).then_some(()));
    assert!(begun.elapsed() >= Duration::from_millis(100), "without pauses");
    assert_eq!(core.run(|world| world.numbers()), [0; 0]);
    core.run(|world| world.paths[0].answer.set(Some(Status::SUCCESS)));
    assert_eq!(core.until(|world| world.done().pop()).number, 1);
}

#[test]
fn another_path_is_tried_before_the_same_one() {
    for policy in Policy::ALL {
        let paths = ["a", "b", "c"].map(Fake::new).into();
        let core = Core::start(paths, policy);
        core.run(|world| {
            world.paths.iter().for_each(|path| path.answer.set(Some(Status::INTERNAL_PATH_ERROR)));
            world.send(READ, 1);
        });
        core.until(|world| {
            let seen: usize = world.paths.iter().map(|path| path.seen.borrow().len()).sum();
            (seen >= 3).then_some(())
        });
        let each: Vec<u64> = core.counts().iter().map(|(_, sent)| *sent).collect();
        assert!(each.iter().all(|&sent| sent >= 1), "{policy}: {each:?}");
        core.run(|world| {
            world.paths.iter().for_each(|path| path.answer.set(Some(Status::SUCCESS)));
        });
        assert_eq!(core.until(|world| world.done().pop()).status, Status::SUCCESS, "{policy}");
    }
}

/// Its data came damaged: that is the path's doing, as it would be the next time.
#[test]
fn what_a_path_spoils_is_sent_by_another() {
    for policy in Policy::ALL {
        // Under `latency` it is chance which path is first, and one that answers at once stays it: forty hosts all have the
        // other one once in 2^40 times.
        let hosts = if policy == Policy::Latency { 40 } else { 1 };
        assert!((0..hosts).any(|_| is_sent_by_another(policy)), "{policy}");
    }
    // Where there is no other path, it has five more chances.
    let core = Core::start(vec![Fake::new("a")], Policy::CompletionTime);
    core.run(|world| {
        world.paths[0].answer.set(Some(Status::TRANSIENT_TRANSPORT));
        world.send(READ, 1);
    });
    let done = core.until(|world| world.done().pop());
    assert_eq!((done.status, core.counts()[0].1), (Status::TRANSIENT_TRANSPORT, 6));
}

/// What the first of two paths is given and spoils, the second does; whether there was anything.
fn is_sent_by_another(policy: Policy) -> bool {
    const COMMANDS: u64 = 20;
    let core = Core::two(policy);
    core.run(|world| {
        world.paths[0].answer.set(Some(Status::TRANSIENT_TRANSPORT));
        world.paths[1].answer.set(Some(Status::SUCCESS));
    });
    for slba in 0..COMMANDS {
        core.run(move |world| world.send(READ, slba));
        let done = core.until(|world| world.done().pop());
        assert_eq!((done.number, done.status), (slba, Status::SUCCESS), "{policy}");
    }
    let sent: Vec<u64> = core.counts().iter().map(|(_, sent)| *sent).collect();
    assert!(sent[0] <= COMMANDS && sent[1] == COMMANDS, "{policy}: each but once: {sent:?}");
    let errors: Vec<u64> = core.namespace.paths().iter().map(|path| path.errors).collect();
    assert_eq!(errors, [sent[0], 0], "{policy}: it is told whose doing it was");
    sent[0] > 0
}

#[test]
fn a_controller_may_put_a_command_off_five_times() {
    let core = Core::two(Policy::RoundRobin);
    core.run(|world| {
        world.paths.iter().for_each(|path| path.answer.set(Some(Status::COMMAND_INTERRUPTED)));
        world.send(READ, 1);
    });
    let done = core.until(|world| world.done().pop());
    assert_eq!(done.status, Status::COMMAND_INTERRUPTED);
    assert_eq!(core.counts().iter().map(|(_, sent)| sent).sum::<u64>(), 6);
    // Not the path's fault, and no error of it.
    assert!(core.namespace.paths().iter().all(|path| path.errors == 0));
    core.run(|world| {
        world
            .paths
            .iter()
            .for_each(|path| path.answer.set(Some(Status::COMMAND_INTERRUPTED.dnr())));
        world.send(READ, 2);
        assert_eq!(world.numbers(), [2], "do not retry");
    });
}

#[test]
fn a_controller_says_for_how_long_it_puts_commands_off() {
    let delays = |first, second, third| [first, second, third].map(Duration::from_millis);
    let paths = [("a", delays(50, 900, 0)), ("b", delays(700, 0, 0))];
    let fake = |(name, retry_delays)| Fake { retry_delays, ..Fake::new(name) };
    let nested = |path| -> Arc<dyn Namespace> {
        let options = MultipathOptions { is_path: true, ..MultipathOptions::default() };
        let path = Delay::new(Arc::new(fake(path)), Delays::default());
        Multipath::new(vec![path], options).expect("a path")
    };
    // Of two paths' the longer one, by whatever layers they come.
    let nested = Multipath::new(paths.map(nested).to_vec(), MultipathOptions::default());
    assert_eq!(nested.expect("paths").retry_delays(), delays(700, 900, 0));
    let core = Core::start(paths.map(fake).into(), Policy::RoundRobin);
    // Command Retry Delay, time-out, and how long the command is away at least. Number 3 is not told.
    let away = |number: u16, timeout_ms: u32, least_ms: u64| {
        let begun = Instant::now();
        core.run(move |world| {
            let status = Status(Status::COMMAND_INTERRUPTED.0 | number << 11);
            world.send_within(number.into(), timeout_ms);
            world.paths.iter().for_each(|path| path.answer_all(status));
            world.paths.iter().for_each(|path| path.answer.set(Some(Status::SUCCESS)));
        });
        let done = core.until(|world| world.done().pop());
        let took = begun.elapsed();
        assert!(done.status.is_success());
        assert!(took >= Duration::from_millis(least_ms), "{number}: {took:?}");
        core.run(|world| world.paths.iter().for_each(|path| path.answer.set(None)));
        took
    };
    for (number, timeout_ms, least_ms) in [(0, 0, 10), (1, 0, 700), (2, 60_000, 900), (3, 0, 400)] {
        away(number, timeout_ms, least_ms);
    }
    // No longer than it has; one of several: the machine may be busy with something else.
    assert!((0..5).any(|_| away(2, 100, 100) < Duration::from_millis(900)));
}

#[test]
fn ana_errors_are_waited_out() {
    let core = Core::start(vec![Fake::new("a")], Policy::CompletionTime);
    core.run(|world| {
        world.send(ZONE_APPEND, 1);
        // As a path does: inaccessible until the log page was read again.
        world.paths[0].stand(Access::Inaccessible);
        world.paths[0].answer_all(Status::ANA_TRANSITION);
    });
    std::thread::sleep(Duration::from_millis(30));
    core.run(|world| {
        assert_eq!((world.numbers().len(), world.paths[0].seen.borrow().len()), (0, 1));
        world.paths[0].stand(Access::Optimized);
    });
    core.settle();
    core.run(|world| world.paths[0].answer_all(Status::SUCCESS));
    assert_eq!(core.run(|world| world.numbers()), [1]);
}
