//! Both state machines connected to each other: whatever the fragmentation, the digests and the
//! alignment, each command's data arrives once and unchanged.

use nvme::{Command, Completion, Status};
use nvme_tcp::{Descriptor, Digest, controller, host};
use proptest::prelude::*;
use std::collections::VecDeque;

const QUEUE_ENTRIES: u16 = 16;
const IN_CAPSULE_MAX: u32 = 8192;

#[derive(Clone, Debug)]
struct Scenario {
    host: host::Config,
    controller: controller::Config,
    commands: Vec<(u8, u32)>,
    /// Bytes delivered at once, cycled through.
    chunks: Vec<usize>,
    /// Data per R2T and per C2HData, cycled through.
    pieces: Vec<u32>,
    success: bool,
    direct: bool,
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let digests = any::<[bool; 4]>();
    let alignments = (0u8..32, 0u8..32);
    let commands = prop::collection::vec((0u8..4, 1u32..20_000), 1..40);
    let chunks = prop::collection::vec(prop_oneof![1usize..8, 1usize..200, 1usize..30_000], 1..8);
    let pieces = prop::collection::vec(prop_oneof![1u32..100, 1u32..30_000], 1..5);
    let rest = (4096u32..20_000, any::<bool>(), any::<bool>());
    (digests, alignments, commands, chunks, pieces, rest).prop_map(
        |(digests, alignments, commands, chunks, pieces, (max_h2c, success, direct))| Scenario {
            host: host::Config {
                header_digest: digests[0],
                data_digest: digests[1],
                hpda_z: alignments.0,
                max_r2t: 1,
                queue_entries: QUEUE_ENTRIES,
            },
            controller: controller::Config {
                max_h2c_data: max_h2c & !3,
                in_capsule_max: IN_CAPSULE_MAX,
                header_digest: digests[2],
                data_digest: digests[3],
                cpda_z: alignments.1,
                queue_entries: QUEUE_ENTRIES,
            },
            commands,
            chunks,
            pieces,
            success,
            direct,
        },
    )
}

/// The byte at `offset` of command number `number`.
fn pattern(number: u32, offset: u32) -> u8 {
    (number.wrapping_mul(0x9e37_79b9) ^ offset.wrapping_mul(0x85eb_ca6b)).to_le_bytes()[3]
}

fn bytes(number: u32, offset: u32, len: u32) -> Vec<u8> {
    (offset..offset + len).map(|at| pattern(number, at)).collect()
}

/// One direction of the connection: sent bytes, and what the receiver holds of an incomplete PDU.
#[derive(Default)]
struct Pipe {
    sent: VecDeque<u8>,
    held: Vec<u8>,
}

impl Pipe {
    fn send(&mut self, bytes: &[u8]) {
        self.sent.extend(bytes);
    }

    fn send_data(&mut self, bytes: &[u8], digest: bool) {
        self.send(bytes);
        if digest {
            let mut crc = Digest::new();
            crc.update(bytes);
            self.send(&crc.finish());
        }
    }

    fn deliver(&mut self, len: usize) -> usize {
        let len = len.min(self.sent.len());
        self.held.extend(self.sent.drain(..len));
        len
    }
}

struct HostSide {
    connection: host::Connection,
    todo: VecDeque<(u8, u32)>,
    started: u32,
    finished: usize,
    /// By CID.
    flight: Vec<Option<Flight>>,
}

#[derive(Clone)]
struct Flight {
    number: u32,
    kind: u8,
    len: u32,
    got: Vec<u8>,
}

struct ControllerSide {
    connection: controller::Connection,
    /// Command, and the data that came for it, by tag, which is the CID here.
    writes: Vec<Option<(Command, u32, Vec<u8>)>>,
    pieces: Vec<u32>,
    piece: usize,
    success: bool,
}

impl HostSide {
    fn start(&mut self, out: &mut Pipe) {
        if !self.connection.is_initialized() {
            return;
        }
        for cid in 0..QUEUE_ENTRIES {
            if self.flight[usize::from(cid)].is_some() {
                continue;
            }
            let Some((kind, len)) = self.todo.pop_front() else { return };
            let number = self.started;
            self.started += 1;
            let (kind, transfer) = match kind {
                0 => (0, host::Transfer::None),
                1 => (1, host::Transfer::ToHost(len)),
                3 if len <= IN_CAPSULE_MAX => (3, host::Transfer::InCapsule(len)),
                _ => (2, host::Transfer::ToController(len)),
            };
            let command = Command {
                opcode: kind,
                cid: cid.into(),
                cdw10: number.into(),
                ..Command::default()
            };
            let mut header = [0; host::COMMAND_HEADER_BYTES_MAX];
            let n = self.connection.command(&command, transfer, &mut header);
            out.send(&header[..n]);
            if kind == 3 {
                out.send_data(&bytes(number, 0, len), self.connection.data_digest());
            }
            self.flight[usize::from(cid)] = Some(Flight { number, kind, len, got: Vec::new() });
        }
    }

    fn data(&mut self, cid: u16, offset: u32, data: &[u8]) {
        let flight = self.flight[usize::from(cid)].as_mut().expect("in flight");
        assert_eq!(flight.kind, 1);
        assert_eq!(flight.got.len(), offset as usize);
        flight.got.extend_from_slice(data);
    }

    fn finish(&mut self, cid: u16) {
        let flight = self.flight[usize::from(cid)].take().expect("in flight");
        let Flight { number, kind, len, got } = flight;
        if kind == 1 {
            assert!(got == bytes(number, 0, len), "data of command {number} differs");
        }
        self.finished += 1;
    }

    fn end(&mut self, end: Option<host::DataEnd>) {
        if let Some(end) = end {
            assert!(!end.digest_error);
            if end.success {
                self.finish(end.cid);
            }
        }
    }

    fn receive(&mut self, input: &mut Pipe, out: &mut Pipe) {
        let held = std::mem::take(&mut input.held);
        let mut rest = held.as_slice();
        while let Some(event) = self.connection.receive(&mut rest).expect("no termination") {
            match event {
                host::Event::Initialized => {}
                host::Event::Response { completion, received, digest_error } => {
                    assert!(!digest_error && completion.status().is_success());
                    let cid = completion.cid.get();
                    let flight = self.flight[usize::from(cid)].as_ref().unwrap();
                    assert_eq!(completion.result.get(), u64::from(flight.number));
                    assert_eq!(received, if flight.kind == 1 { flight.len } else { 0 });
                    self.finish(cid);
                }
                host::Event::Data { cid, offset, bytes, end } => {
                    self.data(cid, offset, bytes);
                    self.end(end);
                }
                host::Event::ReadyToTransfer(mut outgoing) => {
                    let number = self.flight[usize::from(outgoing.cid)].as_ref().unwrap().number;
                    let mut header = [0; host::DATA_HEADER_BYTES_MAX];
                    while let Some(pdu) = self.connection.data_header(&mut outgoing, &mut header) {
                        out.send(&header[..pdu.header_bytes]);
                        let data = bytes(number, pdu.offset, pdu.len);
                        out.send_data(&data, self.connection.data_digest());
                    }
                }
                host::Event::Terminated { .. } => panic!("terminated"),
            }
        }
        assert!(rest.len() <= host::INPUT_BYTES_MAX);
        input.held = rest.to_vec();
    }

    fn receive_directly(&mut self, input: &mut Pipe, len: usize) -> bool {
        let Some(pending) = self.connection.payload_pending() else { return false };
        assert!(input.held.is_empty(), "nothing stays behind within a payload");
        let len = len.min(pending.remaining as usize).min(input.sent.len());
        let data: Vec<u8> = input.sent.drain(..len).collect();
        self.data(pending.key, pending.offset, &data);
        let end = self.connection.payload_received(&data);
        self.end(end);
        len != 0
    }
}

impl ControllerSide {
    fn piece(&mut self, remaining: u32) -> u32 {
        self.piece += 1;
        self.pieces[self.piece % self.pieces.len()].min(remaining)
    }

    fn respond(&mut self, command: &Command, out: &mut Pipe) {
        let completion =
            Completion::new(command.cid.get(), Status::SUCCESS, u64::from(command.cdw10.get()));
        let mut response = [0; controller::RESPONSE_BYTES_MAX];
        let n = self.connection.response(&completion, &mut response);
        out.send(&response[..n]);
    }

    fn command(&mut self, command: Command, data: &[u8], out: &mut Pipe) {
        let (cid, number) = (command.cid.get(), command.cdw10.get());
        assert_eq!(command.flags, 0x40);
        match (command.opcode, Descriptor::parse(&command.dptr)) {
            (0, Descriptor::Transport { len: 0 }) => self.respond(&command, out),
            (1, Descriptor::Transport { len }) => {
                let mut offset = 0;
                while offset < len {
                    let piece = self.piece(len - offset);
                    let last = offset + piece == len;
                    let success = last && self.success;
                    let mut header = [0; controller::DATA_HEADER_BYTES_MAX];
                    let data = controller::DataHeader { cid, offset, len: piece, last, success };
                    let n = self.connection.data_header(data, &mut header);
                    out.send(&header[..n]);
                    let data = bytes(number, offset, piece);
                    out.send_data(&data, self.connection.data_digest());
                    offset += piece;
                }
                if !self.success {
                    self.respond(&command, out);
                }
            }
            (2, Descriptor::Transport { len }) => {
                assert!(data.is_empty());
                self.writes[usize::from(cid)] = Some((command, len, Vec::new()));
                self.ask(cid, out);
            }
            (3, Descriptor::InCapsule { offset: 0, len }) => {
                assert!(data == bytes(number, 0, len));
                self.respond(&command, out);
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    fn ask(&mut self, tag: u16, out: &mut Pipe) {
        let (command, len, got) = self.writes[usize::from(tag)].as_ref().unwrap();
        let (cid, len, offset) = (command.cid.get(), *len, got.len() as u32);
        let piece = self.piece(len - offset);
        let mut request = [0; controller::RESPONSE_BYTES_MAX];
        let n = self.connection.expect(cid, tag, offset, piece, &mut request);
        out.send(&request[..n]);
    }

    fn data(&mut self, tag: u16, offset: u32, data: &[u8]) {
        let (_, _, got) = self.writes[usize::from(tag)].as_mut().expect("a write in flight");
        assert_eq!(got.len(), offset as usize);
        got.extend_from_slice(data);
    }

    fn done(&mut self, tag: u16, out: &mut Pipe) {
        let (command, len, got) = self.writes[usize::from(tag)].as_ref().unwrap();
        if got.len() < *len as usize {
            return self.ask(tag, out);
        }
        let command = *command;
        assert!(*got == bytes(command.cdw10.get(), 0, *len));
        self.writes[usize::from(tag)] = None;
        self.respond(&command, out);
    }

    fn receive(&mut self, input: &mut Pipe, out: &mut Pipe) {
        let held = std::mem::take(&mut input.held);
        let mut rest = held.as_slice();
        while let Some(event) = self.connection.receive(&mut rest).expect("no termination") {
            match event {
                controller::Event::Initialize { response } => out.send(&response),
                controller::Event::Command { command, data, digest_error } => {
                    assert!(!digest_error);
                    self.command(command, data, out);
                }
                controller::Event::Data { tag, offset, bytes, done, digest_error } => {
                    assert!(!digest_error);
                    self.data(tag, offset, bytes);
                    if done {
                        self.done(tag, out);
                    }
                }
                controller::Event::Terminated { .. } => panic!("terminated"),
            }
        }
        assert!(rest.len() <= self.connection.input_bytes_max());
        input.held = rest.to_vec();
    }

    fn receive_directly(&mut self, input: &mut Pipe, len: usize, out: &mut Pipe) -> bool {
        let Some(pending) = self.connection.payload_pending() else { return false };
        assert!(input.held.is_empty(), "nothing stays behind within a payload");
        let len = len.min(pending.remaining as usize).min(input.sent.len());
        let data: Vec<u8> = input.sent.drain(..len).collect();
        self.data(pending.key, pending.offset, &data);
        if let Some(done) = self.connection.payload_received(&data) {
            assert!(!done.digest_error);
            self.done(done.tag, out);
        }
        len != 0
    }
}

fn run(scenario: &Scenario) {
    let mut host = HostSide {
        connection: host::Connection::new(scenario.host.clone()),
        todo: scenario.commands.iter().copied().collect(),
        started: 0,
        finished: 0,
        flight: vec![None; usize::from(QUEUE_ENTRIES)],
    };
    let mut controller = ControllerSide {
        connection: controller::Connection::new(scenario.controller.clone()),
        writes: vec![None; usize::from(QUEUE_ENTRIES)],
        pieces: scenario.pieces.clone(),
        piece: 0,
        success: scenario.success,
    };
    let (mut to_controller, mut to_host) = (Pipe::default(), Pipe::default());
    to_controller.send(&host.connection.initialize());
    let mut chunks = scenario.chunks.iter().copied().cycle();
    while host.finished < scenario.commands.len() {
        host.start(&mut to_controller);
        let len = chunks.next().unwrap();
        let mut moved =
            scenario.direct && controller.receive_directly(&mut to_controller, len, &mut to_host);
        if !moved {
            moved |= to_controller.deliver(len) != 0;
            controller.receive(&mut to_controller, &mut to_host);
        }
        let len = chunks.next().unwrap();
        let direct = scenario.direct && host.receive_directly(&mut to_host, len);
        if !direct {
            moved |= to_host.deliver(len) != 0;
            host.receive(&mut to_host, &mut to_controller);
        }
        assert!(moved || direct, "the connection is stuck");
    }
    let digests = (host.connection.header_digest(), host.connection.data_digest());
    let (asked, offered) = (&scenario.host, &scenario.controller);
    assert_eq!(digests.0, asked.header_digest && offered.header_digest);
    assert_eq!(digests.1, asked.data_digest && offered.data_digest);
    assert_eq!(controller.connection.header_digest(), digests.0);
    assert_eq!(controller.connection.data_digest(), digests.1);
    assert!(to_controller.sent.is_empty() && to_controller.held.is_empty());
    assert!(to_host.sent.is_empty() && to_host.held.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn data_survives_any_fragmentation(scenario in scenario()) {
        run(&scenario);
    }
}
