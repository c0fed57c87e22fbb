//! Hand-computed examples.

use super::*;
use crate::selector::Group;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// 4 KiB and the overhead.
const WORK: u64 = 8192;

/// Paths under test, with a way to run commands by hand.
struct Bench {
    estimates: Estimates,
    stand_in: Estimates,
}

impl Bench {
    fn new() -> Bench {
        Bench { estimates: Estimates::default(), stand_in: Estimates::default() }
    }

    fn send(&mut self, path: usize, sent_ns: u64) -> Token {
        let estimates = &mut self.estimates;
        let token = Token {
            sent_ns,
            work: WORK,
            queued: estimates.path(path).queued + WORK,
            delivered: estimates.delivered(path),
            path: path as u8,
            group: Group::Read,
            probe: false,
        };
        estimates.submitted(&token);
        token
    }

    fn answer(&mut self, token: &Token, now_ns: u64) {
        self.estimates.ended(token, now_ns);
        self.estimates.sample(token, now_ns, MS, 3);
    }

    fn run(&mut self, path: usize, sent_ns: u64, latency_ns: u64) {
        let token = self.send(path, sent_ns);
        self.answer(&token, sent_ns + latency_ns);
    }

    fn demand(now_ns: u64) -> Demand {
        Demand {
            candidates: PathSet::first(2),
            remote: PathSet::EMPTY,
            paths: 2,
            work: WORK,
            now_ns,
            numa_bias_ns: 0.0,
            refreshes: false,
        }
    }

    fn select(&mut self, now_ns: u64) -> usize {
        self.estimates.select(&Bench::demand(now_ns), &self.stand_in, &self.stand_in)
    }

    fn expected_ns(&self, path: usize, now_ns: u64) -> f64 {
        let path = self.estimates.path(path);
        path.special_ns([path, path], &Question::new(&Bench::demand(now_ns)))
    }
}

#[test]
fn the_first_sample_is_the_estimate() {
    let mut bench = Bench::new();
    bench.run(0, 10 * MS, 100 * US);
    let path = bench.estimates.path(0);
    assert_eq!((path.latency_ns(), path.backlog, path.least_ns()), (100e3, 8192.0, 100e3));
    // 8192 units in 100 us.
    assert!((path.rate_per_second() - 81_920_000.0).abs() < 1.0);
    // Nothing in flight: Q + w - Qb = 0.
    assert_eq!(bench.expected_ns(0, 11 * MS), 100e3);
    // One in flight: 8192 more at 8192 per 100 us.
    bench.send(0, 11 * MS);
    assert!((bench.expected_ns(0, 11 * MS) - 200e3).abs() < 1e-6);
}

#[test]
fn what_is_delivered_while_a_command_is_in_flight_is_the_rate() {
    let mut bench = Bench::new();
    let tokens: Vec<_> = (0..4).map(|_| bench.send(0, 10 * MS)).collect();
    for (token, at) in tokens.iter().zip([100, 110, 120, 130]) {
        bench.answer(token, 10 * MS + at * US);
    }
    // The last saw four commands within 130 us.
    let rate = bench.estimates.path(0).rate_per_second();
    assert!((rate / (4.0 * 8192.0 / 130e-6) - 1.0).abs() < 1e-6, "{rate}");
}

#[test]
fn batches_move_the_estimate_by_steps() {
    let mut bench = Bench::new();
    bench.run(0, 0, 100 * US);
    // Within the batch: two samples that do not count yet; the third ends it after 1 ms.
    bench.run(0, 200 * US, 200 * US);
    bench.run(0, 500 * US, 200 * US);
    assert_eq!(bench.estimates.path(0).latency_ns(), 100e3);
    bench.run(0, 800 * US, 500 * US);
    // The mean is 300 us and the share an eighth.
    assert_eq!(bench.estimates.path(0).latency_ns(), 125e3);
    // After two batch times: 1 - (7/8)^2 = 15/64 of 225 - 125.
    bench.run(0, 3_075 * US, 225 * US);
    let wanted = 125e3 + 15.0 / 64.0 * 100e3;
    assert!((bench.estimates.path(0).latency_ns() - wanted).abs() < 1e-6);
}

#[test]
fn one_sample_counts_for_eight_latencies_at_most() {
    let mut bench = Bench::new();
    bench.run(0, 0, 100 * US);
    bench.run(0, 2 * MS, 90 * MS);
    // The batch lasted 91.9 ms: 64 steps of an eighth are nearly all of 800 - 100.
    let path = bench.estimates.path(0);
    let share = 1.0 - 0.875f64.powi(64);
    assert!((path.latency_ns() - (100e3 + share * 700e3)).abs() < 1e-3);
    assert_eq!(path.clipped, 1);
}

#[test]
fn full_batches_end_before_their_time() {
    let mut bench = Bench::new();
    bench.run(0, 0, 10 * US);
    for sample in 0..64 {
        assert_eq!(bench.estimates.path(0).latency_ns(), 10e3, "{sample}");
        bench.run(0, 10 * US, 18 * US);
    }
    assert_eq!(bench.estimates.path(0).latency_ns(), 11e3);
}

#[test]
fn the_faster_path_fills_until_the_slower_is_as_good() {
    let mut bench = Bench::new();
    bench.run(0, 0, 100 * US);
    bench.run(1, 0, 350 * US);
    // On path 0 each command in flight costs 100 us: 100, 200, 300 are less than 350.
    let chosen: Vec<_> = (0..5)
        .map(|_| {
            let path = bench.select(MS);
            bench.send(path, MS);
            path
        })
        .collect();
    assert_eq!(chosen, [0, 0, 0, 1, 0]);
}

#[test]
fn silence_counts_against_a_path() {
    let mut bench = Bench::new();
    bench.run(0, 0, 100 * US);
    bench.run(1, 0, 900 * US);
    bench.send(0, 10 * MS);
    assert_eq!(bench.select(10 * MS), 0);
    // 1 ms of silence, one in flight: 1.1 ms.
    assert!((bench.expected_ns(0, 11 * MS) - 1.1e6).abs() < 1e-6);
    assert_eq!(bench.select(11 * MS), 1);
}

#[test]
fn the_same_time_is_served_in_turn() {
    let mut bench = Bench::new();
    bench.run(0, 0, 100 * US);
    bench.run(1, 0, 100 * US);
    let chosen: Vec<_> = (0..4).map(|turn| bench.select(MS + turn)).collect();
    assert_eq!(chosen, [1, 0, 1, 0]);
}

#[test]
fn not_everything_is_staked_on_an_unknown_path() {
    let mut bench = Bench::new();
    bench.run(0, 0, 100 * US);
    for _ in 0..UNKNOWN_MAX {
        assert_eq!(bench.select(MS), 1);
        bench.send(1, MS);
    }
    assert_eq!(bench.select(MS), 0);
    // Where nothing else is known, all go there all the same, evenly.
    let mut bench = Bench::new();
    for _ in 0..40 {
        let path = bench.select(MS);
        bench.send(path, MS);
    }
    let in_flight = |path| bench.estimates.path(path).in_flight;
    assert_eq!((in_flight(0), in_flight(1)), (20, 20));
}

#[test]
fn another_group_stands_in() {
    let mut bench = Bench::new();
    bench.run(0, 0, 900 * US);
    let mut reads = Bench::new();
    reads.run(0, 0, 100 * US);
    reads.run(1, 0, 500 * US);
    bench.stand_in = reads.estimates;
    // Known to take 900 us here against 500 us elsewhere.
    assert_eq!(bench.select(MS), 1);
    bench.run(1, MS, 1100 * US);
    assert_eq!(bench.select(MS), 0);
}

#[test]
fn the_farther_path_is_burdened() {
    let mut bench = Bench::new();
    bench.run(0, 0, 100 * US);
    bench.run(1, 0, 80 * US);
    let mut demand = Bench::demand(MS);
    assert_eq!(bench.estimates.select(&demand, &bench.stand_in, &bench.stand_in), 1);
    (demand.remote, demand.numa_bias_ns) = (PathSet::of(1), 40e3);
    assert_eq!(bench.estimates.select(&demand, &bench.stand_in, &bench.stand_in), 0);
}

#[test]
fn a_probe_that_comes_back_early_starts_the_path_slowly() {
    let mut bench = Bench::new();
    // Busy once: 64 commands of 1 ms each at a high rate.
    let tokens: Vec<_> = (0..64).map(|_| bench.send(1, 0)).collect();
    tokens.iter().for_each(|token| bench.answer(token, MS));
    let busy_rate = bench.estimates.path(1).rate_per_second();
    let token = Token { probe: true, ..bench.send(1, 200 * MS) };
    bench.answer(&token, 200 * MS + 100 * US);
    let path = bench.estimates.path(1);
    assert_eq!((path.latency_ns(), path.backlog), (100e3, 8192.0));
    assert!(
        (path.rate_per_second() - 8192.0 / 100e-6).abs() < 1.0
            && path.rate_per_second() < busy_rate / 2.0
    );
    // One that takes as long as expected is a sample like others.
    let token = Token { probe: true, ..bench.send(1, 400 * MS) };
    bench.answer(&token, 400 * MS + 100 * US);
    assert!((bench.estimates.path(1).latency_ns() - 100e3).abs() < 1e-6);
}

#[test]
fn the_rate_halves_in_a_second_and_the_least_latency_ages() {
    let mut bench = Bench::new();
    bench.run(0, 0, 100 * US);
    let before = bench.estimates.path(0).rate_per_second();
    bench.run(0, 1_000 * MS, 100 * MS);
    let half_life = 1e9 / (1_100e6 - 0.1e6);
    let left = bench.estimates.path(0).rate_per_second() / before;
    assert!((left - 0.5f64.powf(1.0 / half_life)).abs() < 1e-6, "{left}");
    assert_eq!(bench.estimates.path(0).least_ns(), 100e3);
    // The bucket of the first ends after 2.5 s, and is remembered for another 2.5 s.
    bench.run(0, 3_000 * MS, 200 * MS);
    assert_eq!(bench.estimates.path(0).least_ns(), 100e3);
    bench.run(0, 5_800 * MS, 300 * MS);
    assert_eq!(bench.estimates.path(0).least_ns(), 200e6);
    bench.run(0, 20_000 * MS, 400 * MS);
    assert_eq!(bench.estimates.path(0).least_ns(), 400e6);
}

#[test]
fn a_path_that_fails_at_once_does_not_look_fast() {
    let mut bench = Bench::new();
    bench.run(0, 0, 100 * US);
    bench.run(1, 0, 3 * MS);
    for wanted_ms in [1.0, 2.0, 4.0] {
        let token = bench.send(0, 10 * MS);
        bench.estimates.ended(&token, 10 * MS);
        bench.estimates.failed(0, 10 * MS);
        assert_eq!(bench.estimates.path(0).latency_ns(), wanted_ms * 1e6);
    }
    assert_eq!(bench.select(11 * MS), 1);
    // Its first answer counts as if nothing had been.
    bench.run(0, 20 * MS, 50 * US);
    assert_eq!(bench.estimates.path(0).latency_ns(), 50e3);
    // What another group has failed is forgotten when this one is answered; what it knows is not.
    bench.estimates.failed(1, 30 * MS);
    bench.estimates.forgive(1);
    bench.estimates.forgive(0);
    assert_eq!(bench.estimates.path(1).latency_ns(), 0.0);
    assert_eq!(bench.estimates.path(0).latency_ns(), 50e3);
}

#[test]
fn a_path_that_comes_back_is_not_held_to_its_failures() {
    let mut bench = Bench::new();
    bench.run(0, 0, 100 * US);
    bench.run(1, 0, 100 * US);
    for _ in 0..10 {
        let token = bench.send(0, 10 * MS);
        bench.estimates.ended(&token, 10 * MS);
        bench.estimates.failed(0, 10 * MS);
    }
    let both = |bench: &mut Bench| {
        let chosen: Vec<_> = (0..4).map(|turn| bench.select(2_000 * MS + turn)).collect();
        chosen.contains(&0) && chosen.contains(&1)
    };
    assert!(!both(&mut bench), "it failed ten commands");
    bench.estimates.returned(0);
    assert!(bench.select(2_000 * MS) == 0, "it is looked at");
    bench.run(0, 2_000 * MS, 100 * US);
    assert!(both(&mut bench));
    // One that was lost with nothing in flight keeps what was known of it.
    bench.estimates.returned(1);
    assert_eq!(bench.estimates.path(1).latency_ns(), 100e3);
}

#[test]
fn an_old_estimate_is_refreshed_once_in_a_while() {
    let mut bench = Bench::new();
    bench.run(0, 0, 100 * US);
    bench.run(1, 0, 9 * MS);
    let chosen = |bench: &mut Bench, now_ns: u64| {
        let demand = Demand { refreshes: true, ..Bench::demand(now_ns) };
        (0..REFRESH_EVERY)
            .filter(|_| bench.estimates.select(&demand, &bench.stand_in, &bench.stand_in) == 1)
            .count()
    };
    assert_eq!(chosen(&mut bench, 300 * MS), 0, "not old yet");
    // The oldest of two that are.
    assert_eq!(chosen(&mut bench, 500 * MS), 0);
    bench.run(0, 500 * MS, 100 * US);
    assert_eq!(chosen(&mut bench, 600 * MS), 1);
    bench.run(1, 600 * MS, 100 * US);
    assert_eq!(bench.estimates.path(1).updated_ns, 600 * MS + 100 * US);
}

/// Where reads tell that the way to a path takes longer than a command on the best one, finding that out
/// costs a user a thousandth of the time.
#[test]
fn a_path_that_reads_show_to_be_far_is_seldom_refreshed() {
    let mut bench = Bench::new();
    bench.run(0, 0, 100 * US);
    bench.run(1, 0, 9 * MS);
    let read = |bench: &mut Bench, path: usize, sent_ns: u64, latency_ns: u64| {
        let mut reads = Bench { estimates: bench.stand_in.clone(), stand_in: Estimates::default() };
        reads.run(path, sent_ns, latency_ns);
        bench.stand_in = reads.estimates;
    };
    let chosen = |bench: &mut Bench, now_ns: u64| {
        bench.run(0, now_ns - 100 * MS, 100 * US);
        let demand = Demand { refreshes: true, ..Bench::demand(now_ns) };
        let mut select = || bench.estimates.select(&demand, &bench.stand_in, &bench.stand_in);
        (0..REFRESH_EVERY).filter(|_| select() == 1).count()
    };
    // Reads take longer than writes on either; it is the difference that counts, and it is below a write.
    read(&mut bench, 0, 400 * MS, 55_000 * US);
    read(&mut bench, 1, 400 * MS, 55_090 * US);
    assert_eq!(chosen(&mut bench, 600 * MS), 1);
    bench.run(1, 600 * MS, 9 * MS);
    // Now it is 55 ms. The other way round it would be none.
    read(&mut bench, 0, 11_000 * MS, 5 * MS);
    read(&mut bench, 1, 11_000 * MS, 60 * MS);
    assert_eq!(chosen(&mut bench, 11_600 * MS), 0);
    // A thousandth of 55 s, as long as reads tell it.
    read(&mut bench, 0, 50_000 * MS, 5 * MS);
    read(&mut bench, 1, 50_000 * MS, 60 * MS);
    assert_eq!(chosen(&mut bench, 55_500 * MS), 0);
    assert_eq!(chosen(&mut bench, 55_700 * MS), 1);
    bench.run(1, 55_700 * MS, 9 * MS);
    // What they told long ago does not count.
    assert_eq!(chosen(&mut bench, 57_000 * MS), 0);
    read(&mut bench, 0, 61_900 * MS, 5 * MS);
    assert_eq!(chosen(&mut bench, 62_000 * MS), 1);
    bench.run(1, 62_000 * MS, 9 * MS);
    // A probe that is still on its way does.
    read(&mut bench, 0, 63_000 * MS, 5 * MS);
    let mut reads = Bench { estimates: bench.stand_in.clone(), stand_in: Estimates::default() };
    let probe = reads.send(1, 63_000 * MS);
    bench.stand_in = reads.estimates.clone();
    assert_eq!(chosen(&mut bench, 63_020 * MS), 0);
    // And the path is looked at again once a probe comes back as soon as elsewhere.
    reads.answer(&probe, 63_021 * MS);
    reads.run(1, 64_000 * MS, 5 * MS);
    bench.stand_in = reads.estimates;
    assert_eq!(chosen(&mut bench, 64_600 * MS), 1);
}

/// Nothing is far from a path of whose reads nothing is known, nor from one that fails them.
#[test]
fn a_best_path_without_reads_keeps_no_other_from_its_turn() {
    for fails in [false, true] {
        let mut bench = Bench::new();
        bench.run(0, 0, 100 * US);
        bench.run(1, 0, 9 * MS);
        let mut reads = Bench { estimates: bench.stand_in.clone(), stand_in: Estimates::default() };
        reads.run(1, 400 * MS, 50 * MS);
        if fails {
            reads.run(0, 400 * MS, 5 * MS);
            reads.estimates.failed(0, 410 * MS);
        }
        bench.stand_in = reads.estimates;
        bench.run(0, 500 * MS, 100 * US);
        let demand = Demand { refreshes: true, ..Bench::demand(600 * MS) };
        let mut select = || bench.estimates.select(&demand, &bench.stand_in, &bench.stand_in);
        assert_eq!((0..REFRESH_EVERY).filter(|_| select() == 1).count(), 1);
    }
}

/// A thousand commands that take a second each would be a long time.
#[test]
fn slow_commands_need_not_be_many_for_a_refresh() {
    // The other one took a second more, 18 s ago: a sixteenth of that. Or 15 s.
    for (latency_ns, now_ns, turns) in
        [(1_000 * MS, 20_000 * MS, 1), (1_000 * MS, 17_000 * MS, 0), (50 * MS, 20_000 * MS, 0)]
    {
        let mut bench = Bench::new();
        bench.run(1, 0, 2 * latency_ns);
        bench.run(0, now_ns - 1_100 * MS, latency_ns);
        let demand = Demand { refreshes: true, ..Bench::demand(now_ns) };
        let mut select = || bench.estimates.select(&demand, &bench.stand_in, &bench.stand_in);
        assert_eq!((0..REFRESH_EVERY_SLOW).filter(|_| select() == 1).count(), turns);
    }
}

/// Of a Flush on a path that has had no write, reads tell.
#[test]
fn whoever_knows_a_path_stands_in() {
    let mut bench = Bench::new();
    let mut reads = Bench::new();
    reads.run(0, 0, 100 * US);
    reads.run(1, 0, 2_000 * MS);
    let demand = Bench::demand(3_000 * MS);
    for _ in 0..4 {
        let path = bench.estimates.select(&demand, &bench.stand_in, &reads.estimates);
        assert_eq!(path, 0);
        bench.send(path, 3_000 * MS);
    }
}

/// A burst that passed at once makes a rate that the path does not keep up: what it costs to wait
/// there is told by the queue.
#[test]
fn a_burst_does_not_hide_what_a_queue_costs() {
    let mut bench = Bench::new();
    let burst: Vec<Token> = (0..64).map(|_| bench.send(0, 10 * MS)).collect();
    burst.iter().for_each(|token| bench.answer(token, 10 * MS + 100 * US));
    // From then on one every 100 us, with 128 in flight.
    let mut now_ns = 11 * MS;
    let mut flying: std::collections::VecDeque<Token> =
        (0..128).map(|_| bench.send(0, now_ns)).collect();
    for _ in 0..2000 {
        now_ns += 100 * US;
        let oldest = flying.pop_front().unwrap();
        bench.answer(&oldest, now_ns);
        flying.push_back(bench.send(0, now_ns));
    }
    let loaded_ns = bench.expected_ns(0, now_ns);
    assert!((12.5e6..13.5e6).contains(&loaded_ns), "{loaded_ns}");
    // A unit of work adds (12.8 ms - 100 us) / 128 commands.
    flying.drain(64..).for_each(|token| bench.estimates.ended(&token, now_ns));
    let half_ns = bench.expected_ns(0, now_ns);
    assert!((6e6..7.5e6).contains(&half_ns), "{half_ns}");
    flying.iter().for_each(|token| bench.estimates.ended(token, now_ns));
    let idle_ns = bench.expected_ns(0, now_ns);
    assert!(idle_ns < 0.5e6, "{idle_ns}");
}

#[test]
fn idle_paths_that_are_nearly_as_good_are_taken_in_turn() {
    // Of ten commands, so many go to a path that takes so long, beside one of 100 us.
    for (latency_us, taken) in [(100, 5), (105, 5), (110, 5), (113, 0), (200, 0), (95, 5), (88, 10)]
    {
        let mut bench = Bench::new();
        bench.run(0, 0, 100 * US);
        bench.run(1, 0, latency_us * US);
        let chosen: Vec<usize> = (0..10).map(|turn| bench.select(MS + turn * US)).collect();
        let count = chosen.iter().filter(|path| **path == 1).count();
        assert_eq!(count, taken, "{latency_us} us: {chosen:?}");
    }
}

#[test]
fn what_may_be_chance_is_not_believed() {
    // Latencies of the other path, and how far apart they are: so many of ten commands go to it, beside one of 100 us.
    let cases = [
        // Seldom asked, and now this, now that: the last says nothing.
        ([100, 300, 100, 300, 100, 300, 100, 300], 500 * MS, 5),
        // Seldom asked, and always the same.
        ([300; 8], 500 * MS, 0),
        // As far apart, and asked so often that the mean is known.
        ([300, 200, 400, 200, 400, 200, 400, 300], MS, 0),
        // It answers at times and at times not at all quickly, but never as the other does.
        ([900, 700, 900, 700, 900, 700, 900, 700], 500 * MS, 0),
    ];
    for (latencies_us, apart_ns, taken) in cases {
        let mut bench = Bench::new();
        let mut now_ns = 0;
        for latency_us in latencies_us {
            now_ns += apart_ns;
            bench.run(0, now_ns, 100 * US);
            bench.run(1, now_ns, latency_us * US);
        }
        now_ns += MS;
        let chosen = (0..10).filter(|turn| bench.select(now_ns + turn * US) == 1).count();
        assert_eq!(chosen, taken, "{latencies_us:?}");
        // What a sibling has measured just now is known.
        bench.estimates.told(1, 300 * US, WORK, now_ns);
        assert!((10..20).all(|turn| bench.select(now_ns + turn * US) == 0), "{latencies_us:?}");
    }
}

#[test]
fn a_path_with_something_in_flight_is_as_good_only_if_it_is_no_slower() {
    for (latency_us, expected) in [(40, 1), (52, 0)] {
        let mut bench = Bench::new();
        bench.run(0, 0, 100 * US);
        bench.run(1, 0, latency_us * US);
        // Another command beside this one takes as long again.
        bench.send(1, MS);
        for turn in 0..4 {
            assert_eq!(bench.select(MS + turn), expected, "{latency_us} us");
        }
    }
}

#[test]
fn commands_of_one_moment_go_together() {
    let mut bench = Bench::new();
    bench.run(0, 0, 100 * US);
    bench.run(1, 0, 100 * US);
    let first = bench.select(MS);
    assert!((0..8).all(|_| bench.select(MS) == first), "nothing was sent meanwhile");
    assert_ne!(bench.select(MS + 1), first);
}
