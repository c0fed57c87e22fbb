//! Logs and paths that change at random, from seeds: what must hold at each step, and that they come to rest.

use super::*;
use std::collections::BTreeSet;

/// A sequence of numbers that a seed gives.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }

    fn pick(&mut self, from: &[Address]) -> Vec<Address> {
        let odds = 1 + self.roll(4);
        let mut picked: Vec<_> = from.iter().filter(|_| self.roll(4) < odds).cloned().collect();
        let turn = self.roll(picked.len().max(1) as u64) as usize;
        picked.rotate_left(turn);
        picked
    }
}

fn addresses(network: u32, count: u32) -> Vec<Address> {
    (0..count).map(|host| Address { host: format!("10.0.{network}.{host}"), port: 4420 }).collect()
}

/// Paths as the control thread has them.
struct World {
    logs: Logs,
    seats: Vec<Seat>,
}

impl World {
    /// Does what is to be done, and tells whether that was anything.
    fn arrange(&mut self, anew: bool) -> bool {
        let wanted = self.logs.paths();
        let serving = |seats: &[Seat]| seats.iter().filter(|seat| seat.serves_all).count();
        let hopeful = |seats: &[Seat]| seats.iter().any(|seat| seat.access < Access::Failing);
        let was_hopeful = hopeful(&self.seats);
        let before = serving(&self.seats);
        let changes = changes(&wanted, &self.seats, anew);
        for change in &changes {
            assert!(!was_hopeful || hopeful(&self.seats), "commands that wait fail");
            match change {
                Change::Vacate(index) => {
                    let seat = &mut self.seats[*index];
                    let (Place::At(address) | Place::Leaving(address)) = seat.place.clone() else {
                        panic!("{seat:?} leads nowhere")
                    };
                    seat.serves_all = false;
                    if seat.access.is_usable() {
                        assert!(!wanted.contains(&address), "{address} is named");
                        seat.place = Place::Leaving(address);
                    } else {
                        *seat = Seat {
                            place: Place::Vacant(address),
                            access: Access::Gone,
                            serves_all: false,
                        };
                    }
                }
                Change::Occupy(index, address) => {
                    let seat = &mut self.seats[*index];
                    let taken_back = seat.place == Place::Leaving(address.clone());
                    assert!(wanted.contains(address) || taken_back, "{address} is not named");
                    if !matches!(seat.place, Place::Leaving(_)) {
                        seat.access = Access::Lost;
                    }
                    seat.place = Place::At(address.clone());
                    seat.serves_all = seat.access.is_usable();
                }
            }
        }
        let mut led_to = BTreeSet::new();
        for seat in &self.seats {
            if let Place::At(address) | Place::Leaving(address) = &seat.place {
                assert!(led_to.insert(address.to_string()), "two paths to {address}");
            }
        }
        assert!(!was_hopeful || hopeful(&self.seats), "commands that wait fail");
        assert!(before == 0 || serving(&self.seats) > 0, "none is left that all cores can use");
        !changes.is_empty()
    }

    /// The paths for which `chance` says so change, as those do that are connected, lost, given up or let go.
    fn pass(&mut self, mut chance: impl FnMut() -> Option<Access>) {
        for seat in &mut self.seats {
            let Some(access) = chance() else { continue };
            match &seat.place {
                Place::At(_) => (seat.access, seat.serves_all) = (access, access.is_usable()),
                Place::Leaving(address) => {
                    let place = Place::Vacant(address.clone());
                    *seat = Seat { place, access: Access::Gone, serves_all: false };
                }
                Place::Vacant(_) | Place::Unused => {}
            }
        }
    }

    /// What is reachable is connected, and what is let go is closed, until nothing is to be done any more.
    fn rest(&mut self) {
        for _ in 0..4 {
            self.pass(|| Some(Access::Optimized));
            if !self.arrange(true) {
                return;
            }
        }
        panic!("it does not come to rest: {:?}", self.seats);
    }
}

#[test]
fn paths_come_to_rest_where_the_logs_say() {
    const STATES: [Access; 5] =
        [Access::Optimized, Access::NonOptimized, Access::Inaccessible, Access::Lost, Access::Gone];
    for seed in 1..=1000 {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let (controllers, targets) = (addresses(1, 24), addresses(2, 4 + 6 * (seed as u32 % 4)));
        let given = 1 + dice.roll(3) as usize;
        let unused = Seat { place: Place::Unused, access: Access::Gone, serves_all: false };
        let mut world =
            World { logs: Logs::new(&controllers[..given]), seats: vec![unused; PATHS_MAX] };
        for _ in 0..60 {
            let who = controllers[dice.roll(controllers.len() as u64) as usize].clone();
            match dice.roll(6) {
                0..=2 => {
                    let (siblings, referrals) = (dice.pick(&controllers), dice.pick(&controllers));
                    let log =
                        Log { paths: dice.pick(&targets), siblings, referrals, ..Log::default() };
                    let is_known = world.logs.known.iter().any(|it| it.address == who);
                    assert_eq!(world.logs.told(&who, log), is_known);
                    world.arrange(true);
                }
                3 => {
                    world.logs.failed(&who, "refused");
                    world.arrange(false);
                }
                4 => {
                    world.pass(|| {
                        let state = dice.roll(2 * STATES.len() as u64) as usize;
                        STATES.get(state).copied()
                    });
                    world.arrange(false);
                }
                _ => drop(world.arrange(false)),
            }
            let known: Vec<_> = world.logs.known.iter().map(|it| it.address.clone()).collect();
            assert!(
                known.len() <= PATHS_MAX && known.starts_with(&controllers[..given]),
                "{known:?}"
            );
        }
        world.rest();
        let wanted = world.logs.paths();
        let leads: Vec<_> = world
            .seats
            .iter()
            .filter_map(|seat| match &seat.place {
                Place::At(address) => Some(address.clone()),
                _ => None,
            })
            .collect();
        if wanted.is_empty() {
            continue;
        }
        assert_eq!(leads.len(), wanted.len().min(PATHS_MAX), "seed {seed}");
        assert!(leads.iter().all(|address| wanted.contains(address)), "seed {seed}: {leads:?}");
    }
}
