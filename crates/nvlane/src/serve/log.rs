//! The log, to standard error.

mod unwaited;

use anyhow::{Result, anyhow};
use std::io::IsTerminal;
use std::sync::OnceLock;
use tracing_subscriber::EnvFilter;
use unwaited::Unwaited;

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// Puts another filter in the place of the one that there is.
type Change = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

/// Of the log to standard error, once there is one.
static CHANGE: OnceLock<Change> = OnceLock::new();

/// Logs what `filter` lets pass.
pub fn to_stderr(filter: &str) -> Result<()> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(parse(filter).map_err(|wrong| anyhow!("--log {wrong}"))?)
        .with_writer(|| Unwaited)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // It would say so on standard error again, and panic: whoever serves goes on without a log.
        .log_internal_errors(false)
        .with_filter_reloading();
    let handle = builder.reload_handle();
    builder.init();
    let change = move |filter| handle.reload(filter).map_err(|error| error.to_string());
    let _ = CHANGE.set(Box::new(change));
    Ok(())
}

/// Logs what `filter` lets pass from now on.
pub fn change(filter: &str) -> Result<(), String> {
    let filter = parse(filter)?;
    let change = CHANGE.get().ok_or("there is no log")?;
    change(filter)
}

fn parse(filter: &str) -> Result<EnvFilter, String> {
    let wrong = || {
        format!(
            "`{filter}` is no level (error, warn, info, debug, trace, off) and no list like \
             warn,target=debug"
        )
    };
    // EnvFilter would take an unknown level for the name of a part.
    if !is_filter(filter) {
        return Err(wrong());
    }
    EnvFilter::try_new(filter).map_err(|_| wrong())
}

/// Whether it is a list of levels, each for everything or for one part.
fn is_filter(filter: &str) -> bool {
    filter.split(',').all(|directive| {
        let level = match directive.split_once('=') {
            Some((part, level)) if !part.trim().is_empty() => level,
            Some(_) => return false,
            None => directive,
        };
        LEVELS.iter().any(|known| level.trim().eq_ignore_ascii_case(known))
    })
}

#[cfg(test)]
mod tests {
    use super::is_filter;

    #[test]
    fn levels_that_do_not_exist_are_no_filters() {
        for filter in ["info", "WARN", "warn,target=debug", "target=off"] {
            assert!(is_filter(filter), "{filter}");
        }
        for filter in ["", "bogus", "bogus,,", "info,", "target=loud", "=info", "a=b=c"] {
            assert!(!is_filter(filter), "{filter}");
        }
    }
}
