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

/// A library with the name that Debian 13 gives libaio, to link programs with: what it has does nothing.
fn renamed(scratch: &Path) -> PathBuf {
    let (source, map) = (scratch.join("renamed.c"), scratch.join("renamed.map"));
    let nodes = [
        ("LIBAIO_0.1", "io_submit io_queue_init io_queue_run io_queue_release"),
        ("LIBAIO_0.4", "io_setup io_destroy io_cancel io_getevents io_queue_wait"),
        ("LIBAIO_0.5", "io_pgetevents"),
    ];
    let names = nodes.iter().flat_map(|(_, names)| names.split(' '));
    let code: String = names.map(|name| format!("int {name}(void) {{ return -38; }}\n")).collect();
    fs::write(&source, code).expect("written");
    let node =
        |(node, names): &(&str, &str)| format!("{node} {{ {}; }};\n", names.replace(' ', "; "));
    fs::write(&map, nodes.iter().map(node).collect::<String>()).expect("written");
    let library = scratch.join("libaio.so.1t64");
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-fno-builtin", "-Wl,-soname,libaio.so.1t64", "-o"])
        .args([&library, &source])
        .arg(format!("-Wl,--version-script={}", map.display()))
        .output()
        .expect("cc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

#[test]
fn programs_of_debian_13_find_it_by_the_name_that_they_have() {
    let scratch = scratch();
    let program = compiled("errors", &renamed(scratch.path()), scratch.path());
    let needed = dynamic(&program, &["-d", "--wide"]);
    assert!(needed.contains("[libaio.so.1t64]") && !needed.contains("[libaio.so.1]"), "{needed}");
    let run = |change: &dyn Fn(&mut Command)| {
        let mut command = with(&program, Some("ring"));
        change(command.arg(fresh(scratch.path())));
        Ways::of(&mut command, printed)
    };
    // In a folder of ours, where it has both names.
    let (found, ways) = run(&|_| {});
    assert!(ways.ours() > 0 && found.lines().count() > 5, "{found}");
    // As `nvlane aio run` does it, beside the one that is installed.
    let (preloaded, ways) = run(&|command| {
        command.env("LD_LIBRARY_PATH", scratch.path()).env("LD_PRELOAD", ours());
    });
    assert!(ways.ours() > 0, "{preloaded}");
    assert_eq!(found, preloaded);
}
