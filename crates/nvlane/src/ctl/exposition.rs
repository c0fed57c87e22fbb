//! Prometheus' text format, version 0.0.4: families of samples.

use std::collections::BTreeSet;
use std::fmt::{Display, Write as _};

/// Text of the format.
pub struct Exposition {
    text: String,
}

/// What a family counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Never falls while the server runs. Its name ends in `_total`.
    Counter,
    /// May go either way.
    Gauge,
    /// Counts by size, which never fall.
    Histogram,
}

/// The samples of one family.
pub struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
    /// Series that there were: one that comes twice would make Prometheus refuse everything.
    seen: BTreeSet<String>,
}

impl Exposition {
    /// Begins with a comment.
    pub fn new(comment: &str) -> Exposition {
        Exposition { text: format!("# {comment}\n") }
    }

    /// Writes a family; nothing if `samples` adds none.
    pub fn family(
        &mut self,
        (kind, name): (Kind, &'static str),
        help: &str,
        samples: impl FnOnce(&mut Family<'_>),
    ) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let mut text = String::new();
        samples(&mut Family { text: &mut text, name, seen: BTreeSet::new() });
        if !text.is_empty() {
            let help = help.replace('\\', r"\\").replace('\n', r"\n");
            let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{text}");
        }
    }

    /// All of it.
    pub fn into_text(self) -> String {
        self.text
    }
}

impl Family<'_> {
    /// A sample with these labels, unless there was one with the same.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.part("", labels, value);
    }

    /// The samples of a histogram: how many were up to each bound in seconds, how many in all, and what they come to
    /// together, in seconds.
    pub fn histogram(
        &mut self,
        labels: &[(&str, &str)],
        buckets: impl IntoIterator<Item = (f64, u64)>,
        (count, sum): (u64, f64),
    ) {
        let infinite = ("+Inf".to_owned(), count);
        let buckets = buckets.into_iter().map(|(bound, count)| (bound.to_string(), count));
        for (bound, count) in buckets.chain([infinite]) {
            self.part("_bucket", &[labels, &[("le", &*bound)]].concat(), count);
        }
        self.part("_sum", labels, sum);
        self.part("_count", labels, count);
    }

    fn part(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = labels.join(",");
        let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let series = format!("{}{suffix}{braces}", self.name);
        if !self.seen.contains(&series) {
            let _ = writeln!(self.text, "{series} {value}");
            self.seen.insert(series);
        }
    }
}

/// A label's value between its quotes.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_heads_and_labels_are_escaped() {
        let mut all = Exposition::new("test");
        all.family((Kind::Gauge, "a_bytes"), "A\\B.", |family| {
            family.sample(&[], 1);
            family.sample(&[("x", "a\"b\\c\nd"), ("y", "")], 0.25);
            family.sample(&[("x", "a\"b\\c\nd"), ("y", "")], 7);
        });
        all.family((Kind::Counter, "b_total"), "None.", |_| {});
        all.family((Kind::Histogram, "c_seconds"), "Times.", |family| {
            family.histogram(&[("x", "y")], [(0.5, 1), (2.0, 4)], (5, 9.25));
        });
        let text = "# test\n# HELP a_bytes A\\\\B.\n# TYPE a_bytes gauge\na_bytes 1\n\
                    a_bytes{x=\"a\\\"b\\\\c\\nd\",y=\"\"} 0.25\n\
                    # HELP c_seconds Times.\n# TYPE c_seconds histogram\n\
                    c_seconds_bucket{x=\"y\",le=\"0.5\"} 1\nc_seconds_bucket{x=\"y\",le=\"2\"} 4\n\
                    c_seconds_bucket{x=\"y\",le=\"+Inf\"} 5\n\
                    c_seconds_sum{x=\"y\"} 9.25\nc_seconds_count{x=\"y\"} 5\n";
        assert_eq!(all.into_text(), text);
    }
}
