//! What the driver of this kernel can do, in words.

use crate::driver::flag;

/// The driver's features (`UBLK_U_CMD_GET_FEATURES`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features(u64);

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its bit in [`flag`].
    pub bit: u64,
    /// As the header calls it.
    pub name: &'static str,
    /// First kernel that has it.
    pub since: &'static str,
    /// What it is good for here.
    pub gives: &'static str,
    /// Whether anything here makes use of it.
    pub is_used: bool,
}

/// All that are known, in the order of their bits.
pub const KNOWN: &[Feature] = &[
    feature(flag::SUPPORT_ZERO_COPY, "SUPPORT_ZERO_COPY", "6.15", "zero copy", true),
    feature(1 << 1, "URING_CMD_COMP_IN_TASK", "6.0", "nothing since 6.3", false),
    feature(1 << 2, "NEED_GET_DATA", "6.1", "a copy whose memory is named late", false),
    feature(flag::USER_RECOVERY, "USER_RECOVERY", "6.1", "devices outlive their server", true),
    feature(
        flag::USER_RECOVERY_REISSUE,
        "USER_RECOVERY_REISSUE",
        "6.1",
        "and lose no request when it is killed",
        true,
    ),
    feature(flag::UNPRIVILEGED_DEV, "UNPRIVILEGED_DEV", "6.3", "devices without root", true),
    feature(flag::CMD_IOCTL_ENCODE, "CMD_IOCTL_ENCODE", "6.4", "the present commands", true),
    feature(flag::USER_COPY, "USER_COPY", "6.5", "one copy, by the server", true),
    feature(flag::ZONED, "ZONED", "6.6", "zoned devices", true),
    feature(
        flag::USER_RECOVERY_FAIL_IO,
        "USER_RECOVERY_FAIL_IO",
        "6.13",
        "errors while there is no server",
        false,
    ),
    feature(flag::UPDATE_SIZE, "UPDATE_SIZE", "6.16", "resizing in use", true),
    feature(flag::AUTO_BUF_REG, "AUTO_BUF_REG", "6.16", "zero copy without further commands", true),
    feature(flag::QUIESCE, "QUIESCE", "6.16", "upgrades of the server in use", true),
    feature(flag::PER_IO_DAEMON, "PER_IO_DAEMON", "6.16", "several threads per queue", true),
    feature(flag::BUF_REG_OFF_DAEMON, "BUF_REG_OFF_DAEMON", "6.17", "several rings", false),
    feature(flag::BATCH_IO, "BATCH_IO", "7.0", "many requests per command", true),
    feature(flag::INTEGRITY, "INTEGRITY", "7.0", "metadata", false),
    feature(flag::SAFE_STOP_DEV, "SAFE_STOP_DEV", "7.0", "del refuses what is in use", true),
    feature(flag::NO_AUTO_PART_SCAN, "NO_AUTO_PART_SCAN", "7.1", "no partitions", false),
    feature(flag::SHMEM_ZC, "SHMEM_ZC", "7.2", "memory shared with clients", false),
    feature(flag::IO_DESC_SIZE, "IO_DESC_SIZE", "7.3", "descriptors of another size", false),
];

const fn feature(
    bit: u64,
    name: &'static str,
    since: &'static str,
    gives: &'static str,
    is_used: bool,
) -> Feature {
    Feature { bit, name, since, gives, is_used }
}

impl Features {
    /// Those of a mask.
    pub const fn new(mask: u64) -> Features {
        Features(mask)
    }

    /// The mask.
    pub const fn mask(self) -> u64 {
        self.0
    }

    /// Whether the driver has all of `bits`.
    pub const fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }

    /// The known features with whether they are there.
    pub fn each(self) -> impl Iterator<Item = (&'static Feature, bool)> {
        KNOWN.iter().map(move |feature| (feature, self.has(feature.bit)))
    }

    /// Bits that nobody here knows.
    pub fn unknown(self) -> u64 {
        KNOWN.iter().fold(self.0, |mask, feature| mask & !feature.bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_is_listed_once_and_in_order() {
        for (place, feature) in KNOWN.iter().enumerate() {
            assert_eq!(feature.bit, 1 << place, "{}", feature.name);
        }
        assert_eq!(Features::new(0x1f_ffff).unknown(), 0);
        assert_eq!(Features::new(1 << 21 | 1).unknown(), 1 << 21);
        assert_eq!(Features::new(0).each().filter(|(_, there)| *there).count(), 0);
    }
}
