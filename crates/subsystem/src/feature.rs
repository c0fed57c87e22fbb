//! Get Features and Set Features (NVMe Base 2.1, section 5.1.25). Nothing is saved: a controller
//! lives as long as its association.

use crate::TRANSFER_BYTES_MAX;
use crate::admin::{Answer, expect_length};
use crate::controller::{Controller, KeepAlive};
use crate::event::ControllerId;
use crate::subsystem::Subsystem;
use crate::target::Target;
use nvme::copy::{FORMATS_ALWAYS, FORMATS_TO_ENABLE};
use nvme::event::notice;
use nvme::feature::{Fid, HostBehavior, Select, capability};
use nvme::{Command, Status};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

const _: () = assert!(size_of::<HostBehavior>() as u32 <= TRANSFER_BYTES_MAX);

/// What a feature is, apart from its value.
pub(crate) struct Description {
    pub fid: Fid,
    /// Discovery controllers have it too.
    pub discovery: bool,
    changeable: bool,
}

/// The features that there are.
pub(crate) const FEATURES: [Description; 12] = [
    io(Fid::ARBITRATION, true),
    io(Fid::POWER_MANAGEMENT, true),
    io(Fid::TEMPERATURE_THRESHOLD, true),
    io(Fid::ERROR_RECOVERY, true),
    io(Fid::VOLATILE_WRITE_CACHE, false),
    io(Fid::NUMBER_OF_QUEUES, true),
    io(Fid::WRITE_ATOMICITY, true),
    both(Fid::ASYNC_EVENT_CONFIGURATION, true),
    both(Fid::KEEP_ALIVE_TIMER, true),
    io(Fid::HOST_BEHAVIOR, true),
    io(Fid::COMMAND_SET_PROFILE, true),
    both(Fid::HOST_IDENTIFIER, false),
];

const fn io(fid: Fid, changeable: bool) -> Description {
    Description { fid, discovery: false, changeable }
}

const fn both(fid: Fid, changeable: bool) -> Description {
    Description { fid, discovery: true, changeable }
}

/// Over-temperature threshold of the composite temperature at first: 343 K, 70 degrees Celsius.
const OVER_TEMPERATURE: u32 = 343;

/// Values that hosts set and this target only remembers.
#[derive(Debug)]
pub(crate) struct Features {
    arbitration: u32,
    over_temperature: u32,
    under_temperature: u32,
    error_recovery: u32,
    write_atomicity: u32,
    /// The first six bytes of Host Behavior Support; the rest is reserved.
    host_behavior: [u8; 6],
}

impl Default for Features {
    fn default() -> Features {
        Features {
            arbitration: 6,
            over_temperature: OVER_TEMPERATURE,
            under_temperature: 0,
            error_recovery: 0,
            write_atomicity: 0,
            host_behavior: [0; 6],
        }
    }
}

impl Features {
    /// Whether a composite temperature is at or beyond one of its thresholds.
    pub fn warns_of(&self, kelvin: u16) -> bool {
        let kelvin = u32::from(kelvin);
        kelvin >= self.over_temperature || kelvin <= self.under_temperature
    }

    /// Bits of the Asynchronous Event Configuration that may be set; at first all are. Critical
    /// warnings can be asked for and never come: the only one that there can be, of the temperature,
    /// is in the SMART log from the command on that sets its threshold.
    pub fn events_supported(discovery: bool) -> u32 {
        if discovery {
            notice::DISCOVERY_CHANGE
        } else {
            notice::NAMESPACE_ATTRIBUTE | notice::ANA_CHANGE | notice::SMART
        }
    }
}

impl Controller {
    pub fn events_supported(&self) -> u32 {
        Features::events_supported(self.discovery)
    }

    /// Formats of a Copy's list that the host may use: those that need not be enabled, and those
    /// that it has enabled (CDFE).
    pub fn copy_formats(&self) -> u16 {
        let [.., low, high] = self.features.host_behavior;
        FORMATS_ALWAYS | u16::from_le_bytes([low, high])
    }
}

impl Target {
    /// Formats of a Copy's list that a controller's host may use, a bit per [`nvme::copy::Format`].
    /// Set Features changes it, at any time: to be asked for again before that is answered.
    pub fn copy_formats(&self, id: ControllerId) -> u16 {
        self.controllers.get(&id).map_or(FORMATS_ALWAYS, Controller::copy_formats)
    }

    /// The keep alive time-out of a controller in milliseconds, as it is in force; zero for none. Set Features changes it.
    pub fn kato_ms(&self, id: ControllerId) -> u32 {
        self.controllers.get(&id).map_or(0, |controller| controller.keep_alive.kato_ms())
    }

    pub(crate) fn features(&self, id: ControllerId, command: &Command) -> Result<Answer, Status> {
        let controller = &self.controllers[&id];
        let cdw10 = command.cdw10.get();
        let feature = description(controller, Fid(cdw10 as u8))?;
        let subsystem = self.subsystems.get(&controller.subsystem_nqn);
        match Select((cdw10 >> 8 & 7) as u8) {
            Select::CAPABILITIES => {
                let changeable = if feature.changeable { capability::CHANGEABLE } else { 0 };
                Ok(Answer::result(changeable.into()))
            }
            Select::CURRENT => value(controller, &controller.features, subsystem, command),
            // Nothing is saved, so that the saved value is the default (Figure 192).
            Select::DEFAULT | Select::SAVED => match Fid(cdw10 as u8) {
                Fid::ASYNC_EVENT_CONFIGURATION => {
                    Ok(Answer::result(controller.events_supported().into()))
                }
                Fid::KEEP_ALIVE_TIMER => Ok(Answer::result(controller.connect_kato_ms.into())),
                _ => value(controller, &Features::default(), subsystem, command),
            },
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    pub(crate) fn set_features(
        &mut self,
        id: ControllerId,
        command: &Command,
        data: &[u8],
        now: Duration,
    ) -> Result<Answer, Status> {
        let Some(controller) = self.controllers.get_mut(&id) else {
            return Err(Status::INTERNAL);
        };
        let (cdw10, cdw11) = (command.cdw10.get(), command.cdw11.get());
        let feature = description(controller, Fid(cdw10 as u8))?;
        if cdw10 & 1 << 31 != 0 {
            return Err(Status::FEATURE_NOT_SAVEABLE.dnr());
        }
        if !matches!(command.nsid.get(), 0 | nvme::NSID_ALL) {
            return Err(Status::FEATURE_NOT_NAMESPACE.dnr());
        }
        let subsystem = self.subsystems.get(&controller.subsystem_nqn);
        let io_queues_max = subsystem.map_or(1, |subsystem| subsystem.io_queues_max);
        let invalid = Err(Status::INVALID_FIELD.dnr());
        match feature.fid {
            Fid::ARBITRATION => controller.features.arbitration = cdw11,
            // Power state 0 is the only one.
            Fid::POWER_MANAGEMENT if cdw11 & 0x1f == 0 => {}
            Fid::TEMPERATURE_THRESHOLD => {
                *threshold(&mut controller.features, cdw11)? = cdw11 & 0xffff;
            }
            // Deallocated blocks do not fail to read (DULBE, bit 16).
            Fid::ERROR_RECOVERY if cdw11 & 1 << 16 == 0 => {
                controller.features.error_recovery = cdw11 & 0xffff;
            }
            // A cache that is there is on, and one that is not is off: to say so is no change.
            Fid::VOLATILE_WRITE_CACHE if (cdw11 & 1 == 1) == subsystem.is_some_and(has_cache) => {}
            Fid::VOLATILE_WRITE_CACHE => return Err(Status::FEATURE_NOT_CHANGEABLE.dnr()),
            // NVMe Base 2.1, section 5.1.25.1.28: over fabrics Connect has set it.
            Fid::HOST_IDENTIFIER => return Err(Status::COMMAND_SEQUENCE_ERROR.dnr()),
            Fid::NUMBER_OF_QUEUES => return controller.set_queues(cdw11, io_queues_max),
            Fid::WRITE_ATOMICITY => controller.features.write_atomicity = cdw11 & 1,
            Fid::ASYNC_EVENT_CONFIGURATION => {
                if cdw11 & !controller.events_supported() != 0 {
                    return invalid;
                }
                controller.events.configure(cdw11);
            }
            Fid::KEEP_ALIVE_TIMER => {
                controller.keep_alive = KeepAlive::new(cdw11, now);
                self.schedule(id);
            }
            Fid::HOST_BEHAVIOR => {
                let formats = subsystem.map_or(0, Subsystem::copy_formats);
                return controller.set_host_behavior(command, data, formats);
            }
            Fid::COMMAND_SET_PROFILE if cdw11 & 0x1ff == 0 => {}
            _ => return invalid,
        }
        Ok(Answer::result(0))
    }
}

impl Controller {
    /// Number of Queues (NVMe Base 2.1, section 5.1.25.2.1); both counts are zero-based.
    fn set_queues(&mut self, cdw11: u32, io_queues_max: u16) -> Result<Answer, Status> {
        if cdw11 & 0xffff == 0xffff || cdw11 >> 16 == 0xffff {
            return Err(Status::INVALID_FIELD.dnr());
        }
        if self.queues.io_count() > 0 {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
        }
        Ok(Answer::result(queues_allocated(io_queues_max)))
    }

    /// Host Behavior Support; `formats` are the copy descriptor formats that the subsystem offers.
    fn set_host_behavior(
        &mut self,
        command: &Command,
        data: &[u8],
        formats: u16,
    ) -> Result<Answer, Status> {
        expect_length(command, size_of::<HostBehavior>() as u64)?;
        let behavior = HostBehavior::ref_from_bytes(data);
        let behavior = behavior.map_err(|_| Status::SGL_LENGTH_INVALID.dnr())?;
        let flags = [behavior.acre, behavior.etdas, behavior.lbafee, behavior.hdisns];
        let formats = formats & FORMATS_TO_ENABLE;
        if flags.iter().any(|&flag| flag > 1) || behavior.cdfe.get() & !formats != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        self.features.host_behavior.copy_from_slice(&data[..6]);
        Ok(Answer::result(0))
    }
}

/// Whether any namespace has a volatile write cache.
fn has_cache(subsystem: &Subsystem) -> bool {
    let mut namespaces = subsystem.namespaces.values();
    namespaces.any(|namespace| namespace.limits.volatile_write_cache)
}

fn queues_allocated(io_queues_max: u16) -> u64 {
    let max_z = u64::from(io_queues_max - 1);
    max_z | max_z << 16
}

fn description(controller: &Controller, fid: Fid) -> Result<&'static Description, Status> {
    let known = FEATURES.iter().find(|feature| feature.fid == fid);
    known
        .filter(|feature| feature.discovery || !controller.discovery)
        .ok_or(Status::INVALID_FIELD.dnr())
}

/// The threshold that command dword 11 selects: composite temperature, over or under.
fn threshold(features: &mut Features, cdw11: u32) -> Result<&mut u32, Status> {
    // TMPSEL in bits 19:16: composite, or all sensors (for Set Features); THSEL in bits 21:20.
    match (cdw11 >> 16 & 0xf, cdw11 >> 20 & 3) {
        (0 | 0xf, 0) => Ok(&mut features.over_temperature),
        (0 | 0xf, 1) => Ok(&mut features.under_temperature),
        _ => Err(Status::INVALID_FIELD.dnr()),
    }
}

fn value(
    controller: &Controller,
    features: &Features,
    subsystem: Option<&Subsystem>,
    command: &Command,
) -> Result<Answer, Status> {
    let cdw11 = command.cdw11.get();
    let invalid = Status::INVALID_FIELD.dnr();
    let dword = match Fid(command.cdw10.get() as u8) {
        Fid::ARBITRATION => features.arbitration,
        Fid::POWER_MANAGEMENT | Fid::COMMAND_SET_PROFILE => 0,
        Fid::TEMPERATURE_THRESHOLD => match (cdw11 >> 16 & 0xf, cdw11 >> 20 & 3) {
            (0, 0) => features.over_temperature,
            (0, 1) => features.under_temperature,
            _ => return Err(invalid),
        },
        Fid::ERROR_RECOVERY => features.error_recovery,
        Fid::VOLATILE_WRITE_CACHE => u32::from(has_cache(subsystem.ok_or(invalid)?)),
        Fid::NUMBER_OF_QUEUES => {
            let queues = subsystem.ok_or(invalid)?.io_queues_max;
            return Ok(Answer::result(queues_allocated(queues)));
        }
        Fid::WRITE_ATOMICITY => features.write_atomicity,
        Fid::ASYNC_EVENT_CONFIGURATION => controller.events.configuration(),
        Fid::KEEP_ALIVE_TIMER => controller.keep_alive.kato_ms(),
        Fid::HOST_BEHAVIOR => {
            expect_length(command, size_of::<HostBehavior>() as u64)?;
            let mut data = features.host_behavior.to_vec();
            data.resize(size_of::<HostBehavior>(), 0);
            return Ok(Answer::data(data));
        }
        Fid::HOST_IDENTIFIER => {
            // EXHID, bit 0: fabrics have 128-bit host identifiers only.
            if cdw11 & 1 == 0 {
                return Err(Status::HOST_ID_INCONSISTENT.dnr());
            }
            expect_length(command, controller.host_id.len() as u64)?;
            return Ok(Answer::data(controller.host_id.as_bytes().to_vec()));
        }
        _ => return Err(invalid),
    };
    Ok(Answer::result(dword.into()))
}
