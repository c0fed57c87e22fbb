//! The bare server as a poller of this project's reactor, which spins briefly and then sleeps.

use super::Answers;
use super::direct::{Server, Step};
use reactor::{Complete, Config, Interest, Poll, PollerId, Reactor};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::rc::{Rc, Weak};

struct Poller {
    this: Weak<Poller>,
    reactor: Rc<Reactor>,
    id: Cell<Option<PollerId>>,
    socket: TcpStream,
    server: RefCell<Server>,
    last: Cell<Step>,
    failure: Cell<Option<io::Error>>,
}

impl Poll for Poller {
    fn poll(&self) -> bool {
        if self.last.get() == Step::Closed {
            return false;
        }
        let step = self.server.borrow_mut().step(libc::MSG_DONTWAIT).unwrap_or_else(|error| {
            self.failure.set(Some(error));
            Step::Closed
        });
        self.last.set(step);
        if step == Step::Closed {
            self.reactor.stop();
        }
        step == Step::Worked
    }

    fn park(&self) -> bool {
        let interest = match self.last.get() {
            Step::Worked => return false,
            Step::Closed => return true,
            Step::Idle => Interest::READ,
            Step::Blocked => Interest::WRITE,
        };
        let Some(this) = self.this.upgrade() else { return true };
        self.reactor.watch(self.socket.as_raw_fd(), interest, this, 0);
        true
    }
}

impl Complete for Poller {
    fn complete(&self, _token: u64, _result: i32, _flags: u32) {
        if let Some(id) = self.id.get() {
            self.reactor.activate(id);
        }
    }
}

/// Serves until the client closes. The caller has pinned this thread.
pub fn serve(socket: TcpStream, answers: Answers) -> io::Result<()> {
    let config = Config { buffer_bytes: 2 << 20, ..Config::default() };
    let reactor = Reactor::new(&config).map_err(io::Error::other)?;
    let server = RefCell::new(Server::new(socket.as_raw_fd(), answers));
    let poller = Rc::new_cyclic(|this| Poller {
        this: Weak::clone(this),
        reactor: Rc::clone(&reactor),
        id: Cell::new(None),
        socket,
        server,
        last: Cell::new(Step::Idle),
        failure: Cell::new(None),
    });
    poller.id.set(Some(reactor.attach(Rc::clone(&poller) as Rc<dyn Poll>)));
    reactor.run();
    // The poller and the reactor hold each other; this ends it.
    if let Some(id) = poller.id.take() {
        reactor.detach(id);
    }
    poller.failure.take().map_or(Ok(()), Err)
}
