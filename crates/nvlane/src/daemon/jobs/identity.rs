//! Which volume it was: under the same name there may be another one when a job goes on.

use namespace::Namespace;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;
use uuid::Uuid;
use volume::{Kind, Uri};

/// A volume as a job began with it.
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
}

impl Identity {
    /// What tells `volume` from others.
    pub fn of(volume: &dyn Namespace) -> Identity {
        let uri = volume.uri();
        let mut places = Vec::new();
        match uri.parse() {
            Ok(parsed) => collect(&parsed, &mut places),
            Err(_) => places.push(uri.clone()),
        }
        let (uuid, bytes) = (volume.uuid().map(Uuid::from_bytes), volume.limits().bytes());
        Identity { uri, places, uuid, bytes }
    }

    /// Whether `now` is the same volume.
    pub fn check(&self, now: &Identity) -> Result<(), String> {
        let differs = |what: &str| {
            Err(format!("the job began with {}, and this is {}: another {what}", self.uri, now.uri))
        };
        if self.places != now.places {
            return differs("place");
        }
        if self.uuid.zip(now.uuid).is_some_and(|(then, now)| then != now) {
            return differs("UUID");
        }
        match now.bytes < self.bytes {
            true => differs("size, a smaller one"),
            false => Ok(()),
        }
    }

    /// Whether some of it was memory of a process.
    pub fn has_memory(&self) -> bool {
        self.uri.parse().is_ok_and(|uri: Uri| uri.has_memory())
    }
}

fn collect(uri: &Uri, places: &mut Vec<String>) {
    match &uri.kind {
        // Another file may have taken the name, or a link lead to another. Devices of file systems are numbered anew at each boot.
        Kind::File { path, .. } => {
            let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
            let inode = std::fs::metadata(&path).map_or(0, |found| found.ino());
            places.push(format!("file {} inode {inode}", path.display()));
        }
        Kind::Device(device) => places.push(format!("device {}", device.path.display())),
        Kind::Remote(remote) => {
            let wanted = &remote.options.association;
            places.push(format!("{} namespace {:?}", wanted.nqn, wanted.nsid));
        }
        Kind::Memory(bytes) => places.push(format!("memory {bytes}")),
        Kind::Null(bytes) => places.push(format!("null {bytes}")),
        Kind::Linear(_)
        | Kind::Multipath(..)
        | Kind::Program(..)
        | Kind::Delay(..)
        | Kind::Rate(..)
        | Kind::Fault(..)
        | Kind::Volatile(..) => {}
    }
    uri.children().iter().for_each(|child| collect(child, places));
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
