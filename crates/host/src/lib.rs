//! The NVMe/TCP host: remote namespaces as volumes.

pub mod client;
