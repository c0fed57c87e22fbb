//! What a daemon keeps for its next start, and what it leaves alone.

use crate::daemon::Daemon;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::unix::fs::symlink;

const HOST: &str = "nqn.2014-08.org.example:host1";

fn volumes(daemon: &Daemon) -> Value {
    daemon.call("volume_list", json!({}))
}

fn hosts(daemon: &Daemon) -> Value {
    daemon.call("config_get", json!({}))["subsystems"][0]["allowed_hosts"].clone()
}

/// What udev's links lead to may differ after every boot.
#[test]
fn a_link_is_followed_anew_at_each_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for (name, bytes) in [("a.img", 1 << 20), ("b.img", 2 << 20)] {
        File::create(path(name)).unwrap().set_len(bytes).unwrap();
    }
    symlink("a.img", path("link")).unwrap();
    let daemon = Daemon::start(dir.path(), &["link"]);
    let first = volumes(&daemon)[0].clone();
    assert_eq!(first["bytes"], 1 << 20);
    assert_eq!(first["volume"], format!("file:{}?bs=512", path("link").display()));
    daemon.call("host_allow", json!({"host": HOST}));
    daemon.kill();

    fs::remove_file(path("link")).unwrap();
    symlink("b.img", path("link")).unwrap();
    let daemon = Daemon::start(dir.path(), &["link"]);
    assert_eq!(hosts(&daemon), json!([HOST]), "the state is continued");
    let second = volumes(&daemon)[0].clone();
    assert_eq!(second["bytes"], 2 << 20);
    assert_eq!(second["uuid"], first["uuid"]);
    daemon.kill();

    // The name is the link's own.
    let daemon = Daemon::start(dir.path(), &["a.img"]);
    assert_ne!(volumes(&daemon)[0]["uuid"], first["uuid"]);
}
