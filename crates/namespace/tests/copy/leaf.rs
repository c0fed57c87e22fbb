//! Backends that count the Copies they carry out.

use crate::tally::{Means, Tally, WITHOUT};
use namespace::copy::{Located, OnThreads, Place};
use namespace::{Access, Data, Lost, Namespace, Queue, Request, Run, Sink};
use nvme::Limits;
use nvme::opcode::io as opcode;
use reactor::Reactor;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// A backend, or blocks of one that others have the rest of; counts the Copies that it carries out.
#[derive(Debug)]
pub struct Leaf {
    child: Arc<dyn Namespace>,
    start: u64,
    blocks: u64,
    means: Means,
    tally: Arc<Tally>,
}

impl Leaf {
    pub fn whole(child: Arc<dyn Namespace>, means: Means, tally: &Arc<Tally>) -> Arc<Leaf> {
        let blocks = child.limits().blocks;
        Leaf::part(child, 0, blocks, means, tally)
    }

    /// `blocks` blocks of `child` from `start` on.
    pub fn part(
        child: Arc<dyn Namespace>,
        start: u64,
        blocks: u64,
        means: Means,
        tally: &Arc<Tally>,
    ) -> Arc<Leaf> {
        assert!(start + blocks <= child.limits().blocks);
        Arc::new(Leaf { child, start, blocks, means, tally: Arc::clone(tally) })
    }
}

impl Namespace for Leaf {
    fn limits(&self) -> Limits {
        Limits { blocks: self.blocks, ..self.child.limits() }
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        let child = Arc::clone(&self.child).open_queue(reactor)?;
        Ok(Rc::new(LeafQueue { child, end: Rc::new(End(Arc::clone(&self))), leaf: self }))
    }

    fn refresh(&self) -> io::Result<bool> {
        self.child.refresh()
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        self.child.resize(bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.child.flush()
    }

    fn uri(&self) -> String {
        let uri = self.child.uri();
        if self.blocks == self.child.limits().blocks {
            return uri;
        }
        let without = if self.limits().copy.is_offered() { "" } else { WITHOUT };
        format!("{without}{uri}@{}+{}", self.start, self.blocks)
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        self.child.describe(facts);
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.child.uuid()
    }

    fn takes_registered(&self) -> bool {
        self.child.takes_registered()
    }

    fn volatile_epoch(&self) -> u64 {
        self.child.volatile_epoch()
    }

    fn lost(&self) -> Lost {
        self.child.lost()
    }

    fn access(&self) -> Access {
        self.child.access()
    }

    fn writes_back(&self) -> bool {
        self.child.writes_back()
    }

    fn write_off(&self) {
        self.child.write_off();
    }

    fn gives_checksums(&self) -> bool {
        self.child.gives_checksums()
    }

    fn allocation(&self, slba: u64, blocks: u64, runs_max: usize) -> io::Result<Vec<Run>> {
        self.child.allocation(self.start + slba, blocks, runs_max)
    }

    fn keeps_blocks_whole(&self) -> bool {
        self.child.keeps_blocks_whole()
    }

    fn copies_on_threads(&self) -> OnThreads {
        self.child.copies_on_threads()
    }

    fn origin(self: Arc<Self>, slba: u64, blocks: u64) -> Option<Located> {
        let blocks = blocks.min(self.blocks.saturating_sub(slba));
        Arc::clone(&self.child).origin(self.start + slba, blocks)
    }
}

struct LeafQueue {
    leaf: Arc<Leaf>,
    child: Rc<dyn Queue>,
    end: Rc<End>,
}

impl Queue for LeafQueue {
    fn submit(&self, mut request: Box<Request>) {
        let start = self.leaf.start;
        if start > 0 {
            let code = request.command.opcode;
            let addresses =
                [opcode::READ, opcode::WRITE, opcode::COMPARE, opcode::COPY, opcode::FLUSH];
            assert!(addresses.contains(&code) && request.fused.is_none(), "opcode {code:#x}");
        }
        if request.command.opcode != opcode::FLUSH {
            request.command.set_slba(request.command.slba() + start);
        }
        if let Data::Sources(sources) = &mut request.data {
            for range in &mut sources.ranges {
                range.slba += if matches!(range.place, Place::Same) { start } else { 0 };
            }
            request.push(self.end.clone(), 0);
        }
        self.child.submit(request);
    }

    fn forget(&self) {
        self.child.forget();
    }
}

/// Sees Copies that come back.
struct End(Arc<Leaf>);

impl Sink for End {
    fn completed(&self, request: Box<Request>, _state: u64) {
        self.0.tally.add(self.0.means, request.status.is_success().into());
        request.complete();
    }
}

/// How many extents of files in `folder` are shared with others, as far as the file system tells.
pub fn shared_extents(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).expect("the folder is there").flatten();
    files.map(|file| shared_of(&File::open(file.path()).expect("a file"))).sum()
}

/// `FS_IOC_FIEMAP`, and what it takes (linux/fiemap.h).
const FIEMAP: libc::c_ulong = 0xc020_660b;
const EXTENT_SHARED: u32 = 0x2000;
const EXTENTS: usize = 256;

#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

fn shared_of(file: &File) -> u64 {
    let mut map = Map {
        start: 0,
        length: u64::MAX,
        flags: 0,
        mapped: 0,
        count: EXTENTS as u32,
        reserved: 0,
        extents: [Extent::default(); EXTENTS],
    };
    // SAFETY: the request reads and writes a `fiemap` with room for `count` extents, which lives during the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP, &raw mut map) };
    if result != 0 {
        return 0;
    }
    let mapped = &map.extents[..map.mapped as usize];
    mapped.iter().filter(|extent| extent.flags & EXTENT_SHARED != 0).count() as u64
}
