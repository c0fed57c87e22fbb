//! `nvlane io`, `nvlane admin`, `nvlane doctor`.

use crate::daemon::{Daemon, nvlane};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

const NQN: &str = "nqn.2026-11.com.example:passthrough";

/// Runs it with something on standard input.
fn run(args: &[&str], input: &[u8]) -> Output {
    let mut child = nvlane()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Who reads nothing may be gone already.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// Standard output of what must go well.
#[track_caller]
fn text(args: &[&str], input: &[u8]) -> String {
    let output = run(args, input);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Standard error of what must fail: one line.
#[track_caller]
fn refusal(args: &[&str]) -> String {
    let output = run(args, b"");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
    assert!(said.starts_with("nvlane: ") && said.lines().count() == 1, "{args:?}: {said}");
    said
}

#[test]
fn blocks_are_written_and_read_by_their_dwords() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image").display().to_string();
    fs::write(&image, vec![0; 1 << 20]).unwrap();
    let volume = format!("{image}?bs=512");
    // Block 8, from standard input, which is shorter than the block.
    let write = ["io", &volume, "-O", "1", "-l", "512", "--cdw10", "8", "--prefill", "0x2e"];
    assert_eq!(text(&write, b"hello"), "IO Command Write is Success and result: 0x00000000\n");
    let mut expected = vec![b'.'; 512];
    expected[..5].copy_from_slice(b"hello");
    assert!(fs::read(&image).unwrap()[8 * 512..9 * 512] == expected);

    let read = ["io", &volume, "--opcode=0x02", "--data-len=512", "--cdw10=0x8", "--read"];
    let said = text(&read, b"");
    assert!(said.starts_with("IO Command Read is Success and result: 0x00000000\n"), "{said}");
    assert!(said.contains("0000: 68 65 6c 6c 6f 2e"), "{said}");
    let output = run(&[&read[..], &["-b"]].concat(), b"");
    assert!(output.stdout == expected, "as it came");
    assert!(String::from_utf8_lossy(&output.stderr).contains("is Success"));

    // To and from files.
    let file = dir.path().join("data").display().to_string();
    text(&[&read[..], &["-i", &file]].concat(), b"");
    assert!(fs::read(&file).unwrap() == expected);
    text(&["io", &volume, "-O", "1", "-l", "512", "--cdw10", "9", "-w", "-i", &file], b"");
    assert!(fs::read(&image).unwrap()[9 * 512..10 * 512] == expected);

    let document: Value =
        serde_json::from_str(&text(&[&read[..], &["-o", "json", "-T"]].concat(), b"")).unwrap();
    assert_eq!((&document["queue"], &document["command"]), (&json!("io"), &json!("Read")));
    assert_eq!((&document["success"], &document["result"]), (&json!(true), &json!(0)));
    assert_eq!(document["status"]["words"], "Successful Completion");
    assert_eq!(document["request"]["cdw10"], 8);
    assert!(document["data"].as_str().unwrap().starts_with("68656c6c6f2e"));
    assert!(document["latency_ns"].as_u64().unwrap() > 0);
    let said = text(&[&read[..], &["-s", "-T"]].concat(), b"");
    assert!(said.starts_with("opcode       : 02\n") && said.contains(" latency: "), "{said}");
}

#[test]
fn nothing_is_sent_by_a_dry_run() {
    let said = text(
        &[
            "io",
            "/nothing/there",
            "-O",
            "1",
            "-l",
            "512",
            "-n",
            "1",
            "--cdw10=0x10",
            "--cdw15=7",
            "-t",
            "100",
            "-d",
        ],
        b"",
    );
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 15);
    assert_eq!((lines[0], lines[3]), ("opcode       : 01", "nsid         : 00000001"));
    assert_eq!((lines[8], lines[13]), ("cdw10        : 00000010", "cdw15        : 00000007"));
    assert_eq!((lines[6], lines[14]), ("data_len     : 00000200", "timeout_ms   : 00000064"));
    let document: Value =
        serde_json::from_str(&text(&["admin", "mem:1M", "-O", "6", "-d", "-o", "json"], b""))
            .unwrap();
    assert_eq!((&document["dry_run"], &document["command"]), (&json!(true), &json!("Identify")));
    assert!(document.get("status").is_none());
}

#[test]
fn a_status_is_told_in_words() {
    let said = refusal(&["io", "mem:1M", "-O", "2", "-l", "512", "--cdw10", "2048"]);
    assert!(
        said.contains("mem:1M: IO command Read: LBA Out of Range (SCT 0x0 SC 0x80, do not retry)"),
        "{said}"
    );
    let said = refusal(&["io", "mem:1M", "-O", "0x7d", "-l", "512"]);
    assert!(said.contains("Zone Append: Invalid Command Opcode"), "{said}");
    let said = refusal(&["admin", "mem:1M", "-O", "0xc1"]);
    assert!(said.contains("Admin command Vendor Specific: Invalid Command Opcode"), "{said}");
    let said = refusal(&["io", "mem:1M", "-O", "2", "-l", "513"]);
    assert!(said.contains("Data SGL Length Invalid"), "{said}");
    // A number that Connect has too: a source range of 65,536 blocks is more than MSSRL.
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("list");
    std::fs::write(&list, [[0; 16].as_slice(), &[0xff, 0xff], &[0; 14]].concat()).unwrap();
    let list = list.to_str().unwrap();
    let copy = ["io", "mem:64M", "-O", "0x19", "-l", "32", "-w", "-i", list];
    let said = refusal(&copy);
    assert!(said.contains("Command Size Limit Exceeded (SCT 0x1 SC 0x83"), "{said}");
    // The document is written all the same.
    let output =
        run(&["io", "mem:1M", "-O", "2", "-l", "512", "--cdw10", "2048", "-o", "json"], b"");
    assert_eq!(output.status.code(), Some(1));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let status = &document["status"];
    assert_eq!(
        (&document["success"], &status["words"]),
        (&json!(false), &json!("LBA Out of Range"))
    );
    assert_eq!((&status["type"], &status["code"]), (&json!(0), &json!(0x80)));
    assert_eq!((&status["do_not_retry"], &status["value"]), (&json!(true), &json!(0x4080)));
    assert!(document.get("data").is_none());
}

#[test]
fn what_makes_no_sense_is_told() {
    for (args, words) in [
        (&["io", "mem:1M"][..], "--opcode"),
        (&["io", "mem:1M", "-O", "256"], "`256`"),
        (&["io", "mem:1M", "-O", "2", "-l", "1G"], "`1G`"),
        (&["io", "mem:1M", "-O", "2", "-l", "0x10000000"], "at most"),
        (&["io", "mem:1M", "-O", "2", "-w"], "--write"),
        (&["io", "mem:1M", "-O", "0x80", "-l", "512"], "give --read"),
        (&["io", "mem:1M", "-O", "0x80", "-l", "512", "-w"], "leave --write away"),
        (&["io", "mem:1M", "-O", "2", "-l", "512", "-n", "2"], "is namespace 1"),
        (&["io", "mem:1M", "-O", "2", "--metadata", "file"], "--metadata-len"),
        (&["io", "/nothing/there", "-O", "2", "-l", "512"], "/nothing"),
        (&["io", "mem:1M", "-O", "1", "-l", "512", "-i", "/nothing/there"], "/nothing/there"),
    ] {
        let said = refusal(args);
        assert!(said.contains(words), "{args:?}: {said}");
    }
}

#[test]
fn a_remote_controller_answers_admin_commands() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &["mem:16M", "--nqn", NQN, "--listen", "127.0.0.1:0"]);
    let volume = format!("tcp://{}/{NQN}?ns=1", daemon.listeners[0]);
    let identify = ["admin", &volume, "-O", "6", "-l", "4096", "--cdw10", "1", "-b"];
    let output = run(&identify, b"");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout.len() == 4096, "{said}");
    assert_eq!(&output.stdout[768..][..NQN.len()], NQN.as_bytes());
    // What the association lives on is not for others.
    let said = refusal(&["admin", &volume, "-O", "0x18"]);
    assert!(said.contains("Keep Alive: "), "{said}");
    let said = refusal(&["io", &volume, "-n", "2", "-O", "2", "-l", "512"]);
    assert!(said.contains("is namespace 1"), "{said}");
    let said = text(&["io", &volume, "-n", "1", "-O", "2", "-l", "512"], b"");
    assert!(said.contains("0000: 00 00"), "{said}");
}

#[test]
fn the_doctor_says_what_it_tried() {
    let document: Value = {
        let output = run(&["doctor", "mem:1M", "-o", "json"], b"");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    assert_eq!((&document["healthy"], &document["volume"]), (&json!(true), &json!("mem:1M")));
    let checks = document["checks"].as_array().unwrap();
    let named = |name: &str| {
        let found = checks.iter().find(|check| check["name"] == name);
        found.unwrap_or_else(|| panic!("{name} was not tried: {document}"))
    };
    assert_eq!(
        (&named("volume")["state"], &named("volume")["needed"]),
        (&json!("ok"), &json!(true))
    );
    assert_eq!(named("io_uring")["state"], "ok", "it is allowed where tests run");
    for name in [
        "registered_buffers",
        "registered_files",
        "big_entries",
        "mixed_entries",
        "iopoll",
        "hybrid_iopoll",
        "sqpoll",
        "locked_memory",
        "ublk",
        "bpf",
        "bpf_ring",
        "tls",
        "nbd",
        "aio",
        "aio_drop_in",
    ] {
        let check = named(name);
        let state = check["state"].as_str().unwrap();
        assert!(["ok", "absent"].contains(&state), "{check}");
        assert!(!check["found"].as_str().unwrap().is_empty(), "{check}");
        assert!(state == "absent" || check["mend"].is_null(), "{check}");
    }
    let said = text(&["doctor"], b"");
    assert!(said.lines().next().unwrap().starts_with("ok       io_uring "), "{said}");
}

#[test]
fn the_doctor_fails_for_a_volume_that_does_not_open() {
    let output = run(&["doctor", "/nothing/there"], b"");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.lines().any(|line| line.starts_with("missing  the volume")), "{said}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said, "nvlane: the volume is missing\n");
    let said = refusal_of_doctor(&["doctor", "tcp://127.0.0.1:1/nqn.x:y"]);
    assert!(said.contains("onnection refused"), "{said}");
    // Nothing is made for a look.
    let dir = tempfile::tempdir().unwrap();
    let new = dir.path().join("new");
    let uri = format!("linear:(mem:1M,{}?create&size=1M)", new.display());
    assert!(refusal_of_doctor(&["doctor", &uri]).contains("does not exist") && !new.exists());
}

/// Has every call of io_uring_setup refused in the program, as container runtimes do.
pub fn refuse_io_uring(command: &mut Command) {
    refuse_call(command, libc::SYS_io_uring_setup, libc::EPERM);
}

/// Has every call of one kind refused in the program.
pub fn refuse_call(command: &mut Command, call: libc::c_long, errno: libc::c_int) {
    let jump = |code: u32, k: u32, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let give = libc::BPF_RET | libc::BPF_K;
    // The number of the call comes first in what a filter sees.
    let filter = [
        jump(load, 0, 0, 0),
        jump(equal, call as u32, 0, 1),
        jump(give, libc::SECCOMP_RET_ERRNO | errno as u32, 0, 0),
        jump(give, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    // SAFETY: two system calls, which are allowed between fork and exec; the filter is copied by the second.
    unsafe {
        command.pre_exec(move || {
            let program =
                libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
            let filtered = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
                    == 0;
            if filtered { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
}

#[test]
fn who_refuses_io_uring_is_named_with_the_mend() {
    let mut doctor = nvlane();
    doctor.args(["doctor", "-o", "json"]);
    refuse_io_uring(&mut doctor);
    let output = doctor.output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["healthy"], true);
    let check = &document["checks"][0];
    assert_eq!((&check["name"], &check["state"]), (&json!("io_uring"), &json!("absent")));
    let found = check["found"].as_str().unwrap();
    assert!(found.contains("seccomp") && found.contains("epoll and threads"), "{check}");
    assert!(check["mend"].as_str().unwrap().contains("--security-opt"), "{check}");
    // What only a ring would have is not there either, and its words are the same.
    for check in document["checks"].as_array().unwrap() {
        if ["big_entries", "iopoll", "sqpoll", "registered_files"]
            .iter()
            .any(|name| check["name"] == *name)
        {
            assert_eq!(check["state"], "absent", "{check}");
            assert!(check["found"].as_str().unwrap().contains("seccomp"), "{check}");
        }
    }
    // A filter may refuse one of the calls and let the others pass, and may say that there is none.
    for (call, name) in [
        (libc::SYS_io_uring_setup, "io_uring_setup"),
        (libc::SYS_io_uring_enter, "io_uring_enter"),
        (libc::SYS_io_uring_register, "io_uring_register"),
    ] {
        for errno in [libc::EPERM, libc::ENOSYS] {
            let mut io = nvlane();
            io.args(["io", "mem:1M", "-O", "0"]);
            refuse_call(&mut io, call, errno);
            let output = io.output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(0), "{name} {errno}: {said}");
            assert!(said.contains("WARN") && said.contains(name), "{name} {errno}: {said}");
            assert_eq!(said.lines().count(), 1, "{name} {errno}: {said}");
            assert!(errno == libc::ENOSYS || said.contains("seccomp"), "{name}: {said}");
        }
    }
}

/// What the doctor found where something is missing.
#[track_caller]
fn refusal_of_doctor(args: &[&str]) -> String {
    let output = run(args, b"");
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stdout).unwrap()
}
