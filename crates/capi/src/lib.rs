//! libnvlane: [`volume::session`] for C, with `include/nvlane.h`.
//!
//! ```text
//!   nvl_session_new --> nvl_open --> nvl_submit* --> nvl_flush | nvl_wait --> nvl_reap --> completions
//!        |                 |              ^
//!        |                 '- volume      '- memory of nvl_buffer_new (registered), or any
//!        '- one ring, one thread
//! ```
//!
//! Every function gives 0 or a count, or a negative errno; `nvl_error()` then has the text, until the next call
//! of the same thread that fails. Handles are checked: null gives -EINVAL, so does a handle of another kind, and a
//! session, its volumes and its buffers refuse other threads than their own with -EPERM.
//!
//! What it does not do: threads. A session belongs to the thread that made it; take one for each. Remote volumes are
//! kept alive by a thread of the library's own. A child of fork() may not use what its parent has opened.
//!
//! Key constants: [`NVL_DEPTH_MAX`], [`NVL_BUFFER_BYTES_MAX`].

#![expect(non_camel_case_types, reason = "they are the names that C programs use")]

mod buffer;
mod copy;
mod errno;
mod failure;
mod handle;
mod paths;
mod session;
mod status;
mod submission;
mod volume;

pub use buffer::{
    NVL_BUFFER_BYTES_MAX, nvl_buffer, nvl_buffer_data, nvl_buffer_free, nvl_buffer_is_fixed,
    nvl_buffer_len, nvl_buffer_new,
};
pub use copy::{
    NVL_COPY_FAST_ONLY, NVL_COPY_RANGES_MAX, NVL_COPY_TARGETS_MAX, nvl_copy, nvl_copy_range,
    nvl_copy_source, nvl_copy_target, nvl_copy_to_all,
};
pub use failure::nvl_error;
pub use paths::{
    NVL_PATH_FAILING, NVL_PATH_GONE, NVL_PATH_INACCESSIBLE, NVL_PATH_LOST, NVL_PATH_NON_OPTIMIZED,
    NVL_PATH_OPTIMIZED, NVL_PATH_TEXT_BYTES, nvl_path, nvl_paths,
};
pub use session::{
    NVL_DEPTH_MAX, NVL_POLL, nvl_arm, nvl_config, nvl_flush, nvl_outstanding, nvl_poll_fd,
    nvl_refusal, nvl_session, nvl_session_free, nvl_session_new, nvl_wait,
};
pub use status::{
    nvl_io_status_text, nvl_io_status_words, nvl_status_text, nvl_status_words, nvl_version,
};
pub use submission::{
    NVL_ADMIN, NVL_IO, nvl_command, nvl_completion, nvl_reap, nvl_submit, nvl_submit_vectors,
};
pub use volume::{
    NVL_LIMITS_PASSES_ADMIN, NVL_LIMITS_PASSES_IO, NVL_LIMITS_READ_ONLY, NVL_LIMITS_VOLATILE,
    NVL_READ_ONLY, NVL_SHARED, nvl_close, nvl_limits, nvl_open, nvl_uri, nvl_volume, nvl_volume_id,
    nvl_volume_limits,
};
