//! A controller made of answers.

use dhchap::{Controller, ControllerConfig, Sent};
use nvme::fabrics::{ConnectResult, Csts, Property};
use nvme::feature::{Fid, HostBehavior};
use nvme::identify::{self, Cns};
use nvme::log::ana::{AnaState, Group, Header};
use nvme::log::{GetLogPage, Lid};
use nvme::{Command, Status, opcode};
use std::cell::{Cell, RefCell};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// An end of an exchange, and how it misbehaves.
pub struct Demands {
    pub controller: RefCell<Controller>,
    /// Messages of the present exchange that have come and gone.
    pub count: Cell<usize>,
    /// It does not answer the one with this number.
    pub silent_at: Cell<Option<usize>>,
    /// It refuses it.
    pub refuses_at: Cell<Option<usize>>,
    /// It gives this instead.
    pub spoils: RefCell<Option<(usize, Vec<u8>)>>,
}

impl Demands {
    pub fn new(config: ControllerConfig) -> Demands {
        Demands {
            controller: RefCell::new(Controller::new(config)),
            count: Cell::new(0),
            silent_at: Cell::new(None),
            refuses_at: Cell::new(None),
            spoils: RefCell::new(None),
        }
    }

    /// A connection was made.
    fn begin(&self) -> u32 {
        let config = self.controller.borrow().config().clone();
        self.controller.replace(Controller::new(config));
        self.count.set(0);
        ConnectResult::AUTHENTICATE
    }

    /// How the next message is answered, if not as it should be.
    fn trouble(&self) -> Option<Option<(Status, u64, Vec<u8>)>> {
        let number = self.count.replace(self.count.get() + 1);
        if self.refuses_at.get() == Some(number) {
            let room = if number % 2 == 1 { 4096 } else { 0 };
            return Some(Some((Status::INVALID_FIELD.dnr(), 0, vec![0; room])));
        }
        (self.silent_at.get() == Some(number)).then_some(None)
    }

    fn sent(&self, message: &[u8]) -> Option<(Status, u64, Vec<u8>)> {
        if let Some(trouble) = self.trouble() {
            return trouble;
        }
        let mut controller = self.controller.borrow_mut();
        match controller.sent(message, &mut |bytes: &mut [u8]| bytes.fill(0x33)) {
            Sent::Work(work) => controller.computed(work.run()),
            Sent::Taken => {}
            Sent::Busy => panic!("it was computed"),
        }
        Some((Status::SUCCESS, 0, Vec::new()))
    }

    fn fetched(&self) -> Option<(Status, u64, Vec<u8>)> {
        let number = self.count.get();
        if let Some(trouble) = self.trouble() {
            return trouble;
        }
        let mut message = self.controller.borrow_mut().fetch(4096).expect("it was computed");
        if let Some((_, other)) = self.spoils.borrow().as_ref().filter(|(at, _)| *at == number) {
            message.clone_from(other);
        }
        message.resize(4096, 0);
        Some((Status::SUCCESS, 0, message))
    }
}

/// What the controller is like now.
pub struct Peer {
    pub reachable: bool,
    pub silent: bool,
    /// Whether I/O queues can be connected; none: their core has yet to come to it.
    pub queues: Option<bool>,
    pub traffic_based: bool,
    pub cqt_ms: u16,
    pub drains: bool,
    pub ana: bool,
    pub blocks: u64,
    pub state: AnaState,
    /// The namespaces' group: the second has `state`, the first is inaccessible.
    pub group: u32,
    pub uuid: u8,
    /// Other namespaces' UUIDs, by id.
    pub uuids: Vec<(u32, u8)>,
    pub namespaces: Vec<u32>,
    /// The Identify that it takes its time for.
    pub held: Option<(Cns, u32)>,
    /// What it fails to tell.
    pub fails: Option<(Cns, Status)>,
    /// What Connect is answered.
    pub connect: Status,
    /// OCFS; 0: no Copy.
    pub copy_formats: u16,
    /// What is answered to a host that enables some of them.
    pub behavior: Status,
    pub retry_delay: u16,
    /// ACL.
    pub aborts_z: u8,
    /// WZSL; none: it does not know that structure.
    pub wzsl: Option<u8>,
    /// Hosts have to prove who they are.
    pub demands: Option<Demands>,
    /// More of AUTHREQ.
    pub authreq: u32,
    /// CSTS, once it is enabled.
    pub csts: u32,
    /// What a host has to compute is done at once.
    pub host_computes: bool,
}

impl Default for Peer {
    fn default() -> Peer {
        Peer {
            reachable: true,
            silent: false,
            queues: Some(true),
            traffic_based: false,
            cqt_ms: 0,
            drains: false,
            ana: true,
            blocks: 1000,
            state: AnaState::OPTIMIZED,
            group: 2,
            uuid: 1,
            uuids: Vec::new(),
            namespaces: vec![1],
            held: None,
            fails: None,
            connect: Status::SUCCESS,
            copy_formats: 0,
            behavior: Status::SUCCESS,
            retry_delay: 0,
            aborts_z: 0,
            wzsl: None,
            demands: None,
            authreq: 0,
            csts: Csts::RDY,
            host_computes: true,
        }
    }
}

impl Peer {
    /// The answer to a command: status, result, data. `None`: not now.
    pub fn answer(&self, command: &Command, sent: &[u8]) -> Option<(Status, u64, Vec<u8>)> {
        let ok = |result: u64, data: Vec<u8>| Some((Status::SUCCESS, result, data));
        if self.silent || command.opcode == opcode::admin::ASYNC_EVENT_REQUEST {
            return None;
        }
        if let Some(demands) = &self.demands {
            let kind = (command.opcode == opcode::admin::FABRICS).then(|| command.fctype());
            let may_come = matches!(
                kind,
                Some(
                    opcode::fabrics::CONNECT
                        | opcode::fabrics::AUTHENTICATION_SEND
                        | opcode::fabrics::AUTHENTICATION_RECEIVE
                )
            );
            assert!(
                may_come || demands.controller.borrow().is_proven(),
                "nothing else comes first"
            );
        }
        let identify = (Cns(command.cdw10.get() as u8), command.nsid.get());
        if command.opcode == opcode::admin::IDENTIFY && self.held == Some(identify) {
            return None;
        }
        if let Some((cns, status)) = self.fails
            && (command.opcode, identify.0) == (opcode::admin::IDENTIFY, cns)
        {
            return Some((status, 0, vec![0; 4096]));
        }
        match command.opcode {
            opcode::admin::FABRICS => match command.fctype() {
                opcode::fabrics::CONNECT => {
                    let authreq = self.authreq | self.demands.as_ref().map_or(0, Demands::begin);
                    Some((self.connect, u64::from(1 | authreq), Vec::new()))
                }
                opcode::fabrics::AUTHENTICATION_SEND => self.demands.as_ref()?.sent(sent),
                opcode::fabrics::AUTHENTICATION_RECEIVE => self.demands.as_ref()?.fetched(),
                opcode::fabrics::PROPERTY_GET => {
                    let ready = command.cdw11.get() == Property::CSTS.0;
                    ok(if ready { self.csts.into() } else { 1 << 37 | 1023 }, Vec::new())
                }
                _ => ok(0, Vec::new()),
            },
            opcode::admin::IDENTIFY
                if command.cdw10.get() as u8 == Cns::COMMAND_SET_CONTROLLER.0 =>
            {
                let Some(wzsl) = self.wzsl else {
                    return Some((Status::INVALID_FIELD.dnr(), 0, vec![0; 4096]));
                };
                let mut data = identify::NvmController::new_zeroed();
                data.wzsl = wzsl;
                ok(0, data.as_bytes().to_vec())
            }
            opcode::admin::IDENTIFY => {
                ok(0, self.identify(Cns(command.cdw10.get() as u8), command.nsid.get()))
            }
            opcode::admin::GET_LOG_PAGE => {
                let page = GetLogPage::of(command);
                let mut data = if page.lid == Lid::ANA { self.ana_log() } else { Vec::new() };
                data.resize(page.bytes as usize, 0);
                ok(0, data)
            }
            opcode::admin::SET_FEATURES if command.cdw10.get() as u8 == Fid::HOST_BEHAVIOR.0 => {
                // Who keeps no data asks for an answer only.
                let Ok(behavior) = HostBehavior::ref_from_bytes(sent) else {
                    return ok(0, Vec::new());
                };
                assert_eq!(behavior.acre, u8::from(self.retry_delay > 0));
                let formats = self.copy_formats & 0b1100;
                assert!([0, formats].contains(&behavior.cdfe.get()));
                let status = if behavior.cdfe.get() == 0 { Status::SUCCESS } else { self.behavior };
                Some((status, 0, Vec::new()))
            }
            opcode::admin::SET_FEATURES => ok(7 | 7 << 16, Vec::new()),
            _ => ok(0, Vec::new()),
        }
    }

    fn identify(&self, cns: Cns, nsid: u32) -> Vec<u8> {
        let mut data = vec![0; 4096];
        match cns {
            Cns::CONTROLLER => {
                let mut controller = identify::Controller::new_zeroed();
                controller.cntlid = 9.into();
                controller.kas = 10.into();
                controller.oaes = (1 << 8 | 1 << 11).into();
                controller.acl_z = self.aborts_z;
                controller.ioccsz = 260.into();
                controller.cmic = if self.ana { 1 << 3 } else { 0 };
                controller.nanagrpid = 4.into();
                controller.cqt_ms = self.cqt_ms.into();
                if self.drains {
                    identify::vendor::fill(&mut controller.vs, identify::vendor::DRAINS);
                }
                if self.copy_formats != 0 {
                    controller.oncs = identify::oncs::COPY.into();
                }
                controller.cdfs = self.copy_formats.into();
                controller.crdt[0] = self.retry_delay.into();
                controller.ctratt = if self.traffic_based { 1 << 6 } else { 0 }.into();
                return controller.as_bytes().to_vec();
            }
            Cns::ACTIVE_NAMESPACES => {
                let above = self.namespaces.iter().filter(|it| **it > nsid);
                for (place, nsid) in data.chunks_exact_mut(4).zip(above) {
                    place.copy_from_slice(&nsid.to_le_bytes());
                }
            }
            Cns::NAMESPACE => {
                let mut namespace = identify::Namespace::new_zeroed();
                namespace.nsze = self.blocks.into();
                namespace.lbaf[0].lbads = 12;
                namespace.anagrpid = self.group.into();
                return namespace.as_bytes().to_vec();
            }
            _ => {
                data[..4].copy_from_slice(&[3, 16, 0, 0]);
                let other = self.uuids.iter().find(|(other, _)| *other == nsid);
                data[4..20].fill(other.map_or(self.uuid, |(_, uuid)| *uuid));
            }
        }
        data
    }

    fn ana_log(&self) -> Vec<u8> {
        let mut header = Header::new_zeroed();
        header.groups = 2.into();
        let mut data = header.as_bytes().to_vec();
        for (group, state) in [(1, AnaState::INACCESSIBLE), (2, self.state)] {
            let mut head = Group::new_zeroed();
            (head.group, head.state) = (group.into(), state.0);
            data.extend_from_slice(head.as_bytes());
        }
        data
    }
}
