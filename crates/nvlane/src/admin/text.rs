//! Bytes of a peer as text for a terminal.

use std::fmt::Write as _;

/// Bytes per line of a dump.
const LINE_BYTES: usize = 16;

/// The text in a field that is padded with spaces or zeroes, without what a terminal would obey.
pub fn of_field(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..end]);
    text.trim().chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// A dump as nvme-cli writes it: sixteen bytes a line, with their offset and the letters they are.
pub fn hexdump(data: &[u8]) -> String {
    let mut text = "     ".to_owned();
    (0..LINE_BYTES).for_each(|column| {
        let _ = write!(text, "{column:3x}");
    });
    text.push('\n');
    for (index, line) in data.chunks(LINE_BYTES).enumerate() {
        let _ = write!(text, "{:04x}:", index * LINE_BYTES);
        for byte in line {
            let _ = write!(text, " {byte:02x}");
        }
        let missing = LINE_BYTES - line.len();
        let letter = |&byte: &u8| if byte.is_ascii_graphic() { char::from(byte) } else { '.' };
        let letters: String = line.iter().map(letter).collect();
        let _ = writeln!(text, "{:missing$} \"{letters}\"", "", missing = 3 * missing);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_letter_gets_through() {
        assert_eq!(of_field(b"  a b \0junk"), "a b");
        assert_eq!(of_field(b"\x1b[2Jx\r\n\x7f"), "?[2Jx\r\n?".replace(['\r', '\n'], "?"));
        assert_eq!(of_field(b"\xff\x00"), "\u{fffd}");
        assert_eq!(of_field(b"        "), "");
    }

    #[test]
    fn a_dump_has_offsets_bytes_and_letters() {
        let mut data = vec![0u8; 18];
        data[0] = b'N';
        data[17] = 0xff;
        let dump = hexdump(&data);
        let lines: Vec<&str> = dump.lines().collect();
        assert_eq!(lines[0], "       0  1  2  3  4  5  6  7  8  9  a  b  c  d  e  f");
        assert_eq!(lines[1].split_once(": ").unwrap().0, "0000");
        assert!(lines[1].ends_with("\"N...............\""), "{}", lines[1]);
        assert!(
            lines[2].starts_with("0010: 00 ff ") && lines[2].ends_with("\"..\""),
            "{}",
            lines[2]
        );
        assert_eq!(lines[1].find('"'), lines[2].find('"'));
    }
}
