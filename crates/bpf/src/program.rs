//! A program as it was loaded, and what it needs to run.

use crate::fuse::fuse;
use crate::lines::Lines;
use crate::map::{MAPS_BYTES_MAX, Map, MapDefinition};
use crate::native::Native;
use crate::op::{Insn, Op};
use crate::region::Words;
use crate::{FaultKind, LoadError};
use std::fmt;
use std::sync::Arc;

/// A program, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub(crate) code: Vec<Insn>,
    pub(crate) functions: Vec<Function>,
    /// Instructions of functions that only the kernel runs, blank here.
    pub(crate) left_out: usize,
    pub(crate) route: Entry,
    pub(crate) done: Option<Entry>,
    pub(crate) deferred: Option<Entry>,
    pub(crate) setup: Option<Entry>,
    pub(crate) maps: Vec<MapDefinition>,
    pub(crate) lines: Lines,
}

/// A function of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub(crate) name: String,
    pub(crate) span: Span,
}

/// Consecutive instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Where a program may be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(pub(crate) usize);

impl Entry {
    /// The number of its first instruction.
    #[inline]
    pub fn start(self) -> usize {
        self.0
    }
}

impl Program {
    /// How many instructions it has; those of 16 bytes count twice.
    pub fn instructions(&self) -> usize {
        self.code.len().saturating_sub(self.left_out)
    }

    /// `NVLANE_ROUTE`.
    pub fn route(&self) -> Entry {
        self.route
    }

    /// `NVLANE_DONE`.
    pub fn done(&self) -> Option<Entry> {
        self.done
    }

    /// `NVLANE_DEFERRED`.
    pub fn deferred(&self) -> Option<Entry> {
        self.deferred
    }

    /// `NVLANE_SETUP`.
    pub fn setup(&self) -> Option<Entry> {
        self.setup
    }

    /// Its maps, those of global variables included.
    pub fn maps(&self) -> &[MapDefinition] {
        &self.maps
    }

    /// Names an instruction for people.
    pub fn locate(&self, instruction: usize) -> Location {
        let mut within = self
            .functions
            .iter()
            .filter(|function| (function.span.start..function.span.end).contains(&instruction));
        let (function, number) = match within.next() {
            Some(function) => (function.name.clone(), instruction - function.span.start),
            None => ("program".to_owned(), instruction),
        };
        let line = self.lines.of(instruction).map(|(file, line)| (file.to_owned(), line));
        Location { function, number, line }
    }
}

impl Program {
    /// Names for people where a run from `entry` has come to line `line` of the source, 0 if unknown: the first
    /// instruction of that line.
    pub fn place_of_line(&self, entry: Entry, line: u32) -> Location {
        let found = self.lines.first_of_line(entry.start(), line);
        let mut location = self.locate(found.unwrap_or(entry.start()));
        if found.is_none() {
            location.line = location.line.filter(|_| line != 0).map(|(file, _)| (file, line));
        }
        location
    }
}

/// An instruction, for people: `nvlane_route instruction 12 (stripe.bpf.c:31)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The function.
    pub function: String,
    /// The instruction within it, counted from 0 in units of 8 bytes, as disassemblers do.
    pub number: usize,
    /// File and line, where the program was compiled with `-g`.
    pub line: Option<(String, u32)>,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} instruction {}", self.function, self.number)?;
        match &self.line {
            Some((file, line)) => write!(f, " ({file}:{line})"),
            None => Ok(()),
        }
    }
}

/// What a program did wrong while it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// At which instruction; see [`Program::locate`].
    pub instruction: usize,
}

/// A program with maps of its own.
#[derive(Debug)]
pub struct Instance {
    program: Program,
    /// The program's code as it is carried out.
    code: Vec<Insn>,
    maps: Vec<Arc<Map>>,
    native: Option<Arc<dyn Native>>,
}

impl Instance {
    /// Gives `program` its maps, for machines of `cores` cores.
    ///
    /// # Errors
    /// [`LoadError::Memory`]: they would take too much.
    pub fn new(program: Program, cores: usize) -> Result<Instance, LoadError> {
        let bytes: u64 = program.maps.iter().map(|map| map.bytes(cores)).sum();
        if bytes > MAPS_BYTES_MAX {
            return Err(LoadError::Memory(bytes));
        }
        let make = |map: &MapDefinition| Arc::new(Map::new(map.clone(), cores));
        let maps = program.maps.iter().map(make).collect();
        let code = fuse(&program.code, &program.maps);
        Ok(Instance { program, code, maps, native: None })
    }

    /// The program's instructions, each for itself, but for look-ups in arrays ([`Op::LookUp`]), which two more
    /// belong to. All of it is checked: control stays within.
    pub fn singles(&self) -> Vec<Insn> {
        let both = self.program.code.iter().zip(&self.code);
        both.map(|(plain, joined)| if joined.op == Op::LookUp { *joined } else { *plain }).collect()
    }

    /// Has requests carried out by code that was made of [`Instance::singles`].
    pub fn set_native(&mut self, native: Arc<dyn Native>) {
        self.native = Some(native);
    }

    /// That code, if there is any.
    #[inline]
    pub fn native(&self) -> Option<&dyn Native> {
        self.native.as_deref()
    }

    /// Has every instruction carried out on its own, to compare.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn unfused(mut self) -> Instance {
        self.code.clone_from(&self.program.code);
        self
    }

    /// What the machine carries out.
    #[inline]
    pub(crate) fn code(&self) -> &[Insn] {
        &self.code
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Its maps, in the order of [`Program::maps`].
    pub fn maps(&self) -> &[Arc<Map>] {
        &self.maps
    }

    /// Has map number `map`, an array that may be kept, in memory that may outlive this instance. What it holds now goes
    /// there if that `is_new`; otherwise what is there counts.
    ///
    /// # Panics
    /// If the map is none of that, or the memory of another size than [`MapDefinition::words`].
    pub fn keep(&mut self, map: usize, words: Words, is_new: bool) {
        let kept = self.maps[map].elsewhere(words, true);
        if is_new {
            kept.region.copy(&self.maps[map].region);
        }
        self.maps[map] = Arc::new(kept);
    }

    /// Has map number `map`, an array, in memory that another one works in as well, and nobody keeps. What it holds now
    /// goes there.
    ///
    /// # Panics
    /// As [`Instance::keep`].
    pub fn share(&mut self, map: usize, words: Words) {
        let shared = self.maps[map].elsewhere(words, false);
        shared.region.copy(&self.maps[map].region);
        self.maps[map] = Arc::new(shared);
    }

    /// Takes over the maps of `old`, which goes on using them, where the program declares one of the same name,
    /// kind and sizes; gives their names. Global variables stay its own, since they may mean something else, unless it
    /// `is_same`, of the same object.
    pub fn inherit(&mut self, old: &Instance, is_same: bool) -> Vec<String> {
        let mut names = Vec::new();
        for map in &mut self.maps {
            let wanted = map.definition();
            let same = |theirs: &&Arc<Map>| theirs.definition() == wanted && theirs.fits(map);
            let found = old.maps.iter().find(same);
            if let Some(theirs) = found.filter(|_| is_same || !wanted.is_variables) {
                if !wanted.is_variables {
                    names.push(wanted.name.clone());
                }
                *map = Arc::clone(theirs);
            }
        }
        names
    }
}
