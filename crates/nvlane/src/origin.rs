//! The starting point of a daemon: the configuration that a command line or a file asks for, and
//! where the state that continues it is kept.

use crate::cli::ServeArgs;
use crate::config::authentication::{SECRET, is_secret};
use crate::config::identity::{Machine, identifying};
use crate::config::store::{Start, fingerprint};
use crate::config::{ANY_HOST, Authentication, Config, Namespace, Subsystem, file, parse_one_host};
use crate::daemon::Threads;
use anyhow::{Context, Error, Result, ensure};
use std::path::{Path, PathBuf};
use volume::{Device, Kind, Options, Uri};

/// The file that is served when no volume is named.
const DEFAULT_VOLUME: &str = "default.img";

/// A starting point.
pub struct Origin {
    /// What to serve if nothing was changed since.
    pub config: Config,
    /// Where changes are kept.
    pub state: PathBuf,
    /// What the state has to continue: it changes when what the configuration file says is edited.
    pub start: Start,
}

impl Origin {
    /// Reads the command line, and the file it names.
    pub fn find(args: &ServeArgs, data_dir: &Path, machine: &Machine) -> Result<Origin> {
        match &args.config {
            Some(path) => from_file(path, args.data_dir.as_deref()),
            None => from_volumes(args, data_dir, machine),
        }
    }
}

/// The threads of this start: `--cores` and `--poll` hold over what state or file say, and are not kept.
pub fn threads(config: &Config, args: &ServeArgs) -> Threads {
    let cores = args.cores.as_ref().or(config.cores.as_ref());
    Threads { cores: cores.cloned().unwrap_or_default(), poll: config.poll || args.poll }
}

/// A file and its text as a starting point.
pub fn start_of_file(config: &Config, text: &str) -> Start {
    Start { text: fingerprint(text), meaning: Some(config.fingerprint()) }
}

/// A file's state is beside it, or in the data directory that was named.
pub fn state_of_file(path: &Path, data_dir: Option<&Path>) -> Result<PathBuf> {
    if let Some(data_dir) = data_dir {
        // By the name that it was given: what a link leads to may be another directory after each change.
        let absolute = std::path::absolute(path).with_context(|| path.display().to_string())?;
        let key = fingerprint(&absolute.to_string_lossy());
        return Ok(data_dir.join(format!("state-{}.json", &key[..12])));
    }
    let absolute = path.canonicalize().with_context(|| path.display().to_string())?;
    let mut name = absolute.into_os_string();
    name.push(".state.json");
    Ok(PathBuf::from(name))
}

fn from_file(path: &Path, data_dir: Option<&Path>) -> Result<Origin> {
    let (config, text) = file::read(path)?;
    let state = state_of_file(path, data_dir)?;
    let start = start_of_file(&config, &text);
    Ok(Origin { config, state, start })
}

/// A command line is its own key: the same one again continues its state, another one is another
/// server.
fn from_volumes(args: &ServeArgs, data_dir: &Path, machine: &Machine) -> Result<Origin> {
    ensure!(
        args.uuid.is_empty() || args.uuid.len() == args.volumes.len(),
        "--uuid was given {} times for {} volumes: give one for each, in their order",
        args.uuid.len(),
        args.volumes.len()
    );
    let mut volumes = Vec::new();
    for volume in &args.volumes {
        volumes.push(settled(volume)?);
    }
    if volumes.is_empty() {
        volumes.push(default_volume(data_dir, args.size)?);
    }
    let derived = |volumes: &[String]| machine.nqn(&origin_of(volumes, args));
    let counting: Vec<String> = volumes.iter().map(|volume| identifying(volume)).collect();
    let nqn = args.nqn.clone().unwrap_or_else(|| derived(&counting));
    // What is kept under the name that earlier versions gave keeps it.
    if args.nqn.is_none() && counting != volumes {
        let before = of_volumes(args, data_dir, volumes.clone(), derived(&volumes))?;
        if is_kept(&before.state) {
            return Ok(before);
        }
    }
    of_volumes(args, data_dir, volumes, nqn)
}

fn of_volumes(
    args: &ServeArgs,
    data_dir: &Path,
    volumes: Vec<String>,
    nqn: String,
) -> Result<Origin> {
    let namespaces = volumes.into_iter().enumerate().map(|(index, volume)| Namespace {
        uuid: args.uuid.get(index).copied(),
        ..Namespace::new(volume)
    });
    let (any, mut listed): (Vec<_>, Vec<_>) =
        args.allow_host.iter().cloned().partition(|host| host == ANY_HOST);
    let authentication = authentication(args)?;
    for one in &authentication {
        if !listed.contains(&one.host) {
            listed.push(one.host.clone());
        }
    }
    let subsystem = Subsystem {
        namespaces: namespaces.collect(),
        allow_any_host: Some(listed.is_empty() || !any.is_empty()),
        allowed_hosts: listed,
        authentication,
        shared: args.shared,
        nqn,
        ..Subsystem::default()
    };
    let config = Config {
        controller_ids: args.cntlid,
        listeners: args.listen.clone(),
        subsystems: vec![subsystem],
        ..Config::default()
    };
    let fingerprint = fingerprint(&serde_json::to_string(&config).expect("plain data"));
    let state = data_dir.join(format!("state-{}.json", &fingerprint[..12]));
    Ok(Origin { config, state, start: Start { text: fingerprint, meaning: None } })
}

/// Whether there is a state, one that was put aside, or a record of a job that belongs to it: not only a lock.
fn is_kept(state: &Path) -> bool {
    let (Some(folder), Some(name)) = (state.parent(), state.file_name()) else { return false };
    let Ok(entries) = folder.read_dir() else { return false };
    entries.flatten().any(|entry| {
        let found = entry.file_name();
        let rest = found.as_encoded_bytes().strip_prefix(name.as_encoded_bytes());
        rest.is_some_and(|rest| !matches!(rest, b".lock" | b".new"))
    })
}

/// Hosts with keys, whose files are named so that they do not depend on the current directory.
fn authentication(args: &ServeArgs) -> Result<Vec<Authentication>> {
    let mut all: Vec<Authentication> = Vec::new();
    for text in &args.host_key {
        let (host, dhchap_key) = host_key(text).context("--host-key")?;
        ensure!(all.iter().all(|one| one.host != host), "--host-key was given twice for {host}");
        all.push(Authentication { dhchap_key: Some(dhchap_key), ..Authentication::new(host) });
    }
    for text in &args.host_ctrl_key {
        let (host, file) = host_key(text).context("--host-ctrl-key")?;
        let one = all.iter_mut().find(|one| one.host == host);
        let one = one.with_context(|| {
            format!("--host-ctrl-key was given for {host}, and --host-key was not: it has nothing to prove")
        })?;
        ensure!(one.dhchap_ctrl_key.is_none(), "--host-ctrl-key was given twice for {host}");
        one.dhchap_ctrl_key = Some(file);
    }
    for text in &args.host_tls_key {
        let (host, file) = host_key(text).context("--host-tls-key")?;
        let at = all.iter().position(|one| one.host == host).unwrap_or(all.len());
        if at == all.len() {
            all.push(Authentication::new(host));
        }
        let one = &mut all[at];
        ensure!(one.tls_key.is_none(), "--host-tls-key was given twice for {}", one.host);
        one.tls_key = Some(file);
    }
    Ok(all)
}

/// A host and the file of a key, `NQN=FILE`.
fn host_key(text: &str) -> Result<(String, String)> {
    ensure!(!is_secret(text), SECRET);
    let parts = text.split_once('=').filter(|(_, file)| !file.is_empty());
    let (host, file) = parts.with_context(|| {
        format!("`{text}` is not NQN=FILE, a host and the file that its key is in")
    })?;
    Ok((parse_one_host(host).map_err(Error::msg)?, absolute(Path::new(file))?))
}

/// As [`absolute`], of the file of a key: one that is a key itself is not said again.
pub fn key_file(path: &Path) -> Result<String> {
    ensure!(!path.to_str().is_some_and(is_secret), SECRET);
    absolute(path)
}

/// A file's name that does not depend on the current directory.
pub fn absolute(path: &Path) -> Result<String> {
    let absolute = std::path::absolute(path).with_context(|| path.display().to_string())?;
    let text =
        absolute.to_str().with_context(|| format!("{}: its name is not UTF-8", path.display()))?;
    Ok(text.to_owned())
}

/// What a derived NQN is derived from: the volumes, as far as they count; and the listeners, if there are volumes that
/// another server on this machine may have under the same name.
fn origin_of(volumes: &[String], args: &ServeArgs) -> String {
    let mut origin = volumes.join(" ");
    if volumes.iter().any(|volume| volume.contains("mem:") || volume.contains("null:")) {
        origin.push_str(&format!(" {:?}", args.listen));
    }
    origin
}

/// The sparse file in the data directory, made when it is not there.
fn default_volume(data_dir: &Path, bytes: u64) -> Result<String> {
    let path = std::path::absolute(data_dir)?.join(DEFAULT_VOLUME);
    let kind = Kind::File { path, create_bytes: Some(bytes), buffered: false };
    Ok(Uri { kind, options: Options::default() }.to_string())
}

/// A volume's URI with paths that do not depend on the current directory.
pub fn settled(volume: &str) -> Result<String> {
    let mut uri: Uri = volume.parse()?;
    settle(&mut uri)?;
    Ok(uri.to_string())
}

fn settle(uri: &mut Uri) -> Result<()> {
    if let Kind::File { path, .. } | Kind::Device(Device { path, .. }) | Kind::Program(path, _) =
        &mut uri.kind
    {
        *path = std::path::absolute(&*path).with_context(|| path.display().to_string())?;
    }
    uri.children_mut().iter_mut().try_for_each(settle)
}

/// A volume's URI with files and devices by where links lead to now: for one that has to be the same when it is opened again.
pub fn pinned(volume: &str) -> String {
    let Ok(mut uri) = volume.parse::<Uri>() else { return volume.to_owned() };
    let mut is_changed = false;
    each_file(&mut uri, &mut |path| {
        let Ok(plain) = std::path::absolute(&*path) else { return };
        // One that is yet to be made has a directory at least.
        let made = || Some(plain.parent()?.canonicalize().ok()?.join(plain.file_name()?));
        if let Some(there) = plain.canonicalize().ok().or_else(made).filter(|it| *it != plain) {
            *path = there;
            is_changed = true;
        }
    });
    if is_changed { uri.to_string() } else { volume.to_owned() }
}

/// Files and devices of a volume, as its URI names them; none of what is no URI.
pub fn files(volume: &str) -> Vec<PathBuf> {
    let mut all = Vec::new();
    if let Ok(mut uri) = volume.parse::<Uri>() {
        each_file(&mut uri, &mut |path| all.push(path.clone()));
    }
    all
}

/// Paths in a volume's URI that lead elsewhere from another directory; none of what is no URI.
pub fn relative_paths(volume: &str) -> Vec<PathBuf> {
    fn collect(uri: &Uri, all: &mut Vec<PathBuf>) {
        if let Kind::File { path, .. } | Kind::Device(Device { path, .. }) | Kind::Program(path, _) =
            &uri.kind
            && path.is_relative()
        {
            all.push(path.clone());
        }
        uri.children().iter().for_each(|child| collect(child, all));
    }
    let mut all = Vec::new();
    if let Ok(uri) = volume.parse() {
        collect(&uri, &mut all);
    }
    all
}

fn each_file(uri: &mut Uri, each: &mut dyn FnMut(&mut PathBuf)) {
    if let Kind::File { path, .. } | Kind::Device(Device { path, .. }) = &mut uri.kind {
        each(path);
    }
    uri.children_mut().iter_mut().for_each(|child| each_file(child, each));
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn a_pinned_volume_stays_where_its_link_led_to() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().canonicalize().unwrap();
        let path = |name: &str| top.join(name).display().to_string();
        std::fs::write(path("a"), "").unwrap();
        std::os::unix::fs::symlink("a", path("link")).unwrap();
        std::os::unix::fs::symlink(".", path("up")).unwrap();
        assert_eq!(pinned(&path("a")), path("a"));
        assert_eq!(pinned(&path("link")), format!("file:{}", path("a")));
        assert_eq!(
            pinned(&format!("linear:({}?ro,{}?size=1M&create)", path("link"), path("up/new"))),
            format!("linear:(file:{}?ro,file:{}?create&size=1M)", path("a"), path("new"))
        );
        assert_eq!(pinned(&format!("nvme:{}", path("link"))), format!("nvme:{}", path("a")));
        assert_eq!(pinned("wat:1G"), "wat:1G");
    }

    /// The NQN that a command line gets, and its state.
    fn found(words: &[&str], data_dir: &Path) -> (String, PathBuf) {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: ServeArgs,
        }
        let line = Line::parse_from([&["serve"], words].concat());
        let machine = Machine::from_id(uuid::Uuid::from_u128(1));
        let origin = Origin::find(&line.args, data_dir, &machine).unwrap();
        (origin.config.subsystems[0].nqn.clone(), origin.state)
    }

    const OF_A: &str = "nqn.2014-08.org.nvmexpress:uuid:16b19b15-8105-5f19-add5-eed166f99549";

    #[test]
    fn a_derived_nqn_is_that_of_what_is_served() {
        let folder = tempfile::tempdir().unwrap();
        let nqn = |words: &[&str]| found(words, folder.path()).0;
        // As before options were left out.
        assert_eq!(nqn(&["/a"]), OF_A);
        for same in ["/a?size=1G&create", "/a?size=2G&create", "/a?ro", "/a?buffered&ro"] {
            assert_eq!(nqn(&[same]), OF_A, "{same}");
        }
        assert_ne!(nqn(&["/a?bs=4096"]), OF_A);
        assert_ne!(nqn(&["/a", "/b"]), OF_A);
        assert_eq!(nqn(&["/a?ro", "/b"]), nqn(&["/a", "/b?buffered"]));
        assert_eq!(nqn(&[]), nqn(&["--size", "1M"]), "the file that is made for none");
        assert_eq!(
            nqn(&["/a?ro", "--nqn", "nqn.2026-11.com.example:a"]),
            "nqn.2026-11.com.example:a"
        );
        // Each command line has a state of its own still.
        let state = |words: &[&str]| found(words, folder.path()).1;
        assert_ne!(state(&["/a"]), state(&["/a?ro"]));
    }

    #[test]
    fn what_is_kept_of_an_earlier_version_keeps_its_nqn() {
        const BEFORE: &str = "nqn.2014-08.org.nvmexpress:uuid:b004657d-eb13-5306-a653-0dd67eb02295";
        const STATE: &str = "state-faa2185aa345.json";
        let folder = tempfile::tempdir().unwrap();
        let words = ["/a?ro", "--listen", "127.0.0.1:4420"];
        for (kept, is_kept) in
            [(".lock", false), (".new", false), ("", true), (".old", true), (".jobs", true)]
        {
            let path = folder.path().join(format!("{STATE}{kept}"));
            std::fs::write(&path, "").unwrap();
            let (nqn, state) = found(&words, folder.path());
            assert_eq!(nqn, if is_kept { BEFORE } else { OF_A }, "{kept}");
            assert_eq!(state == folder.path().join(STATE), is_kept, "{kept}");
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn paths_no_longer_depend_on_the_directory() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        assert_eq!(settled("a.img").unwrap(), format!("file:{here}/a.img"));
        assert_eq!(
            settled("delay:1ms(linear:(./a.img?ro,mem:1G))").unwrap(),
            format!("delay:1ms(linear:(file:{here}/a.img?ro,mem:1G))")
        );
        assert_eq!(settled("/a").unwrap(), settled("file:/a").unwrap());
        assert!(settled("wat:1G").is_err());
    }
}
