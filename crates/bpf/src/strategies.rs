//! Programs for property tests, as [`fuzzing`](crate::fuzzing) takes them.

use crate::memory::{map_address, value_address};
use proptest::prelude::*;

/// Bytes of a program as compilers make them, about as often.
pub fn likely() -> impl Strategy<Value = Vec<u8>> {
    let parts = prop_oneof![
        16 => common().prop_map(|one| vec![one]),
        2 => looks_up(),
        2 => fills_part(),
        1 => calls().prop_map(|one| vec![one]),
    ];
    let code = prop::collection::vec(parts, 0..24);
    (any::<u8>(), code).prop_map(|(op, code)| [vec![op], code.concat().concat()].concat())
}

/// Bytes of a program of any instructions.
pub fn unlikely() -> impl Strategy<Value = Vec<u8>> {
    let code = prop::collection::vec(instruction(), 0..12);
    (any::<u8>(), code).prop_map(|(op, code)| [vec![op], code.concat()].concat())
}

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
    const CODES: [u8; 41] = [
        0xbf, 0xbc, 0xb4, 0xb7, 0x07, 0x0f, 0x04, 0x0c, 0x1c, 0x27, 0x57, 0x77, 0x7f, 0x6f, 0x61,
        0x79, 0x71, 0x69, 0x63, 0x7b, 0x6b, 0x73, 0x15, 0x55, 0x16, 0x56, 0xa5, 0xad, 0xae, 0x1e,
        0x3d, 0xbe, 0x05, 0x95, 0x57, 0xbf, 0x07, 0x37, 0x3f, 0x9f, 0x9c,
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
    (base, start, prop::array::uniform6(0_u8..11), odd).prop_map(|(base, start, sources, odd)| {
        let store = |number: usize| {
            let (code, field) = STORES[number];
            let [o0, o1] = (start + field + i16::from(number == odd)).to_le_bytes();
            [code, base | sources[number] << 4, o0, o1, 0, 0, 0, 0]
        };
        (0..6).map(store).collect()
    })
}

/// A call of a function nearby, which may be the one that it is in.
fn calls() -> impl Strategy<Value = [u8; 8]> {
    (-12_i32..12).prop_map(|distance| {
        let [n0, n1, n2, n3] = distance.to_le_bytes();
        [0x85, 0x10, 0, 0, n0, n1, n2, n3]
    })
}
