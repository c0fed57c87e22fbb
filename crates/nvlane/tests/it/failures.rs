//! I/O that a served volume fails is told in the log, a bounded number of times.

use crate::daemon::{Daemon, eventually, nvlane, wait};
use nvme::{Command, Status, opcode};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use volume::session::{Session, SessionConfig, Submission, Volume};

const NQN: &str = "nqn.2026-11.com.example:failures";

/// Two thirds of what is served; the last one fails as it is told to.
const BEFORE: u64 = 4096;

struct Host {
    session: Session,
    volume: Volume,
}

impl Host {
    fn new(daemon: &Daemon) -> Host {
        let session = Session::new(&SessionConfig::default()).unwrap();
        let uri = format!("tcp://{}/{NQN}?ns=1", daemon.listeners[0]);
        Host { volume: session.open(&uri).unwrap(), session }
    }

    #[track_caller]
    fn refused(&self, submission: Submission, status: Status) {
        self.volume.submit(submission).unwrap();
        assert_eq!(self.session.wait(1, Some(Duration::from_secs(30))), 1);
        let mut done = Vec::new();
        self.session.reap(&mut done);
        assert_eq!(done[0].status.code(), status);
    }

    #[track_caller]
    fn fails(&self, slba: u64, blocks: usize) {
        self.refused(
            Submission::write(slba, blocks as u32, vec![1; blocks * 512]),
            Status::WRITE_FAULT,
        );
    }
}

fn start(dir: &Path) -> Daemon {
    let volume = "linear:(mem:2M,fault:op=write(mem:1M))";
    Daemon::start(dir, &[volume, "--nqn", NQN])
}

fn told(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.contains("I/O of a volume has failed")).collect()
}

#[test]
fn the_first_is_told_at_once_and_the_others_counted() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let host = Host::new(&daemon);
    host.fails(BEFORE + 5, 3);
    for at in 10..15 {
        host.fails(BEFORE + at, 1);
    }
    // Of hosts, that is.
    let compare = Submission::new(Command::blocks(opcode::io::COMPARE, 1, 0, 1));
    host.refused(compare.data(vec![7; 512]), Status::COMPARE_FAILURE);
    eventually("the others", || told(&daemon.log()).len() > 1);
    host.fails(BEFORE + 20, 2);
    let (status, log) = daemon.stop("TERM");
    assert_eq!(status.code(), Some(0), "{log}");
    let told = told(&log);
    assert_eq!(told.len(), 3, "{log}");
    assert!(told.iter().all(|line| line.contains("WARN")), "{log}");
    let first = format!(
        "volume=\"linear:(mem:2M?bs=512,fault:rate=1,op=write(mem:1M?bs=512))\" subsystem=\"{NQN}\" nsid=1 command=Write \
         lba=4101 blocks=3 status=Write Fault (SCT 0x2 SC 0x80"
    );
    assert!(told[0].contains(&first), "{first}\n{log}");
    assert!(!told[0].contains("more=") && !told[0].contains("error="), "{log}");
    assert!(told[1].contains("lba=4110 blocks=1") && told[1].ends_with("more=4"), "{log}");
    // It came within the next 10 s, and the server has stopped.
    assert!(told[2].contains("lba=4116 blocks=2") && !told[2].contains("more="), "{log}");
}

#[test]
fn what_is_still_to_be_told_comes_when_the_volume_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let host = Host::new(&daemon);
    (0..3).for_each(|at| host.fails(BEFORE + at, 1));
    let volume = serde_json::json!({ "nqn": NQN, "nsid": 1 });
    daemon.call("volume_remove", volume);
    // Nothing is left for then.
    let (_, log) = daemon.stop("TERM");
    let told = told(&log);
    assert_eq!(told.len(), 2, "{log}");
    assert!(told[1].contains("lba=4098") && told[1].ends_with("more=1"), "{log}");
    let place = |text: &str| log.find(text).unwrap();
    assert!(place("more=1") < place("stopping"), "{log}");
}

/// A client of the NBD server at a socket, after its handshake: without structured replies, for the first export.
struct Client(UnixStream);

impl Client {
    const WRITE: u16 = 1;
    const TRIM: u16 = 4;

    fn new(socket: &str) -> Client {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // Fixed newstyle without zeroes, then NBD_OPT_EXPORT_NAME with no name.
        stream.write_all(&3u32.to_be_bytes()).unwrap();
        stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
        Client(stream)
    }

    /// Sends a request, and gives the error of its reply.
    fn error(&mut self, kind: u16, offset: u64, length: u32) -> u32 {
        let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
        request.extend([0, 0]);
        request.extend(kind.to_be_bytes());
        request.extend(7u64.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(length.to_be_bytes());
        if kind == Client::WRITE {
            request.extend(vec![1; length as usize]);
        }
        self.0.write_all(&request).unwrap();
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes());
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }
}

/// Of an export too the first is told at once, and what was counted when the server stops.
#[test]
fn what_an_export_fails_is_told_to_the_operator() {
    const EIO: u32 = 5;
    const BYTES_BEFORE: u64 = BEFORE * 512;
    let dir = tempfile::tempdir().unwrap();
    let volume = "disk=linear:(mem:2M,fault:op=write,op=dsm(mem:1M))";
    let mut command = nvlane();
    command.args(["nbd", volume, "--socket", "s", "-o", "json"]).current_dir(dir.path());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let ready: Value = serde_json::from_str(&ready).unwrap();
    assert_eq!(ready["exports"][0]["name"], "disk");
    let mut client = Client::new(dir.path().join("s").to_str().unwrap());
    // Part of a block, of which the pair that writes it fails.
    assert_eq!(client.error(Client::WRITE, BYTES_BEFORE + 5 * 512 + 7, 100), EIO);
    assert_eq!(client.error(Client::WRITE, BYTES_BEFORE + 9 * 512, 1024), EIO);
    assert_eq!(client.error(Client::TRIM, BYTES_BEFORE + 12 * 512, 2048), EIO);
    // Of clients, that is.
    assert_ne!(client.error(Client::WRITE, 3 << 20, 512), 0);
    assert_eq!(client.error(Client::WRITE, 0, 512), 0);
    let id = child.id().to_string();
    let kill = std::process::Command::new("kill").args(["-s", "TERM", &id]).status();
    assert!(kill.unwrap().success());
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert_eq!(wait(&mut child).code(), Some(0), "{log}");
    let told = told(&log);
    assert_eq!(told.len(), 2, "{log}");
    assert!(told.iter().all(|line| line.contains("WARN") && line.contains("export=\"disk\"")));
    let first =
        "export=\"disk\" command=Write lba=4101 blocks=1 status=Write Fault (SCT 0x2 SC 0x80";
    assert!(told[0].contains(first) && !told[0].contains("more="), "{log}");
    let last = "command=Dataset Management lba=4108 blocks=4 status=";
    assert!(told[1].contains(last) && told[1].ends_with("more=1"), "{log}");
}
