//! Identify (NVMe Base 2.1, section 5.1.13; NVM 1.1, section 4.1.5).

use crate::admin::{Answer, expect_length};
use crate::controller::Controller;
use crate::event::ControllerId;
use crate::subsystem::{Namespace, Subsystem};
use crate::target::Target;
use crate::{
    ANA_GROUPS_MAX, ANA_TRANSITION_SECONDS, AnaState, ERROR_ENTRIES_MAX, EVENT_REQUESTS_MAX,
    IN_CAPSULE_BYTES, KEEP_ALIVE_GRANULARITY, NAMESPACES_MAX, QUEUE_ENTRIES_MAX,
    TRANSFER_BYTES_MAX,
};
use nvme::identify::{
    self, Cns, ControllerType, DATA_BYTES, DescriptorHeader, DiscoveryType, IndependentNamespace,
    NAMESPACE_LIST_ENTRIES, Nidt, NvmController, NvmNamespace, oacs, oncs, sgls,
};
use nvme::{Command, Limits, NSID_ALL, Status};
use zerocopy::{FromZeros, IntoBytes};

/// Smallest memory page of CAP, the unit of MDTS and its like.
const PAGE_SHIFT: u32 = 12;

/// `bytes`, a power of two of at least a page, as a power of two in pages.
const fn in_pages(bytes: u32) -> u8 {
    assert!(bytes.is_power_of_two() && bytes.trailing_zeros() > PAGE_SHIFT);
    (bytes.trailing_zeros() - PAGE_SHIFT) as u8
}

impl Target {
    pub(crate) fn identify(
        &mut self,
        id: ControllerId,
        command: &Command,
    ) -> Result<Answer, Status> {
        let controller = &self.controllers[&id];
        let mut data = match self.subsystems.get(&controller.subsystem_nqn) {
            Some(subsystem) if !controller.discovery => {
                self.identify_io(controller, subsystem, command)?
            }
            _ => self.identify_discovery(controller, command)?,
        };
        expect_length(command, DATA_BYTES as u64)?;
        data.resize(DATA_BYTES, 0);
        self.note_limits_told(id, command);
        Ok(Answer::data(data))
    }

    /// Notes what a host is told that must stay true as long as it is connected: MDTS, VSL, WZSL and those of
    /// Dataset Management.
    fn note_limits_told(&mut self, id: ControllerId, command: &Command) {
        let cns = Cns(command.cdw10.get() as u8);
        if !matches!(cns, Cns::CONTROLLER | Cns::COMMAND_SET_CONTROLLER) {
            return;
        }
        let Some(controller) = self.controllers.get_mut(&id) else { return };
        if let Some(subsystem) = self.subsystems.get(&controller.subsystem_nqn) {
            let bytes = subsystem.transfer_bytes_max();
            controller.transfer_bytes_told = controller.transfer_bytes_told.max(bytes);
            if cns == Cns::COMMAND_SET_CONTROLLER {
                let bytes = subsystem.write_zeroes_bytes_max();
                controller.write_zeroes_bytes_told = controller.write_zeroes_bytes_told.max(bytes);
                // Not less than it was told before: see `drop_misled`.
                controller.discard_told = Some(subsystem.discard_limits());
            }
        }
    }

    fn identify_discovery(
        &self,
        controller: &Controller,
        command: &Command,
    ) -> Result<Vec<u8>, Status> {
        match Cns(command.cdw10.get() as u8) {
            Cns::CONTROLLER => Ok(self.discovery_controller(controller).as_bytes().to_vec()),
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    fn identify_io(
        &self,
        controller: &Controller,
        subsystem: &Subsystem,
        command: &Command,
    ) -> Result<Vec<u8>, Status> {
        let nsid = command.nsid.get();
        let csi = (command.cdw11.get() >> 24) as u8;
        let cntid = (command.cdw10.get() >> 16) as u16;
        let invalid_field = Err(Status::INVALID_FIELD.dnr());
        // The NVM command set (CSI 0h) is the only one here.
        let nvm = || if csi == 0 { Ok(()) } else { Err(Status::INVALID_FIELD.dnr()) };
        match Cns(command.cdw10.get() as u8) {
            Cns::NAMESPACE => {
                let found = existing(controller, subsystem, nsid)?;
                Ok(found.map_or(Vec::new(), |(namespace, state)| {
                    nvm_namespace(namespace, state).as_bytes().to_vec()
                }))
            }
            Cns::CONTROLLER => Ok(self.io_controller(controller, subsystem).as_bytes().to_vec()),
            Cns::ACTIVE_NAMESPACES => active_list(subsystem, nsid),
            Cns::NAMESPACE_DESCRIPTORS => match existing(controller, subsystem, nsid)? {
                Some((namespace, _)) => Ok(descriptors(namespace)),
                None => Err(Status::INVALID_NAMESPACE.dnr()),
            },
            Cns::COMMAND_SET_NAMESPACE => {
                nvm()?;
                let found = existing(controller, subsystem, nsid)?;
                Ok(found.map_or(Vec::new(), |(namespace, _)| {
                    command_set_namespace(namespace).as_bytes().to_vec()
                }))
            }
            Cns::COMMAND_SET_CONTROLLER => nvm().map(|()| command_set_controller(subsystem)),
            Cns::COMMAND_SET_ACTIVE_NAMESPACES => {
                nvm()?;
                active_list(subsystem, nsid)
            }
            Cns::INDEPENDENT_NAMESPACE => {
                let found = existing(controller, subsystem, nsid)?;
                Ok(found.map_or(Vec::new(), |(namespace, _)| {
                    independent_namespace(namespace).as_bytes().to_vec()
                }))
            }
            Cns::NAMESPACE_CONTROLLERS => match existing(controller, subsystem, nsid)? {
                Some(_) => Ok(self.controller_list(subsystem, cntid)),
                None => Err(Status::INVALID_FIELD.dnr()),
            },
            Cns::CONTROLLERS => Ok(self.controller_list(subsystem, cntid)),
            Cns::COMMAND_SETS => {
                if cntid != 0xffff && !self.serves(subsystem, cntid) {
                    return invalid_field;
                }
                // Combination 0: the NVM command set alone.
                Ok(1u64.to_le_bytes().to_vec())
            }
            _ => invalid_field,
        }
    }

    /// Identify Controller data of an I/O controller.
    fn io_controller(
        &self,
        controller: &Controller,
        subsystem: &Subsystem,
    ) -> identify::Controller {
        let mut data = self.any_controller(controller);
        let limits: Vec<&Limits> =
            subsystem.namespaces.values().map(|namespace| &namespace.limits).collect();
        let any = |what: fn(&Limits) -> bool| limits.is_empty() || limits.iter().any(|l| what(l));
        let bit = |what: fn(&Limits) -> bool, bit: u16| if any(what) { bit } else { 0 };
        data.sn = subsystem.serial;
        data.mn = subsystem.model;
        data.rab = 6;
        data.mdts = in_pages(subsystem.transfer_bytes_max());
        // Several ports, several controllers, ANA reporting.
        data.cmic = 1 << 0 | 1 << 1 | 1 << 3;
        data.cntrltype = ControllerType::IO.0;
        data.acl_z = 3;
        data.oacs = bit(|l| l.commands.allocation, oacs::GET_LBA_STATUS).into();
        data.lpa |= 1 << 0 | 1 << 1;
        data.anatt = ANA_TRANSITION_SECONDS;
        // All five states are reported; the group of a namespace does not change.
        data.anacap = 0x1f | 1 << 6;
        data.anagrpmax = ANA_GROUPS_MAX.into();
        data.nanagrpid = ANA_GROUPS_MAX.into();
        data.sqes = 0x66;
        data.cqes = 0x44;
        data.nn = NAMESPACES_MAX.into();
        data.mnan = NAMESPACES_MAX.into();
        data.oncs = (oncs::SAVE_SELECT
            | bit(|l| l.commands.compare, oncs::COMPARE)
            | bit(|l| l.commands.write_uncorrectable, oncs::WRITE_UNCORRECTABLE)
            | bit(|l| l.commands.deallocate, oncs::DATASET_MANAGEMENT)
            | bit(|l| l.commands.write_zeroes, oncs::WRITE_ZEROES)
            | bit(|l| l.commands.verify, oncs::VERIFY)
            // Blocks are written whole, as by Write: the atomic write unit is one (NVM 1.1, section 3.3.2.2).
            | bit(|l| l.copy.is_offered(), oncs::COPY | oncs::COPY_SINGLE_ATOMICITY))
        .into();
        data.cdfs = subsystem.copy_formats().into();
        let fused = subsystem.fused && any(|l| l.commands.compare_and_write);
        data.fuses = u16::from(fused).into();
        // Flush of all namespaces at once is not supported (bits 2:1: 2). A namespace with a cache may come
        // while the host is connected, which asks once: those that have none say so (VWCNP).
        data.vwc = 2 << 1 | 1;
        data.ioccsz = ((64 + IN_CAPSULE_BYTES) / 16).into();
        data.iorcsz = 1.into();
        data.ofcs = 1.into();
        data.cqt_ms = self.command_quiesce_time_ms.into();
        if self.drains {
            identify::vendor::fill(&mut data.vs, identify::vendor::DRAINS);
        }
        if self.instance != [0; 16] {
            identify::vendor::set_instance(&mut data.vs, self.instance);
        }
        // One power state: 25 W, as emulated controllers tell it.
        data.psd[0].mp = 2500.into();
        data.psd[0].enlat = 16.into();
        data.psd[0].exlat = 4.into();
        data
    }

    /// Identify Controller data of the discovery controller (NVMe Base 2.1, section 3.1.3.4).
    fn discovery_controller(&self, controller: &Controller) -> identify::Controller {
        let mut data = self.any_controller(controller);
        data.sn = self.discovery_serial;
        data.mn = self.discovery_model;
        data.cntrltype = ControllerType::DISCOVERY.0;
        data.dctype = DiscoveryType::DIRECT.0;
        data
    }

    /// What controllers of both kinds say of themselves.
    fn any_controller(&self, controller: &Controller) -> identify::Controller {
        let mut data = identify::Controller::new_zeroed();
        data.fr = self.firmware;
        data.mdts = in_pages(TRANSFER_BYTES_MAX);
        data.cntlid = controller.cntlid.into();
        data.ver = nvme::VERSION.into();
        data.oaes = (controller.events_supported() & !nvme::event::notice::SMART).into();
        // 128-bit host identifiers, traffic based keep alive.
        data.ctratt = (1 << 0 | 1 << 6).into();
        data.aerl_z = (EVENT_REQUESTS_MAX - 1) as u8;
        // One read-only firmware slot.
        data.frmw = 1 << 0 | 1 << 1;
        // Offsets into log pages; the supported-log-pages and feature-effects pages.
        data.lpa = 1 << 2 | 1 << 5;
        data.elpe_z = (ERROR_ENTRIES_MAX - 1) as u8;
        data.kas = (KEEP_ALIVE_GRANULARITY.as_millis() as u16 / 100).into();
        data.maxcmd = QUEUE_ENTRIES_MAX.into();
        data.sgls = (sgls::SUPPORTED | sgls::OFFSET | sgls::TRANSPORT).into();
        data.msdbd = 1;
        let nqn = controller.subsystem_nqn.as_bytes();
        data.subnqn[..nqn.len()].copy_from_slice(nqn);
        data
    }

    fn serves(&self, subsystem: &Subsystem, cntlid: u16) -> bool {
        let found = self.controllers.get(&ControllerId(cntlid));
        found.is_some_and(|found| !found.dropped && found.subsystem_nqn == subsystem.nqn)
    }

    /// Controller list (NVMe Base 2.1, section 4.4.1): a count, then ids from `first` on.
    fn controller_list(&self, subsystem: &Subsystem, first: u16) -> Vec<u8> {
        let ids = self.controllers.range(ControllerId(first)..).map(|(id, _)| id.0);
        let ids: Vec<u16> =
            ids.filter(|&id| self.serves(subsystem, id)).take(DATA_BYTES / 2 - 1).collect();
        let count = ids.len() as u16;
        std::iter::once(count).chain(ids).flat_map(u16::to_le_bytes).collect()
    }
}

/// The namespace with its ANA state; `None` for an id that is valid but inactive.
fn existing<'a>(
    controller: &Controller,
    subsystem: &'a Subsystem,
    nsid: u32,
) -> Result<Option<(&'a Namespace, AnaState)>, Status> {
    if nsid == 0 || nsid > NAMESPACES_MAX {
        return Err(Status::INVALID_NAMESPACE.dnr());
    }
    Ok(subsystem
        .namespaces
        .get(&nsid)
        .map(|namespace| (namespace, subsystem.ana.state(namespace.ana_group, controller.port))))
}

/// Namespace ids above `after`, ascending (NVMe Base 2.1, section 5.1.13.2.2).
fn active_list(subsystem: &Subsystem, after: u32) -> Result<Vec<u8>, Status> {
    if after >= NSID_ALL - 1 {
        return Err(Status::INVALID_NAMESPACE.dnr());
    }
    let nsids = subsystem.namespaces.range(after + 1..).map(|(nsid, _)| nsid);
    Ok(nsids.take(NAMESPACE_LIST_ENTRIES).flat_map(|nsid| nsid.to_le_bytes()).collect())
}

fn nvm_namespace(namespace: &Namespace, state: AnaState) -> identify::Namespace {
    let limits = &namespace.limits;
    let mut data = identify::Namespace::new_zeroed();
    data.nsze = limits.blocks.into();
    data.ncap = limits.blocks.into();
    // NVMe Base 2.1, sections 8.1.1.6 and 8.1.1.7: where it is inaccessible, utilization and
    // capacity are zero.
    if !matches!(state, AnaState::INACCESSIBLE | AnaState::PERSISTENT_LOSS) {
        data.nuse = limits.blocks.into();
        data.nvmcap = u128::from(limits.bytes()).to_le_bytes();
    }
    if limits.commands.checksum {
        identify::vendor::set_gives_checksums(&mut data.vs);
    }
    if !limits.volatile_write_cache {
        identify::vendor::set_has_no_write_cache(&mut data.vs);
    }
    let optimal_blocks = (limits.optimal_write_bytes >> limits.block_shift).clamp(1, 0x1_0000);
    let optimal_z = (optimal_blocks - 1) as u16;
    // Identifiers are never reused; the preferred write sizes are valid.
    data.nsfeat = 1 << 3 | 1 << 4;
    data.npwg_z = optimal_z.into();
    data.npwa_z = optimal_z.into();
    data.npdg_z = optimal_z.into();
    data.npda_z = optimal_z.into();
    data.nows_z = optimal_z.into();
    data.nmic = 1;
    if limits.commands.deallocate {
        // Deallocated blocks read as zeroes; Write Zeroes may deallocate.
        data.dlfeat = 1 | u8::from(limits.commands.write_zeroes) << 3;
    } else if limits.commands.allocation {
        data.dlfeat = 1;
    }
    if limits.copy.is_offered() {
        // Both counts fit: see `Subsystem::offered`.
        data.mssrl = (limits.copy.range_blocks_max as u16).into();
        data.mcl = limits.copy.blocks_max.into();
        data.msrc_z = (limits.copy.ranges_max - 1) as u8;
    }
    data.anagrpid = namespace.ana_group.into();
    data.nsattr = u8::from(limits.read_only);
    data.nguid = namespace.nguid;
    data.lbaf[0].lbads = limits.block_shift;
    data
}

fn independent_namespace(namespace: &Namespace) -> IndependentNamespace {
    let mut data = IndependentNamespace::new_zeroed();
    data.nsfeat = 1 << 3 | u8::from(!namespace.limits.volatile_write_cache) << 5;
    data.nmic = 1;
    data.anagrpid = namespace.ana_group.into();
    data.nsattr = u8::from(namespace.limits.read_only);
    data.nstat = 1;
    data
}

fn command_set_namespace(namespace: &Namespace) -> NvmNamespace {
    let mut data = NvmNamespace::new_zeroed();
    data.tlbaag = u32::from(namespace.limits.commands.allocation).into();
    data
}

fn command_set_controller(subsystem: &Subsystem) -> Vec<u8> {
    let mut data = NvmController::new_zeroed();
    data.vsl = in_pages(subsystem.transfer_bytes_max());
    data.wzsl = in_pages(subsystem.write_zeroes_bytes_max());
    data.set_discard_limits(subsystem.discard_limits());
    data.as_bytes().to_vec()
}

/// Namespace Identification Descriptor list: NGUID, UUID and command set.
fn descriptors(namespace: &Namespace) -> Vec<u8> {
    let mut list = Vec::new();
    let mut add = |nidt: Nidt, identifier: &[u8]| {
        let nidl = identifier.len() as u8;
        let header = DescriptorHeader { nidt: nidt.0, nidl, reserved2: [0; 2] };
        list.extend_from_slice(header.as_bytes());
        list.extend_from_slice(identifier);
    };
    if namespace.nguid != [0; 16] {
        add(Nidt::NGUID, &namespace.nguid);
    }
    if namespace.uuid != [0; 16] {
        add(Nidt::UUID, &namespace.uuid);
    }
    add(Nidt::CSI, &[0]);
    list
}
