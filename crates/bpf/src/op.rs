//! Instructions as the machine takes them: one operation each, operands checked, jumps resolved.

use crate::Refusal;

/// Declares [`Op`], and [`Op::alu`] and [`Op::jump`] that find an operation by its code.
macro_rules! operations {
    (alu { $($alu:ident $code:literal: $k64:ident $r64:ident $k32:ident $r32:ident;)* }
     jump { $($jump:ident $jcode:literal: $jk64:ident $jr64:ident $jk32:ident $jr32:ident;)* }
     other { $($other:ident,)* }
     sequences { $($sequence:ident: $($part:ident)*;)* }) => {
        /// What one instruction does, by the names of RFC 9669. `K` takes the immediate, `R` the source register; 64 or 32 bits.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the names are the RFC's")]
        #[repr(u8)]
        pub enum Op {
            $($k64, $r64, $k32, $r32,)*
            $($jk64, $jr64, $jk32, $jr32,)*
            $($other,)*
            /// Reads a map's number from `offset`; the load of its address and the call behind it in one.
            LookUp,
            /// `dst = src + immediate`, of which as many upper bits as `offset` says become 0: moves and additions.
            Affine,
            $($sequence,)*
        }

        impl Op {
            /// The arithmetic operation of `code`, by width and source of the operand.
            fn alu(code: u8, wide: bool, register: bool) -> Option<Op> {
                Some(match (code, wide, register) {
                    $(($code, true, false) => Op::$k64,
                      ($code, true, true) => Op::$r64,
                      ($code, false, false) => Op::$k32,
                      ($code, false, true) => Op::$r32,)*
                    _ => return None,
                })
            }

            /// Operations that do what several do one after another.
            pub const SEQUENCES: &[(Op, &[Op])] = &[$((Op::$sequence, &[$(Op::$part),*])),*];

            /// The conditional jump of `code`.
            fn jump(code: u8, wide: bool, register: bool) -> Option<Op> {
                Some(match (code, wide, register) {
                    $(($jcode, true, false) => Op::$jk64,
                      ($jcode, true, true) => Op::$jr64,
                      ($jcode, false, false) => Op::$jk32,
                      ($jcode, false, true) => Op::$jr32,)*
                    _ => return None,
                })
            }
        }
    };
}

operations! {
    alu {
        add 0x0: AddK64 AddR64 AddK32 AddR32;
        sub 0x1: SubK64 SubR64 SubK32 SubR32;
        mul 0x2: MulK64 MulR64 MulK32 MulR32;
        div 0x3: DivK64 DivR64 DivK32 DivR32;
        or 0x4: OrK64 OrR64 OrK32 OrR32;
        and 0x5: AndK64 AndR64 AndK32 AndR32;
        lsh 0x6: LshK64 LshR64 LshK32 LshR32;
        rsh 0x7: RshK64 RshR64 RshK32 RshR32;
        mod_ 0x9: ModK64 ModR64 ModK32 ModR32;
        xor 0xa: XorK64 XorR64 XorK32 XorR32;
        mov 0xb: MovK64 MovR64 MovK32 MovR32;
        arsh 0xc: ArshK64 ArshR64 ArshK32 ArshR32;
        // Not codes of their own: Div and Mod with offset 1.
        sdiv 0x13: SdivK64 SdivR64 SdivK32 SdivR32;
        smod 0x19: SmodK64 SmodR64 SmodK32 SmodR32;
    }
    jump {
        jeq 0x1: JeqK64 JeqR64 JeqK32 JeqR32;
        jgt 0x2: JgtK64 JgtR64 JgtK32 JgtR32;
        jge 0x3: JgeK64 JgeR64 JgeK32 JgeR32;
        jset 0x4: JsetK64 JsetR64 JsetK32 JsetR32;
        jne 0x5: JneK64 JneR64 JneK32 JneR32;
        jsgt 0x6: JsgtK64 JsgtR64 JsgtK32 JsgtR32;
        jsge 0x7: JsgeK64 JsgeR64 JsgeK32 JsgeR32;
        jlt 0xa: JltK64 JltR64 JltK32 JltR32;
        jle 0xb: JleK64 JleR64 JleK32 JleR32;
        jslt 0xc: JsltK64 JsltR64 JsltK32 JsltR32;
        jsle 0xd: JsleK64 JsleR64 JsleK32 JsleR32;
    }
    other {
        Neg64, Neg32,
        Movsx8R64, Movsx16R64, Movsx32R64, Movsx8R32, Movsx16R32,
        // The low bits as they are, or with their bytes turned.
        Low16, Low32, Low64, Swap16, Swap32, Swap64,
        LoadImmediate,
        Load8, Load16, Load32, Load64, Loads8, Loads16, Loads32,
        StoreK8, StoreK16, StoreK32, StoreK64,
        StoreR8, StoreR16, StoreR32, StoreR64,
        Atomic32, Atomic64,
        Jump, Call, Helper, Exit,
    }
    sequences {
        Load8JeqK32: Load8 JeqK32;
        Load8JneK32: Load8 JneK32;
        Load16JltK32: Load16 JltK32;
        AffineLoad16JltK32: Affine Load16 JltK32;
        Load8JeqK32Load16JltK32: Load8 JeqK32 Load16 JltK32;
        Load32JleR32: Load32 JleR32;
        Load32JleR32Load64JltR64: Load32 JleR32 Load64 JltR64;
        Load32Load32: Load32 Load32;
        Load32Load64: Load32 Load64;
        Load64Load32: Load64 Load32;
        Load64AddR64: Load64 AddR64;
        Load64RshR64: Load64 RshR64;
        AffineAffineLoad64: Affine Affine Load64;
        Load64LshR64AddR64StoreR64: Load64 LshR64 AddR64 StoreR64;
        SubR32SubR64JltR64: SubR32 SubR64 JltR64;
        SubR32JltR32: SubR32 JltR32;
        SubR64AffineAffineJneK64: SubR64 Affine Affine JneK64;
        AffineAffineJneK64: Affine Affine JneK64;
        AffineJgeR64Load64: Affine JgeR64 Load64;
        AffineJeqR32: Affine JeqR32;
        JgeR64Load64: JgeR64 Load64;
        JeqK64Load64: JeqK64 Load64;
        AddR64StoreR64: AddR64 StoreR64;
        AddR64Load32Load32: AddR64 Load32 Load32;
        AffineAddR64RshK64StoreR32: Affine AddR64 RshK64 StoreR32;
        AffineAddR32AndK64Load64RshR64AndK64JeqR32: Affine AddR32 AndK64 Load64 RshR64 AndK64 JeqR32;
        AffineAffineStoreR64: Affine Affine StoreR64;
        AffineMulK64Load64AddR64Affine: Affine MulK64 Load64 AddR64 Affine;
        AffineMulK64AffineAddR64Affine: Affine MulK64 Affine AddR64 Affine;
        Load8AffineMulK64Load64AddR64Affine: Load8 Affine MulK64 Load64 AddR64 Affine;
        MulK64AddR64: MulK64 AddR64;
        StorePart: StoreR32 StoreR8 StoreR16 StoreR32 StoreR32 StoreR64;
        StoreR32StoreR8StoreR16: StoreR32 StoreR8 StoreR16;
        StoreR32StoreR8StoreR32StoreR64: StoreR32 StoreR8 StoreR32 StoreR64;
        StoreR8StoreR16StoreR32StoreR64: StoreR8 StoreR16 StoreR32 StoreR64;
        StoreR16StoreR32: StoreR16 StoreR32;
        StoreR32StoreR32: StoreR32 StoreR32;
        AffineStoreR16Jump: Affine StoreR16 Jump;
        AffineStoreR16Exit: Affine StoreR16 Exit;
        AffineStoreR16AddR32AffineAffineJump: Affine StoreR16 AddR32 Affine Affine Jump;
        AffineJump: Affine Jump;
        AffineExit: Affine Exit;
    }
}

/// What an atomic instruction does, in its `extra`.
pub mod atomic {
    /// `*p += r`.
    pub const ADD: i64 = 0x00;
    /// `*p |= r`.
    pub const OR: i64 = 0x40;
    /// `*p &= r`.
    pub const AND: i64 = 0x50;
    /// `*p ^= r`.
    pub const XOR: i64 = 0xa0;
    /// The old value goes to the source register.
    pub const FETCH: i64 = 0x01;
    /// Exchange; always with [`FETCH`].
    pub const EXCHANGE: i64 = 0xe1;
    /// Compare with r0 and exchange; r0 is the old value.
    pub const COMPARE_EXCHANGE: i64 = 0xf1;
}

/// Registers that a program has, and [`Register::Zero`].
pub const REGISTERS: usize = 12;

/// A register. A type of its own, so that what it is an index of needs no check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the RFC's")]
#[repr(u8)]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
    /// Always 0. No program can name it.
    Zero,
}

impl Register {
    const ALL: [Register; 11] = {
        use Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
        [R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10]
    };

    /// That of a program, by its number.
    pub fn new(number: u8) -> Option<Register> {
        Register::ALL.get(usize::from(number)).copied()
    }
}

/// One instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    /// What it does.
    pub op: Op,
    /// Destination register.
    pub dst: Register,
    /// Source register.
    pub src: Register,
    /// Of a memory access: the offset, sign-extended. Of a jump or call: the instruction it goes to.
    pub offset: i32,
    /// The operand, sign-extended; of [`Op::LoadImmediate`] all 64 bits; of a helper its number.
    pub immediate: i64,
}

/// An instruction as it is in the object: 8 bytes (RFC 9669, section 3).
#[derive(Clone, Copy, Debug)]
pub struct Raw {
    opcode: u8,
    dst: u8,
    src: u8,
    offset: i16,
    immediate: i32,
}

/// `src` of a call of a function of the program.
pub const PSEUDO_CALL: u8 = 1;

impl Raw {
    /// From its bytes.
    pub fn new(bytes: [u8; 8]) -> Raw {
        let [opcode, registers, o0, o1, i0, i1, i2, i3] = bytes;
        Raw {
            opcode,
            dst: registers & 15,
            src: registers >> 4,
            offset: i16::from_le_bytes([o0, o1]),
            immediate: i32::from_le_bytes([i0, i1, i2, i3]),
        }
    }

    /// Whether the next eight bytes belong to it.
    pub fn is_wide(self) -> bool {
        self.opcode == 0x18
    }

    /// Whether it calls a function of the program.
    pub fn is_call(self) -> bool {
        self.opcode == 0x85 && self.src == PSEUDO_CALL
    }

    /// The immediate.
    pub fn immediate(self) -> i32 {
        self.immediate
    }

    /// Decodes the instruction at `at`; `next` is the immediate of the one behind it. Jumps and calls get the
    /// instruction that they go to, unchecked.
    pub fn decode(self, at: usize, next: i32) -> Result<Insn, Refusal> {
        let (Some(dst), Some(src)) = (Register::new(self.dst), Register::new(self.src)) else {
            return Err(Refusal::Register);
        };
        let unknown = Err(Refusal::Opcode(self.opcode));
        let immediate = i64::from(self.immediate);
        let (op, offset, immediate) = match self.opcode & 7 {
            0x0 if self.is_wide() && self.src == 0 => {
                let value = u64::from(self.immediate as u32) | u64::from(next as u32) << 32;
                (Op::LoadImmediate, 0, value as i64)
            }
            0x1..=0x3 => match self.access() {
                Some(op) => (op, i32::from(self.offset), immediate),
                None => return unknown,
            },
            0x4 | 0x7 => match self.arithmetic() {
                Some(op) => (op, 0, immediate),
                None => return unknown,
            },
            0x5 | 0x6 => match self.flow() {
                Some((op, distance)) => {
                    (op, (at as i64 + 1 + i64::from(distance)).try_into().unwrap_or(-1), immediate)
                }
                None => return unknown,
            },
            _ => return unknown,
        };
        let insn = Insn { op, dst, src, offset, immediate };
        if insn.changes_register(Register::R10) { Err(Refusal::FramePointer) } else { Ok(insn) }
    }

    fn access(self) -> Option<Op> {
        let (mode, size) = (self.opcode >> 5, self.opcode >> 3 & 3);
        let by_size = |word, half, byte, double| [word, half, byte, double][usize::from(size)];
        match (self.opcode & 7, mode) {
            (1, 3) => Some(by_size(Op::Load32, Op::Load16, Op::Load8, Op::Load64)),
            (1, 4) if size != 3 => Some(by_size(Op::Loads32, Op::Loads16, Op::Loads8, Op::Exit)),
            (2, 3) => Some(by_size(Op::StoreK32, Op::StoreK16, Op::StoreK8, Op::StoreK64)),
            (3, 3) => Some(by_size(Op::StoreR32, Op::StoreR16, Op::StoreR8, Op::StoreR64)),
            (3, 6) => {
                use atomic::{ADD, AND, COMPARE_EXCHANGE, EXCHANGE, FETCH, OR, XOR};
                let what = i64::from(self.immediate);
                let plain = matches!(what & !FETCH, ADD | OR | AND | XOR);
                match size {
                    _ if !plain && !matches!(what, EXCHANGE | COMPARE_EXCHANGE) => None,
                    0 => Some(Op::Atomic32),
                    3 => Some(Op::Atomic64),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn arithmetic(self) -> Option<Op> {
        let (wide, register) = (self.opcode & 7 == 7, self.opcode & 8 != 0);
        match (self.opcode >> 4, self.offset) {
            (0x8, 0) if !register => Some(if wide { Op::Neg64 } else { Op::Neg32 }),
            (code @ (0x3 | 0x9), 1) => Op::alu(code | 0x10, wide, register),
            (0xb, 8) if register => Some(if wide { Op::Movsx8R64 } else { Op::Movsx8R32 }),
            (0xb, 16) if register => Some(if wide { Op::Movsx16R64 } else { Op::Movsx16R32 }),
            (0xb, 32) if register && wide => Some(Op::Movsx32R64),
            (0xd, 0) => match (wide, register, self.immediate) {
                (false, false, 16) => Some(Op::Low16),
                (false, false, 32) => Some(Op::Low32),
                (false, false, 64) => Some(Op::Low64),
                (_, _, 16) if wide != register => Some(Op::Swap16),
                (_, _, 32) if wide != register => Some(Op::Swap32),
                (_, _, 64) if wide != register => Some(Op::Swap64),
                _ => None,
            },
            (code, 0) => Op::alu(code, wide, register),
            _ => None,
        }
    }

    /// The operation, and how far it goes.
    fn flow(self) -> Option<(Op, i32)> {
        let (wide, register) = (self.opcode & 7 == 5, self.opcode & 8 != 0);
        let near = i32::from(self.offset);
        match (self.opcode >> 4, wide, register) {
            (0x0, true, false) => Some((Op::Jump, near)),
            (0x0, false, false) => Some((Op::Jump, self.immediate)),
            (0x8, true, false) => match self.src {
                PSEUDO_CALL => Some((Op::Call, self.immediate)),
                0 => Some((Op::Helper, 0)),
                _ => None,
            },
            (0x9, true, false) => Some((Op::Exit, 0)),
            (code, ..) => Some((Op::jump(code, wide, register)?, near)),
        }
    }
}

impl Insn {
    /// Ends a function.
    pub const EXIT: Insn =
        Insn { op: Op::Exit, dst: Register::R0, src: Register::R0, offset: 0, immediate: 0 };

    /// Whether it may go on elsewhere than behind it, other than by a call.
    pub fn is_jump(&self) -> bool {
        self.op == Op::Jump || (Op::JeqK64 as u8..=Op::JsleR32 as u8).contains(&(self.op as u8))
    }

    /// Whether nothing behind it is carried out because of it.
    pub fn ends(&self) -> bool {
        matches!(self.op, Op::Jump | Op::Exit)
    }

    fn changes_register(&self, register: Register) -> bool {
        match self.op {
            Op::StoreK8 | Op::StoreK16 | Op::StoreK32 | Op::StoreK64 => false,
            Op::StoreR8 | Op::StoreR16 | Op::StoreR32 | Op::StoreR64 => false,
            Op::Atomic32 | Op::Atomic64 => {
                self.immediate & atomic::FETCH != 0
                    && self.immediate != atomic::COMPARE_EXCHANGE
                    && self.src == register
            }
            Op::Call | Op::Helper | Op::Exit => false,
            _ if self.is_jump() => false,
            _ => self.dst == register,
        }
    }
}
