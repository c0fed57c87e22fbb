//! Who proves who it is, before anything else: the host on every queue, to our own target.

use crate::rig;

use dhchap::{Group, Hash, Key};
use host::client::{Client, HostIdentity, Peer};
use host::{Options, Path};
use namespace::Access;
use nvme::Status;
use nvme::fabrics::DISCOVERY_NQN;
use rig::tamper::Tamper;
use rig::{Core, HOST_NQN, NQN, PATIENCE, Target, address, connect, memory, options, pattern};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn key(transform: Option<Hash>) -> Key {
    Key::generate(transform, &mut |bytes| getrandom::fill(bytes).expect("random bytes"))
}

/// Keys in files.
struct Keys {
    folder: TempDir,
    host: Arc<Key>,
    controller: Arc<Key>,
}

impl Keys {
    fn new() -> Keys {
        let folder = tempfile::tempdir().expect("a folder");
        let (host, controller) = (key(None), key(Some(Hash::Sha384)));
        let keys = Keys { folder, host: Arc::new(host), controller: Arc::new(controller) };
        keys.write();
        keys
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self) {
        for (name, key) in [("host", &self.host), ("controller", &self.controller)] {
            std::fs::write(self.path(name), &*key.to_text()).expect("a file");
        }
    }

    /// Options with the host's key, or with both.
    fn options(&self, both: bool) -> Options {
        let mut options = options();
        options.keys.host = Some(self.path("host"));
        options.keys.controller = both.then(|| self.path("controller"));
        options
    }

    /// Has a target demand them, by what is first of `hashes` and `groups`.
    fn demanded(&self, target: &Target, hashes: &[Hash], groups: &[Group]) {
        let wanted = target::Authentication {
            host_keys: [Arc::clone(&self.host)].into(),
            controller_key: Some(Arc::clone(&self.controller)),
            hashes: hashes.to_vec(),
            groups: groups.to_vec(),
        };
        target.server.set_authentication(NQN, HOST_NQN, Some(wanted)).expect("a subsystem");
    }

    /// A target that demands them.
    fn target(&self, port: u16) -> Target {
        let target = Target::serve(memory(64 << 20, 9, 2), 2, port);
        self.demanded(&target, &Hash::ALL, &Group::ALL);
        target
    }
}

/// Writes and reads by two cores.
fn use_path(path: &Arc<Path>, seed: u64) {
    let cores: Vec<Core> = (0..2).map(|_| Core::usable(path.clone())).collect();
    for (number, core) in (0u64..).zip(&cores) {
        core.write(number << 20, &pattern(seed + number, 256 << 10));
    }
    for (number, core) in (0u64..).zip(cores.iter().rev()) {
        let expected = pattern(seed + 1 - number, 256 << 10);
        assert!(core.read((1 - number) << 20, 256 << 10) == expected, "core {number}");
    }
}

fn refused(at: SocketAddr, options: &Options) -> String {
    host::open(&[address(at)], options, "").expect_err("it is refused").to_string()
}

/// Waits until the path says why it is lost, in these words.
fn await_words(path: &Path, words: &str) {
    let until = Instant::now() + PATIENCE;
    while !path.reason().to_string().contains(words) {
        assert!(Instant::now() < until, "{}", path.reason());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn every_hash_and_every_group() {
    let keys = Keys::new();
    let target = Target::serve(memory(64 << 20, 9, 2), 2, 0);
    let hashes = [Hash::Sha256, Hash::Sha384, Hash::Sha512];
    for (number, group) in Group::ALL.into_iter().enumerate() {
        let hash = hashes[number % 3];
        keys.demanded(&target, &[hash], &[group]);
        let options = Options {
            header_digest: number % 2 == 0,
            data_digest: number % 3 == 0,
            flow_control: number % 2 == 1,
            ..keys.options(number % 2 == 0)
        };
        let path = connect(target.address, &options);
        use_path(&path, number as u64 * 100);
        let reports = target.server.controllers().expect("the server runs");
        let agreed = reports.iter().filter_map(|it| it.authentication).next_back();
        assert_eq!(agreed, Some((hash, group)));
    }
}

#[test]
fn small_queues_with_flow_control() {
    let keys = Keys::new();
    let target = keys.target(0);
    let mut options = Options { flow_control: true, ..keys.options(true) };
    options.association.queue_entries = 2;
    use_path(&connect(target.address, &options), 5);
}

#[test]
fn what_is_wrong_is_said() {
    let keys = Keys::new();
    let target = keys.target(0);
    let said = refused(target.address, &options());
    assert!(said.contains("demands authentication: give") && said.contains("dhchap_key"), "{said}");
    let with = |name: &str, text: &str, both: bool| {
        std::fs::write(keys.path(name), text).expect("a file");
        let said = refused(target.address, &keys.options(both));
        keys.write();
        said
    };
    let other = key(None).to_text();
    for both in [false, true] {
        let said = with("host", &other, both);
        assert!(said.contains("refused authentication: the keys differ"), "{said}");
    }
    let said = with("controller", &other, true);
    assert!(said.contains("the controller did not prove who it is"), "{said}");
    let said = with("host", "nonsense", false);
    assert!(said.contains("host holds no key"), "{said}");
    let mut wrong = keys.options(false);
    wrong.keys.host = Some(keys.path("none"));
    let said = refused(target.address, &wrong);
    assert!(said.contains("cannot read the key") && said.contains("none"), "{said}");
    let mut alone = keys.options(true);
    alone.keys.host = None;
    assert!(refused(target.address, &alone).contains("dhchap_ctrl_key needs dhchap_key"));
    // After all that.
    use_path(&connect(target.address, &keys.options(true)), 9);
}

#[test]
fn a_controller_that_asks_for_nothing_proves_nothing() {
    let keys = Keys::new();
    let target = Target::memory();
    let said = refused(target.address, &keys.options(true));
    assert!(said.contains("asks for no authentication"), "{said}");
    connect(target.address, &keys.options(false));
}

/// In the answer to Connect, which is the second PDU of a connection: byte 2 of dword 0.
const AUTHREQ: usize = 8 + 2;

#[test]
fn a_secure_channel_is_refused_on_an_io_queue_too() {
    let keys = Keys::new();
    let target = keys.target(0);
    let edit = |pdu: &mut Vec<u8>| {
        assert_eq!(pdu[AUTHREQ], 2, "authentication is demanded");
        pdu[AUTHREQ] = 6;
        true
    };
    let tamper = Tamper::with(target.address, 1, 1, Arc::new(edit));
    let mut options = keys.options(true);
    options.association.reconnect_delay = Duration::from_secs(1);
    let path = connect(tamper.address, &options);
    let core = Core::new(path.clone());
    await_words(&path, "I/O queue 1: the controller demands TLS by a key");
    assert!(tamper.done.load(Ordering::SeqCst));
    // Once only.
    core.await_access(Access::is_usable);
    core.write(0, &pattern(1, 4096));
}

const C2H_DATA: u8 = 0x07;

/// PDUs of a connection that answer its exchange: after ICResp and the answer to Connect.
const EXCHANGE: [usize; 4] = [2, 3, 4, 5];

/// Spoils one PDU of an exchange, of connection `number`; then all is well. One that hangs is over when the admin
/// time-out is.
fn spoiled(keys: &Keys, number: usize, pdu: usize, edit: fn(&mut Vec<u8>) -> bool) {
    let target = keys.target(0);
    let tamper = Tamper::with(target.address, number, pdu, Arc::new(edit));
    let mut options = keys.options(true);
    options.association.admin_timeout = Duration::from_secs(5);
    let path = match host::open(&[address(tamper.address)], &options, "") {
        Ok(mut paths) => paths.remove(0),
        Err(error) => {
            assert_eq!(number, 0, "{error}");
            // The next attempt is another connection.
            return use_path(&connect(tamper.address, &keys.options(true)), 3);
        }
    };
    let core = Core::new(path.clone());
    core.await_access(Access::is_usable);
    core.write(0, &pattern(3, 64 << 10));
    assert!(tamper.done.load(Ordering::SeqCst), "PDU {pdu} of {number}");
}

/// Each message of an exchange, of the admin queue and of an I/O queue.
fn each_spoiled(edit: fn(&mut Vec<u8>) -> bool) {
    let keys = Keys::new();
    let keys = &keys;
    std::thread::scope(|scope| {
        for (number, pdu) in [0, 1].into_iter().flat_map(|number| EXCHANGE.map(|pdu| (number, pdu)))
        {
            scope.spawn(move || spoiled(keys, number, pdu, edit));
        }
    });
}

#[test]
fn garbage_in_an_exchange() {
    each_spoiled(|pdu| {
        pdu[8..].fill(0x5a);
        true
    });
}

#[test]
fn an_exchange_that_is_cut() {
    each_spoiled(|pdu| {
        pdu.truncate(pdu.len() / 2);
        false
    });
}

#[test]
fn an_exchange_that_hangs() {
    each_spoiled(|pdu| {
        pdu.clear();
        true
    });
}

/// Messages of which some bytes are others: they are read, and prove nothing.
#[test]
fn messages_with_other_bytes() {
    each_spoiled(|pdu| {
        // Behind the header of data; answers have a status and their command's identifier there.
        if pdu[0] == C2H_DATA && pdu.len() >= 24 + 48 {
            pdu[24 + 16..][..32].fill(0x5a);
        }
        true
    });
}

#[test]
fn it_comes_back_with_the_key_of_the_day() {
    let mut keys = Keys::new();
    let target = keys.target(0);
    let port = target.address.port();
    let path = connect(target.address, &keys.options(true));
    let core = Core::usable(path.clone());
    core.write(0, &pattern(1, 4096));
    target.server.stop().expect("it stops");
    // The same keys.
    let target = keys.target(port);
    core.until_served(rig::write(0, 4096), &pattern(2, 4096));
    target.server.stop().expect("it stops");
    // A new one, of which the host hears late, and that cannot be read at first.
    keys.host = Arc::new(key(Some(Hash::Sha512)));
    let target = keys.target(port);
    await_words(&path, "the keys differ");
    std::fs::remove_file(keys.path("host")).expect("it was there");
    await_words(&path, "cannot read the key");
    keys.write();
    core.until_served(rig::write(0, 4096), &pattern(3, 4096));
    // One that is changed while the host is connected disturbs nobody, until it is used.
    keys.host = Arc::new(key(None));
    keys.demanded(&target, &Hash::ALL, &Group::ALL);
    keys.write();
    core.write(4096, &pattern(4, 4096));
    drop(core);
    use_path(&path, 7);
}

#[test]
fn a_client_proves_who_it_is() {
    let keys = Keys::new();
    let target = keys.target(0);
    let host = HostIdentity { nqn: HOST_NQN.into(), id: [7; 16] };
    let ask = |subsystem: &str, files: &Options| {
        let peer = Peer { address: target.address, subsystem: subsystem.into() };
        let keys = files.keys.clone();
        let options = host::client::Options { keys, ..host::client::Options::default() };
        let mut client = Client::connect(&peer, &host, &options)?;
        client.identify_controller().map(drop)
    };
    ask(NQN, &keys.options(false)).expect("it proves who it is");
    ask(NQN, &keys.options(true)).expect("both do");
    let said =
        |subsystem: &str, files: &Options| ask(subsystem, files).expect_err("refused").to_string();
    assert!(said(NQN, &options()).contains("authentication: the controller demands"));
    assert!(said(DISCOVERY_NQN, &keys.options(true)).contains("asks for no authentication"));
    ask(DISCOVERY_NQN, &keys.options(false)).expect("it is not asked");
    std::fs::write(keys.path("host"), &*key(None).to_text()).expect("a file");
    assert!(said(NQN, &keys.options(true)).contains("the keys differ"));
    keys.write();
    std::fs::write(keys.path("controller"), &*key(None).to_text()).expect("a file");
    assert!(said(NQN, &keys.options(true)).contains("did not prove who it is"));
}

#[test]
fn what_discovery_names_proves_who_it_is() {
    let keys = Keys::new();
    let target = keys.target(0);
    let asked = [address(target.address)];
    let paths = host::open_discovered(&asked, &keys.options(true), "").expect("paths");
    let path = paths.iter().find(|path| path.reason() == association::Reason::Connecting);
    use_path(path.expect("one leads somewhere"), 11);
    let said = host::open_discovered(&asked, &options(), "").expect_err("no key").to_string();
    assert!(said.contains("demands authentication"), "{said}");
}

/// The admin queue is connected, and an I/O queue is not believed.
#[test]
fn no_command_goes_where_nothing_is_proved() {
    let keys = Keys::new();
    let target = keys.target(0);
    let path = connect(target.address, &keys.options(false));
    // Queues are yet to be connected, and the key is another now.
    let other = Keys::new();
    other.demanded(&target, &Hash::ALL, &Group::ALL);
    let core = Core::new(path.clone());
    await_words(&path, "I/O queue 1: the controller refused authentication");
    let done = core.command(rig::read(0, 4096), vec![0; 4096]);
    assert_eq!(done.status, Status::HOST_ABORTED, "it was never sent");
}
