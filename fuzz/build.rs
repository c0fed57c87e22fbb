//! What the target `link` is linked with where gcc instruments the C code in it, as `run` has it do: the runtime library of
//! its address sanitizer, wherever that is, and what counts where that code has been.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=coverage.c");
    println!("cargo:rerun-if-env-changed=FUZZ_SANITIZER");
    let Ok(sanitizer) = env::var("FUZZ_SANITIZER") else { return };
    let out = env::var("OUT_DIR").expect("cargo says where things are put");
    cc::Build::new().file("coverage.c").cargo_metadata(false).compile("coverage");
    // Last, since what needs them comes before.
    println!("cargo:rustc-link-arg-bin=link={out}/libcoverage.a");
    println!("cargo:rustc-link-arg-bin=link=-Wl,--wrap=__sanitizer_cov_trace_pc");
    println!("cargo:rustc-link-arg-bin=link=-Wl,--whole-archive,{sanitizer},--no-whole-archive");
}
