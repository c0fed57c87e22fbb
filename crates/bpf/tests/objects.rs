//! Programs that clang has compiled: that they load, do what C says, and are stopped where they must be.

use bpf::actions::{self, Asked, MisuseKind};
use bpf::request::{Backend, Request};
use bpf::{Entry, Fault, FaultKind, Instance, Machine, MapKind, Words, load};
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::IntoBytes;

const WRITE: u8 = 1;
const READ: u8 = 2;
const EXAMPLES: [&str; 8] =
    ["null", "linear", "stripe", "mirror", "statistics", "snapshot", "rate", "thin"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf")
}

fn machine_of(object: &[u8], core: u32, cores: usize) -> Machine {
    let instance = Instance::new(load(object).expect("it loads"), cores).expect("its maps fit");
    Machine::new(Arc::new(instance), core, 1)
}

fn machine(name: &str) -> Machine {
    machine_of(&std::fs::read(folder().join(format!("{name}.bpf.o"))).expect(name), 0, 1)
}

fn request(op: u8, start: u64, blocks: u32) -> Request {
    let mut request =
        Request { op, start, blocks, block_shift: 9, backends: 2, ..Request::default() };
    request.device_blocks = 4096;
    request.backend[..2].fill(Backend { blocks: 2048, ..Backend::default() });
    request
}

fn run(machine: &mut Machine, entry: Entry, request: &mut Request) -> Result<u64, Fault> {
    machine.run(entry, request.as_mut_bytes(), &|| 12345)
}

#[test]
fn maps_variables_atomics_and_calls_are_as_in_c() {
    let mut machine = machine("tests/maps");
    let route = machine.instance().program().route();
    for round in 1..=3 {
        let mut request = request(READ, 0, 10);
        assert_eq!(run(&mut machine, route, &mut request), Ok(0));
        assert_eq!((request.state[0], request.state[1]), (0, 1), "a bit is a check that failed");
        let own = machine.instance().maps().iter().find(|map| map.definition().name == "own");
        let own = own.expect("it is declared");
        assert_eq!(own.definition().kind, MapKind::PerCoreArray);
        let mut told = Vec::new();
        own.entries(|key, values| told.push((key.to_vec(), values.to_vec())));
        assert_eq!(told, [(vec![1, 0, 0, 0], vec![u64::to_le_bytes(round).to_vec()])]);
    }
}

#[test]
fn cores_have_their_own_entries_of_per_core_arrays() {
    let object = std::fs::read(folder().join("tests/maps.bpf.o")).expect("it is there");
    let instance = Arc::new(Instance::new(load(&object).expect("it loads"), 3).expect("it fits"));
    for core in 0..3 {
        let mut machine = Machine::new(Arc::clone(&instance), core, 1);
        let mut request = request(READ, 0, 10);
        let route = instance.program().route();
        assert_eq!(run(&mut machine, route, &mut request), Ok(0));
        assert_eq!(request.state[0], 0);
    }
    let own = instance.maps().iter().find(|map| map.definition().name == "own").expect("declared");
    let mut told = Vec::new();
    own.entries(|_, values| told.extend_from_slice(values));
    assert_eq!(told, [1_u64, 2, 3].map(|count| count.to_le_bytes().to_vec()));
}

#[test]
fn what_reaches_beyond_its_memory_is_stopped_where_it_does() {
    let mut machine = machine("tests/hostile");
    let route = machine.instance().program().route();
    let source =
        std::fs::read_to_string(folder().join("tests/hostile.bpf.c")).expect("it is there");
    for (number, kinds) in [
        (1, &[FaultKind::Budget][..]),
        (2, &[FaultKind::Wild]),
        (3, &[FaultKind::Wild]),
        (4, &[FaultKind::OutOfBounds, FaultKind::Wild]),
        (5, &[FaultKind::OutOfBounds]),
        (6, &[FaultKind::OutOfBounds]),
        (7, &[FaultKind::OutOfBounds]),
        (8, &[FaultKind::ReadOnly]),
        (9, &[FaultKind::TooDeep]),
        (26, &[FaultKind::NoMap]),
        (27, &[FaultKind::Wild]),
    ] {
        let ran = run(&mut machine, route, &mut request(READ, number, 4));
        let fault = ran.expect_err(&format!("case {number} is stopped"));
        assert!(kinds.contains(&fault.kind), "case {number}: {}", fault.kind);
        let place = machine.instance().program().locate(fault.instruction);
        let (file, line) = place.line.clone().expect("compiled with -g");
        assert_eq!(file, "hostile.bpf.c");
        let lines: Vec<&str> = source.lines().collect();
        let label = format!("case {number}:");
        let case =
            lines.iter().position(|text| text.contains(&label)).expect("it has a case") as u32;
        let within = (case + 1..=case + 4).contains(&line) || place.function == "deeper";
        assert!(within, "case {number} fails at {place}");
    }
    assert_eq!(run(&mut machine, route, &mut request(READ, 0, 4)), Ok(0), "the next is well");
}

#[test]
fn wrong_lists_of_actions_are_refused() {
    let mut machine = machine("tests/hostile");
    let route = machine.instance().program().route();
    for (number, kind) in [
        (11, MisuseKind::CompletedTwice),
        (12, MisuseKind::CompletedWithParts),
        (13, MisuseKind::Backend(0)),
        (14, MisuseKind::Block(0)),
        (15, MisuseKind::Length(0)),
        (16, MisuseKind::Operation(0)),
        (17, MisuseKind::Missing),
        (18, MisuseKind::ReadTwice),
        (19, MisuseKind::TooManyParts),
        (20, MisuseKind::TooManyParts),
        (21, MisuseKind::Status),
        (22, MisuseKind::Delay),
        (23, MisuseKind::Deferred),
    ] {
        let mut request = request(READ, number, 4);
        assert_eq!(run(&mut machine, route, &mut request), Ok(0), "case {number}");
        let asked = Asked {
            op: READ,
            blocks: 4,
            sizes: &[2048, 2048],
            phase: 0,
            is_whole: false,
            may_defer: false,
        };
        let misuse = actions::check(&request, &asked).expect_err("refused");
        assert_eq!(misuse.kind, kind, "case {number}");
        let place = machine.instance().program().place_of_line(route, misuse.line);
        assert!(number == 20 || place.to_string().contains("hostile.bpf.c:"), "{place}");
    }
    let given_up = run(&mut machine, route, &mut request(READ, 24, 4));
    assert_eq!(given_up.map(|result| result as i32), Ok(-5));
}

/// What the kernel refuses of these shows in tests/guest/ublk_bpf.sh.
#[test]
fn wrong_writes_are_refused() {
    let mut machine = machine("tests/hostile");
    let route = machine.instance().program().route();
    for (number, wrong) in [
        (40, Some(MisuseKind::Missing)),
        (48, Some(MisuseKind::Overlap(0, 1))),
        (56, None),
        (64, Some(MisuseKind::Block(0))),
    ] {
        let mut request = request(WRITE, number, 8);
        assert_eq!(run(&mut machine, route, &mut request), Ok(0), "case {number}");
        let asked = Asked {
            op: WRITE,
            blocks: 8,
            sizes: &[2048, 2048],
            phase: 0,
            is_whole: false,
            may_defer: false,
        };
        let checked = actions::check(&request, &asked);
        assert_eq!(checked.err().map(|misuse| misuse.kind), wrong, "case {number}");
    }
}

#[test]
fn a_map_that_is_shared_keeps_what_it_holds_and_is_nobodys_to_keep() {
    let object = std::fs::read(folder().join("tests/deferred.bpf.o")).expect("an object");
    let mut instance = Instance::new(load(&object).expect("it loads"), 1).expect("its maps fit");
    let number = instance.maps().iter().position(|map| map.definition().name == ".data");
    let number = number.expect("it has variables");
    let held = |instance: &Instance| {
        let mut held = Vec::new();
        instance.maps()[number].entries(|_, values| held.extend_from_slice(&values[0]));
        held
    };
    let before = held(&instance);
    assert!(before.iter().any(|byte| *byte != 0));
    let words = instance.maps()[number].definition().words();
    let fresh = |value| (0..words).map(|_| AtomicU64::new(value)).collect::<Vec<_>>();
    let words = Words::of(Arc::new(fresh(9)));
    instance.share(number, words.clone());
    let map = &instance.maps()[number];
    assert!(map.is_elsewhere() && !map.is_kept());
    assert_eq!(held(&instance), before);
    words[0].store(3, Ordering::Relaxed);
    assert_eq!(held(&instance)[..8], 3_u64.to_le_bytes());
    instance.keep(number, Words::of(Arc::new(fresh(0))), true);
    assert!(instance.maps()[number].is_kept());
    assert_eq!(held(&instance)[..8], 3_u64.to_le_bytes());
}

/// The examples are to be read, and to be what this list says that they are.
#[test]
fn examples_are_short() {
    const LINES_MAX: usize = 60;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder()).expect("the folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        let Some(example) = name.strip_suffix(".bpf.c") else { continue };
        let text = std::fs::read_to_string(&path).expect("a text");
        let lines = text.lines().count();
        assert!(lines < LINES_MAX, "{name} has {lines} lines: fewer than {LINES_MAX} are wanted");
        assert!(
            text.contains(&format!("bpf:{example}.bpf.o(")),
            "{name} does not say how it is used"
        );
        names.push(example.to_owned());
    }
    names.sort();
    let mut examples = EXAMPLES;
    examples.sort_unstable();
    assert_eq!(names, examples);
}

/// Where there is a clang, the sources are what was committed as objects: both do the same.
#[test]
fn committed_objects_do_what_their_sources_say() {
    let versions = ["clang-19", "clang"];
    let is_there = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    let Some(clang) = versions.into_iter().find(is_there) else {
        eprintln!("no clang is installed to compile what to compare with: not run");
        return;
    };
    let place = std::env::temp_dir().join(format!("nvlane-bpf-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a directory");
    for name in EXAMPLES.iter().copied().chain(["tests/maps", "tests/hostile", "tests/deferred"]) {
        let object = place.join("made.o");
        let made = Command::new(clang)
            .args(["-O2", "-g", "--target=bpf", "-mcpu=v3", "-c", "-o"])
            .arg(&object)
            .arg(folder().join(format!("{name}.bpf.c")))
            .status();
        assert!(made.expect("clang runs").success(), "{name}");
        let mut fresh = machine_of(&std::fs::read(&object).expect("it was made"), 0, 1);
        let mut kept = machine(name);
        assert_eq!(kept.instance().program().maps(), fresh.instance().program().maps(), "{name}");
        for (op, start) in [(0, 0), (1, 17), (1, 48), (2, 2040), (2, 30), (8, 2047), (9, 100)] {
            let (mut ours, mut theirs) = (request(op, start, 10), request(op, start, 10));
            let (kept_at, fresh_at) =
                (kept.instance().program().route(), fresh.instance().program().route());
            let results =
                (run(&mut kept, kept_at, &mut ours), run(&mut fresh, fresh_at, &mut theirs));
            let what = |result: Result<u64, Fault>| result.map_err(|fault| fault.kind);
            assert_eq!(what(results.0), what(results.1), "{name}");
            assert_eq!(ours, theirs, "{name}: make -C bpf");
        }
    }
    std::fs::remove_dir_all(&place).expect("it was ours");
}

proptest! {
    /// Whatever the bytes of the code are, they load or not, and run or not, and nothing else happens.
    #[test]
    fn changed_objects_do_no_harm(
        name in prop::sample::select(vec!["linear", "snapshot", "tests/maps"]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let mut object = std::fs::read(folder().join(format!("{name}.bpf.o"))).expect(name);
        for (at, byte) in changes {
            let at = at.index(object.len());
            object[at] = byte;
        }
        if let Ok(Ok(instance)) = load(&object).map(|program| Instance::new(program, 2)) {
            let mut machine = Machine::new(Arc::new(instance), 1, 1);
            let route = machine.instance().program().route();
            let mut request = request(READ, 40, 10);
            if run(&mut machine, route, &mut request).is_ok() {
                let asked = Asked { op: READ, blocks: 10, sizes: &[2048, 2048], phase: 0, is_whole: false, may_defer: false };
                let _ = actions::check(&request, &asked);
            }
        }
    }
}
