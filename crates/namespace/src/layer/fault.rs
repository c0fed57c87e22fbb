//! `fault:`: fails commands on purpose, and keeps blocks marked by Write Uncorrectable.
//!
//! The model: a command that the rule matches is failed with the rule's status and does not
//! reach the child. Whether the n-th matching command of a volume is failed follows from the
//! seed and n alone, so one core's run replays; with several cores, which command is the n-th
//! depends on how they race.
//!
//! Only what comes down here can fail: of a volume without Compare and Verify of its own, the guard above reads instead.
//!
//! A Copy is known by the blocks that it writes. One that reads marked blocks is not carried out below, so
//! that whoever reads and writes in its stead meets the marks where they are.

use crate::copy::Place;
use crate::layer::{addresses_blocks, pass_to_child};
use crate::{Data, Namespace, Queue, Request, Sink, dataset};
use nvme::opcode::io as opcode;
use nvme::{Limits, Status};
use reactor::Reactor;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

/// Which commands are failed, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Share of the matching commands that fail, 0 to 1.
    pub rate: f64,
    /// Only these opcodes; all if empty.
    pub opcodes: Vec<u8>,
    /// Only commands that touch these blocks, first and last included; of a Copy, those it writes, of Dataset Management, those
    /// of its ranges.
    pub lba: Option<(u64, u64)>,
    /// So many matching commands pass first.
    pub skip: u64,
    /// So many failures, then no more.
    pub count: Option<u64>,
    /// What the host is told; by default Unrecovered Read for what reads, Write Fault otherwise.
    pub status: Option<Status>,
    /// Where the dice start.
    pub seed: u64,
}

impl Default for Rule {
    fn default() -> Rule {
        Rule {
            rate: 1.0,
            opcodes: Vec::new(),
            lba: None,
            skip: 0,
            count: None,
            status: None,
            seed: 0,
        }
    }
}

/// Opcodes by the names they have in a rule.
pub const OPCODE_NAMES: [(&str, u8); 9] = [
    ("flush", opcode::FLUSH),
    ("write", opcode::WRITE),
    ("read", opcode::READ),
    ("write-uncorrectable", opcode::WRITE_UNCORRECTABLE),
    ("compare", opcode::COMPARE),
    ("write-zeroes", opcode::WRITE_ZEROES),
    ("dsm", opcode::DATASET_MANAGEMENT),
    ("verify", opcode::VERIFY),
    ("copy", opcode::COPY),
];

/// As in a volume URI: `rate=0.01,op=read,op=write,lba=0-1023,skip=5,count=3,status=0x281,seed=7`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rate={}", self.rate)?;
        for code in &self.opcodes {
            match OPCODE_NAMES.iter().find(|(_, named)| named == code) {
                Some((name, _)) => write!(f, ",op={name}")?,
                None => write!(f, ",op={code:#04x}")?,
            }
        }
        if let Some((first, last)) = self.lba {
            write!(f, ",lba={first}-{last}")?;
        }
        if self.skip > 0 {
            write!(f, ",skip={}", self.skip)?;
        }
        if let Some(count) = self.count {
            write!(f, ",count={count}")?;
        }
        if let Some(status) = self.status {
            write!(f, ",status={:#05x}", status.0)?;
        }
        if self.seed > 0 {
            write!(f, ",seed={}", self.seed)?;
        }
        Ok(())
    }
}

/// A namespace that fails now and then.
#[derive(Debug)]
pub struct Fault {
    child: Arc<dyn Namespace>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    rule: Rule,
    matched: AtomicU64,
    failed: AtomicU64,
    /// Whether `bad` has ever held anything: what ordinary commands look at.
    any_bad: AtomicBool,
    /// Blocks marked by Write Uncorrectable: first block to one past the last, disjoint.
    bad: Mutex<BTreeMap<u64, u64>>,
}

impl Fault {
    /// Puts `rule` before `child`.
    pub fn new(child: Arc<dyn Namespace>, rule: Rule) -> Arc<Fault> {
        let shared = Shared {
            rule,
            matched: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            any_bad: AtomicBool::new(false),
            bad: Mutex::default(),
        };
        Arc::new(Fault { child, shared: Arc::new(shared) })
    }

    /// Commands failed so far by the rule.
    pub fn failures(&self) -> u64 {
        self.shared.failed.load(Ordering::Relaxed)
    }
}

impl Namespace for Fault {
    fn limits(&self) -> Limits {
        let mut limits = self.child.limits();
        limits.commands.write_uncorrectable = !limits.read_only;
        limits
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        let child = Arc::clone(&self.child).open_queue(reactor)?;
        let blocks = self.child.limits().blocks;
        Ok(Rc::new_cyclic(|me| FaultQueue {
            me: me.clone(),
            child,
            shared: Arc::clone(&self.shared),
            namespace: Arc::clone(&self.child),
            blocks,
        }))
    }

    pass_to_child!(refresh resize flush uuid keeps_blocks_whole takes_registered cut paths);
    pass_to_child!(numa_node each_program tune allocation copies_on_threads last_guard destination);
    pass_to_child!(volatile_epoch access writes_back write_off gives_checksums);
    pass_to_child!(retry_delays lost snapshot nsid);

    fn uri(&self) -> String {
        format!("fault:{}({})", self.shared.rule, self.child.uri())
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        facts.push(("fault".into(), self.shared.rule.to_string()));
        facts.push(("commands failed".into(), self.failures().to_string()));
        self.child.describe(facts);
    }
}

impl Shared {
    /// Whether the rule fails this command.
    #[inline]
    fn fails(&self, request: &Request) -> bool {
        let rule = &self.rule;
        if !rule.opcodes.is_empty() && !rule.opcodes.contains(&request.command.opcode) {
            return false;
        }
        if let Some((first, last)) = rule.lba
            && !touches(request, first, last)
        {
            return false;
        }
        let number = self.matched.fetch_add(1, Ordering::Relaxed);
        if number < rule.skip || !hits(rule.seed, number, rule.rate) {
            return false;
        }
        let limit = rule.count.unwrap_or(u64::MAX);
        let more = |failed: u64| (failed < limit).then_some(failed + 1);
        self.failed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn status(&self, code: u8) -> Status {
        let reads = matches!(code, opcode::READ | opcode::COMPARE | opcode::VERIFY);
        let usual = if reads { Status::UNRECOVERED_READ } else { Status::WRITE_FAULT };
        self.rule.status.unwrap_or(usual)
    }

    fn bad(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any block of the range is marked.
    fn is_bad(&self, start: u64, end: u64) -> bool {
        let bad = self.bad();
        bad.range(..end).next_back().is_some_and(|(_, &bad_end)| bad_end > start)
    }

    /// Whether a Copy reads marked blocks of this namespace.
    fn is_bad_source(&self, request: &Request) -> bool {
        let Data::Sources(sources) = &request.data else { return false };
        let own = sources.ranges.iter().filter(|range| matches!(range.place, Place::Same));
        own.into_iter().any(|range| {
            self.is_bad(range.slba, range.slba.saturating_add(u64::from(range.blocks)))
        })
    }

    fn mark(&self, start: u64, end: u64) {
        let mut bad = self.bad();
        cut(&mut bad, start, end);
        bad.insert(start, end);
        drop(bad);
        self.any_bad.store(true, Ordering::Release);
    }

    /// Takes the marks off a range that was written.
    fn unmark(&self, start: u64, end: u64) {
        cut(&mut self.bad(), start, end);
    }
}

/// Takes a range out of others, which do not meet.
fn cut(bad: &mut BTreeMap<u64, u64>, start: u64, end: u64) {
    while let Some((&first, &last)) =
        bad.range(..end).next_back().filter(|(_, last)| **last > start)
    {
        bad.remove(&first);
        if first < start {
            bad.insert(first, start);
        }
        if last > end {
            bad.insert(end, last);
        }
    }
}

/// The blocks that a command addresses, first and one past the last; of a Copy, those it writes.
#[inline]
fn span(request: &Request) -> Option<(u64, u64)> {
    let start = request.command.slba();
    let blocks = match &request.data {
        Data::Sources(sources) => sources.blocks(),
        _ if addresses_blocks(&request.command) => request.command.block_count().into(),
        _ => return None,
    };
    Some((start, start.saturating_add(blocks)))
}

/// Whether a command addresses any block from `first` to `last`; Dataset Management by any of its ranges.
fn touches(request: &Request, first: u64, last: u64) -> bool {
    let meets = |start: u64, end: u64| start <= last && end > first;
    if request.command.opcode != opcode::DATASET_MANAGEMENT {
        return span(request).is_some_and(|(start, end)| meets(start, end));
    }
    let (command, data) = (&request.command, &request.data);
    // SAFETY: the request holds its data during this call.
    let ranges = unsafe { dataset::ranges(command, data.as_ptr(), data.len(), u64::MAX) };
    ranges.is_ok_and(|mut ranges| {
        ranges.any(|it| it.blocks > 0 && meets(it.slba, it.slba + u64::from(it.blocks)))
    })
}

/// Whether the dice with this seed hit at throw `number`, with probability `rate`.
fn hits(seed: u64, number: u64, rate: f64) -> bool {
    if rate >= 1.0 {
        return true;
    }
    // SplitMix64: a bijection whose outputs for consecutive numbers look independent.
    let mut mixed = seed.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(number);
    mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    ((mixed >> 11) as f64) < rate * (1u64 << 53) as f64
}

struct FaultQueue {
    me: Weak<FaultQueue>,
    child: Rc<dyn Queue>,
    shared: Arc<Shared>,
    namespace: Arc<dyn Namespace>,
    blocks: u64,
}

impl Queue for FaultQueue {
    #[inline]
    fn submit(&self, request: Box<Request>) {
        if self.shared.fails(&request) {
            let status = self.shared.status(request.command.opcode);
            return request.finish_pair(status);
        }
        if let Some(second) = request.fused.as_deref()
            && self.shared.fails(second)
        {
            return self.fail_second(request);
        }
        let marks = request.command.opcode == opcode::WRITE_UNCORRECTABLE;
        if !marks && !self.shared.any_bad.load(Ordering::Acquire) {
            return self.child.submit(request);
        }
        self.submit_with_marks(request);
    }

    /// At once: what is held back, limited or failed is I/O.
    fn submit_admin(&self, request: Box<Request>) {
        self.child.submit_admin(request);
    }

    fn access(&self) -> crate::Access {
        self.child.access()
    }

    fn watch_access(&self, watcher: Weak<dyn crate::AccessWatcher>) {
        self.child.watch_access(watcher);
    }

    fn forget(&self) {
        self.child.forget();
    }
}

impl Sink for FaultQueue {
    /// A write over marked blocks from `start` on has ended. The command's own address may have
    /// been rewritten below, its length not.
    fn completed(&self, request: Box<Request>, start: u64) {
        if request.status.is_success()
            && let Some((first, end)) = span(&request)
        {
            self.shared.unmark(start, start.saturating_add(end - first));
        }
        request.complete();
    }
}

impl FaultQueue {
    /// The first of a pair would succeed, the second is failed: nothing is written either way.
    fn fail_second(&self, mut request: Box<Request>) {
        let second = request.fused.as_deref_mut().expect("checked by the caller");
        second.status = self.shared.status(second.command.opcode);
        second.result = 0;
        request.finish(Status::SUCCESS);
    }

    /// There are, or will be, marked blocks.
    fn submit_with_marks(&self, mut request: Box<Request>) {
        let command = request.command;
        let Some((start, end)) = span(&request) else {
            return self.child.submit(request);
        };
        if self.shared.is_bad_source(&request) {
            return request.finish(Status::FAST_COPY_NOT_POSSIBLE);
        }
        if command.opcode == opcode::WRITE_UNCORRECTABLE {
            if end > self.blocks && end > self.namespace.limits().blocks {
                return request.finish(Status::LBA_OUT_OF_RANGE.dnr());
            }
            self.shared.mark(start, end);
            return request.finish(Status::SUCCESS);
        }
        if !self.shared.is_bad(start, end) {
            return self.child.submit(request);
        }
        if matches!(command.opcode, opcode::WRITE | opcode::WRITE_ZEROES | opcode::COPY) {
            request.push(self.me.upgrade().expect("the queue lives while it is called"), start);
            return self.child.submit(request);
        }
        request.finish_pair(Status::UNRECOVERED_READ.dnr());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dice_hit_as_often_as_asked_and_replay() {
        for rate in [0.0, 0.01, 0.5, 1.0] {
            let count = (0..100_000).filter(|&number| hits(7, number, rate)).count();
            let expected = rate * 100_000.0;
            assert!((count as f64 - expected).abs() <= 0.1 * expected + 1.0, "{rate}: {count}");
        }
        let run = |seed| (0..64).map(|number| hits(seed, number, 0.5)).collect::<Vec<_>>();
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    /// Keeps what has come back.
    #[derive(Default)]
    struct Back(std::cell::RefCell<Option<Box<Request>>>);

    impl Sink for Back {
        fn completed(&self, request: Box<Request>, _state: u64) {
            self.0.replace(Some(request));
        }
    }

    fn done(queue: &Rc<dyn Queue>, command: nvme::Command, data: Data) -> Status {
        let back = Rc::<Back>::default();
        let mut request = Request::new();
        (request.command, request.data) = (command, data);
        request.push(Rc::clone(&back) as Rc<dyn Sink>, 0);
        queue.submit(request);
        back.0.take().expect("memory answers at once").status
    }

    fn copied(queue: &Rc<dyn Queue>, slba: u64, blocks: u32, sdlba: u64) -> Status {
        let command = nvme::copy::command(1, sdlba, 1, nvme::copy::Format::Short);
        let ranges =
            vec![crate::copy::Source { place: Place::Same, slba, blocks, fast_only: false }];
        let sources = crate::copy::Sources { ranges, ..crate::copy::Sources::default() };
        done(queue, command, Data::Sources(Box::new(sources)))
    }

    fn queue(rule: Rule) -> Rc<dyn Queue> {
        let options = crate::memory::MemoryOptions {
            bytes: 64 << 10,
            block_shift: 9,
            cores: 1,
            lend: false,
            uuid: None,
        };
        let reactor = Reactor::new(&reactor::Config::default()).unwrap();
        let memory = crate::memory::Memory::open(options).unwrap();
        Fault::new(memory, rule).open_queue(&reactor).unwrap()
    }

    #[test]
    fn a_copy_fails_by_what_it_writes() {
        let lba = Some((40, 49));
        let queue = queue(Rule { opcodes: vec![opcode::COPY], lba, ..Rule::default() });
        assert_eq!(copied(&queue, 45, 4, 0), Status::SUCCESS);
        assert_eq!(copied(&queue, 0, 10, 31), Status::WRITE_FAULT);
        assert_eq!(copied(&queue, 0, 9, 31), Status::SUCCESS);
        assert_eq!(copied(&queue, 0, 1, 49), Status::WRITE_FAULT);
        assert_eq!(copied(&queue, 0, 1, 50), Status::SUCCESS);
    }

    #[test]
    fn dataset_management_fails_by_its_ranges() {
        let queue = queue(Rule { lba: Some((40, 49)), ..Rule::default() });
        let deallocated = |ranges: &[(u64, u32)]| {
            let range = |&(slba, blocks): &_| dataset::Range { attributes: 0, blocks, slba };
            let mut list: Vec<u8> = ranges.iter().flat_map(|it| range(it).to_bytes()).collect();
            // SAFETY: the list is there until the command has ended.
            let data = Data::Part(unsafe { crate::Part::new(list.as_mut_ptr(), list.len(), None) });
            done(&queue, dataset::deallocate(1, ranges.len()), data)
        };
        assert_eq!(deallocated(&[(0, 40), (50, 8), (45, 0)]), Status::SUCCESS);
        assert_eq!(deallocated(&[(0, 40), (49, 8)]), Status::WRITE_FAULT);
        assert_eq!(deallocated(&[(0, 41)]), Status::WRITE_FAULT);
    }

    #[test]
    fn a_copy_of_marked_blocks_is_left_to_others_and_one_over_them_clears_them() {
        let queue = queue(Rule { rate: 0.0, ..Rule::default() });
        let blocks = |code, slba, count| nvme::Command::blocks(code, 1, slba, count);
        let mark = blocks(opcode::WRITE_UNCORRECTABLE, 20, 4);
        assert_eq!(done(&queue, mark, Data::None), Status::SUCCESS);
        assert_eq!(copied(&queue, 23, 8, 60), Status::FAST_COPY_NOT_POSSIBLE);
        assert_eq!(copied(&queue, 24, 8, 60), Status::SUCCESS);
        let verify = |slba| done(&queue, blocks(opcode::VERIFY, slba, 1), Data::None);
        assert_eq!(copied(&queue, 0, 8, 14), Status::SUCCESS);
        assert_eq!((verify(21), verify(22)), (Status::SUCCESS, Status::UNRECOVERED_READ.dnr()));
        assert_eq!(copied(&queue, 23, 1, 60), Status::FAST_COPY_NOT_POSSIBLE);
    }
}
