//! Tests against the public interface.
