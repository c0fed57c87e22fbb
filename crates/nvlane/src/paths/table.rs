//! Paths as a table.

use crate::admin::columns;
use crate::control::method::{PathNow, VolumePaths};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The weight of a path that is given everything.
const WEIGHT_MAX: u32 = 128;

/// What each path had sent when it was last looked at.
#[derive(Default)]
pub struct Shares {
    sent: BTreeMap<(String, u32, String), u64>,
}

impl Shares {
    /// Each path's share, 0 to 1, of what its volume has sent since the last call; at the first,
    /// since it was opened.
    pub fn since_last(&mut self, volumes: &[VolumePaths]) -> Vec<Vec<f64>> {
        let mut all = Vec::with_capacity(volumes.len());
        for volume in volumes {
            let sent: Vec<u64> = volume.paths.iter().map(|path| self.sent(volume, path)).collect();
            let total: u64 = sent.iter().sum();
            let share = |sent: u64| if total == 0 { 0.0 } else { sent as f64 / total as f64 };
            all.push(sent.into_iter().map(share).collect());
        }
        all
    }

    fn sent(&mut self, volume: &VolumePaths, path: &PathNow) -> u64 {
        let key = (volume.nqn.clone(), volume.nsid, label(volume, path));
        let before = self.sent.insert(key, path.selections).unwrap_or(0);
        path.selections.saturating_sub(before)
    }
}

/// Tables of one sample.
pub fn table_of(volumes: &[VolumePaths]) -> String {
    text(volumes, &Shares::default().since_last(volumes))
}

/// Tables, with the shares that go with them.
pub fn text(volumes: &[VolumePaths], shares: &[Vec<f64>]) -> String {
    if volumes.is_empty() {
        return "no volume has paths\n".to_owned();
    }
    let mut out = String::new();
    for (volume, shares) in volumes.iter().zip(shares) {
        let policy = volume.policy.as_ref().map(|policy| format!(", {policy}")).unwrap_or_default();
        let _ = writeln!(out, "{}{policy}", volume.volume);
        if volume.paths.is_empty() {
            out.push_str("one way, of which nothing is known\n");
            continue;
        }
        let head =
            ["Path", "State", "In flight", "p50", "p99", "Weight", "Share", "Errors", "Reconnects"];
        let rows = volume.paths.iter().zip(shares).map(|(path, share)| {
            [
                label(volume, path),
                state(path),
                path.in_flight.to_string(),
                latency(path.p50_ns),
                latency(path.p99_ns),
                format!("{}/{WEIGHT_MAX}", path.weight),
                format!("{:.1} %", share * 100.0),
                path.errors.to_string(),
                path.reconnects.to_string(),
            ]
        });
        out.push_str(&columns(&head, &rows.collect::<Vec<_>>()));
        for path in volume.paths.iter().filter(|path| !path.reason.is_empty()) {
            let _ = writeln!(out, "{}: {}", label(volume, path), path.reason);
        }
    }
    out
}

fn state(path: &PathNow) -> String {
    let standby = if path.standby { ", standby" } else { "" };
    format!("{}{standby}", path.access)
}

/// A path's name; with this end of it, where another leads to the same address.
fn label(volume: &VolumePaths, path: &PathNow) -> String {
    let is_shared = volume.paths.iter().filter(|other| other.name == path.name).count() > 1;
    match path.details.get("source").filter(|_| is_shared) {
        Some(source) => format!("{} from {source}", path.name),
        None => path.name.clone(),
    }
}

/// A time for reading; nothing is known of one that is zero.
fn latency(ns: u64) -> String {
    match ns {
        0 => "-".to_owned(),
        1..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(sent: [u64; 2]) -> VolumePaths {
        let path = |name: &str, access: &str, reason: &str, selections| PathNow {
            name: name.into(),
            access: access.into(),
            reason: reason.into(),
            selections,
            weight: 64,
            p50_ns: 90_500,
            p99_ns: 31_000_000,
            ..PathNow::default()
        };
        VolumePaths {
            nqn: "nqn.a".into(),
            nsid: 1,
            volume: "tcp://a,b/nqn.r?ns=1".into(),
            policy: Some("numa".into()),
            paths: vec![
                path("tcp://a", "optimized", "", sent[0]),
                path("tcp://b", "lost", "refused", sent[1]),
            ],
        }
    }

    #[test]
    fn paths_to_one_address_are_told_apart() {
        let mut volume = volume([75, 25]);
        for (path, source) in volume.paths.iter_mut().zip(["192.0.2.1", "192.0.2.2"]) {
            path.name = "tcp://a".into();
            path.details.insert("source".into(), source.into());
        }
        let mut shares = Shares::default();
        assert_eq!(shares.since_last(std::slice::from_ref(&volume)), [[0.75, 0.25]]);
        let text = table_of(std::slice::from_ref(&volume));
        assert!(
            text.contains("tcp://a from 192.0.2.1 ") && text.contains("tcp://a from 192.0.2.2:")
        );
        volume.paths[0].selections += 30;
        volume.paths[1].selections += 10;
        assert_eq!(shares.since_last(&[volume]), [[0.75, 0.25]]);
    }

    #[test]
    fn a_table_has_a_line_for_each_path_and_reasons_below() {
        let mut known = volume([75, 25]);
        let [fast, lost] = &mut known.paths[..] else { panic!("two paths") };
        (fast.in_flight, fast.errors, fast.reconnects, fast.weight) = (11, 12, 13, 100);
        (lost.in_flight, lost.errors, lost.reconnects, lost.p50_ns) = (0, 2_000, 1, 0);
        let text = table_of(&[known]);
        let wanted = "\
tcp://a,b/nqn.r?ns=1, numa
Path    State     In flight p50     p99      Weight  Share  Errors Reconnects
------- --------- --------- ------- -------- ------- ------ ------ ----------
tcp://a optimized 11        90.5 us 31.00 ms 100/128 75.0 % 12     13
tcp://b lost      0         -       31.00 ms 64/128  25.0 % 2000   1
tcp://b: refused
";
        assert_eq!(text, wanted);
        let mut volume = volume([75, 25]);
        volume.paths[1].standby = true;
        assert!(table_of(&[volume]).contains(" lost, standby "));
        assert_eq!(table_of(&[]), "no volume has paths\n");
    }

    #[test]
    fn shares_are_of_the_time_since_the_last_look() {
        let mut shares = Shares::default();
        assert_eq!(shares.since_last(&[volume([75, 25])]), [[0.75, 0.25]]);
        assert_eq!(shares.since_last(&[volume([75, 35])]), [[0.0, 1.0]]);
        assert_eq!(shares.since_last(&[volume([75, 35])]), [[0.0, 0.0]]);
        // Opened anew in between: counts begin again.
        assert_eq!(shares.since_last(&[volume([1, 36])]), [[0.0, 1.0]]);
    }
}
