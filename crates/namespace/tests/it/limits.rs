//! What a volume of several parts takes at once is what all of them take.

use double::Double;
use namespace::Namespace;
use namespace::layer::linear::Linear;
use namespace::layer::program::Routed;
use namespace::null::Null;
use nvme::Limits;
use nvme::limits::DiscardLimits;
use std::sync::Arc;

/// Three volumes, of which two limit what is discarded at once, each in its own way.
fn parts() -> Vec<Arc<dyn Namespace>> {
    let two = DiscardLimits { ranges_max: 2, blocks_max: 1000, ..DiscardLimits::UNLIMITED };
    let long = DiscardLimits { ranges_max: 9, range_blocks_max: 600, blocks_max: 5000 };
    let parts = [two, DiscardLimits::UNLIMITED, long].map(|discard| {
        let part = Double::over(Null::open(1 << 20, 9, None).unwrap());
        Arc::new(part.limited(move |limits| Limits { discard, ..limits })) as Arc<dyn Namespace>
    });
    parts.into()
}

const ALL: DiscardLimits = DiscardLimits { ranges_max: 2, range_blocks_max: 600, blocks_max: 1000 };

#[test]
fn all_parts_take_what_is_discarded_at_once() {
    assert_eq!(Linear::new(parts()).unwrap().limits().discard, ALL);
}

#[test]
fn so_do_those_of_a_program() {
    let object = include_bytes!("../../../../bpf/linear.bpf.o");
    let program = Routed::new(object, "linear".into(), parts(), 1).unwrap();
    assert_eq!(program.limits().discard, ALL);
}
