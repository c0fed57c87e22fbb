//! The file of a Unix socket: made, replaced when nobody listens any more, and removed.

use reactor::Listener;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How long the kernel may take to close the sockets of a process that is gone.
const DYING_MAX: Duration = Duration::from_secs(2);

/// A socket's file, removed when this is dropped, unless another has taken its place.
#[derive(Debug)]
pub struct LocalSocket {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

/// Why a Unix socket cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A server listens there.
    #[error("socket {path}: another server listens on it; give another path")]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// Something else is there.
    #[error("socket {path}: there is a file that is no socket; give another path")]
    NoSocket {
        /// The file.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("socket {path}: {source}")]
    Io {
        /// The socket.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

impl LocalSocket {
    /// Listens at `path`. Who may connect is up to the file's mode, and so to the umask.
    pub(crate) fn bind(path: &Path) -> Result<(LocalSocket, Listener), SocketError> {
        let failed = |source| SocketError::Io { path: path.to_owned(), source };
        remove_stale(path)?;
        let listener = Listener::bind_local(path).map_err(failed)?;
        let metadata = fs::symlink_metadata(path).map_err(failed)?;
        // What the working directory is later does not matter.
        let path = std::path::absolute(path).map_err(failed)?;
        Ok((LocalSocket { path, id: (metadata.dev(), metadata.ino()) }, listener))
    }
}

impl LocalSocket {
    /// Leaves the file behind, as a server does that is killed.
    pub(crate) fn leave(self) {
        std::mem::forget(self);
    }
}

/// Removes a socket on which nobody listens.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    if is_left_behind(path)? {
        fs::remove_file(path)
            .map_err(|source| SocketError::Io { path: path.to_owned(), source })?;
    }
    Ok(())
}

/// Whether there is a socket on which nobody listens any more: a server was killed that did, or ended before its volumes were done.
pub fn is_left_behind(path: &Path) -> Result<bool, SocketError> {
    let failed = |source| SocketError::Io { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => return Err(SocketError::NoSocket { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed(error)),
    }
    let until = Instant::now() + DYING_MAX;
    loop {
        match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return Ok(true);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(failed(error)),
            Ok(ref stream) if is_alive(stream) || Instant::now() > until => {
                return Err(SocketError::Taken { path: path.to_owned() });
            }
            Ok(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Whether somebody greets us. The kernel closes the sockets of a killed process that had them in an
/// io_uring only a little after the process is gone, and takes connections until then.
fn is_alive(stream: &UnixStream) -> bool {
    if stream.set_read_timeout(Some(DYING_MAX)).is_err() {
        return true;
    }
    greets(stream)
}

/// Hung up on: nobody is there any more. Silence: somebody is, who speaks something else.
fn greets(mut stream: impl Read) -> bool {
    loop {
        match stream.read(&mut [0]) {
            Ok(count) => return count > 0,
            // Who is stopped and continued meanwhile has heard nothing of them.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error.kind() != io::ErrorKind::ConnectionReset,
        }
    }
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.id);
        if is_ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_server_left_is_replaced_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        assert!(!is_left_behind(&path).unwrap());
        let (socket, listener) = LocalSocket::bind(&path).unwrap();
        assert!(matches!(LocalSocket::bind(&path), Err(SocketError::Taken { .. })));
        // The server dies, and its socket stays.
        std::mem::forget(socket);
        drop(listener);
        assert!(is_left_behind(&path).unwrap() && path.exists());
        let (socket, _listener) = LocalSocket::bind(&path).unwrap();
        drop(socket);
        assert!(!path.exists());
        fs::write(&path, "mine").unwrap();
        assert!(matches!(LocalSocket::bind(&path), Err(SocketError::NoSocket { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"mine");
    }

    /// As a read with a limit of time is where the process is stopped and continued.
    #[test]
    fn an_interrupted_look_says_nothing() {
        struct Interrupted(bool, io::Result<usize>);
        impl Read for Interrupted {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                match std::mem::replace(&mut self.0, false) {
                    true => Err(io::ErrorKind::Interrupted.into()),
                    false => std::mem::replace(&mut self.1, Ok(0)),
                }
            }
        }
        assert!(!greets(Interrupted(true, Ok(0))));
        assert!(!greets(Interrupted(true, Err(io::ErrorKind::ConnectionReset.into()))));
        assert!(greets(Interrupted(true, Ok(1))));
        assert!(greets(Interrupted(true, Err(io::ErrorKind::WouldBlock.into()))));
    }

    #[test]
    fn a_socket_that_the_kernel_closes_late_is_replaced() {
        // Where the machine stands still that may be too late: then once more.
        assert!((0..5).any(|_| is_replaced_that_is_closed_late()), "it is never replaced");
    }

    /// Panics if it is not replaced and there was time to see that it is closed.
    fn is_replaced_that_is_closed_late() -> bool {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let (socket, listener) = LocalSocket::bind(&path).unwrap();
        std::mem::forget(socket);
        let begun = Instant::now();
        let kernel = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(listener);
        });
        let bound = LocalSocket::bind(&path);
        let took = begun.elapsed();
        kernel.join().unwrap();
        match bound {
            Err(SocketError::Taken { .. }) if took >= DYING_MAX => false,
            bound => bound.map(|_| true).unwrap(),
        }
    }

    #[test]
    fn the_socket_of_somebody_else_is_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let (socket, _listener) = LocalSocket::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let (_other, _others) = LocalSocket::bind(&path).unwrap();
        drop(socket);
        assert!(path.exists());
    }
}
