//! The queues of all guards of the process: who leaves a table wakes who waits there, wherever he lives.

use crate::layer::conflicts::User;
use crate::wake::Waker;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

static QUEUES: Mutex<BTreeMap<u64, Waker>> = Mutex::new(BTreeMap::new());

pub fn join(queue: &Waker) {
    queues().insert(queue.id(), queue.clone());
}

pub fn quit(queue: &Waker) {
    queues().remove(&queue.id());
}

/// Wakes a queue on behalf of one of its slots; nobody, if it has ended.
pub fn wake(user: User) {
    let waker = queues().get(&user.queue).cloned();
    if let Some(waker) = waker {
        waker.call(user.slot);
    }
}

fn queues() -> MutexGuard<'static, BTreeMap<u64, Waker>> {
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner)
}
