//! Where little memory may be locked, some buffers are registered and the rest works without. On
//! its own in this program: the limit binds the whole process.

mod recorder;

use recorder::config;

/// Gives up all capabilities of this thread (`CAP_IPC_LOCK` lifts the limit), and lets the process
/// lock `bytes`.
fn limit_locked_memory(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // struct __user_cap_header_struct with _LINUX_CAPABILITY_VERSION_3, and its two data structs.
    let header: [u32; 2] = [0x2008_0522, 0];
    let none = [0u32; 6];
    // SAFETY: the calls read what they are pointed to.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit), 0);
        assert_eq!(libc::syscall(libc::SYS_capset, &raw const header, &raw const none), 0);
    }
}

#[test]
fn a_small_limit_is_lived_with_and_told() {
    limit_locked_memory(5 << 20);
    let reactor = recorder::reactor(&reactor::Config { buffer_bytes: 32 << 20, ..config() });
    let pool = reactor.buffers();
    assert_eq!(pool.refusal(), None);
    let buffers: Vec<_> = std::iter::from_fn(|| pool.allocate(1 << 20)).collect();
    assert_eq!(buffers.len(), 32);
    let registered = buffers.iter().filter(|buffer| buffer.ensure_registered().is_some()).count();
    // Two pieces of 2 MiB fit under 5 MiB, unless other programs of this user lock memory too.
    assert!(registered == 4 || registered == 2, "{registered}");
    assert_eq!(pool.registered(), registered << 20);
    let told = pool.refusal().expect("not all could be registered");
    assert!(told.contains("RLIMIT_MEMLOCK") && told.contains("of 32768 KiB"), "{told}");
}
