//! Data in several pieces, on volumes that take none: what they hold goes by way of the pool. Of devices `guest/device`
//! has the same.

use crate::behaviour::{PATIENCE, execute, file, session};
use namespace::layer::guard::{Guard, GuardOptions};
use namespace::{Data, Namespace, Queue, Request};
use nvme::{Command, Limits, NSID_ALL, Status, opcode};
use reactor::Reactor;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use volume::session::{
    Bytes, Ranges, RawBytes, Reason, Session, SessionConfig, Submission, Vectors, Volume,
};

/// Sizes of pieces of 8 KiB, most of them no whole blocks.
const SHAPES: [&[usize]; 5] =
    [&[8192], &[4096, 4096], &[1, 4095, 4096], &[0, 100, 0, 7992, 100], &[512; 16]];

fn pieces(sizes: &[usize], fill: impl Fn(usize) -> u8) -> Vectors {
    let mut at = 0;
    let piece = |size: &usize| {
        let bytes: Vec<u8> = (at..at + size).map(&fill).collect();
        at += size;
        bytes
    };
    sizes.iter().map(piece).collect()
}

fn flat(data: &Bytes) -> Vec<u8> {
    let Bytes::Vectors(vectors) = data else { panic!("{data:?}") };
    vectors.pieces().iter().flat_map(|piece| piece.as_slice().to_vec()).collect()
}

fn byte(at: usize) -> u8 {
    (at / 7 + at) as u8
}

#[test]
fn what_is_written_in_pieces_is_read_in_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = file(&directory, "a");
    for uri in ["mem:1M?bs=4096", "delay:10us(mem:1M?bs=4096)", &file] {
        let session = session(4);
        let volume = session.open(uri).expect(uri);
        let whole: Vec<u8> = (0..8192).map(byte).collect();
        for (index, (from, to)) in SHAPES.iter().zip(SHAPES.iter().rev()).enumerate() {
            let slba = 2 * index as u64;
            let written =
                execute(&session, &volume, Submission::write(slba, 2, pieces(from, byte)));
            assert_eq!(flat(&written.data), whole, "{uri}: a write leaves its data alone");
            let read = execute(&session, &volume, Submission::read(slba, 2, pieces(to, |_| 0)));
            assert_eq!(flat(&read.data), whole, "{uri} {from:?} {to:?}");
            let one = execute(&session, &volume, Submission::read(slba, 2, vec![0; 8192]));
            assert_eq!(one.data.as_slice(), whole, "{uri} {from:?}");
        }
    }
}

#[test]
fn memory_of_all_kinds_may_be_pieces() {
    let session = session(2);
    let volume = session.open("mem:1M?bs=512").expect("memory");
    execute(&session, &volume, Submission::write(0, 3, (0..1536).map(byte).collect::<Vec<u8>>()));
    let mut own = [0u8; 512];
    let mut data = Vectors::new();
    data.push(session.allocate(512).expect("room"));
    data.push(vec![0; 512]);
    // SAFETY: kept, and not looked at, until the command was reaped.
    data.push(unsafe { RawBytes::new(own.as_mut_ptr(), 512, None) });
    let done = execute(&session, &volume, Submission::read(0, 3, data));
    let Bytes::Vectors(vectors) = &done.data else { panic!("{:?}", done.data) };
    let kinds = vectors.pieces();
    assert!(matches!(kinds, [Bytes::Fixed(_), Bytes::Owned(_), Bytes::Raw(_)]), "{kinds:?}");
    let read = [kinds[0].as_slice(), kinds[1].as_slice(), &own].concat();
    assert_eq!(read, (0..1536).map(byte).collect::<Vec<u8>>());
}

fn status(session: &Session, volume: &Volume, submission: Submission) -> Status {
    volume.submit(submission).expect("room");
    assert_eq!(session.wait(1, PATIENCE), 1);
    let mut done = Vec::new();
    session.reap(&mut done);
    done[0].status
}

#[test]
fn commands_that_are_looked_into_have_their_data_in_pieces_as_well() {
    let session = session(2);
    let volume = session.open("mem:1M?bs=512").expect("memory");
    let whole: Vec<u8> = (0..1024).map(byte).collect();
    execute(&session, &volume, Submission::write(0, 2, whole));
    let compare = |fill: fn(usize) -> u8| {
        let command = Command::blocks(opcode::io::COMPARE, 1, 0, 2);
        Submission::new(command).data(pieces(&[1000, 24], fill))
    };
    assert_eq!(status(&session, &volume, compare(byte)), Status::SUCCESS);
    assert_eq!(
        status(&session, &volume, compare(|at| byte(at) ^ u8::from(at == 1023))).code(),
        Status::COMPARE_FAILURE
    );

    // Block 1 is deallocated; the range of 16 bytes is in two pieces, and there is more than it needs.
    let range = [[0; 4], 1u32.to_le_bytes(), 1u32.to_le_bytes(), [0; 4], [9; 4]].concat();
    let mut command = Command { opcode: opcode::io::DATASET_MANAGEMENT, ..Command::default() };
    command.cdw11 = 4.into();
    let discard = Submission::new(command).data(pieces(&[7, 13], |at| range[at]));
    assert_eq!(status(&session, &volume, discard), Status::SUCCESS);
    let read = execute(&session, &volume, Submission::read(0, 2, pieces(&[512, 512], |_| 1)));
    let expected: Vec<u8> = (0..512).map(byte).chain([0; 512]).collect();
    assert_eq!(flat(&read.data), expected);
}

#[test]
fn what_is_wrong_is_told_as_with_one_piece() {
    let session = session(2);
    let volume = session.open("mem:64K?bs=512").expect("memory");
    let write = |slba, sizes| Submission::write(slba, 2, pieces(sizes, byte));
    for (submission, wanted) in [
        (write(0, &[512, 511]), Status::SGL_LENGTH_INVALID),
        (write(0, &[512, 512, 1]), Status::SGL_LENGTH_INVALID),
        (write(0, &[0]), Status::SGL_LENGTH_INVALID),
        (write(127, &[512, 512]), Status::LBA_OUT_OF_RANGE),
        (Submission::flush().data(pieces(&[1], byte)), Status::SGL_LENGTH_INVALID),
        (Submission::flush().data(Vectors::new()), Status::SUCCESS),
        (Submission::flush().metadata(pieces(&[8], byte)), Status::SUCCESS),
        (Submission::read(0, 2, vec![0; 1024]).metadata(pieces(&[8], byte)), Status::INVALID_FIELD),
        (write(0, &[512, 512]).metadata(pieces(&[8], byte)), Status::INVALID_FIELD),
        (Submission::copy(0, Ranges::new()).data(pieces(&[32], |_| 0)), Status::INVALID_FIELD),
        (
            Submission::new(Command { opcode: 0x81, ..Command::default() })
                .data(pieces(&[512], byte)),
            Status::INVALID_OPCODE,
        ),
        (
            Submission::admin(Command { opcode: 0xc1, ..Command::default() })
                .data(pieces(&[512], byte)),
            Status::INVALID_OPCODE,
        ),
    ] {
        let words = format!("{submission:?}");
        assert_eq!(status(&session, &volume, submission).code(), wanted, "{words}");
    }
    let options = volume::OpenOptions { read_only: true, ..volume::OpenOptions::default() };
    let read_only = session.open_with("mem:64K?bs=512", &options).expect("memory");
    assert_eq!(
        status(&session, &read_only, write(0, &[512, 512])).code(),
        Status::NAMESPACE_WRITE_PROTECTED
    );
}

#[test]
fn a_pool_without_room_gives_the_pieces_back() {
    let config = SessionConfig { buffer_bytes: 2 << 20, depth: 4, ..SessionConfig::default() };
    let session = Session::new(&config).expect("a session");
    let volume = session.open("mem:1M?bs=512").expect("memory");
    let mut held = Vec::new();
    while let Some(buffer) = session.allocate(4096) {
        held.push(buffer);
    }
    let submission = Submission::write(0, 2, pieces(&[24, 1000], byte));
    let rejected = volume.submit(submission).expect_err("no room");
    assert_eq!((rejected.reason, session.outstanding()), (Reason::NoBuffer, 0));
    held.pop();
    volume.submit(rejected.submission).expect("room for one");
    assert_eq!(session.wait(1, PATIENCE), 1);
    let mut done = Vec::new();
    session.reap(&mut done);
    assert!(done[0].status.is_success());
}

/// Notes what comes down: whether it is an admin command, its opcode, and how many pieces its data is in.
#[derive(Debug)]
struct Noting {
    vectors_pages: u32,
    nsid: Option<u32>,
    /// Where the data of the last command in one piece began.
    began: Mutex<Option<usize>>,
    /// The registered buffers that data and metadata of the last command were in.
    fixed: Mutex<[Option<u16>; 2]>,
    came: Mutex<Vec<(bool, u8, u32)>>,
    limits: Limits,
}

impl Noting {
    /// Takes no pieces.
    fn of(limits: Limits) -> Noting {
        Noting {
            vectors_pages: 0,
            nsid: None,
            began: Mutex::default(),
            fixed: Mutex::default(),
            came: Mutex::default(),
            limits,
        }
    }

    /// What came last.
    fn last(&self) -> Option<(bool, u8, u32)> {
        self.came.lock().unwrap().pop()
    }
}

impl Namespace for Noting {
    fn limits(&self) -> Limits {
        self.limits
    }
    fn open_queue(self: Arc<Self>, _reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        Ok(Rc::new(NotingQueue(self)))
    }
    fn vectors_pages(&self) -> u32 {
        self.vectors_pages
    }
    fn nsid(&self) -> Option<u32> {
        self.nsid
    }
    fn refresh(&self) -> io::Result<bool> {
        Ok(false)
    }
    fn resize(&self, _bytes: u64) -> io::Result<()> {
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn uri(&self) -> String {
        "noting:".into()
    }
    fn describe(&self, _facts: &mut Vec<(String, String)>) {}
    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }
}

struct NotingQueue(Arc<Noting>);

impl NotingQueue {
    fn note(&self, admin: bool, mut request: Box<Request>) {
        let begins = request.data.as_mut_ptr().map(|pointer| pointer.addr());
        *self.0.began.lock().unwrap() = begins;
        *self.0.fixed.lock().unwrap() = [&request.data, &request.metadata].map(Data::fixed_index);
        let pieces = match &request.data {
            Data::Vectors(vectors) => vectors.count(),
            Data::Part(_) => 1,
            _ => 0,
        };
        self.0.came.lock().unwrap().push((admin, request.command.opcode, pieces));
        request.finish(Status::SUCCESS);
    }
}

impl Queue for NotingQueue {
    fn submit(&self, request: Box<Request>) {
        self.note(false, request);
    }
    fn submit_admin(&self, request: Box<Request>) {
        self.note(true, request);
    }
    fn forget(&self) {}
}

/// Some commands go down in one piece though the volume takes several: what layers look into, what the driver has only a call
/// that blocks for, and more pieces than the kernel takes at once.
#[test]
fn pieces_go_down_where_they_are_taken() {
    use opcode::{admin, io};
    let session = session(2);
    let limits = session.open("mem:1M?bs=512").expect("memory").limits();
    for vectors_pages in [1024, 8, 0] {
        let as_they_are = if vectors_pages > 0 { 2 } else { 1 };
        let noting = Arc::new(Noting { vectors_pages, ..Noting::of(limits) });
        let volume =
            session.adopt(Arc::clone(&noting) as Arc<dyn Namespace>, false).expect("a queue");
        let command = |opcode| Command { opcode, ..Command::default() };
        for (submission, pieces) in [
            (Submission::new(Command::blocks(io::WRITE, 1, 0, 2)), as_they_are),
            (Submission::new(Command::blocks(io::READ, 1, 0, 2)), as_they_are),
            (Submission::new(Command::blocks(io::COMPARE, 1, 0, 2)), 1),
            (Submission::new(command(io::DATASET_MANAGEMENT)), 1),
            (Submission::new(command(io::ZONE_APPEND)), as_they_are),
            (Submission::new(command(0x81)), as_they_are),
            (Submission::admin(command(admin::IDENTIFY)), as_they_are),
            (Submission::admin(command(0xc1)), as_they_are),
            (Submission::admin(command(admin::NAMESPACE_ATTACHMENT)), 1),
            (Submission::admin(command(admin::NAMESPACE_MANAGEMENT)), 1),
        ] {
            let (admin, opcode) = (submission.admin, submission.command.opcode);
            let data = pieces_of(if opcode == io::DATASET_MANAGEMENT {
                &[3, 0, 13]
            } else {
                &[1000, 0, 24]
            });
            assert_eq!(status(&session, &volume, submission.data(data)), Status::SUCCESS);
            let last = noting.came.lock().unwrap().pop();
            assert_eq!(last, Some((admin, opcode, pieces)), "{vectors_pages}");
        }
        // One byte in a page of its own each.
        let most = vectors_pages as usize;
        for (count, wanted) in [(most.max(2), as_they_are.max(vectors_pages)), (most + 1, 1)] {
            if count < 2 {
                continue;
            }
            let data = pieces_of(&vec![1; count]);
            assert_eq!(
                status(&session, &volume, Submission::new(command(0x81)).data(data)),
                Status::SUCCESS
            );
            assert_eq!(noting.came.lock().unwrap().pop(), Some((false, 0x81, wanted)));
        }
    }
}

/// In a subsystem with several namespaces one is not taken for another.
#[test]
fn an_admin_command_for_another_namespace_does_not_go_down() {
    use opcode::admin;
    const FORMAT: u8 = 0x80;
    let session = session(2);
    let limits = session.open("mem:1M?bs=512").expect("memory").limits();
    // What does not know its id is namespace 1.
    for (own, asked) in [(Some(7), 7), (None, 1)] {
        let noting = Arc::new(Noting { nsid: own, ..Noting::of(limits) });
        let volume =
            session.adopt(Arc::clone(&noting) as Arc<dyn Namespace>, false).expect("a queue");
        for (nsid, is_sent) in [(asked, true), (0, true), (NSID_ALL, true), (2, false), (8, false)]
        {
            for data in [Bytes::None, vec![0; 64].into(), pieces_of(&[60, 4]).into()] {
                for opcode in [FORMAT, admin::NAMESPACE_MANAGEMENT, admin::IDENTIFY] {
                    let command = Command { opcode, nsid: nsid.into(), ..Command::default() };
                    let has_data = !data.is_empty();
                    let data = match &data {
                        Bytes::Vectors(_) => pieces_of(&[60, 4]).into(),
                        Bytes::None => Bytes::None,
                        _ => Bytes::from(vec![0; 64]),
                    };
                    let wanted =
                        if is_sent { Status::SUCCESS } else { Status::INVALID_NAMESPACE.dnr() };
                    assert_eq!(
                        status(&session, &volume, Submission::admin(command).data(data)),
                        wanted,
                        "{nsid} of {own:?}"
                    );
                    let came = noting.last().map(|(_, opcode, pieces)| (opcode, pieces > 0));
                    assert_eq!(came, is_sent.then_some((opcode, has_data)));
                }
            }
        }
    }
    // Commands for blocks are the volume's own, whatever they name.
    let command = Command { nsid: 9.into(), ..Command::blocks(opcode::io::READ, 9, 0, 2) };
    let noting = Arc::new(Noting { nsid: Some(7), ..Noting::of(limits) });
    let volume = session.adopt(noting as Arc<dyn Namespace>, false).expect("a queue");
    let submission = Submission::new(command).data(vec![0; 1024]);
    assert_eq!(status(&session, &volume, submission), Status::SUCCESS);
}

/// Who reads what is not to be changed may ask which blocks are allocated.
#[test]
fn a_read_only_volume_takes_get_lba_status() {
    let session = session(2);
    let limits = session.open("mem:1M?bs=512").expect("memory").limits();
    let noting = Arc::new(Noting { ..Noting::of(limits) });
    let options = GuardOptions { read_only: true, ..GuardOptions::default() };
    let below = Arc::clone(&noting) as Arc<dyn Namespace>;
    let volume = session.adopt(Guard::new(below, options), false).expect("a queue");
    for (opcode, wanted) in [
        (opcode::admin::GET_LBA_STATUS, Status::SUCCESS),
        (opcode::admin::FORMAT_NVM, Status::NAMESPACE_WRITE_PROTECTED.dnr()),
    ] {
        let command = Command { opcode, ..Command::default() };
        let submission = Submission::admin(command).data(vec![0; 64]);
        assert_eq!(status(&session, &volume, submission), wanted, "{opcode:#x}");
        assert_eq!(noting.last().is_some(), wanted == Status::SUCCESS);
    }
}

/// A driver that takes so many pieces of memory gets no more of them: the pool's memory lies in one piece.
#[test]
fn memory_that_touches_too_many_pages_goes_by_way_of_the_pool() {
    const PAGES: usize = 16;
    let session = session(2);
    let limits = session.open("mem:1M?bs=512").expect("memory").limits();
    let noting = Arc::new(Noting { vectors_pages: PAGES as u32, ..Noting::of(limits) });
    let volume = session.adopt(Arc::clone(&noting) as Arc<dyn Namespace>, false).expect("a queue");
    let mut memory = vec![0u8; (PAGES + 2) * 4096];
    let page = memory.as_mut_ptr().addr().next_multiple_of(4096) - memory.as_mut_ptr().addr();
    for (at, pages, is_own) in
        [(0, PAGES, true), (16, PAGES - 1, true), (16, PAGES, false), (0, PAGES - 2, true)]
    {
        let pointer = memory[page + at..].as_mut_ptr();
        // SAFETY: the memory outlives the command, and nobody else uses it meanwhile.
        let bytes = unsafe { RawBytes::new(pointer, pages * 4096, None) };
        let command = Command::blocks(opcode::io::READ, 1, 0, (pages * 8) as u32);
        let submission = Submission::new(command).data(Bytes::Raw(bytes));
        assert_eq!(status(&session, &volume, submission), Status::SUCCESS);
        let begins = noting.began.lock().unwrap().take();
        assert_eq!(begins == Some(pointer.addr()), is_own, "{pages} pages from {at} on");
    }
}

/// The kernel looks up no pages of what is registered with the session's own ring; what another's ring knows means something
/// else there, or nothing.
#[test]
fn registered_memory_goes_down_as_such_and_no_other() {
    let (session, other) = (session(2), session(2));
    let limits = session.open("mem:1M?bs=512").expect("memory").limits();
    let noting = Arc::new(Noting::of(Limits { metadata_bytes: 8, ..limits }));
    let volume = session.adopt(Arc::clone(&noting) as Arc<dyn Namespace>, false).expect("a queue");
    let [data, metadata, foreign, mut held] =
        [(&session, 512), (&session, 8), (&other, 512), (&session, 512)]
            .map(|(of, bytes)| of.allocate(bytes).expect("room"));
    let [index, around] = [&data, &metadata].map(reactor::Buffer::fixed_index);
    // Memory may be locked elsewhere; then the session tells why, and it works all the same.
    let refusal = session.registration().1;
    assert_eq!([index, around].map(|it| it.is_some()), [refusal.is_none(); 2], "{refusal:?}");
    let (start, part) = (held.as_mut_ptr(), held.fixed_index());
    // SAFETY: the buffer outlives the commands, and nobody else uses it meanwhile.
    let raw = |fixed| Bytes::Raw(unsafe { RawBytes::new(start, 512, fixed) });
    let owned = |bytes| Bytes::Owned(vec![0; bytes]);
    for (data, metadata, expected) in [
        (data.into(), metadata.into(), [index, around]),
        (raw(part), Bytes::None, [part, None]),
        (raw(None), owned(8), [None, None]),
        (owned(512), owned(8), [None, None]),
        (foreign.into(), Bytes::None, [None, None]),
    ] {
        let words = format!("{data:?} {metadata:?}");
        let submission = Submission::read(0, 1, data).metadata(metadata);
        assert_eq!(status(&session, &volume, submission), Status::SUCCESS, "{words}");
        assert_eq!(*noting.fixed.lock().unwrap(), expected, "{words}");
    }
    // What goes by way of the pool is registered, too.
    let submission = Submission::read(0, 1, pieces_of(&[500, 12]));
    assert_eq!(status(&session, &volume, submission), Status::SUCCESS);
    assert_eq!(noting.fixed.lock().unwrap()[0].is_some(), refusal.is_none());
}

/// What is too long for the pool is refused, instead of having room asked for that there never is.
#[test]
fn pieces_that_the_pool_can_never_hold_are_refused() {
    let session = session(2);
    let limits = session.open("mem:1M?bs=512").expect("memory").limits();
    let volume = session.adopt(Arc::new(Noting::of(limits)), false).expect("a queue");
    let command = Command { opcode: 0x81, ..Command::default() };
    for (last, wanted) in [(0, Status::SUCCESS), (1, Status::INVALID_FIELD.dnr())] {
        let data = pieces_of(&[1 << 19, 1 << 19, last]);
        assert_eq!(status(&session, &volume, Submission::new(command).data(data)), wanted);
    }
}

fn pieces_of(sizes: &[usize]) -> Vectors {
    pieces(sizes, byte)
}

/// A command that reads less than it has room for, as logs and vendors' commands may, leaves the rest as it was; where the pool
/// has been used before by others.
#[test]
fn what_a_command_does_not_fill_stays() {
    let session = session(2);
    let limits = session.open("mem:1M?bs=512").expect("memory").limits();
    let noting = Arc::new(Noting::of(limits));
    let volume = session.adopt(noting as Arc<dyn Namespace>, false).expect("a queue");
    let mut used = session.allocate(1024).expect("room");
    used.as_mut_slice().fill(0xee);
    drop(used);
    for (admin, opcode) in [(true, opcode::admin::GET_LOG_PAGE), (true, 0xc2), (false, 0x82)] {
        let command = Command { opcode, ..Command::default() };
        let submission = Submission { command, admin, ..Submission::default() };
        let done = execute(&session, &volume, submission.data(pieces(&[1000, 24], byte)));
        assert_eq!(flat(&done.data), (0..1024).map(byte).collect::<Vec<u8>>(), "{opcode:#x}");
    }
}
