//! A controller that may demand authentication, and be told to prove who it is.

use crate::Credentials;
use dhchap::{Controller, ControllerConfig, Group, Hash, HostConfig, Key, Sent, Work};
use nvme::fabrics::ConnectResult;
use nvme::{Command, opcode};
use std::sync::Arc;

/// The right end of each exchange: what the script answers instead proves nothing.
pub(super) struct Proof {
    demands: bool,
    /// The controller has to prove who it is.
    is_mutual: bool,
    group: Group,
    controller: Controller,
    /// What the host is to compute, and of which connection.
    pub(super) work: Option<(u64, Work)>,
}

fn key(seed: u8) -> Arc<Key> {
    Arc::new(Key::generate(None, &mut |bytes| bytes.fill(seed)))
}

fn names() -> (Arc<str>, Arc<str>) {
    ("nqn.x:h".into(), "nqn.x:s".into())
}

fn controller(group: Group) -> Controller {
    let (host_nqn, subsystem_nqn) = names();
    Controller::new(ControllerConfig {
        host_nqn,
        subsystem_nqn,
        host_keys: [key(1)].into(),
        controller_key: Some(key(2)),
        hashes: Hash::ALL.to_vec(),
        groups: vec![group],
    })
}

impl Proof {
    pub(super) fn new(choice: u8) -> Proof {
        let demands = choice & 4 != 0;
        let group = if choice & 16 != 0 { Group::Ffdhe2048 } else { Group::Null };
        let is_mutual = demands && choice & 8 != 0;
        Proof { demands, is_mutual, group, controller: controller(group), work: None }
    }

    pub(super) fn credentials(&self) -> Option<Credentials> {
        let (host_nqn, subsystem_nqn) = names();
        let controller_keys = self.is_mutual.then(|| [key(2)].into());
        let config = HostConfig { host_nqn, subsystem_nqn, host_key: key(1), controller_keys };
        self.demands.then_some(Credentials { config, random: |bytes| bytes.fill(0x21) })
    }

    /// There is a new connection.
    pub(super) fn begin(&mut self) {
        self.controller = controller(self.group);
    }

    /// The host has sent a command.
    pub(super) fn sent(&mut self, command: &Command, message: &[u8]) {
        let kind = (command.opcode == opcode::admin::FABRICS).then(|| command.fctype());
        match kind {
            Some(opcode::fabrics::CONNECT | opcode::fabrics::AUTHENTICATION_RECEIVE) => {}
            Some(opcode::fabrics::AUTHENTICATION_SEND) => {
                let mut random = |bytes: &mut [u8]| bytes.fill(0x33);
                if let Sent::Work(work) = self.controller.sent(message, &mut random) {
                    self.controller.computed(work.run());
                }
            }
            _ => assert!(
                !self.is_mutual || self.controller.is_proven(),
                "nothing is sent before the controller has proved who it is"
            ),
        }
    }

    /// A right answer to a command of fabrics: result and data.
    pub(super) fn answer(&mut self, command: &Command, more: u8) -> (u64, Vec<u8>) {
        let result = u64::from(more) | 1;
        match command.fctype() {
            opcode::fabrics::CONNECT if self.demands => {
                (result | u64::from(ConnectResult::AUTHENTICATE), Vec::new())
            }
            opcode::fabrics::AUTHENTICATION_RECEIVE => {
                (0, self.controller.fetch(4096).expect("it was computed"))
            }
            _ => (result, Vec::new()),
        }
    }
}
