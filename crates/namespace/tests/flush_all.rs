//! A volume of several parts makes all of them durable, also where one cannot be.

use namespace::layer::linear::Linear;
use namespace::memory::{Memory, MemoryOptions};
use namespace::{Namespace, Queue};
use nvme::Limits;
use reactor::Reactor;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Counts how often it was to be flushed, and fails each time if it is to.
#[derive(Debug)]
struct Part {
    child: Arc<dyn Namespace>,
    error: Option<&'static str>,
    flushes: AtomicU32,
}

impl Namespace for Part {
    fn limits(&self) -> Limits {
        self.child.limits()
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        Arc::clone(&self.child).open_queue(reactor)
    }

    fn refresh(&self) -> io::Result<bool> {
        self.child.refresh()
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        self.child.resize(bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.error.map_or(Ok(()), |error| Err(io::Error::other(error)))
    }

    fn uri(&self) -> String {
        self.child.uri()
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        self.child.describe(facts);
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.child.uuid()
    }
}

#[test]
fn all_parts_are_flushed_and_the_first_error_is_told() {
    let parts = [Some("one"), Some("two"), None].map(|error| {
        let options =
            MemoryOptions { bytes: 1 << 20, block_shift: 9, cores: 1, lend: false, uuid: None };
        let child = Memory::open(options).unwrap();
        Arc::new(Part { child, error, flushes: AtomicU32::new(0) })
    });
    let children = parts.iter().map(|part| Arc::clone(part) as Arc<dyn Namespace>).collect();
    let whole = Linear::new(children).unwrap();
    assert_eq!(whole.flush().unwrap_err().to_string(), "one");
    assert!(parts.iter().all(|part| part.flushes.load(Ordering::Relaxed) == 1), "{parts:?}");
}
