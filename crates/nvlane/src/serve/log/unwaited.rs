//! Lines for standard error that nobody waits for: cores log, and what they serve is not to stand still because whoever reads
//! the log (a full pipe, a terminal that was stopped, a journal that hangs) does.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// As much as a pipe that can be written to takes at once (PIPE_BUF).
const PIECE_BYTES: usize = 4096;
/// How long a line waits for room, if the one before it was written.
const PATIENCE: Duration = Duration::from_millis(5);

/// Where lines are written, one call for each.
pub struct Unwaited;

static LINES: Mutex<Option<Lines>> = Mutex::new(None);

impl Write for Unwaited {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
        let stderr = io::stderr();
        lines.get_or_insert_with(|| Lines::to(stderr.as_fd())).offer(stderr.as_fd(), line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines to somewhere, and what became of them.
struct Lines {
    way: Way,
    /// So many were lost since the last that was written.
    lost: u64,
    /// The last one was written in part.
    is_cut: bool,
}

/// How to write without waiting, whoever else writes there and waits.
enum Way {
    /// By a description of our own, which does not wait: pipes, terminals.
    Own(OwnedFd),
    /// Sockets are told so each time.
    Socket,
    /// Where there is room, as they say.
    AsItIs,
}

impl Lines {
    fn to(place: BorrowedFd<'_>) -> Lines {
        let kind = rustix::fs::fstat(place).map(|found| FileType::from_raw_mode(found.st_mode));
        let way = match kind {
            Ok(FileType::Socket) => Way::Socket,
            Ok(FileType::Fifo | FileType::CharacterDevice) => {
                let name = format!("/proc/self/fd/{}", place.as_raw_fd());
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                rustix::fs::open(name, flags, Mode::empty()).map_or(Way::AsItIs, Way::Own)
            }
            _ => Way::AsItIs,
        };
        Lines { way, lost: 0, is_cut: false }
    }

    /// Writes a line, or notes that it is lost.
    fn offer(&mut self, place: BorrowedFd<'_>, line: &[u8]) {
        let mut patience = PATIENCE;
        if self.lost > 0 {
            patience = Duration::ZERO;
            let (end, lost) = (if self.is_cut { "\n" } else { "" }, self.lost);
            let notice =
                format!("{end}nvlane: lines of the log that nobody took, and are lost: {lost}\n");
            if !self.write(place, notice.as_bytes(), patience) {
                self.lost += 1;
                return;
            }
            self.lost = 0;
        }
        if !self.write(place, line, patience) {
            self.lost += 1;
        }
    }

    /// Whether all of `bytes` was taken, or nobody is there who ever will.
    fn write(&mut self, place: BorrowedFd<'_>, bytes: &[u8], patience: Duration) -> bool {
        let mut left = bytes;
        while !left.is_empty() {
            let piece = &left[..left.len().min(PIECE_BYTES)];
            let written = match (has_room(place, patience), &self.way) {
                (false, _) => Err(Errno::AGAIN),
                (true, Way::Own(own)) => rustix::io::write(own, piece),
                (true, Way::Socket) => {
                    rustix::net::send(place, piece, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
                }
                (true, Way::AsItIs) => rustix::io::write(place, piece),
            };
            match written {
                Ok(count) => left = &left[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.is_cut |= left.len() < bytes.len();
                    return false;
                }
                // As with `eprintln!` in a program that goes on.
                Err(_) => return true,
            }
        }
        self.is_cut = false;
        true
    }
}

/// Whether there is room, by `patience` from now at the latest.
fn has_room(place: BorrowedFd<'_>, patience: Duration) -> bool {
    let patience = Timespec::try_from(patience).expect("some milliseconds");
    loop {
        match poll(&mut [PollFd::new(&place, PollFlags::OUT)], Some(&patience)) {
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
    use std::os::unix::net::UnixStream;

    const NOTICE: &str = "nvlane: lines of the log that nobody took, and are lost: 2\n";

    #[test]
    fn a_line_that_nobody_takes_is_lost_and_told() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut lines = Lines::to(writer.as_fd());
        assert!(matches!(lines.way, Way::Own(_)));
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
        drop((lines, writer));
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, format!("{NOTICE}again\n"));
    }

    /// Larger than all that there is room for, whoever has a socket waits for it.
    #[test]
    fn a_line_that_is_taken_in_part_is_ended_first() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let mut lines = Lines::to(writer.as_fd());
        assert!(matches!(lines.way, Way::Socket));
        let long = vec![b'x'; 16 << 20];
        lines.offer(writer.as_fd(), &long);
        assert!(lines.is_cut && lines.lost == 1);
        lines.offer(writer.as_fd(), b"lost\n");
        assert_eq!(lines.lost, 2);
        let mut all = Vec::new();
        reader.set_nonblocking(true).unwrap();
        assert_eq!(reader.read_to_end(&mut all).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(all.iter().all(|&byte| byte == b'x') && all.len() < long.len());
        lines.offer(writer.as_fd(), b"again\n");
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, format!("\n{NOTICE}again\n"));
    }

    #[test]
    fn whoever_has_gone_is_not_told() {
        let (reader, writer) = io::pipe().unwrap();
        let mut lines = Lines::to(writer.as_fd());
        drop(reader);
        lines.offer(writer.as_fd(), b"a line\n");
        assert_eq!(lines.lost, 0);
        // Nor one who was never there.
        let mut lines = Lines::to(writer.as_fd());
        lines.offer(writer.as_fd(), b"a line\n");
        assert_eq!(lines.lost, 0);
    }
}
