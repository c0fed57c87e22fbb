//! What is lost comes back as it should, and paths recover.

use crate::rig;

use host::{Failover, Options};
use namespace::layer::delay::{Delay, Delays};
use namespace::layer::fault::{Fault, Rule};
use namespace::{Access, Namespace};
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use rig::relay::Relay;
use rig::tamper::Tamper;
use rig::{Core, NQN, PATIENCE, Target, address, connect, memory, options, pattern, read, write};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use target::AnaState;

/// A volume that holds every command back for `time`.
fn slow(time: Duration) -> Arc<dyn Namespace> {
    Delay::new(memory(16 << 20, 9, 1), Delays::all(time))
}

/// The same, where Flush fails at once.
fn slow_but_flush(time: Duration) -> Arc<dyn Namespace> {
    let rule = Rule { opcodes: vec![opcode::FLUSH], ..Rule::default() };
    Fault::new(slow(time), rule)
}

/// Waits until the target has what was issued before, if its volume is slow but for Flush.
fn await_arrival(core: &Core) {
    let flush = Command { opcode: opcode::FLUSH, nsid: 1.into(), ..Command::default() };
    assert!(!core.command(flush, Vec::new()).status.is_success());
}

fn quick_keep_alive() -> Options {
    let mut options = options();
    options.association.keep_alive_tmo = Duration::from_secs(1);
    options
}

#[test]
fn a_restarted_target_is_found_again() {
    let volume = memory(16 << 20, 9, 1);
    let target = Target::serve(volume.clone(), 1, 0);
    let path = connect(target.address, &options());
    let core = Core::usable(path.clone());
    let data = pattern(1, 8192);
    core.write(0, &data);
    let port = target.address.port();
    drop(target);
    core.await_access(|access| access == Access::Lost);
    let refused = core.command(read(0, 512), vec![0; 512]);
    assert_eq!(refused.status, Status::HOST_ABORTED);
    assert!(!path.paths()[0].reason.is_empty());
    for round in 0..3 {
        let target = Target::serve(volume.clone(), 1, port);
        core.await_access(Access::is_usable);
        assert!(core.read(0, 8192) == data, "round {round}");
        drop(target);
        core.await_access(|access| access == Access::Lost);
    }
    assert_eq!(path.paths()[0].reconnects, 3);
}

#[test]
fn a_dead_target_leaves_nothing_unanswered() {
    let target = Target::serve(slow(Duration::from_secs(6)), 1, 0);
    // Long before this, its end is seen.
    let mut options = options();
    options.association.keep_alive_tmo = Duration::from_secs(15);
    let core = Core::usable(connect(target.address, &options));
    let answers: Vec<_> = (0..40)
        .map(|at| match at % 2 {
            0 => core.issue(read(at * 4096, 4096), vec![0; 4096]),
            _ => core.issue(write(at * 4096, 4096), vec![0; 4096]),
        })
        .collect();
    core.settle();
    let begin = Instant::now();
    std::thread::spawn(move || drop(target));
    for answer in answers {
        let done = answer.recv_timeout(PATIENCE).expect("an answer");
        assert_eq!(done.status, Status::HOST_PATHING_ERROR);
    }
    assert!(begin.elapsed() < Duration::from_secs(20), "its end was seen");
}

/// Reads and writes in flight when everything is swallowed; how long either took.
fn black_hole(options: &Options) -> (Duration, Duration) {
    let target = Target::serve(slow(Duration::from_secs(5)), 1, 0);
    let relay = Relay::to(target.address);
    let core = Core::usable(connect(relay.address, options));
    let reading = core.issue(read(0, 4096), vec![0; 4096]);
    let writing = core.issue(write(0, 4096), vec![1; 4096]);
    core.settle();
    let begin = Instant::now();
    relay.swallow(true);
    let took = |answer: std::sync::mpsc::Receiver<rig::Done>| {
        let done = answer.recv_timeout(PATIENCE).expect("an answer");
        assert_eq!(done.status, Status::HOST_PATHING_ERROR);
        done.at - begin
    };
    let times = (took(reading), took(writing));
    relay.swallow(false);
    // Elsewhere: what the relay has of that write is carried out now.
    core.until_served(write(8192, 4096), &pattern(3, 4096));
    assert!(core.until_served(read(8192, 4096), &[0; 4096]) == pattern(3, 4096));
    times
}

#[test]
fn writes_wait_until_a_silent_connection_is_dead() {
    let (read, write) = black_hole(&quick_keep_alive());
    // The target notices silence after one to two time-outs of a second.
    assert!(write > Duration::from_secs(2) && write > read, "{read:?}, {write:?}");
    assert!(read < Duration::from_secs(8), "{read:?}");
}

/// A target that is known to drain, or not.
fn draining(target: &Target, drains: bool) -> Tamper {
    /// Where the vendor specific bytes are, behind the header of C2HData.
    const VENDOR: usize = 24 + 3072;
    let edit = move |pdu: &mut Vec<u8>| {
        if !drains && pdu.len() >= VENDOR + 8 && pdu[VENDOR..].starts_with(b"nvlane") {
            pdu[VENDOR + 7] = 0;
        }
        true
    };
    Tamper::each(target.address, 0, 1, Arc::new(edit))
}

#[test]
fn a_path_tells_how_long_a_dead_process_is_to_be_reckoned_with() {
    let target = Target::memory();
    let mut options = options();
    options.association.quiesce_time = Duration::from_secs(3);
    options.association.keep_alive_tmo = Duration::from_secs(7);
    for (drains, wanted) in [(true, 0), (false, 3)] {
        let tamper = draining(&target, drains);
        let path = connect(tamper.address, &options);
        assert_eq!(path.paths()[0].settles, Duration::from_secs(wanted));
    }
    // Nobody is there: it may count commands as keep alive.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let nobody = nobody.local_addr().expect("bound");
    let paths = host::open(&[address(target.address), address(nobody)], &options, "");
    let paths = paths.expect("one of two");
    assert_eq!(paths[1].paths()[0].settles, Duration::from_secs(2 * 7 + 3));
    options.failover = Failover::Fast;
    let path = connect(target.address, &options);
    assert_eq!(path.paths()[0].settles, Duration::ZERO);
}

/// How long it takes until a write comes back, once the target has ended `connection` (0: the admin
/// queue's), and since it was issued: one that is known to drain, or one that leaves that byte of Identify
/// Controller zero. Writes take five seconds.
fn ended_under_a_write(drains: bool, connection: usize, options: &Options) -> (Duration, Duration) {
    let target = Target::serve(slow_but_flush(Duration::from_secs(5)), 1, 0);
    let tamper = draining(&target, drains);
    let relay = Relay::to(tamper.address);
    let core = Core::usable(connect(relay.address, options));
    let issued = Instant::now();
    let reading = core.issue(read(0, 4096), vec![0; 4096]);
    let writing = core.issue(write(0, 4096), vec![1; 4096]);
    await_arrival(&core);
    let begin = Instant::now();
    relay.close(connection);
    let done = reading.recv_timeout(PATIENCE).expect("an answer");
    assert_eq!(done.status, Status::HOST_PATHING_ERROR);
    assert!(done.at - begin < Duration::from_secs(5), "it changes nothing");
    let done = writing.recv_timeout(PATIENCE).expect("an answer");
    assert_eq!(done.status, Status::HOST_PATHING_ERROR);
    (done.at - begin, done.at - issued)
}

#[test]
fn an_end_is_believed_of_targets_that_drain_only() {
    let mut options = options();
    options.association.quiesce_time = Duration::from_secs(4);
    let seconds = Duration::from_secs;
    // A machine that stalls makes it longer; never shorter.
    let expect = |drains, connection, options: &Options, least: [u64; 2], below| {
        let times = std::iter::repeat_with(|| {
            let (took, whole) = ended_under_a_write(drains, connection, options);
            assert!(took >= seconds(least[0]) && whole >= seconds(least[1]), "{took:?}, {whole:?}");
            took
        });
        let times: Vec<_> = times.take(3).take_while(|took| *took >= seconds(below)).collect();
        assert!(times.len() < 3, "{times:?}, not below {below} s");
    };
    expect(true, 1, &options, [0, 0], 5);
    expect(false, 1, &options, [4, 0], 9);
    // Here the host ends the I/O connection, and the target its end of it when the write is done.
    expect(true, 0, &options, [0, 0], 8);
    expect(false, 0, &options, [0, 8], 13);
    options.failover = Failover::Fast;
    expect(false, 1, &options, [0, 0], 5);
}

/// Has the kernel give up the connection with the local address `local` when its peer takes nothing
/// for half a second (TCP_USER_TIMEOUT, tcp(7)).
fn give_up_soon(local: SocketAddr) {
    let sockets = std::fs::read_dir("/proc/self/fd").expect("proc").filter_map(|entry| {
        let entry = entry.ok()?;
        let target = std::fs::read_link(entry.path()).ok()?;
        let is_socket = target.to_string_lossy().starts_with("socket:");
        is_socket.then(|| entry.file_name().to_string_lossy().parse::<RawFd>().ok())?
    });
    let mut found = 0;
    for socket in sockets {
        // SAFETY: it was open a moment ago. If it is another by now, the address tells.
        let socket = unsafe { BorrowedFd::borrow_raw(socket) };
        let Ok(address) = rustix::net::getsockname(socket) else { continue };
        if SocketAddr::try_from(address) == Ok(local) {
            rustix::net::sockopt::set_tcp_user_timeout(socket, 500).expect("a TCP socket");
            found += 1;
        }
    }
    assert_eq!(found, 1, "the host's socket is in this process");
}

#[test]
fn a_connection_that_our_kernel_gives_up_was_not_closed_by_the_peer() {
    let target = Target::serve(slow(Duration::from_secs(4)), 1, 0);
    let relay = Relay::to(target.address);
    let mut options = options();
    options.association.keep_alive_tmo = Duration::from_secs(3);
    let path = connect(relay.address, &options);
    let core = Core::usable(path.clone());
    let writing = core.issue(write(0, 4096), vec![1; 4096]);
    core.settle();
    give_up_soon(relay.host_address(1));
    relay.hold(Some(1));
    let unsent: Vec<_> =
        (0..100).map(|at| core.issue(write(at * 8192, 8192), vec![2; 8192])).collect();
    let unsent = unsent.into_iter().next_back().expect("there are some");
    let unsent = unsent.recv_timeout(PATIENCE).expect("an answer");
    assert_eq!(unsent.status, Status::HOST_ABORTED, "{}", path.reason());
    // Until something else is said of the next connection.
    let until = Instant::now() + PATIENCE;
    while !path.reason().to_string().contains("timed out") {
        assert!(Instant::now() < until, "{}", path.reason());
        std::thread::sleep(Duration::from_millis(1));
    }
    // The target has the first one, and is not known to have given it up before its own keep alive
    // timer has expired.
    let written = writing.recv_timeout(PATIENCE).expect("an answer");
    assert_eq!(written.status, Status::HOST_PATHING_ERROR);
    let after = written.at.saturating_duration_since(unsent.at);
    assert!(after > Duration::from_secs(2), "{after:?}");
    relay.hold(None);
    core.await_access(Access::is_usable);
}

#[test]
fn fast_failover_gives_writes_back_at_once() {
    let options = Options { failover: Failover::Fast, ..quick_keep_alive() };
    let (read, write) = black_hole(&options);
    assert!(write < read + Duration::from_secs(1), "{read:?}, {write:?}");
}

#[test]
fn a_command_that_is_never_answered_resets_the_controller() {
    let target = Target::serve(slow(Duration::from_secs(6)), 1, 0);
    let options = Options { io_timeout: Duration::from_millis(200), ..options() };
    let path = connect(target.address, &options);
    let core = Core::usable(path.clone());
    let done = core.command(read(0, 4096), vec![0; 4096]);
    assert_eq!(done.status, Status::HOST_PATHING_ERROR);
    core.await_access(Access::is_usable);
    assert!(path.paths()[0].reconnects >= 1);
}

#[test]
fn states_follow_linux_times() {
    let target = Target::memory();
    let mut options = options();
    // Both run while it is connected for the first time, too.
    options.association.fast_io_fail_tmo = Some(Duration::from_secs(6));
    options.association.ctrl_loss_tmo = Some(Duration::from_secs(14));
    let path = connect(target.address, &options);
    let core = Core::usable(path.clone());
    let begin = Instant::now();
    drop(target);
    core.await_access(|access| access == Access::Failing);
    core.await_access(|access| access == Access::Gone);
    assert!(begin.elapsed() >= Duration::from_secs(14));
    let reason = path.paths()[0].reason.clone();
    assert!(reason.contains("ctrl_loss_tmo") && reason.contains("refused"), "{reason}");
}

#[test]
fn a_path_is_not_called_usable_before_its_queues_are_connected() {
    let target = Target::memory();
    let relay = Relay::to(target.address);
    let path = connect(relay.address, &options());
    let shown = || {
        let report = path.paths().remove(0);
        (report.access, report.reason)
    };
    assert_eq!(shown().0, Access::Optimized, "nobody uses it, it could be used");
    relay.hold(Some(1));
    let core = Core::new(path.clone());
    let connecting = (Access::Lost, "connecting its I/O queues".to_owned());
    let until = Instant::now() + PATIENCE;
    while shown() != connecting {
        assert!(Instant::now() < until, "{:?}", shown());
        std::thread::sleep(Duration::from_millis(1));
    }
    // And so it stays.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(shown(), connecting);
    assert_eq!(core.access(), Access::Lost);
    relay.hold(None);
    core.await_access(Access::is_usable);
    assert_eq!(shown(), (Access::Optimized, String::new()));
    drop(core);
    let until = Instant::now() + PATIENCE;
    while shown().0 != Access::Optimized {
        assert!(Instant::now() < until, "{:?}", shown());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn ana_states_are_followed() {
    let target = Target::memory();
    let core = Core::usable(connect(target.address, &options()));
    for (state, access) in [
        (AnaState::NON_OPTIMIZED, Access::NonOptimized),
        (AnaState::INACCESSIBLE, Access::Inaccessible),
        (AnaState::CHANGE, Access::Inaccessible),
        (AnaState::OPTIMIZED, Access::Optimized),
    ] {
        target.server.set_ana_state(NQN, target.port, 1, state).expect("a state");
        core.await_access(|now| now == access);
    }
    core.write(0, &[1; 512]);
}

#[test]
fn what_waits_for_room_comes_back_when_the_path_becomes_inaccessible() {
    let delays = Delays { read: Duration::from_secs(8), ..Delays::default() };
    let target = Target::serve(Delay::new(memory(16 << 20, 9, 1), delays), 1, 0);
    let core = Core::usable(connect(target.address, &options()));
    let all: Vec<_> = (0..200).map(|_| core.issue(read(0, 512), vec![0; 512])).collect();
    core.settle();
    target.server.set_ana_state(NQN, target.port, 1, AnaState::INACCESSIBLE).expect("a state");
    core.await_access(|access| access == Access::Inaccessible);
    let back = all.into_iter().map(|done| done.recv_timeout(PATIENCE).expect("an answer").status);
    let (sent, waiting): (Vec<_>, Vec<_>) = back.partition(|status| status.is_success());
    // As many as a queue of 128 entries takes.
    assert_eq!((sent.len(), waiting.len()), (127, 73));
    assert!(waiting.iter().all(|status| *status == Status::HOST_ABORTED), "{waiting:?}");
    // Nothing is left of them.
    target.server.set_ana_state(NQN, target.port, 1, AnaState::OPTIMIZED).expect("a state");
    core.await_access(Access::is_usable);
    core.write(0, &[1; 512]);
}

#[test]
fn what_the_socket_did_not_take_comes_back_when_the_path_becomes_inaccessible() {
    const BYTES: usize = 16 * 1024;
    let target = Target::memory();
    let relay = Relay::to(target.address);
    let path = connect(relay.address, &options());
    let core = Core::usable(path.clone());
    relay.hold(Some(1));
    let issue = |at: u64| core.issue(write(at * BYTES as u64, BYTES), vec![2; BYTES]);
    let mut all: Vec<_> = (0..120).map(issue).collect();
    core.settle();
    let set = |state| target.server.set_ana_state(NQN, target.port, 1, state).expect("a state");
    set(AnaState::INACCESSIBLE);
    core.await_access(|access| access == Access::Inaccessible);
    // From the last one on, as many as were not sent: nothing of the others is answered.
    let last = all.pop().expect("there are some").recv_timeout(PATIENCE).expect("an answer");
    assert_eq!(last.status, Status::HOST_ABORTED);
    std::thread::sleep(Duration::from_millis(100));
    let back = all.iter().filter_map(|done| done.try_recv().ok());
    let unsent = back.map(|done| assert_eq!(done.status, Status::HOST_ABORTED)).count();
    assert!(unsent + 2 < all.len(), "{unsent} of {}", all.len());
    relay.hold(None);
    let mut sent = 0;
    for done in &all {
        match done.recv_timeout(PATIENCE) {
            Ok(done) => assert_eq!(done.status.code(), Status::ANA_INACCESSIBLE),
            Err(_) => break,
        }
        sent += 1;
    }
    assert_eq!(sent + unsent, all.len());
    set(AnaState::OPTIMIZED);
    core.await_access(Access::is_usable);
    core.write(0, &pattern(1, BYTES));
    assert!(core.read(0, BYTES) == pattern(1, BYTES));
    assert_eq!(path.paths()[0].reconnects, 0, "what had begun was sent to its end");
}

/// A core that comes to its letters when the namespace has another id already.
#[test]
fn what_the_socket_did_not_take_does_not_go_to_an_id_that_is_anothers_by_now() {
    const BYTES: usize = 16 * 1024;
    let volume = memory(16 << 20, 9, 1);
    let target = Target::serve(volume.clone(), 1, 0);
    let relay = Relay::to(target.address);
    let path = connect(relay.address, &options());
    let core = Core::usable(path.clone());
    relay.hold(Some(1));
    let issue = |at: u64| core.issue(write(at * BYTES as u64, BYTES), vec![2; BYTES]);
    let mut all: Vec<_> = (0..120).map(issue).collect();
    core.settle();
    let blocked = core.block();
    target.server.remove_namespace(NQN, 1).expect("served");
    await_that("it is seen to be gone", || path.paths()[0].access == Access::Inaccessible);
    target.add(7, volume, [0x42; 16]);
    target.add(1, memory(16 << 20, 9, 1), [0x99; 16]);
    await_that("it is found again", || {
        let mut facts = Vec::new();
        path.describe(&mut facts);
        let is_there = path.paths()[0].access.is_usable();
        is_there && facts.iter().any(|(_, fact)| fact.ends_with("namespace 7"))
    });
    drop(blocked);
    let last = all.pop().expect("there are some").recv_timeout(PATIENCE).expect("an answer");
    assert_eq!(last.status, Status::HOST_ABORTED);
    relay.hold(None);
    core.await_access(Access::is_usable);
    core.write(0, &pattern(1, BYTES));
    assert!(core.read(0, BYTES) == pattern(1, BYTES));
    assert_eq!(path.paths()[0].reconnects, 0);
}

#[track_caller]
fn await_that(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_resized_namespace_is_noticed() {
    let volume = memory(16 << 20, 9, 1);
    let target = Target::serve(volume.clone(), 1, 0);
    let path = connect(target.address, &options());
    assert_eq!(path.limits().bytes(), 16 << 20);
    assert!(!path.refresh().expect("memory"));
    volume.resize(32 << 20).expect("memory");
    target.server.namespace_changed(NQN, 1).expect("served");
    let until = Instant::now() + PATIENCE;
    while !path.refresh().expect("memory") {
        assert!(Instant::now() < until, "nothing was noticed");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(path.limits().bytes(), 32 << 20);
}

/// Otherwise what lies beyond the end that the other controller knows would fail there.
#[test]
fn a_namespace_has_grown_when_all_paths_say_so() {
    const OLD: u64 = 16 << 20;
    const NEW: u64 = 32 << 20;
    for both_grow in [true, false] {
        let volumes = [(); 2].map(|()| memory(OLD, 9, 1));
        let [first, second] = [0, 1].map(|at| Target::serve(volumes[at].clone(), 1, 0));
        let addresses = [address(first.address), address(second.address)];
        let paths = host::open(&addresses, &options(), "").expect("paths");
        await_that("both are live", || paths.iter().all(|it| it.paths()[0].access.is_usable()));
        let grow = |volume: &dyn Namespace, target: &Target| {
            volume.resize(NEW).expect("memory");
            target.server.namespace_changed(NQN, 1).expect("served");
        };
        let bytes = || paths[0].limits().bytes();
        grow(&*volumes[0], &first);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(bytes(), OLD, "one has grown");
        if both_grow {
            grow(&*volumes[1], &second);
        } else {
            drop(second);
        }
        await_that("it has grown", || bytes() == NEW);
    }
}

#[test]
fn a_namespace_is_found_again_under_another_id() {
    // The host sees it return before anything else has its old id, and stays connected.
    assert_eq!(
        reconnects_of_one_that_moves(|target, volume| {
            target.add(7, volume, [0x42; 16]);
            target.add(1, memory(16 << 20, 9, 1), [0x99; 16]);
        }),
        0
    );
}

#[test]
fn a_namespace_is_found_again_though_another_has_its_id() {
    // Whoever looks between the two finds a stranger only, and connects again.
    let reconnects = reconnects_of_one_that_moves(|target, volume| {
        target.add(1, memory(16 << 20, 9, 1), [0x99; 16]);
        target.add(7, volume, [0x42; 16]);
    });
    assert!(reconnects <= 1, "{reconnects}");
}

/// Reconnects of a path whose namespace goes away and comes back as namespace 7.
fn reconnects_of_one_that_moves(comes_back: impl Fn(&Target, Arc<dyn Namespace>)) -> u64 {
    let volume = memory(16 << 20, 9, 1);
    let target = Target::serve(volume.clone(), 1, 0);
    let path = connect(target.address, &options());
    let core = Core::usable(path.clone());
    core.write(0, &pattern(1, 4096));
    target.server.remove_namespace(NQN, 1).expect("served");
    core.await_access(|access| access == Access::Inaccessible);
    // Whoever comes nevertheless is not sent to the old id.
    assert_eq!(core.command(read(0, 512), vec![0; 512]).status, Status::HOST_ABORTED);
    comes_back(&target, volume);
    core.await_access(Access::is_usable);
    assert!(core.read(0, 4096) == pattern(1, 4096));
    let mut facts = Vec::new();
    path.describe(&mut facts);
    assert!(facts.iter().any(|(_, fact)| fact.ends_with("namespace 7")), "{facts:?}");
    path.paths()[0].reconnects
}

/// Waits until the path says that it leads to another namespace, and sees that it stays unused through some
/// reconnects.
fn await_refusal(path: &host::Path) {
    let until = Instant::now() + PATIENCE;
    while !path.paths()[0].reason.contains("another namespace") {
        assert!(Instant::now() < until, "{}", path.paths()[0].reason);
        std::thread::sleep(Duration::from_millis(5));
    }
    let before = path.paths()[0].reconnects;
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(5));
        let now = &path.paths()[0];
        assert!(now.access >= Access::Lost && now.reconnects == before, "{now:?}");
    }
}

#[test]
fn of_two_addresses_that_lead_to_different_volumes_one_is_used() {
    let right = Target::memory();
    let wrong = Target::memory();
    wrong.server.remove_namespace(NQN, 1).expect("served");
    wrong.add(1, memory(16 << 20, 9, 1), [0x99; 16]);
    let addresses = [address(right.address), address(wrong.address)];
    let paths = host::open(&addresses, &options(), "").expect("paths");
    // Whichever was there first is the volume.
    let first = paths.iter().position(|path| path.paths()[0].access.is_usable());
    let first = first.expect("opened");
    await_refusal(&paths[1 - first]);
    assert!(paths[first].paths()[0].access.is_usable());
}

#[test]
fn commands_fail_once_a_removed_namespace_has_stayed_away() {
    let target = Target::memory();
    let mut options = options();
    // The first connect has as long.
    options.association.ctrl_loss_tmo = Some(Duration::from_secs(6));
    let path = connect(target.address, &options);
    let core = Core::usable(path.clone());
    target.server.remove_namespace(NQN, 1).expect("served");
    core.await_access(|access| access == Access::Failing);
    let reason = &path.paths()[0].reason;
    assert!(reason.contains("no namespace"), "{reason}");
    target.add(1, memory(16 << 20, 9, 1), [0x99; 16]);
    await_refusal(&path);
}

#[test]
fn another_namespace_is_not_taken_for_the_same() {
    let target = Target::memory();
    let path = connect(target.address, &options());
    let core = Core::usable(path.clone());
    let port = target.address.port();
    target.server.remove_namespace(NQN, 1).expect("served");
    core.await_access(|access| access == Access::Inaccessible);
    target.add(1, memory(1 << 20, 9, 1), [0x99; 16]);
    await_refusal(&path);
    drop(target);
    let _target = Target::serve(memory(64 << 20, 9, 1), 1, port);
    core.await_access(Access::is_usable);
}
