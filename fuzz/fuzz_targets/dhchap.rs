#![no_main]
//! The body is in dhchap, where it is tested without a fuzzer too.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dhchap::fuzzing::fuzz(bytes));
