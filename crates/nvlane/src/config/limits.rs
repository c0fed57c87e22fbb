//! Bounds on configurations, whoever writes them.

/// Listeners of one daemon.
pub const LISTENERS_MAX: usize = 64;
/// Subsystems of one daemon.
pub const SUBSYSTEMS_MAX: usize = 1024;
/// Namespaces of one subsystem.
pub const NAMESPACES_MAX: usize = subsystem::NAMESPACES_MAX as usize;
/// Largest namespace id.
pub const NSID_MAX: u32 = subsystem::NAMESPACES_MAX;
/// Hosts that one subsystem lists.
pub const HOSTS_MAX: usize = 1024;
/// Largest ANA group id.
pub const ANA_GROUP_MAX: u32 = subsystem::ANA_GROUPS_MAX;
