//! The host side of an association with one controller: when to connect, keep alive and
//! reconnect, and what may be retried.
