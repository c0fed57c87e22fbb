//! PSKs that others have derived, and identities of any kind.

use super::*;
use proptest::prelude::*;

const HOST: &str = "nqn.psk-test-host";
const SUBSYSTEM: &str = "nqn.psk-test-subsys";

/// The keys of libnvme's test/psk.c, as the two hash functions have them.
const KEY32: &str = "VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ";
const KEY48: &str = "VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==";

const DERIVATIONS: [Derivation; 2] = [Derivation::Specified, Derivation::Compatible];
const VERSIONS: [Version; 2] = [Version::Zero, Version::One];

fn key(transform: &str, base64: &str) -> Key {
    Key::parse(&format!("NVMeTLSkey-1:{transform}:{base64}:")).unwrap()
}

fn keys() -> [Key; 4] {
    [key("01", KEY32), key("02", KEY48), key("00", KEY32), key("00", KEY48)]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A text of a key that is used as it is.
fn plain(secret: &str) -> Key {
    let digits: Vec<_> = secret.bytes().map(|it| (it as char).to_digit(16).unwrap()).collect();
    let mut bytes: Vec<_> = digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect();
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    key("00", &STANDARD.encode(bytes))
}

/// Rows: how the key is transformed, the key, the version; the identity and the secret of its PSK.
#[track_caller]
fn derived(derivation: Derivation, rows: &[(&str, &str, Version, &str, &str)]) {
    for &(transform, base64, version, identity, secret) in rows {
        let key = key(transform, base64);
        let psk = Psk::derive(&key, HOST, SUBSYSTEM, version, derivation).unwrap();
        assert_eq!(psk.identity, identity);
        assert_eq!(psk.hash, key.hash());
        assert_eq!(hex(&psk.secret), secret);
    }
}

/// Identities: libnvme's test/psk.c of 1.16 (test_data_identity). Secrets: of another
/// implementation, written from RFC 8446.
#[test]
fn as_specified() {
    derived(
        Derivation::Specified,
        &[
            (
                "01",
                KEY32,
                Version::One,
                "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=",
                "8fc3c0badfd4c0c66fa3ca33aadd0314f85536cc9bc47338b60f3e6e563786ca",
            ),
            (
                "02",
                KEY48,
                Version::One,
                "NVMe1R02 nqn.psk-test-host nqn.psk-test-subsys QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
                "a2b2f943f479fc682555cec89857c80ed004ce92f32a973d5764155bb7e36b17a85368a0666d250afac9282dda2e62ca",
            ),
            (
                "01",
                KEY32,
                Version::Zero,
                "NVMe0R01 nqn.psk-test-host nqn.psk-test-subsys",
                "05c6503551ad136e6ee32e6eeb3f6d500b69701d84ec71e328f65c7f51566f68",
            ),
            (
                "02",
                KEY48,
                Version::Zero,
                "NVMe0R02 nqn.psk-test-host nqn.psk-test-subsys",
                "f42ba63824cdfe421914c582921f85b5b5b7e2d4df084caeedc9be20b212e8bb0fe8a23e9d59a1c8fc6449da4970a78d",
            ),
            (
                "00",
                KEY32,
                Version::Zero,
                "NVMe0R01 nqn.psk-test-host nqn.psk-test-subsys",
                "ec85300ba827726bd3bc4fc07f3a34aec5fe7c8ccac05fefc2f021c74e0df9ef",
            ),
            (
                "00",
                KEY48,
                Version::One,
                "NVMe1R02 nqn.psk-test-host nqn.psk-test-subsys dyoPfSR5TBRaPMI5/FXUlJv2XMDtmQ7Q9Xrj89aBKbyRYkQeT5V1wNvIpnMDRTQW",
                "1569317890995e207ab4cf148bc53470561e148030cb019b1d87fb4bc5794a791ed5ee68676c952ce5f11f3786e900d4",
            ),
        ],
    );
}

/// Identities: libnvme's test/psk.c of 1.16 (test_data_identity_compat). Secrets: of another
/// implementation.
#[test]
fn compatible() {
    derived(
        Derivation::Compatible,
        &[
            (
                "01",
                KEY32,
                Version::One,
                "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys 66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM=",
                "b9f5ab2a41ba6e72a23a12066302a2f775fa6c0942c8e0b18ca8ac07edf305e2",
            ),
            (
                "02",
                KEY48,
                Version::One,
                "NVMe1R02 nqn.psk-test-host nqn.psk-test-subsys RsKmYJ3nAn1ApjjMloJFbAkLPivONDAX/xW327YBUsn2eGShXSjCZvBaOxscLqmz",
                "fcefe2e2a2e682b1447dcabf1ec268f78f08c63cd075753abcc8bda2c5c34d48d3014aa8d76ad80107e4f5c9f27e2149",
            ),
            (
                "01",
                KEY32,
                Version::Zero,
                "NVMe0R01 nqn.psk-test-host nqn.psk-test-subsys",
                "09fb1983ac6d6d0353e7cae4f23daddd651c367fa347c59d9cf6936f5a83eafb",
            ),
            (
                "02",
                KEY48,
                Version::Zero,
                "NVMe0R02 nqn.psk-test-host nqn.psk-test-subsys",
                "2ee4754186a625b28a3936ef4a40d839c3ad958b2e017562ee07e2501f172ce999dc9c29033ea7ee33f814f192c13f47",
            ),
            (
                "00",
                KEY32,
                Version::One,
                "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys quJVUJjp/BImWR0UQay/MjSfEgyAr6TyBOWybS/B404=",
                "d50f6d3dd79345b6e8217744524df5ac0dc66964ff70cc5fd18e1b9d57ce7fcf",
            ),
            (
                "00",
                KEY48,
                Version::Zero,
                "NVMe0R02 nqn.psk-test-host nqn.psk-test-subsys",
                "9cb989c1d40fdcdc1bb729d6691901bfcd0b310f060f558d4a63c7afc2a0923f2d0610073fded349d25d6b3f91980826",
            ),
        ],
    );
}

/// Linux, drivers/nvme/common/tests/auth_kunit.c: expected_psk, expected_psk_digest and expected_tls_psk. What those tests
/// start from is a generated PSK, which differs from a retained one only in the letter of the identity.
#[test]
fn as_linux_does_for_generated_psks() {
    for (secret, identity, expected) in [
        (
            "1733c59fa7f48fcf37f5f26fc4ff0268ad4f78e030f4f3b0bfd1d47e7bb1447a",
            "NVMe1R01 hostnqn subsysnqn OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI=",
            "3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8",
        ),
        (
            "f14b2dd3234c459694d3bc63f8968bd6b37c2c6de849e22e118749001ce4bbe8640b9e3a748cb11ce4b1d71d359cce39",
            "NVMe1R02 hostnqn subsysnqn cffMWk8TSS7HOQebjgYEIkrPrjWPV4JE5cdPB8WhEvY4JBW5YynKyv66XscN4A9n",
            "2774753233537b3fa50eb7d16a8e43457d85f4906c005b2236616c5d80939d0898fff15bb8b77119d2be0aac423e7590",
        ),
    ] {
        let (key, derivation) = (plain(secret), Derivation::Specified);
        let psk = Psk::derive(&key, "hostnqn", "subsysnqn", Version::One, derivation).unwrap();
        assert_eq!(psk.identity, identity);
        assert_eq!(hex(&psk.secret), expected);
    }
}

#[test]
fn what_an_identity_may_stand_for() {
    for key in keys() {
        for version in VERSIONS {
            let derive = |it| Psk::derive(&key, HOST, SUBSYSTEM, version, it).unwrap();
            let [specified, compatible] = DERIVATIONS.map(derive);
            assert_ne!(specified.secret, compatible.secret);
            let identity = specified.identity.as_bytes();
            if version == Version::Zero || key.transform().is_none() {
                assert_eq!(specified.identity, compatible.identity);
                assert_eq!(accepted(identity, &key), [specified.clone(), compatible]);
            } else {
                assert_eq!(accepted(identity, &key), std::slice::from_ref(&specified));
                assert_eq!(accepted(compatible.identity.as_bytes(), &key), [compatible]);
            }
        }
    }
}

#[test]
fn nothing_is_accepted_for_another_key() {
    let [key, other, plain, _] = keys();
    let psk = Psk::derive(&key, HOST, SUBSYSTEM, Version::One, Derivation::Specified).unwrap();
    let identity = psk.identity.as_bytes();
    assert!(accepted(identity, &other).is_empty());
    assert!(accepted(identity, &plain).is_empty(), "other digest");
    assert!(accepted(&identity[..identity.len() - 1], &key).is_empty());
    assert!(accepted(&[identity, b"\0"].concat(), &key).is_empty());
    assert!(accepted(&[identity, b" "].concat(), &key).is_empty());
    let names = psk.identity.rsplit_once(' ').unwrap().0;
    assert!(accepted(names.as_bytes(), &key).is_empty(), "version 1 without digest");
    assert!(accepted(b"", &key).is_empty());
}

#[test]
fn names_that_are_too_long() {
    let key = key("01", KEY32);
    let derive = |host: usize, subsystem: usize, version, derivation| {
        let (host, subsystem) = ("h".repeat(host), "s".repeat(subsystem));
        Psk::derive(&key, &host, &subsystem, version, derivation).map(|psk| psk.identity.len())
    };
    let (zero, one) = (Version::Zero, Version::One);
    assert_eq!(derive(223, 22, zero, Derivation::Specified), Ok(255));
    let long = PskError::Long { bytes: 246 };
    assert_eq!(derive(223, 23, zero, Derivation::Specified), Err(long.clone()));
    assert_eq!(derive(223, 223, zero, Derivation::Compatible), Ok(456));
    assert_eq!(derive(223, 223, one, Derivation::Specified), Ok(501));
    assert_eq!(derive(223, 223, one, Derivation::Compatible), Ok(501));
    for (host, subsystem) in [(0, 10), (10, 0), (224, 10), (10, 224)] {
        let refused = derive(host, subsystem, one, Derivation::Specified);
        assert!(matches!(refused, Err(PskError::Name { .. })), "{host} {subsystem}");
    }
    assert_eq!(
        long.to_string(),
        "the NQNs of host and subsystem have 246 bytes in all, and an identity of version 0 takes 245"
    );

    let (host, subsystem) = ("h".repeat(223), "s".repeat(223));
    let psk = Psk::derive(&key, &host, &subsystem, zero, Derivation::Compatible).unwrap();
    assert_eq!(accepted(psk.identity.as_bytes(), &key), [psk], "only what can be derived");
}

#[test]
fn names_that_are_none() {
    let key = key("01", KEY32);
    for name in ["a b", "a\tb", "a\n", "\0", "a\u{85}", "a\u{2028}b", " ", ""] {
        let refused = Err(PskError::Name { name: name.to_owned() });
        for version in VERSIONS {
            let derive = |host, subsystem| {
                Psk::derive(&key, host, subsystem, version, Derivation::Specified)
            };
            assert_eq!(derive(name, SUBSYSTEM), refused);
            assert_eq!(derive(HOST, name), refused);
        }
    }
}

#[test]
fn a_psk_is_not_shown() {
    let psk =
        Psk::derive(&key("01", KEY32), "h", "s", Version::Zero, Derivation::Specified).unwrap();
    let shown = format!("{psk:?}");
    assert_eq!(shown, "Psk { identity: \"NVMe0R01 h s\", hash: Sha256, .. }");
}

#[test]
fn whom_an_identity_names() {
    let peer = |host: &str, subsystem: &str| {
        Some(Peer { host_nqn: host.into(), subsystem_nqn: subsystem.into() })
    };
    let (digest32, digest48) = (STANDARD.encode([7; 32]), STANDARD.encode([7; 48]));
    for (identity, named) in [
        ("NVMe0R01 h s", peer("h", "s")),
        ("NVMe0R02 nqn.é nqn.s", peer("nqn.é", "nqn.s")),
        (&format!("NVMe1R01 h s {digest32}"), peer("h", "s")),
        (&format!("NVMe1R02 h s {digest48}"), peer("h", "s")),
        ("", None),
        ("NVMe0R01", None),
        ("NVMe0R01 h", None),
        ("NVMe0R01 h ", None),
        ("NVMe0R01  s", None),
        ("NVMe0R01 h s ", None),
        ("NVMe0R01  h s", None),
        (" NVMe0R01 h s", None),
        ("NVMe0R01 h s\n", None),
        ("NVMe0R01 h s\0", None),
        ("NVMe0R01 h\ts", None),
        ("NVMe0R01 h\u{a0}x s", None),
        ("NVMe0R01 h\u{7f} s", None),
        ("NVMe0R00 h s", None),
        ("NVMe0R03 h s", None),
        ("NVMe0R1 h s", None),
        ("NVMe0G01 h s", None),
        ("NVMe2R01 h s", None),
        ("nvme0r01 h s", None),
        (&format!("NVMe0R01 h s {digest32}"), None),
        ("NVMe1R01 h s", None),
        ("NVMe1R01 h s ", None),
        (&format!("NVMe1R01 h s {digest48}"), None),
        (&format!("NVMe1R02 h s {digest32}"), None),
        (&format!("NVMe1R03 h s {digest32}"), None),
        (&format!("NVMe1G01 h s {digest32}"), None),
        (&format!("NVMe1R01 h s {digest32} "), None),
        (&format!("NVMe1R01 h s {digest32} x"), None),
        (&format!("NVMe1R01 h s {}", digest32.trim_end_matches('=')), None),
        (&format!("NVMe1R01 h s *{}", &digest32[1..]), None),
        (&format!("NVMe0R01 {} s", "h".repeat(223)), peer(&"h".repeat(223), "s")),
        (&format!("NVMe0R01 {} s", "h".repeat(224)), None),
        (&format!("NVMe0R01 h {}", "s".repeat(224)), None),
    ] {
        assert_eq!(Peer::of(identity.as_bytes()), named, "{identity:?}");
    }
    assert_eq!(Peer::of(b"NVMe0R01 h\xff s"), None);
}

fn nqn() -> impl Strategy<Value = String> {
    prop_oneof!["nqn\\.[a-z0-9:.-]{1,80}", "[^\\s\\p{Cc}]{1,55}"]
}

fn any_key() -> impl Strategy<Value = Key> {
    prop::sample::select(keys().to_vec())
}

proptest! {
    #[test]
    fn an_identity_names_whom_it_is_for(
        key in any_key(),
        host in nqn(),
        subsystem in nqn(),
        version in prop::sample::select(&VERSIONS[..]),
        derivation in prop::sample::select(&DERIVATIONS[..]),
    ) {
        let psk = match Psk::derive(&key, &host, &subsystem, version, derivation) {
            Ok(psk) => psk,
            Err(error) => {
                let bytes = host.len() + subsystem.len();
                prop_assert_eq!(error, PskError::Long { bytes });
                prop_assert!(bytes > NAMES_BYTES_MAX);
                return Ok(());
            }
        };
        prop_assert_eq!(psk.secret.len(), psk.hash.bytes());
        let peer = Peer { host_nqn: host, subsystem_nqn: subsystem };
        prop_assert_eq!(Peer::of(psk.identity.as_bytes()), Some(peer));
        prop_assert!(accepted(psk.identity.as_bytes(), &key).contains(&psk));
    }

    #[test]
    fn any_bytes_are_an_identity_or_none(bytes: Vec<u8>, key in any_key()) {
        prop_assert_eq!(Peer::of(&bytes), None);
        prop_assert!(accepted(&bytes, &key).is_empty());
    }

    #[test]
    fn almost_an_identity(
        text in "NVMe[0-2][RG]0[0-3] [ -~]{0,40}( [a-z.]{1,230})?( [A-Za-z0-9+/]{43,65}={0,2})?\\PC?",
        key in any_key(),
    ) {
        let peer = Peer::of(text.as_bytes());
        for psk in accepted(text.as_bytes(), &key) {
            prop_assert_eq!(&psk.identity, &text);
            prop_assert!(peer.is_some());
        }
        if let Some(Peer { host_nqn, subsystem_nqn }) = peer {
            let names = format!(" {host_nqn} {subsystem_nqn}");
            prop_assert!(text[8..].starts_with(&names));
        }
    }
}

#[test]
fn a_host_offers_each_form_once() {
    let (host, subsystem) = ("nqn.2014-08.org.example:host1", "nqn.2024-01.org.example:disks");
    let key = Key::generate(Hash::Sha256, &mut |bytes| bytes.fill(3));
    let offered = offers(&key, host, subsystem).unwrap();
    let names: Vec<_> = offered.iter().map(|psk| psk.identity.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["NVMe1R01", "NVMe0R01", "NVMe1R01", "NVMe0R01"]);
    for psk in &offered {
        assert!(accepted(psk.identity.as_bytes(), &key).contains(psk));
    }
    // Too long for one of them alone.
    let long = format!("nqn.{}", "a".repeat(219));
    assert_eq!(offers(&key, &long, subsystem).unwrap().len(), 3);
    assert!(offers(&key, "a b", subsystem).is_err());
}

/// What libnvme 1.13 (compatible) and 1.16 (as specified) derive, seen in a kernel's keyring.
#[test]
fn what_libnvme_derives() {
    let (host, subsystem) = ("nqn.2026-11.com.example:host", "nqn.2026-11.com.example:known");
    for (hash, derivation, psk) in [
        (
            Hash::Sha256,
            Derivation::Specified,
            "8cb77bb2ae587d4cdb1a95c288ae1b7d8e1954a1cac1a04278e87643795e24ab",
        ),
        (
            Hash::Sha256,
            Derivation::Compatible,
            "76cdc4b3c8ce8d14e304fa2360f6434fc00ee0fe428921b12709524f89cefa14",
        ),
        (
            Hash::Sha384,
            Derivation::Specified,
            "c33393c03c00648232588408a75d7a742f551ab3e26b1cf15bacf265f3e9e170d159f94e396bf6183a723aa6df02f184",
        ),
        (
            Hash::Sha384,
            Derivation::Compatible,
            "5048546f56805a43411eed175f376001ef01316b608099ebaae062b1f8a32a23d600d2f932704c45756c96e4cb23700a",
        ),
    ] {
        let count = &mut |bytes: &mut [u8]| (0..).zip(bytes).for_each(|(at, byte)| *byte = at);
        let key = Key::generate(hash, count);
        let derived = Psk::derive(&key, host, subsystem, Version::One, derivation).unwrap();
        let hex: String = derived.secret.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, psk, "{hash} {derivation:?}");
    }
}
