//! ANA states of namespaces, as one controller has them.

use host::client::{AnaGroups, Client, ClientError};
use nvme::identify::{Controller, Namespace};
use nvme::log::ana::AnaState;

/// CMIC bit: the subsystem reports ANA states.
const CMIC_ANA: u8 = 1 << 3;

/// The states that a controller reports, if its subsystem has any.
pub struct States(Option<AnaGroups>);

impl States {
    /// Asks for them.
    pub fn ask(client: &mut Client, controller: &Controller) -> Result<States, ClientError> {
        let reports = controller.cmic & CMIC_ANA != 0;
        let groups = reports.then(|| client.ana_groups(controller.nanagrpid.get())).transpose()?;
        Ok(States(groups))
    }

    /// Whether the subsystem reports any.
    pub fn are_reported(&self) -> bool {
        self.0.is_some()
    }

    /// That of a namespace; empty where the subsystem reports none.
    pub fn of(&self, namespace: &Namespace) -> &'static str {
        let state = |groups: &AnaGroups| groups.state(namespace.anagrpid.get());
        self.0.as_ref().map_or("", |groups| state(groups).map_or("unknown", name))
    }
}

fn name(state: AnaState) -> &'static str {
    match state {
        AnaState::OPTIMIZED => "optimized",
        AnaState::NON_OPTIMIZED => "non-optimized",
        AnaState::INACCESSIBLE => "inaccessible",
        AnaState::PERSISTENT_LOSS => "persistent-loss",
        AnaState::CHANGE => "change",
        _ => "unknown",
    }
}
