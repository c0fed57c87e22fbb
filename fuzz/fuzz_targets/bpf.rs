#![no_main]
//! The body is in bpf, where it is tested without a fuzzer too.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bpf::fuzzing::fuzz_bpf(bytes));
