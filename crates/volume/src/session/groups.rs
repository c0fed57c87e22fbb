//! Commands that complete as one: a Copy to many volumes.

use super::VolumeId;
use nvme::Status;
use std::cell::RefCell;

/// A command's part in a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    /// Place of the group.
    pub(super) group: u32,
    /// The command's number in it.
    pub(super) number: u32,
}

/// How all commands of a group went, as one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) status: Status,
    /// Of a failure: dword 0 of the completion.
    pub(super) command_result: u64,
    /// The lowest command that failed; as many as there are if none has.
    pub(super) failed: u32,
    /// Where that went to.
    pub(super) volume: VolumeId,
}

/// A group in flight.
struct Group {
    left: u32,
    outcome: Outcome,
    /// Its outcome is asked for by whoever made it, and not reaped.
    is_private: bool,
}

/// All groups of a session; their places are used again.
#[derive(Default)]
pub(super) struct Groups {
    places: RefCell<Vec<Option<Group>>>,
}

/// What the end of a command means for its group.
pub(super) enum Ended {
    /// Others have not ended.
    Others,
    /// It was the last one, of a group that waits to be asked.
    Kept,
    /// It was the last one.
    Whole(Outcome),
}

impl Groups {
    /// Begins a group of `count` commands, at least one. `volume` is told where none fails.
    pub(super) fn begin(&self, count: u32, volume: VolumeId, is_private: bool) -> u32 {
        assert!(count > 0);
        let outcome = Outcome { status: Status::SUCCESS, command_result: 0, failed: count, volume };
        let group = Some(Group { left: count, outcome, is_private });
        let mut places = self.places.borrow_mut();
        let free = places.iter().position(Option::is_none);
        match free {
            Some(at) => {
                places[at] = group;
                at as u32
            }
            None => {
                places.push(group);
                places.len() as u32 - 1
            }
        }
    }

    /// A command of a group has ended.
    pub(super) fn ended(
        &self,
        member: Member,
        volume: VolumeId,
        status: Status,
        result: u64,
    ) -> Ended {
        let mut places = self.places.borrow_mut();
        let place = &mut places[member.group as usize];
        let group = place.as_mut().expect("it has a command that has not ended");
        if !status.is_success() && member.number < group.outcome.failed {
            let failed = member.number;
            group.outcome = Outcome { status, command_result: result, failed, volume };
        }
        group.left -= 1;
        match (group.left, group.is_private) {
            (0, false) => Ended::Whole(place.take().expect("just seen").outcome),
            (0, true) => Ended::Kept,
            _ => Ended::Others,
        }
    }

    /// The outcome of a private group, once all of its commands have ended.
    pub(super) fn outcome(&self, group: u32) -> Option<Outcome> {
        let mut places = self.places.borrow_mut();
        let place = &mut places[group as usize];
        place.take_if(|group| group.left == 0).map(|group| group.outcome)
    }
}
