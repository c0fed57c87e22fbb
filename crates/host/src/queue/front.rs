//! What the users of a queue hold.

use super::IoQueue;
use crate::path::Path;
use namespace::{Access, AccessWatcher, Queue, Request};
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// What callers hold: the queue ends with it, and the path goes on as long.
pub(crate) struct PathQueue {
    pub(super) io: Rc<IoQueue>,
    pub(super) _path: Option<Arc<Path>>,
}

impl PathQueue {
    /// Whether a command is sent, although none may be that could go another way.
    pub(crate) fn is_connected(&self) -> bool {
        self.io.live.get() && self.io.shared.access().is_usable()
    }
}

impl Queue for PathQueue {
    #[inline]
    fn submit(&self, request: Box<Request>) {
        self.io.submit(request);
    }

    fn submit_admin(&self, request: Box<Request>) {
        self.io.submit_admin(request);
    }

    #[inline]
    fn access(&self) -> Access {
        self.io.access()
    }

    fn watch_access(&self, watcher: Weak<dyn AccessWatcher>) {
        self.io.watcher.replace(Some(watcher));
    }

    fn forget(&self) {
        self.io.close();
        drop((self.io.done.take(), self.io.admins.waiting.take()));
    }
}

impl Drop for PathQueue {
    fn drop(&mut self) {
        self.io.close();
    }
}
