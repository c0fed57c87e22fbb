//! Keys of the kernel's hosts (`dhchap_key` and its like in configfs), which become files.
//!
//! nvmetcli up to 0.8 saves none of them; what does has them as they are called, or in a group as nvmetcli has other
//! attributes. A key that was lost here would turn authentication off without a word.

use super::{Authentication, Config};
use dhchap::{Group, Hash, Key};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
pub(super) struct SavedHost {
    nqn: String,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

/// A key that was found, and the file that it is to be written to.
#[derive(Debug)]
pub struct KeyFile {
    /// An absolute path, which the configuration names.
    pub path: PathBuf,
    /// The key.
    pub key: Key,
}

/// Adds to `config` what the hosts have to prove. Their keys are to be written to files in `directory`.
pub(super) fn translate(
    hosts: &[SavedHost],
    directory: Option<&Path>,
    config: &mut Config,
    notes: &mut Vec<String>,
) -> Result<Vec<KeyFile>, String> {
    let mut files = Vec::new();
    let mut names = BTreeSet::new();
    for host in hosts {
        let nqn = &host.nqn;
        let Some(key) = host.key("dhchap_key")? else {
            if host.setting("dhchap_ctrl_key")?.is_some() {
                notes.push(format!(
                    "host {nqn}: its dhchap_ctrl_key is left out, since it has no dhchap_key"
                ));
            }
            continue;
        };
        let directory = directory.ok_or_else(|| {
            format!("host {nqn} has a key, which goes into a file: give -o FILE, or --keys-dir DIR")
        })?;
        let name = name(nqn, &mut names);
        let mut file = |key, ending| {
            let path = directory.join(format!("{name}.{ending}"));
            let text = path.to_str().map(str::to_owned);
            files.push(KeyFile { path, key });
            text.ok_or_else(|| format!("{}: its name is not UTF-8", directory.display()))
        };
        let one = Authentication {
            host: nqn.clone(),
            dhchap_key: Some(file(key, "key")?),
            dhchap_ctrl_key: host
                .key("dhchap_ctrl_key")?
                .map(|key| file(key, "ctrl.key"))
                .transpose()?,
            dhchap_hash: host.named("dhchap_hash")?.filter(|hash| *hash != HASH_USUAL),
            dhchap_dhgroup: host.named("dhchap_dhgroup")?.filter(|group| *group != GROUP_USUAL),
            tls_key: None,
        };
        if !give(&one, config) {
            notes.push(format!("host {nqn}: its key is not used, since no subsystem lists it"));
        }
    }
    if files.is_empty() && config.subsystems.iter().any(|it| !it.allowed_hosts.is_empty()) {
        notes.push(LOST.to_owned());
    }
    Ok(files)
}

/// What a host has in the kernel to which nothing else was said, so that nobody has chosen it: left out, which prefers more than that.
const HASH_USUAL: Hash = Hash::Sha256;
const GROUP_USUAL: Group = Group::Null;

const LOST: &str = "no host has a key (DH-HMAC-CHAP): nvmetcli does not save them. If hosts had any \
    (/sys/kernel/config/nvmet/hosts/*/dhchap_key), write them into files and name those: [[subsystems.authentication]] in docs/serve.md";

/// Adds `one` to the subsystems that list the host: where any may connect the kernel asks nobody for a proof.
fn give(one: &Authentication, config: &mut Config) -> bool {
    let mut is_given = false;
    for subsystem in config.subsystems.iter_mut().filter(|it| it.allowed_hosts.contains(&one.host))
    {
        subsystem.authentication.push(one.clone());
        is_given = true;
    }
    is_given
}

/// A name for files of a host: none of these is another host's.
fn name(nqn: &str, names: &mut BTreeSet<String>) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || ['-', '.'].contains(&letter);
    let name: String = nqn.chars().map(|it| if plain(it) { it } else { '_' }).collect();
    let name = name.trim_start_matches('.').to_owned();
    let numbered = (2..).map(|number: u32| format!("{name}_{number}"));
    let mut all = std::iter::once(name.clone()).chain(numbered);
    let files = |name: &str| ["key", "ctrl.key"].map(|ending| format!("{name}.{ending}"));
    let is_free = |name: &String| files(name).iter().all(|file| !names.contains(file));
    let name = all.find(is_free).expect("fewer hosts than numbers");
    names.extend(files(&name));
    name
}

impl SavedHost {
    /// A setting by its name in configfs: the first that says something. What it is stays unsaid in errors.
    fn setting(&self, name: &str) -> Result<Option<&str>, String> {
        let grouped = name.strip_prefix("dhchap_").unwrap_or(name);
        let odd = |what: &str, kind: &str| format!("host {}: {what} is no {kind}", self.nqn);
        let within = |group: &str, name: &str| match self.fields.get(group) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(fields)) => Ok(fields.get(name)),
            Some(_) => Err(odd(group, "object")),
        };
        let mut setting = None;
        for found in [self.fields.get(name), within("attr", name)?, within("dhchap", grouped)?] {
            let text = match found {
                None | Some(Value::Null) => continue,
                Some(Value::String(text)) => text.trim(),
                Some(_) => return Err(odd(name, "string")),
            };
            setting = setting.or(Some(text).filter(|text| !text.is_empty()));
        }
        Ok(setting)
    }

    fn key(&self, name: &str) -> Result<Option<Key>, String> {
        let key = self.setting(name)?.map(Key::parse).transpose();
        key.map_err(|error| format!("host {}: {name}: {error}", self.nqn))
    }

    fn named<T: std::str::FromStr<Err = String>>(&self, name: &str) -> Result<Option<T>, String> {
        let value = self.setting(name)?.map(str::parse).transpose();
        value.map_err(|problem| format!("host {}: {name}: {problem}", self.nqn))
    }
}

#[cfg(test)]
mod tests {
    use super::super::import;
    use super::*;

    const HOST: &str = "nqn.2014-08.org.example:host1";

    fn text() -> String {
        Key::generate(None, &mut |bytes| bytes.fill(7)).to_text().to_string()
    }

    /// A file of one host with these fields, which may connect to the first of two subsystems, and to the second as any may.
    fn saved(fields: &str) -> String {
        format!(
            r#"{{"hosts":[{{"nqn":"{HOST}",{fields}}}],"subsystems":[
                {{"nqn":"nqn.2014-08.org.example:x","attr":{{"allow_any_host":"0"}},"allowed_hosts":["{HOST}"]}},
                {{"nqn":"nqn.2014-08.org.example:y","attr":{{"allow_any_host":"1"}}}}]}}"#
        )
    }

    #[test]
    fn keys_become_files_however_they_are_saved() {
        let key = text();
        for fields in [
            format!(
                r#""dhchap_key":"{key}\n","dhchap_ctrl_key":"{key}","dhchap_hash":"hmac(sha512)","dhchap_dhgroup":"ffdhe4096""#
            ),
            format!(
                r#""attr":{{"dhchap_key":"{key}","dhchap_ctrl_key":"{key}","dhchap_hash":"hmac(sha512)","dhchap_dhgroup":"ffdhe4096"}}"#
            ),
            format!(
                r#""dhchap":{{"key":"{key}","ctrl_key":"{key}","hash":"hmac(sha512)","dhgroup":"ffdhe4096"}}"#
            ),
        ] {
            let imported = import(&saved(&fields), Some(Path::new("/keys"))).unwrap();
            let [one, two] = &imported.config.subsystems[..] else { panic!("{fields}") };
            let wanted = Authentication {
                host: HOST.to_owned(),
                dhchap_key: Some("/keys/nqn.2014-08.org.example_host1.key".to_owned()),
                dhchap_ctrl_key: Some("/keys/nqn.2014-08.org.example_host1.ctrl.key".to_owned()),
                dhchap_hash: Some(Hash::Sha512),
                dhchap_dhgroup: Some(Group::Ffdhe4096),
                tls_key: None,
            };
            assert_eq!(one.authentication, [wanted], "{fields}");
            assert_eq!(two.authentication, [], "the kernel asks nobody there");
            let paths: Vec<_> = imported.keys.iter().map(|it| it.path.to_str().unwrap()).collect();
            assert_eq!(
                paths,
                [
                    one.authentication[0].dhchap_key.as_ref().unwrap(),
                    one.authentication[0].dhchap_ctrl_key.as_ref().unwrap()
                ]
            );
            assert!(imported.keys.iter().all(|it| *it.key.to_text() == key));
            assert!(!imported.notes.iter().any(|note| note.contains("does not save")));
        }
    }

    #[test]
    fn what_nobody_has_chosen_is_left_open() {
        let fields = format!(
            r#""dhchap_key":"{}","dhchap_ctrl_key":"","dhchap_hash":"hmac(sha256)","dhchap_dhgroup":"null""#,
            text()
        );
        let imported = import(&saved(&fields), Some(Path::new("/keys"))).unwrap();
        let one = &imported.config.subsystems[0].authentication[0];
        assert_eq!(
            (&one.dhchap_ctrl_key, one.dhchap_hash, one.dhchap_dhgroup),
            (&None, None, None)
        );
    }

    #[test]
    fn no_key_is_lost_without_a_word() {
        let key = text();
        let error =
            |fields: &str, directory: Option<&Path>| import(&saved(fields), directory).unwrap_err();
        let fields = format!(r#""dhchap_key":"{key}""#);
        let said = error(&fields, None);
        assert!(said.contains(HOST) && said.contains("--keys-dir"), "{said}");
        let keys = Some(Path::new("/keys"));
        let said = error(r#""dhchap_key":"DHHC-1:00:c2VjcmV0:""#, keys);
        assert!(
            said.contains(HOST) && said.contains("32, 48 or 64") && !said.contains("c2VjcmV0"),
            "{said}"
        );
        let said = error(&format!(r#"{fields},"dhchap_hash":"hmac(md5)""#), keys);
        assert!(said.contains("dhchap_hash") && said.contains("md5"), "{said}");
        let notes = |text: &str, keys| import(text, keys).unwrap().notes.join("\n");
        assert!(notes(&saved(r#""dhchap_key":"""#), None).contains("does not save them"));
        let alone = format!(r#""dhchap_ctrl_key":"{key}""#);
        assert!(notes(&saved(&alone), None).contains("dhchap_ctrl_key is left out"));
        let unlisted = saved(&fields)
            .replace(&format!(r#""allowed_hosts":["{HOST}"]"#), r#""allowed_hosts":[]"#);
        assert!(notes(&unlisted, keys).contains("no subsystem lists it"));
    }

    #[test]
    fn what_is_no_string_is_an_error_and_what_is_empty_hides_nothing() {
        let key = text();
        let keys = Some(Path::new("/keys"));
        for fields in [
            format!(r#""dhchap_key":["{key}"]"#),
            format!(r#""dhchap_key":"{key}","dhchap_ctrl_key":{{"key":"{key}"}}"#),
            format!(r#""attr":{{"dhchap_key":["{key}"]}}"#),
            format!(r#""dhchap":["{key}"]"#),
            r#""dhchap_key":1"#.to_owned(),
        ] {
            let said = import(&saved(&fields), keys).unwrap_err();
            assert!(
                said.contains(HOST) && said.contains("is no ") && !said.contains(&key),
                "{said}"
            );
        }
        for fields in [
            format!(r#""dhchap_key":"","attr":{{"dhchap_key":"{key}"}}"#),
            format!(r#""dhchap_key":null,"dhchap":{{"key":"{key}"}}"#),
        ] {
            let imported = import(&saved(&fields), keys).unwrap();
            assert_eq!(imported.config.subsystems[0].authentication.len(), 1, "{fields}");
        }
    }

    #[test]
    fn every_host_has_files_of_its_own() {
        let mut names = BTreeSet::new();
        let all = ["nqn.a:b", "nqn.a/b", "nqn.a_b", "../../x"].map(|nqn| name(nqn, &mut names));
        assert_eq!(all, ["nqn.a_b", "nqn.a_b_2", "nqn.a_b_3", "_.._x"]);
        // The second key of one would be the first of the other.
        for pair in [["nqn.a", "nqn.a.ctrl"], ["nqn.a.ctrl", "nqn.a"]] {
            let mut names = BTreeSet::new();
            let [one, two] = pair.map(|nqn| name(nqn, &mut names));
            assert_eq!((&*one, &*two), (pair[0], &*format!("{}_2", pair[1])));
        }
    }
}
