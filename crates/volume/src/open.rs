//! From a URI to the stack that it names.

use crate::{DEPTH_MAX, Error, Kind, Uri, read_program};
use namespace::device::block::{self, Beside};
use namespace::file::{File, FileOptions, Made, OpenError};
use namespace::layer::delay::Delay;
use namespace::layer::fault::Fault;
use namespace::layer::guard::{Guard, GuardOptions};
use namespace::layer::linear::Linear;
use namespace::layer::multipath::{Multipath, MultipathOptions};
use namespace::layer::program::Routed;
use namespace::layer::rate::Rate;
use namespace::layer::volatile::{CACHE_BYTES, Volatile};
use namespace::memory::{Memory, MemoryOptions};
use namespace::null::Null;
use namespace::{Namespace, percent};
use nvme::limits::Passthrough;
use std::fs;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// What opening a volume depends on beside its URI.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Reactors that will open queues, one at least. With one, memory lends what is read.
    pub cores: usize,
    /// Other servers may have the volume open too, if they say so as well; fused commands are
    /// not offered then.
    pub shared: bool,
    /// Refuse writes, whatever the URI says.
    pub read_only: bool,
    /// It becomes a block device of this machine, which sends nothing but what such have, and whose users
    /// keep apart what overlaps, as with any driver of Linux.
    pub block_device: bool,
    /// Let memory lend what is read where it can.
    pub lend: bool,
    /// Commands that whoever opens the volume makes although nobody here knows them, beside those
    /// that the URI lets pass: of `ngXnY` devices and remote volumes.
    pub passthrough: Passthrough,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            cores: 1,
            shared: false,
            read_only: false,
            block_device: false,
            lend: true,
            passthrough: Passthrough::NONE,
        }
    }
}

/// Opens the volume that `uri` names.
pub fn open(uri: &str, options: &OpenOptions) -> Result<Arc<dyn Namespace>, Error> {
    open_uri(&uri.parse()?, options)
}

/// Opens the volume that `uri` names.
pub fn open_uri(uri: &Uri, options: &OpenOptions) -> Result<Arc<dyn Namespace>, Error> {
    open_all(uri, &Opening { options, made: None })
}

/// The same for somebody who may not want in the end the files that it makes: `made` has them.
pub fn open_uri_making(
    uri: &Uri,
    options: &OpenOptions,
    made: &Arc<Made>,
) -> Result<Arc<dyn Namespace>, Error> {
    open_all(uri, &Opening { options, made: Some(made) })
}

/// How all volumes of a stack are opened.
struct Opening<'a> {
    options: &'a OpenOptions,
    made: Option<&'a Arc<Made>>,
}

impl Deref for Opening<'_> {
    type Target = OpenOptions;

    fn deref(&self) -> &OpenOptions {
        self.options
    }
}

fn open_all(uri: &Uri, options: &Opening<'_>) -> Result<Arc<dyn Namespace>, Error> {
    assert!(options.cores > 0, "somebody has to serve it");
    if uri.depth() > DEPTH_MAX {
        return Err(Error::TooDeep);
    }
    // The guard on top refuses writes where one of the backend's own would below layers.
    let opened = match &uri.kind {
        Kind::Device(_) | Kind::Remote(_) => {
            passing(uri, options, false).map(|child| (child, uri.options.read_only))
        }
        _ => build(uri, options, false).map(|child| (child, false)),
    };
    let (child, refuses_writes) = opened.map_err(|error| in_own_way(uri, error))?;
    let guard = GuardOptions {
        cores: options.cores,
        shared: options.shared,
        read_only: options.read_only || refuses_writes,
        block_device: options.block_device,
        uuid: None,
        in_uri: false,
    };
    Ok(Guard::new(child, guard))
}

/// Where it is the volume itself that has a file already.
fn in_own_way(uri: &Uri, error: Error) -> Error {
    fn count(uri: &Uri, file: (u64, u64)) -> usize {
        let own = matches!(&uri.kind, Kind::File { path, .. } if id(path) == Some(file));
        usize::from(own) + uri.children().iter().map(|child| count(child, file)).sum::<usize>()
    }
    // By whatever name.
    fn id(path: &Path) -> Option<(u64, u64)> {
        fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
    }
    match error {
        Error::File(OpenError::Busy { path, .. })
            if id(&path).is_some_and(|file| count(uri, file) > 1) =>
        {
            Error::Twice { path }
        }
        error => error,
    }
}

/// `is_path`: multipath above sees to what a path has failed.
fn build(uri: &Uri, options: &Opening<'_>, is_path: bool) -> Result<Arc<dyn Namespace>, Error> {
    let below = |child: &Uri| build(child, options, is_path);
    let layer: Arc<dyn Namespace> = match &uri.kind {
        Kind::Memory(bytes) => return memory(uri, *bytes, options),
        Kind::Null(bytes) => return null(uri, *bytes),
        Kind::File { .. } => return file(uri, options, is_path),
        Kind::Device(_) | Kind::Remote(_) => {
            return Ok(guarded(passing(uri, options, is_path)?, uri, options));
        }
        Kind::Linear(children) => {
            Linear::new(children.iter().map(below).collect::<Result<_, _>>()?)?
        }
        Kind::Multipath(tuning, paths) => {
            if paths.iter().filter(|path| path.has_memory()).count() > 1 {
                return Err(Error::MemoryPaths);
            }
            let paths = paths.iter().map(|path| build(path, options, true));
            let paths = paths.collect::<Result<_, _>>()?;
            Multipath::new(paths, MultipathOptions { tuning: tuning.clone(), uri: None, is_path })?
        }
        Kind::Program(path, children) => {
            let children = children.iter().map(below).collect::<Result<_, _>>()?;
            program(path, children, options)?
        }
        Kind::Delay(delays, child) => Delay::new(below(child)?, *delays),
        Kind::Rate(rates, child) => Rate::new(below(child)?, *rates),
        Kind::Fault(rule, child) => Fault::new(below(child)?, rule.clone()),
        Kind::Volatile(bytes, child) => Volatile::new(below(child)?, bytes.unwrap_or(CACHE_BYTES)),
    };
    if !uri.options.read_only && uri.options.uuid.is_none() {
        return Ok(layer);
    }
    // A guard of the layer's own carries its options.
    let guard = GuardOptions {
        cores: options.cores,
        shared: options.shared,
        read_only: uri.options.read_only,
        block_device: options.block_device,
        uuid: uri.options.uuid,
        in_uri: true,
    };
    Ok(Guard::new(layer, guard))
}

/// Opens a backend that passes on what nobody here knows.
fn passing(uri: &Uri, options: &OpenOptions, is_path: bool) -> Result<Arc<dyn Namespace>, Error> {
    match &uri.kind {
        Kind::Device(device) => device.open(uri, options, !is_path),
        Kind::Remote(remote) => remote.open(&uri.options, options.passthrough, is_path),
        _ => unreachable!("those two do"),
    }
}

/// Puts a guard over a backend that passes on what nobody here knows, if nothing is to be written: a
/// descriptor that is open for reading only does not stop root.
fn guarded(child: Arc<dyn Namespace>, uri: &Uri, options: &OpenOptions) -> Arc<dyn Namespace> {
    if !uri.options.read_only {
        return child;
    }
    let guard = GuardOptions {
        cores: options.cores,
        shared: options.shared,
        read_only: true,
        block_device: options.block_device,
        uuid: None,
        in_uri: false,
    };
    Guard::new(child, guard)
}

/// The block size of a backend without a device, as a power of two.
fn block_shift(uri: &Uri, bytes: u64) -> Result<u8, Error> {
    let block_bytes = uri.options.block_bytes.unwrap_or(512);
    let problem = match bytes {
        _ if bytes < u64::from(block_bytes) => "less than one of",
        _ if !bytes.is_multiple_of(u64::from(block_bytes)) => "not a whole number of",
        _ => return Ok(block_bytes.ilog2() as u8),
    };
    Err(Error::Size { uri: uri.to_string(), problem, block_bytes })
}

fn memory(uri: &Uri, bytes: u64, options: &OpenOptions) -> Result<Arc<dyn Namespace>, Error> {
    let memory = Memory::open(MemoryOptions {
        bytes,
        block_shift: block_shift(uri, bytes)?,
        cores: options.cores,
        lend: options.lend,
        uuid: uri.options.uuid,
    });
    match memory {
        Ok(memory) => Ok(memory),
        Err(source) => Err(Error::Memory { uri: uri.to_string(), source }),
    }
}

fn null(uri: &Uri, bytes: u64) -> Result<Arc<dyn Namespace>, Error> {
    match Null::open(bytes, block_shift(uri, bytes)?, uri.options.uuid) {
        Ok(null) => Ok(null),
        Err(source) => Err(Error::Memory { uri: uri.to_string(), source }),
    }
}

/// Puts volumes behind the program in the object file `path`.
fn program(
    path: &Path,
    children: Vec<Arc<dyn Namespace>>,
    options: &OpenOptions,
) -> Result<Arc<Routed>, Error> {
    let unreadable = |source| Error::ProgramFile { path: path.to_owned(), source };
    // Who opens the volume anew by its URI may be in another directory.
    let path = fs::canonicalize(path).map_err(unreadable)?;
    let object = read_program(&path).map_err(unreadable)?;
    Ok(Routed::new(&object, percent::encode(&path), children, options.cores)?)
}

fn file(uri: &Uri, options: &Opening<'_>, is_path: bool) -> Result<Arc<dyn Namespace>, Error> {
    let Kind::File { path, create_bytes, buffered } = &uri.kind else {
        unreachable!("called for files")
    };
    let file = File::open(&FileOptions {
        path: path.clone(),
        create_bytes: *create_bytes,
        block_shift: uri.options.block_bytes.map(|bytes| bytes.ilog2() as u8),
        read_only: uri.options.read_only || options.read_only,
        shared: options.shared,
        buffered: *buffered,
        uuid: uri.options.uuid,
        is_path,
        made: options.made.cloned(),
    })?;
    let beside = Beside { cores: options.cores, retries: !is_path };
    Ok(block::with_copy(file, beside))
}
