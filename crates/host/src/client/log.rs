//! Get Log Page (NVMe Base 2.1, section 5.1.12), and the logs that are read whole.

use super::{Client, ClientError, Payload, Reason};
use association::{DiscoveryLog, DiscoveryReader};
use nvme::Command;
use nvme::log::ana::{self, AnaState};
use nvme::log::{GetLogPage, Lid};
use zerocopy::FromBytes;

/// Bytes of a log page that are read at most.
pub const LOG_BYTES_MAX: u64 = 64 << 20;
/// Bytes that are read with one command of any controller: no MDTS is below one page of memory,
/// which has 4 KiB at least.
const PAGE_BYTES: usize = 4096;
/// As a power of two the pages that are read with one command at most, if MDTS allows more or any: 1 MiB.
const MDTS_MAX: u8 = 8;
/// LPA: log pages have offsets.
const OFFSETS: u8 = 1 << 2;
/// ANA groups that are read at most; with more, the log would not fit one command of 128 KiB.
const GROUPS_MAX: u32 = 4095;

/// Which log page, and which part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPage {
    /// Log page identifier.
    pub lid: Lid,
    /// Namespace id; FFFFFFFFh for the controller's own log.
    pub nsid: u32,
    /// Log specific parameter, seven bits.
    pub lsp: u8,
    /// Log specific identifier.
    pub lsi: u16,
    /// Command set identifier.
    pub csi: u8,
    /// UUID index, seven bits.
    pub uuid_index: u8,
    /// First byte, a multiple of four.
    pub offset: u64,
    /// The offset counts entries, not bytes: the log is read with one command.
    pub index_offset: bool,
    /// Do not clear the event of this page.
    pub retain_event: bool,
}

impl LogPage {
    /// The controller's own log, from its start, that retains events.
    pub fn new(lid: Lid) -> LogPage {
        LogPage {
            lid,
            nsid: nvme::NSID_ALL,
            lsp: 0,
            lsi: 0,
            csi: 0,
            uuid_index: 0,
            offset: 0,
            index_offset: false,
            retain_event: true,
        }
    }

    fn command(&self, offset: u64, bytes: usize) -> Command {
        let log = GetLogPage {
            lid: self.lid,
            lsp: self.lsp,
            retain_event: self.retain_event,
            bytes: bytes as u64,
            offset,
            index_offset: self.index_offset,
            csi: self.csi,
        };
        let command = log.command();
        Command {
            nsid: self.nsid.into(),
            cdw11: (command.cdw11.get() | u32::from(self.lsi) << 16).into(),
            cdw14: (command.cdw14.get() | u32::from(self.uuid_index & 0x7f)).into(),
            ..command
        }
    }
}

/// The states of the ANA groups, without their namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnaGroups {
    /// Change count of the log.
    pub change_count: u64,
    /// The groups.
    pub groups: Vec<AnaGroup>,
}

/// One ANA group as this controller sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnaGroup {
    /// ANA group identifier.
    pub id: u32,
    /// Its state through this controller.
    pub state: AnaState,
}

impl AnaGroups {
    /// The state of a group.
    pub fn state(&self, group: u32) -> Option<AnaState> {
        self.groups.iter().find(|one| one.id == group).map(|one| one.state)
    }
}

impl Client {
    /// `bytes` bytes of a log page, a multiple of four, read with one command if the controller
    /// takes so many, or has no offsets, or `page`'s counts entries. Otherwise it is read in pieces,
    /// and only the last clears the event, if it is to be.
    ///
    /// # Errors
    /// More than [`LOG_BYTES_MAX`] are asked for, the controller refuses, or the connection failed.
    pub fn log_page(&mut self, page: &LogPage, bytes: u64) -> Result<Vec<u8>, ClientError> {
        let doing = format!("Get Log Page {:#04x}", page.lid.0);
        if bytes > LOG_BYTES_MAX {
            let (what, max) = ("bytes", LOG_BYTES_MAX);
            return Err(self.failed(&doing, Reason::TooMany { what, count: bytes, max }));
        }
        if bytes == 0 || !bytes.is_multiple_of(4) {
            return Err(self.failed(&doing, Reason::Field { field: "NUMD", value: bytes }));
        }
        let mut data = vec![0; bytes as usize];
        let whole = page.index_offset || data.len() <= PAGE_BYTES;
        let piece_bytes = if whole { data.len() } else { self.log_piece_bytes(data.len())? };
        let (mut offset, last) = (page.offset, data.len().div_ceil(piece_bytes) - 1);
        for (index, piece) in data.chunks_mut(piece_bytes).enumerate() {
            let retain_event = page.retain_event || index < last;
            let command = LogPage { retain_event, ..*page }.command(offset, piece.len());
            offset = offset.saturating_add(piece.len() as u64);
            self.execute(command, Payload::Receive(piece), &doing)?;
        }
        Ok(data)
    }

    /// In pieces of how many bytes a log page of `bytes` is read. Linux' target takes no offset into
    /// its ANA log although it says that it takes them: what one command can bring, one does.
    fn log_piece_bytes(&mut self, bytes: usize) -> Result<usize, ClientError> {
        let controller = self.identify_controller()?;
        if controller.lpa & OFFSETS == 0 {
            return Ok(bytes);
        }
        let shift = if controller.mdts == 0 { MDTS_MAX } else { controller.mdts.min(MDTS_MAX) };
        Ok(PAGE_BYTES << shift)
    }

    /// The whole discovery log (NVMe Base 2.1, section 5.1.12.3.1): its head is read again after
    /// its entries, and everything once more if the generation counter has changed.
    ///
    /// # Errors
    /// It has more than [`DISCOVERY_ENTRIES_MAX`](super::DISCOVERY_ENTRIES_MAX) entries, changes each
    /// of [`LOG_CHANGES_MAX`](super::LOG_CHANGES_MAX) times, or cannot be read.
    pub fn discovery_log(&mut self) -> Result<DiscoveryLog, ClientError> {
        let doing = "reading its discovery log";
        // Whoever waits for changes has them reported anew: what comes between two reads of the head
        // shows in the generation.
        let retain_event = !self.tells_changes;
        let page = LogPage { nsid: 0, retain_event, ..LogPage::new(Lid::DISCOVERY) };
        let mut reader = DiscoveryReader::default();
        while let Some((offset, bytes)) = reader.wanted() {
            let data = self.log_page(&LogPage { offset, ..page }, bytes as u64)?;
            reader.take(&data).map_err(|fault| self.failed(doing, fault.into()))?;
        }
        Ok(reader.finish().expect("nothing more is wanted"))
    }

    /// The states of the ANA groups (NVMe Base 2.1, section 5.1.12.1.13). `groups` is the
    /// controller's NANAGRPID: that many at most are read.
    ///
    /// # Errors
    /// The controller has no ANA log, or one that makes no sense.
    pub fn ana_groups(&mut self, groups: u32) -> Result<AnaGroups, ClientError> {
        let doing = "reading its ANA log";
        if groups > GROUPS_MAX {
            let (what, count, max) = ("ANA groups", groups.into(), GROUPS_MAX.into());
            return Err(self.failed(doing, Reason::TooMany { what, count, max }));
        }
        // With one command: Linux' target takes no offset into this log.
        let (head, each) = (size_of::<ana::Header>(), size_of::<ana::Group>());
        let mut data = vec![0; head + groups as usize * each];
        let page = LogPage { lsp: ana::GROUPS_ONLY, ..LogPage::new(Lid::ANA) };
        let command = page.command(0, data.len());
        self.execute(command, Payload::Receive(&mut data), doing)?;
        let (header, rest) = ana::Header::read_from_prefix(&data).expect("the head was read");
        let count = header.groups.get();
        if u32::from(count) > groups {
            let value = count.into();
            return Err(self.failed(doing, Reason::Field { field: "NAGD", value }));
        }
        let listed = rest.chunks_exact(each).take(count.into()).map(|bytes| {
            let group = ana::Group::read_from_bytes(bytes).expect("sizes are equal");
            AnaGroup { id: group.group.get(), state: AnaState(group.state) }
        });
        Ok(AnaGroups { change_count: header.change_count.get(), groups: listed.collect() })
    }
}
