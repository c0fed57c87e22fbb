//! One queue: a socket with its protocol state, and commands carried out one at a time.

use super::lane::Lane;
use anyhow::{Context, bail, ensure};
use nvme::{Command, Completion};
use nvme_tcp::host::{COMMAND_HEADER_BYTES_MAX, DATA_HEADER_BYTES_MAX, Event, Outgoing, Transfer};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long one command may take.
const COMMAND_MAX: Duration = Duration::from_secs(10);

/// A connected queue.
pub struct Queue {
    /// The connection.
    pub socket: TcpStream,
    /// Its protocol state.
    pub lane: Lane,
}

/// What came in answer to one command.
#[derive(Default)]
struct Answer {
    initialized: bool,
    asked: Option<Outgoing>,
    completion: Option<Completion>,
    success: bool,
}

impl Queue {
    /// Opens the connection and initializes it (NVMe/TCP Transport 1.1, section 3.3).
    pub fn open(address: SocketAddr, entries: u16) -> anyhow::Result<Queue> {
        let socket =
            TcpStream::connect(address).with_context(|| format!("no answer at {address}"))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(COMMAND_MAX))?;
        let lane = Lane::new(entries);
        let mut queue = Queue { socket, lane };
        queue.socket.write_all(&queue.lane.connection.initialize())?;
        queue.wait(&mut [], |answer| answer.initialized).context("no ICResp")?;
        Ok(queue)
    }

    /// Carries out one command and returns dwords 0 and 1 of its completion. `data` is what is
    /// written, or where what is read goes, as `transfer` says.
    ///
    /// # Errors
    /// Any status but success, by its name.
    pub fn execute(
        &mut self,
        command: Command,
        transfer: Transfer,
        data: &mut [u8],
    ) -> anyhow::Result<u64> {
        let mut header = [0; COMMAND_HEADER_BYTES_MAX];
        let len = self.lane.connection.command(&command, transfer, &mut header);
        self.socket.write_all(&header[..len])?;
        if let Transfer::InCapsule(_) = transfer {
            self.socket.write_all(data)?;
        }
        loop {
            let answer = self.wait(data, |answer| {
                answer.success || answer.completion.is_some() || answer.asked.is_some()
            })?;
            if let Some(outgoing) = answer.asked {
                self.send(outgoing, data)?;
            } else if let Some(completion) = answer.completion {
                let status = completion.status();
                ensure!(status.is_success(), "opcode {:#04x}: {status}", command.opcode);
                return Ok(completion.result.get());
            } else {
                return Ok(0);
            }
        }
    }

    /// Sends what the controller has asked for.
    fn send(&mut self, mut outgoing: Outgoing, data: &[u8]) -> anyhow::Result<()> {
        let mut header = [0; DATA_HEADER_BYTES_MAX];
        while let Some(pdu) = self.lane.connection.data_header(&mut outgoing, &mut header) {
            self.socket.write_all(&header[..pdu.header_bytes])?;
            self.socket.write_all(&data[pdu.offset as usize..][..pdu.len as usize])?;
        }
        Ok(())
    }

    fn wait(&mut self, data: &mut [u8], done: impl Fn(&Answer) -> bool) -> anyhow::Result<Answer> {
        let mut answer = Answer::default();
        let mut buffer = [0; 16 << 10];
        while !done(&answer) {
            let len = match self.socket.read(&mut buffer) {
                // Who was stopped and continued reads on, though a limit of time would have the call end.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.context("no answer to a command")?,
            };
            if len == 0 {
                bail!("the controller closed the connection");
            }
            self.lane.receive(&buffer[..len], |event| {
                match event {
                    Event::Initialized => answer.initialized = true,
                    Event::Response { completion, .. } => answer.completion = Some(completion),
                    Event::ReadyToTransfer(outgoing) => answer.asked = Some(outgoing),
                    Event::Data { offset, bytes, end, .. } => {
                        // The connection has checked the range against the command.
                        data[offset as usize..][..bytes.len()].copy_from_slice(bytes);
                        answer.success |= end.is_some_and(|end| end.success);
                    }
                    Event::Terminated { fes, .. } => {
                        return Err(std::io::Error::other(format!("terminated: {fes}")));
                    }
                }
                Ok(())
            })?;
        }
        Ok(answer)
    }
}
