//! `include/nvlane.h` is what cbindgen makes of the sources.
//!
//! `NVLANE_WRITE_HEADER=1 cargo test -p capi --test header` writes it.

use std::fs;
use std::path::Path;

/// What C programs see, in the order of the header.
const SOURCES: [&str; 8] = [
    "session.rs",
    "volume.rs",
    "buffer.rs",
    "submission.rs",
    "copy.rs",
    "paths.rs",
    "status.rs",
    "failure.rs",
];

#[test]
fn the_header_is_up_to_date() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config =
        cbindgen::Config::from_file(crate_folder.join("cbindgen.toml")).expect("a configuration");
    let sources = SOURCES.iter().map(|name| crate_folder.join("src").join(name));
    let builder =
        sources.fold(cbindgen::Builder::new().with_config(config), cbindgen::Builder::with_src);
    let mut made = Vec::new();
    builder.generate().expect("a header").write(&mut made);
    let made = String::from_utf8(made).expect("text");
    let path = crate_folder.join("include/nvlane.h");
    if std::env::var_os("NVLANE_WRITE_HEADER").is_some() {
        fs::write(&path, &made).expect("the header is written");
    }
    let header = fs::read_to_string(&path).unwrap_or_default();
    let lib = fs::read_to_string(crate_folder.join("src/lib.rs")).expect("a source");
    for name in made.match_indices("nvl_").map(|(at, _)| &made[at..]) {
        let name: String = name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        assert!(lib.contains(&name), "{name} is in the header, but not public");
    }
    assert!(
        header == made,
        "include/nvlane.h is out of date: run NVLANE_WRITE_HEADER=1 cargo test -p capi --test header"
    );
}
