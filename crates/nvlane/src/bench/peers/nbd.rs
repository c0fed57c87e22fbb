//! NBD servers with the same memory behind them, and a minimal pipelined NBD client.
//!
//! The client negotiates as the NBD protocol's "fixed newstyle" with NBD_OPT_EXPORT_NAME and simple
//! replies (github.com/NetworkBlockDevice/nbd, doc/proto.md), and runs in the same loop as all others.

use crate::bench::initiator::Pattern;
use crate::bench::pipeline::{Batch, Protocol};
use crate::bench::random::Random;
use crate::bench::served::{self, Scratch, Served};
use anyhow::{Context, ensure};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

const REQUEST_BYTES: usize = 28;
const REPLY_BYTES: usize = 16;
const MAGIC: &[u8; 8] = b"NBDMAGIC";
const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const OPTION_EXPORT_NAME: u32 = 1;
const FLAGS_FIXED_NO_ZEROES: u32 = 0b11;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const READ: u16 = 0;
const WRITE: u16 = 1;

/// A server that can be measured beside ours.
#[derive(Clone, Copy, Debug)]
pub enum Server {
    /// nbdkit with its memory plugin.
    Nbdkit,
    /// qemu-nbd with a file in /dev/shm.
    QemuNbd,
}

impl Server {
    /// In order of preference.
    pub const ALL: [Server; 2] = [Server::Nbdkit, Server::QemuNbd];

    /// Its program's name.
    pub fn name(self) -> &'static str {
        match self {
            Server::Nbdkit => "nbdkit",
            Server::QemuNbd => "qemu-nbd",
        }
    }

    /// Serves `bytes` of memory on `core`.
    pub fn start(self, bytes: u64, core: usize, scratch: &Scratch) -> anyhow::Result<Served> {
        let address = served::free_address()?;
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        let mut command = Command::new(self.name());
        match self {
            Server::Nbdkit => {
                command.args(["-f", "-i", &host, "-p", &port, "memory", &bytes.to_string()]);
            }
            Server::QemuNbd => {
                let path = format!("/dev/shm/nvlane-bench-{}", std::process::id());
                std::fs::File::create(&path)?.set_len(bytes)?;
                command.args(["-t", "-f", "raw", "-b", &host, "-p", &port, &path]);
                let served = Served::start(&mut command, address, core, scratch);
                // It has it open; the name is not needed any more.
                std::fs::remove_file(&path).ok();
                return served;
            }
        }
        Served::start(&mut command, address, core, scratch)
    }
}

/// A connected client.
pub struct Client {
    /// The connection, ready for requests.
    pub socket: TcpStream,
    bytes: u64,
}

impl Client {
    /// Connects and negotiates.
    pub fn connect(address: SocketAddr) -> anyhow::Result<Client> {
        let mut socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        let mut greeting = [0; 18];
        socket.read_exact(&mut greeting).context("no NBD greeting")?;
        ensure!(greeting[..8] == *MAGIC && greeting[8..16] == *OPTION_MAGIC, "not newstyle NBD");
        let mut hello = Vec::with_capacity(20);
        hello.extend(FLAGS_FIXED_NO_ZEROES.to_be_bytes());
        hello.extend(OPTION_MAGIC);
        hello.extend(OPTION_EXPORT_NAME.to_be_bytes());
        hello.extend(0u32.to_be_bytes());
        socket.write_all(&hello)?;
        let mut export = [0; 10];
        socket.read_exact(&mut export).context("no NBD export")?;
        let bytes = u64::from_be_bytes(*export.first_chunk().expect("ten bytes"));
        Ok(Client { socket, bytes })
    }

    /// Endless I/O of `bytes` each.
    pub fn load(&self, pattern: Pattern, bytes: u32) -> Load {
        Load::new(self.bytes, pattern, bytes)
    }

    /// Writes every block once, so that reads meet memory and not holes.
    pub fn fill(&self, bytes: u32) -> Load {
        let places = self.bytes / u64::from(bytes);
        Load { end: places, ..self.load(Pattern::RandomWrite, bytes) }
    }
}

/// The client's side of a run.
pub struct Load {
    pattern: Pattern,
    bytes: u32,
    places: u64,
    /// A finite run goes through the places in order, up to here.
    end: u64,
    random: Random,
    next: u64,
    header: [u8; REPLY_BYTES],
    header_len: usize,
    skip: usize,
    answering: u16,
}

impl Load {
    fn new(export_bytes: u64, pattern: Pattern, bytes: u32) -> Load {
        Load {
            pattern,
            bytes,
            places: export_bytes / u64::from(bytes),
            end: u64::MAX,
            random: Random::new(3),
            next: 0,
            header: [0; REPLY_BYTES],
            header_len: 0,
            skip: 0,
            answering: 0,
        }
    }

    /// The batch that goes with it at `depth`.
    pub fn batch(&self, depth: u16) -> Batch {
        let payload = if self.pattern == Pattern::RandomWrite { self.bytes as usize } else { 0 };
        Batch::new((usize::from(depth) + 1) * REQUEST_BYTES, vec![0xa5; payload])
    }

    fn place(&mut self) -> Option<u64> {
        if self.end == u64::MAX && self.pattern != Pattern::SequentialRead {
            return Some(self.random.below(self.places));
        }
        let place = self.next;
        self.next += 1;
        (place < self.end).then_some(place % self.places)
    }

    fn header_complete(&mut self, answered: &mut Vec<u16>) -> io::Result<()> {
        let word = |at: usize| {
            u32::from_be_bytes(*self.header[at..].first_chunk().expect("the header has 16 bytes"))
        };
        if word(0) != REPLY_MAGIC || word(4) != 0 {
            return Err(io::Error::other(format!("NBD reply {:#x}, error {}", word(0), word(4))));
        }
        self.header_len = 0;
        self.answering = word(12) as u16;
        if self.pattern == Pattern::RandomWrite {
            answered.push(self.answering);
        } else {
            self.skip = self.bytes as usize;
        }
        Ok(())
    }
}

impl Protocol for Load {
    #[inline]
    fn issue(&mut self, slot: u16, batch: &mut Batch) -> bool {
        let Some(place) = self.place() else { return false };
        let kind = if self.pattern == Pattern::RandomWrite { WRITE } else { READ };
        batch.append::<REQUEST_BYTES>(|room| {
            room[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
            room[4..6].fill(0);
            room[6..8].copy_from_slice(&kind.to_be_bytes());
            room[8..16].copy_from_slice(&u64::from(slot).to_be_bytes());
            room[16..24].copy_from_slice(&(place * u64::from(self.bytes)).to_be_bytes());
            room[24..28].copy_from_slice(&self.bytes.to_be_bytes());
            REQUEST_BYTES
        });
        if kind == WRITE {
            batch.payload();
        }
        true
    }

    #[inline]
    fn receive(&mut self, mut bytes: &[u8], answered: &mut Vec<u16>) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &bytes[skipped..];
                if self.skip == 0 {
                    answered.push(self.answering);
                }
                continue;
            }
            let taken = (REPLY_BYTES - self.header_len).min(bytes.len());
            self.header[self.header_len..self.header_len + taken].copy_from_slice(&bytes[..taken]);
            self.header_len += taken;
            bytes = &bytes[taken..];
            if self.header_len == REPLY_BYTES {
                self.header_complete(answered)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_may_be_cut_anywhere() {
        let mut stream = Vec::new();
        for slot in [7u64, 3] {
            stream.extend(REPLY_MAGIC.to_be_bytes());
            stream.extend(0u32.to_be_bytes());
            stream.extend(slot.to_be_bytes());
            stream.extend([0xee; 512]);
        }
        for step in 1..stream.len() {
            let mut load = Load::new(1 << 20, Pattern::RandomRead, 512);
            let mut answered = Vec::new();
            for part in stream.chunks(step) {
                load.receive(part, &mut answered).unwrap();
            }
            assert_eq!(answered, [7, 3], "in parts of {step}");
        }
    }

    #[test]
    fn an_error_reply_is_an_error() {
        let mut reply = Vec::from(REPLY_MAGIC.to_be_bytes());
        reply.extend(5u32.to_be_bytes());
        reply.extend(0u64.to_be_bytes());
        let mut load = Load::new(1 << 20, Pattern::RandomWrite, 512);
        assert!(load.receive(&reply, &mut Vec::new()).is_err());
    }
}
