//! The body of the fuzz target `copy` in fuzz/: a Copy of any host, with any list.
//!
//! The fuzzer's bytes choose namespaces, command and list. Whatever they are, there is one answer: that
//! of a model that computes in wide numbers, in the order that the documentation states; and what passes
//! lies within its namespaces.

use crate::copy::{check_copy, check_format};
use crate::{AnaState, NamespaceAccess, io};
use nvme::copy::{Entry, FORMATS, Format, LIST_BYTES_MAX};
use nvme::limits::{Commands, CopyLimits, DiscardLimits, Passthrough};
use nvme::{Command, Limits, Sgl, Status, opcode};

/// Namespaces of the subsystem; the Copy goes to number 1.
const NAMESPACES: usize = 4;

/// What is left of the fuzzer's bytes; zeroes from then on.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// A number that is mostly small, or close to where numbers end.
    fn number(&mut self) -> u64 {
        let word = u64::from(self.word());
        match self.byte() & 3 {
            0 => word << 48 | word,
            1 => u64::MAX - word,
            _ => word,
        }
    }

    /// `len` bytes, with zeroes where there are no more.
    fn list(&mut self, len: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        let mut list = taken.to_vec();
        list.resize(len, 0);
        list
    }

    fn namespace(&mut self) -> NamespaceAccess {
        let choice = self.byte();
        let (blocks, ranges) = (u64::from(self.word()) + 1, self.byte());
        let offered = choice & 1 == 0;
        let copy = CopyLimits {
            ranges_max: if offered { u16::from(ranges) + 1 } else { 0 },
            range_blocks_max: u32::from(self.word()),
            blocks_max: u32::from(self.word()) << (choice & 7),
        };
        let limits = Limits {
            block_shift: if choice & 0x30 == 0x30 { 12 } else { 9 },
            blocks,
            transfer_bytes_max: 1 << 20,
            write_zeroes_bytes_max: u32::MAX,
            discard: DiscardLimits::UNLIMITED,
            optimal_write_bytes: 4096,
            read_only: choice & 0xc0 == 0xc0,
            volatile_write_cache: false,
            commands: Commands::default(),
            copy,
            metadata_bytes: if choice & 0x38 == 0x08 { 8 } else { 0 },
            passthrough: Passthrough { io: choice & 6 == 6, admin: false },
            lends_reads: false,
            immediate: false,
        };
        let state = [1, 1, 1, 1, 2, 3, 4, 0x0f][usize::from(self.byte() & 7)];
        NamespaceAccess { nsid: 0, limits, state: AnaState(state) }
    }
}

/// Carries a Copy as far as its namespace.
pub fn fuzz_copy(bytes: &[u8]) {
    let mut script = Script(bytes);
    let mut namespaces = [(); NAMESPACES].map(|()| script.namespace());
    for (index, namespace) in namespaces.iter_mut().enumerate() {
        namespace.nsid = index as u32 + 1;
    }
    let limits = &namespaces[0].limits;
    let enabled = u16::from(script.byte()) & FORMATS;
    let mut command = Command { opcode: opcode::io::COPY, nsid: 1.into(), ..Command::default() };
    command.set_slba(script.number());
    command.cdw12 = (u32::from(script.word()) | u32::from(script.word()) << 16).into();
    let length = script.word();
    command.set_sgl(Sgl::transport(length.into()));
    let Ok(transfer) = io::check(&command, limits) else {
        assert!(command.copy_format().is_none() || !limits.copy.is_offered());
        return;
    };
    if !limits.copy.is_offered() {
        assert_eq!(transfer.bytes, length.into(), "passed as it is");
        return;
    }
    assert!(transfer.bytes as usize <= LIST_BYTES_MAX);
    let located = io::locate(&command, transfer, 0);
    assert_eq!(located.is_ok(), u32::from(length) == transfer.bytes);
    // The length is right more often than the fuzzer would find it.
    let list = script.list(transfer.bytes as usize);
    let entries = nvme::copy::entries(&command, &list).expect("as long as it says");
    let format = check_format(&command, enabled, limits);
    let found = |nsid: u32| namespaces.iter().find(|it| it.nsid == nsid).copied();
    let checked = format.and_then(|()| check_copy(&command, entries.clone(), limits, found));
    let entries: Vec<Entry> = entries.collect();
    assert_eq!(checked, model(&command, enabled, &entries, &namespaces));
}

/// What is to come of it.
fn model(
    command: &Command,
    enabled: u16,
    entries: &[Entry],
    namespaces: &[NamespaceAccess; NAMESPACES],
) -> Result<u32, Status> {
    let to = &namespaces[0].limits;
    let format = command.cdw12.get() >> 8 & 0xf;
    let refuse = |wrong: bool, status: Status| if wrong { Err(status) } else { Ok(()) };
    let (size, range) = (Status::SIZE_LIMIT_EXCEEDED.dnr(), Status::LBA_OUT_OF_RANGE.dnr());
    refuse(u32::from(enabled) >> format & 1 == 0, Status::INVALID_FIELD.dnr())?;
    refuse(entries.len() > to.copy.ranges_max.into(), size)?;
    let longest = entries.iter().map(|entry| entry.blocks).max().unwrap_or(0);
    refuse(longest > to.copy.range_blocks_max, size)?;
    let blocks: u128 = entries.iter().map(|entry| u128::from(entry.blocks)).sum();
    refuse(blocks > to.copy.blocks_max.into(), size)?;
    let named = format >= Format::Namespaces as u32;
    for entry in entries {
        let nsid = if named { entry.nsid } else { 1 };
        let at = usize::try_from(nsid).ok().and_then(|nsid| nsid.checked_sub(1));
        let status = match nsid {
            1..=8192 => Status::INVALID_FIELD,
            _ => Status::INVALID_NAMESPACE,
        };
        let from = at.and_then(|at| namespaces.get(at)).ok_or(status.dnr())?;
        if nsid != 1 {
            let ana = match from.state.0 {
                3 => Some(Status::ANA_INACCESSIBLE),
                4 => Some(Status::ANA_PERSISTENT_LOSS),
                0x0f => Some(Status::ANA_TRANSITION),
                _ => None,
            };
            ana.map_or(Ok(()), Err)?;
            let differs = from.limits.block_shift != to.block_shift
                || from.limits.metadata_bytes != to.metadata_bytes;
            refuse(differs, Status::INCOMPATIBLE_NAMESPACE.dnr())?;
        }
        let end = u128::from(entry.slba) + u128::from(entry.blocks);
        refuse(end > from.limits.blocks.into(), range)?;
    }
    let first = u128::from(command.slba());
    refuse(first + blocks > to.blocks.into(), range)?;
    refuse(to.read_only, Status::NAMESPACE_WRITE_PROTECTED.dnr())?;
    let overlaps = |entry: &Entry| {
        let slba = u128::from(entry.slba);
        entry.nsid == 1 && slba < first + blocks && first < slba + u128::from(entry.blocks)
    };
    refuse(named && entries.iter().any(overlaps), Status::OVERLAPPING_RANGE.dnr())?;
    Ok(blocks as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;

    #[test]
    fn copy_seeds() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/copy");
        let mut count = 0;
        for entry in folder.read_dir().expect("the seeds are committed") {
            fuzz_copy(&std::fs::read(entry.expect("a readable folder").path()).expect("a file"));
            count += 1;
        }
        assert!(count > 0, "no seeds in {}", folder.display());
    }

    proptest! {
        #[test]
        fn any_copy(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            fuzz_copy(&bytes);
        }
    }
}
