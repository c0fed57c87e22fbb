//! Jobs in one another's way: what one writes is not to be read or written by another that has not ended.
//!
//! ```text
//!   a part of a job --> its volume: the namespace that is served | the URI | the UUID    one volume: by bytes
//!                       what keeps that: files, disks, remote namespaces                 common to two: by bytes where those
//!                                                                                        are in the same places there, or whole
//! ```
//!
//! What it does not do: see partitions and the disk that they are on as one, nor copies that are no jobs.

use super::identity::Identity;
use super::record::Record;
use super::{Key, run};
use crate::copy::open::SERVED;
use crate::copy::spec::{Part, Spec};
use crate::size;
use std::ops::Range;
use volume::{Kind, Uri};

/// Bytes of a volume that a job reads or writes.
#[derive(Debug)]
struct Place<'a> {
    volume: &'a Identity,
    /// The namespace that it is, if it was named so.
    served: Option<Key>,
    bytes: Range<u64>,
}

/// What a job reads, and what it writes.
pub struct Places<'a> {
    read: Vec<Place<'a>>,
    written: Vec<Place<'a>>,
}

impl Places<'_> {
    /// Those of a job that is known by its record. `served` finds the namespace that a name means.
    pub fn of<'a>(record: &'a Record, served: impl Fn(&str) -> Option<Key>) -> Places<'a> {
        let Spec { sources, targets, .. } = &record.spec;
        let place = |part: &Part, volume: &'a Identity, bytes: u64| Place {
            volume,
            served: part.volume.starts_with(SERVED).then(|| served(&part.volume)).flatten(),
            bytes: part.offset..part.offset.saturating_add(bytes),
        };
        let (read, written) = record.volumes.split_at(sources.len().min(record.volumes.len()));
        let read = sources.iter().zip(read);
        let written = targets.iter().zip(written);
        let total = record.total();
        Places {
            read: read.map(|(part, it)| place(part, it, part.length.unwrap_or(0))).collect(),
            // Its last block is written whole.
            written: written.map(|(part, it)| place(part, it, it.whole_blocks(total))).collect(),
        }
    }

    /// What these and those of another job must not have in common, if they have, in words that go on after `which `.
    pub fn conflict(&self, other: &Places<'_>) -> Option<String> {
        let find = |ours: &[Place<'_>], theirs: &[Place<'_>], what: &str| {
            let mut pairs = ours.iter().flat_map(|one| theirs.iter().map(move |two| (one, two)));
            let (_, theirs) = pairs.find(|(one, two)| one.meets(two))?;
            let Range { start, end } = theirs.bytes;
            let (start, count) = (size::exact(start), size::exact(end - start));
            Some(format!("{what} {count} of {} from {start} on", theirs.volume.uri))
        };
        find(&self.written, &other.written, "writes")
            .or_else(|| find(&self.read, &other.written, "writes"))
            .or_else(|| find(&self.written, &other.read, "reads"))
    }
}

impl Place<'_> {
    /// Whether both have bytes in common, or may have.
    fn meets(&self, other: &Place<'_>) -> bool {
        if self.bytes.is_empty() || other.bytes.is_empty() {
            return false;
        }
        let is_near = self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end;
        let is_one = match (&self.served, &other.served) {
            (Some(one), Some(two)) if one == two => true,
            _ => self.volume.is_one(other.volume),
        };
        if is_one {
            return is_near;
        }
        let keeps_places = is_in_place(&self.volume.uri) && is_in_place(&other.volume.uri);
        self.volume.is_kept_with(other.volume) && (is_near || !keeps_places)
    }
}

/// Whether each byte of a volume is at the same place in what keeps it.
fn is_in_place(uri: &str) -> bool {
    fn each(uri: &Uri) -> bool {
        let moves = match &uri.kind {
            Kind::Linear(parts) => parts.len() > 1,
            Kind::Program(..) => true,
            _ => false,
        };
        !moves && uri.children().iter().all(each)
    }
    uri.parse().is_ok_and(|uri| each(&uri))
}

/// The namespace that is served, and that a job means by `name`, among `keys`.
pub fn named<'a>(name: &str, mut keys: impl Iterator<Item = &'a Key>) -> Option<Key> {
    let (nqn, nsid) = run::split(name.strip_prefix(SERVED)?)?;
    keys.find(|(of, id)| *id == nsid && nqn.is_none_or(|nqn| nqn == of)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::spec::Options;
    use ::volume::OpenOptions;

    const M: u64 = 1 << 20;

    /// A job from `source` to `target`, each with an offset, of one MiB.
    fn record(source: (&str, u64), target: (&str, u64)) -> Record {
        let part =
            |(name, offset): (&str, u64), length| Part { volume: name.to_owned(), offset, length };
        let spec = Spec {
            sources: vec![part(source, Some(M))],
            targets: vec![part(target, None)],
            options: Options::default(),
        };
        // Served ones are memory here.
        let identity = |name: &str| {
            let uri = if name.starts_with(SERVED) { "mem:8M" } else { name };
            Identity::of(&*::volume::open(uri, &OpenOptions::default()).unwrap())
        };
        Record::new(1, spec, vec![identity(source.0), identity(target.0)])
    }

    fn conflict(one: &Record, other: &Record) -> Option<String> {
        let keys: Vec<Key> = (1..4).map(|nsid| ("nqn".to_owned(), nsid)).collect();
        let places = |record| Places::of(record, |name| named(name, keys.iter()));
        places(one).conflict(&places(other))
    }

    #[test]
    fn what_one_job_writes_no_other_reads_or_writes() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = folder.path().join(name);
            std::fs::File::create(&path).unwrap().set_len(8 * M).unwrap();
            path.display().to_string()
        };
        let [a, b, c] = ["a", "b", "c"].map(file);
        let slow = format!("delay:1ms({b})");
        let both = format!("linear:({c},{b})");
        let job = record((&a, 0), (&b, 4 * M));
        let met = |source: (&str, u64), target: (&str, u64)| {
            let found = conflict(&record(source, target), &job);
            assert_eq!(found.is_some(), conflict(&job, &record(source, target)).is_some());
            found.map(|told| told.split(' ').next().unwrap().to_owned())
        };
        let (writes, reads) = (Some("writes".to_owned()), Some("reads".to_owned()));
        // The same bytes, some of them, and others.
        assert_eq!(met((&c, 0), (&b, 4 * M)), writes);
        assert_eq!(met((&c, 0), (&b, 5 * M - 512)), writes);
        assert_eq!(met((&c, 0), (&b, 5 * M)), None);
        assert_eq!(met((&c, 0), (&b, 3 * M)), None);
        // Both read, what is written is read, and the other way around.
        assert_eq!(met((&a, 0), (&c, 0)), None);
        assert_eq!(met((&b, 4 * M), (&c, 0)), writes);
        assert_eq!(met((&c, 0), (&a, 512)), reads);
        assert_eq!(met((&c, 0), (&a, M)), None);
        // Behind a layer, and in some place of another volume.
        assert_eq!(met((&c, 0), (&slow, 4 * M)), writes);
        assert_eq!(met((&c, 0), (&slow, 0)), None);
        assert_eq!(met((&a, 0), (&both, 0)), writes);

        // Memory is known by the namespace that it is served as: all look alike.
        let job = record(("served:1", 0), ("served:2", 0));
        let met = |target: &str| conflict(&record((&a, 0), (target, 0)), &job).is_some();
        assert_eq!(["served:2", "served:nqn/2", "served:1"].map(met), [true; 3]);
        assert!(!met("served:3") && !met(&b));
    }
}
