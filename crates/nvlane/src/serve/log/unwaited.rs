//! Lines for standard error that nobody waits for: cores log, and what they serve is not to stand still because whoever reads
//! the log (a full pipe, a terminal that was stopped, a journal that hangs) does.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// As much as a pipe that can be written to takes at once (PIPE_BUF).
const PIECE_BYTES: usize = 4096;
/// How long a line waits for room, if the one before it was written.
const PATIENCE: Duration = Duration::from_millis(5);

/// Where lines are written, one call for each.
pub struct Unwaited;

/// What became of the lines before.
struct Lines {
    /// So many were lost since the last that was written.
    lost: u64,
}

static LINES: Mutex<Lines> = Mutex::new(Lines { lost: 0 });

impl Write for Unwaited {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
        lines.offer(io::stderr().as_fd(), line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// Writes a line, or notes that it is lost.
    fn offer(&mut self, to: BorrowedFd<'_>, line: &[u8]) {
        let patience = if self.lost == 0 { PATIENCE } else { Duration::ZERO };
        if self.lost > 0 {
            let lost = self.lost;
            let notice = format!("nvlane: {lost} lines of the log were lost: nobody took them\n");
            if !write(to, notice.as_bytes(), Duration::ZERO) {
                self.lost += 1;
                return;
            }
            self.lost = 0;
        }
        if !write(to, line, patience) {
            self.lost += 1;
        }
    }
}

/// Whether all of `bytes` was taken, or nobody is there who ever will.
fn write(to: BorrowedFd<'_>, bytes: &[u8], patience: Duration) -> bool {
    bytes.chunks(PIECE_BYTES).all(|piece| {
        let mut left = piece;
        while !left.is_empty() {
            if !has_room(to, patience) {
                return false;
            }
            match rustix::io::write(to, left) {
                Ok(count) => left = &left[count..],
                Err(Errno::INTR) => {}
                // It was told not to wait, by somebody who has it as well.
                Err(Errno::AGAIN) => return false,
                // As with `eprintln!` in a program that goes on.
                Err(_) => return true,
            }
        }
        true
    })
}

/// Whether a write would not wait.
fn has_room(to: BorrowedFd<'_>, patience: Duration) -> bool {
    let patience = Timespec::try_from(patience).expect("some milliseconds");
    loop {
        match poll(&mut [PollFd::new(&to, PollFlags::OUT)], Some(&patience)) {
            Ok(count) => return count > 0,
            Err(Errno::INTR) => {}
            // What cannot be asked is written to.
            Err(_) => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_line_that_nobody_takes_is_lost_and_told() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut lines = Lines { lost: 0 };
        lines.offer(writer.as_fd(), b"first\n");
        let mut filling = 6;
        while has_room(writer.as_fd(), Duration::ZERO) {
            filling += rustix::io::write(&writer, &[b'.'; PIECE_BYTES]).unwrap();
        }
        for _ in 0..2 {
            lines.offer(writer.as_fd(), b"lost\n");
        }
        assert_eq!(lines.lost, 2);
        let mut taken = vec![0; filling];
        reader.read_exact(&mut taken).unwrap();
        assert!(taken.starts_with(b"first\n."));
        lines.offer(writer.as_fd(), b"again\n");
        assert_eq!(lines.lost, 0);
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "nvlane: 2 lines of the log were lost: nobody took them\nagain\n");
    }

    #[test]
    fn whoever_has_gone_is_not_told() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut lines = Lines { lost: 0 };
        lines.offer(writer.as_fd(), b"a line\n");
        assert_eq!(lines.lost, 0);
    }
}
