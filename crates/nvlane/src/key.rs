//! `nvlane key`: keys of in-band authentication and of TLS, which live in files.

use crate::admin::json_object;
use crate::cli::{KeyCommand, KeyHash, ListFormat};
use crate::config::authentication;
use crate::stdout;
use anyhow::{Context, Result, anyhow, bail};
use dhchap::{Key, KeyError};
use host::keys::{self, KeyFileError};
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

/// Makes or checks a key.
pub fn run(command: &KeyCommand) -> Result<()> {
    match command {
        KeyCommand::New { tls, hash, file } => new(*tls, *hash, file.as_deref()),
        KeyCommand::Check { file, output_format } => check(file, *output_format),
    }
}

fn new(is_tls: bool, hash: Option<KeyHash>, file: Option<&Path>) -> Result<()> {
    let mut failed = None;
    let mut random = |bytes: &mut [u8]| failed = getrandom::fill(bytes).err();
    let text = if is_tls {
        let Some(hash) = hash.map_or(Some(tls::Hash::Sha256), KeyHash::tls) else {
            bail!("--tls: a key for TLS goes by sha256 or sha384, and by no other --hash");
        };
        tls::Key::generate(hash, &mut random).to_text()
    } else {
        Key::generate(hash.and_then(KeyHash::transform), &mut random).to_text()
    };
    if let Some(error) = failed {
        return Err(anyhow!("no random numbers for a key: {error}"));
    }
    match file {
        Some(path) => write_new(path, &text).with_context(|| path.display().to_string()),
        None => stdout::write(format!("{}\n", text.as_str())),
    }
}

/// Writes the text of a key into a file that is not there yet, and that only its owner may read.
pub fn write_new(path: &Path, key: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let written = file
        .write_all(key.as_bytes())
        .and_then(|()| file.write_all(b"\n"))
        .and_then(|()| file.sync_all());
    if written.is_err() {
        // Half a key is none.
        let _ = fs::remove_file(path);
    }
    written
}

/// A key of either kind.
enum Either {
    Dhchap(Arc<Key>),
    Tls(Arc<tls::Key>),
}

impl Either {
    /// All that a file holds, which are of one kind.
    fn read(path: &Path) -> Result<Vec<Either>> {
        let form = match keys::read_tls_keys(path) {
            Ok(keys) => return Ok(keys.iter().cloned().map(Either::Tls).collect()),
            Err(KeyFileError::TlsKey { source: source @ tls::KeyError::Form, .. }) => source,
            Err(error) => return Err(error.into()),
        };
        match keys::read_keys(path) {
            Ok(keys) => Ok(keys.iter().cloned().map(Either::Dhchap).collect()),
            Err(error @ KeyFileError::Key { source: KeyError::Form, .. }) => {
                bail!("{error}; {form}")
            }
            Err(error) => Err(error.into()),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Either::Dhchap(_) => "dhchap",
            Either::Tls(_) => "tls",
        }
    }

    /// Its name among others.
    fn words(&self) -> &'static str {
        match self {
            Either::Dhchap(_) => "key",
            Either::Tls(_) => "key for TLS",
        }
    }

    /// By which hash function it is made the key of one name.
    fn hash(&self) -> Option<String> {
        match self {
            Either::Dhchap(key) => key.transform().map(|hash| hash.to_string()),
            Either::Tls(key) => key.transform().map(|hash| hash.to_string()),
        }
    }

    /// How long it is, and what is made of it.
    fn making(&self) -> String {
        let made = self.hash().map_or("used as it is".to_owned(), |hash| {
            format!("made the key of one name by {hash}")
        });
        format!("{} bytes, {made}", self.bytes())
    }

    fn bytes(&self) -> usize {
        match self {
            Either::Dhchap(key) => key.bytes(),
            Either::Tls(key) => key.hash().bytes(),
        }
    }
}

fn check(path: &Path, format: ListFormat) -> Result<()> {
    let all = Either::read(path)?;
    let (key, next) = (&all[0], all.get(1));
    let exposed = keys::is_exposed(path);
    let file = path.display().to_string();
    let text = if format == ListFormat::Json {
        let (kind, bytes, hash) = (key.kind(), key.bytes(), key.hash());
        let next = next.map(|key| json!({ "bytes": key.bytes(), "hash": key.hash() }));
        let Value::Object(object) = json!({ "file": file, "kind": kind, "bytes": bytes, "hash": hash, "next": next, "exposed": exposed })
        else {
            unreachable!("it is an object")
        };
        format!("{:#}\n", json_object(object))
    } else {
        let mut text = format!("{file}: a {} of {}\n", key.words(), key.making());
        if let Some(next) = next {
            text += &format!(
                "and another, of {}: from the other end each will do, this end proves itself by the first\n",
                next.making()
            );
        }
        if exposed {
            text += &format!("note: {}\n", authentication::exposed(&file));
        }
        text
    };
    stdout::write(text)
}
