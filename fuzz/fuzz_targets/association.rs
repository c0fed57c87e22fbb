#![no_main]
//! The body is in association, where it is tested without a fuzzer too.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| association::fuzzing::fuzz_association(bytes));
