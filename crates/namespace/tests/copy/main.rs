//! Copy through guards, over real backends.

mod blocks;
mod bounds;
mod devices;
mod dice;
mod gate;
mod leaf;
mod model;
mod programs;
mod races;
mod rules;
mod stacks;
mod tally;
mod waits;
mod world;
