//! Bodies of the fuzz targets in fuzz/: what must hold whatever bytes come.
//!
//! The machines are fed by a script that the fuzzer writes: its bytes choose between sending what
//! a good peer would, sending what it would not, and what the driver does in between. A model
//! beside the machine knows what may be reported; a peer that kept to the protocol must never be
//! terminated.

mod controller;
mod host;
mod peer;

pub use controller::fuzz_controller;
pub use host::fuzz_host;

use crate::frame::Format;
use crate::pdu::{CommonHeader, Kind, flags};
use crate::{Descriptor, Terminate, terminate};
use zerocopy::FromBytes;

/// Parses `bytes` as a PDU, under every way the connection may have been initialized.
pub fn fuzz_pdu(bytes: &[u8]) {
    let Ok((common, _)) = CommonHeader::read_from_prefix(bytes) else { return };
    for choice in 0..128u8 {
        let format = Format {
            header_digest: choice & 1 != 0,
            data_digest: choice & 2 != 0,
            alignment_z: choice >> 2,
        };
        match format.check(&common) {
            Ok(frame) => accepted(&format, &common, &frame),
            Err(fault) => {
                assert!(fault.fei < 8, "a common header has 8 bytes");
                let kind = if choice & 1 == 0 { Kind::C2H_TERM_REQ } else { Kind::H2C_TERM_REQ };
                let terminate = Terminate::new(kind, fault, bytes);
                assert!(bytes.starts_with(terminate.header()));
                assert!(terminate.header().len() >= 8);
                let pdu = terminate.pdu();
                let (common, _) = CommonHeader::read_from_prefix(&pdu).expect("a whole PDU");
                assert_eq!(common.plen.get() as usize, pdu.len());
                assert_eq!(terminate::parse(&common, &pdu), Some((terminate.fes, terminate.fei)));
            }
        }
    }
    let _ = terminate::parse(&common, bytes);
    fuzz_kickstart(bytes);
    if let Some(dptr) = bytes.first_chunk() {
        match Descriptor::parse(dptr) {
            descriptor @ Descriptor::InCapsule { .. } => {
                assert_eq!(Descriptor::parse(&descriptor.emit()), descriptor);
            }
            Descriptor::Transport { .. } | Descriptor::Unsupported { .. } => {}
        }
    }
}

/// What a centralized discovery controller may send, before and after it has initialized the connection.
fn fuzz_kickstart(bytes: &[u8]) {
    use crate::kickstart::{Connection, Event, INPUT_BYTES_MAX};
    let mut response = [0; 128];
    response[..8].copy_from_slice(&[Kind::IC_RESP.0, 0, 128, 0, 128, 0, 0, 0]);
    for begin in [&[][..], &response] {
        let mut connection = Connection::new();
        let told = connection.receive(&mut &begin[..]);
        assert_eq!(told, Ok((!begin.is_empty()).then_some(Event::Initialized)));
        let mut input = bytes;
        let end = loop {
            match connection.receive(&mut input) {
                Ok(Some(Event::Initialized)) => assert!(begin.is_empty()),
                Ok(Some(Event::Accepted { cdc_nqn })) => {
                    assert!(!cdc_nqn.is_empty() && cdc_nqn.len() <= 256);
                    assert!(!cdc_nqn.contains(char::is_control));
                    break true;
                }
                Ok(Some(Event::Refused(_) | Event::Terminated { .. })) => break true,
                Ok(None) => break false,
                Err(terminate) => {
                    assert!(terminate.pdu().len() <= crate::pdu::TERM_BYTES_MAX);
                    break true;
                }
            }
        };
        if end {
            assert_eq!((connection.receive(&mut input), input.len()), (Ok(None), 0));
        } else {
            assert!(input.len() < INPUT_BYTES_MAX);
        }
    }
}

/// An accepted frame adds up, and is what we would send but for padding and reserved fields.
fn accepted(format: &Format, common: &CommonHeader, frame: &crate::Frame) {
    let hlen = usize::from(common.hlen);
    assert_eq!(frame.bytes(), common.plen.get() as usize);
    assert!(frame.header_bytes >= hlen && frame.header_bytes <= hlen + 4);
    assert!(frame.data_offset >= frame.header_bytes && frame.data_offset < 256);
    assert!(frame.digest_bytes == 0 || frame.data_bytes != 0);
    if matches!(common.kind, Kind::IC_REQ | Kind::IC_RESP) {
        return;
    }
    let more = common.flags & (flags::LAST | flags::SUCCESS);
    let sent = format.common(common.kind, hlen, more, frame);
    let expected = CommonHeader { pdo: sent.pdo, ..*common };
    assert_eq!(sent, expected);
    assert!(sent.pdo == common.pdo || frame.data_bytes == 0);
}

/// The fuzzer's bytes as a source of decisions; zeros when they are used up.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn flag(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn long(&mut self) -> u32 {
        u32::from(self.word()) | u32::from(self.word()) << 16
    }

    /// A value from 1 to `max`.
    fn up_to(&mut self, max: u32) -> u32 {
        u32::from(self.word()) % max + 1
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// The committed seeds, which between them reach what the fuzzers have found.
    fn replay(target: &str, body: fn(&[u8])) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
        let mut count = 0;
        for entry in folder.read_dir().expect("the seeds are committed") {
            let bytes = std::fs::read(entry.expect("a readable folder").path()).expect("a file");
            body(&bytes);
            for end in 0..bytes.len() {
                body(&bytes[..end]);
            }
            count += 1;
        }
        assert!(count > 0, "no seeds in {}", folder.display());
    }

    #[test]
    fn pdu_seeds() {
        replay("pdu", super::fuzz_pdu);
    }

    #[test]
    fn controller_seeds() {
        replay("controller", super::fuzz_controller);
    }

    #[test]
    fn host_seeds() {
        replay("host", super::fuzz_host);
    }

    proptest::proptest! {
        #[test]
        fn any_script(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..600)) {
            super::fuzz_pdu(&bytes);
            super::fuzz_controller(&bytes);
            super::fuzz_host(&bytes);
        }
    }
}
