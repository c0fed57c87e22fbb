//! The peer's sending side: a stream of PDUs, good or spoiled.

use super::Script;
use crate::Digest;
use crate::frame::Format;
use crate::pdu::{CommonHeader, Kind};
use zerocopy::IntoBytes;

/// Bytes on their way, and whether they keep to the protocol.
pub(super) struct Stream {
    pub bytes: Vec<u8>,
    pub honest: bool,
}

impl Stream {
    pub fn new() -> Stream {
        Stream { bytes: Vec::new(), honest: true }
    }

    /// Puts a PDU on the stream: `fields` are the header after the common header.
    pub fn send(&mut self, format: &Format, kind: Kind, more: u8, fields: &[u8], data: usize) {
        let hlen = size_of::<CommonHeader>() + fields.len();
        let frame = format.frame(hlen, data);
        let common = format.common(kind, hlen, more, &frame);
        let header = [common.as_bytes(), fields].concat();
        let from = self.bytes.len();
        self.bytes.resize(from + frame.data_offset, 0);
        format.emit(&header, &frame, &mut self.bytes[from..]);
        let from = self.bytes.len();
        self.bytes.extend((0..data).map(|at| at as u8));
        if frame.digest_bytes != 0 {
            let mut digest = Digest::new();
            digest.update(&self.bytes[from..]);
            self.bytes.extend(digest.finish());
        }
    }

    /// Puts bytes of the fuzzer's own on the stream.
    pub fn send_raw(&mut self, script: &mut Script<'_>) {
        let len = usize::from(script.byte());
        self.bytes.extend(script.take(len));
        self.honest = false;
    }

    /// Changes a byte that has not been delivered yet.
    pub fn spoil(&mut self, script: &mut Script<'_>) {
        let at = usize::from(script.word());
        let change = script.byte();
        if let Some(byte) = self.bytes.get_mut(at)
            && change != 0
        {
            *byte ^= change;
            self.honest = false;
        }
    }

    /// What a driver holds after so many more bytes have come, and what is still on its way.
    pub fn split(&mut self, len: usize) -> Vec<u8> {
        let rest = self.bytes.split_off(len.min(self.bytes.len()));
        std::mem::replace(&mut self.bytes, rest)
    }

    /// Puts back what the machine has left.
    pub fn restore(&mut self, left: &[u8]) {
        self.bytes.splice(..0, left.iter().copied());
    }
}
