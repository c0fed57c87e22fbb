//! The data of Copy (NVM 1.1, section 3.3.2): up to 256 source ranges, in one of four formats.

use crate::opcode;
use crate::{Command, Status};

/// Source ranges that one command may carry (NVM 1.1, Figure 33: Number of Ranges is 8 bits,
/// zero-based).
pub const RANGES_MAX: usize = 256;
/// Blocks of one source range: Number of Logical Blocks is 16 bits, zero-based.
pub const RANGE_BLOCKS_MAX: u32 = 1 << 16;
/// Bytes of the longest list of source ranges.
pub const LIST_BYTES_MAX: usize = RANGES_MAX * Format::NamespacesLong.entry_bytes();

/// Descriptor formats that there are, as bits of OCFS (Identify Controller's `cdfs`).
pub const FORMATS: u16 = 0b1111;
/// Those that a host has to enable by Host Behavior's CDFE before it may use them (NVMe Base 2.1,
/// Figure 407); the other bits of CDFE are reserved.
pub const FORMATS_TO_ENABLE: u16 = Format::Namespaces.bit() | Format::NamespacesLong.bit();
/// Those that need not be enabled.
pub const FORMATS_ALWAYS: u16 = FORMATS & !FORMATS_TO_ENABLE;

/// Source options: the range is to be copied only if that is quicker than reading and writing it
/// (Fast Copy Only; formats 2h and 3h).
const FAST_COPY_ONLY: u16 = 1 << 15;

/// How source ranges are laid out: the descriptor format of a Copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Format {
    /// 0h: of the namespace that is written to.
    Short = 0,
    /// 1h: the same, with room for longer protection information.
    Long = 1,
    /// 2h: each range names its namespace.
    Namespaces = 2,
    /// 3h: the same, with room for longer protection information.
    NamespacesLong = 3,
}

impl Format {
    /// All of them, by number.
    pub const ALL: [Format; 4] =
        [Format::Short, Format::Long, Format::Namespaces, Format::NamespacesLong];

    /// The format of a number that the specification gives one.
    pub const fn from_number(number: u8) -> Option<Format> {
        match number {
            0 => Some(Format::Short),
            1 => Some(Format::Long),
            2 => Some(Format::Namespaces),
            3 => Some(Format::NamespacesLong),
            _ => None,
        }
    }

    /// Its bit in OCFS and in Host Behavior's CDFE.
    pub const fn bit(self) -> u16 {
        1 << self as u8
    }

    /// Bytes of one source range.
    pub const fn entry_bytes(self) -> usize {
        match self {
            Format::Short | Format::Namespaces => 32,
            Format::Long | Format::NamespacesLong => 40,
        }
    }

    /// Whether ranges name their namespaces. A host must have enabled such formats (CDFE).
    pub const fn names_namespaces(self) -> bool {
        matches!(self, Format::Namespaces | Format::NamespacesLong)
    }
}

/// One source range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Namespace that it is in; zero in formats that name none.
    pub nsid: u32,
    /// Starting LBA.
    pub slba: u64,
    /// Length in logical blocks, one-based: 1 to 65,536.
    pub blocks: u32,
    /// Fast Copy Only; never in formats that name no namespaces.
    pub fast_only: bool,
}

impl Entry {
    /// Lays the range out in `bytes`, which hold one entry of `format`.
    ///
    /// # Panics
    /// If `bytes` are of another length.
    pub fn write(&self, format: Format, bytes: &mut [u8]) {
        debug_assert!((1..=RANGE_BLOCKS_MAX).contains(&self.blocks));
        assert_eq!(bytes.len(), format.entry_bytes());
        bytes.fill(0);
        bytes[8..16].copy_from_slice(&self.slba.to_le_bytes());
        bytes[16..18].copy_from_slice(&((self.blocks - 1) as u16).to_le_bytes());
        if format.names_namespaces() {
            bytes[..4].copy_from_slice(&self.nsid.to_le_bytes());
            let options = if self.fast_only { FAST_COPY_ONLY } else { 0 };
            bytes[22..24].copy_from_slice(&options.to_le_bytes());
        }
    }

    /// The range that `bytes` lay out.
    fn read(format: Format, bytes: &[u8]) -> Entry {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let mut slba = [0; 8];
        slba.copy_from_slice(&bytes[8..16]);
        let (mut nsid, mut fast_only) = (0, false);
        if format.names_namespaces() {
            nsid = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            fast_only = u16_at(22) & FAST_COPY_ONLY != 0;
        }
        let slba = u64::from_le_bytes(slba);
        Entry { nsid, slba, blocks: u32::from(u16_at(16)) + 1, fast_only }
    }
}

/// The source ranges that `command` carries in `data`.
///
/// # Errors
/// A format that there is not, or less data than the command says.
pub fn entries<'a>(
    command: &Command,
    data: &'a [u8],
) -> Result<impl ExactSizeIterator<Item = Entry> + Clone + use<'a>, Status> {
    let format = command.copy_format().ok_or(Status::INVALID_FIELD.dnr())?;
    let bytes = command.copy_ranges() * format.entry_bytes();
    let list = data.get(..bytes).ok_or(Status::SGL_LENGTH_INVALID.dnr())?;
    Ok(list.chunks_exact(format.entry_bytes()).map(move |bytes| Entry::read(format, bytes)))
}

/// A Copy of `ranges` source ranges to the blocks from `sdlba` on.
///
/// # Panics
/// In a debug build, if `ranges` is not 1 to [`RANGES_MAX`].
pub fn command(nsid: u32, sdlba: u64, ranges: usize, format: Format) -> Command {
    debug_assert!((1..=RANGES_MAX).contains(&ranges));
    let mut command = Command {
        opcode: opcode::io::COPY,
        nsid: nsid.into(),
        cdw12: ((ranges as u32 - 1) | u32::from(format as u8) << 8).into(),
        ..Command::default()
    };
    command.set_slba(sdlba);
    command
}

impl Command {
    /// Descriptor format of a Copy (command dword 12, bits 11:8), if it is one that there is.
    pub fn copy_format(&self) -> Option<Format> {
        Format::from_number((self.cdw12.get() >> 8 & 0xf) as u8)
    }

    /// Source ranges of a Copy, one-based: 1 to 256 (command dword 12, bits 7:0 plus one).
    pub fn copy_ranges(&self) -> usize {
        (self.cdw12.get() & 0xff) as usize + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_they_are_written_in_every_format() {
        for format in Format::ALL {
            let names = format.names_namespaces();
            let wanted = [
                Entry { nsid: 0, slba: 0x1_0203_0405_0607, blocks: 1, fast_only: false },
                Entry {
                    nsid: if names { 0x0102_0304 } else { 0 },
                    slba: u64::MAX,
                    blocks: 65_536,
                    fast_only: names,
                },
            ];
            let mut list = vec![0xee; 2 * format.entry_bytes()];
            for (entry, bytes) in wanted.iter().zip(list.chunks_mut(format.entry_bytes())) {
                entry.write(format, bytes);
            }
            let command = command(7, 0x9_0000_0001, 2, format);
            assert_eq!((command.slba(), command.copy_ranges()), (0x9_0000_0001, 2));
            assert_eq!(command.copy_format(), Some(format));
            assert_eq!(entries(&command, &list).unwrap().collect::<Vec<_>>(), wanted);
            let short = entries(&command, &list[..list.len() - 1]).err();
            assert_eq!(short, Some(Status::SGL_LENGTH_INVALID.dnr()));
        }
    }

    #[test]
    fn entries_lie_where_the_specification_has_them() {
        let entry = Entry { nsid: 3, slba: 0x1122, blocks: 0x3345, fast_only: true };
        let mut bytes = [0xff; 32];
        entry.write(Format::Namespaces, &mut bytes);
        assert_eq!((bytes[0], bytes[8], bytes[9]), (3, 0x22, 0x11));
        assert_eq!((bytes[16], bytes[17], bytes[22], bytes[23]), (0x44, 0x33, 0, 0x80));
        // The range of a format that names no namespace is where the command is.
        entry.write(Format::Short, &mut bytes);
        assert_eq!((bytes[0], bytes[23]), (0, 0));
    }

    #[test]
    fn formats_that_name_namespaces_are_those_to_enable() {
        for format in Format::ALL {
            assert_ne!(format.bit() & FORMATS, 0);
            assert_eq!(format.bit() & FORMATS_TO_ENABLE != 0, format.names_namespaces());
            assert_eq!(format.bit() & FORMATS_ALWAYS == 0, format.names_namespaces());
            assert!(RANGES_MAX * format.entry_bytes() <= LIST_BYTES_MAX);
        }
        assert_eq!((FORMATS.count_ones(), LIST_BYTES_MAX), (4, 10_240));
    }

    #[test]
    fn formats_that_there_are_not_are_refused() {
        for number in 4..16 {
            let mut command = command(1, 0, 1, Format::Short);
            command.cdw12 = (number << 8).into();
            assert_eq!(entries(&command, &[0; 64]).err(), Some(Status::INVALID_FIELD.dnr()));
        }
    }
}
