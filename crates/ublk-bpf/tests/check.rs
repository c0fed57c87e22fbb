//! What a program wants is checked by the same rules in user space (`bpf::actions`) and in the kernel
//! (`bpf/loop/check.h`, compiled for this machine here): both are given the same requests, some of which are right and
//! most of which are wrong in one place, and must say the same, the line and the parts that it is about included.

use bpf::actions::{self, Asked, Decision, Misuse, Plan, STATUSES, Then, op};
use bpf::request::{BACKENDS_MAX, DELAY_NS_MAX, PARTS_MAX, PHASES_MAX, Part, Request};
use std::collections::BTreeMap;
use std::io::Write;
use std::mem::discriminant;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use ublk_bpf::abi::{IN_DEFERRED, IN_DONE, LoopConfig, Mistake};
use ublk_bpf::mistakes;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const SEED: u64 = 20_261_126;
const CASES: usize = 40_000;
/// How often each verdict is wanted at least, so that each rule has its cases.
const EACH_MIN: usize = 100;

const OPS: [u8; 5] = [op::READ, op::WRITE, op::WRITE_ZEROES, op::DISCARD, op::FLUSH];

/// `struct test_case`.
#[repr(C)]
#[derive(Clone, Debug, IntoBytes, Immutable)]
struct Case {
    config: LoopConfig,
    blocks: u32,
    op: u8,
    phase: u8,
    is_whole: u8,
    entry: u8,
    request: Request,
}

/// `struct test_answer`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable)]
struct Answer {
    wrong: i32,
    line: u32,
    delay_ns: u64,
    parts: u16,
    result: u16,
    then: u32,
}

type Verdict = Result<Decision, Misuse>;

impl Answer {
    fn verdict(self) -> Verdict {
        let Answer { wrong, line, delay_ns, parts, result, then } = self;
        if wrong != 0 {
            let [kind, first, second, _] = wrong.to_le_bytes();
            let mistake = Mistake { kind, first, second, ..Mistake::default() };
            let kind = mistakes::kind(&mistake).expect("a number that has a meaning");
            return Err(Misuse { kind, line });
        }
        let then = match then {
            0 => Then::Nothing,
            1 => Then::Parts(parts.into()),
            2 => Then::End(result),
            3 => return Ok(Decision::Deferred),
            other => panic!("the loop would do {other}"),
        };
        Ok(Decision::Plan(Plan { delay_ns, then }))
    }
}

impl Case {
    fn verdict(&self) -> Verdict {
        let asked = Asked {
            op: self.op,
            blocks: self.blocks,
            sizes: &self.config.sizes[..usize::from(self.config.backends)],
            phase: self.phase,
            is_whole: self.is_whole != 0,
            may_defer: self.config.defers != 0 && self.entry != IN_DEFERRED,
        };
        actions::check(&self.request, &asked)
    }
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }

    /// Near one of these, or anything.
    fn near(&mut self, places: &[u64]) -> u64 {
        match self.below(8) {
            0 => self.next(),
            _ => self.of(places).wrapping_add(self.below(3)).wrapping_sub(1),
        }
    }

    /// A request, most often of a few blocks, and parts for it that are right.
    fn case(&mut self) -> Case {
        let op = self.of(&OPS);
        let blocks = match self.below(16) {
            _ if op == op::FLUSH => 0,
            0 => self.of(&[u32::MAX, u32::MAX - 1, 1 << 31, (1 << 31) + 5]),
            1 => self.next() as u32 | 1,
            _ => 1 + self.below(40) as u32,
        };
        let mut config = LoopConfig { backends: 1 + self.below(4) as u16, ..LoopConfig::default() };
        if self.one_in(8) {
            config.backends = BACKENDS_MAX as u16;
        }
        for size in &mut config.sizes[..usize::from(config.backends)] {
            let enough = u64::from(blocks) + self.below(u64::from(blocks) / 2 + 8);
            *size = self.of(&[enough, enough, enough, u64::from(blocks), u64::MAX]);
        }
        let entry = self.of(&[0, 0, IN_DONE, IN_DEFERRED]);
        config.defers = (entry == IN_DEFERRED || self.one_in(2)).into();
        let phase = if self.one_in(2) { 0 } else { self.below(u64::from(PHASES_MAX)) as u8 };
        let is_whole = (phase > 0 && self.one_in(2)).into();
        let line = self.below(500) as u32;
        let request = Request { line, ..Request::default() };
        let mut case = Case { config, blocks, op, phase, is_whole, entry, request };
        self.parts(&mut case);
        case
    }

    /// Parts that are one behind the other, some of them twice where that is allowed, in any order.
    fn parts(&mut self, case: &mut Case) {
        let mut parts = Vec::new();
        let pieces_max = self.of(&[1, 2, 3, 4, 8, PARTS_MAX as u64]);
        let mut offset = 0;
        while offset < case.blocks && parts.len() < PARTS_MAX {
            let rest = case.blocks - offset;
            let most = (u64::from(case.blocks) / pieces_max + 1) * 2;
            let is_last = parts.len() as u64 + 1 >= pieces_max;
            let blocks = if is_last { rest } else { rest.min(1 + self.below(most) as u32) };
            parts.push(self.part(case, offset, blocks));
            if self.one_in(4) && case.op != op::READ && parts.len() < PARTS_MAX {
                parts.push(self.part(case, offset, blocks));
            }
            offset += blocks;
        }
        if case.op == op::FLUSH {
            parts.extend((0..self.below(3)).map(|_| self.part(case, 0, 0)));
        }
        if self.one_in(3) {
            for at in (1..parts.len()).rev() {
                parts.swap(at, self.below(at as u64 + 1) as usize);
            }
        }
        case.request.parts = parts.len() as u16;
        case.request.part[..parts.len()].copy_from_slice(&parts);
    }

    /// At the same distance from the backend's beginning, most often.
    fn part(&mut self, case: &Case, offset: u32, blocks: u32) -> Part {
        let backend = self.below(case.config.backends.into()) as u16;
        let op = if case.op == op::DISCARD && self.one_in(2) { op::WRITE_ZEROES } else { case.op };
        let room = case.config.sizes[usize::from(backend)].saturating_sub(blocks.into());
        let block = match self.below(4) {
            _ if case.op == op::FLUSH => 0,
            0 => room - self.below(room.min(4) + 1),
            _ => u64::from(offset).min(room),
        };
        let line = 500 + self.below(500) as u32;
        Part { block, blocks, offset, backend, op, reserved: 0, line }
    }

    /// Has one thing be otherwise.
    fn change(&mut self, case: &mut Case) {
        let asked = u64::from(case.blocks);
        let count = usize::from(case.request.parts).clamp(1, PARTS_MAX);
        let (at, other) = (self.below(count as u64) as usize, self.below(count as u64) as usize);
        let (backends, request) = (case.config.backends, &mut case.request);
        let other = request.part[other];
        let part = &mut request.part[at];
        let size = case.config.sizes[usize::from(part.backend) % BACKENDS_MAX];
        let end = part.block.wrapping_add(part.blocks.into());
        let places =
            [0, 1, part.block, size, size.wrapping_sub(part.blocks.into()), end, other.block];
        let offset_end = u64::from(part.offset.wrapping_add(part.blocks));
        let rest = u64::from(case.blocks.wrapping_sub(part.blocks));
        let offsets = [0, u64::from(part.offset), offset_end, asked, rest, u64::from(other.offset)];
        let lengths = [0, u64::from(part.blocks), asked, asked / 2, size, u64::from(other.blocks)];
        match self.below(21) {
            0 => {
                part.backend = self.near(&[0, backends.into(), BACKENDS_MAX as u64, 1 << 15]) as u16
            }
            1 => part.op = self.of(&[OPS[0], OPS[1], OPS[2], OPS[3], OPS[4], 0x0c, 0xff]),
            2 | 3 => part.block = self.near(&places),
            4 | 5 => part.blocks = self.near(&lengths) as u32,
            6 | 7 => part.offset = self.near(&offsets) as u32,
            8 | 9 => *part = other,
            10 => (part.backend, part.block) = (other.backend, self.near(&[other.block])),
            11 => request.parts = self.near(&[0, request.parts.into(), PARTS_MAX as u64]) as u16,
            12 => request.overflow = self.of(&[1, 256, u16::MAX]),
            13 => request.deferred = self.of(&[1, 2, 128]),
            14 => request.delay_ns = self.near(&[0, DELAY_NS_MAX, u64::MAX]),
            15 => request.completions = self.of(&[1, 2, 255]),
            16 => {
                request.parts = 0;
                let near = self.near(&[0, 0x20, 0x281]) as u16;
                (request.completions, request.result) =
                    (1, self.of(&[near, STATUSES[1], STATUSES[4]]));
            }
            17 => request.parts = 0,
            18 => {
                case.phase = self.of(&[0, 1, PHASES_MAX - 1, PHASES_MAX, PHASES_MAX + 1, u8::MAX])
            }
            19 => {
                let backend = usize::from(part.backend) % BACKENDS_MAX;
                case.config.sizes[backend] = self.near(&[0, part.blocks.into(), part.block, end]);
            }
            _ => case.is_whole ^= 1,
        }
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What the loop's checks say of the cases.
fn in_kernel(cases: &[Case]) -> Vec<Answer> {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("check");
    let mut compiler = Command::new("cc");
    // What is for clang and BPF alone is passed over.
    compiler.args(["-std=gnu11", "-O1", "-fno-strict-aliasing", "-Wall", "-Werror"]);
    compiler.args(["-Wno-attributes", "-Wno-unknown-pragmas", "-Wno-unused", "-I"]);
    compiler.arg(repository().join("bpf"));
    compiler.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/check.c"));
    let output = compiler.arg("-o").arg(&program).output().expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let mut command = Command::new(&program);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut input = child.stdin.take().expect("its input");
    let output = std::thread::scope(|scope| {
        scope.spawn(move || input.write_all(cases.as_bytes()).expect("it takes them"));
        child.wait_with_output().expect("it ends")
    });
    assert!(output.status.success(), "{}", output.status);
    let (answers, rest) = output.stdout.as_chunks::<{ size_of::<Answer>() }>();
    assert_eq!((answers.len(), rest.len()), (cases.len(), 0));
    answers.iter().map(|bytes| Answer::read_from_bytes(bytes).expect("its size")).collect()
}

/// Whatever is said of it, without its numbers.
fn sort_of(verdict: &Verdict) -> String {
    match verdict {
        Ok(Decision::Deferred) => "deferred".to_owned(),
        Ok(Decision::Plan(Plan { then: Then::Parts(1), .. })) => "one part".to_owned(),
        Ok(Decision::Plan(Plan { then: Then::Parts(_), .. })) => "parts".to_owned(),
        Ok(Decision::Plan(Plan { then: Then::End(_), .. })) => "end".to_owned(),
        Ok(Decision::Plan(Plan { then: Then::Nothing, .. })) => "nothing to do".to_owned(),
        Err(misuse) => format!("{:?}", discriminant(&misuse.kind)),
    }
}

#[test]
fn the_kernels_checks_are_those_of_user_space() {
    let mut dice = Dice(SEED);
    let cases: Vec<Case> = (0..CASES)
        .map(|number| {
            let mut case = dice.case();
            // None, one, or some.
            (0..[0, 1, 1, 2][number % 4]).for_each(|_| dice.change(&mut case));
            case
        })
        .collect();
    let mut counts = BTreeMap::new();
    for (number, (case, answer)) in cases.iter().zip(in_kernel(&cases)).enumerate() {
        let verdict = case.verdict();
        assert_eq!(answer.verdict(), verdict, "kernel and user space, case {number}: {case:?}");
        *counts.entry(sort_of(&verdict)).or_insert(0) += 1;
    }
    // All but what a program returns, which is looked at before.
    let kinds = (2..).map_while(|kind| mistakes::kind(&Mistake { kind, ..Mistake::default() }));
    let mut wanted: Vec<String> =
        kinds.map(|kind| sort_of(&Err(Misuse { kind, line: 0 }))).collect();
    wanted.extend(["deferred", "one part", "parts", "end", "nothing to do"].map(str::to_owned));
    assert_eq!(wanted.len(), 20);
    for verdict in wanted {
        let count = counts.get(&verdict).copied().unwrap_or_default();
        assert!(count >= EACH_MIN, "{verdict} only {count} times: {counts:?}");
    }
}
