//! The admin commands of an association: what each is for, and how it looks.

use crate::{ADMIN_ENTRIES, Config, Controller, ana};
use nvme::copy::FORMATS_TO_ENABLE;
use nvme::event::notice;
use nvme::fabrics::{CNTLID_DYNAMIC, Cc, Connect, ConnectData, Property, PropertyAccess};
use nvme::feature::Fid;
use nvme::identify::{Cns, DATA_BYTES};
use nvme::log::{CHANGED_NAMESPACES_MAX, GetLogPage, Lid, discovery};
use nvme::{Command, opcode};
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

/// Events that are asked for, if the controller has them.
const EVENTS: u32 = notice::NAMESPACE_ATTRIBUTE | notice::ANA_CHANGE | notice::DISCOVERY_CHANGE;

/// What an admin command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Connect,
    AuthenticationSend,
    AuthenticationReceive,
    Capabilities,
    Enable,
    Ready,
    Shutdown,
    Controller,
    HostBehavior,
    Queues,
    Events,
    KeepAlive,
    /// Asynchronous Event Request: answered when there is an event.
    Event,
    Abort,
    Query(Query),
    /// A command of the driver's, which may take so long.
    Passed(Duration),
}

/// Reads that are made when connecting, and again when something may have changed; in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Query {
    ChangedNamespaces,
    DiscoveryLog,
    Namespaces,
    /// All of them, in search of one that is not where it was.
    AllNamespaces,
    Namespace,
    Descriptors,
    /// Limits of the NVM command set.
    CommandSet,
    Ana,
}

impl Query {
    pub(crate) const ALL: [Query; 8] = [
        Query::ChangedNamespaces,
        Query::DiscoveryLog,
        Query::Namespaces,
        Query::AllNamespaces,
        Query::Namespace,
        Query::Descriptors,
        Query::CommandSet,
        Query::Ana,
    ];
    /// Everything about the namespace, as a set of bits.
    pub(crate) const SURVEY: u8 = Query::Namespaces.bit()
        | Query::Namespace.bit()
        | Query::Descriptors.bit()
        | Query::CommandSet.bit()
        | Query::Ana.bit();

    /// What lets the next event come once it is read.
    pub(crate) const EVENTS: u8 = Query::ChangedNamespaces.bit() | Query::DiscoveryLog.bit();

    pub(crate) const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A command with the data that goes along, or the room for what comes.
pub(crate) struct Built {
    pub(crate) command: Command,
    pub(crate) data: Vec<u8>,
    pub(crate) answer_bytes: u32,
}

impl Purpose {
    /// For messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Purpose::Connect => "Connect",
            Purpose::AuthenticationSend => "Authentication Send",
            Purpose::AuthenticationReceive => "Authentication Receive",
            Purpose::Capabilities => "Property Get of CAP",
            Purpose::Enable => "Property Set of CC",
            Purpose::Ready => "Property Get of CSTS",
            Purpose::Shutdown => "Property Set of CC.SHN",
            Purpose::Controller => "Identify Controller",
            Purpose::HostBehavior => "Set Features Host Behavior Support",
            Purpose::Queues => "Set Features Number of Queues",
            Purpose::Events => "Set Features Asynchronous Event Configuration",
            Purpose::KeepAlive => "Keep Alive",
            Purpose::Event => "Asynchronous Event Request",
            Purpose::Abort => "Abort",
            Purpose::Passed(_) => "an admin command that was passed on",
            Purpose::Query(Query::ChangedNamespaces) => "Get Log Page of changed namespaces",
            Purpose::Query(Query::DiscoveryLog) => "Get Log Page of discovery",
            Purpose::Query(Query::Namespaces | Query::AllNamespaces) => {
                "Identify Active Namespaces"
            }
            Purpose::Query(Query::Namespace) => "Identify Namespace",
            Purpose::Query(Query::Descriptors) => "Identify Namespace Descriptors",
            Purpose::Query(Query::CommandSet) => "Identify I/O Command Set Specific Controller",
            Purpose::Query(Query::Ana) => "Get Log Page of ANA",
        }
    }
}

/// Connect of the admin queue.
pub(crate) fn connect(config: &Config) -> Built {
    let kato_ms = u32::try_from(config.keep_alive_tmo.as_millis()).unwrap_or(u32::MAX);
    let connect = Connect { recfmt: 0, qid: 0, sqsize_z: ADMIN_ENTRIES - 1, cattr: 0, kato_ms };
    Built {
        command: connect.command(),
        data: connect_data(config, CNTLID_DYNAMIC),
        answer_bytes: 0,
    }
}

/// The data of Connect.
pub(crate) fn connect_data(config: &Config, cntlid: u16) -> Vec<u8> {
    let mut data = ConnectData::new_zeroed();
    data.hostid = config.host_id;
    data.cntlid = cntlid.into();
    let fill = |field: &mut [u8; 256], nqn: &str| {
        let len = nqn.len().min(nvme::fabrics::NQN_BYTES_MAX);
        field[..len].copy_from_slice(&nqn.as_bytes()[..len]);
    };
    fill(&mut data.subnqn, &config.nqn);
    fill(&mut data.hostnqn, &config.host_nqn);
    data.as_bytes().to_vec()
}

/// A command other than Connect, Abort and those about a namespace.
pub(crate) fn build(
    purpose: Purpose,
    config: &Config,
    controller: &Controller,
    nsid: u32,
) -> Built {
    let plain = |command| Built { command, data: Vec::new(), answer_bytes: 0 };
    match purpose {
        Purpose::Connect => connect(config),
        Purpose::Capabilities => plain(PropertyAccess::read(Property::CAP)),
        Purpose::Enable => plain(PropertyAccess::write(Property::CC, Cc::ENTRY_SIZES | Cc::EN)),
        Purpose::Shutdown => {
            let ends = Cc::ENTRY_SIZES | Cc::EN | Cc::SHN_NORMAL;
            plain(PropertyAccess::write(Property::CC, ends))
        }
        Purpose::Ready => plain(PropertyAccess::read(Property::CSTS)),
        Purpose::Controller => identify(Cns::CONTROLLER, 0),
        Purpose::HostBehavior => {
            let mut behavior = nvme::feature::HostBehavior::new_zeroed();
            behavior.acre = controller.delays_retries().into();
            behavior.cdfe = (controller.copy_formats & FORMATS_TO_ENABLE).into();
            let data = behavior.as_bytes().to_vec();
            Built { data, ..plain(set_feature(Fid::HOST_BEHAVIOR, 0)) }
        }
        Purpose::Queues => {
            let count_z = u32::from(config.io_queues.max(1) - 1);
            plain(set_feature(Fid::NUMBER_OF_QUEUES, count_z | count_z << 16))
        }
        Purpose::Events => {
            let events = controller.oaes & EVENTS;
            plain(set_feature(Fid::ASYNC_EVENT_CONFIGURATION, events))
        }
        Purpose::KeepAlive => plain(of(opcode::admin::KEEP_ALIVE)),
        Purpose::Event => plain(of(opcode::admin::ASYNC_EVENT_REQUEST)),
        Purpose::Abort => plain(of(opcode::admin::ABORT)),
        Purpose::AuthenticationSend | Purpose::AuthenticationReceive => {
            unreachable!("the exchange has these made")
        }
        Purpose::Passed(_) => unreachable!("the driver sends these"),
        Purpose::Query(Query::ChangedNamespaces) => {
            log(Lid::CHANGED_NAMESPACES, 4 * CHANGED_NAMESPACES_MAX)
        }
        Purpose::Query(Query::DiscoveryLog) => log(Lid::DISCOVERY, size_of::<discovery::Header>()),
        // The list has ids above the one that is given: the one that is wanted comes first.
        Purpose::Query(Query::Namespaces) => {
            identify(Cns::ACTIVE_NAMESPACES, nsid.saturating_sub(1))
        }
        Purpose::Query(Query::AllNamespaces) => identify(Cns::ACTIVE_NAMESPACES, 0),
        Purpose::Query(Query::Namespace) => identify(Cns::NAMESPACE, nsid),
        Purpose::Query(Query::Descriptors) => identify(Cns::NAMESPACE_DESCRIPTORS, nsid),
        // Command set identifier 0, in dword 11.
        Purpose::Query(Query::CommandSet) => identify(Cns::COMMAND_SET_CONTROLLER, 0),
        Purpose::Query(Query::Ana) => Built {
            answer_bytes: ana::bytes(controller.ana_groups),
            ..plain(ana::command(controller.ana_groups))
        },
    }
}

/// Abort of command `cid` on I/O queue `queue` (NVMe Base 2.1, section 5.1.1).
pub(crate) fn abort(queue: u16, cid: u16) -> Built {
    let command = Command {
        cdw10: (u32::from(queue) | u32::from(cid) << 16).into(),
        ..of(opcode::admin::ABORT)
    };
    Built { command, data: Vec::new(), answer_bytes: 0 }
}

/// Whether events of `oaes` are worth asking for.
pub(crate) fn has_events(oaes: u32) -> bool {
    oaes & EVENTS != 0
}

/// How long a controller may take to become ready (CAP.TO, in units of 500 ms).
pub(crate) fn ready_timeout(cap: nvme::fabrics::Cap) -> Duration {
    Duration::from_millis(500) * u32::from(cap.timeout()).max(2)
}

fn of(opcode: u8) -> Command {
    Command { opcode, ..Command::default() }
}

fn set_feature(feature: Fid, value: u32) -> Command {
    Command {
        cdw10: u32::from(feature.0).into(),
        cdw11: value.into(),
        ..of(opcode::admin::SET_FEATURES)
    }
}

fn identify(cns: Cns, nsid: u32) -> Built {
    let command = Command {
        nsid: nsid.into(),
        cdw10: u32::from(cns.0).into(),
        ..of(opcode::admin::IDENTIFY)
    };
    Built { command, data: Vec::new(), answer_bytes: DATA_BYTES as u32 }
}

fn log(lid: Lid, bytes: usize) -> Built {
    let page = GetLogPage {
        lid,
        lsp: 0,
        retain_event: false,
        bytes: bytes as u64,
        offset: 0,
        index_offset: false,
        csi: 0,
    };
    Built { command: page.command(), data: Vec::new(), answer_bytes: bytes as u32 }
}
