//! subsystem
