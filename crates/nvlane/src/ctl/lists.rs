//! Lists as tables.

use crate::admin::columns;
use crate::config::{ANY_HOST, Listen};
use crate::control::lists::{AnaNow, ControllerNow, HostsNow, ListenerNow, SubsystemNow};
use clap::ValueEnum;
use std::fmt::Write as _;

/// Who is connected.
pub fn controllers(all: &[ControllerNow]) -> String {
    if all.is_empty() {
        return "no host is connected\n".to_owned();
    }
    // What is long comes last.
    let head = [
        "Id",
        "State",
        "Address",
        "Listener",
        "I/O queues",
        "Digests",
        "TLS",
        "Proved by",
        "Keep alive",
        "For",
        "Errors",
        "Host",
        "Host identifier",
        "Subsystem",
    ];
    let rows: Vec<_> = all.iter().map(row).collect();
    columns(&head, &rows)
}

fn row(one: &ControllerNow) -> [String; 14] {
    let address = |it: Option<std::net::SocketAddr>| it.map_or("-".to_owned(), |it| it.to_string());
    let sizes: Vec<String> = one.io_queue_entries.iter().map(u16::to_string).collect();
    let digests = match (one.header_digest, one.data_digest) {
        (true, true) => "header,data",
        (true, false) => "header",
        (false, true) => "data",
        (false, false) => "-",
    };
    [
        one.controller.to_string(),
        one.state.clone(),
        address(one.address),
        address(one.listener),
        match one.io_queues {
            0 => "0".to_owned(),
            count => format!("{count} of {}", sizes.join(",")),
        },
        digests.to_owned(),
        if one.tls { "yes" } else { "-" }.to_owned(),
        one.authentication.clone().unwrap_or_else(|| "-".to_owned()),
        match one.keep_alive_ms {
            0 => "-".to_owned(),
            ms => format!("{} s", ms.div_ceil(1000)),
        },
        time(one.connected_seconds),
        one.errors.to_string(),
        named(&one.host_nqn).to_owned(),
        one.host_id.to_string(),
        if one.discovery { "discovery".to_owned() } else { one.nqn.clone() },
    ]
}

/// A host by its name.
fn named(host: &str) -> &str {
    if host.is_empty() { "(no name)" } else { host }
}

/// A time for reading: its two largest units.
fn time(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Subsystems, with what they have.
pub fn subsystems(all: &[SubsystemNow]) -> String {
    if all.is_empty() {
        return "there is no subsystem\n".to_owned();
    }
    let head = ["Subsystem", "Serial", "Shared", "Hosts", "Namespaces", "Missing", "Controllers"];
    let rows = all.iter().map(|one| {
        let listed =
            if one.hosts == 1 { "1 listed".to_owned() } else { format!("{} listed", one.hosts) };
        [
            one.nqn.clone(),
            one.serial.clone(),
            if one.shared { "yes" } else { "no" }.to_owned(),
            if one.allow_any_host { "any".to_owned() } else { listed },
            one.namespaces.to_string(),
            one.missing.to_string(),
            one.controllers.to_string(),
        ]
    });
    columns(&head, &rows.collect::<Vec<_>>())
}

/// Who may connect, and who is connected.
pub fn hosts(all: &[HostsNow]) -> String {
    let mut text = String::new();
    for one in all {
        let _ = writeln!(text, "{}:", one.nqn);
        let connected = |host: &str| one.connected_hosts.iter().find(|it| it.host == host);
        if one.allow_any_host {
            let _ = writeln!(text, "  {ANY_HOST} (any host may connect)");
        }
        for host in &one.allowed_hosts {
            let count = connected(host).map_or(0, |it| it.controllers);
            let _ = writeln!(text, "  {host}: {count} controller(s){}", means(one, host));
        }
        // They were let in as any host, or have keys.
        let others = one.connected_hosts.iter().map(|it| (&*it.host, it.controllers));
        let apart = one.authentication.iter().map(|it| (&*it.host, 0));
        let apart = apart.filter(|(host, _)| connected(host).is_none());
        for (host, count) in others.chain(apart) {
            if !one.allowed_hosts.iter().any(|listed| listed == host) {
                let (name, means) = (named(host), means(one, host));
                let _ = writeln!(text, "  {name}: {count} controller(s), not listed{means}");
            }
        }
        if !one.allow_any_host && one.allowed_hosts.is_empty() {
            text.push_str("  nobody may connect\n");
        }
    }
    text
}

/// How a host proves who it is, behind what else is said of it.
fn means(all: &HostsNow, host: &str) -> String {
    let one = all.authentication.iter().find(|it| it.host == host);
    one.map_or(String::new(), |it| format!(", authenticates: {}", it.means()))
}

/// Addresses.
pub fn listeners(all: &[ListenerNow]) -> String {
    let rows = all.iter().map(|one| {
        let listen = Listen { address: one.address, tls: one.tls };
        [listen.to_string(), one.controllers.to_string()]
    });
    columns(&["Listener", "Controllers"], &rows.collect::<Vec<_>>())
}

/// ANA states.
pub fn ana(all: &[AnaNow]) -> String {
    let head = ["Subsystem", "Group", "Listener", "State", "Namespaces"];
    let rows = all.iter().map(|one| {
        let state = one.state.to_possible_value().map(|it| it.get_name().to_owned());
        [
            one.nqn.clone(),
            one.group.to_string(),
            one.listener.to_string(),
            state.unwrap_or_default(),
            ranges(&one.namespaces),
        ]
    });
    columns(&head, &rows.collect::<Vec<_>>())
}

/// Numbers that ascend, those that follow each other as one: `1-4,7`.
fn ranges(numbers: &[u32]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let runs = runs.map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => unreachable!("no run is empty"),
    });
    let text = runs.collect::<Vec<_>>().join(",");
    if text.is_empty() { "-".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_short() {
        assert_eq!(ranges(&[1, 2, 3, 7, 9, 10]), "1-3,7,9-10");
        assert_eq!(ranges(&[]), "-");
        let times = [59, 60, 3599, 3600, 86_400, 200_000].map(time);
        assert_eq!(times, ["59s", "1m00s", "59m59s", "1h00m", "1d00h", "2d07h"]);
    }
}
