//! Gives the shared library libaio's name and versions.

fn main() {
    let map = concat!(env!("CARGO_MANIFEST_DIR"), "/libaio.map");
    println!("cargo:rerun-if-changed={map}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={map}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libaio.so.1");
    // rustc lists symbols that are not in its own script's terms.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--undefined-version");
}
