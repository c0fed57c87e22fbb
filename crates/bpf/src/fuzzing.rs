//! Body of the fuzz target in fuzz/: what must hold whatever a program is.
//!
//! The fuzzer's bytes are an object, if they begin like one; otherwise instructions, for a program that has a map
//! of each kind. What loads is run twice on maps of its own, with instructions joined (`fuse`) and each for itself:
//! it must end, within its budget, and do the same both times; and what it wants done must be refused or be
//! within what was asked for.

use crate::actions::{self, Asked, Decision, Then, op};
use crate::load::decode;
use crate::map::{MapDefinition, MapKind};
use crate::memory::{map_address, value_address};
use crate::program::{Entry, Function, Program, Span};
use crate::request::{Backend, Request};
use crate::{Fault, Instance, Machine, lines::Lines, load};
use std::cell::Cell;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Blocks of the request, and of each backend.
const BLOCKS: u32 = 24;
const SIZES: [u64; 2] = [64, 1 << 20];
/// Operations that requests are made of.
const OPS: [u8; 5] = [op::READ, op::WRITE, op::WRITE_ZEROES, op::DISCARD, op::FLUSH];

/// Takes anything.
pub fn fuzz_bpf(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    let op = OPS[usize::from(*first) % OPS.len()];
    let program = match rest.starts_with(b"\x7fELF") {
        true => load(rest).ok(),
        false => program_of(rest),
    };
    let Some(program) = program else { return };
    let outcomes = [true, false].map(|fused| run(program.clone(), op, fused));
    assert_eq!(outcomes[0], outcomes[1], "joined instructions do what each does for itself");
}

/// A program of these instructions. Maps and variables are at addresses that the first three load.
fn program_of(bytes: &[u8]) -> Option<Program> {
    let (words, _) = bytes.as_chunks::<8>();
    let mut raw: Vec<[u8; 8]> = Vec::new();
    let addresses = [(6, map_address(0)), (7, map_address(1)), (8, value_address(3, 0))];
    for (register, address) in addresses {
        let [low, high] = [address as u32, (address >> 32) as u32].map(u32::to_le_bytes);
        raw.push([0x18, register, 0, 0, low[0], low[1], low[2], low[3]]);
        raw.push([0, 0, 0, 0, high[0], high[1], high[2], high[3]]);
    }
    raw.extend_from_slice(&words[..words.len().min(512)]);
    raw.push([0x95, 0, 0, 0, 0, 0, 0, 0]);
    let span = Span { start: 0, end: raw.len() };
    let code = decode(&raw, &[span]).ok()?;
    let map = |kind, key_bytes, is_variables| MapDefinition {
        name: format!("{kind:?}"),
        kind,
        key_bytes,
        value_bytes: 20,
        entries: if is_variables { 1 } else { 3 },
        initial: Vec::new(),
        read_only: false,
        is_variables,
    };
    Some(Program {
        code,
        functions: vec![Function { name: "fuzzed".to_owned(), span }],
        left_out: 0,
        route: Entry(0),
        done: None,
        deferred: None,
        setup: None,
        maps: vec![
            map(MapKind::Hash, 8, false),
            map(MapKind::Array, 4, false),
            map(MapKind::PerCoreArray, 4, false),
            map(MapKind::Array, 4, true),
        ],
        lines: Lines::default(),
    })
}

/// What a run gives, the request as it leaves it, and the maps' entries in order.
type Outcome = (Result<u64, Fault>, Request, Vec<(Vec<u8>, Vec<Vec<u8>>)>);

/// Runs it, and gives everything that it can have changed.
fn run(program: Program, op: u8, fused: bool) -> Option<Outcome> {
    let blocks = if op == op::FLUSH { 0 } else { BLOCKS };
    let instance = Instance::new(program, 2).ok()?;
    let instance = Arc::new(if fused { instance } else { instance.unfused() });
    let mut machine = Machine::new(Arc::clone(&instance), 1, 1);
    let mut request = Request {
        start: 8,
        blocks,
        op,
        block_shift: 9,
        device_blocks: 64,
        backends: 2,
        ..Request::default()
    };
    for (backend, blocks) in request.backend.iter_mut().zip(SIZES) {
        *backend = Backend { blocks, ..Backend::default() };
    }
    let time = Cell::new(0);
    let clock = || {
        time.set(time.get() + 1);
        time.get()
    };
    let result = machine.run(instance.program().route(), request.as_mut_bytes(), &clock);
    if let Err(fault) = result {
        // A fault can be told to people wherever it is.
        assert!(!instance.program().locate(fault.instruction).to_string().is_empty());
    }
    let asked = Asked { op, blocks, sizes: &SIZES, is_whole: false, may_defer: blocks % 2 == 0 };
    if let (Ok(_), Ok(Decision::Plan(plan))) = (&result, actions::check(&request, &asked))
        && let Then::Parts(count) = plan.then
    {
        for part in &request.part[..count] {
            let size = SIZES[usize::from(part.backend)];
            assert!(part.block + u64::from(part.blocks) <= size, "within the backend");
            assert!(part.offset + part.blocks <= blocks, "within the request");
        }
    }
    let mut kept = Vec::new();
    for map in instance.maps() {
        let begin = kept.len();
        map.entries(|key, values| kept.push((key.to_vec(), values.to_vec())));
        kept[begin..].sort();
    }
    Some((result, request, kept))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An instruction that has a chance.
    fn instruction() -> impl Strategy<Value = [u8; 8]> {
        let codes: Vec<u8> = (0..=255).filter(|code| *code != 0x18).collect();
        let offsets = prop_oneof![-16_i16..16, any::<i16>()];
        let numbers = prop_oneof![-8_i32..80, any::<i32>()];
        (prop::sample::select(codes), 0_u8..11, 0_u8..11, offsets, numbers).prop_map(
            |(code, dst, src, offset, number)| {
                let ([o0, o1], [n0, n1, n2, n3]) = (offset.to_le_bytes(), number.to_le_bytes());
                [code, dst | src << 4, o0, o1, n0, n1, n2, n3]
            },
        )
    }

    /// An instruction as compilers make many of, so that there are pairs of them.
    fn common() -> impl Strategy<Value = [u8; 8]> {
        const CODES: [u8; 37] = [
            0xbf, 0xbc, 0xb4, 0xb7, 0x07, 0x0f, 0x04, 0x0c, 0x1c, 0x27, 0x57, 0x77, 0x7f, 0x6f,
            0x61, 0x79, 0x71, 0x69, 0x63, 0x7b, 0x6b, 0x73, 0x15, 0x55, 0x16, 0x56, 0xa5, 0xad,
            0xae, 0x1e, 0x3d, 0xbe, 0x05, 0x95, 0x57, 0xbf, 0x07,
        ];
        let pointers = prop::sample::select(vec![0_u8, 1, 1, 2, 8, 10]);
        let (dst, src) = (prop_oneof![0_u8..10, Just(2)], prop_oneof![0_u8..11, pointers]);
        let offsets = prop_oneof![-2_i16..6, Just(-8_i16), Just(16)];
        (prop::sample::select(&CODES[..]), dst, src, offsets, -4_i32..12).prop_map(
            |(code, dst, src, offset, number)| {
                // Stores go where there is memory.
                let dst = if matches!(code, 0x63 | 0x6b | 0x73 | 0x7b) { src } else { dst };
                let ([o0, o1], [n0, n1, n2, n3]) = (offset.to_le_bytes(), number.to_le_bytes());
                [code, dst | ((dst ^ src ^ 3) % 11) << 4, o0, o1, n0, n1, n2, n3]
            },
        )
    }

    /// `r2 = r10 - 8; r1 = a map or something else; call lookup`, or the same with another pointer.
    fn looks_up() -> impl Strategy<Value = Vec<[u8; 8]>> {
        (0_u32..6, prop::sample::select(vec![10_u8, 1, 8, 3]), -12_i32..4, 0_u8..3).prop_map(
            |(map, pointer, distance, dst)| {
                let [d0, d1, d2, d3] = distance.to_le_bytes();
                let address = if map == 4 { value_address(1, 0) } else { map_address(map) };
                let [a, b] = [address as u32, (address >> 32) as u32].map(u32::to_le_bytes);
                vec![
                    [0xbf, 2 | pointer << 4, 0, 0, 0, 0, 0, 0],
                    [0x07, 2, 0, 0, d0, d1, d2, d3],
                    [0x18, dst.max(1), 0, 0, a[0], a[1], a[2], a[3]],
                    [0, 0, 0, 0, b[0], b[1], b[2], b[3]],
                    [0x85, 0, 0, 0, 1, 0, 0, 0],
                ]
            },
        )
    }

    /// The six stores that fill a part in, wherever that is, and maybe one of them elsewhere.
    fn fills_part() -> impl Strategy<Value = Vec<[u8; 8]>> {
        const STORES: [(u8, i16); 6] =
            [(0x63, 20), (0x73, 18), (0x6b, 16), (0x63, 12), (0x63, 8), (0x7b, 0)];
        let start = prop_oneof![0_i16..40, -40_i16..0, 1080_i16..1130];
        let base = prop::sample::select(vec![1_u8, 1, 10, 8, 3]);
        let odd = prop_oneof![2 => Just(6), 1 => 0_usize..6];
        (base, start, prop::array::uniform6(0_u8..11), odd).prop_map(
            |(base, start, sources, odd)| {
                let store = |number: usize| {
                    let (code, field) = STORES[number];
                    let [o0, o1] = (start + field + i16::from(number == odd)).to_le_bytes();
                    [code, base | sources[number] << 4, o0, o1, 0, 0, 0, 0]
                };
                (0..6).map(store).collect()
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn joined_instructions_do_what_each_does(
            op: u8,
            code in prop::collection::vec(
                prop_oneof![
                    8 => common().prop_map(|one| vec![one]), 1 => looks_up(), 1 => fills_part()
                ], 0..24),
        ) {
            let mut bytes = vec![op];
            bytes.extend(code.concat().concat());
            fuzz_bpf(&bytes);
        }

        #[test]
        fn any_program_ends(op: u8, code in prop::collection::vec(instruction(), 0..12)) {
            let mut bytes = vec![op];
            bytes.extend(code.concat());
            fuzz_bpf(&bytes);
        }
    }

    #[test]
    fn committed_objects_run() {
        for name in ["linear", "snapshot", "tests/hostile", "tests/maps"] {
            let path = format!("{}/../../bpf/{name}.bpf.o", env!("CARGO_MANIFEST_DIR"));
            let object = std::fs::read(&path).expect(&path);
            (0..5).for_each(|op| fuzz_bpf(&[&[op], object.as_slice()].concat()));
        }
    }
}
