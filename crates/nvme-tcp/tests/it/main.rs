//! All in one program, so that the machines are built and linked once.

#[path = "../peer/mod.rs"]
mod peer;

mod bad_controller_input;
mod bad_host_input;
mod headers_alone;
mod kickstart;
mod loopback;
mod wire;
