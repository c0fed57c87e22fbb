//! What needs no process of its own: one program, so that the reactor is built and linked once.

#[path = "../../../uring/tests/filter/mod.rs"]
mod filter;
#[path = "../recorder/mod.rs"]
mod recorder;

mod files;
mod gathering;
mod mailbox;
mod outside;
mod refused;
mod sockets;
mod stop;
mod timers;
mod waiting;
