//! Tests against the public interface: a host that speaks commands, without a transport.

mod arbitrary;
mod authenticating;
mod configuring;
mod connecting;
mod copying;
mod discovering;
mod events;
mod features;
mod host;
mod identifying;
mod io_checks;
mod lba_status;
mod logs;
mod memory;
mod securing;
mod time;
