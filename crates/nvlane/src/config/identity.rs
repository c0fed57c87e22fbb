//! Names that hosts remember, derived so that they are the same after every restart.
//!
//! A name that nobody gave is a version 5 UUID (RFC 9562, 5.5) of this machine's id and of what
//! is named. Given or derived, it is then part of the saved configuration.

use host::NVLANE;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use uuid::Uuid;
use volume::Uri;

/// This machine, as the root of derived names.
#[derive(Clone, Copy, Debug)]
pub struct Machine(Uuid);

impl Machine {
    /// Takes systemd's or D-Bus' machine id; where there is none (containers), a random id that
    /// is kept in `data_dir`.
    pub fn find(data_dir: &Path) -> io::Result<Machine> {
        let id = host::machine_id().map_or_else(|| keep(&kept_in(data_dir)), Ok)?;
        Ok(Machine::from_id(id))
    }

    /// The same without keeping anything; None where nothing was kept yet.
    pub fn known(data_dir: &Path) -> Option<Machine> {
        let kept = || kept(&kept_in(data_dir)).ok().flatten();
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
        self.volume_by(&identifying(uri), nqn, used)
    }

    /// The same by the whole URI, as earlier versions of this program derived it.
    #[cfg(test)]
    pub fn volume_of_before(&self, uri: &str, nqn: &str, used: &BTreeSet<Uuid>) -> Uuid {
        self.volume_by(uri, nqn, used)
    }

    fn volume_by(&self, uri: &str, nqn: &str, used: &BTreeSet<Uuid>) -> Uuid {
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

/// What of a volume's URI counts for the names that are derived from it; all of it where nothing else is in it.
pub fn identifying(uri: &str) -> String {
    let reduced = uri.parse().ok().and_then(|whole: Uri| {
        let reduced = whole.identifying();
        (reduced != whole).then(|| reduced.to_string())
    });
    reduced.unwrap_or_else(|| uri.to_owned())
}

/// Where the id of a machine is kept that has none.
fn kept_in(data_dir: &Path) -> PathBuf {
    data_dir.join("machine-id")
}

/// The id that is kept at `path`. One that somebody else has kept there is taken, and never replaced: names that
/// hosts remember depend on it.
fn keep(path: &Path) -> io::Result<Uuid> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    if let Some(id) = kept(path).map_err(named)? {
        return Ok(id);
    }
    make(path).map_err(named)?;
    let made = kept(path).and_then(|made| made.ok_or_else(|| ErrorKind::NotFound.into()));
    made.map_err(named)
}

/// What is kept at `path`; none where there is nothing. What is there and cannot be read is an error.
fn kept(path: &Path) -> io::Result<Option<Uuid>> {
    match fs::read_to_string(path) {
        Ok(text) => match Uuid::try_parse(text.trim()) {
            Ok(id) => Ok(Some(id)),
            Err(_) => Err(io::Error::new(
                ErrorKind::InvalidData,
                "is no machine id (32 hexadecimal digits): write the one that it was, or remove it, which gives \
                 volumes other UUIDs",
            )),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes a random id, durable and whole, unless another server has made one meanwhile.
fn make(path: &Path) -> io::Result<()> {
    let directory = path.parent().expect("it is in the data directory");
    let mut file = tempfile::Builder::new().prefix("machine-id.").tempfile_in(directory)?;
    writeln!(file, "{}", Uuid::new_v4().simple())?;
    file.as_file().sync_all()?;
    match file.persist_noclobber(path) {
        Err(error) if error.error.kind() != ErrorKind::AlreadyExists => return Err(error.error),
        _ => {}
    }
    File::open(directory)?.sync_all()
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

    /// As they were before options were left out: nobody is renamed who has none of these.
    #[test]
    fn names_without_such_options_stay() {
        let machine = Machine::from_id(Uuid::from_u128(1));
        let none = BTreeSet::new();
        for (uri, volume, nqn) in [
            (
                "file:/srv/a.img",
                "8be38b74-f9f9-5624-bfbf-14b45eb8496f",
                "69aee2e9-e0e0-50f2-8692-bed4a3971bb8",
            ),
            (
                "file:/srv/a.img?bs=4096",
                "377e4610-ce67-5556-88c9-26d0d80f5ac0",
                "c27159a7-6e48-5eac-bc38-1c1b0741a054",
            ),
            (
                "file:/dev/sda?bs=512",
                "c455111c-46eb-52c9-ba3b-28a5f4081388",
                "b8b705b4-9d83-5a67-a52a-57b4fa75fca1",
            ),
            (
                "mem:1G?bs=512",
                "6c8a1ebd-5f67-53d1-a56a-435a8fa430e6",
                "0adb5de5-0f8c-526b-8484-f2ddea4e49bc",
            ),
            (
                "nvme:/dev/ng0n1",
                "558e581c-e836-5828-9fea-4bd184ecc363",
                "044d47a3-9a1c-5f19-ab09-0c71cd7a30ce",
            ),
            (
                "tcp://192.0.2.1:4420,192.0.2.2:4420/nqn.r?ns=2",
                "d567d192-a185-5ee4-b1ac-ed0e3b1fd5d8",
                "57643d7d-b413-5fd3-ab29-e06c0fc8eaff",
            ),
            (
                "tcp://192.0.2.1:4420/nqn.r?ns=2&hostnqn=nqn.h",
                "30f81bc5-f2bd-578e-a62d-acd12563b9c8",
                "b52b5304-057c-58c6-bcca-4cf8bb0be99f",
            ),
            (
                "linear:(file:/a?bs=512,file:/b?bs=512)",
                "9339712c-3eda-5c27-b6c9-136b00963d5e",
                "f60bc302-9ac6-5b2d-9dc1-d39498c8c8cd",
            ),
            (
                "rate:1G(delay:1ms(file:/a?bs=512))",
                "fdf5b35d-156c-5c57-947a-a12415b39528",
                "2c49ea4e-4b27-5676-a113-f5c9a3e181bd",
            ),
            (
                "bpf:/p.bpf.o(file:/a?bs=512,file:/b?bs=512)",
                "d0438446-ad86-5542-85f7-dd700250c377",
                "eb1b02af-6f79-5cf8-b838-dc4c563c5977",
            ),
            (
                "file:/a?bs=512&uuid=00000000-0000-0000-0000-000000000002",
                "83e86fab-e58e-576f-99ca-112ba1a4a281",
                "79e5fbfb-3e3c-5a60-9bbe-968c8f5b6d41",
            ),
        ] {
            assert_eq!(identifying(uri), uri);
            assert_eq!(machine.volume(uri, "nqn.x", &none).to_string(), volume, "{uri}");
            assert_eq!(machine.volume_of_before(uri, "nqn.x", &none).to_string(), volume, "{uri}");
            assert_eq!(machine.nqn(uri), format!("nqn.2014-08.org.nvmexpress:uuid:{nqn}"), "{uri}");
        }
    }

    #[test]
    fn how_a_volume_is_opened_is_not_in_its_name() {
        for (uri, counts) in [
            ("file:/a?create&size=1G&buffered&bs=512&ro", "file:/a?bs=512"),
            ("nvme:/dev/ng0n1?hybrid&timeout=5s&passthrough=io&ro", "nvme:/dev/ng0n1"),
            ("nvme:/dev/ng0n1?poll&sqpoll=1&sqpoll_idle=1s", "nvme:/dev/ng0n1"),
            (
                "tcp://h:1,h:2/nqn.r?ns=2&hostnqn=nqn.h&hostid=00000000-0000-0000-0000-000000000003\
                 &dhchap_key=/k&dhchap_ctrl_key=/c&host_iface=eth0&hdr_digest&data_digest&queue_size=64\
                 &keep_alive_tmo=1s&reconnect_delay=1s&ctrl_loss_tmo=-1&fast_io_fail_tmo=1s\
                 &io_timeout=1s&connect_timeout=1s&quiesce_time=2s&disable_sqflow=0&failover=fast&policy=numa\
                 &passthrough=io+admin&ro",
                "tcp://h:1,h:2/nqn.r?ns=2&hostnqn=nqn.h&hostid=00000000-0000-0000-0000-000000000003",
            ),
            ("discovery://h:8009/nqn.r?ns=1&queue_size=64", "discovery://h:8009/nqn.r?ns=1"),
            (
                "linear:(file:/b?ro,file:/a?create&size=1M,mem:1M)?ro",
                "linear:(file:/b,file:/a,mem:1M)",
            ),
            ("multipath:policy=numa(file:/a?ro,file:/b)", "multipath:(file:/a,file:/b)"),
            ("bpf:/p.o(file:/a?buffered,file:/b)?ro", "bpf:/p.o(file:/a,file:/b)"),
            ("delay:1ms(rate:1G(file:/a?ro))", "delay:1ms(rate:1G(file:/a))"),
        ] {
            assert_eq!(identifying(uri), counts);
        }
        assert_eq!(identifying("wat:1G?ro"), "wat:1G?ro");
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
    fn servers_that_start_at_once_keep_one_id() {
        let folder = tempfile::tempdir().unwrap();
        let path = kept_in(folder.path());
        let all = std::sync::Barrier::new(8);
        let ids: BTreeSet<Uuid> = std::thread::scope(|scope| {
            let start = || {
                all.wait();
                keep(&path).unwrap()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(ids.len(), 1, "{ids:?}");
        assert_eq!(keep(&path).unwrap(), *ids.first().unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn an_id_that_cannot_be_read_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = kept_in(folder.path());
        for text in ["", "who knows"] {
            fs::write(&path, text).unwrap();
            let said = keep(&path).unwrap_err().to_string();
            assert!(said.contains("machine-id") && said.contains("no machine id"), "{said}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        // By a name that leads nowhere nothing is to be read, and there is something all the same.
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("nowhere", &path).unwrap();
        assert_eq!(keep(&path).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(path.is_symlink());
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
