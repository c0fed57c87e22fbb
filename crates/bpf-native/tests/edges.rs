//! Code does what the machine does where mistakes would hide: at the ends of memory, for every operation on every kind of
//! number and place, and to the last instruction of the budget.

#![cfg(target_arch = "x86_64")]

use bpf::fuzzing::fuzz_native;
use bpf::{Instance, native::STACK_BYTES, request::Request};
use bpf_native::compile;

/// An instruction's bytes.
fn insn(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> [u8; 8] {
    let ([o0, o1], [n0, n1, n2, n3]) = (offset.to_le_bytes(), immediate.to_le_bytes());
    [code, dst | src << 4, o0, o1, n0, n1, n2, n3]
}

/// Loads 64 bits.
fn number(dst: u8, number: u64) -> [[u8; 8]; 2] {
    [insn(0x18, dst, 0, 0, number as i32), insn(0, 0, 0, 0, (number >> 32) as i32)]
}

/// Runs a program of these as code and by the machine. Compared is what it leaves in the request, among all else.
/// Whether it is a program.
fn is_alike(code: &[[u8; 8]]) -> bool {
    assert!(code.len() <= 512, "the fuzzer would leave the rest out");
    let bytes = [&[0], code.concat().as_slice()].concat();
    fuzz_native(&bytes, |instance: &mut Instance| compile(instance).expect("all of them can be"))
}

fn compare(code: &[[u8; 8]]) {
    assert!(is_alike(code), "it is no program");
}

const STORE: u8 = 0x7b;
const MOVE: u8 = 0xbf;
const SET: u8 = 0xb7;
const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

fn jump(distance: i16) -> [u8; 8] {
    insn(0x05, 0, 0, distance, 0)
}

fn call(distance: i32) -> [u8; 8] {
    insn(0x85, 0, 1, 0, distance)
}

#[test]
fn accesses_end_where_memory_ends() {
    // All sizes: loads, loads with a sign, stores of a register and of a number.
    const ACCESSES: [u8; 15] =
        [0x71, 0x69, 0x61, 0x79, 0x91, 0x89, 0x81, 0x73, 0x6b, 0x63, 0x7b, 0x72, 0x6a, 0x62, 0x7a];
    let (context, stack) = (size_of::<Request>() as i16, STACK_BYTES as i16);
    // The frame pointer of the first function stands 512 bytes above the stack's start.
    for (base, start, end) in [(1, 0, context), (10, -512, stack - 512)] {
        let places = (start - 10..start + 10).chain(end - 10..end + 10);
        for (place, access) in places.flat_map(|place| ACCESSES.map(|access| (place, access))) {
            let to_memory = access & 7 != 1;
            let (dst, src) = if to_memory { (base, 3) } else { (3, base) };
            let tell = insn(STORE, 6, 3, 64, 0);
            let once = insn(access, dst, src, place, -2);
            let begin = [insn(MOVE, 6, 1, 0, 0), insn(SET, 3, 0, 0, -3)];
            compare(&[&begin[..], &[once, tell, EXIT]].concat());
            // The same where a function calls another: the frame is not known of where it stands.
            compare(&[&begin[..], &[once, tell, call(1), EXIT, EXIT]].concat());
            // The same through a register that it is not known of where it points to.
            let (dst, src) = if to_memory { (4, 3) } else { (3, 4) };
            let again = [insn(MOVE, 4, base, 0, 0), insn(0x07, 4, 0, 0, i32::from(place) - 5)];
            let once = insn(access, dst, src, 5, -2);
            compare(&[&begin[..], &again, &[once, tell, EXIT]].concat());
        }
    }
}

#[test]
fn addresses_elsewhere_are_refused_alike() {
    let bits = (0..64).map(|bit| 1 << bit);
    for address in bits.chain([0, 3 << 32, 6 << 32, 1 << 63 | 2 << 32, u64::MAX]) {
        for distance in [-1_i64, 0, 1, 1119, 1120] {
            for access in [0x71, 0x79, 0x7b] {
                let (dst, src) = if access == 0x7b { (4, 3) } else { (3, 4) };
                let to = address.wrapping_add_signed(distance);
                compare(&[&number(4, to)[..], &[insn(access, dst, src, 0, 0), EXIT]].concat());
            }
        }
    }
}

/// Where an operation has its operands: also where code needs registers for itself, both in one, and the frame.
const PLACES: [(u8, u8); 12] = [
    (0, 2),
    (2, 0),
    (3, 4),
    (4, 3),
    (4, 4),
    (3, 3),
    (5, 10),
    (4, 10),
    (9, 8),
    (1, 0),
    (3, 1),
    (10, 10),
];

/// Loads both operands, as far as that can be.
fn operands((dst, src): (u8, u8), (a, b): (u64, u64)) -> Vec<[u8; 8]> {
    let mut code = Vec::new();
    for (register, value) in [(src, b), (dst, a)] {
        if register != 10 {
            code.extend(number(register, value));
        }
    }
    code
}

/// A program that does `work` with each pair of numbers and tells register `result` each time. All others have numbers of
/// their own before, and are told at the end.
fn on_pairs(numbers: &[u64], places: (u8, u8), work: &[[u8; 8]], result: u8) -> bool {
    // The request is where r7 points to, which no operation has anything to do with.
    let mut program = vec![insn(MOVE, 7, 1, 0, 0)];
    let others = (0..10).filter(|register| *register != 7);
    program.extend(others.map(|register| insn(SET, register, 0, 0, -77 * i32::from(register))));
    let pairs = numbers.iter().flat_map(|a| numbers.iter().map(|b| (*a, *b)));
    for (index, pair) in pairs.enumerate() {
        program.extend(operands(places, pair));
        program.extend(work);
        program.push(insn(STORE, 7, result, index as i16 * 8, 0));
    }
    program.extend((0..10).map(|it| insn(STORE, 7, it, 1000 + i16::from(it) * 8, 0)));
    is_alike(&program)
}

#[test]
fn operations_on_all_kinds_of_numbers() {
    const NUMBERS: [u64; 9] =
        [0, 1, u64::MAX, 1 << 63, 1 << 31, 0x1234_5678_9abc_def0, 63, 32, 0xffff_ffff];
    // Divisions with a sign, moves with one, and the widths of swaps.
    const FORMS: [(i16, i32); 9] =
        [(0, 16), (0, 32), (0, 64), (0, 0), (0, -1), (1, -7), (8, 0), (16, 0), (32, 0)];
    let mut known = std::collections::BTreeSet::new();
    for code in (0..=255_u8).filter(|code| matches!(code & 7, 4 | 7)) {
        for (places, (offset, immediate)) in
            PLACES.iter().flat_map(|places| FORMS.map(|form| (*places, form)))
        {
            let work = insn(code, places.0, places.1, offset, immediate);
            // Most codes are none in most forms: not worth 81 pairs to learn.
            if is_alike(&[work]) {
                known.insert((code, offset));
                assert!(on_pairs(&NUMBERS, places, &[work], places.0), "{work:x?}");
            }
        }
    }
    // 12 operations in 4 ways, negations, swaps in 3; 8 divisions with a sign; 5 moves with one.
    assert_eq!(known.len(), 48 + 2 + 3 + 8 + 5, "{known:x?}");
}

#[test]
fn jumps_on_all_kinds_of_numbers() {
    const NUMBERS: [u64; 7] = [0, 1, u64::MAX, 1 << 63, 1 << 31, 0x1_0000_0001, 0x7fff_ffff];
    let codes = (0..=255_u8).filter(|code| matches!(code & 7, 5 | 6) && code >> 4 < 14);
    let codes: Vec<u8> = codes.filter(|code| !matches!(code >> 4, 0 | 8 | 9)).collect();
    assert_eq!(codes.len(), 11 * 4);
    for (code, places) in codes.iter().flat_map(|code| PLACES.map(|places| (*code, places))) {
        for immediate in [0, 1, -1, i32::MIN, i32::MAX] {
            let jump = insn(code, places.0, places.1, 1, immediate);
            // Neither operand is r6.
            let work = [insn(SET, 6, 0, 0, 1), jump, insn(SET, 6, 0, 0, 2)];
            assert!(on_pairs(&NUMBERS, places, &work, 6), "{jump:x?}");
        }
    }
}

/// Adds one to a number in the request: how far a run comes.
const COUNT: usize = 3;

fn count() -> [[u8; 8]; COUNT] {
    [insn(0x79, 2, 7, 64, 0), insn(0x07, 2, 0, 0, 1), insn(STORE, 7, 2, 64, 0)]
}

#[test]
fn budgets_last_as_long() {
    let keep = [insn(MOVE, 7, 1, 0, 0)];
    // Back by a jump, and by a condition.
    compare(&[&keep[..], &count(), &[jump(-4)]].concat());
    compare(&[&keep[..], &count(), &[insn(0x55, 2, 0, -4, 0), EXIT]].concat());
    for more in 0..6 {
        let exits = vec![EXIT; more];
        // By the return from a function that is behind.
        let calls = [call(1 + more as i32), jump(-5)];
        compare(&[&keep[..], &count(), &calls, &exits, &[EXIT]].concat());
        // By the call of one that is in front.
        let function = [jump(1 + more as i16), EXIT];
        let back = -(COUNT as i32 + more as i32 + 2);
        let calls = [call(back), jump(-(COUNT as i16) - 2)];
        compare(&[&keep[..], &function, &exits, &count(), &calls].concat());
    }
}

#[test]
fn functions_keep_what_is_theirs() {
    // One that calls itself until that is too much, with a frame of its own each time.
    for (limit, counter) in (1..10).flat_map(|limit| [6_u8, 8, 9].map(|it| (limit, it))) {
        let own = [
            insn(0x07, counter, 0, 0, 1),
            insn(STORE, 10, counter, -8, 0),
            insn(0x35, counter, 0, 1, limit),
            call(-4),
            insn(0x79, 3, 10, -8, 0),
            insn(0x0f, 0, 3, 0, 0),
            insn(0x0f, 0, counter, 0, 0),
            insn(0x0f, 0, 10, 0, 0),
            EXIT,
        ];
        let begin = [
            insn(MOVE, 7, 1, 0, 0),
            insn(SET, counter, 0, 0, 0),
            insn(SET, 0, 0, 0, 0),
            call(3),
            insn(STORE, 7, 0, 64, 0),
            insn(STORE, 7, counter, 72, 0),
            EXIT,
        ];
        compare(&[&begin[..], &own].concat());
    }
}
