#![no_main]
//! The body is in ublk-bpf, where it is tested without a fuzzer too.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    ublk_bpf::fuzzing::fuzz_link(bytes);
});
