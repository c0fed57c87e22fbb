//! A reactor without work sleeps, and uses neither time nor memory.

mod recorder;

use recorder::reactor;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// User and system time of the calling thread, and how often it gave up the core by itself.
fn usage() -> (Duration, i64) {
    // SAFETY: all-zero is a valid rusage, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        usage
    };
    let time = |at: libc::timeval| Duration::new(at.tv_sec as u64, at.tv_usec as u32 * 1000);
    (time(usage.ru_utime) + time(usage.ru_stime), usage.ru_nvcsw)
}

#[test]
fn an_idle_second_costs_nothing() {
    let (send, receive) = channel();
    let (report, reports) = channel();
    let runner = thread::spawn(move || {
        let reactor = reactor(&reactor::Config::default());
        send.send(reactor.mailbox()).expect("awaited");
        reactor.run();
    });
    let mailbox = receive.recv().expect("sent");
    let ask = || {
        let report = report.clone();
        assert!(mailbox.post(move |reactor| {
            report.send((usage(), reactor.stats())).expect("awaited");
        }));
        reports.recv().expect("answered")
    };
    // Whatever else the machine does meanwhile may be counted here in part: of some seconds, one is to cost nothing.
    let mut seen = Vec::new();
    let is_quiet = (0..5).any(|_| {
        ask();
        let ((before, switches), first) = ask();
        thread::sleep(Duration::from_secs(1));
        let ((after, switched), second) = ask();
        // One sleep, ended by the second letter.
        let (sleeps, enters) = (second.sleeps - first.sleeps, second.enters - first.enters);
        seen.push((sleeps, enters, switched - switches, after - before));
        let is_one_sleep = sleeps == 1 && enters <= 2 && switched - switches <= 2;
        is_one_sleep && after - before < Duration::from_millis(20)
    });
    assert!(is_quiet, "sleeps, enters, switches, processor time: {seen:?}");
    assert!(mailbox.post(|reactor| reactor.stop()));
    runner.join().expect("stopped");
}

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("proc is mounted");
    let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("a number of pages") * 4096
}

#[test]
fn buffers_that_are_not_used_cost_no_memory() {
    let before = resident();
    let config = reactor::Config { buffer_bytes: 1 << 30, ..reactor::Config::default() };
    let reactor = reactor::Reactor::new(&config).expect("io_uring is allowed where tests run");
    let buffer = reactor.buffers().allocate(1 << 20).expect("room");
    let grown = resident().saturating_sub(before);
    assert!(grown < 4 << 20, "{grown} bytes for a pool of {}", reactor.buffers().capacity());
    drop(buffer);
}
