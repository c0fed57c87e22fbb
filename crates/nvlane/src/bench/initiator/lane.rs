//! Feeds received bytes to the protocol, wherever the stream was cut.

use nvme_tcp::host::{Config, Connection, Event, INPUT_BYTES_MAX};
use std::io;

/// One queue's protocol state, and the beginning of a header that was cut off.
pub struct Lane {
    /// The host's end of the connection.
    pub connection: Connection,
    cut: [u8; 2 * CUT_BYTES],
    cut_len: usize,
}

/// Room for the longest beginning of a header.
const CUT_BYTES: usize = INPUT_BYTES_MAX + 1;

impl Lane {
    /// A lane for command identifiers below `entries`.
    pub fn new(entries: u16) -> Lane {
        let config = Config { queue_entries: entries, ..Config::default() };
        Lane { connection: Connection::new(config), cut: [0; 2 * CUT_BYTES], cut_len: 0 }
    }

    /// Takes bytes as they came, and hands each event to `handle`.
    #[inline]
    pub fn receive(
        &mut self,
        mut bytes: &[u8],
        mut handle: impl FnMut(Event<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        while self.cut_len > 0 && !bytes.is_empty() {
            bytes = self.receive_cut(bytes, &mut handle)?;
        }
        let mut rest = bytes;
        while let Some(event) = self.connection.receive(&mut rest).map_err(io::Error::other)? {
            handle(event)?;
        }
        self.cut[self.cut_len..self.cut_len + rest.len()].copy_from_slice(rest);
        self.cut_len += rest.len();
        Ok(())
    }

    /// Completes what was cut off with the first of `bytes`. Returns those not used for that.
    fn receive_cut<'a>(
        &mut self,
        bytes: &'a [u8],
        handle: &mut impl FnMut(Event<'_>) -> io::Result<()>,
    ) -> io::Result<&'a [u8]> {
        let old = self.cut_len;
        let added = bytes.len().min(self.cut.len() - old);
        self.cut[old..old + added].copy_from_slice(&bytes[..added]);
        let mut rest = &self.cut[..old + added];
        while let Some(event) = self.connection.receive(&mut rest).map_err(io::Error::other)? {
            handle(event)?;
        }
        let used = old + added - rest.len();
        if used >= old {
            self.cut_len = 0;
            return Ok(&bytes[used - old..]);
        }
        // Not yet a whole header, so all of `bytes` is in it.
        self.cut.copy_within(used..old + added, 0);
        self.cut_len = old + added - used;
        Ok(&bytes[added..])
    }
}
