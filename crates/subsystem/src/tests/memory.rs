//! What idle things cost: run with `--nocapture` for the figures.

use crate::NamespaceConfig;
use crate::controller::Controller;
use crate::subsystem::Namespace;

#[test]
fn idle_namespaces_and_controllers_are_small() {
    let namespace = size_of::<Namespace>() + size_of::<u32>();
    // NQNs are shared with the subsystem; the host's is its own, 68 bytes as Linux forms it.
    let controller = size_of::<Controller>() + 2 + 16 + 68;
    println!("idle namespace {namespace} bytes, idle controller {controller} bytes");
    assert!(namespace <= 128, "{namespace}");
    assert!(controller <= 1024, "{controller}");
    assert!(size_of::<NamespaceConfig>() <= 256);
}
