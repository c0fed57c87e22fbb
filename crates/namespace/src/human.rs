//! Sizes, counts and durations as people write them.

use std::time::Duration;

/// Suffixes of powers of 1024, ascending.
const BINARY: &[u8] = b"KMGTPE";

/// Bytes from `10G`, `1.5M`, `4096`, `64KiB`: K, M, G, T, P, E are powers of 1024, with or
/// without `B` or `iB`, in either case. None if it is no such number or has a fraction of a byte.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let number = lower.strip_suffix("ib").or(lower.strip_suffix('b')).unwrap_or(&lower);
    scaled(number, 1024).filter(|_| {
        // `iB` belongs to a suffix: `10iB` means nothing.
        !lower.ends_with("ib") || number.ends_with(|last: char| last.is_ascii_alphabetic())
    })
}

/// A count from `10K`, `1.5M`, `300`: K, M, G, T are powers of 1000.
pub fn parse_count(text: &str) -> Option<u64> {
    scaled(&text.to_ascii_lowercase(), 1000)
}

/// A decimal number with a suffix that multiplies by a power of `base`.
fn scaled(text: &str, base: u64) -> Option<u64> {
    let power = BINARY
        .iter()
        .position(|&suffix| text.as_bytes().last() == Some(&suffix.to_ascii_lowercase()));
    let (number, factor) = match power {
        None => (text, 1),
        Some(power) => (&text[..text.len() - 1], base.checked_pow(power as u32 + 1)?),
    };
    multiplied(number, factor)
}

/// A decimal number, possibly with a fraction, times `factor`; none if that is no whole number.
fn multiplied(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| {
        !text.is_empty() && text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    if !digits(whole) || !digits(fraction) || fraction.len() > 18 {
        return None;
    }
    let scale = 10u128.pow(fraction.len() as u32);
    let parts = u128::from(factor) * fraction.parse::<u128>().ok()?;
    if !parts.is_multiple_of(scale) {
        return None;
    }
    let whole = whole.parse::<u128>().ok()?.checked_mul(u128::from(factor))?;
    u64::try_from(whole.checked_add(parts / scale)?).ok()
}

/// The shortest text without a fraction that [`parse_bytes`] reads back.
pub fn format_bytes(bytes: u64) -> String {
    format_scaled(bytes, 1024)
}

/// The shortest text without a fraction that [`parse_count`] reads back.
pub fn format_count(count: u64) -> String {
    format_scaled(count, 1000)
}

fn format_scaled(mut number: u64, base: u64) -> String {
    let mut suffix = String::new();
    for &next in BINARY {
        if number == 0 || !number.is_multiple_of(base) {
            break;
        }
        number /= base;
        suffix = char::from(next).to_string();
    }
    format!("{number}{suffix}")
}

/// Units of time and their nanoseconds, longest first.
const TIMES: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

/// A duration from `30ms`, `1.5s`, `200us`, `10ns`, `0`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let start = text.find(|letter: char| letter.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(start);
    let (_, nanoseconds) = TIMES.into_iter().find(|(name, _)| *name == unit)?;
    multiplied(number, nanoseconds).map(Duration::from_nanos)
}

/// The shortest text without a fraction that [`parse_duration`] reads back.
pub fn format_duration(time: Duration) -> String {
    let nanoseconds = time.as_nanos();
    if nanoseconds == 0 {
        return "0".into();
    }
    let whole = |(_, unit): &(&str, u64)| nanoseconds.is_multiple_of(u128::from(*unit));
    let (name, unit) = TIMES.into_iter().find(whole).expect("every duration is whole nanoseconds");
    format!("{}{name}", nanoseconds / u128::from(unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_that_people_write() {
        let good = [
            ("0", 0),
            ("4096", 4096),
            ("1K", 1 << 10),
            ("1k", 1 << 10),
            ("1KiB", 1 << 10),
            ("1kb", 1 << 10),
            ("10G", 10 << 30),
            ("1.5M", 3 << 19),
            ("2T", 2 << 40),
            ("15E", 15 << 60),
            ("512B", 512),
        ];
        for (text, bytes) in good {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for text in ["", "K", "1.", ".5K", "-1", "1.0001K", "16E", "10iB", "1 G", "1KK", "0x10"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
        assert_eq!(parse_count("10K"), Some(10_000));
        assert_eq!(parse_duration("1.5ms"), Some(Duration::from_micros(1500)));
        for text in ["", "1", "1m", "ms", "-1s", "0.1ns", "99999999999999999999s"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn formatting_is_undone_by_parsing(number: u64) {
            prop_assert_eq!(parse_bytes(&format_bytes(number)), Some(number));
            prop_assert_eq!(parse_count(&format_count(number)), Some(number));
            let time = Duration::from_nanos(number);
            prop_assert_eq!(parse_duration(&format_duration(time)), Some(time));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = (parse_bytes(&text), parse_count(&text), parse_duration(&text));
        }
    }
}
