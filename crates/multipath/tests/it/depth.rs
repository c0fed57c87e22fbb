//! Under queue-depth the cores of a host count together, as Linux counts per controller.

use multipath::{Group, Outcome, PathSet, Policy, Selector, Settings, Shared, Standing, Token};
use std::sync::Arc;

fn queue_depth() -> Settings {
    Settings { policy: Policy::QueueDepth, ..Settings::default() }
}

/// Selectors of so many cores of one host.
fn cores<const N: usize>(paths: usize) -> [Selector; N] {
    let shared = Arc::new(Shared::default());
    std::array::from_fn(|core| {
        Selector::new(paths, queue_depth(), Arc::clone(&shared), core as u64)
    })
}

fn chosen(selector: &mut Selector) -> usize {
    selector.select(0, Group::Read, 4096, PathSet::EMPTY).unwrap()
}

fn send(selector: &mut Selector) -> Token {
    let path = chosen(selector);
    selector.submitted(path, 0, Group::Read, 4096)
}

fn end(selector: &mut Selector, token: &Token) {
    selector.completed(token, 1_000, Outcome::Answered);
}

#[test]
fn cores_with_one_command_each_take_a_path_each() {
    let mut cores = cores::<3>(3);
    let tokens = cores.each_mut().map(send);
    assert_eq!(tokens.each_ref().map(Token::path), [0, 1, 2]);
    // Ties go to the first path.
    assert_eq!(cores.each_mut().map(chosen), [0, 0, 0]);
    end(&mut cores[2], &tokens[2]);
    assert_eq!(cores.each_mut().map(chosen), [2, 2, 2]);
    // Each core still tells its own.
    assert_eq!((cores[0].in_flight(0), cores[1].in_flight(0), cores[1].in_flight(1)), (1, 0, 1));
}

#[test]
fn the_fewest_of_those_that_may_be_used() {
    let [mut core] = cores::<1>(4);
    let tokens: Vec<Token> =
        [0, 0, 0, 1, 2].map(|path| core.submitted(path, 0, Group::Write, 512)).into();
    assert_eq!(chosen(&mut core), 3);
    core.stand(3, Standing::NonOptimized);
    assert_eq!(chosen(&mut core), 1, "the first of two");
    let avoid = PathSet::EMPTY.with(1).with(2);
    assert_eq!(core.select(0, Group::Read, 4096, avoid), Some(0));
    tokens.iter().for_each(|token| end(&mut core, token));
    assert_eq!(chosen(&mut core), 0);
}

/// From the moment on that it is the policy, whatever was sent before; and not a moment longer.
#[test]
fn what_is_in_flight_when_it_begins_counts_and_nothing_after_its_end() {
    let [mut one, mut other] = cores::<2>(2);
    one.configure(Settings::default());
    let early = one.submitted(0, 0, Group::Read, 4096);
    assert_eq!(chosen(&mut other), 0, "nobody counts");
    one.configure(queue_depth());
    assert_eq!(chosen(&mut other), 1);
    let late = one.submitted(1, 0, Group::Read, 4096);
    let third = one.submitted(1, 0, Group::Read, 4096);
    assert_eq!(chosen(&mut other), 0);
    end(&mut one, &early);
    end(&mut one, &third);
    // Other tunables change nothing of it.
    one.configure(Settings { latency_ewma_shift: 1, ..queue_depth() });
    other.submitted(0, 0, Group::Read, 4096);
    other.submitted(0, 0, Group::Read, 4096);
    assert_eq!(chosen(&mut other), 1, "two and one");
    one.configure(Settings::default());
    end(&mut one, &late);
    other.submitted(1, 0, Group::Read, 4096);
    assert_eq!(chosen(&mut other), 1, "two and one again");
}

#[test]
fn a_core_that_goes_takes_its_count_along() {
    let [one, mut other] = cores::<2>(2);
    let mut same = one.clone();
    send(&mut same);
    assert_eq!(chosen(&mut other), 1);
    let again = same.clone();
    drop(same);
    assert_eq!(chosen(&mut other), 1, "what was copied has it, too");
    drop(again);
    assert_eq!(chosen(&mut other), 0);
}
