//! What is to be done next for each request of a queue. Pure: no ring, no clock.
//!
//! ```text
//!              begin                                   served            copied
//!   Fetching --------> CopyingIn --copied--> Serving --------> CopyingOut ------> Fetching
//!      |                (user copy, writes)    |  ^             (user copy, reads)    ^
//!      |                                       |  '-- Pausing (to be tried again)     |
//!      |                                       '--------------------------------------'  committed
//!      '--ended--> Ended
//! ```

use crate::driver::Descriptor;
use crate::errno;
use crate::path::DataPath;
use crate::translate::{Shape, Transfer, Work};
use crate::zoned::{HEADER_BYTES, ZONE_BYTES};
use association::retry::Tries;
use namespace::dataset::Range;
use nvme::{Command, Status};
use std::time::Duration;

/// More than any request has: the driver takes as much as there is. A report of fewer zones than there was room
/// for is complete.
const ALL_BYTES: i32 = i32::MAX;

/// What to do next for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Bring so many bytes of the request, from `skip` on, into its memory.
    CopyIn {
        /// Bytes that are there already.
        skip: u32,
        /// Bytes that are missing.
        bytes: u32,
    },
    /// Give [`Tags::command`] to the volume.
    Submit,
    /// The same after a while.
    SubmitLater(Duration),
    /// Bring so many bytes that the volume has read, from `skip` on, into the request.
    CopyOut {
        /// Bytes that are there already.
        skip: u32,
        /// Bytes that are missing.
        bytes: u32,
    },
    /// Tell the driver: bytes, or `-errno`.
    Commit(i32),
}

/// What the volume's command comes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// Nothing.
    Nothing,
    /// Memory to read into.
    Room(u32),
    /// Memory with what is to be written.
    Bytes(u32),
    /// The request's pages, which are registered.
    Pages(u32),
    /// A range.
    Range(Range),
}

/// The requests of one queue.
#[derive(Debug)]
pub struct Tags {
    path: DataPath,
    shape: Shape,
    tags: Box<[Tag]>,
    /// Tags that the server has, rather than the driver.
    busy: u16,
    ended: u16,
}

#[derive(Clone, Copy, Debug)]
struct Tag {
    phase: Phase,
    work: Work,
    tries: Tries,
    /// Bytes copied.
    copied: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// With the driver.
    Fetching,
    CopyingIn,
    Serving,
    Pausing,
    CopyingOut,
    Ended,
}

impl Tags {
    /// A queue of so many, all of which fetch.
    pub fn new(depth: u16, path: DataPath, shape: Shape) -> Tags {
        let work = Work {
            command: Command::default(),
            transfer: Transfer::Nothing,
            is_unregistered: false,
        };
        let tag = Tag { phase: Phase::Fetching, work, tries: Tries::default(), copied: 0 };
        Tags { path, shape, tags: vec![tag; depth.into()].into(), busy: 0, ended: 0 }
    }

    /// How many there are.
    pub fn depth(&self) -> u16 {
        self.tags.len() as u16
    }

    /// The driver has given a request to the server.
    ///
    /// # Panics
    /// If it had done so before.
    #[inline]
    pub fn begin(&mut self, tag: u16, request: &Descriptor) -> Step {
        let translated = self.shape.translate(request);
        let path = self.path;
        let this = self.expect(tag, Phase::Fetching);
        (this.tries, this.copied) = (Tries::default(), 0);
        let step = match translated {
            Err(errno) => {
                this.phase = Phase::Serving;
                self.busy += 1;
                return self.commit(tag, -errno);
            }
            Ok(work) => {
                this.work = work;
                match work.transfer {
                    Transfer::Write(bytes) if path.copies_by_hand(&work) => {
                        this.phase = Phase::CopyingIn;
                        Step::CopyIn { skip: 0, bytes }
                    }
                    _ => {
                        this.phase = Phase::Serving;
                        Step::Submit
                    }
                }
            }
        };
        self.busy += 1;
        step
    }

    /// So many bytes were copied, or `-errno`.
    pub fn copied(&mut self, tag: u16, result: i32) -> Step {
        let this = &mut self.tags[usize::from(tag)];
        let bytes = match this.work.transfer {
            Transfer::Read(bytes) | Transfer::Write(bytes) => bytes,
            Transfer::Report(zones) => zones * ZONE_BYTES,
            Transfer::Nothing | Transfer::Range(_) => panic!("nothing was to be copied"),
        };
        if result <= 0 {
            return self.commit(tag, if result < 0 { result } else { -libc::EIO });
        }
        this.copied += result as u32;
        let (skip, left) = (this.copied, bytes - this.copied);
        match this.phase {
            Phase::CopyingIn if left > 0 => Step::CopyIn { skip, bytes: left },
            Phase::CopyingIn => {
                this.phase = Phase::Serving;
                Step::Submit
            }
            Phase::CopyingOut if left > 0 => Step::CopyOut { skip, bytes: left },
            Phase::CopyingOut if matches!(this.work.transfer, Transfer::Report(_)) => {
                self.commit(tag, ALL_BYTES)
            }
            Phase::CopyingOut => self.commit(tag, bytes as i32),
            phase => panic!("nothing was being copied: {phase:?}"),
        }
    }

    /// The volume has answered.
    #[inline]
    pub fn served(&mut self, tag: u16, status: Status) -> Step {
        let path = self.path;
        let this = self.expect(tag, Phase::Serving);
        if !status.is_success() {
            return self.failed(tag, status);
        }
        match this.work.transfer {
            Transfer::Read(bytes) if path.copies_by_hand(&this.work) => {
                this.phase = Phase::CopyingOut;
                Step::CopyOut { skip: 0, bytes }
            }
            Transfer::Report(zones) => {
                this.phase = Phase::CopyingOut;
                Step::CopyOut { skip: 0, bytes: zones * ZONE_BYTES }
            }
            Transfer::Read(bytes) | Transfer::Write(bytes) => self.commit(tag, bytes as i32),
            Transfer::Nothing | Transfer::Range(_) => self.commit(tag, 0),
        }
    }

    #[cold]
    fn failed(&mut self, tag: u16, status: Status) -> Step {
        let this = &mut self.tags[usize::from(tag)];
        let Some(pause) = this.tries.next(&this.work.command, status) else {
            return self.commit(tag, -errno::of_status(status));
        };
        this.phase = Phase::Pausing;
        Step::SubmitLater(pause)
    }

    /// The pause is over.
    pub fn resume(&mut self, tag: u16) -> Step {
        self.expect(tag, Phase::Pausing).phase = Phase::Serving;
        Step::Submit
    }

    /// There is no memory, nor will be.
    pub fn give_up(&mut self, tag: u16) -> Step {
        self.commit(tag, -libc::ENOMEM)
    }

    /// The driver gives no more requests by this tag.
    pub fn ended(&mut self, tag: u16) {
        self.expect(tag, Phase::Fetching).phase = Phase::Ended;
        self.ended += 1;
    }

    /// Whether the driver has a tag.
    pub fn is_fetching(&self, tag: u16) -> bool {
        self.tags[usize::from(tag)].phase == Phase::Fetching
    }

    /// Whether it gives none by any.
    pub fn has_ended(&self) -> bool {
        usize::from(self.ended) == self.tags.len()
    }

    /// Requests that the server has.
    pub fn busy(&self) -> u16 {
        self.busy
    }

    /// What the volume is told.
    #[inline]
    pub fn command(&self, tag: u16) -> &Command {
        &self.tags[usize::from(tag)].work.command
    }

    /// What that comes with.
    #[inline]
    pub fn carries(&self, tag: u16) -> Carries {
        let work = &self.tags[usize::from(tag)].work;
        let is_registered = self.path == DataPath::ZeroCopy && !work.is_unregistered;
        match work.transfer {
            Transfer::Nothing => Carries::Nothing,
            Transfer::Range(range) => Carries::Range(range),
            Transfer::Read(bytes) | Transfer::Write(bytes) if is_registered => {
                Carries::Pages(bytes)
            }
            Transfer::Read(bytes) => Carries::Room(bytes),
            Transfer::Report(zones) => Carries::Room(HEADER_BYTES + zones * ZONE_BYTES),
            Transfer::Write(bytes) => Carries::Bytes(bytes),
        }
    }

    /// Whether it is a report of zones.
    #[inline]
    pub fn is_report(&self, tag: u16) -> bool {
        matches!(self.tags[usize::from(tag)].work.transfer, Transfer::Report(_))
    }

    #[inline]
    fn commit(&mut self, tag: u16, result: i32) -> Step {
        let this = &mut self.tags[usize::from(tag)];
        assert!(!matches!(this.phase, Phase::Fetching | Phase::Ended), "a request ends once");
        this.phase = Phase::Fetching;
        self.busy -= 1;
        Step::Commit(result)
    }

    #[inline]
    fn expect(&mut self, tag: u16, phase: Phase) -> &mut Tag {
        let this = &mut self.tags[usize::from(tag)];
        assert_eq!(this.phase, phase, "tag {tag}");
        this
    }
}

impl DataPath {
    /// Whether the server copies the data of a request.
    #[inline]
    fn copies_by_hand(self, work: &Work) -> bool {
        match self {
            DataPath::Copy => false,
            DataPath::UserCopy => true,
            DataPath::ZeroCopy => work.is_unregistered,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{operation, request_flag};
    use crate::translate::SHAPE;
    use proptest::prelude::*;

    fn request(operation: u8) -> Descriptor {
        Descriptor { op_flags: operation.into(), nr_sectors: 8, start_sector: 8, addr: 0 }
    }

    #[test]
    fn a_report_of_zones_is_copied_behind_its_header_and_ends_whole() {
        let shape = Shape { zone_sectors: 8192, ..SHAPE };
        let mut tags = Tags::new(1, DataPath::UserCopy, shape);
        let report = Descriptor { nr_sectors: 3, ..request(operation::REPORT_ZONES) };
        assert_eq!(tags.begin(0, &report), Step::Submit);
        assert_eq!(tags.carries(0), Carries::Room(4 * 64));
        assert!(tags.is_report(0));
        assert_eq!(tags.served(0, Status::SUCCESS), Step::CopyOut { skip: 0, bytes: 192 });
        assert_eq!(tags.copied(0, 128), Step::CopyOut { skip: 128, bytes: 64 });
        assert_eq!(tags.copied(0, 64), Step::Commit(i32::MAX));
    }

    #[test]
    fn by_user_copy_data_comes_before_a_write_and_goes_after_a_read() {
        let mut tags = Tags::new(2, DataPath::UserCopy, SHAPE);
        let write = tags.begin(0, &request(operation::WRITE));
        assert_eq!(write, Step::CopyIn { skip: 0, bytes: 4096 });
        // The kernel may stop in between.
        assert_eq!(tags.copied(0, 1024), Step::CopyIn { skip: 1024, bytes: 3072 });
        assert_eq!(tags.copied(0, 3072), Step::Submit);
        assert_eq!(tags.carries(0), Carries::Bytes(4096));
        assert_eq!(tags.begin(1, &request(operation::READ)), Step::Submit);
        assert_eq!((tags.carries(1), tags.busy()), (Carries::Room(4096), 2));
        assert_eq!(tags.served(0, Status::SUCCESS), Step::Commit(4096));
        let read = tags.served(1, Status::SUCCESS);
        assert_eq!(read, Step::CopyOut { skip: 0, bytes: 4096 });
        assert_eq!((tags.copied(1, 4096), tags.busy()), (Step::Commit(4096), 0));
        tags.ended(0);
        assert!(!tags.has_ended());
        tags.ended(1);
        assert!(tags.has_ended());
    }

    #[test]
    fn elsewhere_nothing_is_copied_unless_pages_are_not_registered() {
        let mut tags = Tags::new(1, DataPath::ZeroCopy, SHAPE);
        assert_eq!(tags.begin(0, &request(operation::WRITE)), Step::Submit);
        assert_eq!(tags.carries(0), Carries::Pages(4096));
        assert_eq!(tags.served(0, Status::SUCCESS), Step::Commit(4096));
        let mut write = request(operation::WRITE);
        write.op_flags |= request_flag::NEED_REG_BUF;
        assert_eq!(tags.begin(0, &write), Step::CopyIn { skip: 0, bytes: 4096 });
        assert_eq!((tags.copied(0, 4096), tags.carries(0)), (Step::Submit, Carries::Bytes(4096)));
        assert_eq!(tags.served(0, Status::SUCCESS), Step::Commit(4096));
        let mut tags = Tags::new(1, DataPath::Copy, SHAPE);
        assert_eq!(tags.begin(0, &request(operation::READ)), Step::Submit);
        assert_eq!(tags.carries(0), Carries::Room(4096));
        assert_eq!(tags.served(0, Status::SUCCESS), Step::Commit(4096));
        assert_eq!(tags.begin(0, &request(operation::FLUSH)), Step::Submit);
        assert_eq!(tags.served(0, Status::SUCCESS), Step::Commit(0));
    }

    #[test]
    fn what_may_be_tried_again_is_a_few_times() {
        let mut tags = Tags::new(1, DataPath::Copy, SHAPE);
        tags.begin(0, &request(operation::WRITE));
        let mut waited = Duration::ZERO;
        let last = loop {
            match tags.served(0, Status::COMMAND_INTERRUPTED) {
                Step::SubmitLater(pause) => waited += pause,
                last => break last,
            }
            assert_eq!(tags.resume(0), Step::Submit);
        };
        assert!(waited >= Duration::from_millis(300) && waited < Duration::from_secs(1));
        assert_eq!(last, Step::Commit(-libc::EIO));
        tags.begin(0, &request(operation::WRITE));
        assert_eq!(tags.served(0, Status::WRITE_FAULT.dnr()), Step::Commit(-libc::EIO));
    }

    #[test]
    fn refused_requests_and_failed_copies_are_committed_with_their_error() {
        let mut tags = Tags::new(1, DataPath::UserCopy, SHAPE);
        assert_eq!(tags.begin(0, &request(99)), Step::Commit(-libc::EOPNOTSUPP));
        tags.begin(0, &request(operation::WRITE));
        assert_eq!(tags.copied(0, -libc::EFAULT), Step::Commit(-libc::EFAULT));
        tags.begin(0, &request(operation::WRITE));
        assert_eq!(tags.copied(0, 0), Step::Commit(-libc::EIO));
        assert_eq!(tags.busy(), 0);
    }

    proptest! {
        /// Whatever comes, each request is committed once, with its length or an error, and the
        /// count of those in the server's hands is right.
        #[test]
        fn every_request_ends_once(
            path in prop::sample::select(vec![DataPath::Copy, DataPath::UserCopy, DataPath::ZeroCopy]),
            events in prop::collection::vec((0u16..4, any::<u8>(), any::<bool>()), 1..300),
        ) {
            let mut tags = Tags::new(4, path, SHAPE);
            let mut next: [Option<Step>; 4] = [None; 4];
            for (tag, seed, good) in events {
                let step = match next[usize::from(tag)] {
                    None => {
                        let mut request = request(seed % 6);
                        if seed & 64 != 0 { request.op_flags |= request_flag::NEED_REG_BUF }
                        tags.begin(tag, &request)
                    }
                    Some(Step::CopyIn { bytes, skip } | Step::CopyOut { bytes, skip }) => {
                        prop_assert_eq!(skip + bytes, 4096);
                        let part = 1 + u32::from(seed) * 16;
                        tags.copied(tag, if good { part.min(bytes) as i32 } else { -5 })
                    }
                    Some(Step::Submit) => tags.served(tag, match (good, seed & 1) {
                        (true, _) => Status::SUCCESS,
                        (false, 0) => Status::COMMAND_INTERRUPTED,
                        _ => Status::WRITE_FAULT.dnr(),
                    }),
                    Some(Step::SubmitLater(_)) => tags.resume(tag),
                    Some(Step::Commit(_)) => unreachable!("taken out below"),
                };
                next[usize::from(tag)] = match step {
                    Step::Commit(result) => {
                        prop_assert!(result <= 0 || result == 4096);
                        None
                    }
                    step => Some(step),
                };
                let busy = next.iter().filter(|step| step.is_some()).count();
                prop_assert_eq!(usize::from(tags.busy()), busy);
            }
        }
    }
}
