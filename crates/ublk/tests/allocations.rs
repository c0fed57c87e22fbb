//! What decides about a queue's requests allocates nothing per request.

use nvme::Status;
use ublk::driver::{Descriptor, operation, request_flag};
use ublk::{DataPath, Shape, Step, Tags};

const DEPTH: u16 = 64;
const ROUNDS: u32 = 2_000;

/// Takes a request through everything that it asks for, failing now and then; returns the steps.
fn carry_through(tags: &mut Tags, tag: u16, request: &Descriptor, number: u32) -> u32 {
    let mut step = tags.begin(tag, request);
    for steps in 1.. {
        step = match step {
            Step::CopyIn { bytes, .. } | Step::CopyOut { bytes, .. } => {
                tags.copied(tag, bytes.div_ceil(2) as i32)
            }
            Step::Submit => {
                std::hint::black_box((*tags.command(tag), tags.carries(tag)));
                let busy = number.is_multiple_of(7) && steps < 4;
                tags.served(tag, if busy { Status::COMMAND_INTERRUPTED } else { Status::SUCCESS })
            }
            Step::SubmitLater(_) => tags.resume(tag),
            Step::Commit(result) => {
                assert!(result == 0 || result == 8192, "{result}");
                return steps;
            }
        };
    }
    unreachable!("a request ends")
}

#[test]
fn no_request_allocates() {
    let shape = Shape {
        block_shift: 9,
        io_bytes_max: 1 << 20,
        deallocates: true,
        zero_blocks_max: 1 << 16,
        discard_blocks_max: u32::MAX,
        writes_through: false,
        zone_sectors: 0,
    };
    let operations = [
        operation::READ,
        operation::WRITE,
        operation::FLUSH,
        operation::DISCARD,
        operation::WRITE_ZEROES,
    ];
    for path in [DataPath::Copy, DataPath::UserCopy, DataPath::ZeroCopy] {
        let mut tags = Tags::new(DEPTH, path, shape);
        let before = counting_allocator::of_this_thread();
        let mut steps = 0;
        for number in 0..ROUNDS {
            let mut op_flags = u32::from(operations[number as usize % operations.len()]);
            if number.is_multiple_of(3) {
                op_flags |= request_flag::NEED_REG_BUF;
            }
            let start_sector = u64::from(number);
            let request = Descriptor { op_flags, nr_sectors: 16, start_sector, addr: 0 };
            steps += carry_through(&mut tags, number as u16 % DEPTH, &request, number);
        }
        let allocations = counting_allocator::of_this_thread() - before;
        assert_eq!(allocations, 0, "{path}: in {steps} steps");
        assert!(steps > 2 * ROUNDS && tags.busy() == 0);
    }
}
