//! What needs no process of its own: one program, so that policies are built and linked once.

mod depth;
mod probes;
mod properties;
mod queueing;
mod tunables;
