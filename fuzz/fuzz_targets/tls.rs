#![no_main]
//! The body is in tls, where it is tested without a fuzzer too.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tls::fuzzing::fuzz(bytes));
