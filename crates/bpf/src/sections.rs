//! That an object's sections say the same to everybody.
//!
//! libbpf reads the same object for the kernel, and by rules of its own where an object is odd: of two sections with one
//! name it takes the last, and it takes more for code. What was looked at here must be what it loads.

use crate::LoadError;
use crate::btf::Btf;
use crate::lines::wants_adjusting;
use object::read::elf::{ElfFile64, SectionHeader};
use object::{LittleEndian, Object, ObjectSection, SectionKind, elf};
use std::collections::HashSet;

/// Refuses sections with the same name, code that does not look like code, relocations by another table of symbols,
/// type information that cannot be read, and accesses that are adjusted (CO-RE).
pub(crate) fn check(elf: &ElfFile64<'_, LittleEndian>) -> Result<(), LoadError> {
    let refuse = |what: String| Err(LoadError::Format(what));
    let symbols = elf.elf_symbol_table().section();
    let mut names = HashSet::new();
    for section in elf.sections() {
        let name = section.name().map_err(|error| LoadError::Format(error.to_string()))?;
        if !names.insert(name) {
            return refuse(format!("it has two sections named {name}"));
        }
        let header = section.elf_section_header();
        let flags = header.sh_flags(LittleEndian).0;
        if flags & elf::SHF_EXECINSTR.0 != 0 && section.kind() != SectionKind::Text {
            return refuse(format!("section {name} is executable, but not loaded as code is"));
        }
        let relocates = [elf::SHT_REL, elf::SHT_RELA].contains(&header.sh_type(LittleEndian));
        if relocates && header.link(LittleEndian) != symbols {
            return refuse(format!("section {name} relocates by other symbols"));
        }
    }
    let named = |name| elf.section_by_name(name).and_then(|section| section.data().ok());
    if let Some(more) = named(".BTF.ext") {
        match wants_adjusting(more) {
            Some(false) => {}
            Some(true) => return Err(LoadError::Adjusting),
            None => return refuse("its section .BTF.ext cannot be read".to_owned()),
        }
    }
    if named(".BTF").is_some_and(|types| Btf::parse(types).is_none()) {
        return refuse("its type information (.BTF) cannot be read, or is too much".to_owned());
    }
    Ok(())
}
