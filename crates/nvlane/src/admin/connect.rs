//! From the command line to a controller: addresses, names, and who we are.

use crate::cli::RemoteArgs;
use crate::config::identity::Machine;
use crate::control::path;
use anyhow::{Context, Result, anyhow, bail, ensure};
use host::client::{Client, ClientError, HostIdentity, Options, Peer};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;
use std::{fs, vec};
use uuid::Uuid;

/// Where an I/O controller listens when nobody says (NVMe/TCP Transport 1.1, section 3.1.1).
pub const PORT: u16 = 4420;
/// Where a discovery controller listens when nobody says.
pub const DISCOVERY_PORT: u16 = 8009;
/// Addresses of one URI.
const ADDRESSES_MAX: usize = 16;
/// What a remote volume's URI begins with.
const SCHEME: &str = "tcp://";

/// A subsystem, where it is, and as whom to ask.
#[derive(Clone, Debug)]
pub struct Remote {
    /// Its addresses, in the order given.
    pub addresses: Vec<SocketAddr>,
    /// Its NQN.
    pub nqn: String,
    /// The namespace, if one was named.
    pub nsid: Option<u32>,
    /// The policy that the URI names.
    pub policy: Option<String>,
    /// Who asks.
    pub host: HostIdentity,
    options: Options,
}

/// Whether it names a remote volume.
pub fn is_remote(volume: &str) -> bool {
    volume.starts_with(SCHEME)
}

impl Remote {
    /// What a URI names, or `-a`, `-s` and `-n` do.
    pub fn of(uri: Option<&str>, args: &RemoteArgs, nqn: Option<&str>) -> Result<Remote> {
        match (uri, &args.traddr, nqn) {
            (Some(uri), ..) => Remote::parse(uri, args),
            (None, Some(_), Some(nqn)) => Remote::at(args, PORT, nqn),
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
        let host = identity(args.hostnqn.as_deref(), args.hostid)?;
        let options = options(args);
        Ok(Remote { addresses, nqn: nqn.to_owned(), nsid: None, policy: None, host, options })
    }

    /// Reads `tcp://HOST[:PORT][,HOST[:PORT]...]/NQN[?ns=N&...]`. Options that only I/O needs are
    /// left to whoever does I/O.
    pub fn parse(uri: &str, args: &RemoteArgs) -> Result<Remote> {
        let parts = || {
            let (place, options) = uri
                .strip_prefix(SCHEME)?
                .split_once('?')
                .map_or_else(|| (&uri[SCHEME.len()..], ""), |(place, options)| (place, options));
            let (hosts, nqn) = place.split_once('/')?;
            Some((hosts, nqn, options))
        };
        let (hosts, nqn, pairs) = parts()
            .with_context(|| format!("{uri:?} is no remote volume: write tcp://HOST:PORT/NQN"))?;
        let mut remote = Remote {
            addresses: addresses(hosts)?,
            nqn: decoded(nqn)?,
            nsid: None,
            policy: None,
            host: HostIdentity { nqn: String::new(), id: [0; 16] },
            options: options(args),
        };
        let (mut hostnqn, mut hostid) = (args.hostnqn.clone(), args.hostid);
        for pair in pairs.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let wrong = || anyhow!("{uri:?}: {name} cannot be {value:?}");
            match name {
                "ns" => {
                    remote.nsid = Some(value.parse().ok().filter(|&n| n != 0).with_context(wrong)?)
                }
                "hostnqn" if hostnqn.is_none() => hostnqn = Some(decoded(value)?),
                "hostid" if hostid.is_none() => {
                    hostid = Some(Uuid::try_parse(value).ok().with_context(wrong)?);
                }
                "policy" => remote.policy = Some(value.to_owned()),
                "hdr_digest" => remote.options.header_digest |= is_set(value),
                "data_digest" => remote.options.data_digest |= is_set(value),
                _ => {}
            }
        }
        remote.host = identity(hostnqn.as_deref(), hostid)?;
        Ok(remote)
    }

    /// Connects through the first address that answers.
    pub fn connect(&self) -> Result<Client> {
        let mut refusals = Vec::new();
        for &address in &self.addresses {
            match self.connect_to(address) {
                Ok(client) => return Ok(client),
                Err(error) => refusals.push(error),
            }
        }
        if refusals.len() == 1 {
            return Err(refusals.remove(0).into());
        }
        let said: Vec<String> = refusals.iter().map(ToString::to_string).collect();
        bail!("no address answers: {}", said.join("; "))
    }

    /// Connects through one address.
    pub fn connect_to(&self, address: SocketAddr) -> Result<Client, ClientError> {
        let peer = Peer { address, subsystem: self.nqn.clone() };
        Client::connect(&peer, &self.host, &self.options)
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
        let address = self.addresses.first().map(ToString::to_string).unwrap_or_default();
        let nqn = namespace::percent::encode(Path::new(&self.nqn));
        format!("{SCHEME}{address}/{nqn}?ns={nsid}")
    }
}

fn options(args: &RemoteArgs) -> Options {
    Options {
        command_timeout: Duration::from_millis(args.timeout),
        header_digest: args.hdr_digest,
        data_digest: args.data_digest,
        ..Options::default()
    }
}

fn is_set(value: &str) -> bool {
    !matches!(value, "0" | "false" | "no" | "off")
}

fn decoded(text: &str) -> Result<String> {
    namespace::percent::decode(text)
        .and_then(|path| path.into_os_string().into_string().ok())
        .with_context(|| {
            format!("{text:?}: % is followed by two hexadecimal digits; write it as %25")
        })
}

fn addresses(hosts: &str) -> Result<Vec<SocketAddr>> {
    let mut addresses = Vec::new();
    for host in hosts.split(',') {
        let (name, port) = split_port(host)?;
        addresses.extend(resolve(name, port)?.take(1));
        ensure!(addresses.len() <= ADDRESSES_MAX, "more than {ADDRESSES_MAX} addresses");
    }
    Ok(addresses)
}

/// `host`, `host:port`, `[::1]`, `[::1]:port`.
fn split_port(text: &str) -> Result<(&str, u16)> {
    let wrong = || format!("{text:?} is no address: write HOST:PORT, 192.0.2.1:4420 or [::1]:4420");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, behind) = rest.split_once(']').with_context(wrong)?;
            match behind {
                "" => (host, None),
                behind => (host, Some(behind.strip_prefix(':').with_context(wrong)?)),
            }
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    ensure!(!host.is_empty(), wrong());
    let port = port.map_or(Ok(PORT), str::parse).with_context(wrong)?;
    Ok((host, port))
}

fn resolve(host: &str, port: u16) -> Result<vec::IntoIter<SocketAddr>> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let found = (host, port).to_socket_addrs().with_context(|| format!("host name {host:?}"))?;
    ensure!(found.len() > 0, "host name {host:?}: it has no address");
    Ok(found)
}

/// Who we are: what is given; else what nvme-cli has in /etc/nvme; else a name made from this
/// machine's id. The identifier goes with the name: it is the UUID in it, or made from it.
fn identity(nqn: Option<&str>, id: Option<Uuid>) -> Result<HostIdentity> {
    let file = |name: &str| {
        let text = fs::read_to_string(Path::new("/etc/nvme").join(name)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let (nqn, filed) = match (nqn, file("hostnqn")) {
        (Some(nqn), _) => (nqn.to_owned(), None),
        (None, Some(nqn)) => (nqn, file("hostid").and_then(|id| Uuid::try_parse(&id).ok())),
        (None, None) => (Machine::find(&path::data_dir())?.nqn("host"), None),
    };
    let named = nqn.rsplit_once(":uuid:").and_then(|(_, id)| Uuid::try_parse(id).ok());
    let id = id.or(filed).or(named);
    let id = id.unwrap_or_else(|| Uuid::new_v5(&Uuid::NAMESPACE_URL, nqn.as_bytes()));
    Ok(HostIdentity { nqn, id: id.into_bytes() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> RemoteArgs {
        RemoteArgs {
            transport: "tcp".into(),
            traddr: None,
            trsvcid: None,
            hostnqn: None,
            hostid: None,
            hdr_digest: false,
            data_digest: false,
            timeout: 10_000,
        }
    }

    #[test]
    fn uris_are_read() {
        let uri = "tcp://192.0.2.1,192.0.2.2:4421,[::1]:1,[::1]/nqn.x:a%20b?ns=7&policy=numa&io_timeout=1s";
        let remote = Remote::parse(uri, &args()).unwrap();
        let addresses: Vec<String> = remote.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["192.0.2.1:4420", "192.0.2.2:4421", "[::1]:1", "[::1]:4420"]);
        assert_eq!((remote.nqn.as_str(), remote.nsid), ("nqn.x:a b", Some(7)));
        assert_eq!(remote.policy.as_deref(), Some("numa"));
        assert_eq!(remote.uri(3), "tcp://192.0.2.1:4420/nqn.x:a%20b?ns=3");
        let uri = "tcp://192.0.2.1/nqn.x?hostnqn=nqn.h&hostid=00000000-0000-4000-8000-000000000001&data_digest";
        let remote = Remote::parse(uri, &args()).unwrap();
        assert_eq!((remote.host.nqn.as_str(), remote.host.id[15]), ("nqn.h", 1));
        assert!(remote.options.data_digest && !remote.options.header_digest);
    }

    #[test]
    fn what_is_no_uri_is_named() {
        for (uri, part) in [
            ("tcp://192.0.2.1", "tcp://HOST:PORT/NQN"),
            ("file:/a", "tcp://HOST:PORT/NQN"),
            ("tcp:///nqn.x", "is no address"),
            ("tcp://192.0.2.1:x/nqn.x", "192.0.2.1:x"),
            ("tcp://[::1/nqn.x", "[::1"),
            ("tcp://192.0.2.1/nqn.x?ns=0", "ns cannot be"),
            ("tcp://192.0.2.1/nqn.x?hostid=7", "hostid cannot be"),
            ("tcp://192.0.2.1/nqn%x", "%25"),
        ] {
            let said = format!("{:#}", Remote::parse(uri, &args()).unwrap_err());
            assert!(said.contains(part), "{uri}: {said}");
        }
    }

    #[test]
    fn the_identifier_goes_with_the_name() {
        let nqn = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000009";
        assert_eq!(identity(Some(nqn), None).unwrap().id[15], 9);
        let (a, b) =
            (identity(Some("nqn.a"), None).unwrap(), identity(Some("nqn.b"), None).unwrap());
        assert_ne!(a.id, b.id);
        assert_eq!(identity(Some("nqn.a"), None).unwrap(), a);
        let given = Uuid::from_u128(5);
        assert_eq!(identity(Some(nqn), Some(given)).unwrap().id, given.into_bytes());
    }
}
