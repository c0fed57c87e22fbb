//! From an association that wants a connection to one that is up: keys, a socket, what authentication computes.

use super::Driver;
use crate::admin::AdminConnection;
use crate::dial::{Dialed, Peer, Secure};
use crate::keys::{KeyFileError, KeyFiles, Keys};
use association::{Event, Reason};
use dhchap::Work;
use reactor::Stream;
use std::os::fd::OwnedFd;

impl Driver {
    /// Makes the connection of this generation. Keys are read each time, so that new ones are used from then on.
    pub(super) fn dial(&self, generation: u64) {
        let files = self.shared.options.keys.clone();
        if files == KeyFiles::default() {
            return self.dial_now(generation);
        }
        // Whoever is at it already reads them for the attempt that is wanted when he is done.
        if self.reading_keys.replace(true) {
            return;
        }
        let config = &self.shared.options.association;
        let (host, subsystem) = (config.host_nqn.clone(), config.nqn.clone());
        let me = self.me.clone();
        let read = move || files.read(&host, &subsystem);
        self.reactor.aside(false, read, move |read| {
            if let Some(driver) = me.upgrade() {
                driver.keys_read(read);
            }
        });
    }

    fn keys_read(&self, read: Option<Result<Keys, KeyFileError>>) {
        self.reading_keys.set(false);
        let generation = self.association.borrow().generation();
        if !self.association.borrow().awaits_dial(generation) {
            return;
        }
        let words = match read {
            Some(Ok(Keys { credentials, offers })) => {
                self.association.borrow_mut().set_credentials(credentials);
                let before = self.secure.take();
                *self.secure.borrow_mut() = Secure::by(offers, before);
                return self.dial_now(generation);
            }
            Some(Err(error)) => error.to_string(),
            None => "no thread can be had to read the key".into(),
        };
        self.event(generation, Event::Lost(Reason::Key(words)));
    }

    /// Does what authentication needs, on another thread.
    pub(super) fn compute(&self, generation: u64, work: Work) {
        let me = self.me.clone();
        self.reactor.aside(
            false,
            move || work.run(),
            move |done| {
                let Some(driver) = me.upgrade() else { return };
                driver.event(
                    generation,
                    match done {
                        Some(done) => Event::Computed(done),
                        None => Event::Lost(Reason::Key(
                            "no thread can be had for authentication".into(),
                        )),
                    },
                );
            },
        );
    }

    fn dial_now(&self, generation: u64) {
        // Within this, the association wants the connection to be initialized as well.
        let patience = self.shared.options.association.admin_timeout;
        let timeout = patience - patience / 8;
        let me = self.me.clone();
        let peer = Peer::Named(self.shared.address());
        let secure = self.secure.borrow().clone();
        self.dialer.dial(peer, secure, timeout, move |dialed| {
            if let Some(driver) = me.upgrade() {
                driver.dialed(generation, dialed);
            }
        });
    }

    fn dialed(&self, generation: u64, dialed: Dialed) {
        if !self.association.borrow().awaits_dial(generation) {
            return;
        }
        let stream = dialed.and_then(|stream| {
            Stream::try_from(OwnedFd::from(stream)).map_err(|error| error.to_string())
        });
        match stream {
            Err(reason) => self.event(generation, Event::Lost(Reason::Dial(reason))),
            Ok(stream) => {
                let options = &self.shared.options;
                let digests = (options.header_digest, options.data_digest);
                let me = self.me.clone();
                let admin = AdminConnection::start(&self.reactor, me, generation, stream, digests);
                if let Some(old) = self.admin.replace(Some(admin)) {
                    old.close();
                }
            }
        }
    }
}
