//! The admin connection of one path: carries what its association has to say.

use crate::control::Driver;
use crate::dial::{declined, words};
use association::{ADMIN_COMMANDS_MAX, Event, Reason};
use nvme::{Command, Completion, Status, opcode};
use nvme_tcp::host::{
    COMMAND_HEADER_BYTES_MAX, Config, Connection, DATA_HEADER_BYTES_MAX, DataEnd, Event as Pdu,
    Outgoing, Transfer,
};
use nvme_tcp::{Terminate, digest};
use reactor::{Complete, Interest, Poll, PollerId, Reactor, Stream, WatchId};
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::rc::{Rc, Weak};

/// Bytes received at a time.
const RECEIVE_BYTES: usize = 16 * 1024;

/// Data that goes in the capsule of an admin command, on any controller (NVMe/TCP 1.1, section 3.3.2.1).
const IN_CAPSULE_BYTES_MAX: usize = 8 * 1024;

const TOKEN_READABLE: u64 = 0;
const TOKEN_WRITABLE: u64 = 1;

/// A connection on the control thread's reactor.
pub(crate) struct AdminConnection {
    me: Weak<AdminConnection>,
    reactor: Rc<Reactor>,
    driver: Weak<Driver>,
    generation: u64,
    stream: Stream,
    inner: RefCell<Inner>,
    poller: Cell<Option<PollerId>>,
    watches: [Cell<Option<WatchId>>; 2],
    closed: Cell<bool>,
}

struct Inner {
    machine: Connection,
    out: Vec<u8>,
    sent: usize,
    /// The beginning of a PDU, then what is received.
    input: Vec<u8>,
    /// Data of the command with this identifier, as long as was asked for.
    answers: [Vec<u8>; ADMIN_COMMANDS_MAX as usize],
    /// Data that the controller is to ask for.
    outgoing: [Vec<u8>; ADMIN_COMMANDS_MAX as usize],
    /// Commands, by identifier, of which less data than was asked for is right: messages of authentication, and
    /// somebody else's, where it is none of our business.
    may_be_short: [bool; ADMIN_COMMANDS_MAX as usize],
}

/// What a turn found out, told when nothing is borrowed.
enum News {
    Connected,
    Completed(Completion, Vec<u8>),
    Lost(String),
}

impl AdminConnection {
    /// Takes part in the reactor's turns from now on, and initializes the connection.
    pub(crate) fn start(
        reactor: &Rc<Reactor>,
        driver: Weak<Driver>,
        generation: u64,
        stream: Stream,
        digests: (bool, bool),
    ) -> Rc<AdminConnection> {
        let machine = Connection::new(Config {
            header_digest: digests.0,
            data_digest: digests.1,
            queue_entries: ADMIN_COMMANDS_MAX,
            ..Config::default()
        });
        let out = machine.initialize().to_vec();
        let inner = Inner {
            machine,
            out,
            sent: 0,
            input: Vec::new(),
            answers: Default::default(),
            outgoing: Default::default(),
            may_be_short: Default::default(),
        };
        let connection = Rc::new_cyclic(|me| AdminConnection {
            me: me.clone(),
            reactor: Rc::clone(reactor),
            driver,
            generation,
            stream,
            inner: RefCell::new(inner),
            poller: Cell::new(None),
            watches: [Cell::new(None), Cell::new(None)],
            closed: Cell::new(false),
        });
        let poller = reactor.attach(connection.clone());
        connection.poller.set(Some(poller));
        connection
    }

    /// The address that was reached.
    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        self.stream.peer_addr().ok()
    }

    /// The address of this end.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.stream.local_addr().ok()
    }

    /// Sends a command whose identifier is free; `data` goes in its capsule.
    pub(crate) fn send(&self, command: &Command, data: &[u8], answer_bytes: u32) {
        if self.closed.get() {
            return;
        }
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        let transfer = match (data.len(), answer_bytes) {
            (0, 0) => Transfer::None,
            (0, bytes) => Transfer::ToHost(bytes),
            (len, _) => Transfer::InCapsule(len as u32),
        };
        let cid = usize::from(command.cid.get());
        inner.answers[cid] = vec![0; answer_bytes as usize];
        inner.may_be_short[cid] |= is_message(command);
        let mut header = [0; COMMAND_HEADER_BYTES_MAX];
        let len = inner.machine.command(command, transfer, &mut header);
        inner.out.extend_from_slice(&header[..len]);
        inner.out.extend_from_slice(data);
        if inner.machine.data_digest() && !data.is_empty() {
            inner.out.extend_from_slice(&digest::digest(data));
        }
        if let Some(poller) = self.poller.get() {
            self.reactor.activate(poller);
        }
    }

    /// Sends somebody else's command.
    pub(crate) fn pass(&self, command: &Command, data: Vec<u8>, answer_bytes: u32) {
        let cid = usize::from(command.cid.get());
        self.inner.borrow_mut().may_be_short[cid] = true;
        if data.len() <= IN_CAPSULE_BYTES_MAX {
            return self.send(command, &data, answer_bytes);
        }
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        let mut header = [0; COMMAND_HEADER_BYTES_MAX];
        let transfer = Transfer::ToController(data.len() as u32);
        let len = inner.machine.command(command, transfer, &mut header);
        inner.outgoing[cid] = data;
        inner.out.extend_from_slice(&header[..len]);
        if let Some(poller) = self.poller.get() {
            self.reactor.activate(poller);
        }
    }

    /// Closes the connection; what was sent still goes.
    pub(crate) fn close(&self) {
        if self.closed.replace(true) {
            return;
        }
        if let Some(poller) = self.poller.take() {
            self.reactor.detach(poller);
        }
        for watch in &self.watches {
            if let Some(watch) = watch.take() {
                self.reactor.unwatch(watch);
            }
        }
        // A last word, if it goes at once.
        if let Ok(mut inner) = self.inner.try_borrow_mut() {
            let _ = self.flush(&mut inner);
        }
        // What has not arrived by now must not keep the controller going later.
        if self.stream.unacknowledged().is_ok_and(|bytes| bytes > 0) {
            let _ = self.stream.abort();
        }
        let _ = self.stream.shutdown();
    }

    fn flush(&self, inner: &mut Inner) -> io::Result<bool> {
        let mut progress = false;
        while inner.sent < inner.out.len() {
            match self.stream.writev(&[IoSlice::new(&inner.out[inner.sent..])]) {
                Ok(count) => {
                    inner.sent += count;
                    progress = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(progress),
                Err(error) => return Err(error),
            }
        }
        inner.out.clear();
        inner.sent = 0;
        Ok(progress)
    }

    /// One turn; gives what is to be told.
    fn turn(&self, news: &mut Vec<News>) -> io::Result<bool> {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        let mut progress = self.flush(inner)?;
        let kept = inner.input.len();
        inner.input.resize(kept + RECEIVE_BYTES, 0);
        let received = self.stream.recv(&mut inner.input[kept..]);
        inner.input.truncate(kept + received.as_ref().map_or(0, |count| *count));
        match received {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => progress = true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(progress),
            Err(error) => return Err(error),
        }
        let Inner { machine, input, answers, outgoing, may_be_short, out, .. } = inner;
        let mut rest = &input[..];
        loop {
            match machine.receive(&mut rest) {
                Ok(None) => break,
                Ok(Some(Pdu::ReadyToTransfer(asked))) => give(asked, outgoing, machine, out),
                Ok(Some(Pdu::Initialized)) => {
                    news.push(match machine.declined() {
                        Some(what) => News::Lost(declined(what)),
                        None => News::Connected,
                    });
                }
                Ok(Some(pdu)) => {
                    if let Pdu::Response { completion, .. } = &pdu {
                        outgoing[usize::from(completion.cid.get())] = Vec::new();
                    }
                    take(pdu, answers, may_be_short, news);
                }
                Err(fault) => {
                    news.push(News::Lost(format!("the controller broke the protocol: {fault}")));
                    let farewell = Terminate::pdu(&fault);
                    let _ = self.stream.writev(&[IoSlice::new(&farewell)]);
                    break;
                }
            }
        }
        let used = input.len() - rest.len();
        input.drain(..used);
        Ok(progress)
    }
}

/// Queues the data that the controller asked for. The machine has checked that there is such.
fn give(mut asked: Outgoing, outgoing: &[Vec<u8>], machine: &mut Connection, out: &mut Vec<u8>) {
    let data = &outgoing[usize::from(asked.cid)];
    let mut header = [0; DATA_HEADER_BYTES_MAX];
    while let Some(pdu) = machine.data_header(&mut asked, &mut header) {
        let part = &data[pdu.offset as usize..][..pdu.len as usize];
        out.extend_from_slice(&header[..pdu.header_bytes]);
        out.extend_from_slice(part);
        if machine.data_digest() {
            out.extend_from_slice(&digest::digest(part));
        }
    }
}

/// Whether the command fetches a message of authentication, for which there is more room than it takes.
fn is_message(command: &Command) -> bool {
    command.opcode == opcode::admin::FABRICS
        && command.fctype() == opcode::fabrics::AUTHENTICATION_RECEIVE
}

/// Turns what the controller sent into news.
fn take(pdu: Pdu<'_>, answers: &mut [Vec<u8>], may_be_short: &mut [bool], news: &mut Vec<News>) {
    match pdu {
        Pdu::Initialized => unreachable!("the caller looks at what was agreed upon"),
        Pdu::Response { completion, received, digest_error } => {
            let cid = usize::from(completion.cid.get());
            let data = std::mem::take(&mut answers[cid]);
            let may_be_short = std::mem::take(&mut may_be_short[cid]);
            let short = !may_be_short
                && completion.status().is_success()
                && (received as usize) < data.len();
            if digest_error || short {
                let what = if digest_error { "a data digest is wrong" } else { "data is missing" };
                news.push(News::Lost(format!("{what} in an answer to an admin command")));
            } else {
                news.push(News::Completed(completion, data));
            }
        }
        Pdu::Data { cid, offset, bytes, end } => {
            let start = offset as usize;
            answers[usize::from(cid)][start..start + bytes.len()].copy_from_slice(bytes);
            if let Some(DataEnd { cid, success: true, digest_error }) = end {
                let data = std::mem::take(&mut answers[usize::from(cid)]);
                may_be_short[usize::from(cid)] = false;
                news.push(match digest_error {
                    true => News::Lost("a data digest is wrong".into()),
                    false => News::Completed(Completion::new(cid, Status::SUCCESS, 0), data),
                });
            }
        }
        Pdu::ReadyToTransfer(_) => unreachable!("the caller gives what is asked for"),
        Pdu::Terminated { fes, fei } => {
            news.push(News::Lost(format!("the controller ended the connection: {fes} ({fei:#x})")));
        }
    }
}

impl Poll for AdminConnection {
    fn poll(&self) -> bool {
        if self.closed.get() {
            return false;
        }
        let mut news = Vec::new();
        let progress = match self.turn(&mut news) {
            Ok(progress) => progress,
            Err(error) => {
                news.push(News::Lost(words(&error)));
                true
            }
        };
        if let Some(driver) = self.driver.upgrade() {
            for news in news {
                if self.closed.get() {
                    break;
                }
                match news {
                    News::Connected => driver.event(self.generation, Event::Connected),
                    News::Completed(completion, data) => {
                        driver.completed(self.generation, &completion, data);
                    }
                    News::Lost(words) => {
                        let reason = Reason::Transport(words);
                        driver.event(self.generation, Event::Lost(reason));
                    }
                }
            }
        }
        progress
    }

    fn park(&self) -> bool {
        if self.closed.get() {
            return true;
        }
        let unsent = !self.inner.borrow().out.is_empty();
        let me = || self.me.upgrade().expect("a connection that runs is held");
        let fd = self.stream.as_raw_fd();
        if self.watches[0].get().is_none() {
            let watch = self.reactor.watch(fd, Interest::READ, me(), TOKEN_READABLE);
            self.watches[0].set(Some(watch));
        }
        if unsent && self.watches[1].get().is_none() {
            let watch = self.reactor.watch(fd, Interest::WRITE, me(), TOKEN_WRITABLE);
            self.watches[1].set(Some(watch));
        }
        true
    }
}

impl Complete for AdminConnection {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        self.watches[token as usize].set(None);
        if let Some(poller) = self.poller.get() {
            self.reactor.activate(poller);
        }
    }
}
