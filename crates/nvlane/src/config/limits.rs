//! Bounds on configurations, whoever writes them.

/// Listeners of one daemon.
pub const LISTENERS_MAX: usize = 64;
/// Subsystems of one daemon.
pub const SUBSYSTEMS_MAX: usize = 1024;
/// Namespaces of one subsystem.
pub const NAMESPACES_MAX: usize = 4096;
/// Largest namespace id.
pub const NSID_MAX: u32 = 4096;
/// Hosts that one subsystem lists.
pub const HOSTS_MAX: usize = 1024;
/// Largest ANA group id.
pub const ANA_GROUP_MAX: u32 = 128;
