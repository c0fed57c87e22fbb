//! A volume of several parts asks all of them for their sizes, also where one cannot say.

use double::Double;
use namespace::Namespace;
use namespace::layer::linear::Linear;
use namespace::layer::program::Routed;
use namespace::memory::{Memory, MemoryOptions};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Volumes that say so when they are asked, and how often that was.
fn parts(answers: [Result<bool, &'static str>; 3]) -> (Vec<Arc<dyn Namespace>>, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    let parts = answers.map(|answer| {
        let options =
            MemoryOptions { bytes: 1 << 20, block_shift: 9, cores: 1, lend: false, uuid: None };
        let asked = Arc::clone(&asked);
        let part = Double::over(Memory::open(options).unwrap()).refreshing(move |_| {
            asked.fetch_add(1, Ordering::Relaxed);
            answer.map_err(io::Error::other)
        });
        Arc::new(part) as Arc<dyn Namespace>
    });
    (parts.into(), asked)
}

fn refreshed(whole: &dyn Namespace, asked: &AtomicU32) -> Result<bool, String> {
    let answer = whole.refresh().map_err(|error| error.to_string());
    assert_eq!(asked.load(Ordering::Relaxed), 3);
    answer
}

#[test]
fn a_part_that_cannot_say_does_not_hide_that_another_has_changed() {
    for (answers, expected) in [
        ([Ok(false), Ok(false), Ok(false)], Ok(false)),
        ([Err("one"), Ok(true), Ok(false)], Ok(true)),
        ([Err("one"), Err("two"), Ok(false)], Err("one".to_owned())),
    ] {
        let (parts, asked) = parts(answers);
        assert_eq!(refreshed(&*Linear::new(parts).unwrap(), &asked), expected);
    }
}

#[test]
fn those_of_a_program_are_asked_as_well() {
    let object = include_bytes!("../../../../bpf/linear.bpf.o");
    let (parts, asked) = parts([Err("one"), Ok(true), Ok(false)]);
    let whole = Routed::new(object, "linear".into(), parts, 1).unwrap();
    assert_eq!(refreshed(&*whole, &asked), Err("one".to_owned()), "its own size is settled");
}
