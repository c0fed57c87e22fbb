//! Committed objects are what clang makes of the sources as they are.

use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionKind};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version that the committed objects are of: others make other instructions.
const CLANG: &str = "clang-19";

/// Where programs are: the examples, the loop around them in the kernel, and those for tests.
const FOLDERS: [&str; 3] = ["", "loop", "tests"];

/// Set where all that can be checked is to be: it fails for want of the compiler then, as in `make test-full`.
const INSISTS: &str = "NVLANE_INSISTS_ON_CLANG";

/// Bytes, and what is named where among them.
type Section = (Vec<u8>, Vec<(u64, String)>);

/// What of an object is loaded: each section's bytes and what is named there, and each symbol's place.
struct Contents {
    sections: BTreeMap<String, Section>,
    symbols: BTreeMap<String, (String, u64, u64, bool)>,
}

impl Contents {
    fn of(object: &[u8]) -> object::Result<Contents> {
        let file = object::File::parse(object)?;
        let section_of = |symbol: &object::Symbol<'_, '_>| match symbol.section_index() {
            Some(index) => Ok(file.section_by_index(index)?.name()?.to_owned()),
            None => Ok(String::new()),
        };
        let mut sections = BTreeMap::new();
        for section in file.sections().filter(is_loaded) {
            let mut named = Vec::new();
            for (at, relocation) in section.relocations() {
                let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
                let symbol = file.symbol_by_index(symbol)?;
                named.push((at, format!("{} {}", section_of(&symbol)?, symbol.name()?)));
            }
            sections.insert(section.name()?.to_owned(), (section.data()?.to_vec(), named));
        }
        let mut symbols = BTreeMap::new();
        for symbol in
            file.symbols().filter(|symbol| symbol.is_definition() || symbol.is_undefined())
        {
            let place = (section_of(&symbol)?, symbol.address(), symbol.size(), symbol.is_global());
            symbols.insert(symbol.name()?.to_owned(), place);
        }
        Ok(Contents { sections, symbols })
    }

    /// Names of sections and symbols that differ, or are in one only.
    fn differ_from<'a>(&'a self, other: &'a Contents) -> Vec<&'a str> {
        let sections = self.sections.keys().chain(other.sections.keys());
        let mut names: Vec<&str> = sections
            .filter(|name| self.sections.get(*name) != other.sections.get(*name))
            .map(String::as_str)
            .collect();
        let symbols = self.symbols.keys().chain(other.symbols.keys());
        let symbols = symbols.filter(|name| self.symbols.get(*name) != other.symbols.get(*name));
        names.extend(symbols.map(String::as_str));
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Not DWARF, which is stripped, nor what goes by the numbers of symbols, which that changes.
fn is_loaded(section: &object::Section<'_, '_>) -> bool {
    let by_number = section.kind() == SectionKind::Metadata;
    let is_named = |name: &str| !name.starts_with(".debug") && name != ".llvm_addrsig";
    !by_number && section.name().is_ok_and(is_named)
}

/// Copies what is compiled, and how.
fn copy_sources(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("sources") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("it has a name");
        if path.is_dir() {
            copy_sources(&path, &to.join(name));
        } else if path.extension().is_none_or(|extension| extension != "o") {
            fs::copy(&path, to.join(name)).expect("copied");
        }
    }
}

fn objects(folder: &Path, below: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join(below)).expect("a folder");
    let names = entries.map(|entry| Path::new(below).join(entry.expect("an entry").file_name()));
    names.filter(|name| name.extension().is_some_and(|extension| extension == "o")).collect()
}

#[test]
fn committed_objects_are_what_clang_makes_of_their_sources() {
    if Command::new(CLANG).arg("--version").output().is_err() {
        assert!(std::env::var_os(INSISTS).is_none(), "{CLANG} is not installed");
        eprintln!("not checked: committed objects against their sources, for want of {CLANG}");
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf");
    let place = std::env::temp_dir().join(format!("nvlane-bpf-fresh-{}", std::process::id()));
    copy_sources(&folder, &place);
    let compiler = format!("CLANG={CLANG}");
    let mut make = Command::new("make");
    let made = make.current_dir(&place).args(["-s", "STRIP=true", &compiler]).output();
    let made = made.expect("make runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let (mut count, mut named) = (0, 0);
    for name in FOLDERS.iter().flat_map(|folder| objects(&place, folder)) {
        let contents = |folder: &Path| {
            let object = fs::read(folder.join(&name));
            let object = object.unwrap_or_else(|error| panic!("{}: {error}", name.display()));
            Contents::of(&object).expect("an object")
        };
        let (fresh, kept) = (contents(&place), contents(&folder));
        let code = &fresh.sections[".text"];
        assert!(!code.0.is_empty(), "{}: nothing to compare", name.display());
        let differ = fresh.differ_from(&kept);
        let name = name.display();
        assert!(differ.is_empty(), "{name} is not what its source says: make -C bpf ({differ:?})");
        named += code.1.len();
        count += 1;
    }
    assert!(named > 100, "what relocations name is compared as well");
    assert_eq!(count, FOLDERS.iter().map(|below| objects(&folder, below).len()).sum::<usize>());
    fs::remove_dir_all(&place).expect("it was ours");
}
