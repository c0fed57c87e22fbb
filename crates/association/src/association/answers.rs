//! What answers to admin commands lead to.

use super::{Action, Association, READY_POLL, RECHECK, State, Traffic};
use crate::admin::{self, Purpose, Query};
use crate::{ADMIN_COMMANDS_MAX, Controller, Reason, ana, facts};
use nvme::copy::{FORMATS_ALWAYS, FORMATS_TO_ENABLE};
use nvme::event::AsyncEvent;
use nvme::fabrics::{Cap, ConnectResult, Csts};
use nvme::log::ana::AnaState;
use nvme::{Completion, Status};
use std::time::Duration;

impl Association {
    pub(super) fn completed(&mut self, now: Duration, completion: &Completion, data: &[u8]) {
        let cid = completion.cid.get();
        let pending = (cid < ADMIN_COMMANDS_MAX).then(|| self.pending[usize::from(cid)].take());
        let Some(Some(pending)) = pending else {
            return self.lost(now, Reason::Malformed { what: "an answer without a command" });
        };
        // The answer to any command tells the controller is alive.
        let purpose = pending.purpose;
        if self.is_closing() {
            return self.shutdown_answered(now, purpose, completion);
        }
        if let Err(reason) = self.answered(now, purpose, completion, data) {
            self.lost(now, reason);
        }
    }

    fn answered(
        &mut self,
        now: Duration,
        purpose: Purpose,
        completion: &Completion,
        data: &[u8],
    ) -> Result<(), Reason> {
        let (status, result) = (completion.status(), completion.result.get());
        match purpose {
            Purpose::Connect if !status.is_success() => {
                return Err(Reason::Connect { status, result });
            }
            Purpose::AuthenticationSend | Purpose::AuthenticationReceive => {
                return self.authenticated(now, status, data);
            }
            // Only hints, or answered by what becomes of the command itself.
            Purpose::Abort | Purpose::Passed(_) => return Ok(()),
            Purpose::HostBehavior | Purpose::Events => {}
            Purpose::Query(query) => return self.query_answered(now, query, status, data),
            Purpose::Event if !status.is_success() => return Ok(()),
            _ if !status.is_success() => {
                return Err(Reason::Failed { what: purpose.name(), status });
            }
            _ => {}
        }
        match purpose {
            Purpose::Connect => self.connected(now, ConnectResult(result as u32))?,
            Purpose::Capabilities => self.capabilities(now, Cap(result)),
            Purpose::Enable => {
                self.send(now, Purpose::Ready);
            }
            Purpose::Ready => self.ready(now, Csts(result as u32))?,
            Purpose::Controller => self.identified(now, data)?,
            Purpose::HostBehavior => self.behaved(now, status),
            Purpose::Queues => {
                let (submission, completion) = (result as u16, (result >> 16) as u16);
                let granted = submission.min(completion).saturating_add(1);
                // Some controllers grant what they have, whatever they are asked for.
                self.controller.io_queues = granted.min(self.config.io_queues);
                if admin::has_events(self.controller.oaes) {
                    self.send(now, Purpose::Events);
                } else {
                    self.ask(now, self.survey());
                }
            }
            Purpose::Events => {
                self.listen(now);
                self.ask(now, self.survey());
            }
            Purpose::Event => self.event(now, AsyncEvent::from_dword0(result as u32)),
            Purpose::KeepAlive | Purpose::Abort | Purpose::Query(_) | Purpose::Passed(_) => {}
            Purpose::AuthenticationSend | Purpose::AuthenticationReceive | Purpose::Shutdown => {}
        }
        Ok(())
    }

    fn capabilities(&mut self, now: Duration, cap: Cap) {
        let entries = u32::from(cap.mqes_z()) + 1;
        let entries = u32::from(self.config.queue_entries).min(entries);
        self.config.queue_entries = u16::try_from(entries).unwrap_or(u16::MAX).max(2);
        self.ready_until = now + admin::ready_timeout(cap);
        self.send(now, Purpose::Enable);
    }

    fn ready(&mut self, now: Duration, csts: Csts) -> Result<(), Reason> {
        if csts.0 & Csts::CFS != 0 {
            return Err(Reason::Fatal);
        }
        if csts.ready() {
            self.keep_alive_at = Some(now + self.config.keep_alive_tmo / 2);
            self.send(now, Purpose::Controller);
        } else if now >= self.ready_until {
            return Err(Reason::NotReady(self.config.admin_timeout));
        } else {
            self.ready_at = Some(now + READY_POLL);
        }
        Ok(())
    }

    fn identified(&mut self, now: Duration, data: &[u8]) -> Result<(), Reason> {
        self.controller = Controller::parse(data)?;
        self.behave(now);
        Ok(())
    }

    /// Tells the controller what this host understands, if it wants to know.
    fn behave(&mut self, now: Duration) {
        let wants = self.controller.wants_host_behavior();
        self.send(now, if wants { Purpose::HostBehavior } else { Purpose::Queues });
    }

    /// The controller has taken that or not. A format of Copy that it does not let us enable must not
    /// cost us anything else.
    fn behaved(&mut self, now: Duration, status: Status) {
        let enabled = self.controller.copy_formats & FORMATS_TO_ENABLE;
        if status.is_success() || enabled == 0 {
            return self.send(now, Purpose::Queues);
        }
        self.controller.copy_formats &= FORMATS_ALWAYS;
        self.behave(now);
    }

    /// All that is to be known of the namespace.
    fn survey(&self) -> u8 {
        Query::SURVEY
    }

    /// An asynchronous event: read what it tells to read, which lets the next one come.
    fn event(&mut self, now: Duration, event: AsyncEvent) {
        self.listen_on(now);
        match event {
            AsyncEvent::NAMESPACE_ATTRIBUTE => {
                self.ask(now, Query::ChangedNamespaces.bit() | self.survey());
            }
            // The namespace may be in another group now: nvmet has no other event for that.
            AsyncEvent::ANA_CHANGE => self.ask(now, self.survey()),
            AsyncEvent::DISCOVERY_CHANGE => {
                self.actions.push_back(Action::DiscoveryChanged);
                self.ask(now, Query::DiscoveryLog.bit());
            }
            // Nothing that was asked for.
            _ => {}
        }
    }

    /// Makes the next query that is wanted, or draws the conclusions of those made.
    pub(super) fn next_query(&mut self, now: Duration) {
        if self.controller.ana_groups == 0 {
            self.wanted &= !Query::Ana.bit();
        }
        let next = Query::ALL.into_iter().find(|query| self.wanted & query.bit() != 0);
        match next {
            Some(query) => {
                self.wanted &= !query.bit();
                self.send(now, Purpose::Query(query));
            }
            None => self.surveyed(now),
        }
    }

    fn query_answered(
        &mut self,
        now: Duration,
        query: Query,
        status: Status,
        data: &[u8],
    ) -> Result<(), Reason> {
        let connecting = self.state == State::Connecting;
        let failed = || Reason::Failed { what: Purpose::Query(query).name(), status };
        let mut gone = None;
        match query {
            // Read only so that the next event comes.
            Query::ChangedNamespaces | Query::DiscoveryLog => {}
            Query::Namespace | Query::Descriptors if status.code() == Status::INVALID_NAMESPACE => {
                gone = Some(failed());
            }
            Query::Descriptors | Query::CommandSet if is_unknown(status) => {}
            _ if !status.is_success() => return Err(failed()),
            Query::Namespaces => match facts::choose(data, self.wanted_nsid()) {
                Ok(nsid) => self.nsid = nsid,
                Err(reason) => gone = Some(reason),
            },
            Query::AllNamespaces => gone = self.search_among(data),
            Query::Namespace => match self.read_namespace(data) {
                Ok(Some(found)) => self.found = Some(found),
                Ok(None) => {
                    let (nsid, found) = (Some(self.nsid), "nothing".into());
                    gone = Some(Reason::NoNamespace { nsid, found });
                }
                Err(reason) if self.is_searching() => gone = Some(reason),
                Err(reason) => return Err(reason),
            },
            Query::Descriptors => {
                if let Some(found) = &mut self.found {
                    facts::descriptors(data, &mut found.identity)?;
                }
            }
            Query::CommandSet => {
                if let Some(found) = &mut self.found {
                    facts::command_set(data, &mut found.limits)?;
                }
            }
            Query::Ana => {
                if let Some(found) = &mut self.found {
                    let state = ana::state(data, found.ana_group)?;
                    found.ana = state.unwrap_or(AnaState::OPTIMIZED);
                }
            }
        }
        let named = query == Query::Descriptors;
        match self.look_elsewhere(now, gone, named) {
            Some(reason) if connecting => return Err(reason),
            Some(reason) => self.namespace_gone(now, reason),
            None => self.next_query(now),
        }
        Ok(())
    }

    fn read_namespace(&self, data: &[u8]) -> Result<Option<crate::Namespace>, Reason> {
        facts::namespace(self.nsid, data, &self.controller)
    }

    /// The namespace went away under a live association.
    fn namespace_gone(&mut self, now: Duration, reason: Reason) {
        // What was to be read so that the next event comes is read before the namespace is looked at again.
        self.wanted &= Query::EVENTS;
        self.end_search();
        (self.proposed, self.found) = (None, None);
        self.recheck_at = Some(now + RECHECK);
        self.withhold(now, reason);
    }

    /// No command may go to the namespace, until there is one that is accepted.
    pub(super) fn withhold(&mut self, now: Duration, reason: Reason) {
        let had = self.namespace.take().is_some();
        self.ana_suspect = false;
        self.lost_since = self.lost_since.or(Some(now));
        self.reason = reason;
        // Also where no command went there before: some may wait that have its id.
        if had && self.access() == self.told {
            self.actions.push_back(Action::AccessChanged);
        }
        self.tell();
    }

    /// All queries were answered.
    fn surveyed(&mut self, now: Duration) {
        self.end_search();
        if let Some(found) = self.found.take() {
            self.ana_suspect = false;
            if self.namespace.as_ref() != Some(&found) {
                self.proposed = Some(found);
                return self.actions.push_back(Action::NamespaceChanged);
            }
        }
        self.settled(now);
    }

    /// The namespace is as it was accepted, or gone.
    pub(super) fn settled(&mut self, now: Duration) {
        if self.state == State::Connecting {
            (self.state, self.given_up) = (State::Live, false);
            // A connection, its initialization, and some more.
            let until = now + 3 * self.config.admin_timeout;
            self.unproven = self.lost_since.map(|since| (since, until));
            self.traffic = Traffic::default();
            self.actions.push_back(Action::Live(self.generation));
        }
        if self.namespace.is_some() {
            (self.lost_since, self.failing) = (None, false);
        }
        let usable = self.live_access() <= super::Access::NonOptimized;
        self.recheck_at = (!usable).then(|| now + RECHECK);
        if let Some(namespace) = &self.namespace
            && !usable
        {
            self.reason = Reason::Ana(match namespace.ana {
                AnaState::INACCESSIBLE => "inaccessible",
                AnaState::PERSISTENT_LOSS => "persistent loss",
                AnaState::CHANGE => "change",
                _ => "unknown",
            });
        }
        self.tell();
    }
}

/// Whether a controller has not got what it was asked for: older ones have no descriptors and no such limits. Any
/// other failure says nothing of that. Not all have Do Not Retry with it (SPDK, for one).
fn is_unknown(status: Status) -> bool {
    let never = status.0 & Status::DNR != 0;
    never || matches!(status.code(), Status::INVALID_FIELD | Status::INVALID_OPCODE)
}
