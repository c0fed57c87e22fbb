//! A discovery controller that tells of changes.

use crate::rig;

use host::client::{Client, HostIdentity, Options, Peer};
use nvme::fabrics::DISCOVERY_NQN;
use rig::relay::Relay;
use rig::{HOST_NQN, PATIENCE, Target};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

fn connect(address: SocketAddr) -> Client {
    connect_with(address, &Options::default())
}

fn connect_with(address: SocketAddr, options: &Options) -> Client {
    let peer = Peer { address, subsystem: DISCOVERY_NQN.into() };
    let host = HostIdentity { nqn: HOST_NQN.into(), id: [7; 16] };
    Client::connect(&peer, &host, options).expect("a discovery controller")
}

#[test]
fn changes_of_the_log_are_told() {
    let target = Target::memory();
    let mut client = connect(target.address);
    let before = client.discovery_log().expect("a log");
    assert!(!client.discovery_change(Duration::from_millis(300)).expect("it tells"));
    for round in 1..=3 {
        // While the client waits, and while it does something else.
        let server = &target.server;
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        std::thread::scope(|scope| {
            let later = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(200 * (round % 2)));
                server.add_listener(any).expect("a listener");
            });
            if round % 2 == 0 {
                later.join().expect("no panic");
                client.identify_controller().expect("it answers");
            }
            assert!(client.discovery_change(PATIENCE).expect("it tells"), "round {round}");
        });
        let log = client.discovery_log().expect("a log");
        assert_eq!(log.entries.len(), before.entries.len() + round as usize * ADDED);
        assert!(log.generation > before.generation);
    }
    assert!(!client.discovery_change(Duration::from_millis(300)).expect("it tells"));
    let address = target.address.ip().to_string();
    drop(target);
    let error = client.discovery_change(PATIENCE).expect_err("nobody is there").to_string();
    assert!(error.contains(&address), "{error}");
}

/// A listener is an entry for its subsystem, and one for discovery there.
const ADDED: usize = 2;

#[test]
fn a_controller_that_does_not_tell_is_no_discovery_controller() {
    let target = Target::memory();
    let peer = Peer { address: target.address, subsystem: rig::NQN.into() };
    let host = HostIdentity { nqn: HOST_NQN.into(), id: [7; 16] };
    let mut client = Client::connect(&peer, &host, &Options::default()).expect("a controller");
    let error = client.discovery_change(PATIENCE).expect_err("there are none").to_string();
    assert!(error.contains("does not tell"), "{error}");
    client.identify_controller().expect("it is still there");
}

/// A controller that hears nothing takes its host for gone after twice this.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

#[test]
fn who_waits_for_changes_keeps_the_controller_alive() {
    let target = Target::memory();
    let options = Options { keep_alive: KEEP_ALIVE, ..Options::default() };
    let mut client = connect_with(target.address, &options);
    let known = || {
        let controllers = target.server.controllers().expect("it answers");
        let of = controllers.iter().map(|it| (it.controller, it.peer, it.kato_ms));
        of.collect::<Vec<_>>()
    };
    let expected = [(client.controller_id(), client.local_address(), 2000)];
    assert_eq!(known(), expected);
    assert!(!client.discovery_change(4 * KEEP_ALIVE).expect("it is still there"));
    assert_eq!(known(), expected);
    client.identify_controller().expect("it answers");
}

#[test]
fn who_waits_for_changes_notices_that_the_controller_is_silent() {
    let target = Target::memory();
    let relay = Relay::to(target.address);
    let command_timeout = Duration::from_secs(3);
    let options = Options { keep_alive: KEEP_ALIVE, command_timeout, ..Options::default() };
    let mut client = connect_with(relay.address, &options);
    assert!(!client.discovery_change(Duration::ZERO).expect("it tells"));
    relay.swallow(true);
    let begin = Instant::now();
    let error = client.discovery_change(4 * PATIENCE).expect_err("it is silent").to_string();
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    assert!(error.contains(&relay.address.to_string()) && error.contains("Keep Alive"), "{error}");
    relay.swallow(false);
}
