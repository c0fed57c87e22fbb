//! The real binary, from outside: its errors, its control socket, and what survives it.

mod admin;
mod bench;
mod bounded;
mod bpf;
mod content;
mod control;
mod controllers;
mod copy;
mod copy_end;
mod copy_flags;
mod copy_kills;
mod copy_plan;
mod copy_told;
mod daemon;
mod failures;
mod file_limit;
mod follow;
mod holes;
#[path = "../../../target/tests/host/mod.rs"]
mod host;
mod hostile;
mod hung;
mod job_paths;
mod jobs;
mod jobs_kills;
mod jobs_overlap;
mod jobs_told;
mod keys;
mod kickstart;
mod library;
mod many_jobs;
mod metrics;
mod missing;
mod nbd;
mod passed;
mod passthrough;
mod paused;
mod remote;
#[path = "../../../host/tests/rig/rogue.rs"]
#[allow(dead_code, reason = "each test uses the part it needs")]
mod rogue;
mod schema;
mod serve;
mod state;
mod stop;
mod tls_listeners;
mod two_caches;
mod unsynced;
mod watch;
mod without_ring;
