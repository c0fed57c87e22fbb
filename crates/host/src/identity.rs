//! Who this host is, to controllers.

use crate::client::HostIdentity;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::{Once, OnceLock};
use uuid::Uuid;

/// The name space of everything that nvlane derives, the daemon's names too. Changing it would rename
/// every host and every volume.
pub const NVLANE: Uuid = Uuid::from_u128(0x8f3c_1f0a_5d2b_4a6e_9b7d_6e76_6c61_6e65);

/// This host: what is given; else what nvme-cli has in /etc/nvme; else a name made from the
/// machine's id, or, where there is none (containers), a random one for this process. The identifier
/// goes with the name: it is the UUID in it, or made from it.
pub fn identity(nqn: Option<&str>, id: Option<[u8; 16]>) -> HostIdentity {
    identity_with(nqn, id, Path::new("/etc/nvme"))
}

/// The same with nvme-cli's files in `folder`.
fn identity_with(nqn: Option<&str>, id: Option<[u8; 16]>, folder: &Path) -> HostIdentity {
    let filed = |name: &str| {
        let mut text = String::new();
        let file = fs::File::open(folder.join(name)).ok()?;
        file.take(FILED_BYTES_MAX).read_to_string(&mut text).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let named = filed("hostnqn").filter(|nqn| {
        let is_name = is_nqn(nqn);
        if !is_name {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                let file = folder.join("hostnqn");
                tracing::warn!("{}: no NQN of 1 to 223 bytes: not used", file.display());
            });
        }
        is_name
    });
    let (nqn, with_it) = match (nqn, named) {
        (Some(nqn), _) => (nqn.to_owned(), None),
        (None, Some(nqn)) => (nqn, filed("hostid").and_then(|id| Uuid::try_parse(&id).ok())),
        (None, None) => (nqn_of_machine(), None),
    };
    let named = nqn.rsplit_once(":uuid:").and_then(|(_, id)| Uuid::try_parse(id).ok());
    let id = id.map(Uuid::from_bytes).or(with_it).or(named);
    let id = id.unwrap_or_else(|| Uuid::new_v5(&Uuid::NAMESPACE_URL, nqn.as_bytes()));
    HostIdentity { nqn, id: id.into_bytes() }
}

/// What is read of a file of nvme-cli's, at most: more than a name may have, so that a longer one is none.
const FILED_BYTES_MAX: u64 = 4096;

fn is_nqn(text: &str) -> bool {
    (1..=nvme::fabrics::NQN_BYTES_MAX).contains(&text.len())
        && !text.contains(|letter: char| letter.is_whitespace() || letter.is_control())
}

/// This machine's id, systemd's or D-Bus'; none in most containers. It is confidential
/// (machine-id(5)): show nothing but what [`of_machine`] makes of it.
pub fn machine_id() -> Option<Uuid> {
    ["/etc/machine-id", "/var/lib/dbus/machine-id"].iter().find_map(|path| {
        let id = Uuid::try_parse(fs::read_to_string(path).ok()?.trim()).ok()?;
        (!id.is_nil()).then_some(id)
    })
}

/// The root of what is derived from a machine's id.
pub fn of_machine(id: Uuid) -> Uuid {
    Uuid::new_v5(&NVLANE, id.as_bytes())
}

/// Whether another process on this machine would come by the same name.
pub fn is_lasting(nqn: &str) -> bool {
    machine_id().is_some() || nqn != nqn_of_machine()
}

fn nqn_of_machine() -> String {
    static PROCESS: OnceLock<Uuid> = OnceLock::new();
    let id = machine_id().unwrap_or_else(|| *PROCESS.get_or_init(Uuid::new_v4));
    let host = Uuid::new_v5(&of_machine(id), b"subsystem host");
    format!("nqn.2014-08.org.nvmexpress:uuid:{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identifier_goes_with_the_name() {
        let named = "nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff";
        assert_eq!(identity(Some(named), None).id[..3], [0, 0x11, 0x22]);
        assert_eq!(identity(Some(named), Some([9; 16])).id, [9; 16]);
        let other = identity(Some("nqn.2026-11.org.example:h"), None);
        assert_eq!(other, identity(Some("nqn.2026-11.org.example:h"), None));
        assert_ne!(other.id, [0; 16]);
        assert_eq!(identity(None, None), identity(None, None));
    }

    #[test]
    fn a_file_of_nvme_cli_is_used_if_there_is_a_name_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let id = "00112233-4455-6677-8899-aabbccddeeff";
        fs::write(folder.path().join("hostid"), id).unwrap();
        let of = |text: &str| {
            fs::write(folder.path().join("hostnqn"), text).unwrap();
            identity_with(None, None, folder.path())
        };
        let longest = format!("nqn.{}", "x".repeat(219));
        for name in ["nqn.2026-11.org.example:h", &longest] {
            let found = of(&format!("{name}\n"));
            assert_eq!((&*found.nqn, found.id[1]), (name, 0x11));
        }
        for odd in [format!("{longest}x"), "nqn.a b".into(), "nqn.a\0b".into(), "x".repeat(9999)] {
            assert_eq!(of(&odd).nqn, nqn_of_machine());
        }
    }
}
