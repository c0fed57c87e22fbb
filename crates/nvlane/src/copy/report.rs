//! What was done, for people and for programs.

use super::engine::ALGORITHM;
use super::shared::Counts;
use super::spec::Spec;
use crate::admin::json_object;
use crate::size;
use serde_json::{Map, Value, json};

/// A copy that is done.
pub struct Report<'a> {
    /// What was to be done.
    pub spec: &'a Spec,
    /// What was.
    pub counts: Counts,
    /// How long it took.
    pub seconds: f64,
    /// Of all bytes, where both sides were compared.
    pub checksum: Option<u64>,
}

impl Report<'_> {
    /// For people.
    pub fn text(&self) -> String {
        let Counts { total_bytes, .. } = self.counts;
        let rate = size::format((total_bytes as f64 / self.seconds.max(1e-9)) as u64);
        let mut text = format!(
            "copied {} in {:.1} s, {}/s: {}\n",
            written(total_bytes),
            self.seconds,
            rate.replace("about ", ""),
            means(&self.counts)
        );
        if let Some(setbacks) = setbacks(&self.counts) {
            text.push_str(&format!("setbacks: {setbacks}\n"));
        }
        if let Some(checksum) = self.checksum {
            let how = compared(&self.counts);
            text.push_str(&format!(
                "compared: both sides are alike, {ALGORITHM} {checksum:016x} ({how})\n"
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
        fields.insert("seconds".into(), json!(self.seconds));
        fields.extend(counts_json(&self.counts));
        let checksum = self.checksum.map(|sum| format!("{sum:016x}"));
        fields.insert("verified".into(), checksum.is_some().into());
        fields.insert("checksum".into(), json!(checksum));
        let algorithm = checksum.is_some().then_some(ALGORITHM);
        fields.insert("checksum_algorithm".into(), json!(algorithm));
        format!("{:#}\n", json_object(fields))
    }
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
    let ways: Vec<String> = ways.map(|(bytes, way)| format!("{} {way}", written(*bytes))).collect();
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

fn written(bytes: u64) -> String {
    size::format(bytes).replace("about ", "")
}

#[cfg(test)]
mod tests {
    use super::*;

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
