#![no_main]
//! The body is in bpf, where it is tested without a fuzzer too. Programs run as code as well, where it can be made.

use bpf_native::{Unable, compile};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    bpf::fuzzing::fuzz_native(bytes, |instance| match compile(instance) {
        Ok(()) | Err(Unable::Long | Unable::Processor) => {}
        Err(error) => panic!("{error}"),
    });
});
