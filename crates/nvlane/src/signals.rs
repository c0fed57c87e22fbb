//! Signals that ask a server to stop.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

/// Signals this soon after the first one are the same wish: `timeout` and shells tell a process
/// and its group.
const REPEAT_MAX: Duration = Duration::from_secs(1);

/// What service managers name their socket by (sd_notify(3)).
pub const SERVICE: &str = "NOTIFY_SOCKET";

/// Whether a service manager has started us, and hears of us.
pub fn is_service() -> bool {
    std::env::var_os(SERVICE).is_some()
}

/// Calls `stop` at the first SIGINT, SIGTERM or SIGHUP, which is to stop the server in order; one
/// that comes later does not wait for that. Services have no terminal to lose: SIGHUP, by which daemons are told to
/// look at their files again, does nothing to them.
pub fn on_stop(stop: impl Fn() + Send + 'static) -> Result<()> {
    let mut wanted = vec![SIGINT, SIGTERM];
    if !ignores_hangup() {
        wanted.push(SIGHUP);
    }
    let mut signals = Signals::new(wanted).context("cannot wait for signals")?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let mut told: Option<Instant> = None;
        for signal in signals.forever() {
            match told {
                _ if signal == SIGHUP && is_service() => {
                    tracing::info!("SIGHUP does nothing to a service");
                }
                None => {
                    told = Some(Instant::now());
                    stop();
                }
                Some(first) if first.elapsed() < REPEAT_MAX => {}
                Some(_) => {
                    let line = "nvlane: told again to stop: leaving now; what was written and not flushed may be lost";
                    let _ = writeln!(std::io::stderr(), "{line}");
                    std::process::exit(128 + signal);
                }
            }
        }
    })?;
    Ok(())
}

/// Whether we were started so as to outlive a terminal (nohup), which is to stay so.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // proc_pid_status(5): a mask in hexadecimal digits, the lowest bit being signal 1.
    ignored
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 << (SIGHUP - 1) != 0)
}
