//! Import of what `nvmetcli save` writes: the configuration of the Linux kernel's own target.
//!
//! Its numbers are sometimes strings, and it has more than we serve (other transports, disabled namespaces,
//! reservations, referrals): what is left out is said in a note each. Keys of hosts are `keys`.
//!
//! Blocks of a file are those of its file system there, at most 4096 bytes (Linux, `nvmet_file_ns_enable`), and
//! of a device its own.

mod keys;

pub use keys::KeyFile;

use super::{
    Ana, AnaState, Authentication, Config, ControllerIds, Listen, Namespace, Subsystem, listen,
};
use keys::SavedHost;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use uuid::Uuid;
use volume::{Kind, Options, Uri};

#[derive(Deserialize)]
struct Saved {
    #[serde(default)]
    ports: Vec<Port>,
    #[serde(default)]
    subsystems: Vec<SavedSubsystem>,
    #[serde(default)]
    hosts: Vec<SavedHost>,
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
    #[serde(default)]
    param: BTreeMap<String, serde_json::Value>,
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
    #[serde(default)]
    treq: String,
    #[serde(default)]
    tsas: String,
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
    #[serde(default)]
    passthru: Option<serde_json::Value>,
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
    #[serde(default)]
    resv: BTreeMap<String, Number>,
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

/// What a saved configuration has become.
#[derive(Debug)]
pub struct Imported {
    /// What is to be served.
    pub config: Config,
    /// What was left out, one line each.
    pub notes: Vec<String>,
    /// Keys that are to be written to the files that the configuration names.
    pub keys: Vec<KeyFile>,
}

/// Translates the text of a saved configuration. Keys that it has are to be written to files in `keys_dir`, an absolute path; without
/// that, it must have none.
pub fn import(text: &str, keys_dir: Option<&Path>) -> Result<Imported, String> {
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
    let keys = keys::translate(&saved.hosts, keys_dir, &mut config, &mut notes)?;
    config.complete();
    config.check().map_err(|error| error.to_string())?;
    Ok(Imported { config, notes, keys })
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
        for name in ATTRIBUTES_LEFT_OUT {
            if let Some(value) = attr(name).filter(|value| !value.is_empty()) {
                notes.push(format!("{nqn}: its {name} `{value}` is not kept"));
            }
        }
        if self
            .passthru
            .as_ref()
            .is_some_and(|it| is_on(it.get("enable").or(it.pointer("/0/enable"))))
        {
            notes.push(format!(
                "{nqn}: the controller that it passes through is left out; a namespace /dev/ngXnY with ?passthrough= does the like"
            ));
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
        if self.resv.get("enable").is_some_and(|enable| enable.text() == "1") {
            notes.push(format!("{nqn}, namespace {nsid}: reservations are not served"));
        }
        let Some(volume) = volume(&self.device.path) else {
            notes.push(format!(
                "{nqn}, namespace {nsid}: left out, since its blocks are neither 512 nor 4096 bytes: {} is on such a file system",
                self.device.path
            ));
            return Ok(None);
        };
        if let Volume::Unseen(_) = volume {
            notes.push(format!(
                "{nqn}, namespace {nsid}: {} is not here to be looked at: taken for a file whose blocks are 4096 bytes; \
                 hosts that knew others find no partitions",
                self.device.path
            ));
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
            volume: volume.uri(),
            uuid: id("uuid", &self.device.uuid)?,
            // The kernel has none unless one was set. One that hosts did not see would make another disk of it.
            nguid: Some(id("nguid", &self.device.nguid)?.unwrap_or_default()),
            ana_group: group.map_or(Ok(1), |group| group.value("ana_grpid"))?,
            nofail: false,
        }))
    }
}

/// What hosts see of a subsystem, and we do not take over.
const ATTRIBUTES_LEFT_OUT: [&str; 4] = ["model", "firmware", "ieee_oui", "qid_max"];

/// What is said of a port that takes encrypted connections alone.
const TLS_KEYS: &str = "takes no host that has no key for TLS: the kernel's are in its keyring, and not saved; write each host's into a file, \
    and name that as tls_key in [[subsystems.authentication]]: docs/serve.md";

/// Parameters of a port that we do not take over, by what a user calls them, and the values that they have when nobody has said
/// any: bytes of data in a command's capsule, and entries of a queue (Linux, `nvmet_tcp_add_port` and `nvmet_enable_port`). Less
/// than zero has the transport choose.
const PARAMETERS_LEFT_OUT: [(&str, [&str; 2]); 2] =
    [("inline_data_size", ["-1", "16384"]), ("max_queue_size", ["-1", "1024"])];

fn is_on(value: Option<&serde_json::Value>) -> bool {
    value.is_some_and(|value| *value == 1 || *value == "1" || *value == true)
}

/// What is behind a path.
enum Volume {
    /// A device, whose blocks are its own.
    Device(Uri),
    /// A file, with blocks of this size.
    File(Uri),
    /// It is not there, and no device by its name.
    Unseen(Uri),
}

impl Volume {
    fn uri(&self) -> String {
        let (Volume::Device(uri) | Volume::File(uri) | Volume::Unseen(uri)) = self;
        uri.to_string()
    }
}

/// The volume at a path, whatever characters it has. None if its blocks have a size that cannot be served.
fn volume(path: &str) -> Option<Volume> {
    let kind = Kind::File { path: path.into(), create_bytes: None, buffered: false };
    let of = |block_bytes| Uri { kind, options: Options { block_bytes, ..Options::default() } };
    match fs::metadata(path) {
        Ok(found) if found.is_file() => {
            let block = found.blksize().min(4096) as u32;
            [512, 4096].contains(&block).then(|| Volume::File(of(Some(block))))
        }
        Ok(_) => Some(Volume::Device(of(None))),
        Err(_) if path.starts_with("/dev/") => Some(Volume::Device(of(None))),
        Err(_) => Some(Volume::Unseen(of(Some(4096)))),
    }
}

impl Port {
    fn translate(&self, config: &mut Config, notes: &mut Vec<String>) -> Result<(), String> {
        let name = self.portid.as_ref().map_or("?".to_owned(), Number::text);
        if !self.addr.trtype.eq_ignore_ascii_case("tcp") {
            let kind = &self.addr.trtype;
            notes.push(format!("port {name}: left out, since its transport is {kind}, not tcp"));
            return Ok(());
        }
        let (tsas, is_required) = (&*self.addr.tsas, self.addr.treq == "required");
        let tls = is_required && tsas == "tls1.3";
        if is_required && !tls {
            notes.push(format!(
                "port {name}: left out, since it requires a secure channel that is not TLS 1.3"
            ));
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
        config.listeners.push(Listen { address: listener, tls });
        if tls {
            notes.push(format!("port {name} ({}{listener}) {TLS_KEYS}", listen::TLS));
        } else if !["", "none"].contains(&tsas) {
            notes.push(format!(
                "port {name} ({listener}): {tsas} is not required there, and a listener has either: connections are not encrypted; \
                 {}{listener} takes encrypted ones alone",
                listen::TLS
            ));
        }
        if !self.referrals.is_empty() {
            notes.push(format!("port {name}: referrals are not served"));
        }
        self.note_parameters(&name, notes);
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

    /// Says which parameters are left out, other than those that nobody has set.
    fn note_parameters(&self, name: &str, notes: &mut Vec<String>) {
        if is_on(self.param.get("pi_enable")) {
            notes.push(format!("port {name}: protection information is not served"));
        }
        for (parameter, unset) in PARAMETERS_LEFT_OUT {
            let Some(value) = self.param.get(parameter) else { continue };
            let text = value.as_str().map_or_else(|| value.to_string(), |it| it.trim().to_owned());
            if !unset.contains(&&*text) {
                notes.push(format!("port {name}: its {parameter} `{text}` is not kept"));
            }
        }
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
        let Imported { config, notes, .. } = import(SAMPLE, None).unwrap();
        assert_eq!(
            config.listeners,
            ["192.0.2.10:4420".parse().unwrap(), "[2001:db8::10]:4421".parse::<Listen>().unwrap()]
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
        assert_eq!(namespace.nguid, Some(Uuid::nil()), "none, and none is made");
        let nguid = two.namespaces[0].nguid.unwrap().to_string();
        assert_eq!(nguid, "ef90689c-6c46-d44c-89c1-4067801309a9");
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
        for part in ["inline_data_size", "protection information"] {
            assert!(!text.contains(part), "a note about a default, `{part}`, in:\n{text}");
        }
    }

    /// One subsystem, with `more` in it, a namespace at `path`, and a port with `address` in its.
    fn saved(path: &str, more: &str, address: &str) -> (Config, String) {
        let text = format!(
            r#"{{"subsystems":[{{"nqn":"nqn.2014-08.org.example:x",{more}"namespaces":[
                {{"nsid":1,"device":{{"path":"{path}"}},"resv":{{"enable":"1"}}}}]}}],
                "ports":[{{"portid":1,"subsystems":["nqn.2014-08.org.example:x"],
                "addr":{{"trtype":"tcp","traddr":"192.0.2.1",{address}"trsvcid":"4420"}}}}]}}"#
        );
        let Imported { config, notes, .. } = import(&text, None).unwrap();
        (config, notes.join("\n"))
    }

    #[test]
    fn files_keep_the_blocks_that_hosts_know() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.img");
        fs::write(&path, [0; 8192]).unwrap();
        let block = fs::metadata(&path).unwrap().blksize().min(4096);
        let uri = |path: &str| saved(path, "", "").0.subsystems[0].namespaces[0].volume.clone();
        let path = path.to_str().unwrap();
        assert_eq!(uri(path), format!("file:{path}?bs={block}"));
        let (config, notes) = saved("/nowhere/a.img", "", "");
        assert_eq!(config.subsystems[0].namespaces[0].volume, "file:/nowhere/a.img?bs=4096");
        assert!(notes.contains("is not here to be looked at"), "{notes}");
        assert_eq!(uri("/dev/null"), "file:/dev/null");
    }

    #[test]
    fn parameters_of_a_port_are_named_where_they_were_set() {
        let notes = |param: &str| {
            let text = format!(
                r#"{{"ports":[{{"portid":1,"addr":{{"trtype":"tcp","traddr":"192.0.2.1"}},"param":{{{param}}}}}]}}"#
            );
            import(&text, None).unwrap().notes
        };
        let unset = r#""inline_data_size":"-1","max_queue_size":"-1","pi_enable":"0","later":null"#;
        for unset in ["", unset, r#""inline_data_size":16384,"max_queue_size":"1024""#] {
            assert_eq!(notes(unset), Vec::<String>::new(), "{unset}");
        }
        for pi_enable in [r#""1""#, "1"] {
            let set = r#""inline_data_size":"8192\n","max_queue_size":128,"pi_enable":"#;
            let said = [
                "port 1: protection information is not served",
                "port 1: its inline_data_size `8192` is not kept",
                "port 1: its max_queue_size `128` is not kept",
            ];
            assert_eq!(notes(&format!("{set}{pi_enable}")), said);
        }
    }

    #[test]
    fn settings_that_are_left_out_are_named() {
        let more = r#""attr":{"model":"Linux","qid_max":"64"},"passthru":[{"enable":1,"device":"/dev/nvme0"}],"#;
        let (config, notes) = saved("/dev/vdb", more, r#""treq":"not required","tsas":"tls1.3","#);
        assert_eq!(config.listeners, ["192.0.2.1:4420".parse().unwrap()]);
        for part in ["model `Linux`", "qid_max `64`", "passes through", "reservations", "tls1.3"] {
            assert!(notes.contains(part), "no note about `{part}` in:\n{notes}");
        }
        for tsas in ["", "none"] {
            let port = format!(r#""treq":"required","tsas":"{tsas}","#);
            let (config, notes) = saved("/dev/vdb", "", &port);
            assert!(notes.contains("left out, since it requires a secure channel"), "{notes}");
            assert!(!config.listeners.contains(&"192.0.2.1:4420".parse().unwrap()), "{config:?}");
        }
    }

    #[test]
    fn a_port_that_requires_tls_takes_encrypted_connections_alone() {
        let (config, notes) = saved("/dev/vdb", "", r#""treq":"required","tsas":"tls1.3","#);
        assert_eq!(config.listeners, ["tls://192.0.2.1:4420".parse().unwrap()]);
        for part in ["port 1 (tls://192.0.2.1:4420)", "keyring", "tls_key"] {
            assert!(notes.contains(part), "no note about `{part}` in:\n{notes}");
        }
        let (config, notes) = saved("/dev/vdb", "", r#""treq":"not specified","tsas":"tls1.3","#);
        assert_eq!(config.listeners, ["192.0.2.1:4420".parse().unwrap()]);
        assert!(notes.contains("not encrypted") && notes.contains("tls1.3"), "{notes}");
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
            let error = import(text, None).unwrap_err();
            assert!(error.contains(part), "`{error}` does not say `{part}`");
        }
    }
}
