//! What a copy would do, and by which means: `--dry-run`.

use super::engine::{can_copy, gives_checksums};
use super::layout::{Extent, Layout, Order, Target};
use super::open::Opened;
use super::spec::Options;
use crate::admin::{columns, json_object};
use crate::cli::ListFormat;
use crate::size;
use anyhow::{Result, bail};
use namespace::Namespace;
use namespace::copy::{Located, Origin};
use nvme::Limits;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, json};
use std::fmt;
use std::sync::Arc;
use volume::{Kind, Uri};

/// Parts that differ in their means are told apart up to this many.
const PARTS_MAX: usize = 64;

/// By which means blocks get from one place to another. In words it is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Means {
    /// By the kernel, from file to file; whether the file system may share the blocks.
    File { shares: bool },
    /// Within this process.
    Memory,
    /// By the controllers of that subsystem.
    Subsystem(Arc<str>),
    /// By whatever there is: parts that were not looked at.
    Any,
    /// Where there is no better means.
    Apart,
    /// A program says, which is not asked.
    Program,
    /// Read and written here, and why.
    Read(String),
    /// The target takes no writes.
    ReadOnly,
}

impl Means {
    /// Whether it is certain, as far as can be told before it is tried, that somebody reads and writes the blocks.
    fn is_slow(&self) -> bool {
        matches!(self, Means::Apart | Means::Read(_))
    }
}

impl fmt::Display for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Means::File { shares: false } => f.write_str("Copy: copy_file_range"),
            Means::File { shares: true } => {
                f.write_str("Copy: blocks are shared (FICLONERANGE), or copy_file_range")
            }
            Means::Memory => f.write_str("Copy: within memory"),
            Means::Subsystem(nqn) => write!(f, "Copy: by the controller of {nqn}"),
            Means::Any => f.write_str("by Copy"),
            Means::Apart => f.write_str("Copy: read and written beside the target"),
            Means::Program => {
                write!(f, "{}, unless the target's program lets it go down", Means::Apart)
            }
            Means::Read(why) => write!(f, "read and written: {why}"),
            Means::ReadOnly => f.write_str("not at all: the target is read-only"),
        }
    }
}

impl Serialize for Means {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Bytes that go one way: by [`Means`], or by what is told of them.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way<M = Means> {
    source: String,
    source_offset: u64,
    target: String,
    target_offset: u64,
    bytes: u64,
    means: M,
}

/// All of it.
pub struct Plan {
    ways: Vec<Way>,
    bytes: u64,
    targets: usize,
    order: Order,
    /// How it is compared afterwards, if it is.
    verify: Option<&'static str>,
}

/// The same, told to somebody: by the daemon, of a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct Told {
    total_bytes: u64,
    order: String,
    parts: Vec<Way<String>>,
    verify: Option<String>,
    targets: usize,
    /// Why it would not be done like that.
    refusal: Option<String>,
}

impl Plan {
    /// In words; refused is what would be read and written although that is not wanted.
    pub fn told(self, options: &Options) -> Told {
        let mut slow = self.ways.iter().filter(|way| way.means.is_slow());
        let slowest = slow.next().filter(|_| options.fast_only);
        let refusal = slowest.map(|way| {
            let bytes = way.bytes + slow.map(|way| way.bytes).sum::<u64>();
            format!(
                "{} and {}: {} would be read and written: leave out --fast-only",
                way.source,
                way.target,
                size::format(bytes)
            )
        });
        let part = |way: Way| {
            let Way { source, source_offset, target, target_offset, bytes, means } = way;
            let means = means.to_string();
            Way { source, source_offset, target, target_offset, bytes, means }
        };
        Told {
            total_bytes: self.bytes,
            order: self.order.name().to_owned(),
            parts: self.ways.into_iter().map(part).collect(),
            verify: self.verify.map(str::to_owned),
            targets: self.targets,
            refusal,
        }
    }
}

impl Told {
    /// Refuses what would not be done like that.
    pub fn check(&self) -> Result<()> {
        match &self.refusal {
            Some(why) => bail!("{why}"),
            None => Ok(()),
        }
    }
}

/// What a copy would do.
pub fn of(opened: &Opened, layout: &Layout, options: &Options) -> Plan {
    let mut ways = Vec::new();
    for extent in &layout.extents {
        for target in &layout.targets {
            ways.extend(parts(opened, layout, extent, target, options));
        }
    }
    let verify = options.verify.then(|| comparison(opened, layout, options));
    let targets = layout.targets.len();
    Plan { ways, bytes: layout.bytes, targets, order: layout.order, verify }
}

/// How source and targets are compared.
fn comparison(opened: &Opened, layout: &Layout, options: &Options) -> &'static str {
    let gives = |volume: usize| gives_checksums(&*opened.volumes[volume], options);
    let sources = layout.padded_max() == layout.bytes
        && layout.extents.iter().all(|extent| gives(extent.volume));
    let targets = layout.targets.iter().all(|target| gives(target.volume));
    match (sources, targets) {
        (true, true) => "by checksums that both sides give",
        (false, true) => "by checksums that the target gives; the source is read here",
        (true, false) => "by checksums that the source gives; the target is read here",
        (false, false) => "read here, on both sides",
    }
}

/// The parts of an extent that differ in their means.
fn parts(
    opened: &Opened,
    layout: &Layout,
    extent: &Extent,
    target: &Target,
    options: &Options,
) -> Vec<Way> {
    let (source, to) = (&opened.volumes[extent.volume], &opened.volumes[target.volume]);
    let (from, limits) = (source.limits(), to.limits());
    let way = |at: u64, bytes: u64, means: Means| Way {
        source: opened.name(extent.volume),
        source_offset: extent.offset + at,
        target: opened.name(target.volume),
        target_offset: target.offset + extent.start + at,
        bytes,
        means,
    };
    if !opened.is_copied(layout, extent.volume, target.volume, options) {
        let why = match options.why_read() {
            Some(why) => why.to_owned(),
            None if layout.targets.len() > 1 && from.block_shift == limits.block_shift => {
                "once for several targets".to_owned()
            }
            None => why_not_copied(&from, &limits),
        };
        return vec![way(0, extent.bytes, Means::Read(why))];
    }
    let to = (to, target.offset + extent.start);
    let stretches = stretches((source, extent.offset), to, extent.bytes);
    stretches.into_iter().map(|it| way(it.offset, it.bytes, it.means)).collect()
}

/// Why a volume is not copied to another with Copy commands.
pub fn why_not_copied(source: &Limits, target: &Limits) -> String {
    match source.block_shift == target.block_shift {
        true => "the target has no Copy".to_owned(),
        false => format!("blocks of {} and {} bytes", source.block_bytes(), target.block_bytes()),
    }
}

/// Bytes that go one way, from an offset on.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Stretch {
    pub offset: u64,
    pub bytes: u64,
    pub means: Means,
}

/// By which means a volume is copied to another, each from its beginning, as far as both reach.
pub fn between(source: &Arc<dyn Namespace>, target: &Arc<dyn Namespace>) -> Vec<Stretch> {
    let (from, to) = (source.limits(), target.limits());
    let bytes = from.bytes().min(to.bytes());
    let means = match () {
        () if to.read_only => Means::ReadOnly,
        () if !can_copy(&from, &to, &Options::default()) => Means::Read(why_not_copied(&from, &to)),
        () => return stretches((source, 0), (target, 0), bytes),
    };
    vec![Stretch { offset: 0, bytes, means }]
}

/// The parts of so many bytes that differ in their means. Blocks of both volumes are of one size.
fn stretches(
    (source, source_offset): (&Arc<dyn Namespace>, u64),
    (target, target_offset): (&Arc<dyn Namespace>, u64),
    bytes: u64,
) -> Vec<Stretch> {
    let (shift, between) = (source.limits().block_shift, copies_between(target));
    let (is_same, is_routed) = (Arc::ptr_eq(source, target), is_program(target));
    let is_null = target.uri().parse().is_ok_and(|uri| takes_all(&uri));
    let mut found: Vec<Stretch> = Vec::new();
    let mut at = 0;
    while at < bytes {
        let left = (bytes - at) >> shift;
        let slba = (source_offset + at) >> shift;
        let one = origin(source, slba, left, is_same);
        let other = Arc::clone(target).destination((target_offset + at) >> shift, left);
        let of = |found: &Option<Located>| found.as_ref().map_or(left, |found| found.blocks);
        let blocks = of(&one).min(of(&other)).clamp(1, left);
        let means = match means(one.as_ref(), other.as_ref(), between) {
            Means::Apart if is_routed => Means::Program,
            // It takes a Copy from wherever there is a place to name.
            Means::Apart if is_null && (is_same || one.is_some()) => Means::Any,
            means => means,
        };
        let count = found.len();
        match found.last_mut() {
            Some(last) if last.means == means => last.bytes += blocks << shift,
            _ if count == PARTS_MAX => {
                found.push(Stretch { offset: at, bytes: bytes - at, means: Means::Any });
                break;
            }
            _ => found.push(Stretch { offset: at, bytes: blocks << shift, means }),
        }
        at += blocks << shift;
    }
    found
}

/// Whether blocks of one may be copied to the other where they lie, as far as the first ones tell.
pub fn is_near(source: &Arc<dyn Namespace>, target: &Arc<dyn Namespace>) -> bool {
    let located = |volume: &Arc<dyn Namespace>| Arc::clone(volume).origin(0, 1);
    Arc::ptr_eq(source, target)
        || means(located(source).as_ref(), located(target).as_ref(), copies_between(target))
            != Means::Apart
}

/// What keeps blocks of a source, as the target knows it: within one volume a Copy names no other place.
fn origin(source: &Arc<dyn Namespace>, slba: u64, blocks: u64, is_target: bool) -> Option<Located> {
    let source = Arc::clone(source);
    if is_target { source.destination(slba, blocks) } else { source.origin(slba, blocks) }
}

/// Whether a volume is null, which forgets whatever is copied to it, maybe behind layers that pass a Copy on.
fn takes_all(uri: &Uri) -> bool {
    match &uri.kind {
        Kind::Null(_) => true,
        Kind::Delay(..) | Kind::Rate(..) | Kind::Fault(..) => uri.children().iter().all(takes_all),
        _ => false,
    }
}

/// Whether a program routes what is written to a volume, or to a part of it.
fn is_program(volume: &Arc<dyn Namespace>) -> bool {
    fn has(uri: &Uri) -> bool {
        matches!(uri.kind, Kind::Program(..)) || uri.children().iter().any(has)
    }
    volume.uri().parse().is_ok_and(|uri| has(&uri))
}

/// Whether a volume's controller copies from other namespaces of its subsystem: the volume says so.
fn copies_between(target: &Arc<dyn Namespace>) -> bool {
    let mut facts = Vec::new();
    target.describe(&mut facts);
    facts.iter().any(|(fact, means)| fact == "copy" && means.contains("from other namespaces"))
}

/// By which means blocks are copied, as far as it can be known before it is tried; `between`: the target's
/// controller copies from other namespaces of its subsystem.
fn means(source: Option<&Located>, target: Option<&Located>, between: bool) -> Means {
    match (source.map(|it| &it.origin), target.map(|it| &it.origin)) {
        (Some(Origin::File(one)), Some(Origin::File(other))) if other.may_copy_from(one) => {
            Means::File { shares: other.may_share_with(one) }
        }
        (Some(Origin::Memory(_)), Some(Origin::Memory(_))) => Means::Memory,
        (
            Some(Origin::Subsystem { nqn: one, nsid: here, .. }),
            Some(Origin::Subsystem { nqn: other, nsid: there, .. }),
        ) if Arc::ptr_eq(one, other) && (here == there || between) => {
            Means::Subsystem(Arc::clone(one))
        }
        _ => Means::Apart,
    }
}

/// The plan in words, or as JSON.
pub fn written(plan: &Told, format: ListFormat) -> String {
    let Told { total_bytes, order, parts, verify, targets, refusal: _ } = plan;
    match format {
        ListFormat::Json => {
            let mut fields = Map::new();
            fields.insert("total_bytes".into(), json!(total_bytes));
            fields.insert("order".into(), json!(order));
            fields.insert("parts".into(), json!(parts));
            fields.insert("verify".into(), json!(verify));
            format!("{:#}\n", json_object(fields))
        }
        ListFormat::Normal => {
            let head = ["Source", "From", "Target", "To", "Bytes", "Means"];
            let row = |way: &Way<String>| {
                [
                    way.source.clone(),
                    size::exact(way.source_offset),
                    way.target.clone(),
                    size::exact(way.target_offset),
                    size::exact(way.bytes),
                    way.means.clone(),
                ]
            };
            let mut text = columns(&head, &parts.iter().map(row).collect::<Vec<_>>());
            if order != Order::Free.name() {
                text.push_str(&format!("it overlaps itself: {order}, one command at a time\n"));
            }
            if let Some(how) = verify {
                text.push_str(&format!("compared afterwards: {how}\n"));
            }
            let each = match targets {
                1 => String::new(),
                count => format!(", to each of {count} targets"),
            };
            text.push_str(&format!("{} in all{each}\n", size::exact(*total_bytes)));
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_behind_layers_is_copied_to_and_a_source_is_read() {
        let open = |uri| volume::open(uri, &volume::OpenOptions::default()).unwrap();
        let (memory, late) = (open("mem:1M"), open("rate:1G(delay:write=1ms(mem:1M))"));
        let (faulty, null) = (open("fault:op=flush(mem:1M)"), open("null:1M"));
        let volatile = open("volatile:(mem:1M)");
        let told = |source: &Arc<_>, target: &Arc<_>| between(source, target).pop().unwrap().means;
        assert_eq!(told(&memory, &memory), Means::Memory);
        assert_eq!([told(&memory, &late), told(&late, &late)], [Means::Memory, Means::Memory]);
        assert_eq!(told(&memory, &faulty), Means::Memory);
        assert_eq!([told(&late, &memory), told(&faulty, &late)], [Means::Apart, Means::Apart]);
        assert_eq!(told(&memory, &volatile), Means::Apart);
        assert_eq!([told(&memory, &null), told(&null, &null)], [Means::Any, Means::Any]);
        let late_null = open("rate:1G(delay:write=1ms(null:1M))");
        assert_eq!(told(&memory, &late_null), Means::Any);
        assert_eq!([told(&late, &null), told(&null, &memory)], [Means::Apart, Means::Apart]);
    }
}
