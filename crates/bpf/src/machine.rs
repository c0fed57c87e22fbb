//! The machine that carries out a program.

use crate::FaultKind;
use crate::division::{div32, div64, mod32, mod64, sdiv32, sdiv64, smod32, smod64};
use crate::map::KEY_BYTES_MAX;
use crate::memory::{
    CONTEXT_ADDRESS, Context, FRAMES_MAX, Memory, STACK_BYTES, frame_address, value_address,
};
use crate::op::{Insn, Op, REGISTERS, atomic};
use crate::program::{Entry, Fault, Instance};
use crate::request::{Part, Request};
use std::mem::offset_of;
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
        // Whose size is known needs fewer checks: the requests, which are many.
        match <&mut [u8; size_of::<Request>()]>::try_from(&mut *context) {
            Ok(request) => {
                self.run_with(request, now_ns, |run, instance| match instance.native() {
                    Some(native) => native.run(entry, run),
                    None => run.interpret(entry, instance),
                })
            }
            Err(_) => {
                self.run_with(context, now_ns, |run, instance| run.interpret(entry, instance))
            }
        }
    }

    #[inline]
    fn run_with<C: Context + ?Sized>(
        &mut self,
        context: &mut C,
        now_ns: &dyn Fn() -> u64,
        work: impl FnOnce(&mut Run<'_, C>, &Instance) -> Result<u64, Fault>,
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
        let outcome = work(&mut run, instance);
        self.random = run.random;
        outcome
    }
}

/// A run: what a program can reach, and what it has left.
pub struct Run<'a, C: ?Sized> {
    memory: Memory<'a, C>,
    /// Of functions that have called another, as many as are under way.
    frames: &'a mut [Frame; FRAMES_MAX as usize],
    /// Instructions.
    pub budget: u32,
    core: u32,
    random: u64,
    now_ns: &'a dyn Fn() -> u64,
}

impl<C: Context + ?Sized> Run<'_, C> {
    #[inline]
    fn interpret(&mut self, entry: Entry, instance: &Instance) -> Result<u64, Fault> {
        let outcome = self.go(instance.code(), entry.start());
        outcome.map_err(|(kind, behind)| Fault { kind, instruction: behind.saturating_sub(1) })
    }

    /// Carries out instructions from `start` on until the first function exits. A fault comes with the instruction
    /// behind the one that was at fault.
    #[inline(never)]
    fn go(&mut self, code: &[Insn], start: usize) -> Result<u64, (FaultKind, usize)> {
        // As many as a `Register` can name, so that no access to one needs a check.
        let mut r = [0_u64; REGISTERS];
        let mut depth = 0_u32;
        // What is behind the instruction that is carried out.
        let mut rest = code[start..].iter();
        r[1] = CONTEXT_ADDRESS;
        r[10] = frame_address(0);
        /// The register that an instruction names.
        macro_rules! reg {
            ($register:expr) => {
                r[$register as usize]
            };
        }
        /// The value of an expression that may fault.
        macro_rules! may {
            ($result:expr) => {
                match $result {
                    Ok(value) => value,
                    Err(kind) => return Err((kind, code.len() - rest.len())),
                }
            };
        }
        macro_rules! next {
            () => {
                rest.next().expect("checked code does not end but by an exit")
            };
        }
        loop {
            let mut insn = next!();
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
                    let to = code[target..].iter();
                    if to.len() > rest.len() {
                        may!(self.pay((to.len() - rest.len()) as u32));
                    }
                    rest = to;
                    continue;
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
            /// What operations do that are part of sequences.
            macro_rules! one {
                (AddR32) => { alu32!(r u32::wrapping_add) };
                (JneK64) => { jump!(k64 | a, b | a != b) };
                (AddR64) => { alu64!(r u64::wrapping_add) };
                (Affine) => {{
                    let sum = reg!(insn.src).wrapping_add(insn.immediate as u64);
                    reg!(insn.dst) = sum << (insn.offset & 63) >> (insn.offset & 63);
                }};
                (AndK64) => { alu64!(k | a, b | a & b) };
                (Exit) => {{
                    if depth == 0 {
                        return Ok(r[0]);
                    }
                    depth -= 1;
                    let Frame { back, kept } = self.frames[depth as usize];
                    [r[6], r[7], r[8], r[9]] = kept;
                    r[10] = frame_address(depth);
                    go_to!(back);
                }};
                (JeqK32) => { jump!(k32 |a: u32, b| a == b) };
                (JeqK64) => { jump!(k64 | a, b | a == b) };
                (JeqR32) => { jump!(r32 |a: u32, b| a == b) };
                (JgeR64) => { jump!(r64 | a, b | a >= b) };
                (JleR32) => { jump!(r32 |a: u32, b| a <= b) };
                (JltK32) => { jump!(k32 |a: u32, b| a < b) };
                (JltR32) => { jump!(r32 |a: u32, b| a < b) };
                (JltR64) => { jump!(r64 | a, b | a < b) };
                (JneK32) => { jump!(k32 |a: u32, b| a != b) };
                (Jump) => { go_to!(insn.offset as usize) };
                (Load16) => { reg!(insn.dst) = load!(2) };
                (Load32) => { reg!(insn.dst) = load!(4) };
                (Load64) => { reg!(insn.dst) = load!(8) };
                (Load8) => { reg!(insn.dst) = load!(1) };
                (LshR64) => { alu64!(r |a: u64, b| a << (b & 63)) };
                (MulK64) => { alu64!(k u64::wrapping_mul) };
                (RshK64) => { alu64!(k |a: u64, b| a >> (b & 63)) };
                (RshR64) => { alu64!(r |a: u64, b| a >> (b & 63)) };
                (StoreR16) => { store!(2, reg!(insn.src)) };
                (StoreR32) => { store!(4, reg!(insn.src)) };
                (StoreR64) => { store!(8, reg!(insn.src)) };
                (StoreR8) => { store!(1, reg!(insn.src)) };
                (SubR32) => { alu32!(r u32::wrapping_sub) };
                (SubR64) => { alu64!(r u64::wrapping_sub) };
            }
            /// Instructions one after another. One that jumps leaves the others out.
            macro_rules! all {
                ($first:ident $($op:ident)*) => {{
                    one!($first);
                    $(
                        insn = next!();
                        one!($op);
                    )*
                }};
            }
            /// Six stores that fill a part in, with one check.
            macro_rules! store_part {
                ($part:ident) => {{
                    let part: &mut [u8; size_of::<Part>()] = $part;
                    macro_rules! put {
                        ($field:ident, $type:ty) => {{
                            let at = offset_of!(Part, $field);
                            let value = reg!(insn.src) as $type;
                            part[at..at + size_of::<$type>()].copy_from_slice(&value.to_le_bytes());
                        }};
                    }
                    put!(line, u32);
                    insn = next!();
                    put!(op, u8);
                    insn = next!();
                    put!(backend, u16);
                    insn = next!();
                    put!(offset, u32);
                    insn = next!();
                    put!(blocks, u32);
                    insn = next!();
                    put!(block, u64);
                }};
            }
            macro_rules! look_up {
                () => {{
                    // The other half of the load, and the call.
                    let _ = (next!(), next!());
                    r[1] = insn.immediate as u64;
                    r[0] = may!(self.look_up(insn.offset as u32, r[2]));
                }};
            }
            // Every third instruction is one of these. Where a short loop ends is easier to foresee for a
            // processor than where the match goes.
            while insn.op == Op::Affine {
                one!(Affine);
                insn = next!();
            }
            match insn.op {
                Op::AddK64 => alu64!(k u64::wrapping_add),
                Op::AddR64 => one!(AddR64),
                Op::AddK32 => alu32!(k u32::wrapping_add),
                Op::AddR32 => one!(AddR32),
                Op::SubK64 => alu64!(k u64::wrapping_sub),
                Op::SubR64 => one!(SubR64),
                Op::SubK32 => alu32!(k u32::wrapping_sub),
                Op::SubR32 => one!(SubR32),
                Op::MulK64 => one!(MulK64),
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
                Op::AndK64 => one!(AndK64),
                Op::AndR64 => alu64!(r | a, b | a & b),
                Op::AndK32 => alu32!(k |a: u32, b| a & b),
                Op::AndR32 => alu32!(r |a: u32, b| a & b),
                Op::XorK64 => alu64!(k | a, b | a ^ b),
                Op::XorR64 => alu64!(r | a, b | a ^ b),
                Op::XorK32 => alu32!(k |a: u32, b| a ^ b),
                Op::XorR32 => alu32!(r |a: u32, b| a ^ b),
                Op::LshK64 => alu64!(k |a: u64, b| a << (b & 63)),
                Op::LshR64 => one!(LshR64),
                Op::LshK32 => alu32!(k |a: u32, b| a << (b & 31)),
                Op::LshR32 => alu32!(r |a: u32, b| a << (b & 31)),
                Op::RshK64 => one!(RshK64),
                Op::RshR64 => one!(RshR64),
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
                    let _ = next!();
                }
                Op::Load8 => one!(Load8),
                Op::Load16 => one!(Load16),
                Op::Load32 => one!(Load32),
                Op::Load64 => one!(Load64),
                Op::Loads8 => reg!(insn.dst) = load!(1) as i8 as u64,
                Op::Loads16 => reg!(insn.dst) = load!(2) as i16 as u64,
                Op::Loads32 => reg!(insn.dst) = load!(4) as i32 as u64,
                Op::StoreK8 => store!(1, insn.immediate as u64),
                Op::StoreK16 => store!(2, insn.immediate as u64),
                Op::StoreK32 => store!(4, insn.immediate as u64),
                Op::StoreK64 => store!(8, insn.immediate as u64),
                Op::StoreR8 => one!(StoreR8),
                Op::StoreR16 => one!(StoreR16),
                Op::StoreR32 => one!(StoreR32),
                Op::StoreR64 => one!(StoreR64),
                Op::Atomic32 | Op::Atomic64 => {
                    may!(self.atomic(insn, &mut r));
                }
                Op::JeqK64 => one!(JeqK64),
                Op::JeqR64 => jump!(r64 | a, b | a == b),
                Op::JeqK32 => one!(JeqK32),
                Op::JeqR32 => one!(JeqR32),
                Op::JneK64 => one!(JneK64),
                Op::JneR64 => jump!(r64 | a, b | a != b),
                Op::JneK32 => one!(JneK32),
                Op::JneR32 => jump!(r32 |a: u32, b| a != b),
                Op::JgtK64 => jump!(k64 | a, b | a > b),
                Op::JgtR64 => jump!(r64 | a, b | a > b),
                Op::JgtK32 => jump!(k32 |a: u32, b| a > b),
                Op::JgtR32 => jump!(r32 |a: u32, b| a > b),
                Op::JgeK64 => jump!(k64 | a, b | a >= b),
                Op::JgeR64 => one!(JgeR64),
                Op::JgeK32 => jump!(k32 |a: u32, b| a >= b),
                Op::JgeR32 => jump!(r32 |a: u32, b| a >= b),
                Op::JltK64 => jump!(k64 | a, b | a < b),
                Op::JltR64 => one!(JltR64),
                Op::JltK32 => one!(JltK32),
                Op::JltR32 => one!(JltR32),
                Op::JleK64 => jump!(k64 | a, b | a <= b),
                Op::JleR64 => jump!(r64 | a, b | a <= b),
                Op::JleK32 => jump!(k32 |a: u32, b| a <= b),
                Op::JleR32 => one!(JleR32),
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
                Op::Jump => one!(Jump),
                Op::Call => {
                    if depth + 1 == FRAMES_MAX {
                        may!(Err(FaultKind::TooDeep));
                    }
                    self.frames[depth as usize] =
                        Frame { back: code.len() - rest.len(), kept: [r[6], r[7], r[8], r[9]] };
                    depth += 1;
                    r[10] = frame_address(depth);
                    go_to!(insn.offset as usize);
                }
                Op::Exit => one!(Exit),
                Op::LookUp => look_up!(),
                Op::Affine => unreachable!("done above"),
                Op::Load8JeqK32 => all!(Load8 JeqK32),
                Op::Load8JneK32 => all!(Load8 JneK32),
                Op::Load16JltK32 => all!(Load16 JltK32),
                Op::AffineLoad16JltK32 => all!(Affine Load16 JltK32),
                Op::Load8JeqK32Load16JltK32 => all!(Load8 JeqK32 Load16 JltK32),
                Op::Load32JleR32 => all!(Load32 JleR32),
                Op::Load32JleR32Load64JltR64 => all!(Load32 JleR32 Load64 JltR64),
                Op::Load32Load32 => all!(Load32 Load32),
                Op::Load32Load64 => all!(Load32 Load64),
                Op::Load64Load32 => all!(Load64 Load32),
                Op::Load64AddR64 => all!(Load64 AddR64),
                Op::Load64RshR64 => all!(Load64 RshR64),
                Op::AffineAffineLoad64 => all!(Affine Affine Load64),
                Op::Load64LshR64AddR64StoreR64 => all!(Load64 LshR64 AddR64 StoreR64),
                Op::SubR32SubR64JltR64 => all!(SubR32 SubR64 JltR64),
                Op::SubR32JltR32 => all!(SubR32 JltR32),
                Op::SubR64AffineAffineJneK64 => all!(SubR64 Affine Affine JneK64),
                Op::AffineAffineJneK64 => all!(Affine Affine JneK64),
                Op::AffineJgeR64Load64 => all!(Affine JgeR64 Load64),
                Op::AffineJeqR32 => all!(Affine JeqR32),
                Op::JgeR64Load64 => all!(JgeR64 Load64),
                Op::JeqK64Load64 => all!(JeqK64 Load64),
                Op::AddR64StoreR64 => all!(AddR64 StoreR64),
                Op::AddR64Load32Load32 => all!(AddR64 Load32 Load32),
                Op::AffineAddR64RshK64StoreR32 => all!(Affine AddR64 RshK64 StoreR32),
                Op::AffineAddR32AndK64Load64RshR64AndK64JeqR32 => {
                    all!(Affine AddR32 AndK64 Load64 RshR64 AndK64 JeqR32)
                }
                Op::AffineAffineStoreR64 => all!(Affine Affine StoreR64),
                Op::AffineMulK64Load64AddR64Affine => all!(Affine MulK64 Load64 AddR64 Affine),
                Op::AffineMulK64AffineAddR64Affine => all!(Affine MulK64 Affine AddR64 Affine),
                Op::Load8AffineMulK64Load64AddR64Affine => {
                    all!(Load8 Affine MulK64 Load64 AddR64 Affine)
                }
                Op::MulK64AddR64 => all!(MulK64 AddR64),
                Op::StoreR32StoreR8StoreR16 => all!(StoreR32 StoreR8 StoreR16),
                Op::StoreR32StoreR8StoreR32StoreR64 => all!(StoreR32 StoreR8 StoreR32 StoreR64),
                Op::StoreR8StoreR16StoreR32StoreR64 => all!(StoreR8 StoreR16 StoreR32 StoreR64),
                Op::StoreR16StoreR32 => all!(StoreR16 StoreR32),
                Op::StoreR32StoreR32 => all!(StoreR32 StoreR32),
                Op::AffineStoreR16Jump => all!(Affine StoreR16 Jump),
                Op::AffineStoreR16Exit => all!(Affine StoreR16 Exit),
                Op::AffineStoreR16AddR32AffineAffineJump => {
                    all!(Affine StoreR16 AddR32 Affine Affine Jump)
                }
                Op::AffineJump => all!(Affine Jump),
                Op::AffineExit => all!(Affine Exit),
                Op::StorePart => {
                    let start = i64::from(insn.offset) - offset_of!(Part, line) as i64;
                    let address = reg!(insn.dst).wrapping_add(start as u64);
                    match self.memory.context_bytes(address) {
                        Some(part) => store_part!(part),
                        // Elsewhere, or a fault: one after another.
                        None => one!(StoreR32),
                    }
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
    fn atomic(&mut self, insn: &Insn, r: &mut [u64; REGISTERS]) -> Result<(), FaultKind> {
        let address = r[insn.dst as usize].wrapping_add(i64::from(insn.offset) as u64);
        let (what, operand) = (insn.immediate, r[insn.src as usize]);
        let old = match insn.op {
            Op::Atomic32 => self.memory.atomic::<4>(what, address, operand, r[0])?,
            _ => self.memory.atomic::<8>(what, address, operand, r[0])?,
        };
        match what {
            atomic::COMPARE_EXCHANGE => r[0] = old,
            _ if what & atomic::FETCH != 0 => r[insn.src as usize] = old,
            _ => {}
        }
        Ok(())
    }

    /// The context, and the stack.
    pub fn bytes(&mut self) -> (&mut C, &mut [u8; STACK_BYTES]) {
        (self.memory.context, self.memory.stack)
    }

    /// Carries out one instruction on registers that are kept elsewhere: an access, a helper, or a division with a
    /// sign. A call is one too many.
    ///
    /// # Panics
    /// If it is another.
    pub fn one(&mut self, insn: &Insn, r: &mut [u64; REGISTERS]) -> Result<(), FaultKind> {
        let Insn { op, dst, src, offset, immediate } = *insn;
        let (dst, src, number) = (dst as usize, src as usize, immediate as u64);
        let to = r[dst].wrapping_add(i64::from(offset) as u64);
        let from = r[src].wrapping_add(i64::from(offset) as u64);
        let memory = &mut self.memory;
        match op {
            Op::Load8 => r[dst] = memory.load::<1>(from)?,
            Op::Load16 => r[dst] = memory.load::<2>(from)?,
            Op::Load32 => r[dst] = memory.load::<4>(from)?,
            Op::Load64 => r[dst] = memory.load::<8>(from)?,
            Op::Loads8 => r[dst] = memory.load::<1>(from)? as i8 as u64,
            Op::Loads16 => r[dst] = memory.load::<2>(from)? as i16 as u64,
            Op::Loads32 => r[dst] = memory.load::<4>(from)? as i32 as u64,
            Op::StoreK8 => memory.store::<1>(to, number)?,
            Op::StoreK16 => memory.store::<2>(to, number)?,
            Op::StoreK32 => memory.store::<4>(to, number)?,
            Op::StoreK64 => memory.store::<8>(to, number)?,
            Op::StoreR8 => memory.store::<1>(to, r[src])?,
            Op::StoreR16 => memory.store::<2>(to, r[src])?,
            Op::StoreR32 => memory.store::<4>(to, r[src])?,
            Op::StoreR64 => memory.store::<8>(to, r[src])?,
            Op::Atomic32 | Op::Atomic64 => self.atomic(insn, r)?,
            Op::SdivK64 => r[dst] = sdiv64(r[dst], number),
            Op::SdivR64 => r[dst] = sdiv64(r[dst], r[src]),
            Op::SdivK32 => r[dst] = u64::from(sdiv32(r[dst] as u32, number as u32)),
            Op::SdivR32 => r[dst] = u64::from(sdiv32(r[dst] as u32, r[src] as u32)),
            Op::SmodK64 => r[dst] = smod64(r[dst], number),
            Op::SmodR64 => r[dst] = smod64(r[dst], r[src]),
            Op::SmodK32 => r[dst] = u64::from(smod32(r[dst] as u32, number as u32)),
            Op::SmodR32 => r[dst] = u64::from(smod32(r[dst] as u32, r[src] as u32)),
            Op::LookUp => {
                r[1] = number;
                r[0] = self.look_up(offset as u32, r[2])?;
            }
            Op::Helper => r[0] = self.help(immediate, [r[1], r[2], r[3], r[4]])?,
            // Whoever counts functions asks only when there are too many.
            Op::Call => return Err(FaultKind::TooDeep),
            _ => unreachable!("{op:?} does without"),
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
                let size = definition.value_bytes;
                let updated = map.update(bytes, core, flags, |at| self.value(value, at, size))?;
                Ok(updated.map_or_else(errno, |()| 0))
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
