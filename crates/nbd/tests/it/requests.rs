//! Every request, over a socket, as old and new clients make it.

use crate::client;

use client::*;
use nbd::ServerConfig;
use std::io::Write;
use std::time::Duration;

const SIMPLE: Manners = Manners { structured: false, aligned: false, allocation: false };
const STRUCTURED: Manners = Manners { structured: true, aligned: true, allocation: true };
const DONE: Reply = Reply::Data(vec![]);

fn file(directory: &tempfile::TempDir, options: &str) -> String {
    format!("file:{}/a.img?size=64M&create{options}", directory.path().display())
}

/// Each kind of client on each kind of volume, with one and with two cores.
fn everywhere(test: impl Fn(&mut Client, &str)) {
    for cores in [1, 2] {
        let directory = tempfile::tempdir().unwrap();
        let config = ServerConfig { cores: vec![None; cores], ..ServerConfig::default() };
        let file = file(&directory, "&bs=4096");
        let linear = "linear:(mem:1M,mem:63M)";
        let volumes = ["mem:64M", "mem:64M?bs=4096", &file, "delay:1ms(mem:64M)", linear];
        let (server, address) = serve(&volumes, &config);
        for (index, volume) in volumes.iter().enumerate() {
            for manners in [SIMPLE, STRUCTURED] {
                test(&mut Client::connect(address, &index.to_string(), manners), volume);
            }
        }
        server.stop().unwrap();
    }
}

#[test]
fn what_is_written_is_read_at_every_size() {
    everywhere(|client, volume| {
        assert_eq!(client.bytes, 64 << 20);
        for (seed, length) in [4096, 65536, 1 << 20, (1 << 20) + 4096, 5 << 20].iter().enumerate() {
            let (data, offset) = (pattern(seed as u64, *length), 4096 * (seed as u64 + 1));
            assert_eq!(client.write(0, offset, &data), DONE, "{volume}");
            assert!(client.read(offset, *length as u32) == data, "{volume} {length}");
        }
        assert_eq!(client.ask(FLUSH, 0, 0, 0), DONE);
        assert_eq!(client.ask(READ, 0, 0, 0), DONE, "no byte");
        assert_eq!(client.write(0, 0, &[]), DONE);
        assert_eq!(client.ask(CACHE, 0, 0, 8 << 20), DONE);
    });
}

#[test]
fn zeroes_and_trims_reach_the_volume() {
    everywhere(|client, volume| {
        let data = pattern(3, 1 << 20);
        assert_eq!(client.write(FUA, 0, &data), DONE);
        for (flags, at) in [(0, 0), (NO_HOLE, 8192), (FUA, 65536), (FAST_ZERO, 131_072)] {
            assert_eq!(client.ask(WRITE_ZEROES, flags, at, 4096), DONE, "{volume} {flags}");
            assert!(client.read(at, 4096).iter().all(|byte| *byte == 0), "{volume} {flags}");
            assert!(client.read(at + 4096, 4096) == data[at as usize + 4096..][..4096]);
        }
        let refused = client.ask(WRITE_ZEROES, FAST_ZERO | NO_HOLE, 0, 4096);
        assert_eq!(refused, Reply::Error(ENOTSUP), "{volume}");
        assert_eq!(client.ask(TRIM, FUA, 0, 64 << 20), DONE);
        assert!(client.read(0, 1 << 20).iter().all(|byte| *byte == 0), "{volume}");
        assert_eq!(client.ask(WRITE_ZEROES, 0, 0, 64 << 20), DONE);
    });
}

#[test]
fn holes_of_a_file_are_told_and_other_volumes_are_said_to_be_full() {
    let directory = tempfile::tempdir().unwrap();
    let (server, address) = serve(&[&file(&directory, ""), "mem:64M"], &ServerConfig::default());
    let mut client = Client::connect(address, "0", STRUCTURED);
    assert_eq!(client.write(FUA, 1 << 20, &[7; 65536]), DONE);
    let Reply::Extents(extents) = client.ask(BLOCK_STATUS, 0, 0, 8 << 20) else { panic!() };
    assert_eq!(extents.iter().map(|extent| extent.0).sum::<u32>(), 8 << 20);
    if extents.len() > 1 {
        // On a file system that knows holes.
        assert_eq!(extents[0], (1 << 20, 3));
        assert_eq!(extents[1].1, 0);
        assert_eq!(
            client.ask(BLOCK_STATUS, REQ_ONE, 512, 8 << 20),
            Reply::Extents(vec![((1 << 20) - 512, 3)])
        );
    }
    let mut client = Client::connect(address, "1", STRUCTURED);
    let full = Reply::Extents(vec![(8 << 20, 0)]);
    assert_eq!(client.ask(BLOCK_STATUS, 0, 0, 8 << 20), full);
    let mut client = Client::connect(address, "1", Manners { allocation: false, ..STRUCTURED });
    assert_eq!(client.ask(BLOCK_STATUS, 0, 0, 512), Reply::Error(EINVAL), "nothing was chosen");
    server.stop().unwrap();
}

#[test]
fn clients_that_know_nothing_of_blocks_may_write_bytes() {
    let unaligned = Manners { structured: true, ..SIMPLE };
    for volume in ["mem:4M", "mem:4M?bs=4096", "delay:1ms(mem:4M?bs=4096)"] {
        let (server, address) = serve(&[volume], &ServerConfig::default());
        for manners in [SIMPLE, unaligned] {
            let mut client = Client::connect(address, "0", manners);
            let mut model = pattern(1, 4 << 20);
            assert_eq!(client.write(0, 0, &model), DONE);
            for (seed, (offset, length)) in
                [(1, 1), (511, 2), (100, 300), (4095, 4098), (700_000, 2_000_001), (4096, 5000)]
                    .into_iter()
                    .enumerate()
            {
                let data = pattern(seed as u64 + 9, length);
                assert_eq!(client.write(0, offset as u64, &data), DONE);
                model[offset..offset + length].copy_from_slice(&data);
                assert!(client.read(offset as u64, length as u32) == data);
            }
            assert_eq!(client.ask(WRITE_ZEROES, 0, 1_000_001, 9999), DONE);
            model[1_000_001..1_000_001 + 9999].fill(0);
            // Only whole blocks are trimmed.
            assert_eq!(client.ask(TRIM, 0, 3, 500), DONE);
            assert!(client.read(0, 4 << 20) == model, "{volume}");
        }
        let mut aligned = Client::connect(address, "0", STRUCTURED);
        assert_eq!(aligned.write(0, 1, &[1]), Reply::Error(EINVAL), "it has agreed to blocks");
        assert_eq!(aligned.ask(READ, 0, 0, 1), Reply::Error(EINVAL));
        server.stop().unwrap();
    }
}

#[test]
fn bytes_of_one_block_written_on_many_connections_are_all_kept() {
    let directory = tempfile::tempdir().unwrap();
    let config = ServerConfig { cores: vec![None; 2], ..ServerConfig::default() };
    let file = file(&directory, "&bs=4096");
    let (server, address) = serve(&["mem:1M?bs=4096", &file], &config);
    for export in ["0", "1"] {
        std::thread::scope(|scope| {
            for writer in 0..8u8 {
                scope.spawn(move || {
                    let mut client = Client::connect(address, export, SIMPLE);
                    for round in 1..=50u8 {
                        // Several at once, each to a byte of its own.
                        let mut open: Vec<u64> = (0..4)
                            .map(|at| u64::from(writer) * 4 + at)
                            .map(|at| client.send(WRITE, 0, at, 1, &[round]))
                            .collect();
                        while !open.is_empty() {
                            let (cookie, reply) = client.receive().unwrap();
                            assert_eq!(reply, DONE);
                            open.retain(|it| *it != cookie);
                        }
                        let seen = client.read(u64::from(writer) * 4, 4);
                        assert_eq!(seen, [round; 4], "writer {writer}");
                    }
                });
            }
        });
    }
    server.stop().unwrap();
}

#[test]
fn long_simple_replies_are_not_torn_by_others() {
    let (server, address) = serve(&["delay:read=1ms(mem:64M)"], &ServerConfig::default());
    let mut client = Client::connect(address, "0", SIMPLE);
    let data = pattern(5, 16 << 20);
    assert_eq!(client.write(0, 0, &data), DONE);
    let mut expected = std::collections::HashMap::new();
    for round in 0..8u64 {
        for (offset, length) in [(round << 20, 6 << 20), (round * 4096, 4096), (0, 0)] {
            let cookie = client.send(READ, 0, offset, length, &[]);
            expected.insert(cookie, data[offset as usize..][..length as usize].to_vec());
        }
        expected.insert(client.send(FLUSH, 0, 0, 0, &[]), vec![]);
        expected.insert(client.send(WRITE, 0, 32 << 20, 512, &[1; 512]), vec![]);
    }
    while !expected.is_empty() {
        let (cookie, reply) = client.receive().unwrap();
        assert!(reply == Reply::Data(expected.remove(&cookie).expect("asked for once")));
    }
    server.stop().unwrap();
}

#[test]
fn wrong_requests_are_refused_and_the_connection_goes_on() {
    let (server, address) =
        serve(&["mem:1M", "linear:(mem:1M)?ro", "mem:4M"], &ServerConfig::default());
    for manners in [SIMPLE, STRUCTURED] {
        let mut client = Client::connect(address, "0", manners);
        let end = client.bytes;
        assert_eq!(client.ask(READ, 0, end, 512), Reply::Error(EINVAL));
        assert_eq!(client.write(0, end - 512, &[1; 1024]), Reply::Error(ENOSPC));
        assert_eq!(client.ask(WRITE_ZEROES, 0, end, 512), Reply::Error(ENOSPC));
        assert_eq!(client.ask(TRIM, 0, end, 512), Reply::Error(EINVAL));
        assert_eq!(client.ask(READ, 1 << 9, 0, 512), Reply::Error(EINVAL));
        assert_eq!(client.ask(77, 0, 0, 512), Reply::Error(EINVAL));
        assert_eq!(client.ask(FLUSH, 0, u64::MAX, u32::MAX), DONE, "reserved fields");
        let fragmented = if manners.structured { DONE } else { Reply::Error(EINVAL) };
        let whole = client.ask(READ, DF, 0, 65536);
        assert!(whole == fragmented || matches!(&whole, Reply::Data(data) if data.len() == 65536));
        let too_long = if manners.structured { EOVERFLOW } else { EINVAL };
        let mut large = Client::connect(address, "2", manners);
        assert_eq!(large.ask(READ, DF, 0, 2 << 20), Reply::Error(too_long));
        assert!(client.read(0, 512).iter().all(|byte| *byte == 0));

        let mut client = Client::connect(address, "1", manners);
        assert_eq!(client.flags & 2, 2, "read-only");
        for (kind, data) in [(WRITE, &[9; 512][..]), (WRITE_ZEROES, &[]), (TRIM, &[])] {
            let cookie = client.send(kind, 0, 0, 512, data);
            assert_eq!(client.receive().unwrap(), (cookie, Reply::Error(EPERM)));
        }
        assert!(client.read(0, 512).iter().all(|byte| *byte == 0));
    }
    server.stop().unwrap();
}

#[test]
fn errors_of_the_volume_are_told() {
    let volumes = ["fault:op=write,lba=128-255(mem:4M)", "fault:op=read,lba=4096-6143(mem:8M)"];
    let (server, address) = serve(&volumes, &ServerConfig::default());
    for manners in [SIMPLE, STRUCTURED] {
        let mut client = Client::connect(address, "0", manners);
        assert!(matches!(client.write(0, 65536, &[1; 512]), Reply::Error(_)));
        // In the middle of a long write, whose rest is taken nevertheless.
        assert!(matches!(client.write(0, 0, &pattern(1, 3 << 20)), Reply::Error(_)));
        assert_eq!(client.write(0, 0, &[1; 512]), DONE);

        let mut client = Client::connect(address, "1", manners);
        assert!(matches!(client.ask(READ, 0, 2 << 20, 512), Reply::Error(_)));
        client.send(READ, 0, 0, 4 << 20, &[]);
        if manners.structured {
            assert!(matches!(client.receive().unwrap().1, Reply::Error(_)));
            assert_eq!(client.read(0, 512).len(), 512);
        } else {
            // The reply had begun: only hanging up can tell.
            assert!(client.receive().is_err());
        }
    }
    server.stop().unwrap();
}

/// What the volume cannot do at the moment is tried again, by itself and among pieces, and not for ever: as it was asked for, which
/// is not how it came back from `linear:`.
#[test]
fn errors_of_the_moment_are_not_told() {
    let fault = |op: &str, count: u32| format!("fault:op={op},status=interrupted,count={count}");
    let kinds = ["write", "read", "flush", "write-zeroes", "dsm"];
    // For each kind of client one of its own: faults are used up.
    let mut volumes: Vec<String> = (0..2)
        .flat_map(|_| kinds.map(|op| format!("linear:(mem:1M,{}(mem:63M))", fault(op, 3))))
        .collect();
    // One request's commands have five tries together.
    volumes.extend([6, 1000].map(|count| format!("{}(mem:1M)", fault("write", count))));
    let volumes: Vec<&str> = volumes.iter().map(String::as_str).collect();
    let (server, address) = serve(&volumes, &ServerConfig::default());
    let (first, data) = (pattern(1, 1 << 20), pattern(9, 5 << 20));
    let at = 1 << 20;
    for (index, manners) in (0..5).map(|it| (it, SIMPLE)).chain((5..10).map(|it| (it, STRUCTURED)))
    {
        let mut client = Client::connect(address, &index.to_string(), manners);
        assert_eq!(client.write(0, 0, &first), DONE, "{index}");
        assert_eq!(client.write(FUA, at, &data), DONE, "{index}");
        assert!(client.read(at, 5 << 20) == data, "{index}");
        assert_eq!(client.ask(FLUSH, 0, 0, 0), DONE, "{index}");
        assert_eq!(client.ask(WRITE_ZEROES, 0, at, 8192), DONE, "{index}");
        assert_eq!(client.ask(TRIM, 0, at + 8192, 8192), DONE, "{index}");
        let after = client.read(at, 5 << 20);
        assert!(after[..16384].iter().all(|byte| *byte == 0), "{index}");
        assert!(after[16384..] == data[16384..], "{index}");
        assert!(client.read(0, 1 << 20) == first, "{index}: of the other part");
    }
    let mut client = Client::connect(address, "10", STRUCTURED);
    assert_eq!(client.write(0, 0, &[1; 4096]), Reply::Error(EIO));
    assert_eq!(client.write(0, 0, &[1; 4096]), DONE);
    // Who leaves while some is to be tried again is waited for.
    let mut client = Client::connect(address, "11", STRUCTURED);
    client.send(WRITE, 0, 0, 4096, &[1; 4096]);
    std::thread::sleep(Duration::from_millis(5));
    drop(client);
    server.stop().unwrap();
}

#[test]
fn a_client_that_leaves_gets_its_answers_first() {
    let (server, address) = serve(&["delay:50ms(mem:4M)"], &ServerConfig::default());
    let mut client = Client::connect(address, "0", SIMPLE);
    let write = client.send(WRITE, 0, 0, 512, &[5; 512]);
    let read = client.send(READ, 0, 512, 512, &[]);
    client.send(DISC, 0, 0, 0, &[]);
    let mut answered = [client.receive().unwrap().0, client.receive().unwrap().0];
    answered.sort_unstable();
    assert_eq!(answered, [write, read]);
    assert!(client.is_hung_up_on());
    // One that dies in the middle of a write has written nothing.
    let mut client = Client::connect(address, "0", SIMPLE);
    client.stream.write_all(&request(WRITE, 0, 1, 0, 4096)).unwrap();
    client.stream.write_all(&[6; 4095]).unwrap();
    drop(client);
    let mut client = Client::connect(address, "0", SIMPLE);
    assert_eq!(client.read(0, 512), [5; 512]);
    server.stop().unwrap();
}

#[test]
fn stopping_answers_what_is_in_progress() {
    let (server, address) = serve(&["delay:200ms(mem:4M)"], &ServerConfig::default());
    let mut client = Client::connect(address, "0", SIMPLE);
    let mut idle = Client::connect(address, "0", SIMPLE);
    let cookie = client.send(WRITE, 0, 0, 512, &[5; 512]);
    // The request is there once a later one of another connection is answered.
    assert_eq!(idle.read(0, 512).len(), 512);
    let reader = std::thread::spawn(move || (client.receive().unwrap(), client.is_hung_up_on()));
    server.stop().unwrap();
    assert_eq!(reader.join().unwrap(), ((cookie, DONE), true));
    assert!(idle.is_hung_up_on());
}

/// By export, over both cores; what was refused before it came to the volume is not counted.
#[test]
fn what_clients_do_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let config = ServerConfig { cores: vec![None; 2], ..ServerConfig::default() };
    let file = file(&directory, "");
    let torn = "fault:lba=8192-8199(mem:64M)";
    let volumes = ["mem:64M", "delay:read=20ms(mem:64M)", "fault:op=write(mem:1M)", &file, torn];
    let (server, address) = serve(&volumes, &config);
    let activity = server.activity();
    for manners in [SIMPLE, STRUCTURED] {
        for index in [0, 1, 3] {
            // Two connections, so one on each core.
            for _ in 0..2 {
                let mut client = Client::connect(address, &index.to_string(), manners);
                assert_eq!(client.write(0, 4096, &pattern(1, 8192)), DONE);
                // In several commands.
                assert_eq!(client.read(0, 5 << 20).len(), 5 << 20);
                assert_eq!(client.ask(FLUSH, 0, 0, 0), DONE);
                assert_eq!(client.ask(TRIM, 0, 0, 4096), DONE);
                assert!(matches!(client.ask(READ, 0, 64 << 20, 4096), Reply::Error(_)));
            }
        }
        let mut client = Client::connect(address, "2", manners);
        assert!(matches!(client.write(0, 0, &pattern(1, 4096)), Reply::Error(_)));
        assert_eq!(client.read(0, 4096).len(), 4096);
    }
    // What is for nobody is for no volume, and a read that fails half-way is cut and counted.
    let mut client = Client::connect(address, "0", SIMPLE);
    assert_eq!(client.ask(READ, 0, 0, 0), DONE);
    let mut client = Client::connect(address, "4", SIMPLE);
    client.send(READ, 0, 0, 8 << 20, &[]);
    assert!(client.receive().is_err());
    let counted: Vec<_> = activity.exports().collect();
    assert_eq!((counted[4].reads, counted[4].errors, counted[4].media_errors), (0, 1, 1));
    for index in [0, 1, 3] {
        let it = &counted[index];
        assert_eq!((it.reads, it.writes, it.others, it.errors), (4, 4, 8, 0), "{index}");
        assert_eq!((it.read_bytes, it.written_bytes), (20 << 20, 4 * 8192), "{index}");
        let counts = it.latencies.clone().map(|times| times.buckets.iter().sum::<u64>());
        assert_eq!(counts, [4, 4, 0, 8], "{index}");
    }
    let failing = &counted[2];
    assert_eq!((failing.reads, failing.writes, failing.errors), (2, 0, 2));
    assert!(counted[1].latencies[0].sum_ns >= 4 * 19_000_000, "20 ms each");
    assert_eq!(counted[0].latencies[0].sum_ns, 0, "memory ends reads at once");
    server.stop().unwrap();
    assert_eq!(activity.connections(), 0);
}
