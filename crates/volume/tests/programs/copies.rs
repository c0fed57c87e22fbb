//! Copies of volumes behind programs: into one, out of one, within one and between two.

use crate::program;
use nvme::Status;
use std::time::Duration;
use volume::session::{Done, Ranges, Session, SessionConfig, Submission, Volume};

const BLOCK: usize = 4096;
/// Of each volume here.
const BLOCKS: u64 = 192;

/// Carries out one command.
#[track_caller]
fn execute(session: &Session, volume: &Volume, submission: Submission) -> Done {
    volume.submit(submission).expect("there is room");
    assert_eq!(session.wait(1, Some(Duration::from_secs(30))), 1);
    let mut done = Vec::new();
    session.reap(&mut done);
    done.pop().expect("one was reaped")
}

#[test]
fn copies_through_programs_are_routed_or_read_and_written() {
    let session = Session::new(&SessionConfig::default()).expect("a session");
    let uris = [
        program("stripe", "mem:384K?bs=4096,mem:384K?bs=4096"),
        program("mirror", "mem:768K?bs=4096,mem:768K?bs=4096"),
        program("snapshot", "mem:768K?bs=4096,mem:768K?bs=4096"),
        program("linear", "mem:40K?bs=4096,mem:80K?bs=4096,mem:648K?bs=4096"),
        "mem:768K?bs=4096".to_owned(),
    ];
    let open = |uri: &String| session.open(uri).expect(uri);
    let volumes: Vec<Volume> = uris.iter().map(open).collect();
    let mut model: Vec<Vec<u8>> = Vec::new();
    for (number, volume) in volumes.iter().enumerate() {
        let fill = |at: usize| (at / BLOCK * 5 + at % 241 + number * 37) as u8;
        let bytes: Vec<u8> = (0..BLOCKS as usize * BLOCK).map(fill).collect();
        for (slba, block) in (0..).step_by(8).zip(bytes.chunks(8 * BLOCK)) {
            let write = Submission::write(slba, 8, block.to_vec());
            assert_eq!(execute(&session, volume, write).status, Status::SUCCESS);
        }
        model.push(bytes);
    }
    let last = volumes.len() - 1;
    let (mut seed, mut counted) = (7u64, vec![(0, 0); volumes.len()]);
    // Programs that say where each block is, and what they and memory can copy from: memory and themselves.
    let routes = [true, false, false, true, false];
    let mut roll = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for round in 0..120u64 {
        // Into each program; now and then out of one to memory, where it is not moved from memory to itself.
        let to = (round % volumes.len() as u64) as usize;
        let mut ranges = Ranges::new();
        let (mut copied, half) = (Vec::new(), BLOCKS / 2);
        for _ in 0..1 + roll(3) {
            let from =
                if to == last { roll(last as u64) } else { roll(volumes.len() as u64) } as usize;
            let blocks = 1 + roll(half / 3);
            let slba = roll(half - blocks + 1);
            match from == to {
                true => ranges.push(slba, blocks as u32),
                false => ranges.push_from(&volumes[from], slba, blocks as u32),
            }
            let bytes = blocks * BLOCK as u64;
            match routes[to] && (from == to || from == last) {
                true => counted[to].0 += bytes,
                false => counted[to].1 += bytes,
            }
            let start = slba as usize * BLOCK;
            copied.extend_from_slice(&model[from][start..start + blocks as usize * BLOCK]);
        }
        // Sources are in the first half, and what is written is in the second.
        let sdlba = half + roll(half - (copied.len() / BLOCK) as u64 + 1);
        let done = execute(&session, &volumes[to], Submission::copy(sdlba, ranges));
        assert_eq!((done.status, done.result), (Status::SUCCESS, 0), "{}", uris[to]);
        let start = sdlba as usize * BLOCK;
        model[to][start..start + copied.len()].copy_from_slice(&copied);
    }
    for (number, volume) in volumes.iter().enumerate() {
        for (slba, block) in (0..).step_by(8).zip(model[number].chunks(8 * BLOCK)) {
            let done = execute(&session, volume, Submission::read(slba, 8, vec![0; 8 * BLOCK]));
            assert_eq!(done.status, Status::SUCCESS);
            assert!(done.data.as_slice() == block, "{}: block {slba} or after", uris[number]);
        }
        let copied = volume.namespace().copied();
        let copied = (copied.offloaded_bytes, copied.moved_bytes);
        assert_eq!(copied, counted[number], "{}", uris[number]);
    }
}
