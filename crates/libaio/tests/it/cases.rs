//! The cases in C, on the native library and on ours in each of its modes.

use super::*;

fn same(name: &str, case: Option<&str>, modes: &[&str]) {
    let scratch = scratch();
    let program = compiled(name, &native(), scratch.path());
    let run = |mode: Option<&str>| {
        let files = fresh(scratch.path());
        printed(with(&program, mode).args(case).arg(files))
    };
    let wanted = run(None);
    assert!(wanted.lines().count() > 5, "{wanted}");
    for mode in modes {
        let got = run(Some(mode));
        for (ours, native) in got.lines().zip(wanted.lines()) {
            assert_eq!(ours, native, "{name} {case:?}, mode {mode}, native on the right");
        }
        assert_eq!(got.lines().count(), wanted.lines().count());
    }
}

/// By itself, with io_uring from the beginning, and never.
const MODES: [&str; 3] = ["auto", "ring", "native"];

#[test]
fn errors() {
    same("errors", None, &MODES);
}

macro_rules! behaviour {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            same("behaviour", Some(stringify!($name)), &MODES);
        }
    )*};
}

behaviour! {
    partial full eventfds polls signals timeouts threads waiting children destroying queues transfers
    handlers leaving unwritable closed
}

/// Not with io_uring from the beginning: the user has then said that the program does no such thing.
#[test]
fn ring() {
    same("behaviour", Some("ring"), &["auto", "native"]);
}
