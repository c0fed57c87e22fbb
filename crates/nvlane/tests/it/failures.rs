//! I/O that a served volume fails is told in the log, a bounded number of times.

use crate::daemon::Daemon;
use nvme::{Command, Status, opcode};
use std::thread;
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

fn start(dir: &std::path::Path) -> Daemon {
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
    thread::sleep(Duration::from_secs(12));
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
