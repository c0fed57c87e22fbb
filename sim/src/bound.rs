//! The best possible: the throughput that no choice of paths can exceed, as a linear programme.
//!
//! Variables are commands per second of each class on each path, and their sum. Constraints: the
//! classes keep their shares; every link, processor and the backend have a second per second; what
//! is in flight is at most what the load has (rate times the latency of an idle system, Little's
//! law). With a closed loop on paths that differ in latency alone this fills the nearest path
//! first, then the next: water-filling.
//!
//! It knows nothing of queues that form by chance, and nothing of cores: where each core has few
//! commands in flight, reality is below it.

use crate::model::{Class, FaultKind, Load, Scenario};

/// The best possible in bytes per second, on average over a window; faults as scheduled.
pub fn best(scenario: &Scenario, from_ns: u64, until_ns: u64) -> f64 {
    let mut edges = vec![from_ns, until_ns];
    for fault in &scenario.faults {
        let inside = |at: &u64| *at > from_ns && *at < until_ns;
        edges.extend([fault.from_ns, fault.until_ns].iter().filter(|at| inside(at)));
    }
    edges.sort_unstable();
    let parts =
        edges.windows(2).map(|part| best_at(scenario, part[0]) * (part[1] - part[0]) as f64);
    parts.sum::<f64>() / (until_ns - from_ns) as f64
}

/// The best possible in bytes per second with the faults of that moment.
pub fn best_at(scenario: &Scenario, at_ns: u64) -> f64 {
    let cores = (scenario.hosts * scenario.cores) as f64;
    let classes = scenario.classes();
    let mut programme = Programme::new(scenario.ports.len() * classes.len() + 1);
    let sum = programme.variables - 1;
    let column = |port: usize, class: usize| port * classes.len() + class;
    for (index, class) in classes.iter().enumerate() {
        let mut row: Vec<_> =
            (0..scenario.ports.len()).map(|port| (column(port, index), -1.0)).collect();
        row.push((sum, class.share));
        programme.at_most(&row, 0.0);
    }
    let mut backend = Vec::new();
    let mut in_flight = Vec::new();
    for (number, port) in scenario.ports.iter().enumerate() {
        let state = PortState::at(scenario, number, at_ns);
        let mut stations: [Vec<(usize, f64)>; 3] = Default::default();
        for (index, class) in classes.iter().enumerate() {
            let column = column(number, index);
            let (up, down) = class.wire_bytes();
            let times = [
                f64::from(up) / port.up * state.slowness,
                (port.cost_ns * 1e-9 + f64::from(class.bytes) / port.rate) * state.slowness,
                f64::from(down) / port.down * state.slowness,
            ];
            let behind = f64::from(class.bytes) / scenario.backend.rate;
            for (station, time) in stations.iter_mut().zip(times) {
                station.push((column, time));
            }
            backend.push((column, behind));
            let path_ns = 2 * port.delay_ns + port.latency_ns(class.group) + state.extra_ns;
            let parallel_ns = path_ns as f64 + scenario.backend.latency_ns(class.group, 0);
            in_flight.push((column, times.iter().sum::<f64>() + behind + parallel_ns * 1e-9));
            if state.dead {
                programme.at_most(&[(column, 1.0)], 0.0);
            }
        }
        stations.iter().for_each(|station| programme.at_most(station, 1.0));
    }
    programme.at_most(&backend, 1.0);
    match scenario.load {
        Load::Closed { in_flight: each } => {
            programme.at_most(&in_flight, cores * each as f64);
        }
        Load::Open { iops } => programme.at_most(&[(sum, 1.0)], cores * iops),
    }
    programme.maximum(sum) * classes.iter().map(mean_part).sum::<f64>()
}

fn mean_part(class: &Class) -> f64 {
    class.share * f64::from(class.bytes)
}

/// What faults make of a port.
struct PortState {
    slowness: f64,
    extra_ns: u64,
    dead: bool,
}

impl PortState {
    fn at(scenario: &Scenario, port: usize, at_ns: u64) -> PortState {
        let mut state = PortState { slowness: 1.0, extra_ns: 0, dead: false };
        for fault in &scenario.faults {
            if fault.port == port && (fault.from_ns..fault.until_ns).contains(&at_ns) {
                match fault.kind {
                    FaultKind::Slow(extra_ns) => state.extra_ns += extra_ns,
                    FaultKind::Narrow(factor) => state.slowness *= factor,
                    FaultKind::BlackHole | FaultKind::Kill => state.dead = true,
                }
            }
        }
        state
    }
}

/// A linear programme with variables of at least zero and bounds of at least zero.
#[derive(Clone, Debug)]
pub struct Programme {
    variables: usize,
    rows: Vec<(Vec<f64>, f64)>,
}

impl Programme {
    /// One without constraints.
    pub fn new(variables: usize) -> Programme {
        Programme { variables, rows: Vec::new() }
    }

    /// Demands that the sum of variables times factors is at most `bound`.
    ///
    /// # Panics
    /// If `bound` is negative: zero is to be a solution.
    pub fn at_most(&mut self, factors: &[(usize, f64)], bound: f64) {
        assert!(bound >= 0.0);
        let mut row = vec![0.0; self.variables];
        factors.iter().for_each(|(variable, factor)| row[*variable] += factor);
        self.rows.push((row, bound));
    }

    /// The largest value of a variable (simplex method with Bland's rule, which always ends).
    ///
    /// # Panics
    /// If it has no largest value.
    pub fn maximum(&self, variable: usize) -> f64 {
        let (rows, slack) = (self.rows.len(), self.variables);
        let width = self.variables + rows + 1;
        let mut table: Vec<Vec<f64>> = Vec::with_capacity(rows + 1);
        for (number, (factors, bound)) in self.rows.iter().enumerate() {
            let mut row = factors.clone();
            row.resize(width, 0.0);
            row[slack + number] = 1.0;
            row[width - 1] = *bound;
            // Rows of like size, so that what is nearly zero can be told.
            let scale = factors.iter().fold(0.0f64, |most, factor| most.max(factor.abs()));
            if scale > 0.0 {
                row.iter_mut().for_each(|value| *value /= scale);
            }
            table.push(row);
        }
        let mut goal = vec![0.0; width];
        goal[variable] = -1.0;
        table.push(goal);
        loop {
            let Some(column) = table[rows][..width - 1].iter().position(|value| *value < -1e-12)
            else {
                return table[rows][width - 1];
            };
            let mut pivot: Option<(f64, usize)> = None;
            for (number, row) in table[..rows].iter().enumerate() {
                if row[column] > 1e-12 {
                    let ratio = row[width - 1] / row[column];
                    if pivot.is_none_or(|(least, _)| ratio < least) {
                        pivot = Some((ratio, number));
                    }
                }
            }
            let (_, pivot) = pivot.expect("every variable is bounded");
            turn(&mut table, pivot, column);
        }
    }
}

fn turn(table: &mut [Vec<f64>], pivot: usize, column: usize) {
    let divisor = table[pivot][column];
    table[pivot].iter_mut().for_each(|value| *value /= divisor);
    let reference = table[pivot].clone();
    for (number, row) in table.iter_mut().enumerate() {
        let factor = row[column];
        if number != pivot && factor != 0.0 {
            row.iter_mut().zip(&reference).for_each(|(value, by)| *value -= factor * by);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Fault, MIB, MS, Port, S};
    use crate::scenarios;

    #[test]
    fn a_small_programme() {
        // Largest z with z <= x + y, x <= 4, x + 2 y <= 10: x = 4, y = 3.
        let mut programme = Programme::new(3);
        programme.at_most(&[(2, 1.0), (0, -1.0), (1, -1.0)], 0.0);
        programme.at_most(&[(0, 1.0)], 4.0);
        programme.at_most(&[(0, 1.0), (1, 2.0)], 10.0);
        assert!((programme.maximum(2) - 7.0).abs() < 1e-9);
    }

    #[test]
    fn the_proposal_is_bound_by_its_backend() {
        let scenario = scenarios::named("proposal-read").unwrap();
        assert!((best_at(&scenario, 0) / MIB - 350.0).abs() < 0.5);
        // Without it by Little's law: 512 in flight, 4.6 ms.
        let mut scenario = scenario;
        scenario.backend.rate = f64::INFINITY;
        let wanted = 512.0 * 4096.0 / 4.6e-3 / MIB;
        let got = best_at(&scenario, 0) / MIB;
        assert!((got / wanted - 1.0).abs() < 0.02, "{got}, {wanted}");
    }

    #[test]
    fn links_add_up_and_faults_count() {
        let mut scenario = scenarios::named("bandwidth-10").unwrap();
        let (fast, slow) = (scenario.ports[0], scenario.ports[1]);
        let share = 4096.0 / (4096.0 + 100.0);
        let wanted = |fast: &Port, slow: &Port| (fast.down + slow.down) * share;
        assert!((best_at(&scenario, 0) / wanted(&fast, &slow) - 1.0).abs() < 1e-6);
        let fault = |kind| Fault { port: 0, kind, from_ns: S, until_ns: 3 * S };
        scenario.faults = vec![fault(FaultKind::Kill)];
        assert!((best_at(&scenario, S) / (slow.down * share) - 1.0).abs() < 1e-6);
        // Two seconds of four.
        let mean = (fast.down + 2.0 * slow.down) * share / 2.0;
        assert!((best(&scenario, 0, 4 * S) / mean - 1.0).abs() < 1e-6);
        scenario.faults = vec![fault(FaultKind::Slow(10_000 * MS))];
        assert!(best_at(&scenario, S) < best_at(&scenario, 0));
    }
}
