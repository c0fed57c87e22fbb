//! The host's handshake for who has a thread of his own.

use crate::handshake::{HEADER_BYTES, Handshake, Progress, record_bytes};
use crate::kernel;
use crate::psk::Psk;
use crate::upgrade::UpgradeError;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Instant;

/// Has the kernel encrypt the connection `stream` from now on, whose controller has to have the same key; within the time that is left until `until`.
/// Changes the time limits of the socket.
pub fn secure(mut stream: &TcpStream, psk: Psk, until: Instant) -> Result<(), UpgradeError> {
    let mut handshake = Handshake::host(psk);
    let mut record = Vec::new();
    loop {
        let progress = handshake.advance(&record);
        limit(stream, until)?;
        // An end that refuses says why.
        let sent = stream.write_all(&handshake.take_output());
        match progress? {
            Progress::Done(secrets) => {
                sent?;
                kernel::encrypt(stream.as_raw_fd(), &secrets).map_err(UpgradeError::of_kernel)?;
                return Ok(());
            }
            Progress::Receive => sent?,
        }
        let mut header = [0; HEADER_BYTES];
        read(stream, &mut header, until)?;
        record.clear();
        record.extend_from_slice(&header);
        record.resize(HEADER_BYTES + record_bytes(header)?, 0);
        read(stream, &mut record[HEADER_BYTES..], until)?;
    }
}

/// Fills `bytes`, and takes no byte more.
fn read(mut stream: &TcpStream, mut bytes: &mut [u8], until: Instant) -> Result<(), UpgradeError> {
    while !bytes.is_empty() {
        limit(stream, until)?;
        match stream.read(bytes) {
            Ok(0) => return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) => match error.kind() {
                ErrorKind::Interrupted => {}
                ErrorKind::WouldBlock | ErrorKind::TimedOut => return Err(UpgradeError::Late),
                _ => return Err(error.into()),
            },
        }
    }
    Ok(())
}

fn limit(stream: &TcpStream, until: Instant) -> Result<(), UpgradeError> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(UpgradeError::Late);
    }
    stream.set_read_timeout(Some(left))?;
    stream.set_write_timeout(Some(left))?;
    Ok(())
}
