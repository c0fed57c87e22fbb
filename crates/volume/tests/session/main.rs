//! A session from outside: what it promises its caller, on each kind of volume that needs no device.

mod allocations;
mod behaviour;
mod copies;
mod ending;
mod memory;
mod pieces;
mod polling;
