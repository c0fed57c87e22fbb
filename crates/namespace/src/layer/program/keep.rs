//! Maps that outlive whoever serves the volume.
//!
//! ```text
//!   open:     Keeper::find (of the server before) or make --> memory under the program's maps
//!   replace:  make, for maps that are new --> while nothing is in flight: settle, and note which program it is now;
//!             the new program takes over
//! ```
//!
//! What it does not do: hash maps, which a server that is killed may leave in the middle of a change, and arrays of
//! which each core has its own.

use super::change::Programs;
use super::loaded::{Loaded, Replaced};
use super::{Elsewhere, ProgramError, Routed};
use bpf::{MapDefinition, Words};
use nvme::Limits;
use std::fmt;
use std::mem;
use std::sync::Arc;

/// Who keeps the maps of a volume's program for the next server. Errors are for people.
pub trait Keeper: fmt::Debug + Send + Sync {
    /// What the server before kept of these maps of the program in `object`, in their order; None if there was no
    /// server before.
    fn find(&self, object: &[u8], maps: &[&MapDefinition]) -> Result<Option<Vec<Words>>, String>;

    /// New memory for such maps, all zeroes. What was made before and not settled is forgotten.
    fn make(&self, object: &[u8], maps: &[&MapDefinition]) -> Result<Vec<Words>, String>;

    /// Has the next server find what was made last, beside those maps called `stay` that were settled before. `note`
    /// is done when both can be found; once it is, the others that were settled before are forgotten.
    ///
    /// # Errors
    /// Its own, or those of `note`: what was made last is forgotten then.
    fn settle(&self, stay: &[&str], note: &dyn Fn() -> Result<(), String>) -> Result<(), String>;
}

impl Routed {
    /// Has the next server find the maps of the program, and of each that takes its place, as this one leaves them;
    /// those of the server before, if there was one, are taken over. Programs that do without are left alone.
    /// Before the first queue is opened.
    ///
    /// # Errors
    /// [`ProgramError::Maps`]: where data is may follow from maps that cannot be kept, or were not.
    pub fn keep_maps(&self, keeper: Arc<dyn Keeper>) -> Result<(), ProgramError> {
        assert!(self.keeper.set(Arc::clone(&keeper)).is_ok(), "maps have one keeper");
        self.programs.prepare(|loaded| match loaded.does_without_maps() {
            true => Ok(()),
            false => loaded.keep(&*keeper, true),
        })
    }

    /// What the program was given when the volume was opened.
    pub fn backends(&self) -> &[Limits] {
        &self.backends
    }

    /// Size of the volume in blocks.
    pub fn blocks(&self) -> u64 {
        self.device.blocks
    }

    /// Puts `next` in the place of `old`, with the maps that both have.
    pub(super) fn succeed(
        &self,
        mut next: Loaded,
        old: &Loaded,
        note: &dyn Fn() -> Result<(), String>,
    ) -> Result<Replaced, ProgramError> {
        let replaced = next.inherit(old);
        let Some(keeper) = self.keeper.get() else {
            let note = || note().map_err(ProgramError::Unnoted);
            return self.take_over(next, old, &replaced, &note).map(|()| replaced);
        };
        let maps = next.instance.maps().iter().filter(|map| map.is_kept());
        let stay: Vec<String> = maps.map(|map| map.definition().name.clone()).collect();
        if next.does_without_maps() {
            // Of what it has inherited, too, its successor may need what is kept.
            keeper.make(&next.object, &[]).map_err(ProgramError::Unnoted)?;
        } else {
            // What they hold changes until the old program goes.
            let unkept = next.instance.maps().iter().map(|map| (map.definition(), map));
            let mut unkept = unkept.filter(|(it, map)| !it.read_only && !map.is_kept());
            if let Some((map, _)) = unkept.find(|(it, _)| replaced.kept.contains(&it.name)) {
                let why = format!("nobody keeps map {} of the program before", map.name);
                return Err(ProgramError::Maps { name: next.name, why });
            }
            next.keep(&**keeper, false)?;
        }
        let stay: Vec<&str> = stay.iter().map(String::as_str).collect();
        let settle = || keeper.settle(&stay, note).map_err(ProgramError::Unnoted);
        self.take_over(next, old, &replaced, &settle).map(|()| replaced)
    }

    /// Makes `next` the program wherever it runs; see [`Programs::replace`].
    fn take_over(
        &self,
        next: Loaded,
        old: &Loaded,
        replaced: &Replaced,
        settle: &dyn Fn() -> Result<(), ProgramError>,
    ) -> Result<(), ProgramError> {
        let Some(elsewhere) = self.elsewhere.get() else {
            return self.programs.replace(Arc::new(next), settle);
        };
        let name = next.name.clone();
        let refuse = |why| {
            let (name, old) = (name.clone(), old.name.clone());
            ProgramError::NotInKernel { name, old, why }
        };
        let (most, needed) = (next.device.blocks_max, self.device.blocks_max);
        if most < needed {
            let why =
                format!("it takes {most} blocks at once, and requests there have up to {needed}");
            return Err(refuse(why));
        }
        let same_object = next.object == old.object;
        let next = self.for_kernel_with(Arc::new(next)).map_err(refuse)?;
        let next = elsewhere.prepare(next, &replaced.kept, same_object).map_err(refuse)?;
        let outcome = self.programs.replace(next.loaded(), || {
            elsewhere.take_over().map_err(refuse)?;
            let taken = Taken(&**elsewhere);
            settle()?;
            mem::forget(taken);
            Ok(())
        });
        elsewhere.forget();
        outcome
    }
}

/// What has taken over elsewhere, and gives the place back unless all is settled.
struct Taken<'a>(&'a dyn Elsewhere);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.take_back();
    }
}

/// Whether the program of `object` could serve a volume of `blocks` blocks over such backends, whose server before has
/// left the maps that `keeper` finds. The bytes that it takes at once, which counts where it is the kernel that runs it.
///
/// # Errors
/// Why not.
pub fn check_successor(
    object: &[u8],
    name: &str,
    backends: &[Limits],
    blocks: u64,
    keeper: &dyn Keeper,
) -> Result<u64, ProgramError> {
    let mut loaded = Loaded::new(object, name.to_owned(), backends, 1)?;
    if loaded.device.blocks < blocks {
        let what = format!("the volume would have {} blocks of {blocks}", loaded.device.blocks);
        let (name, old) = (name.to_owned(), "the one that it had".to_owned());
        return Err(ProgramError::Differs { name, old, what });
    }
    if !loaded.does_without_maps() {
        loaded.keep(keeper, true)?;
    }
    Ok(u64::from(loaded.device.blocks_max) << loaded.device.block_shift)
}

impl Programs {
    /// Prepares the first program, which no queue runs yet.
    fn prepare(
        &self,
        work: impl FnOnce(&mut Loaded) -> Result<(), ProgramError>,
    ) -> Result<(), ProgramError> {
        let mut inner = self.lock();
        work(Arc::get_mut(&mut inner.now).expect("no queue is open yet"))
    }

    /// See [`Routed::share_maps`].
    pub(super) fn share(
        &self,
        share: &mut dyn FnMut(&MapDefinition) -> Result<Words, String>,
    ) -> Result<(), String> {
        let mut inner = self.lock();
        Arc::get_mut(&mut inner.now).ok_or("the program is in use")?.share(share)
    }
}

/// Whether a map can be shared with `NVLANE_DEFERRED`, where the program runs elsewhere; otherwise why not.
pub fn check_shared(map: &MapDefinition) -> Result<(), String> {
    if map.read_only || map.may_be_kept() {
        return Ok(());
    }
    let why = "is neither an array nor a variable, and cannot be shared with NVLANE_DEFERRED";
    Err(format!("map {} {why} in user space", map.name))
}

impl Loaded {
    /// Puts the maps and variables that nobody keeps into memory that `share` gives.
    pub(super) fn share(
        &mut self,
        share: &mut dyn FnMut(&MapDefinition) -> Result<Words, String>,
    ) -> Result<(), String> {
        let instance = Arc::get_mut(&mut self.instance).ok_or("the program is in use")?;
        instance.maps().iter().try_for_each(|map| check_shared(map.definition()))?;
        for number in 0..instance.maps().len() {
            let map = &instance.maps()[number];
            if map.is_elsewhere() || map.definition().read_only {
                continue;
            }
            let map = map.definition().clone();
            instance.share(number, share(&map)?);
        }
        Ok(())
    }

    /// Has a keeper keep the maps and variables that nobody keeps yet; `is_first` if it may have them from the server
    /// before.
    fn keep(&mut self, keeper: &dyn Keeper, is_first: bool) -> Result<(), ProgramError> {
        let refuse = |why| ProgramError::Maps { name: self.name.clone(), why };
        let maps = self.instance.maps().iter().enumerate();
        let open: Vec<(usize, MapDefinition)> = maps
            .filter(|(_, map)| !map.is_kept() && !map.definition().read_only)
            .map(|(number, map)| (number, map.definition().clone()))
            .collect();
        if let Some((_, map)) = open.iter().find(|(_, map)| !map.may_be_kept()) {
            let why = "is neither an array nor a variable, and cannot be kept";
            return Err(refuse(format!("map {} {why}", map.name)));
        }
        let definitions: Vec<&MapDefinition> = open.iter().map(|(_, map)| map).collect();
        let found = if is_first { keeper.find(&self.object, &definitions) } else { Ok(None) };
        let (memory, is_new) = match found.map_err(refuse)? {
            Some(memory) => (memory, false),
            None => (keeper.make(&self.object, &definitions).map_err(refuse)?, true),
        };
        let instance = Arc::get_mut(&mut self.instance).expect("no core runs it yet");
        for ((number, _), words) in open.into_iter().zip(memory) {
            instance.keep(number, words, is_new);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf::MapKind;

    #[test]
    fn only_arrays_and_what_is_never_written_can_be_shared() {
        let map = |kind, read_only| MapDefinition {
            name: "written".into(),
            kind,
            key_bytes: 4,
            value_bytes: 8,
            entries: 2,
            initial: Vec::new(),
            read_only,
            is_variables: false,
        };
        assert_eq!(check_shared(&map(MapKind::Array, false)), Ok(()));
        assert_eq!(check_shared(&map(MapKind::Array, true)), Ok(()));
        for kind in [MapKind::Hash, MapKind::PerCoreArray] {
            let why = check_shared(&map(kind, false)).expect_err("it is another one there");
            assert!(why.contains("map written is neither an array nor a variable"), "{why}");
        }
    }
}
