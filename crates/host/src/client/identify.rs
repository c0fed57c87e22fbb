//! Identify (NVMe Base 2.1, section 5.1.13).

use super::{Client, ClientError, Payload, Reason};
use nvme::identify::{self, Cns, DescriptorHeader, LbaFormat, NAMESPACE_LIST_ENTRIES, Nidt};
use nvme::{Command, opcode};
use zerocopy::FromBytes;

/// Namespaces of a subsystem that are listed at most.
pub const NAMESPACES_MAX: usize = 64 << 10;

/// Parameters of an Identify command (NVMe Base 2.1, Figures 306 to 309).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identify {
    /// What to identify.
    pub cns: Cns,
    /// Namespace id, or where a list begins; zero where there is none.
    pub nsid: u32,
    /// Controller id, for some values of CNS.
    pub cntid: u16,
    /// Command set identifier.
    pub csi: u8,
}

impl Identify {
    /// The structure `cns` of `nsid`.
    pub fn new(cns: Cns, nsid: u32) -> Identify {
        Identify { cns, nsid, cntid: 0, csi: 0 }
    }

    fn command(self) -> Command {
        Command {
            opcode: opcode::admin::IDENTIFY,
            nsid: self.nsid.into(),
            cdw10: (u32::from(self.cns.0) | u32::from(self.cntid) << 16).into(),
            cdw11: (u32::from(self.csi) << 24).into(),
            ..Command::default()
        }
    }
}

/// One name of a namespace (NVMe Base 2.1, Figure 315).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// What kind of name.
    pub nidt: Nidt,
    /// The name; at most 255 bytes.
    pub id: Vec<u8>,
}

/// The format that a namespace has.
pub fn lba_format(namespace: &identify::Namespace) -> LbaFormat {
    namespace.lbaf[namespace.format_index()]
}

impl Client {
    /// The Identify data structure of any CNS, [`identify::DATA_BYTES`] bytes.
    ///
    /// # Errors
    /// The controller refuses, or the connection failed.
    pub fn identify(&mut self, identify: Identify) -> Result<Vec<u8>, ClientError> {
        let mut data = vec![0; identify::DATA_BYTES];
        let doing = match identify.nsid {
            0 => format!("Identify {:#04x}", identify.cns.0),
            nsid => format!("Identify {:#04x} of namespace {nsid}", identify.cns.0),
        };
        self.execute(identify.command(), Payload::Receive(&mut data), &doing)?;
        Ok(data)
    }

    /// The controller.
    ///
    /// # Errors
    /// As [`Client::identify`].
    pub fn identify_controller(&mut self) -> Result<Box<identify::Controller>, ClientError> {
        self.structure(Identify::new(Cns::CONTROLLER, 0))
    }

    /// An active namespace of the NVM command set.
    ///
    /// # Errors
    /// As [`Client::identify`]; there is no such namespace, or its block size makes no sense.
    pub fn identify_namespace(
        &mut self,
        nsid: u32,
    ) -> Result<Box<identify::Namespace>, ClientError> {
        let namespace: Box<identify::Namespace> =
            self.structure(Identify::new(Cns::NAMESPACE, nsid))?;
        let doing = format!("Identify of namespace {nsid}");
        let shift = lba_format(&namespace).lbads;
        match shift {
            _ if namespace.nsze.get() == 0 => {
                Err(self.failed(&doing, Reason::NoNamespace { nsid }))
            }
            9..=31 if namespace.nsze.get().leading_zeros() > u32::from(shift) => Ok(namespace),
            _ => Err(self.failed(&doing, Reason::Field { field: "LBADS", value: shift.into() })),
        }
    }

    /// Ids of the active namespaces, ascending; at most [`NAMESPACES_MAX`].
    ///
    /// # Errors
    /// As [`Client::identify`]; the list is longer, or is not ascending.
    pub fn active_namespaces(&mut self) -> Result<Vec<u32>, ClientError> {
        let doing = "Identify 0x02, the active namespaces";
        let mut nsids: Vec<u32> = Vec::new();
        loop {
            let after = nsids.last().copied().unwrap_or(0);
            let page = self.identify(Identify::new(Cns::ACTIVE_NAMESPACES, after))?;
            let listed = page
                .chunks_exact(4)
                .map(|bytes| u32::from_le_bytes(bytes.try_into().expect("chunks of four")));
            let before = nsids.len();
            for nsid in listed.take_while(|&nsid| nsid != 0) {
                if nsids.last().is_some_and(|&last| nsid <= last) || nsid == nvme::NSID_ALL {
                    let value = nsid.into();
                    return Err(self.failed(doing, Reason::Field { field: "NSID", value }));
                }
                nsids.push(nsid);
            }
            if nsids.len() > NAMESPACES_MAX {
                let (count, max) = (nsids.len() as u64, NAMESPACES_MAX as u64);
                let what = "namespaces";
                return Err(self.failed(doing, Reason::TooMany { what, count, max }));
            }
            if nsids.len() - before < NAMESPACE_LIST_ENTRIES {
                return Ok(nsids);
            }
        }
    }

    /// The names of a namespace.
    ///
    /// # Errors
    /// As [`Client::identify`].
    pub fn descriptors(&mut self, nsid: u32) -> Result<Vec<Descriptor>, ClientError> {
        let data = self.identify(Identify::new(Cns::NAMESPACE_DESCRIPTORS, nsid))?;
        let mut descriptors = Vec::new();
        let mut rest = &data[..];
        while let Ok((header, behind)) = DescriptorHeader::read_from_prefix(rest) {
            let Some((id, behind)) = behind.split_at_checked(header.nidl.into()) else { break };
            if header.nidl == 0 {
                break;
            }
            descriptors.push(Descriptor { nidt: Nidt(header.nidt), id: id.to_vec() });
            rest = behind;
        }
        Ok(descriptors)
    }

    fn structure<T: FromBytes>(&mut self, identify: Identify) -> Result<Box<T>, ClientError> {
        const { assert!(size_of::<T>() == identify::DATA_BYTES) }
        let data = self.identify(identify)?;
        Ok(Box::new(T::read_from_bytes(&data).expect("sizes are equal")))
    }
}
