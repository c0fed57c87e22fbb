//! From the command line to a controller: addresses, names, and who we are.

use crate::cli::RemoteArgs;
use anyhow::{Context, Result, anyhow, bail, ensure};
use host::client::{Client, ClientError, HostIdentity, Options, Peer};
use host::keys::KeyFiles;
use host::{Address, Local};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;
use std::vec;
use uuid::Uuid;
use volume::{Kind, Uri};

pub use host::DISCOVERY_PORT;

/// What a remote volume's URI begins with.
const SCHEME: &str = "tcp://";

/// Longer than anybody waits, and within what clocks and sockets can count.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A subsystem, where it is, and as whom to ask.
#[derive(Clone, Debug)]
pub struct Remote {
    /// Its addresses, in the order given.
    pub addresses: Vec<SocketAddr>,
    /// Its NQN.
    pub nqn: String,
    /// The namespace, if one was named.
    pub nsid: Option<u32>,
    /// How a volume with that URI spreads commands over its paths.
    pub policy: Option<String>,
    /// Who asks.
    pub host: HostIdentity,
    options: Options,
    /// This end of a connection to each address; that of the options where there is none.
    locals: Vec<Local>,
}

/// The subsystem that the URI of a remote volume names, and the NQN of the host that uses it.
pub fn subsystem_of(uri: &str) -> Option<(String, String)> {
    match uri.parse::<Uri>().ok()?.kind {
        Kind::Remote(volume) => {
            let config = volume.options.association;
            let given = Some(config.host_nqn.as_str()).filter(|nqn| !nqn.is_empty());
            let host = host::identity(given, None).nqn;
            Some((config.nqn, host))
        }
        _ => None,
    }
}

impl Remote {
    /// What a URI names, or `-a`, `-s` and `-n` do.
    pub fn of(uri: Option<&str>, args: &RemoteArgs, nqn: Option<&str>) -> Result<Remote> {
        match (uri, &args.traddr, nqn) {
            (Some(uri), ..) => Remote::parse(uri, args),
            (None, Some(_), Some(nqn)) => Remote::at(args, host::PORT, nqn),
            (None, Some(_), None) => {
                bail!("which subsystem? Give --nqn NQN, or tcp://HOST:PORT/NQN")
            }
            (None, None, _) => {
                bail!("which controller? Give tcp://HOST:PORT/NQN, or -a ADDR -s PORT --nqn NQN")
            }
        }
    }

    /// Subsystem `nqn` at the address of the arguments.
    pub fn at(args: &RemoteArgs, port: u16, nqn: &str) -> Result<Remote> {
        let host = args.traddr.as_deref().context("which controller? Give -a ADDR")?;
        let addresses = resolve(host, args.trsvcid.unwrap_or(port))?.collect();
        let id = args.hostid.map(Uuid::into_bytes);
        let host = host::identity(args.hostnqn.as_deref(), id);
        let (nqn, options, locals) = (nqn.to_owned(), options(args), Vec::new());
        Ok(Remote { addresses, nqn, nsid: None, policy: None, host, options, locals })
    }

    /// The same with another keep alive time-out.
    pub fn kept_alive(mut self, keep_alive: Duration) -> Remote {
        self.options.keep_alive = keep_alive;
        self
    }

    /// Reads `tcp://HOST[:PORT][,HOST[:PORT]...]/NQN[?ns=N&...]`, as a volume's URI is read; of `discovery://` a
    /// controller is asked for the addresses. Options that only I/O needs are left to whoever does I/O.
    pub fn parse(uri: &str, args: &RemoteArgs) -> Result<Remote> {
        let kind = if volume::is_remote(uri) { Some(uri.parse::<Uri>()?.kind) } else { None };
        let Some(Kind::Remote(volume)) = kind else {
            bail!("{uri:?} is no remote volume: write tcp://HOST:PORT/NQN")
        };
        let config = &volume.options.association;
        let nqn = Some(config.host_nqn.as_str()).filter(|nqn| !nqn.is_empty());
        let id = Some(config.host_id).filter(|id| *id != [0; 16]);
        let mut options = options(args);
        options.header_digest |= volume.options.header_digest;
        options.data_digest |= volume.options.data_digest;
        let KeyFiles { host, controller, tls } = volume.options.keys.clone();
        let keys = &mut options.keys;
        keys.host = keys.host.take().or(host);
        keys.controller = keys.controller.take().or(controller);
        keys.tls = keys.tls.take().or(tls);
        let own = options.local.clone();
        let given = |index| {
            let Local { address, interface } = volume.options.local(index);
            let interface = own.interface.clone().or(interface);
            Local { address: own.address.or(address), interface }
        };
        let locals: Vec<Local> = (0..volume.addresses.len()).map(given).collect();
        // For those that discovery controllers name.
        options.local = locals.first().cloned().unwrap_or(own);
        let mut addresses = Vec::new();
        let named = volume.addresses.iter().zip(&locals).filter(|_| !volume.discovered);
        for (Address { host, port }, local) in named {
            addresses.extend(first_of(host, *port, local)?);
        }
        let remote = Remote {
            addresses,
            nqn: config.nqn.clone(),
            nsid: config.nsid,
            policy: Some(volume.tuning.settings.policy.to_string()),
            host: host::identity(
                args.hostnqn.as_deref().or(nqn),
                args.hostid.map(Uuid::into_bytes).or(id),
            ),
            options,
            locals,
        };
        if volume.discovered { remote.discovered(&volume.addresses) } else { Ok(remote) }
    }

    /// The same at the addresses that discovery controllers name for its subsystem.
    fn discovered(self, controllers: &[Address]) -> Result<Remote> {
        let options = options_of_discovery(&self.options);
        let found = host::look_up(controllers, &self.nqn, &self.host, &options)?;
        let mut addresses = Vec::new();
        for Address { host, port } in &found {
            addresses.extend(first_of(host, *port, &self.options.local)?);
        }
        Ok(Remote { addresses, locals: Vec::new(), ..self })
    }

    /// Connects through the first address that answers.
    pub fn connect(&self) -> Result<Client> {
        let mut refusals = Vec::new();
        for (address, local) in self.paths() {
            match self.connect_to(address, local) {
                Ok(client) => return Ok(client),
                Err(error) => refusals.push(error),
            }
        }
        Err(nobody(refusals))
    }

    /// The same of a discovery controller, which need not prove who it is: those that it names have to.
    pub fn connect_to_discovery(&self) -> Result<Client> {
        let options = Options { keys: self.options.keys.of_host(), ..self.options.clone() };
        Remote { options, ..self.clone() }.connect()
    }

    /// Its addresses, and this end of the connection to each.
    pub fn paths(&self) -> impl Iterator<Item = (SocketAddr, &Local)> {
        let local = |index| self.locals.get(index).unwrap_or(&self.options.local);
        self.addresses.iter().enumerate().map(move |(index, address)| (*address, local(index)))
    }

    /// Connects to one address, from this end.
    pub fn connect_to(&self, address: SocketAddr, local: &Local) -> Result<Client, ClientError> {
        let peer = Peer { address, subsystem: self.nqn.clone() };
        let options = Options { local: local.clone(), ..self.options.clone() };
        Client::connect(&peer, &self.host, &options)
    }

    /// The namespace that was named, or the only one.
    pub fn only_namespace(&self, client: &mut Client) -> Result<u32> {
        if let Some(nsid) = self.nsid {
            return Ok(nsid);
        }
        match client.active_namespaces()?[..] {
            [nsid] => Ok(nsid),
            [] => bail!("{}: it has no namespace", client.peer()),
            ref several => {
                let listed: Vec<String> =
                    several.iter().take(16).map(ToString::to_string).collect();
                let more = if several.len() > 16 { ", ..." } else { "" };
                bail!(
                    "{}: which namespace of {}{more}? Say ?ns=N or --namespace-id N",
                    client.peer(),
                    listed.join(", ")
                )
            }
        }
    }

    /// The URI of namespace `nsid` through the first address.
    pub fn uri(&self, nsid: u32) -> String {
        self.uri_by(self.addresses.first(), nsid)
    }

    /// The URI of namespace `nsid` through those addresses.
    pub fn uri_by<'a>(
        &self,
        addresses: impl IntoIterator<Item = &'a SocketAddr>,
        nsid: u32,
    ) -> String {
        uri_of(addresses, &self.nqn, nsid)
    }

    /// Whether the other one is the same subsystem by the same addresses, asked by the same host.
    pub fn is_same_subsystem(&self, other: &Remote) -> bool {
        let of =
            |remote: &Remote| (remote.nqn.clone(), remote.addresses.clone(), remote.host.clone());
        of(self) == of(other)
    }
}

/// The URI of namespace `nsid` of a subsystem by those addresses.
pub fn uri_of<'a>(
    addresses: impl IntoIterator<Item = &'a SocketAddr>,
    nqn: &str,
    nsid: u32,
) -> String {
    let addresses: Vec<String> = addresses.into_iter().map(ToString::to_string).collect();
    let nqn = namespace::percent::encode(Path::new(nqn));
    format!("{SCHEME}{}/{nqn}?ns={nsid}", addresses.join(","))
}

/// An address as nvme-cli writes it, with that of the other end where it is known.
pub fn address_text(address: SocketAddr, source: Option<SocketAddr>) -> String {
    let source = source.map(|source| format!(",src_addr={}", source.ip())).unwrap_or_default();
    format!("traddr={},trsvcid={}{source}", address.ip(), address.port())
}

/// The error where no address of a subsystem answers.
pub fn nobody(mut refusals: Vec<ClientError>) -> anyhow::Error {
    if refusals.len() == 1 {
        return refusals.remove(0).into();
    }
    let said: Vec<String> = refusals.iter().map(ToString::to_string).collect();
    anyhow!("no address answers: {}", said.join("; "))
}

/// A discovery log is but a few addresses, and not every discovery controller has digests.
fn options_of_discovery(options: &Options) -> Options {
    Options { header_digest: false, data_digest: false, ..options.clone() }
}

fn options(args: &RemoteArgs) -> Options {
    Options {
        command_timeout: match args.timeout {
            0 => FOR_EVER,
            milliseconds => Duration::from_millis(milliseconds),
        },
        header_digest: args.hdr_digest,
        data_digest: args.data_digest,
        local: Local { address: args.host_traddr, interface: args.host_iface.clone() },
        keys: KeyFiles {
            host: args.dhchap_key.clone(),
            controller: args.dhchap_ctrl_key.clone(),
            tls: args.tls_key.clone(),
        },
        ..Options::default()
    }
}

/// The first address of a name that can be reached from this end.
fn first_of(host: &str, port: u16, local: &Local) -> Result<Option<SocketAddr>> {
    let mut found = resolve(host, port)?.collect();
    local.choose(&mut found);
    Ok(found.into_iter().next())
}

fn resolve(host: &str, port: u16) -> Result<vec::IntoIter<SocketAddr>> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let found = (host, port).to_socket_addrs().with_context(|| format!("host name {host:?}"))?;
    ensure!(found.len() > 0, "host name {host:?}: it has no address");
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> RemoteArgs {
        RemoteArgs {
            transport: "tcp".into(),
            traddr: None,
            trsvcid: None,
            host_traddr: None,
            host_iface: None,
            hostnqn: None,
            hostid: None,
            dhchap_key: None,
            dhchap_ctrl_key: None,
            tls_key: None,
            hdr_digest: false,
            data_digest: false,
            timeout: 10_000,
        }
    }

    #[test]
    fn uris_are_read() {
        let uri = "tcp://192.0.2.1,192.0.2.2:4421,[::1]:1,[::1]/nqn.x:a%28b?ns=7&policy=numa&io_timeout=1s";
        let remote = Remote::parse(uri, &args()).unwrap();
        let addresses: Vec<String> = remote.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["192.0.2.1:4420", "192.0.2.2:4421", "[::1]:1", "[::1]:4420"]);
        assert_eq!((remote.nqn.as_str(), remote.nsid), ("nqn.x:a(b", Some(7)));
        assert_eq!(remote.policy.as_deref(), Some("numa"));
        assert_eq!(remote.uri(3), "tcp://192.0.2.1:4420/nqn.x:a%28b?ns=3");
        let uri = "tcp://192.0.2.1/nqn.x?hostnqn=nqn.h&hostid=00000000-0000-4000-8000-000000000001&data_digest";
        let remote = Remote::parse(uri, &args()).unwrap();
        assert_eq!((remote.host.nqn.as_str(), remote.host.id[15]), ("nqn.h", 1));
        assert!(remote.options.data_digest && !remote.options.header_digest);
        let uri = "tcp://192.0.2.1,192.0.2.2/nqn.x?host_traddr=192.0.2.3+192.0.2.4&host_iface=eth0";
        let remote = Remote::parse(uri, &args()).unwrap();
        let from = |address: &str| Local {
            address: Some(address.parse().unwrap()),
            interface: Some("eth0".into()),
        };
        assert_eq!(remote.locals, [from("192.0.2.3"), from("192.0.2.4")]);
        let given = RemoteArgs { host_traddr: Some("192.0.2.9".parse().unwrap()), ..args() };
        let remote = Remote::parse(uri, &given).unwrap();
        assert_eq!(remote.locals, [from("192.0.2.9"), from("192.0.2.9")]);
    }

    #[test]
    fn what_is_no_uri_is_named() {
        for (uri, part) in [
            ("file:/a", "tcp://HOST:PORT/NQN"),
            ("tcp://192.0.2.1:x/nqn.x", "192.0.2.1:x"),
            ("tcp://192.0.2.1/nqn.x?ns=0", "ns cannot be"),
        ] {
            let said = format!("{:#}", Remote::parse(uri, &args()).unwrap_err());
            assert!(said.contains(part), "{uri}: {said}");
        }
    }
}
