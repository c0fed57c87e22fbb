//! Links of this machine's own: pairs of virtual Ethernet devices into a network namespace.
//!
//! ```text
//!   this namespace                       namespace nvl-PID
//!   10.X.I.1 nvlPIDhI  ==== tbf ====>  nvlPIDtI 10.X.I.2   target listens      (X by the PID)
//!                        <=== tbf =====
//! ```

use anyhow::{Context, bail, ensure};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

/// Where the kernel's network namespaces have names, and how ours begin.
const NAMESPACES: &str = "/run/netns";
const PREFIX: &str = "nvl-";
/// Bytes that a link lets through at once: a few segments as the kernel offloads them.
const BURST: &str = "256kb";
/// How long data may wait in a link's queue.
const QUEUE: &str = "30ms";

/// The namespace with its links; removed when dropped, or by the next bench if this one is killed.
pub struct Net {
    name: String,
    links: usize,
}

/// A direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What the host sends: commands, and data to be written.
    ToTarget,
    /// What the target sends.
    ToHost,
}

impl Net {
    /// Makes `mbit.len()` links, each of so many Mbit/s in both directions; 0 for as many as there are.
    pub fn new(mbit: &[u32]) -> anyhow::Result<Net> {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            bail!("links can only be made by root: sudo nvlane bench ...");
        }
        ensure!(mbit.len() <= 16, "too many links");
        clear_away();
        let net = Net { name: format!("{PREFIX}{}", std::process::id()), links: mbit.len() };
        ip(&format!("netns add {}", net.name))?;
        ip(&format!("-n {} link set lo up", net.name))?;
        for (link, &rate) in mbit.iter().enumerate() {
            let (host, target) = net.devices(link);
            ip(&format!("link add {host} type veth peer name {target} netns {}", net.name))?;
            let [first, second] = subnet();
            ip(&format!("addr add {first}.{second}.{link}.1/30 dev {host}"))?;
            ip(&format!("-n {} addr add {first}.{second}.{link}.2/30 dev {target}", net.name))?;
            ip(&format!("link set {host} up"))?;
            ip(&format!("-n {} link set {target} up", net.name))?;
            if rate > 0 {
                net.shape(link, Way::ToTarget, rate)?;
                net.shape(link, Way::ToHost, rate)?;
            }
        }
        Ok(net)
    }

    /// The target's address on a link.
    pub fn address(&self, link: usize, port: u16) -> SocketAddr {
        let [first, second] = subnet();
        SocketAddr::from((Ipv4Addr::new(first, second, link as u8, 2), port))
    }

    /// Bytes that have gone over a link since it was made, headers and all: to the target, to the host.
    pub fn traffic(&self, link: usize) -> anyhow::Result<[u64; 2]> {
        let (host, _) = self.devices(link);
        let count = |name: &str| {
            let path = format!("/sys/class/net/{host}/statistics/{name}");
            let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
            text.trim().parse::<u64>().context(path)
        };
        Ok([count("tx_bytes")?, count("rx_bytes")?])
    }

    /// The name by which `ip netns exec` knows the target's side.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the rate of one direction of a link.
    pub fn shape(&self, link: usize, way: Way, mbit: u32) -> anyhow::Result<()> {
        self.qdisc(link, way, &format!("tbf rate {mbit}mbit burst {BURST} latency {QUEUE}"))
    }

    /// Lets nothing through any more, without a word to either end.
    pub fn swallow(&self, link: usize) -> anyhow::Result<()> {
        for way in [Way::ToTarget, Way::ToHost] {
            self.qdisc(link, way, "tbf rate 8bit burst 1 limit 1")?;
        }
        Ok(())
    }

    /// Takes a link down at the host, or up again.
    pub fn set_up(&self, link: usize, up: bool) -> anyhow::Result<()> {
        let (host, _) = self.devices(link);
        ip(&format!("link set {host} {}", if up { "up" } else { "down" }))
    }

    /// Runs `work` on a thread within the namespace: sockets that it makes belong there.
    pub fn within<T: Send>(
        &self,
        work: impl FnOnce() -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        let path = format!("{NAMESPACES}/{}", self.name);
        let namespace = File::open(&path).context(path)?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                // SAFETY: an open descriptor and a flag; it changes nothing but this thread, which
                // ends with `work`.
                if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
                    return Err(std::io::Error::last_os_error()).context("setns");
                }
                work()
            });
            thread.join().expect("it does not panic")
        })
    }

    fn devices(&self, link: usize) -> (String, String) {
        let pid = std::process::id();
        (format!("nvl{pid}h{link}"), format!("nvl{pid}t{link}"))
    }

    fn qdisc(&self, link: usize, way: Way, what: &str) -> anyhow::Result<()> {
        let (host, target) = self.devices(link);
        match way {
            Way::ToTarget => call("tc", &format!("qdisc replace dev {host} root {what}")),
            Way::ToHost => {
                call("tc", &format!("-n {} qdisc replace dev {target} root {what}", self.name))
            }
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for link in 0..self.links {
            let _ = ip(&format!("link del {}", self.devices(link).0));
        }
        let _ = ip(&format!("netns del {}", self.name));
    }
}

/// Removes namespaces of processes that are no more; their links go with them.
fn clear_away() {
    let names = std::fs::read_dir(NAMESPACES).into_iter().flatten().flatten();
    for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
        let process = name.strip_prefix(PREFIX).and_then(|process| process.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// The first two bytes of our addresses: two benches at a time do not meet.
fn subnet() -> [u8; 2] {
    [10, 129 + (std::process::id() % 120) as u8]
}

fn ip(arguments: &str) -> anyhow::Result<()> {
    call("ip", arguments)
}

fn call(program: &str, arguments: &str) -> anyhow::Result<()> {
    let output = Command::new(program).args(arguments.split_whitespace()).output();
    let output = output.with_context(|| format!("{program} cannot be run (package iproute2)"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {arguments}: {}", said.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_bench_has_left_goes_with_the_next() {
        let mut process = Command::new("true").spawn().unwrap();
        process.wait().unwrap();
        let left = format!("{PREFIX}{}", process.id());
        if let Err(error) = ip(&format!("netns add {left}")) {
            crate::stderr::line(format_args!("{error}: not run"));
            return;
        }
        let net = Net::new(&[]).unwrap();
        let is_there = |name: &str| Path::new(NAMESPACES).join(name).exists();
        assert!(is_there(net.name()) && !is_there(&left));
        let name = net.name().to_owned();
        drop(net);
        assert!(!is_there(&name));
    }
}
