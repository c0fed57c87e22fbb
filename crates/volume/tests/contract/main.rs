//! The `Namespace` contract, run against every backend and a number of stacks on real reactors.

mod behaviour;
mod core;
mod model;
mod opening;
mod races;
mod remote;
