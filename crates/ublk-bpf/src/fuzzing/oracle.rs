//! What an object must be that has a program and our loop in it: read by other means than those that let the program in.
//!
//! The loop comes first in what is linked. So its sections, code, relocations, symbols, and the types of its functions are there as they
//! are in the loop alone, at the same places; what comes after them is the program's, which may reach itself and nothing else.

use super::edit::{entry_bytes, text, word};
use crate::link::{LOOP, Linked};
use crate::object::NAME;
use libbpf_rs::{AsRawLibbpf, MapType, ObjectBuilder, OpenObject, libbpf_sys};
use object::read::elf::{ElfFile64, FileHeader, Rel, SectionHeader, Sym};
use object::{LittleEndian, elf};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::LazyLock;

const ROUTE: &str = "nvlane_kernel_route";
const DONE: &str = "nvlane_kernel_done";
/// Sections that have something of the loop's and something of the program's.
const OF_BOTH: [&str; 2] = [".text", ".maps"];
/// Those that are put together in another way.
const ELSEWHERE: [&str; 4] = [".BTF", ".BTF.ext", ".strtab", ".symtab"];
/// Look up, update, delete, time, random, processor.
const HELPERS: [u32; 6] = [1, 2, 3, 5, 7, 8];

/// What a relocation is about: the symbol's name, its section's, and its place there.
type Target = (String, String, u64);

#[derive(Debug, PartialEq, Eq)]
struct Symbol {
    name: String,
    home: String,
    info: u8,
    other: u8,
    value: u64,
    size: u64,
}

struct View {
    sections: Vec<(String, Vec<u8>)>,
    symbols: Vec<Symbol>,
    /// Of a section, in order: the place, the kind, what it is about.
    relocations: BTreeMap<String, Vec<(u64, u32, Target)>>,
    types: Types,
    /// Of a section: the place and type of each function.
    functions: BTreeMap<String, Vec<(u32, u32)>>,
}

impl View {
    fn of(object: &[u8]) -> View {
        let file = ElfFile64::<LittleEndian>::parse(object).expect("an object");
        let end = LittleEndian;
        assert_eq!(file.elf_header().e_machine(end), elf::EM_BPF);
        let (table, symbols) = (file.elf_section_table(), file.elf_symbol_table());
        let named = |index: usize| -> String {
            let header = table.iter().nth(index).expect("a section that there is");
            let name = table.section_name(end, header).expect("a name");
            String::from_utf8(name.to_vec()).expect("a name of letters")
        };
        let mut view = View {
            sections: Vec::new(),
            symbols: Vec::new(),
            relocations: BTreeMap::new(),
            types: Types::default(),
            functions: BTreeMap::new(),
        };
        for symbol in symbols.iter() {
            let name = symbol.name(end, symbols.strings()).expect("a name");
            let home = match symbol.st_shndx(end).0 {
                0 => String::new(),
                special if special >= elf::SHN_LORESERVE => "special".to_owned(),
                index => named(index.into()),
            };
            view.symbols.push(Symbol {
                name: String::from_utf8_lossy(name).into_owned(),
                home,
                info: symbol.st_info().0,
                other: symbol.st_other().0,
                value: symbol.st_value(end),
                size: symbol.st_size(end),
            });
        }
        for (index, header) in table.iter().enumerate() {
            let data = header.data(end, object).expect("a section that is in the file").to_vec();
            let name = named(index);
            if let Some((relocations, _)) = header.rel(end, object).expect("relocations") {
                let home = named(header.sh_info(end) as usize);
                let target = |symbol: u32| {
                    let symbol = view.symbols.get(symbol as usize).expect("a symbol that there is");
                    (symbol.name.clone(), symbol.home.clone(), symbol.value)
                };
                let each = relocations
                    .iter()
                    .map(|it| (it.r_offset(end), it.r_type(end).0, target(it.r_sym(end))));
                let before = view.relocations.insert(home, each.collect());
                assert!(before.is_none(), "two tables of relocations for one section");
            }
            view.sections.push((name, data));
        }
        view.types = Types::of(view.data(".BTF"));
        view.functions = functions(view.data(".BTF.ext"), &view.types);
        view
    }

    fn data(&self, name: &str) -> &[u8] {
        let mut found = self.sections.iter().filter(|it| it.0 == name);
        let data = found.next().map_or(&[][..], |it| &it.1);
        assert!(found.next().is_none(), "two sections named {name}");
        data
    }

    fn named(&self, name: &str) -> Vec<&Symbol> {
        self.symbols.iter().filter(|it| it.name == name).collect()
    }
}

/// Panics unless it is the loop, with a program that reaches nothing of it.
pub fn check(program: &[u8], linked: &Linked) {
    static OURS: LazyLock<View> = LazyLock::new(|| View::of(LOOP));
    let (ours, all) = (&*OURS, View::of(&linked.object));
    sections(ours, &all);
    symbols(ours, &all, linked.has_done);
    relocations(ours, &all);
    code(ours, &all);
    types(ours, &all, linked.has_done);
    open(program, linked);
}

fn sections(ours: &View, all: &View) {
    for (name, data) in &ours.sections {
        let is_rel = ours.relocations.keys().any(|it| name.strip_prefix(".rel") == Some(it));
        if is_rel || ELSEWHERE.contains(&&**name) || name == ".llvm_addrsig" || name.is_empty() {
            continue;
        }
        let linked = all.data(name);
        assert!(linked.starts_with(data), "{name} is the loop's");
        assert!(linked.len() == data.len() || OF_BOTH.contains(&&**name), "{name} is the loop's");
    }
    // Of what is libbpf's there is what the loop has.
    for (name, _) in &all.sections {
        let begins = ["struct_ops", ".struct_ops", ".ksyms", ".kconfig", "?", "maps", "version"];
        let is_special = begins.iter().any(|begin| name.starts_with(begin));
        assert!(!is_special || ours.sections.iter().any(|it| it.0 == *name), "{name} is linked");
    }
}

fn symbols(ours: &View, all: &View, has_done: bool) {
    const GLOBAL_FUNCTION: u8 = 0x12;
    for symbol in ours.symbols.iter().filter(|it| it.info >> 4 != 0) {
        let name = &*symbol.name;
        let found = all.named(name);
        assert_eq!(found.len(), 1, "{name} is there once");
        if name == ROUTE || name == DONE && has_done {
            let theirs = found[0].value >= ours.data(".text").len() as u64;
            assert!(found[0].home == ".text" && theirs, "{name} is the program's");
            assert_eq!((found[0].info, found[0].other), (GLOBAL_FUNCTION, 0), "{name} is global");
        } else {
            assert_eq!(found[0], symbol);
        }
    }
    for symbol in all.symbols.iter().skip(1) {
        let is_ours = ours.named(&symbol.name).iter().any(|it| it.home.is_empty());
        assert!(!symbol.home.is_empty() || is_ours, "{} is looked for elsewhere", symbol.name);
    }
}

fn relocations(ours: &View, all: &View) {
    for (home, found) in &all.relocations {
        if [".BTF", ".BTF.ext"].contains(&&**home) {
            continue;
        }
        let own = ours.relocations.get(home).map_or(&[][..], Vec::as_slice);
        assert!(found.len() >= own.len(), "relocations of {home} are missing");
        for (one, other) in own.iter().zip(found) {
            let is_theirs = [ROUTE, DONE].contains(&&*one.2.0);
            let same = (one.0, one.1, &one.2.0) == (other.0, other.1, &other.2.0);
            assert!(same && (is_theirs || one.2 == other.2), "{home}: {one:?} became {other:?}");
        }
        let (start, end) = (ours.data(home).len() as u64, all.data(home).len() as u64);
        for (at, _, target) in &found[own.len()..] {
            assert!((start..end).contains(at), "{home}: {target:?} is put into {at}");
        }
    }
    let missing = ours.relocations.keys().find(|it| !all.relocations.contains_key(*it));
    let is_ignored = |it: &String| [".BTF", ".BTF.ext"].contains(&&**it);
    assert!(missing.is_none_or(is_ignored), "relocations of {missing:?} are missing");
}

/// The program's instructions for the kernel: whatever they name is its own.
fn code(ours: &View, all: &View) {
    let (text, maps) = (ours.data(".text").len() as i64, ours.data(".maps").len() as u64);
    let code = all.data(".text");
    let found: BTreeMap<u64, &Target> = all
        .relocations
        .get(".text")
        .map_or_else(BTreeMap::new, |it| it.iter().map(|(at, _, target)| (*at, target)).collect());
    let own = |at: i64| assert!((text..code.len() as i64).contains(&at), "it calls {at} of .text");
    let mut at = text as usize;
    while at < code.len() {
        let instruction = &code[at..at + 8];
        let immediate = word(instruction, 4).expect("four bytes");
        let by = i64::from(immediate as i32);
        let register = instruction[1] >> 4;
        match (instruction[0], found.get(&(at as u64))) {
            (0x85, None) if register == 0 => assert!(HELPERS.contains(&immediate), "a helper"),
            (0x85, None) => {
                assert_eq!(register, 1, "it calls the kernel's functions");
                own(at as i64 + (by + 1) * 8);
            }
            (0x85, Some((_, home, value))) => {
                assert_eq!((register, &**home), (1, ".text"), "it calls what is no function");
                own(*value as i64 + (by + 1) * 8);
            }
            (0x18, None) => assert_eq!(register, 0, "it has an address"),
            (0x18, Some((name, home, value))) => {
                let is_map = home == ".maps" && *value >= maps;
                let begins = [".data", ".bss", ".rodata"];
                let is_variable = begins.iter().any(|begin| home.starts_with(begin));
                let is_theirs = ours.data(home).is_empty();
                assert!(is_map || is_variable && is_theirs, "it uses {name} of {home}");
            }
            (code, Some(target)) => panic!("{target:?} is put into an instruction {code:#x}"),
            (_, None) => {}
        }
        at += if instruction[0] == 0x18 { 16 } else { 8 };
    }
}

fn types(ours: &View, all: &View, has_done: bool) {
    for (home, functions) in &ours.functions {
        let len = ours.data(home).len() as u32;
        let found = all.functions.get(home).map_or(&[][..], Vec::as_slice);
        let (own, theirs): (Vec<(u32, u32)>, Vec<_>) = found.iter().partition(|it| it.0 < len);
        assert_eq!(own.len(), functions.len(), "functions of the loop in {home}");
        for ((at, one), (place, other)) in functions.iter().zip(own) {
            let mut seen = HashSet::new();
            assert_eq!(*at, place);
            let name = String::from_utf8_lossy(ours.types.name(*one));
            // Of two the program's is left, whose argument has a type of its own.
            if name == DONE && has_done {
                continue;
            }
            let same = same(&ours.types, *one, &all.types, other, &mut seen);
            assert!(same, "the type of {name} is another one");
            assert_eq!(ours.types.tags(*one), all.types.tags(other), "tags of {name}");
        }
        let end = all.data(home).len() as u32;
        assert!(theirs.iter().all(|it| it.0 < end), "functions beyond {home}");
    }
    for name in [ROUTE, DONE] {
        let symbol = all.named(name)[0];
        let kinds = &all.functions[".text"];
        let mut kinds = kinds.iter().filter(|it| u64::from(it.0) == symbol.value).peekable();
        assert!(kinds.peek().is_some(), "{name} has a type");
        for (_, id) in kinds {
            let global = all.types.kind(*id) == 12 && all.types.word(*id, 1) & 0xffff == 1;
            let arguments = all.types.word(all.types.word(*id, 2), 1);
            assert!(global && arguments == 13 << 24 | 1, "{name} is verified alone");
        }
    }
}

/// What libbpf has read of it: programs of the kernel's and maps beside the program's own.
fn open(program: &[u8], linked: &Linked) {
    static OURS: LazyLock<Loaded> = LazyLock::new(|| {
        const NULL: &[u8] = include_bytes!("../../../../bpf/null.bpf.o");
        Loaded::of(&Linked::of(NULL).expect("one of ours").object)
    });
    let (ours, all) = (&*OURS, Loaded::of(&linked.object));
    assert_eq!(ours.programs, all.programs, "programs for the kernel");
    let mut own = BTreeSet::new();
    for map in bpf::load(program).expect("what is linked is loaded").maps() {
        // libbpf puts the object's name before those that every object may have.
        let is_common = [".data", ".bss", ".rodata"].contains(&&*map.name);
        let name = if is_common { format!("{NAME}{}", map.name) } else { map.name.clone() };
        let sizes = [map.key_bytes, map.value_bytes, map.entries];
        assert!(own.insert((name, sizes)), "two maps of one name");
    }
    let known: BTreeSet<_> = ours.maps.iter().map(|it| &it.name).collect();
    for map in &all.maps {
        let one = ours.maps.iter().find(|it| it.name == map.name);
        match one {
            Some(one) => assert_eq!(one, map, "a map of the loop's"),
            None => {
                let [_, sizes @ .., _] = map.numbers;
                assert!(!map.is_pinned && map.inner.is_none(), "{map:?}");
                assert!(own.remove(&(map.name.clone(), sizes)), "{map:?} is not the program's");
            }
        }
    }
    assert!(own.is_empty(), "maps that libbpf has not read: {own:?}");
    let names: BTreeSet<_> = all.maps.iter().map(|it| &it.name).collect();
    assert!(known.is_subset(&names) && names.len() == all.maps.len(), "each map is there once");
}

struct Loaded {
    programs: Vec<[String; 2]>,
    maps: Vec<Map>,
}

#[derive(Debug, PartialEq, Eq)]
struct Map {
    name: String,
    /// Type, key, value, entries, flags.
    numbers: [u32; 5],
    initial: Option<Vec<u8>>,
    is_pinned: bool,
    inner: Option<()>,
}

impl Loaded {
    fn of(object: &[u8]) -> Loaded {
        let open = ObjectBuilder::default().name(NAME).and_then(|it| it.open_memory(object));
        let mut open = open.expect("libbpf reads it");
        let names = open
            .progs()
            .map(|it| [it.name(), it.section()].map(|text| text.to_string_lossy().into_owned()));
        let programs = names.filter(|it| !it[1].starts_with("nvlane/")).collect();
        Loaded { programs, maps: maps(&mut open) }
    }
}

fn maps(open: &mut OpenObject) -> Vec<Map> {
    let each = open.maps_mut().map(|mut map| {
        // That of the kernel's operations has libbpf's own addresses.
        let is_plain = map.map_type() != MapType::StructOps;
        let initial = map.initial_value_mut().filter(|_| is_plain).map(|it| it.to_vec());
        let place = map.as_libbpf_object().as_ptr();
        // SAFETY: the map of an object that is open.
        let (numbers, is_pinned, inner) = unsafe {
            let numbers = [
                libbpf_sys::bpf_map__type(place),
                libbpf_sys::bpf_map__key_size(place),
                libbpf_sys::bpf_map__value_size(place),
                libbpf_sys::bpf_map__max_entries(place),
                libbpf_sys::bpf_map__map_flags(place),
            ];
            let inner = libbpf_sys::bpf_map__inner_map(place);
            (numbers, !libbpf_sys::bpf_map__pin_path(place).is_null(), inner)
        };
        Map {
            name: map.name().to_string_lossy().into_owned(),
            numbers,
            initial,
            is_pinned,
            inner: (!inner.is_null()).then_some(()),
        }
    });
    each.collect()
}

/// The types of an object. The first is none.
#[derive(Default)]
struct Types {
    bytes: Vec<u8>,
    places: Vec<usize>,
    names: Vec<u8>,
}

impl Types {
    fn of(section: &[u8]) -> Types {
        let number = |at| word(section, at).expect("a header") as usize;
        let [start, end] = [number(8), number(8) + number(12)].map(|it| number(4) + it);
        let names = &section[number(4) + number(16)..][..number(20)];
        let mut types =
            Types { bytes: section[start..end].to_vec(), places: vec![0], names: names.to_vec() };
        let mut at = 0;
        while at < types.bytes.len() {
            types.places.push(at);
            at += entry_bytes(word(&types.bytes, at + 4).expect("a type"));
        }
        types
    }

    /// A number of a type: its name, what it is, size or type, and what comes then.
    fn word(&self, id: u32, number: usize) -> u32 {
        let at = self.places.get(id as usize).filter(|_| id > 0);
        at.map_or(0, |at| word(&self.bytes, at + number * 4).unwrap_or_default())
    }

    fn kind(&self, id: u32) -> u32 {
        self.word(id, 1) >> 24 & 31
    }

    fn text(&self, at: u32) -> &[u8] {
        text(&self.names, at).unwrap_or_default()
    }

    fn name(&self, id: u32) -> &[u8] {
        self.text(self.word(id, 0))
    }

    /// What is said of a function and its arguments beside their types.
    fn tags(&self, of: u32) -> BTreeSet<(u32, &[u8])> {
        let ids = 1..self.places.len() as u32;
        let own = ids.filter(|id| self.kind(*id) == 17 && self.word(*id, 2) == of);
        own.map(|id| (self.word(id, 3), self.name(id))).collect()
    }
}

/// Whether two types are the same, as far as they lead.
fn same(a: &Types, one: u32, b: &Types, other: u32, seen: &mut HashSet<(u32, u32)>) -> bool {
    if !seen.insert((one, other)) {
        return true;
    }
    let info = a.word(one, 1);
    if info != b.word(other, 1) || a.name(one) != b.name(other) {
        return false;
    }
    let mut pairs = Vec::new();
    // Of each part: how many numbers, and which of these are a name and a type.
    let (leads, numbers, name, kind) = match info >> 24 & 31 {
        1 => (false, 1, None, None),
        2 | 8..=12 | 18 => (true, 0, None, None),
        3 => (false, 0, None, None),
        4 | 5 => (false, 3, Some(0), Some(1)),
        6 => (false, 2, Some(0), None),
        13 => (true, 2, Some(0), Some(1)),
        14 | 17 => (true, 1, None, None),
        15 => (false, 3, None, Some(0)),
        19 => (false, 3, Some(0), None),
        _ => (false, 0, None, None),
    };
    match leads {
        true => pairs.push((a.word(one, 2), b.word(other, 2))),
        false if a.word(one, 2) != b.word(other, 2) => return false,
        false => {}
    }
    if info >> 24 & 31 == 3 {
        pairs.extend([3, 4].map(|at| (a.word(one, at), b.word(other, at))));
        if a.word(one, 5) != b.word(other, 5) {
            return false;
        }
    }
    let parts = if matches!(info >> 24 & 31, 1 | 14 | 17) { 1 } else { info as usize & 0xffff };
    for number in (0..parts * numbers).filter(|_| numbers > 0) {
        let (x, y) = (a.word(one, 3 + number), b.word(other, 3 + number));
        let part = Some(number % numbers);
        if part == kind {
            pairs.push((x, y));
        } else if part == name && a.text(x) != b.text(y) || part != name && x != y {
            return false;
        }
    }
    pairs.into_iter().all(|(x, y)| same(a, x, b, y, seen))
}

/// The places and types of functions, by sections, as `.BTF.ext` has them.
fn functions(more: &[u8], types: &Types) -> BTreeMap<String, Vec<(u32, u32)>> {
    let number = |at| word(more, at).expect("a table of functions");
    let mut found = BTreeMap::new();
    let start = (number(4) + number(8)) as usize;
    let (bytes, end) = (number(start) as usize, start + number(12) as usize);
    let mut at = start + 4;
    while at < end {
        let name = String::from_utf8_lossy(types.text(number(at))).into_owned();
        let count = number(at + 4) as usize;
        at += 8;
        let each = (0..count).map(|it| (number(at + it * bytes), number(at + it * bytes + 4)));
        let before = found.insert(name, each.collect());
        assert!(before.is_none(), "functions of one section in two places");
        at += count * bytes;
    }
    found
}
