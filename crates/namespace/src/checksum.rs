//! The checksum that a Verify may be asked for ([`nvme::Command::wants_checksum`]): CRC-64/NVME (NVM 1.1, section
//! 5.3.1.2), which every processor of today has instructions for.

use crc_fast::{CrcAlgorithm, Digest};

/// Its name.
pub const ALGORITHM: &str = "CRC-64/NVME";

const CRC: CrcAlgorithm = CrcAlgorithm::Crc64Nvme;

/// The checksum of bytes that come in order.
#[derive(Debug)]
pub struct Sum(Digest);

impl Default for Sum {
    fn default() -> Sum {
        Sum(Digest::new(CRC))
    }
}

impl Sum {
    /// Adds the bytes that follow.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all of them.
    pub fn value(&self) -> u64 {
        self.0.finalize()
    }
}

/// The checksum of `bytes`.
pub fn of(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CRC, bytes)
}

/// The checksum of some bytes and those after them, of which there are `len`.
pub fn combine(before: u64, after: u64, len: u64) -> u64 {
    crc_fast::checksum_combine(CRC, before, after, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_one_that_the_specification_gives_a_check_value_for() {
        assert_eq!(of(b"123456789"), 0xae8b_1486_0a79_9888);
        let mut sum = Sum::default();
        sum.add(b"1234");
        sum.add(b"56789");
        assert_eq!(sum.value(), of(b"123456789"));
        assert_eq!(combine(of(b"1234"), of(b"56789"), 5), of(b"123456789"));
    }
}
