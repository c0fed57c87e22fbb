//! The log, to standard error.

use anyhow::{Result, anyhow};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// Logs what `filter` lets pass.
pub fn to_stderr(filter: &str) -> Result<()> {
    let wrong = || {
        anyhow!(
            "--log `{filter}` is no level (error, warn, info, debug, trace, off) and no list like \
             warn,target=debug"
        )
    };
    // EnvFilter would take an unknown level for the name of a part.
    if !is_filter(filter) {
        return Err(wrong());
    }
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(filter).map_err(|_| wrong())?)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // It would say so on standard error again, and panic: whoever serves goes on without a log.
        .log_internal_errors(false)
        .init();
    Ok(())
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
