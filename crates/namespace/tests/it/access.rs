//! How what is below stands is told above, on each core's queue.

use double::Double;
use namespace::layer::linear::Linear;
use namespace::layer::program::Routed;
use namespace::layer::volatile::{CACHE_BYTES, Volatile};
use namespace::memory::{Memory, MemoryOptions};
use namespace::{Access, AccessWatcher, Namespace, Queue, Request};
use reactor::{Config, Reactor};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// A queue that stands as it is told.
#[derive(Default)]
struct Standing {
    access: Cell<Access>,
    watcher: RefCell<Option<Weak<dyn AccessWatcher>>>,
}

impl Standing {
    fn stand(&self, access: Access) {
        self.access.set(access);
        self.watcher
            .borrow()
            .as_ref()
            .and_then(Weak::upgrade)
            .expect("one watches")
            .access_changed();
    }
}

impl Queue for Standing {
    fn submit(&self, _request: Box<Request>) {
        unreachable!("nothing is sent");
    }

    fn access(&self) -> Access {
        self.access.get()
    }

    fn watch_access(&self, watcher: Weak<dyn AccessWatcher>) {
        self.watcher.replace(Some(watcher));
    }

    fn forget(&self) {}
}

thread_local! {
    static OPENED: RefCell<Vec<Rc<Standing>>> = const { RefCell::new(Vec::new()) };
}

fn standing() -> Arc<dyn Namespace> {
    let (bytes, block_shift, cores) = (1 << 20, 9, 1);
    let options = MemoryOptions { bytes, block_shift, cores, lend: false, uuid: None };
    Arc::new(Double::over(Memory::open(options).unwrap()).queues(|_, _| {
        let queue = Rc::<Standing>::default();
        OPENED.with_borrow_mut(|opened| opened.push(Rc::clone(&queue)));
        queue
    }))
}

#[derive(Default)]
struct Watcher(Cell<u32>);

impl AccessWatcher for Watcher {
    fn access_changed(&self) {
        self.0.set(self.0.get() + 1);
    }
}

/// How `volume` stands as one after another of what is below is lost, and how often that was told.
fn stands(volume: Arc<dyn Namespace>) -> (Vec<Access>, u32) {
    let reactor = Reactor::new(&Config::default()).unwrap();
    let queue = volume.open_queue(&reactor).unwrap();
    let watcher = Rc::<Watcher>::default();
    queue.watch_access(Rc::downgrade(&watcher) as Weak<dyn AccessWatcher>);
    let stood = OPENED.take().into_iter().map(|below| {
        below.stand(Access::Lost);
        queue.access()
    });
    (stood.collect(), watcher.0.get())
}

#[test]
fn a_volume_of_one_part_is_lost_with_it() {
    let volatile = Volatile::new(standing(), CACHE_BYTES);
    assert_eq!(stands(volatile), (vec![Access::Lost], 1));
}

#[test]
fn a_volume_of_several_parts_is_lost_with_the_first_or_where_a_program_chooses_with_the_last() {
    let parts = || vec![standing(), standing()];
    let row = Linear::new(parts()).unwrap();
    assert_eq!(stands(row), (vec![Access::Lost; 2], 2));
    let object = include_bytes!("../../../../bpf/mirror.bpf.o");
    let mirror = Routed::new(object, "mirror".into(), parts(), 1).unwrap();
    assert_eq!(stands(mirror), (vec![Access::Optimized, Access::Lost], 2));
}
