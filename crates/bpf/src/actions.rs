//! What a program wants to become of a request, checked before any of it is carried out.

use crate::request::{DELAY_NS_MAX, PARTS_MAX, PHASES_MAX, Part, Request};

/// NVMe's opcodes of the operations that there are.
pub mod op {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management, to deallocate.
    pub const DISCARD: u8 = 0x09;
}

/// The statuses that a program may complete a request with: those of `nvlane_bpf.h`.
pub const STATUSES: [u16; 6] = [0x000, 0x006, 0x020, 0x081, 0x280, 0x281];

/// The request as whoever runs the program knows it; what the program was given may have been overwritten.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The operation.
    pub op: u8,
    /// Blocks, 0 of Flush.
    pub blocks: u32,
    /// The backends' sizes in blocks.
    pub sizes: &'a [u64],
    /// How many times its parts have ended.
    pub phase: u8,
    /// Parts have covered all of it already, without an error.
    pub is_whole: bool,
    /// `NVLANE_DEFERRED` can be asked.
    pub may_defer: bool,
}

/// What a run has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// This is to be done.
    Plan(Plan),
    /// `NVLANE_DEFERRED` is to say what.
    Deferred,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// After so many nanoseconds,
    pub delay_ns: u64,
    /// this.
    pub then: Then,
}

/// What a program has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The first so many parts, at least one. Together they cover the request, unless it is whole
    /// already, a Discard or a Flush.
    Parts(usize),
    /// The request ends with this status, one of [`STATUSES`].
    End(u16),
    /// No action: the default. Only of a Flush, or when parts have ended.
    Nothing,
}

/// Why a list of actions is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MisuseKind {
    /// More parts than fit.
    #[error("more than 32 parts")]
    TooManyParts,
    /// There is no such backend.
    #[error("part {0} is for a backend that is not there")]
    Backend(usize),
    /// Another operation than the request's.
    #[error("part {0} has an operation that the request does not allow")]
    Operation(usize),
    /// Beyond the backend's end.
    #[error("part {0} lies beyond the end of its backend")]
    Block(usize),
    /// Beyond the request's data, or empty.
    #[error("part {0} is empty, or lies beyond the request")]
    Length(usize),
    /// Blocks that no part covers.
    #[error("the parts leave blocks of the request out")]
    Missing,
    /// Blocks read twice.
    #[error("the parts read some block of the request more than once")]
    ReadTwice,
    /// Written twice to the same place.
    #[error("parts {0} and {1} write to the same blocks of a backend")]
    Overlap(usize, usize),
    /// Completed more than once.
    #[error("the request is completed more than once")]
    CompletedTwice,
    /// Completed, and parts as well.
    #[error("the request is completed although parts are queued")]
    CompletedWithParts,
    /// A status that is not for programs.
    #[error("the request is completed with a status that is not in nvlane_bpf.h")]
    Status,
    /// Too long a delay.
    #[error("the request is delayed for more than 10 s")]
    Delay,
    /// Deferred, without `NVLANE_DEFERRED` or by it.
    #[error("the request is deferred, and there is no NVLANE_DEFERRED, or it was that one")]
    Deferred,
    /// Nothing at all.
    #[error("no action was taken")]
    Nothing,
    /// The program gave this up itself.
    #[error("the program returned {0}")]
    Returned(i32),
    /// More phases than there may be.
    #[error("more than 8 phases")]
    Phases,
}

/// A wrong list of actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misuse {
    /// What is wrong.
    pub kind: MisuseKind,
    /// The line of the source that made it, 0 if unknown.
    pub line: u32,
}

/// Checks what a run has left in `request`.
#[inline]
pub fn check(request: &Request, asked: &Asked<'_>) -> Result<Decision, Misuse> {
    let at_line = |kind| Misuse { kind, line: request.line };
    if request.deferred != 0 {
        let no = Err(at_line(MisuseKind::Deferred));
        return if asked.may_defer { Ok(Decision::Deferred) } else { no };
    }
    if request.overflow != 0 || usize::from(request.parts) > PARTS_MAX {
        return Err(at_line(MisuseKind::TooManyParts));
    }
    let delay_ns = request.delay_ns;
    if delay_ns > DELAY_NS_MAX {
        return Err(at_line(MisuseKind::Delay));
    }
    let parts = &request.part[..usize::from(request.parts)];
    let then = match (request.completions, parts) {
        (0, []) if asked.phase == 0 && asked.op != op::FLUSH => {
            return Err(at_line(MisuseKind::Nothing));
        }
        (0, []) => Then::Nothing,
        (0, _) if asked.phase >= PHASES_MAX => return Err(at_line(MisuseKind::Phases)),
        (0, parts) => {
            check_parts(parts, asked)?;
            Then::Parts(parts.len())
        }
        (1, []) if STATUSES.contains(&request.result) => Then::End(request.result),
        (1, []) => return Err(at_line(MisuseKind::Status)),
        (1, _) => return Err(at_line(MisuseKind::CompletedWithParts)),
        _ => return Err(at_line(MisuseKind::CompletedTwice)),
    };
    Ok(Decision::Plan(Plan { delay_ns, then }))
}

#[inline]
fn check_parts(parts: &[Part], asked: &Asked<'_>) -> Result<(), Misuse> {
    // Where the last part ended, as long as they follow one another.
    let mut next = Some(0);
    for (number, part) in parts.iter().enumerate() {
        let wrong = |kind| Err(Misuse { kind, line: part.line });
        let Some(&size) = asked.sizes.get(usize::from(part.backend)) else {
            return wrong(MisuseKind::Backend(number));
        };
        if part.op != asked.op && (part.op, asked.op) != (op::WRITE_ZEROES, op::DISCARD) {
            return wrong(MisuseKind::Operation(number));
        }
        if asked.op == op::FLUSH {
            if (part.block, part.blocks, part.offset) != (0, 0, 0) {
                return wrong(MisuseKind::Length(number));
            }
            continue;
        }
        let end = part.offset.checked_add(part.blocks).filter(|end| *end <= asked.blocks);
        if part.blocks == 0 || end.is_none() {
            return wrong(MisuseKind::Length(number));
        }
        if part.block.checked_add(u64::from(part.blocks)).is_none_or(|end| end > size) {
            return wrong(MisuseKind::Block(number));
        }
        next = if next == Some(part.offset) { end } else { None };
    }
    let line = parts.last().map_or(0, |part| part.line);
    if !matches!(asked.op, op::FLUSH | op::DISCARD) && next != Some(asked.blocks) {
        check_cover(parts, asked).map_err(|kind| Misuse { kind, line })?;
    }
    if matches!(asked.op, op::WRITE | op::WRITE_ZEROES) {
        check_places(parts)?;
    }
    Ok(())
}

/// Parts in any order: nothing is left out, nothing is read twice.
fn check_cover(parts: &[Part], asked: &Asked<'_>) -> Result<(), MisuseKind> {
    let mut spans = [(0, 0); PARTS_MAX];
    let spans = &mut spans[..parts.len()];
    for (span, part) in spans.iter_mut().zip(parts) {
        *span = (part.offset, part.offset + part.blocks);
    }
    spans.sort_unstable();
    let (mut covered, mut gap) = (0, false);
    for (start, end) in spans {
        if asked.op == op::READ && *start < covered {
            return Err(MisuseKind::ReadTwice);
        }
        gap |= *start > covered;
        covered = covered.max(*end);
    }
    let missing = gap || covered < asked.blocks;
    if missing && !asked.is_whole { Err(MisuseKind::Missing) } else { Ok(()) }
}

/// No two parts write to the same place: nobody could say which of them would stay.
fn check_places(parts: &[Part]) -> Result<(), Misuse> {
    for (second, part) in parts.iter().enumerate() {
        let meets = |other: &Part| {
            other.backend == part.backend
                && other.block < part.block + u64::from(part.blocks)
                && part.block < other.block + u64::from(other.blocks)
        };
        if let Some(first) = parts[..second].iter().position(meets) {
            return Err(Misuse { kind: MisuseKind::Overlap(first, second), line: part.line });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZES: [u64; 2] = [100, 50];

    fn part(backend: u16, block: u64, blocks: u32, offset: u32) -> Part {
        Part { backend, op: op::WRITE, block, blocks, offset, line: 7, reserved: 0 }
    }

    fn then(request: &Request, asked: &Asked<'_>) -> Result<Then, MisuseKind> {
        match check(request, asked) {
            Ok(Decision::Plan(plan)) => Ok(plan.then),
            Ok(Decision::Deferred) => panic!("it was not deferred"),
            Err(misuse) => Err(misuse.kind),
        }
    }

    fn checked(op: u8, blocks: u32, parts: &[Part]) -> Result<Then, MisuseKind> {
        let mut request = Request { parts: parts.len() as u16, ..Request::default() };
        request.part[..parts.len()].copy_from_slice(parts);
        request.part.iter_mut().for_each(|part| part.op = op);
        let asked =
            Asked { op, blocks, sizes: &SIZES, phase: 0, is_whole: false, may_defer: false };
        then(&request, &asked)
    }

    #[test]
    fn parts_stay_within_request_and_backend() {
        let check = |part| checked(op::READ, 8, &[part]);
        assert_eq!(check(part(1, 42, 8, 0)), Ok(Then::Parts(1)));
        assert_eq!(check(part(1, 43, 8, 0)), Err(MisuseKind::Block(0)));
        assert_eq!(check(part(0, u64::MAX, 8, 0)), Err(MisuseKind::Block(0)));
        assert_eq!(check(part(2, 0, 8, 0)), Err(MisuseKind::Backend(0)));
        assert_eq!(check(part(0, 0, 9, 0)), Err(MisuseKind::Length(0)));
        assert_eq!(check(part(0, 0, 8, u32::MAX)), Err(MisuseKind::Length(0)));
        assert_eq!(check(part(0, 0, 0, 0)), Err(MisuseKind::Length(0)));
        assert_eq!(check(part(0, 0, 7, 0)), Err(MisuseKind::Missing));
        assert_eq!(check(part(0, 0, 7, 1)), Err(MisuseKind::Missing));
    }

    #[test]
    fn reads_cover_once_writes_at_least_once() {
        let twice = [part(0, 0, 8, 0), part(1, 0, 8, 0)];
        assert_eq!(checked(op::READ, 8, &twice), Err(MisuseKind::ReadTwice));
        assert_eq!(checked(op::WRITE, 8, &twice), Ok(Then::Parts(2)));
        let same = [part(0, 0, 8, 0), part(0, 7, 8, 0)];
        assert_eq!(checked(op::WRITE, 8, &same), Err(MisuseKind::Overlap(0, 1)));
        let backwards = [part(0, 4, 4, 4), part(0, 0, 4, 0)];
        assert_eq!(checked(op::READ, 8, &backwards), Ok(Then::Parts(2)));
        assert_eq!(checked(op::DISCARD, 8, &[part(0, 0, 1, 3)]), Ok(Then::Parts(1)));
    }

    #[test]
    fn a_request_ends_once() {
        let asked = Asked {
            op: op::READ,
            blocks: 8,
            sizes: &SIZES,
            phase: 0,
            is_whole: false,
            may_defer: false,
        };
        let with_asked = |change: fn(&mut Request), asked: &Asked<'_>| {
            let mut request = Request::default();
            change(&mut request);
            then(&request, asked)
        };
        let with = |change| with_asked(change, &asked);
        assert_eq!(with(|_| ()), Err(MisuseKind::Nothing));
        assert_eq!(with_asked(|_| (), &Asked { phase: 1, ..asked }), Ok(Then::Nothing));
        assert_eq!(with_asked(|_| (), &Asked { op: op::FLUSH, ..asked }), Ok(Then::Nothing));
        let many = Asked { phase: PHASES_MAX, ..asked };
        assert_eq!(with_asked(|it| it.parts = 1, &many), Err(MisuseKind::Phases));
        assert_eq!(with_asked(|_| (), &many), Ok(Then::Nothing));
        assert_eq!(with(|it| it.completions = 1), Ok(Then::End(0)));
        assert_eq!(with(|it| it.completions = 2), Err(MisuseKind::CompletedTwice));
        let strange = |it: &mut Request| (it.completions, it.result) = (1, 0x301);
        assert_eq!(with(strange), Err(MisuseKind::Status));
        let both = |it: &mut Request| (it.completions, it.parts) = (1, 1);
        assert_eq!(with(both), Err(MisuseKind::CompletedWithParts));
        assert_eq!(with(|it| it.parts = 33), Err(MisuseKind::TooManyParts));
        assert_eq!(with(|it| it.deferred = 1), Err(MisuseKind::Deferred));
        assert_eq!(with(|it| it.delay_ns = DELAY_NS_MAX + 1), Err(MisuseKind::Delay));
    }

    #[test]
    fn a_request_is_deferred_where_somebody_takes_it() {
        let asked = |may_defer| Asked {
            op: op::READ,
            blocks: 8,
            sizes: &SIZES,
            phase: 0,
            is_whole: false,
            may_defer,
        };
        let request = Request { deferred: 1, line: 7, ..Request::default() };
        let refused = Misuse { kind: MisuseKind::Deferred, line: 7 };
        assert_eq!(check(&request, &asked(false)), Err(refused));
        // Whatever else the run has wanted.
        let more = Request { parts: 33, overflow: 1, completions: 2, ..request.clone() };
        for request in [request, more] {
            assert_eq!(check(&request, &asked(true)), Ok(Decision::Deferred));
        }
    }

    proptest! {
        /// What is accepted covers the request; counted block by block.
        #[test]
        fn what_is_accepted_covers(
            op in prop::sample::select(vec![op::READ, op::WRITE]),
            parts in prop::collection::vec((0_u16..2, 0_u64..12, 1_u32..6, 0_u32..8), 1..5),
        ) {
            let parts: Vec<Part> =
                parts.iter().map(|&(backend, block, blocks, offset)| part(backend, block, blocks, offset)).collect();
            let mut times = [0; 16];
            let mut places = std::collections::HashMap::new();
            for part in &parts {
                for block in 0..part.blocks {
                    times[(part.offset + block) as usize] += 1;
                    *places.entry((part.backend, part.block + u64::from(block))).or_insert(0) += 1;
                }
            }
            let inside = times[8..].iter().all(|times| *times == 0);
            let fits = match op {
                op::READ => times[..8].iter().all(|times| *times == 1),
                _ => times[..8].iter().all(|times| *times > 0) && places.values().all(|times| *times == 1),
            };
            prop_assert_eq!(checked(op, 8, &parts).is_ok(), inside && fits);
        }
    }
}
