//! What needs no process of its own: one program, so that backends and layers are built and linked once.

mod access;
mod flush_all;
mod limits;
mod os_error;
mod refresh_all;
mod volatile;
