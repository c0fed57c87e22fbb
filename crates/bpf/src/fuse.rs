//! Instructions that are carried out together: what costs in the machine is going from one to the next.
//!
//! ```text
//!   r2 = r10; r2 += -4; r1 = map; call lookup      one step instead of four
//!   w2 = *(u8 *)(r6 + 12); if w2 != 2 goto         one instead of two
//! ```
//!
//! The first of them gets the operation of the pair, the others stay as they are: whoever jumps to one of these
//! finds it, and an instruction keeps its number.

use crate::machine::helper;
use crate::map::{MapDefinition, MapKind};
use crate::memory::map_address;
use crate::op::{Insn, Op};

/// Joins instructions of checked code wherever there is an operation for them.
pub fn fuse(code: &[Insn], maps: &[MapDefinition]) -> Vec<Insn> {
    let mut fused = code.to_vec();
    // From the end, so that pairs can be made of an instruction and a pair.
    for at in (0..code.len()).rev() {
        let first = code[at];
        if let Some(map) = looked_up(code, at, maps) {
            (fused[at].op, fused[at].offset) = (Op::LookUp, map);
        } else if let Some(next) = fused.get(at + 1).filter(|_| first.op != Op::LoadImmediate) {
            let lookup = fused.get(at + 2).filter(|third| third.op == Op::LookUp);
            let op = match (first.op, next.op) {
                (Op::MovR64, _) if lookup.is_some() && code[at + 1].op == Op::AddK64 => {
                    Some(Op::PointLookUp)
                }
                (op, _) => Op::pair(op, code[at + 1].op).map(|pair| {
                    let behind = fused.get(at + 2).and_then(|third| Op::pair(pair, third.op));
                    behind.unwrap_or(pair)
                }),
            };
            fused[at].op = op.unwrap_or(first.op);
        }
    }
    fused
}

/// The map, if its address is loaded here to look an entry up by its number.
fn looked_up(code: &[Insn], at: usize, maps: &[MapDefinition]) -> Option<i32> {
    let (load, call) = (code[at], code.get(at + 2)?);
    let is_call = call.op == Op::Helper && call.immediate == helper::MAP_LOOKUP;
    if (load.op, load.dst) != (Op::LoadImmediate, 1) || !is_call {
        return None;
    }
    let is_it = |(number, _): &(usize, &MapDefinition)| {
        map_address(*number as u32) == load.immediate as u64
    };
    let (number, map) = maps.iter().enumerate().find(is_it)?;
    (map.kind != MapKind::Hash && !map.is_variables).then_some(number as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(op: Op, dst: u8, src: u8, offset: i32, immediate: i64) -> Insn {
        Insn { op, dst, src, offset, immediate }
    }

    fn map(kind: MapKind, is_variables: bool) -> MapDefinition {
        let (key_bytes, value_bytes, entries) = (4, 8, 4);
        let (name, initial, read_only) = (String::new(), Vec::new(), false);
        MapDefinition {
            name,
            kind,
            key_bytes,
            value_bytes,
            entries,
            initial,
            read_only,
            is_variables,
        }
    }

    #[test]
    fn a_look_up_in_an_array_is_one_step() {
        let code = |number| {
            [
                insn(Op::MovR64, 2, 10, 0, 0),
                insn(Op::AddK64, 2, 0, 0, -4),
                insn(Op::LoadImmediate, 1, 0, 0, map_address(number) as i64),
                insn(Op::Exit, 0, 0, 0, 0),
                insn(Op::Helper, 0, 0, 0, helper::MAP_LOOKUP),
                insn(Op::Exit, 0, 0, 0, 0),
            ]
        };
        let maps = [
            map(MapKind::Hash, false),
            map(MapKind::PerCoreArray, false),
            map(MapKind::Array, true),
        ];
        let fused = fuse(&code(1), &maps);
        assert_eq!((fused[0].op, fused[2].op, fused[2].offset), (Op::PointLookUp, Op::LookUp, 1));
        assert_eq!(fused[4], code(1)[4], "whoever jumps there finds it");
        for number in [0, 2, 3] {
            let fused = fuse(&code(number), &maps);
            assert_eq!((fused[0].op, fused[2].op), (Op::MovR64AddK64, Op::LoadImmediate));
        }
    }

    #[test]
    fn pairs_keep_what_they_are_made_of() {
        let code = [
            insn(Op::Load8, 2, 1, 12, 0),
            insn(Op::JneK32, 2, 0, 3, 2),
            insn(Op::Exit, 0, 0, 0, 0),
            insn(Op::Exit, 0, 0, 0, 0),
        ];
        let fused = fuse(&code, &[]);
        assert_eq!(fused[0], Insn { op: Op::Load8JneK32, ..code[0] });
        assert_eq!(fused[1..], code[1..]);
    }
}
