//! Running other programs: every failure names the program, its arguments and what it said.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs `command` with stdin closed; its output goes where ours goes.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status().with_context(|| line_of(command))?;
    if !status.success() {
        bail!("{} failed: {status}", line_of(command));
    }
    Ok(())
}

/// Runs `command` and returns what it wrote to stdout; its stderr is shown only when it fails.
pub fn capture(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| line_of(command))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed: {}\n{}", line_of(command), output.status, said.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The command as one would type it, for messages.
pub fn line_of(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

/// `word` quoted for a POSIX shell.
pub fn shell_quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The root of the checkout, where the workspace's Cargo.toml is.
pub fn checkout() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.parent().context("xtask has no parent directory")?;
    root.canonicalize().with_context(|| root.display().to_string())
}

/// Where cargo puts what it builds.
pub fn target_directory() -> Result<PathBuf> {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => Ok(std::path::absolute(directory)?),
        None => Ok(checkout()?.join("target")),
    }
}

/// The cargo that runs us, in the checkout.
pub fn cargo() -> Result<Command> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(checkout()?);
    Ok(cargo)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_survives_a_shell() {
        for word in ["plain", "", "two words", "it's", "$HOME `id` \"x\" \\", "a\nb"] {
            let script = format!("printf %s {}", shell_quoted(word));
            let said = capture(Command::new("sh").args(["-c", &script])).unwrap();
            assert_eq!(said, word);
        }
    }

    #[test]
    fn a_failure_names_the_command_and_its_complaint() {
        let error = capture(Command::new("sh").args(["-c", "echo broken >&2; exit 3"]))
            .unwrap_err()
            .to_string();
        assert!(error.contains("exit 3") && error.contains("broken"), "{error}");
    }
}
