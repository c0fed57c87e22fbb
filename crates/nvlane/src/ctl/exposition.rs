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
}

/// The samples of one family.
pub struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
    /// Label sets that there were: one that comes twice would make Prometheus refuse everything.
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
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = labels.join(",");
        if !self.seen.contains(&labels) {
            let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
            let _ = writeln!(self.text, "{}{braces} {value}", self.name);
            self.seen.insert(labels);
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
        let text = "# test\n# HELP a_bytes A\\\\B.\n# TYPE a_bytes gauge\na_bytes 1\n\
                    a_bytes{x=\"a\\\"b\\\\c\\nd\",y=\"\"} 0.25\n";
        assert_eq!(all.into_text(), text);
    }
}
