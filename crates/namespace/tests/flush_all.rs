//! A volume of several parts makes all of them durable, also where one cannot be.

use double::Double;
use namespace::Namespace;
use namespace::layer::linear::Linear;
use namespace::memory::{Memory, MemoryOptions};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn all_parts_are_flushed_and_the_first_error_is_told() {
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
    let whole = Linear::new(parts.into()).unwrap();
    assert_eq!(whole.flush().unwrap_err().to_string(), "one");
    assert_eq!(flushed.load(Ordering::Relaxed), 3);
}
