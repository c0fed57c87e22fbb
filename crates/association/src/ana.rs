//! The Asymmetric Namespace Access log page, groups only.

use crate::{ANA_GROUPS_MAX, Reason};
use nvme::Command;
use nvme::log::ana::{AnaState, GROUPS_ONLY, Group, Header};
use nvme::log::{GetLogPage, Lid};
use zerocopy::FromBytes;

/// Bytes of the log page for `groups` groups without their namespaces.
pub(crate) fn bytes(groups: u32) -> u32 {
    (size_of::<Header>() + size_of::<Group>() * groups as usize) as u32
}

/// Reads the states of all groups.
pub(crate) fn command(groups: u32) -> Command {
    debug_assert!((1..=ANA_GROUPS_MAX).contains(&groups));
    GetLogPage {
        lid: Lid::ANA,
        lsp: GROUPS_ONLY,
        retain_event: false,
        bytes: bytes(groups).into(),
        offset: 0,
        index_offset: false,
        csi: 0,
    }
    .command()
}

/// The state of `group`; `None` if the page does not tell.
pub(crate) fn state(page: &[u8], group: u32) -> Result<Option<AnaState>, Reason> {
    let malformed = Reason::Malformed { what: "the ANA log page" };
    let Ok((header, mut rest)) = Header::read_from_prefix(page) else { return Err(malformed) };
    for _ in 0..header.groups.get() {
        let Ok((head, after)) = Group::read_from_prefix(rest) else { return Err(malformed) };
        // Some controllers list namespaces all the same.
        let Some(after) = after.get(4 * head.namespaces.get() as usize..) else {
            return Err(malformed);
        };
        if head.group.get() == group {
            return Ok(Some(AnaState(head.state)));
        }
        rest = after;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn page(groups: &[(u32, u8, u32)]) -> Vec<u8> {
        let mut page = Header::read_from_bytes(&[0; 16]).unwrap();
        page.groups = (groups.len() as u16).into();
        let mut bytes = page.as_bytes().to_vec();
        for (group, state, namespaces) in groups {
            let mut head = Group::read_from_bytes(&[0; 32]).unwrap();
            (head.group, head.state, head.namespaces) =
                ((*group).into(), *state, (*namespaces).into());
            bytes.extend_from_slice(head.as_bytes());
            bytes.extend((0..*namespaces).flat_map(u32::to_le_bytes));
        }
        bytes
    }

    #[test]
    fn finds_the_group() {
        let page = page(&[(1, 1, 0), (2, 3, 2), (7, 15, 0)]);
        assert_eq!(state(&page, 1), Ok(Some(AnaState::OPTIMIZED)));
        assert_eq!(state(&page, 2), Ok(Some(AnaState::INACCESSIBLE)));
        assert_eq!(state(&page, 7), Ok(Some(AnaState::CHANGE)));
        assert_eq!(state(&page, 3), Ok(None));
        for len in 0..page.len() {
            assert!(state(&page[..len], 7).is_err(), "cut to {len}");
        }
    }

    #[test]
    fn counts_that_cannot_be_are_refused() {
        let mut lies = page(&[(1, 1, 0)]);
        lies[16 + 4..16 + 8].fill(0xff);
        assert!(state(&lies, 2).is_err());
        let mut lies = page(&[(1, 1, 0)]);
        lies[8..10].fill(0xff);
        assert!(state(&lies, 2).is_err());
    }
}
