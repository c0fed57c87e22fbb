//! Which line of the source an instruction comes from, and which types functions have: the section `.BTF.ext`.

use crate::btf::{self, part, u32_at};
use std::collections::HashMap;

/// Lines of one object at most.
const LINES_MAX: usize = 1 << 17;
/// Bytes of the name of a file or section (`PATH_MAX`): many may have the same bytes.
const NAME_BYTES_MAX: usize = 4096;
/// Headers from this size on say where accesses are that are to be adjusted.
const ADJUSTED_HEADER_BYTES: u32 = 32;

/// The line information of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// First instruction, file and line; sorted.
    starts: Vec<(u32, u32, u32)>,
    files: Vec<String>,
}

impl Lines {
    /// Reads the section; `base` tells the number of the first instruction of a section of code. What makes no
    /// sense is left out: it is for messages only.
    pub fn parse(section: &[u8], strings: &[u8], base: impl Fn(&str) -> Option<u32>) -> Lines {
        let mut lines = Lines::default();
        // The reading ends where the section does.
        let _ = lines.read(section, strings, base);
        lines.starts.sort_unstable();
        lines
    }

    fn read(
        &mut self,
        section: &[u8],
        strings: &[u8],
        base: impl Fn(&str) -> Option<u32>,
    ) -> Option<()> {
        let all = part(section, 1)?;
        let record = u32_at(all, 0)? as usize;
        let mut at = 4;
        let mut numbers = HashMap::new();
        while at < all.len() && record >= 16 {
            let first = text(strings, u32_at(all, at)?).and_then(&base);
            let count = u32_at(all, at + 4)?;
            at += 8;
            for _ in 0..count {
                let entry = all.get(at..at.checked_add(record)?)?;
                at += record;
                let Some(first) = first else { continue };
                let file = text(strings, u32_at(entry, 4)?)?;
                let instruction = first.checked_add(u32_at(entry, 0)? / 8)?;
                let file = file.rsplit('/').next().unwrap_or(file);
                let files = &mut self.files;
                let file = *numbers.entry(file).or_insert_with(|| {
                    files.push(file.to_owned());
                    files.len() as u32 - 1
                });
                self.starts.push((instruction, file, u32_at(entry, 12)? >> 10));
                if self.starts.len() > LINES_MAX {
                    return None;
                }
            }
        }
        Some(())
    }

    /// The first instruction, from `start` on, of a line of the file that `start` is of.
    pub fn first_of_line(&self, start: usize, line: u32) -> Option<usize> {
        let at = self.starts.partition_point(|it| (it.0 as usize) < start);
        let file = self.starts.get(at)?.1;
        let is_it = |it: &&(u32, u32, u32)| it.1 == file && it.2 == line;
        self.starts[at..].iter().find(is_it).map(|it| it.0 as usize)
    }

    /// File and line of an instruction, as far as known.
    pub fn of(&self, instruction: usize) -> Option<(&str, u32)> {
        let next = self.starts.partition_point(|start| start.0 as usize <= instruction);
        let (_, file, line) = self.starts.get(next.checked_sub(1)?)?;
        Some((self.files.get(*file as usize)?, *line))
    }
}

/// The text that begins at `at` of a table of strings, if it is not longer than names are.
fn text(strings: &[u8], at: u32) -> Option<&str> {
    let end = (at as usize).saturating_add(NAME_BYTES_MAX + 1).min(strings.len());
    btf::text(&strings[..end], at)
}

/// Types of the function at byte `at` of a section of code: there should be one.
pub fn types_at(more: &[u8], strings: &[u8], section: &str, at: u64) -> Option<Vec<u32>> {
    let all = part(more, 0)?;
    let record = u32_at(all, 0)? as usize;
    let (mut next, mut found) = (4, Vec::new());
    while next < all.len() && record >= 8 {
        let is_it = text(strings, u32_at(all, next)?)? == section;
        let count = u32_at(all, next + 4)?;
        next += 8;
        for _ in 0..count {
            let entry = all.get(next..next.checked_add(record)?)?;
            next += record;
            // libbpf counts instructions.
            if is_it && u64::from(u32_at(entry, 0)? / 8) == at / 8 {
                found.push(u32_at(entry, 4)?);
            }
        }
    }
    Some(found)
}

/// Whether all that is said of code is said of code that there is; `bytes` tells how many a section of code has. Nothing where
/// the section makes no sense.
pub fn is_of_code(
    more: &[u8],
    strings: &[u8],
    bytes: impl Fn(&str) -> Option<u64>,
) -> Option<bool> {
    // Types of functions, and lines.
    for number in 0..2 {
        let all = part(more, number)?;
        let mut next = 4;
        while next < all.len() {
            let record = u32_at(all, 0)? as usize;
            let end = bytes(text(strings, u32_at(all, next)?)?);
            let count = u32_at(all, next + 4)?;
            next += 8;
            for _ in 0..count {
                let entry = all.get(next..next.checked_add(record.max(1))?)?;
                next += entry.len();
                if end.is_none_or(|end| u32_at(entry, 0).is_none_or(|at| u64::from(at) >= end)) {
                    return Some(false);
                }
            }
        }
    }
    Some(true)
}

/// Whether the object wants its accesses to the kernel's structures adjusted (CO-RE); nothing where `section` makes no
/// sense. libbpf also takes one of the other byte order, which makes none here.
pub fn wants_adjusting(section: &[u8]) -> Option<bool> {
    // The lines, which are always there: so the header is whole.
    part(section, 1)?;
    if u32_at(section, 4)? < ADJUSTED_HEADER_BYTES {
        return Some(false);
    }
    part(section, 2).map(|records| records.len() > 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `.BTF.ext` with a line of each of these files, by where their names are.
    fn section(files: &[u32]) -> Vec<u8> {
        let bytes = 12 + files.len() as u32 * 16;
        let mut words = vec![0x0001_eb9f, 24, 0, 0, 0, bytes, 16, 0, files.len() as u32];
        for (line, file) in files.iter().enumerate() {
            words.extend([line as u32 * 8, *file, 0, 7 << 10]);
        }
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn many_files_are_found_by_their_names() {
        let count = 100_000;
        let mut strings = b"nvlane/route\0".to_vec();
        let name = |number: usize| format!("/f/{:06}", number % (count / 2));
        let mut files = Vec::new();
        for number in 0..count {
            files.push(strings.len() as u32);
            strings.extend_from_slice(name(number).as_bytes());
            strings.push(0);
        }
        let lines = Lines::parse(&section(&files), &strings, |_| Some(0));
        assert_eq!((lines.starts.len(), lines.files.len()), (count, count / 2));
        for number in [0, 1, count / 2, count - 1] {
            assert_eq!(lines.of(number), Some((&name(number)[3..], 7)));
        }
    }

    #[test]
    fn a_long_name_is_none() {
        let named = |bytes| {
            let strings = [b"s\0".to_vec(), vec![b'n'; bytes], vec![0]].concat();
            Lines::parse(&section(&[2]), &strings, |_| Some(0)).of(0).is_some()
        };
        assert!(named(NAME_BYTES_MAX) && !named(NAME_BYTES_MAX + 1));
    }
}
