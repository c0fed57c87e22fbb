//! `nvlane nbd` and the clients that people have: nbdinfo, nbdcopy, nbddump, nbdsh, qemu-img, fio.

use crate::daemon::{Daemon, ask, eventually, nvlane, wait, wait_for_lock};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A running `nvlane nbd`. Killed when dropped.
struct Door {
    child: Child,
    ready: Value,
}

impl Door {
    fn start(dir: &Path, args: &[&str]) -> Door {
        let mut command = nvlane();
        command.arg("nbd").args(args).args(["-o", "json", "--log", "warn"]).current_dir(dir);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|error| {
            panic!("{args:?} is not ready: {error}, {line:?}, {:?}", child.wait())
        });
        Door { child, ready }
    }

    /// Where export `index` is, through the first listener.
    fn uri(&self, index: usize) -> &str {
        self.ready["exports"][index]["uris"][0].as_str().unwrap()
    }

    fn stop(mut self) -> ExitStatus {
        self.signal("TERM");
        wait(&mut self.child)
    }

    fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a client that must succeed; gives what it writes.
fn run(dir: &Path, program: &str, args: &[&str]) -> String {
    let output = Command::new("timeout")
        .args(["60", program])
        .args(args)
        .current_dir(dir)
        .output()
        .unwrap_or_else(|error| panic!("{program} (make test installs it): {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {}\n{text}{said}", output.status);
    text
}

/// Runs a server that must not start; gives the one line that it says.
fn refused(dir: &Path, args: &[&str]) -> String {
    let output = nvlane().arg("nbd").args(args).current_dir(dir).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?} said {said:?}");
    assert_eq!(said.lines().count(), 1, "{args:?} said {said:?}");
    said
}

/// A sparse file of 32 MiB: data at the start and in the middle.
fn image(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    let file = File::create(&path).unwrap();
    file.set_len(32 << 20).unwrap();
    let data: Vec<u8> = (0..1u64 << 20)
        .flat_map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect();
    file.write_all_at(&data[..5 << 20], 0).unwrap();
    file.write_all_at(&data, 16 << 20).unwrap();
    path
}

fn same(one: &Path, other: &Path) {
    assert!(fs::read(one).unwrap() == fs::read(other).unwrap(), "{one:?} and {other:?} differ");
}

#[test]
fn exports_are_listed_and_described() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["a.img?size=32M&create&bs=4096", "memory=mem:1G", "--listen", "127.0.0.1:0"];
    let door = Door::start(dir.path(), &[&args[..], &["--socket", "s"]].concat());
    let exports = &door.ready["exports"];
    assert_eq!(exports[0]["name"], "a.img");
    assert_eq!(exports[0]["block_bytes"], 4096);
    let uris: Vec<&str> =
        exports[1]["uris"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let socket = fs::canonicalize(dir.path()).unwrap().join("s");
    assert_eq!(uris[0], format!("nbd+unix:///memory?socket={}", socket.display()));
    assert!(uris[1].starts_with("nbd://127.0.0.1:") && uris[1].ends_with("/memory"), "{uris:?}");
    let both = [door.uri(0), exports[0]["uris"][1].as_str().unwrap()];
    for uri in both {
        let told = run(dir.path(), "nbdinfo", &["--json", uri]);
        let told: Value = serde_json::from_str(&told).unwrap();
        let export = &told["exports"][0];
        assert_eq!(export["export-size"], 32 << 20, "{told}");
        assert_eq!(export["block_size_minimum"], 4096, "{told}");
        for ability in ["can_multi_conn", "can_flush", "can_fua", "can_zero", "can_trim", "can_df"]
        {
            assert_eq!(export[ability], true, "{ability}: {told}");
        }
        assert_eq!(export["is_read_only"], false);
        assert!(told.to_string().contains("base:allocation"), "{told}");
    }
    let listed = run(dir.path(), "nbdinfo", &["--list", "--json", uris[1]]);
    assert!(listed.contains("\"a.img\"") && listed.contains("\"memory\""), "{listed}");
    assert_eq!(door.stop().code(), Some(0));
    assert!(!socket.exists());
}

#[test]
fn libnbd_agrees() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/clients/libnbd.py");
    let dir = tempfile::tempdir().unwrap();
    let volumes = ["file=a.img?size=64M&create", "memory=mem:64M", "--socket", "s", "--cores", "2"];
    let door = Door::start(dir.path(), &volumes);
    for (one, other) in [(0, 1), (1, 0)] {
        let said = run(dir.path(), script, &[door.uri(one), door.uri(other)]);
        assert!(said.contains("agrees"), "{said}");
    }
    assert_eq!(door.stop().code(), Some(0));
}

#[test]
fn nbdcopy_brings_back_what_it_took_there() {
    let dir = tempfile::tempdir().unwrap();
    let source = image(dir.path(), "source");
    for (cores, volume) in [("1", "v1.img"), ("2", "v2.img"), ("2", "mem:32M")] {
        let uri =
            format!("{volume}{}", if volume.starts_with('v') { "?size=32M&create" } else { "" });
        let door = Door::start(dir.path(), &[&uri, "--socket", "s", "--cores", cores]);
        let copy = ["--connections=4", "--requests=32", "--flush", "source", door.uri(0)];
        run(dir.path(), "nbdcopy", &copy);
        run(dir.path(), "nbdcopy", &["--connections=4", door.uri(0), "back"]);
        same(&source, &dir.path().join("back"));
        assert_eq!(door.stop().code(), Some(0));
        if volume.starts_with('v') {
            let volume = dir.path().join(volume);
            same(&source, &volume);
            let (took, takes) =
                (source.metadata().unwrap().blocks(), volume.metadata().unwrap().blocks());
            assert!(takes <= took + 256, "holes were filled: {took} blocks, now {takes}");
        }
    }
}

/// The file `source` as one export, and as an image in the other: small writes there, and flushes between them.
fn qemu_keeps_images(dir: &Path, raw: &str, qcow: &str) {
    run(dir, "qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "source", raw]);
    run(dir, "qemu-img", &["compare", "-f", "raw", "-F", "raw", "source", raw]);
    run(dir, "qemu-img", &["create", "-f", "qcow2", qcow, "32M"]);
    run(dir, "qemu-img", &["convert", "-n", "-f", "raw", "-O", "qcow2", raw, qcow]);
    is_kept(dir, qcow);
}

/// Whether an image is whole, and is `source`.
fn is_kept(dir: &Path, qcow: &str) {
    run(dir, "qemu-img", &["check", "-f", "qcow2", qcow]);
    run(dir, "qemu-img", &["compare", "-f", "raw", "-F", "qcow2", "source", qcow]);
}

#[test]
fn qemu_keeps_its_images_here() {
    let dir = tempfile::tempdir().unwrap();
    let source = image(dir.path(), "source");
    let args = ["raw=raw.img?size=32M&create", "qcow=qcow.img?size=64M&create&bs=4096"];
    let door = Door::start(dir.path(), &[&args[..], &["--listen", "127.0.0.1:0"]].concat());
    let (raw, qcow) = (door.uri(0), door.uri(1));
    qemu_keeps_images(dir.path(), raw, qcow);
    same(&source, &dir.path().join("raw.img"));
    let map = run(dir.path(), "qemu-img", &["map", "--output=json", "-f", "raw", raw]);
    let map: Value = serde_json::from_str(&map).unwrap();
    let zero = map.as_array().unwrap().iter().filter(|extent| extent["zero"] == true);
    assert!(zero.count() >= 2, "{map}");
    assert_eq!(door.stop().code(), Some(0));
}

/// Both exports are at a target, each by two paths, and what is there is looked at below it.
#[test]
fn qemu_keeps_its_images_at_a_target() {
    let dir = tempfile::tempdir().unwrap();
    let source = image(dir.path(), "source");
    let (any, small) = ("127.0.0.1:0", "qcow.img?size=64M&create&bs=4096");
    let args = ["raw.img?size=32M&create", small, "--listen", any, "--listen", any];
    let daemon = Daemon::start(dir.path(), &args);
    let [one, two] = daemon.listeners[..] else { panic!("{:?}", daemon.listeners) };
    let remote = |name: &str, nsid: u32| {
        format!("{name}=tcp://{one},{two}/{}?ns={nsid}&policy=round-robin", daemon.nqn)
    };
    let exports = [remote("raw", 1), remote("qcow", 2)];
    let args =
        [&*exports[0], &exports[1], "--socket", "door.s", "--control", "c.s", "--cores", "2"];
    let door = Door::start(dir.path(), &args);
    qemu_keeps_images(dir.path(), door.uri(0), door.uri(1));
    assert!(dumped(dir.path(), door.uri(0)) == fs::read(&source).unwrap(), "nbddump differs");
    // Its holes are those of the file at the target.
    let map = run(dir.path(), "qemu-img", &["map", "-U", "--output=json", "-f", "raw", "raw.img"]);
    let map: Value = serde_json::from_str(&map).unwrap();
    let extents = map.as_array().unwrap().iter().map(|extent| {
        let is_hole = extent["data"] == false;
        json!([extent["length"], if is_hole { 3 } else { 0 }])
    });
    let extents: Vec<Value> = extents.collect();
    assert!(extents.len() >= 4, "{map}");
    assert_eq!(told(dir.path(), door.uri(0))["extents"], json!(extents));
    let mut command = nvlane();
    command.args(["paths", "--socket", "c.s", "-o", "json"]).current_dir(dir.path());
    let paths: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    for volume in paths["volumes"].as_array().unwrap() {
        let [one, two] = &volume["paths"].as_array().unwrap()[..] else { panic!("{paths}") };
        let [one, two] = [one, two].map(|path| path["selections"].as_u64().unwrap());
        assert!(one > 20 && two > 20, "{paths}");
    }
    assert_eq!(door.stop().code(), Some(0));
    assert_eq!(daemon.stop("TERM").0.code(), Some(0));
    same(&source, &dir.path().join("raw.img"));
    is_kept(dir.path(), "qcow.img");
}

/// What nbddump shows, as bytes again: lines of an offset and 16 bytes, and a star for lines that are like the one before.
fn dumped(dir: &Path, uri: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    for line in run(dir, "nbddump", &[uri]).lines().filter(|line| *line != "*") {
        let (offset, rest) = line.split_once(':').unwrap();
        let offset = usize::from_str_radix(offset, 16).unwrap();
        let last = bytes.len().saturating_sub(16);
        while bytes.len() < offset {
            bytes.extend_from_within(last..last + 16);
        }
        let digits = rest.split_once('|').unwrap().0.split_whitespace();
        bytes.extend(digits.map(|digits| u8::from_str_radix(digits, 16).unwrap()));
    }
    bytes
}

/// What nbdsh is told of an export: its extents as length and flags, neighbours that are alike as one, and how many
/// bytes in holes are not zero.
fn told(dir: &Path, uri: &str) -> Value {
    const SCRIPT: &str = "
import json
extents = []
def collect(context, offset, entries, error):
    for length, flags in zip(entries[::2], entries[1::2]):
        if extents and extents[-1][1] == flags:
            extents[-1][0] += length
        else:
            extents.append([length, flags])
    return 0
at = 0
while at < h.get_size():
    h.block_status(h.get_size() - at, at, collect)
    at = sum(length for length, flags in extents)
at = nonzero = 0
for length, flags in extents:
    if flags:
        nonzero += length - h.pread(length, at).count(0)
    at += length
print(json.dumps({'extents': extents, 'nonzero': nonzero}))
";
    // It runs whichever python3 is found first; libnbd is with Debian's.
    let args = ["PATH=/usr/bin:/bin", "nbdsh", "--base-allocation", "-u", uri, "-c", SCRIPT];
    serde_json::from_str(&run(dir, "env", &args)).unwrap()
}

#[test]
fn libnbds_programs_see_data_and_holes_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let source = image(dir.path(), "source");
    let door = Door::start(dir.path(), &["source", "--socket", "s"]);
    let uri = door.uri(0);
    const M: u64 = 1 << 20;
    let wanted = json!([[5 * M, 0], [11 * M, 3], [8 * M, 0], [8 * M, 3]]);
    assert_eq!(told(dir.path(), uri), json!({"extents": wanted, "nonzero": 0}));
    let map = run(dir.path(), "nbdinfo", &["--map", "--json", uri]);
    let map: Value = serde_json::from_str(&map).unwrap();
    let extents = map.as_array().unwrap().iter().map(|it| json!([it["length"], it["type"]]));
    assert_eq!(extents.collect::<Value>(), wanted, "{map}");
    assert!(dumped(dir.path(), uri) == fs::read(&source).unwrap(), "nbddump differs");
    assert_eq!(door.stop().code(), Some(0));
}

/// A verifying load on `uri`, of several jobs that each have a connection and a range.
fn fio(uri: &str, more: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["60", "fio", "--name=load", "--ioengine=nbd", "--uri", uri]);
    command.args(["--rw=randwrite", "--bsrange=512-64k", "--bs_unaligned=0", "--iodepth=32"]);
    command.args(["--numjobs=4", "--size=8M", "--offset_increment=8M", "--verify=crc32c"]);
    command.args(["--verify_fatal=1", "--verify_state_save=0", "--end_fsync=1"]);
    command.arg("--output-format=terse").args(more);
    command.stdout(Stdio::null());
    command
}

#[test]
fn fio_verifies_on_several_connections() {
    let dir = tempfile::tempdir().unwrap();
    for volume in ["a.img?size=32M&create", "delay:1ms(mem:32M)"] {
        let door = Door::start(dir.path(), &[volume, "--socket", "s", "--cores", "2"]);
        let status = fio(door.uri(0), &[]).status().unwrap();
        assert!(status.success(), "{volume}: {status}");
        assert_eq!(door.stop().code(), Some(0));
    }
}

#[test]
fn a_killed_client_disturbs_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let source = image(dir.path(), "source");
    let args = ["a=mem:32M", "b=delay:1ms(mem:32M)", "--socket", "s", "--cores", "2"];
    let door = Door::start(dir.path(), &args);
    run(dir.path(), "nbdcopy", &["source", door.uri(0)]);
    for round in 0..5 {
        // The client itself, not `timeout`, is what dies.
        let load = fio(door.uri(1), &["--time_based", "--runtime=30", "--thread"]);
        let args: Vec<_> = load.get_args().skip(2).map(ToOwned::to_owned).collect();
        let mut client = Command::new("fio")
            .args(args)
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(200 + 50 * round));
        client.kill().unwrap();
        client.wait().unwrap();
        run(dir.path(), "nbdcopy", &[door.uri(0), "back"]);
        same(&source, &dir.path().join("back"));
    }
    let status = fio(door.uri(1), &[]).status().unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(door.stop().code(), Some(0));
}

#[test]
fn stopping_under_load_is_orderly_and_a_killed_servers_socket_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let volume = ["a.img?size=32M&create", "--socket", "s"];
    let door = Door::start(dir.path(), &volume);
    assert!(refused(dir.path(), &["mem:1M", "--socket", "s"]).contains("another server"));
    let mut load = fio(door.uri(0), &["--time_based", "--runtime=30"]);
    let mut load = load.stderr(Stdio::null()).spawn().unwrap();
    let written = || dir.path().join("a.img").metadata().unwrap().blocks() > 0;
    eventually("the load has begun", written);
    assert_eq!(door.stop().code(), Some(0));
    assert!(!wait(&mut load).success(), "it was hung up on");
    assert!(!dir.path().join("s").exists());

    let mut door = Door::start(dir.path(), &volume);
    door.child.kill().unwrap();
    door.child.wait().unwrap();
    assert!(dir.path().join("s").exists());
    wait_for_lock(&dir.path().join("a.img"));
    let door = Door::start(dir.path(), &volume);
    run(dir.path(), "nbdinfo", &["--size", door.uri(0)]);
    assert_eq!(door.stop().code(), Some(0));
}

#[test]
fn a_remote_volume_is_served_as_a_local_one_is() {
    let dir = tempfile::tempdir().unwrap();
    let source = image(dir.path(), "source");
    let daemon = Daemon::start(dir.path(), &["mem:32M"]);
    let remote = format!("tcp://{}/{}?ns=1", daemon.listeners[0], daemon.nqn);
    let door = Door::start(dir.path(), &[&remote, "--socket", "door.s", "--cores", "2"]);
    run(dir.path(), "nbdcopy", &["--connections=4", "--flush", "source", door.uri(0)]);
    run(dir.path(), "nbdcopy", &["--connections=4", door.uri(0), "back"]);
    same(&source, &dir.path().join("back"));
    let status = fio(door.uri(0), &[]).status().unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(door.stop().code(), Some(0));
    assert_eq!(daemon.stop("TERM").0.code(), Some(0));
}

/// What a killed server has sent by a path that does not answer may come as late as the target's keep alive ends.
#[test]
fn what_a_killed_server_has_sent_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &["mem:1M"]);
    let options = "ns=1&keep_alive_tmo=1s&quiesce_time=1s";
    let remote = format!("tcp://{},127.0.0.1:1/{}?{options}", daemon.listeners[0], daemon.nqn);
    let args = [&remote, "--socket", "door.s"];
    let mut door = Door::start(dir.path(), &args);
    door.child.kill().unwrap();
    door.child.wait().unwrap();
    let begun = Instant::now();
    let door = Door::start(dir.path(), &args);
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    run(dir.path(), "nbdinfo", &["--size", door.uri(0)]);
    assert_eq!(door.stop().code(), Some(0));
    assert_eq!(daemon.stop("TERM").0.code(), Some(0));
}

#[test]
fn a_read_only_volume_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let source = image(dir.path(), "source");
    let before = fs::read(&source).unwrap();
    let door = Door::start(dir.path(), &["source", "--read-only", "--socket", "s"]);
    assert_eq!(door.ready["exports"][0]["read_only"], true);
    let told = run(dir.path(), "nbdinfo", &[door.uri(0)]);
    assert!(told.contains("is_read_only: true"), "{told}");
    let status = fio(door.uri(0), &[]).stderr(Stdio::null()).status().unwrap();
    assert!(!status.success());
    assert_eq!(door.stop().code(), Some(0));
    assert!(fs::read(&source).unwrap() == before);
}

#[test]
fn wrong_command_lines_cost_one_line() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "mine").unwrap();
    for (args, part) in [
        (&["a=mem:1M", "a=mem:1M"][..], "two exports are called a"),
        (&["mem:1M", "--socket", "file"], "no socket"),
        (&["mem:1M", "--socket", "no/such/place"], "no/such/place"),
        (&["none.img"], "none.img"),
        (&["mem:1M", "--listen", "nowhere:x"], "nowhere"),
        (&[], "VOLUME"),
    ] {
        let said = refused(dir.path(), args);
        assert!(said.contains(part), "{args:?}: {said}");
    }
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"mine");
}

#[test]
fn paths_of_exports_are_watched_and_tuned_at_the_control_socket() {
    let dir = tempfile::tempdir().unwrap();
    let free = "127.0.0.1:0";
    let daemon = Daemon::start(dir.path(), &["mem:16M", "--listen", free, "--listen", free]);
    let [one, two] = daemon.listeners[..] else { panic!("{:?}", daemon.listeners) };
    let remote = format!("far=tcp://{one},{two}/{}?ns=1&policy=round-robin", daemon.nqn);
    let args = ["near=mem:1M", &remote, "--socket", "a.sock", "--control", "c.sock"];
    let door = Door::start(dir.path(), &args);
    let ask = |args: &[&str]| {
        let mut command = nvlane();
        command.args(args).args(["--socket", "c.sock"]).current_dir(dir.path());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), String::from_utf8(output.stdout).unwrap(), said)
    };
    // Reads so far, by path.
    let reads = || {
        let (_, text, said) = ask(&["paths", "-o", "json"]);
        let told: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{said}"));
        let volumes = told["volumes"].as_array().unwrap();
        assert_eq!(volumes.len(), 1, "one has paths: {told}");
        assert_eq!((&volumes[0]["nqn"], &volumes[0]["nsid"]), (&"nbd:far".into(), &2.into()));
        let paths = volumes[0]["paths"].as_array().unwrap();
        let sent = |path: &Value| path["selections"].as_u64().unwrap_or_else(|| panic!("{path}"));
        let live = paths.iter().all(|path| path["access"] == "optimized");
        (
            volumes[0]["policy"].as_str().unwrap().to_owned(),
            [sent(&paths[0]), sent(&paths[1])],
            live,
        )
    };
    // An export is ready when one of its paths is.
    eventually("both paths", || reads().2);
    assert_eq!(reads().0, "round-robin");
    let grown = || {
        let before = reads().1;
        run(dir.path(), "nbdcopy", &["--request-size=4096", door.uri(1), "null:"]);
        let after = reads().1;
        [after[0] - before[0], after[1] - before[1]]
    };
    let in_turn = |[one, other]: [u64; 2]| one > 1000 && one.abs_diff(other) < 200;
    // What all cores together can do is told, and one of them may have one path for a moment yet; then it has both.
    eventually("each core has both paths", || in_turn(grown()));
    let again = grown();
    assert!(in_turn(again), "taken in turn: {again:?}");

    let (done, text, said) = ask(&["ctl", "volume", "tune", "2", "policy=numa"]);
    assert!(done && text.starts_with("namespace 2 of nbd:far: tcp://"), "{text}{said}");
    let (policy, before, _) = reads();
    assert_eq!(policy, "numa");
    run(dir.path(), "nbdcopy", &["--request-size=4096", door.uri(1), "null:"]);
    let (_, after, _) = reads();
    let mut grown = [after[0] - before[0], after[1] - before[1]];
    grown.sort_unstable();
    assert!(grown[0] < 200 && grown[1] > 2000, "by one of them: {grown:?}");

    let refused = [("1", "policy=numa", ""), ("3", "policy=numa", "no export number 3")];
    for (number, setting, words) in refused {
        let (done, _, said) = ask(&["ctl", "volume", "tune", number, setting]);
        assert!(!done && said.contains(words), "{said}");
    }
    assert!(door.stop().success());
}

/// As at the daemon's.
#[test]
fn calls_at_the_control_socket_need_no_parameters_and_take_no_unknown_ones() {
    let dir = tempfile::tempdir().unwrap();
    let door = Door::start(dir.path(), &["mem:1M", "--socket", "a.sock", "--control", "c.sock"]);
    for method in ["stats", "volume_list", "volume_maps", "volume_paths"] {
        let call = |params| ask(&dir.path().join("c.sock"), method, params).unwrap();
        let answer = call(Value::Null);
        assert!(answer["error"].is_null() && !answer["result"].is_null(), "{method}: {answer}");
        assert_eq!(call(json!({"all": true}))["error"]["code"], -32602, "{method}");
    }
    // Who cannot have it listens nowhere, not even for a moment: what is wrong there is not come to.
    let args = ["mem:1M", "--socket", "missing/a.sock", "--control", "c.sock"];
    let said = refused(dir.path(), &args);
    assert!(said.contains("c.sock") && !said.contains("a.sock"), "{said}");
    assert!(door.stop().success());
}

#[test]
fn programs_of_exports_are_asked_and_replaced_at_the_control_socket() {
    let dir = tempfile::tempdir().unwrap();
    let object = |name: &str| format!("{}/../../bpf/{name}.bpf.o", env!("CARGO_MANIFEST_DIR"));
    let volume = format!("bpf:{}(mem:1M)", object("statistics"));
    let door = Door::start(
        dir.path(),
        &[
            "plain=mem:1M",
            &format!("counted={volume}"),
            "--socket",
            "a.sock",
            "--control",
            "c.sock",
        ],
    );
    run(dir.path(), "nbdcopy", &[door.uri(1), "null:"]);
    let bpf = |args: &[&str]| {
        let mut command = nvlane();
        command.arg("bpf").args(args).args(["--socket", "c.sock"]).current_dir(dir.path());
        command.output().unwrap()
    };
    let told = bpf(&["stat"]);
    let text = String::from_utf8_lossy(&told.stdout);
    assert!(text.starts_with("nbd:counted namespace 2: bpf:"), "{text}");
    assert!(text.contains("operations, per-core array of 16 entries\n      2: "), "{text}");
    let replaced = bpf(&["replace", "2", &object("null")]);
    let text = String::from_utf8_lossy(&replaced.stdout);
    assert!(text.contains("map operations is gone with the old program"), "{text}");
    let told = bpf(&["stat", "-o", "json"]);
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert!(told[0]["programs"][0]["name"].as_str().unwrap().ends_with("null.bpf.o"), "{told}");
    for (number, words) in [("1", "has no program"), ("3", "no export number 3")] {
        let refused = bpf(&["replace", number, &object("null")]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains(words), "{said}");
    }
    assert!(door.stop().success());
    assert!(!dir.path().join("c.sock").exists(), "nobody answers there any more");
}
