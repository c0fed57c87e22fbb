//! Which bytes go where: ranges of volumes, one after another, and every target's part for them.
//!
//! ```text
//!   position   0 ........ 3M ..... 4M          of the copy
//!   extents    a@1M+3M    b@0+1M               what is read
//!   targets    c@0 ....................        what is written, from an offset of its own each
//! ```
//!
//! Pure: sizes and blocks of volumes come in as [`Facts`].

/// What matters of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Capacity in bytes.
    pub bytes: u64,
    /// Bytes of a block.
    pub block: u32,
    /// No write is accepted.
    pub read_only: bool,
    /// Volumes with one number may be one under several names.
    pub twins: Option<usize>,
}

impl Facts {
    fn is_twin(&self, other: &Facts) -> bool {
        self.twins.is_some() && self.twins == other.twins
    }
}

/// A range of a volume that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Which volume.
    pub volume: usize,
    /// First byte there.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// Where it is in the copy.
    pub start: u64,
}

/// Where a volume is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Which volume.
    pub volume: usize,
    /// Where position 0 goes.
    pub offset: u64,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// What is read, in order, without gaps.
    pub extents: Vec<Extent>,
    /// What is written.
    pub targets: Vec<Target>,
    /// Bytes read.
    pub bytes: u64,
    /// Bytes written to each target: more where its last block is filled up.
    pub padded: Vec<u64>,
    /// What is written is read elsewhere in the same volume: one command at a time, and backwards if need be.
    pub order: Order,
}

/// In which order positions are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In any.
    Free,
    /// One after the other.
    Forwards,
    /// The last one first.
    Backwards,
}

impl Order {
    /// As programs are told it.
    pub fn name(self) -> &'static str {
        match self {
            Order::Free => "any",
            Order::Forwards => "forwards",
            Order::Backwards => "backwards",
        }
    }
}

/// A range as it was said: which volume, from where, how many bytes if not all.
pub type Wanted = (usize, u64, Option<u64>);

impl Layout {
    /// Lays out a copy of `sources` to each of `targets`. `names` are what volumes are called in errors.
    pub fn new(
        facts: &[Facts],
        names: &[String],
        sources: &[Wanted],
        targets: &[Target],
        pad: bool,
    ) -> Result<Layout, String> {
        let mut extents: Vec<Extent> = Vec::with_capacity(sources.len());
        let mut start = 0;
        for &(volume, offset, length) in sources {
            let Facts { bytes: all, block, .. } = facts[volume];
            let name = &names[volume];
            let bytes = length.unwrap_or(all.saturating_sub(offset));
            if offset.checked_add(bytes).is_none_or(|end| end > all) {
                return Err(format!(
                    "{name}: bytes {offset} and {bytes} more are not within its {all} bytes"
                ));
            }
            if !(offset | bytes).is_multiple_of(block.into()) {
                return Err(format!(
                    "{name}: bytes {offset} and {bytes} more are not whole blocks of {block}"
                ));
            }
            if bytes > 0 {
                extents.push(Extent { volume, offset, bytes, start });
                start = start.checked_add(bytes).ok_or("the sources are longer than any volume")?;
            }
        }
        let bytes = start;
        let padded = padded(facts, names, &extents, targets, bytes, pad)?;
        check_targets(facts, names, targets, &padded)?;
        check_twins(facts, names, &extents, targets, &padded)?;
        let order = order(&extents, targets, names, &padded)?;
        Ok(Layout { extents, targets: targets.to_vec(), bytes, padded, order })
    }

    /// Bytes written to the target that is filled up most.
    pub fn padded_max(&self) -> u64 {
        self.padded.iter().copied().fold(self.bytes, u64::max)
    }

    /// The extent that `position` is in.
    ///
    /// # Panics
    /// If it is beyond the end.
    pub fn extent_at(&self, position: u64) -> &Extent {
        let after = self.extents.partition_point(|extent| extent.start <= position);
        &self.extents[after - 1]
    }

    /// The extent that ends last before `position`, which is not 0.
    pub fn extent_before(&self, position: u64) -> &Extent {
        self.extent_at(position.min(self.bytes) - 1)
    }
}

/// How many bytes are written to each target: whole blocks of its, at each place where a source begins.
fn padded(
    facts: &[Facts],
    names: &[String],
    extents: &[Extent],
    targets: &[Target],
    bytes: u64,
    pad: bool,
) -> Result<Vec<u64>, String> {
    let mut padded = Vec::with_capacity(targets.len());
    for target in targets {
        let block = u64::from(facts[target.volume].block);
        let name = &names[target.volume];
        if let Some(extent) = extents.iter().find(|extent| !extent.start.is_multiple_of(block)) {
            return Err(format!(
                "{name}: {} would begin within one of its blocks of {block} bytes",
                names[extent.volume]
            ));
        }
        if !bytes.is_multiple_of(block) && !pad {
            return Err(format!(
                "{name}: {bytes} bytes end within one of its blocks of {block}: give --pad to fill it up with zeroes"
            ));
        }
        let whole = bytes.checked_next_multiple_of(block);
        padded.push(whole.ok_or("the sources are longer than any volume")?);
    }
    Ok(padded)
}

fn check_targets(
    facts: &[Facts],
    names: &[String],
    targets: &[Target],
    padded: &[u64],
) -> Result<(), String> {
    for (number, (target, &bytes)) in targets.iter().zip(padded).enumerate() {
        let Facts { bytes: all, block, read_only, .. } = facts[target.volume];
        let name = &names[target.volume];
        if read_only {
            return Err(format!("{name}: it is read-only"));
        }
        if !target.offset.is_multiple_of(block.into()) {
            return Err(format!(
                "{name}: byte {} does not begin a block of {block}",
                target.offset
            ));
        }
        if target.offset.checked_add(bytes).is_none_or(|end| end > all) {
            let room = all.saturating_sub(target.offset);
            return Err(format!(
                "{name}: {bytes} bytes are more than the {room} from byte {} to its end",
                target.offset
            ));
        }
        // One volume has blocks of one size, so as much is written there each time.
        let others = &targets[..number];
        if let Some(other) = others.iter().find(|other| {
            other.volume == target.volume
                && other.offset < target.offset + bytes
                && target.offset < other.offset + bytes
        }) {
            return Err(format!(
                "{name}: bytes from {} and from {} on would be written twice",
                other.offset, target.offset
            ));
        }
    }
    Ok(())
}

/// What is written may be what is read under another name, or written under one, where nobody would keep the order. In the same
/// place it does no harm: so a volume can be moved to one that has its UUID.
fn check_twins(
    facts: &[Facts],
    names: &[String],
    extents: &[Extent],
    targets: &[Target],
    padded: &[u64],
) -> Result<(), String> {
    for (number, (target, &bytes)) in targets.iter().zip(padded).enumerate() {
        let meets = |volume: usize, offset: u64, length: u64| {
            volume != target.volume
                && facts[volume].is_twin(&facts[target.volume])
                && offset < target.offset + bytes
                && target.offset < offset + length
        };
        let read = extents.iter().find(|extent| {
            extent.offset != target.offset + extent.start
                && meets(extent.volume, extent.offset, extent.bytes)
        });
        let read = read.map(|extent| (extent.volume, extent.offset, "read"));
        let mut others = targets[..number].iter().zip(padded);
        let written = others.find(|(other, bytes)| {
            other.offset != target.offset && meets(other.volume, other.offset, **bytes)
        });
        let written = written.map(|(other, _)| (other.volume, other.offset, "written"));
        if let Some((other, offset, what)) = read.or(written) {
            return Err(format!(
                "{} and {} are one namespace, or have its UUID, and what is {what} from byte {offset} on is written \
                 elsewhere too: name it the same way both times (or tell another UUID, ?uuid=, where they are two)",
                names[other], names[target.volume]
            ));
        }
    }
    Ok(())
}

/// A source that overlaps what is written has to be read before.
fn order(
    extents: &[Extent],
    targets: &[Target],
    names: &[String],
    padded: &[u64],
) -> Result<Order, String> {
    for (target, &bytes) in targets.iter().zip(padded) {
        let end = target.offset.saturating_add(bytes);
        let overlap = extents.iter().find(|extent| {
            extent.volume == target.volume
                && extent.offset < end
                && target.offset < extent.offset + extent.bytes
        });
        let Some(extent) = overlap else { continue };
        return match (extents, targets) {
            ([_], [_]) if extent.offset == target.offset => {
                Err(format!("{}: what is copied is there already", names[target.volume]))
            }
            ([_], [_]) if extent.offset > target.offset => Ok(Order::Forwards),
            ([_], [_]) => Ok(Order::Backwards),
            _ => Err(format!(
                "{}: what is read from byte {} on is written too; copy it by itself",
                names[target.volume], extent.offset
            )),
        };
    }
    Ok(Order::Free)
}

/// Bytes of a copy that are alike: all data, or all holes of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Where it ends; it begins where the one before ends.
    pub end: u64,
    /// The source has nothing there.
    pub is_hole: bool,
    /// Bit i: target i has nothing there either.
    pub empty_targets: u32,
}

/// Runs of bytes, each stored or not.
pub type Runs = Vec<(u64, bool)>;

/// Makes stretches of what the source and the targets keep from `start` on, all told in bytes from there, down to
/// whole `unit`s. Targets may be told of shorter, or not at all: what is not known is kept.
pub fn stretches(start: u64, unit: u64, source: &Runs, targets: &[Runs]) -> Vec<Stretch> {
    let mut all: Vec<Stretch> = Vec::new();
    let mut push = |stretch: Stretch| match all.last_mut() {
        Some(last)
            if last.is_hole == stretch.is_hole && last.empty_targets == stretch.empty_targets =>
        {
            last.end = stretch.end;
        }
        _ => all.push(stretch),
    };
    let mut at = 0;
    for &(bytes, is_stored) in source {
        let end = at + bytes;
        if is_stored {
            push(Stretch { end: start + end, is_hole: false, empty_targets: 0 });
        } else {
            let (first, last) = (at.next_multiple_of(unit), end - end % unit);
            if first >= last {
                push(Stretch { end: start + end, is_hole: false, empty_targets: 0 });
            } else {
                if at < first {
                    push(Stretch { end: start + first, is_hole: false, empty_targets: 0 });
                }
                for (end, empty_targets) in split(first, last, unit, targets) {
                    push(Stretch { end: start + end, is_hole: true, empty_targets });
                }
                if last < end {
                    push(Stretch { end: start + end, is_hole: false, empty_targets: 0 });
                }
            }
        }
        at = end;
    }
    all
}

/// A hole from `first` to `last`, where targets differ in what they keep.
fn split(first: u64, last: u64, unit: u64, targets: &[Runs]) -> Vec<(u64, u32)> {
    let mut bounds = vec![last];
    for runs in targets {
        let mut at = 0;
        for (bytes, is_stored) in runs {
            let end = at + bytes;
            // What a target has nothing for shrinks to whole units, as the hole has.
            let (from, to) = (at.next_multiple_of(unit), end - end % unit);
            if !is_stored && from < to {
                bounds.extend([from, to].into_iter().filter(|bound| (first..last).contains(bound)));
            }
            at = end;
        }
    }
    bounds.sort_unstable();
    bounds.dedup();
    let mut from = first;
    let mut pieces = Vec::with_capacity(bounds.len());
    for to in bounds.into_iter().filter(|bound| *bound > first) {
        let mut empty = 0;
        for (number, runs) in targets.iter().enumerate() {
            if is_empty(runs, from, to) {
                empty |= 1 << number;
            }
        }
        pieces.push((to, empty));
        from = to;
    }
    pieces
}

/// Whether runs say that nothing is stored anywhere from `from` to `to`.
fn is_empty(runs: &Runs, from: u64, to: u64) -> bool {
    let mut at = 0;
    for (bytes, is_stored) in runs {
        let end = at + bytes;
        if *is_stored && at < to && from < end {
            return false;
        }
        at = end;
    }
    at >= to
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = 1 << 20;

    fn facts(bytes: u64, block: u32) -> Facts {
        Facts { bytes, block, read_only: false, twins: None }
    }

    fn layout(
        facts: &[Facts],
        sources: &[Wanted],
        targets: &[(usize, u64)],
        pad: bool,
    ) -> Result<Layout, String> {
        let names: Vec<String> = (0..facts.len()).map(|at| format!("v{at}")).collect();
        let targets: Vec<Target> =
            targets.iter().map(|&(volume, offset)| Target { volume, offset }).collect();
        Layout::new(facts, &names, sources, &targets, pad)
    }

    #[test]
    fn sources_follow_on_one_another() {
        let facts = [facts(4 * M, 512), facts(2 * M, 512), facts(8 * M, 4096)];
        let layout =
            layout(&facts, &[(0, M, None), (1, 0, Some(0)), (1, M, Some(M))], &[(2, M)], false)
                .unwrap();
        assert_eq!(
            (layout.bytes, &layout.padded[..], layout.order),
            (4 * M, &[4 * M][..], Order::Free)
        );
        assert_eq!(
            layout.extents,
            [
                Extent { volume: 0, offset: M, bytes: 3 * M, start: 0 },
                Extent { volume: 1, offset: M, bytes: M, start: 3 * M },
            ]
        );
        assert_eq!(layout.extent_at(3 * M - 1).volume, 0);
        assert_eq!(layout.extent_at(3 * M).volume, 1);
        assert_eq!(layout.extent_before(3 * M).volume, 0);
        assert_eq!(layout.extent_before(4 * M).volume, 1);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let small = facts(M + 512, 512);
        let all = [small, facts(4 * M, 4096), Facts { read_only: true, ..facts(4 * M, 512) }];
        type Case<'a> = (&'a [Wanted], &'a [(usize, u64)], &'a str);
        let cases: [Case<'_>; 10] = [
            (&[(0, 0, Some(2 * M))], &[(1, 0)], "not within"),
            (&[(0, u64::MAX - 511, Some(1024))], &[(1, 0)], "not within"),
            (&[(0, 100, Some(512))], &[(1, 0)], "not whole blocks of 512"),
            (&[(0, 0, None)], &[(1, 0)], "--pad"),
            (&[(0, 0, Some(512)), (0, 0, Some(4096))], &[(1, 0)], "begin within"),
            (&[(0, 0, Some(4096))], &[(1, 512)], "does not begin a block"),
            (&[(1, 0, None)], &[(0, 0)], "more than the"),
            (&[(1, 0, Some(M))], &[(2, 0)], "read-only"),
            (&[(0, 0, Some(M))], &[(1, 0), (1, 4096)], "written twice"),
            (&[(0, 0, Some(M))], &[(0, 0)], "there already"),
        ];
        for (sources, targets, part) in cases {
            let said = layout(&all, sources, targets, false).unwrap_err();
            assert!(said.contains(part), "{sources:?}: {said}");
        }
        let padded = layout(&all, &[(0, 0, None)], &[(1, 0)], true).unwrap();
        assert_eq!((padded.bytes, padded.padded), (M + 512, vec![M + 4096]));
    }

    #[test]
    fn lengths_that_wrap_around_are_refused() {
        const HALF: u64 = 1 << 63;
        let all = [facts(HALF, 512), facts(u64::MAX - 511, 512), facts(4 * M, 4096)];
        for sources in [&[(0, 0, None), (0, 0, None), (0, 0, Some(M))][..], &[(1, 0, None)]] {
            let said = layout(&all, sources, &[(2, 0)], true).unwrap_err();
            assert!(said.contains("longer than any volume"), "{said}");
        }
    }

    /// A target whose blocks are as small as the source's needs no room for more, and gets no more.
    #[test]
    fn each_target_is_filled_up_to_its_own_blocks() {
        let all = [facts(M + 512, 512), facts(M + 512, 512), facts(4 * M, 4096)];
        let source = [(0, 0, None)];
        let both = layout(&all, &source, &[(1, 0), (2, 0)], true).unwrap();
        assert_eq!((both.bytes, &both.padded[..]), (M + 512, &[M + 512, M + 4096][..]));
        assert_eq!(both.padded_max(), M + 4096);
        // What is not written there is not overlapped either.
        let beside = [(0, 512, Some(512))];
        let layout = layout(&all, &beside, &[(0, 0), (2, 0)], true).unwrap();
        assert_eq!((layout.padded, layout.order), (vec![512, 4096], Order::Free));
    }

    #[test]
    fn overlaps_have_an_order() {
        let all = [facts(8 * M, 512), facts(8 * M, 512)];
        let order = |sources: &[Wanted], targets: &[(usize, u64)]| {
            layout(&all, sources, targets, false).map(|layout| layout.order)
        };
        assert_eq!(order(&[(0, 0, Some(M))], &[(0, M)]), Ok(Order::Free));
        assert_eq!(order(&[(0, M, Some(2 * M))], &[(0, 0)]), Ok(Order::Forwards));
        assert_eq!(order(&[(0, 0, Some(2 * M))], &[(0, M)]), Ok(Order::Backwards));
        assert!(order(&[(0, 0, Some(M)), (1, 0, Some(M))], &[(0, M)]).is_ok());
        assert!(order(&[(0, 0, Some(M)), (0, 4 * M, Some(M))], &[(0, M / 2)]).is_err());
        assert!(order(&[(0, 0, Some(2 * M))], &[(1, 0), (0, M)]).is_err());
    }

    #[test]
    fn one_volume_under_two_names_is_not_written_where_it_is_read() {
        let twin = Facts { twins: Some(0), ..facts(8 * M, 512) };
        let all = [twin, twin, facts(8 * M, 512), twin];
        let refused = |sources: &[Wanted], targets: &[(usize, u64)]| match layout(
            &all, sources, targets, false,
        ) {
            Err(line) => {
                assert!(line.contains("are one namespace"), "{line}");
                true
            }
            Ok(layout) => {
                assert_eq!(layout.order, Order::Free);
                false
            }
        };
        let part = |volume, offset| (volume, offset, Some(2 * M));
        assert!(refused(&[part(0, M)], &[(1, 0)]));
        assert!(refused(&[part(0, 0)], &[(1, 2 * M - 512)]));
        assert!(refused(&[part(2, 0), part(0, 0)], &[(1, 0)]));
        assert!(refused(&[part(2, 0)], &[(0, 0), (1, M)]));
        // In the same place, beside it, and elsewhere.
        assert!(!refused(&[part(0, M)], &[(1, M)]));
        assert!(!refused(&[part(2, 0), part(0, 2 * M)], &[(1, 0), (3, 0)]));
        assert!(!refused(&[part(0, 0)], &[(1, 2 * M)]));
        assert!(!refused(&[part(0, M)], &[(2, 0)]));
        assert!(!refused(&[part(2, M)], &[(0, 0), (1, 2 * M)]));
    }

    #[test]
    fn holes_shrink_to_whole_blocks_and_know_who_has_them_too() {
        // Data to 10, a hole to 100, data to 120.
        let source = vec![(10, true), (90, false), (20, true)];
        let data = |end| Stretch { end, is_hole: false, empty_targets: 0 };
        let hole = |end, empty_targets| Stretch { end, is_hole: true, empty_targets };
        assert_eq!(stretches(1000, 8, &source, &[]), [data(1016), hole(1096, 0), data(1120)]);
        // The first target has nothing from 30 to 50, the second nothing at all as far as it tells: to 64.
        let targets = [vec![(30, true), (20, false), (100, true)], vec![(64, false)]];
        assert_eq!(
            stretches(1000, 8, &source, &targets),
            [data(1016), hole(1032, 2), hole(1048, 3), hole(1064, 2), hole(1096, 0), data(1120)]
        );
        assert_eq!(stretches(0, 8, &vec![(7, false), (9, true)], &[]), [data(16)]);
        assert_eq!(stretches(0, 8, &vec![(16, false)], &[]), [hole(16, 0)]);
    }
}
