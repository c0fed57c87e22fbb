//! Get Log Page (NVMe Base 2.1, section 5.1.12).

use crate::admin::{Answer, IoStatistics, expect_length};
use crate::async_event::Notice;
use crate::controller::Controller;
use crate::event::ControllerId;
use crate::feature::FEATURES;
use crate::subsystem::Subsystem;
use crate::target::Target;
use crate::{ANA_GROUPS_MAX, NAMESPACES_MAX, TRANSFER_BYTES_MAX, not_active};
use nvme::log::{
    Effects, ErrorEntry, FeatureEffects, FirmwareSlots, GetLogPage, Lid, Smart, SupportedPages,
    ana, effect,
};
use nvme::{Command, Limits, NSID_ALL, Status, opcode};
use std::collections::BTreeMap;
use std::time::Duration;
use zerocopy::little_endian::U64;
use zerocopy::{FromZeros, IntoBytes};

/// Composite temperature reported, in kelvin: a server room's 300 K.
const TEMPERATURE_KELVIN: u16 = 300;
/// Bit of the critical warnings: a temperature is at or beyond a threshold.
const WARNING_TEMPERATURE: u8 = 1 << 1;

/// Size of the ANA log with every group and every namespace, as hosts compute it.
const ANA_LOG_BYTES_MAX: usize = size_of::<ana::Header>()
    + ANA_GROUPS_MAX as usize * size_of::<ana::Group>()
    + NAMESPACES_MAX as usize * size_of::<u32>();

/// Pages of an I/O controller.
const IO_PAGES: [Lid; 8] = [
    Lid::SUPPORTED,
    Lid::ERROR,
    Lid::SMART,
    Lid::FIRMWARE,
    Lid::CHANGED_NAMESPACES,
    Lid::EFFECTS,
    Lid::ANA,
    Lid::FEATURE_EFFECTS,
];

/// Pages of a discovery controller.
const DISCOVERY_PAGES: [Lid; 4] =
    [Lid::SUPPORTED, Lid::ERROR, Lid::FEATURE_EFFECTS, Lid::DISCOVERY];

impl Target {
    pub(crate) fn log_page(
        &mut self,
        id: ControllerId,
        command: &Command,
        now: Duration,
        io_statistics: &dyn Fn(Option<u32>) -> IoStatistics,
    ) -> Result<Answer, Status> {
        let asked = GetLogPage::of(command);
        let page = self.page(&self.controllers[&id], command, asked, now, io_statistics)?;
        if asked.bytes > u64::from(TRANSFER_BYTES_MAX) || asked.index_offset {
            return Err(Status::INVALID_FIELD.dnr());
        }
        // NVMe Base 2.1, Figure 199: an offset beyond the page, or not a multiple of four.
        if asked.offset > page.len() as u64 || !asked.offset.is_multiple_of(4) {
            return Err(Status::INVALID_FIELD.dnr());
        }
        expect_length(command, asked.bytes)?;
        let from = &page[asked.offset as usize..];
        let mut data = from[..from.len().min(asked.bytes as usize)].to_vec();
        data.resize(asked.bytes as usize, 0);
        if !asked.retain_event {
            self.page_was_read(id, asked.lid);
        }
        Ok(Answer::data(data))
    }

    /// The whole page.
    fn page(
        &self,
        controller: &Controller,
        command: &Command,
        asked: GetLogPage,
        now: Duration,
        io_statistics: &dyn Fn(Option<u32>) -> IoStatistics,
    ) -> Result<Vec<u8>, Status> {
        let invalid_page = Status::INVALID_LOG_PAGE.dnr();
        let pages: &[Lid] = if controller.discovery { &DISCOVERY_PAGES } else { &IO_PAGES };
        if !pages.contains(&asked.lid) {
            return Err(invalid_page);
        }
        let subsystem = self.subsystems.get(&controller.subsystem_nqn);
        match (asked.lid, subsystem) {
            (Lid::SUPPORTED, _) => Ok(supported_pages(pages)),
            (Lid::ERROR, _) => Ok(error_log(controller)),
            (Lid::FEATURE_EFFECTS, _) => Ok(feature_effects(controller.discovery)),
            (Lid::DISCOVERY, _) => Ok(self.discovery_log(controller)),
            (Lid::FIRMWARE, _) => Ok(firmware_slots(self.firmware)),
            (Lid::CHANGED_NAMESPACES, _) => {
                let nsids = controller.changed.list().into_iter();
                Ok(padded_to(nsids.flat_map(u32::to_le_bytes).collect(), 4096))
            }
            (Lid::SMART, Some(subsystem)) => {
                let nsid = command.nsid.get();
                let nsid = (nsid != 0 && nsid != NSID_ALL).then_some(nsid);
                if let Some(nsid) = nsid.filter(|nsid| !subsystem.namespaces.contains_key(nsid)) {
                    return Err(not_active(nsid));
                }
                Ok(smart(controller, &io_statistics(nsid), now))
            }
            // CSI is ignored unless CC.CSS is 110b (Figure 201), which CAP does not offer.
            (Lid::EFFECTS, Some(subsystem)) => Ok(effects(subsystem)),
            (Lid::ANA, Some(subsystem)) => {
                Ok(ana_log(controller, subsystem, asked.lsp & ana::GROUPS_ONLY != 0))
            }
            _ => Err(invalid_page),
        }
    }

    /// A page was read without retaining its event.
    fn page_was_read(&mut self, id: ControllerId, lid: Lid) {
        let Some(controller) = self.controllers.get_mut(&id) else { return };
        match lid {
            Lid::CHANGED_NAMESPACES => {
                controller.changed.clear();
                controller.events.clear(Notice::NamespaceAttribute);
            }
            Lid::ANA => controller.events.clear(Notice::AnaChange),
            Lid::DISCOVERY => controller.events.clear(Notice::DiscoveryChange),
            _ => {}
        }
    }
}

fn padded_to(mut bytes: Vec<u8>, len: usize) -> Vec<u8> {
    bytes.resize(len.max(bytes.len()), 0);
    bytes
}

fn supported_pages(pages: &[Lid]) -> Vec<u8> {
    let mut log = SupportedPages::new_zeroed();
    for lid in pages {
        log.pages[usize::from(lid.0)] = 1.into();
    }
    log.as_bytes().to_vec()
}

fn feature_effects(discovery: bool) -> Vec<u8> {
    let mut log = FeatureEffects::new_zeroed();
    for feature in FEATURES.iter().filter(|feature| feature.discovery || !discovery) {
        log.features[usize::from(feature.fid.0)] = 1.into();
    }
    log.as_bytes().to_vec()
}

fn error_log(controller: &Controller) -> Vec<u8> {
    let entries = controller.errors.entries.iter().flat_map(|entry| entry.as_bytes());
    let bytes = entries.copied().collect();
    padded_to(bytes, crate::ERROR_ENTRIES_MAX * size_of::<ErrorEntry>())
}

fn firmware_slots(firmware: [u8; 8]) -> Vec<u8> {
    let mut log = FirmwareSlots::new_zeroed();
    log.active = 1;
    log.revisions[0] = firmware;
    log.as_bytes().to_vec()
}

fn smart(controller: &Controller, statistics: &IoStatistics, now: Duration) -> Vec<u8> {
    let wide = |value: u64| [U64::new(value), U64::new(0)];
    let units = |bytes: u64| wide(bytes.div_ceil(512_000));
    let mut log = Smart::new_zeroed();
    let warns = controller.features.warns_of(TEMPERATURE_KELVIN);
    log.critical_warning = if warns { WARNING_TEMPERATURE } else { 0 };
    log.temperature = TEMPERATURE_KELVIN.into();
    log.spare = 100;
    log.spare_threshold = 10;
    log.data_units_read = units(statistics.bytes_read);
    log.data_units_written = units(statistics.bytes_written);
    log.host_reads = wide(statistics.reads);
    log.host_writes = wide(statistics.writes);
    log.media_errors = wide(statistics.media_errors);
    log.power_cycles = wide(1);
    log.power_on_hours = wide(now.as_secs() / 3600);
    log.error_entries = wide(controller.errors.count);
    log.as_bytes().to_vec()
}

/// I/O commands that are passed to devices, beside vendor specific ones.
const PASSED_READS: [u8; 3] = [
    opcode::io::RESERVATION_REPORT,
    opcode::io::IO_MANAGEMENT_RECEIVE,
    opcode::io::ZONE_MANAGEMENT_RECEIVE,
];
const PASSED_WRITES: [u8; 4] = [
    opcode::io::COPY,
    opcode::io::IO_MANAGEMENT_SEND,
    opcode::io::ZONE_MANAGEMENT_SEND,
    opcode::io::ZONE_APPEND,
];

/// The effects log. Linux lets unprivileged users pass commands through only if this says that
/// they are supported and at most change logical blocks.
fn effects(subsystem: &Subsystem) -> Vec<u8> {
    const ADMIN: [u8; 7] = [
        opcode::admin::GET_LOG_PAGE,
        opcode::admin::IDENTIFY,
        opcode::admin::ABORT,
        opcode::admin::SET_FEATURES,
        opcode::admin::GET_FEATURES,
        opcode::admin::ASYNC_EVENT_REQUEST,
        opcode::admin::KEEP_ALIVE,
    ];
    let mut log = Effects::new_zeroed();
    for opcode in ADMIN {
        log.admin[usize::from(opcode)] = effect::CSUPP.into();
    }
    let namespaces = &subsystem.namespaces;
    let any = |what: fn(&Limits) -> bool| {
        namespaces.is_empty() || namespaces.values().any(|namespace| what(&namespace.limits))
    };
    let writes = effect::CSUPP | effect::LBCC;
    let mut note = |opcode: u8, supported: bool, effects: u32| {
        if supported {
            log.io[usize::from(opcode)] = effects.into();
        }
    };
    note(opcode::io::FLUSH, true, effect::CSUPP);
    note(opcode::io::READ, true, effect::CSUPP);
    note(opcode::io::WRITE, true, writes);
    note(opcode::io::COMPARE, any(|l| l.commands.compare), effect::CSUPP);
    note(opcode::io::VERIFY, any(|l| l.commands.verify), effect::CSUPP);
    note(opcode::io::WRITE_ZEROES, any(|l| l.commands.write_zeroes), writes);
    note(opcode::io::WRITE_UNCORRECTABLE, any(|l| l.commands.write_uncorrectable), writes);
    note(opcode::io::DATASET_MANAGEMENT, any(|l| l.commands.deallocate), writes);
    note(opcode::io::COPY, any(|l| l.copy.is_offered()), writes);
    let passes =
        |what: fn(&Limits) -> bool| namespaces.values().any(|namespace| what(&namespace.limits));
    if passes(|l| l.passthrough.io) {
        // What the device knows of these it says itself, with Invalid Command Opcode.
        for opcode in PASSED_READS {
            note(opcode, true, effect::CSUPP);
        }
        for opcode in PASSED_WRITES.into_iter().chain(opcode::io::VENDOR_FIRST..=u8::MAX) {
            note(opcode, true, writes);
        }
    }
    if any(|l| l.commands.allocation) {
        log.admin[usize::from(opcode::admin::GET_LBA_STATUS)] = effect::CSUPP.into();
    }
    if passes(|l| l.passthrough.admin) {
        for opcode in opcode::admin::VENDOR_FIRST..=u8::MAX {
            log.admin[usize::from(opcode)] = writes.into();
        }
    }
    log.as_bytes().to_vec()
}

/// The ANA log of the controller's port (NVMe Base 2.1, section 5.1.12.1.13): the groups that
/// ever had a namespace or a state, ascending, each with its namespaces, ascending.
fn ana_log(controller: &Controller, subsystem: &Subsystem, groups_only: bool) -> Vec<u8> {
    let groups = &subsystem.ana.groups;
    let mut header = ana::Header::new_zeroed();
    header.change_count = subsystem.ana.change_count.into();
    header.groups = (groups.len() as u16).into();
    let mut log = header.as_bytes().to_vec();
    let mut members: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    if !groups_only {
        for (&nsid, namespace) in &subsystem.namespaces {
            members.entry(namespace.ana_group).or_default().push(nsid);
        }
    }
    for (&id, group) in groups {
        let nsids = members.remove(&id).unwrap_or_default();
        let mut head = ana::Group::new_zeroed();
        head.group = id.into();
        head.namespaces = (nsids.len() as u32).into();
        head.change_count = group.change_count.into();
        head.state = subsystem.ana.state(id, controller.port).0;
        log.extend_from_slice(head.as_bytes());
        log.extend(nsids.into_iter().flat_map(u32::to_le_bytes));
    }
    // Hosts read as much as there could be, in parts: NANAGRPID groups and MNAN namespaces.
    padded_to(log, ANA_LOG_BYTES_MAX)
}
