//! Listeners that take encrypted connections alone, and the keys of hosts for them, as far as that needs no encryption.

use crate::control::ctl;
use crate::daemon::{ANYWHERE, Daemon, nvlane};
use crate::keys::{HOST, NQN, OTHER, authentication, fails, is_let_in, key, serve, succeeds, text};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The same as [`ANYWHERE`], for encrypted connections.
fn secured() -> String {
    format!("tls://{ANYWHERE}")
}

fn has_tls() -> bool {
    tls::check().is_ok()
}

/// A new key for TLS in `dir`, and its text.
fn tls_key(dir: &Path, name: &str) -> String {
    succeeds(dir, &["key", "new", "--tls", name]);
    fs::read_to_string(dir.join(name)).unwrap().trim().to_owned()
}

#[test]
fn keys_for_tls_are_made_and_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let secret = tls_key(dir, "h.tls");
    assert!(secret.starts_with("NVMeTLSkey-1:01:") && secret.ends_with(':'), "{secret}");
    let mode = fs::metadata(dir.join("h.tls")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert_ne!(tls_key(dir, "other.tls"), secret);
    assert!(fails(dir, &["key", "new", "--tls", "h.tls"]).contains("File exists"));
    for (hash, id, bytes) in [("sha256", 1, 32), ("sha384", 2, 48)] {
        let text = succeeds(dir, &["key", "new", "--tls", "--hash", hash]);
        assert!(
            text.starts_with(&format!("NVMeTLSkey-1:0{id}:")) && text.ends_with(":\n"),
            "{text}"
        );
        let name = format!("{hash}.tls");
        fs::write(dir.join(&name), text).unwrap();
        fs::set_permissions(dir.join(&name), Permissions::from_mode(0o600)).unwrap();
        let told = succeeds(dir, &["key", "check", &name, "-o", "json"]);
        let wanted = json!({"schema_version": 1, "file": name, "kind": "tls", "bytes": bytes, "hash": hash, "next": null, "exposed": false});
        assert_eq!(serde_json::from_str::<Value>(&told).unwrap(), wanted);
    }
    for hash in ["none", "sha512"] {
        let said = fails(dir, &["key", "new", "--tls", "--hash", hash, "none.tls"]);
        assert!(said.contains("sha256 or sha384") && !dir.join("none.tls").exists(), "{said}");
    }
    let said = succeeds(dir, &["key", "check", "h.tls"]);
    assert_eq!(said, "h.tls: a key for TLS of 32 bytes, made the key of one name by sha256\n");
    let mut damaged = secret.clone();
    damaged.replace_range(20..21, if &secret[20..21] == "A" { "B" } else { "A" });
    for (text, part) in [(&*damaged, "checksum"), ("NVMeTLSkey-1:03:AAAA:", "NVMeTLSkey-1:01")] {
        fs::write(dir.join("h.tls"), text).unwrap();
        let said = fails(dir, &["key", "check", "h.tls"]);
        assert!(said.contains("h.tls") && said.contains(part), "{said}");
        assert!(!said.contains(&secret[24..34]), "{said}");
    }
}

#[test]
fn a_kernel_without_tls_is_told_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    tls_key(dir, "h.tls");
    let key = format!("{HOST}=h.tls");
    let args = [
        "mem:1M",
        "--nqn",
        NQN,
        "--listen",
        &secured(),
        "--listen",
        ANYWHERE,
        "--host-tls-key",
        &key,
    ];
    if !has_tls() {
        let said = fails(dir, &serve(&args));
        assert!(said.contains("tls://127.0.0.2:0") && said.contains("modprobe tls"), "{said}");
        let daemon = Daemon::start(dir, &["mem:1M", "--nqn", NQN]);
        assert_eq!(daemon.refuse("listener_add", json!({"address": secured()})), -32005);
        assert_eq!(daemon.call("listener_list", json!({})).as_array().unwrap().len(), 1);
        return;
    }
    let daemon = Daemon::start(dir, &args);
    let list = daemon.call("listener_list", json!({}));
    assert_eq!((&list[0]["tls"], &list[1]["tls"]), (&json!(true), &json!(false)));
    let address = daemon.listeners[0];
    assert!(ctl(&daemon, &["listener", "list"]).contains(&format!("tls://{address}")));
    let added = daemon.call("listener_add", json!({"address": secured()}));
    assert_eq!(added["tls"], true);
    let same = added["address"].as_str().unwrap();
    assert_eq!(daemon.refuse("listener_add", json!({"address": same})), -32002);
    // By the address alone.
    let said = ctl(&daemon, &["listener", "remove", same]);
    assert_eq!(said, format!("no longer listening on tls://{same}\n"));
    let (_, log) = daemon.stop("TERM");
    assert!(log.contains(&format!("tls://{address} takes encrypted connections alone")), "{log}");
}

#[test]
fn a_host_with_a_key_for_tls_comes_by_no_other_way() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let secret = tls_key(dir, "h.tls");
    let file = dir.join("h.tls").display().to_string();
    fs::write(dir.join("nvlane.toml"), text(&format!("allowed_hosts = [\"{HOST}\", \"{OTHER}\"]")))
        .unwrap();
    let args = ["--config", "nvlane.toml"];
    let daemon = Daemon::start(dir, &args);
    assert!(is_let_in(dir, &daemon, HOST));
    let said = ctl(&daemon, &["host", "set-key", HOST, "--tls-key", &file]);
    assert!(said.contains(&format!("note: {HOST} has a key for TLS, and no listener")), "{said}");
    assert_eq!(authentication(&daemon), json!([{"host": HOST, "tls_key": file}]));
    assert!(!is_let_in(dir, &daemon, HOST) && is_let_in(dir, &daemon, OTHER));
    let list = ctl(&daemon, &["host", "list"]);
    let line = format!("  {HOST}: 0 controller(s), authenticates: TLS by the key {file}\n");
    assert!(list.contains(&line), "{list}");
    daemon.kill();
    let daemon = Daemon::start(dir, &args);
    assert!(!is_let_in(dir, &daemon, HOST));
    // What is said replaces what was said before.
    key(dir, "h.key");
    let dhchap = dir.join("h.key").display().to_string();
    let said = ctl(&daemon, &["host", "set-key", HOST, "--dhchap-key", &dhchap]);
    assert!(!said.contains("no listener"), "{said}");
    assert_eq!(authentication(&daemon), json!([{"host": HOST, "dhchap_key": dhchap}]));
    assert!(!is_let_in(dir, &daemon, HOST));
    ctl(&daemon, &["host", "set-key", HOST, "--dhchap-key", &dhchap, "--tls-key", &file]);
    let both = json!([{"host": HOST, "dhchap_key": dhchap, "tls_key": file}]);
    assert_eq!(authentication(&daemon), both);
    for (field, value) in [
        ("tls_key", json!("h.tls")),
        ("tls_key", json!("/does/not/exist")),
        ("tls_key", json!(secret)),
        ("tls_key", json!(dhchap)),
        ("dhchap_key", json!(file)),
        ("dhchap_ctrl_key", json!(dhchap)),
    ] {
        let mut params = json!({"host": HOST, "tls_key": file});
        params[field] = value;
        assert_eq!(daemon.refuse("host_set_key", params), -32602, "{field}");
    }
    assert_eq!(daemon.refuse("host_set_key", json!({"host": HOST})), -32602);
    assert_eq!(authentication(&daemon), both, "nothing was changed");
    ctl(&daemon, &["host", "clear-key", HOST]);
    assert!(is_let_in(dir, &daemon, HOST));
    let (_, log) = daemon.stop("TERM");
    assert!(log.contains("comes without") && !log.contains(&secret[16..]), "{log}");
    let state = fs::read_dir(dir.join("data")).unwrap().map(|it| it.unwrap().path());
    for path in state.filter(|path| path.is_file()) {
        assert!(!fs::read_to_string(&path).unwrap().contains(&secret[16..]), "{}", path.display());
    }
}

#[test]
fn a_key_and_a_listener_for_tls_need_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    tls_key(dir, "h.tls");
    let file = dir.join("h.tls").display().to_string();
    let entry = format!(
        "allowed_hosts = [\"{HOST}\"]\n[[subsystems.authentication]]\nhost = \"{HOST}\"\ntls_key = \"{file}\"\n"
    );
    let says = |more: &str, listener: &str| {
        let of = text(more).replace(&format!("\"{ANYWHERE}\""), &format!("\"{listener}\""));
        fs::write(dir.join("nvlane.toml"), of).unwrap();
        succeeds(dir, &["config", "check", "nvlane.toml"])
    };
    let on_kernel = |said: &str| said.contains("not on this machine") != has_tls();
    let said = says(&entry, ANYWHERE);
    assert!(said.contains(&format!("{HOST} has a key for TLS, and no listener")), "{said}");
    let said = says("", &secured());
    assert!(said.contains("tls://127.0.0.2:0: nobody can connect") && on_kernel(&said), "{said}");
    let said = says(&entry, &secured());
    assert!(
        !said.contains("nobody") && !said.contains("no listener") && on_kernel(&said),
        "{said}"
    );
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    assert!(says(&entry, &secured()).contains("h.tls: every user of this machine may read"));
    let shown = succeeds(dir, &["config", "show", "nvlane.toml"]);
    assert!(shown.contains("listeners = [\"tls://127.0.0.2:0\"]"), "{shown}");

    let daemon =
        Daemon::start(dir, &["mem:1M", "--nqn", NQN, "--host-tls-key", &format!("{HOST}=h.tls")]);
    assert_eq!(authentication(&daemon), json!([{"host": HOST, "tls_key": file}]));
    assert!(!is_let_in(dir, &daemon, HOST) && !is_let_in(dir, &daemon, OTHER), "it alone");
    let (_, log) = daemon.stop("TERM");
    let warned = |line: &&str| line.contains("WARN") && line.contains("no listener takes");
    assert_eq!(log.lines().filter(warned).count(), 1, "{log}");
}

#[test]
fn mistakes_about_keys_for_tls_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let secret = tls_key(dir, "h.tls");
    key(dir, "h.key");
    let of = |file: &str| format!("{HOST}={file}");
    let args = ["mem:1M", "--nqn", NQN, "--listen", ANYWHERE];
    for (more, parts) in [
        (vec!["--host-tls-key", &of("none.tls")], vec![HOST, "none.tls", "No such file"]),
        (vec!["--host-tls-key", &of("h.key")], vec![HOST, "h.key", "NVMeTLSkey-1"]),
        (vec!["--host-key", &of("h.tls")], vec![HOST, "h.tls", "DHHC-1"]),
        (vec!["--host-tls-key", &of(&secret)], vec!["key itself"]),
        (vec!["--host-tls-key", HOST], vec!["--host-tls-key", "NQN=FILE"]),
        (
            vec!["--host-tls-key", &of("h.tls"), "--host-tls-key", &of("h.tls")],
            vec!["--host-tls-key was given twice", HOST],
        ),
    ] {
        let said = fails(dir, &serve(&[&args[..], &more].concat()));
        assert!(parts.iter().all(|part| said.contains(part)), "{more:?}: {said}");
        assert!(!said.contains(&secret[16..]), "{said}");
    }
    for more in [
        &["--host-ctrl-key", &*of("h.key"), "--host-tls-key", &of("h.tls")][..],
        &["--listen", "tls://"],
        &["--listen", "tls://nowhere:x"],
    ] {
        let output = nvlane().args(serve(&[&args[..3], more].concat())).output().unwrap();
        assert!(!output.status.success(), "{more:?}");
    }
    let said = fails(dir, &["ctl", "--socket", "s", "host", "set-key", HOST]);
    assert!(said.contains("--dhchap-key") && said.contains("--tls-key"), "{said}");
    let both = ["ctl", "--socket", "s", "host", "set-key", HOST, "--tls-key", &secret];
    let said = fails(dir, &both);
    assert!(said.contains("key itself") && !said.contains(&secret[16..]), "{said}");
}

#[test]
fn one_address_is_listened_on_once() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let args = ["mem:1M", "--listen", "127.0.0.2:1", "--listen", "tls://127.0.0.2:1"];
    let said = fails(dir, &serve(&args));
    assert!(said.contains("listeners[1]") && said.contains("listed twice"), "{said}");
    let daemon = Daemon::start(dir, &["mem:1M"]);
    let again = format!("tls://{}", daemon.listeners[0]);
    assert_eq!(daemon.refuse("listener_add", json!({"address": again})), -32002);
    // By whatever prefix: but it is the last.
    assert_eq!(daemon.refuse("listener_remove", json!({"address": again})), -32002);
}
