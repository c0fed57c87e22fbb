//! What a remote volume's URI says, there and back; opening is tested where there is a target.

use std::time::{Duration, Instant};
use volume::{Kind, OpenOptions, Uri};

const NQN: &str = "nqn.2026-11.org.example:disk";

/// What comes of the text when it is read and written again.
fn canonical(text: &str) -> String {
    let uri: Uri = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    let again = uri.to_string();
    assert_eq!(again.parse::<Uri>().expect("it was written by us"), uri, "{text}");
    again
}

#[test]
fn uris_there_and_back() {
    for (text, expected) in [
        ("tcp://192.0.2.1/NQN", "tcp://192.0.2.1:4420/NQN"),
        ("tcp://a:1,b.example:2/NQN", "tcp://a:1,b.example:2/NQN"),
        ("tcp://[::1]:4420,[2001:db8::1]/NQN", "tcp://[::1]:4420,[2001:db8::1]:4420/NQN"),
        ("tcp://a/NQN?ro&ns=7", "tcp://a:4420/NQN?ns=7&ro"),
        ("tcp://a/NQN?hdr_digest=1&data_digest", "tcp://a:4420/NQN?hdr_digest&data_digest"),
        ("tcp://a/NQN?data_digest=0&queue_size=128", "tcp://a:4420/NQN"),
        (
            "tcp://a/NQN?disable_sqflow=0&queue_size=8",
            "tcp://a:4420/NQN?queue_size=8&disable_sqflow=0",
        ),
        ("tcp://a/NQN?disable_sqflow", "tcp://a:4420/NQN"),
        ("tcp://a/NQN?disable_sqflow=0&disable_sqflow=1", "tcp://a:4420/NQN"),
        ("tcp://a/NQN?quiesce_time=1s", "tcp://a:4420/NQN"),
        ("tcp://a/NQN?quiesce_time=2500ms", "tcp://a:4420/NQN?quiesce_time=2500ms"),
        ("tcp://a/NQN?keep_alive_tmo=5&io_timeout=500ms", "tcp://a:4420/NQN?io_timeout=500ms"),
        ("tcp://a/NQN?ctrl_loss_tmo=-1", "tcp://a:4420/NQN?ctrl_loss_tmo=-1"),
        ("tcp://a/NQN?fast_io_fail_tmo=3", "tcp://a:4420/NQN?fast_io_fail_tmo=3s"),
        ("tcp://a/NQN?ctrl_loss_tmo=0", "tcp://a:4420/NQN?ctrl_loss_tmo=0"),
        ("tcp://a/NQN?fast_io_fail_tmo=0s", "tcp://a:4420/NQN?fast_io_fail_tmo=0"),
        ("tcp://a/NQN?failover=fast", "tcp://a:4420/NQN?failover=fast"),
        ("tcp://a/NQN?failover=safe", "tcp://a:4420/NQN"),
        ("tcp://a/NQN?policy=numa", "tcp://a:4420/NQN?policy=numa"),
        ("discovery://a/NQN", "discovery://a:8009/NQN"),
        ("discovery://a,b/NQN?host_iface=eth0", "discovery://a:8009,b:8009/NQN?host_iface=eth0"),
        (
            "tcp://a,b/NQN?host_iface=eth0+eth1&host_traddr=::1",
            "tcp://a:4420,b:4420/NQN?host_traddr=::1&host_iface=eth0+eth1",
        ),
        (
            "tcp://a,a,b/NQN?host_traddr=192.0.2.1+192.0.2.1+192.0.2.2&host_iface=e0+e0+e0",
            "tcp://a:4420,a:4420,b:4420/NQN?host_traddr=192.0.2.1+192.0.2.1+192.0.2.2&host_iface=e0",
        ),
        ("discovery://a:1,[::1]/NQN?ns=2&ro", "discovery://a:1,[::1]:8009/NQN?ns=2&ro"),
        (
            "tcp://a/NQN?hostnqn=nqn.h%2C&hostid=000102030405060708090a0b0c0d0e0f",
            "tcp://a:4420/NQN?hostnqn=nqn.h%2C&hostid=00010203-0405-0607-0809-0a0b0c0d0e0f",
        ),
        (
            "tcp://a/NQN?dhchap_ctrl_key=/etc/a%2Cb&dhchap_key=/etc/./h",
            "tcp://a:4420/NQN?dhchap_key=/etc/h&dhchap_ctrl_key=/etc/a%2Cb",
        ),
        ("tcp://a/NQN?tls_key=/etc/./t%2C", "tcp://a:4420/NQN?tls_key=/etc/t%2C"),
    ] {
        let (text, expected) = (text.replace("NQN", NQN), expected.replace("NQN", NQN));
        // `hostnqn` has no capitals, so nothing else is replaced.
        assert_eq!(canonical(&text), expected);
    }
}

#[test]
fn submission_queues_are_without_flow_control_unless_it_is_asked_for() {
    for (option, expected) in [("", false), ("?disable_sqflow", false), ("?disable_sqflow=0", true)]
    {
        let uri: Uri = format!("tcp://a/{NQN}{option}").parse().expect("well formed");
        let Kind::Remote(remote) = &uri.kind else { panic!("{uri:?}") };
        assert_eq!(remote.options.flow_control, expected, "{option}");
    }
}

#[test]
fn it_may_stand_among_other_volumes() {
    let text = format!("linear:(mem:1M,delay:1ms(tcp://a:1,b:2/{NQN}?ns=1),null:1M)");
    let uri: Uri = text.parse().expect("well formed");
    let Kind::Linear(children) = &uri.kind else { panic!("{uri:?}") };
    let Kind::Delay(_, remote) = &children[1].kind else { panic!("{uri:?}") };
    let Kind::Remote(remote) = &remote.kind else { panic!("{uri:?}") };
    assert_eq!((remote.addresses.len(), remote.options.association.nsid), (2, Some(1)));
    assert_eq!(remote.options.association.nqn, NQN);
}

#[test]
fn mistakes_are_told() {
    for (uri, words) in [
        ("tcp://a", "the subsystem is missing"),
        ("tcp://a:1", "the subsystem is missing"),
        ("tcp:///nqn.x:y", "host:port"),
        ("discovery://a", "write discovery://host:port/NQN"),
        ("discovery:///nqn.x:y", "discovery://"),
        ("discovery://a/nqn.2014-08.org.nvmexpress.discovery", "not the discovery service"),
        ("discovery://a/nqn.x?bs=512", "discovery: does not take the option"),
        ("tcp://a:0/nqn.x:y", "host:port"),
        ("tcp://a,/nqn.x:y", "host:port"),
        ("tcp://::1/nqn.x:y", "host:port"),
        ("tcp://a/", "an NQN"),
        ("tcp://a/nqn.x%20y", "an NQN"),
        ("tcp://a/nqn.x?ns=0", "a namespace id"),
        ("tcp://a/nqn.x?queue_size=1", "2 to 1024"),
        ("tcp://a/nqn.x?queue_size=5000", "2 to 1024"),
        ("tcp://a/nqn.x?keep_alive_tmo=0", "a time"),
        ("tcp://a/nqn.x?reconnect_delay=soon", "a time"),
        ("tcp://a/nqn.x?failover=maybe", "safe or fast"),
        ("tcp://a/nqn.x?hostid=1", "a UUID"),
        ("tcp://a/nqn.x?hdr_digest=perhaps", "0 or 1"),
        ("tcp://a/nqn.x?disable_sqflow=2", "0 or 1"),
        ("tcp://a/nqn.x?host_traddr=name", "addresses of this host"),
        ("tcp://a/nqn.x?host_traddr=", "addresses of this host"),
        ("tcp://a,b,c/nqn.x?host_traddr=::1+::2", "one for each address"),
        ("tcp://a/nqn.x?host_iface=a/b", "network interfaces"),
        ("discovery://a,b/nqn.x?host_iface=eth0+eth1", "one for all paths"),
        ("tcp://a/nqn.x?policy=whatever", "round-robin"),
        ("tcp://a/nqn.x?bs=512", "does not take the option"),
        ("tcp://a/nqn.x?dhchap_key=", "the path of a file"),
        ("tcp://a/nqn.x?dhchap_key", "does not take the option"),
        ("tcp://a/nqn.x?dhchap_key=DHHC-1:00:secret:", "the path of a file"),
        ("tcp://a/nqn.x?dhchap_ctrl_key=DHHC%2D1:00:secret:", "the path of a file"),
        ("tcp://a/nqn.x?dhchap_ctrl_key=/k", "beside dhchap_key"),
        ("tcp://a/nqn.x?tls_key=", "the path of a file"),
        ("tcp://a/nqn.x?tls_key=NVMeTLSkey-1:01:secret:", "the path of a file"),
    ] {
        let error = uri.parse::<Uri>().expect_err(uri).to_string();
        assert!(!error.contains("secret"), "a key is not said again: {error}");
        assert!(error.contains(words), "{uri}: {error}");
    }
    let many = format!("tcp://{}/nqn.x", vec!["a"; 17].join(","));
    assert!(many.parse::<Uri>().expect_err("17").to_string().contains("16 addresses"));
}

#[test]
fn nobody_there_is_told_soon() {
    let begin = Instant::now();
    // Nobody listens there.
    let uri = format!("tcp://127.0.0.1:1,[::1]:1/{NQN}");
    let error = volume::open(&uri, &OpenOptions::default()).expect_err("nobody").to_string();
    for words in [NQN, "127.0.0.1:1: connection refused", "[::1]:1: "] {
        assert!(error.contains(words), "{error}");
    }
    let uri = format!("discovery://127.0.0.1:1,[::1]:1/{NQN}");
    let error = volume::open(&uri, &OpenOptions::default()).expect_err("nobody").to_string();
    for words in ["no discovery controller can be asked", "127.0.0.1:1: ", "[::1]:1: "] {
        assert!(error.contains(words), "{error}");
    }
    assert!(begin.elapsed() < Duration::from_secs(15));
}

#[test]
fn remote_volumes_are_known_by_their_looks() {
    for uri in ["tcp://a/nqn.x:y", "discovery://a/nqn.x:y"] {
        assert!(volume::is_remote(uri) && volume::may_be_remote(&format!("delay:1ms({uri})")));
    }
    assert!(!volume::is_remote("linear:(tcp://a/nqn.x:y)"));
    assert!(!volume::may_be_remote("/srv/discovery.img"));
}
