//! Copy: from the host's list of source ranges to what a namespace is given.
//!
//! ```text
//!   capsule, or buffer of the pool --check_copy--> Sources of the core's --> top of the destination's stack
//!        (the list)                                  Same | Other(namespace, queue on this core)
//! ```

use crate::connection::{Connection, Inner, Role};
use namespace::Data;
use namespace::Request;
use namespace::copy::{Other, Place, Source, Sources};
use namespace::output::Payload;
use nvme::copy::{Entry, Format};
use nvme::{Command, Limits, Status, opcode};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use subsystem::NamespaceAccess;
use subsystem::copy::{check_copy, check_format};

/// Whether `command` is a Copy that is understood here: one that is passed to a device is data.
#[inline]
pub(crate) fn is_copy(command: &Command, limits: &Limits) -> bool {
    command.opcode == opcode::io::COPY && limits.copy.is_offered()
}

impl Connection {
    /// A Copy has come in `slot`, with its list or to be asked for it.
    pub(crate) fn io_copy(
        &self,
        inner: &mut Inner,
        slot: u32,
        request: Box<Request>,
        capsule: &[u8],
    ) {
        let Role::Io(queue) = &inner.role else { unreachable!("I/O comes on I/O queues") };
        let enabled = queue.link.shared.copy_formats.load(Ordering::Acquire);
        let view = inner.exchanges.slot(slot).view.as_ref();
        let limits = view.expect("an admitted command has its namespace").limits.get();
        match check_format(&request.command, enabled, &limits) {
            Err(status) => self.copy_refused(inner, slot, request, status),
            Ok(()) if capsule.is_empty() => self.io_with_buffer(inner, slot, request, &[]),
            Ok(()) => self.copy_listed(inner, slot, request, capsule),
        }
    }

    /// The list of a Copy is complete in the buffer of its request.
    pub(crate) fn copy_list_complete(&self, inner: &mut Inner, slot: u32) {
        let exchange = inner.exchanges.slot(slot);
        let mut request = exchange.request.take().expect("data went into the request's buffer");
        let Data::Buffer(list) = std::mem::take(&mut request.data) else {
            unreachable!("a command that receives has a buffer")
        };
        // What follows may take long, and needs no memory of the pool.
        inner.exchanges.give_back(slot);
        self.copy_listed(inner, slot, request, list.as_slice());
    }

    fn copy_listed(&self, inner: &mut Inner, slot: u32, mut request: Box<Request>, list: &[u8]) {
        match self.sources_of(inner, slot, &request.command, list) {
            Ok(sources) => {
                self.core.hold_sources(&mut request, sources);
                self.io_submit(inner, slot, request);
            }
            Err(status) => self.copy_refused(inner, slot, request, status),
        }
    }

    /// Answers a Copy of which nothing has been copied: dword 0 names the first source range.
    fn copy_refused(&self, inner: &mut Inner, slot: u32, request: Box<Request>, status: Status) {
        self.count(inner, slot, request.command.opcode, status, Duration::ZERO);
        self.note_error(inner, &request.command, status);
        self.core.recycle(request);
        self.respond(inner, slot, status, 0, Payload::None);
    }

    /// The sources in the list of a Copy, all of them checked.
    fn sources_of(
        &self,
        inner: &mut Inner,
        slot: u32,
        command: &Command,
        list: &[u8],
    ) -> Result<Box<Sources>, Status> {
        let free = self.core.copy_ranges_free();
        if !inner.exchanges.hold_ranges(slot, command.copy_ranges(), free) {
            return Err(Status::COMMAND_INTERRUPTED);
        }
        let Role::Io(queue) = &inner.role else { unreachable!("I/O comes on I/O queues") };
        let (subsystem, port) = (&queue.view, inner.port);
        let exchange = inner.exchanges.slot(slot);
        let view = exchange.view.as_ref().expect("an admitted command has its namespace");
        let entries = nvme::copy::entries(command, list)?;
        let access = |nsid| {
            let view = subsystem.namespace(nsid)?;
            let (limits, state) = (view.limits.get(), subsystem.ana(port, view.ana_group));
            Some(NamespaceAccess { nsid, limits, state })
        };
        exchange.copy_blocks = check_copy(command, entries.clone(), &view.limits.get(), access)?;
        let mut sources = self.core.sources();
        sources.stop = Some(exchange.begin_copy());
        sources.asker = 1 + u64::from(queue.link.controller.0);
        fill(&mut sources, command, entries, |nsid| {
            // Just found, by the checks.
            let view = subsystem.namespace(nsid).ok_or(Status::INTERNAL)?;
            view.source(&self.core, port).map_err(|error| {
                self.core.journal.no_queue(&*view.namespace, &error);
                Status::NAMESPACE_NOT_READY
            })
        })?;
        Ok(sources)
    }
}

/// Puts the `entries` of a Copy into `sources`, after they were checked. `volume` gives another namespace's volume.
pub(crate) fn fill(
    sources: &mut Sources,
    command: &Command,
    entries: impl Iterator<Item = Entry>,
    volume: impl Fn(u32) -> Result<Rc<Other>, Status>,
) -> Result<(), Status> {
    let names_namespaces = command.copy_format().is_some_and(Format::names_namespaces);
    for entry in entries {
        let Entry { nsid, slba, blocks, fast_only } = entry;
        let place = match names_namespaces && nsid != command.nsid.get() {
            true => Place::Other(volume(nsid)?),
            false => Place::Same,
        };
        sources.ranges.push(Source { place, slba, blocks, fast_only });
    }
    Ok(())
}
