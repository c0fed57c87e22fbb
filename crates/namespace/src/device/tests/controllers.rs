//! Admin commands by controllers whose devices are there, or are not.

use super::*;
use crate::AccessWatcher;
use crate::layer::multipath::{Multipath, MultipathOptions};
use nvme::NSID_ALL;
use std::cell::Cell;
use std::rc::Weak;

/// The directory of a controller that has the device `/dev/NAME`.
fn directory(root: &Path, name: &str) -> PathBuf {
    let directory = root.join(name);
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("ng0n1"), "").unwrap();
    directory
}

/// One of several paths, by that controller.
fn path(directory: impl Into<PathBuf>) -> Device {
    let mut device = made("/dev/null", Passthrough::ALL, directory);
    device.options.retries = false;
    device
}

/// Identify Controller, and what it is told.
fn identify(reactor: &Reactor, queue: &dyn Queue, done: &Rc<Done>) -> Status {
    let mut request = Request::new();
    request.command = Command { opcode: admin::IDENTIFY, ..Command::default() };
    request.command.cdw10 = 1.into();
    request.data = Data::Buffer(reactor.buffers().allocate(DATA_BYTES).unwrap());
    request.push(Rc::clone(done) as Rc<dyn Sink>, 0);
    queue.submit_admin(request);
    drive(reactor, done, 1);
    done.take().pop().unwrap().status
}

/// Notes that it was woken.
#[derive(Default)]
struct Woken(Cell<bool>);

impl AccessWatcher for Woken {
    fn access_changed(&self) {
        self.0.set(true);
    }
}

/// Nothing else was sent to the device that would have found out.
#[test]
fn an_admin_command_finds_out_that_the_device_was_removed() {
    let (reactor, done) = (reactor(), Rc::new(Done::default()));
    for (retries, expected) in
        [(true, Status::NAMESPACE_NOT_READY.dnr()), (false, Status::HOST_ABORTED)]
    {
        let mut device = path("/nowhere/nvme0");
        device.options.retries = retries;
        let queue = queue::DeviceQueue::open(Arc::new(device), &reactor).unwrap();
        let woken = Rc::new(Woken::default());
        queue.watch_access(Rc::downgrade(&woken) as Weak<dyn AccessWatcher>);
        assert_eq!(queue.access(), Access::Optimized);
        for _ in 0..2 {
            assert_eq!(identify(&reactor, &*queue, &done), expected);
        }
        assert_eq!((queue.access(), woken.0.get()), (Access::Gone, true));
    }
}

#[test]
fn an_admin_command_goes_by_a_path_that_is_left() {
    let (reactor, done) = (reactor(), Rc::new(Done::default()));
    let root = tempfile::tempdir().unwrap();
    let there = directory(root.path(), "null");
    let paths = |second: &Path| -> Vec<Arc<dyn Namespace>> {
        vec![Arc::new(path("/nowhere/nvme0")), Arc::new(path(second))]
    };
    for (second, expected) in
        [(there.as_path(), Status::SUCCESS), (Path::new("/nowhere/nvme1"), Status::HOST_ABORTED)]
    {
        let multipath = Multipath::new(paths(second), MultipathOptions::default()).unwrap();
        let queue = multipath.open_queue(&reactor).unwrap();
        for _ in 0..2 {
            assert_eq!(identify(&reactor, &*queue, &done), expected);
        }
    }
}

/// Its controller was removed when it had taken commands already: the kernel takes none any more.
#[test]
fn what_a_removed_controller_does_not_take_may_go_by_another_path() {
    let (reactor, done) = (reactor(), Rc::new(Done::default()));
    let root = tempfile::tempdir().unwrap();
    let device = Arc::new(path(directory(root.path(), "null")));
    let queue = queue::DeviceQueue::open(device, &reactor).unwrap();
    let fail = |errno: i32| {
        let mut request = Request::new();
        request.command.opcode = admin::IDENTIFY;
        request.scratch = queue::OF_ADMIN;
        request.push(Rc::clone(&done) as Rc<dyn Sink>, 0);
        queue.failed(request, -errno);
        done.take().pop().unwrap().status
    };
    assert_eq!(fail(libc::ENODEV), Status::HOST_ABORTED);
    assert_eq!(fail(libc::EINTR), Status::HOST_PATHING_ERROR, "it may have been carried out");
}

/// The ring has no room for another file: commands name the descriptor.
#[test]
fn what_is_noted_for_a_controller_that_is_left_goes_to_it_nevertheless() {
    let (reactor, done) = (reactor(), Rc::new(Done::default()));
    let root = tempfile::tempdir().unwrap();
    let device = Arc::new(path(directory(root.path(), "null")));
    let null = fs::File::open("/dev/null").unwrap();
    while reactor.register_file(null.as_raw_fd()).is_some() {}
    let queue = queue::DeviceQueue::open(device, &reactor).unwrap();
    for round in 0..3 {
        let mut request = Request::new();
        request.command.opcode = admin::IDENTIFY;
        request.command.cdw10 = 1.into();
        request.data = Data::Buffer(reactor.buffers().allocate(DATA_BYTES).unwrap());
        request.push(Rc::clone(&done) as Rc<dyn Sink>, 0);
        queue.submit_admin(request);
        queue.leave_controller();
        // Files that know no such commands, by the number of the one that was left.
        let others = [(); 4].map(|()| fs::File::open(root.path()).unwrap());
        drive(&reactor, &done, 1);
        assert_eq!(done.take().pop().unwrap().status, Status::SUCCESS, "round {round}");
        drop(others);
    }
}

/// The kernel then looks up neither pages nor the file. Where I/O is polled for, admin commands go by another ring, which
/// has the same registered.
#[test]
fn admin_commands_name_the_registered_file_and_the_registered_buffer() {
    let reactor = reactor();
    let root = tempfile::tempdir().unwrap();
    for (polled, sqpoll) in
        [(false, None), (true, None), (false, Some(SqPoll { cpu: None, idle_ms: 2 }))]
    {
        let mut device = path(directory(root.path(), "null"));
        (device.options.iopoll, device.options.sqpoll) = (polled, sqpoll);
        let queue = queue::DeviceQueue::open(Arc::new(device), &reactor).unwrap();
        let mut request = Request::new();
        request.command = Command { opcode: admin::IDENTIFY, ..Command::default() };
        let buffer = reactor.buffers().allocate(DATA_BYTES).unwrap();
        let index = buffer.ensure_registered();
        assert!(index.is_some(), "lockable memory");
        request.data = Data::Buffer(buffer);
        let (carrier, file) = queue.admin_file(&request).unwrap();
        assert!(matches!(file, uring::File::Fixed(_)), "{file:?}");
        for (nsid, named) in [(0, 0), (1, 7), (NSID_ALL, NSID_ALL)] {
            request.command.nsid = nsid.into();
            let entry = queue.admin_entry(&carrier, file, &request);
            let seen = (entry.fixed_buffer(), entry.file(), entry.command().nsid);
            assert_eq!(seen, (index, file, named), "{polled} {sqpoll:?}");
            // `_IOWR('N', 0x82, struct nvme_uring_cmd)`.
            assert_eq!(entry.operation(), 0xc048_4e82);
        }
        let mut ordinary = vec![0; DATA_BYTES];
        let list = [libc::iovec { iov_base: ordinary.as_mut_ptr().cast(), iov_len: DATA_BYTES }];
        // SAFETY: nobody uses the memory but to make the entry.
        let (part, pieces) = unsafe {
            (crate::Part::new(ordinary.as_mut_ptr(), DATA_BYTES, None), crate::Vectors::new(&list))
        };
        for (data, begins, len, operation) in [
            (Data::Part(part), ordinary.as_ptr() as u64, DATA_BYTES as u32, 0xc048_4e82),
            (Data::Vectors(pieces), list.as_ptr() as u64, 1, 0xc048_4e83),
        ] {
            request.data = data;
            let entry = queue.admin_entry(&carrier, file, &request);
            let (command, seen) = (entry.command(), (entry.operation(), entry.fixed_buffer()));
            assert_eq!((command.addr, command.data_len, seen), (begins, len, (operation, None)));
        }
    }
}

/// Whoever may send them can have neither the log filled nor the device looked for all the time.
#[test]
fn a_controller_that_cannot_be_opened_is_looked_for_now_and_then() {
    let (reactor, done) = (reactor(), Rc::new(Done::default()));
    let root = tempfile::tempdir().unwrap();
    let device = Arc::new(path(directory(root.path(), "absent")));
    let queue = queue::DeviceQueue::open(Arc::clone(&device), &reactor).unwrap();
    let denied = || {
        assert_eq!(identify(&reactor, &*queue, &done), Status::OPERATION_DENIED.dnr());
        std::mem::take(&mut *device.logged_closed.lock().unwrap())
    };
    assert_eq!(denied(), [io::ErrorKind::NotFound], "it is logged");
    assert_eq!(queue.access(), Access::Optimized, "the namespace is there");
    let until_it_is_logged = || {
        let (begun, mut unseen) = (Instant::now(), 0);
        while denied().is_empty() {
            unseen += 1;
            thread::sleep(Duration::from_millis(20));
            reactor.turn_for(Drive::Poll);
        }
        (unseen, begun.elapsed())
    };
    // One of several: where the machine stands still, the next look may be due when it goes on.
    let looks = |_| until_it_is_logged();
    let is_late = |(unseen, took)| unseen > 0 && took > Duration::from_millis(500);
    assert!((0..5).map(looks).any(is_late), "it is looked for all the time");
    // As it is when nobody empties the list.
    assert!(is_new(&device.logged_closed, io::ErrorKind::NotFound));
    assert!(!is_new(&device.logged_closed, io::ErrorKind::NotFound));
}
