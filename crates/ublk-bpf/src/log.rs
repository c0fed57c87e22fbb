//! What libbpf and the verifier say while something is loaded.

use libbpf_rs::libbpf_sys::{LIBBPF_WARN, libbpf_print_fn_t, libbpf_print_level, libbpf_set_print};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::mem;
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

/// What a report begins with, as Linux 7.3 writes them below its reason: what is wrong and where, ...
const REPORT: &str = "Verification failed: ";

/// ... and then, at length, how it came to that.
const HISTORY: &str = "Causal path:";

/// Most lines of a report.
const REPORT_LINES_MAX: usize = 30;

/// Does `what`, and tells what was said meanwhile.
pub fn of<T>(what: impl FnOnce() -> T) -> (T, String) {
    static LISTEN: Once = Once::new();
    LISTEN.call_once(|| {
        let hear: Heard = hear;
        // SAFETY: as libbpf calls it but for the type of the values: that is another one on each processor, and always passed
        // as a pointer. (`libbpf_rs::set_print` panics on what is no UTF-8, such as names in an object or lines of its source.)
        unsafe { libbpf_set_print(mem::transmute::<Option<Heard>, libbpf_print_fn_t>(Some(hear))) };
    });
    HEARD.with_borrow_mut(|heard| *heard = Some(String::new()));
    let done = what();
    (done, HEARD.take().unwrap_or_default())
}

/// A function that libbpf calls with a format and its values.
type Heard = unsafe extern "C" fn(libbpf_print_level, *const c_char, *mut c_void) -> c_int;

/// # Safety
/// The values are those of the format.
unsafe extern "C" fn hear(
    level: libbpf_print_level,
    format: *const c_char,
    values: *mut c_void,
) -> c_int {
    if level == LIBBPF_WARN {
        // SAFETY: passed on to the caller.
        let text = unsafe { vsprintf::vsprintf_raw(format, values) };
        note(&String::from_utf8_lossy(&text.unwrap_or_default()));
    }
    // Nobody looks at it.
    0
}

fn note(text: &str) {
    HEARD.with_borrow_mut(|heard| match heard {
        Some(heard) => heard.push_str(text),
        None => tracing::debug!("{}", text.trim_end()),
    });
}

/// The end of the verifier's log, which says why, or its report if there is one; or the last of what was said.
pub fn reason(log: &str) -> String {
    let verifier = log.split_once("BEGIN PROG LOAD LOG --").map(|(_, rest)| rest);
    let lines = verifier.unwrap_or(log).lines();
    let said = lines.take_while(|line| !STATISTICS.iter().any(|it| line.starts_with(it)));
    let said: Vec<&str> = said.filter(|line| !line.trim().is_empty()).collect();
    match said.iter().position(|line| line.starts_with(REPORT)) {
        // What stands before a report is the reason in few words.
        Some(at) => {
            let report = said[at.saturating_sub(1)..].iter().copied();
            let wanted: Vec<&str> =
                report.take_while(|line| *line != HISTORY).take(REPORT_LINES_MAX).collect();
            wanted.join("\n")
        }
        None => said[said.len().saturating_sub(LINES_MAX)..].join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_utf_8_is_heard_as_well() {
        let open = || {
            // SAFETY: a string that ends.
            unsafe { libbpf_rs::libbpf_sys::bpf_object__open(c"/nowhere/\xff".as_ptr()) }
        };
        let (object, heard) = of(open);
        assert!(object.is_null());
        assert!(heard.contains("/nowhere/\u{fffd}"), "{heard}");
    }

    #[test]
    fn the_reason_is_what_the_verifier_said_last() {
        let log = "libbpf: prog 'x': BPF program load failed: -EACCES\n\
            libbpf: prog 'x': -- BEGIN PROG LOAD LOG --\n0: (b7) r1 = 0\nR2 is outside of the allowed memory range\n\
            verification time 79936 usec\nprocessed 41 insns\n-- END PROG LOAD LOG --\nlibbpf: failed\n";
        assert_eq!(reason(log), "0: (b7) r1 = 0\nR2 is outside of the allowed memory range");
        assert_eq!(reason("libbpf: no BTF\n"), "libbpf: no BTF");
        let report = "R1 invalid mem access 'scalar'\nVerification failed: Invalid dereference\nReason:\n  R1 is no pointer.\n\
            At:\n  nvlane_kernel_route @ wild.bpf.c:41:10";
        let history: String = (0..50).map(|line| format!("  {line}\n")).collect();
        let log = format!(
            "-- BEGIN PROG LOAD LOG --\n0: (b7) r1 = 0\n{report}\nCausal path:\n{history}Suggestion:\n  Do not.\nprocessed 41 insns\n"
        );
        assert_eq!(reason(&log), report);
        assert_eq!(reason(&log.replace("Causal path:", "")).lines().count(), REPORT_LINES_MAX);
        let long: String = (0..50).map(|line| format!("{line}\n")).collect();
        assert_eq!(reason(&long).lines().count(), LINES_MAX);
    }
}
