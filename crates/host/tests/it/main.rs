//! What needs no process of its own: one program, so that the host is built and linked once.

#[path = "../rig/mod.rs"]
mod rig;

mod aborts;
mod allocation;
mod authentication;
mod copy;
mod data;
mod discovery;
mod flush;
mod follow;
mod hostile;
mod late;
mod log_page;
mod loss;
mod multipath;
mod once;
mod pages;
mod passthrough;
mod pauses;
mod queues;
mod rogue;
