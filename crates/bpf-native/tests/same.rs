//! Code does what the machine does: r0 or the fault and where it is, the request, the maps.

#![cfg(target_arch = "x86_64")]

use bpf::Instance;
use bpf::fuzzing::fuzz_native;
use bpf::strategies::{likely, unlikely};
use bpf_native::compile;
use proptest::prelude::*;

fn compiled(instance: &mut Instance) {
    compile(instance).expect("all of them can be");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn of_programs_as_compilers_make_them(bytes in likely()) {
        fuzz_native(&bytes, compiled);
    }

    #[test]
    fn of_any_program(bytes in unlikely()) {
        fuzz_native(&bytes, compiled);
    }
}

#[test]
fn of_committed_objects() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf");
    let tests = format!("{folder}/tests");
    let files = [folder, &tests].map(|folder| std::fs::read_dir(folder).expect(folder));
    let mut count = 0;
    for file in files.into_iter().flatten() {
        let path = file.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "o") {
            let object = std::fs::read(&path).expect("an object");
            for op in 0..5 {
                let bytes = [&[op], object.as_slice()].concat();
                assert!(fuzz_native(&bytes, compiled), "{} loads", path.display());
            }
            count += 1;
        }
    }
    assert!(count >= 10, "{count} objects");
}
