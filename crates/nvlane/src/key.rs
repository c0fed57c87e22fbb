//! `nvlane key`: keys of in-band authentication, which live in files.

use crate::admin::json_object;
use crate::cli::{KeyCommand, KeyHash, ListFormat};
use crate::config::authentication;
use crate::stdout;
use anyhow::{Context, Result, anyhow};
use dhchap::Key;
use host::keys;
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Makes or checks a key.
pub fn run(command: &KeyCommand) -> Result<()> {
    match command {
        KeyCommand::New { hash, file } => new(*hash, file.as_deref()),
        KeyCommand::Check { file, output_format } => check(file, *output_format),
    }
}

fn new(hash: KeyHash, file: Option<&Path>) -> Result<()> {
    let mut failed = None;
    let key = Key::generate(hash.transform(), &mut |bytes| failed = getrandom::fill(bytes).err());
    if let Some(error) = failed {
        return Err(anyhow!("no random numbers for a key: {error}"));
    }
    match file {
        Some(path) => write_new(path, &key).with_context(|| path.display().to_string()),
        None => stdout::write(format!("{}\n", key.to_text().as_str())),
    }
}

/// Writes a key into a file that is not there yet, and that only its owner may read.
pub fn write_new(path: &Path, key: &Key) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let written = file
        .write_all(key.to_text().as_bytes())
        .and_then(|()| file.write_all(b"\n"))
        .and_then(|()| file.sync_all());
    if written.is_err() {
        // Half a key is none.
        let _ = fs::remove_file(path);
    }
    written
}

fn check(path: &Path, format: ListFormat) -> Result<()> {
    let key = keys::read_key(path)?;
    let exposed = keys::is_exposed(path);
    let (hash, bytes) = (key.transform().map(|hash| hash.to_string()), key.bytes());
    let file = path.display().to_string();
    let text = if format == ListFormat::Json {
        let Value::Object(object) =
            json!({ "file": file, "bytes": bytes, "hash": hash, "exposed": exposed })
        else {
            unreachable!("it is an object")
        };
        format!("{:#}\n", json_object(object))
    } else {
        let made = hash.map_or("used as it is".to_owned(), |hash| {
            format!("made the key of one name by {hash}")
        });
        let note = format!("note: {}\n", authentication::exposed(&file));
        format!("{file}: a key of {bytes} bytes, {made}\n{}", if exposed { &note } else { "" })
    };
    stdout::write(text)
}
