//! What nvl_paths() says when a path is worse than the others, is lost, and comes back.

use nvlane::*;
use std::ffi::CStr;
use std::net::SocketAddr;
use std::ptr;
use std::time::{Duration, Instant};
use target::{AnaState, NamespaceOptions, PortId, Server, ServerConfig, SubsystemConfig};
use volume::OpenOptions;

const NQN: &str = "nqn.2026-11.org.example:paths";

/// A target with a namespace of memory, which listens at two ports.
fn served() -> (Server, [(PortId, SocketAddr); 2]) {
    let server = Server::start(&ServerConfig::default()).expect("a server");
    let subsystem = SubsystemConfig {
        nqn: NQN.into(),
        serial: "paths".into(),
        model: "nvlane".into(),
        allow_any_host: true,
        hosts: Vec::new(),
        io_queues_max: 4,
        fused: true,
    };
    server.add_subsystem(subsystem).expect("a subsystem");
    let memory = volume::open("mem:1M?bs=4096", &OpenOptions::default()).expect("memory");
    let options =
        NamespaceOptions { nsid: Some(1), uuid: [0x42; 16], nguid: [0; 16], ana_group: 1 };
    server.add_namespace(NQN, &options, memory).expect("a namespace");
    let ports =
        [(); 2].map(|()| server.add_listener(([127, 0, 0, 1], 0).into()).expect("a listener"));
    (server, ports)
}

/// The paths to a volume, in the order of its URI.
fn paths(volume: *mut nvl_volume) -> [nvl_path; 2] {
    // SAFETY: of a structure of numbers every pattern is a value.
    let mut found: [nvl_path; 2] = unsafe { std::mem::zeroed() };
    // SAFETY: an open volume, and as many places as it is told.
    assert_eq!(unsafe { nvl_paths(volume, found.as_mut_ptr(), 2) }, 2);
    found
}

fn text(text: &[std::ffi::c_char; NVL_PATH_TEXT_BYTES]) -> &str {
    // SAFETY: filled in with a zero at the end.
    unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().expect("UTF-8")
}

/// Has the session go on until the first path is live, and the second as it should be.
#[track_caller]
fn await_second(
    session: *mut nvl_session,
    volume: *mut nvl_volume,
    is_so: impl Fn(&nvl_path) -> bool,
) -> nvl_path {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        // SAFETY: the test has not ended it.
        assert_eq!(unsafe { nvl_flush(session) }, 0);
        let [first, second] = paths(volume);
        if (first.access, text(&first.reason)) == (NVL_PATH_OPTIMIZED, "") && is_so(&second) {
            return second;
        }
        let (access, reason) = (second.access, text(&second.reason));
        assert!(Instant::now() < until, "access {access}, {reason}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_path_is_worse_then_lost_and_then_back() {
    let (server, [(_, first), (port, second)]) = served();
    let uri = format!("tcp://{first},{second}/{NQN}?ns=1&reconnect_delay=1\0");
    let (mut session, mut volume) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: a place for the handle, a text with a zero at its end.
    unsafe {
        assert_eq!(nvl_session_new(ptr::null(), &mut session), 0);
        let opened = nvl_open(session, uri.as_ptr().cast(), 0, &mut volume);
        assert_eq!(opened, 0, "{:?}", CStr::from_ptr(nvl_error()));
    }
    // Not live until the session's own connections are made, either.
    let begun = paths(volume).map(|path| path.access);
    assert!(begun.iter().all(|access| [NVL_PATH_OPTIMIZED, NVL_PATH_LOST].contains(access)));
    let is = |access: u32| move |path: &nvl_path| path.access == access;
    let found = await_second(session, volume, is(NVL_PATH_OPTIMIZED));
    assert_eq!((text(&found.name), found.reconnects), (&*format!("tcp://{second}"), 0));
    let states = [
        (AnaState::NON_OPTIMIZED, NVL_PATH_NON_OPTIMIZED),
        (AnaState::INACCESSIBLE, NVL_PATH_INACCESSIBLE),
        (AnaState::OPTIMIZED, NVL_PATH_OPTIMIZED),
    ];
    for (state, access) in states {
        server.set_ana_state(NQN, port, 1, state).expect("such a group");
        await_second(session, volume, is(access));
    }
    server.remove_listener(port).expect("it is there");
    let lost = await_second(session, volume, is(NVL_PATH_LOST));
    assert!(lost.reason[0] != 0 && lost.reconnects == 0, "{}", text(&lost.reason));
    server.add_listener(second).expect("the port is free");
    let back = await_second(session, volume, is(NVL_PATH_OPTIMIZED));
    assert_eq!((back.reconnects, text(&back.reason)), (1, ""));
    // SAFETY: handles as they were given.
    unsafe {
        assert_eq!(nvl_close(volume), 0);
        assert_eq!(nvl_session_free(session), 0);
    }
}
