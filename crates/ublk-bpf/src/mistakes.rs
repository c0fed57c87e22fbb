//! What a program has done wrong in the kernel, in the words of the machine in user space.

use crate::abi::{self, MISTAKES_KEPT, Mistake, MistakeLog};
use bpf::Program;
use bpf::actions::MisuseKind;

/// The number in `loop/shared.h` as what it stands for.
pub fn kind(mistake: &Mistake) -> Option<MisuseKind> {
    let (first, second) = (usize::from(mistake.first), usize::from(mistake.second));
    Some(match mistake.kind {
        1 => MisuseKind::Returned(mistake.returned),
        2 => MisuseKind::TooManyParts,
        3 => MisuseKind::Backend(first),
        4 => MisuseKind::Operation(first),
        5 => MisuseKind::Block(first),
        6 => MisuseKind::Length(first),
        7 => MisuseKind::Missing,
        8 => MisuseKind::ReadTwice,
        9 => MisuseKind::Overlap(first, second),
        10 => MisuseKind::CompletedTwice,
        11 => MisuseKind::CompletedWithParts,
        12 => MisuseKind::Status,
        13 => MisuseKind::Delay,
        14 => MisuseKind::Deferred,
        15 => MisuseKind::Nothing,
        16 => MisuseKind::Phases,
        _ => return None,
    })
}

/// For people: what was wrong, where, and with which request.
pub fn describe(program: &Program, mistake: &Mistake) -> String {
    let entry = match mistake.entry {
        abi::IN_DONE => program.done(),
        abi::IN_DEFERRED => program.deferred(),
        _ => None,
    };
    let entry = entry.unwrap_or(program.route());
    let place = program.place_of_line(entry, mistake.line);
    let Mistake { op, blocks, start, .. } = *mistake;
    let what = match kind(mistake) {
        Some(kind) => kind.to_string(),
        None => format!("something unknown, {}", mistake.kind),
    };
    format!("{place}: {what} (opcode {op:#04x}, {blocks} blocks at {start})")
}

/// The mistakes that have come since there were `before`, of those that are kept: how many there were by
/// then, and what it was. One that is counted and not written yet, and what is behind it, are left for the next call.
pub fn since(log: &MistakeLog, before: u64) -> impl Iterator<Item = (u64, &Mistake)> {
    let numbered = log.at.iter().enumerate().map(|(number, it)| (1_u64 << number, it));
    let new = numbered
        .take(MISTAKES_KEPT)
        .filter(move |(count, _)| (before + 1..=log.count).contains(count));
    new.take_while(|(_, mistake)| mistake.kind != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_power_of_two_is_told_once() {
        let mistake = Mistake { kind: 1, ..Mistake::default() };
        let mut log = MistakeLog { count: 5, at: [mistake; MISTAKES_KEPT], losses: 0 };
        let counts = |log: &MistakeLog, before| -> Vec<u64> {
            since(log, before).map(|(count, _)| count).collect()
        };
        assert_eq!(counts(&log, 0), [1, 2, 4]);
        assert_eq!(counts(&log, 2), [4]);
        assert!(counts(&log, 5).is_empty());
        // The kernel counts first.
        log.at[1].kind = 0;
        assert_eq!(counts(&log, 0), [1]);
    }

    #[test]
    fn numbers_are_those_of_the_header() {
        let header = include_str!("../../../bpf/loop/shared.h");
        let list = header.split_once("NVLANE_RETURNED = 1,").expect("the list").1;
        let count = 1 + list.split_once('}').expect("its end").0.matches("NVLANE_").count() as u8;
        let of = |number| kind(&Mistake { kind: number, ..Mistake::default() });
        assert!((1..=count).all(|number| of(number).is_some()));
        assert!(of(0).is_none() && of(count + 1).is_none());
        assert_eq!(of(count), Some(MisuseKind::Phases));
    }
}
