//! Which namespaces hosts would find under other names. A host that stays connected takes such a one for another disk.

use super::difference::id;
use super::identity::{self, Machine};
use super::{Config, Namespace};
use std::collections::BTreeSet;
use uuid::Uuid;
use volume::{Kind, Uri};

/// What hosts know.
pub struct Served<'a> {
    /// What was served before any change to it, if that is known.
    pub first: Option<&'a Config>,
    /// What is served, or was last, with all names.
    pub last: &'a Config,
}

/// The namespaces that have other names once `next` is served instead, one line each. A name that `next` leaves out stays
/// as it was, unless somebody had given it.
pub fn renamed(served: &Served<'_>, next: &Config, machine: Option<Machine>) -> Vec<String> {
    let mut lines = Vec::new();
    for subsystem in &next.subsystems {
        let nqn = &subsystem.nqn;
        let Some(last) = served.last.subsystem(nqn) else { continue };
        for namespace in &subsystem.namespaces {
            let nsid = namespace.nsid.unwrap_or_default();
            let Some(known) = last.namespace(nsid) else { continue };
            let (Some(uuid), Some(nguid)) = (known.uuid, known.nguid) else { continue };
            let is_given = !may_have_own_uuid(namespace)
                && machine.is_some_and(|machine| served.is_given(known, nqn, machine));
            let then = namespace.uuid.or((!is_given).then_some(uuid));
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

impl Served<'_> {
    /// Whether somebody must have said the UUID of a namespace, as far as that can be known: nobody would have derived
    /// it from the volume.
    fn is_given(&self, known: &Namespace, nqn: &str, machine: Machine) -> bool {
        let first = self.first.and_then(|first| first.subsystem(nqn));
        let first = first.and_then(|subsystem| subsystem.namespace(known.nsid?));
        // A volume of memory that has another size has another URI, and the UUID of its first.
        let is_unsure = may_have_own_uuid(known) || first.is_none() && has_memory(known);
        if is_unsure {
            return false;
        }
        let all = self.last.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
        let used: BTreeSet<Uuid> =
            all.filter_map(|one| one.uuid).filter(|&uuid| Some(uuid) != known.uuid).collect();
        let mut volumes = first.into_iter().chain([known]).map(|one| &one.volume);
        !volumes.any(|volume| {
            let derived =
                [machine.volume(volume, nqn, &used), machine.volume_of_before(volume, nqn, &used)];
            derived.into_iter().any(|uuid| Some(uuid) == known.uuid)
        })
    }
}

/// Whether the volume may say its UUID by itself, so that none is derived from its URI.
fn may_have_own_uuid(namespace: &Namespace) -> bool {
    fn may(uri: &Uri) -> bool {
        let asks = matches!(uri.kind, Kind::Remote(_) | Kind::Device(_));
        uri.options.uuid.is_some() || asks || uri.children().iter().any(may)
    }
    namespace.volume.parse().is_ok_and(|uri| may(&uri))
}

fn has_memory(namespace: &Namespace) -> bool {
    namespace.volume.parse::<Uri>().is_ok_and(|uri| uri.has_memory())
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

    fn told(kind: &str, is: &str, was: Uuid) -> String {
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
                vec![told("NGUID", &text(other), made(derived))],
            ),
            (
                derived,
                made(derived),
                (None, Some(Uuid::nil())),
                vec![told("NGUID", "none", made(derived))],
            ),
            (given, other, (Some(derived), Some(other)), vec![told("UUID", &text(derived), given)]),
            // The NGUID that is made goes with the UUID.
            (
                given,
                made(given),
                (Some(other), None),
                vec![
                    told("UUID", &text(other), given),
                    told("NGUID", &text(made(other)), made(given)),
                ],
            ),
            // What was said is said no more.
            (given, other, (Some(given), None), vec![told("NGUID", &text(made(given)), other)]),
            (
                derived,
                Uuid::nil(),
                (None, None),
                vec![told("NGUID", &text(made(derived)), Uuid::nil())],
            ),
            (
                given,
                made(given),
                (None, None),
                vec![told("UUID", MADE, given), told("NGUID", MADE, made(given))],
            ),
        ] {
            let (last, next) =
                (config(volume, Some(uuid), Some(nguid)), config("/a", then.0, then.1));
            let served = Served { first: None, last: &last };
            assert_eq!(renamed(&served, &next, Some(machine)), wanted, "{then:?}");
        }
        // There are no names of what was missing.
        let (last, next) = (config(volume, None, None), config("/a", Some(given), Some(other)));
        let served = Served { first: None, last: &last };
        assert_eq!(renamed(&served, &next, Some(machine)), Vec::<String>::new());
    }

    #[test]
    fn what_is_not_known_is_not_told() {
        let machine = Machine::from_id(Uuid::from_u128(1));
        let uuid = Uuid::from_u128(2);
        let names = (Some(uuid), Some(identity::nguid(uuid)));
        for (first, last, next, machine, count) in [
            (None, "file:/a?bs=512", "/a", Some(machine), 2),
            // Which machine it is.
            (None, "file:/a?bs=512", "/a", None, 0),
            // Whether the UUID is the volume's own.
            (None, "tcp://h/nqn.x?ns=1", "tcp://h/nqn.x?ns=1", Some(machine), 0),
            (None, "file:/a?bs=512", "delay:1ms(tcp://h/nqn.x?ns=1)", Some(machine), 0),
            (
                None,
                "file:/a?bs=512",
                "/a?uuid=00000000-0000-0000-0000-000000000002",
                Some(machine),
                0,
            ),
            // Which size memory had at first.
            (None, "mem:2M?bs=512", "mem:1M", Some(machine), 0),
            (Some("mem:1M?bs=512"), "mem:2M?bs=512", "mem:1M", Some(machine), 2),
        ] {
            let first = first.map(|volume| config(volume, names.0, names.1));
            let last = config(last, names.0, names.1);
            let served = Served { first: first.as_ref(), last: &last };
            let told = renamed(&served, &config(next, None, None), machine);
            assert_eq!(told.len(), count, "{next}: {told:?}");
        }
    }

    #[test]
    fn names_that_earlier_versions_derived_are_nobodys() {
        let machine = Machine::from_id(Uuid::from_u128(1));
        let volume = "file:/a?bs=512&ro";
        for (uuid, lines) in [
            (machine.volume_of_before(volume, NQN, &BTreeSet::new()), 0),
            (machine.volume(volume, NQN, &BTreeSet::new()), 0),
            (Uuid::from_u128(2), 2),
        ] {
            let last = config(volume, Some(uuid), Some(identity::nguid(uuid)));
            let served = Served { first: None, last: &last };
            let told = renamed(&served, &config("/a", None, None), Some(machine));
            assert_eq!(told.len(), lines, "{told:?}");
        }
    }

    #[test]
    fn memory_of_another_size_keeps_its_name() {
        let machine = Machine::from_id(Uuid::from_u128(1));
        let uuid = machine.volume("mem:1M?bs=512", NQN, &BTreeSet::new());
        let names = (Some(uuid), Some(identity::nguid(uuid)));
        let first = config("mem:1M?bs=512", names.0, names.1);
        let last = config("mem:2M?bs=512", names.0, names.1);
        let served = Served { first: Some(&first), last: &last };
        let told = renamed(&served, &config("mem:1M", None, None), Some(machine));
        assert_eq!(told, Vec::<String>::new());
    }
}
