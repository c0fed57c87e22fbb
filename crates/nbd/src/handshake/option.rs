//! Data of options, parsed.

use crate::wire::BASE_ALLOCATION;
use zerocopy::FromBytes;
use zerocopy::big_endian::{U16, U32};

/// What asks for every context of the namespace `base` when listing, and for none when choosing.
const BASE: &[u8] = b"base:";

/// Takes a string that its length in 32 bits precedes.
fn string<'a>(data: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = U32::read_from_prefix(data).ok()?;
    let (text, rest) = rest.split_at_checked(usize::try_from(length.get()).ok()?)?;
    *data = rest;
    Some(text)
}

/// Data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
pub struct ExportQuery<'a> {
    /// Name of the export.
    pub name: &'a [u8],
    requests: &'a [U16],
}

impl<'a> ExportQuery<'a> {
    /// `None` if the lengths do not add up.
    pub fn parse(mut data: &'a [u8]) -> Option<ExportQuery<'a>> {
        let name = string(&mut data)?;
        let (count, rest) = U16::read_from_prefix(data).ok()?;
        let requests = <[U16]>::ref_from_bytes(rest).ok()?;
        (requests.len() == usize::from(count.get())).then_some(ExportQuery { name, requests })
    }

    /// Whether information of that kind is asked for.
    pub fn asks(&self, info: u16) -> bool {
        self.requests.iter().any(|request| request.get() == info)
    }
}

/// Data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
pub struct MetaQuery<'a> {
    /// Name of the export.
    pub export: &'a [u8],
    count: u32,
    /// The queries, each after its length.
    queries: &'a [u8],
}

impl<'a> MetaQuery<'a> {
    /// `None` if the lengths do not add up.
    pub fn parse(mut data: &'a [u8]) -> Option<MetaQuery<'a>> {
        let export = string(&mut data)?;
        let (count, queries) = U32::read_from_prefix(data).ok()?;
        let query = MetaQuery { export, count: count.get(), queries };
        let mut rest = queries;
        // Each takes four bytes at least, so that a huge count ends with the data.
        for _ in 0..query.count {
            string(&mut rest)?;
        }
        rest.is_empty().then_some(query)
    }

    fn any(&self, wanted: impl Fn(&[u8]) -> bool) -> bool {
        let mut rest = self.queries;
        (0..self.count).any(|_| string(&mut rest).is_some_and(&wanted))
    }

    /// Whether it chooses `base:allocation`.
    pub fn chooses_allocation(&self) -> bool {
        self.any(|query| query == BASE_ALLOCATION)
    }

    /// Whether `base:allocation` is among what it asks to list.
    pub fn lists_allocation(&self) -> bool {
        self.count == 0 || self.any(|query| query == BASE_ALLOCATION || query == BASE)
    }
}
