//! The ways to a volume, and how each of them is.

use crate::failure::{Failure, answer};
use crate::handle;
use crate::volume::{nvl_volume, write_text};
use namespace::{Access, PathReport};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};

/// Bytes of nvl_path.name and nvl_path.reason, the zero at the end included.
pub const NVL_PATH_TEXT_BYTES: usize = 256;

/// nvl_path.access: live, and optimized by ANA, or there is no ANA.
pub const NVL_PATH_OPTIMIZED: u32 = 0;
/// nvl_path.access: live; non-optimized by ANA: used where there is nothing optimized.
pub const NVL_PATH_NON_OPTIMIZED: u32 = 1;
/// nvl_path.access: live, but commands would fail: inaccessible, persistent loss or change by ANA.
pub const NVL_PATH_INACCESSIBLE: u32 = 2;
/// nvl_path.access: no connection now; one is being made.
pub const NVL_PATH_LOST: u32 = 3;
/// nvl_path.access: the same, and what waits for it fails (fast_io_fail_tmo is over).
pub const NVL_PATH_FAILING: u32 = 4;
/// nvl_path.access: given up for good (ctrl_loss_tmo is over).
pub const NVL_PATH_GONE: u32 = 5;

/// One way to a volume. Counts are since the volume was opened.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvl_path {
    /// What tells it from the others, "tcp://192.0.2.1:4420"; cut off where it is longer.
    pub name: [c_char; NVL_PATH_TEXT_BYTES],
    /// Why it is not live, in words; empty if it is.
    pub reason: [c_char; NVL_PATH_TEXT_BYTES],
    /// NVL_PATH_*: connection and ANA state, the better the smaller. Commands are sent up to NVL_PATH_NON_OPTIMIZED.
    pub access: u32,
    /// What the policy gives it, 0 to 128.
    pub weight: u32,
    /// Of the commands sent by all paths since the last call that filled in paths, 0 to 1; at the first, since the volume was opened.
    pub share: f64,
    /// Commands in flight.
    pub in_flight: u64,
    /// Commands sent.
    pub commands: u64,
    /// Those that came back with an error of the path.
    pub errors: u64,
    /// Connections made after the first.
    pub reconnects: u64,
    /// Half of the latencies of the last some seconds are below, in nanoseconds; 0 where nothing was sent.
    pub p50_ns: u64,
    /// 99 of 100 are.
    pub p99_ns: u64,
    /// 0; for what later versions know.
    pub reserved: [u64; 4],
}

/// What each path had sent at the last call, by name.
pub(crate) type Sent = RefCell<BTreeMap<String, u64>>;

/// Fills in how the paths to a volume are, up to `most` of them, and gives how many there are: 0 where there is but one way
/// and nothing is known of it, as to a file. Never blocks; not for every command. A path is live once this session's own
/// connection by it is made, which happens in the session's calls. What `nvlane paths` tells beside that (its details) is for
/// people, and differs by policy.
///
/// These are structures and not the JSON of `nvlane paths`, as with all else here: a program needs nothing to read them.
///
/// # Safety
/// `volume` is null or a volume, not closed; `paths` is writable for `most` elements, or null if `most` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_paths(
    volume: *mut nvl_volume,
    paths: *mut nvl_path,
    most: u32,
) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { handle::of(volume) }.and_then(|volume| {
        if paths.is_null() && most > 0 {
            return Err(Failure::argument("the place for paths is null"));
        }
        let reports = volume.volume.namespace().paths();
        if most == 0 {
            // Who only counts does not begin a new time for the shares.
            return Ok(reports.len() as c_int);
        }
        let shares = shares_since_last(&volume.sent, &reports);
        for (at, (report, share)) in reports.iter().zip(shares).take(most as usize).enumerate() {
            // SAFETY: as the caller promised; there are no more than `most`.
            unsafe { paths.add(at).write(filled(report, share)) };
        }
        Ok(reports.len() as c_int)
    }))
}

/// Each path's share of what was sent since the last call. Those that are no more are forgotten.
fn shares_since_last(sent: &Sent, reports: &[PathReport]) -> Vec<f64> {
    let now = reports.iter().map(|report| (report.name.clone(), report.selections)).collect();
    let before = sent.replace(now);
    let since = |report: &PathReport| {
        report.selections.saturating_sub(before.get(&report.name).copied().unwrap_or(0))
    };
    let since: Vec<u64> = reports.iter().map(since).collect();
    let total: u64 = since.iter().sum();
    since
        .into_iter()
        .map(|sent| if total == 0 { 0.0 } else { sent as f64 / total as f64 })
        .collect()
}

fn filled(report: &PathReport, share: f64) -> nvl_path {
    nvl_path {
        name: text(&report.name),
        reason: text(&report.reason),
        access: match report.access {
            Access::Optimized => NVL_PATH_OPTIMIZED,
            Access::NonOptimized => NVL_PATH_NON_OPTIMIZED,
            Access::Inaccessible => NVL_PATH_INACCESSIBLE,
            Access::Lost => NVL_PATH_LOST,
            Access::Failing => NVL_PATH_FAILING,
            Access::Gone => NVL_PATH_GONE,
        },
        weight: report.weight,
        share,
        in_flight: report.in_flight,
        commands: report.selections,
        errors: report.errors,
        reconnects: report.reconnects,
        p50_ns: report.p50_ns,
        p99_ns: report.p99_ns,
        reserved: [0; 4],
    }
}

fn text(from: &str) -> [c_char; NVL_PATH_TEXT_BYTES] {
    let mut text = [0; NVL_PATH_TEXT_BYTES];
    // SAFETY: as many bytes as it is told.
    let written = unsafe { write_text(from, text.as_mut_ptr(), NVL_PATH_TEXT_BYTES) };
    debug_assert!(written.is_ok(), "there is a place");
    text
}
