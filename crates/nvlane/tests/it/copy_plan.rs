//! `nvlane copy --dry-run`: it says what the copy would do, and refuses what the copy would refuse.

use crate::copy::{copy, done, file, line, pattern, said};
use serde_json::Value;
use std::fs;

const M: u64 = 1 << 20;

#[test]
fn a_plan_refuses_what_the_copy_would() {
    let dir = tempfile::tempdir().unwrap();
    let (a, full) = (file(dir.path(), "a", &pattern(2 << 20, 1)), vec![0xaa; 4 << 20]);
    let b = file(dir.path(), "b", &full);
    let (large, within) = (format!("{b}?bs=4096"), format!("{a}@+1M"));
    let overlap = format!("{a}@512K");
    let cases: [(&[&str], &str); 2] = [
        (&[&a, &large, "--fast-only"], "512 and 4096"),
        (&[&within, &overlap, "--verify"], "leave out --verify"),
    ];
    for (args, part) in cases {
        let both = [said(args), said(&[args, &["-n"]].concat())];
        assert!(both[0].contains(part) && both[0] == both[1], "{both:?}");
    }
    // What is found out on the way only is told beside the plan.
    let apart = format!("linear:({b},mem:4M)@3M");
    let output = copy(&[&a, &apart, "--fast-only", "-n", "-o", "json"]);
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["parts"].as_array().unwrap().len(), 2, "{plan}");
    let line = line(&output);
    assert!(line.contains("1 MiB would be read and written: leave out --fast-only"), "{line}");
    assert!(said(&[&a, &apart, "--fast-only"]).contains("Fast Copy Not Possible"));
    let fast = copy(&[&within, &format!("{b}@{M}"), "--fast-only", "-n"]);
    assert!(fast.status.success(), "{}", String::from_utf8_lossy(&fast.stderr));
    assert!(fs::read(&b).unwrap()[..3 << 20] == full[..3 << 20], "written all the same");
}

#[test]
fn files_are_made_by_copies_only() {
    let dir = tempfile::tempdir().unwrap();
    let a = file(dir.path(), "a", &pattern(2 << 20, 1));
    let [b, c] = ["b", "c"].map(|name| dir.path().join(name).display().to_string());
    let entries = || fs::read_dir(dir.path()).unwrap().count();
    let both = format!("linear:(mem:1M,{c}?create&size=2M)");
    let args = [&a, &format!("{b}@1M"), "--also", &both, "--create"];
    let output = copy(&[&args[..], &["-n", "-o", "json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    let part = |at: usize, field: &str| plan["parts"][at][field].to_string();
    assert!(part(0, "target").contains(&format!("file:{b}?bs=")), "{plan}");
    assert!(part(0, "means").contains("copy_file_range"), "{plan}");
    assert!(part(2, "target").contains(&format!("file:{c}?bs=")), "{plan}");
    assert_eq!(entries(), 1, "made by a dry run");
    // Refused when the volumes are open, and by one of them after another was made.
    let (beyond, large) = (format!("{a}@3M"), format!("{b}?bs=4096"));
    let cases: [(&[&str], &str); 3] = [
        (&[&beyond, &b, "--create"], "not within"),
        (&[&a, &large, "--create", "--fast-only"], "512 and 4096"),
        (&[&a, &b, "--also", "/not/there/x", "--create"], "/not/there"),
    ];
    for (args, part) in cases {
        let line = said(args);
        assert!(line.contains(part), "{args:?}: {line}");
        assert_eq!(entries(), 1, "{args:?}: made for nothing");
    }
    // In the same words.
    let again = format!("{b}?bs=512");
    let short = format!("linear:({b}?create&size=1000,mem:1M)");
    let cases: [(&[&str], &str); 3] = [
        (&[&a, "/not/there/x", "--create"], "the directory /not/there does not exist"),
        (&[&a, &b, "--also", &again, "--create"], "name it the same way both times"),
        (&[&a, &short, "--create"], "1000 is not aligned"),
    ];
    for (args, part) in cases {
        let both = [said(args), said(&[args, &["-n"]].concat())];
        assert!(both[0].contains(part) && both[0] == both[1], "{both:?}");
        assert_eq!(entries(), 1, "{args:?}: made for nothing");
    }
    done(&args);
    assert_eq!((fs::metadata(&b).unwrap().len(), entries()), (3 * M, 3));
    // As large as what is written there last in it, whatever comes first.
    let d = dir.path().join("d").display().to_string();
    done(&[&a, &d, "--also", &format!("{d}@4M"), "--create"]);
    let (once, twice) = (fs::read(&a).unwrap(), fs::read(&d).unwrap());
    assert!(twice.len() == 6 << 20 && twice[..2 << 20] == once && twice[4 << 20..] == once);
}

#[test]
fn what_is_copied_to_null_is_fast_behind_layers_too() {
    let args = ["mem:1M", "rate:1G(null:1M)", "--fast-only"];
    assert_eq!(done(&args)["offloaded_bytes"], M);
    assert!(copy(&[&args[..], &["-n"]].concat()).status.success());
}

#[test]
fn a_plan_in_words_has_sizes_and_their_sum() {
    let dir = tempfile::tempdir().unwrap();
    let a = file(dir.path(), "a", &pattern(2 << 20, 1));
    let args = [&format!("{a}@1M"), &a, "mem:8M@1536", "--also", "mem:8M@4M", "-n"];
    let output = copy(&args);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        " 1 MiB ",
        " 2 MiB ",
        " 1.50 KiB ",
        " 1050112 B ",
        "\n3 MiB in all, to each of 2 targets\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
