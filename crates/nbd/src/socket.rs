//! The file of a Unix socket: made, replaced when nobody listens any more, and removed.

use reactor::Listener;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

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

/// Removes a socket on which nobody listens.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let failed = |source| SocketError::Io { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => return Err(SocketError::NoSocket { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(_) => Err(SocketError::Taken { path: path.to_owned() }),
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
        let (socket, listener) = LocalSocket::bind(&path).unwrap();
        assert!(matches!(LocalSocket::bind(&path), Err(SocketError::Taken { .. })));
        // The server dies, and its socket stays.
        std::mem::forget(socket);
        drop(listener);
        assert!(path.exists());
        let (socket, _listener) = LocalSocket::bind(&path).unwrap();
        drop(socket);
        assert!(!path.exists());
        fs::write(&path, "mine").unwrap();
        assert!(matches!(LocalSocket::bind(&path), Err(SocketError::NoSocket { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"mine");
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
