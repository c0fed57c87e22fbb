//! Copy through guards, over real backends.

mod blocks;
mod bounds;
mod dice;
mod gate;
mod model;
mod programs;
mod races;
mod rules;
mod stacks;
mod waits;
mod world;
