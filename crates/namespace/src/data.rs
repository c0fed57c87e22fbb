//! Whose memory a request's data is.

use crate::copy::Sources;
use reactor::Buffer;
use std::any::Any;
use std::rc::Rc;

/// Data of a request: a buffer owned by the caller, or memory lent by one side for a while.
#[derive(Default)]
pub enum Data {
    /// No data; on a read of a namespace that lends, a request for lent memory. One that has to bring blocks together may
    /// answer in a buffer of the pool, or with Command Interrupted if it finds none: then it is asked again with a buffer.
    #[default]
    None,
    /// A pool buffer that travels with the request.
    Buffer(Buffer),
    /// Write data that is valid only until `submit` returns. Given only to namespaces whose
    /// `limits.immediate` is set; they copy it or are done with it by then.
    Transient(Transient),
    /// Memory of the backend, to be read by the front door. It may change while it is lent (a
    /// later write to the same blocks), though never within a block during one call on this core.
    Lent(Lent),
    /// A piece of another request's data, made by a layer that splits; front doors never see it.
    Part(Part),
    /// The source ranges of a Copy.
    Sources(Box<Sources>),
    /// Pieces of memory that together are the data, in their order. Given only to namespaces that say so
    /// ([`crate::Namespace::vectors_pages`]), and never with Compare, Copy and Dataset Management.
    Vectors(Vectors),
    /// Pages of the kernel, which have no address here. Given only to namespaces that say so
    /// ([`crate::Namespace::takes_registered`]), and only with Read and Write.
    Registered(Registered),
}

/// A piece of a buffer that a driver of the kernel has registered with the core's own ring. The
/// kernel can transfer into and out of it; nobody here can look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The buffer's index among those registered with the ring.
    pub index: u16,
    /// Where the piece begins within the buffer, in bytes.
    pub offset: u32,
    /// Its length in bytes.
    pub len: u32,
}

/// Pieces of memory that somebody else owns until this request has completed, and the list of them.
#[derive(Clone, Copy)]
pub struct Vectors {
    list: *const libc::iovec,
    count: u32,
    len: usize,
}

/// A piece of a buffer that somebody else owns until this request has completed.
pub struct Part {
    pointer: *mut u8,
    len: usize,
    fixed: Option<u16>,
}

/// Bytes borrowed for the duration of one `submit` call.
#[derive(Clone, Copy)]
pub struct Transient {
    pointer: *const u8,
    len: usize,
}

/// Bytes lent by a backend, kept mapped by `owner`.
pub struct Lent {
    pointer: *const u8,
    len: usize,
    _owner: Rc<dyn Any>,
}

impl Transient {
    /// Borrows `bytes` without a lifetime.
    ///
    /// # Safety
    /// `bytes` must stay valid and unchanged until the `submit` call that carries it has returned.
    #[inline]
    pub unsafe fn new(bytes: &[u8]) -> Transient {
        Transient { pointer: bytes.as_ptr(), len: bytes.len() }
    }

    /// Start of the bytes.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.pointer
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Vectors {
    /// Pieces that the kernel takes at once (include/uapi/linux/uio.h, `UIO_MAXIOV`).
    pub const COUNT_MAX: usize = 1024;

    /// Borrows the pieces that `list` names.
    ///
    /// # Safety
    /// The list and the pieces must stay valid until the request that carries them has completed; the pieces must be
    /// writable if it is a read.
    ///
    /// # Panics
    /// If there are more than [`Vectors::COUNT_MAX`].
    pub unsafe fn new(list: &[libc::iovec]) -> Vectors {
        assert!(list.len() <= Vectors::COUNT_MAX);
        let len = list.iter().map(|piece| piece.iov_len).sum();
        Vectors { list: list.as_ptr(), count: list.len() as u32, len }
    }

    /// How many pieces there are.
    pub fn count(&self) -> u32 {
        self.count
    }
}

impl Part {
    /// Borrows `len` bytes at `pointer`; `fixed` is the index of the registered buffer they are in.
    ///
    /// # Safety
    /// The bytes must stay valid until the request that carries the part has completed, and be
    /// writable if it is a read.
    #[inline]
    pub unsafe fn new(pointer: *mut u8, len: usize, fixed: Option<u16>) -> Part {
        Part { pointer, len, fixed }
    }
}

impl Lent {
    /// Lends `len` bytes at `pointer`.
    ///
    /// # Safety
    /// The bytes must stay mapped and readable while `owner` lives.
    #[inline]
    pub unsafe fn new(pointer: *const u8, len: usize, owner: Rc<dyn Any>) -> Lent {
        Lent { pointer, len, _owner: owner }
    }

    /// Start of the bytes. Read them through raw pointers only: they may change.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.pointer
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Data {
    /// Length in bytes; zero for [`Data::None`].
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Data::None | Data::Sources(_) => 0,
            Data::Buffer(buffer) => buffer.len(),
            Data::Transient(bytes) => bytes.len(),
            Data::Lent(bytes) => bytes.len(),
            Data::Part(part) => part.len,
            Data::Vectors(vectors) => vectors.len,
            Data::Registered(pages) => pages.len as usize,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keeps the first `len` bytes of a buffer or a part.
    ///
    /// # Panics
    /// If there are fewer, or the data is of another kind.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len());
        match self {
            Data::Buffer(buffer) => buffer.truncate(len),
            Data::Part(part) => part.len = len,
            Data::Registered(pages) => pages.len = len as u32,
            Data::None
            | Data::Transient(_)
            | Data::Lent(_)
            | Data::Sources(_)
            | Data::Vectors(_) => panic!("nothing to shorten"),
        }
    }

    /// Start of readable bytes, `len` of them; dangling when empty.
    ///
    /// # Panics
    /// If these are pages of the kernel ([`Data::Registered`]), or in several pieces ([`Data::Vectors`]).
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        match self {
            Data::Registered(_) => panic!("the kernel's pages have no address here"),
            Data::Vectors(_) => panic!("pieces are in several places"),
            Data::None | Data::Sources(_) => std::ptr::NonNull::dangling().as_ptr(),
            Data::Buffer(buffer) => buffer.as_ptr(),
            Data::Transient(bytes) => bytes.as_ptr(),
            Data::Lent(bytes) => bytes.as_ptr(),
            Data::Part(part) => part.pointer,
        }
    }

    /// Where an operation of the kernel is to find the data, and its length: the address, the offset into pages of
    /// the kernel ([`Data::Registered`]), or the address of the list of pieces ([`Data::Vectors`]); 0 if there is none.
    #[inline]
    pub(crate) fn extent(&self) -> (u64, usize) {
        let (start, len) = match self {
            Data::None | Data::Sources(_) => return (0, 0),
            Data::Registered(pages) => return (pages.offset.into(), pages.len as usize),
            Data::Vectors(vectors) => (vectors.list.cast(), vectors.len),
            Data::Part(part) => (part.pointer.cast_const(), part.len),
            Data::Buffer(buffer) => (buffer.as_ptr(), buffer.len()),
            Data::Transient(bytes) => (bytes.as_ptr(), bytes.len()),
            Data::Lent(bytes) => (bytes.as_ptr(), bytes.len()),
        };
        if len == 0 { (0, 0) } else { (start as u64, len) }
    }

    /// Start of `len` writable bytes, for a read to fill; none where there is nothing to fill.
    #[inline]
    pub fn as_mut_ptr(&mut self) -> Option<*mut u8> {
        match self {
            Data::Buffer(buffer) => Some(buffer.as_mut_ptr()),
            Data::Part(part) => Some(part.pointer),
            Data::None
            | Data::Transient(_)
            | Data::Lent(_)
            | Data::Sources(_)
            | Data::Vectors(_)
            | Data::Registered(_) => None,
        }
    }

    /// What an entry for the ring says of the data that begins `skip` bytes in: the address, and the
    /// index of the registered buffer that it is in. Pages of the kernel are addressed by their
    /// offset.
    #[inline]
    pub fn ring_address(&mut self, skip: usize) -> (*mut u8, Option<u16>) {
        debug_assert!(skip <= self.len());
        if let Data::Registered(pages) = self {
            let offset = pages.offset as usize + skip;
            return (std::ptr::without_provenance_mut(offset), Some(pages.index));
        }
        let start = self.as_mut_ptr().unwrap_or_else(|| self.as_ptr().cast_mut());
        (start.wrapping_add(skip), self.fixed_index())
    }

    /// `len` bytes of it, from `skip` on, for a request of its own.
    ///
    /// # Safety
    /// As for [`Part::new`]: the bytes must stay valid until that request has completed.
    pub unsafe fn piece(&mut self, skip: usize, len: usize) -> Data {
        assert!(skip + len <= self.len());
        if let Data::Registered(pages) = self {
            let offset = pages.offset + skip as u32;
            return Data::Registered(Registered { offset, len: len as u32, ..*pages });
        }
        let (start, fixed) = self.ring_address(skip);
        // SAFETY: passed on to the caller.
        Data::Part(unsafe { Part::new(start, len, fixed) })
    }

    /// Like [`Data::fixed_index`], but has a pool buffer registered if that was not tried yet:
    /// worth its pinned memory where the kernel transfers straight into it (O_DIRECT).
    #[inline(always)]
    pub fn ensure_registered(&self) -> Option<u16> {
        match self {
            Data::Buffer(buffer) => buffer.ensure_registered(),
            _ => self.fixed_index(),
        }
    }

    /// The registered buffer of this core's ring that the bytes lie in, if any.
    #[inline]
    pub fn fixed_index(&self) -> Option<u16> {
        match self {
            Data::Buffer(buffer) => buffer.fixed_index(),
            Data::Part(part) => part.fixed,
            Data::Registered(pages) => Some(pages.index),
            Data::None
            | Data::Transient(_)
            | Data::Lent(_)
            | Data::Sources(_)
            | Data::Vectors(_) => None,
        }
    }
}
