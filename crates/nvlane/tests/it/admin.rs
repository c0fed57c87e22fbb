//! The commands that ask a controller, against a daemon: their text, and the shape of their JSON as
//! docs/cli-json.md has it. A change here is a new schema version.

use crate::daemon::{Daemon, nvlane};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

const NQN: &str = "nqn.2026-11.com.example:a";

fn start(dir: &Path) -> Daemon {
    let args = ["mem:8M", "mem:4M?bs=4096", "--nqn", NQN, "--listen", "127.0.0.1:0"];
    Daemon::start(dir, &args)
}

fn uri(daemon: &Daemon) -> String {
    format!("tcp://{}/{NQN}", daemon.listeners[0])
}

/// Runs a command that must succeed; gives its standard output.
fn run(args: &[&str]) -> Vec<u8> {
    let output = nvlane().args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{args:?}: {said}");
    output.stdout
}

fn text(args: &[&str]) -> String {
    String::from_utf8(run(args)).unwrap()
}

fn json(args: &[&str]) -> Value {
    let args: Vec<&str> = args.iter().copied().chain(["-o", "json"]).collect();
    let value: Value = serde_json::from_slice(&run(&args)).unwrap();
    assert_eq!(value["schema_version"], 1, "{args:?}");
    value
}

/// Runs a command that must fail; gives the one line that it says.
fn fails(args: &[&str]) -> String {
    let output = nvlane().args(args).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?} said {said:?}");
    assert_eq!(said.lines().count(), 1, "{args:?} said {said:?}");
    assert!(output.stdout.is_empty(), "{args:?}");
    said
}

fn keys(value: &Value) -> String {
    let keys: BTreeSet<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.into_iter().collect::<Vec<_>>().join(" ")
}

#[test]
fn discover_lists_what_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let port = daemon.listeners[0].port().to_string();
    let at = ["discover", "-t", "tcp", "-a", "127.0.0.1", "-s", &port];
    let log = text(&at);
    assert!(log.contains("Discovery Log Number of Records 2, Generation counter"), "{log}");
    assert!(
        log.contains(&format!("trsvcid: {port}\nsubnqn:  {NQN}\ntraddr:  127.0.0.1\n")),
        "{log}"
    );

    let log = json(&at);
    assert_eq!(keys(&log), "genctr records schema_version");
    let record = &log["records"][1];
    assert_eq!(
        keys(record),
        "adrfam eflags portid sectype subnqn subtype traddr treq trsvcid trtype"
    );
    assert_eq!(
        record,
        &json!({
            "adrfam": "ipv4", "eflags": "none", "portid": 1, "sectype": "none", "subnqn": NQN,
            "subtype": "nvme subsystem", "traddr": "127.0.0.1", "trsvcid": port, "trtype": "tcp",
            "treq": "not specified, sq flow control disable supported",
        })
    );
    let binary: Vec<&str> = at.iter().copied().chain(["-o", "binary"]).collect();
    assert_eq!(run(&binary).len(), 2048);

    // A host that is not let in is not shown the subsystem.
    daemon.call("host_disallow", json!({"host": "*"}));
    let stranger: Vec<&str> =
        at.iter().copied().chain(["-q", "nqn.2014-08.org.example:x"]).collect();
    assert!(!text(&stranger).contains(NQN));
}

#[test]
fn id_ctrl_shows_the_controller() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let uri = uri(&daemon);
    let plain = text(&["id-ctrl", &uri]);
    assert!(
        plain.starts_with("NVME Identify Controller:\nvid       : 0\nssvid     : 0\n"),
        "{plain}"
    );
    assert!(plain.contains(&format!("\nsubnqn    : {NQN}\n")), "{plain}");
    assert!(text(&["id-ctrl", &uri, "-H"]).contains("  [3:3] : 0x1\tWrite Zeroes Supported\n"));
    assert!(text(&["id-ctrl", &uri, "-v"]).contains("\nvs[]:\n"));

    let controller = json(&["id-ctrl", &uri]);
    assert_eq!(
        keys(&controller),
        "acl acwu aerl anacap anagrpmax anatt apsta avscc awun awupf cctemp cmic cntlid cntrltype \
         cqes crdt1 crdt2 crdt3 ctratt domainid dsto edstt elpe endgidmax fcatt fguid fna fr frmw \
         fuses fwug hctma hmmaxd hmmin hmminds hmpre icdoff icsvscc ieee ioccsz iorcsz kas lpa \
         maxcmd maxcna maxdna mdts mec megcap mn mnan mntmt msdbd mtfa mxtmt nanagrpid nn npss \
         nsetidmax nvmsr nwpc oacs oaes ocfs ofcs oncs pels psds rab rpmbs rrls rtd3e rtd3r \
         sanicap schema_version sgls sn sqes ssvid subnqn tnvmcap unvmcap ver vid vwc vwci wctemp"
    );
    assert_eq!(controller["subnqn"], NQN);
    assert_eq!((&controller["cntrltype"], &controller["sqes"]), (&json!(1), &json!(0x66)));
    assert_eq!(
        keys(&controller["psds"][0]),
        "active_power active_power_work active_scale entry_lat exit_lat flags idle_power \
         idle_scale max_power read_lat read_tput write_lat write_tput"
    );

    let raw = run(&["id-ctrl", &uri, "-b"]);
    assert_eq!((raw.len(), raw[111]), (4096, 1));
    assert_eq!(run(&["id-ctrl", &uri, "-o", "binary"])[78..].len(), raw[78..].len());

    // As nvme connect names a controller.
    let port = daemon.listeners[0].port().to_string();
    let flags = ["id-ctrl", "-a", "127.0.0.1", "-s", &port, "-n", NQN, "-g", "-G"];
    assert_eq!(json(&flags)["subnqn"], NQN);

    let said = fails(&["id-ctrl", &uri.replace(":a", ":b")]);
    assert!(said.contains("tcp://127.0.0.1") && said.contains("no such subsystem"), "{said}");
    for (args, part) in [
        (&["id-ctrl"][..], "tcp://HOST:PORT/NQN"),
        (&["id-ctrl", "-a", "127.0.0.1"], "--nqn"),
        (&["id-ctrl", "tcp://127.0.0.1"], "tcp://host:port/NQN"),
        (&["id-ctrl", "tcp://127.0.0.1:1/nqn.x"], "tcp://127.0.0.1:1"),
        (&["id-ctrl", &uri, "-a", "127.0.0.1"], "--traddr"),
    ] {
        let said = fails(args);
        assert!(said.contains(part), "{args:?}: {said}");
    }
}

#[test]
fn id_ns_shows_the_namespace() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let uri = uri(&daemon);
    let first = format!("{uri}?ns=1");
    let plain = text(&["id-ns", &first]);
    assert!(plain.starts_with("NVME Identify Namespace 1:\nnsze    : 0x4000\n"), "{plain}");
    assert!(plain.contains("lbaf  0 : ms:0   lbads:9  rp:0 (in use)\n"), "{plain}");
    let human = text(&["id-ns", &uri, "-n", "2", "-H"]);
    assert!(human.contains("LBA Format  0 : Metadata Size: 0   bytes - Data Size: 4096 bytes"));

    let namespace = json(&["id-ns", &uri, "--namespace-id", "2"]);
    assert_eq!(
        keys(&namespace),
        "anagrpid dlfeat dpc dps endgid eui64 flbas fpi lbafs mc mcl msrc mssrl nabo nabsn nabspf \
         nacwu nawun nawupf ncap nguid nlbaf nmic noiob nows npda npdg npwa npwg nsattr nsfeat nsze \
         nulbaf nuse nvmcap nvmsetid rescap schema_version"
    );
    assert_eq!(namespace["nsze"], 1024);
    assert_eq!(namespace["lbafs"], json!([{"ds": 12, "ms": 0, "rp": 0}]));
    assert_eq!(run(&["id-ns", &first, "-b"]).len(), 4096);

    let said = fails(&["id-ns", &uri]);
    assert!(said.contains("which namespace of 1, 2"), "{said}");
    let said = fails(&["id-ns", &uri, "-n", "9"]);
    assert!(said.contains("namespace 9"), "{said}");
}

#[test]
fn get_log_reads_any_page() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let uri = uri(&daemon);
    let plain = text(&["get-log", &uri, "--log-id", "0x0c", "--log-len", "56"]);
    let address = daemon.listeners[0];
    assert!(
        plain.starts_with(&format!("Device:tcp://{address} log-id:12 namespace-id:0xffffffff\n")),
        "{plain}"
    );
    // The change count, one group: it is 1, has two namespaces and is optimized.
    assert!(plain.contains("\n0010: 01 00 00 00 02 00 00 00 "), "{plain}");

    let effects = json(&["get-log", &uri, "-i", "5", "-l", "4096"]);
    assert_eq!(keys(&effects), "data length lid lpo nsid schema_version");
    assert_eq!((&effects["lid"], &effects["length"]), (&json!(5), &json!(4096)));
    let whole = run(&["get-log", &uri, "-i", "5", "-l", "4096", "-b"]);
    let digits: String = whole.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(effects["data"], digits);
    // From an offset, and in several pieces.
    let part = run(&["get-log", &uri, "-i", "5", "-l", "64", "-L", "1024", "-o", "binary"]);
    assert_eq!(part, whole[1024..1088]);

    for (args, part) in [
        (&["-i", "2", "-l", "0"][..], "multiple of four"),
        (&["-i", "2", "-l", "6"], "multiple of four"),
        (&["-i", "256", "-l", "4"], "256"),
        (&["-i", "0xc0", "-l", "4"], "Invalid Log Page"),
        (&["-i", "2", "-l", "0x10000000"], "bytes are more than"),
    ] {
        let args: Vec<&str> = ["get-log", &uri].into_iter().chain(args.iter().copied()).collect();
        let said = fails(&args);
        assert!(said.contains(part), "{args:?}: {said}");
    }
}

#[test]
fn show_regs_shows_the_properties() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let uri = uri(&daemon);
    let plain = text(&["show-regs", &uri]);
    assert!(plain.starts_with("cap     : "), "{plain}");
    assert!(plain.contains("\nversion : 20100\ncc      : 460001\ncsts    : 1\n"), "{plain}");
    assert!(text(&["show-regs", &uri, "-H"]).contains("  [0:0] : 0x1\tReady\n"));
    let registers = json(&["show-regs", &uri]);
    assert_eq!(keys(&registers), "cap cc crto csts schema_version vs");
    assert_eq!((&registers["vs"], &registers["csts"]), (&json!(0x2_0100), &json!(1)));
}

#[test]
fn list_shows_namespaces_wherever_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let uri = uri(&daemon);
    let plain = text(&["list", &uri]);
    assert!(plain.starts_with("Node ") && plain.lines().count() == 4, "{plain}");
    assert!(plain.contains(&format!("{uri}?ns=2")) && plain.contains("4096 B + 0 B"), "{plain}");

    let list = json(&["list", &format!("{uri}?ns=2"), "mem:1M"]);
    assert_eq!(keys(&list), "Devices schema_version");
    let served = daemon.call("volume_list", json!({}));
    let device = &list["Devices"][0];
    assert_eq!(
        keys(device),
        "DevicePath Firmware MaximumLBA ModelNumber NameSpace PhysicalSize SectorSize SerialNumber \
         SubsystemNQN UUID UsedBytes"
    );
    assert_eq!(device["PhysicalSize"], 4 << 20);
    assert_eq!((&device["SectorSize"], &device["UUID"]), (&json!(4096), &served[1]["uuid"]));
    assert_eq!(device["SubsystemNQN"], NQN);
    let local = &list["Devices"][1];
    assert_eq!((&local["PhysicalSize"], &local["NameSpace"]), (&json!(1 << 20), &json!(0)));

    let socket = daemon.socket.to_str().unwrap();
    let daemons = json(&["list", "--socket", socket]);
    let sizes: Vec<&Value> =
        daemons["Devices"].as_array().unwrap().iter().map(|one| &one["PhysicalSize"]).collect();
    assert_eq!(sizes, [8 << 20, 4 << 20]);
}

#[test]
fn list_subsys_shows_paths_and_their_states() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(
        dir.path(),
        &["mem:8M", "--nqn", NQN, "--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"],
    );
    let [first, second] = daemon.listeners[..] else { panic!("{:?}", daemon.listeners) };
    daemon.call("ana_set", json!({"group": 1, "state": "non-optimized", "listener": second}));
    let port = first.port().to_string();
    let plain = text(&["list-subsys", "-a", "127.0.0.1", "-s", &port]);
    assert!(plain.starts_with(&format!("nvme-subsys0 - NQN={NQN}\n\\\n +- tcp ")), "{plain}");
    assert!(
        plain.contains(" live optimized\n") && plain.contains(" live non-optimized\n"),
        "{plain}"
    );

    // One of the addresses has nobody behind it.
    let volume = format!("tcp://{second},127.0.0.1:1/{NQN}?ns=1&policy=numa");
    let subsystems = json(&["list-subsys", &volume]);
    assert_eq!(keys(&subsystems), "Subsystems schema_version");
    let subsystem = &subsystems["Subsystems"][0];
    assert_eq!(keys(subsystem), "IOPolicy NQN Name Paths");
    assert_eq!((&subsystem["NQN"], &subsystem["IOPolicy"]), (&json!(NQN), &json!("numa")));
    let [live, dead] = &subsystem["Paths"].as_array().unwrap()[..] else { panic!("{subsystem}") };
    assert_eq!(keys(live), "ANAState Address Reason State Transport");
    assert_eq!((&live["State"], &live["ANAState"]), (&json!("live"), &json!("non-optimized")));
    assert_eq!((&dead["State"], &dead["ANAState"]), (&json!("unreachable"), &json!("")));
    assert!(dead["Reason"].as_str().unwrap().contains("127.0.0.1:1"), "{dead}");

    // The daemon has opened nothing remote.
    let socket = daemon.socket.to_str().unwrap();
    assert_eq!(json(&["list-subsys", "--socket", socket])["Subsystems"], json!([]));
}

#[test]
fn paths_of_a_daemon_are_asked_for_over_its_socket() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let socket = daemon.socket.to_str().unwrap();
    assert_eq!(text(&["paths", "--socket", socket]), "no volume has paths\n");
    let one = json(&["paths", "--socket", socket, "--nsid", "1"]);
    assert_eq!(keys(&one), "schema_version volumes");
    assert_eq!(keys(&one["volumes"][0]), "nqn nsid paths policy volume");
    assert_eq!(one["volumes"][0]["paths"], json!([]));
    let said = fails(&["paths", "mem:1M"]);
    assert!(said.contains("no paths"), "{said}");

    assert_eq!(daemon.call("volume_paths", json!({})), json!([]));
    assert_eq!(daemon.refuse("volume_paths", json!({"nsid": 7})), -32001);
    assert_eq!(daemon.refuse("volume_paths", json!({"nqn": "nqn.x"})), -32001);
    let tune = |nsid: u32| json!({"nsid": nsid, "name": "policy", "value": "numa"});
    assert_eq!(daemon.refuse("volume_tune", tune(7)), -32001);
    assert_eq!(daemon.refuse("volume_tune", tune(1)), -32003);
    assert_eq!(daemon.refuse("volume_tune", json!({"nsid": 1, "name": "policy"})), -32602);
    let said = fails(&["ctl", "--socket", socket, "volume", "tune", "1", "policy=numa"]);
    assert!(said.contains("policy=numa: nothing here has such a setting"), "{said}");
    let said = fails(&["ctl", "--socket", socket, "volume", "tune", "1", "policy"]);
    assert!(said.contains("NAME=VALUE"), "{said}");
}
