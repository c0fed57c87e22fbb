//! One connection: a socket with its protocol state, and commands carried out one at a time.

use super::{CAPSULE_BYTES_MAX, Options, Payload, Reason};
use nvme::{Command, Completion};
use nvme_tcp::host::{
    COMMAND_HEADER_BYTES_MAX, Config, Connection, DATA_HEADER_BYTES_MAX, Event, INPUT_BYTES_MAX,
    Outgoing, Transfer,
};
use nvme_tcp::{Digest, Terminate};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use tls::Psk;

/// Bytes received at a time.
const INPUT_BYTES: usize = 64 << 10;
const _: () = assert!(INPUT_BYTES > INPUT_BYTES_MAX);

/// The command identifier of every command: there is one at a time.
const CID: u16 = 0;
/// That of the Asynchronous Event Request, which waits beside them.
const EVENT_CID: u16 = 1;

#[derive(Debug)]
pub(super) struct Link {
    socket: TcpStream,
    connection: Connection,
    command_timeout: Duration,
    /// Received and not yet consumed: `input[start..end]`.
    input: Box<[u8]>,
    start: usize,
    end: usize,
    /// A command failed without having completed: nothing can be said of what comes next.
    broken: bool,
    /// An Asynchronous Event Request is outstanding.
    listening: bool,
    /// It was answered.
    event: Option<Completion>,
}

/// A connection that is encrypted by the first of `offers` that the controller takes. Many say no by closing the connection.
fn secured(
    offers: Vec<Psk>,
    until: Instant,
    connect: impl Fn(Duration) -> Result<TcpStream, Reason>,
) -> Result<TcpStream, Reason> {
    // Why the first was of no use: that says more than what came of the others, whose names are rarer.
    let mut refused = None;
    for offer in offers {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let error = match connect(left) {
            Ok(socket) => match tls::secure(&socket, offer, until) {
                Ok(()) => return Ok(socket),
                Err(error) => error,
            },
            Err(reason) => return Err(refused.map_or(reason, Reason::Unsecured)),
        };
        let goes_on = error.may_know_another();
        refused = refused.filter(|_| !error.is_agreed()).or(Some(error));
        if !goes_on {
            break;
        }
    }
    Err(refused.map_or(Reason::Closed, Reason::Unsecured))
}

/// What came in answer to a command.
enum Answer {
    /// It has completed; so many bytes of data came for it, and they were intact.
    Done { completion: Completion, received: u32, digest_error: bool },
    /// Its data is asked for.
    Asked(Outgoing),
}

impl Link {
    /// Opens the connection, has it encrypted by one of `offers` if there are any, and initializes it (NVMe/TCP Transport 1.1, sections 3.3
    /// and 3.6.1).
    pub fn open(
        address: SocketAddr,
        config: Config,
        options: &Options,
        offers: Vec<Psk>,
        opened: impl Fn(&TcpStream),
    ) -> Result<Link, Reason> {
        let connect = |timeout| {
            let connected = options.local.connect(&address, timeout);
            let socket = connected.map_err(|error| match error.kind() {
                ErrorKind::TimedOut => Reason::TimedOut(timeout),
                _ => Reason::Io(error),
            })?;
            opened(&socket);
            socket.set_nodelay(true)?;
            Ok(socket)
        };
        let socket = if offers.is_empty() {
            connect(options.connect_timeout)?
        } else {
            secured(offers, Instant::now() + options.connect_timeout, connect)?
        };
        socket.set_write_timeout(Some(options.command_timeout))?;
        let mut link = Link {
            socket,
            connection: Connection::new(config),
            command_timeout: options.command_timeout,
            input: vec![0; INPUT_BYTES].into(),
            start: 0,
            end: 0,
            broken: false,
            listening: false,
            event: None,
        };
        let request = link.connection.initialize();
        link.send(&request)?;
        let deadline = Instant::now() + options.command_timeout;
        link.wait(deadline, |event| match event {
            Event::Initialized => Ok(Some(())),
            other => Err(unasked(&other)),
        })?;
        match link.connection.declined() {
            Some(what) => Err(Reason::Declined(what)),
            None => Ok(link),
        }
    }

    /// Commands may take no longer from now on.
    pub fn set_patience(&mut self, command_timeout: Duration) {
        self.command_timeout = self.command_timeout.min(command_timeout);
        // Without it, a write may wait as long as before.
        let _ = self.socket.set_write_timeout(Some(self.command_timeout));
    }

    pub fn local_address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }

    /// Carries out one command; gives dwords 0 and 1 of its completion.
    pub fn execute(&mut self, mut command: Command, payload: Payload<'_>) -> Result<u64, Reason> {
        if self.broken {
            return Err(Reason::Broken);
        }
        command.cid = CID.into();
        // Until the command has completed, any way out of here leaves it in flight.
        self.broken = true;
        let (mut sent, mut wanted): (&[u8], &mut [u8]) = (&[], &mut []);
        let may_be_short = matches!(payload, Payload::ReceiveUpTo(_));
        let transfer = match payload {
            Payload::None => Transfer::None,
            Payload::Send(data) => {
                sent = data;
                match data.len() {
                    0..=CAPSULE_BYTES_MAX => Transfer::InCapsule(data.len() as u32),
                    more => Transfer::ToController(more as u32),
                }
            }
            Payload::Receive(data) | Payload::ReceiveUpTo(data) => {
                wanted = data;
                Transfer::ToHost(wanted.len() as u32)
            }
        };
        self.send_capsule(&command, transfer, sent)?;
        let deadline = Instant::now() + self.command_timeout;
        loop {
            let asked = match self.answer(deadline, wanted)? {
                Answer::Asked(outgoing) => outgoing,
                Answer::Done { completion, received, digest_error } => {
                    self.broken = false;
                    let expected = if may_be_short { received as usize } else { wanted.len() };
                    return verdict(&completion, received, digest_error, expected);
                }
            };
            self.send_data(asked, sent)?;
        }
    }

    /// Waits for an asynchronous event, which was asked for before or is now. Gives dword 0 of its
    /// completion; none if there was none in time.
    pub fn event(&mut self, within: Duration) -> Result<Option<u32>, Reason> {
        if self.broken {
            return Err(Reason::Broken);
        }
        if self.event.is_none() {
            self.broken = true;
            if !self.listening {
                let opcode = nvme::opcode::admin::ASYNC_EVENT_REQUEST;
                let request = Command { opcode, cid: EVENT_CID.into(), ..Command::default() };
                self.send_capsule(&request, Transfer::None, &[])?;
                self.listening = true;
            }
            let answer = self.wait(Instant::now() + within, |event| match event {
                Event::Response { completion, .. } if completion.cid == EVENT_CID => {
                    Ok(Some(completion))
                }
                other => Err(unasked(&other)),
            });
            self.event = match answer {
                Ok(completion) => Some(completion),
                Err(Reason::TimedOut(_)) => None,
                Err(reason) => return Err(reason),
            };
            self.broken = false;
        }
        let Some(completion) = self.event.take() else { return Ok(None) };
        self.listening = false;
        verdict(&completion, 0, false, 0).map(|result| Some(result as u32))
    }

    fn send_capsule(
        &mut self,
        command: &Command,
        transfer: Transfer,
        data: &[u8],
    ) -> Result<(), Reason> {
        let mut header = [0; COMMAND_HEADER_BYTES_MAX];
        let len = self.connection.command(command, transfer, &mut header);
        let mut pdu = header[..len].to_vec();
        if let Transfer::InCapsule(_) = transfer {
            self.append(&mut pdu, data);
        }
        self.send(&pdu)
    }

    /// Sends what the controller has asked for.
    fn send_data(&mut self, mut asked: Outgoing, data: &[u8]) -> Result<(), Reason> {
        let mut header = [0; DATA_HEADER_BYTES_MAX];
        while let Some(next) = self.connection.data_header(&mut asked, &mut header) {
            let mut pdu = header[..next.header_bytes].to_vec();
            self.append(&mut pdu, &data[next.offset as usize..][..next.len as usize]);
            self.send(&pdu)?;
        }
        Ok(())
    }

    /// Data behind its header, and its digest where digests are in use.
    fn append(&self, pdu: &mut Vec<u8>, data: &[u8]) {
        pdu.extend_from_slice(data);
        if self.connection.data_digest() && !data.is_empty() {
            let mut digest = Digest::new();
            digest.update(data);
            pdu.extend_from_slice(&digest.finish());
        }
    }

    fn answer(&mut self, deadline: Instant, wanted: &mut [u8]) -> Result<Answer, Reason> {
        let mut heard = None;
        let answer = self.wait(deadline, |event| match event {
            Event::Response { completion, .. } if completion.cid == EVENT_CID => {
                heard = Some(completion);
                Ok(None)
            }
            Event::Response { completion, received, digest_error } => {
                Ok(Some(Answer::Done { completion, received, digest_error }))
            }
            Event::ReadyToTransfer(outgoing) => Ok(Some(Answer::Asked(outgoing))),
            Event::Data { offset, bytes, end, .. } => {
                // The connection has checked the range against the command.
                wanted[offset as usize..][..bytes.len()].copy_from_slice(bytes);
                let end = end.filter(|end| end.success);
                Ok(end.map(|end| Answer::Done {
                    completion: Completion::default(),
                    received: wanted.len() as u32,
                    digest_error: end.digest_error,
                }))
            }
            other => Err(unasked(&other)),
        });
        self.event = self.event.or(heard);
        answer
    }

    /// Receives until `done` has something, or `deadline`.
    fn wait<T>(
        &mut self,
        deadline: Instant,
        mut done: impl FnMut(Event<'_>) -> Result<Option<T>, Reason>,
    ) -> Result<T, Reason> {
        loop {
            let mut rest = &self.input[self.start..self.end];
            let mut found = None;
            while found.is_none() {
                match self.connection.receive(&mut rest) {
                    Ok(Some(event)) => found = done(event)?,
                    Ok(None) => break,
                    Err(terminate) => return Err(self.terminate(terminate)),
                }
            }
            self.start = self.end - rest.len();
            if let Some(found) = found {
                return Ok(found);
            }
            self.receive(deadline)?;
        }
    }

    fn receive(&mut self, deadline: Instant) -> Result<(), Reason> {
        self.input.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Reason::TimedOut(self.command_timeout));
            }
            self.socket.set_read_timeout(Some(left))?;
            match self.socket.read(&mut self.input[self.end..]) {
                Ok(0) => return Err(Reason::Closed),
                Ok(count) => {
                    self.end += count;
                    return Ok(());
                }
                Err(error) if is_timeout(&error) || error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                    if !reactor::pass_record(&self.socket)? {
                        return Err(Reason::Closed);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Reason> {
        self.socket.write_all(bytes).map_err(|error| match error {
            error if is_timeout(&error) => Reason::TimedOut(self.command_timeout),
            error => error.into(),
        })
    }

    /// Tells the controller what it did wrong; whether it hears that does not matter any more.
    fn terminate(&mut self, terminate: Terminate) -> Reason {
        self.broken = true;
        let _ = self.socket.write_all(&terminate.pdu());
        Reason::Protocol(terminate)
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn unasked(event: &Event<'_>) -> Reason {
    match event {
        Event::Terminated { fes, .. } => Reason::Terminated(*fes),
        _ => Reason::Unasked,
    }
}

/// What a completed command comes to.
fn verdict(
    completion: &Completion,
    received: u32,
    digest_error: bool,
    wanted: usize,
) -> Result<u64, Reason> {
    let status = completion.status();
    if !status.is_success() {
        return Err(Reason::Status { status, result: completion.result.get() });
    }
    if digest_error {
        return Err(Reason::Digest);
    }
    if received as usize != wanted {
        return Err(Reason::Short { received, wanted });
    }
    Ok(completion.result.get())
}
