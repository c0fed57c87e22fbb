//! What becomes of a Copy that a path has failed.
//!
//! ```text
//!   ANA status, all sources in the destination's namespace   it is about the path: as with any command
//!   ANA status, a source in another namespace                about the path, or about that one's group by this path:
//!                                                            every path is asked, and asked again for a while;
//!                                                            then Fast Copy Not Possible: whoever asked reads and writes
//! ```

use crate::copy::{Place, Sources};
use association::retry::{Retry, may_retry_copy};
use nvme::Status;

/// After every path has refused a Copy because of some ANA state, it is sent so often again. With the pauses
/// between that takes an eighth of a second: time for the log page that tells whether the path can be used.
const ANA_REFUSALS: u32 = 8;

/// Whether a Copy to the blocks from `sdlba` on, which came back with `status`, is to be sent again, and what it comes
/// back with otherwise. `failures` of `paths` paths came before.
#[cold]
pub fn judge(
    sources: &Sources,
    sdlba: u64,
    status: Status,
    failures: u32,
    paths: usize,
) -> (Retry, Status) {
    let verdict = may_retry_copy(!reads_what_it_writes(sources, sdlba), status);
    let names_another = sources.ranges.iter().any(|range| !matches!(range.place, Place::Same));
    if !names_another || !is_ana(status) {
        return (verdict, status);
    }
    // Of the last path, not of those that were dead before: there is another time.
    if verdict == Retry::No || failures >= paths as u32 + ANA_REFUSALS - 1 {
        return (Retry::No, Status::FAST_COPY_NOT_POSSIBLE);
    }
    (verdict, status)
}

fn is_ana(status: Status) -> bool {
    matches!(
        status.code(),
        Status::ANA_INACCESSIBLE | Status::ANA_TRANSITION | Status::ANA_PERSISTENT_LOSS
    )
}

/// Whether a Copy to the blocks from `sdlba` on reads any of them, before or after it has written
/// them. If not, doing it twice is as good as once.
fn reads_what_it_writes(sources: &Sources, sdlba: u64) -> bool {
    let end = sdlba.saturating_add(sources.blocks());
    sources
        .ranges
        .iter()
        .filter(|range| matches!(range.place, Place::Same))
        .any(|range| range.slba < end && range.slba.saturating_add(u64::from(range.blocks)) > sdlba)
}
