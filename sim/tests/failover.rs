//! Failover from hundreds of seeds. A seed that fails is replayed by `sim::failover::run`.

use sim::failover::{Breach, Report, run};

const SEEDS: u64 = 200;

/// From the beginning of a write on a path that is lost to when it was done elsewhere. A stalled I/O
/// connection is noticed after 6 s (I/O timeout of 4 s, 2 s for Abort), a dead one after 4 s (keep
/// alive is sent every second, but once not where there was traffic, and waits 2 s); a silent
/// controller and its commands are surely gone 7 s later (twice 2 s and a CQT of 3 s); then the other
/// device, which may take 3 s.
const FAILOVER_MS: u64 = 17_000;

fn sums(reports: &[Report]) -> Report {
    reports.iter().fold(Report::default(), |sum, report| Report {
        violations: Vec::new(),
        completed: sum.completed + report.completed,
        retries: sum.retries + report.retries,
        held: sum.held + report.held,
        lives: sum.lives + report.lives,
        given_up: sum.given_up + report.given_up,
        late_writes: sum.late_writes + report.late_writes,
        stall_ms: sum.stall_ms.max(report.stall_ms),
        ..Report::default()
    })
}

#[test]
fn blocks_keep_what_users_have_seen() {
    let mut reports = Vec::new();
    for seed in 0..SEEDS {
        let report = run(seed, Breach::None);
        assert!(report.violations.is_empty(), "seed {seed}: {report:#?}");
        let has_spare = report.faulty < report.paths;
        let bound_ms = FAILOVER_MS * report.faulty as u64;
        assert!(!has_spare || report.stall_ms <= bound_ms, "seed {seed}: {report:#?}");
        reports.push(report);
    }
    let sum = sums(&reports);
    println!("{sum:?}");
    // All that was to be tried was tried.
    assert!(sum.completed > SEEDS * 10_000 && sum.lives > SEEDS * 8, "{sum:?}");
    assert!(sum.retries > SEEDS * 10 && sum.held > SEEDS, "{sum:?}");
    assert!(sum.given_up > SEEDS / 2, "{sum:?}");
}

#[test]
fn a_seed_is_a_run() {
    assert_eq!(run(5, Breach::None), run(5, Breach::None));
    assert_ne!(run(5, Breach::None), run(6, Breach::None));
}

/// The checker notices when a rule is broken that keeps blocks as they are; of 40 seeds in about so many as
/// docs/simulation.md says.
#[test]
fn broken_rules_are_noticed() {
    let stated = [
        (Breach::Fast, 31),
        (Breach::Impatient, 21),
        (Breach::EarlyFin, 17),
        (Breach::ForeignReset, 9),
        (Breach::NoKeepAlive, 29),
        (Breach::Stale, 7),
    ];
    let noticed = stated.map(|(breach, stated)| {
        let noticed = (0..40).filter(|seed| !run(*seed, breach).violations.is_empty()).count();
        println!("{breach:?}: {noticed} of 40, {stated} is stated");
        noticed
    });
    for ((breach, stated), noticed) in stated.into_iter().zip(noticed) {
        assert!(noticed.abs_diff(stated) <= 5, "{breach:?}: {noticed}, {stated} is stated");
    }
}
