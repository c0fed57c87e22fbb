//! Volumes behind programs: the examples against a model, and what becomes of what broken programs do.

mod copies;
#[path = "../contract/core.rs"]
#[expect(dead_code, reason = "the contract's tests use more of it")]
mod core;
mod deferred;
mod examples;
mod hostile;
mod keep;
mod replace;

use std::path::Path;

/// `bpf:` with the object of one of the repository's programs.
pub fn program(name: &str, volumes: &str) -> String {
    let object = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../bpf/{name}.bpf.o"));
    format!("bpf:{}({volumes})", object.canonicalize().expect(name).display())
}
