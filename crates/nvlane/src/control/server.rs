//! The daemon's end: a socket that only its owner can open, and a thread for each client.

use super::protocol::{Failure, Messages, answer, answer_busy, answer_unreadable, is_too_long};
use crate::config::store::{self, Lock, StoreError};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde_json::Value;
use std::fs::{self, Metadata, Permissions};
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Clients at one time; a further one is turned away.
const CLIENTS_MAX: usize = 32;
/// Calls that wait for a thread that answers.
const CALLS_MAX: usize = 8;
/// How long a client may take to accept an answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may say nothing: idle ones are not to keep others out.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// How long the kernel may take to close the sockets of a process that is gone.
const DYING_MAX: Duration = Duration::from_secs(2);
/// How long whoever listens on a socket says nothing, that is alive.
const SILENCE: Duration = Duration::from_secs(1);

/// A call, for the thread that owns the daemon.
pub struct Call {
    /// The method's name.
    pub method: String,
    /// Its parameters.
    pub params: Value,
    /// Where the outcome goes.
    pub reply: SyncSender<Result<Value, Failure>>,
}

/// The socket, bound. It is removed when this is dropped.
pub struct ControlSocket {
    path: PathBuf,
    /// Device and inode: by then something else may have the name.
    id: (u64, u64),
    listener: Option<UnixListener>,
    _lock: Lock,
}

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another daemon has it.
    #[error(
        "control socket {path}: belongs to another nvlane (process {process}); give --socket PATH"
    )]
    Taken {
        /// The socket.
        path: PathBuf,
        /// Who.
        process: String,
    },
    /// Something else has the name.
    #[error("control socket {path}: exists and is no socket; give another path")]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("control socket {path}: {source}")]
    Io {
        /// The socket.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

impl ControlSocket {
    /// Binds `path`, mode 0600. The socket that a killed daemon left there is replaced, and nothing else.
    pub fn bind(path: &Path) -> Result<ControlSocket, SocketError> {
        let io_error = |source| SocketError::Io { path: path.to_owned(), source };
        check_place(path)?;
        // By a name that is too long nobody could connect, though it can be given.
        SocketAddr::from_pathname(path).map_err(io_error)?;
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock = store::lock(Path::new(&lock_path)).map_err(|error| match error {
            StoreError::Taken { process } => SocketError::Taken { path: path.to_owned(), process },
            StoreError::Io { source, .. } => io_error(source),
            StoreError::Content { .. } => unreachable!("a lock file has no content to be wrong"),
        })?;
        // Whose lock we have is gone; somebody else may listen there all the same.
        if is_listening(path) {
            let process = "unknown".to_owned();
            return Err(SocketError::Taken { path: path.to_owned(), process });
        }
        let (listener, id) = bind_private(path).map_err(io_error)?;
        Ok(ControlSocket { path: path.to_owned(), id, listener: Some(listener), _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Serves clients from now on; `wrap` makes of each call what the daemon's loop receives.
    pub fn serve<E: Send + 'static>(
        &mut self,
        events: SyncSender<E>,
        wrap: fn(Call) -> E,
    ) -> io::Result<()> {
        let listener = self.listener.take().expect("a socket is served once");
        let clients = Arc::new(AtomicUsize::new(0));
        thread::Builder::new().name("control".to_owned()).spawn(move || {
            for stream in listener.incoming() {
                match stream {
                    Ok(stream) => admit(stream, &clients, &events, wrap),
                    // Out of descriptors, most likely: wait for some to be closed.
                    Err(error) => {
                        tracing::warn!("control socket: {error}");
                        thread::sleep(Duration::from_millis(100));
                    }
                }
            }
        })?;
        Ok(())
    }

    /// Serves clients from now on, with a thread that answers one call after another: its method, its parameters.
    pub fn answer(
        &mut self,
        mut answer: impl FnMut(&str, Value) -> Result<Value, Failure> + Send + 'static,
    ) -> io::Result<()> {
        let (calls, inbox) = sync_channel(CALLS_MAX);
        self.serve(calls, |call: Call| call)?;
        thread::Builder::new().name("door".to_owned()).spawn(move || {
            for call in inbox {
                let outcome = answer(&call.method, call.params);
                // A client that has gone needs no answer.
                let _ = call.reply.send(outcome);
            }
        })?;
        Ok(())
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| id(&found) == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Refuses what is no socket: binding would take its place.
fn check_place(path: &Path) -> Result<(), SocketError> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            Err(SocketError::NoSocket { path: path.to_owned() })
        }
        // What else is wrong with the place, binding says.
        _ => Ok(()),
    }
}

/// Whether somebody listens there. The socket of a process that is being killed takes connections until the kernel closes it.
fn is_listening(path: &Path) -> bool {
    let until = Instant::now() + DYING_MAX;
    loop {
        match connect_at_once(path) {
            Ok(stream) if Instant::now() < until && is_hung_up_on(&stream) => {
                thread::sleep(Duration::from_millis(1));
            }
            Ok(_) => return true,
            // So many wait for somebody who takes nobody in.
            // Or it is a socket of another type, which nobody would say of one without an owner.
            Err(error) => return matches!(error, Errno::AGAIN | Errno::PROTOTYPE),
        }
    }
}

/// Does not wait for room among those who wait to be let in.
fn connect_at_once(path: &Path) -> Result<UnixStream, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// Whether whoever had the other end has gone. Who is there says nothing, being told nothing.
fn is_hung_up_on(mut stream: &UnixStream) -> bool {
    if stream.set_nonblocking(false).and(stream.set_read_timeout(Some(SILENCE))).is_err() {
        return false;
    }
    loop {
        match stream.read(&mut [0]) {
            Ok(count) => return count == 0,
            // Who is stopped and continued meanwhile has heard nothing of them.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

fn id(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Binds within a private directory first, so that nobody can connect before the mode is set.
fn bind_private(path: &Path) -> io::Result<(UnixListener, (u64, u64))> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    // Of a new name each time: what a killed server has left is in nobody's way, whatever its process id was.
    let private = tempfile::Builder::new()
        .prefix(".n")
        .rand_bytes(4)
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(parent.unwrap_or(Path::new(".")))?;
    let inside = private.path().join("s");
    let listener = UnixListener::bind(&inside)?;
    fs::set_permissions(&inside, Permissions::from_mode(0o600))?;
    let id = id(&fs::symlink_metadata(&inside)?);
    fs::rename(&inside, path)?;
    Ok((listener, id))
}

fn admit<E: Send + 'static>(
    stream: UnixStream,
    clients: &Arc<AtomicUsize>,
    events: &SyncSender<E>,
    wrap: fn(Call) -> E,
) {
    if clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX {
        clients.fetch_sub(1, Ordering::Relaxed);
        tracing::warn!("control socket: more than {CLIENTS_MAX} clients, one turned away");
        // A socket's buffer takes one line at once.
        let _ = send(&stream, &answer_busy(CLIENTS_MAX));
        return;
    }
    let (count, events) = (clients.clone(), events.clone());
    let spawned = thread::Builder::new().name("control-client".to_owned()).spawn(move || {
        if let Err(error) = converse(&stream, &events, wrap, IDLE_MAX) {
            tracing::debug!("control client: {error}");
        }
        count.fetch_sub(1, Ordering::Relaxed);
    });
    if let Err(error) = spawned {
        clients.fetch_sub(1, Ordering::Relaxed);
        tracing::warn!("control socket: no thread for a client: {error}");
    }
}

/// Answers a client until it hangs up, says nothing for `idle`, or sends what is no JSON.
fn converse<E>(
    stream: &UnixStream,
    events: &SyncSender<E>,
    wrap: fn(Call) -> E,
    idle: Duration,
) -> io::Result<()> {
    stream.set_read_timeout(Some(idle))?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let mut call = |method: &str, params: Value| {
        let (reply, outcome): (_, Receiver<Result<Value, Failure>>) = sync_channel(1);
        let stopping = || Failure::refused("the daemon is stopping");
        let call = Call { method: method.to_owned(), params, reply };
        events.send(wrap(call)).map_err(|_| stopping())?;
        outcome.recv().map_err(|_| stopping())?
    };
    for message in Messages::new(BufReader::new(stream)) {
        match message {
            Ok(message) => {
                if let Some(answer) = answer(message, &mut call) {
                    send(stream, &answer)?;
                }
            }
            Err(error) if error.is_io() && !is_too_long(&error) => return Err(error.into()),
            Err(error) => return send(stream, &answer_unreadable(&error)),
        }
    }
    Ok(())
}

fn send(mut stream: &UnixStream, answer: &Value) -> io::Result<()> {
    stream.write_all(format!("{answer}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::client::Client;
    use super::*;
    use serde_json::json;
    use std::io::Read;
    use std::os::unix::net::UnixDatagram;

    /// A daemon's loop that answers `double`.
    fn start(path: &Path) -> ControlSocket {
        let mut socket = ControlSocket::bind(path).unwrap();
        let (events, calls) = sync_channel::<Call>(4);
        socket.serve(events, |call| call).unwrap();
        thread::spawn(move || {
            for call in calls {
                let outcome = match (call.method.as_str(), call.params["n"].as_u64()) {
                    ("double", Some(n)) => Ok(json!(2 * n)),
                    ("double", None) => Err(Failure::params("`n` is missing")),
                    (other, _) => Err(Failure::method(other)),
                };
                let _ = call.reply.send(outcome);
            }
        });
        socket
    }

    #[test]
    fn clients_are_answered_and_only_the_owner_may_open_the_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let socket = start(&path);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut client = Client::connect(&path).unwrap();
        let mut other = Client::connect(&path).unwrap();
        assert_eq!(client.call("double", json!({"n": 4})).unwrap(), json!(8));
        assert_eq!(other.call("double", json!({"n": 5})).unwrap(), json!(10));
        let error = client.call("double", json!({})).unwrap_err();
        assert_eq!(error.to_string(), "`n` is missing");
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_is_bound_once_and_what_a_dead_daemon_left_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "left behind");
        let _socket = start(&path);
        assert!(matches!(ControlSocket::bind(&path), Err(SocketError::Taken { .. })));
        let mut client = Client::connect(&path).unwrap();
        assert_eq!(client.call("double", json!({"n": 1})).unwrap(), json!(2));
    }

    /// Of another program, or of a daemon whose lock somebody has removed.
    #[test]
    fn a_socket_on_which_somebody_listens_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let other = UnixListener::bind(&path).unwrap();
        let before = id(&fs::symlink_metadata(&path).unwrap());
        assert!(matches!(ControlSocket::bind(&path), Err(SocketError::Taken { .. })));
        assert_eq!(id(&fs::symlink_metadata(&path).unwrap()), before);
        // Nor is one waited for where nobody is let in.
        rustix::net::listen(&other, 0).unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = connect_at_once(&path) {
            waiting.push(stream);
        }
        assert!(matches!(ControlSocket::bind(&path), Err(SocketError::Taken { .. })));
        drop(waiting);
        let path = directory.path().join("datagrams");
        let other = UnixDatagram::bind(&path).unwrap();
        assert!(matches!(ControlSocket::bind(&path), Err(SocketError::Taken { .. })));
        drop(other);
        drop(ControlSocket::bind(&path).unwrap());
    }

    /// In containers each server has the process id of the one before.
    #[test]
    fn what_a_server_killed_at_its_start_has_left_is_in_nobodys_way() {
        let directory = tempfile::tempdir().unwrap();
        let left = directory.path().join(format!(".nvl{}", std::process::id()));
        fs::create_dir(&left).unwrap();
        drop(UnixListener::bind(left.join("s")).unwrap());
        let path = directory.path().join("s");
        drop(ControlSocket::bind(&path).unwrap());
        let mut names = fs::read_dir(directory.path()).unwrap().map(|it| it.unwrap().path());
        assert_eq!((names.next(), names.next()), (Some(left), None), "all else is gone");
    }

    #[test]
    fn a_name_by_which_nobody_could_connect_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s".repeat(108));
        assert!(matches!(ControlSocket::bind(&path), Err(SocketError::Io { .. })));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_no_socket_is_neither_replaced_nor_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        fs::write(&path, "mine").unwrap();
        assert!(matches!(ControlSocket::bind(&path), Err(SocketError::NoSocket { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        fs::remove_file(&path).unwrap();
        let socket = start(&path);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        drop(socket);
        assert_eq!(fs::read(&path).unwrap(), b"mine");
    }

    #[test]
    fn a_client_too_many_is_told_so_and_idle_ones_are_hung_up_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let _socket = start(&path);
        let _all: Vec<_> = (0..CLIENTS_MAX).map(|_| UnixStream::connect(&path).unwrap()).collect();
        let mut client = Client::connect(&path).unwrap();
        let error = client.call("double", json!({"n": 1})).unwrap_err();
        assert!(error.to_string().contains("32 clients"), "{error}");

        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (events, _calls) = sync_channel::<Call>(1);
        assert!(converse(&ours, &events, |call| call, Duration::from_millis(10)).is_err());
        drop(ours);
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn what_is_no_json_is_answered_and_ends_the_conversation() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let _socket = start(&path);
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"hello\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.contains("-32700"), "{text}");
        // So is what is longer than it may be; what is left of it meets a closed door.
        let mut stream = UnixStream::connect(&path).unwrap();
        let _ = stream.write_all(format!("[{}", "1,".repeat(1 << 20)).as_bytes());
        let mut text = [0; 4096];
        let len = stream.read(&mut text).unwrap();
        let text = String::from_utf8_lossy(&text[..len]);
        assert!(text.contains("-32700") && text.contains("longer than"), "{text}");
    }
}
