//! The ublk server: any [`namespace::Namespace`] as a block device of this machine's kernel.
//!
//! ```text
//!   /dev/ublkbN: the kernel's block layer
//!        |  each queue on one thread, or on several that share its requests
//!        v
//!   QueueServer --fetch, commit--> /dev/ublkcN   (io_uring commands on the core's own ring)
//!     Tags: what is next for each request        copy       the driver copies, to the tag's memory
//!        |                                       user copy  we copy, to and from memory of the pool
//!        v                                       zero copy  the pages are registered with the ring
//!   namespace::Queue::submit ... completed --> commit
//!
//!   kernel::run: where the volume is a program, the kernel may serve the queue by itself (ublk-bpf)
//!
//!   Control --> /dev/ublk-control: add, start, stop, delete, take over, resize
//! ```
//!
//! Requests are of sectors and become NVMe commands of blocks ([`Shape::translate`]); the device's
//! limits are the volume's, so that no request has to be split. What is next for a request is
//! decided by [`Tags`], which knows neither ring nor clock.
//!
//! What it does not do: zones of volumes that are not one NVMe device, metadata.
//!
//! Bounds: [`driver::DEPTH_MAX`] requests per queue, 1 MiB per request. A command that may be tried
//! again is, five times, within a third of a second; volumes with paths have done so before.

mod batch;
mod control;
mod descriptors;
mod device;
pub mod driver;
mod errno;
mod error;
mod features;
mod kernel;
mod parameters;
mod path;
mod plain;
mod queue;
mod recovery;
mod tags;
mod threads;
mod translate;
mod zoned;

pub use control::{CONTROL_PATH, Control, ControlError, Taken};
pub use device::{Device, DeviceOptions, Ending, Wake};
pub use error::Error;
pub use features::{Feature, Features, KNOWN};
pub use kernel::{ProgramPlace, Runs, check_length, comes_in_batches, place_and_reason};
pub use path::{DataPath, PathError};
pub use recovery::{await_end, quiesce, waits_for_server};
pub use tags::{Carries, Step, Tags};
pub use translate::{Shape, Transfer, Work};
pub use zoned::Zones;
