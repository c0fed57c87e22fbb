//! Refusals by a seccomp filter are recognised as such. The filter binds only the thread that
//! installs it.

mod filter;

use filter::refuse;
use uring::{Error, Refusal, Ring};

fn refusal_of(call: i64, errno: i32) -> (Refusal, String) {
    let thread = std::thread::spawn(move || {
        refuse(call, errno);
        match Ring::new(8) {
            Err(error @ Error::Refused { refusal, .. }) => (refusal, error.to_string()),
            other => panic!("{other:?}"),
        }
    });
    thread.join().expect("refused")
}

#[test]
fn a_filter_is_named_with_what_it_should_allow() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let (refusal, text) = refusal_of(libc::SYS_io_uring_setup, errno);
        assert_eq!(refusal, Refusal::Seccomp);
        assert!(text.contains("io_uring_setup") && text.contains("seccomp"), "{text}");
    }
    let (refusal, text) = refusal_of(libc::SYS_io_uring_register, libc::EPERM);
    assert_eq!(refusal, Refusal::Seccomp);
    assert!(text.starts_with("io_uring_register"), "{text}");
}

#[test]
fn this_kernel_grants_what_the_reactor_is_built_on() {
    let ring = Ring::new(8).expect("io_uring is allowed where tests run");
    let setup = ring.setup();
    // All of it is there from 6.1 on.
    assert!(setup.defer_taskrun && setup.single_issuer && setup.taskrun_flag, "{setup:?}");
    assert!(setup.registered_ring, "{setup:?}");
    assert_eq!((setup.entries, setup.completions), (8, 32));
    assert!(ring.supports(uring::code::PollAdd::CODE));
    assert!(!ring.supports(250));
}

#[test]
fn rings_of_one_thread_are_freed_when_dropped() {
    // A thread can register 16 ring descriptors at a time, and here makes more rings than that.
    for _ in 0..40 {
        assert!(Ring::new(8).expect("allowed").setup().registered_ring);
    }
}
