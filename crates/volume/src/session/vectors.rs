//! Data in several pieces.
//!
//! ```text
//!   a device of this machine:  pieces --> list of them --> driver (NVME_URING_CMD_IO_VEC, ..._ADMIN_VEC)
//!   any other volume:          pieces --> memory of the pool --> volume, and back
//! ```

use super::{Bytes, PAGE_BYTES};
use namespace::Data;
use std::fmt;

/// Pieces of memory that together are a command's data, in their order. Kept and used again, nothing is allocated
/// per command.
///
/// Devices of this machine (`/dev/ngXnY`) are given the pieces as they are, up to 1,024 of them, but for Compare and
/// Dataset Management; otherwise, and with every other volume, what they hold is copied by way of the session's pool. A
/// Copy's ranges come in one piece, as does metadata: Invalid Field otherwise.
// Behind a pointer: commands with one piece are moved about by the thousand, and would be twice as long.
#[derive(Default)]
pub struct Vectors(Box<Inner>);

const _: () = assert!(size_of::<Bytes>() <= 40);

#[derive(Default)]
struct Inner {
    pieces: Vec<Bytes>,
    /// Of the pieces, for the time of a command.
    list: Vec<libc::iovec>,
    len: usize,
}

impl Vectors {
    /// No pieces yet.
    pub fn new() -> Vectors {
        Vectors::default()
    }

    /// Adds a piece.
    ///
    /// # Panics
    /// If it is no memory: the ranges of a Copy, or pieces themselves.
    pub fn push(&mut self, piece: impl Into<Bytes>) {
        let piece = piece.into();
        assert!(
            !matches!(piece, Bytes::Ranges(_) | Bytes::Vectors(_)),
            "a piece of data is one piece of memory"
        );
        self.0.len += piece.len();
        self.0.pieces.push(piece);
    }

    /// The pieces.
    pub fn pieces(&self) -> &[Bytes] {
        &self.0.pieces
    }

    /// Takes all pieces out, and keeps their room.
    pub fn drain(&mut self) -> std::vec::Drain<'_, Bytes> {
        self.0.len = 0;
        self.0.list.clear();
        self.0.pieces.drain(..)
    }

    /// Length of all pieces together, in bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// How many pieces have bytes.
    pub(super) fn count(&self) -> usize {
        self.0.pieces.iter().filter(|piece| !piece.is_empty()).count()
    }

    /// How many pages they touch.
    pub(super) fn pages(&self) -> usize {
        let pieces = self.0.pieces.iter().filter(|piece| !piece.is_empty());
        pieces
            .map(|piece| (piece.as_ptr().addr() % PAGE_BYTES + piece.len()).div_ceil(PAGE_BYTES))
            .sum()
    }

    /// The data of a request.
    ///
    /// # Safety
    /// This must stay where it is, unchanged, until the request has completed.
    pub(super) unsafe fn lend(&mut self) -> Data {
        let Inner { pieces, list, .. } = &mut *self.0;
        list.clear();
        let pieces = pieces.iter_mut().filter(|piece| !piece.is_empty());
        list.extend(pieces.map(|piece| libc::iovec {
            iov_base: piece.as_mut_ptr().cast(),
            iov_len: piece.len(),
        }));
        // SAFETY: the pieces are memory as long as they say, and writable; the rest is passed on to the caller.
        Data::Vectors(unsafe { namespace::Vectors::new(list) })
    }

    /// Copies what the pieces hold, as far as there is room, to `to`.
    ///
    /// # Safety
    /// `to` has room for `len` bytes, and is none of the pieces.
    pub(super) unsafe fn gather(&self, to: *mut u8, len: usize) {
        let mut done = 0;
        for piece in &self.0.pieces {
            let count = piece.len().min(len - done);
            // SAFETY: within the room that the caller has promised, and within the piece.
            unsafe { to.add(done).copy_from_nonoverlapping(piece.as_ptr(), count) };
            done += count;
        }
    }

    /// Fills the pieces, as far as it goes, from `from`.
    ///
    /// # Safety
    /// `from` has `len` bytes, and is none of the pieces.
    pub(super) unsafe fn scatter(&mut self, from: *const u8, len: usize) {
        let mut done = 0;
        for piece in &mut self.0.pieces {
            let count = piece.len().min(len - done);
            // SAFETY: within what the caller has promised, and within the piece.
            unsafe { piece.as_mut_ptr().copy_from_nonoverlapping(from.add(done), count) };
            done += count;
        }
    }
}

impl<T: Into<Bytes>> FromIterator<T> for Vectors {
    fn from_iter<I: IntoIterator<Item = T>>(pieces: I) -> Vectors {
        let mut vectors = Vectors::new();
        pieces.into_iter().for_each(|piece| vectors.push(piece));
        vectors
    }
}

impl fmt::Debug for Vectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vectors").field("pieces", &self.0.pieces).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors(sizes: &[usize]) -> Vectors {
        sizes.iter().map(|size| vec![0; *size]).collect()
    }

    #[test]
    fn bytes_go_into_pieces_and_out_of_them() {
        for sizes in [&[10][..], &[3, 7], &[0, 3, 0, 7, 0], &[1, 1, 8, 5], &[4, 4]] {
            let mut pieces = vectors(sizes);
            let all = sizes.iter().sum::<usize>();
            assert_eq!(pieces.len(), all);
            let from: Vec<u8> = (1..=10).collect();
            let fits = all.min(10);
            // SAFETY: both are as long, and none of the pieces.
            unsafe { pieces.scatter(from.as_ptr(), 10.min(all)) };
            let flat: Vec<u8> =
                pieces.pieces().iter().flat_map(|piece| piece.as_slice().to_vec()).collect();
            assert_eq!((&flat[..fits], flat.len()), (&from[..fits], all), "{sizes:?}");
            let mut to = [0xff; 12];
            // SAFETY: as above.
            unsafe { pieces.gather(to.as_mut_ptr(), fits) };
            assert_eq!((&to[..fits], &to[fits..]), (&from[..fits], &[0xff; 12][fits..]));
        }
    }

    #[test]
    fn the_list_has_the_pieces_with_bytes_and_is_used_again() {
        let mut pieces = vectors(&[512, 0, 1024]);
        for _ in 0..3 {
            // SAFETY: there is no request.
            let data = unsafe { pieces.lend() };
            let Data::Vectors(list) = &data else { panic!("vectors") };
            assert_eq!((list.count(), data.len(), pieces.count()), (2, 1536, 2));
            assert_eq!(pieces.0.list[1].iov_base.addr(), pieces.0.pieces[2].as_ptr().addr());
        }
        let first = pieces.drain().next().expect("three");
        assert_eq!((first.len(), pieces.len(), pieces.is_empty()), (512, 0, true));
    }

    #[test]
    #[should_panic(expected = "one piece of memory")]
    fn a_piece_is_no_list_of_pieces() {
        Vectors::new().push(vectors(&[1]));
    }
}
