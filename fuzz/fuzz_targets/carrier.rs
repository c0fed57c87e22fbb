#![no_main]
//! The body is in target, where it is tested without a fuzzer too.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target::fuzzing::fuzz_carrier(bytes));
