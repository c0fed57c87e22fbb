//! NVMe Qualified Names (NVMe Base 2.1, section 4.7).

use nvme::fabrics::NQN_BYTES_MAX;

/// Whether `nqn` has the form of an NQN: `nqn.yyyy-mm.` and a name, at most 223 bytes, without
/// white space or control characters.
pub fn is_valid_nqn(nqn: &str) -> bool {
    let Some(rest) = nqn.strip_prefix("nqn.") else { return false };
    let bytes = rest.as_bytes();
    let dated = bytes.len() > 8
        && bytes[..4].iter().all(u8::is_ascii_digit)
        && bytes[4] == b'-'
        && bytes[5..7].iter().all(u8::is_ascii_digit)
        && bytes[7] == b'.';
    dated && nqn.len() <= NQN_BYTES_MAX && !nqn.chars().any(|c| c.is_control() || c == ' ')
}

/// The NQN in a field of a structure: terminated by zero within the field, UTF-8, of valid form.
pub(crate) fn nqn_in_field(field: &[u8; 256]) -> Option<&str> {
    let end = field.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&field[..end]).ok().filter(|nqn| is_valid_nqn(nqn))
}
