//! A thread that has had a reactor keeps a ring. Alone in its process, whose rings are counted.

use reactor::{Config, Reactor};
use std::fs;

fn rings() -> usize {
    let descriptors = fs::read_dir("/proc/self/fd").expect("/proc is there");
    let links = descriptors.filter_map(|it| fs::read_link(it.ok()?.path()).ok());
    links.filter(|link| link.to_string_lossy().contains("io_uring")).count()
}

#[test]
fn a_thread_keeps_a_ring_between_its_reactors_and_none_when_it_ends() {
    let thread = std::thread::spawn(|| {
        let reactor = || Reactor::new(&Config::default()).expect("a reactor");
        let first = reactor();
        let open = rings();
        drop(first);
        assert_eq!(rings(), 1);
        let second = reactor();
        assert_eq!(rings(), open + 1);
        drop(second);
        assert_eq!(rings(), 1, "one is enough");
    });
    thread.join().expect("no panic");
    assert_eq!(rings(), 0);
}
