//! Names and versions, which a linker can lose without a word.

use super::*;
use std::collections::BTreeSet;

/// Symbols of a library as readelf has them: `io_submit@@LIBAIO_0.1`.
fn exported(library: &Path) -> BTreeSet<String> {
    let arguments = ["--dyn-syms", "--wide"];
    let output = Command::new("readelf").args(arguments).arg(library).output().expect("readelf");
    let text = String::from_utf8(output.stdout).expect("text");
    let symbols = text.lines().filter(|line| line.contains(" GLOBAL ") && !line.contains(" UND "));
    symbols
        .filter_map(|line| line.split_whitespace().nth(7))
        .filter(|name| name.contains("io_"))
        .map(str::to_owned)
        .collect()
}

fn dynamic(library: &Path, arguments: &[&str]) -> String {
    let output = Command::new("readelf").args(arguments).arg(library).output().expect("readelf");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn every_symbol_of_libaio_has_its_version_here() {
    let (theirs, ours) = (exported(&native()), exported(&ours()));
    assert_eq!(theirs.len(), 13, "{theirs:?}");
    let missing: Vec<&String> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "{missing:?} are missing in {ours:?}");
    let more: Vec<&String> = ours.difference(&theirs).collect();
    assert_eq!(more, ["io_ring_enter@@NVLANE_AIO_1", "io_setup2@@NVLANE_AIO_1"]);
}

#[test]
fn the_name_and_the_version_nodes_are_libaios() {
    assert!(dynamic(&ours(), &["-d", "--wide"]).contains("Library soname: [libaio.so.1]"));
    let versions = dynamic(&ours(), &["-V", "--wide"]);
    for node in ["LIBAIO_0.1", "LIBAIO_0.4", "LIBAIO_0.5", "LIBAIO_0.6"] {
        assert!(versions.contains(&format!("Name: {node}")), "{node} is missing");
    }
}
