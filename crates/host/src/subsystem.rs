//! What the paths to one namespace have in common.

use crate::Options;
use crate::options::Address;
use crate::queue::Params;
use association::{Identity, Namespace, Reason};
use namespace::copy::Numbering;
use nvme::Limits;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The namespace that all paths lead to, as the first of them found it.
#[derive(Debug, Default)]
pub(crate) struct Subsystem {
    name: Arc<str>,
    known: Mutex<Option<Known>>,
    /// `volatile_write_cache` of what is known, for each Flush of each core.
    writes_back: AtomicBool,
    /// What was told on of the limits holds, whatever paths there will be.
    fixed: AtomicBool,
    /// How many paths there were so far.
    members: AtomicU64,
    /// Paths that have been found to lead to it since they were led where they lead.
    accepted: Mutex<Vec<Member>>,
    /// Those of the associations that are live.
    live: Mutex<Vec<Arc<Params>>>,
    /// Whose controllers have said that they take no writes to the namespace, and whether that association still is.
    protected: Mutex<Vec<(Member, bool)>>,
    /// How many blocks the namespace has by those paths that lead to it now.
    blocks: Mutex<Vec<(Member, u64)>>,
}

/// A path of a subsystem. Several may lead to one address, each by an interface of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member(u64);

/// A subsystem in use: its name, and where it was reached.
struct Named {
    name: Weak<str>,
    addresses: Vec<Address>,
}

static NAMED: Mutex<Vec<Named>> = Mutex::new(Vec::new());

/// The NQN of the subsystem that is reached at `addresses`: the same bytes in memory for whoever surely
/// reaches the same one. Equal NQNs do not show that: who sets up two targets with one and the same name
/// has two subsystems, and ids of namespaces that mean different ones. One address does.
fn name(nqn: &str, addresses: &[Address]) -> Arc<str> {
    let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    named.retain(|it| it.name.strong_count() > 0);
    for it in named.iter_mut() {
        let Some(name) = it.name.upgrade().filter(|name| **name == *nqn) else { continue };
        if addresses.iter().any(|address| it.addresses.contains(address)) {
            for address in addresses {
                if !it.addresses.contains(address) {
                    it.addresses.push(address.clone());
                }
            }
            return name;
        }
    }
    let name = Arc::<str>::from(nqn);
    named.push(Named { name: Arc::downgrade(&name), addresses: addresses.to_vec() });
    name
}

#[derive(Clone, Copy, Debug)]
struct Known {
    nsid: u32,
    identity: Identity,
    limits: Limits,
}

impl Subsystem {
    /// The namespace of the subsystem `nqn` at `addresses`, of which nothing is known yet.
    pub(crate) fn new(nqn: &str, addresses: &[Address]) -> Subsystem {
        Subsystem {
            name: name(nqn, addresses),
            known: Mutex::default(),
            writes_back: AtomicBool::new(false),
            fixed: AtomicBool::new(false),
            members: AtomicU64::new(0),
            accepted: Mutex::default(),
            live: Mutex::default(),
            protected: Mutex::default(),
            blocks: Mutex::default(),
        }
    }

    /// One more path.
    pub(crate) fn member(&self) -> Member {
        Member(self.members.fetch_add(1, Ordering::Relaxed))
    }

    /// Its NQN, shared with other namespaces that are surely of the same subsystem, and with no others.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Users know the limits by now: a path that comes later and takes less is of no use, unless it is the only one.
    pub(crate) fn fix(&self) {
        self.fixed.store(true, Ordering::Relaxed);
    }

    /// The path has found `namespace`: the same as before, or with other limits, or another one.
    pub(crate) fn found(
        &self,
        path: Member,
        namespace: &Namespace,
        options: &Options,
    ) -> Result<(), Reason> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut limits = namespace.limits;
        limits.read_only = options.read_only;
        limits.passthrough = options.passthrough;
        if let Some(before) = &*known {
            let same = before.identity == namespace.identity
                && before.limits.block_shift == limits.block_shift
                && (namespace.identity != Identity::default() || before.nsid == namespace.nsid);
            if !same {
                let shown = |identity: &Identity, nsid, shift| {
                    format!("{identity} (ns {nsid}, blocks of {} bytes)", 1u32 << shift)
                };
                return Err(Reason::OtherNamespace {
                    found: shown(&namespace.identity, namespace.nsid, limits.block_shift),
                    expected: shown(&before.identity, before.nsid, before.limits.block_shift),
                });
            }
            // A command is made before its path is chosen: it must suit them all.
            let most = before.limits.transfer_bytes_max;
            limits.transfer_bytes_max = limits.transfer_bytes_max.min(most);
            let most = before.limits.write_zeroes_bytes_max;
            limits.write_zeroes_bytes_max = limits.write_zeroes_bytes_max.min(most);
            limits.optimal_write_bytes =
                limits.optimal_write_bytes.max(before.limits.optimal_write_bytes);
            limits.discard = limits.discard.and(before.limits.discard);
            limits.copy = limits.copy.and(before.limits.copy);
            limits.commands = limits.commands.and(before.limits.commands);
            // One of them has a cache that is to be flushed.
            limits.volatile_write_cache |= before.limits.volatile_write_cache;
            if self.is_strange(path)
                && let Some(what) = lessened(&before.limits, &limits)
            {
                return Err(Reason::LessAble { what });
            }
        }
        let mut accepted = self.accepted();
        if !accepted.contains(&path) {
            accepted.push(path);
        }
        drop(accepted);
        self.writes_back.store(limits.volatile_write_cache, Ordering::Relaxed);
        self.protect(path, namespace.limits.read_only);
        *known = Some(Known { nsid: namespace.nsid, identity: namespace.identity, limits });
        self.note_blocks(&mut known, path, Some(namespace.limits.blocks));
        Ok(())
    }

    fn accepted(&self) -> MutexGuard<'_, Vec<Member>> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the path has come when users knew the limits already, and can be done without.
    fn is_strange(&self, path: Member) -> bool {
        let is_late = self.fixed.load(Ordering::Relaxed) && !self.accepted().contains(&path);
        is_late && !self.live().is_empty()
    }

    fn protected(&self) -> MutexGuard<'_, Vec<(Member, bool)>> {
        self.protected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The controller there has said whether it takes writes. What those have said that are not there counts
    /// no longer: they say it again before a command goes to them.
    fn protect(&self, path: Member, read_only: bool) {
        let mut protected = self.protected();
        protected.retain(|(other, is_there)| *other != path && *is_there);
        if read_only {
            protected.push((path, true));
        }
    }

    fn note_blocks(&self, known: &mut Option<Known>, path: Member, blocks: Option<u64>) {
        let mut all = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(other, _)| *other != path);
        all.extend(blocks.map(|blocks| (path, blocks)));
        // A command may go by any of them. While there is none it stays as it was.
        let least = all.iter().map(|(_, blocks)| *blocks).min();
        if let (Some(known), Some(least)) = (known, least) {
            known.limits.blocks = least;
        }
    }

    /// No command goes by the path before the namespace was found there again.
    pub(crate) fn withheld(&self, path: Member) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.note_blocks(&mut known, path, None);
    }

    /// The path's association has ended.
    pub(crate) fn hung_up(&self, path: Member) {
        self.withheld(path);
        let mut protected = self.protected();
        protected.iter_mut().filter(|(it, _)| *it == path).for_each(|it| it.1 = false);
    }

    /// The path does not lead where it led any more.
    pub(crate) fn forget(&self, path: Member) {
        self.withheld(path);
        self.accepted().retain(|it| *it != path);
        self.protected().retain(|(it, _)| *it != path);
    }

    fn live(&self) -> MutexGuard<'_, Vec<Arc<Params>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A path's association is live.
    pub(crate) fn joined(&self, params: &Arc<Params>) {
        self.live().push(Arc::clone(params));
    }

    /// It is no longer.
    pub(crate) fn left(&self, params: &Arc<Params>) {
        self.live().retain(|it| !Arc::ptr_eq(it, params));
    }

    /// Whether the namespace has a volatile write cache, as far as a path was live.
    pub(crate) fn writes_back(&self) -> bool {
        self.writes_back.load(Ordering::Relaxed)
    }

    /// The limits, once a path was live.
    pub(crate) fn limits(&self) -> Option<Limits> {
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut limits = known?.limits;
        limits.read_only |= !self.protected().is_empty();
        Some(limits)
    }

    /// Namespace id and identity, once a path was live.
    pub(crate) fn identity(&self) -> Option<(u32, Identity)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.map(|known| (known.nsid, known.identity))
    }
}

/// What is worse now than users were told.
fn lessened(before: &Limits, now: &Limits) -> Option<&'static str> {
    // What is not among these fails by the command.
    let table = [
        ("data of a command", now.transfer_bytes_max < before.transfer_bytes_max),
        ("zeroes of a command", now.write_zeroes_bytes_max < before.write_zeroes_bytes_max),
        ("a cache that nobody flushes", now.volatile_write_cache && !before.volatile_write_cache),
    ];
    table.into_iter().find(|(_, worse)| *worse).map(|(what, _)| what)
}

impl Numbering for Subsystem {
    fn nsid(&self, instance: Option<[u8; 16]>) -> Option<u32> {
        let live = self.live();
        let there = live.iter().filter(|params| params.instance == instance);
        let mut ids = there.map(|params| params.nsid.load(Ordering::Relaxed));
        let id = ids.next()?;
        // A path that has fallen silent may still have the one of before.
        ids.all(|other| other == id).then_some(id).filter(|id| *id != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{Place, Shared};
    use association::{Association, Config};
    use nvme::limits::{Commands, CopyLimits, DiscardLimits, Passthrough};
    use nvme::log::ana::AnaState;

    #[test]
    fn an_id_is_told_of_the_start_of_the_target_that_gave_it() {
        let options = Options::new(Config::new("nqn.a", "nqn.h", [7; 16]));
        let association = Association::new(options.association.clone());
        let address = Place::At("192.0.2.1".parse().expect("an address"));
        let subsystem = Arc::<Subsystem>::default();
        let shared = Shared::new(address, options, Arc::clone(&subsystem));
        let of = |nsid: u32, instance| {
            let mut params = Params::new(&association, &shared);
            (params.nsid, params.instance) = (nsid.into(), instance);
            Arc::new(params)
        };
        let (one, two, silent) = (of(1, Some([1; 16])), of(2, Some([2; 16])), of(3, None));
        let again = of(2, Some([2; 16]));
        for path in [&one, &two, &silent, &again] {
            subsystem.joined(path);
        }
        let ids =
            || [Some([1; 16]), Some([2; 16]), Some([3; 16]), None].map(|it| subsystem.nsid(it));
        assert_eq!(ids(), [Some(1), Some(2), None, Some(3)]);
        // The namespace has moved while the association lives.
        two.nsid.store(5, Ordering::Relaxed);
        subsystem.left(&one);
        assert_eq!(ids(), [None, None, None, Some(3)], "one of them has not heard of it");
        again.nsid.store(5, Ordering::Relaxed);
        assert_eq!(ids(), [None, Some(5), None, Some(3)]);
        // It is gone, and then it is there again.
        again.nsid.store(0, Ordering::Relaxed);
        silent.nsid.store(0, Ordering::Relaxed);
        assert_eq!(ids(), [None; 4]);
        silent.nsid.store(3, Ordering::Relaxed);
        assert_eq!(ids(), [None, None, None, Some(3)]);
    }

    /// All that a path may take.
    fn most() -> Limits {
        let all = Commands {
            write_zeroes: true,
            deallocate: true,
            write_uncorrectable: true,
            compare: true,
            compare_and_write: true,
            verify: true,
            checksum: true,
            allocation: true,
        };
        Limits {
            block_shift: 9,
            blocks: 1000,
            transfer_bytes_max: 1 << 20,
            write_zeroes_bytes_max: u32::MAX,
            optimal_write_bytes: 4096,
            read_only: false,
            volatile_write_cache: false,
            commands: all,
            discard: DiscardLimits::UNLIMITED,
            copy: CopyLimits { ranges_max: 128, range_blocks_max: 100, blocks_max: 1000 },
            metadata_bytes: 0,
            passthrough: Passthrough::NONE,
            lends_reads: false,
            immediate: false,
        }
    }

    fn namespace(limits: Limits) -> Namespace {
        let identity = Identity { uuid: [1; 16], ..Identity::default() };
        let (nsid, ana_group, ana) = (1, 1, AnaState::OPTIMIZED);
        Namespace { nsid, limits, identity, ana_group, ana }
    }

    #[test]
    fn limits_are_what_all_paths_can() {
        let subsystem = Subsystem::default();
        let [a, b] = [subsystem.member(), subsystem.member()];
        let options = Options::new(Config::new("nqn.a", "nqn.h", [7; 16]));
        let most = most();
        let less = Limits {
            transfer_bytes_max: 1 << 17,
            write_zeroes_bytes_max: 1 << 16,
            optimal_write_bytes: 16384,
            read_only: true,
            volatile_write_cache: true,
            commands: Commands { verify: true, ..Commands::default() },
            discard: DiscardLimits { ranges_max: 1, ..DiscardLimits::UNLIMITED },
            copy: CopyLimits::NONE,
            ..most
        };
        let found_by = |path, limits: Limits, options: &Options| {
            subsystem.found(path, &namespace(limits), options).expect("it is the same");
            subsystem.limits().expect("it is known")
        };
        let found = |path, limits| found_by(path, limits, &options);
        assert_eq!(found(a, most), most);
        assert_eq!(found(b, less), less);
        // Who tells last does not know what the others can.
        assert_eq!(found(a, most), less);
        // The namespace is protected no longer, and is so again, until the path that says so is gone.
        let free = Limits { read_only: false, ..less };
        assert_eq!(found(b, free), free);
        assert_eq!(found(a, less), less);
        assert_eq!(found(b, free), less);
        subsystem.hung_up(a);
        assert_eq!(subsystem.limits(), Some(less));
        assert_eq!(found(b, free), free);
        let options = Options { read_only: true, ..options.clone() };
        assert!(found_by(a, free, &options).read_only, "as the user wants it");
    }

    #[test]
    fn there_are_as_many_blocks_as_all_paths_have() {
        let options = Options::new(Config::new("nqn.a", "nqn.h", [7; 16]));
        let subsystem = Subsystem::default();
        let [a, b] = [subsystem.member(), subsystem.member()];
        let blocks = || subsystem.limits().expect("it is known").blocks;
        let found = |path, blocks| {
            let namespace = namespace(Limits { blocks, ..most() });
            subsystem.found(path, &namespace, &options).expect("it is the same");
            subsystem.limits().expect("it is known").blocks
        };
        assert_eq!(found(a, 1000), 1000);
        assert_eq!(found(b, 1000), 1000);
        assert_eq!(found(a, 2000), 1000, "the other has not grown");
        assert_eq!(found(b, 2000), 2000);
        assert_eq!(found(b, 500), 500, "a smaller one is told at once");
        for ends in [Subsystem::withheld, Subsystem::hung_up, Subsystem::forget] {
            assert_eq!(found(b, 500), 500);
            ends(&subsystem, b);
            assert_eq!(blocks(), 2000, "it says nothing any more");
        }
        assert_eq!(found(b, 500), 500);
        subsystem.hung_up(a);
        subsystem.hung_up(b);
        assert_eq!(blocks(), 500, "nobody has said anything else");
        assert_eq!(found(a, 2000), 2000);
    }

    #[test]
    fn a_path_that_comes_late_takes_what_users_were_told_unless_it_is_the_only_one() {
        let options = Options::new(Config::new("nqn.a", "nqn.h", [7; 16]));
        let association = Association::new(options.association.clone());
        let subsystem = Arc::<Subsystem>::default();
        let place = Place::At("192.0.2.1".parse().expect("an address"));
        let shared = Shared::new(place, options.clone(), Arc::clone(&subsystem));
        let [a, b] = [shared.member, subsystem.member()];
        let live = Arc::new(Params::new(&association, &shared));
        let small = Limits { transfer_bytes_max: 1 << 17, ..most() };
        let cached = Limits { volatile_write_cache: true, ..most() };
        let fewer = Limits { commands: Commands::default(), ..most() };
        let found = |path, limits| subsystem.found(path, &namespace(limits), &options);
        found(a, most()).expect("it is the first");
        subsystem.joined(&live);
        subsystem.fix();
        for limits in [small, cached] {
            let reason = found(b, limits).expect_err("it takes less");
            assert!(matches!(reason, Reason::LessAble { .. }), "{reason}");
            assert_eq!(subsystem.limits(), Some(most()), "that one says nothing of the others");
        }
        // Such commands fail by themselves.
        found(b, fewer).expect("it takes as much");
        // One that users had from the start may have come to take less.
        found(a, small).expect("it was accepted");
        subsystem.forget(b);
        found(b, cached).expect_err("it is another time");
        subsystem.left(&live);
        found(b, cached).expect("there is no other");
        assert!(subsystem.limits().expect("it is known").volatile_write_cache);
    }

    #[test]
    fn a_name_is_shared_by_those_who_reach_the_same_place() {
        let at = |text: &str| text.parse::<Address>().expect("an address");
        let (a, b, c) = (at("192.0.2.1:4420"), at("192.0.2.2:4420"), at("192.0.2.3:4420"));
        let first = name("nqn.x:name", std::slice::from_ref(&a));
        let other = name("nqn.x:name", std::slice::from_ref(&c));
        assert!(first == other && !Arc::ptr_eq(&first, &other), "another target");
        assert!(!Arc::ptr_eq(&name("nqn.x:other", std::slice::from_ref(&a)), &first));
        assert!(Arc::ptr_eq(&name("nqn.x:name", &[a.clone(), b.clone()]), &first));
        // Now it is known at the second address too.
        assert!(Arc::ptr_eq(&name("nqn.x:name", &[b]), &first));
        drop((first, other));
        let count = || {
            NAMED.lock().expect("no panic").iter().filter(|it| it.addresses.contains(&c)).count()
        };
        let again = name("nqn.x:name", std::slice::from_ref(&a));
        assert_eq!(count(), 0, "nobody uses that one");
        drop(again);
    }
}
