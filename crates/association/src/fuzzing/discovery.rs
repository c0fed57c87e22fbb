//! What must hold whatever a discovery log says of itself, and however it changes.

use super::Script;
use crate::discovery::{
    DISCOVERY_ENTRIES_MAX, DiscoveryFault, DiscoveryLog, DiscoveryReader, LOG_CHANGES_MAX,
};
use nvme::log::discovery::{Entry, Header};
use zerocopy::{FromZeros, IntoBytes};

/// Bytes of a piece of entries that the script says; zeroes follow.
const FILLED_BYTES: usize = 8;

/// Reads the log of a controller that makes it up as it goes.
pub(super) fn fuzz(script: &mut Script<'_>) {
    let mut reader = DiscoveryReader::default();
    // What the controller has said last: its head, and the entries since.
    let mut header = Header::new_zeroed();
    let (mut heads, mut said) = (0, Vec::new());
    while let Some((offset, len)) = reader.wanted() {
        assert!(len <= 4096 && len.is_multiple_of(4) && len != 0, "any controller can send that");
        if offset != 0 {
            assert_eq!(offset as usize, 1024 + said.len(), "one piece after the other");
            let mut data = vec![0; len];
            data[..FILLED_BYTES].fill_with(|| script.byte());
            said.extend_from_slice(&data);
            assert!(said.len() as u64 <= header.numrec.get() * 1024, "no more than there are");
            assert_eq!(reader.take(&data), Ok(()), "entries are whatever they are");
            continue;
        }
        assert_eq!(len, 1024, "a head");
        let before = (heads != 0).then_some((header.genctr, header.numrec));
        assert!(before.is_none() || said.len() as u64 == header.numrec.get() * 1024, "all of them");
        change(&mut header, script);
        heads += 1;
        let same = before == Some((header.genctr, header.numrec));
        match reader.take(header.as_bytes()) {
            Ok(()) if same => break,
            Ok(()) => said.clear(),
            Err(fault) => return judge(fault, &header, heads),
        }
    }
    assert_eq!(reader.wanted(), None, "its head was the same twice");
    let DiscoveryLog { generation, entries, head } = reader.finish().expect("it is whole");
    assert_eq!(generation, header.genctr.get());
    assert_eq!(head, header, "as it came last");
    assert_eq!(entries.as_bytes(), said, "the entries of that generation, and no others");
}

/// The head that comes next; the same again where the script has ended.
fn change(header: &mut Header, script: &mut Script<'_>) {
    let choice = script.byte();
    if choice & 1 != 0 {
        header.genctr = u64::from(script.byte()).into();
    }
    match choice >> 1 & 3 {
        0 => {}
        1 => header.numrec = u64::from(script.byte() & 31).into(),
        2 => header.numrec = (DISCOVERY_ENTRIES_MAX + u64::from(script.word())).into(),
        _ => *header = Header::new_zeroed(),
    }
    match choice >> 3 & 7 {
        0 => header.recfmt = script.word().into(),
        // All of it, as it comes.
        1 => header.as_mut_bytes()[..18].fill_with(|| script.byte()),
        2 => header.reserved18.fill_with(|| script.byte()),
        _ => {}
    }
}

/// Whether the log had that fault.
fn judge(fault: DiscoveryFault, header: &Header, heads: u32) {
    let count = header.numrec.get();
    match fault {
        DiscoveryFault::TooMany(said) => {
            assert!(said == count && count > DISCOVERY_ENTRIES_MAX);
        }
        DiscoveryFault::Format(said) => {
            assert!(said == header.recfmt.get() && said != 0);
        }
        DiscoveryFault::Changing => assert_eq!(heads, LOG_CHANGES_MAX + 1),
    }
}

const _: () = assert!(FILLED_BYTES <= size_of::<Entry>());
