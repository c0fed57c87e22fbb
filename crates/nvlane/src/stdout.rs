//! A command's output. Whoever reads it may have seen enough (`nvlane man | head`): that is no failure, and is told from
//! broken pipes of anything else, which are.

use anyhow::{Context, Result};
use std::io::{self, ErrorKind, Write};

/// Nobody reads standard output any more.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads standard output any more")]
pub struct NoReader;

/// Writes `output`, all of it: what is left in a buffer at the end of the program would be lost without a word.
pub fn write(output: impl AsRef<[u8]>) -> Result<()> {
    let mut out = io::stdout().lock();
    told(out.write_all(output.as_ref()).and_then(|()| out.flush()))
}

/// What became of a write to standard output.
pub fn told(written: io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(NoReader.into()),
        written => written.context("standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reader_that_has_gone_is_no_failure() {
        assert!(told(Ok(())).is_ok());
        let error = told(Err(ErrorKind::BrokenPipe.into())).unwrap_err();
        assert!(error.context("a page").is::<NoReader>());
        let error = told(Err(ErrorKind::StorageFull.into())).unwrap_err();
        assert!(!error.is::<NoReader>() && error.to_string() == "standard output");
    }
}
