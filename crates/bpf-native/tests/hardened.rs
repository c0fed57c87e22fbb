//! Code is made where services may not make memory runnable that was written to (`MemoryDenyWriteExecute=`).
//!
//! A process of its own, since it cannot take that back.

#![cfg(target_arch = "x86_64")]

use bpf::request::{Backend, Request};
use bpf::{Instance, Machine, load};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use std::ptr;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// `PR_SET_MDWE` and `PR_MDWE_REFUSE_EXEC_GAIN` (Linux 6.3).
const SET_MDWE: libc::c_int = 65;
const REFUSE_EXEC_GAIN: libc::c_ulong = 1;

/// Whether the usual way to make code is refused.
fn is_refused() -> bool {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a page of its own, wherever the kernel puts it, that nobody uses.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), 4096, protection, MapFlags::PRIVATE) };
    let page = page.expect("a page");
    // SAFETY: that page.
    unsafe { mprotect(page, 4096, MprotectFlags::READ | MprotectFlags::EXEC) }.is_err()
}

#[test]
fn code_is_made_without_memory_that_changes_its_mind() {
    // SAFETY: takes numbers only.
    let set = unsafe { libc::prctl(SET_MDWE, REFUSE_EXEC_GAIN, 0_u64, 0_u64, 0_u64) };
    if set != 0 {
        return eprintln!("this kernel does not know PR_SET_MDWE");
    }
    assert!(is_refused());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf/linear.bpf.o");
    let program = load(&std::fs::read(path).expect(path)).expect("it loads");
    let mut instance = Instance::new(program, 1).expect("its maps are small");
    bpf_native::compile(&mut instance).expect("it is allowed");
    assert!(instance.native().is_some());
    let route = instance.program().route();
    let mut machine = Machine::new(Arc::new(instance), 0, 1);
    let (start, blocks, op, backends) = (1100, 8, 2, 2);
    let mut request = Request { start, blocks, op, backends, ..Request::default() };
    request.backend[..2].fill(Backend { blocks: 1024, ..Backend::default() });
    assert_eq!(machine.run(route, request.as_mut_bytes(), &|| 0), Ok(0));
    assert_eq!((request.parts, request.part[0].backend, request.part[0].block), (1, 1, 76));
}
