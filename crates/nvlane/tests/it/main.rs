//! The real binary, from outside: its errors, its control socket, and what survives it.

mod bench;
mod control;
mod daemon;
#[path = "../../../target/tests/host/mod.rs"]
mod host;
mod serve;
