//! One end's handshake: records in, records out.

use crate::engine::{self, End};
use crate::hash::Hash;
use crate::psk::{Peer, Psk};
use openssl::error::ErrorStack;
use openssl::ssl::{ErrorCode, SslStream};
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;
use zeroize::Zeroizing;

/// Bytes of a record's header (RFC 8446, section 5.1).
pub(crate) const HEADER_BYTES: usize = 5;

/// The most that a record holds after its header: 16 KiB, and 256 bytes of what encryption adds (RFC 8446, section 5.2).
pub(crate) const RECORD_BYTES_MAX: usize = (1 << 14) + 256;

/// What a peer may send in all before the handshake is done: a ClientHello, twice if another group is asked for, and a Finished are 2 KiB, or
/// 5 with the largest keys that are in use.
const RECEIVED_BYTES_MAX: usize = 16 << 10;

/// Identities of one host that keys are looked for; Linux sends one.
const IDENTITIES_MAX: usize = 4;

/// Keys of one host that an identity may stand for, those that are replaced and those that replace them.
pub const KEYS_MAX: usize = 16;

/// How many PSKs of one hash function that are: each key's as the specification says, and as older tools derive it.
const CANDIDATES_MAX: usize = 2 * KEYS_MAX;

/// Finds the keys that an identity may stand for, the likeliest first.
pub type FindAll = dyn Fn(&[u8]) -> Vec<Psk> + Send + Sync;

/// What both ends know once they are done.
pub struct Secrets {
    /// The hash function, which says how data is encrypted.
    pub hash: Hash,
    /// What the data that this end sends is encrypted with.
    pub sent: Zeroizing<Vec<u8>>,
    /// The same of what it receives.
    pub received: Zeroizing<Vec<u8>>,
    /// Who is at the other end, as the identity of the key says.
    pub peer: Peer,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").field("hash", &self.hash).finish_non_exhaustive()
    }
}

/// Why there is no session.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// No key is known by the identity.
    #[error("there is no key for {identity:?}")]
    UnknownIdentity {
        /// What the host calls its key, cut to what is worth telling.
        identity: String,
    },
    /// Both ends have a key by that name, and not the same.
    #[error("the other end has another key for {identity:?}")]
    OtherKey {
        /// What both call it.
        identity: String,
    },
    /// The other end says no.
    #[error("the other end refuses: {0}")]
    Refused(String),
    /// The other end wants to be known by a certificate, or to know us by one.
    #[error("the other end does not go by a pre-shared key")]
    NoKey,
    /// What comes is no TLS.
    #[error("what the other end sends is not TLS 1.3: {0}")]
    Protocol(String),
    /// OpenSSL cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Library(#[from] ErrorStack),
}

/// What is next.
#[derive(Debug)]
pub enum Progress {
    /// A record of the other end.
    Receive,
    /// Nothing: both ends are who they say. What is to be sent still is ([`Handshake::take_output`]); after that, all is encrypted.
    Done(Secrets),
}

/// The handshake of one end.
pub struct Handshake {
    role: Role,
    /// Made when the first record is there: it takes memory and time, and many a connection never sends one.
    stream: Option<SslStream<Wire>>,
    /// What has come before anything was answered.
    received: Vec<u8>,
    received_bytes: usize,
    /// The other end was told something: nothing can be tried otherwise any more.
    is_answered: bool,
    /// What came of an earlier attempt.
    failed: Option<HandshakeError>,
}

enum Role {
    Host(Psk),
    /// Tries keys that go with `hash`, of which `candidate` is the one.
    Controller {
        known: Arc<Known>,
        hash: Hash,
        candidate: usize,
    },
}

/// The keys of the identities that a host has sent.
struct Known {
    find: Arc<FindAll>,
    asked: Mutex<Vec<(Vec<u8>, Vec<Psk>)>>,
}

impl Known {
    /// Those of `identity` that go with `hash`; none if there were too many identities before.
    fn of(&self, identity: &[u8], hash: Hash) -> Vec<Psk> {
        let mut asked = self.asked();
        let at = asked.iter().position(|(other, _)| other == identity);
        let at = match at {
            Some(at) => at,
            None if asked.len() == IDENTITIES_MAX => return Vec::new(),
            None => {
                asked.push((identity.to_vec(), (self.find)(identity)));
                asked.len() - 1
            }
        };
        let keys = asked[at].1.iter().filter(|key| key.hash == hash);
        keys.take(CANDIDATES_MAX).cloned().collect()
    }

    /// The most that one of the identities may stand for; `None` if nobody was asked for any.
    fn most(&self, hash: Hash) -> Option<usize> {
        let asked = self.asked();
        let count = |keys: &Vec<Psk>| keys.iter().filter(|key| key.hash == hash).count();
        asked.iter().map(|(_, keys)| count(keys).min(CANDIDATES_MAX)).max()
    }

    fn asked(&self) -> MutexGuard<'_, Vec<(Vec<u8>, Vec<Psk>)>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Both directions, in memory.
#[derive(Default)]
struct Wire {
    input: Vec<u8>,
    taken: usize,
    output: Vec<u8>,
}

impl Handshake {
    /// The host's end, which offers `psk`.
    pub fn host(psk: Psk) -> Handshake {
        Handshake::new(Role::Host(psk))
    }

    /// The controller's end, which has the keys that `find` finds.
    pub fn controller(find: Arc<FindAll>) -> Handshake {
        let known = Arc::new(Known { find, asked: Mutex::default() });
        Handshake::new(Role::Controller { known, hash: Hash::Sha256, candidate: 0 })
    }

    fn new(role: Role) -> Handshake {
        Handshake {
            role,
            stream: None,
            received: Vec::new(),
            received_bytes: 0,
            is_answered: false,
            failed: None,
        }
    }

    /// Goes on with one more record of the other end, with its header; with none at the beginning. Takes some tenths of a millisecond.
    pub fn advance(&mut self, record: &[u8]) -> Result<Progress, HandshakeError> {
        let is_host = self.is_host();
        if self.received_bytes == 0 && !is_host {
            check_hello(record)?;
        }
        self.received_bytes += record.len();
        if self.received_bytes > RECEIVED_BYTES_MAX {
            return Err(HandshakeError::Protocol("it is too much".into()));
        }
        if !self.is_answered && !is_host {
            self.received.extend_from_slice(record);
        }
        if let Some(stream) = &mut self.stream {
            stream.get_mut().input.extend_from_slice(record);
        }
        loop {
            let stream = match &mut self.stream {
                Some(stream) => stream,
                none => none.insert(self.role.stream(&self.received)?),
            };
            let outcome = stream.do_handshake();
            let error = match outcome {
                Ok(()) => return secrets(stream, is_host).map(Progress::Done),
                Err(error) if error.code() == ErrorCode::WANT_READ => {
                    if !stream.get_ref().output.is_empty() {
                        self.is_answered = true;
                        self.received = Vec::new();
                    }
                    return Ok(Progress::Receive);
                }
                Err(error) => error,
            };
            let failed = failure(stream, &self.role, &error);
            // That one key did not fit says more than that no other is there.
            let failed = match self.failed.take() {
                Some(first @ HandshakeError::OtherKey { .. }) => first,
                _ => failed,
            };
            if self.is_answered || !self.role.has_another() {
                return Err(failed);
            }
            self.failed = Some(failed);
            self.stream = None;
        }
    }

    /// What is to be sent to the other end, in failure as well.
    pub fn take_output(&mut self) -> Vec<u8> {
        self.stream.as_mut().map(|it| std::mem::take(&mut it.get_mut().output)).unwrap_or_default()
    }

    /// Whether this is the host's end, which sends first: it goes on with no record.
    pub fn is_host(&self) -> bool {
        matches!(self.role, Role::Host(_))
    }
}

impl Role {
    /// A session that has received `input`.
    fn stream(&self, input: &[u8]) -> Result<SslStream<Wire>, HandshakeError> {
        let (end, hash) = match self {
            Role::Host(psk) => (End::Host(psk.clone()), psk.hash),
            Role::Controller { known, hash, candidate } => {
                let (known, hash, candidate) = (Arc::clone(known), *hash, *candidate);
                let find =
                    move |identity: &[u8]| known.of(identity, hash).into_iter().nth(candidate);
                (End::Controller(Box::new(find)), hash)
            }
        };
        let wire = Wire { input: input.to_vec(), ..Wire::default() };
        Ok(SslStream::new(engine::session(end, hash)?, wire)?)
    }

    /// Whether there is another key that the host's identity may stand for, which is then the one to be tried.
    fn has_another(&mut self) -> bool {
        let Role::Controller { known, hash, candidate } = self else { return false };
        *candidate += 1;
        if known.most(*hash).is_some_and(|most| *candidate < most) {
            return true;
        }
        // Without a cipher in common nobody was asked for a key.
        let next = *hash == Hash::Sha256 && known.most(Hash::Sha384) != Some(0);
        (*hash, *candidate) = (Hash::Sha384, 0);
        next
    }
}

/// Refuses what begins with something else than a ClientHello of a sensible size, before memory is given to it.
fn check_hello(record: &[u8]) -> Result<(), HandshakeError> {
    // A record of the kind handshake; the message's kind, and its length (RFC 8446, sections 4 and 5.1).
    let [22, _, _, _, _, 1, high, middle, low, ..] = *record else {
        return Err(HandshakeError::Protocol(
            "it begins with something else than a ClientHello".into(),
        ));
    };
    if u32::from_be_bytes([0, high, middle, low]) as usize > RECEIVED_BYTES_MAX {
        return Err(HandshakeError::Protocol("its ClientHello is too long".into()));
    }
    Ok(())
}

/// What a session that is done has come to.
fn secrets(stream: &SslStream<Wire>, is_host: bool) -> Result<Secrets, HandshakeError> {
    let ssl = stream.ssl();
    // That a key was used, and no certificate.
    if !ssl.session_reused() {
        return Err(HandshakeError::NoKey);
    }
    let wire = stream.get_ref();
    if wire.taken != wire.input.len() {
        return Err(HandshakeError::Protocol("more comes than belongs to the handshake".into()));
    }
    let taken = engine::seen(ssl, |seen| {
        Some((seen.host.take()?, seen.controller.take()?, seen.identity.take()?))
    });
    let (host, controller, (identity, hash)) = taken.flatten().ok_or(HandshakeError::NoKey)?;
    let peer = Peer::of(&identity).ok_or(HandshakeError::NoKey)?;
    let (sent, received) = if is_host { (host, controller) } else { (controller, host) };
    Ok(Secrets { hash, sent, received, peer })
}

fn failure(stream: &SslStream<Wire>, role: &Role, error: &openssl::ssl::Error) -> HandshakeError {
    let taken = engine::seen(stream.ssl(), |seen| {
        seen.identity.as_ref().map(|(identity, _)| lossy(identity))
    });
    let stack = error.ssl_error().map(ErrorStack::errors).unwrap_or_default();
    let reasons: Vec<_> = stack.iter().filter_map(openssl::error::Error::reason).collect();
    // In OpenSSL's own words (SSL_R_*).
    let says = |what: &str| reasons.iter().any(|reason| reason.contains(what));
    if says("alert") {
        // "sslv3 alert handshake failure": OpenSSL names alerts by the version that they are from.
        let alert = |reason: &&str| {
            reason.split_once("alert ").map_or(*reason, |(_, name)| name).to_owned()
        };
        return HandshakeError::Refused(reasons.iter().map(alert).collect::<Vec<_>>().join(", "));
    }
    if let Role::Controller { known, .. } = role {
        let asked = known.asked();
        match (taken.flatten(), asked.first()) {
            (Some(identity), _) => return HandshakeError::OtherKey { identity },
            (None, Some((identity, _))) => {
                return HandshakeError::UnknownIdentity { identity: lossy(identity) };
            }
            (None, None) => {}
        }
    }
    if says("certificate") || says("signature") || says("shared cipher") {
        return HandshakeError::NoKey;
    }
    let words = if reasons.is_empty() { error.to_string() } else { reasons.join(", ") };
    HandshakeError::Protocol(words)
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake").finish_non_exhaustive()
    }
}

/// Bytes of a record after its header, which is `header`; an error if that is none of a handshake.
pub(crate) fn record_bytes(header: [u8; HEADER_BYTES]) -> Result<usize, HandshakeError> {
    let [kind, major, _, high, low] = header;
    let bytes = usize::from(u16::from_be_bytes([high, low]));
    // Change cipher spec, alert, handshake, and what is encrypted already (RFC 8446, section 5.1).
    if !(20..=23).contains(&kind) || major != 3 || bytes > RECORD_BYTES_MAX {
        return Err(HandshakeError::Protocol("it begins with something else than a record".into()));
    }
    Ok(bytes)
}

/// What is worth telling of an identity that anybody may have sent.
fn lossy(identity: &[u8]) -> String {
    const SHOWN: usize = 512;
    String::from_utf8_lossy(&identity[..identity.len().min(SHOWN)]).into_owned()
}

impl Read for Wire {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let rest = &self.input[self.taken..];
        if rest.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = rest.len().min(bytes.len());
        bytes[..count].copy_from_slice(&rest[..count]);
        self.taken += count;
        if self.taken == self.input.len() {
            self.input.clear();
            self.taken = 0;
        }
        Ok(count)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
