//! What is measured beside our own: NBD servers over TCP, fio on the local file, and SPDK's NVMe/TCP client.

pub mod fio;
pub mod nbd;
pub mod spdk;
