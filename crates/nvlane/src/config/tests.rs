use super::*;

const FILE: &str = r#"
cores = "0,2-3"
listeners = ["0.0.0.0:4420", "[::1]:4421"]

[[subsystems]]
nqn = "nqn.2026-11.com.example:a"
allowed_hosts = ["nqn.2026-11.com.example:host"]

[[subsystems.namespaces]]
volume = "/srv/a.img"

[[subsystems.namespaces]]
volume = "mem:1G"
nsid = 1
uuid = "b0c2a1f6-7d8e-4f3a-9b1c-2d3e4f5a6b7c"
ana_group = 2

[[subsystems.ana]]
listener = "[::1]:4421"
group = 2
state = "non-optimized"
"#;

#[test]
fn a_file_becomes_complete_and_survives_both_forms() {
    let mut config: Config = toml::from_str(FILE).unwrap();
    config.check().unwrap();
    config.complete();
    let subsystem = &config.subsystems[0];
    assert_eq!(subsystem.allow_any_host, Some(false), "hosts are listed");
    assert_eq!(subsystem.namespaces[0].nsid, Some(2), "1 is taken");
    assert_eq!(subsystem.namespaces[0].ana_group, 1);
    assert_eq!(subsystem.ana[0].state, AnaState::NonOptimized);
    assert_eq!(config.cores.as_ref().unwrap().cpus(), [Some(0), Some(2), Some(3)]);

    let again: Config = toml::from_str(&file::to_toml(&config)).unwrap();
    assert_eq!(again, config);
    let again: Config = serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
    assert_eq!(again, config);
    let mut twice = config.clone();
    twice.complete();
    assert_eq!(twice, config);
}

#[test]
fn nothing_said_means_the_loopback_listener_and_any_host() {
    let mut config: Config =
        toml::from_str("[[subsystems]]\nnqn = \"nqn.2026-11.com.example:x\"").unwrap();
    config.complete();
    assert_eq!(config.listeners, ["127.0.0.1:4420".parse().unwrap()]);
    assert_eq!(config.subsystems[0].allow_any_host, Some(true));
    assert_eq!(config.subsystems[0].serial.as_ref().unwrap().len(), 20);
}

#[test]
fn wrong_values_are_named_with_their_place() {
    let namespace = |line: &str| {
        format!(
            "[[subsystems]]\nnqn = \"nqn.2026-11.com.example:x\"\n[[subsystems.namespaces]]\nvolume = \"mem:1G\"\n{line}"
        )
    };
    let long = "n".repeat(224);
    for (text, at) in [
        ("[[subsystems]]\nnqn = \"\"".to_owned(), "subsystems[0].nqn"),
        (format!("[[subsystems]]\nnqn = \"{long}\""), "subsystems[0].nqn"),
        ("[[subsystems]]\nnqn = \"a\\u0000b\"".to_owned(), "subsystems[0].nqn"),
        ("[[subsystems]]\nnqn = \"nqn.2014-08.org.nvmexpress.discovery\"".to_owned(), "subsystems[0].nqn"),
        ("[[subsystems]]\nnqn = \"nqn.2026-11.com.example:x\"\nserial = \"123456789012345678901\"".to_owned(), "subsystems[0].serial"),
        ("[[subsystems]]\nnqn = \"nqn.2026-11.com.example:x\"\nshared = true".to_owned(), "controller_ids"),
        ("[[subsystems]]\nnqn = \"nqn.2026-11.com.example:x\"\n[[subsystems]]\nnqn = \"nqn.2026-11.com.example:x\"".to_owned(), "subsystems[1].nqn"),
        ("[[subsystems]]\nnqn = \"nqn.2026-11.com.example:x\"\n[[subsystems.ana]]\ngroup = 0\nstate = \"change\"".to_owned(), "subsystems[0].ana[0].group"),
        ("[[subsystems]]\nnqn = \"nqn.2026-11.com.example:x\"\n[[subsystems.ana]]\ngroup = 1\nstate = \"change\"\nlistener = \"127.0.0.1:1\"".to_owned(), "subsystems[0].ana[0].listener"),
        ("listeners = [\"127.0.0.1:1\", \"127.0.0.1:1\"]".to_owned(), "listeners[1]"),
        ("listeners = [\"127.0.0.1:1\", \"tls://127.0.0.1:1\"]".to_owned(), "listeners[1]"),
        ("listeners = [\"tls://127.0.0.1:1\", \"0.0.0.0:1\"]".to_owned(), "listeners[0]"),
        (namespace("nsid = 0"), "subsystems[0].namespaces[0].nsid"),
        (namespace("nsid = 8193"), "subsystems[0].namespaces[0].nsid"),
        (namespace("uuid = \"00000000-0000-0000-0000-000000000000\""), "subsystems[0].namespaces[0].uuid"),
        (namespace("ana_group = 129"), "subsystems[0].namespaces[0].ana_group"),
    ] {
        let config: Config = toml::from_str(&text).unwrap();
        assert_eq!(config.check().unwrap_err().at, at, "{text}");
    }
    let no_nguid = namespace("nguid = \"00000000-0000-0000-0000-000000000000\"");
    let config: Config = toml::from_str(&no_nguid).unwrap();
    assert_eq!(config.check(), Ok(()), "zero is none");
    for text in ["listeners = [\"here\"]", "listeners = [\"tcp://127.0.0.1:1\"]"] {
        let error = toml::from_str::<Config>(text).unwrap_err().to_string();
        assert!(error.contains("tls://ADDRESS:PORT"), "{error}");
    }
    // Misspelt fields are not ignored.
    assert!(toml::from_str::<Config>("listener = []").is_err());
}

#[test]
fn cores_are_a_number_or_a_list() {
    let count: Cores = "4".parse().unwrap();
    assert_eq!(count.cpus(), [None; 4]);
    let one: Cores = "3-3".parse().unwrap();
    assert_eq!(one.cpus(), [Some(3)]);
    for text in ["4", "3-3", "0,2,3"] {
        assert_eq!(text.parse::<Cores>().unwrap().to_string(), text);
    }
    for text in ["", "0", "129", "1,1", "3-2", "0-", "a", "0-4096", "0-4000"] {
        assert!(text.parse::<Cores>().is_err(), "{text}");
    }
    assert_eq!(toml::from_str::<Config>("cores = 2").unwrap().cores.unwrap().cpus().len(), 2);
}

#[test]
fn listeners_have_a_port_by_default() {
    for (text, address) in [
        ("127.0.0.1:1", "127.0.0.1:1"),
        ("0.0.0.0", "0.0.0.0:4420"),
        ("::1", "[::1]:4420"),
        ("[::]", "[::]:4420"),
        ("[::]:4421", "[::]:4421"),
        ("tls://127.0.0.1:1", "tls://127.0.0.1:1"),
        ("tls://0.0.0.0", "tls://0.0.0.0:4420"),
        ("tls://[::]", "tls://[::]:4420"),
    ] {
        assert_eq!(parse_listen(text).unwrap().to_string(), address);
        let bare = address.trim_start_matches("tls://");
        assert_eq!(parse_listener(text).unwrap().to_string(), bare);
    }
    for text in [
        "tls://",
        "tls:127.0.0.1",
        "tcp://127.0.0.1",
        "",
        "no such host",
        "1.2.3.4:99999",
        "::1:4420:zz",
    ] {
        assert!(parse_listen(text).is_err(), "{text}");
    }
}

#[test]
fn any_host_among_others_means_any() {
    let of = |rule: &str| {
        let mut config: Config =
            toml::from_str(&FILE.replace("[\"nqn.2026-11.com.example:host\"]", rule)).unwrap();
        let checked = config.check().map_err(|error| error.problem);
        config.complete();
        let subsystem = config.subsystems.swap_remove(0);
        (checked, subsystem.allow_any_host, subsystem.allowed_hosts)
    };
    assert_eq!(of("[\"*\"]"), (Ok(()), Some(true), Vec::new()));
    let both = of("[\"nqn.2026-11.com.example:host\", \"*\"]");
    assert_eq!(both, (Ok(()), Some(true), vec!["nqn.2026-11.com.example:host".to_owned()]));
    let (checked, any, _) = of("[\"*\"]\nallow_any_host = false");
    assert!(checked.is_err_and(|problem| problem.contains("any host")));
    assert_eq!(any, Some(false));
}

/// Written down once: a change here discards what every user has changed by `nvlane ctl`. A field that is new has to be
/// left out of a configuration that does not say it.
#[test]
fn the_fingerprint_of_what_a_file_says_is_stable() {
    let config: Config = toml::from_str(FILE).unwrap();
    assert_eq!(config.fingerprint(), "1f2c5869df1f5be196a704d6bea278c8");
    let minimal: Config =
        toml::from_str("[[subsystems]]\nnqn = \"nqn.2026-11.com.example:x\"").unwrap();
    assert_eq!(minimal.fingerprint(), "1d69c09bb9ed5bb1a5624188bc004203");
}

#[test]
fn only_what_is_said_counts() {
    let same = |text: &str| toml::from_str::<Config>(text).unwrap().fingerprint();
    let first = same(FILE);
    let hosts = "allowed_hosts = [\"nqn.2026-11.com.example:host\"]";
    let said = format!(
        "# A comment.\npoll = false\n{}",
        FILE.replace(hosts, &format!("{hosts}\nallow_any_host = false"))
    );
    assert_eq!(same(&said), first);
    assert_eq!(
        same(&FILE.replace("\"0.0.0.0:4420\", \"[::1]:4421\"", "\"[::1]:4421\", \"0.0.0.0:4420\"")),
        first
    );
    for (from, to) in [
        ("0,2-3", "0,2"),
        ("mem:1G", "mem:2G"),
        ("non-optimized", "inaccessible"),
        ("nqn.2026-11.com.example:host", "nqn.2026-11.com.example:other"),
        ("ana_group = 2", "ana_group = 3"),
        ("[::1]:4421", "[::1]:4422"),
        ("0.0.0.0:4420", "tls://0.0.0.0:4420"),
    ] {
        assert_ne!(same(&FILE.replace(from, to)), first, "{to}");
    }
}
