//! Paths that are kept for when no other can be used.

use crate::core::{Core, Fake};
use namespace::layer::linear::Linear;
use namespace::layer::multipath::{Multipath, MultipathOptions, Policy, Settings, Tuning};
use namespace::{Access, Namespace};
use nvme::Status;
use nvme::opcode::io::{FLUSH, READ, WRITE};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What each path was sent, in all.
fn sent(core: &Core) -> Vec<u64> {
    core.counts().iter().map(|(_, sent)| *sent).collect()
}

/// Paths that answer at once.
fn answering(count: usize, policy: Policy) -> Core {
    let paths = ["a", "b", "c"][..count].iter().map(|name| Fake::new(name)).collect();
    let core = Core::start(paths, policy);
    core.run(|world| {
        world.paths.iter().for_each(|path| path.answer.set(Some(Status::SUCCESS)));
    });
    core
}

#[test]
fn a_path_on_standby_is_given_nothing_until_it_is_active_again() {
    for policy in Policy::ALL {
        let core = answering(2, policy);
        core.namespace.tune("standby", "1").unwrap();
        core.run(|world| (0..100).for_each(|slba| world.send(WRITE, slba)));
        assert_eq!(sent(&core), [0, 100], "{policy}");
        let told: Vec<bool> = core.namespace.paths().iter().map(|path| path.standby).collect();
        assert_eq!(told, [true, false], "{policy}");
        core.namespace.tune("standby", "none").unwrap();
        // Which path others begin with is theirs to say, and left to chance by some.
        core.namespace.tune("policy", "round-robin").unwrap();
        core.run(|world| (0..100).for_each(|slba| world.send(READ, slba)));
        assert_eq!(sent(&core), [50, 150], "{policy}");
        assert!(core.namespace.paths().iter().all(|path| !path.standby));
    }
}

#[test]
fn what_is_in_flight_there_ends_there() {
    let core = Core::two(Policy::Numa);
    core.run(|world| (0..3).for_each(|slba| world.send(WRITE, slba)));
    assert_eq!(core.counts(), [(3, 3), (0, 0)]);
    core.namespace.tune("standby", "1").unwrap();
    let done = core.run(|world| {
        world.send(WRITE, 3);
        world.paths.iter().for_each(|path| path.answer_all(Status::SUCCESS));
        world.done().len()
    });
    assert_eq!((done, core.counts()), (4, vec![(0, 3), (0, 1)]));
}

#[test]
fn a_path_on_standby_serves_while_no_other_is_usable() {
    for policy in Policy::ALL {
        let core = answering(3, policy);
        core.namespace.tune("standby", "2+3").unwrap();
        core.run(|world| {
            world.send(READ, 0);
            world.paths[0].stand(Access::Inaccessible);
            world.paths[1].stand(Access::NonOptimized);
        });
        core.run(|world| (1..11).for_each(|slba| world.send(READ, slba)));
        assert_eq!(sent(&core), [1, 0, 10], "{policy}: the better one of both");
        core.run(|world| {
            world.paths[2].stand(Access::Lost);
            world.send(READ, 11);
        });
        assert_eq!(sent(&core), [1, 1, 10], "{policy}");
        // A worse path that is not on standby comes before them.
        core.run(|world| {
            world.paths[2].stand(Access::Optimized);
            world.paths[0].stand(Access::NonOptimized);
        });
        core.run(|world| (12..22).for_each(|slba| world.send(READ, slba)));
        assert_eq!(sent(&core), [11, 1, 10], "{policy}");
    }
}

#[test]
fn all_on_standby_is_none() {
    let core = answering(2, Policy::RoundRobin);
    core.namespace.tune("standby", "1+2").unwrap();
    core.run(|world| (0..10).for_each(|slba| world.send(READ, slba)));
    assert_eq!(sent(&core), [5, 5]);
}

#[test]
fn what_every_active_path_has_failed_goes_by_one_on_standby() {
    let core = answering(2, Policy::CompletionTime);
    core.namespace.tune("standby", "2").unwrap();
    core.run(|world| {
        world.paths[0].answer.set(Some(Status::INTERNAL_PATH_ERROR));
        (0..5).for_each(|slba| world.send(WRITE, slba));
    });
    core.until(|world| (world.paths[1].places().len() == 5).then_some(()));
    core.settle();
    core.run(|world| {
        let done = world.done();
        assert!(done.len() == 5 && done.iter().all(|done| done.status.is_success()), "{done:?}");
    });
    assert_eq!(sent(&core), [5, 5], "each once by either");
}

/// It may come back long after the active one has failed the command first.
#[test]
fn a_path_on_standby_that_comes_back_is_tried_before_the_active_one_again() {
    let gone = Fake { first_access: Access::Lost, ..Fake::new("b") };
    let core = Core::start(vec![Fake::new("a"), gone], Policy::RoundRobin);
    core.namespace.tune("standby", "2").unwrap();
    core.run(|world| {
        world.paths[0].answer.set(Some(Status::INTERNAL_PATH_ERROR));
        world.send(WRITE, 1);
    });
    core.until(|world| (world.paths[0].places().len() >= 6).then_some(()));
    core.run(|world| {
        world.paths[1].answer.set(Some(Status::SUCCESS));
        world.paths[1].stand(Access::Optimized);
    });
    core.until(|world| (!world.paths[1].places().is_empty()).then_some(()));
    core.settle();
    core.run(|world| assert!(world.done().iter().all(|done| done.status.is_success())));
    assert_eq!(sent(&core)[1], 1);
}

/// As of volumes in a row, only one of which has such a path.
#[test]
fn a_path_is_put_on_standby_wherever_it_is() {
    let two = |a: &str, b: &str| {
        let paths = [a, b].map(|name| Arc::new(Fake::new(name)) as Arc<dyn Namespace>);
        Multipath::new(paths.to_vec(), MultipathOptions::default()).unwrap() as Arc<dyn Namespace>
    };
    let (first, second) = (two("tcp://a1:1", "tcp://a2:1"), two("tcp://b1:1", "tcp://b2:1"));
    let row = Linear::new(vec![Arc::clone(&first), Arc::clone(&second)]).unwrap();
    row.tune("standby", "b1").unwrap();
    let told = |volume: &Arc<dyn Namespace>| {
        volume.paths().iter().map(|path| path.standby).collect::<Vec<_>>()
    };
    assert_eq!((told(&first), told(&second)), (vec![false; 2], vec![true, false]));
    let error = row.tune("standby", "c").unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("no path is c"));
    row.tune("standby", "none").unwrap();
    assert_eq!(told(&second), [false; 2]);
}

#[test]
fn a_flush_goes_to_a_path_on_standby_that_has_written() {
    let (one, other) = (Fake::new("a"), Fake::new("b"));
    for path in [&one, &other] {
        path.limits.lock().unwrap().volatile_write_cache = true;
    }
    let core = Core::start(vec![one, other], Policy::Numa);
    core.run(|world| {
        world.paths.iter().for_each(|path| path.answer.set(Some(Status::SUCCESS)));
        // What was there before is flushed by all.
        world.send(FLUSH, 0);
        world.send(WRITE, 1);
    });
    core.settle();
    assert_eq!(sent(&core), [2, 1]);
    core.namespace.tune("standby", "1").unwrap();
    core.run(|world| {
        world.send(WRITE, 2);
        world.send(FLUSH, 0);
    });
    core.settle();
    assert_eq!(sent(&core), [3, 3]);
    core.run(|world| {
        world.send(WRITE, 3);
        world.send(FLUSH, 0);
    });
    core.settle();
    assert_eq!(sent(&core), [3, 5], "nothing is left there");
}

#[test]
fn admin_commands_keep_off_a_path_on_standby() {
    let core = answering(2, Policy::Numa);
    core.namespace.tune("standby", "1").unwrap();
    core.run(|world| {
        world.send_admin(1);
        assert_eq!([0, 1].map(|path| world.paths[path].places().len()), [0, 1]);
        world.paths[1].answer.set(Some(Status::HOST_ABORTED));
        world.send_admin(2);
    });
    core.settle();
    core.run(|world| {
        assert_eq!([0, 1].map(|path| world.paths[path].places().len()), [1, 2]);
        assert!(world.done().iter().all(|done| done.status.is_success()));
    });
}

#[test]
fn questions_keep_off_a_path_on_standby() {
    let paths = ["a", "b"].map(|name| Arc::new(Fake::new(name)));
    let dynamic = paths.iter().map(|path| Arc::clone(path) as Arc<dyn Namespace>).collect();
    let namespace = Multipath::new(dynamic, MultipathOptions::default()).unwrap();
    let asked = || paths.each_ref().map(|path| path.asked.load(Ordering::Relaxed));
    namespace.allocation(0, 8, 1).unwrap();
    assert_eq!(asked(), [1, 0]);
    namespace.tune("standby", "1").unwrap();
    namespace.allocation(0, 8, 1).unwrap();
    assert_eq!(asked(), [1, 1]);
    *paths[1].access.lock().unwrap() = Access::Lost;
    namespace.allocation(0, 8, 1).unwrap();
    assert_eq!(asked(), [2, 1], "the other is lost");
}

#[test]
fn standby_is_said_with_the_volume_and_checked() {
    let paths = || vec![Fake::new("a"), Fake::new("tcp://192.0.2.1:4420")];
    let core = Core::start(paths(), Policy::CompletionTime);
    for (value, uri) in [
        ("192.0.2.1", "multipath:standby=192.0.2.1(a,tcp://192.0.2.1:4420)"),
        ("192.0.2.1:4420+1", "multipath:standby=192.0.2.1:4420+1(a,tcp://192.0.2.1:4420)"),
        ("none", "multipath:(a,tcp://192.0.2.1:4420)"),
    ] {
        core.namespace.tune("standby", value).unwrap();
        assert_eq!(core.namespace.uri(), uri);
    }
    core.namespace.tune("standby", "2").unwrap();
    for (value, kind, word) in [
        ("3", ErrorKind::Unsupported, "no path is 3; there are a, tcp://192.0.2.1:4420"),
        ("2+192.0.2.2", ErrorKind::Unsupported, "no path is 192.0.2.2"),
        ("", ErrorKind::InvalidInput, "standby cannot be"),
        ("a b", ErrorKind::InvalidInput, "standby cannot be"),
    ] {
        let error = core.namespace.tune("standby", value).unwrap_err();
        assert_eq!(error.kind(), kind, "{value}");
        assert!(error.to_string().contains(word), "{error}");
    }
    let told: Vec<bool> = core.namespace.paths().iter().map(|path| path.standby).collect();
    assert_eq!(told, [false, true], "as it was");
    drop(core);

    // From the beginning.
    let settings = Settings { policy: Policy::RoundRobin, ..Settings::default() };
    let standby = "192.0.2.1".parse().unwrap();
    let options =
        MultipathOptions { tuning: Tuning { settings, standby }, ..MultipathOptions::default() };
    let paths = paths().into_iter().map(|path| Arc::new(path) as Arc<dyn Namespace>).collect();
    let core = Core::over(Multipath::new(paths, options).unwrap());
    core.run(|world| (0..4).for_each(|slba| world.send(READ, slba)));
    assert_eq!(sent(&core), [4, 0]);
}
