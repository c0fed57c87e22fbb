//! What is refused, and in which words; and what a URI says, there and back.

use namespace::layer::multipath::{Policy, Settings};
use proptest::prelude::*;
use std::path::PathBuf;
use volume::{Error, Kind, OpenOptions, Options, Uri};

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
    prop_oneof![memory, file]
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
        let multipath = (any_settings(), prop::collection::vec(inner, 1..4))
            .prop_map(|(settings, paths)| Kind::Multipath(settings, paths));
        (prop_oneof![layer, linear, multipath], options(false))
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
    fn no_text_of_the_right_letters_panics(text in "[a-f%?&(),:=0-9GKmslinerdya./ -]{0,60}") {
        if let Ok(uri) = text.parse::<Uri>() {
            prop_assert_eq!(uri.to_string().parse::<Uri>().expect("printed"), uri);
        }
    }

    #[test]
    fn no_layer_argument_panics(
        scheme in "(delay|rate|fault|volatile|linear|multipath)",
        arguments in "[a-z=0-9.,%-]{0,30}",
    ) {
        let _ = format!("{scheme}:{arguments}(mem:1G)").parse::<Uri>();
    }
}
