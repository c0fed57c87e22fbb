//! Volumes that can do less than ours.

use crate::client;

use client::*;
use double::Double;
use namespace::{Lost, Queue, Request};
use nbd::{Export, Server, ServerConfig};
use nvme::limits::DiscardLimits;
use nvme::opcode::io as opcode;
use nvme::{Limits, Status};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

const SIMPLE: Manners = Manners { structured: false, aligned: false, allocation: false };
const DONE: Reply = Reply::Data(vec![]);

/// Refuses to zero or trim more than 1 MiB at a time, as remote volumes may; and counts how often.
struct Picky(Rc<dyn Queue>, Arc<AtomicU32>);

impl Queue for Picky {
    fn submit(&self, request: Box<Request>) {
        let blocks = match request.command.opcode {
            opcode::WRITE_ZEROES => request.command.block_count(),
            // SAFETY: the request holds its range, whose length is the second dword.
            opcode::DATASET_MANAGEMENT => unsafe {
                request.data.as_ptr().cast::<u32>().add(1).read()
            },
            _ => 0,
        };
        if blocks > 2048 {
            self.1.fetch_add(1, Ordering::Relaxed);
            return request.finish(Status::INVALID_FIELD.dnr());
        }
        self.0.submit(request);
    }

    fn forget(&self) {}
}

fn limited(limits: Limits) -> Limits {
    let discard = DiscardLimits { range_blocks_max: 2048, ..limits.discard };
    Limits { discard, write_zeroes_bytes_max: 1 << 20, ..limits }
}

#[test]
fn a_volume_that_zeroes_little_at_a_time_is_asked_for_little() {
    for (kind, says_so) in
        [(WRITE_ZEROES, false), (TRIM, false), (WRITE_ZEROES, true), (TRIM, true)]
    {
        let namespace = volume::open("mem:64M", &volume::OpenOptions::default()).unwrap();
        let refusals = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&refusals);
        let picky = Double::over(namespace)
            .queues(move |queue, _| Rc::new(Picky(queue, Arc::clone(&counted))))
            .limited(move |limits| if says_so { limited(limits) } else { limits });
        let namespace = Arc::new(picky);
        let export = Export { name: String::new(), description: String::new(), namespace };
        let server = Server::start(&ServerConfig::default(), vec![export]).unwrap();
        let address = server.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut client = Client::connect(address, "", SIMPLE);
        let data = pattern(1, 32 << 20);
        assert_eq!(client.write(0, 0, &data), DONE);
        let open: Vec<u64> = [(512, 20 << 20), (24 << 20, 5 << 20)]
            .map(|(offset, length)| client.send(kind, FUA, offset, length, &[]))
            .into();
        for _ in open {
            assert_eq!(client.receive().unwrap().1, DONE);
        }
        let mut model = data;
        model[512..512 + (20 << 20)].fill(0);
        model[24 << 20..29 << 20].fill(0);
        assert!(client.read(0, 32 << 20) == model);
        assert_eq!(refusals.load(Ordering::Relaxed) == 0, says_so);
        server.stop().unwrap();
    }
}

/// The kernel tells of lost data once, whoever flushes then.
#[test]
fn each_client_is_told_of_lost_data_by_its_next_flush() {
    let lost = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&lost);
    let memory = volume::open("mem:1M", &volume::OpenOptions::default()).unwrap();
    let losing =
        move || Lost { count: counted.load(Ordering::Relaxed).into(), at: Some(Instant::now()) };
    let namespace = Arc::new(Double::over(memory).losing(losing));
    let export = Export { name: String::new(), description: String::new(), namespace };
    let server = Server::start(&ServerConfig::default(), vec![export]).unwrap();
    let address = server.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut clients = [(); 2].map(|()| Client::connect(address, "", SIMPLE));
    for client in &mut clients {
        assert_eq!(client.ask(FLUSH, 0, 0, 0), DONE);
    }
    lost.store(1, Ordering::Relaxed);
    for client in &mut clients {
        assert_eq!(client.ask(FLUSH, 0, 0, 0), Reply::Error(5), "EIO");
        assert_eq!(client.ask(FLUSH, 0, 0, 0), DONE);
    }
    server.stop().unwrap();
}

/// CACHE is a Verify: it is not offered where there is none.
#[test]
fn a_volume_without_verify_is_not_asked_to_cache() {
    for has_verify in [true, false] {
        let namespace = volume::open("mem:1M", &volume::OpenOptions::default()).unwrap();
        let namespace = Double::over(namespace).limited(move |mut limits| {
            limits.commands.verify = has_verify;
            limits
        });
        let namespace = Arc::new(namespace);
        let export = Export { name: String::new(), description: String::new(), namespace };
        let server = Server::start(&ServerConfig::default(), vec![export]).unwrap();
        let address = server.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut client = Client::connect(address, "", SIMPLE);
        assert_eq!(client.flags & 1 << 10 != 0, has_verify);
        let expected = if has_verify { DONE } else { Reply::Error(EINVAL) };
        assert_eq!(client.ask(CACHE, 0, 0, 4096), expected);
        server.stop().unwrap();
    }
}
