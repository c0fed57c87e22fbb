//! Layers: namespaces made of other namespaces.
//!
//! ```text
//!   guard      on top of every stack: what the stack below lacks (Compare, Verify, fused pairs,
//!              whole blocks), and read-only access
//!   linear     one namespace after another
//!   multipath  one namespace by several paths
//!   program    several namespaces, put together by a program in eBPF
//!   delay      holds commands back for a time
//!   rate       holds commands back to so many bytes or commands a second
//!   fault      fails commands on purpose, and keeps blocks marked by Write Uncorrectable
//!   volatile   keeps writes until they are flushed, so that a power cut can be played
//! ```

pub mod delay;
pub mod fault;
pub mod guard;
pub mod linear;
pub mod multipath;
pub mod program;
pub mod rate;
pub mod volatile;

pub(crate) mod conflicts;
pub(crate) mod slab;

/// Implements methods of `Namespace` by handing them to the field `child`.
macro_rules! pass_to_child {
    ($($method:ident)*) => { $(pass_to_child!(@ $method);)* };
    (@ refresh) => {
        fn refresh(&self) -> std::io::Result<bool> {
            self.child.refresh()
        }
    };
    (@ resize) => {
        fn resize(&self, bytes: u64) -> std::io::Result<()> {
            self.child.resize(bytes)
        }
    };
    (@ snapshot) => {
        fn snapshot(&self, file: &std::path::Path) -> std::io::Result<()> {
            self.child.snapshot(file)
        }
    };
    (@ flush) => {
        fn flush(&self) -> std::io::Result<()> {
            self.child.flush()
        }
    };
    (@ uuid) => {
        fn uuid(&self) -> Option<[u8; 16]> {
            self.child.uuid()
        }
    };
    (@ keeps_blocks_whole) => {
        fn keeps_blocks_whole(&self) -> bool {
            self.child.keeps_blocks_whole()
        }
    };
    (@ takes_registered) => {
        fn takes_registered(&self) -> bool {
            self.child.takes_registered()
        }
    };
    (@ vectors_pages) => {
        fn vectors_pages(&self) -> u32 {
            self.child.vectors_pages()
        }
    };
    (@ nsid) => {
        fn nsid(&self) -> Option<u32> {
            self.child.nsid()
        }
    };
    (@ paths) => {
        fn paths(&self) -> Vec<crate::PathReport> {
            self.child.paths()
        }
    };
    (@ each_program) => {
        fn each_program(&self, visit: &mut dyn FnMut(&crate::layer::program::Routed)) {
            self.child.each_program(visit);
        }
    };
    (@ numa_node) => {
        fn numa_node(&self) -> Option<u32> {
            self.child.numa_node()
        }
    };
    (@ retry_delays) => {
        fn retry_delays(&self) -> [std::time::Duration; 3] {
            self.child.retry_delays()
        }
    };
    (@ allocation) => {
        fn allocation(
            &self,
            slba: u64,
            blocks: u64,
            runs_max: usize,
        ) -> std::io::Result<Vec<crate::Run>> {
            self.child.allocation(slba, blocks, runs_max)
        }
    };
    (@ tune) => {
        fn tune(&self, name: &str, value: &str) -> std::io::Result<()> {
            self.child.tune(name, value)
        }
    };
    (@ copies_on_threads) => {
        fn copies_on_threads(&self) -> $crate::copy::OnThreads {
            self.child.copies_on_threads()
        }
    };
    (@ destination) => {
        fn destination(
            self: std::sync::Arc<Self>,
            slba: u64,
            blocks: u64,
        ) -> Option<crate::copy::Located> {
            std::sync::Arc::clone(&self.child).destination(slba, blocks)
        }
    };
    (@ last_guard) => {
        fn last_guard(&self) -> Option<u64> {
            self.child.last_guard()
        }
    };
    (@ cut) => {
        fn cut(&self) -> u64 {
            self.child.cut()
        }
    };
    (@ access) => {
        fn access(&self) -> crate::Access {
            self.child.access()
        }
    };
    (@ writes_back) => {
        fn writes_back(&self) -> bool {
            self.child.writes_back()
        }
    };
    (@ write_off) => {
        fn write_off(&self) {
            self.child.write_off();
        }
    };
    (@ gives_checksums) => {
        fn gives_checksums(&self) -> bool {
            self.child.gives_checksums()
        }
    };
    (@ lost) => {
        fn lost(&self) -> crate::Lost {
            self.child.lost()
        }
    };
    (@ volatile_epoch) => {
        fn volatile_epoch(&self) -> u64 {
            self.child.volatile_epoch()
        }
    };
}
pub(crate) use pass_to_child;

use crate::Namespace;
use nvme::Command;
use nvme::opcode::io as opcode;
use std::io;
use std::sync::Arc;

/// Whether an admin command surely leaves the namespace as it is.
pub fn admin_changes_nothing(code: u8) -> bool {
    use nvme::opcode::admin;
    matches!(
        code,
        admin::IDENTIFY | admin::GET_LOG_PAGE | admin::GET_FEATURES | admin::GET_LBA_STATUS
    )
}

/// Gives each of `volumes` that knows a setting its value ([`Namespace::tune`]). An error if none does: the first one's.
pub(crate) fn tune_each<'a>(
    volumes: impl Iterator<Item = &'a Arc<dyn Namespace>>,
    name: &str,
    value: &str,
) -> io::Result<()> {
    let (mut known, mut unknown) = (false, Ok(()));
    for volume in volumes {
        match volume.tune(name, value) {
            Ok(()) => known = true,
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                unknown = unknown.and(Err(error))
            }
            Err(error) => return Err(error),
        }
    }
    if known { Ok(()) } else { unknown }
}

/// Whether a command addresses `block_count` logical blocks from `slba`.
#[inline]
pub(crate) fn addresses_blocks(command: &Command) -> bool {
    matches!(
        command.opcode,
        opcode::READ
            | opcode::WRITE
            | opcode::COMPARE
            | opcode::WRITE_ZEROES
            | opcode::WRITE_UNCORRECTABLE
            | opcode::VERIFY
    )
}
