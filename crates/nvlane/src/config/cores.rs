//! How many threads carry the data path, and where they run.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Most cores of one daemon.
const CORES_MAX: usize = 128;
/// Highest processor number.
const CPU_MAX: usize = 4095;

/// A number of threads (`4`) or processors to pin one to each (`0,2-5`; a single one is `3-3`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Text", into = "String")]
pub struct Cores {
    cpus: Vec<Option<usize>>,
}

/// In TOML and JSON a plain number is welcome too.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Count(usize),
    List(String),
}

impl Cores {
    /// One entry per thread: the processor to which it is pinned, if any.
    pub fn cpus(&self) -> &[Option<usize>] {
        &self.cpus
    }
}

impl Default for Cores {
    fn default() -> Cores {
        Cores { cpus: vec![None] }
    }
}

impl FromStr for Cores {
    type Err = String;

    fn from_str(text: &str) -> Result<Cores, String> {
        let wrong = || format!("`{text}` is no number of cores (4) and no list of them (0,2-5)");
        if let Ok(count) = text.parse::<usize>() {
            return Cores::try_from(Text::Count(count));
        }
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: usize = first.trim().parse().map_err(|_| wrong())?;
            let last: usize = last.trim().parse().map_err(|_| wrong())?;
            if first > last || last > CPU_MAX || cpus.len() + (last - first) >= CORES_MAX {
                return Err(wrong());
            }
            cpus.extend((first..=last).map(Some));
        }
        let mut sorted = cpus.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != cpus.len() {
            return Err(format!("`{text}` names a core twice"));
        }
        Ok(Cores { cpus })
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cpus[..] {
            [None, ..] => write!(f, "{}", self.cpus.len()),
            [Some(cpu)] => write!(f, "{cpu}-{cpu}"),
            _ => {
                let list: Vec<String> = self.cpus.iter().flatten().map(usize::to_string).collect();
                f.write_str(&list.join(","))
            }
        }
    }
}

impl TryFrom<Text> for Cores {
    type Error = String;

    fn try_from(text: Text) -> Result<Cores, String> {
        match text {
            Text::Count(count) if (1..=CORES_MAX).contains(&count) => {
                Ok(Cores { cpus: vec![None; count] })
            }
            Text::Count(count) => Err(format!("{count} cores are not between 1 and {CORES_MAX}")),
            Text::List(list) => list.parse(),
        }
    }
}

impl From<Cores> for String {
    fn from(cores: Cores) -> String {
        cores.to_string()
    }
}
