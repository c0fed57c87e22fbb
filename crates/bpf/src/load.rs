//! From an object file to a [`Program`].

use crate::btf::Btf;
use crate::lines::{self, Lines, types_at};
use crate::map::{MapDefinition, MapKind};
use crate::memory::{map_address, value_address};
use crate::op::{Insn, Raw};
use crate::program::{Entry, Function, Program, Span};
use crate::sections;
use crate::verify::verify;
use crate::{LoadError, Refusal};
use object::read::elf::ElfFile64;
use object::{
    LittleEndian, Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget,
    SectionIndex, SectionKind, SymbolKind,
};
use std::collections::HashMap;

/// Largest object in bytes.
pub const OBJECT_BYTES_MAX: usize = 8 << 20;
/// Instructions of a program; those of 16 bytes count twice.
pub const INSTRUCTIONS_MAX: usize = 1 << 16;
/// Maps of a program, its sections of variables included.
pub const MAPS_MAX: usize = 64;
/// Bytes of one section of global variables.
const VARIABLES_BYTES_MAX: u64 = 16 << 20;
/// Sections and symbols that are looked at.
const SECTIONS_MAX: usize = 1024;
const SYMBOLS_MAX: usize = 1 << 16;
/// Bytes of the name of one of them: many may have the same bytes.
const NAME_BYTES_MAX: usize = 1024;

/// What is the kernel's: functions among ours; and in objects from before the loop was nvlane's own, which still run here, a section of
/// code, maps and variables (bpf/loop/loop.bpf.c).
const KERNEL_SECTION: &str = "struct_ops";
const KERNEL_FUNCTIONS: &str = "nvlane_kernel_";
const KERNEL_MAPS: &str = "nvlane_";
const KERNEL_VARIABLES: &str = ".nvlane";
/// The instruction `exit`.
const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

/// The relocation of a 64-bit immediate.
const R_BPF_64_64: u32 = 1;
/// That of a call.
const R_BPF_64_32: u32 = 10;

type Elf<'a> = ElfFile64<'a, LittleEndian>;

/// Loads an object that clang made for `--target=bpf`.
pub fn load(object: &[u8]) -> Result<Program, LoadError> {
    Loader::default().load(&parse(object)?)
}

/// Whether an object says the same to libbpf as to [`load`], and is not adjusted when it is loaded.
pub fn check_sections(object: &[u8]) -> Result<(), LoadError> {
    parse(object).map(drop)
}

/// Names of the sections whose variables type information (`.BTF`) tells of.
pub fn typed_sections(types: &[u8]) -> Vec<&str> {
    Btf::parse(types).map_or_else(Vec::new, |types| types.sections())
}

/// Whether type information has a type of this name.
pub fn has_type(types: &[u8], name: &str) -> bool {
    Btf::parse(types).is_some_and(|types| types.has(name))
}

/// What type information says of functions and arguments beside their types.
pub fn tags(types: &[u8]) -> Vec<&str> {
    Btf::parse(types).map_or_else(Vec::new, |types| types.tags())
}

/// Whether the kernel's verifier looks at the function at byte `at` of a section of code by itself, and gives it one
/// argument, by `types` (`.BTF`) and what says which of them functions have (`more`, `.BTF.ext`).
pub fn is_verified_alone(types: &[u8], more: &[u8], section: &str, at: u64) -> bool {
    let Some(types) = Btf::parse(types) else { return false };
    let found = types_at(more, types.strings(), section, at).unwrap_or_default();
    !found.is_empty() && found.iter().all(|id| types.is_global_with_one_argument(*id))
}

/// Whether all that `more` (`.BTF.ext`) says of code, it says of code that there is: of so many `bytes` of a section.
pub fn is_of_code(types: &[u8], more: &[u8], bytes: impl Fn(&str) -> Option<u64>) -> bool {
    let types = Btf::parse(types);
    types.and_then(|types| lines::is_of_code(more, types.strings(), bytes)).unwrap_or(false)
}

fn parse(object: &[u8]) -> Result<Elf<'_>, LoadError> {
    if object.len() > OBJECT_BYTES_MAX {
        return Err(LoadError::TooMuch("bytes"));
    }
    let elf = Elf::parse(object).map_err(|error| LoadError::Format(error.to_string()))?;
    if elf.architecture() != object::Architecture::Bpf {
        return Err(LoadError::NotBpf);
    }
    if elf.sections().count() > SECTIONS_MAX || elf.symbols().count() > SYMBOLS_MAX {
        return Err(LoadError::TooMuch("sections or symbols"));
    }
    let is_long = |name: object::Result<&[u8]>| name.is_ok_and(|it| it.len() > NAME_BYTES_MAX);
    if elf.sections().any(|section| is_long(section.name_bytes()))
        || elf.symbols().any(|symbol| is_long(symbol.name_bytes()))
    {
        return Err(LoadError::TooMuch("bytes in a name"));
    }
    sections::check(&elf)?;
    Ok(elf)
}

#[derive(Default)]
struct Loader {
    /// The code so far, as it is in the object.
    raw: Vec<[u8; 8]>,
    /// Sections of code: where they are in `raw`.
    sections: Vec<(SectionIndex, String, Span)>,
    functions: Vec<Function>,
    /// What functions that were left out take: spans in their order, apart from one another.
    blank: Vec<Span>,
    maps: Vec<MapDefinition>,
    /// Sections of variables, and which map each is.
    variables: Vec<(SectionIndex, u32)>,
    /// Maps: their section, the place in it, and the number.
    declared: Vec<(SectionIndex, u64, u32)>,
    lines: Lines,
}

impl Loader {
    fn load(mut self, elf: &Elf<'_>) -> Result<Program, LoadError> {
        for section in elf.sections() {
            let name = section.name().map_err(format)?.to_owned();
            match section.kind() {
                SectionKind::Text if name.starts_with(KERNEL_SECTION) => {}
                SectionKind::Text if section.size() > 0 => self.code(&section, name)?,
                _ if is_variables(&name) && section.size() > 0 => self.globals(&section, name)?,
                _ => {}
            }
        }
        let named = |name| elf.section_by_name(name).map(|section| section.data());
        let types = named(".BTF").transpose().map_err(format)?;
        let types = types.and_then(Btf::parse);
        self.functions(elf)?;
        self.blank_kernel_functions();
        self.declared_maps(elf, types.as_ref())?;
        if let (Some(types), Some(Ok(more))) = (&types, named(".BTF.ext")) {
            let starts = self.sections.iter().map(|(_, name, span)| (&**name, span.start as u32));
            let starts: HashMap<&str, u32> = starts.collect();
            let base = |name: &str| starts.get(name).copied();
            self.lines = Lines::parse(more, types.strings(), base);
        }
        for number in 0..self.sections.len() {
            self.relocate(elf, number)?;
        }
        self.finish()
    }

    fn code<'a>(
        &mut self,
        section: &impl ObjectSection<'a>,
        name: String,
    ) -> Result<(), LoadError> {
        let (words, rest) = section.data().map_err(format)?.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(LoadError::Format(format!("section {name} ends within an instruction")));
        }
        if self.raw.len() + words.len() > INSTRUCTIONS_MAX {
            return Err(LoadError::TooMuch("instructions"));
        }
        let start = self.raw.len();
        self.raw.extend_from_slice(words);
        self.sections.push((section.index(), name, Span { start, end: self.raw.len() }));
        Ok(())
    }

    fn globals<'a>(
        &mut self,
        section: &impl ObjectSection<'a>,
        name: String,
    ) -> Result<(), LoadError> {
        if section.size() > VARIABLES_BYTES_MAX {
            return Err(LoadError::Map { map: name, what: "has more than 16 MiB of variables" });
        }
        if section.relocations().next().is_some() {
            let what = "has a pointer as a variable's first value; set it in a function";
            return Err(LoadError::Map { map: name, what });
        }
        // .bss has a size and no bytes.
        let initial = section.data().map_err(format)?.to_vec();
        let map = MapDefinition {
            kind: MapKind::Array,
            key_bytes: 4,
            value_bytes: section.size() as u32,
            entries: 1,
            initial,
            read_only: name.starts_with(".rodata"),
            is_variables: true,
            name,
        };
        let number = self.add(map)?;
        self.variables.push((section.index(), number));
        Ok(())
    }

    fn add(&mut self, map: MapDefinition) -> Result<u32, LoadError> {
        if self.maps.len() == MAPS_MAX {
            return Err(LoadError::TooMuch("maps"));
        }
        self.maps.push(map);
        Ok(self.maps.len() as u32 - 1)
    }

    fn functions(&mut self, elf: &Elf<'_>) -> Result<(), LoadError> {
        for symbol in elf.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
            let Some(span) = symbol.section_index().and_then(|index| self.span(index)) else {
                continue;
            };
            let (start, size) = (symbol.address() / 8, symbol.size() / 8);
            let start = span.start.saturating_add(start.try_into().unwrap_or(usize::MAX));
            let end = start.saturating_add(size.try_into().unwrap_or(usize::MAX)).min(span.end);
            let name = symbol.name().map_err(format)?.to_owned();
            self.functions.push(Function { name, span: Span { start, end } });
        }
        Ok(())
    }

    /// What only the kernel's loop calls is not ours to run: it calls what there is not here.
    fn blank_kernel_functions(&mut self) {
        let is_ours = |it: &Function| !it.name.starts_with(KERNEL_FUNCTIONS);
        let theirs = self.functions.iter().filter(|it| !is_ours(it)).map(|it| it.span);
        self.blank = merged(theirs.filter(|span| span.start < span.end).collect());
        for span in &self.blank {
            self.raw[span.start..span.end].fill(EXIT);
        }
        self.functions.retain(is_ours);
    }

    fn span(&self, index: SectionIndex) -> Option<Span> {
        self.sections.iter().find(|section| section.0 == index).map(|section| section.2)
    }

    fn declared_maps(&mut self, elf: &Elf<'_>, types: Option<&Btf<'_>>) -> Result<(), LoadError> {
        let Some(section) = elf.section_by_name(".maps") else { return Ok(()) };
        let symbols = elf.symbols().filter(|it| it.section_index() == Some(section.index()));
        for symbol in symbols.filter(|symbol| symbol.kind() == SymbolKind::Data) {
            let name = symbol.name().map_err(format)?;
            if name.starts_with(KERNEL_MAPS) {
                continue;
            }
            if name.starts_with('.') {
                let what =
                    "is named as sections are, by which variables are known; C has no such names";
                return Err(LoadError::Map { map: name.to_owned(), what });
            }
            let untyped = "has no type information: compile with -g";
            let types =
                types.ok_or_else(|| LoadError::Map { map: name.to_owned(), what: untyped })?;
            let number = self.add(types.map(name)?)?;
            self.declared.push((section.index(), symbol.address(), number));
        }
        Ok(())
    }

    /// Puts addresses into the instructions of a section of code that wait for them.
    fn relocate(&mut self, elf: &Elf<'_>, number: usize) -> Result<(), LoadError> {
        let (index, ref name, span) = self.sections[number];
        let name = name.clone();
        let section = elf.section_by_index(index).map_err(format)?;
        for (offset, relocation) in section.relocations() {
            let wrong = |what| LoadError::Relocation { section: name.clone(), offset, what };
            let at = usize::try_from(offset / 8).ok().and_then(|at| at.checked_add(span.start));
            let at = at.filter(|at| *at < span.end && offset % 8 == 0);
            let at = at.ok_or_else(|| wrong("is beyond the code".into()))?;
            let blank = self.blank.partition_point(|blank| blank.end <= at);
            if self.blank.get(blank).is_some_and(|blank| blank.start <= at) {
                continue;
            }
            let RelocationTarget::Symbol(symbol) = relocation.target() else {
                return Err(wrong("is of no symbol".into()));
            };
            let symbol = elf.symbol_by_index(symbol).map_err(format)?;
            let symbol_name = symbol.name().unwrap_or_default();
            let Some(home) = symbol.section_index() else {
                return Err(wrong(format!("is of {symbol_name}, which is not in the object")));
            };
            let raw = Raw::new(self.raw[at]);
            let kind = match relocation.flags() {
                RelocationFlags::Elf { r_type } => r_type.0,
                _ => 0,
            };
            match kind {
                R_BPF_64_64 if raw.is_wide() && at + 1 < span.end => {
                    let offset = symbol.address().wrapping_add(i64::from(raw.immediate()) as u64);
                    let address = self.address(home, offset).ok_or_else(|| {
                        wrong(format!("is of {symbol_name}, which is neither a map nor a variable"))
                    })?;
                    self.raw[at][1] &= 0x0f;
                    self.raw[at][4..].copy_from_slice(&(address as u32).to_le_bytes());
                    self.raw[at + 1][4..].copy_from_slice(&((address >> 32) as u32).to_le_bytes());
                }
                R_BPF_64_32 if raw.is_call() => {
                    let base = self.span(home);
                    let base =
                        base.ok_or_else(|| wrong(format!("calls {symbol_name}, no code")))?;
                    let target = base.start as i64
                        + (symbol.address() / 8) as i64
                        + i64::from(raw.immediate())
                        + 1;
                    let distance = i32::try_from(target - at as i64 - 1);
                    let distance = distance.map_err(|_| wrong("calls too far".into()))?;
                    self.raw[at][4..].copy_from_slice(&distance.to_le_bytes());
                }
                _ => return Err(wrong(format!("is of kind {kind}, at the wrong instruction"))),
            }
        }
        Ok(())
    }

    /// The machine's address of byte `offset` of a section.
    fn address(&self, section: SectionIndex, offset: u64) -> Option<u64> {
        if let Some((_, map)) = self.variables.iter().find(|(index, _)| *index == section) {
            let size = u64::from(self.maps[*map as usize].value_bytes);
            return (offset <= size).then(|| value_address(*map, offset as u32));
        }
        let is_it = |it: &&(SectionIndex, u64, u32)| it.0 == section && it.1 == offset;
        self.declared.iter().find(is_it).map(|(.., map)| map_address(*map))
    }

    fn finish(self) -> Result<Program, LoadError> {
        let entry = |wanted: &str| {
            let found = self.sections.iter().find(|(_, name, _)| name == wanted);
            found.map(|(.., span)| Entry(span.start))
        };
        let program = Program {
            code: Vec::new(),
            route: entry("nvlane/route").ok_or(LoadError::NoRoute)?,
            done: entry("nvlane/done"),
            deferred: entry("nvlane/deferred"),
            setup: entry("nvlane/setup"),
            left_out: self.blank.iter().map(|blank| blank.end - blank.start).sum(),
            functions: self.functions,
            maps: self.maps,
            lines: self.lines,
        };
        let spans: Vec<Span> = self.sections.iter().map(|(.., span)| *span).collect();
        match decode(&self.raw, &spans) {
            Ok(code) => Ok(Program { code, ..program }),
            Err((at, refusal)) => Err(LoadError::Refused { location: program.locate(at), refusal }),
        }
    }
}

/// The same instructions in spans that are in their order, and apart from one another.
fn merged(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable_by_key(|span| span.start);
    spans.dedup_by(|next, last| {
        let joins = next.start <= last.end;
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
    spans
}

/// Decodes code and checks it; `sections` lie behind one another. The error says at which instruction.
pub(crate) fn decode(raw: &[[u8; 8]], sections: &[Span]) -> Result<Vec<Insn>, (usize, Refusal)> {
    let mut code = Vec::with_capacity(raw.len());
    let mut filler = vec![false; raw.len()];
    for (at, bytes) in raw.iter().enumerate() {
        if filler[at] {
            // Never carried out; nothing jumps there.
            code.push(Insn::EXIT);
            continue;
        }
        let insn = Raw::new(*bytes);
        let next = raw.get(at + 1).map(|next| Raw::new(*next).immediate());
        if insn.is_wide() {
            *filler.get_mut(at + 1).ok_or((at, Refusal::NoEnd))? = true;
        }
        code.push(insn.decode(at, next.unwrap_or(0)).map_err(|refusal| (at, refusal))?);
    }
    verify(&code, &filler, sections)?;
    Ok(code)
}

fn is_variables(name: &str) -> bool {
    !name.ends_with(KERNEL_VARIABLES)
        && [".data", ".bss", ".rodata"].iter().any(|kind| {
            name.strip_prefix(kind).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
}

fn format(error: object::Error) -> LoadError {
    LoadError::Format(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An example whose table of symbols is followed by so many more of `symbol`, and its names by those.
    fn with_symbols(
        symbol: &str,
        count: usize,
        change: impl Fn(&mut [u8]),
        more: &[u8],
    ) -> Vec<u8> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf/statistics.bpf.o");
        let mut object = std::fs::read(path).unwrap();
        let elf = Elf::parse(&*object).unwrap();
        let found = |name: &str| {
            let section = elf.section_by_name(name).unwrap();
            (section.index().0, section.data().unwrap().to_vec())
        };
        let (mut symbols, mut names) = (found(".symtab"), found(".strtab"));
        let number = elf.symbol_by_name(symbol).unwrap().index().0;
        let mut entry = symbols.1[number * 24..][..24].to_vec();
        change(&mut entry);
        symbols.1.extend(entry.repeat(count));
        names.1.extend_from_slice(more);
        let headers = u64::from_le_bytes(object[40..48].try_into().unwrap()) as usize;
        for (index, bytes) in [symbols, names] {
            object.resize(object.len().next_multiple_of(8), 0);
            let place = [object.len() as u64, bytes.len() as u64].map(u64::to_le_bytes).concat();
            object.extend_from_slice(&bytes);
            object[headers + index * 64 + 24..][..16].copy_from_slice(&place);
        }
        object
    }

    #[test]
    fn what_is_left_out_often_is_left_out_once() {
        let plain = load(&with_symbols("nvlane_kernel_route", 0, |_| {}, b"")).unwrap();
        let often = load(&with_symbols("nvlane_kernel_route", 60_000, |_| {}, b"")).unwrap();
        assert!(plain.left_out > 0 && often == plain);
    }

    #[test]
    fn spans_are_merged() {
        let span = |(start, end)| Span { start, end };
        let spans = [(9, 12), (0, 4), (2, 3), (4, 6), (7, 8)].map(span).to_vec();
        assert_eq!(merged(spans), [(0, 6), (7, 8), (9, 12)].map(span));
    }

    /// A map could be taken for a section's variables, in the kernel too.
    #[test]
    fn a_map_is_not_named_like_a_section() {
        let mut object = with_symbols("nvlane_kernel_route", 0, |_| {}, b"");
        let (name, other) = (b"\0latencies\0", b"\0.atencies\0");
        let places: Vec<usize> =
            (0..object.len() - name.len()).filter(|at| object[*at..].starts_with(name)).collect();
        // Of its symbol, here twice, and of its type.
        assert_eq!(places.len(), 3);
        places.iter().for_each(|at| object[*at..][..name.len()].copy_from_slice(other));
        let refused = load(&object).map(drop).unwrap_err();
        let is_it = |map: &str| map == ".atencies";
        assert!(matches!(&refused, LoadError::Map { map, .. } if is_it(map)), "{refused}");
    }

    #[test]
    fn names_are_not_long() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf/statistics.bpf.o");
        let object = std::fs::read(path).unwrap();
        let elf = Elf::parse(&*object).unwrap();
        let at = elf.section_by_name(".strtab").unwrap().size() as u32;
        let named = |bytes| {
            let name = [vec![b'n'; bytes], vec![0]].concat();
            let called = |entry: &mut [u8]| entry[..4].copy_from_slice(&at.to_le_bytes());
            load(&with_symbols("nvlane_kernel_route", 1, called, &name)).map(drop)
        };
        assert_eq!(named(NAME_BYTES_MAX), Ok(()));
        assert_eq!(named(NAME_BYTES_MAX + 1), Err(LoadError::TooMuch("bytes in a name")));
    }
}
