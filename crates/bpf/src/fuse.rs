//! Instructions that are carried out together: what costs in the machine is going from one to the next.
//!
//! ```text
//!   r1 = map; call lookup                         one step instead of two
//!   w2 = *(u8 *)(r6 + 12); if w2 != 2 goto        one instead of two
//!   six stores that fill a part in                one, and one check
//!   w0 = w9; r5 += 16; w2 = 0                     no step: all moves and additions are one operation
//! ```
//!
//! The first of them gets the operation of all, the others stay as they are: whoever jumps to one of these
//! finds it, and an instruction keeps its number.

use crate::machine::helper;
use crate::map::{MapDefinition, MapKind};
use crate::memory::map_address;
use crate::op::{Insn, Op, Register};
use crate::request::Part;
use std::mem::offset_of;

/// Joins instructions of checked code wherever there is an operation for them.
pub fn fuse(code: &[Insn], maps: &[MapDefinition]) -> Vec<Insn> {
    let code: Vec<Insn> = code.iter().map(|&insn| affine(insn).unwrap_or(insn)).collect();
    let joined = |(at, &insn): (usize, &Insn)| {
        if let Some(map) = looked_up(&code, at, maps) {
            return Insn { op: Op::LookUp, offset: map, ..insn };
        }
        let here = &code[at..];
        let is_here = |(op, parts): &&(Op, &[Op])| {
            parts.len() <= here.len()
                && here.iter().zip(*parts).all(|(insn, part)| insn.op == *part)
                && (*op != Op::StorePart || stores_part(here))
        };
        let longest = Op::SEQUENCES.iter().filter(is_here).max_by_key(|(_, parts)| parts.len());
        longest.map_or(insn, |(op, _)| Insn { op: *op, ..insn })
    };
    code.iter().enumerate().map(joined).collect()
}

/// A move or an addition, as the operation that all of them are.
fn affine(insn: Insn) -> Option<Insn> {
    let Insn { op, dst, src, immediate, .. } = insn;
    let (src, immediate) = match op {
        Op::MovK64 | Op::MovK32 => (Register::Zero, immediate),
        Op::MovR64 | Op::MovR32 => (src, 0),
        Op::AddK64 | Op::AddK32 => (dst, immediate),
        Op::SubK64 | Op::SubK32 => (dst, immediate.wrapping_neg()),
        _ => return None,
    };
    let is_narrow = matches!(op, Op::MovK32 | Op::MovR32 | Op::AddK32 | Op::SubK32);
    let offset = if is_narrow { 32 } else { 0 };
    Some(Insn { op: Op::Affine, dst, src, offset, immediate })
}

/// Whether stores go to where a part has its fields.
fn stores_part(code: &[Insn]) -> bool {
    let fields = [
        offset_of!(Part, line),
        offset_of!(Part, op),
        offset_of!(Part, backend),
        offset_of!(Part, offset),
        offset_of!(Part, blocks),
        offset_of!(Part, block),
    ];
    let start = i64::from(code[0].offset) - fields[0] as i64;
    code.iter().zip(fields).all(|(insn, field)| {
        insn.dst == code[0].dst && i64::from(insn.offset) - start == field as i64
    })
}

/// The map, if its address is loaded here to look an entry up by its number.
fn looked_up(code: &[Insn], at: usize, maps: &[MapDefinition]) -> Option<i32> {
    let (load, call) = (code[at], code.get(at + 2)?);
    let is_call = call.op == Op::Helper && call.immediate == helper::MAP_LOOKUP;
    if (load.op, load.dst) != (Op::LoadImmediate, Register::R1) || !is_call {
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
        let [dst, src] = [dst, src].map(|number| Register::new(number).unwrap());
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
        assert_eq!((fused[1].op, fused[2].op, fused[2].offset), (Op::Affine, Op::LookUp, 1));
        assert_eq!(fused[4], code(1)[4], "whoever jumps there finds it");
        for number in [0, 2, 3] {
            let fused = fuse(&code(number), &maps);
            assert_eq!((fused[1].op, fused[2].op), (Op::Affine, Op::LoadImmediate));
        }
    }

    #[test]
    fn sequences_keep_what_they_are_made_of() {
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

    #[test]
    fn six_stores_are_one_where_they_fill_a_part_in() {
        let stores = [
            insn(Op::StoreR32, 3, 0, 372, 0),
            insn(Op::StoreR8, 3, 6, 370, 0),
            insn(Op::StoreR16, 3, 2, 368, 0),
            insn(Op::StoreR32, 3, 4, 364, 0),
            insn(Op::StoreR32, 3, 8, 360, 0),
            insn(Op::StoreR64, 3, 7, 352, 0),
        ];
        assert_eq!(fuse(&stores, &[])[0], Insn { op: Op::StorePart, ..stores[0] });
        for number in 0..stores.len() {
            let mut others = stores;
            others[number].offset += 1;
            assert_ne!(fuse(&others, &[])[0].op, Op::StorePart, "store {number} goes elsewhere");
            others = stores;
            others[number].dst = Register::R5;
            assert_ne!(fuse(&others, &[])[0].op, Op::StorePart, "store {number} has another base");
        }
    }
}
