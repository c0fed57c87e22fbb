//! Keys of hosts: how they are made, how a daemon is told of them, and that nobody gets by without.

use crate::control::ctl;
use crate::daemon::{ANYWHERE, Daemon, eventually, nvlane};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Output, Stdio};

pub const NQN: &str = "nqn.2026-11.com.example:a";
pub const HOST: &str = "nqn.2014-08.org.example:host1";
pub const OTHER: &str = "nqn.2014-08.org.example:host2";

/// `nvlane ARGS` in `dir`: exit status, standard output, standard error.
pub fn run(dir: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = nvlane().args(args).current_dir(dir).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

pub fn succeeds(dir: &Path, args: &[&str]) -> String {
    let (code, stdout, stderr) = run(dir, args);
    assert_eq!((code, &*stderr), (Some(0), ""), "{args:?}");
    stdout
}

/// What `nvlane ARGS` says, which fails with one line.
pub fn fails(dir: &Path, args: &[&str]) -> String {
    let (code, _, stderr) = run(dir, args);
    assert_eq!((code, stderr.lines().count()), (Some(1), 1), "{args:?}: {stderr}");
    stderr
}

pub fn serve<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&["serve", "--data-dir", "data", "--socket", "s"], args].concat()
}

/// A new key in `dir`, and its text.
pub fn key(dir: &Path, name: &str) -> String {
    succeeds(dir, &["key", "new", name]);
    fs::read_to_string(dir.join(name)).unwrap().trim().to_owned()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// `nvlane id-ctrl` as that host.
fn asks(dir: &Path, daemon: &Daemon, host: &str) -> (Option<i32>, String, String) {
    let (address, port) =
        (daemon.listeners[0].ip().to_string(), daemon.listeners[0].port().to_string());
    run(dir, &["id-ctrl", "-a", &address, "-s", &port, "-n", NQN, "-q", host])
}

pub fn is_let_in(dir: &Path, daemon: &Daemon, host: &str) -> bool {
    asks(dir, daemon, host).0 == Some(0)
}

/// What is configured of hosts that have to authenticate.
pub fn authentication(daemon: &Daemon) -> Value {
    daemon.call("host_list", json!({}))[0]["authentication"].clone()
}

pub fn text(more: &str) -> String {
    format!(
        "listeners = [\"{ANYWHERE}\"]\n[[subsystems]]\nnqn = \"{NQN}\"\n{more}\n[[subsystems.namespaces]]\nvolume = \"mem:1M\"\n"
    )
}

#[test]
fn a_new_key_is_its_owners_and_replaces_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let first = key(dir, "a.key");
    assert!(first.starts_with("DHHC-1:00:") && first.ends_with(':'), "{first}");
    assert_eq!(mode(&dir.join("a.key")), 0o600);
    let said = fails(dir, &["key", "new", "a.key"]);
    assert!(said.contains("a.key") && said.contains("File exists"), "{said}");
    assert_eq!(fs::read_to_string(dir.join("a.key")).unwrap().trim(), first);
    assert_ne!(key(dir, "b.key"), first);
    for (hash, id, bytes) in
        [("none", 0, 32), ("sha256", 1, 32), ("sha384", 2, 48), ("sha512", 3, 64)]
    {
        let text = succeeds(dir, &["key", "new", "--hash", hash]);
        assert!(text.starts_with(&format!("DHHC-1:0{id}:")) && text.ends_with(":\n"), "{text}");
        let name = format!("{hash}.key");
        fs::write(dir.join(&name), text).unwrap();
        fs::set_permissions(dir.join(&name), Permissions::from_mode(0o640)).unwrap();
        let told: Value =
            serde_json::from_str(&succeeds(dir, &["key", "check", &name, "-o", "json"])).unwrap();
        let known = if hash == "none" { Value::Null } else { hash.into() };
        let wanted = json!({"schema_version": 1, "file": name, "kind": "dhchap", "bytes": bytes, "hash": known, "next": null, "exposed": false});
        assert_eq!(told, wanted);
    }
}

#[test]
fn a_check_tells_what_a_key_is_and_does_not_show_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let secret = key(dir, "a.key");
    let said = succeeds(dir, &["key", "check", "a.key"]);
    assert_eq!(said, "a.key: a key of 32 bytes, used as it is\n");
    fs::set_permissions(dir.join("a.key"), Permissions::from_mode(0o644)).unwrap();
    let said = succeeds(dir, &["key", "check", "a.key"]);
    assert!(said.contains("note: a.key: every user") && !said.contains(&secret[10..]), "{said}");
    assert!(succeeds(dir, &["key", "check", "a.key", "-o", "json"]).contains("\"exposed\": true"));

    let mut damaged = secret.clone();
    damaged.replace_range(12..13, if &secret[12..13] == "A" { "B" } else { "A" });
    for (text, part) in [(&*damaged, "checksum"), ("", "DHHC-1"), ("DHHC-1:04:AAAA:", "DHHC-1")] {
        fs::write(dir.join("a.key"), text).unwrap();
        let said = fails(dir, &["key", "check", "a.key"]);
        assert!(said.contains("a.key") && said.contains(part), "{said}");
        assert!(!said.contains(&secret[20..30]), "{said}");
    }
    assert!(fails(dir, &["key", "check", "b.key"]).contains("No such file"));
}

#[test]
fn a_host_with_a_key_on_the_command_line_has_to_prove_who_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let secrets = [key(dir, "h.key"), key(dir, "c.key")];
    let (host, controller) = (format!("{HOST}=h.key"), format!("{HOST}=c.key"));
    let args = ["mem:1M", "--nqn", NQN, "--host-key", &host, "--allow-host", OTHER];
    let daemon = Daemon::start(dir, &[&args[..], &["--host-ctrl-key", &controller]].concat());
    let path = |name: &str| dir.join(name).display().to_string();
    let wanted =
        json!({"host": HOST, "dhchap_key": path("h.key"), "dhchap_ctrl_key": path("c.key")});
    assert_eq!(authentication(&daemon), json!([wanted]));
    let subsystem = daemon.call("config_get", json!({}))["subsystems"][0].clone();
    assert_eq!(
        (&subsystem["allow_any_host"], &subsystem["allowed_hosts"]),
        (&json!(false), &json!([OTHER, HOST]))
    );
    let list = ctl(&daemon, &["host", "list"]);
    let line = format!("  {HOST}: 0 controller(s), authenticates: key {}", path("h.key"));
    assert!(
        list.contains(&line) && list.contains(&format!("  {OTHER}: 0 controller(s)\n")),
        "{list}"
    );

    let (code, stdout, stderr) = asks(dir, &daemon, HOST);
    assert_eq!((code, &*stdout, stderr.lines().count()), (Some(1), "", 1), "{stderr}");
    assert!(is_let_in(dir, &daemon, OTHER), "it has no key");
    let (status, log) = daemon.stop("TERM");
    assert!(status.success() && !log.contains("every user"), "{log}");
    for secret in secrets {
        assert!(!log.contains(&secret[10..]), "{log}");
    }
}

#[test]
fn mistakes_on_the_command_line_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let secret = key(dir, "h.key");
    fs::write(dir.join("bad.key"), "secret").unwrap();
    let args = ["mem:1M", "--nqn", NQN, "--listen", ANYWHERE];
    let says = |more: &[&str]| {
        let said = fails(dir, &serve(&[&args[..], more].concat()));
        assert!(!said.contains(&secret[10..]), "{said}");
        // But this machine's id, where it has none of its own.
        let left = fs::read_dir(dir.join("data")).into_iter().flatten();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| name == "machine-id"), "left behind: {left:?}");
        said
    };
    let of = |file: &str| format!("{HOST}={file}");
    for (more, parts) in [
        (vec!["--host-key", &of("none.key")], vec![HOST, "none.key", "No such file"]),
        (vec!["--host-key", &of("bad.key")], vec![HOST, "bad.key", "DHHC-1"]),
        (vec!["--host-key", &of(&secret)], vec!["key itself"]),
        (vec!["--host-key", HOST], vec!["NQN=FILE"]),
        (vec!["--host-key", &of("")], vec!["NQN=FILE"]),
        (vec!["--host-key", "*=h.key"], vec!["any host"]),
        (vec!["--host-key", &of("h.key"), "--host-key", &of("h.key")], vec!["twice", HOST]),
        (vec!["--host-ctrl-key", &of("h.key")], vec!["--host-key"]),
        (
            vec!["--host-key", &of("h.key"), "--host-ctrl-key", &format!("{OTHER}=h.key")],
            vec![OTHER, "--host-key was not"],
        ),
        (
            vec!["--host-key", &of("h.key"), "--host-ctrl-key", &of("none.key")],
            vec![HOST, "none.key"],
        ),
    ] {
        let said = says(&more);
        assert!(parts.iter().all(|part| said.contains(part)), "{more:?}: {said}");
    }
}

#[test]
fn keys_in_a_file_are_checked_before_anybody_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let entry = |host: &str, file: &str| {
        let file = dir.join(file).display().to_string();
        format!(
            "allowed_hosts = [\"{HOST}\"]\n[[subsystems.authentication]]\nhost = \"{host}\"\ndhchap_key = \"{file}\"\ndhchap_dhgroup = \"ffdhe2048\"\n"
        )
    };
    let write = |more: &str| fs::write(dir.join("nvlane.toml"), text(more)).unwrap();
    let check = ["config", "check", "nvlane.toml"];
    let start = serve(&["--config", "nvlane.toml"]);
    // A name that is mistyped; and a key that is not there, or none any more.
    write(&entry(OTHER, "h.key"));
    for args in [&check[..], &start] {
        let said = fails(dir, args);
        assert!(said.contains(OTHER) && said.contains("allowed_hosts"), "{said}");
    }
    write(&entry(HOST, "h.key"));
    for args in [&check[..], &start] {
        let said = fails(dir, args);
        assert!(said.contains("h.key") && said.contains("No such file"), "{said}");
    }
    let secret = key(dir, "h.key");
    assert!(succeeds(dir, &check).contains("can be served"));
    let daemon = Daemon::start(dir, &start[5..]);
    assert_eq!(authentication(&daemon)[0]["dhchap_dhgroup"], "ffdhe2048");
    assert!(!is_let_in(dir, &daemon, HOST));
    let (_, log) = daemon.stop("TERM");
    assert!(!log.contains("h.key"), "{log}");

    fs::set_permissions(dir.join("h.key"), Permissions::from_mode(0o604)).unwrap();
    assert!(succeeds(dir, &check).contains("h.key: every user of this machine may read"));
    let (_, log) = Daemon::start(dir, &start[5..]).stop("TERM");
    let warned = |line: &&str| line.contains("WARN") && line.contains("h.key: every user");
    assert_eq!(log.lines().filter(warned).count(), 1, "{log}");
    assert!(!log.contains(&secret[10..]), "{log}");
    fs::write(dir.join("h.key"), &secret[..30]).unwrap();
    for args in [&check[..], &start] {
        let said = fails(dir, args);
        assert!(said.contains("h.key") && !said.contains(&secret[10..30]), "{said}");
    }
}

#[test]
fn a_key_that_is_set_later_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("nvlane.toml"), text(&format!("allowed_hosts = [\"{HOST}\"]"))).unwrap();
    let args = ["--config", "nvlane.toml"];
    let daemon = Daemon::start(dir, &args);
    assert_eq!(authentication(&daemon), json!([]));
    assert!(is_let_in(dir, &daemon, HOST));
    let secret = key(dir, "h.key");
    let file = dir.join("h.key").display().to_string();
    let set = |daemon: &Daemon, more: &[&str]| {
        ctl(daemon, &[&["host", "set-key", HOST, "--dhchap-key", &file], more].concat())
    };
    let said = set(&daemon, &["--dhchap-hash", "hmac(sha384)", "--dhchap-dhgroup", "ffdhe3072"]);
    let told = format!("{HOST} has to prove who it is, from its next connection to {NQN} on\n");
    assert!(said.starts_with(&told) && said.contains("put it there as well"), "{said}");
    let wanted = json!([{"host": HOST, "dhchap_key": file, "dhchap_hash": "sha384", "dhchap_dhgroup": "ffdhe3072"}]);
    assert_eq!(authentication(&daemon), wanted);
    assert!(!is_let_in(dir, &daemon, HOST));
    daemon.kill();

    let said = succeeds(dir, &["config", "check", "nvlane.toml", "--data-dir", "data"]);
    assert!(said.contains(", 1 change(s)"), "{said}");
    let state = fs::read_dir(dir.join("data")).unwrap().map(|it| it.unwrap().path());
    for path in state.filter(|path| path.is_file()) {
        assert!(!fs::read_to_string(&path).unwrap().contains(&secret[10..]), "{}", path.display());
    }
    let daemon = Daemon::start(dir, &args);
    assert_eq!(authentication(&daemon), wanted);
    assert!(!is_let_in(dir, &daemon, HOST));
    // Whoever is allowed again has what it had to prove.
    ctl(&daemon, &["host", "disallow", HOST]);
    // Who was refused may still be there for a moment.
    let wanted_line = format!("{HOST}: 0 controller(s), not listed, authenticates");
    eventually(&wanted_line, || ctl(&daemon, &["host", "list"]).contains(&wanted_line));
    assert!(set(&daemon, &[]).contains("note: it may not connect yet"), "it is not listed");
    daemon.kill();
    let daemon = Daemon::start(dir, &args);
    ctl(&daemon, &["host", "allow", HOST]);
    assert!(!is_let_in(dir, &daemon, HOST));

    ctl(&daemon, &["host", "clear-key", HOST]);
    assert_eq!(authentication(&daemon), json!([]));
    assert!(is_let_in(dir, &daemon, HOST));
    assert_eq!(daemon.refuse("host_clear_key", json!({"host": HOST})), -32001);
    set(&daemon, &[]);
    daemon.kill();
    // It is not let in by forgetting that it has a key, nor by a file that was edited for something else.
    let edited = format!("allowed_hosts = [\"{HOST}\"]");
    let other_cores = |more: &str| format!("cores = 1\n{}", text(more));
    fs::write(dir.join("nvlane.toml"), other_cores(&edited)).unwrap();
    let said = fails(dir, &serve(&args));
    assert!(said.contains(HOST) && said.contains("[[subsystems.authentication]]"), "{said}");
    let said = fails(dir, &["config", "check", "nvlane.toml", "--data-dir", "data"]);
    assert!(said.contains(HOST) && said.contains("[[subsystems.authentication]]"), "{said}");
    let entry =
        format!("[[subsystems.authentication]]\nhost = \"{HOST}\"\ndhchap_key = \"{file}\"");
    fs::write(dir.join("nvlane.toml"), other_cores(&format!("{edited}\n{entry}"))).unwrap();
    let daemon = Daemon::start(dir, &args);
    assert!(!is_let_in(dir, &daemon, HOST));
    daemon.kill();
    fs::remove_file(dir.join("h.key")).unwrap();
    let said = fails(dir, &serve(&args));
    assert!(
        said.contains(HOST) && said.contains("h.key") && said.contains("No such file"),
        "{said}"
    );
}

#[test]
fn keys_that_cannot_be_set_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let secret = key(dir, "h.key");
    let file = dir.join("h.key").display().to_string();
    let daemon = Daemon::start(dir, &["mem:1M", "--nqn", NQN]);
    let params = json!({"host": HOST, "dhchap_key": file});
    for (field, value, code) in [
        ("dhchap_key", json!("h.key"), -32602),
        ("dhchap_key", json!("/does/not/exist"), -32602),
        ("dhchap_key", json!(secret), -32602),
        ("dhchap_ctrl_key", json!("/does/not/exist"), -32602),
        ("dhchap_hash", json!("md5"), -32602),
        ("dhchap_dhgroup", json!("ffdhe1024"), -32602),
        ("host", json!("*"), -32602),
        ("host", json!(""), -32602),
        ("nqn", json!("nqn.x"), -32001),
        ("secret", json!(secret), -32602),
    ] {
        let mut params = params.clone();
        params[field] = value;
        assert_eq!(daemon.refuse("host_set_key", params), code, "{field}");
    }
    assert_eq!(authentication(&daemon), json!([]));
    // Any host may connect, and so one by another name.
    let said = ctl(&daemon, &["host", "set-key", HOST, "--dhchap-key", &file]);
    assert!(said.contains("note: ") && said.contains("any host may connect"), "{said}");
    assert!(!is_let_in(dir, &daemon, HOST) && is_let_in(dir, &daemon, OTHER));
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let said = ctl(&daemon, &["host", "set-key", HOST, "--dhchap-key", &file]);
    assert!(said.contains("h.key: every user of this machine"), "{said}");
    let args = ["ctl", "--socket", "s", "host", "set-key", HOST, "--dhchap-key"];
    let said = fails(dir, &[&args[..], &[&*secret]].concat());
    assert!(said.contains("key itself") && !said.contains(&secret[10..]), "{said}");
    let (_, log) = daemon.stop("TERM");
    assert!(!log.contains(&secret[10..]), "{log}");
}

/// Reads the volume as HOST, with these keys.
fn cat(dir: &Path, daemon: &Daemon, keys: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let keys = keys.iter().map(|(option, file)| format!("&{option}={}", dir.join(file).display()));
    let keys: String = keys.collect();
    let volume = format!("tcp://{}/{NQN}?ns=1&hostnqn={HOST}{keys}", daemon.listeners[0]);
    run(dir, &["cat", &volume, "--length", "9"])
}

#[test]
fn who_has_the_key_is_let_in_and_a_new_one_holds_from_the_next_connection_on() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for name in ["h.key", "c.key", "other.key"] {
        key(dir, name);
    }
    fs::write(dir.join("a.img"), [b'a'; 1 << 20]).unwrap();
    let (host, controller) = (format!("{HOST}=h.key"), format!("{HOST}=c.key"));
    let args = ["--host-key", &host, "--host-ctrl-key", &controller];
    let daemon = Daemon::start(dir, &[&["a.img", "--nqn", NQN], &args[..]].concat());
    let (right, both) = ([("dhchap_key", "h.key")], |controller| {
        [("dhchap_key", "h.key"), ("dhchap_ctrl_key", controller)]
    });
    let ok = (Some(0), "aaaaaaaaa".to_owned(), String::new());
    assert_eq!(cat(dir, &daemon, &right), ok);
    assert_eq!(cat(dir, &daemon, &both("c.key")), ok);
    for keys in [&[][..], &[("dhchap_key", "other.key")], &both("other.key")] {
        let (code, stdout, stderr) = cat(dir, &daemon, keys);
        assert_eq!((code, &*stdout), (Some(1), ""), "{keys:?}: {stderr}");
    }

    // Another one in the same file holds once it is said, for connections that begin then.
    let admin = Session::begin(dir, &daemon);
    fs::copy(dir.join("h.key"), dir.join("old.key")).unwrap();
    fs::copy(dir.join("other.key"), dir.join("h.key")).unwrap();
    let old_key = [("dhchap_key", "old.key")];
    assert_eq!(cat(dir, &daemon, &old_key), ok, "nobody has said it");
    let file = dir.join("h.key").display().to_string();
    ctl(&daemon, &["host", "set-key", HOST, "--dhchap-key", &file]);
    assert_eq!(cat(dir, &daemon, &right), ok);
    assert_eq!(cat(dir, &daemon, &old_key).0, Some(1));
    assert_eq!(cat(dir, &daemon, &both("c.key")).0, Some(1), "the subsystem has no key any more");
    admin.is_there(&daemon);
    ctl(&daemon, &["host", "disallow", HOST]);
    eventually("the old connection ends", || {
        daemon.call("controller_list", json!({})) == json!([])
    });
}

#[test]
fn while_a_key_is_replaced_either_will_do() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let names = ["old.key", "new.key", "other.key", "c.key"];
    let texts = names.map(|name| key(dir, name));
    let [old, new, other, own] = texts.each_ref().map(String::as_str);
    let file = |name: &str, keys: &[&str]| {
        fs::write(dir.join(name), keys.join("\n")).unwrap();
        fs::set_permissions(dir.join(name), Permissions::from_mode(0o600)).unwrap();
    };
    file("h.key", &[old, new]);
    let said = succeeds(dir, &["key", "check", "h.key"]);
    assert!(said.lines().nth(1).unwrap().starts_with("and another, of 32 bytes"), "{said}");
    let told = succeeds(dir, &["key", "check", "h.key", "-o", "json"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["next"], json!({"bytes": 32, "hash": null}));

    fs::write(dir.join("a.img"), [b'a'; 1 << 20]).unwrap();
    let (host, controller) = (format!("{HOST}=h.key"), format!("{HOST}=c.key"));
    let args = ["--host-key", &host, "--host-ctrl-key", &controller];
    let daemon = Daemon::start(dir, &[&["a.img", "--nqn", NQN], &args[..]].concat());
    let code = |file: &str| cat(dir, &daemon, &[("dhchap_key", file)]).0;
    assert_eq!(["old.key", "new.key", "other.key"].map(code), [Some(0), Some(0), Some(1)]);
    // Who has two proves itself by the first, and has the other end do so by either.
    file("both.key", &[new, other]);
    file("neither.key", &[other, new]);
    assert_eq!(["both.key", "neither.key"].map(code), [Some(0), Some(1)]);
    for (keys, expected) in [([other, own], 0), ([own, other], 0), ([other, new], 1)] {
        file("controllers.key", &keys);
        let keys = [("dhchap_key", "old.key"), ("dhchap_ctrl_key", "controllers.key")];
        assert_eq!(cat(dir, &daemon, &keys).0, Some(expected));
    }

    let path = dir.join("h.key").display().to_string();
    let set = ["host", "set-key", HOST, "--dhchap-key", &path];
    let said = ctl(&daemon, &set);
    assert!(said.contains(&format!("note: {path} holds two keys, and either will do")), "{said}");
    assert!(said.contains(&format!("note: {HOST} had a dhchap_ctrl_key before")), "{said}");
    file("h.key", &[new]);
    assert_eq!(code("old.key"), Some(0), "nobody has said it");
    let said = ctl(&daemon, &set);
    assert!(!said.contains("two keys") && !said.contains(" before, and"), "{said}");
    assert_eq!(["old.key", "new.key"].map(code), [Some(1), Some(0)]);
    // A third is no replacement, and changes nothing.
    file("h.key", &[old, new, other]);
    let params = json!({"host": HOST, "dhchap_key": path});
    assert_eq!(daemon.refuse("host_set_key", params), -32602);
    assert!(fails(dir, &["key", "check", "h.key"]).contains("more than 2 keys"));
    assert_eq!(["old.key", "new.key"].map(code), [Some(1), Some(0)]);
    let (_, log) = daemon.stop("TERM");
    let told = |line: &&str| line.contains("WARN") && line.contains("h.key holds two keys");
    assert_eq!(log.lines().filter(told).count(), 1, "at its start: {log}");

    // A configuration is told the same.
    file("h.key", &[old, new]);
    let entry = format!("host = \"{HOST}\"\ndhchap_key = \"{path}\"");
    let hosts = format!("allowed_hosts = [\"{HOST}\"]\n[[subsystems.authentication]]\n{entry}");
    fs::write(dir.join("nvlane.toml"), text(&hosts)).unwrap();
    let said = succeeds(dir, &["config", "check", "nvlane.toml"]);
    assert!(said.contains(&format!("note: {path} holds two keys")), "{said}");
}

/// A host that stays connected, with the key that it has at the beginning.
struct Session(Child);

impl Session {
    fn begin(dir: &Path, daemon: &Daemon) -> Session {
        let key = dir.join("h.key").display().to_string();
        let volume =
            format!("tcp://{}/{NQN}?ns=1&hostnqn={HOST}&dhchap_key={key}", daemon.listeners[0]);
        let mut command = nvlane();
        command.args(["nbd", &volume, "--socket", "nbd"]).current_dir(dir);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Its socket is there once it has the volume. A controller would not do: one of those who came before may still go.
        let session = Session(child);
        eventually("a connection", || dir.join("nbd").exists());
        session
    }

    /// It is the only one, and has not been made anew.
    fn is_there(&self, daemon: &Daemon) {
        eventually("others are gone", || {
            let list = daemon.call("controller_list", json!({}));
            list.as_array().unwrap().len() == 1
        });
        assert_eq!(daemon.call("controller_list", json!({}))[0]["state"], "enabled");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file of nvmetcli's in which a host has keys.
fn saved(dir: &Path, key: &str) {
    let saved = json!({
        "hosts": [{"nqn": HOST, "dhchap_key": key, "dhchap_ctrl_key": key, "dhchap_hash": "hmac(sha512)", "dhchap_dhgroup": "null"}],
        "ports": [{"portid": 1, "subsystems": [NQN], "addr": {"trtype": "tcp", "adrfam": "ipv4", "traddr": "127.0.0.2", "trsvcid": "0"}}],
        "subsystems": [{"nqn": NQN, "attr": {"allow_any_host": "0", "serial": "1"}, "allowed_hosts": [HOST], "namespaces": []}],
    });
    fs::write(dir.join("config.json"), saved.to_string()).unwrap();
}

#[test]
fn an_import_keeps_the_keys() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let secret = succeeds(dir, &["key", "new"]).trim().to_owned();
    saved(dir, &secret);
    let import = ["config", "import", "config.json"];
    let said = fails(dir, &import);
    assert!(said.contains(HOST) && said.contains("--keys-dir"), "{said}");
    assert!(fails(dir, &[&import[..], &["-o", "/dev/null"]].concat()).contains("--keys-dir"));

    let to = [&import[..], &["-o", "nvlane.toml"]].concat();
    for _ in 0..2 {
        assert_eq!(run(dir, &to).0, Some(0));
    }
    let keys = dir.join("nvlane.toml.keys");
    assert_eq!(mode(&keys), 0o700);
    let files: Vec<_> = fs::read_dir(&keys).unwrap().map(|it| it.unwrap().path()).collect();
    assert_eq!(files.len(), 2);
    for file in &files {
        assert_eq!((mode(file), fs::read_to_string(file).unwrap().trim()), (0o600, &*secret));
    }
    assert!(!fs::read_to_string(dir.join("nvlane.toml")).unwrap().contains(&secret[10..]));
    assert!(succeeds(dir, &["config", "check", "nvlane.toml"]).contains("can be served"));
    let daemon = Daemon::start(dir, &["--config", "nvlane.toml"]);
    assert_eq!(authentication(&daemon)[0]["dhchap_hash"], "sha512");
    assert!(!is_let_in(dir, &daemon, HOST));
    drop(daemon);

    let (code, stdout, _) = run(dir, &[&import[..], &["--keys-dir", "elsewhere"]].concat());
    assert_eq!(code, Some(0));
    assert!(stdout.contains(&dir.join("elsewhere").display().to_string()), "{stdout}");
    // Nor is one that stands beside it let in by the way.
    fs::write(&files[0], format!("{secret}\n{}\n", key(dir, "beside.key"))).unwrap();
    assert!(fails(dir, &to).contains("--keys-dir"));
    fs::write(&files[0], format!("{secret}\n")).unwrap();
    // Another key takes no other's place.
    saved(dir, &key(dir, "other.key"));
    assert!(fails(dir, &to).contains("--keys-dir"));
    assert_eq!(fs::read_to_string(&files[0]).unwrap().trim(), secret);
}
