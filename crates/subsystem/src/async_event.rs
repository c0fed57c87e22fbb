//! Asynchronous events of one controller (NVMe Base 2.1, section 5.1.2).
//!
//! An event goes out when its notice is enabled, a request is held, and it is not masked. Sending
//! masks it; reading its log page with Retain Asynchronous Event cleared unmasks it and drops what
//! is pending, since the page told it.
//!
//! Section 5.1.2 masks by event type, and all three are notices. As targets that hosts are used to
//! do, this one masks each notice for itself: a page that a host never reads must not hold back
//! the others.

use crate::EVENT_REQUESTS_MAX;
use nvme::Status;
use nvme::event::{AsyncEvent, notice};

/// The notices that this target sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Notice {
    NamespaceAttribute = 1 << 0,
    AnaChange = 1 << 1,
    DiscoveryChange = 1 << 2,
}

const NOTICES: [Notice; 3] =
    [Notice::NamespaceAttribute, Notice::AnaChange, Notice::DiscoveryChange];

impl Notice {
    fn event(self) -> AsyncEvent {
        match self {
            Notice::NamespaceAttribute => AsyncEvent::NAMESPACE_ATTRIBUTE,
            Notice::AnaChange => AsyncEvent::ANA_CHANGE,
            Notice::DiscoveryChange => AsyncEvent::DISCOVERY_CHANGE,
        }
    }

    /// Its bit of OAES and of the feature Asynchronous Event Configuration.
    fn configuration(self) -> u32 {
        match self {
            Notice::NamespaceAttribute => notice::NAMESPACE_ATTRIBUTE,
            Notice::AnaChange => notice::ANA_CHANGE,
            Notice::DiscoveryChange => notice::DISCOVERY_CHANGE,
        }
    }
}

/// Requests held and events pending.
#[derive(Debug, Default)]
pub(crate) struct AsyncEvents {
    configuration: u32,
    /// Command identifiers of the requests held, oldest first.
    held: Vec<u16>,
    pending: u8,
    masked: u8,
}

impl AsyncEvents {
    /// Nothing held; `configuration` enables notices.
    pub fn new(configuration: u32) -> AsyncEvents {
        AsyncEvents { configuration, ..AsyncEvents::default() }
    }

    /// The feature Asynchronous Event Configuration.
    pub fn configuration(&self) -> u32 {
        self.configuration
    }

    /// Sets it. What is pending of notices that are off now is not sent any more.
    pub fn configure(&mut self, configuration: u32) {
        self.configuration = configuration;
        for notice in NOTICES {
            if !self.is_enabled(notice) {
                self.pending &= !(notice as u8);
            }
        }
    }

    fn is_enabled(&self, notice: Notice) -> bool {
        self.configuration & notice.configuration() != 0
    }

    /// Holds a request. The caller asks [`AsyncEvents::next`] afterwards.
    pub fn hold(&mut self, cid: u16) -> Result<(), Status> {
        if self.held.len() >= EVENT_REQUESTS_MAX {
            return Err(Status::AER_LIMIT_EXCEEDED.dnr());
        }
        if self.held.contains(&cid) {
            return Err(Status::CID_CONFLICT.dnr());
        }
        self.held.push(cid);
        Ok(())
    }

    /// Notes that something happened.
    pub fn raise(&mut self, notice: Notice) {
        let bit = notice as u8;
        if self.is_enabled(notice) && self.masked & bit == 0 {
            self.pending |= bit;
        }
    }

    /// The next request to complete: its command identifier and completion dword 0.
    pub fn next(&mut self) -> Option<(u16, u32)> {
        let notice = NOTICES.into_iter().find(|&notice| self.pending & notice as u8 != 0)?;
        if self.held.is_empty() {
            return None;
        }
        self.pending &= !(notice as u8);
        self.masked |= notice as u8;
        Some((self.held.remove(0), notice.event().dword0()))
    }

    /// The notice's log page was read.
    pub fn clear(&mut self, notice: Notice) {
        self.pending &= !(notice as u8);
        self.masked &= !(notice as u8);
    }

    /// Nothing is held, pending or masked any more.
    pub fn reset(&mut self) {
        *self = AsyncEvents::new(self.configuration);
    }

    /// Takes a held request back; false if it is not held.
    pub fn abort(&mut self, cid: u16) -> bool {
        let before = self.held.len();
        self.held.retain(|&held| held != cid);
        self.held.len() != before
    }
}
