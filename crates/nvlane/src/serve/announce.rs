//! Telling people and supervisors that the daemon is ready.

use crate::daemon::Daemon;
use crate::stdout;
use crate::{signals, size};
use sd_notify::NotifyState;
use serde_json::json;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;

/// Prints what is served and how to connect, and tells systemd and `--ready-fd`.
pub fn ready(daemon: &Daemon, socket: Option<&Path>, ready_fd: Option<File>) {
    // Somebody who closed our output still wants to be served.
    let _ = stdout::write(text(daemon, socket));
    let status = format!("serving {} volume(s)", daemon.volumes().len());
    signals::notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
    if let Some(file) = ready_fd
        && let Err(error) = write_line(file, daemon, socket)
    {
        tracing::warn!("--ready-fd: cannot write to it: {error}");
    }
}

/// Writes it at once, and closes the descriptor: who waits for its end has all.
fn write_line(mut file: File, daemon: &Daemon, socket: Option<&Path>) -> io::Result<()> {
    let config = daemon.config();
    let nqns: Vec<&str> = config.subsystems.iter().map(|s| s.nqn.as_str()).collect();
    let line = json!({ "nqns": nqns, "listeners": config.listeners, "socket": socket });
    file.write_all(format!("{line}\n").as_bytes())
}

fn text(daemon: &Daemon, socket: Option<&Path>) -> String {
    let mut text = String::new();
    let (volumes, missing) = (daemon.volumes(), daemon.missing());
    for subsystem in &daemon.config().subsystems {
        let _ = writeln!(text, "serving {}", subsystem.nqn);
        for volume in volumes.iter().filter(|volume| volume.nqn == subsystem.nqn) {
            let _ = writeln!(
                text,
                "  namespace {}: {}, {} in blocks of {}, uuid {}",
                volume.nsid,
                volume.volume,
                size::format(volume.bytes),
                volume.block_bytes,
                volume.uuid
            );
        }
        for volume in missing.iter().filter(|volume| volume.nqn == subsystem.nqn) {
            let _ = writeln!(text, "  namespace {}: missing: {}", volume.nsid, volume.reason);
        }
    }
    for listener in &daemon.config().listeners {
        let _ = writeln!(text, "listening on {listener}");
    }
    if let Some(socket) = socket {
        let _ = writeln!(text, "controlled through {}", socket.display());
    }
    text.push_str("ready; connect with\n");
    for subsystem in &daemon.config().subsystems {
        for listener in &daemon.config().listeners {
            let (address, port) = (reachable(listener.address), listener.address.port());
            let (nqn, tls) = (&subsystem.nqn, if listener.tls { " --tls" } else { "" });
            let _ = writeln!(text, "  nvme connect -t tcp -a {address} -s {port} -n {nqn}{tls}");
        }
        for one in &subsystem.authentication {
            let (nqn, host) = (&subsystem.nqn, &one.host);
            if one.dhchap_key.is_some() {
                let _ = writeln!(
                    text,
                    "    as {host}: with --dhchap-secret \"$(cat FILE)\", its copy of the key"
                );
            }
            if one.tls_key.is_some() && daemon.config().listeners.iter().any(|it| it.tls) {
                let _ = writeln!(
                    text,
                    "    as {host}: with --tls, after nvme check-tls-key --subsysnqn {nqn} --hostnqn {host} \
                     --keydata \"$(cat FILE)\" --identity=1 --insert, its copy of the key"
                );
            }
        }
    }
    text
}

/// An address at which a listener on all addresses can be reached: the one from which packets
/// would leave this machine (no packet is sent to find that out), or the loopback address.
fn reachable(listener: SocketAddr) -> IpAddr {
    if !listener.ip().is_unspecified() {
        return listener.ip();
    }
    // Addresses for documentation (RFC 5737, RFC 3849): routed like any other.
    let (outside, loopback): (SocketAddr, IpAddr) = if listener.is_ipv4() {
        (SocketAddr::from(([192, 0, 2, 1], 9)), Ipv4Addr::LOCALHOST.into())
    } else {
        (SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 9)), Ipv6Addr::LOCALHOST.into())
    };
    UdpSocket::bind(SocketAddr::new(listener.ip(), 0))
        .and_then(|socket| {
            socket.connect(outside)?;
            socket.local_addr()
        })
        .map_or(loopback, |address| address.ip())
}
