//! The object file of a program, read no further than it may be long.

use bpf::load::OBJECT_BYTES_MAX;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Reads a program's object.
///
/// # Errors
/// It is no file but something that may block or never end; or it is longer than
/// [`OBJECT_BYTES_MAX`]; or it cannot be read.
pub fn read_program(path: &Path) -> io::Result<Vec<u8>> {
    // What blocks until somebody writes to it would keep whoever asks.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_fifo() {
        return refuse("it is a pipe, not an object file");
    }
    if !kind.is_file() && !kind.is_dir() {
        return refuse("it is a device, not an object file");
    }
    read(file)
}

/// The same for a command whose user waits, and may end it: also from a pipe, as shells make them.
///
/// # Errors
/// As [`read_program`], but for pipes.
pub fn read_program_waiting(path: &Path) -> io::Result<Vec<u8>> {
    read(File::open(path)?)
}

fn read(file: File) -> io::Result<Vec<u8>> {
    if file.metadata()?.is_dir() {
        return refuse("it is a directory, not an object file");
    }
    let mut object = Vec::new();
    file.take(OBJECT_BYTES_MAX as u64 + 1).read_to_end(&mut object)?;
    if object.len() > OBJECT_BYTES_MAX {
        return refuse("it is longer than 8 MiB, which no object file of a program is");
    }
    Ok(object)
}

fn refuse(what: &str) -> io::Result<Vec<u8>> {
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    #[test]
    fn an_object_file_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long.bpf.o");
        fs::write(&path, vec![7; OBJECT_BYTES_MAX]).unwrap();
        assert_eq!(read_program(&path).unwrap().len(), OBJECT_BYTES_MAX);
        fs::write(&path, vec![7; OBJECT_BYTES_MAX + 1]).unwrap();
        let said = |path: &Path| read_program(path).unwrap_err().to_string();
        assert!(said(&path).contains("longer than 8 MiB"), "{}", said(&path));
        assert!(said(Path::new("/dev/zero")).contains("is a device"));
        assert!(said(folder.path()).contains("is a directory"));
        let pipe = folder.path().join("pipe.bpf.o");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(said(&pipe).contains("is a pipe"));
        // Who waits for it may have one.
        let writer = pipe.clone();
        let writer = std::thread::spawn(move || fs::write(writer, b"object"));
        assert_eq!(read_program_waiting(&pipe).unwrap(), b"object");
        writer.join().unwrap().unwrap();
        let endless = read_program_waiting(Path::new("/dev/zero")).unwrap_err();
        assert!(endless.to_string().contains("longer than 8 MiB"), "{endless}");
        assert!(read_program_waiting(folder.path()).is_err());
        let missing = read_program(&folder.path().join("none")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
