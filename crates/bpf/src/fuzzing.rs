//! Body of the fuzz target in fuzz/: what must hold whatever a program is.
//!
//! The fuzzer's bytes are an object, if they begin like one; otherwise instructions, for a program that has a map
//! of each kind. What loads is run on maps of its own, with instructions joined (`fuse`), each for itself, and as code
//! of the processor's own if somebody makes that: it must end, within its budget, and do the same each time; and what
//! it wants done must be refused or be within what was asked for.

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

/// How a program is made ready to be run.
type Prepare<'a> = &'a dyn Fn(Instance) -> Instance;

/// Takes anything.
pub fn fuzz_bpf(bytes: &[u8]) {
    fuzz(bytes, &[]);
}

/// Takes anything, and runs it, too, as `compile` leaves it. Whether there was something to run.
pub fn fuzz_native(bytes: &[u8], compile: impl Fn(&mut Instance)) -> bool {
    let compiled = |mut instance| {
        compile(&mut instance);
        instance
    };
    fuzz(bytes, &[&compiled])
}

fn fuzz(bytes: &[u8], others: &[Prepare<'_>]) -> bool {
    let Some((first, rest)) = bytes.split_first() else { return false };
    let op = OPS[usize::from(*first) % OPS.len()];
    let program = match rest.starts_with(b"\x7fELF") {
        true => load(rest).ok(),
        false => program_of(rest),
    };
    let Some(program) = program else { return false };
    let alone = run(program.clone(), op, &Instance::unfused);
    let joined = run(program.clone(), op, &|instance| instance);
    assert_eq!(joined, alone, "joined instructions do what each does for itself");
    for prepare in others {
        let outcome = run(program.clone(), op, prepare);
        assert_eq!(outcome, alone, "code does what the machine does");
    }
    true
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

/// What runs from each entry give, the request as they leave it, and the maps' entries in order.
type Outcome = (Vec<Result<u64, Fault>>, Request, Vec<(Vec<u8>, Vec<Vec<u8>>)>);

/// Runs it, and gives everything that it can have changed.
fn run(program: Program, op: u8, prepare: Prepare<'_>) -> Option<Outcome> {
    let blocks = if op == op::FLUSH { 0 } else { BLOCKS };
    let instance = Arc::new(prepare(Instance::new(program, 2).ok()?));
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
    let program = instance.program();
    let entries = [Some(program.route()), program.done(), program.deferred()];
    let mut results = Vec::new();
    for entry in entries.into_iter().flatten() {
        request.clear_actions();
        let result = machine.run(entry, request.as_mut_bytes(), &clock);
        if let Err(fault) = result {
            // A fault can be told to people wherever it is.
            assert!(!program.locate(fault.instruction).to_string().is_empty());
        }
        let (phase, is_whole, may_defer) = (0, false, blocks % 2 == 0);
        let asked = Asked { op, blocks, sizes: &SIZES, phase, is_whole, may_defer };
        if let (Ok(_), Ok(Decision::Plan(plan))) = (&result, actions::check(&request, &asked))
            && let Then::Parts(count) = plan.then
        {
            for part in &request.part[..count] {
                let size = SIZES[usize::from(part.backend)];
                assert!(part.block + u64::from(part.blocks) <= size, "within the backend");
                assert!(part.offset + part.blocks <= blocks, "within the request");
            }
        }
        results.push(result);
    }
    let mut kept = Vec::new();
    for map in instance.maps() {
        let begin = kept.len();
        map.entries(|key, values| kept.push((key.to_vec(), values.to_vec())));
        kept[begin..].sort();
    }
    Some((results, request, kept))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategies::{likely, unlikely};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn joined_instructions_do_what_each_does(bytes in likely()) {
            fuzz_bpf(&bytes);
        }

        #[test]
        fn any_program_ends(bytes in unlikely()) {
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
