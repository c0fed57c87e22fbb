//! What a daemon keeps for its next start, and what it leaves alone.

use crate::daemon::{ANYWHERE, Daemon, eventually, free_address, nvlane};
use crate::host::{Bytes, Host};
use nvme::{Command, Status, opcode};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, symlink};
use std::path::Path;
use std::process::Output;
use std::time::Duration;

const NQN: &str = "nqn.2026-11.com.example:a";
const HOST: &str = "nqn.2014-08.org.example:host1";

/// `nvlane serve ARGS` that fails beside a daemon in `dir`; what it said.
fn fails(dir: &Path, args: &[&str]) -> String {
    let mut command = nvlane();
    command.arg("serve").args(args).arg("--data-dir").arg(dir.join("data")).current_dir(dir);
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!((status.code(), said.lines().count()), (Some(1), 1), "{said}");
    said
}

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

/// The daemon's folder is seldom that of whoever checks.
#[test]
fn paths_that_depend_on_the_folder_are_noted() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nvlane.toml");
    let text = |volume: &str| {
        format!(
            "[[subsystems]]\nnqn = \"{NQN}\"\n[[subsystems.namespaces]]\nvolume = \"{volume}\"\n"
        )
    };
    fs::write(&file, text("delay:1ms(bpf:./p.o(disk.img?ro,/there.img))")).unwrap();
    let said = check(dir.path(), &file);
    let notes: Vec<&str> = said.lines().filter(|line| line.starts_with("note: ")).collect();
    assert_eq!(notes.len(), 2, "{said}");
    let here = std::env::current_dir().unwrap();
    for (note, name) in notes.into_iter().zip(["p.o", "disk.img"]) {
        assert!(
            note.contains(NQN) && note.ends_with(&here.join(name).display().to_string()),
            "{note}"
        );
    }
    fs::write(&file, text("delay:1ms(/there.img)")).unwrap();
    assert!(!check(dir.path(), &file).contains("note: "));
}

/// How a file was made, and how it is opened, is not what hosts know it by.
#[test]
fn a_volume_that_is_opened_in_another_way_keeps_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let names = |volume: &str| {
        let daemon = Daemon::start(dir.path(), &[volume]);
        let subsystem = daemon.call("config_get", json!({}))["subsystems"][0].clone();
        let namespace = &subsystem["namespaces"][0];
        [&subsystem["nqn"], &namespace["uuid"], &namespace["nguid"]].map(Value::to_string)
    };
    let first = names("disk.img?size=1M&create");
    for volume in ["disk.img", "disk.img?ro", "disk.img?buffered"] {
        assert_eq!(names(volume), first, "{volume}");
    }
    assert_ne!(names("disk.img?bs=4096"), first);
}

/// As a ConfigMap is mounted: the file is reached through a directory that another takes the place of.
#[test]
fn a_files_state_goes_by_its_name_and_not_by_where_links_lead() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let text = format!(
        "listeners = [\"{ANYWHERE}\"]\n[[subsystems]]\nnqn = \"{NQN}\"\n[[subsystems.namespaces]]\nvolume = \"mem:1M\"\n"
    );
    for name in ["one", "two"] {
        fs::create_dir(path(name)).unwrap();
        fs::write(path(name).join("nvlane.toml"), &text).unwrap();
    }
    symlink("one", path("data-now")).unwrap();
    symlink("data-now/nvlane.toml", path("nvlane.toml")).unwrap();
    let args = ["--config", "nvlane.toml"];
    let daemon = Daemon::start(dir.path(), &args);
    daemon.call("host_allow", json!({"host": HOST}));
    daemon.kill();
    fs::remove_file(path("data-now")).unwrap();
    symlink("two", path("data-now")).unwrap();
    let daemon = Daemon::start(dir.path(), &args);
    assert_eq!(hosts(&daemon), json!([HOST]));
}

#[test]
fn a_fresh_start_beside_a_running_daemon_leaves_its_state() {
    let dir = tempfile::tempdir().unwrap();
    let address = free_address();
    let args = ["mem:1M", "--nqn", NQN, "--listen", &*address];
    let daemon = Daemon::start(dir.path(), &args);
    daemon.call("host_allow", json!({"host": HOST}));
    let said = fails(dir.path(), &[&args[..], &["--fresh"]].concat());
    assert!(said.contains("already being served"), "{said}");
    daemon.kill();
    let daemon = Daemon::start(dir.path(), &args);
    assert_eq!(hosts(&daemon), json!([HOST]));
    daemon.kill();

    let daemon = Daemon::start(dir.path(), &[&args[..], &["--fresh"]].concat());
    assert_eq!(hosts(&daemon), json!([]));
    daemon.kill();
    let daemon = Daemon::start(dir.path(), &args);
    assert_eq!(hosts(&daemon), json!([]), "it was put aside for good");
}

#[test]
fn a_state_is_put_aside_only_by_a_start_that_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nvlane.toml");
    let write = |volume: &str| {
        let text = format!(
            "listeners = [\"{ANYWHERE}\"]\n[[subsystems]]\nnqn = \"{NQN}\"\n[[subsystems.namespaces]]\nvolume = \"{volume}\"\n"
        );
        fs::write(&file, text).unwrap();
    };
    let args = ["--config", file.to_str().unwrap()];
    write("mem:1M");
    let daemon = Daemon::start(dir.path(), &args);
    daemon.call("host_allow", json!({"host": HOST}));
    let config = daemon.call("config_get", json!({}));
    daemon.kill();

    write("/does/not/exist");
    let said = fails(dir.path(), &args);
    assert!(said.contains("/does/not/exist"), "{said}");
    write("mem:1M");
    let daemon = Daemon::start(dir.path(), &args);
    assert_eq!(daemon.call("config_get", json!({})), config);
    daemon.kill();

    write("/does/not/exist");
    fails(dir.path(), &args);
    write("mem:2M");
    let daemon = Daemon::start(dir.path(), &args);
    assert_eq!(hosts(&daemon), json!([]));
    let (_, log) = daemon.stop("TERM");
    let warning = log.lines().find(|line| line.contains("was edited")).expect("a warning");
    let (_, aside) = warning.split_once("which goes to ").expect("the state's new name");
    assert!(fs::read_to_string(aside).unwrap().contains(HOST));
}

#[test]
fn a_socket_takes_the_place_of_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("a.img");
    fs::write(&image, [7; 4096]).unwrap();
    let said = fails(dir.path(), &["a.img", "--socket", "a.img", "--listen", ANYWHERE]);
    assert!(said.contains("a.img") && said.contains("no socket"), "{said}");
    assert_eq!(fs::read(&image).unwrap(), [7; 4096]);
    let left: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left, ["a.img"]);
}

#[test]
fn an_import_goes_into_what_is_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/nvmetcli.json");
    let import = |to: &Path| {
        let output = nvlane().args(["config", "import", sample, "-o"]).arg(to).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let (plain, fifo, link) =
        (dir.path().join("plain"), dir.path().join("fifo"), dir.path().join("link"));
    import(&plain);
    let text = fs::read_to_string(&plain).unwrap();

    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
        .unwrap();
    // Open for both, so that nobody waits for the other end.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let both = File::options().read(true).write(true).custom_flags(flags).open(&fifo);
    let mut end = both.unwrap();
    import(&fifo);
    assert!(fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    let mut there = vec![0; text.len()];
    end.read_exact(&mut there).unwrap();
    assert_eq!(there, text.as_bytes());

    fs::write(dir.path().join("place"), "something longer than nothing").unwrap();
    symlink("place", &link).unwrap();
    import(&link);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(dir.path().join("place")).unwrap(), text);
}

#[test]
fn cores_and_polling_of_a_command_line_hold_for_that_start() {
    let dir = tempfile::tempdir().unwrap();
    let address = free_address();
    let args = ["mem:1M", "--nqn", NQN, "--listen", &*address];
    let cores =
        |daemon: &Daemon| daemon.call("stats", json!({}))["cores"].as_array().unwrap().len();
    let before = Daemon::start(dir.path(), &args);
    let config = before.call("config_get", json!({}));
    drop(before);
    let daemon = Daemon::start(dir.path(), &[&args[..], &["--poll", "--cores", "2"]].concat());
    assert_eq!(cores(&daemon), 2);
    daemon.call("host_allow", json!({"host": HOST}));
    daemon.kill();

    let daemon = Daemon::start(dir.path(), &args);
    assert_eq!(cores(&daemon), 1);
    let now = daemon.call("config_get", json!({}));
    assert_eq!((&now["poll"], &now["cores"]), (&config["poll"], &config["cores"]));
    assert_eq!(hosts(&daemon), json!([HOST]));
}

/// The processors that a process or a thread may run on, as /proc has them: a list such as `0-3,8`.
fn allowed(status: &Path) -> String {
    let text = fs::read_to_string(status).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.expect("proc_pid_status(5)").trim().to_owned()
}

#[test]
fn cores_of_a_list_stay_on_their_processors() {
    // Where each thread of a daemon may run that carries the data path.
    let served = |cores: &str| {
        let dir = tempfile::tempdir().unwrap();
        let daemon = Daemon::start(dir.path(), &["mem:1M", "--nqn", NQN, "--cores", cores]);
        let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
        let tasks = tasks.map(|task| task.unwrap().path());
        let mut places: Vec<(String, String)> = tasks
            .filter_map(|task| {
                // Others may have ended meanwhile.
                let name = fs::read_to_string(task.join("comm")).ok()?.trim().to_owned();
                let is_core = name.starts_with("nvlane-core-");
                is_core.then(|| (name, allowed(&task.join("status"))))
            })
            .collect();
        places.sort();
        places
    };
    let on = |number: u32, cpus: &str| (format!("nvlane-core-{number}"), cpus.to_owned());
    let all = allowed(Path::new("/proc/self/status"));
    let ends = all.split_once([',', '-']).map(|(first, rest)| {
        let last = rest.rsplit([',', '-']).next().unwrap();
        (first, last)
    });
    let Some((first, last)) = ends else {
        eprintln!("skipped: with processor {all} alone, there is no other place to be");
        return;
    };
    assert_eq!(served(&format!("{last}-{last}")), [on(0, last)]);
    assert_eq!(served(&format!("{last},{first}")), [on(0, last), on(1, first)]);
    // A number of threads is placed by the kernel.
    assert_eq!(served("2"), [on(0, &all), on(1, &all)]);
}

/// Until all listeners are there, nobody is served by one of them as if nothing were said of its states.
#[test]
fn a_listener_serves_only_when_its_states_hold() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (free_address(), free_address());
    let file = dir.path().join("nvlane.toml");
    let text = format!(
        "listeners = [\"{first}\", \"{second}\"]\n[[subsystems]]\nnqn = \"{NQN}\"\n\
         [[subsystems.namespaces]]\nvolume = \"mem:1M\"\n\
         [[subsystems.ana]]\ngroup = 1\nstate = \"inaccessible\"\n"
    );
    fs::write(&file, text).unwrap();
    let args = ["--config", file.to_str().unwrap()];
    // One that follows a crash waits for its ports for long.
    Daemon::start(dir.path(), &args).kill();
    // The kernel lets go of what a killed daemon had in its rings a moment later, and until then somebody seems to listen.
    eventually("the end of the first listener", || TcpListener::bind(&*first).is_ok());
    let mut in_the_way = None;
    eventually("the second port", || {
        in_the_way = TcpListener::bind(&*second).ok();
        in_the_way.is_some()
    });
    std::thread::scope(|scope| {
        let daemon = scope.spawn(|| Daemon::start(dir.path(), &args));
        eventually("the first port", || TcpStream::connect(&*first).is_ok());
        let host = scope.spawn(|| {
            let host = Host::new(first.parse().unwrap(), NQN);
            let admin = host.enabled();
            let mut queue = host.io(&admin, 1);
            let cid = queue.issue(Command::blocks(opcode::io::READ, 1, 0, 1), Bytes::Wanted(512));
            queue.complete(cid).refused(Status::ANA_INACCESSIBLE);
        });
        // Enough for a read that is served too early; one that is not waits for as long as it takes.
        std::thread::sleep(Duration::from_millis(300));
        drop(in_the_way);
        host.join().unwrap();
        daemon.join().unwrap();
    });
}

/// A file for a daemon whose only volume is `volume`, with `more` before it.
fn text(more: &str, volume: &str) -> String {
    format!(
        "{more}listeners = [\"{ANYWHERE}\"]\n[[subsystems]]\nnqn = \"{NQN}\"\n[[subsystems.namespaces]]\nvolume = \"{volume}\"\n"
    )
}

/// What `nvlane config check` says of a file.
fn check(dir: &Path, file: &Path) -> String {
    let mut command = nvlane();
    command.args(["config", "check"]).arg(file).arg("--data-dir").arg(dir.join("data"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Comments, blanks, and what is the default all the same.
#[test]
fn a_file_that_says_the_same_continues_the_state() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nvlane.toml");
    let args = ["--config", file.to_str().unwrap()];
    fs::write(&file, text("", "mem:1M")).unwrap();
    let daemon = Daemon::start(dir.path(), &args);
    assert!(!check(dir.path(), &file).contains("restart"), "there is no state");
    daemon.call("host_allow", json!({"host": HOST}));
    daemon.call("volume_add", json!({"volume": "mem:2M"}));
    let config = daemon.call("config_get", json!({}));
    daemon.kill();

    fs::write(
        &file,
        format!("# For the mail server.\n\n{}nsid = 1\n", text("poll = false\n", "mem:1M")),
    )
    .unwrap();
    let said = check(dir.path(), &file);
    assert!(said.contains("a restart continues the state in"), "{said}");
    assert!(said.contains(", 2 change(s)"), "{said}");
    for _ in 0..2 {
        let daemon = Daemon::start(dir.path(), &args);
        assert_eq!(daemon.call("config_get", json!({})), config);
        let (_, log) = daemon.stop("TERM");
        assert!(!log.contains("was edited") && !log.contains("dropped"), "{log}");
    }
}

#[test]
fn changes_that_an_edited_file_drops_are_told_before_it_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let address = free_address();
    let text = |more: &str, volume: &str| text(more, volume).replace(ANYWHERE, &address);
    let file = dir.path().join("nvlane.toml");
    let args = ["--config", file.to_str().unwrap()];
    fs::write(&file, text("", "mem:1M")).unwrap();
    let daemon = Daemon::start(dir.path(), &args);
    daemon.call("host_allow", json!({"host": HOST}));
    daemon.call("volume_add", json!({"volume": "mem:2M"}));
    daemon.call("volume_resize", json!({"nsid": 1, "bytes": 4 << 20}));
    daemon.kill();
    eventually("the end of its listener", || TcpListener::bind(&*address).is_ok());

    fs::write(&file, text("cores = 1\n", "mem:3M")).unwrap();
    let changes = [
        format!("{NQN}: the host {HOST} was added"),
        format!("{NQN}: namespace 1 is mem:4M?bs=512, and was mem:1M?bs=512"),
        format!("{NQN}: namespace 2 was added: mem:2M?bs=512"),
    ];
    let said = check(dir.path(), &file);
    let (_, listed) = said.split_once("discards the state in ").expect(&said);
    let mut listed = listed.lines().skip(1).map(str::trim);
    let dropped: Vec<&str> =
        listed.by_ref().take_while(|line| !line.starts_with("hosts that")).collect();
    assert_eq!(dropped, changes);
    assert_eq!(listed.count(), 2, "UUID and NGUID of other memory");

    // A host that has waited for the first moment.
    let host = Host::new(address.parse().unwrap(), NQN);
    let daemon = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            // Where nobody listens yet, a socket may come to be connected to itself.
            let is_there =
                |socket: TcpStream| socket.local_addr().unwrap() != address.parse().unwrap();
            eventually("the address", || TcpStream::connect(&*address).is_ok_and(is_there));
            drop(host.enabled());
        });
        let daemon = Daemon::start(dir.path(), &args);
        waiting.join().unwrap();
        daemon
    });
    assert_eq!(volumes(&daemon)[0]["bytes"], 3 << 20);
    let (_, log) = daemon.stop("TERM");
    let place = |what: &str| log.lines().position(|line| line.contains(what)).expect(what);
    let served = place("host connected");
    for change in &changes {
        assert!(place(&format!("dropped: {change}")) < served, "{log}");
    }
    assert!(place("was edited") < served, "{log}");
    assert!(!check(dir.path(), &file).contains("discards"), "it was put aside");
}

/// Hosts that stay connected would take the namespace for another disk.
#[test]
fn other_names_of_a_volume_are_told_before_it_is_served() {
    const UUID: &str = "1b4e28ba-2fa1-41d2-883f-0016d3cca427";
    const NGUID: &str = "6e6f7420-736f-6d65-7468-696e672e2e2e";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nvlane.toml");
    let args = ["--config", file.to_str().unwrap()];
    let names = |names: &str| fs::write(&file, text("", "mem:1M") + names).unwrap();
    names("");
    let daemon = Daemon::start(dir.path(), &args);
    let derived = volumes(&daemon)[0].clone();
    let (uuid, nguid) = (derived["uuid"].as_str().unwrap(), derived["nguid"].as_str().unwrap());
    // There is no state to compare with, but the daemon itself.
    names(&format!("nguid = \"{NGUID}\"\n"));
    let socket = daemon.socket.to_str().unwrap();
    let told = |more: &[&str]| -> Vec<String> {
        let mut command = nvlane();
        command.args(["config", "check"]).arg(&file).arg("--data-dir").arg(dir.path().join("data"));
        let output = command.args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8(output.stdout).unwrap();
        let heading = "hosts that stay connected take these for other disks:\n";
        let told = said.split_once(heading).map_or("", |(_, told)| told);
        told.lines().map(|line| line.trim().to_owned()).collect()
    };
    let line = |kind: &str, is: &str, was: &str| {
        format!("{NQN}: namespace 1 gets another {kind}: {is}, and had {was}")
    };
    assert_eq!(told(&[]), [""; 0]);
    assert_eq!(told(&["--socket", socket]), [line("NGUID", NGUID, nguid)]);
    daemon.call("volume_add", json!({"volume": "mem:2M"}));
    assert_eq!(told(&[]), [line("NGUID", NGUID, nguid)], "the state has the names by now");
    let none = "00000000-0000-0000-0000-000000000000";
    names(&format!("uuid = \"{uuid}\"\nnguid = \"{none}\"\n"));
    assert_eq!(told(&[]), [line("NGUID", "none", nguid)]);
    names(&format!("uuid = \"{uuid}\"\nnguid = \"{nguid}\"\n"));
    assert_eq!(told(&["--socket", socket]), [""; 0]);
    assert_eq!(told(&[]), [""; 0]);
    daemon.kill();

    // What was given, and is not any more, is derived again.
    names(&format!("uuid = \"{UUID}\"\nnguid = \"{NGUID}\"\n"));
    let daemon = Daemon::start(dir.path(), &args);
    daemon.call("volume_add", json!({"volume": "mem:2M"}));
    let served = volumes(&daemon)[0].clone();
    assert_eq!((&served["uuid"], &served["nguid"]), (&json!(UUID), &json!(NGUID)));
    daemon.kill();
    names("");
    let made = "one that is made";
    assert_eq!(told(&[]), [line("UUID", made, UUID), line("NGUID", made, NGUID)]);
    let daemon = Daemon::start(dir.path(), &args);
    let served = volumes(&daemon)[0].clone();
    assert_eq!((&served["uuid"], &served["nguid"]), (&derived["uuid"], &derived["nguid"]));
    // A volume that was put in the place of another by its id has other names, which the state has.
    daemon.call("volume_remove", json!({"nsid": 1}));
    daemon.call("volume_add", json!({"volume": "mem:1M", "nsid": 1, "nguid": NGUID}));
    daemon.kill();
    fs::write(&file, text("cores = 1\n", "mem:1M")).unwrap();
    let said = check(dir.path(), &file);
    let changed = format!("  {NQN}: namespace 1 has the NGUID {NGUID}, and had {nguid}\n");
    assert!(said.contains(&changed), "{said}");
    assert_eq!(told(&[]), [line("NGUID", nguid, NGUID)]);
}

/// Its UUID is made of what it is called.
#[test]
fn an_edited_volume_has_another_name_and_that_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nvlane.toml");
    let args = ["--config", file.to_str().unwrap()];
    fs::write(&file, text("", "rate:100M(mem:1M)")).unwrap();
    let daemon = Daemon::start(dir.path(), &args);
    let before = volumes(&daemon)[0]["uuid"].as_str().unwrap().to_owned();
    daemon.call("host_allow", json!({"host": HOST}));
    daemon.kill();
    fs::write(&file, text("", "rate:200M(mem:1M)")).unwrap();
    let said = check(dir.path(), &file);
    let told = format!("{NQN}: namespace 1 gets another UUID: one that is made, and had {before}");
    assert!(said.contains(&told), "{said}");
    let daemon = Daemon::start(dir.path(), &args);
    let now = volumes(&daemon)[0]["uuid"].as_str().unwrap().to_owned();
    assert_ne!(now, before);
    let (_, log) = daemon.stop("TERM");
    let told =
        format!("another disk: {NQN}: namespace 1 gets another UUID: {now}, and had {before}");
    assert!(log.contains(&told), "{log}");
}

/// What was changed of it is dropped as all else, though nobody had opened it when the state began.
#[test]
fn changes_of_a_volume_that_was_missing_at_the_start_are_told_when_they_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let late = dir.path().join("late.img");
    let file = dir.path().join("nvlane.toml");
    let args = ["--config", file.to_str().unwrap()];
    let volume = format!("rate:1G({})", late.display());
    fs::write(&file, text("", &volume) + "nofail = true\n").unwrap();
    let daemon = Daemon::start(dir.path(), &args);
    fs::File::create_new(&late).unwrap().set_len(1 << 20).unwrap();
    eventually("it is served", || volumes(&daemon)[0]["nsid"] == 1);
    daemon.call("volume_tune", json!({"nsid": 1, "name": "rate.bytes", "value": "2G"}));
    daemon.kill();
    fs::write(&file, text("cores = 1\n", &volume) + "nofail = true\n").unwrap();
    let said = check(dir.path(), &file);
    let late = late.display();
    let told = format!("namespace 1 is rate:2G(file:{late}?bs=512), and was {volume}\n");
    assert!(said.contains(&told), "{said}");
    assert!(!said.contains("other disks"), "{said}");
}

/// A state of before has the fingerprint of the text alone.
#[test]
fn a_state_of_an_older_version_is_continued_and_loses_nothing_to_a_comment() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nvlane.toml");
    let args = ["--config", file.to_str().unwrap()];
    fs::write(&file, text("", "mem:1M")).unwrap();
    let daemon = Daemon::start(dir.path(), &args);
    daemon.call("host_allow", json!({"host": HOST}));
    daemon.kill();
    let states = fs::read_dir(dir.path().join("data")).unwrap().map(|it| it.unwrap().path());
    let state = states.filter(|path| path.extension().is_some_and(|it| it == "json"));
    let state = state.collect::<Vec<_>>().pop().expect("a state");
    let mut document: Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
    let document = document.as_object_mut().unwrap();
    document.retain(|field, _| ["version", "fingerprint", "config"].contains(&field.as_str()));
    let older = serde_json::to_vec(document).unwrap();
    fs::write(&state, &older).unwrap();

    let daemon = Daemon::start(dir.path(), &args);
    assert_eq!(hosts(&daemon), json!([HOST]));
    daemon.kill();
    // Whoever goes back to the older version has it.
    assert_eq!(fs::read(state.with_extension("json.bak")).unwrap(), older);
    fs::write(&file, text("# Edited.\n", "mem:1M")).unwrap();
    let daemon = Daemon::start(dir.path(), &args);
    assert_eq!(hosts(&daemon), json!([HOST]));
}
