//! State of the paths to a namespace, and the policies that select among them.
