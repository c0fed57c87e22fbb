//! The multipath layer over paths that do as they are told.

mod behaviour;
mod control;
mod core;
mod flush;
mod registers;
mod standby;
