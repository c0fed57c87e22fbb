//! `host::Connection` against any controller.

use super::Script;
use super::peer::Stream;
use crate::frame::Format;
use crate::host::{
    COMMAND_HEADER_BYTES_MAX, Config, Connection, DATA_HEADER_BYTES_MAX, DataEnd, Event,
    INPUT_BYTES_MAX, Outgoing, Transfer,
};
use crate::pdu::{C2hData, IcResp, Kind, R2t, flags};
use nvme::{Command, Completion, Status};
use zerocopy::{FromBytes, IntoBytes};

const CIDS: u16 = 8;
const MAX_R2T: u16 = 2;

/// A command in flight.
#[derive(Clone, Copy)]
struct Flight {
    transfer: Transfer,
    /// Data that the controller has sent, or has asked for.
    sent: u32,
    /// Data that the driver has got.
    got: u32,
    /// R2Ts sent and not answered in full.
    r2ts: u16,
    /// The controller has sent its last PDU for it.
    finished: bool,
}

struct World {
    connection: Connection,
    /// DGST of our ICReq.
    dgst: u8,
    format: Format,
    stream: Stream,
    flights: [Option<Flight>; CIDS as usize],
    outgoing: Vec<Outgoing>,
}

/// Runs a script of a controller's sending and a driver's doing.
pub fn fuzz_host(bytes: &[u8]) {
    let mut script = Script(bytes);
    let choice = script.byte();
    let config = Config {
        header_digest: choice & 1 != 0,
        data_digest: choice & 2 != 0,
        hpda_z: choice >> 3,
        max_r2t: MAX_R2T,
        queue_entries: CIDS,
    };
    let format = Format { alignment_z: config.hpda_z, ..Format::PLAIN };
    let mut world = World {
        connection: Connection::new(config),
        dgst: choice & 3,
        format,
        stream: Stream::new(),
        flights: [None; CIDS as usize],
        outgoing: Vec::new(),
    };
    if choice & 4 == 0 {
        world.initialize(&mut script);
    }
    while !script.is_over() && !world.connection.is_closed() {
        world.act(&mut script);
    }
    world.deliver(usize::MAX);
    if world.stream.honest {
        let lost = world.flights.iter().flatten().any(|flight| flight.finished);
        assert!(!lost, "a completion was lost");
    }
}

impl World {
    fn initialize(&mut self, script: &mut Script<'_>) {
        let mut response = IcResp::read_from_bytes(&[0; 128]).expect("128 bytes");
        (response.cpda_z, response.dgst) = (script.byte() & 31, script.byte() & self.dgst);
        response.maxh2cdata = (4096 + u32::from(script.word())).into();
        self.stream.honest &= !self.connection.is_initialized();
        self.stream.send(&Format::PLAIN, Kind::IC_RESP, 0, &response.as_bytes()[8..], 0);
        self.deliver(usize::from(script.byte()));
        self.deliver(usize::MAX);
    }

    fn act(&mut self, script: &mut Script<'_>) {
        match script.byte() % 12 {
            0 => self.stream.send_raw(script),
            1 => self.stream.spoil(script),
            2 => self.initialize(script),
            3 | 4 => self.start(script),
            5 => self.respond(script),
            6 => self.data(script),
            7 => self.request(script),
            8 => self.wrong(script),
            9 => self.send_data(),
            10 => self.deliver(usize::from(script.word() & 0x0fff)),
            _ => self.receive_directly(usize::from(script.word())),
        }
    }

    fn start(&mut self, script: &mut Script<'_>) {
        let cid = u16::from(script.byte()) % CIDS;
        let transfer = match script.byte() % 4 {
            0 => Transfer::None,
            1 => Transfer::ToHost(script.up_to(20_000)),
            2 => Transfer::ToController(script.up_to(20_000)),
            _ => Transfer::InCapsule(script.up_to(8192)),
        };
        if !self.connection.is_initialized() || self.flights[usize::from(cid)].is_some() {
            return;
        }
        let command = Command { cid: cid.into(), ..Command::default() };
        let mut header = [0; COMMAND_HEADER_BYTES_MAX];
        let n = self.connection.command(&command, transfer, &mut header);
        assert!(n >= 72);
        let flight = Flight { transfer, sent: 0, got: 0, r2ts: 0, finished: false };
        self.flights[usize::from(cid)] = Some(flight);
    }

    fn respond(&mut self, script: &mut Script<'_>) {
        let cid = u16::from(script.byte()) % CIDS;
        let flight = self.flights[usize::from(cid)].as_mut();
        let Some(flight) = flight.filter(|flight| !flight.finished) else { return };
        flight.finished = true;
        let completion = Completion::new(cid, Status(script.word() & 0x7fff), 0);
        self.stream.send(&self.format, Kind::CAPSULE_RESP, 0, completion.as_bytes(), 0);
    }

    fn data(&mut self, script: &mut Script<'_>) {
        let cid = u16::from(script.byte()) % CIDS;
        let (len, success) = (script.up_to(20_000), script.flag());
        let Some(flight) = &mut self.flights[usize::from(cid)] else { return };
        let Transfer::ToHost(whole) = flight.transfer else { return };
        let len = len.min(whole - flight.sent);
        if len == 0 || flight.finished {
            return;
        }
        let header = C2hData {
            cccid: cid.into(),
            datao: flight.sent.into(),
            datal: len.into(),
            ..C2hData::default()
        };
        flight.sent += len;
        let last = flight.sent == whole;
        flight.finished = last && success;
        let more = if last { flags::LAST } else { 0 };
        let more = more | if flight.finished { flags::SUCCESS } else { 0 };
        let fields = &header.as_bytes()[8..];
        self.stream.send(&self.format, Kind::C2H_DATA, more, fields, len as usize);
    }

    fn request(&mut self, script: &mut Script<'_>) {
        let (cid, tag) = (u16::from(script.byte()) % CIDS, script.word());
        let len = script.up_to(20_000);
        let Some(flight) = &mut self.flights[usize::from(cid)] else { return };
        let Transfer::ToController(whole) = flight.transfer else { return };
        let len = len.min(whole - flight.sent);
        if len == 0 || flight.finished || flight.r2ts == MAX_R2T {
            return;
        }
        let header = R2t {
            cccid: cid.into(),
            ttag: tag.into(),
            r2to: flight.sent.into(),
            r2tl: len.into(),
            ..R2t::default()
        };
        flight.sent += len;
        flight.r2ts += 1;
        self.stream.send(&self.format, Kind::R2T, 0, &header.as_bytes()[8..], 0);
    }

    fn wrong(&mut self, script: &mut Script<'_>) {
        let kinds = [Kind::C2H_DATA, Kind::R2T, Kind::CAPSULE_RESP];
        let kind = kinds[usize::from(script.byte()) % kinds.len()];
        let more = script.byte() & (flags::LAST | flags::SUCCESS);
        let len = u32::from(script.word()) % 6000;
        let header = R2t {
            cccid: u16::from(script.byte() % (CIDS as u8 + 1)).into(),
            ttag: script.word().into(),
            r2to: u32::from(script.word()).into(),
            r2tl: len.wrapping_add_signed(i32::from(script.byte() as i8 / 64)).into(),
            ..R2t::default()
        };
        let data = if kind == Kind::C2H_DATA { len as usize } else { 0 };
        self.stream.honest = false;
        self.stream.send(&self.format, kind, more, &header.as_bytes()[8..], data);
    }

    /// The driver sends what the oldest R2T asks for.
    fn send_data(&mut self) {
        if self.outgoing.is_empty() {
            return;
        }
        let mut outgoing = self.outgoing.remove(0);
        let end = outgoing.offset + outgoing.remaining;
        let mut offset = outgoing.offset;
        let mut header = [0; DATA_HEADER_BYTES_MAX];
        while let Some(pdu) = self.connection.data_header(&mut outgoing, &mut header) {
            assert!(pdu.len != 0 && pdu.len <= self.connection.max_h2c_data());
            assert_eq!(pdu.offset, offset);
            let last = header[1] & flags::LAST != 0;
            offset += pdu.len;
            assert_eq!(last, offset == end);
        }
        assert_eq!(offset, end);
        if let Some(flight) = &mut self.flights[usize::from(outgoing.cid)] {
            flight.r2ts = flight.r2ts.saturating_sub(1);
        }
    }

    /// Lets `len` more bytes arrive at the machine.
    fn deliver(&mut self, len: usize) {
        let held = self.stream.split(len);
        let mut input = held.as_slice();
        loop {
            let before = input.len();
            let event = match self.connection.receive(&mut input) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(terminate) => {
                    assert!(!self.stream.honest, "an honest controller is refused: {terminate}");
                    assert!(self.connection.is_closed() && input.is_empty());
                    assert!(terminate.pdu().len() <= crate::pdu::TERM_BYTES_MAX);
                    return;
                }
            };
            assert!(input.len() < before, "an event without progress");
            match event {
                Event::Initialized => self.format = self.connection.received_format(),
                Event::Response { completion, received, digest_error } => {
                    assert!(!digest_error || !self.stream.honest);
                    let cid = completion.cid.get();
                    let flight = self.finish(cid);
                    assert_eq!(received, flight.got);
                }
                Event::Data { cid, offset, bytes, end } => {
                    let len = bytes.len() as u32;
                    self.received(cid, offset, len, end);
                }
                Event::ReadyToTransfer(outgoing) => {
                    let flight = self.flights[usize::from(outgoing.cid)].expect("in flight");
                    let Transfer::ToController(len) = flight.transfer else { panic!("no write") };
                    assert!(outgoing.remaining != 0);
                    assert!(
                        outgoing.remaining <= len && outgoing.offset <= len - outgoing.remaining
                    );
                    self.outgoing.push(outgoing);
                    assert!(self.outgoing.len() <= usize::from(CIDS * MAX_R2T));
                }
                Event::Terminated { .. } => {
                    assert!(!self.stream.honest && self.connection.is_closed());
                    return;
                }
            }
        }
        assert!(input.len() <= INPUT_BYTES_MAX, "too much is held back");
        self.stream.restore(input);
    }

    fn receive_directly(&mut self, len: usize) {
        let Some(pending) = self.connection.payload_pending() else { return };
        let data = self.stream.split(len.min(pending.remaining as usize));
        let end = self.connection.payload_received(&data);
        assert!(end.is_none() || !self.format.data_digest);
        self.received(pending.key, pending.offset, data.len() as u32, end);
    }

    /// Data comes for what was asked, in order, and to its end.
    fn received(&mut self, cid: u16, offset: u32, len: u32, end: Option<DataEnd>) {
        let flight = self.flights[usize::from(cid)].as_mut().expect("data of a command in flight");
        let Transfer::ToHost(whole) = flight.transfer else { panic!("data of no read") };
        assert_eq!(offset, flight.got);
        flight.got += len;
        assert!(flight.got <= whole);
        if let Some(end) = end {
            assert_eq!((end.cid, flight.got), (cid, whole));
            assert!(!end.digest_error || !self.stream.honest);
            if end.success {
                self.finish(cid);
            }
        }
    }

    fn finish(&mut self, cid: u16) -> Flight {
        self.outgoing.retain(|outgoing| outgoing.cid != cid);
        self.flights[usize::from(cid)].take().expect("a command in flight completes")
    }
}
