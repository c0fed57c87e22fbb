//! The volumes of a copy: each is opened once, however often it is named.

use super::engine::{can_copy, copies};
use super::fresh::Fresh;
use super::layout::{Facts, Layout, Order, Target, Wanted};
use super::plan::why_not_copied;
use super::spec::{Options, Part, Spec};
use crate::daemon::files_of;
use crate::origin;
use crate::patience::{self, Patience};
use anyhow::{Context, Result, anyhow, bail, ensure};
use namespace::Namespace;
use namespace::file::{Made, OpenError};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use volume::{Error, Kind, OpenOptions, Uri};

/// Open volumes, and which of them are meant where.
pub struct Opened {
    /// Goes before the volumes do.
    fresh: Fresh,
    /// The volumes.
    pub volumes: Vec<Arc<dyn Namespace>>,
    sources: Vec<usize>,
    targets: Vec<usize>,
}

/// A volume to be opened.
struct Named {
    /// What tells it from others.
    uri: String,
    /// The last place from which on something is written there; none if it is only read.
    written: Option<u64>,
}

impl Opened {
    /// Opens everything here; with `create`, makes target files that are not there. They are taken away again unless
    /// [`Opened::keep`] is called. A dry run makes none.
    pub fn open(spec: &Spec, create: bool, dry_run: bool, made: Arc<Made>) -> Result<Opened> {
        let mut fresh = Fresh::new(made);
        // The files that are open, with the names of the volumes.
        let mut ours: Vec<(FileId, String)> = Vec::new();
        let opened = Opened::open_with(spec, |uri, written, sources| {
            let mut parsed: Uri = uri.parse()?;
            if let (true, Some(offset)) = (create, written) {
                make(&mut parsed, offset, sources)?;
            }
            if dry_run {
                fresh.imagine(&mut parsed)?;
            }
            let made = fresh.made();
            let options =
                OpenOptions { read_only: written.is_none(), lend: false, ..Default::default() };
            let patience = Patience::new(patience::MOMENT);
            let open = || volume::open_uri_making(&parsed, &options, &made);
            let error = match patience.open(open) {
                Ok(volume) => {
                    let ids = files_of(&parsed).into_iter().filter_map(|(path, _)| file_id(path));
                    ours.extend(ids.map(|id| (id, uri.to_owned())));
                    return Ok(volume);
                }
                Err(error) => error,
            };
            match &error {
                Error::File(OpenError::Missing { path })
                    if written.is_some() && matches!(parsed.kind, Kind::File { .. }) =>
                {
                    bail!("{} does not exist; add --create to make it", path.display())
                }
                // It is ourselves who are in the way.
                Error::File(OpenError::Busy { path, .. }) => {
                    let id = file_id(path);
                    if let Some((_, name)) = ours.iter().find(|(ours, _)| Some(*ours) == id) {
                        bail!("{}", one_volume(name, uri));
                    }
                }
                _ => {}
            }
            let said = error.to_string();
            match fresh.named(said.clone()) {
                named if named != said => bail!(named),
                _ => Err(error.into()),
            }
        })?;
        Ok(Opened { fresh, ..opened })
    }

    /// The files that were made stay.
    pub fn keep(&self) {
        self.fresh.keep();
    }

    /// A volume's URI, as it is or would be.
    pub fn name(&self, volume: usize) -> String {
        self.fresh.named(self.volumes[volume].uri())
    }

    /// Opens everything with `open`, which is given the URI, the offset at which the volume is written if it is, and
    /// how many bytes the sources have once they are open. Sources are opened first.
    pub fn open_with(
        spec: &Spec,
        mut open: impl FnMut(&str, Option<u64>, u64) -> Result<Arc<dyn Namespace>>,
    ) -> Result<Opened> {
        let mut named: Vec<Named> = Vec::new();
        let mut number = |part: &Part, is_target: bool| -> Result<usize> {
            let uri = settled(&part.volume)?;
            let written = is_target.then_some(part.offset);
            if let Some(at) = named.iter().position(|named| named.uri == uri) {
                named[at].written = named[at].written.max(written);
                return Ok(at);
            }
            named.push(Named { uri, written });
            Ok(named.len() - 1)
        };
        let sources = spec.sources.iter().map(|part| number(part, false));
        let sources = sources.collect::<Result<Vec<_>>>()?;
        let targets = spec.targets.iter().map(|part| number(part, true));
        let targets = targets.collect::<Result<Vec<_>>>()?;
        let mut volumes: Vec<Arc<dyn Namespace>> = Vec::with_capacity(named.len());
        for Named { uri, written } in &named {
            let known = spec.sources.iter().zip(&sources).map(|(part, at)| {
                let all = volumes.get(*at).map_or(0, |volume| volume.limits().bytes());
                part.length.unwrap_or(all.saturating_sub(part.offset))
            });
            let volume = open(uri, *written, known.sum())?;
            if let Some(at) = volumes.iter().position(|other| is_one(other, &volume))
                && (written.is_some() || named[at].written.is_some())
            {
                bail!("{}", one_volume(&named[at].uri, uri));
            }
            let at = volumes.len();
            let is_whole = |(part, it): (&Part, &usize)| *it == at && part.length.is_none();
            if spec.sources.iter().zip(&sources).any(is_whole) {
                // Before any target is made.
                check_end(uri, &*volume, "@+LENGTH")?;
            }
            volumes.push(volume);
        }
        Ok(Opened { fresh: Fresh::default(), volumes, sources, targets })
    }

    /// Which bytes go where.
    pub fn layout(&self, spec: &Spec) -> Result<Layout> {
        let identities: Vec<Identity> = self.volumes.iter().map(Identity::of).collect();
        let facts =
            self.volumes.iter().zip(&identities).enumerate().map(|(at, (volume, identity))| {
                let limits = volume.limits();
                let (bytes, block) = (limits.bytes(), limits.block_bytes());
                let mut others = identities.iter().enumerate().filter(|(other, _)| *other != at);
                let twin = others.find(|(_, other)| identity.may_be(other));
                let twins = twin.map(|(other, _)| other.min(at));
                Facts { bytes, block, read_only: limits.read_only, twins }
            });
        let facts: Vec<Facts> = facts.collect();
        let sources = self.sources.iter().zip(&spec.sources);
        let sources: Vec<Wanted> =
            sources.map(|(volume, part)| (*volume, part.offset, part.length)).collect();
        let targets = self.targets.iter().zip(&spec.targets);
        let targets: Vec<Target> =
            targets.map(|(volume, part)| Target { volume: *volume, offset: part.offset }).collect();
        let names: Vec<String> = (0..self.volumes.len()).map(|volume| self.name(volume)).collect();
        let layout = Layout::new(&facts, &names, &sources, &targets, spec.options.pad);
        layout.map_err(|problem| anyhow!(problem))
    }

    /// Whether a volume is copied to another, a target, with Copy commands.
    pub fn is_copied(&self, layout: &Layout, from: usize, to: usize, options: &Options) -> bool {
        let copies = copies(&self.volumes, layout, options);
        let of = &copies[from * layout.targets.len()..];
        layout.targets.iter().zip(of).any(|(target, is)| target.volume == to && *is)
    }

    /// The volume of each source.
    pub fn sources(&self) -> impl Iterator<Item = &Arc<dyn Namespace>> {
        self.sources.iter().map(|at| &self.volumes[*at])
    }

    /// The volume of each target.
    pub fn targets(&self) -> impl Iterator<Item = &Arc<dyn Namespace>> {
        self.targets.iter().map(|at| &self.volumes[*at])
    }

    /// Whether each part can be copied at all, as it is wished.
    pub fn check_means(&self, layout: &Layout, options: &Options) -> Result<()> {
        ensure!(
            layout.order == Order::Free || !options.verify,
            "what is copied overwrites its source: there is nothing to compare it with; leave out --verify"
        );
        for extent in &layout.extents {
            for &Target { volume: written, .. } in &layout.targets {
                let (from, to) = (&self.volumes[extent.volume], &self.volumes[written]);
                let (source, target) = (from.limits(), to.limits());
                if can_copy(&source, &target, options) {
                    continue;
                }
                let (from, to) = (self.name(extent.volume), self.name(written));
                if options.fast_only {
                    let why = why_not_copied(&source, &target);
                    bail!(
                        "{from} and {to} can only be read and written ({why}): leave out --fast-only"
                    );
                }
                ensure!(
                    source.metadata_bytes == 0 && target.metadata_bytes == 0,
                    "{from} and {to}: blocks with metadata of {} and {} bytes can only be copied by Copy commands",
                    source.metadata_bytes,
                    target.metadata_bytes
                );
            }
        }
        Ok(())
    }
}

/// Device and inode.
type FileId = (u64, u64);

/// What tells a file from others, by whatever path.
fn file_id(path: &Path) -> Option<FileId> {
    path.metadata().ok().map(|found| (found.dev(), found.ino()))
}

fn one_volume(one: &str, other: &str) -> String {
    format!("{one} and {other} are one volume: name it the same way both times")
}

/// What tells a volume from others: its URI, whatever the current directory is. Served volumes are named
/// otherwise.
fn settled(volume: &str) -> Result<String> {
    match volume.starts_with(SERVED) {
        true => Ok(volume.to_owned()),
        false => origin::settled(volume),
    }
}

/// Refuses a file that is to be read to its end and has bytes behind its last whole block: no volume shows them.
pub fn check_end(uri: &str, volume: &dyn Namespace, length: &str) -> Result<()> {
    // Volumes of the daemon have other names.
    let Ok(Uri { kind: Kind::File { path, .. }, .. }) = uri.parse() else { return Ok(()) };
    let Ok(metadata) = fs::metadata(&path) else { return Ok(()) };
    let block = volume.limits().block_bytes();
    let left = metadata.len() % u64::from(block);
    ensure!(
        !metadata.is_file() || left == 0,
        "{}: the last {left} bytes are no whole block of {block} bytes, and would be left out: make the file longer, \
         name smaller blocks (?bs=512) or say how much is wanted ({length})",
        path.display()
    );
    Ok(())
}

/// Whether both surely are one volume, as far as their first blocks tell.
fn is_one(one: &Arc<dyn Namespace>, other: &Arc<dyn Namespace>) -> bool {
    let located = |volume: &Arc<dyn Namespace>| Arc::clone(volume).origin(0, 1);
    let Some((here, there)) = located(one).zip(located(other)) else {
        return Arc::ptr_eq(one, other);
    };
    here.origin.keeper() == there.origin.keeper() && here.slba == there.slba
}

/// What a volume has in common with the same one under another name.
struct Identity {
    uuid: Option<[u8; 16]>,
    /// The namespace of this machine, `nvme0n1`, whether its block device or its character device was named.
    device: Option<String>,
}

impl Identity {
    fn of(volume: &Arc<dyn Namespace>) -> Identity {
        let path = match volume.uri().parse().map(|uri: Uri| uri.kind) {
            Ok(Kind::File { path, .. }) => Some(path),
            Ok(Kind::Device(device)) => Some(device.path),
            _ => None,
        };
        let path = path.and_then(|path| fs::canonicalize(path).ok());
        Identity { uuid: volume.uuid(), device: path.and_then(|path| namespace_of(&path)) }
    }

    fn may_be(&self, other: &Identity) -> bool {
        let same = |one: &Option<_>, other| one.is_some() && *one == other;
        same(&self.uuid, other.uuid) || self.device.is_some() && self.device == other.device
    }
}

/// The namespace behind `/dev/nvme0n1` or `/dev/ng0n1`.
fn namespace_of(path: &Path) -> Option<String> {
    let name = path.strip_prefix("/dev").ok()?.to_str()?;
    let number = name.strip_prefix("nvme").or_else(|| name.strip_prefix("ng"))?;
    number.starts_with(|first: char| first.is_ascii_digit()).then(|| format!("nvme{number}"))
}

/// Begins the name of a volume that a daemon serves: `served:2`, `served:NQN/2`.
pub const SERVED: &str = "served:";

/// Has a file made that is not there.
fn make(uri: &mut Uri, offset: u64, bytes: u64) -> Result<()> {
    let block = u64::from(uri.options.block_bytes.unwrap_or(512));
    if let Kind::File { path, create_bytes, .. } = &mut uri.kind
        && create_bytes.is_none()
        && !path.exists()
    {
        let size = offset.checked_add(bytes).context("the target would be too large")?;
        *create_bytes = Some(size.next_multiple_of(block).max(block));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_of_a_namespace_are_one() {
        let name = |path| namespace_of(Path::new(path));
        assert_eq!(name("/dev/ng0n12"), Some("nvme0n12".into()));
        assert_eq!(name("/dev/nvme0n12"), name("/dev/ng0n12"));
        assert_ne!(name("/dev/nvme0n1p1"), name("/dev/ng0n1"));
        for other in
            ["/dev/nvme-fabrics", "/dev/sda", "/dev/ngx", "/srv/nvme0n1", "/dev/disk/nvme0n1"]
        {
            assert_eq!(name(other), None, "{other}");
        }
    }

    #[test]
    fn volumes_of_one_uuid_may_be_one() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let uuid = "00112233-4455-6677-8899-aabbccddeeff";
        let (source, target) =
            (format!("{}?uuid={uuid}", a.display()), format!("{}?uuid={uuid}", b.display()));
        let part = |volume: &str, offset, length| Part { volume: volume.into(), offset, length };
        for path in [&a, &b] {
            fs::File::create(path).unwrap().set_len(1 << 20).unwrap();
        }
        let laid = |target: &str, offset| {
            let spec = Spec {
                sources: vec![part(&source, 0, Some(1 << 19))],
                targets: vec![part(target, offset, None)],
                options: Options::default(),
            };
            Opened::open(&spec, false, false, Arc::default()).unwrap().layout(&spec).map(|_| ())
        };
        let line = laid(&target, 4096).unwrap_err().to_string();
        assert!(line.contains("are one namespace"), "{line}");
        laid(&target, 0).unwrap();
        laid(&b.display().to_string(), 4096).unwrap();
    }
}
