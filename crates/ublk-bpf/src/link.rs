//! A program with our loop around it: what the kernel is given.
//!
//! ```text
//!   prog.bpf.o --check: a program, and no more than that--.
//!   bpf/loop/loop.bpf.o, which is in this crate ----------+--> libbpf's linker --> one object, to be loaded
//! ```
//!
//! The kernel's verifier keeps a program within the kernel's rules, and these let a loop submit any entry to its
//! ring: read and write whatever the server may. So the loop is always ours, and the program's functions are looked at: they
//! may call a few helpers, and use maps that are not the loop's. What maps there may be, that relocations are within code, that
//! libbpf sees the same sections, and that nothing is adjusted when it is loaded, `bpf::load` sees to; and libbpf is asked
//! whether it has read the same maps.

use crate::abi::{CONFIG, DEFERRALS, FLIGHTS, HELD, MISTAKES, OPERATIONS, QUEUES, USER_SECTIONS};
use crate::error::Error;
use crate::log;
use crate::object::NAME;
use bpf::{MapDefinition, MapKind, Program};
use libbpf_rs::{AsRawLibbpf, MapType, ObjectBuilder, libbpf_sys};
use object::read::elf::{ElfFile64, ElfSymbol64};
use object::{
    LittleEndian, Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionKind, SymbolKind,
    elf,
};
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::thread;

/// The loop.
pub(crate) const LOOP: &[u8] = include_bytes!("../../../bpf/loop/loop.bpf.o");

/// The program's functions that the loop calls; the second one where it is there.
const ROUTE: &str = "nvlane_kernel_route";
const DONE: &str = "nvlane_kernel_done";
/// Sections of the same for the machine in user space.
const USER_DONE: &str = "nvlane/done";
/// Names of what is the loop's begin so, functions and maps.
const LOOP_FUNCTIONS: &str = "nvlane_kernel_";
const LOOP_MAPS: &str = "nvlane_";
/// Its maps.
const OF_THE_LOOP: [&str; 7] = [FLIGHTS, QUEUES, DEFERRALS, HELD, MISTAKES, CONFIG, OPERATIONS];
/// Sections of functions, of maps, and of the loop's first function.
const TEXT: &str = ".text";
const MAPS: &str = ".maps";
const STEP_SECTION: &str = "struct_ops.s/nvlane_loop_step";
/// The license, which must be the loop's: the kernel sees one.
const LICENSE: &str = "license";
/// What sections of variables are called, or begin with.
const VARIABLES: [&str; 3] = [".data", ".bss", ".rodata"];
/// What else libbpf makes something of.
const NOT_FOR_PROGRAMS: [&str; 9] = [
    "?",
    "struct_ops",
    ".struct_ops",
    ".ksyms",
    ".kconfig",
    ".addr_space",
    ".jumptables",
    "maps",
    "version",
];
/// What types may say of an argument.
const TAG: &str = "arg:nonnull";
/// Most that a section is aligned to.
const ALIGNMENT_MAX: u64 = 4096;
/// Of which no more is used than is needed: 2 KiB for each type.
const STACK_BYTES: usize = 128 << 20;
/// Helpers that `nvlane_bpf.h` declares: look up, update, delete, time, random, processor.
const HELPERS: [i32; 6] = [1, 2, 3, 5, 7, 8];

/// Instructions (linux/bpf.h), and what the second register's field says of them.
const CALL: u8 = 0x85;
const CALL_FUNCTION: u8 = 1;
const LOAD_IMMEDIATE: u8 = 0x18;

type Elf<'a> = ElfFile64<'a, LittleEndian>;

/// A program that has a loop.
#[derive(Debug)]
pub struct Linked {
    /// What libbpf loads.
    pub object: Vec<u8>,
    /// The program has an `NVLANE_DONE`.
    pub has_done: bool,
}

impl Linked {
    /// Puts the loop around a program, if it reaches for no more than its own.
    pub fn of(program: &[u8]) -> Result<Linked, Error> {
        let known = check(program)?;
        // The loop first, so that what is said of code comes in the order of the code.
        let (linked, said) = with_room(|| log::of(|| link([LOOP, program])))?;
        let read = |mut memory: File| -> io::Result<Vec<u8>> {
            let mut object = Vec::new();
            memory.rewind()?;
            memory.read_to_end(&mut object)?;
            Ok(object)
        };
        let memory = linked.map_err(|error| Error::of_link(&error, &said))?;
        let object = read(memory).map_err(|error| Error::Link(error.to_string()))?;
        maps(&object, &known)?;
        functions(&object)?;
        Ok(Linked { object, has_done: known.done().is_some() })
    }
}

/// Does what libbpf may recurse for: once for each type that leads to the next, of which an object may have 65,536.
fn with_room<T: Send>(what: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let builder = thread::Builder::new().name("link".to_owned()).stack_size(STACK_BYTES);
    let done = thread::scope(|scope| builder.spawn_scoped(scope, what).map(|it| it.join()));
    let done = done.map_err(|error| Error::Link(format!("a thread for it: {error}")))?;
    done.map_err(|_| Error::Link("its thread has panicked".to_owned()))
}

/// Links objects. Not by libbpf_rs, which takes what libbpf returns for a number of the system's, with the other sign.
fn link(objects: [&[u8]; 2]) -> io::Result<File> {
    let memory = File::from(memfd_create("nvlane-program", MemfdFlags::CLOEXEC)?);
    let outcome = |code: i32| match code {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
    };
    // SAFETY: the file is open for as long as the linker is there.
    let linker = unsafe { libbpf_sys::bpf_linker__new_fd(memory.as_raw_fd(), null_mut()) };
    if linker.is_null() {
        return Err(io::Error::last_os_error());
    }
    let added = objects.iter().try_for_each(|object| {
        let (first, len) = (object.as_ptr().cast_mut().cast(), object.len() as u64);
        // SAFETY: a linker that is there, and so many bytes, which it copies.
        outcome(unsafe { libbpf_sys::bpf_linker__add_buf(linker, first, len, null_mut()) })
    });
    // SAFETY: the same linker.
    let linked = added.and_then(|()| outcome(unsafe { libbpf_sys::bpf_linker__finalize(linker) }));
    // SAFETY: the same one, for the last time.
    unsafe { libbpf_sys::bpf_linker__free(linker) };
    linked.map(|()| memory)
}

/// A function: its code, and what its relocations name, by their places.
#[derive(PartialEq, Eq)]
struct Function<'a> {
    code: &'a [u8],
    relocations: Vec<Relocation<'a>>,
}

/// What is put into an instruction: where that is, and what it is about, by name.
type Relocation<'a> = (u64, Kind, &'a str);

/// What it is that a relocation names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Function,
    Map,
    /// A section of variables.
    Variables,
    Other,
}

/// The functions of a program, for the kernel.
struct Parts<'a> {
    functions: BTreeMap<&'a str, Function<'a>>,
    /// What is wrong with where they are: each byte of `.text` is in one of them.
    wrong: Option<String>,
}

/// Refuses a program that reaches for more than its own; what is not refused is as the machine in user space has it.
fn check(program: &[u8]) -> Result<Program, Error> {
    let foreign = |what: String| Err(Error::Foreign(what));
    bpf::load::check_sections(program).map_err(|error| Error::Foreign(error.to_string()))?;
    let load = || bpf::load(program).map_err(|error| Error::Volume(error.to_string()));
    let elf = Elf::parse(program).map_err(unreadable)?;
    if elf.section_by_name(STEP_SECTION).is_some() {
        return Err(Error::OldLoop);
    }
    let parts = match sections(&elf).map_err(unreadable)? {
        Ok(()) => Parts::of(&elf).map_err(unreadable)?,
        Err(what) => return foreign(what),
    };
    if !parts.functions.contains_key(ROUTE) {
        return Err(Error::NoRoute(ROUTE));
    }
    let has_done = elf.section_by_name(USER_DONE).is_some_and(|section| has_code(&section));
    if parts.functions.contains_key(DONE) != has_done {
        return foreign("it has its NVLANE_DONE in one place only".to_owned());
    }
    // Tests of what becomes of a loop that fails have a program that makes it.
    if is_waived() {
        return load();
    }
    if let Some(wrong) = parts.wrong {
        return foreign(wrong);
    }
    for (name, function) in &parts.functions {
        if let Err(what) = harmless(function, &parts.functions) {
            return foreign(format!("{name} {what}"));
        }
    }
    for looked_at in [types, symbols] {
        if let Err(what) = looked_at(&elf).map_err(unreadable)? {
            return foreign(what);
        }
    }
    load()
}

fn unreadable(error: object::Error) -> Error {
    Error::Foreign(error.to_string())
}

fn is_waived() -> bool {
    let is_asked = || std::env::var("NVLANE_MUTANT").is_ok_and(|mutant| mutant == "failing-loop");
    cfg!(feature = "mutants") && is_asked()
}

/// Refuses functions that the verifier would look at as a part of what calls them, with all that is there then: not only the
/// request, but its flight; or with arguments that the loop does not give. By what is loaded, since the linker goes by names.
fn functions(linked: &[u8]) -> Result<(), Error> {
    let elf = Elf::parse(linked).map_err(unreadable)?;
    let data = |name| elf.section_by_name(name).map(|section| section.data()).transpose();
    let types = data(".BTF").map_err(unreadable)?.unwrap_or_default();
    let more = data(".BTF.ext").map_err(unreadable)?.unwrap_or_default();
    for name in [ROUTE, DONE] {
        let symbol = elf.symbol_by_name(name).ok_or(Error::NoRoute(name))?;
        if !bpf::load::is_verified_alone(types, more, TEXT, symbol.address()) {
            let what = format!("by its types {name} is not a global function with one argument");
            return Err(Error::Foreign(what));
        }
    }
    Ok(())
}

/// Refuses what libbpf has read of a program's maps otherwise than `bpf::load`, which goes by other parts of the object.
fn maps(linked: &[u8], program: &Program) -> Result<(), Error> {
    let (open, said) = log::of(|| ObjectBuilder::default().name(NAME)?.open_memory(linked));
    let open = open.map_err(|error| Error::of_link(&error, &said))?;
    let mut left = program.maps().len();
    for map in open.maps() {
        let name = map.name().to_string_lossy();
        if OF_THE_LOOP.iter().any(|of| name == *of) {
            continue;
        }
        let kind = match map.map_type() {
            MapType::Hash => Some(MapKind::Hash),
            MapType::Array => Some(MapKind::Array),
            MapType::PercpuArray => Some(MapKind::PerCoreArray),
            _ => None,
        };
        let is_it = |it: &&MapDefinition| {
            it.name == name || it.is_variables && name.strip_prefix(NAME) == Some(&it.name)
        };
        let sizes = (map.key_size(), map.value_size(), map.max_entries());
        let same = program.maps().iter().find(is_it).is_some_and(|it| {
            kind == Some(it.kind) && sizes == (it.key_bytes, it.value_bytes, it.entries)
        });
        // SAFETY: the map of an object that is open.
        let pin = unsafe { libbpf_sys::bpf_map__pin_path(map.as_libbpf_object().as_ptr()) };
        if !same || !pin.is_null() || left == 0 {
            return Err(Error::Foreign(format!("its map {name} is another one for libbpf")));
        }
        left -= 1;
    }
    // It makes none of sections of variables that are of another type than they should be.
    if left > 0 {
        return Err(Error::Foreign(format!("{left} of its maps are none for libbpf")));
    }
    Ok(())
}

/// Whether what an instruction is about is a map, or variables, that a program may have.
fn is_own(kind: Kind, name: &str) -> bool {
    match kind {
        Kind::Map => !name.starts_with(LOOP_MAPS),
        Kind::Variables => name != CONFIG,
        Kind::Function | Kind::Other => false,
    }
}

/// Whether a section is code, as `bpf::load` has it.
fn has_code<'a>(section: &impl ObjectSection<'a>) -> bool {
    section.kind() == SectionKind::Text && section.size() > 0
}

/// Whether all sections are a program's. The inner error says what is there that no program has.
fn sections(elf: &Elf<'_>) -> Result<Result<(), String>, object::Error> {
    for section in elf.sections() {
        let name = section.name()?;
        if has_code(&section) && name != TEXT && !name.starts_with(USER_SECTIONS) {
            return Ok(Err(format!("it has a program of its own in {name}")));
        }
        // The linker adds to an instruction wherever relocations of code say, which is looked at where there is code.
        if section.kind() == SectionKind::Text && section.size() == 0 {
            return Ok(Err(format!("its section {name} is code, and empty")));
        }
        // The linker fills in as much.
        if section.align() > ALIGNMENT_MAX {
            return Ok(Err(format!("its section {name} is aligned to more than a page")));
        }
        if name == CONFIG || NOT_FOR_PROGRAMS.iter().any(|begin| name.starts_with(begin)) {
            return Ok(Err(format!("it has a section {name}, which is not for programs")));
        }
    }
    let license = |elf: &Elf<'_>| -> Result<Vec<u8>, object::Error> {
        let section = elf.section_by_name(LICENSE);
        Ok(section.map(|section| section.data()).transpose()?.unwrap_or_default().to_vec())
    };
    let (ours, theirs) = (license(&Elf::parse(LOOP)?)?, license(elf)?);
    if !theirs.is_empty() && theirs != ours {
        let text = String::from_utf8_lossy(&ours);
        let text = text.trim_end_matches('\0');
        return Ok(Err(format!("its license is another one than the loop's, \"{text}\"")));
    }
    Ok(Ok(()))
}

/// Whether types are a program's, and are about what it has: so far as they name sections, those too.
fn types(elf: &Elf<'_>) -> Result<Result<(), String>, object::Error> {
    let data = |name| elf.section_by_name(name).map(|section| section.data()).transpose();
    let types = data(".BTF")?.unwrap_or_default();
    // Of an argument they say, for instance, that the kernel's memory may be read by it, wherever that is.
    if let Some(tag) = bpf::load::tags(types).iter().find(|tag| **tag != TAG) {
        return Ok(Err(format!("its types have the tag {tag:?}")));
    }
    for name in bpf::load::typed_sections(types) {
        if elf.section_by_name(name).is_none() {
            return Ok(Err(format!("its types tell of {name}, which is not there")));
        }
    }
    // libbpf takes the first type that is named like a section of variables for that of the section, and those of sections come last.
    if bpf::load::has_type(types, CONFIG) {
        return Ok(Err(format!("it has a type named {CONFIG}")));
    }
    // What is said of code before it, the linker's numbers having 32 bits, would be said of the loop's.
    let code = elf.sections().filter(has_code);
    let code = code.map(|section| Ok((section.name()?, section.size())));
    let code = code.collect::<Result<BTreeMap<&str, u64>, object::Error>>()?;
    let bytes = |name: &str| code.get(name).copied();
    match data(".BTF.ext")? {
        Some(more) if !bpf::load::is_of_code(types, more, bytes) => {
            Ok(Err("its section .BTF.ext tells of code that is not there".to_owned()))
        }
        _ => Ok(Ok(())),
    }
}

/// Whether all symbols are a program's, and where they say.
fn symbols(elf: &Elf<'_>) -> Result<Result<(), String>, object::Error> {
    let ours = Elf::parse(LOOP)?;
    let ours = ours.symbols().filter(|symbol| !symbol.is_local()).map(|symbol| symbol.name());
    let ours = ours.collect::<Result<BTreeSet<&str>, _>>()?;
    for symbol in elf.symbols() {
        let name = symbol.name()?;
        if symbol.is_undefined() && !name.is_empty() {
            return Ok(Err(format!("it uses {name}, which it does not have")));
        }
        // The source's name.
        if symbol.kind() == SymbolKind::File && symbol.is_local() {
            continue;
        }
        // Numbers from there on are none of sections, or such as the linker does not look up elsewhere.
        let is_special = symbol.elf_symbol().st_shndx.get(LittleEndian).0 >= elf::SHN_LORESERVE;
        let Some(index) = symbol.section_index().filter(|_| !is_special) else {
            return Ok(Err(format!("{name} is in none of its sections")));
        };
        let section = elf.section_by_index(index)?;
        let flags = section.elf_section_header().sh_flags.get(LittleEndian);
        let is_named = symbol.kind() != SymbolKind::Section && !name.is_empty();
        if is_named && !flags.contains(elf::SHF_ALLOC) {
            // The linker leaves out what is not loaded, and looks for its symbols elsewhere.
            return Ok(Err(format!("{name} is in a section that is not loaded")));
        }
        let end = symbol.address().checked_add(symbol.size());
        if end.is_none_or(|end| end > section.size()) {
            return Ok(Err(format!("{name} goes beyond its section")));
        }
        let home = section.name()?;
        let is_known = home == TEXT && (name == ROUTE || name == DONE);
        if is_known && !is_plain(&symbol) {
            return Ok(Err(format!("its {name} is not simply global")));
        }
        // The linker goes by names, wherever they are; of the license there is one.
        let is_reserved = match home {
            LICENSE => false,
            TEXT if name.starts_with(LOOP_FUNCTIONS) => !is_known,
            MAPS if name.starts_with(LOOP_MAPS) => true,
            _ => !is_known && ours.contains(name),
        };
        if is_reserved {
            return Ok(Err(format!("it has a {name} of its own")));
        }
    }
    Ok(Ok(()))
}

/// Whether it is a function that takes the place of the loop's, and is verified by itself: libbpf makes hidden ones part of what
/// calls them, whose flight they would have as a whole.
fn is_plain(symbol: &ElfSymbol64<'_, '_, LittleEndian>) -> bool {
    let is_visible = symbol.elf_symbol().st_visibility() == elf::STV_DEFAULT;
    symbol.kind() == SymbolKind::Text && symbol.is_global() && !symbol.is_weak() && is_visible
}

/// Whether a function of the program does what programs may do.
fn harmless(
    function: &Function<'_>,
    functions: &BTreeMap<&str, Function<'_>>,
) -> Result<(), String> {
    let (code, rest) = function.code.as_chunks::<8>();
    if !rest.is_empty() {
        return Err("ends within an instruction".to_owned());
    }
    if function.relocations.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err("has two things put into one instruction".to_owned());
    }
    let mut at = 0;
    while let Some(word) = code.get(at) {
        let place = at as u64 * 8;
        let named = function.relocations.binary_search_by_key(&place, |(of, ..)| *of).ok();
        let named = named.map(|number| &function.relocations[number]);
        let named = named.map(|(_, kind, name)| (*kind, *name));
        let what = |else_what| named.map_or(else_what, |(_, name)| name);
        let (register, immediate) =
            (word[1] >> 4, i32::from_le_bytes([word[4], word[5], word[6], word[7]]));
        match (word[0], register, named) {
            (CALL, 0, None) if HELPERS.contains(&immediate) => {}
            (CALL, CALL_FUNCTION, Some((Kind::Function, name)))
                if functions.contains_key(name) && !name.starts_with(LOOP_FUNCTIONS) => {}
            (CALL, ..) => return Err(format!("calls {}", what("what programs may not"))),
            (LOAD_IMMEDIATE, 0, None) => {}
            (LOAD_IMMEDIATE, 0, Some((kind, name))) if is_own(kind, name) => {}
            (LOAD_IMMEDIATE, ..) => return Err(format!("uses {}", what("an address"))),
            (_, _, Some((_, name))) => return Err(format!("has {name} put into an instruction")),
            _ => {}
        }
        // What loads 64 bits has two words.
        at += if word[0] == LOAD_IMMEDIATE { 2 } else { 1 };
    }
    Ok(())
}

impl<'a> Parts<'a> {
    fn of(elf: &Elf<'a>) -> Result<Parts<'a>, object::Error> {
        let mut parts = Parts { functions: BTreeMap::new(), wrong: None };
        if let Some(section) = elf.section_by_name(TEXT) {
            parts.functions_of(elf, &section)?;
        }
        Ok(parts)
    }

    /// Takes the functions of a section, which must not have code in common: what is put into one is put into no other.
    fn functions_of(
        &mut self,
        elf: &Elf<'a>,
        section: &impl ObjectSection<'a>,
    ) -> Result<(), object::Error> {
        let data = section.data()?;
        let (mut spans, mut begins) = (Vec::new(), BTreeMap::new());
        for symbol in elf.symbols() {
            if symbol.section_index() != Some(section.index()) || symbol.kind() != SymbolKind::Text
            {
                continue;
            }
            let (first, len, name) = (symbol.address(), symbol.size(), symbol.name()?);
            begins.entry(first).or_insert(name);
            let code = usize::try_from(first).ok().zip(usize::try_from(len).ok());
            let code = code.and_then(|(first, len)| data.get(first..first.checked_add(len)?));
            if let Some(code) = code.filter(|code| !code.is_empty()) {
                spans.push((first, first + len, name, code));
            }
        }
        spans.sort_unstable_by_key(|(first, ..)| *first);
        let mut relocations = Vec::new();
        if spans.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            self.wrong = Some("it has functions that have code in common".to_owned());
        } else {
            relocations = relocations_of(elf, section, data, &begins)?;
            if spans.iter().map(|(first, end, ..)| end - first).sum::<u64>() != section.size() {
                self.wrong = Some("it has code in no function".to_owned());
            }
        }
        for (first, end, name, code) in spans {
            let place = |at: u64| relocations.partition_point(|(of, ..)| *of < at);
            let own = &relocations[place(first)..place(end)];
            let mut own: Vec<_> = own.iter().map(|it| (it.0 - first, it.1, it.2)).collect();
            calls(first, code, &begins, &mut own);
            let function = Function { code, relocations: own };
            if self.functions.insert(name, function).is_some() {
                self.wrong.get_or_insert_with(|| format!("it has two functions named {name}"));
            }
        }
        Ok(())
    }
}

/// What is put into a section, sorted by place. Functions and maps by their names, variables by that of their section; what
/// another object would have to bring is called so.
fn relocations_of<'a>(
    elf: &Elf<'a>,
    section: &impl ObjectSection<'a>,
    data: &[u8],
    begins: &BTreeMap<u64, &'a str>,
) -> Result<Vec<Relocation<'a>>, object::Error> {
    let mut found = Vec::new();
    for (at, relocation) in section.relocations() {
        let RelocationTarget::Symbol(index) = relocation.target() else {
            found.push((at, Kind::Other, "an address"));
            continue;
        };
        let symbol = elf.symbol_by_index(index)?;
        let home = match symbol.section_index() {
            Some(index) => elf.section_by_index(index)?.name()?,
            None => "elsewhere",
        };
        let name = symbol.name()?;
        let (kind, named) = match home {
            // What is meant may be other than what is named: the instruction adds to the symbol's place.
            TEXT => (Kind::Function, function_at(begins, target(data, at, symbol.address()))),
            // The name decides who may use it. A section is that of all maps, and the first of them is the loop's.
            MAPS if symbol.kind() == SymbolKind::Data => (Kind::Map, name),
            _ if symbol.is_undefined() => (Kind::Other, name),
            _ if VARIABLES.iter().any(|begin| home.starts_with(begin)) => (Kind::Variables, home),
            _ => (Kind::Other, home),
        };
        found.push((at, kind, named));
    }
    found.sort_unstable();
    Ok(found)
}

/// The place of the code that the instruction at `at` of `code` is about, whose symbol is at `address`: calls count
/// instructions from there, less one, and others bytes.
fn target(code: &[u8], at: u64, address: u64) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let word = code.get(at..at.checked_add(8)?)?;
    let immediate = i64::from(i32::from_le_bytes(*word.last_chunk()?));
    address.checked_add_signed(if word[0] == CALL { (immediate + 1) * 8 } else { immediate })
}

/// Adds the names of functions that are called by their distance.
fn calls<'a>(
    first: u64,
    code: &[u8],
    begins: &BTreeMap<u64, &'a str>,
    found: &mut Vec<Relocation<'a>>,
) {
    let known = found.len();
    let mut at = 0;
    let (words, _) = code.as_chunks::<8>();
    while let Some(word) = words.get(at) {
        let place = at as u64 * 8;
        let is_call = word[0] == CALL && word[1] >> 4 == CALL_FUNCTION;
        if is_call && found[..known].binary_search_by_key(&place, |it| it.0).is_err() {
            let distance = i32::from_le_bytes([word[4], word[5], word[6], word[7]]);
            let target = first.checked_add_signed((at as i64 + 1 + i64::from(distance)) * 8);
            found.push((place, Kind::Function, function_at(begins, target)));
        }
        at += if word[0] == LOAD_IMMEDIATE { 2 } else { 1 };
    }
    found.sort_unstable();
}

/// The name of the function that begins there.
fn function_at<'a>(begins: &BTreeMap<u64, &'a str>, address: Option<u64>) -> &'a str {
    address.and_then(|address| begins.get(&address)).copied().unwrap_or("a place in the code")
}

#[cfg(test)]
mod tests;
