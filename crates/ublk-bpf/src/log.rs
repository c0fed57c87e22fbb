//! What libbpf and the verifier say while something is loaded.

use libbpf_rs::{PrintLevel, set_print};
use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    /// While this thread listens.
    static HEARD: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Lines of the verifier's that end its reason.
const STATISTICS: [&str; 4] =
    ["processed ", "verification time", "stack depth", "-- END PROG LOAD LOG"];

/// Most lines of a reason.
const LINES_MAX: usize = 12;

/// Does `what`, and tells what was said meanwhile.
pub fn of<T>(what: impl FnOnce() -> T) -> (T, String) {
    static LISTEN: Once = Once::new();
    LISTEN.call_once(|| {
        set_print(Some((PrintLevel::Warn, hear)));
    });
    HEARD.with_borrow_mut(|heard| *heard = Some(String::new()));
    let done = what();
    (done, HEARD.take().unwrap_or_default())
}

fn hear(_level: PrintLevel, text: String) {
    HEARD.with_borrow_mut(|heard| match heard {
        Some(heard) => heard.push_str(&text),
        None => tracing::debug!("{}", text.trim_end()),
    });
}

/// The end of the verifier's log, which says why; or the last of what was said.
pub fn reason(log: &str) -> String {
    let verifier = log.split_once("BEGIN PROG LOAD LOG --").map(|(_, rest)| rest);
    let lines = verifier.unwrap_or(log).lines();
    let said = lines.take_while(|line| !STATISTICS.iter().any(|it| line.starts_with(it)));
    let said: Vec<&str> = said.filter(|line| !line.trim().is_empty()).collect();
    said[said.len().saturating_sub(LINES_MAX)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_what_the_verifier_said_last() {
        let log = "libbpf: prog 'x': BPF program load failed: -EACCES\n\
            libbpf: prog 'x': -- BEGIN PROG LOAD LOG --\n0: (b7) r1 = 0\nR2 is outside of the allowed memory range\n\
            verification time 79936 usec\nprocessed 41 insns\n-- END PROG LOAD LOG --\nlibbpf: failed\n";
        assert_eq!(reason(log), "0: (b7) r1 = 0\nR2 is outside of the allowed memory range");
        assert_eq!(reason("libbpf: no BTF\n"), "libbpf: no BTF");
        let long: String = (0..50).map(|line| format!("{line}\n")).collect();
        assert_eq!(reason(&long).lines().count(), LINES_MAX);
    }
}
