//! Hosts that have to prove who they are, over real sockets.

use crate::host;

use dhchap::{Group, Hash, HostConfig, Key, Step};
use host::rig::{NQN, Rig};
use host::{Bytes, Done, HOST_NQN, Host, Queue};
use nvme::fabrics::{Authentication as Parameters, CNTLID_DYNAMIC, ConnectResult};
use nvme::{Command, Status, opcode};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the kernel gives random bytes");
}

fn key() -> Arc<Key> {
    Arc::new(Key::generate(None, &mut random))
}

/// Has the host prove who it is.
fn demand(rig: &Rig, host_key: &Arc<Key>, controller_key: Option<&Arc<Key>>, groups: &[Group]) {
    let wanted = target::Authentication {
        host_keys: [Arc::clone(host_key)].into(),
        controller_key: controller_key.cloned(),
        hashes: Hash::ALL.to_vec(),
        groups: groups.to_vec(),
    };
    rig.server.set_authentication(NQN, HOST_NQN, Some(wanted)).expect("a subsystem");
}

fn host_end(host_key: &Arc<Key>, controller_key: Option<&Arc<Key>>) -> dhchap::Host {
    let config = HostConfig {
        host_nqn: HOST_NQN.into(),
        subsystem_nqn: NQN.into(),
        host_key: Arc::clone(host_key),
        controller_keys: controller_key.map(|key| [Arc::clone(key)].into()),
    };
    dhchap::Host::new(config, 0x1234)
}

fn send(queue: &mut Queue, message: &[u8]) -> Done {
    let command = Parameters::send(message.len() as u32);
    // Both ways in which data comes.
    let bytes = match message.len() % 2 {
        0 => Bytes::InCapsule(message),
        _ => Bytes::OnRequest(message),
    };
    queue.command(command, bytes)
}

fn fetch(queue: &mut Queue) -> Vec<u8> {
    queue.command(Parameters::receive(4096), Bytes::Wanted(4096)).ok().data
}

/// Runs an exchange on `queue`; what the host finds.
fn prove(queue: &mut Queue, mut host: dhchap::Host) -> Result<(), dhchap::Failure> {
    let mut message = host.open();
    loop {
        send(queue, &message).ok();
        let fetched = fetch(queue);
        let mut step = host.received(&fetched, &mut random);
        if let Step::Work(work) = step {
            step = host.computed(work.run(), &mut random);
        }
        match step {
            Step::Send(next) => message = next,
            Step::Proven(last) => {
                if let Some(last) = last {
                    send(queue, &last).ok();
                }
                return Ok(());
            }
            Step::Failed(failure, last) => {
                if let Some(last) = last {
                    send(queue, &last).ok();
                }
                return Err(failure);
            }
            Step::Work(_) => panic!("it was carried out"),
        }
    }
}

/// The host's queue `qid`, which has to prove who it is.
fn asked(host: &Host, qid: u16, cntlid: u16) -> Queue {
    let (mut queue, done) = host.connect(qid, cntlid);
    let result = ConnectResult(done.ok().result as u32);
    assert!(result.authenticate() && !result.secure_channel());
    queue.cntlid = result.cntlid();
    queue
}

fn read() -> Command {
    Command::blocks(opcode::io::READ, 1, 0, 1)
}

#[test]
fn queues_take_commands_once_their_host_has_proved_who_it_is() {
    let rig = Rig::memory(2);
    let (ours, theirs) = (key(), key());
    for (group, dgst) in [(Group::Null, 0), (Group::Ffdhe2048, 3), (Group::Ffdhe4096, 0)] {
        demand(&rig, &ours, Some(&theirs), &[group]);
        let mut host = rig.host();
        host.dgst = dgst;
        let mut admin = asked(&host, 0, CNTLID_DYNAMIC);
        let required = Status::AUTHENTICATION_REQUIRED.dnr();
        let property = nvme::fabrics::PropertyAccess::read(nvme::fabrics::Property::CAP);
        admin.command(property, Bytes::None).refused(required);
        prove(&mut admin, host_end(&ours, Some(&theirs))).expect("both know their keys");
        admin.enable();
        // One on each core: queue 1 moves when it has proved its host, queue 2 stays.
        for qid in [1, 2] {
            let mut io = asked(&host, qid, admin.cntlid);
            io.command(read(), Bytes::Wanted(4096)).refused(required);
            let write = Command::blocks(opcode::io::WRITE, 1, 0, 1);
            io.command(write, Bytes::InCapsule(&[7; 4096])).refused(required);
            io.command(write, Bytes::OnRequest(&[7; 4096])).refused(required);
            prove(&mut io, host_end(&ours, (qid == 1).then_some(&theirs))).expect("the same");
            let data = vec![qid as u8; 32 << 10];
            io.write(1, u64::from(qid) * 8, 8, &data);
            assert!(io.read(1, u64::from(qid) * 8, 8, data.len()) == data);
            // Once more, while commands are in flight.
            let cids: Vec<u16> = (0..20).map(|_| io.issue(read(), Bytes::Wanted(4096))).collect();
            prove(&mut io, host_end(&ours, None)).expect("the same");
            cids.into_iter().for_each(|cid| drop(io.complete(cid).ok()));
            prove(&mut admin, host_end(&ours, None)).expect("the same");
            assert!(io.read(1, u64::from(qid) * 8, 8, data.len()) == data);
        }
        let reports = rig.server.controllers().expect("the server runs");
        let known = reports.iter().find(|it| it.controller == admin.cntlid).expect("it is there");
        assert_eq!(known.authentication, Some((Hash::Sha512, group)));
    }
}

#[test]
fn who_cannot_prove_who_it_is_gets_nothing_and_disturbs_nobody() {
    let rig = Rig::memory(2);
    let ours = key();
    demand(&rig, &ours, None, &Group::ALL);
    let host = rig.host();
    let mut admin = asked(&host, 0, CNTLID_DYNAMIC);
    prove(&mut admin, host_end(&ours, None)).expect("it knows its key");
    admin.enable();
    let mut io = asked(&host, 1, admin.cntlid);
    prove(&mut io, host_end(&ours, None)).expect("it knows its key");
    io.write(1, 0, 1, &[1; 4096]);

    // Another who takes its name: at the admin queue, and at a queue of its controller.
    for _ in 0..3 {
        let mut admin = asked(&host, 0, CNTLID_DYNAMIC);
        let failed = prove(&mut admin, host_end(&key(), None));
        assert_eq!(failed, Err(dhchap::Failure::Failed));
        admin.expect_end();
    }
    let mut impostor = asked(&host, 2, admin.cntlid);
    let write = Command::blocks(opcode::io::WRITE, 1, 0, 1);
    impostor
        .command(write, Bytes::InCapsule(&[9; 4096]))
        .refused(Status::AUTHENTICATION_REQUIRED.dnr());
    assert!(prove(&mut impostor, host_end(&key(), None)).is_err());
    impostor.expect_end();
    // One who says so itself.
    let mut doubter = asked(&host, 2, admin.cntlid);
    assert!(prove(&mut doubter, host_end(&ours, Some(&key()))).is_err(), "we have no key");
    doubter.expect_end();
    assert_eq!(io.read(1, 0, 1, 4096), [1; 4096]);
    wait_for(|| rig.server.controllers().expect("the server runs").len() == 1);

    // Whoever fails to prove it again loses what he had.
    let failed = prove(&mut io, host_end(&key(), None));
    assert_eq!(failed, Err(dhchap::Failure::Failed));
    io.expect_end();
    assert!(prove(&mut admin, host_end(&key(), None)).is_err());
    admin.expect_end();
    wait_for(|| rig.server.controllers().expect("the server runs").is_empty());
}

#[test]
fn hosts_that_leave_while_something_is_computed_for_them_leave_nothing_behind() {
    let rig = Rig::memory(2);
    let ours = key();
    demand(&rig, &ours, None, &[Group::Ffdhe4096]);
    let host = rig.host();
    for round in 0..40 {
        let mut admin = asked(&host, 0, CNTLID_DYNAMIC);
        let message = host_end(&ours, None).open();
        let command = Parameters::send(message.len() as u32);
        let cid = admin.issue(command, Bytes::InCapsule(&message));
        if round % 2 == 0 {
            // What comes meanwhile is not looked at.
            let busy = Status::COMMAND_SEQUENCE_ERROR.dnr();
            let fetched = admin.command(Parameters::receive(4096), Bytes::Wanted(4096));
            assert!(fetched.status == busy || fetched.status.is_success());
            admin.complete(cid).ok();
        }
    }
    wait_for(|| rig.server.controllers().expect("the server runs").is_empty());
    let mut admin = asked(&host, 0, CNTLID_DYNAMIC);
    prove(&mut admin, host_end(&ours, None)).expect("it knows its key");
    admin.enable();
}

#[test]
fn no_more_hosts_are_waited_for_than_there_is_room() {
    let rig = Rig::memory(1);
    demand(&rig, &key(), None, &[Group::Null]);
    let host = rig.host();
    let mut first = asked(&host, 0, CNTLID_DYNAMIC);
    let others: Vec<Queue> = (0..1024).map(|_| asked(&host, 0, CNTLID_DYNAMIC)).collect();
    first.expect_end();
    wait_for(|| rig.server.controllers().expect("the server runs").len() == others.len());
}

fn wait_for(mut there: impl FnMut() -> bool) {
    let since = Instant::now();
    while !there() {
        assert!(since.elapsed() < host::PATIENCE, "it does not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}
