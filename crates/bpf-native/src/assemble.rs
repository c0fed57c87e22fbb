//! From a program's instructions to the processor's.
//!
//! | register | holds |
//! |---|---|
//! | rax, rdi, rsi, rdx, rcx, r8, rbx, r13, r14, r15 | r0 to r9 |
//! | r9 | the [`State`] |
//! | r12, rbp | the request and the stack, where they are |
//! | r10, r11 | what one instruction needs |
//!
//! An access first takes its address as the machine has it; if that is in the request, it goes there. Anything else, as
//! far as it is no plain arithmetic, is carried out by the machine, one instruction at a time ([`State::outside`]). The
//! program's r10, the frame, is a number where no function calls another; where one does, it is in the state, and the
//! stack is the machine's.

use crate::state::State;
use bpf::native::{
    CONTEXT_ADDRESS, CONTEXT_BYTES, FRAME_BYTES, FRAMES_MAX, Insn, Op, Register, STACK_BYTES,
    frame_address,
};
use iced_x86::code_asm::{
    AsmMemoryOperand, AsmRegister8, AsmRegister16, AsmRegister32, AsmRegister64, CodeAssembler,
    CodeLabel, al, ax, bl, bx, byte_ptr, cl, cx, di, dil, dl, dword_ptr, dx, eax, ebx, ecx, edi,
    edx, esi, ptr, qword_ptr, r8, r8b, r8d, r8w, r9, r10, r10d, r11, r11b, r11d, r11w, r12, r13,
    r13b, r13d, r13w, r14, r14b, r14d, r14w, r15, r15b, r15d, r15w, rax, rbp, rbx, rcx, rdi, rdx,
    rsi, rsp, si, sil, word_ptr,
};
use iced_x86::{BlockEncoderOptions, IcedError};
use std::mem::offset_of;

const WIDE: [AsmRegister64; 10] = [rax, rdi, rsi, rdx, rcx, r8, rbx, r13, r14, r15];
const DOUBLE: [AsmRegister32; 10] = [eax, edi, esi, edx, ecx, r8d, ebx, r13d, r14d, r15d];
const WORD: [AsmRegister16; 10] = [ax, di, si, dx, cx, r8w, bx, r13w, r14w, r15w];
const BYTE: [AsmRegister8; 10] = [al, dil, sil, dl, cl, r8b, bl, r13b, r14b, r15b];
/// Of those, what whoever is called may change; the others are saved by whoever changes them.
const SAVED: [AsmRegister64; 6] = [rbx, rbp, r12, r13, r14, r15];
/// What a function of the program finds as it was after it has called another: r6 to r9.
const KEPT: [AsmRegister64; 4] = [rbx, r13, r14, r15];

/// Bit of an address that tells the request from all else.
const CONTEXT_BIT: u32 = CONTEXT_ADDRESS.trailing_zeros();
const _: () = assert!(1 << CONTEXT_BIT == CONTEXT_ADDRESS);

/// Code, and where in it the entries that were asked for are. Its first byte is where it is called.
pub struct Assembled {
    pub code: Vec<u8>,
    pub entries: Vec<u64>,
}

/// Makes code of checked instructions, to be entered at any of `entries`.
pub fn assemble(insns: &[Insn], entries: &[usize]) -> Result<Assembled, IcedError> {
    let mut asm = CodeAssembler::new(64)?;
    let labels = (0..=insns.len()).map(|_| asm.create_label()).collect();
    let [leave, outside, budget] = [(); 3].map(|()| asm.create_label());
    let calls = insns.iter().any(|insn| insn.op == Op::Call);
    let mut work = Assembler { asm, labels, leave, outside, budget, calls, later: Vec::new() };
    work.enter()?;
    let mut at = 0;
    while let Some(insn) = insns.get(at) {
        work.asm.set_label(&mut work.labels[at])?;
        work.insn(at, insn)?;
        at += 1;
        if matches!(insn.op, Op::LoadImmediate | Op::LookUp) {
            // The second half is no instruction.
            work.later.push(Later::Nothing(work.labels[at]));
            at += 1;
        }
    }
    // Checked code does not come to its end.
    work.asm.set_label(&mut work.labels[insns.len()])?;
    work.asm.ud2()?;
    work.finish(entries)
}

struct Assembler {
    asm: CodeAssembler,
    /// Where each instruction begins.
    labels: Vec<CodeLabel>,
    leave: CodeLabel,
    /// Has the machine carry an instruction out.
    outside: CodeLabel,
    /// The budget is used up.
    budget: CodeLabel,
    /// Functions call others.
    calls: bool,
    /// What is behind all instructions, since it is rare.
    later: Vec<Later>,
}

enum Later {
    /// From this label on, the machine carries out the instruction of that number; the next one follows.
    Outside(CodeLabel, usize),
    /// From this label on, instruction `from` goes back to `to`.
    Back(CodeLabel, usize, usize),
    /// Nothing goes to this label. It leads somewhere all the same, since the assembler does not ask.
    Nothing(CodeLabel),
}

/// A field of the state.
macro_rules! state {
    ($field:ident) => {
        r9 + offset_of!(State<'_>, $field)
    };
}

/// Where register `number` is in the state.
fn place(number: usize) -> AsmMemoryOperand {
    qword_ptr(r9 + offset_of!(State<'_>, registers) + number * 8)
}

type Result<T = (), E = IcedError> = std::result::Result<T, E>;

/// How many bytes an access has, and what becomes of them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Size {
    One,
    Two,
    Four,
    Eight,
}

impl Assembler {
    /// The function itself: takes the state and where to begin, gives r0.
    fn enter(&mut self) -> Result {
        let asm = &mut self.asm;
        for register in SAVED {
            asm.push(register)?;
        }
        // Six registers and the address to return to: one more makes sixteen bytes whole, as calls want it.
        asm.sub(rsp, 8)?;
        asm.mov(r9, rdi)?;
        asm.mov(r11, rsi)?;
        asm.mov(qword_ptr(state!(stack_pointer)), rsp)?;
        asm.mov(r12, qword_ptr(state!(context)))?;
        asm.mov(rbp, qword_ptr(state!(stack)))?;
        for register in DOUBLE {
            asm.xor(register, register)?;
        }
        asm.mov(rdi, CONTEXT_ADDRESS)?;
        asm.jmp(r11)
    }

    /// What is not an instruction, and the bytes of all.
    fn finish(mut self, entries: &[usize]) -> Result<Assembled> {
        for later in std::mem::take(&mut self.later) {
            let asm = &mut self.asm;
            match later {
                Later::Outside(mut label, at) => {
                    asm.set_label(&mut label)?;
                    self.call_outside(at)?;
                    self.asm.jmp(self.labels[at + 1])?;
                }
                Later::Back(mut label, from, to) => {
                    asm.set_label(&mut label)?;
                    self.pay(from, to)?;
                    self.asm.jmp(self.labels[to])?;
                }
                Later::Nothing(mut label) => {
                    asm.set_label(&mut label)?;
                    asm.ud2()?;
                }
            }
        }
        let asm = &mut self.asm;
        asm.set_label(&mut self.outside)?;
        for (number, register) in WIDE.into_iter().enumerate() {
            asm.mov(place(number), register)?;
        }
        asm.push(r9)?;
        asm.mov(rdi, r9)?;
        asm.call(qword_ptr(state!(outside)))?;
        asm.pop(r9)?;
        asm.cmp(dword_ptr(state!(stopped)), 0)?;
        let mut stopped = asm.create_label();
        asm.jne(stopped)?;
        for (number, register) in WIDE.into_iter().enumerate() {
            asm.mov(register, place(number))?;
        }
        asm.mov(r12, qword_ptr(state!(context)))?;
        asm.mov(rbp, qword_ptr(state!(stack)))?;
        asm.ret()?;
        asm.set_label(&mut self.budget)?;
        asm.mov(dword_ptr(state!(stopped)), State::BUDGET)?;
        asm.set_label(&mut stopped)?;
        asm.mov(rsp, qword_ptr(state!(stack_pointer)))?;
        asm.set_label(&mut self.leave)?;
        asm.add(rsp, 8)?;
        for register in SAVED.into_iter().rev() {
            asm.pop(register)?;
        }
        asm.ret()?;
        let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let assembled = self.asm.assemble_options(0, options)?;
        let entry = |at: &usize| assembled.label_ip(&self.labels[*at]);
        let entries = entries.iter().map(entry).collect::<Result<_>>()?;
        Ok(Assembled { entries, code: assembled.inner.code_buffer })
    }

    /// Has the machine carry instruction `at` out.
    fn call_outside(&mut self, at: usize) -> Result {
        self.asm.mov(dword_ptr(state!(at)), at as u32)?;
        self.asm.call(self.outside)
    }

    /// Pays for going back, by the distance.
    fn pay(&mut self, from: usize, to: usize) -> Result {
        self.asm.mov(dword_ptr(state!(at)), from as u32)?;
        self.asm.sub(dword_ptr(state!(budget)), (from + 1 - to) as u32)?;
        self.asm.jb(self.budget)
    }

    /// The register of a source, which is `room` with a number in it where the program's has none of its own.
    fn source(&mut self, register: Register, room: AsmRegister64) -> Result<AsmRegister64> {
        if let Some(found) = WIDE.get(register as usize) {
            return Ok(*found);
        }
        match register {
            Register::R10 if self.calls => self.asm.mov(room, place(10))?,
            Register::R10 => self.asm.mov(room, frame_address(0))?,
            _ => self.asm.mov(room, 0_u64)?,
        }
        Ok(room)
    }

    /// The same, its lower half.
    fn source32(&mut self, register: Register) -> Result<AsmRegister32> {
        self.source(register, r11)?;
        Ok(DOUBLE.get(register as usize).copied().unwrap_or(r11d))
    }

    fn insn(&mut self, at: usize, insn: &Insn) -> Result {
        if self.moves(insn)? || self.adds(insn)? || self.multiplies(at, insn)? {
            return Ok(());
        }
        if self.shifts(insn)? || self.jumps(at, insn)? || self.accesses(at, insn)? {
            return Ok(());
        }
        match insn.op {
            Op::Call => self.call(at, insn.offset as usize),
            Op::Exit => self.exit(at),
            Op::LookUp => {
                self.call_outside(at)?;
                self.asm.jmp(self.labels[at + 3])
            }
            _ => self.call_outside(at),
        }
    }

    /// Calls the program's function at `to`: the processor's stack keeps what is needed again.
    fn call(&mut self, at: usize, to: usize) -> Result {
        let too_deep = self.asm.create_label();
        self.later.push(Later::Outside(too_deep, at));
        let asm = &mut self.asm;
        asm.cmp(dword_ptr(state!(depth)), FRAMES_MAX as i32 - 1)?;
        asm.je(too_deep)?;
        asm.add(dword_ptr(state!(depth)), 1)?;
        asm.add(place(10), FRAME_BYTES as i32)?;
        for register in KEPT {
            asm.push(register)?;
        }
        // The call itself pushes 8 bytes, which this makes sixteen: where it goes back to.
        asm.push(at as i32 + 1)?;
        let callee = self.target(at, to);
        let asm = &mut self.asm;
        asm.call(callee)?;
        asm.add(rsp, 8)?;
        for register in KEPT.into_iter().rev() {
            asm.pop(register)?;
        }
        asm.sub(dword_ptr(state!(depth)), 1)?;
        asm.sub(place(10), FRAME_BYTES as i32)
    }

    /// Ends the function, and the run if nobody has called it.
    fn exit(&mut self, at: usize) -> Result {
        if !self.calls {
            return self.asm.jmp(self.leave);
        }
        let asm = &mut self.asm;
        asm.cmp(dword_ptr(state!(depth)), 0)?;
        asm.je(self.leave)?;
        // Going back to a place before this one is paid for, too.
        let mut free = asm.create_label();
        asm.mov(r11d, at as u32 + 1)?;
        asm.sub(r11d, dword_ptr(rsp + 8))?;
        asm.jbe(free)?;
        asm.mov(dword_ptr(state!(at)), at as u32)?;
        asm.sub(dword_ptr(state!(budget)), r11d)?;
        asm.jb(self.budget)?;
        asm.set_label(&mut free)?;
        asm.ret()
    }

    fn moves(&mut self, insn: &Insn) -> Result<bool> {
        let to = insn.dst as usize;
        let number = insn.immediate;
        let (Some(&wide), Some(&double)) = (WIDE.get(to), DOUBLE.get(to)) else {
            return Ok(false);
        };
        match insn.op {
            Op::MovK64 | Op::LoadImmediate => self.asm.mov(wide, number as u64)?,
            Op::MovK32 => self.asm.mov(double, number as u32)?,
            Op::MovR64 => {
                let from = self.source(insn.src, r11)?;
                self.asm.mov(wide, from)?;
            }
            Op::MovR32 => {
                let from = self.source32(insn.src)?;
                self.asm.mov(double, from)?;
            }
            Op::Movsx8R64 | Op::Movsx8R32 => {
                self.source(insn.src, r11)?;
                let from = BYTE.get(insn.src as usize).copied().unwrap_or(r11b);
                match insn.op {
                    Op::Movsx8R64 => self.asm.movsx(wide, from)?,
                    _ => self.asm.movsx(double, from)?,
                }
            }
            Op::Movsx16R64 | Op::Movsx16R32 => {
                self.source(insn.src, r11)?;
                let from = WORD.get(insn.src as usize).copied().unwrap_or(r11w);
                match insn.op {
                    Op::Movsx16R64 => self.asm.movsx(wide, from)?,
                    _ => self.asm.movsx(double, from)?,
                }
            }
            Op::Movsx32R64 => {
                let from = self.source32(insn.src)?;
                self.asm.movsxd(wide, from)?;
            }
            Op::Neg64 => self.asm.neg(wide)?,
            Op::Neg32 => self.asm.neg(double)?,
            Op::Low16 => self.asm.movzx(double, WORD[to])?,
            Op::Low32 => self.asm.mov(double, double)?,
            Op::Low64 => self.asm.nop()?,
            Op::Swap16 => {
                self.asm.rol(WORD[to], 8)?;
                self.asm.movzx(double, WORD[to])?;
            }
            Op::Swap32 => self.asm.bswap(double)?,
            Op::Swap64 => self.asm.bswap(wide)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Operations on two registers, or on one and a number, that processors have as they are.
    fn adds(&mut self, insn: &Insn) -> Result<bool> {
        let number = insn.immediate as i32;
        macro_rules! operations {
            ($($k64:ident $r64:ident $k32:ident $r32:ident: $what:ident;)*) => {
                match insn.op {
                    $(Op::$k64 => self.asm.$what(WIDE[insn.dst as usize], number)?,
                    Op::$k32 => self.asm.$what(DOUBLE[insn.dst as usize], number)?,
                    Op::$r64 => {
                        let from = self.source(insn.src, r11)?;
                        self.asm.$what(WIDE[insn.dst as usize], from)?;
                    }
                    Op::$r32 => {
                        let from = self.source32(insn.src)?;
                        self.asm.$what(DOUBLE[insn.dst as usize], from)?;
                    })*
                    _ => return Ok(false),
                }
            };
        }
        operations! {
            AddK64 AddR64 AddK32 AddR32: add;
            SubK64 SubR64 SubK32 SubR32: sub;
            OrK64 OrR64 OrK32 OrR32: or;
            AndK64 AndR64 AndK32 AndR32: and;
            XorK64 XorR64 XorK32 XorR32: xor;
        }
        Ok(true)
    }

    fn multiplies(&mut self, at: usize, insn: &Insn) -> Result<bool> {
        let number = insn.immediate as i32;
        let to = insn.dst as usize;
        match insn.op {
            Op::MulK64 => self.asm.imul_3(WIDE[to], WIDE[to], number)?,
            Op::MulK32 => self.asm.imul_3(DOUBLE[to], DOUBLE[to], number)?,
            Op::MulR64 => {
                let from = self.source(insn.src, r11)?;
                self.asm.imul_2(WIDE[to], from)?;
            }
            Op::MulR32 => {
                let from = self.source32(insn.src)?;
                self.asm.imul_2(DOUBLE[to], from)?;
            }
            Op::DivK64 | Op::ModK64 | Op::DivK32 | Op::ModK32 => {
                self.asm.mov(r11, insn.immediate as u64)?;
                self.divide(at, insn)?;
            }
            Op::DivR64 | Op::ModR64 | Op::DivR32 | Op::ModR32 => {
                let from = self.source(insn.src, r11)?;
                self.asm.mov(r11, from)?;
                self.divide(at, insn)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Divides by what is in r11.
    fn divide(&mut self, at: usize, insn: &Insn) -> Result {
        let to = insn.dst as usize;
        let is_wide = matches!(insn.op, Op::DivK64 | Op::DivR64 | Op::ModK64 | Op::ModR64);
        let is_rest = matches!(insn.op, Op::ModK64 | Op::ModR64 | Op::ModK32 | Op::ModR32);
        let next = self.labels[at + 1];
        let asm = &mut self.asm;
        let mut zero = asm.create_label();
        match is_wide {
            true => asm.test(r11, r11)?,
            false => asm.test(r11d, r11d)?,
        }
        asm.je(zero)?;
        asm.mov(r10, WIDE[to])?;
        asm.push(rax)?;
        asm.push(rdx)?;
        asm.xor(edx, edx)?;
        if is_wide {
            asm.mov(rax, r10)?;
            asm.div(r11)?;
        } else {
            asm.mov(eax, r10d)?;
            asm.div(r11d)?;
        }
        asm.mov(r11, if is_rest { rdx } else { rax })?;
        asm.pop(rdx)?;
        asm.pop(rax)?;
        asm.mov(WIDE[to], r11)?;
        asm.jmp(next)?;
        asm.set_label(&mut zero)?;
        match (is_rest, is_wide) {
            (false, _) => asm.xor(DOUBLE[to], DOUBLE[to]),
            (true, false) => asm.mov(DOUBLE[to], DOUBLE[to]),
            (true, true) => asm.nop(),
        }
    }

    fn shifts(&mut self, insn: &Insn) -> Result<bool> {
        let to = insn.dst as usize;
        macro_rules! operations {
            ($($k64:ident $r64:ident $k32:ident $r32:ident: $what:ident;)*) => {
                match insn.op {
                    $(Op::$k64 => self.asm.$what(WIDE[to], insn.immediate as u32 & 63)?,
                    Op::$k32 => {
                        self.asm.$what(DOUBLE[to], insn.immediate as u32 & 31)?;
                        self.asm.mov(DOUBLE[to], DOUBLE[to])?;
                    }
                    Op::$r64 => {
                        let to = self.distance(insn)?;
                        self.asm.$what(r11, cl)?;
                        self.asm.mov(rcx, r10)?;
                        self.asm.mov(to, r11)?;
                    }
                    Op::$r32 => {
                        self.distance(insn)?;
                        self.asm.$what(r11d, cl)?;
                        self.asm.mov(rcx, r10)?;
                        // Upper bits become 0, even where nothing is shifted.
                        self.asm.mov(DOUBLE[to], r11d)?;
                    })*
                    _ => return Ok(false),
                }
            };
        }
        operations! {
            LshK64 LshR64 LshK32 LshR32: shl;
            RshK64 RshR64 RshK32 RshR32: shr;
            ArshK64 ArshR64 ArshK32 ArshR32: sar;
        }
        Ok(true)
    }

    /// Puts how far to shift into cl, what is to be shifted into r11, and what was in rcx into r10.
    fn distance(&mut self, insn: &Insn) -> Result<AsmRegister64> {
        let to = WIDE[insn.dst as usize];
        let from = self.source(insn.src, r11)?;
        self.asm.mov(r10, rcx)?;
        self.asm.mov(rcx, from)?;
        // Unless that was it.
        self.asm.mov(r11, if to == rcx { r10 } else { to })?;
        Ok(to)
    }

    fn jumps(&mut self, at: usize, insn: &Insn) -> Result<bool> {
        match insn.op {
            Op::Jump => {
                let to = insn.offset as usize;
                if to <= at {
                    self.pay(at, to)?;
                }
                self.asm.jmp(self.labels[to])?;
                return Ok(true);
            }
            _ if !insn.is_jump() => return Ok(false),
            _ => {}
        }
        let to = self.source(insn.dst, r10)?;
        let to32 = DOUBLE.get(insn.dst as usize).copied().unwrap_or(r10d);
        let number = insn.immediate as i32;
        let target = self.target(at, insn.offset as usize);
        macro_rules! conditions {
            ($($k64:ident $r64:ident $k32:ident $r32:ident: $compare:ident $jump:ident;)*) => {
                match insn.op {
                    $(Op::$k64 => {
                        self.asm.$compare(to, number)?;
                        self.asm.$jump(target)?;
                    }
                    Op::$k32 => {
                        self.asm.$compare(to32, number)?;
                        self.asm.$jump(target)?;
                    }
                    Op::$r64 => {
                        let with = self.source(insn.src, r11)?;
                        self.asm.$compare(to, with)?;
                        self.asm.$jump(target)?;
                    }
                    Op::$r32 => {
                        let with = self.source32(insn.src)?;
                        self.asm.$compare(to32, with)?;
                        self.asm.$jump(target)?;
                    })*
                    _ => unreachable!("these are all jumps"),
                }
            };
        }
        conditions! {
            JeqK64 JeqR64 JeqK32 JeqR32: cmp je;
            JgtK64 JgtR64 JgtK32 JgtR32: cmp ja;
            JgeK64 JgeR64 JgeK32 JgeR32: cmp jae;
            JsetK64 JsetR64 JsetK32 JsetR32: test jne;
            JneK64 JneR64 JneK32 JneR32: cmp jne;
            JsgtK64 JsgtR64 JsgtK32 JsgtR32: cmp jg;
            JsgeK64 JsgeR64 JsgeK32 JsgeR32: cmp jge;
            JltK64 JltR64 JltK32 JltR32: cmp jb;
            JleK64 JleR64 JleK32 JleR32: cmp jbe;
            JsltK64 JsltR64 JsltK32 JsltR32: cmp jl;
            JsleK64 JsleR64 JsleK32 JsleR32: cmp jle;
        }
        Ok(true)
    }

    /// Where a conditional jump or a call goes to: what is behind it costs nothing.
    fn target(&mut self, at: usize, to: usize) -> CodeLabel {
        if to > at {
            return self.labels[to];
        }
        let label = self.asm.create_label();
        self.later.push(Later::Back(label, at, to));
        label
    }

    fn accesses(&mut self, at: usize, insn: &Insn) -> Result<bool> {
        let (size, register) = match insn.op {
            Op::Load8 | Op::Loads8 => (Size::One, insn.src),
            Op::Load16 | Op::Loads16 => (Size::Two, insn.src),
            Op::Load32 | Op::Loads32 => (Size::Four, insn.src),
            Op::Load64 => (Size::Eight, insn.src),
            Op::StoreK8 | Op::StoreR8 => (Size::One, insn.dst),
            Op::StoreK16 | Op::StoreR16 => (Size::Two, insn.dst),
            Op::StoreK32 | Op::StoreR32 => (Size::Four, insn.dst),
            Op::StoreK64 | Op::StoreR64 => (Size::Eight, insn.dst),
            _ => return Ok(false),
        };
        let Some(memory) = self.memory(at, register, insn.offset, size)? else {
            // Beyond the stack's end.
            self.call_outside(at)?;
            return Ok(true);
        };
        let (to, number) = (insn.dst as usize, insn.immediate as i32);
        match insn.op {
            Op::Load8 => self.asm.movzx(DOUBLE[to], memory)?,
            Op::Load16 => self.asm.movzx(DOUBLE[to], memory)?,
            Op::Load32 => self.asm.mov(DOUBLE[to], memory)?,
            Op::Load64 => self.asm.mov(WIDE[to], memory)?,
            Op::Loads8 | Op::Loads16 => self.asm.movsx(WIDE[to], memory)?,
            Op::Loads32 => self.asm.movsxd(WIDE[to], memory)?,
            Op::StoreK8 => self.asm.mov(memory, i32::from(number as i8))?,
            Op::StoreK16 => self.asm.mov(memory, i32::from(number as i16))?,
            Op::StoreK32 | Op::StoreK64 => self.asm.mov(memory, number)?,
            _ => {
                let wide = self.source(insn.src, r11)?;
                let from = insn.src as usize;
                match size {
                    Size::One => self.asm.mov(memory, *BYTE.get(from).unwrap_or(&r11b))?,
                    Size::Two => self.asm.mov(memory, *WORD.get(from).unwrap_or(&r11w))?,
                    Size::Four => self.asm.mov(memory, *DOUBLE.get(from).unwrap_or(&r11d))?,
                    Size::Eight => self.asm.mov(memory, wide)?,
                }
            }
        }
        Ok(true)
    }

    /// The memory of an access; where it is not known by now, what follows is reached only if it is the request's, and
    /// the machine does it otherwise. None if it is the machine's to refuse.
    fn memory(
        &mut self,
        at: usize,
        register: Register,
        offset: i32,
        size: Size,
    ) -> Result<Option<AsmMemoryOperand>> {
        let (bytes, sized): (usize, fn(AsmMemoryOperand) -> AsmMemoryOperand) = match size {
            Size::One => (1, byte_ptr),
            Size::Two => (2, word_ptr),
            Size::Four => (4, dword_ptr),
            Size::Eight => (8, qword_ptr),
        };
        if register == Register::R10 && !self.calls {
            let start = (frame_address(0) as u32 as i32).wrapping_add(offset);
            let fits = usize::try_from(start).is_ok_and(|start| start + bytes <= STACK_BYTES);
            return Ok(fits.then(|| sized(ptr(rbp + start))));
        }
        let from = self.source(register, r11)?;
        let asm = &mut self.asm;
        let otherwise = asm.create_label();
        asm.lea(r10, ptr(from + offset))?;
        // Without the bit that the request's addresses have, only those are small.
        asm.btr(r10, CONTEXT_BIT)?;
        asm.jae(otherwise)?;
        asm.xor(r11d, r11d)?;
        asm.cmp(r10, (CONTEXT_BYTES - bytes) as i32)?;
        asm.ja(otherwise)?;
        // For a processor that has guessed wrong and goes on for a while.
        asm.cmova(r10, r11)?;
        self.later.push(Later::Outside(otherwise, at));
        Ok(Some(sized(ptr(r12 + r10))))
    }
}
