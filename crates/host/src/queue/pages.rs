//! Data that is pages of the kernel: the ring moves it between socket and pages, so that it does not pass
//! through our memory.
//!
//! ```text
//!   write:  header --writev, MSG_MORE--> socket <--ring-- pages     nothing else is written meanwhile
//!   read:   socket --recv, header only--> machine
//!           socket --ring--> pages                                  nothing else is read meanwhile
//! ```
//!
//! While a read into pages is outstanding, headers are received alone, without a byte of the data that may
//! follow: that costs a system call per PDU. A connection without such reads is not concerned.
//!
//! The kernel holds pages until the ring's operation has ended: a request whose connection is lost
//! is kept until then, see [`PageTransfer::part`].

use super::Requests;
use super::connection::{Connection, Link, Lost};
use super::receive::{DIRECT_BYTES_MIN, ended};
use crate::pages::Means;
use namespace::{Registered, Request};
use nvme_tcp::Pending;
use reactor::{OperationId, Reactor};
use rustix::io::Errno;
use std::cell::Cell;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;

/// Tokens of the two directions; those of the link's watches are below.
pub(super) const SENDING: u64 = 2;
pub(super) const RECEIVING: u64 = 3;

/// Headers received in one turn.
const HEADERS_MAX: usize = 64;

/// One direction of a socket, in which the ring moves the pages of one command at a time.
#[derive(Default)]
pub(super) struct PageTransfer {
    state: Cell<State>,
    /// Whose pages they are, where the connection was given up meanwhile.
    parting: Cell<Option<Box<Request>>>,
}

#[derive(Clone, Copy, Default)]
enum State {
    #[default]
    Idle,
    /// The kernel has pages of command `cid`.
    Moving { operation: OperationId, cid: u16, len: u32 },
    /// It has given them back: bytes moved, or `-errno`.
    Moved { result: i32, cid: u16 },
}

impl PageTransfer {
    /// Whether nobody else may use this direction of the socket.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        !matches!(self.state.get(), State::Idle)
    }

    /// Whether the kernel has pages.
    pub(super) fn is_moving(&self) -> bool {
        matches!(self.state.get(), State::Moving { .. })
    }

    /// Whether the kernel has pages of command `cid`, or has just given them back.
    pub(super) fn is_of(&self, cid: u16) -> bool {
        match self.state.get() {
            State::Idle => false,
            State::Moving { cid: moving, .. } | State::Moved { cid: moving, .. } => moving == cid,
        }
    }

    /// Has the end of the operation awaited before `request`, command `cid`, goes back: if the kernel has
    /// its pages. Otherwise it is given back at once.
    pub(super) fn part(&self, cid: u16, request: Box<Request>) -> Option<Box<Request>> {
        match self.state.get() {
            State::Moving { cid: moving, .. } if moving == cid => {
                self.parting.set(Some(request));
                None
            }
            _ => Some(request),
        }
    }

    /// Asks the kernel to give back the pages, if it has any.
    pub(super) fn cancel(&self, reactor: &Reactor) {
        if let State::Moving { operation, .. } = self.state.get() {
            reactor.cancel(operation);
        }
    }

    /// Bytes that the kernel is to move.
    pub(super) fn len(&self) -> u32 {
        match self.state.get() {
            State::Moving { len, .. } => len,
            _ => 0,
        }
    }

    /// The kernel has given back the pages; the request that waited for that.
    pub(super) fn ended(&self, result: i32) -> Option<Box<Request>> {
        let State::Moving { cid, .. } = self.state.get() else {
            unreachable!("an operation ends once");
        };
        self.state.set(State::Moved { result, cid });
        self.parting.take()
    }

    /// How many bytes were moved, once per transfer; none where it is to be started again.
    fn take(&self) -> Option<Result<Option<u32>, Lost>> {
        let State::Moved { result, cid } = self.state.get() else { return None };
        self.state.set(State::Idle);
        Some(match u32::try_from(result) {
            Ok(count) => Ok(Some(count)),
            Err(_) => failed(result, cid),
        })
    }
}

/// What an error of the ring means, that was to move pages of command `cid`.
#[cold]
pub(super) fn failed(result: i32, cid: u16) -> Result<Option<u32>, Lost> {
    let is = |all: &[Errno]| all.iter().any(|errno| errno.raw_os_error() == -result);
    if is(&[Errno::AGAIN, Errno::INTR]) {
        return Ok(None);
    }
    let error = io::Error::from_raw_os_error(-result);
    // The socket is as good as it was, but a PDU has begun on it that cannot end.
    let ours = || Lost::ours(format!("the kernel does not move pages: {error}"));
    if is(&[Errno::INVAL, Errno::FAULT]) {
        return Err(Lost { refused: Some(cid), ..ours() });
    }
    if is(&[Errno::NOMEM, Errno::CANCELED]) {
        return Err(ours());
    }
    Err(error.into())
}

/// What is next to be sent: pages of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) cid: u16,
    pub(super) pages: Registered,
}

impl Connection {
    /// Has the ring send what is next.
    pub(super) fn start_sending(&mut self, next: Next, means: Means, reactor: &Reactor) {
        let entry = means.send(self.link.stream.as_raw_fd(), next.pages);
        // SAFETY: the pages are with the command's request, which stays in its slot or in the
        // transfer until the sink was told; the sink keeps the socket open.
        let operation = unsafe { reactor.start(entry, Rc::<Link>::clone(&self.link), SENDING) };
        let (cid, len) = (next.cid, next.pages.len);
        self.link.sending.state.set(State::Moving { operation, cid, len });
    }

    /// Has the ring receive the rest of a payload into `pages`, which are all of the command's.
    fn start_receiving(&mut self, pending: Pending, pages: Registered, reactor: &Reactor) {
        assert!(pending.offset + pending.remaining <= pages.len, "the machine has checked it");
        let means = Means::find().expect("pages are given to those who take them");
        let offset = pages.offset + pending.offset;
        let place = Registered { offset, len: pending.remaining, ..pages };
        let entry = means.receive(self.link.stream.as_raw_fd(), place);
        // SAFETY: as in `start_sending`.
        let operation = unsafe { reactor.start(entry, Rc::<Link>::clone(&self.link), RECEIVING) };
        let (cid, len) = (pending.key, pending.remaining);
        self.link.receiving.state.set(State::Moving { operation, cid, len });
    }

    /// Goes on where the ring has moved pages. Whether it has, and whether data of the controller.
    pub(super) fn moved(&mut self, done: &mut Requests) -> Result<(bool, bool), Lost> {
        let (sent, received) = (self.link.sending.take(), self.link.receiving.take());
        let (sent, received) = match (sent.transpose(), received.transpose()) {
            // One of them was told why.
            (Err(_), Err(lost)) if lost.socket_failed || lost.reset => return Err(lost),
            (sent, received) => (sent?.flatten(), received?.flatten()),
        };
        if let Some(count) = sent {
            let Connection { slots, send, late_answers, .. } = self;
            send.sent_pages(count as usize, slots, late_answers);
        }
        match received {
            None => {}
            Some(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Some(count) => {
                self.received.direct += u64::from(count);
                if let Some(end) = self.machine.payload_passed(count) {
                    self.data_end(end, done);
                }
            }
        }
        Ok((sent.is_some() || received.is_some(), received.is_some()))
    }

    /// [`Connection::receive`] while data is to come that belongs into pages: not a byte of it may come here.
    pub(super) fn receive_exactly(
        &mut self,
        buffer: &mut [u8],
        done: &mut Requests,
        reactor: &Reactor,
    ) -> Result<bool, Lost> {
        let mut progress = false;
        for _ in 0..HEADERS_MAX {
            if self.link.receiving.is_busy() {
                break;
            }
            let stashed = self.stash.len();
            let received = match self.machine.payload_pending() {
                Some(pending) => {
                    if let Some(pages) = self.slots[usize::from(pending.key)].pages {
                        self.start_receiving(pending, pages, reactor);
                        return Ok(true);
                    }
                    let len = buffer.len().min(pending.remaining as usize);
                    if stashed == 0 && pending.remaining >= DIRECT_BYTES_MIN {
                        self.receive_payload(pending, &mut [], done)
                    } else {
                        self.receive_some(buffer, len)
                    }
                }
                None => self.receive_some(buffer, self.machine.header_missing(&self.stash)),
            };
            let Some(count) = received? else { break };
            self.process(&buffer[..count], done)?;
            progress = true;
        }
        Ok(progress)
    }

    /// Receives at most `len` bytes behind what is stashed. How many there are then.
    pub(super) fn receive_some(
        &mut self,
        buffer: &mut [u8],
        len: usize,
    ) -> io::Result<Option<usize>> {
        let stashed = self.stash.len();
        buffer[..stashed].copy_from_slice(&self.stash);
        let end = buffer.len().min(stashed + len);
        let received = self.link.stream.recv(&mut buffer[stashed..end]);
        ended(received).map(|count| count.map(|count| stashed + count))
    }
}

#[cfg(test)]
mod tests {
    use super::super::old::Old;
    use super::super::params::Params;
    use super::*;
    use crate::options::Options;
    use crate::shared::Shared;
    use association::{Association, Config};
    use namespace::Data;
    use nvme::{Command, opcode};
    use reactor::{Complete, Stream};
    use rustix::net::sockopt;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::rc::Weak;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    const LEN: u32 = 4096;

    const ICRESP: u8 = 1;
    const CAPSULE_RESP: u8 = 5;
    const C2H_DATA: u8 = 7;

    /// A connection, whose peer drains, and the peer's end of it.
    struct Rig {
        connection: Connection,
        peer: Option<TcpStream>,
        reactor: Rc<Reactor>,
    }

    struct Nobody;

    impl Complete for Nobody {
        fn complete(&self, _token: u64, _result: i32, _flags: u32) {}
    }

    impl Rig {
        fn new() -> Rig {
            let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
            let local = listener.local_addr().expect("it listens");
            let stream = TcpStream::connect(local).expect("a connection");
            let peer = Some(listener.accept().expect("a connection").0);
            let options = Options::new(Config::new("nqn.a", "nqn.h", [7; 16]));
            let association = Association::new(options.association.clone());
            let address = crate::shared::Place::At("127.0.0.1".parse().expect("an address"));
            let shared = Shared::new(address, options, Arc::default());
            let mut params = Params::new(&association, &shared);
            (params.settle, params.quiet) = (Duration::ZERO, Duration::from_secs(60));
            params.nsid = 1.into();
            let stream = Stream::try_from(OwnedFd::from(stream)).expect("a socket");
            let now = Instant::now();
            let connection = Connection::new(1, &Arc::new(params), stream, Weak::new(), now);
            let reactor = Reactor::new(&reactor::Config::default()).expect("a reactor");
            Rig { connection, peer, reactor }
        }

        /// Initialization and Connect are answered.
        fn goes_live(&mut self) {
            let mut initialized = [0; 128];
            (initialized[0], initialized[2], initialized[4]) = (ICRESP, 128, 128);
            initialized[12..16].copy_from_slice(&(1u32 << 17).to_le_bytes());
            let mut connected = [0; 24];
            (connected[0], connected[2], connected[4]) = (CAPSULE_RESP, 24, 24);
            for answer in [&initialized[..], &connected] {
                let taken = self.connection.process(answer, &mut Vec::new());
                taken.map_err(|lost| lost.words).expect("it is as it should be");
            }
            assert!(self.connection.is_live());
        }

        /// Has a read of `bytes` bytes wait to be sent.
        fn starts_read(&mut self, bytes: usize) {
            let mut request = Request::new();
            request.command = Command::blocks(opcode::io::READ, 1, 0, (bytes / 512) as u32);
            let buffer = self.reactor.buffers().allocate(bytes).expect("a buffer");
            request.data = Data::Buffer(buffer);
            let started = self.connection.start(request, Instant::now());
            started.map_err(|(_, status)| status).expect("it is started");
        }

        /// The ring has pages in these directions.
        fn moves(&self, directions: &[u64]) {
            for direction in directions {
                // SAFETY: it points to nothing.
                let operation =
                    unsafe { self.reactor.start(uring::entry::nop(), Rc::new(Nobody), 0) };
                let transfer = match *direction {
                    SENDING => &self.connection.link.sending,
                    _ => &self.connection.link.receiving,
                };
                transfer.state.set(State::Moving { operation, cid: 0, len: LEN });
            }
        }

        fn tell(&self, direction: u64, errno: Errno) {
            self.connection.link.complete(direction, -errno.raw_os_error(), 0);
        }

        fn peer_ends(&self) {
            let peer = self.peer.as_ref().expect("it is there");
            peer.shutdown(Shutdown::Both).expect("a socket");
        }

        /// The connection is reset, and somebody was told so.
        fn dies(&mut self) {
            let peer = self.peer.take().expect("it is there");
            sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).expect("a socket");
            drop(peer);
            let stream = &self.connection.link.stream;
            let told = |error: io::Error| error.kind() == io::ErrorKind::ConnectionReset;
            while !stream.recv(&mut [0]).is_err_and(told) {}
        }

        /// Whether the end is evidence of the peer's, as far as `lost` and the ring tell; and whether it is a while
        /// later, when `then` has come of what was under way.
        fn evidence(self, mut lost: Lost, then: impl FnOnce(&Link)) -> (bool, bool) {
            self.connection.link.judge(&mut lost);
            let params = Arc::clone(&self.connection.params);
            let link = Rc::clone(&self.connection.link);
            let now = Instant::now();
            let held = vec![Request::new()];
            let mut old = Old::new(Rc::clone(&link), held, now, &params, &lost).expect("it waits");
            then(&link);
            let dead = (0..20).any(|_| {
                std::thread::sleep(Duration::from_millis(5));
                old.is_dead(Instant::now(), &mut [0; 64], &mut Vec::new())
            });
            (lost.by_peer, dead)
        }
    }

    /// Otherwise it could come into the buffer of another that has the identifier by then.
    #[test]
    fn a_header_alone_is_too_early_for_a_command_that_was_not_sent() {
        let mut header = [0; 24];
        (header[0], header[1], header[2], header[3]) = (C2H_DATA, 0xc, 24, 24);
        header[4..8].copy_from_slice(&(24 + 8192u32).to_le_bytes());
        header[16..20].copy_from_slice(&8192u32.to_le_bytes());
        for sent in [true, false] {
            let mut rig = Rig::new();
            rig.goes_live();
            rig.starts_read(8192);
            if sent {
                let sent = rig.connection.flush(&rig.reactor).map_err(|lost| lost.words);
                assert!(sent.expect("the socket takes it"));
            }
            assert_eq!(rig.connection.process(&header, &mut Vec::new()).is_ok(), sent);
        }
    }

    fn eof() -> Lost {
        io::Error::from(io::ErrorKind::UnexpectedEof).into()
    }

    fn pipe() -> Lost {
        io::Error::from(io::ErrorKind::BrokenPipe).into()
    }

    fn nothing(_link: &Link) {}

    #[test]
    fn a_time_out_that_one_direction_is_told_is_not_the_peers_end() {
        let told =
            [(Errno::TIMEDOUT, false), (Errno::HOSTUNREACH, false), (Errno::CONNRESET, true)];
        for (errno, by_peer) in told {
            for (first, second) in [(SENDING, RECEIVING), (RECEIVING, SENDING)] {
                let mut rig = Rig::new();
                rig.moves(&[SENDING, RECEIVING]);
                rig.tell(first, errno);
                rig.tell(second, Errno::PIPE);
                let mut lost = rig.connection.moved(&mut Vec::new()).expect_err("it is lost");
                rig.connection.link.judge(&mut lost);
                assert_eq!((lost.by_peer, lost.socket_failed), (by_peer, !by_peer), "{errno}");
            }
        }
    }

    #[test]
    fn the_end_of_a_stream_tells_nothing_while_the_ring_may_know_why() {
        for lost in [eof, pipe] {
            let rig = Rig::new();
            rig.peer_ends();
            assert_eq!(rig.evidence(lost(), nothing), (true, true), "nobody else was told");
            for errno in [Errno::TIMEDOUT, Errno::CONNRESET] {
                let mut rig = Rig::new();
                rig.moves(&[SENDING]);
                rig.dies();
                let then = |link: &Link| link.complete(SENDING, -errno.raw_os_error(), 0);
                let expected = (false, errno == Errno::CONNRESET);
                assert_eq!(rig.evidence(lost(), then), expected, "{errno} comes later");
            }
            // What it was told is lost.
            let mut rig = Rig::new();
            rig.moves(&[SENDING]);
            rig.dies();
            rig.connection.link.complete(SENDING, 100, 0);
            assert_eq!(rig.evidence(lost(), nothing), (false, false), "some bytes were sent");
        }
    }

    #[test]
    fn a_peer_that_says_so_has_ended_the_stream_whatever_the_ring_does() {
        let rig = Rig::new();
        rig.moves(&[SENDING]);
        rig.peer_ends();
        let then = |link: &Link| link.complete(SENDING, 100, 0);
        assert_eq!(rig.evidence(eof(), then), (true, true));
        // Asked to give back its pages, the kernel tells how many bytes went out: nothing was told by that.
        let rig = Rig::new();
        rig.moves(&[SENDING]);
        let peer = rig.peer.as_ref().expect("it is there").try_clone().expect("a socket");
        let then = |link: &Link| {
            link.complete(SENDING, 100, 0);
            peer.shutdown(Shutdown::Both).expect("a socket");
        };
        assert_eq!(rig.evidence(Lost::ours("the association ended"), then), (false, true));
        let rig = Rig::new();
        rig.moves(&[SENDING]);
        let mut lost = io::Error::from(io::ErrorKind::ConnectionReset).into();
        rig.connection.link.judge(&mut lost);
        assert!(lost.by_peer, "a reset");
    }

    /// An error is no proof that nothing arrives any more: the kernel's TLS has some, of records that are no data or were tampered with,
    /// after which TCP goes on.
    #[test]
    fn what_a_socket_that_lives_has_not_delivered_is_taken_back() {
        let mut rig = Rig::new();
        let link = Rc::clone(&rig.connection.link);
        let bytes = vec![0; 1 << 20];
        while link.stream.writev(&[io::IoSlice::new(&bytes)]).is_ok() {}
        assert!(link.stream.unacknowledged().expect("a socket") > 0, "the peer does not read");
        let lost: Lost = io::Error::from(io::ErrorKind::ConnectionAborted).into();
        assert!(lost.socket_failed && !lost.by_peer);
        let params = Arc::clone(&rig.connection.params);
        let now = Instant::now();
        let mut old = Old::new(link, vec![Request::new()], now, &params, &lost).expect("it waits");
        let later = now + Duration::from_secs(1);
        assert!(!old.is_dead(later, &mut [0; 64], &mut Vec::new()), "its time begins only now");
        let mut peer = rig.peer.take().expect("it is there");
        let told = std::io::Read::read_to_end(&mut peer, &mut Vec::new());
        assert_eq!(told.expect_err("a reset").kind(), io::ErrorKind::ConnectionReset);
    }
}
