//! Keys of in-band authentication and of TLS, in files: a secret on a command line would be in every list of processes.

use association::Credentials;
use dhchap::{HostConfig, Key, KeyError};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;
use tls::Psk;
use zeroize::Zeroizing;

/// More than any two keys, with room for white space.
const FILE_BYTES_MAX: u64 = 1024;

/// How keys begin, of either kind.
const BEGINS: [&str; 2] = ["DHHC-1:", "NVMeTLSkey-1:"];

/// Keys in a file: one, and while it is replaced the one that comes after it.
pub const KEYS_MAX: usize = 2;

/// A file that gives no key.
#[derive(Debug, Error)]
pub enum KeyFileError {
    /// It cannot be read.
    #[error("cannot read the key {}: {source}", path.display())]
    Read {
        /// Of the file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It holds something else.
    #[error("{} holds no key: {source}", path.display())]
    Key {
        /// Of the file.
        path: PathBuf,
        /// What is wrong with it.
        source: KeyError,
    },
    /// There are more keys in it than one and the one that replaces it.
    #[error("{} holds more than {KEYS_MAX} keys", path.display())]
    TooMany {
        /// Of the file.
        path: PathBuf,
    },
    /// Two keys stand in one line of it, as they do when the second is appended to a line without an end.
    #[error("{} has two keys in one line: each is to have a line of its own", path.display())]
    OneLine {
        /// Of the file.
        path: PathBuf,
    },
    /// The same as [`KeyFileError::Key`] where a key for TLS is wanted.
    #[error("{} holds no key for TLS: {source}", path.display())]
    TlsKey {
        /// Of the file.
        path: PathBuf,
        /// What is wrong with it.
        source: tls::KeyError,
    },
    /// There is no PSK for names like these.
    #[error("no key for TLS: {0}")]
    Names(#[source] tls::PskError),
    /// A key stands where its file should. It is not said again.
    #[error("that is a key itself; give the path of a file that holds it")]
    Secret,
    /// Only the controller is to prove who it is: there is no such exchange.
    #[error(
        "dhchap_ctrl_key needs dhchap_key: only a host that proves who it is can have the controller do so"
    )]
    NoHostKey,
}

/// The files of the keys by which this host and a controller prove to each other who they are, and encrypt what they say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyFiles {
    /// The host's key; none: it cannot prove who it is.
    pub host: Option<PathBuf>,
    /// The controller's key, if it is to prove who it is.
    pub controller: Option<PathBuf>,
    /// The key for TLS; with it, connections are encrypted or not made.
    pub tls: Option<PathBuf>,
}

/// What the files hold.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    /// By what both ends prove who they are; none: they need not.
    pub credentials: Option<Credentials>,
    /// What this host may begin TLS with, the likeliest first; none: nothing is encrypted.
    pub offers: Vec<Psk>,
}

impl KeyFiles {
    /// The same for controllers that need not prove who they are: those of discovery, which only name others that do.
    pub fn of_host(&self) -> KeyFiles {
        KeyFiles { controller: None, ..self.clone() }
    }

    /// Reads them. Those that everybody may read are warned about.
    pub fn read(&self, host_nqn: &str, subsystem_nqn: &str) -> Result<Keys, KeyFileError> {
        let offers = self.tls.as_ref().map(|path| {
            let keys = read_tls_keys(path)?;
            warn_if_exposed(path);
            tls::offers(&keys[0], host_nqn, subsystem_nqn).map_err(KeyFileError::Names)
        });
        Ok(Keys {
            credentials: self.credentials(host_nqn, subsystem_nqn)?,
            offers: offers.transpose()?.unwrap_or_default(),
        })
    }

    fn credentials(
        &self,
        host_nqn: &str,
        subsystem_nqn: &str,
    ) -> Result<Option<Credentials>, KeyFileError> {
        let Some(host) = &self.host else {
            return if self.controller.is_none() { Ok(None) } else { Err(KeyFileError::NoHostKey) };
        };
        let read = |path: &PathBuf| {
            let keys = read_keys(path)?;
            warn_if_exposed(path);
            Ok(keys)
        };
        let config = HostConfig {
            host_nqn: host_nqn.into(),
            subsystem_nqn: subsystem_nqn.into(),
            host_key: Arc::clone(&read(host)?[0]),
            controller_keys: self.controller.as_ref().map(read).transpose()?,
        };
        let random = |bytes: &mut [u8]| {
            getrandom::fill(bytes).expect("the kernel gives random bytes");
        };
        Ok(Some(Credentials { config, random }))
    }
}

/// Once for each file.
fn warn_if_exposed(path: &Path) {
    static WARNED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    if is_exposed(path)
        && WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned())
    {
        tracing::warn!("everybody may read the key {}: chmod 600 it", path.display());
    }
}

/// Reads a file that holds a key, `DHHC-1:...`, or two, each in a line of its own, and nothing else but white space. The first is the one by which
/// this end proves who it is; the other end may by each. There is at least one.
pub fn read_keys(path: &Path) -> Result<Arc<[Arc<Key>]>, KeyFileError> {
    read(path, |line| {
        Key::parse(line).map_err(|source| KeyFileError::Key { path: path.into(), source })
    })
}

/// The same of keys for TLS, `NVMeTLSkey-1:...`.
pub fn read_tls_keys(path: &Path) -> Result<Arc<[Arc<tls::Key>]>, KeyFileError> {
    let of_tls = |source| KeyFileError::TlsKey { path: path.into(), source };
    read(path, |line| tls::Key::parse(line).map_err(of_tls))
}

fn read<K>(
    path: &Path,
    parse: impl Fn(&str) -> Result<K, KeyFileError>,
) -> Result<Arc<[Arc<K>]>, KeyFileError> {
    let text = read_text(path)?.unwrap_or_default();
    let mut lines: Vec<&str> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.len() > KEYS_MAX {
        return Err(KeyFileError::TooMany { path: path.into() });
    }
    let keys_of =
        |line: &&str| BEGINS.iter().map(|begin| line.matches(begin).count()).sum::<usize>();
    if lines.iter().any(|line| keys_of(line) > 1) {
        return Err(KeyFileError::OneLine { path: path.into() });
    }
    if lines.is_empty() {
        // It says what a key looks like.
        lines.push("");
    }
    lines.into_iter().map(|line| parse(line).map(Arc::new)).collect()
}

/// What a file of a key holds; none if that is no text, which is no key either.
fn read_text(path: &Path) -> Result<Option<Zeroizing<String>>, KeyFileError> {
    if is_secret(path) {
        return Err(KeyFileError::Secret);
    }
    // As large as it can get, so that nothing of a secret is left behind by growing.
    let mut text = Zeroizing::new(String::with_capacity(FILE_BYTES_MAX as usize));
    // What blocks until somebody writes to it would keep whoever asks.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let read = file.and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
        Err(source) => Err(KeyFileError::Read { path: path.into(), source }),
    }
}

/// Whether a key was given where a file is wanted.
pub fn is_secret(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    BEGINS.iter().any(|begin| bytes.starts_with(begin.as_bytes()))
}

/// Whether everybody on this machine may read the file, or write to it. `false` where that cannot be found out.
pub fn is_exposed(path: &Path) -> bool {
    path.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o006 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_holds_one_key_or_two() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let [key, other] = [7, 8].map(|byte| Key::generate(None, &mut |bytes| bytes.fill(byte)));
        let (text, next) = (key.to_text(), other.to_text());
        let read = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("a file");
            let keys = read_keys(&path);
            keys.map(|keys| keys.iter().map(|key| (**key).clone()).collect::<Vec<_>>())
        };
        let one = read(format!("\n {}\n", *text).as_bytes());
        assert_eq!(one.expect("a key"), std::slice::from_ref(&key));
        let two = format!("{}\r\n\n  {}", *text, *next);
        assert_eq!(read(two.as_bytes()).expect("two keys"), [key, other]);
        let error = |bytes: &[u8]| read(bytes).expect_err("no key").to_string();
        let third = error(format!("{two}\n{}\n", *text).as_bytes());
        assert!(third.contains("more than 2 keys"), "{third}");
        let beside = error(format!("{}\nsecret\n", *text).as_bytes());
        let joined = error(format!("{}{}\n", *text, *next).as_bytes());
        assert!(joined.contains("two keys in one line"), "{joined}");
        let no_text = error(&[0xff; 9]);
        let long = error(&[b' '; 5000]);
        for said in [third, beside, joined, error(b""), error(b"secret"), no_text, long] {
            assert!(
                said.contains(&*path.to_string_lossy()) && !said.contains(&text[10..20]),
                "{said}"
            );
        }
        let pipe = folder.path().join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().expect("text")).expect("no zero");
        // SAFETY: a name that ends with zero.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(read_keys(&pipe).is_err(), "and nobody waits for a writer");
        let said = read_keys(&folder.path().join("none")).expect_err("no file").to_string();
        assert!(said.contains("none") && said.contains("No such file"), "{said}");
    }

    #[test]
    fn everybody_may_read_it() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        for (mode, exposed) in [(0o600, false), (0o640, false), (0o644, true), (0o602, true)] {
            fs::set_permissions(file.path(), PermissionsExt::from_mode(mode)).expect("a mode");
            assert_eq!(is_exposed(file.path()), exposed, "{mode:o}");
        }
        assert!(!is_exposed(Path::new("/nowhere/at/all")));
    }

    #[test]
    fn a_key_for_tls_is_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let [one, other] = ["tls", "dhchap"].map(|name| folder.path().join(name));
        let key = tls::Key::generate(tls::Hash::Sha256, &mut |bytes| bytes.fill(7));
        fs::write(&one, key.to_text().as_bytes()).expect("a file");
        let text = Key::generate(None, &mut |bytes| bytes.fill(7)).to_text();
        fs::write(&other, text.as_bytes()).expect("a file");
        let read = read_tls_keys(&one).expect("a key");
        assert!(*read[0] == key && read.len() == 1);
        for (error, path) in [(read_tls_keys(&other).err(), &other), (read_keys(&one).err(), &one)]
        {
            let said = error.expect("of the other kind").to_string();
            assert!(said.contains(&*path.to_string_lossy()), "{said}");
        }
        let secret = key.to_text();
        let said = read_tls_keys(Path::new(secret.as_str())).expect_err("a path").to_string();
        assert!(!said.contains(&secret[16..24]), "{said}");

        let files = KeyFiles { tls: Some(one), ..KeyFiles::default() };
        let keys = files.read("nqn.host", "nqn.subsystem").expect("a key");
        assert!(keys.credentials.is_none() && keys.offers.len() == 4);
        let files = KeyFiles { tls: Some(other), ..KeyFiles::default() };
        files.read("nqn.host", "nqn.subsystem").expect_err("without a key nothing is sent");
    }
}
