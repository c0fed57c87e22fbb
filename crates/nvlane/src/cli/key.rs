//! `nvlane key`.

use super::ListFormat;
use clap::{Subcommand, ValueEnum};
use dhchap::Hash;
use std::path::PathBuf;

/// `nvlane key`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  nvlane key new /etc/nvlane/host1.key
  nvlane key new --tls /etc/nvlane/host1.tls
  nvlane key check /etc/nvlane/host1.key

Keys are those of DH-HMAC-CHAP, as `nvme gen-dhchap-key` makes them as well, or those of TLS, as `nvme gen-tls-key` does. What they
are for: docs/serve.md, \"Authentication\" and \"TLS\".")]
pub enum KeyCommand {
    /// Make a new key, and write it to a file that only its owner may read.
    #[command(after_help = "Examples:
  nvlane key new host1.key && nvlane serve disk.img --host-key nqn.2014-08.org.example:host1=host1.key
  nvlane key new --tls host1.tls && nvlane serve disk.img --listen tls://0.0.0.0 --host-tls-key nqn.2014-08.org.example:host1=host1.tls
  nvlane key new --hash sha512 | ssh host1 'umask 077; cat > /etc/nvme/host1.key'

Host and server hold the same key: copy the file by a way that nobody listens to. To replace a key, append the new one to the
server's file (a line of its own), and take the old line out when the host has the new one: docs/serve.md, \"To rotate keys\".")]
    New {
        /// A key for TLS, by which connections are encrypted, instead of one for DH-HMAC-CHAP.
        #[arg(long)]
        tls: bool,
        /// By which hash function it is made the key of one name before it is used; its length goes by that: 32 bytes with none
        /// and sha256, 48 with sha384, 64 with sha512. none if not given; with --tls sha256, or sha384.
        #[arg(long, value_enum, value_name = "HASH")]
        hash: Option<KeyHash>,
        /// The file, which must not be there yet. Standard output when left out.
        file: Option<PathBuf>,
    },
    /// Say what kind of key a file holds, or which two while one is replaced, and whether others may read it. Does not show the keys.
    #[command(after_help = "Examples:
  nvlane key check /etc/nvlane/host1.key
  nvlane key check host1.key -o json

The exit status is 1 if the file holds no key.")]
    Check {
        /// The file.
        file: PathBuf,
        /// How to write it.
        #[arg(short, long, value_enum, default_value = "normal")]
        output_format: ListFormat,
    },
}

/// How a key is made that of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KeyHash {
    /// Not at all: it is used as it is.
    None,
    /// By SHA-256.
    Sha256,
    /// By SHA-384.
    Sha384,
    /// By SHA-512.
    Sha512,
}

impl KeyHash {
    /// The hash function.
    pub fn transform(self) -> Option<Hash> {
        match self {
            KeyHash::None => None,
            KeyHash::Sha256 => Some(Hash::Sha256),
            KeyHash::Sha384 => Some(Hash::Sha384),
            KeyHash::Sha512 => Some(Hash::Sha512),
        }
    }

    /// The hash function of a key for TLS, if it is one.
    pub fn tls(self) -> Option<tls::Hash> {
        match self {
            KeyHash::Sha256 => Some(tls::Hash::Sha256),
            KeyHash::Sha384 => Some(tls::Hash::Sha384),
            KeyHash::None | KeyHash::Sha512 => None,
        }
    }
}
