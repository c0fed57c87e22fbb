//! What is combined, told and changed from outside.

use crate::core::{Core, Fake, limits};
use namespace::layer::guard::{Guard, GuardOptions};
use namespace::layer::multipath::{Multipath, MultipathError, MultipathOptions, Policy};
use namespace::{Access, Namespace, PathReport};
use nvme::limits::{Commands, DiscardLimits};
use nvme::opcode::io::{READ, WRITE};
use nvme::{Limits, Status};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn over(paths: Vec<Fake>) -> Result<Arc<Multipath>, MultipathError> {
    let paths = paths.into_iter().map(|path| Arc::new(path) as Arc<dyn Namespace>).collect();
    Multipath::new(paths, MultipathOptions::default())
}

#[test]
fn limits_are_those_of_all_paths() {
    let (one, other) = (Fake::new("a"), Fake::new("b"));
    *other.limits.lock().unwrap() = Limits {
        blocks: 1 << 19,
        transfer_bytes_max: 1 << 17,
        write_zeroes_bytes_max: 1 << 16,
        discard: DiscardLimits { ranges_max: 1, range_blocks_max: 8, blocks_max: 8 },
        optimal_write_bytes: 8192,
        volatile_write_cache: true,
        commands: Commands::default(),
        ..limits()
    };
    let wanted = Limits { immediate: false, ..*other.limits.lock().unwrap() };
    assert_eq!(over(vec![one, other]).unwrap().limits(), wanted);
}

#[test]
fn different_volumes_are_refused() {
    assert_eq!(over(Vec::new()).unwrap_err(), MultipathError::Count(0));
    let many = (0..17).map(|_| Fake::new("a")).collect();
    assert_eq!(over(many).unwrap_err(), MultipathError::Count(17));
    let other = Fake::new("b");
    other.limits.lock().unwrap().block_shift = 9;
    let error = over(vec![Fake::new("a"), other]).unwrap_err().to_string();
    assert!(error.contains("a has blocks of 4096 bytes and b of 512"), "{error}");
    let with = |name: &str, id: u8| Fake { uuid: Some([id; 16]), ..Fake::new(name) };
    let error = over(vec![with("a", 1), Fake::new("b"), with("c", 2)]).unwrap_err().to_string();
    assert!(error.contains("a and c have different UUIDs"), "{error}");
    assert_eq!(over(vec![Fake::new("a"), with("b", 2)]).unwrap().uuid(), Some([2; 16]));
}

#[test]
fn the_policy_changes_while_commands_are_in_flight() {
    let core = Core::two(Policy::Numa);
    core.run(|world| (0..10).for_each(|slba| world.send(READ, slba)));
    assert_eq!(core.counts(), [(10, 10), (0, 0)]);
    core.namespace.tune("policy", "queue-depth").unwrap();
    core.run(|world| (10..20).for_each(|slba| world.send(READ, slba)));
    assert_eq!(core.counts(), [(10, 10), (10, 10)], "it knows what was in flight before");
    core.run(|world| world.paths.iter().for_each(|path| path.answer_all(Status::SUCCESS)));
    assert_eq!(core.counts(), [(0, 10), (0, 10)]);
    core.namespace.tune("latency_ewma_shift", "1").unwrap();
    core.namespace.tune("policy", "latency").unwrap();
    assert_eq!(core.namespace.uri(), "multipath:policy=latency,latency_ewma_shift=1(a,b)");
    let error = core.namespace.tune("policy", "best").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(core.namespace.settings().policy, Policy::Latency);
    // What is not multipath's is the paths'.
    core.namespace.tune("known", "7").unwrap();
    assert_eq!(core.namespace.tune("wat", "7").unwrap_err().kind(), ErrorKind::Unsupported);
    let mut facts = Vec::new();
    core.namespace.describe(&mut facts);
    let fact =
        |name: &str| facts.iter().find(|(known, _)| known == name).map(|(_, it)| it.as_str());
    assert_eq!(fact("policy"), Some("latency"));
    assert_eq!(fact("latency_batch_timeout"), Some("15s"));
}

#[test]
fn a_uri_of_the_volumes_own_is_kept() {
    let paths = || vec![Arc::new(Fake::new("a")) as Arc<dyn Namespace>];
    let told = |uri: &str, change: Option<&str>| {
        let options = MultipathOptions { uri: Some(uri.into()), ..MultipathOptions::default() };
        let namespace = Multipath::new(paths(), options).unwrap();
        change.into_iter().for_each(|policy| namespace.tune("policy", policy).unwrap());
        namespace.uri()
    };
    assert_eq!(told("tcp://h/n?ns=1", None), "tcp://h/n?ns=1");
    assert_eq!(told("tcp://h/n?ns=1", Some("numa")), "tcp://h/n?ns=1&policy=numa");
    assert_eq!(told("tcp://h/n", Some("numa")), "tcp://h/n?policy=numa");
}

#[test]
fn an_error_is_one_of_all_paths() {
    let namespace = over(vec![Fake::new("a"), Fake::new("b")]).unwrap();
    assert_eq!(namespace.refresh().unwrap_err().to_string(), "a");
    namespace.flush().unwrap();
    assert_eq!(namespace.resize(1 << 30).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn counts_outlive_queues() {
    let core = Core::two(Policy::RoundRobin);
    core.run(|world| {
        world.paths.iter().for_each(|path| path.answer.set(Some(Status::SUCCESS)));
        (0..10).for_each(|slba| world.send(READ, slba));
    });
    let namespace = Arc::clone(&core.namespace);
    drop(core);
    let details = || {
        let found = |path: PathReport| path.details.into_iter().find(|(name, _)| name == "read");
        let found = namespace.paths().into_iter().map(|path| found(path).map(|(_, it)| it));
        found.collect::<Vec<_>>()
    };
    let five = Some("sel=5 in_flight=0".to_owned());
    assert_eq!(details(), [five.clone(), five.clone()]);
    let core = Core::over(Arc::clone(&namespace));
    assert_eq!(details(), [five.clone(), five]);
    core.run(|world| {
        world.paths.iter().for_each(|path| path.answer.set(Some(Status::SUCCESS)));
        (0..4).for_each(|slba| world.send(READ, slba));
    });
    assert_eq!(core.counts(), [(0, 7), (0, 7)]);
    drop(core);
    let seven = Some("sel=7 in_flight=0".to_owned());
    assert_eq!(details(), [seven.clone(), seven]);
}

#[test]
fn statistics_are_shown() {
    let core = Core::two(Policy::CompletionTime);
    let end = Instant::now() + Duration::from_millis(100);
    let mut passes = 0;
    while Instant::now() < end || passes < 50 {
        core.run(|world| {
            world.paths.iter().for_each(|path| path.answer.set(Some(Status::SUCCESS)));
            (0..10).for_each(|slba| world.send(if slba < 5 { READ } else { WRITE }, slba));
        });
        passes += 1;
    }
    let reports = core.namespace.paths();
    let detail = |path: usize, name: &str| {
        let found = reports[path].details.iter().find(|(known, _)| known == name);
        found.map_or(String::new(), |(_, value)| value.clone())
    };
    assert!(detail(0, "read").contains("latency_ns="), "{reports:?}");
    assert!(detail(1, "write").contains("sel="), "{reports:?}");
    assert_eq!(detail(0, "other"), "");
    let weights: u32 = reports.iter().map(|path| path.weight).sum();
    assert!((126..=130).contains(&weights), "{weights}");
    assert!(reports.iter().all(|path| path.name == "a" || path.name == "b"));
}

/// Of forty hosts with two paths all begin with the same one once in 2^39 times.
#[test]
fn hosts_begin_with_different_paths_under_latency() {
    begin_with_different_paths(|| Core::two(Policy::Latency));
    // A policy that is changed to it begins anew, everywhere at once.
    begin_with_different_paths(|| {
        let core = Core::two(Policy::Numa);
        core.namespace.tune("policy", "latency").unwrap();
        core
    });
}

fn begin_with_different_paths(start: impl Fn() -> Core) {
    let mut begun = [0; 2];
    for _ in 0..40 {
        let core = start();
        core.run(|world| world.send(READ, 0));
        let second = core.run(|world| {
            let [first, second] = [0, 1].map(|path: usize| world.paths[path].held());
            assert_eq!(first + second, 1);
            world.paths.iter().for_each(|path| path.answer_all(Status::SUCCESS));
            second
        });
        begun[second] += 1;
    }
    assert!(begun.iter().all(|&hosts| hosts > 0), "{begun:?}");
}

/// A path without a weight takes everything under this policy; a controller that is overloaded and says so must not get
/// all commands for that.
#[test]
fn a_controller_that_puts_commands_off_draws_none_under_latency() {
    for status in [Status::COMMAND_INTERRUPTED, Status::TRANSIENT_TRANSPORT] {
        // By their weights, which a sample that comes late may have made very different: then once more. Without its weight
        // the first path is given all 640.
        let found = (0..10).any(|_| done_beside_one_that_puts_off(status) > 100);
        assert!(found, "{status}: hardly any of 640 went to the path that does them");
    }
}

/// How many of 640 commands go to the path that does them, and come back.
fn done_beside_one_that_puts_off(status: Status) -> u64 {
    let core = Core::two(Policy::Latency);
    let sampled = || {
        core.run(|world| (0..100).for_each(|slba| world.send(READ, slba)));
        std::thread::sleep(Duration::from_millis(1));
        core.run(|world| world.paths.iter().for_each(|path| path.answer_all(Status::SUCCESS)));
    };
    // Each path has its weight, by a batch of its own.
    core.namespace.tune("latency_batch_timeout", "1ms").unwrap();
    (0..4).for_each(|_| sampled());
    let before = core.counts()[1].1;
    core.run(move |world| {
        world.paths[0].answer.set(Some(status));
        world.paths[1].answer.set(Some(Status::SUCCESS));
        world.done();
        (0..640).for_each(|slba| world.send(READ, slba));
    });
    let sent = core.counts()[1].1 - before;
    // And nothing that was put off remains undone where it need not.
    let done = core.run(|world| world.done());
    assert!(done.iter().all(|done| done.status.is_success()), "{status}");
    sent.min(done.len() as u64)
}

#[test]
fn the_latency_policy_tells_the_statistics_that_were_posted() {
    const ROUNDS: u64 = 50;
    let core = Core::two(Policy::Latency);
    core.namespace.tune("latency_batch_timeout", "1ms").unwrap();
    let answer =
        || core.run(|world| world.paths.iter().for_each(|path| path.answer_all(Status::SUCCESS)));
    // Longer than a second: no sample, but counted.
    core.run(|world| world.send(READ, 0));
    std::thread::sleep(Duration::from_millis(1100));
    answer();
    // The longest that another was under way at most.
    let mut longest = Duration::ZERO;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        core.run(|world| (0..4).for_each(|slba| world.send(READ, slba)));
        std::thread::sleep(Duration::from_millis(1));
        answer();
        longest = longest.max(begun.elapsed());
    }
    let read = |path: usize, name: &str| {
        let reports = core.namespace.paths();
        let text = reports[path].details.iter().find(|(known, _)| known == "read");
        let text = &text.expect("there were reads").1;
        let field = text.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        field.expect(name).parse::<u64>().expect("a number")
    };
    let sum = |name: &str| read(0, name) + read(1, name);
    // A core tells its figures with a command, now and then: before that one is answered.
    let mut sent = 1 + 4 * ROUNDS;
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let begun = Instant::now();
        core.run(|world| world.send(READ, 0));
        sent += 1;
        if sum("sel") == sent || Instant::now() > end {
            break;
        }
        answer();
        longest = longest.max(begun.elapsed());
    }
    let reports = core.namespace.paths();
    let ignored = sum("nr_ignored");
    assert_eq!((sum("sel"), sum("nr_samples") + ignored), (sent, sent - 1));
    // The first, and others where the machine stood still.
    assert!(ignored == 1 || ignored > 1 && longest > Duration::from_millis(900), "{ignored}");
    for path in 0..2 {
        let slat_ns = read(path, "slat_ns");
        assert!((1_000_000..1_000_000_000).contains(&slat_ns), "{reports:?}");
        assert_eq!(read(path, "score"), 1_000_000_000 / slat_ns);
        // What was given when it weighed more is used up.
        assert!(read(path, "credit") <= 64, "{reports:?}");
    }
    assert!((62..=65).contains(&sum("weight")), "{reports:?}");
}

#[test]
fn an_idle_path_is_probed_with_reads_that_nobody_sees() {
    let core = Core::two(Policy::CompletionTime);
    let mut sent = 0;
    // The second path takes 30 ms, so that nobody chooses it again.
    core.run(|world| {
        world.paths[0].answer.set(Some(Status::SUCCESS));
        world.paths[1].stand(namespace::Access::Lost);
        world.send(WRITE, 500);
    });
    core.run(|world| {
        world.paths[1].stand(namespace::Access::Optimized);
        world.done();
    });
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        sent += 10;
        let (held, seen) = core.run(|world| {
            (0..10).for_each(|_| world.send(WRITE, 500));
            let path = &world.paths[1];
            let reads = path.seen.borrow().iter().filter(|command| command.opcode == READ).count();
            (path.held(), reads)
        });
        if seen >= 2 {
            break;
        }
        assert!(Instant::now() < end, "never probed");
        std::thread::sleep(Duration::from_millis(if held > 0 { 30 } else { 1 }));
        core.run(|world| world.paths[1].answer_all(Status::SUCCESS));
    }
    core.run(|world| {
        let seen = world.paths[1].seen.borrow();
        let probe = seen.iter().find(|command| command.opcode == READ).unwrap();
        assert_eq!((probe.slba(), probe.block_count(), probe.nsid.get()), (500, 1, 1));
    });
    core.run(|world| world.paths[1].answer_all(Status::SUCCESS));
    let done = core.run(|world| world.numbers());
    assert_eq!(done.len(), sent, "each command came back, and nothing else");
    assert!(core.counts().iter().all(|(in_flight, _)| *in_flight == 0));
}

/// One command at a time, each of which takes 150 ms: after 32 of them there would be a probe in any case.
#[test]
fn few_commands_that_are_slow_are_enough_for_a_probe() {
    // Where the machine stands still the second may have come to look like the first, and is taken in turn with it.
    assert!((0..5).any(|_| is_probed_after_few()), "30 commands and no probe, each time");
}

fn is_probed_after_few() -> bool {
    let core = Core::two(Policy::CompletionTime);
    let mut sent = 0;
    let seen = loop {
        // Both at first, so that both are known.
        let count = if sent == 0 { 2 } else { 1 };
        core.run(move |world| (0..count).for_each(|_| world.send(READ, 7)));
        std::thread::sleep(Duration::from_millis(150));
        if sent == 0 {
            // The second is slower, so that it is not taken in turn with the first.
            core.run(|world| world.paths[0].answer_all(Status::SUCCESS));
            std::thread::sleep(Duration::from_millis(150));
        }
        sent += count;
        let seen: usize = core.run(|world| {
            world.paths.iter().for_each(|path| path.answer_all(Status::SUCCESS));
            world.paths.iter().map(|path| path.seen.borrow().len()).sum()
        });
        if seen > sent || sent >= 30 {
            break seen;
        }
    };
    seen > sent
}

#[test]
fn a_read_only_path_tells_how_it_stands() {
    let guarded = |name: &str| {
        let options = GuardOptions { read_only: true, ..GuardOptions::default() };
        Guard::new(Arc::new(Fake::new(name)), options) as Arc<dyn Namespace>
    };
    let paths = vec![guarded("a"), guarded("b")];
    let core = Core::over(Multipath::new(paths, MultipathOptions::default()).unwrap());
    core.run(|world| world.paths[0].stand(Access::Lost));
    core.run(|world| (0..10).for_each(|slba| world.send(READ, slba)));
    assert_eq!(core.counts(), [(0, 0), (10, 10)]);
    let states: Vec<Access> = core.namespace.paths().iter().map(|path| path.access).collect();
    assert_eq!(states, [Access::Lost, Access::Optimized]);
    core.run(|world| world.paths[1].answer_all(Status::SUCCESS));
}
