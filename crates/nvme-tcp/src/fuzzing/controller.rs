//! `controller::Connection` against any host.

use super::Script;
use super::peer::Stream;
use crate::controller::{Config, Connection, Event, RESPONSE_BYTES_MAX};
use crate::frame::Format;
use crate::pdu::{H2cData, IcReq, Kind, flags};
use nvme::Command;
use zerocopy::{FromBytes, IntoBytes};

const TAGS: u16 = 8;
const MAX_H2C_DATA: u32 = 4096;

/// What the driver has asked for under a tag.
#[derive(Clone, Copy)]
struct Asked {
    cid: u16,
    /// Next byte that the host will send, and that the driver will get.
    sent: u32,
    next: u32,
    end: u32,
    cancelled: bool,
}

struct World {
    connection: Connection,
    in_capsule_max: u32,
    format: Format,
    stream: Stream,
    asked: [Option<Asked>; TAGS as usize],
    /// Capsules with a good header that were sent and not yet reported, while the host is honest.
    capsules: usize,
}

/// Runs a script of a host's sending and a driver's doing.
pub fn fuzz_controller(bytes: &[u8]) {
    let mut script = Script(bytes);
    let choice = script.byte();
    let in_capsule_max = u32::from(script.word()) & 0x1fff;
    let config = Config {
        max_h2c_data: MAX_H2C_DATA,
        in_capsule_max,
        header_digest: choice & 1 != 0,
        data_digest: choice & 2 != 0,
        cpda_z: choice >> 3,
        queue_entries: TAGS,
    };
    let mut world = World {
        connection: Connection::new(config),
        in_capsule_max,
        format: Format::PLAIN,
        stream: Stream::new(),
        asked: [None; TAGS as usize],
        capsules: 0,
    };
    if choice & 4 == 0 {
        world.initialize(&mut script);
    }
    while !script.is_over() && !world.connection.is_closed() {
        world.act(&mut script);
    }
    world.deliver(usize::MAX);
    if world.stream.honest && world.connection.is_initialized() {
        assert_eq!(world.capsules, 0, "a capsule was lost");
    }
}

impl World {
    fn initialize(&mut self, script: &mut Script<'_>) {
        let mut request = IcReq::read_from_bytes(&[0; 128]).expect("128 bytes");
        (request.hpda_z, request.dgst) = (script.byte() & 31, script.byte());
        request.maxr2t_z = script.long().into();
        self.stream.honest &= !self.connection.is_initialized();
        self.stream.send(&Format::PLAIN, Kind::IC_REQ, 0, &request.as_bytes()[8..], 0);
        self.deliver(usize::from(script.byte()));
        self.deliver(usize::MAX);
    }

    fn act(&mut self, script: &mut Script<'_>) {
        match script.byte() % 11 {
            0 => self.stream.send_raw(script),
            1 => self.stream.spoil(script),
            2 => self.initialize(script),
            3 | 4 => self.command(script),
            5 => self.data(script),
            6 => self.wrong_data(script),
            7 => self.expect(script),
            8 => self.cancel(script),
            9 => self.deliver(usize::from(script.word() & 0x0fff)),
            _ => self.receive_directly(usize::from(script.word())),
        }
    }

    fn command(&mut self, script: &mut Script<'_>) {
        let command = Command { cid: script.word().into(), ..Command::default() };
        let data = if script.flag() { u32::from(script.word()) % 10_000 } else { 0 };
        self.stream.honest &= self.connection.is_initialized() && data <= self.in_capsule_max;
        let data = data as usize;
        self.stream.send(&self.format, Kind::CAPSULE_CMD, 0, command.as_bytes(), data);
        self.capsules += 1;
    }

    fn data(&mut self, script: &mut Script<'_>) {
        let tag = script.byte() % TAGS as u8;
        let len = script.up_to(MAX_H2C_DATA);
        let Some(asked) = &mut self.asked[usize::from(tag)] else { return };
        let len = len.min(asked.end - asked.sent);
        if len == 0 {
            return;
        }
        let header = H2cData {
            cccid: asked.cid.into(),
            ttag: u16::from(tag).into(),
            datao: asked.sent.into(),
            datal: len.into(),
            ..H2cData::default()
        };
        asked.sent += len;
        let more = if asked.sent == asked.end { flags::LAST } else { 0 };
        let fields = &header.as_bytes()[8..];
        self.stream.send(&self.format, Kind::H2C_DATA, more, fields, len as usize);
    }

    fn wrong_data(&mut self, script: &mut Script<'_>) {
        let data = usize::from(script.word()) % 6000;
        let header = H2cData {
            cccid: u16::from(script.byte()).into(),
            ttag: u16::from(script.byte() % (TAGS as u8 + 1)).into(),
            datao: u32::from(script.word()).into(),
            datal: (data as u32).wrapping_add_signed(i32::from(script.byte() as i8 / 64)).into(),
            ..H2cData::default()
        };
        let more = if script.flag() { flags::LAST } else { 0 };
        self.stream.honest = false;
        self.stream.send(&self.format, Kind::H2C_DATA, more, &header.as_bytes()[8..], data);
    }

    fn expect(&mut self, script: &mut Script<'_>) {
        let tag = u16::from(script.byte()) % TAGS;
        let (cid, offset) = (u16::from(script.byte()), u32::from(script.word()));
        let len = script.up_to(20_000);
        if self.asked[usize::from(tag)].is_some() || !self.connection.is_initialized() {
            return;
        }
        let mut request = [0; RESPONSE_BYTES_MAX];
        let n = self.connection.expect(cid, tag, offset, len, &mut request);
        assert_eq!(n, if self.format.header_digest { 28 } else { 24 });
        let end = offset + len;
        let asked = Asked { cid, sent: offset, next: offset, end, cancelled: false };
        self.asked[usize::from(tag)] = Some(asked);
    }

    fn cancel(&mut self, script: &mut Script<'_>) {
        let tag = script.byte() % TAGS as u8;
        if let Some(asked) = &mut self.asked[usize::from(tag)] {
            asked.cancelled = true;
            self.connection.cancel(tag.into());
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
                    assert!(!self.stream.honest, "an honest host is terminated: {terminate}");
                    assert!(self.connection.is_closed() && input.is_empty());
                    assert!(terminate.pdu().len() <= crate::pdu::TERM_BYTES_MAX);
                    return;
                }
            };
            assert!(input.len() < before, "an event without progress");
            let data = match event {
                Event::Initialize { .. } => {
                    self.format = self.connection.received_format();
                    continue;
                }
                Event::Command { data, digest_error, .. } => {
                    assert!(data.len() <= self.in_capsule_max as usize);
                    assert!(!digest_error || !self.stream.honest);
                    self.capsules = self.capsules.saturating_sub(1);
                    continue;
                }
                Event::Data { tag, offset, bytes, done, digest_error } => {
                    assert!(!digest_error || !self.stream.honest);
                    (tag, offset, bytes.len() as u32, done)
                }
                Event::Terminated { .. } => {
                    assert!(!self.stream.honest && self.connection.is_closed());
                    return;
                }
            };
            let (tag, offset, len, done) = data;
            self.received(tag, offset, len, done);
        }
        assert!(input.len() <= self.connection.input_bytes_max(), "too much is held back");
        self.stream.restore(input);
    }

    fn receive_directly(&mut self, len: usize) {
        let Some(pending) = self.connection.payload_pending() else { return };
        let data = self.stream.split(len.min(pending.remaining as usize));
        let done = self.connection.payload_received(&data);
        self.received(pending.key, pending.offset, data.len() as u32, done.is_some());
        assert!(done.is_none_or(|done| done.tag == pending.key && !self.format.data_digest));
    }

    /// Data comes for what was asked, in order, and to its end.
    fn received(&mut self, tag: u16, offset: u32, len: u32, done: bool) {
        let slot = &mut self.asked[usize::from(tag)];
        let asked = slot.as_mut().expect("data is for an outstanding transfer");
        if asked.cancelled {
            assert!(done && len == 0, "a cancelled transfer shows no data");
        } else {
            assert_eq!(offset, asked.next);
            asked.next += len;
            assert!(asked.next <= asked.end);
            assert!(!done || asked.next == asked.end);
        }
        if done {
            *slot = None;
        }
    }
}
