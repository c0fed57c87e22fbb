//! Runs of blocks as the descriptors of a reply to `NBD_CMD_BLOCK_STATUS`.

use crate::wire::{Descriptor, STATE_HOLE, STATE_ZERO};
use namespace::Run;

/// Descriptors in one reply.
pub const DESCRIPTORS_MAX: usize = 1024;

/// Appends the descriptors of `length` bytes from `offset` on, whose blocks are described by `runs`
/// from the block on in which `offset` lies: at least one, and at most [`DESCRIPTORS_MAX`].
/// What `runs` do not tell is left out, except that the first byte is always described.
pub fn describe(
    runs: &[Run],
    offset: u64,
    length: u32,
    block_shift: u8,
    descriptors: &mut Vec<Descriptor>,
) {
    let mut at = offset >> block_shift << block_shift;
    let end = offset + u64::from(length);
    for run in runs {
        let next = at.saturating_add(run.blocks.saturating_mul(1 << block_shift)).min(end);
        let bytes = next.saturating_sub(at.max(offset)) as u32;
        at = next;
        let is_full = descriptors.len() >= DESCRIPTORS_MAX;
        let state = if run.is_stored { 0 } else { STATE_HOLE | STATE_ZERO };
        match descriptors.last_mut() {
            _ if bytes == 0 => {}
            Some(last) if last.state.get() == state => last.length += bytes,
            _ if is_full => return,
            _ => descriptors.push(Descriptor { length: bytes.into(), state: state.into() }),
        }
    }
    if descriptors.is_empty() {
        // Always allowed: not known.
        descriptors.push(Descriptor { length: length.into(), state: 0.into() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(runs: &[(u64, bool)], offset: u64, length: u32) -> Vec<(u32, u32)> {
        let runs: Vec<Run> =
            runs.iter().map(|&(blocks, is_stored)| Run { blocks, is_stored }).collect();
        let mut descriptors = Vec::new();
        describe(&runs, offset, length, 9, &mut descriptors);
        descriptors.iter().map(|it| (it.length.get(), it.state.get())).collect()
    }

    #[test]
    fn descriptors_begin_at_the_offset_and_end_with_the_request() {
        assert_eq!(described(&[(2, true), (8, false)], 100, 2000), [(924, 0), (1076, 3)]);
        assert_eq!(described(&[(1, true), (1, true)], 0, 1024), [(1024, 0)]);
        assert_eq!(described(&[(1, false)], 0, 4096), [(512, 3)], "not all is known");
        assert_eq!(described(&[], 5, 7), [(7, 0)]);
        assert_eq!(described(&[(u64::MAX, false)], 0, u32::MAX), [(u32::MAX, 3)]);
    }
}
