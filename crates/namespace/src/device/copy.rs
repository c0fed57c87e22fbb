//! Copy by the device itself.
//!
//! ```text
//!   Data::Sources --> lay_out --> a list of source ranges, format 0h --> COPY --> device
//!        overlap, another namespace, what the device does not take --> Fast Copy Not Possible
//! ```
//!
//! Only within the namespace: formats that name another one have to be enabled (Host Behavior, CDFE), and
//! the kernel does not let them be. Where sources overlap the destination, a controller may read what
//! it has just written; whoever is above then reads and writes.

use super::words::ACCESS;
use crate::copy::{Origin, Place, Source, Sources};
use nvme::copy::{Entry, Format};
use nvme::limits::CopyLimits;
use nvme::{Command, Status, copy};
use std::sync::Arc;

/// Bytes of one source range.
const ENTRY_BYTES: usize = Format::Short.entry_bytes();

/// Which namespace this is, among those that others tell as the origin of their blocks. The name counts
/// as the object that this device has told, not as text: devices exist that share theirs, and a remote
/// subsystem can have any. Who has opened this device again tells the same object (`names`).
pub(super) struct Own<'a> {
    pub(super) nqn: Option<&'a Arc<str>>,
    pub(super) nsid: u32,
}

/// The command that the device gets for `command` and `sources`, whose ranges are laid out in `list`,
/// and how many bytes they are there.
///
/// # Errors
/// Why the device cannot do it. Nothing was copied.
pub(super) fn lay_out(
    command: &Command,
    sources: &Sources,
    own: &Own<'_>,
    limits: &CopyLimits,
    list: &mut [u8],
) -> Result<(Command, usize), Status> {
    if !limits.is_offered() {
        return Err(Status::FAST_COPY_NOT_POSSIBLE.dnr());
    }
    let ranges = &sources.ranges;
    let total = sources.blocks();
    let fits = !ranges.is_empty()
        && ranges.len() <= usize::from(limits.ranges_max)
        && ranges.iter().all(|range| (1..=limits.range_blocks_max).contains(&range.blocks))
        && total <= limits.blocks_max.into();
    if !fits {
        return Err(Status::SIZE_LIMIT_EXCEEDED.dnr());
    }
    let sdlba = command.slba();
    for (range, bytes) in ranges.iter().zip(list.chunks_exact_mut(ENTRY_BYTES)) {
        if !is_here(&range.place, own) {
            return Err(Status::FAST_COPY_NOT_POSSIBLE.dnr());
        }
        if overlaps(range, sdlba, total) {
            return Err(Status::FAST_COPY_NOT_POSSIBLE);
        }
        let Source { slba, blocks, .. } = *range;
        Entry { nsid: 0, slba, blocks, fast_only: false }.write(Format::Short, bytes);
    }
    let mut passed = copy::command(own.nsid, sdlba, ranges.len(), Format::Short);
    passed.cdw12 |= command.cdw12 & ACCESS;
    Ok((passed, ranges.len() * ENTRY_BYTES))
}

/// Whether that place is this namespace.
fn is_here(place: &Place, own: &Own<'_>) -> bool {
    match place {
        Place::Same => true,
        Place::Origin(Origin::Subsystem { nqn, nsid, .. }) => {
            own.nqn.is_some_and(|own| Arc::ptr_eq(own, nqn)) && *nsid == own.nsid
        }
        _ => false,
    }
}

/// Whether the source range meets the destination.
fn overlaps(range: &Source, sdlba: u64, total: u64) -> bool {
    let end = range.slba.saturating_add(range.blocks.into());
    range.slba < sdlba.saturating_add(total) && sdlba < end
}

/// What a failed Copy of the device's comes to. What it or the kernel would not take although it should
/// have, was not begun: it can be done in another way.
pub(super) fn refusal(status: Status) -> Status {
    match status.code() {
        Status::INVALID_OPCODE
        | Status::INVALID_FIELD
        | Status::OPERATION_DENIED
        | Status::SIZE_LIMIT_EXCEEDED
        | Status::INCOMPATIBLE_NAMESPACE
        | Status::FAST_COPY_NOT_POSSIBLE
        | Status::OVERLAPPING_RANGE => Status::FAST_COPY_NOT_POSSIBLE.dnr(),
        _ => status,
    }
}

/// Memory for the lists of commands in flight, which is used again. A list stays where it is until the
/// device is done with it.
pub(super) struct Lists {
    bytes: usize,
    memory: Vec<Box<[u8]>>,
    free: Vec<usize>,
}

impl Lists {
    /// Of lists with up to `ranges` source ranges.
    pub(super) fn new(ranges: u16) -> Lists {
        let bytes = usize::from(ranges) * ENTRY_BYTES;
        Lists { bytes, memory: Vec::new(), free: Vec::new() }
    }

    /// The number of a list that nobody uses.
    pub(super) fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.memory.push(vec![0; self.bytes].into());
            self.memory.len() - 1
        })
    }

    /// Its memory.
    pub(super) fn list(&mut self, number: usize) -> &mut [u8] {
        &mut self.memory[number]
    }

    /// The list can be used again.
    pub(super) fn give_back(&mut self, number: usize) {
        debug_assert!(!self.free.contains(&number));
        self.free.push(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Memory, MemoryOptions};
    use nvme::opcode::io as opcode;

    const LIMITS: CopyLimits = CopyLimits { ranges_max: 4, range_blocks_max: 100, blocks_max: 150 };

    fn same(slba: u64, blocks: u32) -> Source {
        Source { place: Place::Same, slba, blocks, fast_only: false }
    }

    fn at(nqn: &Arc<str>, nsid: u32) -> Source {
        let place =
            Place::Origin(Origin::Subsystem { nqn: Arc::clone(nqn), nsid, numbering: None });
        Source { place, slba: 5, blocks: 6, fast_only: false }
    }

    fn laid_out(sdlba: u64, ranges: Vec<Source>) -> Result<(Command, Vec<Entry>), Status> {
        laid_out_by(&"nqn.x:y".into(), sdlba, ranges)
    }

    /// By namespace 3 of that subsystem.
    fn laid_out_by(
        nqn: &Arc<str>,
        sdlba: u64,
        ranges: Vec<Source>,
    ) -> Result<(Command, Vec<Entry>), Status> {
        let own = Own { nqn: Some(nqn), nsid: 3 };
        let mut command = Command { cdw12: u32::MAX.into(), ..Command::default() };
        (command.cdw3, command.cdw13) = (u32::MAX.into(), u32::MAX.into());
        command.set_slba(sdlba);
        let sources = Sources { ranges, ..Sources::default() };
        let mut list = [0xee; 4 * ENTRY_BYTES];
        let (command, bytes) = lay_out(&command, &sources, &own, &LIMITS, &mut list)?;
        Ok((command, copy::entries(&command, &list[..bytes])?.collect()))
    }

    #[test]
    fn the_device_is_given_what_was_asked_for() {
        let nqn = "nqn.x:y".into();
        let ranges = vec![same(7, 1), same(u64::from(u32::MAX) * 9, 100), at(&nqn, 3)];
        let (command, entries) = laid_out_by(&nqn, 1 << 33, ranges).unwrap();
        let entry = |slba, blocks| Entry { nsid: 0, slba, blocks, fast_only: false };
        assert_eq!(entries, [entry(7, 1), entry(u64::from(u32::MAX) * 9, 100), entry(5, 6)]);
        let mut expected = Command { opcode: opcode::COPY, nsid: 3.into(), ..Command::default() };
        expected.set_slba(1 << 33);
        // Three ranges, zero-based, of format 0h; of the rest only Force Unit Access and Limited Retry.
        expected.cdw12 = 0xc000_0002u32.into();
        assert_eq!(command, expected);
    }

    #[test]
    fn what_overlaps_is_for_others_this_time_and_what_is_elsewhere_always() {
        let for_others = Err(Status::FAST_COPY_NOT_POSSIBLE);
        let never = Err(Status::FAST_COPY_NOT_POSSIBLE.dnr());
        let tried = |sdlba, ranges| laid_out(sdlba, ranges).map(|_| ());
        // The destination is 100..120.
        for (first, expected) in
            [(80, Ok(())), (81, for_others), (100, for_others), (119, for_others), (120, Ok(()))]
        {
            assert_eq!(tried(100, vec![same(first, 20)]), expected, "from {first}");
        }
        // A later range meets where an earlier one is put.
        assert_eq!(tried(100, vec![same(0, 20), same(110, 5)]), for_others);
        let nqn: Arc<str> = "nqn.x:y".into();
        let tried_by = |ranges| laid_out_by(&nqn, 100, ranges).map(|_| ());
        assert_eq!(tried_by(vec![at(&nqn, 3)]), Ok(()));
        assert_eq!(tried_by(vec![at(&nqn, 4)]), never);
        // Another device may have the same name and number: it is not this one.
        assert_eq!(tried_by(vec![at(&"nqn.x:y".into(), 3)]), never);
        assert_eq!(tried_by(vec![at(&"nqn.x:z".into(), 3)]), never);
        let memory = Memory::open(MemoryOptions {
            bytes: 1 << 20,
            block_shift: 9,
            cores: 1,
            lend: false,
            uuid: None,
        });
        let place = Place::Origin(Origin::Memory(memory.unwrap()));
        assert_eq!(
            tried(100, vec![same(0, 1), Source { place, slba: 0, blocks: 1, fast_only: false }]),
            never
        );
    }

    #[test]
    fn more_than_the_device_takes_is_refused() {
        let refused = Err(Status::SIZE_LIMIT_EXCEEDED.dnr());
        let tried = |ranges| laid_out(1000, ranges).map(|_| ());
        assert_eq!(tried(vec![same(0, 100), same(200, 50)]), Ok(()));
        assert_eq!(tried(vec![same(0, 100), same(200, 51)]), refused);
        assert_eq!(tried(vec![same(0, 101)]), refused);
        assert_eq!(tried(vec![same(0, 1); 4]), Ok(()));
        assert_eq!(tried(vec![same(0, 1); 5]), refused);
        assert_eq!(tried(Vec::new()), refused);
        let none = lay_out(
            &Command::default(),
            &Sources { ranges: vec![same(0, 1)], ..Sources::default() },
            &Own { nqn: None, nsid: 3 },
            &CopyLimits::NONE,
            &mut [],
        );
        assert_eq!(none.err(), Some(Status::FAST_COPY_NOT_POSSIBLE.dnr()));
    }

    #[test]
    fn refusals_are_told_from_failures() {
        let never = Status::FAST_COPY_NOT_POSSIBLE.dnr();
        assert_eq!(refusal(Status::INVALID_FIELD.dnr()), never);
        assert_eq!(refusal(Status::FAST_COPY_NOT_POSSIBLE), never);
        for status in [Status::UNRECOVERED_READ, Status::HOST_PATHING_ERROR, Status::WRITE_FAULT] {
            assert_eq!(refusal(status), status);
        }
    }

    #[test]
    fn lists_are_used_again_and_stay_where_they_are() {
        let mut lists = Lists::new(128);
        let (first, second) = (lists.take(), lists.take());
        let place = lists.list(first).as_ptr();
        lists.list(first).fill(1);
        for _ in 0..100 {
            lists.take();
        }
        assert_eq!((lists.list(first).as_ptr(), lists.list(first)[4095]), (place, 1));
        lists.give_back(second);
        lists.give_back(first);
        assert_eq!((lists.take(), lists.take(), lists.memory.len()), (first, second, 102));
    }
}
