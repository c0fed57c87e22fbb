//! What the calling thread has submitted last: to which context, and when. Two words of its own, found as [`inside`](crate::inside)'s flag is.

/// A submission that was alone in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Last {
    /// What tells its context from others; 0 for none, or one of which nothing is remembered.
    pub context: usize,
    /// When, on the processor's clock.
    pub ticks: u64,
}

pub use words::{last, set_last};

/// It has submitted something else.
#[inline(always)]
pub fn forget_last() {
    words::set_context(0);
}

#[cfg(target_arch = "x86_64")]
mod words {
    use super::Last;
    use std::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tbss.nvlane_aio_last, \"awT\", @nobits",
        ".globl nvlane_aio_last",
        ".hidden nvlane_aio_last",
        ".type nvlane_aio_last, @object",
        ".size nvlane_aio_last, 16",
        ".balign 8",
        "nvlane_aio_last:",
        ".zero 16",
        ".popsection",
    );

    /// What was set last.
    #[inline(always)]
    pub fn last() -> Last {
        let (context, ticks);
        // SAFETY: reads this thread's words.
        unsafe {
            asm!(
                "mov {ticks}, qword ptr [rip + nvlane_aio_last@GOTTPOFF]",
                "mov {context}, qword ptr fs:[{ticks}]",
                "mov {ticks}, qword ptr fs:[{ticks} + 8]",
                context = out(reg) context,
                ticks = out(reg) ticks,
                options(nostack, preserves_flags, readonly),
            );
        }
        Last { context, ticks }
    }

    /// Sets it.
    #[inline(always)]
    pub fn set_last(last: Last) {
        // SAFETY: writes this thread's words.
        unsafe {
            asm!(
                "mov {place}, qword ptr [rip + nvlane_aio_last@GOTTPOFF]",
                "mov qword ptr fs:[{place}], {context}",
                "mov qword ptr fs:[{place} + 8], {ticks}",
                place = out(reg) _,
                context = in(reg) last.context,
                ticks = in(reg) last.ticks,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Sets the first word alone.
    #[inline(always)]
    pub fn set_context(context: usize) {
        // SAFETY: writes this thread's word.
        unsafe {
            asm!(
                "mov {place}, qword ptr [rip + nvlane_aio_last@GOTTPOFF]",
                "mov qword ptr fs:[{place}], {context}",
                place = out(reg) _,
                context = in(reg) context,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod words {
    use super::Last;
    use std::cell::Cell;

    thread_local! {
        static LAST: Cell<Last> = const { Cell::new(Last { context: 0, ticks: 0 }) };
    }

    pub fn last() -> Last {
        LAST.with(Cell::get)
    }

    pub fn set_last(last: Last) {
        LAST.with(|kept| kept.set(last));
    }

    pub fn set_context(context: usize) {
        set_last(Last { context, ..last() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own() {
        let mine = Last { context: 17, ticks: 1 << 40 };
        set_last(mine);
        std::thread::spawn(|| {
            assert_eq!(last(), Last { context: 0, ticks: 0 });
            set_last(Last { context: 3, ticks: 4 });
        })
        .join()
        .unwrap();
        assert_eq!(last(), mine);
        forget_last();
        assert_eq!(last(), Last { context: 0, ticks: 1 << 40 });
    }
}
