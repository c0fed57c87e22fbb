#![no_main]
//! The body is in subsystem, where it is tested without a fuzzer too.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| subsystem::fuzzing::fuzz_copy(bytes));
