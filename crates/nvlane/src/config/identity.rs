//! Names that hosts remember, derived so that they are the same after every restart.
//!
//! A name that nobody gave is a version 5 UUID (RFC 9562, 5.5) of this machine's id and of what
//! is named. Given or derived, it is then part of the saved configuration.

use host::NVLANE;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};
use uuid::Uuid;

/// This machine, as the root of derived names.
#[derive(Clone, Copy, Debug)]
pub struct Machine(Uuid);

impl Machine {
    /// Takes systemd's or D-Bus' machine id; where there is none (containers), a random id that
    /// is kept in `data_dir`.
    pub fn find(data_dir: &Path) -> io::Result<Machine> {
        if let Some(machine) = Machine::known(data_dir) {
            return Ok(machine);
        }
        let id = Uuid::new_v4();
        let text = format!("{}\n", id.simple());
        super::store::write_atomically(&kept_in(data_dir), text.as_bytes())?;
        Ok(Machine::from_id(id))
    }

    /// The same without keeping anything; None where nothing was kept yet.
    pub fn known(data_dir: &Path) -> Option<Machine> {
        let kept = || Uuid::try_parse(fs::read_to_string(kept_in(data_dir)).ok()?.trim()).ok();
        host::machine_id().or_else(kept).map(Machine::from_id)
    }

    /// The machine with this id.
    pub fn from_id(id: Uuid) -> Machine {
        Machine(host::of_machine(id))
    }

    /// The UUID of a volume: the same whatever subsystem it is in, as it is the same data. Memory
    /// and null volumes exist only within their subsystem, which therefore counts for them.
    /// Where `used` has the UUID already (two equal memory volumes), the next one is taken.
    pub fn volume(&self, uri: &str, nqn: &str, used: &BTreeSet<Uuid>) -> Uuid {
        let lives_here = uri.contains("mem:") || uri.contains("null:");
        let name = if lives_here { format!("{nqn} {uri}") } else { uri.to_owned() };
        let first = Uuid::new_v5(&self.0, name.as_bytes());
        let following = (1..).map(|count: u32| Uuid::new_v5(&first, &count.to_le_bytes()));
        std::iter::once(first)
            .chain(following)
            .find(|uuid| !used.contains(uuid))
            .expect("`used` is finite")
    }

    /// The NQN of a subsystem for which none was given, from what it starts with
    /// (NVMe Base 2.1, 4.7, second form).
    pub fn nqn(&self, origin: &str) -> String {
        let uuid = Uuid::new_v5(&self.0, format!("subsystem {origin}").as_bytes());
        format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}")
    }
}

/// Where the id of a machine is kept that has none.
fn kept_in(data_dir: &Path) -> PathBuf {
    data_dir.join("machine-id")
}

/// The NGUID that goes with a UUID.
pub fn nguid(uuid: Uuid) -> Uuid {
    Uuid::new_v5(&NVLANE, format!("nguid {uuid}").as_bytes())
}

/// The serial number of a subsystem: 20 characters, the same on every server of a shared one.
pub fn serial(nqn: &str) -> String {
    let hash = Uuid::new_v5(&NVLANE, format!("serial {nqn}").as_bytes()).simple().to_string();
    format!("NVL{}", hash[..17].to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_stable() {
        let machine = Machine::from_id(Uuid::from_u128(1));
        let none = BTreeSet::new();
        // Written down once: a change here renames the disks of every user.
        assert_eq!(
            machine.volume("file:/srv/a.img", "nqn.x", &none).to_string(),
            "8be38b74-f9f9-5624-bfbf-14b45eb8496f"
        );
        assert_eq!(serial("nqn.2026-11.com.example:a"), "NVLB7A083EF6BCC5862B");
    }

    #[test]
    fn a_file_keeps_its_name_in_another_subsystem_and_memory_does_not() {
        let machine = Machine::from_id(Uuid::from_u128(1));
        let none = BTreeSet::new();
        assert_eq!(
            machine.volume("file:/a", "nqn.x", &none),
            machine.volume("file:/a", "nqn.y", &none)
        );
        assert_ne!(
            machine.volume("mem:1G", "nqn.x", &none),
            machine.volume("mem:1G", "nqn.y", &none)
        );
        let other = Machine::from_id(Uuid::from_u128(2));
        assert_ne!(
            machine.volume("file:/a", "nqn.x", &none),
            other.volume("file:/a", "nqn.x", &none)
        );
    }

    #[test]
    fn equal_volumes_get_names_of_their_own() {
        let machine = Machine::from_id(Uuid::from_u128(1));
        let mut used = BTreeSet::new();
        for _ in 0..3 {
            let uuid = machine.volume("mem:1G", "nqn.x", &used);
            assert!(used.insert(uuid));
        }
    }
}
