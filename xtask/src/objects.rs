//! Programs in bpf/ whose source has changed are compiled before anything that ships or uses them is built.
//!
//! Objects are committed, so that nobody needs clang (docs/decisions/0008-bpf-in-the-kernel.md): what git knows to be unchanged stays as it is, byte for
//! byte, whichever clang is there.

use std::process::Command;

use anyhow::Result;

use crate::process::{capture, checkout, run};

/// What the committed objects are made with; one of another version, by its plain name, will do for changes.
const COMPILERS: [&str; 2] = ["clang-19", "clang"];
const STRIPPERS: [&str; 2] = ["llvm-strip-19", "llvm-strip"];

/// Makes anew the objects whose sources have changed, if there is a clang; if not, says so.
pub fn compile_changed() -> Result<()> {
    let folder = checkout()?.join("bpf");
    let mut git = Command::new("git");
    git.args(["status", "--porcelain", "--untracked-files=all", "--", "."]).current_dir(&folder);
    // Sources without git are those of a release.
    let Ok(status) = capture(&mut git) else { return Ok(()) };
    let changed = sources(&status);
    if changed.is_empty() {
        return Ok(());
    }
    let Some(compiler) = COMPILERS.into_iter().find(|name| is_there(name)) else {
        eprintln!(
            "{}: changed, and used as compiled before, since there is no clang (Debian: {})",
            changed.join(" "),
            COMPILERS[0]
        );
        return Ok(());
    };
    // What is not stripped is larger, and nothing else.
    let stripper = STRIPPERS.into_iter().find(|name| is_there(name)).unwrap_or("true");
    let settings = [format!("CLANG={compiler}"), format!("STRIP={stripper}")];
    run(Command::new("make").args(["-s", "-C"]).arg(folder).args(settings))
}

fn is_there(program: &str) -> bool {
    capture(Command::new(program).arg("--version")).is_ok()
}

/// The sources among the lines of `git status --porcelain`: two letters, a space, a path.
fn sources(status: &str) -> Vec<&str> {
    let is_there = |line: &&str| !line.get(..2).is_some_and(|letters| letters.contains('D'));
    let paths = status.lines().filter(is_there).filter_map(|line| line.get(3..));
    paths.filter(|path| path.ends_with(".bpf.c") || path.ends_with(".h")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sources_that_are_there_count() {
        let status = " M bpf/linear.bpf.c\n?? bpf/mine.bpf.c\nM  bpf/nvlane_bpf.h\n M bpf/linear.bpf.o\n?? bpf/notes\n";
        assert_eq!(sources(status), ["bpf/linear.bpf.c", "bpf/mine.bpf.c", "bpf/nvlane_bpf.h"]);
        assert_eq!(sources(" D bpf/gone.bpf.c\n"), [""; 0]);
        assert_eq!(sources(""), [""; 0]);
    }
}
