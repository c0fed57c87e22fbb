//! The `Namespace` contract, its local backends and its layers.

mod contract;
mod data;

pub use contract::{DEPTH_MAX, Namespace, Queue, Request, Sink};
pub use data::{Data, Lent, Transient};
