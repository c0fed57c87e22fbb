//! Body of the fuzz target in fuzz/: what must hold whatever somebody calls a program.
//!
//! The fuzzer's bytes are an object, if they begin like one. Otherwise the first says which object of ours is changed, and each
//! twelve after it say how ([`edit`]): what is wrong with an object in one place only goes much further than noise. What is
//! linked must have the loop in it as it is alone, and beside it only what programs may have ([`oracle`]).

mod edit;
pub(crate) mod oracle;

use crate::link::Linked;
use edit::Draft;
use std::sync::LazyLock;

/// Objects that are changed: small ones, one for each thing that programs have, and those of other compilers.
const OBJECTS: [&[u8]; 9] = [
    include_bytes!("../../../bpf/null.bpf.o"),
    include_bytes!("../../../bpf/linear.bpf.o"),
    include_bytes!("../../../bpf/mirror.bpf.o"),
    include_bytes!("../../../bpf/statistics.bpf.o"),
    include_bytes!("../../../bpf/rate.bpf.o"),
    include_bytes!("../../../bpf/tests/maps.bpf.o"),
    include_bytes!("../../../bpf/tests/deferred.bpf.o"),
    include_bytes!("../../../bpf/tests/clang-14/linear.bpf.o"),
    include_bytes!("../../../bpf/tests/clang-16/statistics.bpf.o"),
];

/// Takes anything. Whether it could be linked.
pub fn fuzz_link(bytes: &[u8]) -> bool {
    if bytes.starts_with(b"\x7fELF") {
        return links(bytes);
    }
    let Some((first, edits)) = bytes.split_first() else { return false };
    links(&changed(usize::from(*first), edits))
}

/// The object that the fuzzer's bytes stand for.
fn changed(number: usize, edits: &[u8]) -> Vec<u8> {
    static DRAFTS: LazyLock<Vec<Draft>> = LazyLock::new(|| {
        OBJECTS.iter().map(|object| Draft::of(object).expect("one of ours")).collect()
    });
    let mut draft = DRAFTS[number % DRAFTS.len()].clone();
    for edit in edits.as_chunks::<{ edit::BYTES }>().0 {
        draft.edit(edit);
    }
    draft.finish()
}

fn links(program: &[u8]) -> bool {
    match Linked::of(program) {
        Ok(linked) => {
            oracle::check(program, &linked);
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty(), "people are told why");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn committed_objects_are_linked() {
        for (number, object) in OBJECTS.iter().enumerate() {
            assert!(fuzz_link(object), "object {number}");
            assert!(fuzz_link(&[number as u8]), "object {number} as it is put together again");
        }
    }

    /// One that is named like a section of variables.
    #[test]
    fn a_map_that_could_be_taken_for_another_is_refused() {
        let object = changed(3, &[12, 0, 21, 68, 31, 0, 0, 0, 0, 0, 0, 0]);
        let refused = Linked::of(&object).map(drop).unwrap_err().to_string();
        assert!(refused.contains("is named as sections are"), "{refused}");
    }

    /// The linker would look for them elsewhere: a function's, and a label of a compiler's.
    #[test]
    fn symbols_in_sections_that_are_not_loaded_are_refused() {
        for (number, edit) in [
            (15, [1, 3, 253, 24, 20, 0, 0, 0, 0, 0, 0, 0]),
            (7, [1, 15, 3, 0, 11, 0, 0, 0, 0, 0, 0, 0]),
        ] {
            let refused = Linked::of(&changed(number, &edit)).map(drop).unwrap_err().to_string();
            assert!(refused.contains("is in a section that is not loaded"), "{refused}");
        }
    }

    fn edits() -> impl Strategy<Value = Vec<u8>> {
        let value = prop_oneof![0..64_u64, any::<u64>(), (0..4096_u64).prop_map(|it| it * 8)];
        let place = prop_oneof![0..64_u16, any::<u16>()];
        let edit =
            (0..edit::KINDS, 0..16_u8, place, value).prop_map(|(what, part, which, value)| {
                let mut edit = vec![what, part];
                edit.extend_from_slice(&which.to_le_bytes());
                edit.extend_from_slice(&value.to_le_bytes());
                edit
            });
        let edits = prop::collection::vec(edit, 0..5);
        (any::<u8>(), edits).prop_map(|(first, edits)| [vec![first & 15], edits.concat()].concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn what_is_linked_has_our_loop(bytes in edits()) {
            fuzz_link(&bytes);
        }
    }
}
