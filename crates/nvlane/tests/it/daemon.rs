//! A daemon of the real binary, in a directory of its own, for tests to talk to.

use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use serde_json::{Value, json};
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long anything may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A free port to listen at, for whoever may listen there again: clients come from 127.0.0.1, so none of them takes the
/// port meanwhile, nor meets itself there.
pub const ANYWHERE: &str = "127.0.0.2:0";

/// One that is free, for a daemon that is killed and started again: it is known by what it was told from the
/// first on, and so knows that it was killed.
pub fn free_address() -> Address {
    let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
    let socket = net::socket_with(family, SocketType::STREAM, flags, None).unwrap();
    net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    net::bind(&socket, &ANYWHERE.parse::<SocketAddr>().unwrap()).unwrap();
    let address = net::getsockname(&socket).unwrap();
    Address { text: SocketAddr::try_from(address).unwrap().to_string(), _socket: socket }
}

/// An address that nobody else is given while this is there: a socket is bound to it that does not listen. A daemon can,
/// since it reuses addresses as that socket does.
pub struct Address {
    text: String,
    _socket: OwnedFd,
}

impl Deref for Address {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A running `nvlane serve`. Killed when dropped.
pub struct Daemon {
    child: Child,
    pub nqn: String,
    pub listeners: Vec<SocketAddr>,
    pub socket: PathBuf,
    log: Log,
}

/// Standard error, as far as whole lines of it have come.
struct Log {
    text: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Log {
    fn read(stderr: ChildStderr) -> Log {
        let text = Arc::new(Mutex::new(String::new()));
        let (all, mut stderr) = (Arc::clone(&text), BufReader::new(stderr));
        let reader = std::thread::spawn(move || {
            let mut line = Vec::new();
            while stderr.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                all.push_str(&String::from_utf8_lossy(&line));
                line.clear();
            }
        });
        Log { text, reader: Some(reader) }
    }

    fn so_far(&self) -> String {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All of it, once nobody can write any more.
    fn whole(&mut self) -> String {
        self.reader.take().unwrap().join().unwrap();
        self.so_far()
    }
}

/// The addresses of listeners.
fn listeners(ready: &Value) -> Vec<SocketAddr> {
    let all = ready.as_array().unwrap().iter().map(|it| it.as_str().unwrap());
    all.map(|it| it.trim_start_matches("tls://").parse().unwrap()).collect()
}

/// The binary, with an empty environment as far as it matters.
pub fn nvlane() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvlane"));
    command.env_remove("NOTIFY_SOCKET").env_remove("SYSTEMD_EXEC_PID").stdin(Stdio::null());
    command
}

impl Daemon {
    /// Starts `nvlane serve ARGS` on a free port with its data in `dir`, and waits until it is ready.
    pub fn start(dir: &Path, args: &[&str]) -> Daemon {
        Daemon::start_with(dir, args, &[])
    }

    /// The same with more in its environment.
    pub fn start_with(dir: &Path, args: &[&str], environment: &[(&str, &Path)]) -> Daemon {
        Daemon::start_prepared(dir, args, |command| {
            command.envs(environment.iter().copied());
        })
    }

    /// The same after `prepare` has seen the command.
    pub fn start_prepared(dir: &Path, args: &[&str], prepare: impl FnOnce(&mut Command)) -> Daemon {
        // Though the tests may have been started so as to outlive a terminal, SIGHUP means what it
        // usually does.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_nvlane")]);
        command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
        prepare(&mut command);
        command.arg("serve").args(args).current_dir(dir);
        command.arg("--data-dir").arg(dir.join("data")).arg("--socket").arg(dir.join("s"));
        if !args.iter().any(|arg| ["--listen", "--config"].contains(arg)) {
            command.args(["--listen", ANYWHERE]);
        }
        command.args(["--ready-fd", "1"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut log = Log::read(child.stderr.take().unwrap());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.map_while(Result::ok).find(|line| line.starts_with('{'));
        let Some(ready) = ready else {
            panic!("no readiness: {:?}\n{}", child.wait(), log.whole())
        };
        let ready: Value = serde_json::from_str(&ready).unwrap();
        Daemon {
            child,
            nqn: ready["nqns"][0].as_str().unwrap_or_default().to_owned(),
            listeners: listeners(&ready["listeners"]),
            socket: dir.join("s"),
            log,
        }
    }

    /// Calls a method that must succeed.
    pub fn call(&self, method: &str, params: Value) -> Value {
        let answer = ask(&self.socket, method, params).unwrap();
        assert_eq!(answer.get("error"), None, "{method}");
        answer["result"].clone()
    }

    /// Calls a method that must fail, and gives its error's code.
    pub fn refuse(&self, method: &str, params: Value) -> i64 {
        let answer = ask(&self.socket, method, params).unwrap();
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(!message.is_empty() && !message.contains('\n'), "{method}: {answer}");
        answer["error"]["code"].as_i64().unwrap()
    }

    /// What it has logged up to now.
    pub fn log(&self) -> String {
        self.log.so_far()
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it as a crash would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        assert_eq!(self.child.wait().unwrap().signal(), Some(9));
    }

    /// Asks it to stop; gives its exit status and what it had logged.
    pub fn stop(self, signal: &str) -> (ExitStatus, String) {
        self.stop_with(&[signal])
    }

    /// Asks it to stop with signals that follow at once on each other.
    pub fn stop_with(mut self, signals: &[&str]) -> (ExitStatus, String) {
        let id = self.child.id();
        let kills: Vec<_> = signals.iter().map(|signal| format!("kill -s {signal} {id}")).collect();
        // One shell, whose `kill` is its own: the daemon has microseconds between them.
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(kills.join(" && ")).stderr(Stdio::null());
        let sent = shell.status().unwrap();
        // The last ones may find that it has ended already.
        assert!(sent.success() || signals.len() > 1);
        let status = wait(&mut self.child);
        (status, self.log.whole())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One call on a connection of its own.
pub fn ask(socket: &Path, method: &str, params: Value) -> std::io::Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let request = json!({"jsonrpc": "2.0", "method": method, "params": params, "id": 1});
    stream.write_all(request.to_string().as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// The first volume of a daemon that was started otherwise than by [`Daemon`], once that answers.
pub fn volume_of(child: &mut Child, socket: &Path) -> String {
    let mut config = json!(null);
    eventually("readiness", || match ask(socket, "config_get", json!({})) {
        Ok(answer) => {
            config = answer["result"].clone();
            true
        }
        Err(_) => child.try_wait().unwrap().is_some(),
    });
    let (listener, nqn) = (&config["listeners"][0], &config["subsystems"][0]["nqn"]);
    format!("tcp://{}/{}?ns=1", listener.as_str().unwrap(), nqn.as_str().unwrap())
}

/// Waits for a child that has to end by itself.
pub fn wait(child: &mut Child) -> ExitStatus {
    let since = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if since.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until `holds`.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a file of a daemon that was killed is free: the kernel closes the files of a ring a little after the
/// process is gone.
pub fn wait_for_lock(path: &Path) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    eventually("the lock is free", || file.try_lock().is_ok());
    // Closing alone would leave it to a child of another test that has not begun its program yet.
    file.unlock().unwrap();
}
