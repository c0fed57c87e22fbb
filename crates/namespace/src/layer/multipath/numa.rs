//! How far paths are from a core, as the kernel tells it (`/sys/devices/system`).

use multipath::Selector;
use std::fs;
use std::path::Path;

/// Of what is not known to be anywhere: Linux's `LOCAL_DISTANCE`, with which it counts controllers
/// that have no node.
const LOCAL: u8 = 10;

/// Tells `selector` how far each path is from this thread's core; the paths' devices are at `nodes`.
/// Read once: a core that serves a queue stays where it is.
pub fn place(selector: &mut Selector, nodes: impl Iterator<Item = Option<u32>>, system: &Path) {
    let nodes: Vec<Option<u32>> = nodes.collect();
    if nodes.iter().any(Option::is_some) {
        // SAFETY: it takes nothing and has no conditions.
        let cpu = unsafe { libc::sched_getcpu() };
        place_from(selector, &nodes, system, cpu);
    }
}

fn place_from(selector: &mut Selector, nodes: &[Option<u32>], system: &Path, cpu: i32) {
    let Some(distances) = node_of(system, cpu).and_then(|node| distances(system, node)) else {
        return;
    };
    for (path, node) in nodes.iter().enumerate() {
        let known = distances.iter().find(|(other, _)| Some(*other) == *node);
        selector.place(path, known.map_or(LOCAL, |(_, distance)| *distance));
    }
}

/// The node of a processor.
fn node_of(system: &Path, cpu: i32) -> Option<u32> {
    nodes_in(&system.join(format!("cpu/cpu{cpu}"))).first().copied()
}

/// How far each online node is from `node`.
fn distances(system: &Path, node: u32) -> Option<Vec<(u32, u8)>> {
    let nodes = system.join("node");
    let text = fs::read_to_string(nodes.join(format!("node{node}/distance"))).ok()?;
    let distances = text.split_ascii_whitespace().map(|text| text.parse::<u8>().ok());
    let distances = distances.collect::<Option<Vec<u8>>>()?;
    // In the order of the nodes that are online: those that have a directory.
    let online = nodes_in(&nodes);
    (online.len() == distances.len()).then(|| online.into_iter().zip(distances).collect())
}

/// Numbers of the entries `nodeN`, in order.
fn nodes_in(directory: &Path) -> Vec<u32> {
    let number = |entry: std::io::Result<fs::DirEntry>| {
        entry.ok()?.file_name().to_str()?.strip_prefix("node")?.parse().ok()
    };
    let mut nodes: Vec<u32> =
        fs::read_dir(directory).map_or_else(|_| Vec::new(), |all| all.filter_map(number).collect());
    nodes.sort_unstable();
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::multipath::{Multipath, MultipathOptions};
    use crate::memory::{Memory, MemoryOptions};
    use crate::{Namespace, Queue, Request, Sink};
    use multipath::{Group, PathSet, Policy, Settings, Shared, Standing};
    use nvme::{Command, Limits, opcode};
    use reactor::Reactor;
    use std::io;
    use std::rc::Rc;
    use std::sync::Arc;

    /// Nodes 0, 1 and 4 of a machine whose processor 3 is at node 1.
    fn system() -> tempfile::TempDir {
        let system = tempfile::tempdir().expect("a directory");
        let put = |place: &str, text: &str| {
            let path = system.path().join(place);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, text).expect("a file");
        };
        put("node/node0/distance", "10 21 31\n");
        put("node/node1/distance", "21 10 12\n");
        put("node/node4/distance", "31 12 10\n");
        put("node/online", "0-1,4\n");
        put("cpu/cpu3/node1/x", "");
        put("cpu/cpu3/topology/core_id", "3\n");
        system
    }

    /// Which path the policy `numa` takes on processor `cpu`.
    fn nearest(nodes: &[Option<u32>], system: &Path, cpu: i32) -> usize {
        let settings = Settings { policy: Policy::Numa, ..Settings::default() };
        let mut selector = Selector::new(nodes.len(), settings, Arc::new(Shared::default()), 1);
        for path in 0..nodes.len() {
            selector.stand(path, Standing::Optimized);
        }
        place_from(&mut selector, nodes, system, cpu);
        selector.select(0, Group::Read, 4096, PathSet::EMPTY).expect("all are usable")
    }

    #[test]
    fn the_nearest_path_is_found() {
        let system = system();
        let system = system.path();
        assert_eq!(nearest(&[Some(0), Some(4), Some(1)], system, 3), 2);
        assert_eq!(nearest(&[Some(0), Some(4)], system, 3), 1);
        // What has no node is as good as here.
        assert_eq!(nearest(&[Some(0), None, Some(4)], system, 3), 1);
        // Unknown: a node that is gone, another processor, no such directory.
        assert_eq!(nearest(&[Some(0), Some(7)], system, 3), 1);
        assert_eq!(nearest(&[Some(0), Some(1)], system, 2), 0);
        assert_eq!(nearest(&[Some(0), Some(1)], Path::new("/nonexistent"), 3), 0);
    }

    /// A volume that is reached by a device at a node.
    #[derive(Debug)]
    struct At(u32, Arc<dyn Namespace>);

    impl Namespace for At {
        fn limits(&self) -> Limits {
            self.1.limits()
        }

        fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
            self.1.clone().open_queue(reactor)
        }

        fn refresh(&self) -> io::Result<bool> {
            self.1.refresh()
        }

        fn resize(&self, bytes: u64) -> io::Result<()> {
            self.1.resize(bytes)
        }

        fn flush(&self) -> io::Result<()> {
            self.1.flush()
        }

        fn uri(&self) -> String {
            self.1.uri()
        }

        fn describe(&self, facts: &mut Vec<(String, String)>) {
            self.1.describe(facts);
        }

        fn uuid(&self) -> Option<[u8; 16]> {
            None
        }

        fn numa_node(&self) -> Option<u32> {
            Some(self.0)
        }
    }

    struct Ignore;

    impl Sink for Ignore {
        fn completed(&self, _request: Box<Request>, _state: u64) {}
    }

    #[test]
    fn a_queue_uses_the_path_that_is_near() {
        let system = system();
        // Whatever processor this runs on is at node 1.
        for cpu in 0..1024 {
            let cpu = system.path().join(format!("cpu/cpu{cpu}/node1"));
            fs::create_dir_all(cpu).expect("a directory");
        }
        let options =
            MemoryOptions { bytes: 1 << 20, block_shift: 12, cores: 1, lend: false, uuid: None };
        let volume = Memory::open(options).expect("memory");
        let path = |node| Arc::new(At(node, volume.clone())) as Arc<dyn Namespace>;
        let settings = Settings { policy: Policy::Numa, ..Settings::default() };
        let options = MultipathOptions { tuning: settings.into(), ..MultipathOptions::default() };
        let mut multipath =
            Multipath::new(vec![path(0), path(4), path(1)], options).expect("one namespace");
        let own = Arc::get_mut(&mut multipath).expect("nobody else has it");
        own.system = Box::leak(system.path().to_path_buf().into_boxed_path());
        let reactor = Reactor::new(&reactor::Config::default()).expect("a reactor");
        let queue = Namespace::open_queue(multipath.clone(), &reactor).expect("a queue");
        let mut request = Request::new();
        request.command = Command { opcode: opcode::io::FLUSH, ..Command::default() };
        request.push(Rc::new(Ignore), 0);
        queue.submit(request);
        let sent: Vec<u64> = multipath.paths().iter().map(|path| path.selections).collect();
        assert_eq!(sent, [0, 0, 1]);
    }

    #[test]
    fn a_list_that_does_not_fit_is_not_used() {
        let system = system();
        fs::create_dir(system.path().join("node/node5")).expect("a directory");
        assert_eq!(nearest(&[Some(0), Some(1)], system.path(), 3), 0);
        fs::write(system.path().join("node/node1/distance"), "21 10 x y").expect("a file");
        assert_eq!(nearest(&[Some(0), Some(1)], system.path(), 3), 0);
    }
}
