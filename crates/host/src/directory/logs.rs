//! What discovery controllers say, merged; and which path is to lead where because of it. Nothing here waits or sends.

use crate::options::Address;
use crate::path::PATHS_MAX;
use crate::shared::Place;
use association::DiscoveryLog;
use namespace::Access;
use nvme::log::discovery::{Entry, SubsystemType, TransportType};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// Names of other subsystems that are kept, for messages.
const NAMES_MAX: usize = 64;

/// Addresses of the subsystem that are kept: more than there can be paths, so that those of the paths are among them in whatever
/// order a controller names them.
const ADDRESSES_MAX: usize = 4 * PATHS_MAX;

/// TREQ: TLS is required (NVMe Base 2.1, Figure 294, byte 3, bits 1:0).
const SECURE_REQUIRED: u8 = 1;

/// TSAS of TCP, byte 0: TLS 1.3 (NVMe/TCP Transport 1.1, Figure 16, SECTYPE).
const SECTYPE_TLS_1_3: u8 = 2;

/// What of a discovery log is of use to the paths to one subsystem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Log {
    pub(super) generation: u64,
    /// TCP addresses of the subsystem, in the log's order.
    pub(super) paths: Vec<Address>,
    /// TCP addresses of other discovery subsystems.
    pub(super) referrals: Vec<Address>,
    /// Other TCP addresses of the discovery subsystem itself.
    pub(super) siblings: Vec<Address>,
    /// The subsystems that it names, without what a terminal would take for a command.
    pub(super) names: BTreeSet<String>,
    /// Addresses of the subsystem that want TLS, for which there is no key.
    pub(super) secured: usize,
    /// Those that do not have it, where there is one.
    pub(super) plain: usize,
}

/// A field of ASCII, padded with spaces or zeroes.
fn text(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    std::str::from_utf8(&field[..end]).ok().map(str::trim_end)
}

/// Where an entry leads. An address that stands for all of a machine means the one that was asked.
fn address(entry: &Entry, asked: IpAddr) -> Option<Address> {
    let ip: IpAddr = text(&entry.traddr)?.parse().ok()?;
    let port = text(&entry.trsvcid)?.parse().ok().filter(|&port| port != 0)?;
    let ip = if ip.is_unspecified() { asked } else { ip };
    Some(Address { host: ip.to_string(), port })
}

/// Whether a host comes in there whose connections are encrypted, or are not.
fn fits(entry: &Entry, encrypts: bool) -> bool {
    let is_required = entry.treq & 3 == SECURE_REQUIRED;
    if encrypts { is_required || entry.tsas[0] == SECTYPE_TLS_1_3 } else { !is_required }
}

impl Log {
    /// Of what the discovery controller at `asked` has answered, for the subsystem `nqn`, and for a host whose connections are
    /// encrypted or not.
    pub(super) fn of(log: &DiscoveryLog, nqn: &str, asked: SocketAddr, encrypts: bool) -> Log {
        let mut found = Log { generation: log.generation, ..Log::default() };
        for entry in &log.entries {
            let subsystem = text(&entry.subnqn).unwrap_or_default();
            let is_tcp = TransportType(entry.trtype) == TransportType::TCP;
            let address = address(entry, asked.ip()).filter(|_| is_tcp);
            let list = match SubsystemType(entry.subtype) {
                SubsystemType::NVM => {
                    if found.names.len() < NAMES_MAX {
                        found.names.insert(subsystem.escape_debug().to_string());
                    }
                    let fits = fits(entry, encrypts);
                    let unfit = if encrypts { &mut found.plain } else { &mut found.secured };
                    *unfit += usize::from(subsystem == nqn && is_tcp && !fits);
                    (subsystem == nqn && fits).then_some(&mut found.paths)
                }
                SubsystemType::REFERRAL => Some(&mut found.referrals),
                SubsystemType::CURRENT_DISCOVERY => {
                    let is_other = |address: &Address| address.number() != Some(asked);
                    let is_other = address.as_ref().is_some_and(is_other);
                    (is_other && fits(entry, encrypts)).then_some(&mut found.siblings)
                }
                _ => None,
            };
            if let (Some(list), Some(address)) = (list, address)
                && list.len() < ADDRESSES_MAX
                && !list.contains(&address)
            {
                list.push(address);
            }
        }
        found
    }
}

/// One discovery controller.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) address: Address,
    /// As it was read last, unless another of its subsystem has known better since.
    pub(super) log: Option<Log>,
    /// Why it cannot be read now.
    pub(super) failure: Option<String>,
    /// The one of those given for which it is followed while that cannot be read.
    stands_for: Option<Address>,
}

impl Known {
    fn new(address: Address) -> Known {
        Known { address, log: None, failure: None, stands_for: None }
    }

    /// Whether it was asked, with whatever outcome.
    pub(super) fn was_asked(&self) -> bool {
        self.log.is_some() || self.failure.is_some()
    }

    fn is_read(&self) -> bool {
        self.failure.is_none() && self.log.is_some()
    }
}

/// All discovery controllers: those that were given, and those that they refer to.
#[derive(Clone, Debug)]
pub(super) struct Logs {
    given: usize,
    pub(super) known: Vec<Known>,
}

impl Logs {
    pub(super) fn new(given: &[Address]) -> Logs {
        let mut known: Vec<Known> = Vec::new();
        for address in given {
            if !known.iter().any(|it| it.address == *address) {
                known.push(Known::new(address.clone()));
            }
        }
        Logs { given: known.len(), known }
    }

    /// Whether the last attempt to read that controller has failed, after one that had not.
    pub(super) fn is_failing(&self, address: &Address) -> bool {
        let known = self.known.iter().find(|it| it.address == *address);
        known.is_some_and(|it| it.failure.is_some())
    }

    fn find(&mut self, address: &Address) -> Option<&mut Known> {
        self.known.iter_mut().find(|it| it.address == *address)
    }

    /// A controller's log was read. What it refers to is known from now on, and what nobody refers to any more is not.
    /// `false` if it is not known itself.
    pub(super) fn told(&mut self, address: &Address, log: Log) -> bool {
        let Some(known) = self.find(address) else { return false };
        (known.log, known.failure) = (Some(log), None);
        self.known.iter_mut().for_each(|it| {
            it.stands_for.take_if(|given| given == address);
        });
        self.settle();
        true
    }

    /// A controller cannot be read; what it has said last stays, unless another of its subsystem can be. `false` if it is
    /// not known, or said so before.
    pub(super) fn failed(&mut self, address: &Address, failure: &str) -> bool {
        let Some(known) = self.find(address) else { return false };
        let is_new = known.failure.replace(failure.to_owned()).as_deref() != Some(failure);
        self.settle();
        is_new
    }

    /// Forgets what is known better, and finds who is referred to.
    fn settle(&mut self) {
        for index in 0..self.known.len() {
            let known = &self.known[index];
            if known.failure.is_none() || known.log.is_none() {
                continue;
            }
            let subsystem = self.subsystem(index);
            let Some(&heir) = subsystem.iter().find(|&&it| self.known[it].is_read()) else {
                continue;
            };
            let given = (index < self.given).then(|| known.address.clone());
            let known = &mut self.known[index];
            let stands_for = given.or_else(|| known.stands_for.take());
            known.log = None;
            if heir >= self.given && stands_for.is_some() {
                self.known[heir].stands_for = stands_for;
            }
        }
        // From those that are followed for themselves, in the order in which they refer to one another.
        let (given, others) = self.known.split_at(self.given);
        let heirs = others.iter().filter(|it| it.stands_for.is_some());
        let mut reached: Vec<Known> = given.iter().chain(heirs).cloned().collect();
        let mut at = 0;
        while at < reached.len() {
            let log = reached[at].log.iter();
            let named = log.flat_map(|log| log.siblings.iter().chain(&log.referrals));
            for address in named.cloned().collect::<Vec<_>>() {
                if reached.len() < PATHS_MAX && !reached.iter().any(|it| it.address == address) {
                    let known = self.known.iter().find(|it| it.address == address);
                    reached.push(known.cloned().unwrap_or_else(|| Known::new(address)));
                }
            }
            at += 1;
        }
        self.known = reached;
    }

    /// The places of a controller and of those that are of one subsystem with it, as far as they name one another,
    /// directly or by way of others.
    fn subsystem(&self, index: usize) -> Vec<usize> {
        let names = |one: usize, other: usize| {
            let log = self.known[one].log.as_ref();
            log.is_some_and(|log| log.siblings.contains(&self.known[other].address))
        };
        let (mut members, mut at) = (vec![index], 0);
        while at < members.len() {
            let one = members[at];
            for other in 0..self.known.len() {
                if !members.contains(&other) && (names(one, other) || names(other, one)) {
                    members.push(other);
                }
            }
            at += 1;
        }
        members
    }

    /// Every address of the subsystem that some controller names, in their order.
    pub(super) fn paths(&self) -> Vec<Address> {
        let mut paths: Vec<Address> = Vec::new();
        for address in self.known.iter().filter_map(|it| it.log.as_ref()).flat_map(|log| &log.paths)
        {
            if paths.len() < ADDRESSES_MAX && !paths.contains(address) {
                paths.push(address.clone());
            }
        }
        paths
    }
}

/// How a path stands.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) place: Place,
    pub(super) access: Access,
    /// Every core that has a queue open can use it.
    pub(super) serves_all: bool,
}

/// What is to be done with a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It leads nowhere from now on.
    Vacate(usize),
    /// It leads to this address.
    Occupy(usize, Address),
}

/// What is to change, so that paths lead to the addresses that are `wanted`, as far as there are paths. A path that was given
/// up is tried `anew` if that is said, elsewhere if there are more addresses than paths. What is not wanted any more
/// is let go when every core can use another path, so that nothing is for want of an answer; before that only a path
/// that is lost, for an address for which there is no room. First comes what is to be connected, so that there is
/// never less to hope for than before.
pub(super) fn changes(wanted: &[Address], paths: &[Seat], anew: bool) -> Vec<Change> {
    let wants = |place: &Place| matches!(place, Place::At(address) if wanted.contains(address));
    let has_other = paths.iter().any(|seat| wants(&seat.place) && seat.serves_all);
    let leads_to = |address: &Address| {
        let there =
            |place: &Place| matches!(place, Place::At(it) | Place::Leaving(it) if it == address);
        paths.iter().any(|seat| there(&seat.place))
    };
    let mut waiting = wanted.iter().filter(|address| !leads_to(address)).peekable();
    let (mut free, mut lost, mut given_up) = (Vec::new(), Vec::new(), Vec::new());
    let (mut occupied, mut vacated) = (Vec::new(), Vec::new());
    for (index, Seat { place, access, .. }) in paths.iter().enumerate() {
        match place {
            Place::Vacant(_) | Place::Unused => free.push(index),
            Place::At(address) if wants(place) => {
                if anew && *access == Access::Gone {
                    given_up.push((index, address));
                }
            }
            Place::At(_) if has_other => vacated.push(Change::Vacate(index)),
            Place::At(_) => {
                if *access >= Access::Lost {
                    lost.push(index);
                }
            }
            // It is wanted again, or there is nothing instead any more.
            Place::Leaving(address)
                if wanted.contains(address) || !has_other && *access < Access::Lost =>
            {
                occupied.push(Change::Occupy(index, address.clone()));
            }
            Place::Leaving(_) => {
                if *access >= Access::Lost {
                    vacated.push(Change::Vacate(index));
                }
            }
        }
    }
    while let Some(address) = waiting.next_if(|_| !free.is_empty()) {
        // The one with this address's own past; then one without any.
        let rank = |index: &usize| match &paths[*index].place {
            Place::Vacant(last) if last == address => 0,
            Place::Unused => 1,
            _ => 2,
        };
        let best = free.iter().copied().min_by_key(|index| (rank(index), *index));
        let best = best.expect("there is one");
        free.retain(|&index| index != best);
        occupied.push(Change::Occupy(best, address.clone()));
    }
    for index in lost {
        let Some(address) = waiting.next() else { break };
        occupied.push(Change::Occupy(index, address.clone()));
    }
    for (index, address) in given_up {
        occupied.push(Change::Occupy(index, waiting.next().unwrap_or(address).clone()));
    }
    occupied.append(&mut vacated);
    occupied
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::log::discovery::{AddressFamily, Header};
    use std::slice;
    use zerocopy::FromZeros;

    fn at(text: &str) -> Address {
        text.parse().expect("an address")
    }

    fn entry(subtype: SubsystemType, nqn: &str, traddr: &str, port: &str) -> Entry {
        let mut entry = Entry {
            trtype: TransportType::TCP.0,
            adrfam: AddressFamily::IPV4.0,
            subtype: subtype.0,
            ..Entry::new_zeroed()
        };
        entry.subnqn[..nqn.len()].copy_from_slice(nqn.as_bytes());
        entry.traddr = [b' '; 256];
        entry.traddr[..traddr.len()].copy_from_slice(traddr.as_bytes());
        entry.trsvcid[..port.len()].copy_from_slice(port.as_bytes());
        entry
    }

    fn log_of(entries: Vec<Entry>) -> Log {
        let log = DiscoveryLog { generation: 3, entries, head: Header::new_zeroed() };
        Log::of(&log, "nqn.a", "192.0.2.9:8009".parse().expect("an address"), false)
    }

    #[test]
    fn a_log_is_read_for_one_subsystem() {
        let nvm =
            |nqn: &str, traddr: &str, port: &str| entry(SubsystemType::NVM, nqn, traddr, port);
        let rdma = Entry { trtype: TransportType::RDMA.0, ..nvm("nqn.a", "192.0.2.3", "4420") };
        let log = log_of(vec![
            nvm("nqn.a", "192.0.2.1", "4420"),
            nvm("nqn.b", "192.0.2.1", "4420"),
            nvm("nqn.a", "192.0.2.1", "4420"),
            nvm("nqn.a", "2001:db8::1", "4421"),
            nvm("nqn.a", "0.0.0.0", "4422"),
            rdma,
            Entry { treq: SECURE_REQUIRED, ..nvm("nqn.a", "192.0.2.7", "4420") },
            nvm("nqn.a", "a name", "4420"),
            nvm("nqn.\u{1b}[2J", "192.0.2.1", "4420"),
            nvm("nqn.a", "192.0.2.4", "70000"),
            nvm("nqn.a", "192.0.2.4", "0"),
            nvm("nqn.a", "192.0.2.4", ""),
            entry(SubsystemType::REFERRAL, "nqn.d", "192.0.2.5", "8009"),
            entry(SubsystemType::CURRENT_DISCOVERY, "nqn.d", "192.0.2.6", "8009"),
            entry(SubsystemType::CURRENT_DISCOVERY, "nqn.d", "192.0.2.9", "8009"),
            entry(SubsystemType::CURRENT_DISCOVERY, "nqn.d", "0.0.0.0", "8009"),
        ]);
        assert_eq!(log.siblings, [at("192.0.2.6:8009")], "but for itself");
        let paths = [at("192.0.2.1"), at("[2001:db8::1]:4421"), at("192.0.2.9:4422")];
        assert_eq!(log.secured, 1);
        assert_eq!(log.paths, paths);
        assert_eq!((log.generation, log.referrals), (3, vec![at("192.0.2.5:8009")]));
        assert_eq!(log.names.into_iter().collect::<Vec<_>>(), ["nqn.\\u{1b}[2J", "nqn.a", "nqn.b"]);
    }

    #[test]
    fn a_host_with_a_key_for_tls_takes_what_is_encrypted() {
        let nvm = |traddr: &str| entry(SubsystemType::NVM, "nqn.a", traddr, "4420");
        let mut offered = nvm("192.0.2.2");
        offered.tsas[0] = SECTYPE_TLS_1_3;
        let required = Entry { treq: SECURE_REQUIRED, ..nvm("192.0.2.3") };
        let entries = vec![nvm("192.0.2.1"), offered, required];
        let log = DiscoveryLog { generation: 3, entries, head: Header::new_zeroed() };
        let of = |encrypts| {
            let asked = "192.0.2.9:8009".parse().expect("an address");
            let log = Log::of(&log, "nqn.a", asked, encrypts);
            (log.paths, log.secured, log.plain)
        };
        assert_eq!(of(false), (vec![at("192.0.2.1"), at("192.0.2.2")], 1, 0));
        assert_eq!(of(true), (vec![at("192.0.2.2"), at("192.0.2.3")], 0, 1));
    }

    #[test]
    fn a_hostile_log_is_bounded() {
        let entries = (0..4096u32).map(|number| {
            let (subtype, nqn) = match number % 3 {
                0 => (SubsystemType::NVM, "nqn.a".to_owned()),
                1 => (SubsystemType::NVM, format!("nqn.{number}")),
                _ => (SubsystemType::REFERRAL, "nqn.d".to_owned()),
            };
            let traddr = format!("10.0.{}.{}", number >> 8, number & 0xff);
            entry(subtype, &nqn, &traddr, "4420")
        });
        let log = log_of(entries.collect());
        assert_eq!((log.paths.len(), log.referrals.len(), log.names.len()), (64, 64, 64));
        let mut logs = Logs::new(&[at("192.0.2.1:8009")]);
        logs.told(&at("192.0.2.1:8009"), log);
        assert_eq!(logs.known.len(), PATHS_MAX);
    }

    fn known(logs: &Logs) -> Vec<Address> {
        logs.known.iter().map(|it| it.address.clone()).collect()
    }

    fn naming(paths: &[&str], referrals: &[&str]) -> Log {
        let list = |texts: &[&str]| texts.iter().map(|text| at(text)).collect();
        Log { paths: list(paths), referrals: list(referrals), ..Log::default() }
    }

    #[test]
    fn referrals_are_followed_as_long_as_somebody_makes_them() {
        let (a, b, c) = (at("192.0.2.1:8009"), at("192.0.2.2:8009"), at("192.0.2.3:8009"));
        let mut logs = Logs::new(&[a.clone(), a.clone()]);
        let known =
            |logs: &Logs| logs.known.iter().map(|it| it.address.clone()).collect::<Vec<_>>();
        assert_eq!(known(&logs), slice::from_ref(&a), "once");
        assert!(!logs.told(&b, naming(&["10.0.0.2"], &[])), "nobody knows that one");
        assert!(logs.told(&a, naming(&["10.0.0.1"], &["192.0.2.2:8009"])));
        assert!(
            logs.told(&b, naming(&["10.0.0.2", "10.0.0.1"], &["192.0.2.3:8009", "192.0.2.1:8009"]))
        );
        assert!(logs.told(&c, naming(&["10.0.0.3"], &["192.0.2.2:8009"])));
        assert_eq!(known(&logs), [a.clone(), b.clone(), c]);
        assert_eq!(logs.paths(), [at("10.0.0.1"), at("10.0.0.2"), at("10.0.0.3")]);
        // What cannot be read now still counts as it was.
        assert!(logs.failed(&b, "refused"));
        assert!(!logs.failed(&b, "refused"), "as before");
        assert_eq!(logs.paths().len(), 3);
        // They refer to one another, but the one that was given refers to none.
        assert!(logs.told(&a, naming(&["10.0.0.1"], &[])));
        assert_eq!((known(&logs), logs.paths()), (vec![a], vec![at("10.0.0.1")]));
    }

    #[test]
    fn one_that_can_be_read_speaks_for_its_subsystem() {
        let (a, b) = (at("192.0.2.1:8009"), at("192.0.2.2:8009"));
        let with = |paths: &[&str], sibling: &[&Address]| Log {
            siblings: sibling.iter().map(|&it| it.clone()).collect(),
            ..naming(paths, &[])
        };
        let mut logs = Logs::new(slice::from_ref(&a));
        logs.told(&a, with(&["10.0.0.1", "10.0.0.2"], &[&b]));
        logs.failed(&a, "refused");
        assert_eq!(logs.paths().len(), 2, "nobody knows better yet");
        // The first address is gone, and with it one of the paths.
        logs.told(&b, with(&["10.0.0.2"], &[]));
        assert_eq!(logs.paths(), [at("10.0.0.2")]);
        assert_eq!(known(&logs), [a.clone(), b.clone()], "it stands for the one that was given");
        logs.failed(&b, "refused");
        assert_eq!(logs.paths(), [at("10.0.0.2")], "nobody knows better");
        // The one that was given is back, and does not know the other any more.
        logs.told(&a, with(&["10.0.0.1"], &[]));
        assert_eq!((logs.paths(), known(&logs)), (vec![at("10.0.0.1")], vec![a.clone()]));
        // Those that have nothing to do with each other count both.
        let mut logs = Logs::new(&[a.clone(), b.clone()]);
        logs.told(&a, with(&["10.0.0.1"], &[]));
        logs.told(&b, with(&["10.0.0.2"], &[]));
        logs.failed(&a, "refused");
        assert_eq!(logs.paths().len(), 2);
    }

    #[test]
    fn a_subsystem_may_move_for_ever() {
        let given = at("192.0.2.0:8009");
        let mut logs = Logs::new(slice::from_ref(&given));
        let mut last = given.clone();
        for number in 1..100 {
            let next = at(&format!("192.0.2.{number}:8009"));
            let (path, sibling) = (format!("10.0.0.{number}"), next.clone());
            logs.told(&last, Log { siblings: vec![sibling], ..naming(&[&path], &[]) });
            logs.told(&next, naming(&[&path], &[]));
            logs.failed(&last, "refused");
            assert_eq!(logs.paths(), [at(&path)]);
            assert_eq!(known(&logs), [given.clone(), next.clone()], "those between are forgotten");
            last = next;
        }
    }

    #[test]
    fn more_addresses_than_paths_stay_those_that_they_are() {
        let addresses: Vec<Address> =
            (0..20).map(|number| at(&format!("10.0.0.{number}"))).collect();
        let seats: Vec<Seat> = addresses[..16].iter().map(|address| on(address, LIVE)).collect();
        let mut turned = addresses.clone();
        for _ in 0..20 {
            turned.rotate_left(1);
            assert_eq!(changes(&turned, &seats, true), [], "in whatever order they are named");
        }
        // Those that were given up make room for others.
        let mut seats = seats;
        (seats[3], seats[5]) = (on(&addresses[3], Access::Gone), on(&addresses[5], Access::Gone));
        assert_eq!(changes(&addresses, &seats, false), []);
        let tried = [(3, &addresses[16]), (5, &addresses[17])];
        assert_eq!(
            changes(&addresses, &seats, true),
            tried.map(|(at, to)| Change::Occupy(at, to.clone()))
        );
    }

    const LIVE: Access = Access::Optimized;

    fn seat(place: Place, access: Access) -> Seat {
        Seat { place, access, serves_all: access.is_usable() }
    }

    fn on(address: &Address, access: Access) -> Seat {
        seat(Place::At(address.clone()), access)
    }

    #[test]
    fn paths_follow_the_log() {
        let (a, b, c) = (at("10.0.0.1"), at("10.0.0.2"), at("10.0.0.3"));
        let none = seat(Place::Unused, Access::Gone);
        let past = |address: &Address| seat(Place::Vacant(address.clone()), Access::Gone);
        let to = |index, address: &Address| Change::Occupy(index, address.clone());
        let only = slice::from_ref;

        // Nothing is to be done.
        let paths = [on(&a, LIVE), on(&b, Access::Lost), none.clone()];
        assert_eq!(changes(&[a.clone(), b.clone()], &paths, true), []);
        // One more.
        assert_eq!(changes(&[a.clone(), b.clone(), c.clone()], &paths, true), [to(2, &c)]);
        // One goes that can be used, since another can; and one that cannot.
        let both_live = [on(&a, LIVE), on(&b, LIVE)];
        assert_eq!(changes(only(&b), &both_live, true), [Change::Vacate(0)]);
        assert_eq!(changes(only(&a), &paths, true), [Change::Vacate(1)]);
        // The last that can be used stays until all cores can use the new one.
        let moved = [on(&a, LIVE), none.clone()];
        assert_eq!(changes(only(&b), &moved, true), [to(1, &b)]);
        assert_eq!(changes(only(&b), &[on(&a, LIVE), on(&b, Access::Lost)], false), []);
        let by_some = Seat { serves_all: false, ..on(&b, LIVE) };
        assert_eq!(changes(only(&b), &[on(&a, LIVE), by_some], false), []);
        assert_eq!(changes(only(&b), &both_live, false), [Change::Vacate(0)]);
        // Also while it cannot be used itself, whatever has become of the new one.
        for access in [Access::Inaccessible, Access::Lost] {
            for other in [Access::Lost, Access::Gone] {
                let paths = [on(&a, access), on(&b, other)];
                assert_eq!(changes(only(&b), &paths, false), [], "{access:?} {other:?}");
            }
        }
        // Where there is no room, a lost one makes some. What is to be connected comes first.
        assert_eq!(changes(only(&b), &[on(&a, Access::Lost)], true), [to(0, &b)]);
        assert_eq!(changes(only(&b), &[on(&a, LIVE)], true), []);
        let more = [on(&a, LIVE), on(&b, LIVE), none.clone()];
        let wanted = [b.clone(), c.clone()];
        assert_eq!(changes(&wanted, &more, true), [to(2, &c), Change::Vacate(0)]);
        // An empty log takes nothing away, be it lost: it may come back, and be named again.
        for access in [LIVE, Access::Inaccessible, Access::Lost, Access::Failing, Access::Gone] {
            assert_eq!(changes(&[], &[on(&a, access)], true), []);
        }
        // One that is being let go: it is wanted again, it is lost, or nothing has changed.
        let leaving = |access| [seat(Place::Leaving(a.clone()), access), on(&b, LIVE)];
        let both = [a.clone(), b.clone()];
        assert_eq!(changes(&both, &leaving(LIVE), true), [to(0, &a)]);
        assert_eq!(changes(only(&b), &leaving(LIVE), true), []);
        assert_eq!(changes(only(&b), &leaving(Access::Lost), false), [Change::Vacate(0)]);
        // It is taken back when there is nothing instead any more.
        let alone = [seat(Place::Leaving(a.clone()), LIVE), on(&b, Access::Lost)];
        assert_eq!(changes(only(&b), &alone, false), [to(0, &a)]);
        // One that was given up is tried again when a log was read.
        let gone = [on(&a, Access::Gone)];
        assert_eq!(changes(only(&a), &gone, false), []);
        assert_eq!(changes(only(&a), &gone, true), [to(0, &a)]);
        // Pasts are kept apart as long as that is possible.
        let pasts = [past(&a), past(&b), none, past(&c)];
        let fourth = at("10.0.0.4");
        assert_eq!(
            changes(&[c.clone(), fourth.clone()], &pasts, true),
            [to(3, &c), to(2, &fourth)]
        );
        assert_eq!(changes(only(&fourth), &[past(&a)], true), [to(0, &fourth)]);
        assert_eq!(changes(&[a, b], &[past(&c)], true).len(), 1, "there is no place for the other");
    }
}
