//! A program with our loop around it: what the kernel is given.
//!
//! ```text
//!   prog.bpf.o --check: a program, and no more than that--.
//!   bpf/loop/loop.bpf.o, which is in this crate ----------+--> libbpf's linker --> one object, to be loaded
//! ```
//!
//! The kernel's verifier keeps a program within the kernel's rules, and these let a loop submit any entry to its
//! ring: read and write whatever the server may. So the loop is always ours, and the program's functions are looked at: they
//! may call a few helpers, and use maps that are not the loop's. What maps there may be, that libbpf sees the same sections, and
//! that nothing is adjusted when it is loaded, `bpf::load` sees to.

use crate::abi::{CONFIG, USER_SECTIONS};
use crate::error::Error;
use crate::log;
use libbpf_rs::Linker;
use object::read::elf::ElfFile64;
use object::{
    LittleEndian, Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionIndex, SectionKind,
    SymbolKind,
};
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;

/// The loop.
const LOOP: &[u8] = include_bytes!("../../../bpf/loop/loop.bpf.o");

/// The program's functions that the loop calls; the second one where it is there.
const ROUTE: &str = "nvlane_kernel_route";
const DONE: &str = "nvlane_kernel_done";
/// Sections of the same for the machine in user space.
const USER_DONE: &str = "nvlane/done";
/// Names of what is the loop's begin so, functions and maps.
const LOOP_FUNCTIONS: &str = "nvlane_kernel_";
const LOOP_MAPS: &str = "nvlane_";
/// Sections of functions, of maps, and of the loop's first function.
const TEXT: &str = ".text";
const MAPS: &str = ".maps";
const STEP_SECTION: &str = "struct_ops.s/nvlane_loop_step";
/// The license, which must be the loop's: the kernel sees one.
const LICENSE: &str = "license";
/// What sections of variables are called, or begin with.
const VARIABLES: [&str; 3] = [".data", ".bss", ".rodata"];
/// What else libbpf makes something of.
const NOT_FOR_PROGRAMS: [&str; 8] = [
    "struct_ops",
    ".struct_ops",
    ".ksyms",
    ".kconfig",
    ".addr_space",
    ".jumptables",
    "maps",
    "version",
];
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
        let has_done = check(program)?;
        let (linked, said) = log::of(|| {
            let memory = File::from(
                memfd_create("nvlane-program", MemfdFlags::CLOEXEC).map_err(io::Error::from)?,
            );
            let mut linker = Linker::new(format!("/proc/self/fd/{}", memory.as_raw_fd()))?;
            // First, so that what is said of code comes in the order of the code.
            linker.add_buf(LOOP)?;
            linker.add_buf(program)?;
            linker.link()?;
            Ok::<File, libbpf_rs::Error>(memory)
        });
        let read = |mut memory: File| -> io::Result<Vec<u8>> {
            let mut object = Vec::new();
            memory.rewind()?;
            memory.read_to_end(&mut object)?;
            Ok(object)
        };
        let memory = linked.map_err(|error| Error::of_link(&error, &said))?;
        let object = read(memory).map_err(|error| Error::Link(error.to_string()))?;
        Ok(Linked { object, has_done })
    }
}

/// A function: its code, and what its relocations name, by their places.
#[derive(PartialEq, Eq)]
struct Function<'a> {
    code: &'a [u8],
    relocations: Vec<(u64, String)>,
}

/// The functions of a program, for the kernel.
struct Parts<'a> {
    functions: BTreeMap<String, Function<'a>>,
    /// Code of `.text` that is in none of them.
    stray: bool,
}

/// Refuses a program that reaches for more than its own; tells whether it has an NVLANE_DONE.
fn check(program: &[u8]) -> Result<bool, Error> {
    let foreign = |what: String| Err(Error::Foreign(what));
    bpf::load::check_sections(program).map_err(|error| Error::Foreign(error.to_string()))?;
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
    let has_done = parts.functions.contains_key(DONE);
    if has_done != elf.section_by_name(USER_DONE).is_some() {
        return foreign("it has its NVLANE_DONE in one place only".to_owned());
    }
    // Tests of what becomes of a loop that fails have a program that makes it.
    if is_waived() {
        return Ok(has_done);
    }
    if parts.stray {
        return foreign("it has code in no function".to_owned());
    }
    for (name, function) in &parts.functions {
        if let Err(what) = harmless(function, &parts.functions) {
            return foreign(format!("{name} {what}"));
        }
    }
    match symbols(&elf).map_err(unreadable)? {
        Ok(()) => Ok(has_done),
        Err(what) => foreign(what),
    }
}

fn unreadable(error: object::Error) -> Error {
    Error::Foreign(error.to_string())
}

fn is_waived() -> bool {
    let is_asked = || std::env::var("NVLANE_MUTANT").is_ok_and(|mutant| mutant == "failing-loop");
    cfg!(feature = "mutants") && is_asked()
}

/// Whether a map, or a section of variables, is one that a program may have.
fn is_own(name: &str) -> bool {
    match name.starts_with('.') {
        true => name != CONFIG && VARIABLES.iter().any(|begin| name.starts_with(begin)),
        false => !name.starts_with(LOOP_MAPS),
    }
}

/// Whether all sections are a program's. The inner error says what is there that no program has.
fn sections(elf: &Elf<'_>) -> Result<Result<(), String>, object::Error> {
    for section in elf.sections() {
        let name = section.name()?;
        let is_code = section.kind() == SectionKind::Text && section.size() > 0;
        if is_code && name != TEXT && !name.starts_with(USER_SECTIONS) {
            return Ok(Err(format!("it has a program of its own in {name}")));
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

/// Whether all symbols are a program's, and where they say; so far as types name sections, those too.
fn symbols(elf: &Elf<'_>) -> Result<Result<(), String>, object::Error> {
    let types = elf.section_by_name(".BTF").map(|section| section.data()).transpose()?;
    for name in types.map(bpf::load::typed_sections).unwrap_or_default() {
        if elf.section_by_name(name).is_none() {
            return Ok(Err(format!("its types tell of {name}, which is not there")));
        }
    }
    for symbol in elf.symbols() {
        let name = symbol.name()?;
        if symbol.is_undefined() && !name.is_empty() {
            return Ok(Err(format!("it uses {name}, which it does not have")));
        }
        let Some(index) = symbol.section_index() else { continue };
        let section = elf.section_by_index(index)?;
        let end = symbol.address().checked_add(symbol.size());
        if end.is_none_or(|end| end > section.size()) {
            return Ok(Err(format!("{name} goes beyond its section")));
        }
        let home = section.name()?;
        let is_known = name == ROUTE || name == DONE;
        let is_reserved = match home {
            TEXT => name.starts_with(LOOP_FUNCTIONS) && !is_known,
            MAPS => name.starts_with(LOOP_MAPS),
            _ => false,
        };
        if is_reserved {
            return Ok(Err(format!("it has a {name} of its own")));
        }
    }
    Ok(Ok(()))
}

/// Whether a function of the program does what programs may do.
fn harmless(
    function: &Function<'_>,
    functions: &BTreeMap<String, Function<'_>>,
) -> Result<(), String> {
    let (code, rest) = function.code.as_chunks::<8>();
    if !rest.is_empty() {
        return Err("ends within an instruction".to_owned());
    }
    let mut at = 0;
    while let Some(word) = code.get(at) {
        let place = at as u64 * 8;
        let named = function.relocations.iter().find(|(of, _)| *of == place);
        let named = named.map(|(_, name)| name.as_str());
        let (register, immediate) =
            (word[1] >> 4, i32::from_le_bytes([word[4], word[5], word[6], word[7]]));
        match (word[0], register, named) {
            (CALL, 0, None) if HELPERS.contains(&immediate) => {}
            (CALL, CALL_FUNCTION, Some(name))
                if functions.contains_key(name) && !name.starts_with(LOOP_FUNCTIONS) => {}
            (CALL, ..) => {
                return Err(format!("calls {}", named.unwrap_or("what programs may not")));
            }
            (LOAD_IMMEDIATE, 0, None) => {}
            (LOAD_IMMEDIATE, 0, Some(name)) if is_own(name) => {}
            (LOAD_IMMEDIATE, ..) => return Err(format!("uses {}", named.unwrap_or("an address"))),
            (_, _, Some(name)) => return Err(format!("has {name} put into an instruction")),
            _ => {}
        }
        // What loads 64 bits has two words.
        at += if word[0] == LOAD_IMMEDIATE { 2 } else { 1 };
    }
    Ok(())
}

impl<'a> Parts<'a> {
    fn of(elf: &Elf<'a>) -> Result<Parts<'a>, object::Error> {
        let mut parts = Parts { functions: BTreeMap::new(), stray: false };
        if let Some(section) = elf.section_by_name(TEXT) {
            parts.stray = parts.functions_of(elf, &section)? != section.size();
        }
        Ok(parts)
    }

    /// Takes the functions of a section. Bytes that are in them, each once.
    fn functions_of(
        &mut self,
        elf: &Elf<'a>,
        section: &impl ObjectSection<'a>,
    ) -> Result<u64, object::Error> {
        let data = section.data()?;
        let mut known = 0;
        let mut spans = Vec::new();
        for symbol in elf.symbols() {
            if symbol.section_index() != Some(section.index()) || symbol.kind() != SymbolKind::Text
            {
                continue;
            }
            let (first, len) = (symbol.address(), symbol.size());
            let code = usize::try_from(first).ok().zip(usize::try_from(len).ok());
            let code = code.and_then(|(first, len)| data.get(first..first.checked_add(len)?));
            let name = symbol.name()?.to_owned();
            let Some(code) = code.filter(|code| !code.is_empty()) else { continue };
            let mut relocations = relocations(elf, section, first, len)?;
            calls(elf, section.index(), first, code, &mut relocations)?;
            if self.functions.insert(name, Function { code, relocations }).is_none() {
                known += len;
                spans.push((first, first + len));
            }
        }
        spans.sort_unstable();
        let apart = spans.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        Ok(if apart { known } else { u64::MAX })
    }
}

/// What is put into `len` bytes of a section from `first` on. Functions and maps by their names, variables by that
/// of their section; what another object would have to bring is called so.
fn relocations<'a>(
    elf: &Elf<'a>,
    section: &impl ObjectSection<'a>,
    first: u64,
    len: u64,
) -> Result<Vec<(u64, String)>, object::Error> {
    let mut found = Vec::new();
    for (at, relocation) in section.relocations() {
        if at < first || at - first >= len {
            continue;
        }
        let RelocationTarget::Symbol(index) = relocation.target() else {
            found.push((at - first, "an address".to_owned()));
            continue;
        };
        let symbol = elf.symbol_by_index(index)?;
        let home = match symbol.section_index() {
            Some(SectionIndex(index)) => {
                elf.section_by_index(SectionIndex(index))?.name()?.to_owned()
            }
            None => "elsewhere".to_owned(),
        };
        let name = symbol.name()?;
        let named = match home.as_str() {
            // What is meant may be other than what is named: the instruction adds to the symbol's place.
            TEXT => {
                let target = target(section.data()?, at, symbol.address());
                function_at(elf, symbol.section_index(), target)?
            }
            // The name decides who may use it.
            MAPS if !name.is_empty() => name.to_owned(),
            _ if symbol.is_undefined() => name.to_owned(),
            _ => home,
        };
        found.push((at - first, named));
    }
    found.sort();
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
fn calls(
    elf: &Elf<'_>,
    section: SectionIndex,
    first: u64,
    code: &[u8],
    found: &mut Vec<(u64, String)>,
) -> Result<(), object::Error> {
    let mut at = 0;
    let (words, _) = code.as_chunks::<8>();
    while let Some(word) = words.get(at) {
        let place = at as u64 * 8;
        let is_call = word[0] == CALL && word[1] >> 4 == CALL_FUNCTION;
        if is_call && found.iter().all(|(of, _)| *of != place) {
            let distance = i32::from_le_bytes([word[4], word[5], word[6], word[7]]);
            let target = first.checked_add_signed((at as i64 + 1 + i64::from(distance)) * 8);
            found.push((place, function_at(elf, Some(section), target)?));
        }
        at += if word[0] == LOAD_IMMEDIATE { 2 } else { 1 };
    }
    found.sort();
    Ok(())
}

/// The name of the function that begins there.
fn function_at(
    elf: &Elf<'_>,
    section: Option<SectionIndex>,
    address: Option<u64>,
) -> Result<String, object::Error> {
    let there = elf.symbols().find(|symbol| {
        symbol.section_index() == section
            && symbol.kind() == SymbolKind::Text
            && Some(symbol.address()) == address
    });
    Ok(there.map_or(Ok("a place in the code"), |symbol| symbol.name())?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::ObjectBuilder;

    fn example(name: &str) -> Vec<u8> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf");
        std::fs::read(format!("{folder}/{name}.bpf.o")).expect("an object")
    }

    /// Where the code of a function is in an object.
    fn place(object: &[u8], function: &str) -> usize {
        let elf = Elf::parse(object).unwrap();
        let symbol = elf.symbol_by_name(function).unwrap();
        let section = elf.section_by_index(symbol.section_index().unwrap()).unwrap();
        (section.file_range().unwrap().0 + symbol.address()) as usize
    }

    fn said(object: &[u8]) -> String {
        check(object).expect_err("it is refused").to_string()
    }

    /// The maps of an object, as libbpf reads it.
    fn maps(object: &[u8]) -> Vec<String> {
        let mut builder = ObjectBuilder::default();
        let open = builder.name("nvlane").and_then(|it| it.open_memory(object));
        let open = open.expect("libbpf reads it");
        let mut names: Vec<String> =
            open.maps().map(|map| map.name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_loop_comes_around_each_program() {
        let elf = Elf::parse(LOOP).unwrap();
        let ours = Parts::of(&elf).unwrap().functions;
        let null = Linked::of(&example("null")).unwrap().object;
        assert!(ours.len() > 8 && maps(&null).len() == 7);
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|it| it != "o") {
                continue;
            }
            let program = std::fs::read(&path).unwrap();
            let linked = Linked::of(&program);
            let Linked { object, has_done } =
                linked.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let elf = Elf::parse(&*object).unwrap();
            let parts = Parts::of(&elf).unwrap();
            for (name, function) in ours.iter().filter(|(name, _)| *name != DONE) {
                assert!(parts.functions.get(name) == Some(function), "{}: {name}", path.display());
            }
            let own = Elf::parse(&*program).unwrap();
            let own = Parts::of(&own).unwrap().functions;
            assert!(own[ROUTE] == parts.functions[ROUTE], "{}", path.display());
            assert_eq!(own.contains_key(DONE), has_done);
            assert!(own.get(DONE).unwrap_or(&ours[DONE]) == &parts.functions[DONE]);
            let mut all = [maps(&null), maps(&program)].concat();
            all.sort();
            assert_eq!(maps(&object), all);
            count += 1;
        }
        assert!(count >= 8);
        assert!(!Linked::of(&example("tests/maps")).unwrap().has_done);
        assert!(Linked::of(&example("tests/deferred")).unwrap().has_done);
    }

    #[test]
    fn nothing_is_the_loops_but_what_it_calls() {
        let renamed = |name: &str, from: &str, to: &str| {
            assert_eq!(from.len(), to.len());
            let mut object = example(name);
            let at: Vec<usize> = (0..object.len() - from.len())
                .filter(|at| object[*at..].starts_with(from.as_bytes()))
                .collect();
            assert!(!at.is_empty(), "{name} has no {from}");
            for at in at {
                object[at..at + to.len()].copy_from_slice(to.as_bytes());
            }
            object
        };
        let taken = renamed("statistics", "\0operations\0", "\0nvlane_ops\0");
        assert!(said(&taken).contains("uses nvlane_ops"), "{}", said(&taken));
        // One that nobody uses: libbpf would take it for the loop's.
        let unused = renamed("statistics", "\0latencies\0", "\0nvlane_hd\0");
        assert!(said(&unused).contains("nvlane_hd"), "{}", said(&unused));
        let another = renamed("mirror", "\0nvlane_kernel_done\0", "\0nvlane_kernel_part\0");
        assert!(said(&another).contains("one place only"), "{}", said(&another));
        let without = renamed("linear", "\0nvlane_kernel_route\0", "\0nvlane_kernel_other\0");
        assert!(said(&without).contains("no nvlane_kernel_route"), "{}", said(&without));
        let third = renamed("tests/maps", "\0sum\0", "\0own\0");
        assert!(check(&third).is_ok(), "names that are not the loop's are free");
        // What only a build that breaks promises takes.
        let failing = said(&example("tests/failing"));
        assert!(failing.contains(" uses nvlane_queues"), "{failing}");
    }

    #[test]
    fn symbols_are_where_their_sections_are() {
        let object = example("statistics");
        let elf = Elf::parse(&*object).unwrap();
        let table = elf.section_by_name(".symtab").unwrap().file_range().unwrap().0 as usize;
        let number = elf.symbol_by_name("operations").unwrap().index().0;
        // Of a symbol's 24 bytes: st_value at 8, st_size at 16. By a negative place it would be the loop's.
        for (at, value) in [(8, 33_u64), (8, u64::MAX - 31), (8, 1 << 40), (16, 65)] {
            let mut moved = object.clone();
            moved[table + number * 24 + at..][..8].copy_from_slice(&value.to_le_bytes());
            let said = said(&moved);
            assert!(said.contains("operations goes beyond") || said.contains("uses"), "{said}");
        }
    }

    #[test]
    fn what_the_kernel_has_for_loops_is_not_for_programs() {
        const PROGBITS: u32 = 1;
        for name in
            [".struct_ops.link", ".struct_ops", ".ksyms", ".kconfig", ".rodata.nvlane", "maps"]
        {
            let object = with_section(&example("linear"), name, PROGBITS, 3, &[0; 24]);
            assert!(said(&object).contains(name), "{}", said(&object));
        }
        let old = with_section(&example("linear"), STEP_SECTION, PROGBITS, 6, &[0; 8]);
        assert!(said(&old).contains("a loop of its own"), "{}", said(&old));
        let mut free = example("linear");
        let license = section(&free, LICENSE);
        free[license.start] = b'd';
        assert!(said(&free).contains("license"), "{}", said(&free));
        // Types that tell of a section that is not there.
        let mut typed = example("linear");
        let types = section(&typed, ".BTF");
        let names: Vec<usize> = (types.start..=types.end - 9)
            .filter(|at| typed[*at..].starts_with(b"\0license\0"))
            .collect();
        assert_eq!(names.len(), 1);
        typed[names[0] + 1..][..7].copy_from_slice(b".ksyms\0");
        assert!(said(&typed).contains(".ksyms, which is not there"), "{}", said(&typed));
    }

    #[test]
    fn a_program_calls_nothing_else() {
        let object = example("linear");
        let first = place(&object, "nvlane_kernel_route");
        let said = |instruction: [u8; 8]| {
            let mut changed = object.clone();
            changed[first..first + 8].copy_from_slice(&instruction);
            check(&changed).map_err(|error| error.to_string())
        };
        assert_eq!(said([CALL, 0, 0, 0, 5, 0, 0, 0]), Ok(false));
        // bpf_probe_write_user, a function of the kernel, one of ours by its distance, the address of a map.
        for (instruction, wanted) in [
            ([CALL, 0, 0, 0, 36, 0, 0, 0], "calls"),
            ([CALL, 0x20, 0, 0, 36, 0, 0, 0], "calls"),
            ([CALL, 0x10, 0, 0, 36, 0, 0, 0], "calls"),
            ([LOAD_IMMEDIATE, 0x11, 0, 0, 3, 0, 0, 0], "uses"),
        ] {
            let why = said(instruction).expect_err("it is not harmless");
            assert!(why.contains("nvlane_kernel_route") && why.contains(wanted), "{why}");
        }
    }

    /// Adds a section to an object, with this name, kind and flags.
    fn with_section(object: &[u8], name: &str, kind: u32, flags: u64, bytes: &[u8]) -> Vec<u8> {
        let number = |at: usize, len| {
            let mut word = [0; 8];
            word[..len].copy_from_slice(&object[at..at + len]);
            u64::from_le_bytes(word) as usize
        };
        // e_shoff, e_shnum and e_shstrndx; of a section's header, sh_offset and sh_size.
        let (headers, count, names) = (number(40, 8), number(60, 2), number(62, 2));
        let text = number(headers + names * 64 + 24, 8);
        let text = &object[text..text + number(headers + names * 64 + 32, 8)];
        let mut changed = object.to_vec();
        let names_at = changed.len();
        changed.extend_from_slice(text);
        changed.extend_from_slice(name.as_bytes());
        changed.push(0);
        let names_len = changed.len() - names_at;
        changed.resize(changed.len().next_multiple_of(8), 0);
        let bytes_at = changed.len();
        changed.extend_from_slice(bytes);
        changed.resize(changed.len().next_multiple_of(8), 0);
        let headers_at = changed.len();
        changed.extend_from_slice(&object[headers..headers + count * 64]);
        changed[headers_at + names * 64 + 24..][..8]
            .copy_from_slice(&(names_at as u64).to_le_bytes());
        changed[headers_at + names * 64 + 32..][..8]
            .copy_from_slice(&(names_len as u64).to_le_bytes());
        changed.extend_from_slice(&(text.len() as u32).to_le_bytes());
        changed.extend_from_slice(&kind.to_le_bytes());
        for word in [flags, 0, bytes_at as u64, bytes.len() as u64, 0, 8, 0] {
            changed.extend_from_slice(&word.to_le_bytes());
        }
        changed[40..48].copy_from_slice(&(headers_at as u64).to_le_bytes());
        changed[60..62].copy_from_slice(&(count as u16 + 1).to_le_bytes());
        changed
    }

    /// Where the bytes of a section are in an object.
    fn section(object: &[u8], name: &str) -> std::ops::Range<usize> {
        let elf = Elf::parse(object).unwrap();
        let (at, len) = elf.section_by_name(name).unwrap().file_range().unwrap();
        at as usize..(at + len) as usize
    }

    #[test]
    fn what_libbpf_reads_otherwise_is_refused() {
        const PROGBITS: u32 = 1;
        const EXECUTABLE: u64 = 4;
        let object = example("linear");
        let more = object[section(&object, ".BTF.ext")].to_vec();
        check(&with_section(&object, "noted", PROGBITS, 0, &more)).unwrap();
        // libbpf takes the last of two.
        let twice = with_section(&object, ".BTF.ext", PROGBITS, 0, &more);
        assert!(said(&twice).contains("two sections named .BTF.ext"), "{}", said(&twice));
        // Code is what is executable, wherever it is loaded.
        for name in ["struct_ops.s/other", "nvlane/other"] {
            let code =
                with_section(&object, name, PROGBITS, EXECUTABLE, &[0x95, 0, 0, 0, 0, 0, 0, 0]);
            assert!(said(&code).contains("is executable"), "{}", said(&code));
        }
        // Relocations by another table of symbols than the one that is looked at.
        let object = example("statistics");
        let mut elsewhere = object.clone();
        let elf = Elf::parse(&*object).unwrap();
        let index = elf.section_by_name(".rel.text").unwrap().index().0;
        let headers = u64::from_le_bytes(object[40..48].try_into().unwrap()) as usize;
        elsewhere[headers + index * 64 + 40] ^= 1;
        assert!(said(&elsewhere).contains("other symbols"), "{}", said(&elsewhere));
    }

    #[test]
    fn what_is_adjusted_is_found_whatever_the_types() {
        // Programs without maps of their own do not need their types.
        let mut object = example("linear");
        let more = section(&object, ".BTF.ext");
        // That its header goes up to the accesses to adjust, and how many bytes say which.
        let header = u32::from_le_bytes(object[more.start + 4..][..4].try_into().unwrap());
        assert!(header >= 32);
        object[more.start + 24..][..8].copy_from_slice(&[0, 0, 0, 0, 20, 0, 0, 0]);
        assert!(said(&object).contains("CO-RE"), "{}", said(&object));
        // With types that nobody here reads it is so, too; alone they are refused.
        let types = section(&object, ".BTF");
        let mut unread = object.clone();
        unread[types.start + 24 + 7] = 31;
        assert!(said(&unread).contains("CO-RE"), "{}", said(&unread));
        unread[more.start + 28..][..4].copy_from_slice(&0_u32.to_le_bytes());
        assert!(said(&unread).contains(".BTF"), "{}", said(&unread));
        // libbpf takes the other byte order.
        let mut swapped = example("linear");
        swapped[more.start..more.start + 2].copy_from_slice(&[0xeb, 0x9f]);
        assert!(said(&swapped).contains(".BTF.ext"), "{}", said(&swapped));
    }

    #[test]
    fn a_call_is_of_what_it_reaches() {
        // By a function's name, or that of the section, and what the instruction adds.
        let call = |word: i32| {
            let word = word.to_le_bytes();
            [CALL, 0x10, 0, 0, word[0], word[1], word[2], word[3]]
        };
        assert_eq!(target(&call(-1), 0, 64), Some(64));
        assert_eq!(target(&call(3), 0, 64), Some(96));
        assert_eq!(target(&[LOAD_IMMEDIATE, 0x41, 0, 0, 8, 0, 0, 0], 0, 64), Some(72));
        assert_eq!((target(&call(-3), 0, 8), target(&call(0), 1, 8)), (None, None));
    }

    #[test]
    fn what_is_no_object_of_ours_is_refused() {
        assert!(check(b"").is_err() && check(b"\x7fELF").is_err());
        assert!(check(&std::fs::read("/proc/self/exe").unwrap()).is_err());
    }
}
