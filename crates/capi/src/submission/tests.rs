//! Which of the session's registered buffers commands are said to lie in, where they come out.

use super::*;
use crate::buffer::{nvl_buffer_data, nvl_buffer_free, nvl_buffer_is_fixed, nvl_buffer_new};
use crate::handle::{self, Handle};
use crate::paths::Sent;
use crate::session::{nvl_session_free, nvl_session_new};
use crate::volume::{self, nvl_close};
use ::volume::OpenOptions;
use namespace::{Namespace, Queue, Request};
use nvme::{Limits, Status, opcode};
use reactor::Reactor;
use std::io;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

const BYTES: u32 = 4096;

/// Notes the registered buffer that the data of each command lies in.
#[derive(Debug)]
struct Noting {
    limits: Limits,
    came: Mutex<Vec<Option<u16>>>,
}

impl Namespace for Noting {
    fn limits(&self) -> Limits {
        self.limits
    }
    fn open_queue(self: Arc<Self>, _reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        Ok(Rc::new(NotingQueue(self)))
    }
    fn refresh(&self) -> io::Result<bool> {
        Ok(false)
    }
    fn resize(&self, _bytes: u64) -> io::Result<()> {
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn uri(&self) -> String {
        "noting:".into()
    }
    fn describe(&self, _facts: &mut Vec<(String, String)>) {}
    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }
}

struct NotingQueue(Arc<Noting>);

impl Queue for NotingQueue {
    fn submit(&self, request: Box<Request>) {
        self.0.came.lock().unwrap().push(request.data.fixed_index());
        request.finish(Status::SUCCESS);
    }
    fn submit_admin(&self, request: Box<Request>) {
        self.submit(request);
    }
    fn forget(&self) {}
}

/// A session.
fn session() -> *mut nvl_session {
    let mut session = null_mut();
    // SAFETY: there is a place for it.
    assert_eq!(unsafe { nvl_session_new(std::ptr::null(), &mut session) }, 0);
    session
}

/// A buffer of the session.
fn buffer(session: *mut nvl_session) -> *mut nvl_buffer {
    let mut buffer = null_mut();
    // SAFETY: it is a session, and there is a place for the buffer.
    assert_eq!(unsafe { nvl_buffer_new(session, 2 * BYTES as usize, &mut buffer) }, 0);
    buffer
}

/// What is behind a handle that is not freed before the test's end.
fn behind<'a, H: Handle>(pointer: *mut H) -> &'a H::State {
    // SAFETY: it is one of this thread's.
    unsafe { handle::of(pointer) }.unwrap_or_else(|_| panic!("it is {}", H::NAME))
}

#[test]
fn data_of_a_sessions_buffers_goes_as_registered_and_no_other() {
    let [here, there] = [(); 2].map(|()| session());
    let [own, foreign] = [here, there].map(buffer);
    let (state, index) = (behind(here), behind(own).fixed_index());
    // Memory may be locked elsewhere; then the session tells why, and it works all the same.
    let refusal = state.session.registration().1;
    assert_eq!(index.is_some(), refusal.is_none(), "{refusal:?}");
    // SAFETY: it is a buffer.
    let fixed = unsafe { nvl_buffer_is_fixed(own) };
    assert_eq!(fixed, c_int::from(index.is_some()));

    let like = ::volume::open("mem:1M?bs=4096", &OpenOptions::default()).unwrap();
    let noting = Arc::new(Noting { limits: like.limits(), came: Mutex::default() });
    let opened = state.session.adopt(Arc::clone(&noting) as Arc<dyn Namespace>, false).unwrap();
    let entries = Rc::clone(&state.entries);
    let mut volume: *mut nvl_volume = null_mut();
    let behind = volume::State { volume: opened, entries, sent: Sent::default() };
    // SAFETY: there is a place for it.
    unsafe { handle::give(behind, &mut volume) };
    let mut ordinary = vec![0u8; BYTES as usize];
    // SAFETY: it is a buffer.
    let second = unsafe { nvl_buffer_data(own) }.wrapping_byte_add(BYTES as usize);
    for queue in [NVL_IO, NVL_ADMIN] {
        for (buffer, data, expected) in [
            (own, null_mut(), index),
            (own, second, index),
            // That session's ring has something else in the same place.
            (foreign, null_mut(), None),
            (null_mut(), ordinary.as_mut_ptr().cast(), None),
        ] {
            // SAFETY: all zeroes are a command.
            let mut command: nvl_command = unsafe { std::mem::zeroed() };
            (command.opcode, command.queue) = (opcode::io::READ, queue);
            (command.buffer, command.data, command.data_len) = (buffer, data, BYTES);
            // SAFETY: the memory is there until the sessions are freed.
            assert_eq!(unsafe { nvl_submit(volume, &command) }, 0);
            // SAFETY: all zeroes are a completion.
            let mut done: nvl_completion = unsafe { std::mem::zeroed() };
            // SAFETY: there is a place for one.
            let reaped = unsafe { nvl_reap(here, &mut done, 1) };
            assert_eq!((reaped, done.status), (1, 0));
            assert_eq!(noting.came.lock().unwrap().pop(), Some(expected), "{queue} {data:?}");
        }
    }
    // SAFETY: nothing is in flight, and none of them is used again.
    let freed = unsafe {
        [
            nvl_buffer_free(own),
            nvl_buffer_free(foreign),
            nvl_close(volume),
            nvl_session_free(here),
            nvl_session_free(there),
        ]
    };
    assert_eq!(freed, [0; 5]);
}
