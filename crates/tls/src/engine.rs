//! OpenSSL, as far as pre-shared keys of TLS 1.3 need it.
//!
//! The crate `openssl` has no calls for keys that are agreed on beforehand in TLS 1.3, only those for earlier versions, which know SHA-256 alone:
//! the seven that it lacks are declared here (SSL_CTX_set_psk_use_session_callback(3), SSL_SESSION_get0_cipher(3)).

use crate::hash::Hash;
use crate::psk::Psk;
use foreign_types_shared::ForeignTypeRef;
use openssl::error::ErrorStack;
use openssl::ex_data::Index;
use openssl::ssl::{
    Ssl, SslContext, SslContextBuilder, SslMethod, SslMode, SslOptions, SslRef,
    SslSessionCacheMode, SslVerifyMode, SslVersion,
};
use openssl_sys::{EVP_MD, SSL, SSL_CIPHER, SSL_CTX, SSL_SESSION, SSL_SESSION_free};
use std::ffi::{c_int, c_uchar};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{LazyLock, Mutex, PoisonError};
use zeroize::Zeroizing;

/// TLS 1.3 on the wire.
const VERSION: c_int = 0x0304;

/// SSL_OP_ALLOW_NO_DHE_KEX (openssl/ssl.h).
const ALLOW_NO_DHE_KEX: u64 = 1 << 10;

/// Exchanges that make a session's secrets unknown to who learns the key later; the quicker first.
const GROUPS: &str = "X25519:P-256:P-384";

/// Finds the key for an identity that a host has sent.
pub(crate) type Find = Box<dyn Fn(&[u8]) -> Option<Psk> + Send + Sync>;

/// What one end brings along.
pub(crate) enum End {
    Host(Psk),
    Controller(Find),
}

/// What the callbacks of one session share with who drives it.
#[derive(Default)]
pub(crate) struct Seen {
    /// The secret that the host's data is encrypted with.
    pub(crate) host: Option<Zeroizing<Vec<u8>>>,
    /// The same of the controller.
    pub(crate) controller: Option<Zeroizing<Vec<u8>>>,
    /// The identity of the key that was taken, and its hash function.
    pub(crate) identity: Option<(Vec<u8>, Hash)>,
}

struct Session {
    end: End,
    seen: Mutex<Seen>,
}

static SESSION: LazyLock<Result<Index<SslContext, Session>, ErrorStack>> =
    LazyLock::new(SslContext::new_ex_index);

type UseSession = unsafe extern "C" fn(
    *mut SSL,
    *const EVP_MD,
    *mut *const c_uchar,
    *mut usize,
    *mut *mut SSL_SESSION,
) -> c_int;

type FindSession =
    unsafe extern "C" fn(*mut SSL, *const c_uchar, usize, *mut *mut SSL_SESSION) -> c_int;

unsafe extern "C" {
    fn SSL_CTX_set_psk_use_session_callback(context: *mut SSL_CTX, callback: UseSession);
    fn SSL_CTX_set_psk_find_session_callback(context: *mut SSL_CTX, callback: FindSession);
    fn SSL_SESSION_new() -> *mut SSL_SESSION;
    fn SSL_SESSION_set1_master_key(
        session: *mut SSL_SESSION,
        key: *const c_uchar,
        bytes: usize,
    ) -> c_int;
    fn SSL_SESSION_set_cipher(session: *mut SSL_SESSION, cipher: *const SSL_CIPHER) -> c_int;
    fn SSL_SESSION_set_protocol_version(session: *mut SSL_SESSION, version: c_int) -> c_int;
    fn SSL_CIPHER_find(ssl: *mut SSL, id: *const c_uchar) -> *const SSL_CIPHER;
}

/// A session that begins with `end`'s key or not at all, and has `hash` for its hash function: a controller's OpenSSL chooses the cipher
/// before it looks at keys, which go with one hash function each.
pub(crate) fn session(end: End, hash: Hash) -> Result<Ssl, ErrorStack> {
    session_with(end, hash, GROUPS)
}

pub(crate) fn session_with(end: End, hash: Hash, groups: &str) -> Result<Ssl, ErrorStack> {
    let index = SESSION.as_ref().map(|index| *index).map_err(Clone::clone)?;
    let mut context = SslContextBuilder::new(SslMethod::tls())?;
    context.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    context.set_max_proto_version(Some(SslVersion::TLS1_3))?;
    // What NVMe/TCP demands of both ends (NVMe/TCP Transport 1.1, section 3.6.1.1).
    context.set_ciphersuites(match hash {
        Hash::Sha256 => "TLS_AES_128_GCM_SHA256",
        Hash::Sha384 => "TLS_AES_256_GCM_SHA384",
    })?;
    // Where a provider has not all (FIPS).
    if context.set_groups_list(groups).is_err() {
        context.set_groups_list("P-256:P-384")?;
    }
    context.set_session_cache_mode(SslSessionCacheMode::OFF);
    context.set_options(SslOptions::NO_TICKET);
    // Whatever the machine's configuration of OpenSSL says: without an exchange, who learns the key later reads what was said.
    context.clear_options(SslOptions::from_bits_retain(ALLOW_NO_DHE_KEX));
    context.set_num_tickets(0)?;
    let is_host = matches!(end, End::Host(_));
    // No controller is known by a certificate, and no host is asked for one.
    context.set_verify(if is_host { SslVerifyMode::PEER } else { SslVerifyMode::NONE });
    context.set_mode(SslMode::RELEASE_BUFFERS);
    context.set_ex_data(index, Session { end, seen: Mutex::default() });
    context.set_keylog_callback(note_secret);
    // SAFETY: a context that is being made, and functions that live as long as the program.
    unsafe {
        match is_host {
            true => SSL_CTX_set_psk_use_session_callback(context.as_ptr(), offer),
            false => SSL_CTX_set_psk_find_session_callback(context.as_ptr(), find),
        }
    }
    let mut ssl = Ssl::new(&context.build())?;
    if is_host {
        ssl.set_connect_state();
    } else {
        ssl.set_accept_state();
    }
    Ok(ssl)
}

/// Has `look` see, or take, what the callbacks have noted.
pub(crate) fn seen<R>(ssl: &SslRef, look: impl FnOnce(&mut Seen) -> R) -> Option<R> {
    let session = of(ssl)?;
    Some(look(&mut session.seen.lock().unwrap_or_else(PoisonError::into_inner)))
}

fn of(ssl: &SslRef) -> Option<&Session> {
    ssl.ssl_context().ex_data(*SESSION.as_ref().ok()?)
}

/// A line of SSLKEYLOGFILE: `CLIENT_TRAFFIC_SECRET_0 RANDOM SECRET`.
fn note_secret(ssl: &SslRef, line: &str) {
    let mut words = line.split(' ');
    let (label, secret) = (words.next(), words.nth(1).and_then(unhex));
    seen(ssl, |seen| match label {
        Some("CLIENT_TRAFFIC_SECRET_0") => seen.host = secret,
        Some("SERVER_TRAFFIC_SECRET_0") => seen.controller = secret,
        _ => {}
    });
}

fn unhex(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len() / 2));
    for pair in text.as_bytes().chunks(2) {
        bytes.push(u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?);
    }
    Some(bytes)
}

/// The host's end: which key it offers. `digest` is given when the controller has asked for another group, and must be the key's.
unsafe extern "C" fn offer(
    ssl: *mut SSL,
    _digest: *const EVP_MD,
    identity: *mut *const c_uchar,
    identity_bytes: *mut usize,
    place: *mut *mut SSL_SESSION,
) -> c_int {
    let offered = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: OpenSSL calls with a session of ours, which lives meanwhile.
        let End::Host(psk) = &of(unsafe { SslRef::from_ptr(ssl) })?.end else { return None };
        // SAFETY: the same.
        let session = unsafe { session_of(ssl, psk) }?;
        seen_by(ssl, |seen| seen.identity = Some((psk.identity.clone().into_bytes(), psk.hash)));
        Some((psk.identity.as_bytes(), session))
    }));
    let Ok(Some((name, session))) = offered else { return 0 };
    // SAFETY: places that OpenSSL gives for that. The identity belongs to the context, and is copied at once; the session is OpenSSL's to free.
    unsafe {
        (*identity, *identity_bytes, *place) = (name.as_ptr(), name.len(), session);
    }
    1
}

/// The controller's end: the key of an identity. To succeed without a session is to know none.
unsafe extern "C" fn find(
    ssl: *mut SSL,
    identity: *const c_uchar,
    identity_bytes: usize,
    place: *mut *mut SSL_SESSION,
) -> c_int {
    let found = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: bytes that OpenSSL has received, which live meanwhile.
        let identity = unsafe { std::slice::from_raw_parts(identity, identity_bytes) };
        // SAFETY: OpenSSL calls with a session of ours, which lives meanwhile.
        let End::Controller(find) = &of(unsafe { SslRef::from_ptr(ssl) })?.end else { return None };
        // Of an earlier ClientHello, if another group was asked for.
        seen_by(ssl, |seen| seen.identity = None);
        let psk = find(identity)?;
        // SAFETY: the same session.
        let session = unsafe { session_of(ssl, &psk) }?;
        seen_by(ssl, |seen| seen.identity = Some((identity.to_vec(), psk.hash)));
        Some(session)
    }));
    let session = found.ok().flatten().unwrap_or(ptr::null_mut());
    // SAFETY: a place that OpenSSL gives for that; the session is its to free.
    unsafe { *place = session };
    1
}

fn seen_by(ssl: *mut SSL, look: impl FnOnce(&mut Seen)) {
    // SAFETY: from a callback, whose session lives meanwhile.
    seen(unsafe { SslRef::from_ptr(ssl) }, look);
}

/// What OpenSSL takes for a key: a session that seems to have been there before.
///
/// # Safety
/// `ssl` is a session that lives.
unsafe fn session_of(ssl: *mut SSL, psk: &Psk) -> Option<*mut SSL_SESSION> {
    // TLS_AES_128_GCM_SHA256 and TLS_AES_256_GCM_SHA384 (RFC 8446, appendix B.4).
    let id: [c_uchar; 2] = match psk.hash {
        Hash::Sha256 => [0x13, 0x01],
        Hash::Sha384 => [0x13, 0x02],
    };
    // SAFETY: plain calls with what lives meanwhile; the key is copied, and what was made is freed if it is of no use.
    unsafe {
        let cipher = SSL_CIPHER_find(ssl, id.as_ptr());
        let session = SSL_SESSION_new();
        if session.is_null() {
            return None;
        }
        let is_made = !cipher.is_null()
            && SSL_SESSION_set1_master_key(session, psk.secret.as_ptr(), psk.secret.len()) == 1
            && SSL_SESSION_set_cipher(session, cipher) == 1
            && SSL_SESSION_set_protocol_version(session, VERSION) == 1;
        if !is_made {
            SSL_SESSION_free(session);
            return None;
        }
        Some(session)
    }
}
