//! The examples, run on volumes that need no device: what they can do there, and what they say of what they cannot.

use std::process::Command;

/// Exit status, standard output, standard error.
fn example(name: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let test = std::env::current_exe().expect("a path");
    let folder = test.parent().and_then(|deps| deps.parent()).expect("a folder");
    let program = folder.join("examples").join(name);
    assert!(
        program.exists(),
        "{}: run `cargo test -p volume`, which builds examples",
        program.display()
    );
    let output = Command::new(program).args(arguments).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn passthrough_reads_any_volume_and_so_does_a_loop_of_the_programs_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("image").display().to_string();
    std::fs::write(&image, vec![1; 1 << 20]).expect("a file");
    let file = format!("{image}?bs=4096");
    let delayed = format!("delay:20ms({file})");
    for name in ["passthrough", "poll"] {
        for (volume, bytes, sum) in
            [("mem:1M", 512, 0), (&*file, 4096, 64 * 4096), (&*delayed, 4096, 64 * 4096)]
        {
            let (code, out, error) = example(name, &[volume]);
            assert_eq!(code, Some(0), "{volume}: {error}");
            assert_eq!(out, format!("read 64 blocks of {bytes} bytes, sum of their bytes {sum}\n"));
        }
        let (code, _, error) = example(name, &["/nothing/there"]);
        assert!(code == Some(1) && error.contains("/nothing"), "{error}");
    }
}

#[test]
fn volumes_without_zones_say_so() {
    let (code, out, error) = example("zone_append", &["mem:1M"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(error.contains("Zone Append: Invalid Command Opcode (SCT 0x0 SC 0x01"), "{error}");
}

#[test]
fn volumes_that_know_no_vendor_say_so() {
    let (code, out, error) = example("vendor", &["mem:1M", "0x92", "0xc2"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    for queue in ["I/O command 0x92", "admin command 0xc2"] {
        assert!(error.contains(&format!("{queue}: Invalid Command Opcode")), "{error}");
    }
}

/// Both kinds at once need a device, or a target: see `guest/library`.
#[test]
fn a_vendors_command_that_succeeds_is_told_apart_from_one_that_fails() {
    let (code, out, error) = example("vendor", &["mem:1M?bs=4096", "0x02", "0xc2"]);
    assert_eq!((code, out.as_str()), (Some(1), "I/O command 0x02: result 0x0\n"), "{error}");
    assert!(error.starts_with("admin command 0xc2: Invalid Command Opcode"), "{error}");
}

#[test]
fn a_volume_is_copied_to_several() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let bytes: Vec<u8> = (0..40u32 << 20 >> 2).flat_map(u32::to_le_bytes).collect();
    std::fs::write(path("a"), &bytes).expect("a file");
    let (b, c) = (format!("file:{}?size=40M&create", path("b")), path("c"));
    std::fs::write(&c, vec![0xff; 40 << 20]).expect("a file");
    let (code, out, error) = example("copy", &[&path("a"), &b, &c]);
    assert_eq!((code, out.as_str()), (Some(0), "copied 81920 blocks to 2 volume(s)\n"), "{error}");
    for name in ["b", "c"] {
        assert!(std::fs::read(path(name)).expect("a file") == bytes, "{name}: other bytes");
    }
    let (code, _, error) = example("copy", &[&path("a"), "mem:1M"]);
    assert!(code == Some(1) && error.contains("LBA Out of Range"), "{error}");
}
