//! Header and data digests: CRC32C (NVMe/TCP Transport 1.1, section 3.3).

use crate::pdu::DIGEST_BYTES;
use crc_fast::CrcAlgorithm;

/// CRC32C computed piece by piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    state: u32,
}

impl Digest {
    /// The digest of no bytes.
    #[inline]
    pub const fn new() -> Digest {
        Digest { state: u32::MAX }
    }

    /// Appends `bytes`.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        let state = u64::from(self.state);
        let mut digest = crc_fast::Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, state);
        digest.update(bytes);
        self.state = digest.get_state() as u32;
    }

    /// The digest as it is sent.
    #[inline]
    pub fn finish(self) -> [u8; DIGEST_BYTES] {
        (!self.state).to_le_bytes()
    }
}

impl Default for Digest {
    fn default() -> Digest {
        Digest::new()
    }
}

/// The digest of `bytes` as it is sent.
#[inline]
pub fn digest(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    crc_fast::crc32_iscsi(bytes).to_le_bytes()
}
