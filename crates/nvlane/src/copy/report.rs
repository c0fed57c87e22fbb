//! What was done, for people and for programs.

use super::engine::{ALGORITHM, Outcome};
use super::layout::Order;
use super::shared::Counts;
use super::spec::Spec;
use crate::admin::json_object;
use crate::size;
use serde_json::{Map, Value, json};

/// A copy that has ended.
pub struct Report<'a> {
    /// What was to be done.
    pub spec: &'a Spec,
    /// From which end on; none if it was not known yet.
    pub order: Option<Order>,
    /// What was.
    pub counts: Counts,
    /// How long it took to copy.
    pub copy_seconds: f64,
    /// How long it took to compare both sides after that, if it came to that.
    pub verify_seconds: Option<f64>,
    /// How it has ended.
    pub outcome: &'a Outcome,
}

impl Report<'_> {
    /// Of one that is done, for people.
    pub fn text(&self) -> String {
        let Counts { total_bytes, .. } = self.counts;
        let mut text = format!(
            "copied {} in {:.1} s, {}/s: {}\n",
            size::rough(total_bytes),
            self.copy_seconds,
            rate(total_bytes, self.copy_seconds),
            means(&self.counts)
        );
        if let Some(setbacks) = setbacks(&self.counts) {
            text.push_str(&format!("setbacks: {setbacks}\n"));
        }
        if let Outcome::Done(Some(checksum)) = self.outcome {
            let (how, seconds) = (compared(&self.counts), self.verify_seconds.unwrap_or_default());
            let rate = rate(total_bytes, seconds);
            text.push_str(&format!(
                "compared in {seconds:.1} s, {rate}/s: both sides are alike, {ALGORITHM} {checksum:016x} ({how})\n"
            ));
        }
        text
    }

    /// For programs: docs/cli-json.md.
    pub fn json(&self) -> String {
        let parts = |parts: &[super::spec::Part]| -> Value {
            parts.iter().map(ToString::to_string).collect::<Vec<_>>().into()
        };
        let mut fields = Map::new();
        fields.insert("sources".into(), parts(&self.spec.sources));
        fields.insert("targets".into(), parts(&self.spec.targets));
        let (state, error) = match self.outcome {
            Outcome::Done(_) => ("done", None),
            Outcome::Stopped(_) => ("interrupted", None),
            Outcome::Failed(failure, _) => ("failed", Some(failure)),
        };
        fields.insert("state".into(), state.into());
        fields.insert("error".into(), json!(error));
        fields.insert("order".into(), json!(self.order.map(Order::name)));
        let seconds = self.copy_seconds + self.verify_seconds.unwrap_or_default();
        fields.insert("seconds".into(), json!(seconds));
        fields.insert("copy_seconds".into(), json!(self.copy_seconds));
        fields.insert("verify_seconds".into(), json!(self.verify_seconds));
        let durable_bytes = match self.outcome {
            Outcome::Done(_) => self.counts.durable_bytes,
            Outcome::Stopped(durable) | Outcome::Failed(_, durable) => *durable,
        };
        fields.extend(counts_json(&Counts { durable_bytes, ..self.counts }));
        let checksum = match self.outcome {
            Outcome::Done(Some(sum)) => Some(format!("{sum:016x}")),
            _ => None,
        };
        fields.insert("verified".into(), checksum.is_some().into());
        fields.insert("checksum".into(), json!(checksum));
        let algorithm = checksum.is_some().then_some(ALGORITHM);
        fields.insert("checksum_algorithm".into(), json!(algorithm));
        format!("{:#}\n", json_object(fields))
    }
}

/// How much of a copy that has not ended well is there.
pub fn so_far(durable: u64, total: u64, order: Order) -> String {
    let end = if order == Order::Backwards { "last" } else { "first" };
    format!(
        "the {end} {durable} bytes of {total} ({} of {}) are copied and flushed",
        size::rough(durable),
        size::rough(total)
    )
}

/// Counts as they are in JSON.
pub fn counts_json(counts: &Counts) -> Map<String, Value> {
    match serde_json::to_value(counts) {
        Ok(Value::Object(fields)) => fields,
        _ => unreachable!("counts are numbers"),
    }
}

/// How much of it went which way.
pub fn means(counts: &Counts) -> String {
    let Counts { command_bytes, offloaded_bytes, moved_bytes, .. } = *counts;
    // Where nobody counts apart what a Copy has done.
    let unknown = command_bytes.saturating_sub(offloaded_bytes + moved_bytes);
    let ways = [
        (offloaded_bytes, "copied where it lies"),
        (moved_bytes, "read and written by Copy"),
        (unknown, "by Copy"),
        (counts.written_bytes, "read and written"),
        (counts.zeroed_bytes, "holes made"),
        (counts.skipped_bytes, "holes that were there"),
    ];
    let ways = ways.iter().filter(|(bytes, _)| *bytes > 0);
    let ways: Vec<String> =
        ways.map(|(bytes, way)| format!("{} {way}", size::rough(*bytes))).collect();
    if ways.is_empty() { "nothing to do".to_owned() } else { ways.join(", ") }
}

/// How both sides were compared.
fn compared(counts: &Counts) -> &'static str {
    match counts.checksummed_bytes {
        0 => "the target was read here",
        _ => "by checksums that the target gave",
    }
}

/// How often it went back to what was flushed, if it did.
pub fn setbacks(counts: &Counts) -> Option<String> {
    let count = counts.setbacks;
    (count > 0).then(|| format!("{count}, copied again from what was flushed before"))
}

/// Bytes of a second.
fn rate(bytes: u64, seconds: f64) -> String {
    size::rough((bytes as f64 / seconds.max(1e-9)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_goes_backwards_has_its_end_first() {
        let said = |order| so_far(1 << 20, 4 << 20, order);
        let [first, last] = [Order::Forwards, Order::Backwards].map(said);
        assert!(
            first.starts_with("the first 1048576 bytes of 4194304 (1 MiB of 4 MiB) are copied")
        );
        assert_eq!(first.replace("first", "last"), last);
        let spec = Spec { sources: Vec::new(), targets: Vec::new(), options: Default::default() };
        let report = |order| {
            let (spec, outcome) = (&spec, &Outcome::Stopped(0));
            let counts = Counts::default();
            let report =
                Report { spec, order, counts, copy_seconds: 0.0, verify_seconds: None, outcome };
            serde_json::from_str::<Value>(&report.json()).unwrap()["order"].clone()
        };
        assert_eq!(report(Some(Order::Backwards)), "backwards");
        assert_eq!((report(Some(Order::Free)), report(None)), ("any".into(), Value::Null));
    }

    #[test]
    fn what_went_which_way_is_said() {
        let counts = Counts {
            command_bytes: 7 << 20,
            offloaded_bytes: 4 << 20,
            moved_bytes: 1 << 20,
            zeroed_bytes: 512,
            ..Counts::default()
        };
        assert_eq!(
            means(&counts),
            "4 MiB copied where it lies, 1 MiB read and written by Copy, 2 MiB by Copy, 512 B holes made"
        );
        assert_eq!(means(&Counts::default()), "nothing to do");
    }
}
