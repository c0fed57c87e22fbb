//! Who may give out which controller ids, where several servers share a volume.
//!
//! The controllers of one subsystem have ids that differ, on whichever server they are (NVMe Base 2.1, 3.1.2). Servers
//! that share a file say so by locks on it, far beyond what it can hold: byte n after a place that the subsystem's NQN
//! gives is locked by whoever gives out controller id n. The kernel lets go of the locks of a killed server.
//!
//! ```text
//!   0 ........ data ........   2^62 + 2^16 * hash(NQN): [ids of one server][ids of another]
//! ```
//!
//! Machines that share a disk do not see each other's locks. There are none where locks of whole files are made of
//! locks on bytes, since then nobody could share the file: on NFS, whose server would take ours for a lock on the
//! volume, and wherever the kernel shows the volume's own lock as one.

use super::twice::{files_of, identity};
use crate::config::ControllerIds;
use crate::patience::Patience;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use volume::Uri;

/// Where locks begin: no file is that long.
const BASE: u64 = 1 << 62;
/// Bits of a hash that tell subsystems apart.
const HASH_BITS: u32 = 45;

/// Why a range of controller ids cannot be claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another server has some of them.
    #[error("{} is already served as {nqn} by another process, with controller ids of {ids}; give each server a range \
        of its own, as in --cntlid 1-1000 and --cntlid 1001-2000", path.display())]
    Taken {
        /// The file.
        path: PathBuf,
        /// The subsystem.
        nqn: String,
        /// The ids that were to be claimed.
        ids: ControllerIds,
    },
    /// The kernel said something else.
    #[error("{}: cannot lock controller ids: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

/// The claims of this server: for each subsystem and file, by identity, the locks and who needs them.
#[derive(Debug, Default)]
pub struct Claims {
    held: BTreeMap<(String, PathBuf), Held>,
}

/// A descriptor that has locks, and the namespaces that they are for.
#[derive(Debug)]
struct Held {
    _file: File,
    nsids: BTreeSet<u32>,
}

impl Claims {
    /// Claims `ids` of the subsystem `nqn` on every file that `volume`, its namespace `nsid`, writes to; all or none.
    pub fn take(
        &mut self,
        nqn: &str,
        nsid: u32,
        volume: &str,
        ids: ControllerIds,
    ) -> Result<(), ClaimError> {
        let Ok(uri) = volume.parse::<Uri>() else { return Ok(()) };
        let mut taken = BTreeMap::new();
        let mut known = Vec::new();
        for (path, _) in files_of(&uri).into_iter().filter(|(_, read_only)| !read_only) {
            let key = (nqn.to_owned(), identity(path));
            if self.held.contains_key(&key) || taken.contains_key(&key) {
                known.push(key);
            } else if let Some(file) = claim(path, nqn, ids)? {
                taken.insert(key, Held { _file: file, nsids: BTreeSet::from([nsid]) });
            }
        }
        self.held.append(&mut taken);
        for key in known {
            self.held.get_mut(&key).expect("it is held").nsids.insert(nsid);
        }
        Ok(())
    }

    /// The same of ids that somebody who is gone may still have.
    pub fn wait(
        &mut self,
        patience: &Patience,
        nqn: &str,
        nsid: u32,
        volume: &str,
        ids: ControllerIds,
    ) -> Result<(), ClaimError> {
        let is_taken = |error: &_| matches!(error, ClaimError::Taken { .. });
        patience.wait(|| self.take(nqn, nsid, volume, ids), is_taken)
    }

    /// A namespace needs its claims no more.
    pub fn release(&mut self, nqn: &str, nsid: u32) {
        self.held.retain(|(of, _), held| {
            *of != nqn || !held.nsids.remove(&nsid) || !held.nsids.is_empty()
        });
    }
}

/// A descriptor that has the locks; None where there cannot be any.
fn claim(path: &Path, nqn: &str, ids: ControllerIds) -> Result<Option<File>, ClaimError> {
    let failed = |source| ClaimError::Io { path: path.to_owned(), source };
    let taken = || ClaimError::Taken { path: path.to_owned(), nqn: nqn.to_owned(), ids };
    let unknown = || {
        tracing::warn!(
            "{}: its file system has no locks on bytes beside those on files, so nobody checks that no \
             other server gives out controller ids of {ids}",
            path.display()
        );
        Ok(None)
    };
    // No claim where there are no such locks; the error if it says anything else.
    let no_locks = |error: io::Error| match error.raw_os_error() {
        Some(libc::ENOLCK | libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => unknown(),
        _ => Err(failed(error)),
    };
    // A descriptor of its own: as another server's would, it meets the lock that the volume has on the whole file.
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
    if is_on_nfs(&file) {
        return unknown();
    }
    let wanted = lock_of(nqn, ids);
    let mut found = wanted;
    // SAFETY: the descriptor is open and the kernel fills `found`, which outlives the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut found) } != 0 {
        return no_locks(io::Error::last_os_error());
    }
    match i32::from(found.l_type) {
        libc::F_UNLCK => {}
        libc::F_RDLCK => return unknown(),
        _ => return Err(taken()),
    }
    // SAFETY: the descriptor is open and `wanted` outlives the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const wanted) } == 0 {
        return Ok(Some(file));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // Somebody came first, at this moment.
        Some(libc::EAGAIN | libc::EACCES) => Err(taken()),
        _ => no_locks(error),
    }
}

fn is_on_nfs(file: &File) -> bool {
    // SAFETY: all zeroes is a valid statfs, which the kernel fills.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `about` outlives the call.
    let known = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut about) } == 0;
    known && about.f_type == libc::NFS_SUPER_MAGIC
}

fn lock_of(nqn: &str, ids: ControllerIds) -> libc::flock {
    let start = BASE + (hash(nqn) >> (u64::BITS - HASH_BITS) << 16) + u64::from(ids.min);
    libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start as i64,
        l_len: i64::from(ids.max - ids.min) + 1,
        // As these locks want it.
        l_pid: 0,
    }
}

/// FNV-1a, which is the same in every version of this program.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NQN: &str = "nqn.2026-11.com.example:a";

    fn made() -> (tempfile::TempDir, String) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.img");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let path = path.display().to_string();
        (directory, path)
    }

    fn ids(text: &str) -> ControllerIds {
        text.parse().unwrap()
    }

    /// What a server would be told that comes after `held`.
    fn another(nqn: &str, path: &str, range: &str) -> Result<Claims, ClaimError> {
        let mut claims = Claims::default();
        claims.take(nqn, 1, path, ids(range)).map(|()| claims)
    }

    #[test]
    fn ranges_that_meet_are_refused_and_others_are_not() {
        let (_directory, path) = made();
        let first = another(NQN, &path, "10-20").unwrap();
        for range in ["1-9", "21-65519", "21-21"] {
            another(NQN, &path, range).unwrap();
        }
        for range in ["1-10", "20-30", "12-12", "1-65519"] {
            let said = another(NQN, &path, range).unwrap_err().to_string();
            assert!(said.contains(range) && said.contains(NQN) && said.contains(&path), "{said}");
        }
        // Controllers of another subsystem have ids of their own.
        another("nqn.2026-11.com.example:b", &path, "10-20").unwrap();
        drop(first);
        another(NQN, &path, "1-10").unwrap();
    }

    #[test]
    fn every_file_of_a_volume_is_claimed() {
        let (_directory, path) = made();
        let (_other, second) = made();
        let _first = another(NQN, &format!("linear:({path},{second})"), "1-9").unwrap();
        another(NQN, &second, "9-9").unwrap_err();
        another(NQN, &format!("{second}?ro"), "9-9").unwrap();
    }

    #[test]
    fn what_cannot_be_claimed_whole_is_not_claimed_in_part() {
        let (_directory, path) = made();
        let (_other, second) = made();
        let _first = another(NQN, &second, "5-5").unwrap();
        let mut claims = Claims::default();
        claims.take(NQN, 1, &format!("linear:({path},{second})"), ids("1-9")).unwrap_err();
        another(NQN, &path, "1-9").unwrap();
    }

    #[test]
    fn a_server_does_not_stand_in_its_own_way_and_keeps_what_it_uses() {
        let (directory, path) = made();
        let mut claims = another(NQN, &path, "1-9").unwrap();
        claims.take(NQN, 2, &format!("delay:1ms({path})"), ids("1-9")).unwrap();
        // Under another name it is the same file.
        let moved = directory.path().join("b.img").display().to_string();
        std::fs::rename(&path, &moved).unwrap();
        for nsid in [7, 1] {
            claims.release(NQN, nsid);
            claims.release("nqn.2026-11.com.example:b", 2);
            another(NQN, &moved, "1-1").unwrap_err();
        }
        claims.release(NQN, 2);
        another(NQN, &moved, "1-1").unwrap();
    }

    /// As where a lock of a whole file is one on its bytes.
    #[test]
    fn where_files_are_locked_by_their_bytes_nothing_is_claimed() {
        let (_directory, path) = made();
        let reader = File::open(&path).unwrap();
        let mut whole = lock_of(NQN, ids("1-1"));
        (whole.l_type, whole.l_start, whole.l_len) = (libc::F_RDLCK as i16, 0, 0);
        // SAFETY: the descriptor is open and the lock outlives the call.
        let locked =
            unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_OFD_SETLK, &raw const whole) };
        assert_eq!(locked, 0);
        let first = another(NQN, &path, "1-9").unwrap();
        assert!(first.held.is_empty());
        another(NQN, &path, "1-9").unwrap();
        drop(reader);
        let _first = another(NQN, &path, "1-9").unwrap();
        another(NQN, &path, "1-9").unwrap_err();
    }

    #[test]
    fn a_lock_lies_within_what_an_offset_can_be() {
        for nqn in ["", NQN, "nqn.2014-08.org.nvmexpress:uuid:ffffffff-ffff-ffff-ffff-ffffffffffff"]
        {
            let lock = lock_of(nqn, ControllerIds::ALL);
            assert!(lock.l_start >= BASE as i64 && lock.l_start.checked_add(lock.l_len).is_some());
        }
    }
}
