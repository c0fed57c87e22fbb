//! A namespace that has another id than before.
//!
//! ```text
//!   its id is not in the list,         AllNamespaces       Namespace, Descriptors
//!   or another has it            --->  candidates    --->  of each, until one is it
//! ```

use super::Association;
use crate::admin::Query;
use crate::{Identity, Namespace, Reason, facts};
use std::time::Duration;

/// What is looked for, and where.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// The namespace that was accepted; the default if none was, or if it has no identity: such are known
    /// by their id only.
    pub(super) identity: Identity,
    /// The id of one that was accepted, for those without identity.
    pub(super) accepted: Option<u32>,
    state: State,
    /// The id that it had.
    home: u32,
    /// Ids that are still to be looked at, the next one last: as many as one list has.
    candidates: Vec<u32>,
    /// Who has its id now.
    other: Option<Namespace>,
    /// Why it is not where it was.
    reason: Option<Reason>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    /// Candidates are looked at.
    Runs,
    /// All were looked at.
    Over,
}

impl Association {
    /// The id that the namespace should have.
    pub(super) fn wanted_nsid(&self) -> Option<u32> {
        match self.has_identity() {
            true => Some(self.nsid),
            // Others that are added later are not to be chosen among.
            false => self.config.nsid.or(self.search.accepted),
        }
    }

    fn has_identity(&self) -> bool {
        self.search.identity != Identity::default()
    }

    /// The id that it has or had, whoever is looked at.
    pub(super) fn settled_nsid(&self) -> u32 {
        if self.is_searching() { self.search.home } else { self.nsid }
    }

    pub(super) fn is_searching(&self) -> bool {
        self.search.state == State::Runs
    }

    /// The answers so far have led to no namespace for the reason `gone`, or to one whose identity is
    /// `named` by now: arranges for others to be looked at, if it is not the one that is wanted. Nothing goes to
    /// its id meanwhile. Gives the reason back if there is nothing more to look at.
    pub(super) fn look_elsewhere(
        &mut self,
        now: Duration,
        gone: Option<Reason>,
        named: bool,
    ) -> Option<Reason> {
        let differs = self.found.as_ref().is_some_and(|it| it.identity != self.search.identity);
        if !self.has_identity() || gone.is_none() && !(named && differs) {
            return gone;
        }
        match self.search.state {
            State::Idle => {
                let other = self.found.take().filter(|_| gone.is_none());
                self.search.state = State::Runs;
                let expected = self.search.identity;
                let taken = other.as_ref().map(|it| Reason::OtherNamespace {
                    found: it.identity.to_string(),
                    expected: expected.to_string(),
                });
                if let Some(reason) = gone.clone().or(taken).filter(|_| self.is_live()) {
                    self.withhold(now, reason);
                }
                (self.search.home, self.search.other, self.search.reason) =
                    (self.nsid, other, gone);
                self.wanted |= Query::AllNamespaces.bit();
                self.wanted &= !(Query::Namespace.bit() | Query::Descriptors.bit());
                None
            }
            // It is not known yet what there is: an event had the id looked for once more.
            State::Runs if self.wanted & Query::AllNamespaces.bit() != 0 => None,
            State::Runs => self.next_candidate(),
            State::Over => gone,
        }
    }

    /// All namespaces there are. Gives a reason if there is nothing to look at.
    pub(super) fn search_among(&mut self, list: &[u8]) -> Option<Reason> {
        let home = self.search.home;
        let asked = self.search.other.is_some();
        self.search.candidates = facts::active(list).filter(|&it| !(asked && it == home)).collect();
        self.search.candidates.reverse();
        self.next_candidate()
    }

    fn next_candidate(&mut self) -> Option<Reason> {
        self.found = None;
        if let Some(nsid) = self.search.candidates.pop() {
            self.nsid = nsid;
            self.wanted |= Query::Namespace.bit() | Query::Descriptors.bit();
            return None;
        }
        self.nsid = self.search.home;
        self.search.state = State::Over;
        self.wanted &= !(Query::Namespace.bit() | Query::Descriptors.bit());
        // It is the driver's to say that it is not the same.
        self.found = self.search.other.take();
        if self.found.is_some() { None } else { self.search.reason.take() }
    }

    pub(super) fn end_search(&mut self) {
        // Unless the one that is looked at is it.
        if self.is_searching() && self.found.as_ref().is_none_or(|it| it.nsid != self.nsid) {
            self.nsid = self.search.home;
        }
        let identity = self.search.identity;
        let accepted = self.search.accepted;
        self.search = Search { identity, accepted, ..Search::default() };
    }
}
