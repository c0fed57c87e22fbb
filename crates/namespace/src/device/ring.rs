//! What carries a core's NVMe commands: its own ring, or one beside it.

use crate::Data;
use reactor::{CommandRing, Complete, FixedFile, Reactor};
use std::cell::RefCell;
use std::io;
use std::os::fd::RawFd;
use std::rc::{Rc, Weak};
use uring::{BigEntry, Kind, RingOptions};

/// Entries of a ring of its own; more in flight than that is no error.
const ENTRIES: u32 = 512;

thread_local! {
    /// Rings of this thread's reactors, for devices that want one like them.
    static RINGS: RefCell<Vec<(Weak<Reactor>, Weak<CommandRing>)>> = RefCell::default();
}

/// One core's way for NVMe commands.
#[derive(Clone)]
pub(super) enum Carrier {
    Own(Rc<Reactor>),
    Beside(Rc<CommandRing>),
}

impl Carrier {
    /// The core's own ring if it takes commands, else a plain one beside it.
    pub(super) fn plain(reactor: &Rc<Reactor>) -> io::Result<Carrier> {
        if reactor.takes_commands() {
            return Ok(Carrier::Own(Rc::clone(reactor)));
        }
        Carrier::beside(reactor, &options())
    }

    /// A ring beside the core's own, shared with whoever wants the same.
    pub(super) fn beside(reactor: &Rc<Reactor>, options: &RingOptions) -> io::Result<Carrier> {
        RINGS.with_borrow_mut(|rings| {
            rings.retain(|(of, ring)| of.strong_count() > 0 && ring.strong_count() > 0);
            let same = |(of, ring): &(Weak<Reactor>, Weak<CommandRing>)| {
                let ring = ring.upgrade().filter(|ring| ring.options() == options)?;
                std::ptr::eq(of.as_ptr(), Rc::as_ptr(reactor)).then_some(ring)
            };
            if let Some(ring) = rings.iter().find_map(same) {
                return Ok(Carrier::Beside(ring));
            }
            let ring = reactor.command_ring(options).map_err(io::Error::other)?;
            rings.push((Rc::downgrade(reactor), Rc::downgrade(&ring)));
            Ok(Carrier::Beside(ring))
        })
    }

    pub(super) fn register(&self, fd: RawFd) -> Option<FixedFile> {
        match self {
            Carrier::Own(reactor) => reactor.register_file(fd),
            Carrier::Beside(ring) => ring.register_file(fd),
        }
    }

    pub(super) fn unregister(&self, file: FixedFile) {
        match self {
            Carrier::Own(reactor) => reactor.unregister_file(file),
            Carrier::Beside(ring) => ring.unregister_file(file),
        }
    }

    /// Hands what is noted to the kernel. Whether it has taken all.
    pub(super) fn hand_over(&self) -> bool {
        match self {
            Carrier::Own(reactor) => reactor.hand_over(),
            Carrier::Beside(ring) => ring.hand_over(),
        }
    }

    /// The registered buffer of this ring that the data is in, registered now if need be.
    #[inline(always)]
    pub(super) fn fixed_index(&self, data: &Data) -> Option<u16> {
        match (self, data) {
            (Carrier::Own(_), data) => data.ensure_registered(),
            (Carrier::Beside(ring), Data::Buffer(buffer)) => ring.fixed_index(buffer),
            // Sessions lend parts of what they have registered with the core's own ring.
            (Carrier::Beside(ring), data) => ring.fixed_index_of(data.fixed_index()?),
        }
    }

    /// Starts the command whose entry `fill` makes, in its place; the sink comes back where that cannot be
    /// ([`Reactor::place_command`]).
    ///
    /// # Safety
    /// As for [`Reactor::submit`].
    #[inline]
    pub(super) unsafe fn place(
        &self,
        sink: Rc<dyn Complete>,
        token: u64,
        fill: impl FnOnce(&mut BigEntry),
    ) -> Result<(), Rc<dyn Complete>> {
        // SAFETY: passed on to the caller.
        unsafe {
            match self {
                Carrier::Own(reactor) => reactor.place_command(sink, token, fill),
                Carrier::Beside(ring) => ring.place_command(sink, token, fill),
            }
        }
    }

    /// # Safety
    /// As for [`Reactor::submit`].
    #[inline]
    pub(super) unsafe fn submit(&self, entry: BigEntry, sink: Rc<dyn Complete>, token: u64) {
        // SAFETY: passed on to the caller.
        unsafe {
            match self {
                Carrier::Own(reactor) => reactor.submit_command(entry, sink, token),
                Carrier::Beside(ring) => ring.submit_command(entry, sink, token),
            }
        }
    }

    /// In words.
    pub(super) fn describe(&self) -> String {
        let setup = match self {
            Carrier::Own(reactor) => {
                return format!("the core's own ring ({:?} entries)", reactor.setup().kind);
            }
            Carrier::Beside(ring) => ring.setup(),
        };
        let mut words = String::from("a ring beside the core's own");
        if setup.iopoll {
            words += ", completions polled for";
        }
        if setup.hybrid_iopoll {
            words += " after a sleep";
        }
        if setup.sqpoll {
            words += ", submitted by a kernel thread";
        }
        words
    }
}

/// Of a ring for NVMe commands alone.
pub(super) fn options() -> RingOptions {
    RingOptions { entries: ENTRIES, kind: Kind::Big, ..RingOptions::default() }
}
