//! What is compared: one set of functions each, over one context.

use super::bare::Bare;
use ::aio::abi::{self, Event, Iocb};
use ::aio::{drop_in, extended};
use anyhow::{anyhow, bail};
use libc::{c_int, c_long, c_void};
use rustix::event::{EventfdFlags, eventfd};
use std::cell::UnsafeCell;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Bytes of a request.
pub const BLOCK: usize = 4096;

/// Name of the kernel's AIO in rows.
pub const KERNEL: &str = "kernel";

const USERIOCB: u32 = 1 << 0;
const IOPOLL: u32 = 1 << 1;
const FIXEDBUFS: u32 = 1 << 2;
const SCQRING: u32 = 1 << 3;
const SQTHREAD: u32 = 1 << 4;
const FIXEDFILES: u32 = 1 << 16;
const HIPRI: u32 = 1 << 2;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The system calls, as libaio makes them.
    Kernel,
    /// Our libaio.
    DropIn,
    /// Our libaio, polling.
    Polled,
    /// `io_setup2` with known iocbs and pinned buffers, polling where that works.
    Setup2,
    /// The same with a kernel thread that takes submissions.
    Setup2Thread,
    /// With everything: also pinned files, and rings in the program's memory, by `io_ring_enter`.
    Setup2Rings,
    /// A ring without any library, polling where that works: the bound.
    Bare,
}

impl Kind {
    /// All, the one that others are compared with first.
    pub const ALL: [Kind; 7] = [
        Kind::Kernel,
        Kind::DropIn,
        Kind::Polled,
        Kind::Setup2,
        Kind::Setup2Thread,
        Kind::Setup2Rings,
        Kind::Bare,
    ];

    /// What programs get that are not changed.
    pub const AS_THEY_ARE: [Kind; 2] = [Kind::Kernel, Kind::DropIn];

    /// Its name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Kernel => KERNEL,
            Kind::DropIn => "drop-in",
            Kind::Polled => "polled",
            Kind::Setup2 => "io_setup2",
            Kind::Setup2Thread => "io_setup2_sqthread",
            Kind::Setup2Rings => "io_setup2_rings",
            Kind::Bare => "bare",
        }
    }

    /// Whether it is of use with the page cache.
    pub fn takes_cached(self) -> bool {
        self != Kind::Polled
    }

    /// Whether requests are submitted in the call that takes events, so that it cannot be told what that costs.
    pub fn submits_late(self) -> bool {
        matches!(self, Kind::Setup2Rings | Kind::Bare)
    }
}

/// A context of one kind, with its iocbs and buffers.
pub struct Subject {
    /// What it is.
    pub kind: Kind,
    /// One per request in flight.
    pub iocbs: Box<[Iocb]>,
    /// Completions are found by polling.
    pub polling: bool,
    /// Why they are not, where they were to be.
    pub unpolled: Option<String>,
    memory: *mut u8,
    depth: usize,
    context: usize,
    /// In place of a context, of [`Kind::Bare`].
    bare: Option<Bare>,
    /// Of [`Kind::Setup2Rings`].
    rings: Option<Rings>,
    /// By what it is told of events.
    told_by: Option<OwnedFd>,
    indexed: bool,
}

impl Subject {
    /// Makes a context for `depth` requests, polling if the file takes it and its device `may_poll`.
    pub fn open(kind: Kind, file: &File, depth: usize, may_poll: bool) -> anyhow::Result<Subject> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe {
            let both = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
            libc::mmap(ptr::null_mut(), depth * BLOCK, both, flags, -1, 0)
        };
        if memory == libc::MAP_FAILED {
            bail!("no memory for buffers");
        }
        let iocb = |index: usize| Iocb {
            fildes: file.as_raw_fd(),
            buf: memory as u64 + (index * BLOCK) as u64,
            nbytes: BLOCK as u64,
            ..Iocb::default()
        };
        let iocbs = (0..depth).map(iocb).collect();
        let indexed = !matches!(kind, Kind::Kernel | Kind::DropIn | Kind::Polled);
        let memory = memory.cast();
        let mut subject = Subject {
            kind,
            iocbs,
            polling: false,
            unpolled: None,
            memory,
            depth,
            context: 0,
            bare: None,
            rings: None,
            told_by: None,
            indexed,
        };
        let more = match kind {
            Kind::Kernel | Kind::DropIn => return subject.set_up(0).map(|()| subject),
            Kind::Polled | Kind::Bare => 0,
            Kind::Setup2 => USERIOCB | FIXEDBUFS,
            Kind::Setup2Thread => USERIOCB | FIXEDBUFS | SQTHREAD,
            Kind::Setup2Rings => USERIOCB | FIXEDBUFS | FIXEDFILES | SCQRING,
        };
        let polled = if may_poll {
            subject.iocbs.iter_mut().for_each(|iocb| iocb.flags = HIPRI);
            subject.set_up(more | IOPOLL).and_then(|()| subject.reads())
        } else {
            Err(anyhow!("the device has no poll queue"))
        };
        let Err(why) = polled else {
            subject.polling = true;
            return Ok(subject);
        };
        if kind == Kind::Polled {
            return Err(why);
        }
        subject.tear_down();
        subject.iocbs.iter_mut().for_each(|iocb| iocb.flags = 0);
        subject.set_up(more)?;
        subject.reads()?;
        subject.unpolled = Some(format!("{why:#}"));
        Ok(subject)
    }

    /// From now on it is told of events by an eventfd, and waits there, as programs with a loop of their own do.
    pub fn waits_by_eventfd(&mut self) -> std::io::Result<()> {
        let told_by = eventfd(0, EventfdFlags::CLOEXEC)?;
        for iocb in &mut self.iocbs {
            (iocb.flags, iocb.resfd) = (abi::FLAG_RESFD, told_by.as_raw_fd() as u32);
        }
        self.told_by = Some(told_by);
        Ok(())
    }

    fn set_up(&mut self, flags: u32) -> anyhow::Result<()> {
        let nr = self.depth as c_int;
        let place = &raw mut self.context;
        let iocbs = self.iocbs.as_mut_ptr().cast::<c_void>();
        if self.kind == Kind::Bare {
            let (fd, polls) = (self.iocbs[0].fildes, flags & IOPOLL != 0);
            // SAFETY: the ring goes before the memory, and who has submitted takes what comes.
            self.bare = Some(unsafe { Bare::new(fd, self.memory, self.depth, polls) }?);
            return Ok(());
        }
        // SAFETY: the id's place, the iocbs and their buffers live as long as this subject.
        let code = unsafe {
            match self.kind {
                Kind::Kernel => failure(libc::syscall(libc::SYS_io_setup, nr, place)),
                Kind::DropIn => drop_in::setup(nr, place),
                _ => {
                    let (mut sq, mut cq) = (ptr::null_mut(), ptr::null_mut());
                    if flags & SCQRING != 0 {
                        let rings = self.rings.insert(Rings::new(self.depth));
                        (sq, cq) = (rings.sq.as_mut_ptr().cast(), rings.cq.as_mut_ptr().cast());
                    }
                    extended::setup2(self.depth as u32, flags, iocbs, sq, cq, place)
                }
            }
        };
        if code != 0 {
            bail!("setting up: {}", std::io::Error::from_raw_os_error(-code));
        }
        Ok(())
    }

    /// Reads once.
    fn reads(&mut self) -> anyhow::Result<()> {
        let mut event = [Event::default()];
        let code = match self.submit(&[0]) {
            1 => self.take(1, &mut event),
            code => code,
        };
        let got = if code == 1 { event[0].res } else { i64::from(code) };
        if got != BLOCK as i64 {
            let error = std::io::Error::from_raw_os_error(-got.min(0) as i32);
            bail!("a read gives {got} ({error})");
        }
        Ok(())
    }

    /// Submits the iocbs with those indices.
    #[inline]
    pub fn submit(&mut self, indices: &[usize]) -> i32 {
        if let Some(bare) = &mut self.bare {
            let pushed = indices.iter().take_while(|&&index| bare.push(index, &self.iocbs[index]));
            return pushed.count() as i32;
        }
        if let Some(rings) = &mut self.rings {
            rings.push(indices);
            return indices.len() as i32;
        }
        let mut named = [0_usize; 64];
        let base = self.iocbs.as_mut_ptr();
        for (place, &index) in named.iter_mut().zip(indices) {
            *place = if self.indexed { index } else { base.wrapping_add(index) as usize };
        }
        let nr = indices.len() as c_long;
        let list = named.as_mut_ptr().cast::<*mut c_void>();
        // SAFETY: iocbs and buffers live until the context is destroyed.
        unsafe {
            match self.kind {
                Kind::Kernel => failure(libc::syscall(libc::SYS_io_submit, self.context, nr, list)),
                _ => drop_in::submit(self.context, nr, list),
            }
        }
    }

    /// Takes at least `min` events.
    #[inline]
    pub fn take(&mut self, min: usize, events: &mut [Event]) -> i32 {
        if let Some(bare) = &mut self.bare {
            return bare.take(events);
        }
        if let Some(rings) = &mut self.rings {
            return rings.take(self.context, min as u32, events);
        }
        if let Some(told_by) = &self.told_by {
            let mut count = [0; 8];
            match rustix::io::read(told_by, &mut count) {
                Ok(_) => {}
                Err(error) => return -error.raw_os_error(),
            }
        }
        let (min, nr) = (min as c_long, events.len() as c_long);
        let (events, none) = (events.as_mut_ptr(), ptr::null_mut::<libc::timespec>());
        // SAFETY: there is room for `nr` events.
        unsafe {
            match self.kind {
                Kind::Kernel => {
                    let number = libc::SYS_io_getevents;
                    failure(libc::syscall(number, self.context, min, nr, events, none))
                }
                _ => drop_in::getevents(self.context, min, nr, events, none),
            }
        }
    }

    /// The index that an event is about.
    #[inline]
    pub fn index_of(&self, event: &Event) -> usize {
        if self.indexed {
            return event.obj as usize;
        }
        (event.obj as usize - self.iocbs.as_ptr() as usize) / size_of::<Iocb>()
    }

    fn tear_down(&mut self) {
        self.bare = None;
        if self.context == 0 {
            return;
        }
        // SAFETY: the context is ours; nothing uses it afterwards.
        unsafe {
            match self.kind {
                Kind::Kernel => {
                    libc::syscall(libc::SYS_io_destroy, self.context);
                }
                _ => {
                    drop_in::destroy(self.context);
                }
            }
        }
        self.context = 0;
        self.rings = None;
    }
}

/// The program's side of rings in its memory; see nvlane_aio(3).
struct Rings {
    /// Head, tail, places; the indices from word 16 on.
    sq: Box<[AtomicU32]>,
    /// Head, tail, places in the first; the events in the others.
    cq: Box<[UnsafeCell<Event>]>,
}

const _: () = assert!(size_of::<Event>() == 32);

impl Rings {
    const ARRAY: usize = 16;
    const SUBMIT: u32 = 1 << 0;
    const GETEVENTS: u32 = 1 << 1;

    fn new(places: usize) -> Rings {
        let sq: Box<[AtomicU32]> = (0..Rings::ARRAY + places).map(|_| AtomicU32::new(0)).collect();
        let cq = (0..=places).map(|_| UnsafeCell::new(Event::default())).collect();
        let rings = Rings { sq, cq };
        rings.sq[2].store(places as u32, Relaxed);
        rings.of_cq(2).store(places as u32, Relaxed);
        rings
    }

    /// A word of the beginning of `cq`.
    #[inline]
    fn of_cq(&self, word: usize) -> &AtomicU32 {
        let first = self.cq[0].get().cast::<AtomicU32>();
        // SAFETY: within the first of the events, which is none and is used as words alone.
        unsafe { &*first.add(word) }
    }

    /// Queues indices, for the next [`Rings::take`].
    #[inline]
    fn push(&mut self, indices: &[usize]) {
        let (tail, places) = (self.sq[1].load(Relaxed), self.cq.len() - 1);
        for (step, &index) in indices.iter().enumerate() {
            let place = (tail as usize + step) % places;
            self.sq[Rings::ARRAY + place].store(index as u32, Relaxed);
        }
        self.sq[1].store(tail.wrapping_add(indices.len() as u32), Release);
    }

    /// Submits what was queued, waits for `min` events and takes those that there are.
    #[inline]
    fn take(&mut self, context: usize, min: u32, events: &mut [Event]) -> i32 {
        let queued = self.sq[1].load(Relaxed).wrapping_sub(self.sq[0].load(Acquire));
        let flags = Rings::SUBMIT | Rings::GETEVENTS;
        // SAFETY: iocbs, buffers and rings live until the context is destroyed.
        let code = unsafe { extended::ring_enter(context, queued, min, flags) };
        if code < 0 {
            return code;
        }
        let (head, tail) = (self.of_cq(0).load(Relaxed), self.of_cq(1).load(Acquire));
        let (count, places) = (tail.wrapping_sub(head) as usize, self.cq.len() - 1);
        let count = count.min(events.len());
        for (step, event) in events[..count].iter_mut().enumerate() {
            let place = (head as usize + step) % places;
            // SAFETY: below the tail, and not written again before the head has passed it.
            *event = unsafe { *self.cq[1 + place].get() };
        }
        self.of_cq(0).store(head.wrapping_add(count as u32), Release);
        count as i32
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.tear_down();
        // SAFETY: our mapping; nothing is in flight any more.
        unsafe { libc::munmap(self.memory.cast(), self.depth * BLOCK) };
    }
}

/// As libaio gives it back: `-errno`.
fn failure(code: c_long) -> i32 {
    if code >= 0 {
        return code as i32;
    }
    -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Each block says which it is.
    fn file(blocks: u8) -> File {
        let mut file = tempfile::tempfile().unwrap();
        (0..blocks).for_each(|block| file.write_all(&[block; BLOCK]).unwrap());
        file
    }

    #[test]
    fn rings_read_what_the_iocbs_say() {
        for kind in [Kind::Bare, Kind::Setup2Rings] {
            reads_what_the_iocbs_say(kind);
        }
    }

    #[test]
    fn an_eventfd_tells_of_events() {
        let file = file(2);
        for kind in Kind::AS_THEY_ARE {
            let mut subject = Subject::open(kind, &file, 2, false).unwrap();
            subject.waits_by_eventfd().unwrap();
            let mut events = [Event::default(); 2];
            for _ in 0..100 {
                assert_eq!(subject.submit(&[0, 1]), 2);
                let mut left = 2;
                while left > 0 {
                    let count = subject.take(0, &mut events);
                    assert!(count >= 0, "{count}");
                    assert!(events[..count as usize].iter().all(|event| event.res == BLOCK as i64));
                    left -= count;
                }
            }
        }
    }

    fn reads_what_the_iocbs_say(kind: Kind) {
        const DEPTH: usize = 4;
        let file = file(16);
        let mut subject = Subject::open(kind, &file, DEPTH, false).unwrap();
        assert!(!subject.polling && subject.unpolled.is_some());
        let mut events = [Event::default(); DEPTH];
        for round in 0..8 {
            for (index, iocb) in subject.iocbs.iter_mut().enumerate() {
                iocb.offset = ((round + index) * BLOCK) as i64;
            }
            for some in [&[0, 3][..], &[1], &[2]] {
                assert_eq!(subject.submit(some), some.len() as i32);
                let mut seen = Vec::new();
                while seen.len() < some.len() {
                    let count = subject.take(1, &mut events);
                    assert!(count >= 0, "{count}");
                    for event in &events[..count as usize] {
                        assert_eq!(event.res, BLOCK as i64);
                        seen.push(subject.index_of(event));
                    }
                }
                seen.sort_unstable();
                assert_eq!(seen, some);
            }
            for index in 0..DEPTH {
                // SAFETY: the subject's memory, into which nothing is read any more.
                let data =
                    unsafe { std::slice::from_raw_parts(subject.memory.add(index * BLOCK), BLOCK) };
                assert!(data.iter().all(|&byte| usize::from(byte) == round + index), "{index}");
            }
        }
        // Beyond the end of the file.
        subject.iocbs[0].offset = 16 * BLOCK as i64;
        assert_eq!(subject.submit(&[0]), 1);
        assert_eq!((subject.take(1, &mut events), events[0].res), (1, 0));
    }
}
