//! What needs no process of its own: one program, so that the target is built and linked once.

#[path = "../host/mod.rs"]
mod host;
#[path = "../noting/mod.rs"]
mod noting;

mod abort;
mod authentication;
mod commands;
mod control;
mod copied;
mod copy;
mod crowds;
mod data;
mod drain;
mod lba_status;
mod passthrough;
mod pause;
mod pdus;
mod queues;
mod races;
