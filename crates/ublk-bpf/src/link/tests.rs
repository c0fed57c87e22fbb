use super::*;

mod crowded;

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
    check(object).map(drop).expect_err("it is refused").to_string()
}

/// An example with another name in all its tables of names.
fn renamed(name: &str, from: &str, to: &str) -> Vec<u8> {
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
}

/// The maps of an object, as libbpf reads it.
fn names_of_maps(object: &[u8]) -> Vec<String> {
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
    assert!(ours.len() > 8 && names_of_maps(&null).len() == 7);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf");
    let mut count = 0;
    // Those of other compilers, too.
    let folders = ["", "/tests/clang-14", "/tests/clang-16"];
    for entry in folders.iter().flat_map(|of| std::fs::read_dir(format!("{folder}{of}")).unwrap()) {
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
        for (name, function) in ours.iter().filter(|(name, _)| **name != DONE) {
            // The program's is somewhere else there.
            let named = |function: &Function<'_>| -> Vec<(u64, String)> {
                function.relocations.iter().map(|it| (it.0, it.2.to_owned())).collect()
            };
            let linked = &parts.functions[name];
            assert!(linked.code == function.code, "{}: {name}", path.display());
            assert_eq!(named(linked), named(function), "{}: {name}", path.display());
        }
        let own = Elf::parse(&*program).unwrap();
        let own = Parts::of(&own).unwrap().functions;
        assert!(own[ROUTE] == parts.functions[ROUTE], "{}", path.display());
        assert_eq!(own.contains_key(DONE), has_done);
        assert!(own.get(DONE).unwrap_or(&ours[DONE]) == &parts.functions[DONE]);
        let mut all = [names_of_maps(&null), names_of_maps(&program)].concat();
        all.sort();
        assert_eq!(names_of_maps(&object), all);
        count += 1;
    }
    assert!(count >= 11);
    assert!(!Linked::of(&example("tests/maps")).unwrap().has_done);
    assert!(Linked::of(&example("tests/deferred")).unwrap().has_done);
}

#[test]
fn nothing_is_the_loops_but_what_it_calls() {
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

/// Puts these bytes into the entry of a symbol, from byte `at` of it on: its name at 0, what it is at 4 and 5, its section at 6.
fn with_symbol(object: &[u8], symbol: &str, at: usize, bytes: &[u8]) -> Vec<u8> {
    let elf = Elf::parse(object).unwrap();
    let number = elf.symbol_by_name(symbol).unwrap().index().0;
    let mut changed = object.to_vec();
    let entry = section(object, ".symtab").start + number * 24 + at;
    changed[entry..entry + bytes.len()].copy_from_slice(bytes);
    changed
}

#[test]
fn names_of_the_loops_are_for_nothing_of_a_programs() {
    // Weak ones would be the loop's for the linker, wherever they are.
    const WEAK_OBJECT: u8 = 0x21;
    let taken = renamed("statistics", "\0operations\0", "\0nvlane_ops\0");
    let weak = with_symbol(&taken, "nvlane_ops", 4, &[WEAK_OBJECT]);
    for special in [0xfff1_u16, 0xfff2, 0xff00] {
        let beside = with_symbol(&weak, "nvlane_ops", 6, &special.to_le_bytes());
        assert!(said(&beside).contains("uses elsewhere"), "{}", said(&beside));
        // One that nothing uses would have the linker look at a section that is none.
        let unused = with_symbol(&example("linear"), "nvlane_license", 6, &special.to_le_bytes());
        assert!(said(&unused).contains("in none of its sections"), "{}", said(&unused));
    }
    let placed = |object: &[u8], home: &str| {
        let elf = Elf::parse(object).unwrap();
        let home = elf.section_by_name(home).unwrap().index().0 as u16;
        let placed = with_symbol(object, "nvlane_ops", 6, &home.to_le_bytes());
        with_symbol(&placed, "nvlane_ops", 8, &[0; 16])
    };
    for home in [LICENSE, "nvlane/route"] {
        let elsewhere = placed(&weak, home);
        assert!(said(&elsewhere).contains(&format!("uses {home}")), "{}", said(&elsewhere));
    }
    let variables = placed(&with_section(&weak, ".data.x", 1, 3, &[0; 64]), ".data.x");
    assert!(said(&variables).contains("it has a nvlane_ops of its own"), "{}", said(&variables));
}

#[test]
fn what_the_loop_calls_is_global() {
    // libbpf would have it verified as a part of the loop, whose flight is more than the request; or take the loop's own.
    let object = example("mirror");
    for (function, other) in [(ROUTE, DONE), (DONE, ROUTE)] {
        assert!(check(&with_symbol(&object, other, 5, &[0])).is_ok());
        // Bindings and types, visibilities.
        for (at, value) in [(4, 0x02), (4, 0x22), (5, 1), (5, 2), (5, 3)] {
            let changed = with_symbol(&object, function, at, &[value]);
            assert!(
                said(&changed).contains(&format!("its {function} is not")),
                "{}",
                said(&changed)
            );
        }
    }
}

#[test]
fn relocations_are_within_the_program() {
    let object = example("statistics");
    let relocations = section(&object, ".rel.text");
    // Before it in what is linked is the loop.
    for at in [u64::MAX - 7, u64::MAX - 16_383, 1 << 40] {
        let mut beyond = object.clone();
        beyond[relocations.start..][..8].copy_from_slice(&at.to_le_bytes());
        assert!(said(&beyond).contains("is beyond the code"), "{}", said(&beyond));
    }
}

#[test]
fn a_section_of_maps_is_no_map() {
    let mut object = example("statistics");
    let elf = Elf::parse(&*object).unwrap();
    let (map, maps) =
        (elf.symbol_by_name("operations").unwrap(), elf.section_by_name(MAPS).unwrap());
    // That of a section that nothing names.
    let user = elf.section_by_name("nvlane/setup").unwrap().index();
    let spare = elf.symbols().find(|it| it.section_index() == Some(user) && it.is_local());
    let spare = spare.unwrap().index().0;
    let (number, home) = (map.index().0 as u32, maps.index().0 as u16);
    let (symbols, code) = (section(&object, ".symtab").start, section(&object, ".rel.text"));
    // It becomes that of the maps, with a name; in what is linked it is where the loop's first map is.
    let (from, to) = (symbols + number as usize * 24, symbols + spare * 24);
    object.copy_within(from..from + 4, to);
    object[to + 4] = 0x03;
    object[to + 6..to + 8].copy_from_slice(&home.to_le_bytes());
    object[to + 8..to + 24].fill(0);
    let mut uses = code.step_by(16).map(|at| at + 12);
    let at = uses.find(|at| object[*at..at + 4] == number.to_le_bytes()).unwrap();
    object[at..at + 4].copy_from_slice(&(spare as u32).to_le_bytes());
    assert!(said(&object).contains("nvlane_kernel_done uses .maps"), "{}", said(&object));
}

/// Where the entries of an object's types are in it; the first is none.
fn types(object: &[u8]) -> Vec<usize> {
    let start = section(object, ".BTF").start;
    let word = |at: usize| u32::from_le_bytes(object[at..at + 4].try_into().unwrap());
    let first = start + word(start + 4) as usize;
    let (mut at, mut found) = (first, vec![0]);
    while at < first + word(start + 12) as usize {
        found.push(at);
        let (kind, count) = (word(at + 4) >> 24 & 31, (word(at + 4) & 0xffff) as usize);
        at += 12
            + match kind {
                1 | 14 | 17 => 4,
                3 => 12,
                4 | 5 | 15 | 19 => count * 12,
                6 | 13 => count * 8,
                _ => 0,
            };
    }
    found
}

#[test]
fn maps_are_the_same_ones_for_libbpf() {
    let mut object = example("tests/maps");
    let known = check(&object).unwrap();
    maps(&Linked::of(&object).unwrap().object, &known).unwrap();
    let types = types(&object);
    let word =
        |object: &[u8], at: usize| u32::from_le_bytes(object[at..at + 4].try_into().unwrap());
    let set = |object: &mut Vec<u8>, at: usize, word: u32| {
        object[at..at + 4].copy_from_slice(&word.to_le_bytes());
    };
    // Variables (kind 14) have a name at 0, a type at 8, and at 12 whether they are global.
    let variables: Vec<usize> =
        (1..types.len()).filter(|id| word(&object, types[*id] + 4) >> 24 & 31 == 14).collect();
    let [hash, array, own] = [variables[0], variables[1], variables[2]];
    let last = *variables.last().unwrap();
    // The first of two named like one map is none that libbpf looks at: it takes the place of the first map, which becomes the last
    // variable, wherever sections tell of them.
    for of in [0, 8] {
        let (first, third) = (word(&object, types[hash] + of), word(&object, types[own] + of));
        set(&mut object, types[last] + of, first);
        set(&mut object, types[hash] + of, third);
    }
    set(&mut object, types[last] + 12, 1);
    set(&mut object, types[hash] + 12, 0);
    let another = word(&object, types[array] + 8);
    set(&mut object, types[own] + 8, another);
    for at in &types[1..] {
        let info = word(&object, at + 4);
        if info >> 24 & 31 == 15 {
            for entry in (0..info & 0xffff).map(|entry| at + 12 + entry as usize * 12) {
                let id = word(&object, entry) as usize;
                let now = if id == hash {
                    last
                } else if id == last {
                    hash
                } else {
                    id
                };
                set(&mut object, entry, now as u32);
            }
        }
    }
    check(&object).unwrap();
    let said = Linked::of(&object).unwrap_err().to_string();
    assert!(said.contains("its map own is another one for libbpf"), "{said}");
}

#[test]
fn sections_are_where_they_fit() {
    let object = example("linear");
    let elf = Elf::parse(&*object).unwrap();
    let headers = u64::from_le_bytes(object[40..48].try_into().unwrap()) as usize;
    for name in [TEXT, "nvlane/route", LICENSE] {
        let at = headers + elf.section_by_name(name).unwrap().index().0 * 64 + 48;
        let aligned = |to: u64| {
            let mut changed = object.clone();
            changed[at..at + 8].copy_from_slice(&to.to_le_bytes());
            changed
        };
        assert!(check(&aligned(4096)).is_ok());
        assert!(said(&aligned(1 << 31)).contains("more than a page"));
    }
}

/// Puts these bytes into the header of a section, from byte `at` of it on: its flags at 8, its size at 32, what it is about at 40.
fn with_header(object: &[u8], section: &str, at: usize, bytes: &[u8]) -> Vec<u8> {
    let headers = u64::from_le_bytes(object[40..48].try_into().unwrap()) as usize;
    let number = Elf::parse(object).unwrap().section_by_name(section).unwrap().index().0;
    let mut changed = object.to_vec();
    let at = headers + number * 64 + at;
    changed[at..at + bytes.len()].copy_from_slice(bytes);
    changed
}

#[test]
fn what_user_space_does_not_run_is_not_linked() {
    let object = example("mirror");
    assert!(Linked::of(&object).unwrap().has_done);
    // Without its flags it is no code, and the machine in user space has none for it.
    let flags = with_header(&object, USER_DONE, 8, &[2]);
    assert!(said(&flags).contains("one place only"), "{}", said(&flags));
}

#[test]
fn nothing_is_put_into_code_that_is_not_there() {
    const PROGBITS: u32 = 1;
    const REL: u32 = 9;
    let object = with_section(&example("statistics"), "nvlane/x", PROGBITS, 6, &[]);
    // 64 bits, by the symbol of a section: libbpf adds to what is at that place of no bytes.
    let elf = Elf::parse(&*object).unwrap();
    let symbols = elf.section_by_name(".symtab").unwrap().index().0 as u32;
    let about = elf.section_by_name("nvlane/x").unwrap().index().0 as u32;
    let section = elf.symbols().find(|it| it.kind() == SymbolKind::Section);
    let named = (section.unwrap().index().0 as u64) << 32 | 10;
    let relocation = [(1_u64 << 20).to_le_bytes(), named.to_le_bytes()].concat();
    let object = with_section(&object, ".relnvlane/x", REL, 0, &relocation);
    let words = [symbols, about].map(u32::to_le_bytes).concat();
    let object = with_header(&object, ".relnvlane/x", 40, &words);
    let object = with_header(&object, ".relnvlane/x", 56, &16_u64.to_le_bytes());
    assert!(said(&object).contains("nvlane/x is code, and empty"), "{}", said(&object));
}

#[test]
fn an_instruction_is_about_one_thing() {
    let object = example("statistics");
    let relocations = section(&object, ".rel.text");
    let mut twice = object.clone();
    // The second of 16 bytes each is where the first is.
    twice.copy_within(relocations.start..relocations.start + 8, relocations.start + 16);
    assert!(said(&twice).contains("two things"), "{}", said(&twice));
}

#[test]
fn what_the_kernel_has_for_loops_is_not_for_programs() {
    const PROGBITS: u32 = 1;
    for name in [".struct_ops.link", "?.struct_ops", ".ksyms", ".kconfig", ".rodata.nvlane", "maps"]
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
    assert!(said([CALL, 0, 0, 0, 5, 0, 0, 0]).is_ok());
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
    changed[headers_at + names * 64 + 24..][..8].copy_from_slice(&(names_at as u64).to_le_bytes());
    changed[headers_at + names * 64 + 32..][..8].copy_from_slice(&(names_len as u64).to_le_bytes());
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
        let code = with_section(&object, name, PROGBITS, EXECUTABLE, &[0x95, 0, 0, 0, 0, 0, 0, 0]);
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

#[test]
fn functions_are_verified_alone() {
    let object = example("tests/maps");
    let types = types(&object);
    let word = |at: usize| u32::from_le_bytes(object[at..at + 4].try_into().unwrap());
    let start = section(&object, ".BTF").start;
    let strings = start + word(start + 4) as usize + word(start + 16) as usize;
    let text = |at: usize| -> &[u8] {
        object[strings + word(at) as usize..].split(|byte| *byte == 0).next().unwrap()
    };
    let found = |kind: u32, name: &str| {
        let is_it =
            |at: &&usize| word(**at + 4) >> 24 & 31 == kind && text(**at) == name.as_bytes();
        *types[1..].iter().find(is_it).unwrap()
    };
    let number = |at: usize| types.iter().position(|it| *it == at).unwrap() as u32;
    let refused = |object: &[u8]| Linked::of(object).expect_err("it is refused").to_string();
    // By its type it is static, which the symbol is not.
    let mut fixed = object.clone();
    fixed[found(12, ROUTE) + 4] = 0;
    assert!(refused(&fixed).contains("cannot be linked with the loop: libbpf: failed to find BTF"));
    // It has the type of another function, which is static.
    let more = section(&object, ".BTF.ext");
    let (own, other) = (number(found(12, ROUTE)), number(found(12, "sum")));
    let at = more.clone().step_by(4).find(|at| word(*at) == own).unwrap();
    let mut typed = object.clone();
    typed[at..at + 4].copy_from_slice(&other.to_le_bytes());
    let why = "nvlane_kernel_route is not a global function with one argument";
    assert!(refused(&typed).contains(why), "{}", refused(&typed));
    // The type of its argument leads to itself (`const`, kind 10).
    let argument = word(types[word(found(12, ROUTE) + 8) as usize] + 16);
    let at = types[argument as usize];
    let mut endless = object.clone();
    endless[at + 4..at + 8].copy_from_slice(&[0, 0, 0, 10]);
    endless[at + 8..at + 12].copy_from_slice(&argument.to_le_bytes());
    assert!(said(&endless).contains(".BTF"), "{}", said(&endless));
    // What else may be said of the argument.
    let tag = found(17, "arg:nonnull");
    let at = strings + word(tag) as usize;
    let mut tagged = object.clone();
    tagged[at..at + 11].copy_from_slice(b"arg:trusted");
    assert!(said(&tagged).contains("the tag \"arg:trusted\""), "{}", said(&tagged));
}

#[test]
fn what_is_said_of_code_is_of_the_programs() {
    let object = example("tests/maps");
    let more = section(&object, ".BTF.ext").start;
    let word = |at: usize| u32::from_le_bytes(object[at..at + 4].try_into().unwrap());
    // Functions and lines: how long a record is, the section, how many records, and the first of them, which begins with a place.
    for part in [8, 16] {
        let first = more + (word(more + 4) + word(more + part)) as usize + 12;
        for place in [u32::MAX - 7, u32::MAX - 0x4000, 1 << 20] {
            let mut elsewhere = object.clone();
            elsewhere[first..first + 4].copy_from_slice(&place.to_le_bytes());
            let said = said(&elsewhere);
            assert!(said.contains("tells of code that is not there"), "{said}");
        }
    }
}

#[test]
fn no_type_is_that_of_the_loops_constants() {
    let taken = renamed("linear", "\0nvlane_request\0", "\0.rodata.nvlane\0");
    assert!(said(&taken).contains("a type named .rodata.nvlane"), "{}", said(&taken));
}

#[test]
fn all_maps_are_maps_for_libbpf() {
    const NOBITS: u32 = 8;
    let object = with_section(&example("linear"), ".rodata", NOBITS, 2, &[0; 8]);
    let said = Linked::of(&object).expect_err("it is refused").to_string();
    assert!(said.contains("1 of its maps are none for libbpf"), "{said}");
}

/// What the fuzzer holds against what is linked finds by itself what is refused here.
#[test]
fn the_fuzzer_finds_what_is_not_refused() {
    let is_found = |object: &[u8]| {
        let mut memory = link([LOOP, object]).expect("libbpf links it");
        let mut linked = Linked { object: Vec::new(), has_done: false };
        memory.rewind().unwrap();
        memory.read_to_end(&mut linked.object).unwrap();
        std::panic::catch_unwind(|| crate::fuzzing::oracle::check(object, &linked)).is_err()
    };
    let object = example("linear");
    assert!(!is_found(&object));
    let place = place(&object, ROUTE);
    for (at, byte) in [(0, [CALL, 0, 0, 0, 36]), (8, [LOAD_IMMEDIATE, 0x11, 0, 0, 3])] {
        let mut changed = object.clone();
        changed[place + at..place + at + 5].copy_from_slice(&byte);
        assert!(is_found(&changed));
    }
    let done = example("mirror");
    assert!(is_found(&done), "whose NVLANE_DONE nobody knows of");
    assert!(is_found(&with_symbol(&object, ROUTE, 5, &[2])), "hidden");
    assert!(is_found(&with_section(&object, ".struct_ops", 1, 3, &[0; 24])));
    assert!(is_found(&example("tests/failing")));
}

/// An example whose types are followed by so many more, each of which is a function that is given the next.
fn with_a_chain(name: &str, links: u32) -> Vec<u8> {
    let object = example(name);
    let types = &object[section(&object, ".BTF")];
    let number = |at: usize| u32::from_le_bytes(types[at..at + 4].try_into().unwrap());
    let (header, bytes, names) = (number(4) as usize, number(12) as usize, number(20) as usize);
    let names = &types[header + number(16) as usize..][..names];
    let mut last = 0;
    let mut at = header;
    while at < header + bytes {
        let info = number(at + 4);
        let count = (info & 0xffff) as usize;
        at += 12
            + match info >> 24 & 31 {
                1 | 14 | 17 => 4,
                3 => 12,
                4 | 5 | 15 | 19 => count * 12,
                6 | 13 => count * 8,
                _ => 0,
            };
        last += 1;
    }
    let mut changed = types[..header + bytes].to_vec();
    for link in 0..links {
        const FUNC_PROTO: u32 = 13 << 24;
        let next = if link + 1 == links { 0 } else { last + link + 2 };
        for word in [0, FUNC_PROTO | 1, 0, 0, next] {
            changed.extend_from_slice(&word.to_le_bytes());
        }
    }
    let all = (changed.len() - header) as u32;
    changed[12..16].copy_from_slice(&all.to_le_bytes());
    changed[16..20].copy_from_slice(&all.to_le_bytes());
    changed.extend_from_slice(names);
    // The section is another place in the file.
    let headers = u64::from_le_bytes(object[40..48].try_into().unwrap()) as usize;
    let index = Elf::parse(&*object).unwrap().section_by_name(".BTF").unwrap().index().0;
    let mut object = object.clone();
    object.resize(object.len().next_multiple_of(8), 0);
    let place = [object.len() as u64, changed.len() as u64];
    object.extend_from_slice(&changed);
    for (word, at) in place.iter().zip([24, 32]) {
        object[headers + index * 64 + at..][..8].copy_from_slice(&word.to_le_bytes());
    }
    object
}

/// libbpf's linker follows types into one another.
#[test]
fn a_long_chain_of_types_is_linked_or_refused() {
    for links in [10, 60_000] {
        let linked = Linked::of(&with_a_chain("linear", links));
        assert!(linked.is_ok(), "{links}: {}", linked.unwrap_err());
    }
}
