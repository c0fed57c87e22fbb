//! Which line of the source an instruction comes from, and which types functions have: the section `.BTF.ext`.

use crate::btf::{part, text, u32_at};

/// Lines of one object at most.
const LINES_MAX: usize = 1 << 17;
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
                let file = self.file(file);
                self.starts.push((instruction, file, u32_at(entry, 12)? >> 10));
                if self.starts.len() > LINES_MAX {
                    return None;
                }
            }
        }
        Some(())
    }

    fn file(&mut self, path: &str) -> u32 {
        let name = path.rsplit('/').next().unwrap_or(path);
        let known = self.files.iter().rposition(|file| file == name);
        known.unwrap_or_else(|| {
            self.files.push(name.to_owned());
            self.files.len() - 1
        }) as u32
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
