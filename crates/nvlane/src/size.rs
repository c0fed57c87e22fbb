//! Sizes as people write and read them, in powers of 1024.

/// Reads a size in bytes.
pub fn parse(text: &str) -> Result<u64, String> {
    namespace::human::parse_bytes(text)
        .ok_or_else(|| format!("`{text}` is no size: write bytes, or a number with K, M, G or T"))
}

/// Writes a size for reading: at most two decimals, `about` where that is not exact.
pub fn format(bytes: u64) -> String {
    for (unit, shift) in [("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >> shift == 0 {
            continue;
        }
        let hundredths = (u128::from(bytes) * 100) >> shift;
        let (whole, part) = (hundredths / 100, hundredths % 100);
        let sign = if u128::from(bytes) * 100 == hundredths << shift { "" } else { "about " };
        return match part {
            0 => format!("{sign}{whole} {unit}"),
            _ => format!("{sign}{whole}.{part:02} {unit}"),
        };
    }
    format!("{bytes} B")
}

/// The same where that is exact, and bytes otherwise.
pub fn exact(bytes: u64) -> String {
    let text = format(bytes);
    if text.starts_with("about ") { format!("{bytes} B") } else { text }
}

/// The same without `about`.
pub fn rough(bytes: u64) -> String {
    format(bytes).replace("about ", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_size_is_named() {
        assert_eq!(parse("1.5G"), Ok(3 << 29));
        assert!(parse("much").unwrap_err().contains("`much`"));
    }

    #[test]
    fn sizes_are_written() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (4096, "4 KiB"),
            (1536 << 20, "1.50 GiB"),
            ((1 << 30) + 1, "about 1 GiB"),
            (u64::MAX, "about 16383.99 PiB"),
        ] {
            assert_eq!(format(bytes), text);
        }
    }
}
