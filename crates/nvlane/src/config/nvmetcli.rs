//! Import of what `nvmetcli save` writes: the configuration of the Linux kernel's own target.
//!
//! Its numbers are sometimes strings, and it has more than we serve (other transports, disabled
//! namespaces, referrals): what is left out is said in a note each.

use super::{Ana, AnaState, Config, ControllerIds, Namespace, Subsystem};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use uuid::Uuid;
use volume::{Kind, Options, Uri};

#[derive(Deserialize)]
struct Saved {
    #[serde(default)]
    ports: Vec<Port>,
    #[serde(default)]
    subsystems: Vec<SavedSubsystem>,
}

#[derive(Deserialize)]
struct Port {
    #[serde(default)]
    portid: Option<Number>,
    addr: Addr,
    #[serde(default)]
    ana_groups: Vec<SavedGroup>,
    #[serde(default)]
    subsystems: Vec<String>,
    #[serde(default)]
    referrals: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct Addr {
    trtype: String,
    #[serde(default)]
    traddr: String,
    #[serde(default)]
    trsvcid: Option<Number>,
    #[serde(default)]
    adrfam: String,
}

#[derive(Deserialize)]
struct SavedGroup {
    grpid: Number,
    #[serde(default)]
    ana: BTreeMap<String, Number>,
}

#[derive(Deserialize)]
struct SavedSubsystem {
    nqn: String,
    #[serde(default)]
    attr: BTreeMap<String, Number>,
    #[serde(default)]
    allowed_hosts: Vec<String>,
    #[serde(default)]
    namespaces: Vec<SavedNamespace>,
}

#[derive(Deserialize)]
struct SavedNamespace {
    nsid: Number,
    #[serde(default)]
    device: Device,
    #[serde(default)]
    enable: Option<Number>,
    #[serde(default)]
    ana_grpid: Option<Number>,
    #[serde(default)]
    ana: BTreeMap<String, Number>,
}

#[derive(Default, Deserialize)]
struct Device {
    #[serde(default)]
    path: String,
    #[serde(default)]
    uuid: Option<String>,
    #[serde(default)]
    nguid: Option<String>,
}

/// A number or a string, as versions of nvmetcli differ.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Number {
    Integer(u64),
    Text(String),
}

impl Number {
    fn text(&self) -> String {
        match self {
            Number::Integer(value) => value.to_string(),
            Number::Text(text) => text.trim().to_owned(),
        }
    }

    fn value(&self, what: &str) -> Result<u32, String> {
        let text = self.text();
        text.parse().map_err(|_| format!("{what}: `{text}` is no number"))
    }
}

/// Translates the text of a saved configuration. Also gives a note for everything left out.
pub fn import(text: &str) -> Result<(Config, Vec<String>), String> {
    let not = |why: String| format!("no nvmetcli file: {why}");
    let saved: serde_json::Value =
        serde_json::from_str(text).map_err(|error| not(error.to_string()))?;
    if saved.get("subsystems").or(saved.get("ports")).is_none() {
        return Err(not("it has neither `subsystems` nor `ports`".to_owned()));
    }
    let saved: Saved = serde_json::from_value(saved).map_err(|error| not(error.to_string()))?;
    let mut notes = Vec::new();
    let mut config = Config::default();
    for subsystem in &saved.subsystems {
        config.subsystems.push(subsystem.translate(&mut notes)?);
    }
    config.controller_ids = controller_ids(&saved.subsystems, &mut notes)?;
    for port in &saved.ports {
        port.translate(&mut config, &mut notes)?;
    }
    if config.listeners.is_empty() {
        notes.push("no port of type tcp: the listener is 127.0.0.1:4420".to_owned());
    }
    config.complete();
    config.check().map_err(|error| error.to_string())?;
    Ok((config, notes))
}

/// The kernel has a range for each subsystem, we have one for all.
fn controller_ids(
    subsystems: &[SavedSubsystem],
    notes: &mut Vec<String>,
) -> Result<Option<ControllerIds>, String> {
    let mut all = None;
    for subsystem in subsystems {
        let attr = |name: &str| subsystem.attr.get(name).map(Number::text);
        let (Some(min), Some(max)) = (attr("cntlid_min"), attr("cntlid_max")) else { continue };
        let nqn = &subsystem.nqn;
        let ids: ControllerIds =
            format!("{min}-{max}").parse().map_err(|error| format!("{nqn}: {error}"))?;
        if ids == ControllerIds::ALL || all == Some(ids) {
            continue;
        }
        let used = *all.get_or_insert(ids);
        notes.push(format!("{nqn} had controller ids {ids}; every subsystem now has {used}"));
    }
    Ok(all)
}

impl SavedSubsystem {
    fn translate(&self, notes: &mut Vec<String>) -> Result<Subsystem, String> {
        let nqn = &self.nqn;
        let attr = |name: &str| self.attr.get(name).map(Number::text);
        let mut subsystem = Subsystem {
            nqn: nqn.clone(),
            serial: attr("serial").filter(|serial| !serial.is_empty()),
            allow_any_host: Some(attr("allow_any_host").is_some_and(|value| value == "1")),
            allowed_hosts: self.allowed_hosts.clone(),
            ..Subsystem::default()
        };
        if attr("pi_enable").is_some_and(|value| value == "1") {
            notes.push(format!("{nqn}: protection information is not served"));
        }
        for namespace in &self.namespaces {
            subsystem.namespaces.extend(namespace.translate(nqn, notes)?);
        }
        Ok(subsystem)
    }
}

impl SavedNamespace {
    fn translate(&self, nqn: &str, notes: &mut Vec<String>) -> Result<Option<Namespace>, String> {
        let nsid = self.nsid.value("nsid")?;
        if self.enable.as_ref().is_some_and(|enable| enable.text() == "0") {
            notes.push(format!("{nqn}, namespace {nsid}: left out, since it is disabled"));
            return Ok(None);
        }
        if self.device.path.is_empty() {
            return Err(format!("{nqn}, namespace {nsid}: has no device.path"));
        }
        let group = self.ana_grpid.as_ref().or(self.ana.get("grpid"));
        let id = |field: &str, text: &Option<String>| match text.as_deref().map(str::trim) {
            None | Some("") => Ok(None),
            Some(text) => Uuid::try_parse(text)
                .map(|id| Some(id).filter(|id| !id.is_nil()))
                .map_err(|_| format!("{nqn}, namespace {nsid}: {field} `{text}` is no UUID")),
        };
        Ok(Some(Namespace {
            nsid: Some(nsid),
            volume: file_uri(&self.device.path),
            uuid: id("uuid", &self.device.uuid)?,
            nguid: id("nguid", &self.device.nguid)?,
            ana_group: group.map_or(Ok(1), |group| group.value("ana_grpid"))?,
        }))
    }
}

/// The URI of a path, whatever characters it has.
fn file_uri(path: &str) -> String {
    let kind = Kind::File { path: path.into(), create_bytes: None, buffered: false };
    Uri { kind, options: Options::default() }.to_string()
}

impl Port {
    fn translate(&self, config: &mut Config, notes: &mut Vec<String>) -> Result<(), String> {
        let name = self.portid.as_ref().map_or("?".to_owned(), Number::text);
        if !self.addr.trtype.eq_ignore_ascii_case("tcp") {
            let kind = &self.addr.trtype;
            notes.push(format!("port {name}: left out, since its transport is {kind}, not tcp"));
            return Ok(());
        }
        let ip: IpAddr = self.addr.traddr.parse().map_err(|_| {
            format!("port {name}: traddr `{}` is no {} address", self.addr.traddr, self.addr.adrfam)
        })?;
        let port = match &self.addr.trsvcid {
            Some(port) => u16::try_from(port.value("trsvcid")?)
                .map_err(|_| format!("port {name}: trsvcid is no TCP port"))?,
            None => super::LISTEN_PORT,
        };
        let listener = SocketAddr::new(ip, port);
        config.listeners.push(listener);
        if !self.referrals.is_empty() {
            notes.push(format!("port {name}: referrals are not served"));
        }
        for subsystem in &mut config.subsystems {
            if !self.subsystems.contains(&subsystem.nqn) {
                notes.push(format!(
                    "port {name} ({listener}) did not export {}; here every listener serves every subsystem",
                    subsystem.nqn
                ));
            }
            subsystem.ana.extend(self.states(listener)?);
        }
        Ok(())
    }

    fn states(&self, listener: SocketAddr) -> Result<Vec<Ana>, String> {
        let mut states = Vec::new();
        for saved in &self.ana_groups {
            let group = saved.grpid.value("grpid")?;
            let name = saved.ana.get("state").map_or("optimized".to_owned(), Number::text);
            let state: AnaState = serde_json::from_value(name.clone().into())
                .map_err(|_| format!("ANA group {group}: `{name}` is no ANA state"))?;
            if state != AnaState::Optimized {
                states.push(Ana { listener: Some(listener), group, state });
            }
        }
        Ok(states)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `nvmetcli save` of version 0.8 lays it out.
    const SAMPLE: &str = include_str!("../../tests/data/nvmetcli.json");

    #[test]
    fn a_saved_kernel_target_is_translated() {
        let (config, notes) = import(SAMPLE).unwrap();
        assert_eq!(
            config.listeners,
            [
                "192.0.2.10:4420".parse().unwrap(),
                "[2001:db8::10]:4421".parse::<SocketAddr>().unwrap()
            ]
        );
        let [one, two] = &config.subsystems[..] else { panic!("{config:?}") };
        assert_eq!(one.nqn, "nqn.2014-08.org.example:storage1");
        assert_eq!(one.serial.as_deref(), Some("abcdef0123456789"));
        assert_eq!(one.allow_any_host, Some(false));
        assert_eq!(
            one.allowed_hosts,
            ["nqn.2014-08.org.nvmexpress:uuid:2f2b5d1c-0000-4000-8000-0000000000aa"]
        );
        assert_eq!(one.namespaces.len(), 1, "the disabled one is left out");
        let namespace = &one.namespaces[0];
        assert_eq!((namespace.nsid, namespace.ana_group), (Some(1), 2));
        assert_eq!(namespace.volume, "file:/dev/vg0/disk1");
        assert_eq!(namespace.uuid.unwrap().to_string(), "b0c2a1f6-7d8e-4f3a-9b1c-2d3e4f5a6b7c");
        assert_eq!(namespace.nguid, None, "a zero NGUID means none");
        let second: SocketAddr = "[2001:db8::10]:4421".parse().unwrap();
        assert_eq!(
            one.ana,
            [Ana { listener: Some(second), group: 2, state: AnaState::NonOptimized }]
        );
        assert_eq!(two.nqn, "nqn.2014-08.org.example:scratch");
        assert_eq!(two.allow_any_host, Some(true));
        assert_eq!(config.controller_ids, Some(ControllerIds { min: 1, max: 100 }));
        let text = notes.join("\n");
        for part in [
            "namespace 2: left out",
            "transport is rdma",
            "did not export nqn.2014-08.org.example:scratch",
        ] {
            assert!(text.contains(part), "no note about `{part}` in:\n{text}");
        }
    }

    #[test]
    fn what_cannot_be_served_is_named() {
        for (text, part) in [
            ("{]", "no nvmetcli file"),
            ("[]", "no nvmetcli file"),
            ("{}", "neither `subsystems` nor `ports`"),
            (
                r#"{"ports":[{"portid":1,"addr":{"trtype":"tcp","adrfam":"ipv4","traddr":"here","trsvcid":"4420"}}]}"#,
                "`here` is no ipv4 address",
            ),
            (
                r#"{"ports":[{"portid":1,"addr":{"trtype":"tcp","traddr":"192.0.2.1","trsvcid":"99999"}}]}"#,
                "no TCP port",
            ),
            (
                r#"{"subsystems":[{"nqn":"nqn.2014-08.org.example:x","namespaces":[{"nsid":1,"device":{"path":"/a","uuid":"zz"}}]}]}"#,
                "`zz` is no UUID",
            ),
            (
                r#"{"subsystems":[{"nqn":"nqn.2014-08.org.example:x","namespaces":[{"nsid":0,"device":{"path":"/a"}}]}]}"#,
                "nsid",
            ),
            (
                r#"{"subsystems":[{"nqn":"nqn.2014-08.org.example:x"},{"nqn":"nqn.2014-08.org.example:x"}]}"#,
                "used twice",
            ),
            (r#"{"subsystems":[{"nqn":"test nqn"}]}"#, "`test nqn` is no NQN"),
        ] {
            let error = import(text).unwrap_err();
            assert!(error.contains(part), "`{error}` does not say `{part}`");
        }
    }
}
