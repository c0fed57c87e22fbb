//! The NBD server: any volume for clients of the Network Block Device protocol.
