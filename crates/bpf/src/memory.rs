//! Addresses as programs have them, and what they lead to.
//!
//! ```text
//!   63        32 31         0
//!   |  region   |  offset   |      0       nothing: a null pointer, or a number taken for one
//!                                  1       the stack
//!                                  2       the context: the request
//!                                  16 + n  the values of map n
//!                                  2^31 + n  map n itself, for helpers only
//! ```
//!
//! Arithmetic on a pointer can therefore leave its region only for a place that is not there: regions are far
//! smaller than 4 GiB. Everything is checked at every access.

use crate::map::Map;
use crate::{FaultKind, op::atomic};
use std::sync::Arc;

/// Bytes of a function's frame, as in the kernel.
pub const FRAME_BYTES: u32 = 512;
/// Functions that may be under way.
pub const FRAMES_MAX: u32 = 8;
/// Bytes of the stack.
pub const STACK_BYTES: usize = (FRAME_BYTES * FRAMES_MAX) as usize;

const STACK: u32 = 1;
const CONTEXT: u32 = 2;
const FIRST_MAP: u32 = 16;
const FIRST_HANDLE: u32 = 1 << 31;

/// Where the context is.
pub const CONTEXT_ADDRESS: u64 = (CONTEXT as u64) << 32;

const STACK_ADDRESS: u64 = (STACK as u64) << 32;

/// Where the frame pointer of function `depth` stands.
pub const fn frame_address(depth: u32) -> u64 {
    STACK_ADDRESS | ((depth + 1) * FRAME_BYTES) as u64
}

/// Where byte `offset` of the values of map `index` is.
pub const fn value_address(index: u32, offset: u32) -> u64 {
    ((FIRST_MAP + index) as u64) << 32 | offset as u64
}

/// What stands for map `index`.
pub const fn map_address(index: u32) -> u64 {
    ((FIRST_HANDLE + index) as u64) << 32
}

/// The context of a run: bytes, of a size that is known best before it.
pub trait Context: AsRef<[u8]> + AsMut<[u8]> {}

impl<C: AsRef<[u8]> + AsMut<[u8]> + ?Sized> Context for C {}

/// What a program can reach during a run.
pub struct Memory<'a, C: ?Sized> {
    pub stack: &'a mut [u8; STACK_BYTES],
    pub context: &'a mut C,
    pub maps: &'a [Arc<Map>],
}

/// Where `size` bytes begin, `offset` bytes after a region's start, if they are all among its `len`. One
/// comparison where `len` is known: to an address in another region the offset is 4 GiB or more, or less than 0.
#[inline(always)]
fn start(len: usize, offset: u64, size: usize) -> Option<usize> {
    let last = len.checked_sub(size)?;
    usize::try_from(offset).ok().filter(|start| *start <= last)
}

impl<C: Context + ?Sized> Memory<'_, C> {
    /// Loads `N` bytes.
    #[inline(always)]
    pub fn load<const N: u32>(&self, address: u64) -> Result<u64, FaultKind> {
        let number = |bytes: &[u8]| match N {
            1 => u64::from(bytes[0]),
            2 => u64::from(u16::from_le_bytes([bytes[0], bytes[1]])),
            4 => u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
            _ => u64::from_le_bytes([
                bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7],
            ]),
        };
        // The context first: programs are about it. Each has a load of its own, so that it need not wait until it is
        // known which it is.
        let (context, size) = (self.context.as_ref(), N as usize);
        let offset = address.wrapping_sub(CONTEXT_ADDRESS);
        if let Some(start) = start(context.len(), offset, size) {
            return Ok(number(&context[start..][..size]));
        }
        let offset = address.wrapping_sub(STACK_ADDRESS);
        if let Some(start) = start(STACK_BYTES, offset, size) {
            return Ok(number(&self.stack[start..][..size]));
        }
        self.map_of_access(address)?.region.load::<N>(address as u32)
    }

    /// Stores `N` bytes.
    #[inline(always)]
    pub fn store<const N: u32>(&mut self, address: u64, value: u64) -> Result<(), FaultKind> {
        let (context, size) = (self.context.as_mut(), N as usize);
        let bytes = value.to_le_bytes();
        let offset = address.wrapping_sub(CONTEXT_ADDRESS);
        if let Some(start) = start(context.len(), offset, size) {
            context[start..][..size].copy_from_slice(&bytes[..size]);
            return Ok(());
        }
        let offset = address.wrapping_sub(STACK_ADDRESS);
        if let Some(start) = start(STACK_BYTES, offset, size) {
            self.stack[start..][..size].copy_from_slice(&bytes[..size]);
            return Ok(());
        }
        self.map_of_access(address)?.region.store::<N>(address as u32, value)
    }

    /// `N` bytes of the context, to be changed.
    #[inline(always)]
    pub fn context_bytes<const N: usize>(&mut self, address: u64) -> Option<&mut [u8; N]> {
        let context = self.context.as_mut();
        let start = start(context.len(), address.wrapping_sub(CONTEXT_ADDRESS), N)?;
        context[start..].first_chunk_mut()
    }

    /// The map whose values are accessed, since nothing of the context or the stack is.
    #[inline(always)]
    fn map_of_access(&self, address: u64) -> Result<&Map, FaultKind> {
        match (address >> 32) as u32 {
            CONTEXT | STACK => Err(FaultKind::OutOfBounds),
            region => self.map(region),
        }
    }

    #[inline(always)]
    fn map(&self, region: u32) -> Result<&Map, FaultKind> {
        match region.checked_sub(FIRST_MAP) {
            Some(index) => self.maps.get(index as usize).map(|map| &**map).ok_or(FaultKind::Wild),
            None => Err(FaultKind::Wild),
        }
    }

    /// The map that `address` stands for, and its number.
    pub fn map_of(&self, address: u64) -> Result<(u32, &Map), FaultKind> {
        let index = ((address >> 32) as u32).wrapping_sub(FIRST_HANDLE);
        let map = self.maps.get(index as usize).filter(|_| address as u32 == 0);
        map.map(|map| (index, &**map)).ok_or(FaultKind::NoMap)
    }

    /// Copies bytes out: a key.
    pub fn copy(&self, address: u64, into: &mut [u8]) -> Result<(), FaultKind> {
        let (words, rest) = into.as_chunks_mut::<8>();
        let mut at = address;
        for word in words {
            *word = self.load_any::<8>(at)?.to_le_bytes();
            at = at.wrapping_add(8);
        }
        for byte in rest {
            *byte = self.load::<1>(at)? as u8;
            at = at.wrapping_add(1);
        }
        Ok(())
    }

    /// Loads a word that need not be aligned: a key or value is as aligned as its type.
    pub fn load_any<const N: u32>(&self, address: u64) -> Result<u64, FaultKind> {
        if address.is_multiple_of(u64::from(N)) {
            return self.load::<N>(address);
        }
        let byte = |at: u32| Ok(self.load::<1>(address.wrapping_add(u64::from(at)))? << (at * 8));
        (0..N).try_fold(0, |word, at| Ok(word | byte(at)?))
    }

    /// An atomic instruction on `N` bytes (4 or 8). Gives what was there.
    pub fn atomic<const N: u32>(
        &mut self,
        what: i64,
        address: u64,
        operand: u64,
        expected: u64,
    ) -> Result<u64, FaultKind> {
        let low = |word: u64| if N == 4 { word & u64::from(u32::MAX) } else { word };
        let to = |old: u64| match what & !atomic::FETCH {
            atomic::ADD => old.wrapping_add(operand),
            atomic::OR => old | operand,
            atomic::AND => old & operand,
            atomic::XOR => old ^ operand,
            _ if what == atomic::EXCHANGE => operand,
            _ if low(expected) == old => operand,
            _ => old,
        };
        let region = (address >> 32) as u32;
        if region >= FIRST_MAP {
            let (memory, offset) = (&self.map(region)?.region, address as u32);
            return match what & !atomic::FETCH {
                atomic::ADD if N == 8 => memory.add(offset, operand),
                _ => memory.change::<N>(offset, to),
            };
        }
        let old = self.load::<N>(address)?;
        self.store::<N>(address, to(old))?;
        Ok(old)
    }
}
