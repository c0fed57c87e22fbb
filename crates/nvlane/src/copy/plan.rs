//! What a copy would do, and by which means: `--dry-run`.

use super::engine::{can_copy, gives_checksums};
use super::layout::{Extent, Layout, Order, Target};
use super::open::Opened;
use super::spec::Options;
use crate::admin::{columns, json_object};
use crate::cli::ListFormat;
use namespace::Namespace;
use namespace::copy::{Located, Origin};
use nvme::Limits;
use serde::Serialize;
use serde_json::{Map, json};
use std::sync::Arc;

/// The means where there is no better one.
const APART: &str = "Copy: read and written beside the target";

/// Parts that differ in their means are told apart up to this many.
const PARTS_MAX: usize = 64;

/// Bytes that go one way.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    source: String,
    source_offset: u64,
    target: String,
    target_offset: u64,
    bytes: u64,
    means: String,
}

/// All of it.
pub struct Plan {
    lines: Vec<Line>,
    bytes: u64,
    order: Order,
    /// How it is compared afterwards, if it is.
    verify: Option<&'static str>,
}

/// What a copy would do.
pub fn of(opened: &Opened, layout: &Layout, options: &Options) -> Plan {
    let mut lines = Vec::new();
    for extent in &layout.extents {
        for target in &layout.targets {
            lines.extend(parts(opened, layout, extent, target, options));
        }
    }
    let verify = options.verify.then(|| comparison(opened, layout, options));
    Plan { lines, bytes: layout.bytes, order: layout.order, verify }
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
) -> Vec<Line> {
    let (source, to) = (&opened.volumes[extent.volume], &opened.volumes[target.volume]);
    let (from, limits) = (source.limits(), to.limits());
    let line = |at: u64, bytes: u64, means: String| Line {
        source: source.uri(),
        source_offset: extent.offset + at,
        target: to.uri(),
        target_offset: target.offset + extent.start + at,
        bytes,
        means,
    };
    if !opened.is_copied(layout, extent.volume, target.volume, options) {
        let why = match () {
            () if options.read_write => "as asked for".to_owned(),
            () if options.sparse_bytes.is_some() => "to look for zeroes".to_owned(),
            () if layout.targets.len() > 1 && from.block_shift == limits.block_shift => {
                "once for several targets".to_owned()
            }
            () => why_not_copied(&from, &limits),
        };
        return vec![line(0, extent.bytes, format!("read and written: {why}"))];
    }
    let to = (to, target.offset + extent.start);
    let stretches = stretches((source, extent.offset), to, extent.bytes);
    stretches.into_iter().map(|it| line(it.offset, it.bytes, it.means)).collect()
}

/// Why a volume is not copied to another with Copy commands.
fn why_not_copied(source: &Limits, target: &Limits) -> String {
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
    pub means: String,
}

/// By which means a volume is copied to another, each from its beginning, as far as both reach.
pub fn between(source: &Arc<dyn Namespace>, target: &Arc<dyn Namespace>) -> Vec<Stretch> {
    let (from, to) = (source.limits(), target.limits());
    let bytes = from.bytes().min(to.bytes());
    let means = match () {
        () if to.read_only => "not at all: the target is read-only".to_owned(),
        () if !can_copy(&from, &to, &Options::default()) => {
            format!("read and written: {}", why_not_copied(&from, &to))
        }
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
    let mut found: Vec<Stretch> = Vec::new();
    let mut at = 0;
    while at < bytes {
        let left = (bytes - at) >> shift;
        let located = |volume: &Arc<dyn Namespace>, offset: u64| {
            Arc::clone(volume).origin(offset >> shift, left)
        };
        let one = located(source, source_offset + at);
        let other = located(target, target_offset + at);
        let of = |found: &Option<Located>| found.as_ref().map_or(left, |found| found.blocks);
        let blocks = of(&one).min(of(&other)).clamp(1, left);
        let means = means(one.as_ref(), other.as_ref(), between);
        let count = found.len();
        match found.last_mut() {
            Some(last) if last.means == means => last.bytes += blocks << shift,
            _ if count == PARTS_MAX => {
                let means = "by Copy".to_owned();
                found.push(Stretch { offset: at, bytes: bytes - at, means });
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
            != APART
}

/// Whether a volume's controller copies from other namespaces of its subsystem: the volume says so.
fn copies_between(target: &Arc<dyn Namespace>) -> bool {
    let mut facts = Vec::new();
    target.describe(&mut facts);
    facts.iter().any(|(fact, means)| fact == "copy" && means.contains("from other namespaces"))
}

/// By which means blocks are copied, as far as it can be known before it is tried; `between`: the target's
/// controller copies from other namespaces of its subsystem.
fn means(source: Option<&Located>, target: Option<&Located>, between: bool) -> String {
    match (source.map(|it| &it.origin), target.map(|it| &it.origin)) {
        (Some(Origin::File(one)), Some(Origin::File(other))) if other.may_copy_from(one) => {
            "Copy: copy_file_range".to_owned()
        }
        (Some(Origin::Memory(_)), Some(Origin::Memory(_))) => "Copy: within memory".to_owned(),
        (
            Some(Origin::Subsystem { nqn: one, nsid: here, .. }),
            Some(Origin::Subsystem { nqn: other, nsid: there, .. }),
        ) if Arc::ptr_eq(one, other) && (here == there || between) => {
            format!("Copy: by the controller of {one}")
        }
        _ => APART.to_owned(),
    }
}

/// The plan in words, or as JSON.
pub fn written(plan: &Plan, format: ListFormat) -> String {
    let order = match plan.order {
        Order::Free => "any",
        Order::Forwards => "forwards",
        Order::Backwards => "backwards",
    };
    match format {
        ListFormat::Json => {
            let mut fields = Map::new();
            fields.insert("total_bytes".into(), plan.bytes.into());
            fields.insert("order".into(), order.into());
            fields.insert("parts".into(), json!(plan.lines));
            fields.insert("verify".into(), json!(plan.verify));
            format!("{:#}\n", json_object(fields))
        }
        ListFormat::Normal => {
            let head = ["Source", "From", "Target", "To", "Bytes", "Means"];
            let rows: Vec<[String; 6]> = plan
                .lines
                .iter()
                .map(|line| {
                    [
                        line.source.clone(),
                        line.source_offset.to_string(),
                        line.target.clone(),
                        line.target_offset.to_string(),
                        line.bytes.to_string(),
                        line.means.clone(),
                    ]
                })
                .collect();
            let mut text = columns(&head, &rows);
            if plan.order != Order::Free {
                text.push_str(&format!("it overlaps itself: {order}, one command at a time\n"));
            }
            if let Some(how) = plan.verify {
                text.push_str(&format!("compared afterwards: {how}\n"));
            }
            text
        }
    }
}
