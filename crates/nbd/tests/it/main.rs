//! What needs no process of its own: one program, so that the server is built and linked once.

#[path = "../client/mod.rs"]
mod client;

mod bounds;
mod durability;
mod limits;
mod requests;
