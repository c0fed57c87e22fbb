//! The machine that carries out a program.

use crate::FaultKind;
use crate::map::KEY_BYTES_MAX;
use crate::memory::{
    CONTEXT_ADDRESS, FRAMES_MAX, Memory, STACK_BYTES, frame_address, value_address,
};
use crate::op::{Insn, Op, atomic};
use crate::program::{Entry, Fault, Instance};
use std::sync::Arc;

/// Instructions that one run may take.
pub const BUDGET: u32 = 1 << 16;

/// Helpers, by Linux's numbers.
pub mod helper {
    /// `bpf_map_lookup_elem(map, key)`: the value's address, or 0.
    pub const MAP_LOOKUP: i64 = 1;
    /// `bpf_map_update_elem(map, key, value, flags)`: 0, or an errno.
    pub const MAP_UPDATE: i64 = 2;
    /// `bpf_map_delete_elem(map, key)`: 0, or an errno.
    pub const MAP_DELETE: i64 = 3;
    /// `bpf_ktime_get_ns()`.
    pub const TIME: i64 = 5;
    /// `bpf_get_prandom_u32()`.
    pub const RANDOM: i64 = 7;
    /// `bpf_get_smp_processor_id()`: the core, counted from 0.
    pub const CORE: i64 = 8;
    /// All of them.
    pub const ALL: [i64; 6] = [MAP_LOOKUP, MAP_UPDATE, MAP_DELETE, TIME, RANDOM, CORE];
}

/// Runs one instance of a program on one core.
#[derive(Debug)]
pub struct Machine {
    instance: Arc<Instance>,
    stack: Box<[u8; STACK_BYTES]>,
    frames: Box<[Frame; FRAMES_MAX as usize]>,
    core: u32,
    random: u64,
}

/// What a function needs again after it has called another.
#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    back: usize,
    kept: [u64; 4],
}

impl Machine {
    /// A machine for core `core`; `seed` is for its random numbers.
    pub fn new(instance: Arc<Instance>, core: u32, seed: u64) -> Machine {
        // Zero is the only seed that stays zero.
        let random = seed | 1 << 63;
        let (stack, frames) = (Box::new([0; STACK_BYTES]), Box::default());
        Machine { instance, stack, frames, core, random }
    }

    /// The program and its maps.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// Runs from `entry` on with the context's address in r1, and gives r0. `now_ns` is asked for the time when the
    /// program asks.
    ///
    /// # Errors
    /// What the program did wrong, and where. The context and the maps are as it has left them.
    pub fn run(
        &mut self,
        entry: Entry,
        context: &mut [u8],
        now_ns: &dyn Fn() -> u64,
    ) -> Result<u64, Fault> {
        let instance = &*self.instance;
        let mut run = Run {
            memory: Memory { stack: &mut self.stack, context, maps: instance.maps() },
            frames: &mut self.frames,
            budget: BUDGET,
            core: self.core,
            random: self.random,
            now_ns,
        };
        let mut at = entry.start();
        let outcome = run.go(instance.code(), &mut at);
        self.random = run.random;
        outcome.map_err(|kind| Fault { kind, instruction: at.saturating_sub(1) })
    }
}

struct Run<'a> {
    memory: Memory<'a>,
    /// Of functions that have called another, as many as are under way.
    frames: &'a mut [Frame; FRAMES_MAX as usize],
    budget: u32,
    core: u32,
    random: u64,
    now_ns: &'a dyn Fn() -> u64,
}

impl Run<'_> {
    /// Carries out instructions until the first function exits. `at` is then, or at a fault, the one behind the
    /// last.
    #[inline(never)]
    fn go(&mut self, code: &[Insn], at: &mut usize) -> Result<u64, FaultKind> {
        // Sixteen, so that no index of four bits needs a check.
        let mut r = [0_u64; 16];
        let mut depth = 0_u32;
        let mut pc = *at;
        r[1] = CONTEXT_ADDRESS;
        r[10] = frame_address(0);
        /// The register that an instruction names.
        macro_rules! reg {
            ($number:expr) => {
                r[usize::from($number & 15)]
            };
        }
        /// The value of an expression that may fault.
        macro_rules! may {
            ($result:expr) => {
                match $result {
                    Ok(value) => value,
                    Err(kind) => {
                        *at = pc;
                        return Err(kind);
                    }
                }
            };
        }
        loop {
            let mut insn = code[pc];
            pc += 1;
            macro_rules! alu64 {
                (k $work:expr) => {
                    reg!(insn.dst) = $work(reg!(insn.dst), insn.immediate as u64)
                };
                (r $work:expr) => {
                    reg!(insn.dst) = $work(reg!(insn.dst), reg!(insn.src))
                };
            }
            macro_rules! alu32 {
                (k $work:expr) => {
                    reg!(insn.dst) = u64::from($work(reg!(insn.dst) as u32, insn.immediate as u32))
                };
                (r $work:expr) => {
                    reg!(insn.dst) = u64::from($work(reg!(insn.dst) as u32, reg!(insn.src) as u32))
                };
            }
            // Going back is what makes a run long: it is paid for by the distance, which bounds the
            // instructions by the budget and the length of the program.
            macro_rules! go_to {
                ($target:expr) => {{
                    let target: usize = $target;
                    if target < pc {
                        may!(self.pay((pc - target) as u32));
                    }
                    pc = target;
                }};
            }
            macro_rules! jump {
                (k64 $cond:expr) => {
                    if $cond(reg!(insn.dst), insn.immediate as u64) {
                        go_to!(insn.offset as usize)
                    }
                };
                (r64 $cond:expr) => {
                    if $cond(reg!(insn.dst), reg!(insn.src)) {
                        go_to!(insn.offset as usize)
                    }
                };
                (k32 $cond:expr) => {
                    if $cond(reg!(insn.dst) as u32, insn.immediate as u32) {
                        go_to!(insn.offset as usize)
                    }
                };
                (r32 $cond:expr) => {
                    if $cond(reg!(insn.dst) as u32, reg!(insn.src) as u32) {
                        go_to!(insn.offset as usize)
                    }
                };
            }
            macro_rules! load {
                ($size:literal) => {
                    may!(
                        self.memory.load::<$size>(
                            reg!(insn.src).wrapping_add(i64::from(insn.offset) as u64)
                        )
                    )
                };
            }
            macro_rules! store {
                ($size:literal, $value:expr) => {
                    may!(self.memory.store::<$size>(
                        reg!(insn.dst).wrapping_add(i64::from(insn.offset) as u64),
                        $value
                    ))
                };
            }
            /// Two instructions. A jump of the first leaves the second out.
            macro_rules! then {
                ($more:literal, { $first:expr } { $second:expr }) => {{
                    let next = pc + $more;
                    $first;
                    if pc == next {
                        insn = code[pc];
                        pc += 1;
                        $second;
                    }
                }};
            }
            macro_rules! look_up {
                () => {{
                    pc += 2;
                    r[1] = insn.immediate as u64;
                    r[0] = may!(self.look_up(insn.offset as u32, r[2]));
                }};
            }
            match insn.op {
                Op::AddK64 => alu64!(k u64::wrapping_add),
                Op::AddR64 => alu64!(r u64::wrapping_add),
                Op::AddK32 => alu32!(k u32::wrapping_add),
                Op::AddR32 => alu32!(r u32::wrapping_add),
                Op::SubK64 => alu64!(k u64::wrapping_sub),
                Op::SubR64 => alu64!(r u64::wrapping_sub),
                Op::SubK32 => alu32!(k u32::wrapping_sub),
                Op::SubR32 => alu32!(r u32::wrapping_sub),
                Op::MulK64 => alu64!(k u64::wrapping_mul),
                Op::MulR64 => alu64!(r u64::wrapping_mul),
                Op::MulK32 => alu32!(k u32::wrapping_mul),
                Op::MulR32 => alu32!(r u32::wrapping_mul),
                Op::DivK64 => alu64!(k div64),
                Op::DivR64 => alu64!(r div64),
                Op::DivK32 => alu32!(k div32),
                Op::DivR32 => alu32!(r div32),
                Op::ModK64 => alu64!(k mod64),
                Op::ModR64 => alu64!(r mod64),
                Op::ModK32 => alu32!(k mod32),
                Op::ModR32 => alu32!(r mod32),
                Op::SdivK64 => alu64!(k sdiv64),
                Op::SdivR64 => alu64!(r sdiv64),
                Op::SdivK32 => alu32!(k sdiv32),
                Op::SdivR32 => alu32!(r sdiv32),
                Op::SmodK64 => alu64!(k smod64),
                Op::SmodR64 => alu64!(r smod64),
                Op::SmodK32 => alu32!(k smod32),
                Op::SmodR32 => alu32!(r smod32),
                Op::OrK64 => alu64!(k | a, b | a | b),
                Op::OrR64 => alu64!(r | a, b | a | b),
                Op::OrK32 => alu32!(k |a: u32, b| a | b),
                Op::OrR32 => alu32!(r |a: u32, b| a | b),
                Op::AndK64 => alu64!(k | a, b | a & b),
                Op::AndR64 => alu64!(r | a, b | a & b),
                Op::AndK32 => alu32!(k |a: u32, b| a & b),
                Op::AndR32 => alu32!(r |a: u32, b| a & b),
                Op::XorK64 => alu64!(k | a, b | a ^ b),
                Op::XorR64 => alu64!(r | a, b | a ^ b),
                Op::XorK32 => alu32!(k |a: u32, b| a ^ b),
                Op::XorR32 => alu32!(r |a: u32, b| a ^ b),
                Op::LshK64 => alu64!(k |a: u64, b| a << (b & 63)),
                Op::LshR64 => alu64!(r |a: u64, b| a << (b & 63)),
                Op::LshK32 => alu32!(k |a: u32, b| a << (b & 31)),
                Op::LshR32 => alu32!(r |a: u32, b| a << (b & 31)),
                Op::RshK64 => alu64!(k |a: u64, b| a >> (b & 63)),
                Op::RshR64 => alu64!(r |a: u64, b| a >> (b & 63)),
                Op::RshK32 => alu32!(k |a: u32, b| a >> (b & 31)),
                Op::RshR32 => alu32!(r |a: u32, b| a >> (b & 31)),
                Op::ArshK64 => alu64!(k | a, b | (a as i64 >> (b & 63)) as u64),
                Op::ArshR64 => alu64!(r | a, b | (a as i64 >> (b & 63)) as u64),
                Op::ArshK32 => alu32!(k | a, b | (a as i32 >> (b & 31)) as u32),
                Op::ArshR32 => alu32!(r | a, b | (a as i32 >> (b & 31)) as u32),
                Op::MovK64 => reg!(insn.dst) = insn.immediate as u64,
                Op::MovR64 => reg!(insn.dst) = reg!(insn.src),
                Op::MovK32 => reg!(insn.dst) = u64::from(insn.immediate as u32),
                Op::MovR32 => reg!(insn.dst) = u64::from(reg!(insn.src) as u32),
                Op::Movsx8R64 => reg!(insn.dst) = reg!(insn.src) as i8 as u64,
                Op::Movsx16R64 => reg!(insn.dst) = reg!(insn.src) as i16 as u64,
                Op::Movsx32R64 => reg!(insn.dst) = reg!(insn.src) as i32 as u64,
                Op::Movsx8R32 => reg!(insn.dst) = u64::from(reg!(insn.src) as i8 as u32),
                Op::Movsx16R32 => reg!(insn.dst) = u64::from(reg!(insn.src) as i16 as u32),
                Op::Neg64 => reg!(insn.dst) = reg!(insn.dst).wrapping_neg(),
                Op::Neg32 => reg!(insn.dst) = u64::from((reg!(insn.dst) as u32).wrapping_neg()),
                Op::Low16 => reg!(insn.dst) = u64::from(reg!(insn.dst) as u16),
                Op::Low32 => reg!(insn.dst) = u64::from(reg!(insn.dst) as u32),
                Op::Low64 => {}
                Op::Swap16 => {
                    reg!(insn.dst) = u64::from((reg!(insn.dst) as u16).swap_bytes());
                }
                Op::Swap32 => {
                    reg!(insn.dst) = u64::from((reg!(insn.dst) as u32).swap_bytes());
                }
                Op::Swap64 => reg!(insn.dst) = reg!(insn.dst).swap_bytes(),
                Op::LoadImmediate => {
                    reg!(insn.dst) = insn.immediate as u64;
                    pc += 1;
                }
                Op::Load8 => reg!(insn.dst) = load!(1),
                Op::Load16 => reg!(insn.dst) = load!(2),
                Op::Load32 => reg!(insn.dst) = load!(4),
                Op::Load64 => reg!(insn.dst) = load!(8),
                Op::Loads8 => reg!(insn.dst) = load!(1) as i8 as u64,
                Op::Loads16 => reg!(insn.dst) = load!(2) as i16 as u64,
                Op::Loads32 => reg!(insn.dst) = load!(4) as i32 as u64,
                Op::StoreK8 => store!(1, insn.immediate as u64),
                Op::StoreK16 => store!(2, insn.immediate as u64),
                Op::StoreK32 => store!(4, insn.immediate as u64),
                Op::StoreK64 => store!(8, insn.immediate as u64),
                Op::StoreR8 => store!(1, reg!(insn.src)),
                Op::StoreR16 => store!(2, reg!(insn.src)),
                Op::StoreR32 => store!(4, reg!(insn.src)),
                Op::StoreR64 => store!(8, reg!(insn.src)),
                Op::Atomic32 | Op::Atomic64 => {
                    may!(self.atomic(&insn, &mut r));
                }
                Op::JeqK64 => jump!(k64 | a, b | a == b),
                Op::JeqR64 => jump!(r64 | a, b | a == b),
                Op::JeqK32 => jump!(k32 |a: u32, b| a == b),
                Op::JeqR32 => jump!(r32 |a: u32, b| a == b),
                Op::JneK64 => jump!(k64 | a, b | a != b),
                Op::JneR64 => jump!(r64 | a, b | a != b),
                Op::JneK32 => jump!(k32 |a: u32, b| a != b),
                Op::JneR32 => jump!(r32 |a: u32, b| a != b),
                Op::JgtK64 => jump!(k64 | a, b | a > b),
                Op::JgtR64 => jump!(r64 | a, b | a > b),
                Op::JgtK32 => jump!(k32 |a: u32, b| a > b),
                Op::JgtR32 => jump!(r32 |a: u32, b| a > b),
                Op::JgeK64 => jump!(k64 | a, b | a >= b),
                Op::JgeR64 => jump!(r64 | a, b | a >= b),
                Op::JgeK32 => jump!(k32 |a: u32, b| a >= b),
                Op::JgeR32 => jump!(r32 |a: u32, b| a >= b),
                Op::JltK64 => jump!(k64 | a, b | a < b),
                Op::JltR64 => jump!(r64 | a, b | a < b),
                Op::JltK32 => jump!(k32 |a: u32, b| a < b),
                Op::JltR32 => jump!(r32 |a: u32, b| a < b),
                Op::JleK64 => jump!(k64 | a, b | a <= b),
                Op::JleR64 => jump!(r64 | a, b | a <= b),
                Op::JleK32 => jump!(k32 |a: u32, b| a <= b),
                Op::JleR32 => jump!(r32 |a: u32, b| a <= b),
                Op::JsetK64 => jump!(k64 | a, b | a & b != 0),
                Op::JsetR64 => jump!(r64 | a, b | a & b != 0),
                Op::JsetK32 => jump!(k32 |a: u32, b| a & b != 0),
                Op::JsetR32 => jump!(r32 |a: u32, b| a & b != 0),
                Op::JsgtK64 => jump!(k64 | a, b | a as i64 > b as i64),
                Op::JsgtR64 => jump!(r64 | a, b | a as i64 > b as i64),
                Op::JsgtK32 => jump!(k32 | a, b | a as i32 > b as i32),
                Op::JsgtR32 => jump!(r32 | a, b | a as i32 > b as i32),
                Op::JsgeK64 => jump!(k64 | a, b | a as i64 >= b as i64),
                Op::JsgeR64 => jump!(r64 | a, b | a as i64 >= b as i64),
                Op::JsgeK32 => jump!(k32 | a, b | a as i32 >= b as i32),
                Op::JsgeR32 => jump!(r32 | a, b | a as i32 >= b as i32),
                Op::JsltK64 => jump!(k64 | a, b | (a as i64) < b as i64),
                Op::JsltR64 => jump!(r64 | a, b | (a as i64) < b as i64),
                Op::JsltK32 => jump!(k32 | a, b | (a as i32) < b as i32),
                Op::JsltR32 => jump!(r32 | a, b | (a as i32) < b as i32),
                Op::JsleK64 => jump!(k64 | a, b | a as i64 <= b as i64),
                Op::JsleR64 => jump!(r64 | a, b | a as i64 <= b as i64),
                Op::JsleK32 => jump!(k32 | a, b | a as i32 <= b as i32),
                Op::JsleR32 => jump!(r32 | a, b | a as i32 <= b as i32),
                Op::Jump => go_to!(insn.offset as usize),
                Op::Call => {
                    if depth + 1 == FRAMES_MAX {
                        may!(Err(FaultKind::TooDeep));
                    }
                    self.frames[depth as usize] =
                        Frame { back: pc, kept: [r[6], r[7], r[8], r[9]] };
                    depth += 1;
                    r[10] = frame_address(depth);
                    go_to!(insn.offset as usize);
                }
                Op::Exit => {
                    if depth == 0 {
                        *at = pc;
                        return Ok(r[0]);
                    }
                    depth -= 1;
                    let Frame { back, kept } = self.frames[depth as usize];
                    [r[6], r[7], r[8], r[9]] = kept;
                    r[10] = frame_address(depth);
                    go_to!(back);
                }
                Op::MovR64AddK64 => {
                    then!(0, { reg!(insn.dst) = reg!(insn.src) } { alu64!(k u64::wrapping_add) })
                }
                Op::MovR64AddR64 => {
                    then!(0, { reg!(insn.dst) = reg!(insn.src) } { alu64!(r u64::wrapping_add) })
                }
                Op::MovR64MulK64 => {
                    then!(0, { reg!(insn.dst) = reg!(insn.src) } { alu64!(k u64::wrapping_mul) })
                }
                Op::MovR64Load32 => {
                    then!(0, { reg!(insn.dst) = reg!(insn.src) } { reg!(insn.dst) = load!(4) })
                }
                Op::MovR32AddR32 => {
                    then!(0, { reg!(insn.dst) = u64::from(reg!(insn.src) as u32) } { alu32!(r u32::wrapping_add) })
                }
                Op::MovR32SubR32 => {
                    then!(0, { reg!(insn.dst) = u64::from(reg!(insn.src) as u32) } { alu32!(r u32::wrapping_sub) })
                }
                Op::MovR32JltK64 => {
                    then!(0, { reg!(insn.dst) = u64::from(reg!(insn.src) as u32) } { jump!(k64 | a, b | a < b) })
                }
                Op::MovK32StoreR32 => {
                    then!(0, { reg!(insn.dst) = u64::from(insn.immediate as u32) } { store!(4, reg!(insn.src)) })
                }
                Op::MovK32StoreR16 => {
                    then!(0, { reg!(insn.dst) = u64::from(insn.immediate as u32) } { store!(2, reg!(insn.src)) })
                }
                Op::MovK32JgeR64 => {
                    then!(0, { reg!(insn.dst) = u64::from(insn.immediate as u32) } { jump!(r64 | a, b | a >= b) })
                }
                Op::MovK64JeqK64 => {
                    then!(0, { reg!(insn.dst) = insn.immediate as u64 } { jump!(k64 | a, b | a == b) })
                }
                Op::AddK64JneK64 => {
                    then!(0, { alu64!(k u64::wrapping_add) } { jump!(k64 | a, b | a != b) })
                }
                Op::AddK64MovR32 => {
                    then!(0, { alu64!(k u64::wrapping_add) } { reg!(insn.dst) = u64::from(reg!(insn.src) as u32) })
                }
                Op::AddK32StoreR16 => {
                    then!(0, { alu32!(k u32::wrapping_add) } { store!(2, reg!(insn.src)) })
                }
                Op::AddR64RshK64 => {
                    then!(0, { alu64!(r u64::wrapping_add) } { alu64!(k |a: u64, b| a >> (b & 63)) })
                }
                Op::AddR32AndK64 => {
                    then!(0, { alu32!(r u32::wrapping_add) } { alu64!(k | a, b | a & b) })
                }
                Op::AndK64Load64 => {
                    then!(0, { alu64!(k | a, b | a & b) } { reg!(insn.dst) = load!(8) })
                }
                Op::AndK64JeqR32 => {
                    then!(0, { alu64!(k | a, b | a & b) } { jump!(r32 |a: u32, b| a == b) })
                }
                Op::RshK64StoreR32 => {
                    then!(0, { alu64!(k |a: u64, b| a >> (b & 63)) } { store!(4, reg!(insn.src)) })
                }
                Op::RshR64AndK64 => {
                    then!(0, { alu64!(r |a: u64, b| a >> (b & 63)) } { alu64!(k | a, b | a & b) })
                }
                Op::Load8JneK32 => {
                    then!(0, { reg!(insn.dst) = load!(1) } { jump!(k32 |a: u32, b| a != b) })
                }
                Op::Load8JeqK32 => {
                    then!(0, { reg!(insn.dst) = load!(1) } { jump!(k32 |a: u32, b| a == b) })
                }
                Op::Load16JltK64 => {
                    then!(0, { reg!(insn.dst) = load!(2) } { jump!(k64 | a, b | a < b) })
                }
                Op::Load32MovK32 => {
                    then!(0, { reg!(insn.dst) = load!(4) } { reg!(insn.dst) = u64::from(insn.immediate as u32) })
                }
                Op::Load64MovR64 => {
                    then!(0, { reg!(insn.dst) = load!(8) } { reg!(insn.dst) = reg!(insn.src) })
                }
                Op::Load64MovR32 => {
                    then!(0, { reg!(insn.dst) = load!(8) } { reg!(insn.dst) = u64::from(reg!(insn.src) as u32) })
                }
                Op::Load64RshR64 => {
                    then!(0, { reg!(insn.dst) = load!(8) } { alu64!(r |a: u64, b| a >> (b & 63)) })
                }
                Op::Load64Load32 => {
                    then!(0, { reg!(insn.dst) = load!(8) } { reg!(insn.dst) = load!(4) })
                }
                Op::Load64JltR64 => {
                    then!(0, { reg!(insn.dst) = load!(8) } { jump!(r64 | a, b | a < b) })
                }
                Op::StoreR8StoreR16 => {
                    then!(0, { store!(1, reg!(insn.src)) } { store!(2, reg!(insn.src)) })
                }
                Op::StoreR16StoreR32 => {
                    then!(0, { store!(2, reg!(insn.src)) } { store!(4, reg!(insn.src)) })
                }
                Op::StoreR32StoreR64 => {
                    then!(0, { store!(4, reg!(insn.src)) } { store!(8, reg!(insn.src)) })
                }
                Op::StoreR32StoreR32 => {
                    then!(0, { store!(4, reg!(insn.src)) } { store!(4, reg!(insn.src)) })
                }
                Op::StoreR32StoreR8 => {
                    then!(0, { store!(4, reg!(insn.src)) } { store!(1, reg!(insn.src)) })
                }
                Op::JeqK64Load64 => {
                    then!(0, { jump!(k64 | a, b | a == b) } { reg!(insn.dst) = load!(8) })
                }
                Op::JneK32MovR64 => {
                    then!(0, { jump!(k32 |a: u32, b| a != b) } { reg!(insn.dst) = reg!(insn.src) })
                }
                Op::JltK64MovR64 => {
                    then!(0, { jump!(k64 | a, b | a < b) } { reg!(insn.dst) = reg!(insn.src) })
                }
                Op::JgeR64Load64 => {
                    then!(0, { jump!(r64 | a, b | a >= b) } { reg!(insn.dst) = load!(8) })
                }
                Op::Load32StoreR8 => {
                    then!(0, { reg!(insn.dst) = load!(4) } { store!(1, reg!(insn.src)) })
                }
                Op::StoreR8StoreR32 => {
                    then!(0, { store!(1, reg!(insn.src)) } { store!(4, reg!(insn.src)) })
                }
                Op::StoreR64AddK32 => {
                    then!(0, { store!(8, reg!(insn.src)) } { alu32!(k u32::wrapping_add) })
                }
                Op::MovK64MovR32 => {
                    then!(0, { reg!(insn.dst) = insn.immediate as u64 } { reg!(insn.dst) = u64::from(reg!(insn.src) as u32) })
                }
                Op::MovR32Jump => {
                    then!(0, { reg!(insn.dst) = u64::from(reg!(insn.src) as u32) } { go_to!(insn.offset as usize) })
                }
                Op::JltR32MovR32 => {
                    then!(0, { jump!(r32 |a: u32, b| a < b) } { reg!(insn.dst) = u64::from(reg!(insn.src) as u32) })
                }
                Op::JleR32Load64 => {
                    then!(0, { jump!(r32 |a: u32, b| a <= b) } { reg!(insn.dst) = load!(8) })
                }
                Op::AddR64StoreR64 => {
                    then!(0, { alu64!(r u64::wrapping_add) } { store!(8, reg!(insn.src)) })
                }
                Op::Load64AddR64 => {
                    then!(0, { reg!(insn.dst) = load!(8) } { alu64!(r u64::wrapping_add) })
                }
                Op::MovR32JltR32 => {
                    then!(0, { reg!(insn.dst) = u64::from(reg!(insn.src) as u32) } { jump!(r32 |a: u32, b| a < b) })
                }
                Op::JgeR64MovR32 => {
                    then!(0, { jump!(r64 | a, b | a >= b) } { reg!(insn.dst) = u64::from(reg!(insn.src) as u32) })
                }
                Op::MovK32JeqR32 => {
                    then!(0, { reg!(insn.dst) = u64::from(insn.immediate as u32) } { jump!(r32 |a: u32, b| a == b) })
                }
                Op::StoreR16Jump => {
                    then!(0, { store!(2, reg!(insn.src)) } { go_to!(insn.offset as usize) })
                }
                Op::LshR64AddR64 => {
                    then!(0, { alu64!(r |a: u64, b| a << (b & 63)) } { alu64!(r u64::wrapping_add) })
                }
                Op::MovK32MovK32 => {
                    then!(0, { reg!(insn.dst) = u64::from(insn.immediate as u32) } { reg!(insn.dst) = u64::from(insn.immediate as u32) })
                }
                Op::LookUp => look_up!(),
                Op::PointLookUp => {
                    reg!(insn.dst) = reg!(insn.src);
                    insn = code[pc];
                    alu64!(k u64::wrapping_add);
                    insn = code[pc + 1];
                    pc += 2;
                    look_up!();
                }
                Op::Helper => r[0] = may!(self.help(insn.immediate, [r[1], r[2], r[3], r[4]])),
            }
        }
    }

    #[inline(always)]
    fn pay(&mut self, instructions: u32) -> Result<(), FaultKind> {
        self.budget = self.budget.checked_sub(instructions).ok_or(FaultKind::Budget)?;
        Ok(())
    }

    #[inline(never)]
    fn atomic(&mut self, insn: &Insn, r: &mut [u64; 16]) -> Result<(), FaultKind> {
        let address = r[usize::from(insn.dst)].wrapping_add(i64::from(insn.offset) as u64);
        let (what, operand) = (insn.immediate, r[usize::from(insn.src)]);
        let old = match insn.op {
            Op::Atomic32 => self.memory.atomic::<4>(what, address, operand, r[0])?,
            _ => self.memory.atomic::<8>(what, address, operand, r[0])?,
        };
        match what {
            atomic::COMPARE_EXCHANGE => r[0] = old,
            _ if what & atomic::FETCH != 0 => r[usize::from(insn.src)] = old,
            _ => {}
        }
        Ok(())
    }

    /// The address of the value of the key at `key`, in an array; 0 if there is none.
    #[inline]
    fn look_up(&self, map: u32, key: u64) -> Result<u64, FaultKind> {
        let index = self.memory.load_any::<4>(key)? as u32;
        let found = self.memory.maps[map as usize].at(index, self.core as usize);
        Ok(found.map_or(0, |offset| value_address(map, offset as u32)))
    }

    #[inline(never)]
    fn help(&mut self, number: i64, arguments: [u64; 4]) -> Result<u64, FaultKind> {
        match number {
            helper::TIME => Ok((self.now_ns)()),
            helper::CORE => Ok(u64::from(self.core)),
            helper::RANDOM => {
                // xorshift64*
                self.random ^= self.random >> 12;
                self.random ^= self.random << 25;
                self.random ^= self.random >> 27;
                Ok(self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32)
            }
            _ => self.map(number, arguments),
        }
    }

    fn map(&mut self, number: i64, arguments: [u64; 4]) -> Result<u64, FaultKind> {
        let [map, key, value, flags] = arguments;
        let core = self.core as usize;
        let (index, map) = self.memory.map_of(map)?;
        let definition = map.definition();
        if definition.is_variables {
            return Err(FaultKind::NoMap);
        }
        let mut room = [0; KEY_BYTES_MAX as usize];
        let bytes = &mut room[..definition.key_bytes as usize];
        self.memory.copy(key, bytes)?;
        let errno = |number: i64| number.wrapping_neg() as u64;
        match number {
            helper::MAP_LOOKUP => {
                let found = map.find(bytes, core);
                Ok(found.map_or(0, |offset| value_address(index, offset as u32)))
            }
            helper::MAP_UPDATE => {
                let cost = definition.value_bytes / 8;
                self.budget = self.budget.checked_sub(cost).ok_or(FaultKind::Budget)?;
                // All of it is there before anything changes.
                self.memory.load::<1>(value)?;
                self.memory.load::<1>(value.wrapping_add(u64::from(definition.value_bytes) - 1))?;
                match map.place(bytes, core, flags) {
                    Ok(place) => {
                        let size = definition.value_bytes;
                        map.fill(place, |at| self.value(value, at, size))?;
                        Ok(0)
                    }
                    Err(number) => Ok(errno(number)),
                }
            }
            helper::MAP_DELETE => Ok(map.remove(bytes).map_or_else(errno, |()| 0)),
            _ => Err(FaultKind::NoHelper),
        }
    }

    /// Eight bytes, or as many as there are, of a value at `address`, from `at` on.
    fn value(&self, address: u64, at: u32, size: u32) -> Result<u64, FaultKind> {
        let start = address.wrapping_add(u64::from(at));
        if size - at >= 8 {
            return self.memory.load_any::<8>(start);
        }
        let byte = |n: u32| Ok(self.memory.load::<1>(start.wrapping_add(u64::from(n)))? << (n * 8));
        (0..size - at).try_fold(0, |word, n| Ok(word | byte(n)?))
    }
}

// Division as BPF has it: by zero gives zero, the remainder of that is the dividend (RFC 9669, section 4.1).

fn div64(a: u64, b: u64) -> u64 {
    a.checked_div(b).unwrap_or(0)
}

fn mod64(a: u64, b: u64) -> u64 {
    a.checked_rem(b).unwrap_or(a)
}

fn div32(a: u32, b: u32) -> u32 {
    a.checked_div(b).unwrap_or(0)
}

fn mod32(a: u32, b: u32) -> u32 {
    a.checked_rem(b).unwrap_or(a)
}

fn sdiv64(a: u64, b: u64) -> u64 {
    if b == 0 { 0 } else { (a as i64).wrapping_div(b as i64) as u64 }
}

fn smod64(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { (a as i64).wrapping_rem(b as i64) as u64 }
}

fn sdiv32(a: u32, b: u32) -> u32 {
    if b == 0 { 0 } else { (a as i32).wrapping_div(b as i32) as u32 }
}

fn smod32(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { (a as i32).wrapping_rem(b as i32) as u32 }
}
