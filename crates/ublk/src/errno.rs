//! Which error a block device's user sees for an NVMe status.

use nvme::Status;

/// The error number that makes the kernel's block layer report what comes closest (block/blk-core.c,
/// `blk_errors`).
pub fn of_status(status: Status) -> i32 {
    match status.code() {
        // BLK_STS_MEDIUM, which users see as it is: the data is lost.
        Status::UNRECOVERED_READ | Status::DEALLOCATED_BLOCK => libc::ENODATA,
        // BLK_STS_NOSPC.
        Status::CAPACITY_EXCEEDED => libc::ENOSPC,
        // BLK_STS_RESV_CONFLICT.
        Status::RESERVATION_CONFLICT => libc::EBADE,
        // BLK_STS_NOTSUPP: the block layer does without from then on.
        Status::INVALID_OPCODE => libc::EOPNOTSUPP,
        // BLK_STS_PROTECTION.
        Status::GUARD_CHECK => libc::EILSEQ,
        // BLK_STS_TRANSPORT: nothing is wrong with the blocks.
        code if code.sct() == 3 => libc::ENOLINK,
        _ => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_become_what_the_block_layer_knows() {
        for (status, errno) in [
            (Status::UNRECOVERED_READ, libc::ENODATA),
            (Status::CAPACITY_EXCEEDED.dnr(), libc::ENOSPC),
            (Status::HOST_PATHING_ERROR, libc::ENOLINK),
            (Status::ANA_INACCESSIBLE, libc::ENOLINK),
            (Status::WRITE_FAULT, libc::EIO),
            (Status::LBA_OUT_OF_RANGE.dnr(), libc::EIO),
            (Status::NAMESPACE_WRITE_PROTECTED.dnr(), libc::EIO),
        ] {
            assert_eq!(of_status(status), errno, "{status}");
        }
    }
}
