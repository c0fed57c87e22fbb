//! `nvlane discover`: the discovery log (NVMe Base 2.1, section 5.1.12.3.1).

use super::connect::{DISCOVERY_PORT, Remote};
use super::{json, text};
use crate::cli::{DiscoverArgs, Format};
use crate::stdout;
use anyhow::{Context, Result};
use host::client::{DiscoveryLog, Reason};
use nvme::fabrics::DISCOVERY_NQN;
use nvme::log::discovery::{
    AddressFamily, EFLAG_DUPLICATE, EFLAG_PERSISTENT, Entry, SubsystemType, TransportType,
};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::time::Duration;
use zerocopy::IntoBytes;

/// How long to wait at a time.
const WATCH: Duration = Duration::from_secs(3600);

/// `nvlane discover`.
pub fn discover(args: &DiscoverArgs) -> Result<()> {
    let nqn = args.nqn.as_deref().unwrap_or(DISCOVERY_NQN);
    let remote = Remote::at(&args.remote, DISCOVERY_PORT, nqn)?
        .kept_alive(Duration::from_secs(args.keep_alive_tmo.into()));
    let mut client = remote.connect()?;
    if args.watch {
        // A change after the log was read is told from now on. Who does not tell has a log nevertheless.
        if let Err(error) = client.discovery_change(Duration::ZERO)
            && !matches!(error.reason, Reason::NoEvents | Reason::Status { .. })
        {
            return Err(error.into());
        }
    }
    loop {
        let log = client.discovery_log()?;
        write(&log, args)?;
        if !args.watch {
            return Ok(());
        }
        while !client.discovery_change(WATCH)? {}
    }
}

/// To a file as nvme-cli writes it there, or to standard output.
fn write(log: &DiscoveryLog, args: &DiscoverArgs) -> Result<()> {
    if let Some(path) = &args.raw {
        let page = [log.head.as_bytes(), log.entries.as_bytes()].concat();
        return std::fs::write(path, page).with_context(|| path.display().to_string());
    }
    let out = match args.output_format {
        Format::Normal => text_of(log).into_bytes(),
        Format::Json => json::write(json_of(log)),
        Format::Binary => log.entries.as_bytes().to_vec(),
    };
    stdout::write(out)
}

fn text_of(log: &DiscoveryLog) -> String {
    let mut out = format!(
        "\nDiscovery Log Number of Records {}, Generation counter {}\n",
        log.entries.len(),
        log.generation
    );
    for (index, entry) in log.entries.iter().enumerate() {
        let _ = writeln!(out, "=====Discovery Log Entry {index}======");
        for (name, value) in facts(entry) {
            let name = format!("{name}:");
            match value {
                Value::String(text) => writeln!(out, "{name:<9}{text}"),
                other => writeln!(out, "{name:<9}{other}"),
            }
            .expect("a String takes everything");
        }
    }
    out
}

fn json_of(log: &DiscoveryLog) -> Map<String, Value> {
    let records = log.entries.iter().map(|entry| {
        let facts = facts(entry).into_iter().map(|(name, value)| (name.to_owned(), value));
        Value::Object(facts.collect())
    });
    let records: Vec<Value> = records.collect();
    Map::from_iter([
        ("genctr".to_owned(), log.generation.into()),
        ("records".to_owned(), records.into()),
    ])
}

/// What an entry says, by nvme-cli's names and in its order.
fn facts(entry: &Entry) -> Vec<(&'static str, Value)> {
    let mut facts = vec![
        ("trtype", json!(transport(entry.trtype))),
        ("adrfam", json!(family(entry.adrfam))),
        ("subtype", json!(subsystem_type(entry.subtype))),
        ("treq", json!(requirements(entry.treq))),
        ("portid", json!(entry.portid.get())),
        ("trsvcid", json!(text::of_field(&entry.trsvcid))),
        ("subnqn", json!(text::of_field(&entry.subnqn))),
        ("traddr", json!(text::of_field(&entry.traddr))),
        ("eflags", json!(flags(entry.eflags.get()))),
    ];
    if TransportType(entry.trtype) == TransportType::TCP {
        facts.push(("sectype", json!(security(entry.tsas[0]))));
    }
    facts
}

pub(super) fn transport(trtype: u8) -> &'static str {
    match TransportType(trtype) {
        TransportType::RDMA => "rdma",
        TransportType::FIBRE_CHANNEL => "fc",
        TransportType::TCP => "tcp",
        TransportType::INTRA_HOST => "loop",
        _ => "unrecognized",
    }
}

pub(super) fn family(adrfam: u8) -> &'static str {
    match AddressFamily(adrfam) {
        AddressFamily::IPV4 => "ipv4",
        AddressFamily::IPV6 => "ipv6",
        AddressFamily(3) => "infiniband",
        AddressFamily(4) => "fibre-channel",
        AddressFamily(254) => "loop",
        _ => "unrecognized",
    }
}

fn subsystem_type(subtype: u8) -> &'static str {
    match SubsystemType(subtype) {
        SubsystemType::REFERRAL => "discovery subsystem referral",
        SubsystemType::NVM => "nvme subsystem",
        SubsystemType::CURRENT_DISCOVERY => "current discovery subsystem",
        _ => "unrecognized",
    }
}

/// TREQ: bits 1:0 whether a secure channel is required, bit 2 flow control can be disabled.
fn requirements(treq: u8) -> String {
    let secure = match treq & 3 {
        0 => "not specified",
        1 => "required",
        2 => "not required",
        _ => "unrecognized",
    };
    let flow = if treq & 4 == 0 { "" } else { ", sq flow control disable supported" };
    format!("{secure}{flow}")
}

fn flags(eflags: u16) -> String {
    let known = [
        (EFLAG_PERSISTENT, "explicit discovery connections"),
        (EFLAG_DUPLICATE, "duplicate discovery information"),
    ];
    let set: Vec<&str> =
        known.iter().filter(|(flag, _)| eflags & flag != 0).map(|(_, words)| *words).collect();
    if set.is_empty() { "none".to_owned() } else { set.join(", ") }
}

fn security(sectype: u8) -> &'static str {
    match sectype {
        0 => "none",
        1 => "tls",
        2 => "tls13",
        _ => "unrecognized",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::log::discovery::Header;
    use zerocopy::FromZeros;

    #[test]
    fn entries_are_shown_as_nvme_cli_does() {
        let mut entry = Entry::new_zeroed();
        entry.trtype = 3;
        entry.adrfam = 1;
        entry.subtype = 2;
        entry.treq = 4;
        entry.portid = 7.into();
        entry.trsvcid = [b' '; 32];
        entry.trsvcid[..4].copy_from_slice(b"4420");
        entry.subnqn[..5].copy_from_slice(b"nqn.a");
        entry.traddr[..9].copy_from_slice(b"192.0.2.1");
        entry.eflags = 3.into();
        let log = DiscoveryLog { generation: 9, entries: vec![entry], head: Header::new_zeroed() };
        assert_eq!(
            text_of(&log),
            "
Discovery Log Number of Records 1, Generation counter 9
=====Discovery Log Entry 0======
trtype:  tcp
adrfam:  ipv4
subtype: nvme subsystem
treq:    not specified, sq flow control disable supported
portid:  7
trsvcid: 4420
subnqn:  nqn.a
traddr:  192.0.2.1
eflags:  explicit discovery connections, duplicate discovery information
sectype: none
"
        );
        let json = Value::Object(json_of(&log));
        assert_eq!((&json["genctr"], &json["records"][0]["portid"]), (&json!(9), &json!(7)));
        assert_eq!(json["records"][0]["traddr"], "192.0.2.1");
    }

    #[test]
    fn no_entry_says_more_than_its_lines() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        };
        for round in 0..300 {
            let mut entry = Entry::new_zeroed();
            entry.as_mut_bytes().fill_with(&mut random);
            // Letters, line ends and what terminals obey are few among random bytes.
            let few = b"\n\r\x1b[2J\t\0 \xe2\x80\xae\xc2\x85a";
            if round % 2 == 0 {
                entry.subnqn.fill_with(|| few[usize::from(random()) % few.len()]);
                entry.traddr.fill_with(|| few[usize::from(random()) % few.len()]);
            }
            let shown = facts(&entry).len();
            let log =
                DiscoveryLog { generation: 1, entries: vec![entry], head: Header::new_zeroed() };
            let text = text_of(&log);
            let obeyed = |letter: char| letter.is_control() && letter != '\n';
            assert!(!text.contains(obeyed), "{text:?}");
            assert_eq!(text.lines().count(), 3 + shown, "{text:?}");
            for (name, value) in json_of(&log)["records"][0].as_object().expect("an object") {
                let letters = value.as_str().unwrap_or_default();
                assert!(!letters.contains(char::is_control), "{name}: {letters:?}");
            }
        }
    }
}
