//! Which threads are at work in the library: a signal's handler that calls us again must not wait for locks
//! that its own thread holds.

/// This thread is at work in the library, until this is dropped.
pub struct Inside(());

impl Inside {
    /// None when this thread is inside already.
    #[inline(always)]
    pub fn enter() -> Option<Inside> {
        if flag::raise() { None } else { Some(Inside(())) }
    }
}

impl Drop for Inside {
    #[inline(always)]
    fn drop(&mut self) {
        flag::lower();
    }
}

/// The thread's flag, where the loader has put it when the program started (`initial-exec`): a shared library's
/// own variables of threads cost a call of `__tls_get_addr` each time, and the compiler cannot be told
/// otherwise. One byte fits into what glibc keeps for libraries that come later (`dlopen`).
#[cfg(target_arch = "x86_64")]
mod flag {
    use std::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tbss.nvlane_aio_inside, \"awT\", @nobits",
        ".globl nvlane_aio_inside",
        ".hidden nvlane_aio_inside",
        ".type nvlane_aio_inside, @object",
        ".size nvlane_aio_inside, 1",
        "nvlane_aio_inside:",
        ".zero 1",
        ".popsection",
    );

    /// Sets it, and gives back what it was. Asked anew each time: only this thread and its handlers write the flag, and these
    /// leave it as they found it.
    #[inline(always)]
    pub fn raise() -> bool {
        let value: u8;
        // SAFETY: reads and writes this thread's byte.
        unsafe {
            asm!(
                "mov {place}, qword ptr [rip + nvlane_aio_inside@GOTTPOFF]",
                "mov {value}, byte ptr fs:[{place}]",
                "mov byte ptr fs:[{place}], 1",
                place = out(reg) _,
                value = out(reg_byte) value,
                options(nostack, preserves_flags),
            );
        }
        value != 0
    }

    /// Clears it. What was done before is done before, for a handler of this thread as well: the compiler moves no access
    /// of memory over it.
    #[inline(always)]
    pub fn lower() {
        // SAFETY: writes this thread's byte.
        unsafe {
            asm!(
                "mov {place}, qword ptr [rip + nvlane_aio_inside@GOTTPOFF]",
                "mov byte ptr fs:[{place}], 0",
                place = out(reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod flag {
    use std::sync::atomic::Ordering::{Relaxed, SeqCst};
    use std::sync::atomic::{AtomicBool, compiler_fence};

    thread_local! {
        static INSIDE: AtomicBool = const { AtomicBool::new(false) };
    }

    #[inline]
    pub fn raise() -> bool {
        INSIDE.with(|flag| {
            let before = flag.load(Relaxed);
            flag.store(true, Relaxed);
            // The compiler moves no access of memory over it, for handlers of this thread.
            compiler_fence(SeqCst);
            before
        })
    }

    #[inline]
    pub fn lower() {
        compiler_fence(SeqCst);
        INSIDE.with(|flag| flag.store(false, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_inside_once_and_others_do_not_count() {
        let inside = Inside::enter().unwrap();
        assert!(Inside::enter().is_none());
        std::thread::spawn(|| assert!(Inside::enter().is_some())).join().unwrap();
        drop(inside);
        assert!(Inside::enter().is_some());
        assert!(Inside::enter().is_some());
    }
}
