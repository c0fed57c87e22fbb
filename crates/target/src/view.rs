//! What one core knows of the subsystems: enough to carry out I/O without asking another core.
//!
//! The control core tells every core of each change by mailbox before the change is reported done.

use crate::core::Core;
use namespace::copy::Other;
use namespace::counters::Counters;
use namespace::failures::Failures;
use namespace::layer::delay;
use namespace::{Namespace, Queue};
use nvme::Limits;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use subsystem::{AnaState, PortId};

/// A namespace as one core sees it.
pub(crate) struct NamespaceView {
    pub(crate) namespace: Arc<dyn Namespace>,
    pub(crate) limits: Cell<Limits>,
    pub(crate) ana_group: u32,
    pub(crate) counters: Arc<Counters>,
    pub(crate) failures: Arc<Failures>,
    way: RefCell<Option<Way>>,
    /// The same behind the delay of a port.
    delayed: RefCell<Vec<(PortId, Way)>>,
}

/// A core's queue to a namespace, and what names it as a source of a Copy once it was one.
struct Way {
    queue: Rc<dyn Queue>,
    source: Option<Rc<Other>>,
}

impl Way {
    fn new(queue: Rc<dyn Queue>) -> Way {
        Way { queue, source: None }
    }

    fn source(&mut self, namespace: &Arc<dyn Namespace>) -> Rc<Other> {
        let queue = &self.queue;
        let make = || Rc::new(Other { namespace: namespace.clone(), queue: queue.clone() });
        self.source.get_or_insert_with(make).clone()
    }
}

impl NamespaceView {
    pub(crate) fn new(
        namespace: Arc<dyn Namespace>,
        ana_group: u32,
        counters: Arc<Counters>,
        failures: Arc<Failures>,
    ) -> NamespaceView {
        let limits = Cell::new(namespace.limits());
        NamespaceView {
            namespace,
            limits,
            ana_group,
            counters,
            failures,
            way: RefCell::new(None),
            delayed: RefCell::default(),
        }
    }

    /// This core's queue, opened at the first I/O, as it is reached through `port`.
    #[inline]
    pub(crate) fn queue(&self, core: &Core, port: PortId) -> io::Result<Rc<dyn Queue>> {
        if core.is_delayed(port) { self.queue_behind(core, port) } else { self.direct(core) }
    }

    /// The queue behind the delay of `port`.
    #[cold]
    fn queue_behind(&self, core: &Core, port: PortId) -> io::Result<Rc<dyn Queue>> {
        if let Some((_, way)) = self.delayed.borrow().iter().find(|(of, _)| *of == port) {
            return Ok(way.queue.clone());
        }
        let queue = delay::queue(self.direct(core)?, &core.reactor, core.delay(port));
        self.delayed.borrow_mut().push((port, Way::new(queue.clone())));
        Ok(queue)
    }

    /// This namespace as the source of a Copy into another one, by the queue that
    /// [`NamespaceView::queue`] gives. It keeps both while the Copy runs, also if the namespace is
    /// removed meanwhile.
    pub(crate) fn source(&self, core: &Core, port: PortId) -> io::Result<Rc<Other>> {
        self.queue(core, port)?;
        let (mut direct, mut delayed) = (self.way.borrow_mut(), self.delayed.borrow_mut());
        let behind = delayed.iter_mut().find(|(of, _)| *of == port).map(|(_, way)| way);
        let way = behind.or(direct.as_mut()).expect("it was just opened");
        Ok(way.source(&self.namespace))
    }

    /// Another delay holds for `port`, from the next command on.
    fn forget_delayed(&self, port: PortId) {
        self.delayed.borrow_mut().retain(|(of, _)| *of != port);
    }

    #[inline]
    fn direct(&self, core: &Core) -> io::Result<Rc<dyn Queue>> {
        let reactor = &core.reactor;
        let mut slot = self.way.borrow_mut();
        match &*slot {
            Some(way) => Ok(way.queue.clone()),
            None => {
                let queue = self.namespace.clone().open_queue(reactor)?;
                *slot = Some(Way::new(queue.clone()));
                Ok(queue)
            }
        }
    }
}

/// A subsystem as one core sees it.
#[derive(Default)]
pub(crate) struct SubsystemView {
    namespaces: RefCell<HashMap<u32, Rc<NamespaceView>>>,
    /// Changes whenever a namespace comes or goes: connections cache the one they used last.
    pub(crate) generation: Cell<u64>,
    /// States other than optimized.
    ana: RefCell<HashMap<(PortId, u32), AnaState>>,
    ana_restricted: Cell<bool>,
}

impl SubsystemView {
    pub(crate) fn namespace(&self, nsid: u32) -> Option<Rc<NamespaceView>> {
        self.namespaces.borrow().get(&nsid).cloned()
    }

    pub(crate) fn insert(&self, nsid: u32, view: NamespaceView) {
        self.namespaces.borrow_mut().insert(nsid, Rc::new(view));
        self.generation.set(self.generation.get() + 1);
    }

    pub(crate) fn remove(&self, nsid: u32) -> Option<Rc<NamespaceView>> {
        self.generation.set(self.generation.get() + 1);
        self.namespaces.borrow_mut().remove(&nsid)
    }

    pub(crate) fn set_ana(&self, port: PortId, group: u32, state: AnaState) {
        let mut ana = self.ana.borrow_mut();
        if state == AnaState::OPTIMIZED {
            ana.remove(&(port, group));
        } else {
            ana.insert((port, group), state);
        }
        self.ana_restricted.set(!ana.is_empty());
    }

    /// Another delay holds for `port`, or none.
    pub(crate) fn forget_delayed(&self, port: PortId) {
        for view in self.namespaces.borrow().values() {
            view.forget_delayed(port);
        }
    }

    /// Forgets a port's states: its id may be given to another.
    pub(crate) fn forget_port(&self, port: PortId) {
        let mut ana = self.ana.borrow_mut();
        ana.retain(|(of, _), _| *of != port);
        self.ana_restricted.set(!ana.is_empty());
    }

    /// ANA state of `group` through `port`.
    #[inline]
    pub(crate) fn ana(&self, port: PortId, group: u32) -> AnaState {
        if !self.ana_restricted.get() {
            return AnaState::OPTIMIZED;
        }
        self.ana.borrow().get(&(port, group)).copied().unwrap_or(AnaState::OPTIMIZED)
    }
}
