//! Copy through guards, over real backends.

mod blocks;
mod model;
mod stacks;
