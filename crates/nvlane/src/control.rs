//! The control socket: JSON-RPC 2.0 on a Unix socket, objects one after the other.
//!
//! ```text
//!   nvlane ctl --> client ==socket==> server (a thread per connection) --channel--> daemon's loop
//! ```
//!
//! The methods are in [`method`], with their parameters, and in [`lists`]; docs/control.md is their manual. Nothing
//! here knows what a method does: `daemon` does.

pub mod client;
pub mod lists;
pub mod method;
pub mod path;
pub mod protocol;
pub mod server;
pub mod times;
