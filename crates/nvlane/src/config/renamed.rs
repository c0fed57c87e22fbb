//! Which namespaces hosts would find under other names. A host that stays connected takes such a one for another disk.

use super::difference::id;
use super::identity::{self, Machine};
use super::opened::opened;
use super::{Config, Namespace};
use std::collections::BTreeSet;
use uuid::Uuid;
use volume::{Kind, Uri};

/// The namespaces that have other names once `next` is served instead of what is served now, or was last, with all names;
/// one line each. A name that `next` leaves out is made as it will be then, as far as that can be known here.
pub fn renamed(last: &Config, next: &Config, machine: Option<Machine>) -> Vec<String> {
    let mut lines = Vec::new();
    for subsystem in &next.subsystems {
        let nqn = &subsystem.nqn;
        let Some(last) = last.subsystem(nqn) else { continue };
        for namespace in &subsystem.namespaces {
            let nsid = namespace.nsid.unwrap_or_default();
            let Some(known) = last.namespace(nsid) else { continue };
            let (Some(uuid), Some(nguid)) = (known.uuid, known.nguid) else { continue };
            let then = namespace.uuid.or_else(|| match machine {
                Some(machine) => made(next, nqn, namespace, uuid, machine),
                None => Some(uuid),
            });
            let then_nguid = namespace.nguid.or(then.map(identity::nguid));
            for (kind, is, was) in [("UUID", then, uuid), ("NGUID", then_nguid, nguid)] {
                if is != Some(was) {
                    let is = is.map_or("one that is made".to_owned(), |is| id(Some(is)));
                    let was = id(Some(was));
                    lines.push(format!(
                        "{nqn}: namespace {nsid} gets another {kind}: {is}, and had {was}"
                    ));
                }
            }
        }
    }
    lines
}

/// The UUID of a namespace of `next` for which none is said: `known` where it may be that one, none where it is another.
fn made(
    next: &Config,
    nqn: &str,
    namespace: &Namespace,
    known: Uuid,
    machine: Machine,
) -> Option<Uuid> {
    let Ok(uri) = namespace.volume.parse::<Uri>() else { return Some(known) };
    if let Some(own) = uri.options.uuid {
        return Some(Uuid::from_bytes(own));
    }
    let Some(volumes) = opened(&namespace.volume).filter(|_| !may_have_own_uuid(&uri)) else {
        return Some(known);
    };
    // Equal ones have names that follow each other.
    let all = next.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
    let count = all.filter(|other| other.volume == namespace.volume).count();
    let may_be = |volume: &Uri| {
        let mut used = BTreeSet::new();
        (0..count).any(|_| {
            let uuid = machine.volume(&volume.to_string(), nqn, &used);
            used.insert(uuid);
            uuid == known
        })
    };
    volumes.iter().any(may_be).then_some(known)
}

/// Whether the volume may say its UUID by itself, so that none is derived from its URI.
fn may_have_own_uuid(uri: &Uri) -> bool {
    let asks = matches!(uri.kind, Kind::Remote(_) | Kind::Device(_));
    uri.options.uuid.is_some() || asks || uri.children().iter().any(may_have_own_uuid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Subsystem;

    const NQN: &str = "nqn.a";

    fn config(volume: &str, uuid: Option<Uuid>, nguid: Option<Uuid>) -> Config {
        let namespace =
            Namespace { nsid: Some(1), uuid, nguid, ..Namespace::new(volume.to_owned()) };
        let (nqn, namespaces) = (NQN.to_owned(), vec![namespace]);
        let subsystems = vec![Subsystem { nqn, namespaces, ..Subsystem::default() }];
        Config { subsystems, ..Config::default() }
    }

    fn told_of(kind: &str, is: &str, was: Uuid) -> String {
        let was = id(Some(was));
        format!("{NQN}: namespace 1 gets another {kind}: {is}, and had {was}")
    }

    const MADE: &str = "one that is made";

    #[test]
    fn other_names_than_hosts_know_are_told() {
        let volume = "file:/a?bs=512";
        let machine = Machine::from_id(Uuid::from_u128(1));
        let derived = machine.volume(volume, NQN, &BTreeSet::new());
        let [given, other] = [2, 3].map(Uuid::from_u128);
        let made = identity::nguid;
        let text = |name: Uuid| id(Some(name));
        for (uuid, nguid, then, wanted) in [
            // Nothing is said, or what is so anyway.
            (derived, made(derived), (None, None), vec![]),
            (derived, made(derived), (Some(derived), Some(made(derived))), vec![]),
            (given, other, (Some(given), Some(other)), vec![]),
            (given, Uuid::nil(), (Some(given), Some(Uuid::nil())), vec![]),
            // Something else is said.
            (
                derived,
                made(derived),
                (None, Some(other)),
                vec![told_of("NGUID", &text(other), made(derived))],
            ),
            (
                derived,
                made(derived),
                (None, Some(Uuid::nil())),
                vec![told_of("NGUID", "none", made(derived))],
            ),
            (
                given,
                other,
                (Some(derived), Some(other)),
                vec![told_of("UUID", &text(derived), given)],
            ),
            // The NGUID that is made goes with the UUID.
            (
                given,
                made(given),
                (Some(other), None),
                vec![
                    told_of("UUID", &text(other), given),
                    told_of("NGUID", &text(made(other)), made(given)),
                ],
            ),
            // What was said is said no more.
            (given, other, (Some(given), None), vec![told_of("NGUID", &text(made(given)), other)]),
            (
                derived,
                Uuid::nil(),
                (None, None),
                vec![told_of("NGUID", &text(made(derived)), Uuid::nil())],
            ),
            (
                given,
                made(given),
                (None, None),
                vec![told_of("UUID", MADE, given), told_of("NGUID", MADE, made(given))],
            ),
        ] {
            let (last, next) =
                (config(volume, Some(uuid), Some(nguid)), config("/a", then.0, then.1));
            assert_eq!(renamed(&last, &next, Some(machine)), wanted, "{then:?}");
        }
        // There are no names of what was missing.
        let (last, next) = (config(volume, None, None), config("/a", Some(given), Some(other)));
        assert_eq!(renamed(&last, &next, Some(machine)), Vec::<String>::new());
    }

    /// It is made of what the volume is called, but for what only says how it is opened.
    #[test]
    fn volumes_that_are_named_otherwise_get_another_uuid() {
        let machine = Machine::from_id(Uuid::from_u128(1));
        for (first, next, is_renamed) in [
            ("file:/a?bs=512", "/a", false),
            ("file:/a?bs=4096", "/a", false),
            ("file:/a?bs=512", "/a?ro&buffered", false),
            ("file:/a?bs=512", "/a?create&size=1G", false),
            ("multipath:(file:/a?bs=512)", "multipath:policy=numa(/a)", false),
            ("mem:1M?bs=512", "mem:1024K", false),
            ("file:/a?bs=512", "/b", true),
            ("file:/a?bs=512", "/a?bs=4096", true),
            ("rate:100M(file:/a?bs=512)", "rate:200M(/a)", true),
            ("file:/a?bs=512", "rate:200M(/a)", true),
            ("mem:1M?bs=512", "mem:2M", true),
        ] {
            let uuid = machine.volume(first, NQN, &BTreeSet::new());
            // It may have been changed since by `ctl`, and kept its names.
            for served in [first, "file:/now?bs=512"] {
                let last = config(served, Some(uuid), Some(identity::nguid(uuid)));
                let told = renamed(&last, &config(next, None, None), Some(machine));
                let wanted = [("UUID", uuid), ("NGUID", identity::nguid(uuid))];
                let wanted = wanted.map(|(kind, was)| told_of(kind, MADE, was));
                assert_eq!(told, &wanted[..if is_renamed { 2 } else { 0 }], "{first} {next}");
            }
        }
    }

    #[test]
    fn equal_volumes_keep_their_names() {
        let machine = Machine::from_id(Uuid::from_u128(1));
        let mut used = BTreeSet::new();
        let mut last = config("mem:1M?bs=512", None, None);
        let first = last.subsystems[0].namespaces[0].clone();
        last.subsystems[0].namespaces.clear();
        for nsid in 1..=3 {
            let uuid = machine.volume("mem:1M?bs=512", NQN, &used);
            used.insert(uuid);
            let (nsid, uuid, nguid) = (Some(nsid), Some(uuid), Some(identity::nguid(uuid)));
            last.subsystems[0].namespaces.push(Namespace { nsid, uuid, nguid, ..first.clone() });
        }
        let mut next = last.clone();
        for namespace in &mut next.subsystems[0].namespaces {
            (namespace.uuid, namespace.nguid) = (None, None);
        }
        assert_eq!(renamed(&last, &next, Some(machine)), Vec::<String>::new());
    }

    #[test]
    fn what_is_not_known_is_not_told() {
        let machine = Machine::from_id(Uuid::from_u128(1));
        let uuid = Uuid::from_u128(2);
        let names = (Some(uuid), Some(identity::nguid(uuid)));
        for (last, next, machine, count) in [
            ("file:/a?bs=512", "/a", Some(machine), 2),
            // Which machine it is.
            ("file:/a?bs=512", "/a", None, 0),
            // Whether the UUID is the volume's own.
            ("tcp://h/nqn.x?ns=1", "tcp://h/nqn.x?ns=1", Some(machine), 0),
            ("file:/a?bs=512", "delay:1ms(tcp://h/nqn.x?ns=1)", Some(machine), 0),
            ("file:/a?bs=512", "/a?uuid=00000000-0000-0000-0000-000000000002", Some(machine), 0),
            ("file:/a?bs=512", "/a?uuid=00000000-0000-0000-0000-000000000003", Some(machine), 2),
            // Where a program is.
            ("bpf:/p.o(file:/a?bs=512)", "bpf:p.o(/a)", Some(machine), 0),
        ] {
            let last = config(last, names.0, names.1);
            let told = renamed(&last, &config(next, None, None), machine);
            assert_eq!(told.len(), count, "{next}: {told:?}");
        }
    }

    /// It is not derived so any more.
    #[test]
    fn names_that_earlier_versions_derived_are_told() {
        let machine = Machine::from_id(Uuid::from_u128(1));
        let volume = "file:/a?bs=512&ro";
        for (uuid, lines) in [
            (machine.volume_of_before(volume, NQN, &BTreeSet::new()), 2),
            (machine.volume(volume, NQN, &BTreeSet::new()), 0),
        ] {
            let last = config(volume, Some(uuid), Some(identity::nguid(uuid)));
            let told = renamed(&last, &config("/a?ro", None, None), Some(machine));
            assert_eq!(told.len(), lines, "{told:?}");
        }
    }
}
