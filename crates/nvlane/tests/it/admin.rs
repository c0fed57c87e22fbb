//! The commands that ask a controller, against a daemon: their text, and the shape of their JSON as
//! docs/cli-json.md has it. A change here is a new schema version.

use crate::daemon::{Daemon, eventually, nvlane};
use crate::host::{HOST_NQN, Host};
use nvme::fabrics::DISCOVERY_NQN;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;

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
    // The discovery subsystem itself: the connection may stay, and every port tells the same.
    let own = &log["records"][0];
    let told = ["subtype", "eflags", "subnqn", "trsvcid"].map(|key| own[key].as_str().unwrap());
    let flags = "explicit discovery connections, duplicate discovery information";
    let nqn = "nqn.2014-08.org.nvmexpress.discovery";
    assert_eq!(told, ["current discovery subsystem", flags, nqn, &*port]);
    let generation = log["genctr"].as_u64().unwrap();
    let binary: Vec<&str> = at.iter().copied().chain(["-o", "binary"]).collect();
    let records = run(&binary);
    assert_eq!(records.len(), 2048);
    let file = dir.path().join("log.bin");
    let raw = [&at[..], &["-w", "127.0.0.1", "-k", "30", "-r", file.to_str().unwrap()]].concat();
    assert_eq!(text(&raw), "");
    let mut page = vec![0; 1024];
    page[..8].copy_from_slice(&generation.to_le_bytes());
    page[8] = 2;
    assert!(std::fs::read(&file).unwrap() == [page, records].concat(), "the page as it is read");

    // A host that is not let in is not shown the subsystem.
    daemon.call("host_disallow", json!({"host": "*"}));
    let stranger: Vec<&str> =
        at.iter().copied().chain(["-q", "nqn.2014-08.org.example:x"]).collect();
    assert!(!text(&stranger).contains(NQN));
}

#[test]
fn who_watches_says_after_what_silence_he_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let port = daemon.listeners[0].port().to_string();
    let mut watch = nvlane();
    watch.args(["discover", "-a", "127.0.0.1", "-s", &port, "--watch", "-k", "77"]);
    let mut watch = watch.stdout(Stdio::null()).spawn().unwrap();
    eventually("the controller was told", || {
        let list = daemon.call("controller_list", json!({}));
        let [one] = &list.as_array().unwrap()[..] else { return false };
        (&one["discovery"], &one["keep_alive_ms"]) == (&json!(true), &json!(77_000))
    });
    watch.kill().unwrap();
    watch.wait().unwrap();
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

    // Of another one, nobody is behind any: what is known is told all the same, and it is no success.
    let silent = format!("tcp://127.0.0.1:1,127.0.0.1:2/{NQN}?ns=1&policy=numa");
    for (asked, count) in
        [(&[&*silent][..], 1), (&[&silent, &volume], 2), (&["-a", "127.0.0.1", "-s", "1"], 0)]
    {
        let output = nvlane().arg("list-subsys").args(asked).args(["-o", "json"]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        if count == 0 {
            continue;
        }
        let wanted = format!("nvlane: {NQN} answers on no path: ");
        assert!(said.starts_with(&wanted) && said.matches("refused").count() == 2, "{said}");
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        let subsystems = told["Subsystems"].as_array().unwrap();
        assert_eq!((subsystems.len(), &subsystems[0]["IOPolicy"]), (count, &json!("")), "{told}");
    }

    // The daemon has opened nothing remote.
    let socket = daemon.socket.to_str().unwrap();
    assert_eq!(json(&["list-subsys", "--socket", socket])["Subsystems"], json!([]));
}

/// Two namespaces by two listeners, the second of which is not optimized for the second group.
fn two_by_two(dir: &Path) -> Daemon {
    let ports = ["--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
    let daemon = Daemon::start(dir, &[&["mem:8M", "--nqn", NQN][..], &ports].concat());
    daemon.call("volume_add", json!({"volume": "mem:4M?bs=4096", "ana_group": 2}));
    let second = daemon.listeners[1];
    daemon.call("ana_set", json!({"group": 2, "state": "non-optimized", "listener": second}));
    daemon
}

/// Rows of the table with those heads, cut where the columns are.
fn rows(text: &str, heads: &[&str]) -> Vec<Vec<String>> {
    let mut lines =
        text.lines().skip_while(|line| line.split_whitespace().collect::<Vec<_>>() != heads);
    let _heads = lines.next().unwrap_or_else(|| panic!("no {heads:?}: {text}"));
    let widths: Vec<usize> = lines.next().unwrap().split(' ').map(str::len).collect();
    let cut = |line: &str| {
        let (mut letters, mut cells) = (line.chars(), Vec::new());
        for (index, width) in widths.iter().enumerate() {
            let all = index + 1 == widths.len();
            let cell: String =
                letters.by_ref().take(if all { usize::MAX } else { width + 1 }).collect();
            cells.push(cell.trim_end().to_owned());
        }
        cells
    };
    lines.take_while(|line| !line.is_empty()).map(cut).collect()
}

/// The tables of `list -v`.
const SUBSYSTEMS: [&str; 3] = ["Subsystem", "Subsystem-NQN", "Controllers"];
const CONTROLLERS: [&str; 9] =
    ["Device", "Cntlid", "SN", "MN", "FR", "TxPort", "Address", "Subsystem", "Namespaces"];
const NAMESPACES: [&str; 5] = ["Device", "NSID", "Usage", "Format", "Controllers"];

#[test]
fn list_verbose_shows_subsystems_controllers_and_namespaces_apart() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = two_by_two(dir.path());
    let [first, second] = daemon.listeners[..] else { panic!("{:?}", daemon.listeners) };
    let both = format!("tcp://{first},{second}/{NQN}");
    let told = json(&["list", "-v", &both, "mem:1M"]);
    assert_eq!(keys(&told), "Devices Subsystems schema_version");
    let [subsystem] = &told["Subsystems"].as_array().unwrap()[..] else { panic!("{told}") };
    assert_eq!(keys(subsystem), "Controllers Namespaces Subsystem SubsystemNQN");
    assert_eq!(
        (&subsystem["Subsystem"], &subsystem["SubsystemNQN"]),
        (&json!("nvme-subsys0"), &json!(NQN))
    );
    let known = json(&["id-ctrl", &both]);
    let controllers = subsystem["Controllers"].as_array().unwrap();
    assert_eq!(controllers.len(), 2, "{told}");
    assert_ne!(controllers[0]["Cntlid"], controllers[1]["Cntlid"], "each has its own");
    for (index, (one, address)) in controllers.iter().zip([first, second]).enumerate() {
        let state = if index == 0 { "optimized" } else { "non-optimized" };
        let mut one = one.clone();
        assert!(one["Cntlid"].take().as_u64() > Some(0), "{told}");
        assert!(one["HostNQN"].take().as_str().unwrap().starts_with("nqn."), "{told}");
        let path = |nsid: u32, state: &str| {
            let uri = format!("tcp://{address}/{NQN}?ns={nsid}");
            json!({"Path": uri, "NSID": nsid, "ANAState": state})
        };
        let wanted = json!({
            "Controller": format!("nvme{index}"), "Cntlid": null, "HostNQN": null,
            "SerialNumber": known["sn"], "ModelNumber": "nvlane", "Firmware": known["fr"],
            "Transport": "tcp",
            "Address": format!("traddr=127.0.0.1,trsvcid={},src_addr=127.0.0.1", address.port()),
            "State": "live", "Reason": "",
            "Paths": [path(1, "optimized"), path(2, state)],
        });
        assert_eq!(one, wanted);
    }
    let served = daemon.call("volume_list", json!({}));
    let namespace = |nsid: usize, bytes: u64, block: u64| {
        json!({
            "DevicePath": format!("{both}?ns={nsid}"), "NSID": nsid, "UUID": served[nsid - 1]["uuid"],
            "UsedBytes": bytes, "MaximumLBA": bytes / block, "PhysicalSize": bytes, "SectorSize": block,
        })
    };
    assert_eq!(
        subsystem["Namespaces"],
        json!([namespace(1, 8 << 20, 512), namespace(2, 4 << 20, 4096)])
    );
    // And what is there without -v, with the volume that is no namespace.
    let devices = told["Devices"].as_array().unwrap();
    let plain = json(&["list", &both, "mem:1M"]);
    assert_eq!(keys(&devices[0]), keys(&plain["Devices"][0]));
    let names = |devices: &[Value]| -> Vec<(Value, Value)> {
        devices.iter().map(|one| (one["NameSpace"].clone(), one["UUID"].clone())).collect()
    };
    assert_eq!(names(devices), names(plain["Devices"].as_array().unwrap()));

    let text = text(&["list", "-v", &both, "mem:1M"]);
    assert_eq!(rows(&text, &SUBSYSTEMS), [["nvme-subsys0", NQN, "nvme0, nvme1"]]);
    let controllers = rows(&text, &CONTROLLERS);
    assert_eq!(controllers.len(), 2, "{text}");
    assert_eq!(controllers[0][8], "0x1 optimized, 0x2 optimized");
    assert_eq!(controllers[1][8], "0x1 optimized, 0x2 non-optimized");
    assert_eq!(
        (&*controllers[1][0], &*controllers[1][3], &*controllers[1][5], &*controllers[1][7]),
        ("nvme1", "nvlane", "tcp", "nvme-subsys0")
    );
    let namespaces = rows(&text, &NAMESPACES);
    assert_eq!(namespaces.len(), 3, "{text}");
    assert_eq!(namespaces[1][..2], [format!("{both}?ns=2"), "0x2".to_owned()]);
    assert_eq!(namespaces[1][3..], ["4096 B + 0 B", "nvme0, nvme1"]);
    assert!(namespaces[2][0].starts_with("mem:"), "{text}");
    assert_eq!((&*namespaces[2][1], &*namespaces[2][4]), ("-", "-"));
}

#[test]
fn list_verbose_tells_which_address_does_not_answer() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = two_by_two(dir.path());
    let [first, second] = daemon.listeners[..] else { panic!("{:?}", daemon.listeners) };
    let half = format!("tcp://127.0.0.1:1,{second}/{NQN}");
    let told = json(&["list", "--verbose", &format!("{half}?ns=2"), &format!("{half}?ns=1")]);
    // Two of its namespaces are one subsystem.
    let [subsystem] = &told["Subsystems"].as_array().unwrap()[..] else { panic!("{told}") };
    let [dead, live] = &subsystem["Controllers"].as_array().unwrap()[..] else { panic!("{told}") };
    assert_eq!((&dead["State"], &dead["Cntlid"]), (&json!("unreachable"), &Value::Null));
    assert!(dead["Reason"].as_str().unwrap().contains("127.0.0.1:1"), "{dead}");
    assert_eq!((keys(dead), &dead["Paths"]), (keys(live), &json!([])));
    // A namespace is where it can be reached.
    let namespaces = subsystem["Namespaces"].as_array().unwrap();
    let uri = |nsid: u32| json!(format!("tcp://{second}/{NQN}?ns={nsid}"));
    assert_eq!(namespaces.len(), 2);
    assert_eq!((&namespaces[0]["DevicePath"], &namespaces[1]["DevicePath"]), (&uri(1), &uri(2)));
    let text = text(&["list", "-v", &format!("{half}?ns=2")]);
    let controllers = rows(&text, &CONTROLLERS);
    assert_eq!(controllers[0][1..5], ["-", "-", "-", "-"], "{text}");
    assert!(controllers[0][8].starts_with("unreachable (tcp://127.0.0.1:1: "), "{text}");
    assert_eq!(controllers[1][8], "0x2 non-optimized");
    assert_eq!(rows(&text, &NAMESPACES)[0][4], "nvme1", "{text}");

    let said = fails(&["list", "-v", &format!("tcp://127.0.0.1:1,127.0.0.1:2/{NQN}")]);
    assert!(said.contains("no address answers"), "{said}");
    let said = fails(&["list", "-v", &format!("tcp://{first},{second}/{NQN}?ns=9")]);
    assert!(said.contains("namespace 9 is not active"), "{said}");
}

#[test]
fn list_verbose_of_a_daemon_has_the_controllers_of_its_hosts() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = two_by_two(dir.path());
    let socket = daemon.socket.to_str().unwrap();
    let told = json(&["list", "-v", "--socket", socket]);
    let alone = &told["Subsystems"][0];
    assert_eq!((&alone["SubsystemNQN"], &alone["Controllers"]), (&json!(NQN), &json!([])));
    assert_eq!(alone["Namespaces"].as_array().unwrap().len(), 2);

    let host = Host::new(daemon.listeners[1], NQN).enabled();
    let _asks = Host::new(daemon.listeners[0], DISCOVERY_NQN).enabled();
    let told = json(&["list", "-v", "--socket", socket]);
    let [one] = &told["Subsystems"][0]["Controllers"].as_array().unwrap()[..] else {
        panic!("{told}")
    };
    let serial = &daemon.call("subsystem_list", json!({}))[0]["serial"];
    let port = daemon.listeners[1].port();
    let uri = |nsid: u32| format!("tcp://{}/{NQN}?ns={nsid}", daemon.listeners[1]);
    let wanted = json!({
        "Controller": "nvme0", "Cntlid": host.cntlid, "HostNQN": HOST_NQN, "SerialNumber": serial,
        "ModelNumber": "", "Firmware": "", "Transport": "tcp",
        "Address": format!("traddr=127.0.0.1,trsvcid={port},src_addr=127.0.0.1"),
        "State": "live", "Reason": "",
        "Paths": [
            {"Path": uri(1), "NSID": 1, "ANAState": "optimized"},
            {"Path": uri(2), "NSID": 2, "ANAState": "non-optimized"},
        ],
    });
    assert_eq!(one, &wanted);
    let text = text(&["list", "-v", "--socket", socket]);
    assert_eq!(rows(&text, &CONTROLLERS)[0][8], "0x1 optimized, 0x2 non-optimized", "{text}");
    assert_eq!(rows(&text, &NAMESPACES)[1][4], "nvme0", "{text}");
}

#[test]
fn list_subsys_verbose_says_what_a_subsystem_is() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let daemon = two_by_two(dir.path());
    let [first, second] = daemon.listeners[..] else { panic!("{:?}", daemon.listeners) };
    let host = "nqn.2014-08.org.example:h";
    // The first address has nobody behind it, and what is said comes from the others.
    let volume =
        format!("tcp://127.0.0.1:1,{first},{second}/{NQN}?ns=2&policy=numa&hostnqn={host}");
    let known = json(&["id-ctrl", &volume]);
    let told = json(&["list-subsys", "-v", &volume]);
    let subsystem = &told["Subsystems"][0];
    assert_eq!(keys(subsystem), "Firmware HostNQN IOPolicy Model NQN Name Paths Serial Type");
    for (field, wanted) in [
        ("HostNQN", &json!(host)),
        ("Model", &known["mn"]),
        ("Serial", &known["sn"]),
        ("Firmware", &known["fr"]),
        ("Type", &json!("nvm")),
        ("IOPolicy", &json!("numa")),
    ] {
        assert_eq!(&subsystem[field], wanted, "{field}");
    }
    let paths = subsystem["Paths"].as_array().unwrap();
    assert_eq!(keys(&paths[0]), "ANAState Address Cntlid Reason State Transport");
    let states: Vec<&Value> = paths.iter().map(|path| &path["ANAState"]).collect();
    assert_eq!(states, ["", "optimized", "non-optimized"]);
    assert!(paths[0]["Cntlid"].is_null() && paths[1]["Cntlid"].is_u64(), "{told}");

    let text = text(&["list-subsys", "-v", &volume]);
    let serial = known["sn"].as_str().unwrap();
    for part in [
        &format!("hostnqn={host}"),
        "model=nvlane",
        &format!("serial={serial}"),
        "iopolicy=numa",
        "type=nvm",
        " live non-optimized cntlid=",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Without -v there is nothing of it.
    let plain = json(&["list-subsys", &volume]);
    assert_eq!(keys(&plain["Subsystems"][0]), "IOPolicy NQN Name Paths");

    // A daemon knows of its volumes' subsystems how they are used.
    let volume = format!("tcp://{first},{second}/{NQN}?ns=2&hostnqn={host}");
    let gateway = Daemon::start(other.path(), &[&volume, "--nqn", "nqn.2026-11.com.example:g"]);
    let socket = gateway.socket.to_str().unwrap();
    // The second path may come a little later, and who asked before may still be there.
    eventually("its paths are the target's controllers", || {
        let told = json(&["list-subsys", "-v", "--socket", socket]);
        let subsystem = &told["Subsystems"][0];
        assert_eq!((&subsystem["HostNQN"], &subsystem["Model"]), (&json!(host), &json!("")));
        let ids = subsystem["Paths"].as_array().unwrap().iter().map(|path| &path["Cntlid"]);
        let mut ids: Vec<Option<u64>> = ids.map(Value::as_u64).collect();
        let listed = daemon.call("controller_list", json!({}));
        let listed = listed.as_array().unwrap().iter().map(|one| one["controller"].as_u64());
        ids.sort_unstable();
        ids.len() == 2 && ids == listed.collect::<Vec<_>>()
    });
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
