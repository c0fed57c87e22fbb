//! Configuration files: TOML for people, JSON when the name ends in `.json`.

use super::{Config, Invalid};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Largest configuration file that is read.
const BYTES_MAX: u64 = 64 << 20;

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// It is not TOML or JSON, or has fields that a configuration has not.
    #[error("{path}: {problem}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and what, in one line.
        problem: String,
    },
    /// It says something that cannot be served.
    #[error("{path}: {source}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What.
        source: Invalid,
    },
}

/// Reads and checks the file; also gives its text, of which a fingerprint is taken.
pub fn read(path: &Path) -> Result<(Config, String), FileError> {
    let text = read_text(path)?;
    let config = if is_json(path) {
        serde_json::from_str(&text).map_err(|error| error.to_string())
    } else {
        toml::from_str(&text).map_err(|error| toml_problem(&error, &text))
    };
    let config: Config =
        config.map_err(|problem| FileError::Syntax { path: path.to_owned(), problem })?;
    let checked = config.check().and_then(|()| config.check_hosts_with_keys());
    checked.map_err(|source| FileError::Invalid { path: path.to_owned(), source })?;
    Ok((config, text))
}

/// Reads a file of bounded size as text.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    let failed = |source| FileError::Io { path: path.to_owned(), source };
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text))
        .map_err(failed)?;
    // A part of it may say something of its own.
    if text.len() as u64 > BYTES_MAX {
        let what = format!("is longer than {BYTES_MAX} bytes");
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, what)));
    }
    Ok(text)
}

/// Writes a configuration as TOML, the form for people.
pub fn to_toml(config: &Config) -> String {
    toml::to_string_pretty(config).expect("a configuration is plain data")
}

/// Whether a path means JSON.
pub fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
}

/// The parser's message without the excerpt it draws below: one line, with the line number.
fn toml_problem(error: &toml::de::Error, text: &str) -> String {
    let message = error.message().lines().next().unwrap_or("cannot be read").to_owned();
    match error.span() {
        Some(span) => {
            let line = text[..span.start.min(text.len())].matches('\n').count() + 1;
            format!("line {line}: {message}")
        }
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_a_whole_or_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nvlane.toml");
        let text = format!("#{}\n", " ".repeat(BYTES_MAX as usize - 2));
        fs::write(&path, &text).unwrap();
        assert_eq!(read_text(&path).unwrap().len() as u64, BYTES_MAX);
        fs::write(&path, text + "poll = true\n").unwrap();
        let said = read_text(&path).unwrap_err().to_string();
        assert!(said.contains("nvlane.toml") && said.contains("longer than"), "{said}");
    }
}
