//! What is refused, and in which words; and what a URI says, there and back.

use namespace::layer::multipath::{Policy, Settings, Tuning};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::path::PathBuf;
use std::time::Duration;
use volume::{Device, Error, Kind, OpenOptions, Options, Uri};

fn refused(uri: &str, options: OpenOptions) -> String {
    let message = volume::open(uri, &options).expect_err(uri).to_string();
    assert!(!message.contains('\n'), "more than one line: {message}");
    message
}

fn refused_plainly(uri: &str) -> String {
    refused(uri, OpenOptions::default())
}

#[test]
fn a_file_that_cannot_be_served_is_left_alone_and_the_message_names_the_mend() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("a.img");
    let shown = path.display();
    assert_eq!(
        refused_plainly(&shown.to_string()),
        format!("{shown} does not exist; add ?create&size=10G to make it")
    );
    assert!(refused_plainly(&format!("{shown}/x/y.img?create&size=1M")).contains("does not exist"));
    assert!(refused_plainly(&directory.path().display().to_string()).contains("is a directory"));
    assert!(refused_plainly("/dev/zero").contains("is a character device"));
    assert!(refused_plainly(&format!("{shown}?create&size=100")).contains("less than one block"));
    assert!(refused_plainly(&format!("{shown}?create&size=1000")).contains("not aligned"));
    assert!(!path.exists(), "something was made");
    std::fs::write(&path, [1; 100]).expect("written");
    let message = refused_plainly(&shown.to_string());
    assert!(message.contains("holds 100 bytes, less than one block of 512"), "{message}");
    assert_eq!(std::fs::read(&path).expect("there"), [1; 100]);
    assert!(refused_plainly("mem:100").contains("less than one of blocks"));
    assert!(refused_plainly("mem:1000").contains("not a whole number of blocks"));
    let mixed = refused_plainly("linear:(mem:1M,mem:1M?bs=4096)");
    assert!(mixed.contains("512 and 4096") && mixed.contains("?bs="), "{mixed}");
    let mixed = refused_plainly("multipath:(null:1M,null:1M?bs=4096)");
    assert!(mixed.contains("blocks of 512 bytes") && mixed.contains("not one volume"), "{mixed}");
    let one = "00000000-0000-0000-0000-00000000000";
    let mixed = refused_plainly(&format!("multipath:(null:1M?uuid={one}1,null:1M?uuid={one}2)"));
    assert!(mixed.contains("different UUIDs"), "{mixed}");
    assert!(refused_plainly("multipath:(mem:1M,delay:1ms(mem:1M))").contains("null:"));
    let wrong = refused_plainly("multipath:policy=best(null:1M)");
    assert!(wrong.contains("\"best\"") && wrong.contains("completion-time"), "{wrong}");
    let wrong = refused_plainly("multipath:latency_ewma_shift=9(null:1M)");
    assert!(wrong.contains("0 to 8"), "{wrong}");
    let wrong = refused_plainly("multipath:speed=1(null:1M)");
    assert!(wrong.contains("speed") && wrong.contains("numa_bias"), "{wrong}");
}

#[test]
fn nvme_devices_are_named_and_told_their_options() {
    let canonical = |uri: &str| uri.parse::<Uri>().expect(uri).to_string();
    for (uri, expected) in [
        ("/dev/ng0n1", "nvme:/dev/ng0n1"),
        ("file:/dev/ng12n345?ro", "nvme:/dev/ng12n345?ro"),
        ("nvme:/dev/by-id/x", "nvme:/dev/by-id/x"),
        ("/dev/ng0n1?passthrough=admin+io", "nvme:/dev/ng0n1?passthrough=io+admin"),
        ("/dev/ng0n1?poll&hybrid", "nvme:/dev/ng0n1?poll&hybrid"),
        (
            "/dev/ng0n1?timeout=500ms&sqpoll_idle=2s&sqpoll=1",
            "nvme:/dev/ng0n1?sqpoll=1&sqpoll_idle=2s&timeout=500ms",
        ),
        ("/dev/ng0n1?sqpoll&timeout=30", "nvme:/dev/ng0n1?sqpoll&timeout=30s"),
        ("tcp://a/NQN?passthrough=io", "tcp://a:4420/NQN?passthrough=io"),
        // Not such a device.
        ("/dev/ng0", "file:/dev/ng0"),
        ("/dev/ngn1", "file:/dev/ngn1"),
        ("/dev/ng0n1p1", "file:/dev/ng0n1p1"),
        ("/srv/dev/ng0n1", "file:/srv/dev/ng0n1"),
    ] {
        assert_eq!(canonical(uri), expected, "{uri}");
        assert_eq!(canonical(expected), expected);
    }
    for (uri, words) in [
        ("/dev/ng0n1?passthrough", "does not take"),
        ("/dev/ng0n1?passthrough=all", "io, admin or io+admin"),
        ("/dev/ng0n1?sqpoll=x", "a processor"),
        ("/dev/ng0n1?sqpoll_idle=1s", "together with sqpoll"),
        ("/dev/ng0n1?timeout=0", "a time"),
        ("/dev/ng0n1?timeout=1us", "a time"),
        ("/dev/ng0n1?create&size=1G", "does not take"),
        ("/a.img?passthrough=io", "does not take"),
        ("mem:1G?passthrough=io", "does not take"),
        ("nvme:", "a path is missing"),
        ("nvme:/dev/null", "no NVMe namespace's character device"),
        ("nvme:/dev/nonexistent", "nvme list"),
    ] {
        let message = refused_plainly(uri);
        assert!(message.contains(words), "{uri}: {message}");
    }
}

#[test]
fn a_file_has_one_writer_unless_both_share() {
    let directory = tempfile::tempdir().expect("a directory");
    let uri = format!("{}?create&size=1M", directory.path().join("a.img").display());
    let plain = OpenOptions::default();
    let shared = OpenOptions { shared: true, ..plain };
    let read_only = OpenOptions { read_only: true, ..plain };
    let opens = |options| volume::open(&uri, &options);
    {
        let _writer = opens(plain).expect("the first");
        for options in [plain, shared, read_only] {
            let message = refused(&uri, options);
            assert!(message.contains("already served"), "{message}");
        }
    }
    {
        let _one = opens(shared).expect("the first");
        let _two = opens(shared).expect("the second says so too");
        assert!(refused(&uri, plain).contains("--shared"));
    }
    let _one = opens(read_only).expect("a reader");
    let _two = opens(read_only).expect("another");
    assert!(opens(plain).is_err());
}

#[test]
fn a_file_that_is_in_a_volume_twice_is_told_as_that() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("a"), vec![0; 1 << 20]).unwrap();
    std::fs::write(path("b"), vec![0; 1 << 20]).unwrap();
    std::os::unix::fs::symlink("a", path("link")).unwrap();
    let (a, b, link) = (path("a"), path("b"), path("link"));
    for twice in [
        format!("linear:({a},{a})"),
        format!("linear:({b},delay:1ms(linear:({a},{link})))"),
        format!("linear:({a}?ro,{a})"),
    ] {
        let message = refused(&twice, OpenOptions::default());
        assert!(message.contains(" is in this volume more than once"), "{twice}: {message}");
    }
    for fine in [format!("linear:({a}?ro,{link}?ro)"), format!("linear:({a},{b})")] {
        assert!(volume::open(&fine, &OpenOptions::default()).is_ok(), "{fine}");
    }
    // Somebody else has it.
    let _other = volume::open(&a, &OpenOptions::default()).unwrap();
    let message = refused(&format!("linear:({b},{a})"), OpenOptions::default());
    assert!(message.contains("already served"), "{message}");
}

#[test]
fn an_existing_file_keeps_its_size_when_it_is_created_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("a.img");
    let open = |size: &str| {
        let uri = format!("{}?create&size={size}", path.display());
        volume::open(&uri, &OpenOptions::default()).expect("opened").limits().bytes()
    };
    assert_eq!(open("1M"), 1 << 20);
    assert_eq!(open("2M"), 1 << 20);
}

/// Sessions look at the others by themselves.
#[test]
fn volumes_that_are_devices_or_have_some_are_told_apart() {
    for (uri, has_device) in [
        ("/dev/ng0n1", true),
        ("nvme:/srv/node", true),
        ("linear:(mem:1M,delay:1ms(/dev/ng0n1))", true),
        ("linear:(mem:1M,/srv/a.img)", false),
        ("/dev/null", false),
        ("tcp://192.0.2.1/nqn.x:y", false),
    ] {
        let uri: Uri = uri.parse().expect(uri);
        assert_eq!(uri.has_device(), has_device, "{uri}");
    }
}

#[test]
fn what_is_no_uri_is_refused_where_it_goes_wrong() {
    for (uri, words) in [
        ("", "a volume is missing"),
        ("delay:30ms", "in parentheses"),
        ("delay:30ms(mem:1G", "closing parenthesis"),
        ("delay:30ms()", "a volume is missing"),
        ("delay:30ms(mem:1G,mem:1G)", "linear:"),
        ("delay:30(mem:1G)", "30ms"),
        ("mem:1G?size=1", "does not take"),
        ("mem:1G?ro", "does not take"),
        ("mem:", "a size like 10G"),
        ("mem:0", "mem:0 has no block; give a size like 10G"),
        ("null:0K", "null:0K has no block; give a size like 10G"),
        ("/a?create&size=0", "size=0 has no block; give a size like 10G"),
        ("mem:1G?bs=1024", "512 or 4096"),
        ("mem:1G)", "nothing may follow"),
        ("file:?ro", "a path is missing"),
        ("/a%zz", "two hexadecimal digits"),
        ("/a?create", "needs a size"),
        ("/a?size=1G", "?create"),
        ("men:1G", "did you mean mem:"),
        ("foo:1G", "known are file, nvme, mem"),
        ("rate:0(mem:1G)", "1G"),
        ("fault:rate=2(mem:1G)", "0 to 1"),
        ("fault:op=boil(mem:1G)", "read, write"),
        ("fault:lba=9-1(mem:1G)", "first-last"),
        ("linear:(mem:1G,)", "a volume is missing"),
    ] {
        let message = refused_plainly(uri);
        assert!(message.contains(words), "{uri}: {message}");
    }
    let deep = format!("{}mem:1G{}", "delay:0(".repeat(100), ")".repeat(100));
    assert!(matches!(deep.parse::<Uri>(), Err(Error::TooDeep)));
    let most = volume::DEPTH_MAX - 1;
    let stack = format!("{}mem:1M{}", "delay:0(".repeat(most), ")".repeat(most));
    assert!(volume::open(&stack, &OpenOptions::default()).is_ok());
    let stack = format!("delay:0({stack})");
    assert!(matches!(volume::open(&stack, &OpenOptions::default()), Err(Error::TooDeep)));
}

#[test]
fn an_open_volume_tells_a_uri_that_opens_it_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("odd (name), 100%?.img");
    let path = namespace::percent::encode(&path);
    let created = format!("{path}?create&size=1M");
    let uuid = "uuid=00112233-4455-6677-8899-aabbccddeeff";
    for uri in [
        created.clone(),
        format!("{created}&{uuid}&buffered&bs=4096"),
        format!("mem:3M?{uuid}"),
        "null:3G?bs=4096".into(),
        format!("delay:read=30ms(linear:({created},mem:1M))?ro&{uuid}"),
        "rate:bytes=1G,iops=10K(fault:rate=0.25,op=read,lba=1-9,count=3,seed=7(mem:1M))".into(),
        "volatile:cache=2M(mem:1M)".into(),
    ] {
        let open = |uri: &str| {
            let namespace = volume::open(uri, &OpenOptions::default()).expect(uri);
            (namespace.uri(), namespace.uuid(), namespace.limits())
        };
        let first = open(&uri);
        assert_eq!(open(&first.0), first, "{uri}");
        assert_eq!(uri.contains("uuid"), first.1.is_some());
        assert_eq!(uri.contains("ro&"), first.2.read_only);
    }
}

fn options(blocks: bool) -> impl Strategy<Value = Options> {
    let block = prop::option::of(prop::sample::select(vec![512u32, 4096]));
    let uuid = prop::option::of(any::<[u8; 16]>());
    (block, any::<bool>(), uuid).prop_map(move |(block_bytes, read_only, uuid)| Options {
        block_bytes: block_bytes.filter(|_| blocks),
        read_only,
        uuid,
        ..Options::default()
    })
}

fn backend() -> impl Strategy<Value = Uri> {
    let memory = (1u64.., options(true)).prop_map(|(bytes, options)| Uri {
        kind: if bytes % 2 == 0 { Kind::Memory(bytes) } else { Kind::Null(bytes) },
        options: Options { read_only: false, ..options },
    });
    let file = ("[ -~]{0,20}|\\PC{1,8}", prop::option::of(1u64..), any::<bool>(), options(true))
        .prop_map(|(name, create_bytes, buffered, options)| Uri {
            kind: Kind::File { path: PathBuf::from(format!("/{name}")), create_bytes, buffered },
            options,
        });
    let remote = remote().prop_map(|text| text.parse().expect(&text));
    prop_oneof![2 => memory, 2 => file, 1 => device(), 2 => remote]
}

/// The character device of a namespace, with its options.
fn device() -> impl Strategy<Value = Uri> {
    let time = || prop::option::of((1u64..=86_400_000).prop_map(Duration::from_millis));
    let sqpoll = prop::option::of(prop::option::of(0u32..1 << 16));
    ("\\PC{1,8}", any::<(bool, bool)>(), sqpoll, time(), time(), options(false)).prop_map(
        |(path, (poll, hybrid), sqpoll, idle, timeout, options)| {
            let sqpoll_idle = idle.filter(|_| sqpoll.is_some());
            let path = PathBuf::from(path);
            let device = Device { path, poll, hybrid, sqpoll, sqpoll_idle, timeout };
            Uri { kind: Kind::Device(device), options }
        },
    )
}

/// The text of a remote volume with options that it takes, some more than once.
fn remote() -> impl Strategy<Value = String> {
    let host = "[a-zA-Z0-9_.-]{1,8}|[0-9]{1,3}\\.0\\.2\\.1|\\[(::1|2001:DB8::[1-9a-f])\\]";
    let host = (host, prop::option::of(1u16..)).prop_map(|(host, port)| match port {
        Some(port) => format!("{host}:{port}"),
        None => host,
    });
    let hosts = prop::collection::vec(host, 1..4);
    hosts.prop_flat_map(|hosts| {
        let places = if hosts.len() > 1 { vec![1, hosts.len()] } else { vec![1] };
        let prefix = prop_oneof![
            3 => (Just("tcp://"), Just(places)),
            1 => (Just("discovery://"), Just(vec![1])),
        ];
        prefix.prop_flat_map(move |(prefix, places)| {
            let options = prop::collection::vec(remote_option(places), 0..8);
            let hosts = hosts.join(",");
            ("nqn\\.[a-z0-9:.-]{1,12}(%2C|%C3%A4)?", options).prop_map(move |(nqn, options)| {
                let mark = if options.is_empty() { "" } else { "?" };
                format!("{prefix}{hosts}/{nqn}{mark}{}", options.join("&"))
            })
        })
    })
}

/// An option of a remote volume; those of this end of each path have one of so many values.
fn remote_option(places: Vec<usize>) -> impl Strategy<Value = String> {
    let flag = "(hdr_digest|data_digest|disable_sqflow)(=(0|1|true|no|on|off))?";
    let time = "(keep_alive_tmo|reconnect_delay|io_timeout|connect_timeout|quiesce_time|ctrl_loss_tmo|fast_io_fail_tmo)=[1-9][0-9]{0,3}(s|ms|\\.5s)?";
    let limit = "(ctrl_loss_tmo|fast_io_fail_tmo)=(-1|off|0|0s)";
    let number = "ns=[1-9][0-9]{0,8}|queue_size=([2-9]|1[0-9]{2}|1K)|latency_ewma_shift=[0-8]";
    let name = "hostnqn=[a-z0-9.:]{1,12}(%2C|%26)?|hostid=[1-9a-f]{32}";
    let word =
        "failover=(safe|fast)|policy=(numa|round-robin)|passthrough=(io|admin|io\\+admin)|ro";
    let key = "dhchap_key=/[a-z/.]{1,8}(%2C)?";
    let locals = prop::sample::select(places).prop_flat_map(|count| {
        let address = prop::collection::vec("::[1-9a-f]|192\\.0\\.2\\.[1-9]", count);
        let interface = prop::collection::vec("e[0-2]", count);
        prop_oneof![
            address.prop_map(|each| format!("host_traddr={}", each.join("+"))),
            interface.prop_map(|each| format!("host_iface={}", each.join("+"))),
        ]
    });
    prop_oneof![flag, time, limit, number, name, word, key, locals]
}

/// Letters of URIs, together as they are in some.
fn parts() -> impl Strategy<Value = String> {
    const PARTS: [&str; 44] = [
        "tcp://",
        "discovery://",
        "nvme:",
        "bpf:",
        "linear:",
        "/dev/ng0n1",
        "mem:1G",
        "(",
        ")",
        ",",
        "?",
        "&",
        "&",
        "=",
        "=",
        "+",
        ":",
        "h",
        "h:1",
        "[::1]",
        "/n",
        "/n?",
        "%2C",
        "%",
        "::1",
        "e0",
        "1",
        "0",
        "-1",
        "1s",
        "1.5ms",
        "on",
        "ro",
        "ns=",
        "hostnqn=",
        "hostid=",
        "host_traddr=",
        "host_iface=",
        "dhchap_key=",
        "queue_size=",
        "io_timeout=",
        "ctrl_loss_tmo=",
        "passthrough=",
        "sqpoll",
    ];
    prop::collection::vec(prop::sample::select(&PARTS[..]), 0..16).prop_map(|parts| parts.concat())
}

/// A remote volume with options that it may take, or nearly so.
fn nearly_remote() -> impl Strategy<Value = String> {
    let known = "(ro|uuid|passthrough|ns|hostnqn|hostid|dhchap_key|dhchap_ctrl_key|host_traddr|host_iface|hdr_digest|data_digest|queue_size|disable_sqflow|keep_alive_tmo|reconnect_delay|ctrl_loss_tmo|fast_io_fail_tmo|io_timeout|connect_timeout|quiesce_time|failover|policy|latency_ewma_shift|latency_batch_timeout|numa_bias|standby)";
    let option = (known, "(=[0-9a-z+:.%_/-]{0,10}|=[0-9]{1,3}(ms|us|s)?)?");
    let options = prop::collection::vec(option, 0..6).prop_map(|options| {
        let each: Vec<String> =
            options.iter().map(|(name, value)| format!("{name}{value}")).collect();
        each.join("&")
    });
    let hosts = "[a-f0-9]{1,4}(:[0-9]{1,5})?(,[a-f0-9.]{1,4}){0,2}|[a-f0-9.:,%\\[\\]-]{0,12}";
    ("(tcp|discovery)://", hosts, "[a-z0-9%.:]{1,8}", options)
        .prop_map(|(prefix, hosts, nqn, options)| format!("{prefix}{hosts}/{nqn}?{options}"))
}

/// What is read says the same when it is written again.
fn there_and_back(text: &str) -> Result<(), TestCaseError> {
    if let Ok(uri) = text.parse::<Uri>() {
        let again = uri.to_string();
        let read = again.parse::<Uri>();
        prop_assert!(read.is_ok(), "{} of {}: {}", again, text, read.unwrap_err());
        prop_assert_eq!(read.unwrap(), uri, "{} of {}", again, text);
    }
    Ok(())
}

fn any_settings() -> impl Strategy<Value = Settings> {
    let policy = prop::sample::select(Policy::ALL.to_vec());
    let batch = prop::option::of(1u64..);
    (policy, 0u8..=8, batch, any::<u64>()).prop_map(
        |(policy, latency_ewma_shift, latency_batch_timeout_ns, numa_bias_ns)| Settings {
            policy,
            latency_ewma_shift,
            latency_batch_timeout_ns,
            numa_bias_ns,
        },
    )
}

fn any_tuning() -> impl Strategy<Value = Tuning> {
    let standby = prop::sample::select(&["none", "2", "1+16", "192.0.2.1", "[::1]:4420+h-1.x"][..]);
    (any_settings(), standby).prop_map(|(settings, standby)| Tuning {
        settings,
        standby: standby.parse().expect("names of paths"),
    })
}

fn any_uri() -> impl Strategy<Value = Uri> {
    backend().prop_recursive(4, 12, 3, |inner| {
        let times = (0u64..1 << 40, 0u64..1 << 40);
        let layer = (inner.clone(), times, any::<u32>(), 0.0f64..1.0);
        let layer = layer.prop_map(|(child, (a, b), number, share)| {
            use namespace::layer::{delay::Delays, fault::Rule, rate::Rates};
            use std::time::Duration;
            let child = Box::new(child);
            match number % 4 {
                0 => Kind::Delay(
                    Delays {
                        read: Duration::from_nanos(a + 1),
                        write: Duration::from_nanos(b),
                        ..Delays::default()
                    },
                    child,
                ),
                1 => Kind::Rate(Rates { bytes: Some(a + 1), commands: Some(b + 1) }, child),
                2 => {
                    let rule = Rule {
                        rate: share,
                        opcodes: vec![number as u8, 2],
                        lba: Some((a, a + b)),
                        skip: a,
                        count: Some(b),
                        status: Some(nvme::Status(1 + (number as u16 & 0x0fe))),
                        seed: b,
                    };
                    Kind::Fault(rule, child)
                }
                _ => Kind::Volatile(Some(a + 1), child),
            }
        });
        let linear = prop::collection::vec(inner.clone(), 1..4).prop_map(Kind::Linear);
        let multipath = (any_tuning(), prop::collection::vec(inner.clone(), 1..4))
            .prop_map(|(tuning, paths)| Kind::Multipath(tuning, paths));
        let program = ("\\PC{1,8}", prop::collection::vec(inner, 1..4))
            .prop_map(|(path, children)| Kind::Program(PathBuf::from(path), children));
        (prop_oneof![2 => layer, 1 => linear, 1 => multipath, 1 => program], options(false))
            .prop_map(|(kind, options)| Uri { kind, options })
    })
}

proptest! {
    #[test]
    fn parsing_undoes_printing(uri in any_uri()) {
        let text = uri.to_string();
        prop_assert_eq!(text.parse::<Uri>().expect(&text), uri);
    }

    #[test]
    fn no_text_panics(text in "\\PC*") {
        let _ = text.parse::<Uri>();
    }

    #[test]
    fn no_text_of_the_right_letters_panics(
        text in "[a-z%?&(),:=0-9GKM./ _+\\[\\]-]{0,60}",
        parts in parts(),
    ) {
        there_and_back(&text)?;
        there_and_back(&parts)?;
    }

    #[test]
    fn remote_volumes_are_there_and_back(text in remote(), nearly in nearly_remote()) {
        prop_assert!(text.parse::<Uri>().is_ok(), "{}: {}", text, text.parse::<Uri>().unwrap_err());
        there_and_back(&text)?;
        there_and_back(&nearly)?;
    }

    #[test]
    fn no_layer_argument_panics(
        scheme in "(delay|rate|fault|volatile|linear|multipath|bpf)",
        arguments in "[a-z=0-9.,%-]{0,30}",
    ) {
        there_and_back(&format!("{scheme}:{arguments}(mem:1G)"))?;
    }
}
