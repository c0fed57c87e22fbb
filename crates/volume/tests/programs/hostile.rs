//! What a broken program does costs its own requests an I/O error, and a line in the log.

use crate::core::{Core, read};
use crate::program;
use nvme::Status;
use std::io::Write;
use std::sync::{Arc, Mutex};
use tracing_subscriber::fmt::MakeWriter;
use volume::OpenOptions;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nobody panics with it").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

fn open(uri: &str) -> Core {
    Core::start(volume::open(uri, &OpenOptions::default()).expect(uri))
}

#[test]
fn requests_fail_the_device_lives_on_and_the_log_tells() {
    let log = Log::default();
    tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone()).init();
    let uri = program("tests/hostile", "mem:64K");
    let mut told = 0;
    for number in (1..=24).chain([26, 27, 29]) {
        // A fresh device each: its first mistake is always told.
        let core = open(&uri);
        assert_eq!(core.write(number, vec![7; 4 * 512], 512), Status::SUCCESS);
        let answer = core.read(number, 4, 512);
        assert_eq!(answer.status.code(), Status::INTERNAL, "case {number}");
        let lines = String::from_utf8(log.0.lock().expect("no panic").clone()).expect("text");
        let new = &lines[told..];
        assert!(
            new.contains("hostile.bpf.o") && new.contains("nvlane_route instruction")
                || new.contains("deeper instruction")
                || new.contains("nvlane_done instruction"),
            "case {number}: {new}"
        );
        told = lines.len();
        assert_eq!(core.read(40, 4, 512).status, Status::SUCCESS, "others are well");
        assert_eq!(core.flush(), Status::SUCCESS);
        for number in [25, 28] {
            assert_eq!(core.read(number, 4, 512).status, Status::SUCCESS, "strange, and harmless");
        }
    }
    let uri = program("tests/deferred", "mem:2M,mem:2M");
    for (at, words) in [
        (0, "there is no NVLANE_DEFERRED, or it was that one"),
        (8, "the program returned 5"),
        (16, "no action was taken"),
        (24, "an address that is neither the stack"),
        (32, "more than 65536 instructions"),
    ] {
        let core = open(&uri);
        assert_eq!(core.read(1024 + at, 1, 512).status.code(), Status::INTERNAL, "block {at}");
        let lines = String::from_utf8(log.0.lock().expect("no panic").clone()).expect("text");
        let new = &lines[told..];
        assert!(new.contains("nvlane_deferred instruction") && new.contains(words), "{new}");
        told = lines.len();
    }
}

#[test]
fn what_does_not_go_together_is_refused_when_it_is_opened() {
    let refused = |uri: &str| match volume::open(uri, &OpenOptions::default()) {
        Ok(_) => panic!("{uri} was opened"),
        Err(error) => error.to_string(),
    };
    let one = refused(&program("snapshot", "mem:1M"));
    assert!(one.contains("NVLANE_SETUP refuses these volumes: it returned 1"), "{one}");
    let blocks = refused(&program("linear", "mem:1M,mem:1M?bs=4096"));
    assert!(blocks.contains("blocks of 512 and 4096 bytes"), "{blocks}");
    let many = refused(&program("linear", &vec!["mem:64K"; 17].join(",")));
    assert!(many.contains("1 to 16 volumes"), "{many}");
    assert!(refused("bpf:/nowhere.o(mem:1M)").contains("cannot read the program /nowhere.o"));
    // Neither is read to its end.
    let endless = refused("bpf:/dev/zero(mem:1M)");
    assert!(endless.contains("cannot read the program /dev/zero: it is a device"), "{endless}");
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.bpf.o");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let waiting = refused(&format!("bpf:{}(mem:1M)", pipe.display()));
    assert!(waiting.contains("it is a pipe, not an object file"), "{waiting}");
    let source = program("linear", "mem:1M").replace(".bpf.o", ".bpf.c");
    assert!(refused(&source).contains("not a proper object file"), "{}", refused(&source));
    assert!(refused("bpf:(mem:1M)").contains("a path is missing"));
}

#[test]
fn a_read_that_asks_for_lent_memory_gets_it_through_one_part() {
    let core = open(&program("linear", "mem:64K"));
    let answer = core.run(crate::core::Order { lend: true, ..read(3, 4, 512) });
    assert!(answer.lent && answer.status.is_success());
}
