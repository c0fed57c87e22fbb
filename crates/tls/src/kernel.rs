//! The kernel's TLS: after the handshake a socket encrypts what is sent, and decrypts what is received (Documentation/networking/tls.rst of Linux).

use crate::engine::{self, End};
use crate::expand;
use crate::handshake::Secrets;
use crate::hash::Hash;
use libc::{
    SOL_TLS, TCP_ULP, TLS_1_3_VERSION, TLS_CIPHER_AES_GCM_128, TLS_CIPHER_AES_GCM_256, TLS_RX,
    TLS_TX, c_int, c_void, socklen_t,
};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// `struct tls12_crypto_info_aes_gcm_128` and `_256`, whose names are older than TLS 1.3.
#[repr(C)]
#[derive(Zeroize, ZeroizeOnDrop)]
struct AesGcm<const KEY_BYTES: usize> {
    version: u16,
    cipher: u16,
    iv: [u8; 8],
    key: [u8; KEY_BYTES],
    salt: [u8; 4],
    sequence: [u8; 8],
}

/// Whether there is TLS: the kernel's, which loads its module where it has to, and may; and OpenSSL's.
pub fn check() -> io::Result<()> {
    engine::session(End::Controller(Box::new(|_| None)), Hash::Sha256).map_err(io::Error::other)?;
    // SAFETY: a plain call.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made, and is nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    match set_up(socket.as_raw_fd()) {
        // It would, were this a connection.
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(()),
        other => other,
    }
}

/// What is sent and received by the connection `fd` is encrypted from now on: nothing encrypted has been sent or taken before.
pub(crate) fn encrypt(fd: RawFd, secrets: &Secrets) -> io::Result<()> {
    set_up(fd)?;
    for (name, secret) in [(TLS_TX, &secrets.sent), (TLS_RX, &secrets.received)] {
        match secrets.hash {
            Hash::Sha256 => set_key::<16>(fd, name, TLS_CIPHER_AES_GCM_128, secrets.hash, secret)?,
            Hash::Sha384 => set_key::<32>(fd, name, TLS_CIPHER_AES_GCM_256, secrets.hash, secret)?,
        }
    }
    Ok(())
}

fn set_up(fd: RawFd) -> io::Result<()> {
    let name = *b"tls";
    set(fd, libc::IPPROTO_TCP, TCP_ULP, &name).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT) => io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel has no TLS, or does not load it by itself (modprobe tls)",
        ),
        _ => error,
    })
}

fn set_key<const KEY_BYTES: usize>(
    fd: RawFd,
    name: c_int,
    cipher: u16,
    hash: Hash,
    secret: &[u8],
) -> io::Result<()> {
    let (key, iv) =
        (expand::traffic_key(hash, secret, KEY_BYTES), expand::traffic_iv(hash, secret));
    let mut info = AesGcm::<KEY_BYTES> {
        version: TLS_1_3_VERSION,
        cipher,
        iv: [0; 8],
        key: [0; KEY_BYTES],
        salt: [0; 4],
        // Keys are new: no record has been sent with them.
        sequence: [0; 8],
    };
    info.key.copy_from_slice(&key);
    info.salt.copy_from_slice(&iv[..4]);
    info.iv.copy_from_slice(&iv[4..]);
    set(fd, SOL_TLS, name, &info)
}

fn set<T>(fd: RawFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let (place, bytes) = ((&raw const *value).cast::<c_void>(), size_of::<T>() as socklen_t);
    // SAFETY: the kernel reads so many bytes of a value that lives meanwhile.
    match unsafe { libc::setsockopt(fd, level, name, place, bytes) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As large as the kernel expects: it refuses others.
    #[test]
    fn what_the_kernel_takes() {
        assert_eq!(size_of::<AesGcm<16>>(), 40);
        assert_eq!(size_of::<AesGcm<32>>(), 56);
    }
}
