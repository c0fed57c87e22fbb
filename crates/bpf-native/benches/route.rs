//! What a program costs per request, interpreted and as code, beside the same routing in Rust and rbpf's interpreter
//! (which is not safe against hostile programs): `cargo bench -p bpf-native`.
//!
//! Processor time of this thread, the least of many rounds: other work on the machine disturbs it little.

use bpf::request::{Backend, Request};
use bpf::{Instance, Machine, load};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::sync::Arc;
use zerocopy::IntoBytes;

const READ: u8 = 2;
const ROUNDS: u32 = 200;
const CALLS: u32 = 10_000;

fn object(name: &str) -> Vec<u8> {
    let path = format!("{}/../../bpf/{name}.bpf.o", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).expect(&path)
}

/// 8 blocks within the second of two backends, and one that crosses.
fn request(start: u64) -> Request {
    let mut request =
        Request { start, blocks: 8, op: READ, block_shift: 9, backends: 2, ..Request::default() };
    request.device_blocks = 2048;
    request.backend[..2].fill(Backend { blocks: 1024, ..Backend::default() });
    request
}

fn nanoseconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Tells what one call of `work` takes.
fn measure(name: &str, mut work: impl FnMut()) {
    let mut least = f64::MAX;
    for _ in 0..ROUNDS {
        let start = nanoseconds();
        for _ in 0..CALLS {
            work();
        }
        least = least.min((nanoseconds() - start) / f64::from(CALLS));
    }
    println!("{name:40} {least:8.1} ns");
}

fn programs() {
    for name in ["null", "linear", "stripe", "mirror", "statistics", "snapshot", "rate", "thin"] {
        for (kind, start) in [("one part", 1100), ("two parts", 1020)] {
            for is_code in [false, true] {
                let mut instance = Instance::new(load(&object(name)).expect(name), 1).expect(name);
                if is_code {
                    bpf_native::compile(&mut instance).expect(name);
                }
                let mut machine = Machine::new(Arc::new(instance), 0, 1);
                let route = machine.instance().program().route();
                let mut request = request(start);
                let how = if is_code { "as code" } else { "interpreted" };
                measure(&format!("{name}, {kind}, {how}"), || {
                    request.clear_actions();
                    let r0 = machine.run(route, black_box(&mut request).as_mut_bytes(), &|| 0);
                    assert_eq!(r0, Ok(0));
                });
            }
        }
    }
}

/// `linear.bpf.c` in Rust.
#[inline(never)]
fn linear(request: &mut Request) {
    let (mut at, mut done) = (request.start, 0);
    for backend in 0..request.backend.len() {
        if done >= request.blocks {
            break;
        }
        let size = request.backend[backend].blocks;
        if at >= size {
            at -= size;
            continue;
        }
        let blocks = (size - at).min(u64::from(request.blocks - done)) as u32;
        let part = &mut request.part[usize::from(request.parts)];
        (part.block, part.blocks, part.offset) = (at, blocks, done);
        (part.backend, part.op) = (backend as u16, request.op);
        request.parts += 1;
        done += blocks;
        at = 0;
    }
}

fn beside() {
    let mut native = request(1100);
    measure("native: linear, one part", || {
        native.clear_actions();
        linear(black_box(&mut native));
    });
    assert_eq!((native.parts, native.part[0].block), (1, 76));
    let object = object("linear");
    let code = section(&object, "nvlane/route");
    let machine = rbpf::EbpfVmRaw::new(Some(&code)).expect("rbpf takes it");
    let mut theirs = request(1100);
    measure("rbpf's interpreter: linear, one part", || {
        theirs.clear_actions();
        machine.execute_program(black_box(&mut theirs).as_mut_bytes()).expect("it runs");
    });
    assert_eq!(theirs.part[0].block, 76);
}

fn section(object: &[u8], name: &str) -> Vec<u8> {
    use object::{Object, ObjectSection};
    let elf = object::File::parse(object).expect("an object");
    let section = elf.section_by_name(name).expect("the section");
    section.data().expect("its bytes").to_vec()
}

fn main() {
    programs();
    beside();
}
