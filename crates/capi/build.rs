//! Gives the shared library a name of its own: programs that are linked with one interface do not run with another.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvlane.so.0");
}
