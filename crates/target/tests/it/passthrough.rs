//! Commands that nobody here knows: refused, unless a namespace passes them on to what is behind it.

use crate::host;

use double::Double;
use host::rig::Rig;
use host::{Bytes, Queue};
use namespace::null::Null;
use namespace::{Data, Request};
use nvme::limits::{Commands, CopyLimits, Passthrough};
use nvme::log::effect;
use nvme::{Command, Limits, Status, opcode};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

const VENDOR_NONE: u8 = 0x84;
const VENDOR_WRITE: u8 = 0x81;
const VENDOR_READ: u8 = 0x82;
const VENDOR_BOTH: u8 = 0x83;
const ADMIN_NONE: u8 = 0xc4;
const ADMIN_WRITE: u8 = 0xc1;
const ADMIN_READ: u8 = 0xc2;

/// More than 32 bits, and none of them by chance.
const RESULT: u64 = 0xfedc_ba98_7654_3210;

/// A command as the device saw it, and the data that came with it.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    admin: bool,
    command: Command,
    data: Vec<u8>,
}

/// A device with commands of its own: it notes what it is sent, answers with [`RESULT`], and fills
/// the first half of what it is given to read into.
struct Device(Arc<Mutex<Vec<Seen>>>);

impl Device {
    fn carry_out(&self, mut request: Box<Request>, admin: bool) {
        let writes = request.command.opcode & 3 == 1;
        let mut seen = Seen { admin, command: request.command, data: Vec::new() };
        if let Data::Buffer(buffer) = &mut request.data {
            if writes {
                seen.data = buffer.as_slice().to_vec();
            } else {
                assert!(buffer.as_slice().iter().all(|byte| *byte == 0), "what others left");
                let half = buffer.len() / 2;
                buffer.as_mut_slice()[..half].fill(0x5a);
            }
        }
        self.0.lock().unwrap().push(seen);
        request.status = match request.command.cdw15.get() {
            0 => Status::SUCCESS,
            status => Status(status as u16),
        };
        request.result = RESULT;
        request.complete();
    }
}

impl namespace::Queue for Device {
    fn submit(&self, request: Box<Request>) {
        self.carry_out(request, false);
    }

    fn submit_admin(&self, request: Box<Request>) {
        self.carry_out(request, true);
    }

    fn forget(&self) {}
}

/// A server with a device as namespace 3, the device's notes, and a host's queues.
fn served(passthrough: Passthrough) -> (Rig, Arc<Mutex<Vec<Seen>>>, Queue, Queue) {
    served_limited(move |limits| Limits { passthrough, ..limits })
}

/// The same with limits as `limit` changes them.
fn served_limited(
    limit: impl Fn(Limits) -> Limits + Send + Sync + 'static,
) -> (Rig, Arc<Mutex<Vec<Seen>>>, Queue, Queue) {
    let rig = Rig::empty(2);
    let seen = Arc::<Mutex<Vec<Seen>>>::default();
    let notes = seen.clone();
    let device = Double::over(Null::open(4 << 20, 12, None).expect("a volume"))
        .limited(move |limits| {
            limit(Limits {
                commands: Commands { compare: true, ..Commands::default() },
                copy: CopyLimits::NONE,
                lends_reads: false,
                immediate: false,
                ..limits
            })
        })
        .queues(move |_, _| Rc::new(Device(notes.clone())));
    rig.add(3, Arc::new(device));
    let (admin, io) = rig.connect();
    (rig, seen, admin, io)
}

fn vendor(opcode: u8) -> Command {
    Command {
        opcode,
        nsid: 3.into(),
        cdw2: 2.into(),
        cdw3: 3.into(),
        cdw10: 0xa000_000a.into(),
        cdw11: 11.into(),
        cdw12: 12.into(),
        cdw13: 13.into(),
        cdw14: 14.into(),
        ..Command::default()
    }
}

fn dwords(command: &Command) -> [u32; 9] {
    let c = command;
    [c.nsid, c.cdw2, c.cdw3, c.cdw10, c.cdw11, c.cdw12, c.cdw13, c.cdw14, c.cdw15]
        .map(|it| it.get())
}

const ALL: Passthrough = Passthrough { io: true, admin: true };

#[test]
fn nothing_is_passed_unless_it_was_asked_for() {
    let invalid = Status::INVALID_OPCODE.dnr();
    for (passthrough, io_passes) in [
        (Passthrough::NONE, false),
        (Passthrough { io: true, admin: false }, true),
        (Passthrough { io: false, admin: true }, false),
    ] {
        let (_rig, seen, mut admin, mut io) = served(passthrough);
        let on_io = io.command(vendor(VENDOR_WRITE), Bytes::InCapsule(&[1; 512]));
        let on_admin = admin.command(vendor(ADMIN_WRITE), Bytes::InCapsule(&[1; 512]));
        if io_passes {
            on_io.ok();
        } else {
            on_io.refused(invalid);
        }
        if passthrough.admin {
            on_admin.ok();
        } else {
            on_admin.refused(invalid);
            // Nor is more data taken than other admin commands may bring.
            let large = vec![1; 100_000];
            let status = Status::SGL_LENGTH_INVALID.dnr();
            admin.command(vendor(ADMIN_WRITE), Bytes::OnRequest(&large)).refused(status);
        }
        let passed = usize::from(io_passes) + usize::from(passthrough.admin);
        assert_eq!(seen.lock().unwrap().len(), passed);
        // What this target carries out itself, and what no namespace is named for, is not passed.
        let elsewhere = Command { nsid: 7.into(), ..vendor(ADMIN_READ) };
        admin.command(elsewhere, Bytes::Wanted(512)).refused(invalid);
        let format = Command { opcode: 0x80, ..vendor(ADMIN_READ) };
        admin.command(format, Bytes::None).refused(invalid);
        assert_eq!(seen.lock().unwrap().len(), passed);
    }
}

#[test]
fn an_io_command_goes_as_it_is_and_its_64_bit_result_comes_back() {
    let (_rig, seen, _admin, mut io) = served(ALL);
    let small: Vec<u8> = (0..1024).map(|i| i as u8).collect();
    let large: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
    for (opcode, bytes, sent) in [
        (VENDOR_NONE, Bytes::None, &[][..]),
        (VENDOR_WRITE, Bytes::InCapsule(&small), &small),
        (VENDOR_WRITE, Bytes::OnRequest(&large), &large),
        (VENDOR_READ, Bytes::Wanted(20_000), &[]),
        (opcode::io::ZONE_APPEND, Bytes::InCapsule(&small), &small),
        (opcode::io::COPY, Bytes::OnRequest(&small), &small),
        // A command may go without the data that its opcode allows.
        (VENDOR_READ, Bytes::None, &[]),
    ] {
        let done = io.command(vendor(opcode), bytes).ok();
        assert_eq!(done.result, RESULT, "{opcode:#x}");
        let seen = seen.lock().unwrap().pop().expect("it was passed");
        assert_eq!((seen.admin, dwords(&seen.command)), (false, dwords(&vendor(opcode))));
        assert_eq!(seen.command.opcode, opcode);
        assert!(seen.data == sent, "{opcode:#x}: {} bytes", seen.data.len());
        if let Bytes::Wanted(len) = bytes {
            let (filled, rest) = done.data.split_at(len / 2);
            assert!(filled.iter().all(|byte| *byte == 0x5a) && rest.iter().all(|byte| *byte == 0));
            assert_eq!(done.data.len(), len);
        }
    }
}

#[test]
fn an_admin_command_goes_as_it_is_and_its_64_bit_result_comes_back() {
    let (_rig, seen, mut admin, _io) = served(ALL);
    let small: Vec<u8> = (0..4096).map(|i| i as u8).collect();
    let large: Vec<u8> = (0..200_000u32).map(|i| (i / 7) as u8).collect();
    for (opcode, bytes, sent) in [
        (ADMIN_NONE, Bytes::None, &[][..]),
        (ADMIN_WRITE, Bytes::InCapsule(&small), &small),
        (ADMIN_WRITE, Bytes::OnRequest(&large), &large),
        (ADMIN_READ, Bytes::Wanted(65536), &[]),
    ] {
        let done = admin.command(vendor(opcode), bytes).ok();
        assert_eq!(done.result, RESULT, "{opcode:#x}");
        let seen = seen.lock().unwrap().pop().expect("it was passed");
        assert_eq!((seen.admin, dwords(&seen.command)), (true, dwords(&vendor(opcode))));
        assert!(seen.data == sent, "{opcode:#x}: {} bytes", seen.data.len());
        if let Bytes::Wanted(len) = bytes {
            assert_eq!(done.data.len(), len);
            assert!(done.data[..len / 2].iter().all(|byte| *byte == 0x5a));
        }
    }
    let most = subsystem::PASSED_BYTES_MAX as usize;
    admin.command(vendor(ADMIN_READ), Bytes::Wanted(most)).ok();
    let too_long = admin.command(vendor(ADMIN_READ), Bytes::Wanted(most + 4));
    too_long.refused(Status::INVALID_FIELD.dnr());
    // The queue still does what it is for.
    let identify =
        Command { opcode: opcode::admin::IDENTIFY, cdw10: 1.into(), ..Command::default() };
    admin.command(identify, Bytes::Wanted(4096)).ok();
}

#[test]
fn the_devices_status_comes_back() {
    let (rig, seen, mut admin, mut io) = served(ALL);
    // Vendor specific status, with Do Not Retry.
    let status = Status(0x7c3).dnr();
    let failing = |opcode| Command { cdw15: u32::from(status.0).into(), ..vendor(opcode) };
    io.command(failing(VENDOR_READ), Bytes::Wanted(512)).refused(status);
    let done = admin.command(failing(ADMIN_READ), Bytes::Wanted(512));
    done.refused(status);
    assert!(done.data.is_empty());
    io.command(failing(VENDOR_BOTH), Bytes::Wanted(512)).refused(Status::INVALID_FIELD.dnr());
    assert_eq!(seen.lock().unwrap().len(), 2, "one that moves data both ways is not passed");
    let stats = rig.server.stats().expect("running");
    assert_eq!(stats.namespaces[0].counted.errors, 2);
}

#[test]
fn what_is_too_long_or_would_write_to_a_read_only_volume_is_refused() {
    let (_rig, seen, mut admin, mut io) = served_limited(|limits| Limits {
        passthrough: ALL,
        read_only: true,
        transfer_bytes_max: 64 << 10,
        ..limits
    });
    let protected = Status::NAMESPACE_WRITE_PROTECTED.dnr();
    io.command(vendor(VENDOR_WRITE), Bytes::InCapsule(&[1; 512])).refused(protected);
    io.command(vendor(VENDOR_READ), Bytes::Wanted(512)).refused(protected);
    io.command(vendor(opcode::io::ZONE_APPEND), Bytes::InCapsule(&[1; 512])).refused(protected);
    admin.command(vendor(ADMIN_READ), Bytes::Wanted(512)).refused(protected);
    let report = vendor(opcode::io::ZONE_MANAGEMENT_RECEIVE);
    io.command(report, Bytes::Wanted(4096)).ok();
    let invalid = Status::INVALID_FIELD.dnr();
    io.command(report, Bytes::Wanted((64 << 10) + 4)).refused(invalid);
    assert_eq!(seen.lock().unwrap().len(), 1);
}

#[test]
fn the_effects_log_tells_what_is_passed() {
    let log = |passthrough| {
        let (_rig, _seen, mut admin, _io) = served(passthrough);
        let command = Command {
            opcode: opcode::admin::GET_LOG_PAGE,
            cdw10: (5 | 1023 << 16).into(),
            ..Command::default()
        };
        let data = admin.command(command, Bytes::Wanted(4096)).ok().data;
        let entry = move |at: usize| u32::from_le_bytes(data[4 * at..][..4].try_into().unwrap());
        let admin_entry = entry(usize::from(ADMIN_READ));
        let io_entries =
            [VENDOR_READ, opcode::io::ZONE_APPEND, opcode::io::ZONE_MANAGEMENT_RECEIVE]
                .map(|opcode| entry(256 + usize::from(opcode)));
        (admin_entry, io_entries)
    };
    assert_eq!(log(Passthrough::NONE), (0, [0; 3]));
    let writes = effect::CSUPP | effect::LBCC;
    assert_eq!(log(ALL), (writes, [writes, writes, effect::CSUPP]));
}
