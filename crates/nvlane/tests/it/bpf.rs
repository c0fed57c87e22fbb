//! `nvlane bpf`, and a program behind a daemon's volume.

use crate::daemon::{Daemon, nvlane};
use serde_json::{Value, json};
use std::process::{Output, Stdio};

fn object(name: &str) -> String {
    format!("{}/../../bpf/{name}.bpf.o", env!("CARGO_MANIFEST_DIR"))
}

fn run(args: &[&str]) -> Output {
    nvlane().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap()
}

#[test]
fn the_examples_pass_the_check() {
    for name in ["null", "linear", "stripe", "mirror", "statistics", "snapshot", "rate", "thin"] {
        let output = run(&["bpf", "check", &object(name)]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}: {text}");
        assert!(text.contains("user space: taken; 52 requests tried on 2 volumes"), "{text}");
        assert!(text.contains("\nkernel: "), "{text}");
    }
}

#[test]
fn what_reaches_into_the_loop_is_refused() {
    let output = run(&["bpf", "check", &object("tests/failing")]);
    let (text, said) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("the kernel"), "{said}");
    assert!(text.contains("user space: taken"), "{text}");
    assert!(text.contains("\nkernel: refused\n  nvlane_kernel_"), "{text}");
    assert!(text.contains(" uses nvlane_queues: only what nvlane_bpf.h offers"), "{text}");
}

#[test]
fn a_check_is_told_as_json() {
    let json = |name: &str, status| {
        let output = run(&["bpf", "check", &object(name), "-o", "json"]);
        assert_eq!(output.status.code(), Some(status), "{name}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON")
    };
    let told = json("stripe", 0);
    assert_eq!(told["schema_version"], 1);
    assert!(told["program"].as_str().unwrap().ends_with("stripe.bpf.o"), "{told}");
    assert!(told["instructions"].as_u64() > Some(10), "{told}");
    assert_eq!(
        (&told["user"]["verdict"], &told["user"]["requests"]),
        (&"taken".into(), &52.into())
    );
    assert!(told["user"]["read_ns"].as_f64() > Some(0.0), "{told}");
    // What the kernel says is its own affair.
    assert!(told["kernel"]["verdict"].is_string(), "{told}");
    assert!(["kernel", "user"].map(Into::into).contains(&told["by_default"]), "{told}");
    assert_eq!(json("mirror", 0)["by_default"], "user");
    let maps = json("statistics", 0);
    assert_eq!(maps["maps"][0]["kind"], "per-core array", "{maps}");
    let fails = json("tests/endless", 1);
    assert_eq!(fails["user"]["verdict"], "fails");
    assert!(!fails["user"]["problems"].as_array().unwrap().is_empty(), "{fails}");
}

#[test]
fn what_is_refused_is_said_in_one_line() {
    let output = run(&["bpf", "check", "/nowhere.bpf.o"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("cannot read /nowhere.bpf.o"), "{said}");
}

/// Refused in user space when it is loaded, by NVLANE_SETUP, and by what a request comes to.
#[test]
fn the_kernel_is_asked_whatever_user_space_says() {
    let (source, snapshot) = (object("linear").replace(".bpf.o", ".bpf.c"), object("snapshot"));
    let (refused, fail) = ("it is refused in user space", "requests would fail with an I/O error");
    for (args, wrong, reason) in [
        (vec![&*source], refused, "\nuser space: refused\n  not a proper object file"),
        (
            vec![&*snapshot, "--backends", "3"],
            refused,
            "\nuser space: refused\n  NVLANE_SETUP returned 1 for these volumes",
        ),
        (vec![&*object("tests/endless")], fail, " of 52 requests tried on 2 volumes would fail:\n"),
    ] {
        let output = run(&[&["bpf", "check"], &args[..]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.contains(wrong), "{said}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(reason) && text.contains("\nkernel: "), "{text}");
    }
}

#[test]
fn a_daemon_tells_what_a_program_has_counted() {
    let dir = tempfile::tempdir().unwrap();
    let volume = format!("bpf:{}(mem:4M)", object("statistics"));
    let daemon = Daemon::start(dir.path(), &[&volume]);
    let remote = format!("tcp://{}/{}?ns=1", daemon.listeners[0], daemon.nqn);
    let read = run(&["cat", &remote]);
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    assert_eq!(read.stdout.len(), 4 << 20);
    let told = daemon.call("volume_maps", json!({}));
    let program = &told[0]["programs"][0];
    assert_eq!(program["mistakes"], 0);
    let maps = program["maps"].as_array().unwrap();
    let map = |name: &str| maps.iter().find(|map| map["name"] == name).unwrap();
    let reads = map("operations")["entries"].as_array().unwrap();
    let reads = reads.iter().find(|entry| entry["key"] == "02000000").unwrap();
    // The second word is blocks, of 512 bytes, each read once at least.
    let word = |value: &Value| {
        let hex = &value.as_str().unwrap()[16..32];
        u64::from_str_radix(hex, 16).unwrap().swap_bytes()
    };
    let blocks: u64 = reads["values"].as_array().unwrap().iter().map(word).sum();
    assert!(blocks >= (4 << 20) / 512, "{blocks}");
    let socket = daemon.socket.to_str().unwrap();
    let text = run(&["bpf", "stat", "--socket", socket]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("operations, per-core array of 16 entries\n      2: "), "{text}");
}

/// The sum over cores of how many reads the statistics of one of a volume's programs tell of.
fn reads_of(program: &Value) -> u64 {
    let maps = program["maps"].as_array().unwrap();
    let operations = maps.iter().find(|map| map["name"] == "operations").unwrap();
    let entries = operations["entries"].as_array().unwrap();
    let reads = entries.iter().find(|entry| entry["key"] == "02000000");
    let first = |value: &Value| {
        u64::from_str_radix(&value.as_str().unwrap()[..16], 16).unwrap().swap_bytes()
    };
    reads.map_or(0, |reads| reads["values"].as_array().unwrap().iter().map(first).sum())
}

/// The slow one has a read at work nearly always, so that nearly all others go to the quick one.
#[test]
fn a_mirror_reads_from_the_one_with_the_least_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let counted = |volume: &str| format!("bpf:{}({volume})", object("statistics"));
    let (slow, quick) = (counted("delay:read=50ms(mem:8M)"), counted("mem:8M"));
    let volume = format!("bpf:{}({slow},{quick})", object("mirror"));
    let daemon = Daemon::start(dir.path(), &[&volume, "--cores", "1"]);
    let before = daemon.call("volume_maps", json!({}));
    let remote = format!("tcp://{}/{}?ns=1", daemon.listeners[0], daemon.nqn);
    let read = run(&["cat", &remote]);
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let after = daemon.call("volume_maps", json!({}));
    let reads = |number: usize| {
        let of = |told: &Value| reads_of(&told[0]["programs"][number]);
        of(&after) - of(&before)
    };
    let (slow, quick) = (reads(1), reads(2));
    assert!(slow > 0 && quick > 2 * slow, "{slow} reads from the slow one, {quick} from the other");
}

#[test]
fn a_program_is_replaced_and_a_restart_finds_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let volume = format!("bpf:{}(mem:1M)", object("statistics"));
    let daemon = Daemon::start(dir.path(), &[&volume]);
    let socket = daemon.socket.to_str().unwrap().to_owned();
    let new = dir.path().join("new.bpf.o");
    std::fs::copy(object("statistics"), &new).unwrap();
    let new = new.to_str().unwrap();
    let said = run(&["bpf", "replace", "--socket", &socket, "1", new]);
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    assert!(text.contains(&format!("bpf:{new}(mem:1M?bs=512)\n  map operations stays")), "{text}");
    // By the volume's name, and by the program's.
    let (uri, linear) = (format!("bpf:{new}(mem:1M?bs=512)"), object("linear"));
    let named = ["bpf", "replace", "--socket", &socket, "--replaces", "new.bpf.o", &uri, &linear];
    let said = run(&named);
    let text = String::from_utf8_lossy(&said.stdout);
    let gone = text.contains("map latencies is gone with the old program");
    assert!(gone, "{text}{}", String::from_utf8_lossy(&said.stderr));
    for (wanted, words) in [
        (["1", &object("mirror")], "does not promise NVLANE_ONE_PLACE"),
        (["1", &object("linear").replace(".bpf.o", ".bpf.c")], "not a proper object file"),
        (["1", "/nowhere.bpf.o"], "cannot read /nowhere.bpf.o"),
        (["2", new], "there is no namespace 2"),
        (["mem:1M", new], "the server has no volume mem:1M"),
        (["/dev/ublkb4000000", new], "/dev/ublkb4000000 has no server that can be asked"),
    ] {
        let said = run(&[&["bpf", "replace", "--socket", &socket][..], &wanted[..]].concat());
        let text = String::from_utf8_lossy(&said.stderr);
        assert_eq!((said.status.code(), text.lines().count()), (Some(1), 1), "{text}");
        assert!(text.contains(words), "{text}");
    }
    let none = json!({ "nsid": 1, "object": new, "replaces": "other.bpf.o" });
    assert_eq!(daemon.refuse("volume_program", none), -32001);
    daemon.kill();
    let daemon = Daemon::start(dir.path(), &[&volume]);
    let now = &daemon.call("volume_list", json!({}))[0]["volume"];
    let linear = std::fs::canonicalize(linear).unwrap();
    assert_eq!(now, &format!("bpf:{}(mem:1M?bs=512)", linear.display()));
}
