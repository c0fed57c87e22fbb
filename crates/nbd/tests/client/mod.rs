//! A small NBD client for tests, in blocking calls; a server beside it.

#![allow(dead_code, reason = "each test uses the part it needs")]

use nbd::{Export, Server, ServerConfig};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;
pub const FAST_ZERO: u16 = 16;

pub const EPERM: u32 = 1;
pub const EIO: u32 = 5;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;
pub const EOVERFLOW: u32 = 75;
pub const ENOTSUP: u32 = 95;

/// How long anything may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Serves `volumes` under the names 0, 1, ...
pub fn serve(volumes: &[&str], config: &ServerConfig) -> (Server, SocketAddr) {
    let options = volume::OpenOptions { cores: config.cores.len(), ..Default::default() };
    let exports = volumes.iter().enumerate().map(|(index, uri)| Export {
        name: index.to_string(),
        description: String::new(),
        namespace: volume::open(uri, &options).expect("a volume"),
    });
    let server = Server::start(config, exports.collect()).expect("a server");
    let address = server.listen("127.0.0.1:0".parse().unwrap()).expect("a free port");
    (server, address)
}

/// What a reply says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Error(u32),
    /// Nothing, or the data of a read.
    Data(Vec<u8>),
    /// (length, state)
    Extents(Vec<(u32, u32)>),
}

/// A connection after the handshake.
pub struct Client {
    pub stream: TcpStream,
    pub bytes: u64,
    pub flags: u16,
    structured: bool,
    next_cookie: u64,
    /// Reads in flight: cookie to (offset, length).
    reads: HashMap<u64, (u64, u32)>,
    /// Content of structured replies that are not complete.
    parts: HashMap<u64, Reply>,
}

/// How a client shakes hands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manners {
    pub structured: bool,
    /// Ask for block sizes, and so agree to them.
    pub aligned: bool,
    /// Choose base:allocation.
    pub allocation: bool,
}

fn option(kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(kind.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// A connection that has sent its flags.
pub fn greet(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    stream.write_all(&3u32.to_be_bytes()).unwrap();
    stream
}

impl Client {
    /// Chooses the export `name`.
    pub fn connect(address: SocketAddr, name: &str, manners: Manners) -> Client {
        let stream = greet(address);
        let mut client = Client {
            stream,
            bytes: 0,
            flags: 0,
            structured: manners.structured,
            next_cookie: 1,
            reads: HashMap::new(),
            parts: HashMap::new(),
        };
        if manners.structured {
            client.stream.write_all(&option(8, b"")).unwrap();
            assert_eq!(client.option_reply(), (1, vec![]));
        }
        let mut named = (name.len() as u32).to_be_bytes().to_vec();
        named.extend(name.as_bytes());
        if manners.allocation {
            let mut data = named.clone();
            data.extend([0, 0, 0, 1, 0, 0, 0, 15]);
            data.extend(b"base:allocation");
            client.stream.write_all(&option(10, &data)).unwrap();
            assert_eq!(client.option_reply().0, 4);
            assert_eq!(client.option_reply().0, 1);
        }
        named.extend(if manners.aligned { &[0, 1, 0, 3][..] } else { &[0, 0] });
        client.stream.write_all(&option(7, &named)).unwrap();
        loop {
            match client.option_reply() {
                (3, data) if data[..2] == [0, 0] => {
                    client.bytes = u64::from_be_bytes(data[2..10].try_into().unwrap());
                    client.flags = u16::from_be_bytes(data[10..].try_into().unwrap());
                }
                (3, _) => {}
                (1, _) => return client,
                other => panic!("{other:?}"),
            }
        }
    }

    fn option_reply(&mut self) -> (u32, Vec<u8>) {
        let mut head = [0; 20];
        self.stream.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes(head[16..].try_into().unwrap());
        let mut data = vec![0; length as usize];
        self.stream.read_exact(&mut data).unwrap();
        (u32::from_be_bytes(head[12..16].try_into().unwrap()), data)
    }

    /// Sends a request; returns its cookie.
    pub fn send(&mut self, kind: u16, flags: u16, offset: u64, length: u32, data: &[u8]) -> u64 {
        self.try_send(kind, flags, offset, length, data).unwrap()
    }

    /// The same, of which the server may hang up.
    pub fn try_send(
        &mut self,
        kind: u16,
        flags: u16,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> io::Result<u64> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        if kind == READ {
            self.reads.insert(cookie, (offset, length));
        }
        let request = request(kind, flags, cookie, offset, length);
        self.stream.write_all(&[&request[..], data].concat())?;
        Ok(cookie)
    }

    /// Sends a request and waits for its reply, which is the next.
    pub fn ask(&mut self, kind: u16, flags: u16, offset: u64, length: u32) -> Reply {
        let cookie = self.send(kind, flags, offset, length, &[]);
        self.wait_for(cookie)
    }

    pub fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> Reply {
        let cookie = self.send(WRITE, flags, offset, data.len() as u32, data);
        self.wait_for(cookie)
    }

    pub fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        match self.ask(READ, 0, offset, length) {
            Reply::Data(data) => data,
            other => panic!("{other:?}"),
        }
    }

    fn wait_for(&mut self, cookie: u64) -> Reply {
        let (answered, reply) = self.receive().unwrap();
        assert_eq!(answered, cookie);
        reply
    }

    /// The next reply that is complete, with its cookie.
    pub fn receive(&mut self) -> io::Result<(u64, Reply)> {
        loop {
            let mut head = [0; 16];
            self.stream.read_exact(&mut head)?;
            let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
            match u32::from_be_bytes(head[..4].try_into().unwrap()) {
                0x6744_6698 => {
                    let error = u32::from_be_bytes(head[4..8].try_into().unwrap());
                    let read = self.reads.remove(&cookie);
                    assert!(!(self.structured && read.is_some()), "a read without its structure");
                    if error != 0 {
                        return Ok((cookie, Reply::Error(error)));
                    }
                    let mut data = vec![0; read.map_or(0, |(_, length)| length as usize)];
                    self.stream.read_exact(&mut data)?;
                    return Ok((cookie, Reply::Data(data)));
                }
                0x668e_33ef => {
                    assert!(self.structured);
                    let flags = u16::from_be_bytes(head[4..6].try_into().unwrap());
                    let kind = u16::from_be_bytes(head[6..8].try_into().unwrap());
                    self.chunk(kind, cookie)?;
                    if flags & 1 != 0 {
                        self.reads.remove(&cookie);
                        let reply = self.parts.remove(&cookie);
                        return Ok((cookie, reply.unwrap_or(Reply::Data(vec![]))));
                    }
                }
                other => panic!("a reply begins with {other:#x}"),
            }
        }
    }

    fn chunk(&mut self, kind: u16, cookie: u64) -> io::Result<()> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut payload = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut payload)?;
        let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        match kind {
            0 => assert!(payload.is_empty()),
            1 => {
                let (start, length) = self.reads[&cookie];
                let offset = u64::from_be_bytes(payload[..8].try_into().unwrap());
                let at = usize::try_from(offset - start).expect("within the request");
                let empty = || Reply::Data(vec![0; length as usize]);
                let part = self.parts.entry(cookie).or_insert_with(empty);
                if let Reply::Data(data) = part {
                    data[at..at + payload.len() - 8].copy_from_slice(&payload[8..]);
                }
            }
            5 => {
                assert_eq!(number(0), 1, "the context");
                let extents = (4..payload.len()).step_by(8).map(|at| (number(at), number(at + 4)));
                let extents = Reply::Extents(extents.collect());
                self.parts.insert(cookie, extents);
            }
            0x8001 => {
                let words = &payload[6..];
                assert_eq!(usize::from(u16::from_be_bytes([payload[4], payload[5]])), words.len());
                assert!(!words.is_empty() && words.is_ascii());
                let error = Reply::Error(number(0));
                self.parts.insert(cookie, error);
            }
            other => panic!("a chunk of kind {other:#x}"),
        }
        Ok(())
    }

    /// Whether the server hangs up without another word.
    pub fn is_hung_up_on(&mut self) -> bool {
        match self.stream.read(&mut [0; 64]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}

/// The bytes of a request.
pub fn request(kind: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> [u8; 28] {
    let mut bytes = [0; 28];
    bytes[..4].copy_from_slice(&0x2560_9513u32.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15);
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}
