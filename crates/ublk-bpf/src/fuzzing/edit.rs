//! Real objects with something changed in them.
//!
//! ```text
//!   object --> Draft: sections, types apart --edits--> Draft --> object, where everything has a place again
//!
//!   an edit: | what: 1 | part: 1 | which: 2 | value: 8 |     numbers are taken modulo what there is
//! ```
//!
//! Numbers from 2^15 on count from the end. Where a name is expected, small values are those of [`NAMES`].

use object::read::elf::{ElfFile64, FileHeader, SectionHeader};
use object::{LittleEndian, elf};
use std::ops::Range;

/// Bytes of an edit.
pub const BYTES: usize = 12;
/// Kinds of edits.
pub const KINDS: u8 = 15;
/// Most copies of something by one edit, and most bytes that a section is made to have.
const COPIES_MAX: u64 = 64;
const SECTION_BYTES_MAX: u64 = 1 << 16;

/// Names that mean something to somebody.
const NAMES: [&str; 64] = [
    "nvlane_kernel_route",
    "nvlane_kernel_done",
    "nvlane_kernel_part",
    "nvlane_kernel_event",
    "nvlane_loop_step",
    "nvlane_flights",
    "nvlane_queues",
    "nvlane_deferrals",
    "nvlane_held",
    "nvlane_mistakes",
    "nvlane_config",
    "nvlane_ops",
    "nvlane_license",
    "bpf_iter_num_new",
    "bpf_io_uring_submit_sqes",
    ".text",
    ".maps",
    "license",
    ".rodata.nvlane",
    ".struct_ops.link",
    "struct_ops.s/nvlane_loop_step",
    "struct_ops/x",
    ".ksyms",
    ".kconfig",
    ".extern",
    ".addr_space.1",
    ".jumptables",
    "version",
    "maps",
    ".data",
    ".data.x",
    ".bss",
    ".rodata",
    ".rodata.x",
    "nvlane/route",
    "nvlane/done",
    "nvlane/setup",
    "nvlane/x",
    ".relnvlane/x",
    ".rel.text",
    ".rel.maps",
    ".relx",
    "x",
    ".BTF",
    ".BTF.ext",
    ".symtab",
    ".strtab",
    ".debug_x",
    "own",
    "nvlane_flight",
    "nvlane_request",
    "nvlane_part",
    "arg:nonnull",
    "arg:untrusted",
    "type",
    "key",
    "value",
    "values",
    "max_entries",
    "map_flags",
    "pinning",
    "int",
    "unsigned int",
    "",
];

/// Fields of a section's header.
const NAME: usize = 0;
const TYPE: usize = 1;
const OFFSET: usize = 4;
const SIZE: usize = 5;
const INFO: usize = 7;
/// Bytes of the file's header, of a section's, a symbol, a relocation, and of the header of `.BTF`.
const FILE_HEADER: usize = 64;
const SECTION_HEADER: usize = 64;
const SYMBOL: usize = 24;
const RELOCATION: usize = 16;
const TYPES_HEADER: usize = 24;

#[derive(Clone)]
struct Section {
    /// In the order in which the header has them: name, type, flags, address, offset, size, link, info, alignment, entry.
    header: [u64; 10],
    data: Vec<u8>,
    /// The place and size that the header tells of, if not the true ones.
    told: [Option<u64>; 2],
}

/// An object in parts.
#[derive(Clone)]
pub struct Draft {
    header: Vec<u8>,
    sections: Vec<Section>,
    types: Vec<Vec<u8>>,
    /// Which section has them, and their names.
    types_section: usize,
    type_names: Vec<u8>,
    symbols: usize,
    /// Where [`NAMES`] are among the names of symbols and types.
    names: [u64; 2],
    /// Of the header of `.BTF`, and of the whole file: places and bytes.
    types_header: Vec<(usize, u32)>,
    late: Vec<(usize, Vec<u8>)>,
}

/// An edit in parts.
#[derive(Clone, Copy)]
struct Edit {
    part: usize,
    which: usize,
    value: u64,
}

impl Draft {
    /// Takes an object apart.
    pub fn of(object: &[u8]) -> Option<Draft> {
        let file = ElfFile64::<LittleEndian>::parse(object).ok()?;
        let table = file.elf_section_table();
        let mut sections = Vec::new();
        let named = |name| Some(table.section_by_name(LittleEndian, name)?.0.0);
        for header in table.iter() {
            let fields = [
                header.sh_name(LittleEndian).into(),
                header.sh_type(LittleEndian).0.into(),
                header.sh_flags(LittleEndian).0,
                header.sh_addr(LittleEndian),
                0,
                header.sh_size(LittleEndian),
                header.sh_link(LittleEndian).into(),
                header.sh_info(LittleEndian).into(),
                header.sh_addralign(LittleEndian),
                header.sh_entsize(LittleEndian),
            ];
            let data = header.data(LittleEndian, object).ok()?.to_vec();
            sections.push(Section { header: fields, data, told: [None; 2] });
        }
        let (types_section, symbols) = (named(b".BTF")?, named(b".symtab")?);
        let names = usize::from(file.elf_header().e_shstrndx(LittleEndian).0);
        let (types, type_names) = split(&sections[types_section].data)?;
        let mut draft = Draft {
            header: object.get(..FILE_HEADER)?.to_vec(),
            sections,
            types,
            types_section,
            type_names,
            symbols,
            names: [0; 2],
            types_header: Vec::new(),
            late: Vec::new(),
        };
        let symbol_names = &mut draft.sections[names].data;
        draft.names = [symbol_names.len() as u64, draft.type_names.len() as u64];
        for name in NAMES {
            for table in [&mut *symbol_names, &mut draft.type_names] {
                table.extend_from_slice(name.as_bytes());
                table.push(0);
            }
        }
        Some(draft)
    }

    /// Changes something, if that is there.
    pub fn edit(&mut self, edit: &[u8; BYTES]) {
        let [what, part, low, high, value @ ..] = *edit;
        let which = u16::from_le_bytes([low, high]).into();
        let edit = Edit { part: part.into(), which, value: u64::from_le_bytes(value) };
        // Each gives nothing where there is nothing to change.
        let _ = match what % KINDS {
            0 => self.header_of_section(edit),
            1 => self.symbol(edit),
            2 => self.relocation(edit),
            3 => self.type_word(edit),
            4 => self.more_of_types(edit),
            5 => self.late_of_types(edit),
            6 => self.instruction(edit),
            7 => self.copy(edit),
            8 => self.bytes(edit),
            9 => self.resize(edit),
            10 => self.file(edit.which, edit),
            11 => self.file(edit.which % FILE_HEADER, edit),
            12 => self.rename(edit),
            13 => self.add_relocation(edit),
            _ => self.add_section(edit),
        };
    }

    fn header_of_section(&mut self, Edit { part, which, value }: Edit) -> Option<()> {
        let at = number(which, self.sections.len())?;
        let value = if part % 10 == NAME { self.name(value, 0) } else { value };
        let section = &mut self.sections[at];
        match part % 10 {
            OFFSET => section.told[0] = Some(value),
            SIZE => section.told[1] = Some(value),
            field => section.header[field] = value,
        }
        Some(())
    }

    fn symbol(&mut self, Edit { part, which, value }: Edit) -> Option<()> {
        let value = if part.is_multiple_of(6) { self.name(value, 0) } else { value };
        let table = &mut self.sections[self.symbols].data;
        let entry = number(which, table.len() / SYMBOL)? * SYMBOL;
        // The name, what it is, who sees it, its section, its place and size.
        let (at, len) = [(0, 4), (4, 1), (5, 1), (6, 2), (8, 8), (16, 8)][part % 6];
        put(table, entry + at, &value.to_le_bytes()[..len])
    }

    fn relocation(&mut self, Edit { part, which, value }: Edit) -> Option<()> {
        let (section, entry) = self.entry(which)?;
        // The place, the kind, the symbol, the latter two.
        let (at, len) = [(0, 8), (8, 4), (12, 4), (8, 8)][part % 4];
        put(&mut self.sections[section].data, entry + at, &value.to_le_bytes()[..len])
    }

    fn type_word(&mut self, Edit { part, which, value }: Edit) -> Option<()> {
        let at = number(which, self.types.len())?;
        let value = if part == 0 { self.name(value, 1) } else { value };
        let words = &mut self.types[at];
        let place = part % (words.len() / 4) * 4;
        put(words, place, &(value as u32).to_le_bytes())
    }

    fn more_of_types(&mut self, Edit { which, value, .. }: Edit) -> Option<()> {
        let more = self.named(".BTF.ext")?;
        let data = &mut self.sections[more].data;
        let place = number(which, data.len() / 4)? * 4;
        put(data, place, &(value as u32).to_le_bytes())
    }

    fn late_of_types(&mut self, Edit { which, value, .. }: Edit) -> Option<()> {
        self.types_header.push((which % (TYPES_HEADER / 4) * 4, value as u32));
        Some(())
    }

    fn instruction(&mut self, Edit { part, which, value }: Edit) -> Option<()> {
        let is_code = |it: &Section| it.header[2] & elf::SHF_EXECINSTR.0 != 0;
        let code = (0..self.sections.len()).filter(|at| is_code(&self.sections[*at]));
        let code: Vec<usize> = code.collect();
        let data = &mut self.sections[code[number(part / 4, code.len())?]].data;
        let (at, len) = [(0, 8), (0, 2), (1, 1), (4, 4)][part % 4];
        let place = number(which, data.len() / 8)? * 8 + at;
        put(data, place, &value.to_le_bytes()[..len])
    }

    /// Puts something where it is already to the end of its table, too.
    fn copy(&mut self, Edit { part, which, value }: Edit) -> Option<()> {
        let count = value % COPIES_MAX + 1;
        for _ in 0..count {
            match part % 4 {
                0 => {
                    let copy = self.sections[number(which, self.sections.len())?].clone();
                    self.sections.push(copy);
                }
                1 => {
                    let table = &mut self.sections[self.symbols].data;
                    let entry = number(which, table.len() / SYMBOL)? * SYMBOL;
                    table.extend_from_within(entry..entry + SYMBOL);
                }
                2 => {
                    let (section, entry) = self.entry(which)?;
                    self.sections[section].data.extend_from_within(entry..entry + RELOCATION);
                }
                _ => self.types.push(self.types[number(which, self.types.len())?].clone()),
            }
        }
        Some(())
    }

    fn bytes(&mut self, Edit { part, which, value }: Edit) -> Option<()> {
        let section = number(part, self.sections.len())?;
        let data = match section == self.types_section {
            true => &mut self.type_names,
            false => &mut self.sections[section].data,
        };
        let place = number(which, data.len().checked_sub(7)?)?;
        put(data, place, &value.to_le_bytes())
    }

    fn resize(&mut self, Edit { which, value, .. }: Edit) -> Option<()> {
        let at = number(which, self.sections.len())?;
        self.sections[at].data.resize((value % SECTION_BYTES_MAX) as usize, 0);
        Some(())
    }

    fn file(&mut self, at: usize, Edit { part, value, .. }: Edit) -> Option<()> {
        self.late.push((at, value.to_le_bytes()[..part % 8 + 1].to_vec()));
        Some(())
    }

    /// Gives a symbol another name, and what has the same name among the types.
    fn rename(&mut self, Edit { which, value, .. }: Edit) -> Option<()> {
        let names = self.sections[self.symbols].header[6] as usize;
        let table = &self.sections[self.symbols].data;
        let entry = number(which, table.len() / SYMBOL)? * SYMBOL;
        let before = text(&self.sections.get(names)?.data, word(table, entry)?)?.to_vec();
        let [name, type_name] = [self.name(value, 0), self.name(value, 1)];
        for kind in &mut self.types {
            if text(&self.type_names, word(kind, 0)?) == Some(&before) {
                put(kind, 0, &(type_name as u32).to_le_bytes());
            }
        }
        put(&mut self.sections[self.symbols].data, entry, &(name as u32).to_le_bytes())
    }

    fn add_relocation(&mut self, Edit { part, which, value }: Edit) -> Option<()> {
        let tables = self.tables();
        // From the end of all, too.
        let part = if part < 0x80 { part } else { part + 0xff00 };
        let data = &mut self.sections[tables[number(part, tables.len())?]].data;
        data.extend_from_slice(&(which as u64 * 8).to_le_bytes());
        data.extend_from_slice(&value.to_le_bytes());
        Some(())
    }

    /// An empty one; relocations are of the section before them.
    fn add_section(&mut self, Edit { part, which, value }: Edit) -> Option<()> {
        let kinds = [elf::SHT_PROGBITS, elf::SHT_NOBITS, elf::SHT_REL, elf::SHT_NOTE];
        let kind = kinds[part % kinds.len()];
        let is_rel = kind == elf::SHT_REL;
        let name = self.name(which as u64, 0);
        let (link, info, entry) = match is_rel {
            true => (self.symbols as u64, self.sections.len() as u64 - 1, RELOCATION as u64),
            false => (0, 0, 0),
        };
        let mut header = [name, kind.0.into(), value & 0xff, 0, 0, 0, link, info, 8, entry];
        header[SIZE] = value >> 8 & 0xff_ffff;
        let has_data = ![elf::SHT_NOBITS, elf::SHT_REL].contains(&kind);
        let data = if has_data { vec![0; header[SIZE] as usize & 0xfff] } else { Vec::new() };
        self.sections.push(Section { header, data, told: [None; 2] });
        Some(())
    }

    /// The object.
    pub fn finish(mut self) -> Vec<u8> {
        let mut types = vec![0x9f, 0xeb, 1, 0];
        let all = self.types.concat();
        let numbers = [TYPES_HEADER, 0, all.len(), all.len(), self.type_names.len()];
        types.extend(numbers.iter().flat_map(|it| (*it as u32).to_le_bytes()));
        types.extend_from_slice(&all);
        types.extend_from_slice(&self.type_names);
        for (at, word) in &self.types_header {
            put(&mut types, *at, &word.to_le_bytes());
        }
        self.sections[self.types_section].data = types;
        let mut object = self.header;
        let mut headers = Vec::new();
        for section in &mut self.sections {
            object.resize(object.len().next_multiple_of(8), 0);
            let fields = &mut section.header;
            if fields[TYPE] != 0 {
                fields[OFFSET] = object.len() as u64;
            }
            if fields[TYPE] != u64::from(elf::SHT_NOBITS.0) {
                fields[SIZE] = section.data.len() as u64;
                object.extend_from_slice(&section.data);
            }
            fields[OFFSET] = section.told[0].unwrap_or(fields[OFFSET]);
            fields[SIZE] = section.told[1].unwrap_or(fields[SIZE]);
            let lens = [4, 4, 8, 8, 8, 8, 4, 4, 8, 8];
            for (field, len) in fields.iter().zip(lens) {
                headers.extend_from_slice(&field.to_le_bytes()[..len]);
            }
        }
        object.resize(object.len().next_multiple_of(8), 0);
        let (at, count) = (object.len() as u64, self.sections.len() as u16);
        put(&mut object, 40, &at.to_le_bytes());
        put(&mut object, 60, &count.to_le_bytes());
        debug_assert_eq!(headers.len(), self.sections.len() * SECTION_HEADER);
        object.extend_from_slice(&headers);
        for (at, bytes) in &self.late {
            put(&mut object, *at, bytes);
        }
        object
    }

    /// Where a name is: in the table of symbols' names, or (1) in that of types.
    fn name(&self, value: u64, table: usize) -> u64 {
        let before = |number| NAMES[..number].iter().map(|name| name.len() as u64 + 1).sum::<u64>();
        match usize::try_from(value) {
            Ok(number) if number < NAMES.len() => self.names[table] + before(number),
            _ => value,
        }
    }

    fn named(&self, name: &str) -> Option<usize> {
        let names = &self.sections.get(*self.header.get(62)? as usize)?.data;
        let is_it = |it: &Section| text(names, it.header[NAME] as u32) == Some(name.as_bytes());
        self.sections.iter().position(is_it)
    }

    /// A relocation among all: its section, and its place there.
    fn entry(&self, which: usize) -> Option<(usize, usize)> {
        let tables = self.tables();
        let count = |at: usize| self.sections[at].data.len() / RELOCATION;
        let mut left = number(which, tables.iter().map(|at| count(*at)).sum())?;
        for at in tables {
            if left < count(at) {
                return Some((at, left * RELOCATION));
            }
            left -= count(at);
        }
        None
    }

    /// Sections of relocations, but for those of types, of which there are hundreds, and nobody looks at them.
    fn tables(&self) -> Vec<usize> {
        let types = [self.named(".BTF"), self.named(".BTF.ext")];
        let is_one = |it: &Section| {
            it.header[TYPE] == elf::SHT_REL.0.into()
                && !types.contains(&Some(it.header[INFO] as usize))
        };
        (0..self.sections.len()).filter(|at| is_one(&self.sections[*at])).collect()
    }
}

/// The types of `.BTF`, and their names.
fn split(section: &[u8]) -> Option<(Vec<Vec<u8>>, Vec<u8>)> {
    let part = |at: usize| -> Option<Range<usize>> {
        let start = (word(section, 4)? + word(section, at)?) as usize;
        Some(start..start + word(section, at + 4)? as usize)
    };
    let (mut rest, mut types) = (section.get(part(8)?)?, Vec::new());
    while !rest.is_empty() {
        let len = entry_bytes(word(rest, 4)?);
        types.push(rest.get(..len)?.to_vec());
        rest = &rest[len..];
    }
    Some((types, section.get(part(16)?)?.to_vec()))
}

/// Bytes of a type, by its second word.
pub fn entry_bytes(info: u32) -> usize {
    let count = (info & 0xffff) as usize;
    12 + match info >> 24 & 31 {
        1 | 14 | 17 => 4,
        3 => 12,
        4 | 5 | 15 | 19 => count * 12,
        6 | 13 => count * 8,
        _ => 0,
    }
}

/// The number of one of so many.
fn number(which: usize, count: usize) -> Option<usize> {
    let from_end = (1 << 16_usize) - which.min(1 << 16);
    match (count, which) {
        (0, _) => None,
        (_, 0x8000..) => Some(count - 1 - (from_end - 1) % count),
        _ => Some(which % count),
    }
}

/// The number in four bytes.
pub fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The text that begins there.
pub fn text(names: &[u8], at: u32) -> Option<&[u8]> {
    names.get(at as usize..)?.split(|byte| *byte == 0).next()
}

fn put(bytes: &mut [u8], at: usize, what: &[u8]) -> Option<()> {
    bytes.get_mut(at..)?.get_mut(..what.len())?.copy_from_slice(what);
    Some(())
}
