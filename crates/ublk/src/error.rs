//! What may go wrong with a device.

use crate::control::ControlError;
use crate::driver::DEPTH_MAX;
use crate::path::PathError;
use std::io;
use std::path::PathBuf;

/// Why a device cannot be made, taken over or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The driver.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The way of data.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// A core could not be made.
    #[error(transparent)]
    Reactor(#[from] reactor::Error),
    /// The device's node cannot be opened.
    #[error("cannot open {}: {source}", path.display())]
    Node {
        /// `/dev/ublkcN`.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A queue cannot be served.
    #[error("queue {queue}: {source}")]
    Queue {
        /// Which.
        queue: u16,
        /// Why.
        source: io::Error,
    },
    /// A number of requests or queues that there cannot be.
    #[error("{0} requests in flight: give 1 to {DEPTH_MAX}, and at least one queue")]
    Depth(u16),
    /// A device of somebody who is not root, such as there is none.
    #[error("devices of users other than root {0}")]
    NotRoot(&'static str),
    /// A zoned volume that cannot be a device.
    #[error("a zoned volume {0}")]
    Zoned(&'static str),
    /// A queue cannot have several threads.
    #[error("several threads per queue {0}")]
    Threads(&'static str),
    /// Requests cannot come and go many at a time.
    #[error("batches {0}")]
    Batch(&'static str),
    /// Nothing to take over.
    #[error("/dev/ublkb{id} {why}")]
    NotRecoverable {
        /// The device.
        id: u32,
        /// Why.
        why: &'static str,
    },
    /// The volume is another one.
    #[error("/dev/ublkb{id} was made for another volume: {what}")]
    Mismatch {
        /// The device.
        id: u32,
        /// What differs.
        what: String,
    },
    /// The volume could not be made durable.
    #[error("cannot flush {volume}: {source}")]
    Flush {
        /// Its URI.
        volume: String,
        /// Why.
        source: io::Error,
    },
    /// The program was to run in the kernel.
    #[error("the program cannot run in the kernel: {0}")]
    NotInKernel(String),
    /// The next server would not know what to serve.
    #[error("cannot note what /dev/ublkb{id} is served from: {source}")]
    Unnoted {
        /// The device.
        id: u32,
        /// Why.
        source: io::Error,
    },
    /// The next server would not find the program's maps, or those of another one.
    #[error(transparent)]
    Kept(ublk_bpf::Error),
    /// The server's side ended by itself.
    #[error("the driver ended the device: {0}")]
    Ended(#[source] io::Error),
}
