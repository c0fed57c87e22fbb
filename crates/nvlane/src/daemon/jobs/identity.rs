//! Which volume it was: under the same name there may be another one when a job goes on, or one that had gone is back.

use super::disk;
use namespace::Namespace;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;
use uuid::Uuid;
use volume::{Kind, Uri};

/// What is said of a disk that nobody can tell from another any more.
pub const RESTARTED: &str = "the machine was started again";

/// A volume as it was when a job began with it, or it was served first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Its URI in canonical form.
    pub uri: String,
    /// What keeps its blocks, without settings that only say how it is reached.
    places: Vec<String>,
    /// Its own UUID or NGUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uuid: Option<Uuid>,
    /// Its size then.
    bytes: u64,
    /// Bytes of its blocks: how far a job is was counted in whole ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    block_bytes: Option<u32>,
    /// When its files were made, as far as their file systems tell: a new one may have the inode of one that is gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    born: Vec<Option<SystemTime>>,
    /// The start of the machine after which nobody can tell a disk of it from another of the same size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
}

impl Identity {
    /// What tells `volume` from others.
    pub fn of(volume: &dyn Namespace) -> Identity {
        let uri = volume.uri();
        let mut found = Found::default();
        match uri.parse() {
            Ok(parsed) => collect(&parsed, &mut found),
            Err(_) => found.places.push(uri.clone()),
        }
        let Found { places, born, is_nameless } = found;
        let (uuid, limits) = (volume.uuid().map(Uuid::from_bytes), volume.limits());
        Identity {
            uri,
            places,
            uuid,
            bytes: limits.bytes(),
            block_bytes: Some(limits.block_bytes()),
            born,
            boot: is_nameless.then(disk::boot),
        }
    }

    /// Whether `now` is the same volume.
    pub fn check(&self, now: &Identity) -> Result<(), String> {
        self.check_told(now)?;
        match self.is_untold(now) {
            true => Err(untold(&[&self.uri])),
            false => Ok(()),
        }
    }

    /// Whether nobody can tell, since the machine was started again, if `now`, of which nothing else differs, is the same.
    pub fn is_untold(&self, now: &Identity) -> bool {
        self.check_told(now).is_ok() && self.boot.is_some() && self.boot != now.boot
    }

    /// By what volumes tell of themselves.
    pub fn check_told(&self, now: &Identity) -> Result<(), String> {
        let differs = |what: &str| match self.uri == now.uri {
            true => Err(format!("{} is not what it was: another {what}", self.uri)),
            false => Err(format!("{} is not what {} was: another {what}", now.uri, self.uri)),
        };
        if self.places != now.places {
            return differs("disk or place");
        }
        if self.uuid.zip(now.uuid).is_some_and(|(then, now)| then != now) {
            return differs("UUID");
        }
        let remade = |(then, now): (&Option<SystemTime>, &Option<SystemTime>)| {
            then.zip(*now).is_some_and(|(then, now)| then != now)
        };
        if self.born.iter().zip(&now.born).any(remade) {
            return differs("file, made anew");
        }
        if self.block_bytes.zip(now.block_bytes).is_some_and(|(then, now)| then != now) {
            return differs("size of blocks");
        }
        if now.bytes < self.bytes {
            return differs("size, a smaller one");
        }
        Ok(())
    }

    /// It has another size now.
    pub fn resized(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    /// Somebody who knows says that it is the same disk now.
    pub fn vouch(&mut self) {
        self.boot = self.boot.take().map(|_| disk::boot());
    }

    /// Whether both are one volume for all that can be told: under one name, or of one UUID. Memory is known by neither.
    pub fn is_one(&self, other: &Identity) -> bool {
        let is_named = self.uri == other.uri && self.places.iter().any(|place| tells(place));
        // Files tell themselves apart, and somebody may have given two of them one.
        let is_far = |it: &Identity| !it.places.iter().all(|place| place.starts_with(FILE));
        let is_alike = self.uuid.is_some() && self.uuid == other.uuid;
        is_named || is_alike && (is_far(self) || is_far(other))
    }

    /// Whether something keeps blocks of both.
    pub fn is_kept_with(&self, other: &Identity) -> bool {
        self.places.iter().any(|place| tells(place) && other.places.contains(place))
    }

    /// So many bytes, and what is left of the last block.
    pub fn whole_blocks(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.block_bytes.unwrap_or(1).into()).unwrap_or(bytes)
    }

    /// Whether some of it was memory of a process.
    pub fn has_memory(&self) -> bool {
        self.uri.parse().is_ok_and(|uri: Uri| uri.has_memory())
    }
}

/// Whether what is noted of a place tells it from others.
fn tells(place: &str) -> bool {
    !place.starts_with(MEMORY) && !place.starts_with(NULL)
}

/// How places begin that are like others.
const FILE: &str = "file ";
const MEMORY: &str = "memory ";
const NULL: &str = "null ";

/// What is said of disks that nobody can tell from others any more.
pub fn untold(uris: &[&str]) -> String {
    let (names, own, they, are) = match uris {
        [one] => ((*one).to_owned(), "tells nothing of itself", "it is", "it is the same disk"),
        _ => (
            uris.join(" and "),
            "tell nothing of themselves",
            "they are",
            "they are the same disks",
        ),
    };
    format!("{RESTARTED}, and {names} {own}: whether {are} nobody knows; if {they}, say `retry`")
}

/// What a URI leads to.
#[derive(Default)]
struct Found {
    places: Vec<String>,
    born: Vec<Option<SystemTime>>,
    is_nameless: bool,
}

fn collect(uri: &Uri, found: &mut Found) {
    let Found { places, born, is_nameless } = found;
    let mut node =
        |path: &Path| {
            let name = disk::name(path);
            *is_nameless |= name.is_none();
            places.push(name.map_or_else(
                || format!("device {}", path.display()),
                |name| format!("disk {name}"),
            ));
        };
    match &uri.kind {
        Kind::File { path, .. } if disk::is_node(path) => node(path),
        // Another file may have taken the name, or a link lead to another. Devices of file systems are numbered anew at each boot.
        Kind::File { path, .. } => {
            let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
            let metadata = std::fs::metadata(&path);
            let inode = metadata.as_ref().map_or(0, |found| found.ino());
            places.push(format!("{FILE}{} inode {inode}", path.display()));
            born.push(metadata.and_then(|found| found.created()).ok());
        }
        Kind::Device(device) => node(&device.path),
        Kind::Remote(remote) => {
            let wanted = &remote.options.association;
            places.push(format!("{} namespace {:?}", wanted.nqn, wanted.nsid));
        }
        Kind::Memory(bytes) => places.push(format!("{MEMORY}{bytes}")),
        Kind::Null(bytes) => places.push(format!("{NULL}{bytes}")),
        Kind::Linear(_)
        | Kind::Multipath(..)
        | Kind::Program(..)
        | Kind::Delay(..)
        | Kind::Rate(..)
        | Kind::Fault(..)
        | Kind::Volatile(..) => {}
    }
    uri.children().iter().for_each(|child| collect(child, found));
}

#[cfg(test)]
mod tests {
    use super::*;
    use volume::OpenOptions;

    fn of(uri: &str) -> Identity {
        Identity::of(&*volume::open(uri, &OpenOptions::default()).unwrap())
    }

    #[test]
    fn a_volume_is_known_by_its_place_and_not_by_its_settings() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(path("a"), vec![0; 1 << 20]).unwrap();
        let then = of(&path("a"));
        assert_eq!(then.check(&of(&path("a"))), Ok(()));
        assert_eq!(then.check(&of(&format!("delay:1ms({})", path("a")))), Ok(()));
        assert_eq!(then.check(&of(&format!("{}?uuid={}", path("a"), Uuid::from_u128(1)))), Ok(()));
        let named = |id| of(&format!("{}?uuid={}", path("a"), Uuid::from_u128(id)));
        assert!(named(1).check(&named(2)).unwrap_err().contains("UUID"));
        assert!(!then.has_memory() && of("linear:(mem:1M,null:1M)").has_memory());

        // A link to it, and one that leads elsewhere by then.
        std::fs::write(path("b"), vec![0; 1 << 20]).unwrap();
        std::os::unix::fs::symlink("a", path("link")).unwrap();
        let linked = of(&path("link"));
        assert_eq!(then.check(&linked), Ok(()));
        std::fs::remove_file(path("link")).unwrap();
        std::os::unix::fs::symlink("b", path("link")).unwrap();
        assert!(linked.check(&of(&path("link"))).unwrap_err().contains("place"));

        // Another file that has got the inode of the one that is gone, and other blocks.
        let elder = Identity { born: vec![Some(SystemTime::UNIX_EPOCH)], ..then.clone() };
        assert!(elder.check(&of(&path("a"))).unwrap_err().contains("made anew"));
        let untold = Identity { born: Vec::new(), ..then.clone() };
        assert_eq!(untold.check(&of(&path("a"))), Ok(()), "an earlier version has not noted it");
        let said = then.check(&of(&format!("{}?bs=4096", path("a")))).unwrap_err();
        assert!(said.contains("size of blocks"), "{said}");

        // A disk that tells nothing of itself, after a restart of the machine.
        let mut disk = Identity { boot: Some("an earlier one".into()), ..then.clone() };
        let now = Identity { boot: Some(super::disk::boot()), ..then.clone() };
        let said = disk.check(&now).unwrap_err();
        assert!(said.contains("started again") && said.contains("retry"), "{said}");
        assert!(disk.is_untold(&now) && !disk.is_untold(&of(&path("b"))), "another disk is told");
        disk.vouch();
        assert!(disk.check(&now).is_ok() && !disk.is_untold(&now));
        let mut file = then.clone();
        file.vouch();
        assert_eq!(file, then);

        // Another file of that name, a part that is another, and one that is smaller.
        let both = of(&format!("linear:({},{})", path("a"), path("b")));
        let turned = of(&format!("linear:({},{})", path("b"), path("a")));
        assert!(both.check(&turned).unwrap_err().contains("place"));
        std::fs::OpenOptions::new().write(true).open(path("a")).unwrap().set_len(4096).unwrap();
        assert!(then.check(&of(&path("a"))).unwrap_err().contains("smaller"));
        std::fs::rename(path("b"), path("a")).unwrap();
        assert!(then.check(&of(&path("a"))).unwrap_err().contains("place"));
    }
}
