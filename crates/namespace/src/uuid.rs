//! UUIDs as text.

/// `uuid` in its usual form: 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12.
pub fn format(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// `&uuid=...` for a volume URI, or nothing.
pub(crate) fn query(uuid: Option<&[u8; 16]>) -> String {
    uuid.map(|uuid| format!("&uuid={}", format(uuid))).unwrap_or_default()
}

/// A UUID from 32 hexadecimal digits, with or without dashes.
pub fn parse(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u32> = text
        .chars()
        .filter(|&letter| letter != '-')
        .map(|digit| digit.to_digit(16))
        .collect::<Option<_>>()?;
    let mut uuid = [0; 16];
    if digits.len() != 32 || text.len() > 36 {
        return None;
    }
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (pair[0] << 4 | pair[1]) as u8;
    }
    Some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        let text = "01234567-89ab-cdef-0123-456789abcdef";
        let uuid = parse(text).expect("well formed");
        assert_eq!(format(&uuid), text);
        assert_eq!(parse("0123456789ABCDEF0123456789abcdef"), Some(uuid));
        for bad in
            ["", "0123", "0123456789abcdef0123456789abcdeg", "0123456789abcdef0123456789abcdef0"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
