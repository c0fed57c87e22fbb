//! Block devices of NVMe namespaces, `/dev/nvmeXnY`: Copy goes to the device by the character device beside
//! it, everything else through the block layer.
//!
//! ```text
//!   Read, Write, ...  -> file --> /dev/nvme0n1 (O_DIRECT) --\
//!   Copy              -> device -> /dev/ng0n1 ---------------> namespace
//! ```
//!
//! Both see the same blocks as long as nobody keeps them elsewhere, so not where the volume goes through the
//! page cache. What others have there of blocks that were copied to is dropped, as the kernel does for
//! writes that go past the cache.

use super::resets::Resets;
use super::sysfs::Place;
use super::{Device, DeviceOptions};
use crate::copy::Located;
use crate::file::File;
use crate::layer::pass_to_child;
use crate::{Access, AccessWatcher, Data, Namespace, Queue, Request};
use nvme::Status;
use nvme::limits::{CopyLimits, Limits, Passthrough};
use reactor::Reactor;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// How the character device is used.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    /// Cores that will open queues.
    pub cores: usize,
    /// Try again what failed on its way. Not for one of several paths to the same namespace.
    pub retries: bool,
}

/// A volume on a block device that copies as its namespace can.
#[derive(Debug)]
pub struct Block {
    child: Arc<File>,
    /// The namespace itself, or why its Copy is not used.
    device: Result<Arc<Device>, String>,
    place: Place,
    resets: Resets,
}

/// Adds the namespace's own Copy to a volume on a block device, where that is a whole NVMe namespace; other
/// volumes stay as they are. Blocks.
pub fn with_copy(file: Arc<File>, beside: Beside) -> Arc<dyn Namespace> {
    // SAFETY: the descriptor is open as long as `file`, which lives longer than this.
    let borrowed = unsafe { BorrowedFd::borrow_raw(file.as_raw_fd()) };
    let Ok(handle) = borrowed.try_clone_to_owned().map(std::fs::File::from) else { return file };
    let place = handle.metadata().ok().as_ref().and_then(Place::beside);
    let Some(place) = place else { return file };
    let device = open(&file, handle, &place, beside);
    Arc::new(Block { child: file, device, resets: Resets::of(&place), place })
}

/// Whether the path leads to the block device of a whole NVMe namespace.
pub fn is_namespace(path: &Path) -> bool {
    path.metadata().ok().as_ref().and_then(Place::beside).is_some()
}

/// Opens the character device if its Copy can be used, or says why not.
fn open(
    file: &File,
    handle: std::fs::File,
    place: &Place,
    beside: Beside,
) -> Result<Arc<Device>, String> {
    let limits = file.limits();
    if limits.read_only {
        return Err("the volume is read-only".into());
    }
    if !file.is_direct() {
        return Err("the volume goes through the page cache".into());
    }
    if let Some(refusal) = reactor::refusal() {
        return Err(refusal.to_string());
    }
    let device = Device::open(DeviceOptions {
        path: Path::new("/dev").join(place.name()),
        read_only: false,
        passthrough: Passthrough::NONE,
        iopoll: false,
        hybrid_iopoll: false,
        sqpoll: None,
        cores: beside.cores,
        timeout_ms: 0,
        retries: beside.retries,
        uuid: None,
        uri: file.uri(),
    });
    let device = device.map_err(|error| error.to_string())?;
    let same_blocks =
        (device.limits.block_shift, device.limits().blocks) == (limits.block_shift, limits.blocks);
    match device.facts.no_copy {
        _ if device.place != *place => Err(format!("{} is another device", place.name())),
        Some(why) => Err(why.into()),
        None if !same_blocks => Err("the volume has blocks of another size".into()),
        None => {
            let _ = device.block.set(handle);
            Ok(device)
        }
    }
}

impl Block {
    /// The namespace, as long as it has the blocks that the volume has.
    fn copier(&self) -> Option<&Arc<Device>> {
        self.device.as_ref().ok().filter(|device| device.shape.check().is_ok())
    }
}

impl Namespace for Block {
    fn limits(&self) -> Limits {
        let copy = self.copier().map_or(CopyLimits::NONE, |device| device.limits.copy);
        Limits { copy, ..self.child.limits() }
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        let child = Arc::clone(&self.child).open_queue(reactor)?;
        let Ok(device) = &self.device else { return Ok(child) };
        let copier = Arc::clone(device).open_queue(reactor)?;
        Ok(Rc::new(BlockQueue { child, copier, device: Arc::clone(device) }))
    }

    fn refresh(&self) -> io::Result<bool> {
        if let Ok(device) = &self.device {
            let copies = self.copier().is_some();
            // Where it does not answer, Copies will tell; the volume is the block device.
            let _ = device.refresh();
            if copies && self.copier().is_none() {
                self.child.refresh()?;
                return Ok(true);
            }
        }
        self.child.refresh()
    }

    pass_to_child!(resize flush uuid keeps_blocks_whole takes_registered cut paths);
    pass_to_child!(numa_node tune allocation lost access);

    fn volatile_epoch(&self) -> u64 {
        self.child.volatile_epoch() + self.resets.epoch(&self.place, self.place.writes_through())
    }

    fn plain_file(&self) -> Option<BorrowedFd<'_>> {
        self.child.plain_file()
    }

    fn uri(&self) -> String {
        self.child.uri()
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        let first = facts.len();
        self.child.describe(facts);
        let how = match &self.device {
            Ok(device) => format!("{}, by {}", device.describe_copy(), device.place.name()),
            Err(why) => format!("read and written: {why}"),
        };
        facts.splice(first.., {
            let others = facts[first..].iter().filter(|(key, _)| key != "copy").cloned();
            others.chain([("copy".to_owned(), how)]).collect::<Vec<_>>()
        });
    }

    fn origin(self: Arc<Self>, slba: u64, blocks: u64) -> Option<Located> {
        Arc::clone(&self.child).origin(slba, blocks)
    }

    /// The namespace, though its blocks are told as the block device's.
    fn destination(self: Arc<Self>, slba: u64, blocks: u64) -> Option<Located> {
        let device = self.copier()?;
        Arc::clone(device).destination(slba, blocks)
    }
}

/// One core's way.
struct BlockQueue {
    child: Rc<dyn Queue>,
    copier: Rc<dyn Queue>,
    device: Arc<Device>,
}

impl Queue for BlockQueue {
    #[inline]
    fn submit(&self, request: Box<Request>) {
        match request.data {
            Data::Sources(_) => match self.device.shape.check() {
                Ok(()) => self.copier.submit(request),
                Err(_) => request.finish(Status::FAST_COPY_NOT_POSSIBLE),
            },
            _ => self.child.submit(request),
        }
    }

    fn submit_admin(&self, request: Box<Request>) {
        self.child.submit_admin(request);
    }

    fn access(&self) -> Access {
        self.child.access()
    }

    fn watch_access(&self, watcher: Weak<dyn AccessWatcher>) {
        self.child.watch_access(watcher);
    }

    fn forget(&self) {
        self.child.forget();
        self.copier.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::{DeviceQueue, LIST};
    use super::super::tests::{Done, copy_of, device, drive, reactor, shape, submit};
    use super::*;
    use crate::Sink;
    use crate::copy::Origin;
    use crate::file::FileOptions;
    use nvme::Command;
    use nvme::opcode::io as opcode;

    fn file(folder: &tempfile::TempDir) -> Arc<File> {
        let path = folder.path().join("image");
        File::open(&FileOptions::buffered(path, Some(1 << 20))).unwrap()
    }

    fn said(namespace: &dyn Namespace) -> String {
        let mut facts = Vec::new();
        namespace.describe(&mut facts);
        let mut said = facts.into_iter().filter(|(key, _)| key == "copy");
        let (said, more) = (said.next().unwrap().1, said.next());
        assert_eq!(more, None, "it is said once");
        said
    }

    /// With a directory in place of that in /sys.
    fn block(
        child: Arc<File>,
        device: Result<Arc<Device>, String>,
        folder: &tempfile::TempDir,
    ) -> Block {
        let place = Place::at(folder.path().join("nvme0"));
        Block { child, device, resets: Resets::of(&place), place }
    }

    #[test]
    fn a_reset_of_the_controller_changes_the_epoch_where_there_is_a_cache() {
        let folder = tempfile::tempdir().unwrap();
        let block = block(file(&folder), Err("not looked for".into()), &folder);
        let set = |name: &str, value: &str| {
            let path = folder.path().join("nvme0").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, value).unwrap();
        };
        let epoch = block.volatile_epoch();
        set("diag/reset_count", "1\n");
        assert_eq!(block.volatile_epoch(), epoch + 1);
        set("nvme0n1/queue/write_cache", "write through\n");
        assert_eq!(block.volatile_epoch(), epoch + 1);
        let epoch = block.volatile_epoch();
        set("diag/reset_count", "2\n");
        assert_eq!(block.volatile_epoch(), epoch);
        set("nvme0n1/queue/write_cache", "write back\n");
        assert_eq!(block.volatile_epoch(), epoch, "a number never comes back");
    }

    #[test]
    fn copies_go_to_the_device_and_the_rest_through_the_block_layer() {
        let (reactor, done, folder) = (reactor(), Rc::default(), tempfile::tempdir().unwrap());
        let device = device("/dev/null", Passthrough::NONE);
        let block = block(file(&folder), Ok(Arc::clone(&device)), &folder);
        let block = Arc::new(block);
        assert_eq!(block.limits().copy, device.limits.copy);
        assert_eq!(block.limits().blocks, 2048, "the file's");
        assert!(said(&*block).contains("by the device"), "{}", said(&*block));
        let queue = Arc::clone(&block).open_queue(&reactor).unwrap();
        submit(&*queue, &done, copy_of(0, &[(500, 100)]));
        drive(&reactor, &done, 1);
        assert_eq!(done.take().pop().unwrap().status, Status::SUCCESS);
        let mut write = Request::new();
        write.command = Command::blocks(opcode::WRITE, 1, 0, 8);
        let mut buffer = reactor.buffers().allocate(4096).unwrap();
        buffer.as_mut_slice().fill(7);
        write.data = Data::Buffer(buffer);
        submit(&*queue, &done, write);
        drive(&reactor, &done, 1);
        assert_eq!(done.take().pop().unwrap().status, Status::SUCCESS);
        assert_eq!(std::fs::read(folder.path().join("image")).unwrap()[..4096], [7; 4096]);
        let located = Arc::clone(&block).origin(0, 8).unwrap();
        assert!(matches!(located.origin, Origin::File(_)));
        let writer = || (Arc::clone(&block) as Arc<dyn Namespace>).destination(8, 8);
        let (told, of_device) = (writer().unwrap(), Arc::clone(&device).origin(8, 8).unwrap());
        assert_eq!(told.origin.keeper(), of_device.origin.keeper());
        assert_eq!((told.slba, told.blocks), (8, 8));

        device.shape.look(Some(shape(12)));
        assert_eq!(block.limits().copy, CopyLimits::NONE);
        assert!(writer().is_none());
        submit(&*queue, &done, copy_of(0, &[(500, 100)]));
        assert_eq!(done.take().pop().unwrap().status, Status::FAST_COPY_NOT_POSSIBLE);
    }

    #[test]
    fn copies_that_wait_for_another_try_are_let_go_of() {
        let (reactor, done, folder) =
            (reactor(), Rc::<Done>::default(), tempfile::tempdir().unwrap());
        let device = device("/dev/null", Passthrough::NONE);
        let copier = DeviceQueue::open(Arc::clone(&device), &reactor).unwrap();
        let mut request = copy_of(0, &[(500, 100)]);
        request.push(Rc::clone(&done) as Rc<dyn Sink>, 0);
        // As if it had been under way.
        request.scratch[LIST] = 1;
        copier.failed(request, i32::from(Status::HOST_PATHING_ERROR.0));
        let child = file(&folder).open_queue(&reactor).unwrap();
        let queue = BlockQueue { child, copier: copier.clone(), device };
        assert_eq!(Rc::strong_count(&done), 2, "it waits");
        queue.forget();
        assert_eq!(Rc::strong_count(&done), 1, "nothing is left of it");
    }

    #[test]
    fn where_the_device_cannot_be_had_it_is_told_why() {
        let folder = tempfile::tempdir().unwrap();
        let block = block(file(&folder), Err("the volume is read-only".into()), &folder);
        assert_eq!(said(&block), "read and written: the volume is read-only");
        assert_eq!(block.limits().copy, CopyLimits::NONE);
        // What is no block device of NVMe stays as it is.
        let folder = tempfile::tempdir().unwrap();
        let plain = with_copy(file(&folder), Beside { cores: 1, retries: true });
        assert!(!said(&*plain).contains("read and written"));
    }
}
