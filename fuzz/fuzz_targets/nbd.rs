#![no_main]
//! The body is in nbd, where it is tested without a fuzzer too.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nbd::fuzzing::fuzz_nbd(bytes));
