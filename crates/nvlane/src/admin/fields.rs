//! Data structures as tables of fields: one description for text, for JSON and for what bits mean.

use super::text;
use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::ops::Range;

/// A data structure.
pub struct Table {
    /// Letters that names are padded to.
    pub name_width: usize,
    /// Its fields, in the order of their bytes.
    pub fields: &'static [Field],
    /// What else there is: text, and entries of the JSON object.
    pub more: More,
    /// The vendor specific bytes.
    pub vendor_specific: Range<usize>,
}

/// The part of a data structure that is no simple field.
pub struct More {
    /// Its text; the flag asks for what the values mean.
    pub text: fn(&[u8], bool) -> String,
    /// Its name in JSON, and its value.
    pub json: fn(&[u8]) -> (&'static str, Value),
    /// Whether a field is shown, going by the rest of the structure.
    pub shows: fn(&Field, &[u8]) -> bool,
}

/// One field.
pub struct Field {
    /// The specification's short name, in small letters.
    pub name: &'static str,
    /// Offset of its first byte.
    at: usize,
    kind: Kind,
    bits: &'static [Bits],
}

/// What a field is and how it is written.
#[derive(Clone, Copy)]
enum Kind {
    /// Little-endian, so many bytes, written decimal.
    Decimal(usize),
    /// The same, written hexadecimal; a number in JSON all the same.
    Hex(usize),
    /// Text of so many bytes.
    Text(usize),
    /// So many bytes, written one after the other.
    Bytes(usize),
    /// Three bytes, the last first.
    Oui,
    /// Sixteen bytes as a UUID.
    Uuid,
}

/// Some bits of a field.
pub struct Bits {
    high: u8,
    low: u8,
    words: Words,
}

enum Words {
    /// Something that there is or is not.
    Support(&'static str),
    /// What it counts.
    Value(&'static str),
    /// What it means when clear, and when set.
    Either(&'static str, &'static str),
}

/// A decimal field of `bytes` at offset `at`.
pub const fn decimal(name: &'static str, at: usize, bytes: usize) -> Field {
    Field { name, at, kind: Kind::Decimal(bytes), bits: &[] }
}

/// A hexadecimal field of `bytes` at offset `at`.
pub const fn hex(name: &'static str, at: usize, bytes: usize) -> Field {
    Field { name, at, kind: Kind::Hex(bytes), bits: &[] }
}

/// A field of `bytes` bytes of text.
pub const fn letters(name: &'static str, at: usize, bytes: usize) -> Field {
    Field { name, at, kind: Kind::Text(bytes), bits: &[] }
}

/// A field of `bytes` bytes that are no number.
pub const fn bytes(name: &'static str, at: usize, bytes: usize) -> Field {
    Field { name, at, kind: Kind::Bytes(bytes), bits: &[] }
}

/// An IEEE OUI.
pub const fn oui(name: &'static str, at: usize) -> Field {
    Field { name, at, kind: Kind::Oui, bits: &[] }
}

/// A UUID.
pub const fn uuid(name: &'static str, at: usize) -> Field {
    Field { name, at, kind: Kind::Uuid, bits: &[] }
}

impl Field {
    /// The same field, with what its bits mean.
    pub const fn bits(self, bits: &'static [Bits]) -> Field {
        Field { bits, ..self }
    }

    /// The number in a numeric field.
    fn number(&self, data: &[u8], len: usize) -> u128 {
        let mut bytes = [0; 16];
        bytes[..len].copy_from_slice(&data[self.at..][..len]);
        u128::from_le_bytes(bytes)
    }

    fn text(&self, data: &[u8]) -> String {
        match self.kind {
            Kind::Decimal(len) => self.number(data, len).to_string(),
            Kind::Hex(len) => hex_text(self.number(data, len)),
            Kind::Text(len) => text::of_field(&data[self.at..][..len]),
            Kind::Bytes(len) => hex_bytes(&data[self.at..][..len]),
            Kind::Oui => format!("{:06x}", self.number(data, 3)),
            Kind::Uuid => uuid_text(&data[self.at..][..16]),
        }
    }

    fn json(&self, data: &[u8]) -> Value {
        let len = match self.kind {
            Kind::Decimal(len) | Kind::Hex(len) => len,
            Kind::Oui => 3,
            Kind::Text(_) | Kind::Bytes(_) | Kind::Uuid => return self.text(data).into(),
        };
        let number = self.number(data, len);
        // Of 128 bits always text, as with nvme-cli, whether or not this one would fit a number.
        if len > size_of::<u64>() { number.to_string().into() } else { (number as u64).into() }
    }

    /// What its bits mean, one line each.
    fn meaning(&self, data: &[u8]) -> String {
        let (Kind::Decimal(len) | Kind::Hex(len)) = self.kind else { return String::new() };
        let value = self.number(data, len) as u64;
        meaning(self.bits, value)
    }
}

/// A bit, and what it says is supported.
pub const fn bit(bit: u8, what: &'static str) -> Bits {
    Bits { high: bit, low: bit, words: Words::Support(what) }
}

/// Bits, and what their value is.
pub const fn value(high: u8, low: u8, what: &'static str) -> Bits {
    Bits { high, low, words: Words::Value(what) }
}

/// A bit, what it means when clear, and when set.
pub const fn either(bit: u8, clear: &'static str, set: &'static str) -> Bits {
    Bits { high: bit, low: bit, words: Words::Either(clear, set) }
}

/// What the bits of a value mean, one line each, and an empty line behind.
pub fn meaning(bits: &[Bits], value: u64) -> String {
    let mut text = String::new();
    for Bits { high, low, words } in bits {
        let part = value >> low & (u64::MAX >> (63 - (high - low)));
        let _ = write!(text, "  [{high}:{low}] : {}\t", hex_text(part.into()));
        let _ = match words {
            Words::Support(what) if part == 0 => writeln!(text, "{what} Not Supported"),
            Words::Support(what) => writeln!(text, "{what} Supported"),
            Words::Value(what) => writeln!(text, "{what}"),
            Words::Either(clear, _) if part == 0 => writeln!(text, "{clear}"),
            Words::Either(_, set) => writeln!(text, "{set}"),
        };
    }
    if !bits.is_empty() {
        text.push('\n');
    }
    text
}

/// Hexadecimal as C's `%#x` writes it.
pub fn hex_text(value: u128) -> String {
    if value == 0 { "0".to_owned() } else { format!("{value:#x}") }
}

/// Bytes as hexadecimal digits.
pub fn hex_bytes(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn uuid_text(bytes: &[u8]) -> String {
    uuid::Uuid::from_slice(bytes).expect("sixteen bytes").to_string()
}

impl Table {
    /// One line for each field; with `human`, what its bits mean below it.
    pub fn text(&self, data: &[u8], human: bool) -> String {
        let mut text = String::new();
        let width = self.name_width;
        for field in self.shown(data) {
            let _ = writeln!(text, "{:width$}: {}", field.name, field.text(data));
            if human {
                text.push_str(&field.meaning(data));
            }
        }
        text.push_str(&(self.more.text)(data, human));
        text
    }

    /// The fields by name.
    pub fn json(&self, data: &[u8]) -> Map<String, Value> {
        let mut object: Map<String, Value> =
            self.shown(data).map(|field| (field.name.to_owned(), field.json(data))).collect();
        let (name, value) = (self.more.json)(data);
        object.insert(name.to_owned(), value);
        object
    }

    fn shown<'a>(&'a self, data: &'a [u8]) -> impl Iterator<Item = &'a Field> {
        self.fields.iter().filter(move |field| (self.more.shows)(field, data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_little_endian_and_written_as_c_does() {
        let data = [0x34, 0x12, 0, 0, 1, 2, 3];
        assert_eq!(hex("x", 0, 2).text(&data), "0x1234");
        assert_eq!(hex("x", 2, 2).text(&data), "0");
        assert_eq!(decimal("x", 0, 4).text(&data), "4660");
        assert_eq!(oui("x", 4).text(&data), "030201");
        assert_eq!(oui("x", 4).json(&data), Value::from(0x03_0201));
        assert_eq!(decimal("x", 0, 2).json(&data), Value::from(0x1234));
        assert_eq!(decimal("x", 0, 16).json(&[0xff; 16]), Value::from(u128::MAX.to_string()));
        assert_eq!(decimal("x", 0, 16).json(&[0; 16]), Value::from("0"));
    }

    #[test]
    fn bits_say_what_they_mean() {
        const BITS: &[Bits] = &[
            bit(3, "ANA"),
            either(1, "Single Controller", "Multi Controller"),
            value(63, 60, "n"),
        ];
        let text = meaning(BITS, 8 | 5 << 60);
        assert_eq!(
            text,
            "  [3:3] : 0x1\tANA Supported\n  [1:1] : 0\tSingle Controller\n  [63:60] : 0x5\tn\n\n"
        );
        assert_eq!(meaning(&[], 1), "");
    }
}
