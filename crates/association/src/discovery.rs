//! Reading a discovery log whole (NVMe Base 2.1, section 5.1.12.3.1), a piece at a time.
//!
//! ```text
//!   head --> entries, PIECE_BYTES at a time --> head: the same? --yes--> DiscoveryLog
//!              ^                                        | no, LOG_CHANGES_MAX times at most
//!              '----------------------------------------'
//! ```

use nvme::log::discovery::{Entry, Header};
use thiserror::Error;
use zerocopy::FromBytes;

/// Entries of a discovery log that are read at most.
pub const DISCOVERY_ENTRIES_MAX: u64 = 16 << 10;
/// How often a discovery log may have changed while it was read.
pub const LOG_CHANGES_MAX: u32 = 10;
/// Bytes read with one command: no controller's MDTS is below one page of memory.
const PIECE_BYTES: usize = 4096;

const HEADER_BYTES: usize = size_of::<Header>();
const ENTRY_BYTES: usize = size_of::<Entry>();
const _: () = assert!(PIECE_BYTES.is_multiple_of(ENTRY_BYTES) && PIECE_BYTES >= HEADER_BYTES);

/// A discovery log, whole, of one generation.
#[derive(Clone, Debug, PartialEq)]
pub struct DiscoveryLog {
    /// Generation counter.
    pub generation: u64,
    /// What there is to connect to.
    pub entries: Vec<Entry>,
    /// Its head as it came, after the entries.
    pub head: Header,
}

/// Why a discovery log cannot be had.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum DiscoveryFault {
    /// It says that it has so many entries.
    #[error("{0} entries are more than the {DISCOVERY_ENTRIES_MAX} that are read")]
    TooMany(u64),
    /// Its entries are of a form (RECFMT) that nobody knows.
    #[error("RECFMT cannot be {0}")]
    Format(u16),
    /// It was another one each of [`LOG_CHANGES_MAX`] times.
    #[error("it has changed {LOG_CHANGES_MAX} times while it was read")]
    Changing,
}

/// Reads a discovery log: its head again after its entries, and everything once more if it has
/// changed in between.
#[derive(Clone, Debug, Default)]
pub struct DiscoveryReader {
    /// As it came last.
    head: Option<Header>,
    entries: Vec<Entry>,
    changes: u32,
    whole: bool,
}

impl DiscoveryReader {
    /// Which bytes of the log to read next: offset and length. None once it is whole.
    pub fn wanted(&self) -> Option<(u64, usize)> {
        if self.whole {
            return None;
        }
        let left = match self.head {
            None => 0,
            Some(head) => head.numrec.get() as usize - self.entries.len(),
        };
        if left == 0 {
            return Some((0, HEADER_BYTES));
        }
        let offset = HEADER_BYTES + self.entries.len() * ENTRY_BYTES;
        Some((offset as u64, PIECE_BYTES.min(left * ENTRY_BYTES)))
    }

    /// Takes the bytes that were wanted, all of them.
    ///
    /// # Errors
    /// What the log says of itself rules out that it can be read.
    pub fn take(&mut self, data: &[u8]) -> Result<(), DiscoveryFault> {
        let (offset, len) = self.wanted().expect("something is wanted");
        assert_eq!(data.len(), len, "what was wanted");
        if offset == 0 {
            return self.take_head(Header::read_from_bytes(data).expect("sizes are equal"));
        }
        let entry = |bytes| Entry::read_from_bytes(bytes).expect("sizes are equal");
        self.entries.extend(data.chunks_exact(ENTRY_BYTES).map(entry));
        Ok(())
    }

    fn take_head(&mut self, head: Header) -> Result<(), DiscoveryFault> {
        if self.head.is_some_and(|last| (last.genctr, last.numrec) == (head.genctr, head.numrec)) {
            (self.head, self.whole) = (Some(head), true);
            return Ok(());
        }
        if self.head.is_some() {
            self.changes += 1;
            if self.changes == LOG_CHANGES_MAX {
                return Err(DiscoveryFault::Changing);
            }
        }
        if head.numrec.get() > DISCOVERY_ENTRIES_MAX {
            return Err(DiscoveryFault::TooMany(head.numrec.get()));
        }
        if head.recfmt.get() != 0 {
            return Err(DiscoveryFault::Format(head.recfmt.get()));
        }
        self.entries.clear();
        self.head = Some(head);
        Ok(())
    }

    /// The log; none before it is whole.
    pub fn finish(self) -> Option<DiscoveryLog> {
        let head = self.head.filter(|_| self.whole)?;
        Some(DiscoveryLog { generation: head.genctr.get(), entries: self.entries, head })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromZeros, IntoBytes};

    fn head(generation: u64, count: u64, format: u16) -> Vec<u8> {
        let mut header = Header::new_zeroed();
        (header.genctr, header.numrec) = (generation.into(), count.into());
        header.recfmt = format.into();
        header.as_bytes().to_vec()
    }

    fn entries(first: u16, count: u16) -> Vec<u8> {
        let entry = |port: u16| Entry { portid: port.into(), ..Entry::new_zeroed() };
        (first..first + count).flat_map(|port| entry(port).as_bytes().to_vec()).collect()
    }

    #[test]
    fn a_log_that_stands_still_is_read_once() {
        let mut reader = DiscoveryReader::default();
        let pieces = [
            ((0, 1024), head(7, 6, 0)),
            ((1024, 4096), entries(0, 4)),
            ((5120, 2048), entries(4, 2)),
            ((0, 1024), head(7, 6, 0)),
        ];
        for (wanted, data) in pieces {
            assert_eq!(reader.wanted(), Some(wanted));
            assert_eq!(reader.clone().finish(), None);
            reader.take(&data).expect("it is good");
        }
        assert_eq!(reader.wanted(), None);
        let log = reader.finish().expect("it is whole");
        let ports: Vec<u16> = log.entries.iter().map(|entry| entry.portid.get()).collect();
        assert_eq!((log.generation, ports), (7, vec![0, 1, 2, 3, 4, 5]));
        assert_eq!(log.head.as_bytes(), head(7, 6, 0));
    }

    #[test]
    fn an_empty_log_is_whole_when_its_head_was_read_twice() {
        let mut reader = DiscoveryReader::default();
        reader.take(&head(1, 0, 0)).expect("it is good");
        assert_eq!(reader.wanted(), Some((0, 1024)));
        reader.take(&head(1, 0, 0)).expect("it is good");
        let log = reader.finish().expect("it is whole");
        assert_eq!((log.generation, log.entries), (1, Vec::new()));
    }

    #[test]
    fn nothing_of_an_earlier_generation_stays() {
        let mut reader = DiscoveryReader::default();
        for data in [head(1, 2, 0), entries(10, 2), head(2, 1, 0), entries(20, 1), head(2, 1, 0)] {
            reader.take(&data).expect("it is good");
        }
        let log = reader.finish().expect("it is whole");
        assert_eq!((log.generation, log.entries.len()), (2, 1));
        assert_eq!(log.entries[0].portid.get(), 20);
    }

    #[test]
    fn a_log_that_changes_each_time_is_given_up() {
        let mut reader = DiscoveryReader::default();
        reader.take(&head(0, 1, 0)).expect("it is good");
        for change in 1..u64::from(LOG_CHANGES_MAX) {
            reader.take(&entries(0, 1)).expect("it is good");
            reader.take(&head(change, 1, 0)).expect("it may still change");
        }
        reader.take(&entries(0, 1)).expect("it is good");
        assert_eq!(reader.take(&head(99, 1, 0)), Err(DiscoveryFault::Changing));
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let take = |data: &[u8]| DiscoveryReader::default().take(data);
        assert_eq!(take(&head(1, DISCOVERY_ENTRIES_MAX, 0)), Ok(()));
        let more = DISCOVERY_ENTRIES_MAX + 1;
        assert_eq!(take(&head(1, more, 0)), Err(DiscoveryFault::TooMany(more)));
        assert_eq!(take(&head(1, u64::MAX, 9)), Err(DiscoveryFault::TooMany(u64::MAX)));
        assert_eq!(take(&head(1, 1, 9)), Err(DiscoveryFault::Format(9)));
    }
}
