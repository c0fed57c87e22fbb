//! What the kernel needs to route a volume's requests by itself.

use super::change::Programs;
use super::loaded::{Loaded, now_ns, report, seed};
use super::{Routed, unless_plain};
use crate::wake::Called;
use crate::{MapReport, Namespace, ProgramReport};
use bpf::request::{Device, Request};
use bpf::{Entry, Machine, MapDefinition, Words};
use nvme::Status;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Whoever runs a program instead of us.
pub trait Elsewhere: Send + Sync + fmt::Debug {
    /// What the program keeps there, for people. Copies the maps: not for the data path.
    fn report(&self) -> ProgramReport;

    /// Gets `next` ready to take the program's place, with those of its maps that are called `kept`, and with its variables if it
    /// is of the `same_object`. Blocks.
    ///
    /// # Errors
    /// Why it cannot, for people.
    fn prepare(
        &self,
        next: ForKernel,
        kept: &[String],
        same_object: bool,
    ) -> Result<Arc<ForKernel>, String>;

    /// What was prepared is the program, for all that comes from now on: nothing is in flight, and every queue waits
    /// ([`Pauses`]).
    ///
    /// # Errors
    /// A queue could not get ready for it, and why; the program stays.
    fn take_over(&self) -> Result<(), String>;

    /// The program before is the program again.
    fn take_back(&self);

    /// What is not the program goes.
    fn forget(&self);
}

/// Pauses while another program takes the place of one that runs elsewhere.
#[derive(Clone, Debug)]
pub struct Pauses(Arc<Programs>);

impl Pauses {
    /// A queue is there, without requests: the pause that it begins in, if any. From now on it is called with what
    /// [`Told::from`] reads.
    pub fn join(&self, queue: Arc<dyn Called>) -> Option<u64> {
        self.0.join(queue).1
    }

    /// Nothing of a queue is in flight, in the pause of this number.
    pub fn arrive(&self, queue: u64, round: u64) {
        self.0.arrive(queue, round);
    }

    /// A queue has gone.
    pub fn quit(&self, queue: u64) {
        self.0.quit(queue);
    }
}

/// A program, and the files that its parts are for.
#[derive(Debug)]
pub struct ForKernel {
    loaded: Arc<Loaded>,
    /// What the program has made of the device.
    pub device: Device,
    /// The backends' sizes in blocks.
    pub sizes: Vec<u64>,
    /// The backends' files.
    pub files: Vec<OwnedFd>,
    /// Write Zeroes may deallocate.
    pub deallocates: bool,
    /// Each block is always at the same one place.
    pub has_one_place: bool,
    /// When other programs take its place.
    pub pauses: Pauses,
}

impl ForKernel {
    /// The object.
    pub fn object(&self) -> &[u8] {
        &self.loaded.object
    }

    /// What the program is called.
    pub fn name(&self) -> &str {
        &self.loaded.name
    }

    /// An empty report on a map, of those that the program has.
    pub fn report_on(&self, map: &bpf::Map) -> MapReport {
        MapReport { entries: Vec::new(), left_out: 0, ..report(map) }
    }

    /// The program itself.
    pub(super) fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded)
    }

    /// Puts the program's maps that are here alone into memory that `share` gives, where another one works in them, too.
    ///
    /// # Errors
    /// Which map is for one side only, or that somebody else has the program, for people.
    pub fn share_maps(
        &mut self,
        share: &mut dyn FnMut(&MapDefinition) -> Result<Words, String>,
    ) -> Result<(), String> {
        Arc::get_mut(&mut self.loaded).ok_or("the program is in use")?.share(share)
    }

    /// The program with its maps in user space, as `NVLANE_SETUP` has left them.
    pub fn instance(&self) -> &bpf::Instance {
        &self.loaded.instance
    }

    /// Who decides on what the program defers, for the queue of core `core`; none if there is no `NVLANE_DEFERRED`.
    pub fn decider(&self, core: u32) -> Option<Decider> {
        let entry = self.instance().program().deferred()?;
        let machine = Machine::new(Arc::clone(&self.loaded.instance), core, seed());
        Some(Decider { loaded: Arc::clone(&self.loaded), entry, machine })
    }

    /// How many times that has failed to decide.
    pub fn faults(&self) -> u64 {
        self.loaded.mistakes.count()
    }
}

/// Decides on requests that a program in the kernel has deferred.
#[derive(Debug)]
pub struct Decider {
    loaded: Arc<Loaded>,
    entry: Entry,
    machine: Machine,
}

impl Decider {
    /// Runs `NVLANE_DEFERRED` on a request as the kernel has prepared it, and gives what it returned. A run that fails
    /// is in the log, and ends the request with an error.
    pub fn decide(&mut self, request: &mut Request) -> i32 {
        let (op, blocks, start) = (request.op, request.blocks, request.start);
        match self.machine.run(self.entry, request.as_mut_bytes(), &now_ns) {
            Ok(returned) => returned as i32,
            Err(fault) => {
                let Loaded { instance, name, mistakes, .. } = &*self.loaded;
                mistakes.tell(name, &|| {
                    let place = instance.program().locate(fault.instruction);
                    let kind = fault.kind;
                    format!("{place}: {kind} (opcode {op:#04x}, {blocks} blocks at {start})")
                });
                request.clear_actions();
                (request.completions, request.result) = (1, Status::INTERNAL.code().0);
                0
            }
        }
    }
}

impl Routed {
    /// What the kernel needs, if all backends are plain files and block devices; otherwise why not.
    pub fn for_kernel(&self) -> Result<ForKernel, String> {
        self.for_kernel_with(self.programs.now())
    }

    /// The same with another program.
    pub(super) fn for_kernel_with(&self, loaded: Arc<Loaded>) -> Result<ForKernel, String> {
        let each = self.children.iter().enumerate();
        let files = each.map(|(number, child)| {
            let file = child.plain_file().ok_or_else(|| unless_plain(number, &child.uri()))?;
            let copied = |error: io::Error| format!("backend {number}: {error}");
            file.try_clone_to_owned().map_err(copied)
        });
        let files = files.collect::<Result<Vec<_>, _>>()?;
        Ok(ForKernel {
            device: loaded.device.clone(),
            loaded,
            sizes: self.sizes.clone(),
            files,
            deallocates: self.limits().commands.deallocate,
            has_one_place: self.has_one_place,
            pauses: Pauses(Arc::clone(&self.programs)),
        })
    }

    /// Puts the program's maps that nobody keeps into memory that `share` gives, where another one works in them, too.
    /// Before the first queue is opened.
    ///
    /// # Errors
    /// Which map is for one side only, or that the program is in use, for people.
    pub fn share_maps(
        &self,
        share: &mut dyn FnMut(&MapDefinition) -> Result<Words, String>,
    ) -> Result<(), String> {
        self.programs.share(share)
    }

    /// From here on somebody else routes.
    pub fn hand_over(&self, to: Arc<dyn Elsewhere>) {
        assert!(self.elsewhere.set(to).is_ok(), "a program is handed over once");
    }
}
