//! What is checked before a program runs; everything else is checked as it does.

use crate::Refusal;
use crate::machine::helper;
use crate::op::{Insn, Op};
use crate::program::Span;

/// Checks that control stays within `code`: the machine relies on it. `filler` tells second halves of wide
/// instructions, `sections` lie behind one another. The error says at which instruction.
pub fn verify(code: &[Insn], filler: &[bool], sections: &[Span]) -> Result<(), (usize, Refusal)> {
    for section in sections {
        let Some(last) = (section.start..section.end).rev().find(|at| !filler[*at]) else {
            continue;
        };
        if !code[last].ends() {
            return Err((last, Refusal::NoEnd));
        }
        for at in (section.start..section.end).filter(|at| !filler[*at]) {
            let insn = &code[at];
            let target = usize::try_from(insn.offset).unwrap_or(usize::MAX);
            if insn.is_jump() {
                let inside = (section.start..section.end).contains(&target);
                if !inside || filler[target] {
                    return Err((at, Refusal::JumpTarget));
                }
            }
            let calls_nothing = filler.get(target).is_none_or(|filler| *filler);
            match insn.op {
                Op::Call if calls_nothing => return Err((at, Refusal::CallTarget)),
                Op::Helper if !helper::ALL.contains(&insn.immediate) => {
                    return Err((at, Refusal::Helper(insn.immediate)));
                }
                _ => {}
            }
        }
    }
    Ok(())
}
