//! Objects with more functions, and relocations, than compilers make.

use super::*;

/// An example whose table of symbols is followed by these, and its names by those.
fn with_symbols(object: &[u8], symbols: &[u8], names: &[u8]) -> Vec<u8> {
    let mut changed = object.to_vec();
    for (name, more) in [(".symtab", symbols), (".strtab", names)] {
        let mut bytes = object[section(object, name)].to_vec();
        bytes.extend_from_slice(more);
        changed.resize(changed.len().next_multiple_of(8), 0);
        let place = [changed.len() as u64, bytes.len() as u64].map(u64::to_le_bytes).concat();
        changed.extend_from_slice(&bytes);
        changed = with_header(&changed, name, 24, &place);
    }
    changed
}

/// The entry of a function of `.text`, which nobody else sees.
fn function(object: &[u8], name: u32, first: u64, len: u64) -> Vec<u8> {
    const LOCAL_FUNCTION: u8 = 2;
    let home = Elf::parse(object).unwrap().section_by_name(TEXT).unwrap().index().0 as u16;
    let mut entry = name.to_le_bytes().to_vec();
    entry.extend_from_slice(&[LOCAL_FUNCTION, 0]);
    entry.extend_from_slice(&home.to_le_bytes());
    entry.extend_from_slice(&first.to_le_bytes());
    entry.extend_from_slice(&len.to_le_bytes());
    entry
}

#[test]
fn functions_have_their_code_and_their_names_for_themselves() {
    let object = example("tests/maps");
    check(&object).unwrap();
    let elf = Elf::parse(&*object).unwrap();
    let sum = elf.symbol_by_name("sum").unwrap();
    let (first, len) = (sum.address(), sum.size());
    let name = sum.elf_symbol().st_name.get(LittleEndian);
    let other = section(&object, ".strtab").len() as u32;
    // What is called so may be another one for the kernel than here.
    let shorter = with_symbols(&object, &function(&object, name, first, 8), b"");
    let same = with_symbols(&object, &function(&object, other, first, len), b"other\0");
    for changed in [shorter, same] {
        assert!(said(&changed).contains("have code in common"), "{}", said(&changed));
    }
    let size = |len: u64| with_symbol(&object, "sum", 16, &len.to_le_bytes());
    assert!(said(&size(len - 8)).contains("code in no function"), "{}", said(&size(len - 8)));
    let rest = function(&object, name, first + len - 8, 8);
    let twice = with_symbols(&size(len - 8), &rest, b"");
    assert!(said(&twice).contains("two functions named sum"), "{}", said(&twice));
}

/// Each function would have all relocations, and look for what each is about among all symbols.
#[test]
fn as_many_functions_and_relocations_as_there_may_be_are_looked_at_once() {
    let object = example("statistics");
    let elf = Elf::parse(&*object).unwrap();
    let text = elf.section_by_name(TEXT).unwrap();
    let count = 60_000;
    let (mut symbols, mut names) = (Vec::new(), Vec::new());
    let first = section(&object, ".strtab").len() as u32;
    for number in 0..count {
        symbols.extend(function(&object, first + number * 9, 0, text.size()));
        names.extend(format!("f{number:07}\0").into_bytes());
    }
    let mut crowded = with_symbols(&object, &symbols, &names);
    let relocations = object[section(&object, ".rel.text")].repeat(20_000);
    let place = [crowded.len() as u64, relocations.len() as u64].map(u64::to_le_bytes).concat();
    crowded.extend_from_slice(&relocations);
    let crowded = with_header(&crowded, ".rel.text", 24, &place);
    assert!(said(&crowded).contains("have code in common"), "{}", said(&crowded));
    // The same relocations are once in what they are in.
    let mut apart = object.clone();
    apart.extend_from_slice(&relocations);
    let place = [object.len() as u64, relocations.len() as u64].map(u64::to_le_bytes).concat();
    let apart = with_header(&apart, ".rel.text", 24, &place);
    assert!(said(&apart).contains("two things"), "{}", said(&apart));
}
