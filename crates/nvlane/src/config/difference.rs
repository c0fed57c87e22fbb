//! What has become of a configuration, in words.

use super::opened::is_same;
use super::{Ana, Config, Namespace, Subsystem, authentication};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// The changes that make `after` of `before`, one line each. A namespace that lacks a name in `before` had a volume that nobody
/// had opened yet: that name is no change, nor is what opening it has made of its URI.
pub fn changes(before: &Config, after: &Config) -> Vec<String> {
    let mut lines = Vec::new();
    set(
        &before.listeners,
        &after.listeners,
        |listener| format!("the listener {listener}"),
        &mut lines,
    );
    for subsystem in &after.subsystems {
        let nqn = &subsystem.nqn;
        match before.subsystem(nqn) {
            Some(old) => within(old, subsystem, &mut lines),
            None => {
                let count = subsystem.namespaces.len();
                lines.push(format!("the subsystem {nqn} was added, with {count} namespace(s)"));
            }
        }
    }
    for subsystem in before.subsystems.iter().filter(|old| after.subsystem(&old.nqn).is_none()) {
        lines.push(format!("the subsystem {} was removed", subsystem.nqn));
    }
    lines
}

/// The changes of one subsystem.
fn within(before: &Subsystem, after: &Subsystem, lines: &mut Vec<String>) {
    let nqn = &after.nqn;
    if before.allow_any_host != after.allow_any_host {
        lines.push(match after.allow_any_host {
            Some(false) => format!("{nqn}: only hosts that are listed may connect"),
            _ => format!("{nqn}: any host may connect"),
        });
    }
    let host = |host: &String| format!("{nqn}: the host {host}");
    set(&before.allowed_hosts, &after.allowed_hosts, host, lines);
    lines.extend(authentication::changes(nqn, &before.authentication, &after.authentication));
    for namespace in &after.namespaces {
        let nsid = namespace.nsid.unwrap_or_default();
        let name = format!("{nqn}: namespace {nsid}");
        match before.namespace(nsid) {
            None => lines.push(format!("{name} was added: {}", namespace.volume)),
            Some(old) => other(&name, old, namespace, lines),
        }
    }
    let removed = |old: &&Namespace| old.nsid.is_some_and(|nsid| after.namespace(nsid).is_none());
    for old in before.namespaces.iter().filter(removed) {
        let nsid = old.nsid.unwrap_or_default();
        lines.push(format!("{nqn}: namespace {nsid} was removed: {}", old.volume));
    }
    let ana = |ana: &Ana| {
        let listener = ana.listener.map_or(String::new(), |it| format!(" on {it}"));
        format!("{nqn}: the state {} of ANA group {}{listener}", word(ana), ana.group)
    };
    set(&before.ana, &after.ana, ana, lines);
    for group in groups_in_another_order(&before.ana, &after.ana) {
        lines.push(format!("{nqn}: the order of the states of ANA group {group} was changed"));
    }
}

/// The ANA groups of which something else holds on a listener although nothing was added or removed: of several states that
/// name it, or all listeners, it has the last.
fn groups_in_another_order(before: &[Ana], after: &[Ana]) -> BTreeSet<u32> {
    let hold = |states: &[Ana], others: &[Ana], group: u32| {
        let mut hold = BTreeMap::new();
        for ana in states.iter().filter(|ana| ana.group == group && others.contains(ana)) {
            if ana.listener.is_none() {
                hold.clear();
            }
            hold.insert(ana.listener, ana.state);
        }
        hold
    };
    let groups = before.iter().map(|ana| ana.group);
    groups.filter(|&group| hold(before, after, group) != hold(after, before, group)).collect()
}

/// What is otherwise with one namespace, a line for each.
fn other(name: &str, before: &Namespace, after: &Namespace, lines: &mut Vec<String>) {
    if !is_same(&before.volume, &after.volume) {
        lines.push(format!("{name} is {}, and was {}", after.volume, before.volume));
    }
    for (kind, is, was) in [("UUID", after.uuid, before.uuid), ("NGUID", after.nguid, before.nguid)]
    {
        if was.is_some() && is != was {
            lines.push(format!("{name} has the {kind} {}, and had {}", id(is), id(was)));
        }
    }
    let (group, old) = (after.ana_group, before.ana_group);
    if group != old {
        lines.push(format!("{name} is in ANA group {group}, and was in {old}"));
    }
    if before.nofail != after.nofail {
        let may = if after.nofail { "may be" } else { "must not be" };
        lines.push(format!("{name} {may} missing at the start"));
    }
}

/// A name as it is written in configurations, where all zero is none.
pub(super) fn id(uuid: Option<Uuid>) -> String {
    let given = uuid.filter(|uuid| !uuid.is_nil());
    given.map_or("none".to_owned(), |uuid| uuid.to_string())
}

fn word(ana: &Ana) -> String {
    let value = clap::ValueEnum::to_possible_value(&ana.state);
    value.map(|it| it.get_name().to_owned()).unwrap_or_default()
}

/// What was added to a list, and removed from it, whatever the order.
fn set<T: PartialEq>(
    before: &[T],
    after: &[T],
    name: impl Fn(&T) -> String,
    lines: &mut Vec<String>,
) {
    let added = after.iter().filter(|it| !before.contains(it));
    lines.extend(added.map(|it| format!("{} was added", name(it))));
    let removed = before.iter().filter(|it| !after.contains(it));
    lines.extend(removed.map(|it| format!("{} was removed", name(it))));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AnaState;

    fn config() -> Config {
        let mut subsystem = Subsystem { nqn: "nqn.a".to_owned(), ..Subsystem::default() };
        subsystem.allowed_hosts.push("nqn.host1".to_owned());
        for number in 1..=2 {
            let volume = format!("mem:{number}M");
            let uuid = Some(Uuid::from_u128(number));
            let nsid = Some(number as u32);
            subsystem.namespaces.push(Namespace { nsid, uuid, ..Namespace::new(volume) });
        }
        let other = Subsystem { nqn: "nqn.b".to_owned(), ..Subsystem::default() };
        let listeners = vec!["192.0.2.1:4420".parse().unwrap()];
        let mut config =
            Config { listeners, subsystems: vec![subsystem, other], ..Config::default() };
        config.complete();
        config
    }

    #[test]
    fn nothing_that_has_changed_is_left_out() {
        let before = config();
        assert_eq!(changes(&before, &before), Vec::<String>::new());
        let mut after = before.clone();
        after.listeners = vec!["tls://[::1]:4421".parse().unwrap()];
        after.subsystems.pop();
        after.subsystems.push(Subsystem { nqn: "nqn.c".to_owned(), ..Subsystem::default() });
        let subsystem = &mut after.subsystems[0];
        subsystem.allow_any_host = Some(true);
        subsystem.allowed_hosts = vec!["nqn.host2".to_owned()];
        subsystem.namespaces[0].volume = "mem:4M".to_owned();
        subsystem.namespaces[1].nsid = Some(3);
        let state = AnaState::Inaccessible;
        subsystem.ana.push(Ana { listener: Some(after.listeners[0].address), group: 1, state });
        let said = [
            "the listener tls://[::1]:4421 was added",
            "the listener 192.0.2.1:4420 was removed",
            "nqn.a: any host may connect",
            "nqn.a: the host nqn.host2 was added",
            "nqn.a: the host nqn.host1 was removed",
            "nqn.a: namespace 1 is mem:4M, and was mem:1M",
            "nqn.a: namespace 3 was added: mem:2M",
            "nqn.a: namespace 2 was removed: mem:2M",
            "nqn.a: the state inaccessible of ANA group 1 on [::1]:4421 was added",
            "the subsystem nqn.c was added, with 0 namespace(s)",
            "the subsystem nqn.b was removed",
        ];
        assert_eq!(changes(&before, &after), said);
    }

    /// Each listener has the last of the states that are about it.
    #[test]
    fn another_order_of_ana_states_is_a_change_where_others_hold_then() {
        use AnaState::{Inaccessible, NonOptimized, Optimized};
        let config = |states: &[(Option<u16>, u32, AnaState)]| {
            let mut config = config();
            let listener = |port: u16| format!("192.0.2.1:{port}").parse().unwrap();
            let ana = states.iter().map(|&(port, group, state)| Ana {
                listener: port.map(listener),
                group,
                state,
            });
            config.subsystems[0].ana = ana.collect();
            config
        };
        let (all, here, there) =
            ((None, 1, Inaccessible), (Some(4420), 1, Optimized), (Some(4421), 1, NonOptimized));
        let (other, second) = ((None, 2, Inaccessible), (Some(4420), 1, Inaccessible));
        let order = "nqn.a: the order of the states of ANA group 1 was changed";
        let added = "nqn.a: the state inaccessible of ANA group 2 was added";
        for (before, after, said) in [
            (&[all, here][..], &[here, all][..], &[order][..]),
            (&[here, all], &[all, here], &[order]),
            (&[all, here, there], &[here, all, there], &[order]),
            (&[here, second], &[second, here], &[order]),
            (&[here, second, here], &[here, second], &[order]),
            (&[all, here], &[other, here, all], &[added, order]),
            // None that holds is another.
            (&[all, here, there], &[all, there, here], &[]),
            (&[all, other, here], &[other, all, here], &[]),
            (&[here, there, all], &[there, here, all], &[]),
        ] {
            assert_eq!(changes(&config(before), &config(after)), said, "{before:?} {after:?}");
        }
    }

    #[test]
    fn what_a_namespace_has_otherwise_is_said() {
        let mut before = config();
        let [one, two] = [1, 2].map(Uuid::from_u128);
        before.subsystems[0].namespaces[0].nguid = Some(two);
        let with = |change: fn(&mut Namespace)| {
            let mut after = before.clone();
            change(&mut after.subsystems[0].namespaces[0]);
            changes(&before, &after)
        };
        let other = Uuid::from_u128(9);
        for (said, wanted) in [
            (
                with(|it| it.uuid = Some(Uuid::from_u128(9))),
                format!("has the UUID {other}, and had {one}"),
            ),
            (
                with(|it| it.nguid = Some(Uuid::from_u128(9))),
                format!("has the NGUID {other}, and had {two}"),
            ),
            (with(|it| it.nguid = Some(Uuid::nil())), format!("has the NGUID none, and had {two}")),
            (with(|it| it.ana_group = 3), "is in ANA group 3, and was in 1".to_owned()),
            (with(|it| it.nofail = true), "may be missing at the start".to_owned()),
        ] {
            assert_eq!(said, [format!("nqn.a: namespace 1 {wanted}")]);
        }
    }

    /// It was missing when its names were to be noted.
    #[test]
    fn a_volume_that_was_opened_later_has_not_changed_but_for_what_was_changed() {
        let mut after = config();
        let nguid = Some(Uuid::from_u128(3));
        after.subsystems[0].namespaces[0].nguid = nguid;
        after.subsystems[0].namespaces[0].volume = "mem:1M?bs=512".to_owned();
        let mut before = after.clone();
        let namespace = &mut before.subsystems[0].namespaces[0];
        (namespace.uuid, namespace.nguid) = (None, None);
        namespace.volume = "mem:1048576".to_owned();
        assert_eq!(changes(&before, &after), Vec::<String>::new());
        // One name was said, or both.
        for nguid in [None, nguid] {
            let mut before = before.clone();
            let namespace = &mut before.subsystems[0].namespaces[0];
            (namespace.uuid, namespace.nguid) = (Some(Uuid::from_u128(1)), nguid);
            assert_eq!(changes(&before, &after), Vec::<String>::new());
        }
        let namespace = &mut after.subsystems[0].namespaces[0];
        namespace.volume = "mem:2M?bs=512".to_owned();
        (namespace.ana_group, namespace.nofail) = (2, true);
        let said = [
            "is mem:2M?bs=512, and was mem:1048576",
            "is in ANA group 2, and was in 1",
            "may be missing at the start",
        ];
        let said = said.map(|what| format!("nqn.a: namespace 1 {what}"));
        assert_eq!(changes(&before, &after), said);
    }
}
