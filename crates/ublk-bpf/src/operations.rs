//! Operations of a ring (`struct io_uring_bpf_ops`), made for one ring after the other with the same program.
//!
//! libbpf makes one set of operations for each that an object has, when it loads that. Here the program is there already, and
//! verified; each ring has a map of its own with it.

use crate::error::Error;
use crate::object::{NAME, io_error};
use libbpf_rs::btf::types::{MemberAttr, Struct};
use libbpf_rs::btf::{Btf, HasSize};
use libbpf_rs::libbpf_sys::{BPF_F_LINK, BPF_STRUCT_OPS, bpf_link_create, bpf_map_create_opts};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::OnceLock;

/// The kernel's structure without which there is nothing, and the value of a map that has it.
const OPERATIONS: &str = "io_uring_bpf_ops";
const VALUE: &str = "bpf_struct_ops_io_uring_bpf_ops";

/// Where things are in the value of such a map, in this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The number of the value's type.
    number: u32,
    bytes: u32,
    /// The function, as the descriptor of a program: 8 bytes.
    step_at: usize,
    /// The ring's descriptor: 4 bytes.
    ring_at: usize,
}

impl Layout {
    /// This kernel's.
    ///
    /// # Errors
    /// [`Error::Kernel`]: its rings have none.
    pub fn of_kernel() -> Result<Layout, Error> {
        // Each load asks, and the kernel's types are some 100,000.
        static FOUND: OnceLock<Option<Layout>> = OnceLock::new();
        let found = match FOUND.get() {
            Some(found) => *found,
            // That they could not be read may be otherwise the next time.
            None => match Btf::from_vmlinux() {
                Ok(types) => *FOUND.get_or_init(|| Layout::among(&types)),
                Err(_) => None,
            },
        };
        found.ok_or(Error::Kernel)
    }

    fn among(types: &Btf<'_>) -> Option<Layout> {
        let operations = types.type_by_name::<Struct<'_>>(OPERATIONS)?;
        let value = types.type_by_name::<Struct<'_>>(VALUE)?;
        let data = place(&value, "data")?;
        let (step, ring) = (place(&operations, "loop_step")?, place(&operations, "ring_fd")?);
        let bytes = value.size();
        let fits = data + step + 8 <= bytes && data + ring + 4 <= bytes;
        fits.then_some(Layout {
            number: value.type_id().into(),
            bytes: bytes as u32,
            step_at: data + step,
            ring_at: data + ring,
        })
    }

    /// What is to be in the map.
    fn value(&self, program: RawFd, ring: RawFd) -> Vec<u8> {
        let mut value = vec![0; self.bytes as usize];
        value[self.step_at..][..8].copy_from_slice(&(program as u64).to_ne_bytes());
        value[self.ring_at..][..4].copy_from_slice(&ring.to_ne_bytes());
        value
    }
}

/// Where a member is, in bytes.
fn place(of: &Struct<'_>, name: &str) -> Option<usize> {
    let member = of.iter().find(|member| member.name.is_some_and(|it| it == name))?;
    match member.attr {
        MemberAttr::Normal { offset } => Some(offset as usize / 8),
        MemberAttr::BitField { .. } => None,
    }
}

/// Operations for one ring.
#[derive(Debug)]
pub struct Operations(MapHandle);

impl Operations {
    /// Has `program` be what `ring` does from when they are attached. The kernel wants to see `types`, whatever they
    /// are, with a map whose value is of a type of its own.
    pub fn new(
        layout: &Layout,
        program: BorrowedFd<'_>,
        types: BorrowedFd<'_>,
        ring: RawFd,
    ) -> io::Result<Operations> {
        let options = bpf_map_create_opts {
            sz: size_of::<bpf_map_create_opts>() as u64,
            btf_fd: types.as_raw_fd() as u32,
            btf_vmlinux_value_type_id: layout.number,
            map_flags: BPF_F_LINK,
            ..bpf_map_create_opts::default()
        };
        let map = MapHandle::create(MapType::StructOps, Some(NAME), 4, layout.bytes, 1, &options)
            .map_err(|error| io_error(&error))?;
        let value = layout.value(program.as_raw_fd(), ring);
        map.update(&0_u32.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(|error| io_error(&error))?;
        Ok(Operations(map))
    }

    /// From here on the ring does nothing else, until what is returned is closed.
    pub fn attach(&self) -> io::Result<OwnedFd> {
        let map = self.0.as_fd().as_raw_fd();
        // SAFETY: a system call's wrapper: a descriptor that is open, no target, no options.
        let link = unsafe { bpf_link_create(map, 0, BPF_STRUCT_OPS, ptr::null()) };
        if link < 0 {
            return Err(io::Error::from_raw_os_error(-link));
        }
        // SAFETY: a new descriptor that is nobody else's.
        Ok(unsafe { OwnedFd::from_raw_fd(link) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_the_program_and_the_ring() {
        let layout = Layout { number: 7, bytes: 88, step_at: 64, ring_at: 72 };
        let value = layout.value(0x0102, 0x0304);
        assert_eq!(value.len(), 88);
        let set: Vec<(usize, u8)> =
            value.iter().copied().enumerate().filter(|(_, byte)| *byte != 0).collect();
        let (program, ring) = (0x0102_u64.to_ne_bytes(), 0x0304_u32.to_ne_bytes());
        assert_eq!((&value[64..72], &value[72..76]), (&program[..], &ring[..]));
        assert_eq!(set.len(), 4);
    }
}
