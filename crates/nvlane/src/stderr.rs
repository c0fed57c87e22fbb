//! What is said besides a command's output: to whoever still reads standard error. `eprintln!` ends the program where nobody
//! does, in the middle of what it is about.

use std::fmt::Display;
use std::io::{self, Write};

/// Writes `text` as it is.
pub fn text(text: impl Display) {
    let _ = write!(io::stderr(), "{text}");
}

/// Writes `text` and the end of the line.
pub fn line(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}
