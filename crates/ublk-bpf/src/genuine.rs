//! Whether the loop in an object is the one of `bpf/nvlane_loop.h`, and what is around it no more than a program.
//!
//! The kernel's verifier keeps a program within the kernel's rules, and these let a loop submit any entry to its
//! ring: read and write whatever the server may. So the loop's instructions are compared with those in objects of
//! our own, and the program's are looked at: they may call a few helpers, and use maps that are not the loop's.
//! What maps there may be, that libbpf sees the same sections, and that nothing is adjusted when it is loaded,
//! `bpf::load` sees to.

use crate::abi::{CONFIG, OPERATIONS};
use crate::error::Error;
use object::read::elf::ElfFile64;
use object::{
    LittleEndian, Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionIndex, SectionKind,
    SymbolKind,
};
use std::collections::BTreeMap;

/// Objects with our loop, around a program without NVLANE_DONE and around one with it.
const OURS: [&[u8]; 2] =
    [include_bytes!("../../../bpf/null.bpf.o"), include_bytes!("../../../bpf/statistics.bpf.o")];

/// The loop's functions, and the two that are the program's.
const LOOP_FUNCTIONS: &str = "nvlane_kernel_";
const LOOP_STEP: &str = "nvlane_loop_step";
const PROGRAMS: [&str; 2] = ["nvlane_kernel_route", "nvlane_kernel_done"];
/// Names of the loop's maps begin so.
const LOOP_MAPS: &str = "nvlane_";
/// Sections of code: functions, the loop's first one, and the machine's in user space.
const TEXT: &str = ".text";
const STEP_SECTION: &str = "struct_ops.s/nvlane_loop_step";
const USER_SECTIONS: &str = "nvlane/";
/// Helpers that `nvlane_bpf.h` declares: look up, update, delete, time, random, processor.
const HELPERS: [i32; 6] = [1, 2, 3, 5, 7, 8];

/// Instructions (linux/bpf.h), and what the second register's field says of them.
const CALL: u8 = 0x85;
const CALL_FUNCTION: u8 = 1;
const LOAD_IMMEDIATE: u8 = 0x18;

type Elf<'a> = ElfFile64<'a, LittleEndian>;

/// A function: its code, and what its relocations name, by their places.
#[derive(PartialEq, Eq)]
struct Function<'a> {
    code: &'a [u8],
    relocations: Vec<(u64, String)>,
}

/// What an object consists of.
struct Parts<'a> {
    functions: BTreeMap<String, Function<'a>>,
    /// Code of `.text` that is in none of them.
    stray: bool,
    /// The structure that is given to the kernel, and what is put into it.
    operations: Option<Function<'a>>,
}

/// Refuses an object whose loop is not ours, or whose program reaches for more than its own.
pub fn check(object: &[u8]) -> Result<(), Error> {
    if is_waived() {
        return Ok(());
    }
    let foreign = |what: &str| Err(Error::Foreign(what.to_owned()));
    let unreadable = |error: object::Error| Error::Foreign(error.to_string());
    bpf::load::check_sections(object).map_err(|error| Error::Foreign(error.to_string()))?;
    let parts = Parts::of(object).map_err(unreadable)?.map_err(Error::Foreign)?;
    let mut ours = Vec::new();
    for known in OURS {
        ours.push(Parts::of(known).map_err(unreadable)?.map_err(Error::Foreign)?);
    }
    if parts.stray {
        return foreign("it has code in no function");
    }
    if parts.operations.is_none() || ours.iter().all(|known| known.operations != parts.operations) {
        return foreign("its operations are not those of this version");
    }
    let is_loop = |name: &str| is_of_loop(name) && !PROGRAMS.contains(&name);
    for name in ours[0].functions.keys().filter(|name| is_loop(name)) {
        let found = parts.functions.get(name);
        if found.is_none() || ours.iter().all(|known| known.functions.get(name) != found) {
            return foreign(&format!("{name} is not the one of this version"));
        }
    }
    let is_known = |name: &str| is_loop(name) && ours[0].functions.contains_key(name);
    for (name, function) in parts.functions.iter().filter(|(name, _)| !is_known(name)) {
        if let Err(what) = harmless(function, &parts.functions) {
            return foreign(&format!("{name} {what}"));
        }
    }
    Ok(())
}

/// Tests of what becomes of a loop that fails have one that is not ours, in a build for tests.
fn is_waived() -> bool {
    let is_asked = || std::env::var("NVLANE_MUTANT").is_ok_and(|mutant| mutant == "foreign-loop");
    cfg!(feature = "mutants") && is_asked()
}

/// Whether a function has a name of the loop's, those around the program included: nothing else calls it.
fn is_of_loop(name: &str) -> bool {
    name.starts_with(LOOP_FUNCTIONS) || name == LOOP_STEP
}

/// Whether a map, or a section of variables, is one that a program may have.
fn is_own(name: &str) -> bool {
    let variables = [".data", ".bss", ".rodata"];
    match name.starts_with('.') {
        true => name != CONFIG && variables.iter().any(|begin| name.starts_with(begin)),
        false => !name.starts_with(LOOP_MAPS),
    }
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
                if functions.contains_key(name) && !is_of_loop(name) => {}
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
    /// The inner error says what is in the object that no program has.
    fn of(object: &'a [u8]) -> Result<Result<Parts<'a>, String>, object::Error> {
        let elf = Elf::parse(object)?;
        let mut parts = Parts { functions: BTreeMap::new(), stray: false, operations: None };
        for section in elf.sections() {
            let name = section.name()?;
            let is_code = section.kind() == SectionKind::Text && section.size() > 0;
            if is_code && name != TEXT && name != STEP_SECTION && !name.starts_with(USER_SECTIONS) {
                return Ok(Err(format!("it has a program of its own in {name}")));
            }
            if is_code && !name.starts_with(USER_SECTIONS) {
                let known = parts.functions_of(&elf, &section)?;
                parts.stray |= known != section.size();
            }
            if name.starts_with(".struct_ops") {
                if parts.operations.is_some() {
                    return Ok(Err("it has more than one structure for the kernel".to_owned()));
                }
                let relocations = relocations(&elf, &section, 0, section.size())?;
                parts.operations = Some(Function { code: section.data()?, relocations });
            }
        }
        let is_ours = |symbol: &str| symbol == OPERATIONS;
        let is_there = elf.symbols().any(|symbol| symbol.name().is_ok_and(is_ours));
        if is_there { Ok(Ok(parts)) } else { Ok(Err("it has no loop".to_owned())) }
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
            ".maps" if !name.is_empty() => name.to_owned(),
            STEP_SECTION if symbol.kind() == SymbolKind::Text => name.to_owned(),
            _ if symbol.is_undefined() => format!("{LOOP_MAPS}extern_{name}"),
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

    #[test]
    fn the_examples_are_genuine() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|it| it == "o") {
                let checked = check(&std::fs::read(&path).unwrap());
                assert!(checked.is_ok(), "{}: {}", path.display(), checked.unwrap_err());
                count += 1;
            }
        }
        assert!(count >= 8);
        check(&example("tests/maps")).unwrap();
        check(&example("tests/deferred")).unwrap();
    }

    #[test]
    fn every_changed_instruction_of_the_loop_is_found() {
        for name in ["linear", "mirror"] {
            let object = example(name);
            let parts = Parts::of(&object).unwrap().unwrap();
            for (function, found) in parts
                .functions
                .iter()
                .filter(|(name, _)| is_of_loop(name) && !PROGRAMS.contains(&&***name))
            {
                let first = place(&object, function);
                for at in (0..found.code.len()).step_by(8) {
                    let mut changed = object.clone();
                    changed[first + at + 4] ^= 1;
                    assert!(check(&changed).is_err(), "{name}: {function} at {at}");
                }
            }
        }
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
        assert_eq!(said([CALL, 0, 0, 0, 5, 0, 0, 0]), Ok(()));
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
        let said = |object: &[u8]| check(object).unwrap_err().to_string();
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
        let mut elsewhere = object.clone();
        let elf = Elf::parse(&*object).unwrap();
        let index = elf.section_by_name(".rel.text").unwrap().index().0;
        let headers = u64::from_le_bytes(object[40..48].try_into().unwrap()) as usize;
        elsewhere[headers + index * 64 + 40] ^= 1;
        assert!(said(&elsewhere).contains("other symbols"), "{}", said(&elsewhere));
    }

    #[test]
    fn what_is_adjusted_is_found_whatever_the_types() {
        let said = |object: &[u8]| check(object).unwrap_err().to_string();
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
