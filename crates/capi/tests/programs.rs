//! C programs on the library: every call, and the examples; compiled with the system's compiler, with warnings as
//! errors, and run. The calls also with the address and undefined-behaviour sanitizers, which stand in for the library's
//! allocator too: they see what it leaks and uses after it was freed. (valgrind 3.19 stops all threads while one
//! waits in io_uring_enter, so that a library with threads of its own cannot run under it.)

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use target::{NamespaceOptions, Server, ServerConfig, SubsystemConfig};
use volume::OpenOptions;

/// The folder of this repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder with libnvlane.so, which cargo makes along with this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let folder = test.parent().expect("a folder").to_owned();
    assert!(folder.join("libnvlane.so").exists(), "no libnvlane.so in {}", folder.display());
    // The name that programs look for; another test may have made it just now.
    let _ = std::os::unix::fs::symlink("libnvlane.so", folder.join("libnvlane.so.0"));
    folder
}

/// Compiles a program into `folder`.
fn compiled(source: &Path, folder: &Path) -> PathBuf {
    compiled_with(source, folder, &[])
}

/// The same with further options.
fn compiled_with(source: &Path, folder: &Path, options: &[&str]) -> PathBuf {
    let program = folder.join(source.file_stem().expect("a name"));
    let mut command = Command::new("cc");
    command
        .args(["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args(options)
        .arg("-I");
    command.arg(repository().join("crates/capi/include")).arg(source).arg("-o").arg(&program);
    command.arg("-L").arg(library()).arg("-lnvlane");
    let output = command.output().expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// The program with every call.
fn compiled_calls(folder: &Path, options: &[&str]) -> PathBuf {
    let sources = repository().join("crates/capi/tests/c");
    let copies = sources.join("copies.c");
    let copies = copies.to_str().expect("a path");
    compiled_with(&sources.join("calls.c"), folder, &[options, &[copies]].concat())
}

fn run(mut command: Command) -> Output {
    command.env("LD_LIBRARY_PATH", library());
    command.output().expect("it runs")
}

fn example(name: &str, folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let program = compiled(&repository().join("examples/c").join(name), folder);
    let mut command = Command::new(program);
    command.args(arguments);
    let output = run(command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A target in this process with two namespaces of memory, the second of which takes 5 ms for everything: what keeps it
/// running, and their URIs, and that of the second by two paths.
fn served() -> (Server, [String; 3]) {
    const NQN: &str = "nqn.2026-11.org.example:calls";
    let server = Server::start(&ServerConfig::default()).expect("a server");
    let subsystem = SubsystemConfig {
        nqn: NQN.into(),
        serial: "calls".into(),
        model: "nvlane".into(),
        allow_any_host: true,
        hosts: Vec::new(),
        io_queues_max: 4,
        fused: true,
    };
    server.add_subsystem(subsystem).expect("a subsystem");
    for (nsid, uri) in [(1, "mem:1M?bs=4096"), (2, "delay:5ms(mem:1M?bs=4096)")] {
        let volume = volume::open(uri, &OpenOptions::default()).expect("memory");
        let uuid = [0x42 + nsid as u8; 16];
        let options = NamespaceOptions { nsid: Some(nsid), uuid, nguid: [0; 16], ana_group: 1 };
        server.add_namespace(NQN, &options, volume).expect("a namespace");
    }
    let listener = || server.add_listener(([127, 0, 0, 1], 0).into()).expect("a listener").1;
    let (a, b) = (listener(), listener());
    let uris = [
        format!("tcp://{a}/{NQN}?ns=1"),
        format!("tcp://{a}/{NQN}?ns=2"),
        format!("tcp://{a},{b}/{NQN}?ns=2&policy=round-robin"),
    ];
    (server, uris)
}

/// Whether this process may lock as much memory as it likes, so that the kernel registers all buffers.
fn locks_freely() -> bool {
    const IPC_LOCK: u64 = 1 << 14;
    let read = |name| std::fs::read_to_string(Path::new("/proc/self").join(name)).expect(name);
    let effective = read("status")
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    // The kernel asks for the capability on the machine, not in a container with users of its own.
    let is_machines = read("uid_map").split_whitespace().eq(["0", "0", "4294967295"]);
    let limits = read("limits");
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    // The limit that holds, not the one up to which it may be raised.
    let is_unlimited = limit.is_some_and(|line| line.trim_start().starts_with("unlimited"));
    is_unlimited || is_machines && effective.is_some_and(|them| them & IPC_LOCK != 0)
}

/// The program with every call, on namespaces that are served, before it runs.
fn calls(program: &Path, folder: &Path, remotes: [String; 3]) -> Command {
    let mut command = Command::new(program);
    command.arg(folder).args(remotes);
    if locks_freely() {
        command.env("LOCKS_FREELY", "1");
    }
    command
}

#[test]
fn every_call_does_what_it_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, remotes) = served();
    let program = compiled_calls(folder.path(), &[]);
    let output = run(calls(&program, folder.path(), remotes));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("all calls behave"), "{said}");
}

#[test]
fn every_call_does_what_it_says_without_io_uring() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, remotes) = served();
    let program = compiled_calls(folder.path(), &[]);
    let mut calls = calls(&program, folder.path(), remotes);
    // No memory is registered with it, whatever may be locked.
    calls.env("NVLANE_IO_URING", "off").env_remove("LOCKS_FREELY");
    let output = run(calls);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("all calls behave"), "{said}");
}

#[test]
fn nothing_is_leaked_and_nothing_freed_is_used() {
    const SANITIZERS: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let folder = tempfile::tempdir().expect("a folder");
    let empty = folder.path().join("empty.c");
    std::fs::write(&empty, "int main(void) { return 0; }\n").expect("a file");
    let mut probe = Command::new("cc");
    probe.args(SANITIZERS).arg(&empty).arg("-o").arg(folder.path().join("empty"));
    if !probe.output().is_ok_and(|output| output.status.success()) {
        println!("this compiler has no sanitizers: not run");
        return;
    }
    let program = compiled_calls(folder.path(), SANITIZERS);
    let (_server, remotes) = served();
    let mut command = calls(&program, folder.path(), remotes);
    command.env("ASAN_OPTIONS", "detect_leaks=1:fast_unwind_on_malloc=0");
    let output = run(command);
    let said = String::from_utf8_lossy(&output.stdout);
    let found = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("all calls behave"), "{said}\n{found}");
}

#[test]
fn the_header_serves_cpp_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("program.cpp");
    let text =
        "#include <nvlane.h>\nint main() { nvl_command command = {}; return command.opcode; }\n";
    std::fs::write(&source, text).expect("a file");
    if Command::new("c++").arg("--version").output().is_err() {
        println!("no C++ compiler is installed: not run");
        return;
    }
    let mut command = Command::new("c++");
    command.args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]);
    let output = command.arg(repository().join("crates/capi/include")).arg(&source).output();
    let output = output.expect("it was just there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_passthrough_example_reads_any_volume() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("image").display().to_string();
    std::fs::write(&image, vec![1; 1 << 20]).expect("a file");
    let file = format!("{image}?bs=4096");
    for (volume, bytes, sum) in [("mem:1M", 512, 0), (file.as_str(), 4096, 64 * 4096)] {
        let (code, out, error) = example("passthrough.c", folder.path(), &[volume]);
        assert_eq!(code, Some(0), "{volume}: {error}");
        assert_eq!(out, format!("read 64 blocks of {bytes} bytes, sum of their bytes {sum}\n"));
    }
    let (code, _, error) = example("passthrough.c", folder.path(), &["/nothing/there"]);
    assert!(code == Some(1) && error.contains("/nothing"), "{error}");
}

#[test]
fn the_poll_example_sleeps_in_a_loop_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("image").display().to_string();
    std::fs::write(&image, vec![1; 1 << 20]).expect("a file");
    let (_server, [remote, slow_remote, two_paths]) = served();
    let volumes = [
        ("mem:1M?bs=4096".to_owned(), 0),
        (format!("{image}?bs=4096"), 64 * 4096),
        ("delay:5ms(mem:1M?bs=4096)".to_owned(), 0),
        (remote, 0),
        (slow_remote, 0),
        (two_paths, 0),
    ];
    for (volume, sum) in volumes {
        let (code, out, error) = example("poll.c", folder.path(), &[&volume]);
        assert_eq!(code, Some(0), "{volume}: {error}");
        assert_eq!(out, format!("read 64 blocks of 4096 bytes, sum of their bytes {sum}\n"));
        // Eight times eight commands took 5 ms each, while the clock went on.
        let ticks = error.split_once(' ').and_then(|(ticks, _)| ticks.parse::<u32>().ok());
        assert!(!volume.contains("delay:") || ticks >= Some(10), "{volume}: {error}");
    }
    let (code, _, error) = example("poll.c", folder.path(), &["/nothing/there"]);
    assert!(code == Some(1) && error.contains("/nothing"), "{error}");
}

#[test]
fn volumes_without_zones_or_vendors_say_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let (code, out, error) = example("zone_append.c", folder.path(), &["mem:1M"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(
        error.starts_with("zone_append: Zone Append: Invalid Command Opcode (SCT 0x0 SC 0x01"),
        "{error}"
    );
    let (code, out, error) = example("vendor.c", folder.path(), &["mem:1M", "0x92", "0xc2"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    for queue in ["I/O command 0x92", "admin command 0xc2"] {
        assert!(error.contains(&format!("vendor: {queue}: Invalid Command Opcode")), "{error}");
    }
}

/// Both kinds at once need a device, whose controller knows commands for no namespace: see `guest/library`.
#[test]
fn the_vendor_example_tells_a_command_that_succeeds_from_one_that_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, [remote, ..]) = served();
    for volume in ["mem:1M?bs=4096", &remote] {
        let (code, out, error) = example("vendor.c", folder.path(), &[volume, "0x02", "0xc2"]);
        assert_eq!((code, out.as_str()), (Some(1), "I/O command 0x02: result 0\n"), "{error}");
        let words = "vendor: admin command 0xc2: Invalid Command Opcode";
        assert!(error.starts_with(words) && error.lines().count() == 1, "{volume}: {error}");
    }
}

#[test]
fn the_copy_example_copies_a_volume_to_several() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let bytes: Vec<u8> = (0..40u32 << 20 >> 2).flat_map(u32::to_le_bytes).collect();
    std::fs::write(path("a"), &bytes).expect("a file");
    let (b, c) = (format!("file:{}?size=40M&create", path("b")), path("c"));
    std::fs::write(&c, vec![0xff; 40 << 20]).expect("a file");
    let (code, out, error) = example("copy.c", folder.path(), &[&path("a"), &b, &c]);
    assert_eq!((code, out.as_str()), (Some(0), "copied 81920 blocks to 2 volume(s)\n"), "{error}");
    for name in ["b", "c"] {
        assert!(std::fs::read(path(name)).expect("a file") == bytes, "{name}: other bytes");
    }
    let (code, _, error) = example("copy.c", folder.path(), &[&path("a"), "mem:1M"]);
    assert!(code == Some(1) && error.contains("LBA Out of Range"), "{error}");
}
