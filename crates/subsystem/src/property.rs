//! Properties: CAP, VS, CC, CSTS, CRTO, and what setting CC does (NVMe Base 2.1, section 3.1.4).

use crate::admin::Answer;
use crate::async_event::AsyncEvents;
use crate::controller::Controller;
use crate::event::{ControllerId, DropReason, Event};
use crate::feature::Features;
use crate::target::Target;
use crate::{ASSOCIATION_LINGER, QUEUE_ENTRIES_MAX, READY_TIMEOUT};
use nvme::fabrics::{Cap, Cc, Csts, Property, PropertyAccess};
use nvme::{Command, Status};
use std::time::Duration;

/// Ready timeout in units of 500 ms, as CAP.TO and CRTO have it.
const READY_UNITS: u64 = READY_TIMEOUT.as_millis() as u64 / 500;

/// Controller Capabilities: contiguous queues, 4 KiB pages, ready with media. Of command sets only
/// NVM, without CSS.IOCSS: nvme-cli would ask for the effects log of the zoned command set as well
/// and report that there is none as a failure.
const CAP: Cap = Cap((QUEUE_ENTRIES_MAX - 1) as u64
    | Cap::CQR
    | READY_UNITS << 24
    | Cap::CSS_NVM
    | Cap::CRMS_CRWMS);

impl Target {
    pub(crate) fn property_get(
        &self,
        id: ControllerId,
        command: &Command,
    ) -> Result<Answer, Status> {
        let controller = &self.controllers[&id];
        let access = PropertyAccess::of(command);
        let value = match (access.property, access.bytes) {
            (Property::CAP, Some(8)) => CAP.0,
            (Property::VS, Some(4)) => nvme::VERSION.into(),
            (Property::CC, Some(4)) => controller.cc.0.into(),
            (Property::CSTS, Some(4)) => controller.csts.0.into(),
            (Property::CRTO, Some(4)) => READY_UNITS,
            _ => return Err(Status::INVALID_FIELD.dnr()),
        };
        Ok(Answer::result(value))
    }

    pub(crate) fn property_set(
        &mut self,
        id: ControllerId,
        command: &Command,
        now: Duration,
    ) -> Result<Answer, Status> {
        let access = PropertyAccess::of(command);
        if (access.property, access.bytes) != (Property::CC, Some(4)) {
            return Err(Status::INVALID_FIELD.dnr());
        }
        self.set_configuration(id, Cc(access.value as u32), now);
        Ok(Answer::result(0))
    }

    /// Follows the Enable and Shutdown Notification fields of CC (Figure 41).
    fn set_configuration(&mut self, id: ControllerId, new: Cc, now: Duration) {
        let Some(controller) = self.controllers.get_mut(&id) else { return };
        let old = std::mem::replace(&mut controller.cc, new);
        if new.enabled() && !old.enabled() {
            controller.linger = None;
            if !controller.resetting {
                controller.enable();
            }
        }
        let reset = !new.enabled() && old.enabled();
        let shutdown = new.shn() != 0 && old.shn() == 0;
        if reset {
            controller.resetting = true;
            controller.events = AsyncEvents::new(controller.events_supported());
            controller.features = Features::default();
            controller.changed.clear();
            if controller.csts.0 & Csts::SHST == Csts::SHST_COMPLETE {
                controller.csts = Csts(controller.csts.0 & !Csts::SHST);
            }
            controller.linger = Some((now + ASSOCIATION_LINGER, DropReason::Reset));
        }
        if shutdown {
            controller.csts = Csts(controller.csts.0 & !Csts::SHST | Csts::SHST_OCCURRING);
            controller.linger = Some((now + ASSOCIATION_LINGER, DropReason::Shutdown));
        }
        if (reset || shutdown) && controller.queues.io_count() > 0 && !controller.dropped {
            self.events.push_back(Event::DropIoQueues { controller: id });
        }
        controller.settle();
        self.schedule(id);
    }
}

impl Controller {
    /// A reset or shutdown is complete once no I/O queue is left: what these had sent could otherwise land after what
    /// the host does next. Every acknowledged write is as durable as it was promised to be: no more to wait for.
    pub fn settle(&mut self) {
        if self.queues.io_count() > 0 {
            return;
        }
        if std::mem::take(&mut self.resetting) {
            self.csts = Csts(self.csts.0 & !(Csts::RDY | Csts::CFS));
            // The host may not have waited.
            if self.cc.enabled() {
                self.enable();
            }
        }
        if self.csts.0 & Csts::SHST == Csts::SHST_OCCURRING {
            self.csts = Csts(self.csts.0 & !Csts::SHST | Csts::SHST_COMPLETE);
        }
    }

    /// CC.EN went from 0 to 1: ready at once, or fatal if the configuration is not supported.
    fn enable(&mut self) {
        let cc = self.cc;
        let queues_fit = self.discovery || (cc.iosqes() == 6 && cc.iocqes() == 4);
        let supported = cc.mps() == 0 && cc.ams() == 0 && cc.css() == 0 && queues_fit;
        self.csts = Csts(if supported { Csts::RDY } else { Csts::CFS });
    }
}
