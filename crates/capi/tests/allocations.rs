//! No allocation per command through the functions of C, once warm.

use nvlane::*;
use std::ptr;

const READ: u8 = 2;
const DEPTH: usize = 16;
/// Rounds before counting starts, and those that count.
const WARM_UP: usize = 100;
const COUNTED: usize = 500;

#[test]
fn commands_allocate_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = format!("{}?create&size=1M&bs=4096\0", folder.path().join("image").display());
    for uri in ["mem:1M?bs=4096\0", &file] {
        let allocations = rounds(uri);
        assert!(allocations <= 4, "{uri}: {allocations} for {COUNTED} rounds of {DEPTH} commands");
    }
}

/// Allocations while rounds of commands go to a volume, half with a buffer, half without.
fn rounds(uri: &str) -> u64 {
    let (mut session, mut volume, mut buffer) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let mut ordinary = vec![0u8; DEPTH * 4096];
    let mut done =
        vec![nvl_completion { token: 0, result: 0, status: 0, reserved: 0, volume: 0 }; DEPTH];
    // SAFETY: handles as they were given, and memory that stays until the session has ended.
    unsafe {
        assert_eq!(nvl_session_new(ptr::null(), &mut session), 0);
        assert_eq!(nvl_open(session, uri.as_ptr().cast(), 0, &mut volume), 0);
        assert_eq!(nvl_buffer_new(session, DEPTH * 4096, &mut buffer), 0);
        let mut before = 0;
        for round in 0..WARM_UP + COUNTED {
            if round == WARM_UP {
                before = counting_allocator::of_this_thread();
            }
            for at in 0..DEPTH {
                let mut command: nvl_command = std::mem::zeroed();
                (command.opcode, command.cdw10, command.token) = (READ, at as u32, at as u64);
                command.data_len = 4096;
                if at % 2 == 0 {
                    command.buffer = buffer;
                    command.data = nvl_buffer_data(buffer).byte_add(at * 4096);
                } else {
                    command.data = ordinary.as_mut_ptr().add(at * 4096).cast();
                }
                assert_eq!(nvl_submit(volume, &command), 0);
            }
            assert_eq!(nvl_wait(session, DEPTH as u32, -1), DEPTH as i32);
            assert_eq!(nvl_reap(session, done.as_mut_ptr(), DEPTH as u32), DEPTH as i32);
            assert!(done.iter().all(|done| done.status == 0));
        }
        let allocations = counting_allocator::of_this_thread() - before;
        assert_eq!(nvl_session_free(session), 0);
        assert_eq!(nvl_buffer_free(buffer), 0);
        assert_eq!(nvl_close(volume), 0);
        allocations
    }
}
