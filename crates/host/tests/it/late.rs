//! What comes too late: a path is given up in the middle of a read, the read is answered by another path, and then
//! the first one's data comes after all. It must not get into the read's buffer any more.
//!
//! ```text
//!   host --read--> A (held back)     A --header, half of the data--> buffer
//!   A's admin connection ends: the path is lost; its I/O connection is still there
//!   host --read--> B --all of the data--> buffer
//!   A --the other half--> nowhere
//! ```

use crate::rig;

use namespace::layer::multipath::{Policy, Settings};
use namespace::{Access, Namespace};
use rig::registers::{await_path, open_with};
use rig::relay::Relay;
use rig::{Core, Done, PATIENCE, Target, connect, options, pattern, read, received, write};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Connections of a path, by number.
const ADMIN: usize = 0;
const IO: usize = 1;

const BYTES: usize = 65_536;
const HALF: usize = BYTES / 2;
/// What the buffer has before, what A sends in time, and what it sends late.
const BEFORE: u8 = 0xee;
const EARLY: u8 = 0x11;
const LATE: u8 = 0x55;

struct World {
    _target: Target,
    relays: [Relay; 2],
    namespace: Arc<dyn Namespace>,
    core: Core,
    wanted: Vec<u8>,
    /// A write that A has, and has not answered, if there is one.
    writing: Option<mpsc::Receiver<Done>>,
    reading: mpsc::Receiver<Done>,
}

/// A has a read, and has given half of its data; with `write`, a write as well.
fn half_read(with_write: bool) -> World {
    let target = Target::memory();
    let wanted = pattern(1, BYTES);
    Core::usable(connect(target.address, &options())).write(0, &wanted);
    let relays = [(); 2].map(|()| Relay::to(target.address));
    let mut options = options();
    // A path that is lost stays away, and what may still be carried out by it waits for its end.
    options.association.reconnect_delay = PATIENCE;
    options.association.keep_alive_tmo = PATIENCE;
    let settings = Settings { policy: Policy::Numa, ..Settings::default() };
    let namespace = open_with(&[relays[0].address, relays[1].address], &options, settings);
    let core = Core::usable(namespace.clone());
    await_path(&namespace, 0, Access::is_usable);
    await_path(&namespace, 1, Access::is_usable);
    core.keep_buffers();
    // Nothing passes any more, no end of a connection either, but what is said here.
    relays[0].swallow(true);
    let writing = with_write.then(|| core.issue(write(1 << 20, 4096), pattern(2, 4096)));
    let reading = core.issue(read(0, BYTES), vec![BEFORE; BYTES]);
    let count = 1 + u64::from(with_write);
    await_report(&namespace, 0, |path| path.in_flight == count);
    // Commands have their identifiers in order. C2HData, LAST and SUCCESS.
    let mut data = vec![0x07, 0xc, 24, 24];
    data.extend((24 + BYTES as u32).to_le_bytes());
    data.extend((count as u16 - 1).to_le_bytes());
    data.extend([0; 6]);
    data.extend((BYTES as u32).to_le_bytes());
    data.extend([0; 4]);
    data.extend([EARLY; HALF]);
    // Data of a command that was not sent would be an error.
    core.settle();
    assert!(relays[0].inject(IO, &data));
    await_report(&namespace, 0, |path| {
        let (direct, copied) = received(path);
        direct + copied == HALF as u64
    });
    World { _target: target, relays, namespace, core, wanted, writing, reading }
}

fn await_report(
    namespace: &Arc<dyn Namespace>,
    path: usize,
    holds: impl Fn(&namespace::PathReport) -> bool,
) {
    let until = Instant::now() + PATIENCE;
    while !holds(&namespace.paths()[path]) {
        assert!(Instant::now() < until, "{:?}", namespace.paths());
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl World {
    fn read_again(&self) {
        let done = self.reading.recv_timeout(PATIENCE).expect("an answer").ok();
        assert!(done.data == self.wanted, "other data");
    }

    /// A ends the connection; when the host has seen that it has read all that came before, and the write
    /// goes by the other path.
    fn end(&self) {
        self.relays[0].close(IO);
    }
}

#[test]
fn data_that_comes_after_another_path_has_answered() {
    let world = half_read(true);
    world.relays[0].close(ADMIN);
    world.read_again();
    // The write may still be carried out: its connection is listened to, for its end.
    let writing = world.writing.as_ref().expect("there is one");
    assert!(writing.try_recv().is_err(), "it waits");
    assert!(world.relays[0].inject(IO, &[LATE; HALF]));
    world.end();
    writing.recv_timeout(PATIENCE).expect("an answer").ok();
    let kept = world.core.kept();
    assert_eq!(kept.len(), 2);
    assert!(kept[0] == world.wanted, "a buffer that was given back was written to");
    assert!(kept[1] == pattern(2, 4096), "a buffer that was given back was written to");
}

#[test]
fn data_that_comes_before_another_path_has_answered() {
    let world = half_read(true);
    world.relays[1].hold(Some(IO));
    world.relays[0].close(ADMIN);
    await_report(&world.namespace, 1, |path| path.in_flight == 1);
    assert!(world.relays[0].inject(IO, &[LATE; HALF]));
    world.end();
    await_report(&world.namespace, 1, |path| path.in_flight == 2);
    // What came in time is there, and nothing else; all of it is the other path's to write.
    let buffers = world.core.peek();
    let wanted = [vec![EARLY; HALF], vec![BEFORE; HALF]].concat();
    assert!(buffers[1] == wanted, "a buffer that another path has was written to");
    world.relays[1].hold(None);
    world.read_again();
    let writing = world.writing.as_ref().expect("there is one");
    writing.recv_timeout(PATIENCE).expect("an answer").ok();
    let kept = world.core.kept();
    assert!(kept.contains(&world.wanted) && kept.contains(&pattern(2, 4096)), "other data");
}

#[test]
fn data_that_comes_when_nobody_listens() {
    let world = half_read(false);
    world.relays[0].close(ADMIN);
    world.read_again();
    // Nothing was left to be carried out: the connection is not kept.
    let until = Instant::now() + PATIENCE;
    while world.relays[0].inject(IO, &[LATE; 512]) {
        assert!(Instant::now() < until, "somebody listens");
        std::thread::sleep(Duration::from_millis(1));
    }
    let kept = world.core.kept();
    assert!(kept.len() == 1 && kept[0] == world.wanted, "a buffer was written to");
}
