//! Signals that ask a server to stop, and what a service manager is told of it.

use anyhow::{Context, Result};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsStr;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

/// Signals this soon after the first one are the same wish: `timeout` and shells tell a process
/// and its group.
const REPEAT_MAX: Duration = Duration::from_secs(1);

/// How long last words may take.
const WORDS_MAX: Duration = Duration::from_millis(100);

/// What service managers name their socket by (sd_notify(3)).
pub const SOCKET: &str = "NOTIFY_SOCKET";

/// By which systemd 248 and newer tells whom it has started itself (systemd.exec(5)).
pub const STARTED: &str = "SYSTEMD_EXEC_PID";

/// Whether a service manager has started us, and hears of us. All that runs below a unit inherits its socket: in the shell of
/// a terminal that is one, a server is nobody's service. (Nor is one that a unit's script starts otherwise than by `exec`.)
pub fn is_service() -> bool {
    let started = std::env::var_os(STARTED);
    std::env::var_os(SOCKET).is_some() && is_started(started.as_deref(), process::id())
}

/// Whether `own` is the process that systemd has started, or nothing says that it is not.
fn is_started(started: Option<&OsStr>, own: u32) -> bool {
    let started = started.and_then(|text| text.to_str()?.parse::<u32>().ok());
    started.is_none_or(|started| started == own)
}

/// Tells the service manager of whose service we are, if of any: another's would take it for news of its own.
pub fn notify(news: &[NotifyState<'_>]) {
    if is_service() {
        // Whoever does not hear it still wants to be served.
        let _ = sd_notify::notify(news);
    }
}

/// Has a write beyond the limit of a file's size (setrlimit(2), RLIMIT_FSIZE) fail by EFBIG, as one to a full file system
/// does, rather than end the program with what others have not flushed. Caught rather than ignored: programs that we
/// start are not to inherit it.
pub fn outlive_file_size_limit() {
    extern "C" fn nothing(_signal: libc::c_int) {}
    // SAFETY: all zeroes are a valid sigaction, with no flags and an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: likewise.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both are valid, and the handler does nothing. It cannot fail for a signal that can be caught.
    unsafe { libc::sigaction(libc::SIGXFSZ, &raw const action, &raw mut before) };
    if before.sa_sigaction == libc::SIG_IGN {
        // Whoever started us wants that of those whom we start, too.
        // SAFETY: what it was before.
        unsafe { libc::sigaction(libc::SIGXFSZ, &raw const before, std::ptr::null_mut()) };
    }
}

/// Whoever started us may ignore SIGCHLD, which programs inherit: children would be gone before they are waited for.
pub fn wait_for_children() {
    // SAFETY: the default of a signal that has a default.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Calls `stop` at the first SIGINT, SIGTERM or SIGHUP, which is to stop the server in order; one
/// that comes later does not wait for that. Services have no terminal to lose: SIGHUP, by which daemons are told to
/// look at their files again, does nothing to them.
pub fn on_stop(stop: impl Fn() + Send + 'static) -> Result<()> {
    let mut wanted = vec![SIGINT, SIGTERM];
    if !ignores(SIGHUP) {
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
                    // Whoever is to read that may be why we are told again.
                    let _ = thread::Builder::new().spawn(move || crate::stderr::line(line));
                    thread::sleep(WORDS_MAX);
                    process::exit(128 + signal);
                }
            }
        }
    })?;
    Ok(())
}

/// Whether we were started so as to ignore a signal, which is to stay so: SIGHUP by nohup, SIGINT in the background of a shell.
pub fn ignores(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // proc_pid_status(5): a mask in hexadecimal digits, the lowest bit being signal 1.
    ignored
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 << (signal - 1) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_was_started_by_a_shell_is_no_service() {
        for (started, is) in [
            (None, true),
            (Some("4711"), true),
            (Some("471"), false),
            (Some("1"), false),
            // Nobody's number.
            (Some(""), true),
        ] {
            assert_eq!(is_started(started.map(OsStr::new), 4711), is, "{started:?}");
        }
    }
}
