//! What is measured beside our own: NBD servers over TCP, and fio on the local file.

pub mod fio;
pub mod nbd;
