//! A volume of several parts makes all of them durable, also where one cannot be.

use double::Double;
use namespace::Namespace;
use namespace::layer::linear::Linear;
use namespace::layer::program::Routed;
use namespace::memory::{Memory, MemoryOptions};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Three volumes, two of which cannot be flushed, and how often that was tried.
fn parts() -> (Vec<Arc<dyn Namespace>>, Arc<AtomicU32>) {
    let flushed = Arc::new(AtomicU32::new(0));
    let parts = [Some("one"), Some("two"), None].map(|error| {
        let options =
            MemoryOptions { bytes: 1 << 20, block_shift: 9, cores: 1, lend: false, uuid: None };
        let flushed = Arc::clone(&flushed);
        let part = Double::over(Memory::open(options).unwrap()).flushing(move |_| {
            flushed.fetch_add(1, Ordering::Relaxed);
            error.map_or(Ok(()), |error| Err(io::Error::other(error)))
        });
        Arc::new(part) as Arc<dyn Namespace>
    });
    (parts.into(), flushed)
}

fn is_flushed_whole(whole: &dyn Namespace, flushed: &AtomicU32) {
    assert_eq!(whole.flush().unwrap_err().to_string(), "one");
    assert_eq!(flushed.load(Ordering::Relaxed), 3);
}

#[test]
fn all_parts_are_flushed_and_the_first_error_is_told() {
    let (parts, flushed) = parts();
    is_flushed_whole(&*Linear::new(parts).unwrap(), &flushed);
}

#[test]
fn so_are_those_of_a_program() {
    let (parts, flushed) = parts();
    let object = include_bytes!("../../../../bpf/linear.bpf.o");
    is_flushed_whole(&*Routed::new(object, "linear".into(), parts, 1).unwrap(), &flushed);
}
