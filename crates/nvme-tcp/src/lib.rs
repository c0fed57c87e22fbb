//! nvme-tcp
