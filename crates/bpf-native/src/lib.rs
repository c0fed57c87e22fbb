//! Programs as code of this processor, where it is one that we can make code for: x86-64.
//!
//! ```text
//!   Instance --assemble--> bytes --Memory--> sealed, then mapped to be run
//!                                                |
//!   bpf::Machine::run --> Native::run ---------- '--> r0, or the same fault as the machine's
//!                            ^       | maps, helpers, and addresses outside of the request
//!                            '-------'  bpf::native::Run::one, an instruction at a time
//! ```
//!
//! What a program may do is what [`bpf`] says: every access is checked, going back is paid for out of the budget. That
//! code does what the machine does, in what it changes as in its faults, is a property test and a fuzz target.
//!
//! What it does not do: other processors; run `NVLANE_SETUP`, which happens once.
//!
//! Key constant: [`INSTRUCTIONS_MAX`].

#[cfg(target_arch = "x86_64")]
mod assemble;
#[cfg(target_arch = "x86_64")]
mod memory;
#[cfg(target_arch = "x86_64")]
mod state;

use bpf::Instance;

/// Instructions of a program that code is made of: more would take long to make.
pub const INSTRUCTIONS_MAX: usize = 8192;

/// Why a program stays with the machine.
#[derive(Debug, thiserror::Error)]
pub enum Unable {
    /// Another processor.
    #[error("code is made for x86-64 only")]
    Processor,
    /// See [`INSTRUCTIONS_MAX`].
    #[error("it has more than {INSTRUCTIONS_MAX} instructions")]
    Long,
    /// The assembler refuses.
    #[error("{0}")]
    Assembler(String),
    /// The system refuses.
    #[error("memory for code: {0}")]
    Memory(#[from] std::io::Error),
}

/// Makes code of a program, which machines of `instance` run from then on.
///
/// # Errors
/// Why not; the machine interprets it then.
pub fn compile(instance: &mut Instance) -> Result<(), Unable> {
    #[cfg(target_arch = "x86_64")]
    return x86_64::compile(instance);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = instance;
        Err(Unable::Processor)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::{INSTRUCTIONS_MAX, Unable};
    use crate::assemble::assemble;
    use crate::memory::Memory;
    use crate::state::State;
    use bpf::native::{Insn, Native, Run};
    use bpf::{Entry, Fault, Instance};
    use std::fmt;
    use std::sync::Arc;

    struct Code {
        insns: Vec<Insn>,
        memory: Memory,
        /// Where runs may begin, and where that is in the memory.
        entries: Vec<(Entry, usize)>,
    }

    impl fmt::Debug for Code {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Code").field("memory", &self.memory).finish_non_exhaustive()
        }
    }

    pub fn compile(instance: &mut Instance) -> Result<(), Unable> {
        let insns = instance.singles();
        if insns.len() > INSTRUCTIONS_MAX {
            return Err(Unable::Long);
        }
        let program = instance.program();
        let entries = [Some(program.route()), program.done(), program.deferred()];
        let entries: Vec<Entry> = entries.into_iter().flatten().collect();
        let starts: Vec<usize> = entries.iter().map(|entry| entry.start()).collect();
        let refused = |error: iced_x86::IcedError| Unable::Assembler(error.to_string());
        let assembled = assemble(&insns, &starts).map_err(refused)?;
        let offsets = assembled.entries.iter().map(|offset| *offset as usize);
        let entries = entries.into_iter().zip(offsets).collect();
        let memory = Memory::new(&assembled.code)?;
        instance.set_native(Arc::new(Code { insns, memory, entries }));
        Ok(())
    }

    impl Native for Code {
        fn run(&self, entry: Entry, run: &mut Run<'_>) -> Result<u64, Fault> {
            let found = self.entries.iter().find(|(it, _)| *it == entry);
            let (_, offset) = found.expect("requests begin at an entry of the program");
            // SAFETY: the memory has the code that was made of these instructions, with entries at these places.
            unsafe { State::run(&self.insns, self.memory.at(0), self.memory.at(*offset), run) }
        }
    }
}
