//! A volume for tests: another one, with limits or queues that the test makes up.
//!
//! ```text
//!   what is tested --> Double --> the volume below: real, or `null:` where the test answers everything itself
//!                        limits, queues: as the test says
//! ```
//!
//! Only tests depend on this crate (`cargo xtask tidy` sees to that). Unit tests of `namespace` cannot: they would
//! have that crate twice.
//!
//! What it does not do: faults, delays, power cuts, for which there are layers; or what a [`Namespace`] need not
//! say, such as origins of Copies. A test that wants that has a volume of its own.

use namespace::{Lost, Namespace, Queue, Run};
use nvme::Limits;
use reactor::Reactor;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

type Limit = dyn Fn(Limits) -> Limits + Send + Sync;
type Flush = dyn Fn(&dyn Namespace) -> io::Result<()> + Send + Sync;
type Refresh = dyn Fn(&dyn Namespace) -> io::Result<bool> + Send + Sync;
type Losses = dyn Fn() -> Lost + Send + Sync;
type Tell = dyn Fn(u64, u64, usize) -> io::Result<Vec<Run>> + Send + Sync;
type Open = dyn Fn(Rc<dyn Queue>, &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> + Send + Sync;

/// A volume that is as the one below it, but for what the test has changed.
pub struct Double {
    child: Arc<dyn Namespace>,
    limit: Box<Limit>,
    open: Box<Open>,
    flush: Box<Flush>,
    refresh: Box<Refresh>,
    lost: Option<Box<Losses>>,
    tell: Option<Box<Tell>>,
}

impl Double {
    /// Nothing is changed yet. Of what a volume need not say, only whether it keeps blocks whole, and which are stored, is passed on.
    pub fn over(child: Arc<dyn Namespace>) -> Double {
        Double {
            child,
            limit: Box::new(|limits| limits),
            open: Box::new(|queue, _| Ok(queue)),
            flush: Box::new(|child| child.flush()),
            refresh: Box::new(|child| child.refresh()),
            lost: None,
            tell: None,
        }
    }

    /// `limit` makes its limits from those of the volume below, each time that somebody asks.
    pub fn limited(self, limit: impl Fn(Limits) -> Limits + Send + Sync + 'static) -> Double {
        Double { limit: Box::new(limit), ..self }
    }

    /// `open` makes each queue from one of the volume below, on the core's thread.
    pub fn queues<F>(self, open: F) -> Double
    where
        F: Fn(Rc<dyn Queue>, &Rc<Reactor>) -> Rc<dyn Queue> + Send + Sync + 'static,
    {
        Double { open: Box::new(move |queue, reactor| Ok(open(queue, reactor))), ..self }
    }

    /// `flush` flushes it, given the volume below.
    pub fn flushing(
        self,
        flush: impl Fn(&dyn Namespace) -> io::Result<()> + Send + Sync + 'static,
    ) -> Double {
        Double { flush: Box::new(flush), ..self }
    }

    /// `refresh` looks whether its size has changed, given the volume below.
    pub fn refreshing(
        self,
        refresh: impl Fn(&dyn Namespace) -> io::Result<bool> + Send + Sync + 'static,
    ) -> Double {
        Double { refresh: Box::new(refresh), ..self }
    }

    /// It has lost what `lost` says.
    pub fn losing(self, lost: impl Fn() -> Lost + Send + Sync + 'static) -> Double {
        Double { lost: Some(Box::new(lost)), ..self }
    }

    /// `tell` says which blocks are stored: asked for the first, how many, and how many runs there may be.
    pub fn telling(
        self,
        tell: impl Fn(u64, u64, usize) -> io::Result<Vec<Run>> + Send + Sync + 'static,
    ) -> Double {
        Double { tell: Some(Box::new(tell)), ..self }
    }

    /// No queue can be opened.
    pub fn without_queues(self) -> Double {
        Double { open: Box::new(|_, _| Err(io::Error::other("there is no queue left"))), ..self }
    }
}

impl fmt::Debug for Double {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Double").field(&self.child).finish()
    }
}

impl Namespace for Double {
    fn limits(&self) -> Limits {
        let mut limits = self.child.limits();
        limits.commands.allocation |= self.tell.is_some();
        (self.limit)(limits)
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        (self.open)(Arc::clone(&self.child).open_queue(reactor)?, reactor)
    }

    fn refresh(&self) -> io::Result<bool> {
        (self.refresh)(&*self.child)
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        self.child.resize(bytes)
    }

    fn flush(&self) -> io::Result<()> {
        (self.flush)(&*self.child)
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

    fn lost(&self) -> Lost {
        self.lost.as_ref().map_or_else(|| self.child.lost(), |lost| lost())
    }

    fn allocation(&self, slba: u64, blocks: u64, runs_max: usize) -> io::Result<Vec<Run>> {
        match &self.tell {
            Some(tell) => tell(slba, blocks, runs_max),
            None => self.child.allocation(slba, blocks, runs_max),
        }
    }

    fn keeps_blocks_whole(&self) -> bool {
        self.child.keeps_blocks_whole()
    }
}
