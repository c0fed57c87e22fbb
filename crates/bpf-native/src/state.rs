//! What code works on while it runs, and how it has the machine do what it cannot.

use bpf::native::{Insn, Op, REGISTERS, Run, frame_address};
use bpf::{Fault, FaultKind};
use std::ffi::c_void;

/// Of one run. The code knows where its fields are.
#[repr(C)]
pub struct State<'a> {
    /// The request, as bytes.
    pub context: *mut u8,
    /// The machine's stack, as bytes.
    pub stack: *mut u8,
    /// The processor's, as it was when the run began.
    pub stack_pointer: u64,
    /// Has the machine carry out instruction `at`.
    pub outside: extern "sysv64" fn(&mut State<'_>),
    /// The program's, while the machine has them; r10 always.
    pub registers: [u64; REGISTERS],
    /// Instructions that the run may still take.
    pub budget: u32,
    /// The instruction that may be at fault.
    pub at: u32,
    /// Functions that have called another.
    pub depth: u32,
    /// 0, or why the run has ended before its end.
    pub stopped: u32,
    kind: FaultKind,
    run: *mut c_void,
    insns: &'a [Insn],
}

impl<'a> State<'a> {
    /// In `stopped`: the code has used its budget up.
    pub const BUDGET: u32 = 1;
    /// In `stopped`: the machine has found a fault.
    const FAULT: u32 = 2;

    /// Runs code that was made of `insns` and is at `code`, from `entry` in it on.
    ///
    /// # Safety
    /// It is that code, and `entry` the place of one of its instructions that may be started at.
    pub unsafe fn run(
        insns: &'a [Insn],
        code: *const c_void,
        entry: *const c_void,
        run: &mut Run<'_>,
    ) -> Result<u64, Fault> {
        let (context, stack) = run.bytes();
        let (context, stack) = (context.as_mut_ptr(), stack.as_mut_ptr());
        let mut registers = [0; REGISTERS];
        registers[10] = frame_address(0);
        let mut state = State {
            context,
            stack,
            stack_pointer: 0,
            outside,
            registers,
            budget: run.budget,
            at: 0,
            depth: 0,
            stopped: 0,
            kind: FaultKind::Budget,
            run: (&raw mut *run).cast(),
            insns,
        };
        // SAFETY: the code begins with a function that takes these; it works on the state, and on the request and the
        // stack within their bounds, by the addresses in the state: those that `outside` has put there last.
        let r0 = unsafe {
            let code: extern "sysv64" fn(&mut State<'_>, *const c_void) -> u64 =
                std::mem::transmute(code);
            code(&mut state, entry)
        };
        match state.stopped {
            0 => Ok(r0),
            _ => Err(Fault { kind: state.kind, instruction: state.at as usize }),
        }
    }
}

/// Carries out the instruction that the code is at.
extern "sysv64" fn outside(state: &mut State<'_>) {
    // SAFETY: the run that the state was made for, which waits for the code, which waits for us.
    let run = unsafe { &mut *state.run.cast::<Run<'_>>() };
    let insn = &state.insns[state.at as usize];
    run.budget = state.budget;
    if let Err(kind) = run.one(insn, &mut state.registers) {
        (state.stopped, state.kind) = (State::FAULT, kind);
        if insn.op == Op::LookUp {
            // It is the call that is at fault, the third of what this stands for.
            state.at += 2;
        }
    }
    state.budget = run.budget;
    // The code goes on with these.
    let (context, stack) = run.bytes();
    (state.context, state.stack) = (context.as_mut_ptr(), stack.as_mut_ptr());
}
