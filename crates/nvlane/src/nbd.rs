//! `nvlane nbd`: volumes for clients of the Network Block Device protocol, until stopped.

mod door;

use crate::cli::{ListFormat, NBD_PORT, NbdArgs};
use crate::serve::{log, raise_descriptor_limit};
use crate::settle::{CONNECTIONS_CLOSE, Last, settle};
use crate::stdout;
use crate::{patience, signals, size};
use ::nbd::{Export, Server, ServerConfig, SocketError, is_left_behind};
use anyhow::{Context, Result, bail};
use namespace::percent;
use sd_notify::NotifyState;
use serde_json::json;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use volume::OpenOptions;

/// Time between two looks at the sizes of the volumes.
const REFRESH_PERIOD: Duration = Duration::from_secs(1);

/// Version of the JSON that is written (docs/nbd.md).
const SCHEMA_VERSION: u32 = 1;

/// Serves until SIGINT, SIGTERM or SIGHUP.
pub fn run(args: &NbdArgs) -> Result<()> {
    log::to_stderr(&args.log)?;
    raise_descriptor_limit();
    let (stop, stopped) = sync_channel(1);
    let told = Arc::new(AtomicBool::new(false));
    let tells = Arc::clone(&told);
    signals::on_stop(move || {
        tells.store(true, Ordering::Relaxed);
        let _ = stop.try_send(());
    })?;
    let cores = args.cores.clone().unwrap_or_default();
    let addresses = addresses(args);
    let last = last_server(&args.socket, addresses)?;
    let ended = Instant::now() + CONNECTIONS_CLOSE;
    if last == Some(Last::Killed) && args.volumes.iter().any(|uri| volume::may_be_remote(uri)) {
        // So that controllers that drain know that it is gone before they let us connect.
        thread::sleep(CONNECTIONS_CLOSE);
    }
    let exports = open(args, cores.cpus().len())?;
    // What clients send again, and then overwrite, must not come once more from the last server.
    if let Some(last) = last
        && !exports.iter().all(|export| settles(export, last, ended, &told))
    {
        tracing::info!("told to stop before anybody could connect");
        return Ok(());
    }
    let config =
        ServerConfig { cores: cores.cpus().to_vec(), poll: args.poll, ..ServerConfig::default() };
    let mut server = Server::start(&config, exports.clone())?;
    // Before anybody can connect: if another has it, nothing was served.
    let door = args
        .control
        .as_ref()
        .map(|path| door::open(path, &exports, server.activity()))
        .transpose()?;
    let mut listeners = Vec::new();
    for path in &args.socket {
        server.listen_local(path)?;
        let absolute = std::path::absolute(path).with_context(|| path.display().to_string())?;
        listeners.push(Listener::Local(absolute));
    }
    for address in addresses {
        listeners.push(Listener::Tcp(server.listen(*address)?));
    }
    // Somebody who closed our output still wants to be served.
    let _ = stdout::write(announce(&exports, &listeners, args.output_format));
    signals::notify(&[NotifyState::Ready]);

    let mut unwell = HashSet::new();
    while stopped.recv_timeout(REFRESH_PERIOD) == Err(RecvTimeoutError::Timeout) {
        refresh(&exports, &mut unwell);
    }
    tracing::info!("stopping");
    signals::notify(&[NotifyState::Stopping]);
    drop(door);
    server.stop()?;
    tracing::info!("stopped; everything is flushed");
    Ok(())
}

/// Where to listen on TCP.
fn addresses(args: &NbdArgs) -> &[SocketAddr] {
    const DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), NBD_PORT);
    match &args.listen[..] {
        [] if args.socket.is_empty() => &[DEFAULT],
        given => given,
    }
}

/// How a server ended whose clients may come back to us. Its sockets' files tell; on TCP nothing is left behind.
fn last_server(sockets: &[PathBuf], addresses: &[SocketAddr]) -> Result<Option<Last>, SocketError> {
    for path in sockets {
        if is_left_behind(path)? {
            return Ok(Some(Last::Killed));
        }
    }
    // Nobody comes back to a port that is chosen anew each time.
    let is_unknown = sockets.is_empty() && addresses.iter().any(|address| address.port() != 0);
    Ok(is_unknown.then_some(Last::Unknown))
}

/// Whether nothing of the last server is under way any more that could change the export; waits for it.
fn settles(export: &Export, last: Last, ended: Instant, told: &AtomicBool) -> bool {
    export.namespace.limits().read_only || settle(&*export.namespace, last, ended, told)
}

/// Opens the volumes and gives each its name.
fn open(args: &NbdArgs, cores: usize) -> Result<Vec<Export>> {
    let options = OpenOptions { cores, read_only: args.read_only, ..OpenOptions::default() };
    let mut exports: Vec<Export> = Vec::new();
    for (number, text) in (1..).zip(&args.volumes) {
        let (name, uri) = match split_name(text) {
            Some((name, uri)) => (name.to_owned(), uri),
            None if args.volumes.len() == 1 => (String::new(), text.as_str()),
            None => (name_of_file(text).unwrap_or_else(|| number.to_string()), text.as_str()),
        };
        if exports.iter().any(|export| export.name == name) {
            bail!("two exports are called {name}: write NAME={uri} for one of them");
        }
        let namespace = patience::open(uri, &options)?;
        let limits = namespace.limits();
        let description =
            format!("{} in blocks of {}", size::format(limits.bytes()), limits.block_bytes());
        exports.push(Export { name, description, namespace });
    }
    Ok(exports)
}

/// The name before a volume, if there is one.
fn split_name(text: &str) -> Option<(&str, &str)> {
    let (name, uri) = text.split_once('=')?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (!name.is_empty() && name.bytes().all(is_name)).then_some((name, uri))
}

/// The last part of a path or of what `file:` names.
fn name_of_file(text: &str) -> Option<String> {
    let uri: volume::Uri = text.parse().ok()?;
    let volume::Kind::File { path, .. } = uri.kind else { return None };
    Some(path.file_name()?.to_string_lossy().into_owned())
}

/// Clients that come later learn of a new size; those that are there keep the old one. Of a volume that cannot be looked at
/// is told once, until it can: `unwell` has their places.
fn refresh(exports: &[Export], unwell: &mut HashSet<usize>) {
    for (place, export) in exports.iter().enumerate() {
        let refreshed = export.namespace.refresh();
        if refreshed.is_ok() {
            unwell.remove(&place);
        }
        match refreshed {
            Ok(true) => tracing::info!(
                volume = export.namespace.uri(),
                bytes = export.namespace.limits().bytes(),
                "the size has changed: who connects from now on sees it"
            ),
            Ok(false) => {}
            Err(error) => {
                if unwell.insert(place) {
                    tracing::warn!(volume = export.namespace.uri(), "{error}");
                }
            }
        }
    }
}

/// Where clients connect.
enum Listener {
    Tcp(SocketAddr),
    /// An absolute path.
    Local(PathBuf),
}

impl Listener {
    /// The URI of an export (doc/uri.md of the NBD project).
    fn uri(&self, name: &str) -> String {
        let name = percent::encode(Path::new(name));
        match self {
            Listener::Tcp(address) => format!("nbd://{address}/{name}"),
            Listener::Local(path) => format!("nbd+unix:///{name}?socket={}", percent::encode(path)),
        }
    }
}

fn announce(exports: &[Export], listeners: &[Listener], format: ListFormat) -> String {
    let uris = |name: &str| listeners.iter().map(|it| it.uri(name)).collect::<Vec<_>>();
    if format == ListFormat::Json {
        let exports: Vec<_> = exports
            .iter()
            .map(|export| {
                let limits = export.namespace.limits();
                json!({
                    "name": export.name,
                    "volume": export.namespace.uri(),
                    "bytes": limits.bytes(),
                    "block_bytes": limits.block_bytes(),
                    "read_only": limits.read_only,
                    "uris": uris(&export.name),
                })
            })
            .collect();
        return format!("{}\n", json!({ "version": SCHEMA_VERSION, "exports": exports }));
    }
    let mut text = String::new();
    for export in exports {
        let read_only = if export.namespace.limits().read_only { ", read-only" } else { "" };
        let volume = export.namespace.uri();
        let _ = writeln!(text, "serving {volume}: {}{read_only}", export.description);
        for uri in uris(&export.name) {
            let _ = writeln!(text, "  {uri}");
        }
    }
    text.push_str("ready\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn names_are_told_from_volumes() {
        assert_eq!(split_name("a=mem:1G"), Some(("a", "mem:1G")));
        assert_eq!(split_name("disk-1.img=./disk?ro"), Some(("disk-1.img", "./disk?ro")));
        for volume in ["mem:1G", "./a=b.img", "file:/a?size=1G", "delay:read=1ms(mem:1G)", "=x"] {
            assert_eq!(split_name(volume), None, "{volume}");
        }
        assert_eq!(name_of_file("/srv/a.img?ro").as_deref(), Some("a.img"));
        assert_eq!(name_of_file("file:/srv/b.img?bs=4096").as_deref(), Some("b.img"));
        assert_eq!(name_of_file("mem:1G"), None);
    }

    #[test]
    fn only_clients_that_may_come_back_are_feared() {
        let directory = tempfile::tempdir().unwrap();
        let [path, other] = ["s", "t"].map(|name| directory.path().join(name));
        let [fixed, free] = ["[::1]:10809", "[::1]:0"].map(|text| text.parse().unwrap());
        let sockets = [other.clone(), path.clone()];
        assert_eq!(last_server(&[], &[free, fixed]).unwrap(), Some(Last::Unknown));
        assert_eq!(last_server(&[], &[free]).unwrap(), None);
        assert_eq!(last_server(&sockets, &[fixed]).unwrap(), None);
        // As a killed server leaves it.
        drop(UnixListener::bind(&path).unwrap());
        for addresses in [&[fixed][..], &[]] {
            assert_eq!(last_server(&sockets, addresses).unwrap(), Some(Last::Killed));
        }
        assert!(path.exists(), "who fails to start leaves it to the next");
    }

    #[test]
    fn uris_can_be_given_to_clients() {
        let local = Listener::Local("/run/my disk.s".into());
        assert_eq!(local.uri(""), "nbd+unix:///?socket=/run/my%20disk.s");
        let tcp = Listener::Tcp("[::1]:10809".parse().unwrap());
        assert_eq!(tcp.uri("a.img"), "nbd://[::1]:10809/a.img");
    }
}
