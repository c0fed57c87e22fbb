#![no_main]
//! The body is in nvme-tcp, where it is tested without a fuzzer too.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nvme_tcp::fuzzing::fuzz_pdu(bytes));
