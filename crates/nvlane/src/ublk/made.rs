//! A device that is taken over stays as it was made, whatever is asked for then.

use crate::cli::UblkMakeArgs;
use ::ublk::DataPath;
use ::ublk::driver::{DeviceInfo, flag};
use namespace::Namespace;

/// Queues that a new device has if nobody says how many, and requests in flight of each.
const QUEUES: u16 = 1;
const DEPTH: u16 = 128;

/// Requests are whole pages.
const PAGE_BYTES: u32 = 4096;

/// Queues, and requests in flight of each: those of `made`, the device that is taken over, or else those asked for.
pub fn shape(args: &UblkMakeArgs, made: Option<&DeviceInfo>) -> (u16, u16) {
    match made {
        Some(made) => (made.nr_hw_queues, made.queue_depth),
        None => (args.queues.unwrap_or(QUEUES), args.depth.unwrap_or(DEPTH)),
    }
}

/// The way of data that is asked for.
pub fn path(args: &UblkMakeArgs) -> Option<DataPath> {
    let each = [
        (args.zero_copy, DataPath::ZeroCopy),
        (args.user_copy, DataPath::UserCopy),
        (args.copy, DataPath::Copy),
    ];
    each.into_iter().find_map(|(asked, path)| asked.then_some(path))
}

/// Whether batches are asked for.
pub fn batch(args: &UblkMakeArgs) -> Option<bool> {
    args.batch.then_some(true).or(args.no_batch.then_some(false))
}

/// Tells what is asked for and `made`, the device that is taken over, has not.
pub fn warn_of_others(args: &UblkMakeArgs, made: &DeviceInfo, volume: &dyn Namespace) {
    for differs in differing(args, made, volume.limits().transfer_bytes_max) {
        tracing::warn!("/dev/ublkb{} stays as it was made: {differs}", made.dev_id);
    }
}

/// What is asked for and `made`, the device that is taken over, has not: what it has, and the option. Its volume takes
/// `transfer_bytes_max` at once.
fn differing(args: &UblkMakeArgs, made: &DeviceInfo, transfer_bytes_max: u32) -> Vec<String> {
    let differs = |asked: Option<u16>, made: u16| asked.filter(|asked| *asked != made);
    let way = DataPath::of_flags(made.flags);
    let batches = made.flags & flag::BATCH_IO != 0;
    let most = made.max_io_buf_bytes;
    // It may be the volume that takes no more.
    let is_other = |asked: u32| asked.min(transfer_bytes_max) / PAGE_BYTES != most / PAGE_BYTES;
    let (queues, depth) = (made.nr_hw_queues, made.queue_depth);
    let each = [
        differs(args.queues, queues)
            .map(|asked| format!("{queues} queue(s), not --queues {asked}")),
        differs(args.depth, depth)
            .map(|asked| format!("{depth} requests in flight, not --depth {asked}")),
        path(args)
            .filter(|asked| *asked != way)
            .map(|asked| format!("data by {way}, not --{}", asked.to_string().replace(' ', "-"))),
        batch(args).filter(|asked| *asked != batches).map(|asked| match asked {
            true => "requests one by one, not --batch".to_owned(),
            false => "requests in batches, not --no-batch".to_owned(),
        }),
        args.max_io
            .filter(|asked| is_other(*asked))
            .map(|asked| format!("requests of up to {most} bytes, not --max-io {asked}")),
    ];
    each.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        make: UblkMakeArgs,
    }

    fn asked(words: &[&str]) -> UblkMakeArgs {
        let line = ["add", "mem:32M", "-n", "7"];
        Line::parse_from(line.iter().chain(words)).make
    }

    fn made() -> DeviceInfo {
        DeviceInfo {
            nr_hw_queues: 4,
            queue_depth: 64,
            max_io_buf_bytes: 512 << 10,
            flags: DataPath::UserCopy.flags(),
            ..DeviceInfo::default()
        }
    }

    #[test]
    fn what_is_taken_over_is_opened_for_its_own_queues() {
        assert_eq!(shape(&asked(&[]), None), (1, 128));
        assert_eq!(shape(&asked(&["-q", "2", "-d", "8"]), None), (2, 8));
        for words in [&[][..], &["-q", "1"], &["-q", "8", "-d", "8"]] {
            assert_eq!(shape(&asked(words), Some(&made())), (4, 64), "{words:?}");
        }
    }

    #[test]
    fn what_differs_is_said_if_it_was_asked_for() {
        let said = |words: &[&str]| differing(&asked(words), &made(), 1 << 20);
        let as_made = ["-q", "4", "-d", "64", "--user-copy", "--no-batch", "--max-io", "512K"];
        for words in [&[][..], &["--auto"], &as_made] {
            assert_eq!(said(words), [""; 0], "{words:?}");
        }
        for (words, what) in [
            (&["-q", "1"][..], "4 queue(s), not --queues 1"),
            (&["-d", "128"], "64 requests in flight, not --depth 128"),
            (&["--zero-copy"], "data by user copy, not --zero-copy"),
            (&["--copy"], "data by user copy, not --copy"),
            (&["--batch"], "requests one by one, not --batch"),
            (&["--max-io", "64K"], "requests of up to 524288 bytes, not --max-io 65536"),
            (&["--max-io", "1M"], "requests of up to 524288 bytes, not --max-io 1048576"),
        ] {
            assert_eq!(said(words), [what]);
        }
        assert_eq!(said(&["-q", "1", "-d", "1"]).len(), 2);
        // The volume takes no more, and nobody who asked for it again is told each time.
        assert_eq!(differing(&asked(&["--max-io", "1M"]), &made(), 512 << 10), [""; 0]);
    }
}
