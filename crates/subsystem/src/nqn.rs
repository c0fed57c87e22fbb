//! NVMe Qualified Names (NVMe Base 2.1, section 4.7).

use nvme::fabrics::NQN_BYTES_MAX;

/// Whether `nqn` can be an NQN: 1 to 223 bytes without white space or control characters.
///
/// The form `nqn.yyyy-mm.` is not insisted on: Linux hosts and its own target never did, and
/// configurations with names such as `testnqn` exist.
pub fn is_valid_nqn(nqn: &str) -> bool {
    !nqn.is_empty()
        && nqn.len() <= NQN_BYTES_MAX
        && !nqn.chars().any(|c| c.is_control() || c.is_whitespace())
}

/// The NQN in a field of a structure: terminated by zero within the field, UTF-8, of valid form.
pub(crate) fn nqn_in_field(field: &[u8; 256]) -> Option<&str> {
    let end = field.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&field[..end]).ok().filter(|nqn| is_valid_nqn(nqn))
}

/// Who connects: the NQN in a field, or none at all, as SPDK's client tells by default. Such a host is on no list, and so
/// gets where any host may.
pub(crate) fn host_in_field(field: &[u8; 256]) -> Option<&str> {
    if field[0] == 0 { Some("") } else { nqn_in_field(field) }
}
