use super::host::*;
use crate::{AnaState, NamespaceConfig, Reply};
use nvme::identify::{Cns, Controller, Namespace, NvmNamespace};
use nvme::limits::Commands;
use nvme::log::{Effects, Lid};
use nvme::{Command, Limits, Sgl, Status, lba_status, opcode};
use zerocopy::FromBytes;

const BLOCKS: u64 = LIMITS.blocks;

fn question(slba: u64, blocks: u64, bytes: u32) -> Command {
    lba_status::command(1, slba, blocks, bytes)
}

/// Does not tell what is allocated.
fn silent(number: u32) -> NamespaceConfig {
    let commands = Commands { allocation: false, ..LIMITS.commands };
    NamespaceConfig { limits: Limits { commands, ..LIMITS }, ..namespace(number) }
}

#[test]
fn a_question_is_for_the_blocks_that_it_names_or_for_all_up_to_the_end() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    for (slba, named, blocks) in [
        (0, 1, 1),
        (5, 65_535, 65_535),
        (BLOCKS - 1, 1, 1),
        // Up to the end.
        (0, 0, BLOCKS),
        (0, 65_536, BLOCKS),
        (BLOCKS - 7, 0, 7),
    ] {
        let reply = host.send(&question(slba, named, 4096), &[]);
        assert_eq!(reply, answered(slba, blocks, 4096, 4096));
    }
}

fn answered(slba: u64, blocks: u64, bytes: u32, list_bytes: u32) -> Reply {
    Reply::Allocation { nqn: NQN.into(), nsid: 1, slba, blocks, bytes, list_bytes }
}

#[test]
fn the_list_is_no_longer_than_was_asked_for_nor_than_there_is_room() {
    let (mut target, port) = target();
    let mut host = Host::connect(&mut target, port);
    let mut asked = |dwords: u32, room: u32| {
        let mut command = Command { cdw12: (dwords - 1).into(), ..question(5, 8, 4096) };
        command.set_sgl(Sgl::transport(room));
        host.send(&command, &[])
    };
    assert_eq!(asked(1024, 4092), answered(5, 8, 4092, 4092));
    assert_eq!(asked(2, 4096), answered(5, 8, 4096, 8));
    assert_eq!(asked(u32::MAX, 64 << 10), answered(5, 8, 64 << 10, 64 << 10));
    for (dwords, room) in [(1, 4096), (1024, 4), (1024, 0)] {
        assert_eq!(asked(dwords, room), Status::SGL_LENGTH_INVALID.dnr().into());
    }
    assert_eq!(asked(1024, (64 << 10) + 4), Status::INVALID_FIELD.dnr().into());
}

#[test]
fn questions_that_make_no_sense_are_refused() {
    let (mut target, port) = target();
    target.add_namespace(NQN, silent(2)).unwrap();
    let mut host = Host::connect(&mut target, port);
    let of = |nsid: u32| Command { nsid: nsid.into(), ..question(0, 8, 4096) };
    let (range, field) = (Status::LBA_OUT_OF_RANGE.dnr(), Status::INVALID_FIELD.dnr());
    for (command, status) in [
        (question(BLOCKS, 1, 4096), range),
        (question(BLOCKS, 0, 4096), range),
        (question(BLOCKS - 1, 2, 4096), range),
        (question(u64::MAX, 65_535, 4096), range),
        (of(0), Status::INVALID_NAMESPACE.dnr()),
        (of(nvme::NSID_ALL), Status::INVALID_NAMESPACE.dnr()),
        // Inactive; one that does not tell.
        (of(3), field),
        (of(2), field),
        (question(0, 8, (64 << 10) + 4), field),
    ] {
        assert_eq!(host.status(&command, &[]), status, "{command:?}");
    }
    for action in [0_u8, 1, 3, 0x10, 0x11, 0xff] {
        let cdw13 = (u32::from(action) << 24 | 8).into();
        assert_eq!(host.status(&Command { cdw13, ..question(0, 8, 4096) }, &[]), field);
    }
}

#[test]
fn nobody_is_told_of_a_namespace_that_is_not_reached() {
    let (mut target, port) = target();
    target.set_ana_state(NQN, port, 1, AnaState::INACCESSIBLE).unwrap();
    let mut host = Host::connect(&mut target, port);
    assert_eq!(host.status(&question(0, 8, 4096), &[]), Status::ANA_INACCESSIBLE);
}

#[test]
fn it_is_offered_where_a_namespace_tells() {
    let (mut target, port) = target();
    // What is not stored reads as zeroes, whether or not anything can be deallocated.
    let commands = Commands { deallocate: false, ..LIMITS.commands };
    let limits = Limits { commands, read_only: true, ..LIMITS };
    target.add_namespace(NQN, silent(2)).unwrap();
    target.add_namespace(NQN, NamespaceConfig { limits, ..namespace(3) }).unwrap();
    let mut host = Host::connect(&mut target, port);
    assert_eq!(offered(&mut host), (true, true));
    for (nsid, granularity) in [(1, 1), (2, 0), (3, 1)] {
        let data = host.identify(Cns::COMMAND_SET_NAMESPACE.0, nsid);
        let found = NvmNamespace::read_from_bytes(&data).unwrap();
        assert_eq!(found.tlbaag.get(), granularity, "namespace {nsid}");
    }
    let data = host.identify(Cns::NAMESPACE.0, 3);
    assert_eq!(Namespace::read_from_bytes(&data).unwrap().dlfeat, 1);
    // Of those that are left none tells.
    let id = host.id;
    target.remove_namespace(NQN, 1).unwrap();
    target.remove_namespace(NQN, 3).unwrap();
    assert_eq!(offered(&mut Host::resume(&mut target, id)), (false, false));
}

/// In OACS, and in the effects log.
fn offered(host: &mut Host<'_>) -> (bool, bool) {
    let controller = Controller::read_from_bytes(&host.identify(Cns::CONTROLLER.0, 0)).unwrap();
    let effects = Effects::read_from_bytes(&host.log(Lid::EFFECTS, 4096, 0)).unwrap();
    let own = effects.admin[usize::from(opcode::admin::GET_LBA_STATUS)];
    (controller.oacs.get() == 1 << 9, own.get() == 1)
}
