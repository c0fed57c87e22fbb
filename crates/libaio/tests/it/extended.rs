//! `io_setup2` and `io_ring_enter`, and what is read of a process by another.

use super::*;
use aio::stat::{Counter, Report};
use std::process::Stdio;
use std::time::{Duration, Instant};

#[test]
fn the_extended_interface_does_and_refuses_what_its_manual_says() {
    let scratch = scratch();
    let program = compiled("extended", &ours(), scratch.path());
    let lines = printed(with(&program, Some("auto")).arg(fresh(scratch.path())));
    assert!(lines.lines().count() > 100);
}

#[test]
fn the_kernels_threads_are_there_and_stay_awake_where_that_is_promised() {
    let scratch = scratch();
    let program = compiled("workers", &ours(), scratch.path());
    let lines = printed(with(&program, Some("auto")).arg(fresh(scratch.path())));
    for line in lines.lines().filter(|line| line.starts_with("not checked: ")) {
        println!("{line}");
    }
}

#[test]
fn a_handler_that_interrupted_a_call_never_waits_for_it() {
    let scratch = scratch();
    let program = compiled("nested", &ours(), scratch.path());
    printed(with(&program, Some("auto")).arg(fresh(scratch.path())));
}

/// Of ordinary contexts, but with the library alone: natively nobody waits there.
#[test]
fn what_happens_as_a_thread_begins_to_wait_is_not_lost() {
    let scratch = scratch();
    let program = compiled("held", &ours(), scratch.path());
    printed(with(&program, Some("ring")).arg(fresh(scratch.path())));
}

#[test]
fn another_process_sees_what_a_program_does() {
    let scratch = scratch();
    let program = compiled("busy", &native(), scratch.path());
    let mut command = with(&program, Some("auto"));
    let mut child =
        command.arg(fresh(scratch.path())).stdout(Stdio::null()).spawn().expect("timeout(1)");
    let end = Instant::now() + Duration::from_secs(30);
    let seen = loop {
        // timeout(1) runs it as its child.
        let pids = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()));
        let pid =
            pids.unwrap_or_default().split_whitespace().next().and_then(|pid| pid.parse().ok());
        let report = pid.and_then(|pid| Report::of(pid).ok());
        let busy = |report: &Report| report.total(Counter::Ring) > 100;
        if let Some(report) = report.filter(busy) {
            break Some(report);
        }
        if Instant::now() > end {
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    child.kill().expect("it runs");
    child.wait().expect("it ran");
    let report = seen.expect("counts that another process can read");
    assert_eq!(report.open[0].mode, "ring");
    assert!(report.total(Counter::Native) > 0, "the first go to the kernel");
}
