use super::*;
use crate::wire::transmission_flag as flag;
use nvme::Limits;
use nvme::limits::{Commands, DiscardLimits, Passthrough};
use proptest::prelude::*;

struct Two;

impl Exports for Two {
    fn count(&self) -> usize {
        2
    }

    fn name(&self, index: usize) -> &str {
        ["first", "second"][index]
    }

    fn description(&self, index: usize) -> &str {
        ["the first", ""][index]
    }

    fn limits(&self, index: usize) -> Limits {
        Limits {
            block_shift: 12,
            blocks: 100,
            transfer_bytes_max: 1 << 20,
            write_zeroes_bytes_max: u32::MAX,
            discard: DiscardLimits::UNLIMITED,
            optimal_write_bytes: 65536,
            read_only: index == 1,
            volatile_write_cache: true,
            commands: Commands {
                write_zeroes: true,
                deallocate: true,
                verify: true,
                ..Commands::default()
            },
            copy: nvme::limits::CopyLimits::NONE,
            metadata_bytes: 0,
            passthrough: Passthrough::NONE,
            lends_reads: false,
            immediate: false,
        }
    }
}

fn option(kind: u32, data: &[u8]) -> Vec<u8> {
    let head = OptionHeader {
        magic: magic::OPTION.into(),
        option: kind.into(),
        length: (data.len() as u32).into(),
    };
    [head.as_bytes(), data].concat()
}

fn named(name: &[u8], rest: &[u8]) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes(), name, rest].concat()
}

/// Replies as (option, kind, data).
type Replies = Vec<(u32, u32, Vec<u8>)>;

fn replies(mut output: &[u8]) -> Replies {
    let mut replies = Vec::new();
    while !output.is_empty() {
        let (head, rest) = OptionReply::read_from_prefix(output).unwrap();
        assert_eq!(head.magic.get(), magic::OPTION_REPLY);
        let (data, rest) = rest.split_at(head.length.get() as usize);
        replies.push((head.option.get(), head.kind.get(), data.to_vec()));
        output = rest;
    }
    replies
}

/// A handshake after the client's flags.
fn begun(flags: u32) -> Handshake {
    let mut handshake = Handshake::default();
    let flags = flags.to_be_bytes();
    let progress = handshake.receive(&mut &flags[..], &Two, &mut Vec::new());
    assert_eq!(progress, Ok(Progress::Answered));
    handshake
}

/// Sends options, all of which are answered but the last; its progress and all replies.
fn converse(options: &[Vec<u8>]) -> (Result<Progress, Misbehaved>, Replies) {
    let (mut handshake, mut output) = (begun(3), Vec::new());
    let mut last = Ok(Progress::Incomplete);
    for option in options {
        assert!(!matches!(last, Ok(Progress::Agreed(_)) | Err(_)), "{last:?}");
        let mut input = &option[..];
        last = handshake.receive(&mut input, &Two, &mut output);
        while matches!(last, Ok(Progress::Answered)) && !input.is_empty() {
            last = handshake.receive(&mut input, &Two, &mut output);
        }
    }
    (last, replies(&output))
}

#[test]
fn a_client_that_asks_for_everything_is_told_everything() {
    let contexts = named(
        b"first",
        &[&2u32.to_be_bytes()[..], &named(b"qemu:x", b""), &named(BASE_ALLOCATION, b"")].concat(),
    );
    let go = named(b"first", &[0, 3, 0, 1, 0, 2, 0, 3]);
    let (progress, replies) = converse(&[
        option(opt::STARTTLS, b""),
        option(opt::STRUCTURED_REPLY, b""),
        option(opt::SET_META_CONTEXT, &contexts),
        option(opt::GO, &go),
    ]);
    let flags = flag::HAS_FLAGS
        | flag::SEND_FLUSH
        | flag::SEND_FUA
        | flag::SEND_TRIM
        | flag::SEND_WRITE_ZEROES
        | flag::SEND_DF
        | flag::CAN_MULTI_CONN
        | flag::SEND_CACHE
        | flag::SEND_FAST_ZERO;
    let session = Session {
        export: 0,
        bytes: 409_600,
        alignment: 4096,
        flags,
        structured: true,
        has_allocation: true,
    };
    assert_eq!(progress, Ok(Progress::Agreed(session)));
    let kinds: Vec<u32> = replies.iter().map(|reply| reply.1).collect();
    assert_eq!(
        kinds,
        [
            rep::ERR_UNSUP,
            rep::ACK,
            rep::META_CONTEXT,
            rep::ACK,
            rep::INFO,
            rep::INFO,
            rep::INFO,
            rep::INFO,
            rep::ACK
        ]
    );
    assert_eq!(replies[2].2, [&1u32.to_be_bytes()[..], BASE_ALLOCATION].concat());
    let size = 409_600u64.to_be_bytes();
    assert_eq!(replies[4].2, [&[0, 0][..], &size, &flags.to_be_bytes()].concat());
    assert_eq!(replies[5].2, b"\0\x01first");
    assert_eq!(replies[6].2, b"\0\x02the first");
    assert_eq!(replies[7].2, [0, 3, 0, 0, 16, 0, 0, 1, 0, 0, 2, 0, 0, 0]);
}

#[test]
fn old_clients_get_the_export_and_their_zeroes() {
    for (flags, zeroes) in [(1, 124), (3, 0), (0, 124)] {
        let mut output = Vec::new();
        let chosen = option(opt::EXPORT_NAME, b"second");
        let progress = begun(flags).receive(&mut &chosen[..], &Two, &mut output).unwrap();
        let Progress::Agreed(session) = progress else { panic!("{progress:?}") };
        assert_eq!((session.export, session.alignment, session.structured), (1, 1, false));
        assert!(session.offers(flag::READ_ONLY) && !session.offers(flag::SEND_TRIM));
        assert_eq!(output.len(), 10 + zeroes);
        assert_eq!(output[..8], 409_600u64.to_be_bytes());
        assert!(output[10..].iter().all(|byte| *byte == 0));
    }
    let chosen = option(opt::EXPORT_NAME, b"third");
    let refused = begun(3).receive(&mut &chosen[..], &Two, &mut Vec::new());
    assert_eq!(refused, Err(Misbehaved::UnknownExport));
}

#[test]
fn the_first_export_needs_no_name_and_all_are_listed() {
    let (progress, told) = converse(&[option(opt::LIST, b""), option(opt::GO, &[0; 6])]);
    let Ok(Progress::Agreed(session)) = progress else { panic!("{progress:?}") };
    assert_eq!((session.export, session.alignment), (0, 1));
    assert_eq!(told[0].2, named(b"first", b"the first"));
    assert_eq!(told[1].2, named(b"second", b""));
    assert_eq!(told.len(), 5);
}

#[test]
fn wrong_options_are_answered_and_the_next_one_is_heard() {
    let long = [0; OPTION_BYTES_MAX as usize + 1];
    for (wrong, kind) in [
        (option(99, b"what"), rep::ERR_UNSUP),
        (option(opt::LIST, b"x"), rep::ERR_INVALID),
        (option(opt::STRUCTURED_REPLY, b"x"), rep::ERR_INVALID),
        (option(opt::GO, b""), rep::ERR_INVALID),
        (option(opt::GO, &[0, 0, 0, 9, 0, 0]), rep::ERR_INVALID),
        (option(opt::GO, &[0, 0, 0, 0, 0, 2, 0, 3]), rep::ERR_INVALID),
        (option(opt::INFO, &named(b"third", &[0, 0])), rep::ERR_UNKNOWN),
        (option(opt::SET_META_CONTEXT, &[0; 8]), rep::ERR_INVALID),
        (option(opt::LIST, &long), rep::ERR_TOO_BIG),
    ] {
        let (progress, told) = converse(&[wrong, option(opt::ABORT, b"")]);
        assert_eq!(progress, Ok(Progress::Aborted));
        let kinds: Vec<u32> = told.iter().map(|reply| reply.1).collect();
        assert_eq!(kinds, [kind, rep::ACK]);
    }
    let structured = option(opt::STRUCTURED_REPLY, b"");
    let endless = option(opt::LIST_META_CONTEXT, &[0, 0, 0, 0, 255, 255, 255, 255]);
    let (_, told) = converse(&[structured, endless]);
    assert_eq!(told[1].1, rep::ERR_INVALID);
}

#[test]
fn contexts_are_chosen_for_one_export_and_listed_by_wildcard() {
    let structured = || option(opt::STRUCTURED_REPLY, b"");
    let of = |export: &[u8], queries: &[&[u8]]| {
        let mut rest = (queries.len() as u32).to_be_bytes().to_vec();
        queries.iter().for_each(|query| rest.extend(named(query, b"")));
        named(export, &rest)
    };
    let found = |kind, data: &[u8]| {
        let (_, told) = converse(&[structured(), option(kind, data)]);
        told.len() == 3
    };
    assert!(found(opt::LIST_META_CONTEXT, &of(b"", &[])));
    assert!(found(opt::LIST_META_CONTEXT, &of(b"", &[b"base:"])));
    assert!(!found(opt::LIST_META_CONTEXT, &of(b"", &[b"base:other", b"qemu:"])));
    assert!(!found(opt::SET_META_CONTEXT, &of(b"", &[])));
    assert!(!found(opt::SET_META_CONTEXT, &of(b"", &[b"base:"])));
    assert!(found(opt::SET_META_CONTEXT, &of(b"", &[b"base:allocation"])));
    let go = option(opt::GO, &named(b"second", &[0, 0]));
    let set = option(opt::SET_META_CONTEXT, &of(b"first", &[b"base:allocation"]));
    let (progress, _) = converse(&[structured(), set, go]);
    let Ok(Progress::Agreed(session)) = progress else { panic!("{progress:?}") };
    assert!(!session.has_allocation, "it was chosen for the other export");
}

#[test]
fn who_breaks_the_protocol_or_never_decides_is_disconnected() {
    let flags = 4u32.to_be_bytes();
    let refused = Handshake::default().receive(&mut &flags[..], &Two, &mut Vec::new());
    assert_eq!(refused, Err(Misbehaved::ClientFlags(4)));
    let zeroes = begun(3).receive(&mut &[0; 16][..], &Two, &mut Vec::new());
    assert_eq!(zeroes, Err(Misbehaved::OptionMagic(0)));
    let (mut handshake, list) = (begun(3), option(opt::LIST, b""));
    for _ in 0..OPTIONS_MAX {
        let answered = handshake.receive(&mut &list[..], &Two, &mut Vec::new());
        assert_eq!(answered, Ok(Progress::Answered));
    }
    let refused = handshake.receive(&mut &list[..], &Two, &mut Vec::new());
    assert_eq!(refused, Err(Misbehaved::TooManyOptions(OPTIONS_MAX)));
}

proptest! {
    /// However the bytes are cut, the same is understood.
    #[test]
    fn cuts_do_not_matter(cut in 1usize..40, name in "[a-z]{0,8}") {
        let go = named(name.as_bytes(), &[0, 1, 0, 3]);
        let stream = [
            3u32.to_be_bytes().to_vec(),
            option(opt::STRUCTURED_REPLY, b""),
            option(77, &[1; 300]),
            option(opt::LIST, &[0; OPTION_BYTES_MAX as usize + 5]),
            option(opt::GO, &go),
            option(opt::GO, &named(b"first", &[0, 1, 0, 3])),
        ].concat();
        let run = |step: usize| {
            let (mut handshake, mut output) = (Handshake::default(), Vec::new());
            let (mut held, mut last) = (Vec::new(), Progress::Incomplete);
            for part in stream.chunks(step) {
                held.extend_from_slice(part);
                let mut input = &held[..];
                loop {
                    last = handshake.receive(&mut input, &Two, &mut output).unwrap();
                    if last != Progress::Answered {
                        break;
                    }
                }
                let left = input.len();
                held.drain(..held.len() - left);
                assert!(held.len() <= 16 + OPTION_BYTES_MAX as usize);
                if let Progress::Agreed(_) = last {
                    break;
                }
            }
            (last, output)
        };
        prop_assert_eq!(run(cut), run(stream.len()));
    }
}
