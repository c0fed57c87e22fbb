//! Requests fetched and committed many at a time (`UBLK_F_BATCH_IO`, Linux 7.0): what is gathered for the driver, and
//! what it gives.
//!
//! ```text
//!   PREP_IO_CMDS (all tags, once)
//!   FETCH_IO_CMDS (stays)  ------> completion: a buffer of tags ----> served one by one
//!   COMMIT_IO_CMDS  <------------- list of results, at the end of each round of completions
//! ```

use crate::driver::{BatchCommand, batch_flag};
use crate::path::DataPath;
use reactor::{Provided, Reactor};
use std::io;

/// Bytes of a tag in what the driver gives.
const TAG_BYTES: u16 = 2;
/// Most tags that the driver gives at once.
const TAGS_MAX: u16 = 128;
/// Buffers for tags. Where all are full, the command that fetches ends, and is given again.
const BUFFERS: u16 = 64;

/// What the driver is told of a tag.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    /// Which.
    pub tag: u16,
    /// Where the next request's pages are registered.
    pub buffer: u16,
    /// What became of the request: bytes, or `-errno`.
    pub result: i32,
    /// Where the next one's data is copied to and from ([`DataPath::Copy`]), or where an append went.
    pub addr: u64,
}

/// How elements lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    flags: u16,
    bytes: u8,
}

/// Elements that are gathered, or with the driver.
struct List {
    elements: Box<[u8]>,
    len: usize,
}

/// The batches of one queue.
pub struct Batch {
    queue: u16,
    layout: Layout,
    provided: Provided,
    lists: Vec<List>,
    free: Vec<u16>,
    /// The one that is gathered.
    open: Option<u16>,
    /// The driver fetches no more.
    is_over: bool,
}

impl Layout {
    fn of(path: DataPath, is_zoned: bool) -> Layout {
        match (path, is_zoned) {
            (DataPath::Copy, _) => Layout { flags: batch_flag::HAS_BUF_ADDR, bytes: 16 },
            (_, true) => Layout { flags: batch_flag::HAS_ZONE_LBA, bytes: 16 },
            (DataPath::ZeroCopy, false) => {
                Layout { flags: batch_flag::AUTO_BUF_REG_FALLBACK, bytes: 8 }
            }
            (DataPath::UserCopy, false) => Layout { flags: 0, bytes: 8 },
        }
    }
}

impl List {
    #[inline]
    fn push(&mut self, layout: Layout, element: Element) {
        let Element { tag, buffer, result, addr } = element;
        let place = &mut self.elements[self.len..self.len + usize::from(layout.bytes)];
        place[..2].copy_from_slice(&tag.to_ne_bytes());
        place[2..4].copy_from_slice(&buffer.to_ne_bytes());
        place[4..8].copy_from_slice(&result.to_ne_bytes());
        if layout.bytes > 8 {
            place[8..].copy_from_slice(&addr.to_ne_bytes());
        }
        self.len += usize::from(layout.bytes);
    }

    fn tags(&self, layout: Layout) -> impl Iterator<Item = u16> {
        let elements = self.elements[..self.len].chunks_exact(layout.bytes.into());
        elements.map(|element| u16::from_ne_bytes([element[0], element[1]]))
    }
}

impl Batch {
    /// Those of a queue; its number is that of the group of buffers in the ring.
    pub fn new(
        reactor: &Reactor,
        queue: u16,
        depth: u16,
        path: DataPath,
        is_zoned: bool,
    ) -> io::Result<Batch> {
        let count = depth.next_power_of_two().min(BUFFERS);
        let bytes = depth.min(TAGS_MAX) * TAG_BYTES;
        let provided = reactor.provide(queue, count, bytes.into())?;
        let layout = Layout::of(path, is_zoned);
        let mut batch = Batch {
            queue,
            layout,
            provided,
            lists: Vec::new(),
            free: Vec::new(),
            open: None,
            is_over: false,
        };
        // One is gathered while the other is with the driver.
        batch.free = (0..2).map(|_| batch.list(depth)).collect();
        Ok(batch)
    }

    fn list(&mut self, depth: u16) -> u16 {
        let elements = vec![0; usize::from(depth) * usize::from(self.layout.bytes)].into();
        self.lists.push(List { elements, len: 0 });
        self.lists.len() as u16 - 1
    }

    /// The group of buffers that the driver puts tags into.
    pub fn group(&self) -> u16 {
        self.provided.group()
    }

    /// What fetches.
    pub fn fetch(&self) -> BatchCommand {
        BatchCommand { q_id: self.queue, elem_bytes: TAG_BYTES as u8, ..BatchCommand::default() }
    }

    /// The tag at a place of a buffer that the driver has filled.
    ///
    /// # Safety
    /// A completion has told of the buffer, and it was not given back since.
    #[inline]
    pub unsafe fn tag(&self, buffer: u16, place: usize) -> u16 {
        let size = usize::from(TAG_BYTES);
        // SAFETY: passed on to the caller.
        let bytes = unsafe { self.provided.get(buffer, (place + 1) * size) };
        u16::from_ne_bytes([bytes[place * size], bytes[place * size + 1]])
    }

    /// How many tags so many bytes are.
    #[inline]
    pub fn count(bytes: i32) -> usize {
        usize::try_from(bytes).unwrap_or(0) / usize::from(TAG_BYTES)
    }

    /// Gives a buffer back to the driver.
    ///
    /// # Safety
    /// As for [`Batch::tag`].
    #[inline]
    pub unsafe fn give_back(&mut self, buffer: u16) {
        // SAFETY: passed on to the caller.
        unsafe { self.provided.give_back(buffer) };
    }

    /// Adds an element to the list that is gathered. Whether it is the first there.
    #[inline]
    pub fn push(&mut self, element: Element) -> bool {
        let layout = self.layout;
        if let Some(open) = self.open {
            let list = &mut self.lists[usize::from(open)];
            if list.len < list.elements.len() {
                list.push(layout, element);
                return false;
            }
            // A tag is in a list once, and there are no more tags.
            unreachable!("a list has room for every tag");
        }
        let next = match self.free.pop() {
            Some(next) => next,
            None => {
                let depth = self.lists[0].elements.len() / usize::from(layout.bytes);
                self.list(depth as u16)
            }
        };
        self.open = Some(next);
        self.lists[usize::from(next)].push(layout, element);
        true
    }

    /// Closes the list: its number, the command, and where the elements are until [`Batch::done`].
    pub fn close(&mut self) -> Option<(u16, BatchCommand, *const u8)> {
        let number = self.open.take()?;
        let (command, elements) = self.command(number);
        Some((number, command, elements))
    }

    /// The command for a list that was closed and is not done.
    pub fn command(&self, number: u16) -> (BatchCommand, *const u8) {
        let list = &self.lists[usize::from(number)];
        let Layout { flags, bytes } = self.layout;
        let command = BatchCommand {
            q_id: self.queue,
            flags,
            nr_elem: (list.len / usize::from(bytes)) as u16,
            elem_bytes: bytes,
            ..BatchCommand::default()
        };
        (command, list.elements.as_ptr())
    }

    /// The driver has done with a list; `result` is how many bytes of it were carried out, or `-errno`. The tags of
    /// those elements that were not.
    #[inline]
    pub fn done(&mut self, number: u16, result: i32) -> Vec<u16> {
        let layout = self.layout;
        let list = &mut self.lists[usize::from(number)];
        let carried_out = usize::try_from(result).unwrap_or(0);
        let left = match carried_out == list.len {
            true => Vec::new(),
            false => list.tags(layout).skip(carried_out / usize::from(layout.bytes)).collect(),
        };
        list.len = 0;
        self.free.push(number);
        left
    }

    /// The driver gives no more requests.
    pub fn end(&mut self) {
        self.is_over = true;
    }

    /// Whether that was said.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether the driver has taken all that it was, or is to be, told.
    pub fn is_quiet(&self) -> bool {
        self.open.is_none() && self.free.len() == self.lists.len()
    }

    /// Whether the driver is still to be told of a tag, or has not answered yet.
    pub fn has(&self, tag: u16) -> bool {
        self.lists.iter().any(|list| list.tags(self.layout).any(|it| it == tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(tag: u16) -> Element {
        Element { tag, buffer: tag + 7, result: -5, addr: 0x1122_3344_5566_7788 }
    }

    fn batch(path: DataPath, is_zoned: bool) -> (std::rc::Rc<Reactor>, Batch) {
        let reactor = Reactor::new(&reactor::Config::default()).expect("io_uring");
        let batch = Batch::new(&reactor, 3, 4, path, is_zoned).expect("Linux 5.19");
        (reactor, batch)
    }

    fn bytes(batch: &Batch, list: u16) -> &[u8] {
        let list = &batch.lists[usize::from(list)];
        &list.elements[..list.len]
    }

    #[test]
    fn elements_lie_as_the_driver_reads_them() {
        let cases = [
            (DataPath::Copy, false, batch_flag::HAS_BUF_ADDR, 16),
            (DataPath::UserCopy, false, 0, 8),
            (DataPath::UserCopy, true, batch_flag::HAS_ZONE_LBA, 16),
            (DataPath::ZeroCopy, false, batch_flag::AUTO_BUF_REG_FALLBACK, 8),
        ];
        for (path, is_zoned, flags, size) in cases {
            let (_reactor, mut batch) = batch(path, is_zoned);
            assert!(batch.push(element(2)), "the first has the list handed over");
            assert!(!batch.push(element(1)));
            let (list, command, address) = batch.close().expect("there is one");
            let BatchCommand { q_id, flags: told, nr_elem, elem_bytes, .. } = command;
            assert_eq!((q_id, told, nr_elem, elem_bytes), (3, flags, 2, size));
            let mut expected = Vec::new();
            for tag in [2u16, 1] {
                expected.extend_from_slice(&tag.to_ne_bytes());
                expected.extend_from_slice(&(tag + 7).to_ne_bytes());
                expected.extend_from_slice(&(-5i32).to_ne_bytes());
                if size == 16 {
                    expected.extend_from_slice(&0x1122_3344_5566_7788u64.to_ne_bytes());
                }
            }
            assert_eq!(bytes(&batch, list), expected);
            assert_eq!(address, bytes(&batch, list).as_ptr());
        }
    }

    #[test]
    fn a_list_that_was_handed_over_stays_as_it_is_until_it_is_done() {
        let (_reactor, mut batch) = batch(DataPath::ZeroCopy, false);
        assert!(batch.close().is_none());
        let mut lists = Vec::new();
        for tag in 0..4 {
            assert!(batch.push(element(tag)));
            lists.push(batch.close().expect("there is one").0);
        }
        for (tag, list) in (0..4).zip(&lists) {
            assert_eq!(bytes(&batch, *list)[..2], [tag, 0]);
            assert!(batch.has(tag.into()));
        }
        assert_eq!(batch.done(lists[2], 8), []);
        assert!(!batch.has(2) && batch.has(3));
        assert!(batch.push(element(2)));
        assert_eq!(batch.close().expect("there is one").0, lists[2]);
    }

    #[test]
    fn what_the_driver_did_not_carry_out_is_told() {
        let (_reactor, mut batch) = batch(DataPath::Copy, false);
        for (result, left) in [(48, &[][..]), (16, &[1, 3]), (0, &[2, 1, 3]), (-22, &[2, 1, 3])] {
            for tag in [2, 1, 3] {
                batch.push(element(tag));
            }
            let (list, ..) = batch.close().expect("there is one");
            assert_eq!(batch.done(list, result), left, "{result}");
        }
    }
}
