//! Maps that outlive the server of a volume: what they say of where data is stays true.

use crate::core::Core;
use crate::program;
use bpf::{MapDefinition, Words};
use namespace::Namespace;
use namespace::layer::program::{Keeper, ProgramError, Replaced};
use nvme::Status;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use volume::OpenOptions;

const BLOCK: usize = 512;

/// Keeps maps in memory of this process, which stands for what outlives it.
#[derive(Debug, Default)]
struct Shelf {
    settled: Mutex<HashMap<String, Words>>,
    made: Mutex<HashMap<String, Words>>,
    has_served: bool,
}

impl Shelf {
    /// What the next server finds.
    fn next(&self) -> Arc<Shelf> {
        let settled = Mutex::new(self.settled.lock().unwrap().clone());
        Arc::new(Shelf { settled, has_served: true, ..Shelf::default() })
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.settled.lock().unwrap().keys().cloned().collect();
        names.sort();
        names
    }
}

impl Keeper for Shelf {
    fn find(&self, _: &[u8], maps: &[&MapDefinition]) -> Result<Option<Vec<Words>>, String> {
        let settled = self.settled.lock().unwrap();
        let found = maps.iter().map(|map| match settled.get(&map.name) {
            Some(words) if words.len() == map.words() => Ok(words.clone()),
            _ => Err(format!("nobody kept {}", map.name)),
        });
        self.has_served.then(|| found.collect()).transpose()
    }

    fn make(&self, _: &[u8], maps: &[&MapDefinition]) -> Result<Vec<Words>, String> {
        let mut made = self.made.lock().unwrap();
        made.clear();
        let new = maps.iter().map(|map| {
            let words: Vec<AtomicU64> = (0..map.words()).map(|_| AtomicU64::new(0)).collect();
            made.insert(map.name.clone(), Words::of(Arc::new(words)));
            made[&map.name].clone()
        });
        Ok(new.collect())
    }

    fn settle(&self, stay: &[&str], note: &dyn Fn() -> Result<(), String>) -> Result<(), String> {
        let made = std::mem::take(&mut *self.made.lock().unwrap());
        note()?;
        let mut settled = self.settled.lock().unwrap();
        settled.retain(|name, _| stay.contains(&name.as_str()));
        settled.extend(made);
        Ok(())
    }
}

fn open(uri: &str, shelf: &Arc<Shelf>) -> Result<Arc<dyn Namespace>, ProgramError> {
    // Files that another volume had are free a moment after that is gone.
    let until = Instant::now() + Duration::from_secs(10);
    let volume = loop {
        match volume::open(uri, &OpenOptions::default()) {
            Err(error) if Instant::now() >= until => panic!("{uri}: {error}"),
            Err(_) => thread::sleep(Duration::from_millis(5)),
            Ok(volume) => break volume,
        }
    };
    let mut outcome = None;
    volume.each_program(&mut |program| outcome = Some(program.keep_maps(Arc::clone(shelf) as _)));
    outcome.expect("there is one").map(|()| volume)
}

fn replace(volume: &dyn Namespace, name: &str) -> Result<Replaced, ProgramError> {
    replace_noted(volume, name, &|| Ok(()))
}

fn replace_noted(
    volume: &dyn Namespace,
    name: &str,
    note: &dyn Fn() -> Result<(), String>,
) -> Result<Replaced, ProgramError> {
    let uri = program(name, "");
    let path = uri.trim_start_matches("bpf:").trim_end_matches("()");
    let object = std::fs::read(path).expect(path);
    let mut outcome = None;
    volume.each_program(&mut |program| {
        outcome = Some(program.replace_noted(&object, path.to_owned(), note));
    });
    outcome.expect("the volume has a program")
}

fn write(volume: &Arc<dyn Namespace>, block: u64, byte: u8) {
    let core = Core::start(Arc::clone(volume));
    assert_eq!(core.write(block, vec![byte; BLOCK], BLOCK), Status::SUCCESS);
}

fn expect(volume: &Arc<dyn Namespace>, block: u64, byte: u8) {
    let answer = Core::start(Arc::clone(volume)).read(block, 1, BLOCK);
    assert_eq!(answer.status, Status::SUCCESS);
    assert_eq!(answer.data, vec![byte; BLOCK], "block {block}");
}

/// Files as backends: they outlive servers, too.
fn files(folder: &TempDir, names: &[&str]) -> String {
    let path = |name: &&str| format!("{}?size=4M&create", folder.path().join(name).display());
    names.iter().map(path).collect::<Vec<_>>().join(",")
}

#[test]
fn what_one_server_wrote_the_next_one_reads() {
    let folder = TempDir::new().unwrap();
    let snapshot = program("snapshot", &files(&folder, &["a", "b"]));
    // An array and variables, one of which has a first value.
    let append = program("tests/append", &files(&folder, &["c"]));
    for uri in [&snapshot, &append] {
        let mut shelf = Arc::new(Shelf::default());
        let mut volume = open(uri, &shelf).expect(uri);
        shelf.settle(&[], &|| Ok(())).unwrap();
        (0..20).for_each(|block| write(&volume, block * 3, 100 + block as u8));
        for round in 0..3 {
            drop(volume);
            shelf = shelf.next();
            volume = open(uri, &shelf).expect(uri);
            for block in 0..20 {
                let byte = if block < round { 200 } else { 100 };
                expect(&volume, block * 3, byte + block as u8);
                expect(&volume, block * 3 + 1, 0);
            }
            write(&volume, round * 3, 200 + round as u8);
        }
    }
}

#[test]
fn maps_that_nobody_can_keep_are_refused() {
    // Those of `maps` are of every kind.
    let maps = program("tests/maps", "mem:192K");
    for uri in [&maps, &format!("delay:1ms({maps})"), &format!("multipath:({maps})")] {
        let said = open(uri, &Arc::default()).expect_err(uri).to_string();
        assert!(said.contains("neither an array nor a variable"), "{said}");
        assert!(said.contains("NVLANE_SETUP does not set NVLANE_MAPS_MAY_GO"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    // Those that may go nobody keeps, of whatever kind they are.
    for name in ["null", "linear", "stripe", "mirror", "statistics", "rate"] {
        let shelf = Arc::<Shelf>::default();
        open(&program(name, "mem:192K"), &shelf).expect(name);
        shelf.settle(&[], &|| Ok(())).unwrap();
        assert_eq!(shelf.names(), [""; 0]);
    }
}

#[test]
fn a_server_does_without_maps_that_the_one_before_did_not_keep() {
    let folder = TempDir::new().unwrap();
    let shelf = Arc::<Shelf>::default();
    let uri = program("linear", &files(&folder, &["a", "b"]));
    drop(open(&uri, &shelf).expect("it has none"));
    shelf.settle(&[], &|| Ok(())).unwrap();
    let uri = program("snapshot", &files(&folder, &["a", "b"]));
    let said = open(&uri, &shelf.next()).expect_err("nobody kept its map").to_string();
    assert!(said.contains("nobody kept written"), "{said}");
}

#[test]
fn maps_stay_kept_when_a_program_takes_anothers_place() {
    let folder = TempDir::new().unwrap();
    let shelf = Arc::<Shelf>::default();
    let uri = program("mirror", &files(&folder, &["a", "b"]));
    let volume = open(&uri, &shelf).expect("it has none");
    shelf.settle(&[], &|| Ok(())).unwrap();
    assert_eq!(replace(&*volume, "snapshot").expect("its map is kept").fresh, ["written"]);
    assert_eq!(shelf.names(), ["written"]);
    write(&volume, 7, 9);
    assert_eq!(replace(&*volume, "snapshot").expect("it fits").kept, ["written"]);
    write(&volume, 8, 10);
    let said = replace(&*volume, "tests/maps").expect_err("it has a hash map").to_string();
    assert!(said.contains("tests/maps") && said.contains("map hash is neither"), "{said}");
    drop(volume);
    let uri = program("snapshot", &files(&folder, &["a", "b"]));
    let volume = open(&uri, &shelf.next()).expect("its map is there");
    expect(&volume, 7, 9);
    expect(&volume, 8, 10);
    expect(&volume, 9, 0);
}

#[test]
fn maps_of_a_program_that_has_gone_are_forgotten() {
    let shelf = Arc::<Shelf>::default();
    let volume = open(&program("mirror", "mem:192K,mem:192K"), &shelf).expect("it has none");
    for _ in 0..2 {
        assert_eq!(replace(&*volume, "snapshot").expect("its map is kept").fresh, ["written"]);
        expect(&volume, 7, 0);
        write(&volume, 7, 9);
        assert_eq!(shelf.names(), ["written"]);
        // What it writes the map does not know.
        assert_eq!(replace(&*volume, "mirror").expect("it has none").dropped, ["written"]);
        assert_eq!(shelf.names(), [""; 0]);
        write(&volume, 7, 0);
    }
}

#[test]
fn variables_stay_when_a_program_takes_its_own_place() {
    let folder = TempDir::new().unwrap();
    let shelf = Arc::<Shelf>::default();
    let uri = program("tests/append", &files(&folder, &["a"]));
    let volume = open(&uri, &shelf).unwrap();
    shelf.settle(&[], &|| Ok(())).unwrap();
    for block in 0..4 {
        write(&volume, block, 1 + block as u8);
        assert_eq!(replace(&*volume, "tests/append").expect("it fits").kept, ["place"]);
        assert_eq!(shelf.names(), [".bss", ".data", "place"]);
    }
    drop(volume);
    let volume = open(&uri, &shelf.next()).expect("all is there");
    (0..4).for_each(|block| expect(&volume, block, 1 + block as u8));
}

#[test]
fn a_program_is_noted_before_it_routes_anything_or_does_not_take_the_place() {
    let shelf = Arc::<Shelf>::default();
    let volume = open(&program("mirror", "mem:192K,mem:192K"), &shelf).expect("it has none");
    write(&volume, 7, 9);
    let before = volume.uri();
    let full = || {
        assert!(volume.uri().contains("snapshot.bpf.o"), "what is noted is the new one");
        Err("no space".to_owned())
    };
    let said = replace_noted(&*volume, "snapshot", &full).expect_err("nobody was told").to_string();
    assert!(said.contains("no space") && said.contains("the old one stays"), "{said}");
    assert_eq!((volume.uri(), shelf.names()), (before, vec![]));
    write(&volume, 8, 10);
    let noted = Mutex::new(String::new());
    let note = || {
        *noted.lock().unwrap() = volume.uri();
        Ok(())
    };
    replace_noted(&*volume, "snapshot", &note).expect("it was");
    assert_eq!(*noted.lock().unwrap(), volume.uri());
    // The mirror has written both.
    (7..9).for_each(|block| expect(&volume, block, 2 + block as u8));
}
