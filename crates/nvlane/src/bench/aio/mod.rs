//! Scenario `aio`: the kernel's AIO, our libaio in its place, and `io_setup2`, by turns in one process.
//!
//! ```text
//!   load: keeps `depth` random 4 KiB reads in flight
//!     |- kernel     io_submit(2), io_getevents(2), as libaio makes them
//!     |- drop-in    aio::drop_in
//!     |- polled     io_setup2(IOPOLL)                            where the device takes it
//!     |- io_setup2  USERIOCB, FIXEDBUFS, IOPOLL where the device takes it; and with SQTHREAD; and with
//!     |             SCQRING and FIXEDFILES, by io_ring_enter
//!     |- bare       a ring without a library, as lean as there is one: the bound
//!     `- fio        its engine io_uring, with pinned buffers and file, polling like io_setup2
//! ```
//!
//! Windows of subjects take turns, and ratios are of the windows of one turn, so that what
//! disturbs the machine for longer than a turn disturbs all alike; fio, which takes long to begin, has
//! a turn in the end. Our libaio has its turns with the kernel's AIO alone, before there is any other context, as in
//! programs that are as they are: while something else in a process has a ring, and from when one was closed, it waits for events of
//! files that go to the kernel by a call that costs more (`aio::interrupts`).
//!
//! | rows | what is read |
//! |---|---|
//! | `direct_qd*` | the block device that `--dir` names, never written; or null_blk with a poll queue |
//! | `file_qd*` | where `--dir` is a folder: a file that is made there, past the page cache |
//! | `cached_qd*` | that file, or the device that was named, through the page cache |
//! | `..._single_qd*` | the same by the kernel's AIO and our libaio, each request by an `io_submit` of its own |
//!
//! Machines whose kernel has no null_blk, or users who are not root, get an exact guest (`guest`) unless a device
//! was named or only the rows of files are wanted.

mod bare;
mod fio;
mod load;
mod stage;
mod subject;

use super::report::{Bars, Report, Table, median};
use super::{Options, Scenario, cores, guest, heed, peers};
use anyhow::{Context, ensure};
use load::{Load, Window};
use serde_json::json;
use stage::Stage;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;
use subject::{BLOCK, KERNEL, Kind, Subject};

/// Bytes of the file that is read.
const BYTES: usize = 64 << 20;
/// Requests in flight.
const DEPTHS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Of files, in a quick run.
const DEPTHS_QUICK: [usize; 3] = [1, 8, 64];
/// The same in one of everything.
const DEPTHS_HASTY: [usize; 2] = [1, 64];
/// In flight of programs that submit one at a time; 1 is a row of all subjects.
const DEPTHS_SINGLE: [usize; 3] = [2, 8, 32];
/// In flight of programs that are told by an eventfd.
const DEPTHS_EVENTFD: [usize; 2] = [1, 16];

/// The scenario.
pub struct Aio;

impl Scenario for Aio {
    fn name(&self) -> &'static str {
        "aio"
    }

    fn about(&self) -> &'static str {
        "asynchronous I/O: the kernel's, our libaio in its place, io_setup2; --dir may be a device; in a guest where none can be made"
    }

    fn run(&self, options: &Options) -> anyhow::Result<Report> {
        let named = stage::is_block(&options.dir);
        let wants_device = named || rows("direct", &DEPTHS).any(|row| options.wants(&row.name));
        if wants_device
            && !named
            && let Err(why) = stage::is_possible()
        {
            let why = format!("{why} (--only file,cached reads files here)");
            return Err(guest::run(self.name(), &why, &[], options));
        }
        cores::pin(options.client_core).context("the core cannot be used; see --client-core")?;
        let (window_ms, turns) = match (options.tiny, options.quick, guest::is_inside()) {
            (true, ..) => (5, 2),
            // They hardly differ in there.
            (_, true, true) => (60, 2),
            (_, true, false) => (60, 5),
            (_, false, true) => (200, 5),
            (_, false, false) => (200, 11),
        };
        let installed = peers::fio::version_with(peers::fio::ENGINE);
        let mut bench = Bench {
            report: Report::new(self.name()),
            window: guest::window(Duration::from_millis(window_ms)),
            turns,
            core: options.client_core,
            fio: installed.is_ok(),
            table: Vec::new(),
            worst: (f64::INFINITY, String::new()),
            dropins: 0,
        };
        bench.report.machine.peers.insert("fio".into(), installed.unwrap_or_else(|why| why));
        let file = Place::of_file(options)?;
        let stage = if wants_device && !named {
            Some(Stage::new().context("null_blk cannot be set up")?)
        } else {
            None
        };
        let made = match &stage {
            Some(stage) => Some(Place::of_device(stage.device()?)?),
            None => None,
        };
        let is_hasty = options.quick && options.only.is_empty();
        let few: &[usize] = match (options.quick, is_hasty) {
            (_, true) => &DEPTHS_HASTY,
            (true, _) => &DEPTHS_QUICK,
            (false, _) => &DEPTHS,
        };
        let mut groups = Vec::new();
        let device = if named { Some(&file) } else { made.as_ref() };
        if let Some(device) = device {
            groups.push((device, true, "direct", &DEPTHS[..]));
        }
        if !named {
            groups.push((&file, true, "file", few));
        }
        groups.push((&file, false, "cached", few));
        let mut cases = Vec::new();
        for (place, direct, name, depths) in groups {
            for row in rows(name, depths) {
                let is_left_out = is_hasty && row.eventfd;
                if options.wants(&row.name) && !is_left_out {
                    cases.extend(bench.case(place, direct, row)?);
                }
            }
        }
        for case in &mut cases {
            case.as_they_are = bench.turns_of(&Kind::AS_THEY_ARE, case)?;
        }
        for case in cases {
            if case.row.list < case.row.depth || case.row.eventfd {
                bench.as_they_are(&case)?;
            } else {
                bench.others(case)?;
            }
        }
        bench.finish(device, &file);
        Ok(bench.report)
    }
}

/// What a row is about.
struct Row {
    name: String,
    /// Requests in flight.
    depth: usize,
    /// Most of them by one call.
    list: usize,
    /// It waits for events by an eventfd.
    eventfd: bool,
}

/// Rows of one place.
fn rows(place: &str, depths: &[usize]) -> impl Iterator<Item = Row> {
    let row = move |kind: &str, depth, list, eventfd| Row {
        name: format!("{place}_{kind}qd{depth}"),
        depth,
        list,
        eventfd,
    };
    let lists = depths.iter().map(move |&depth| row("", depth, depth, false));
    let single = DEPTHS_SINGLE.into_iter().map(move |depth| row("single_", depth, 1, false));
    let told = DEPTHS_EVENTFD.into_iter().map(move |depth| row("eventfd_", depth, depth, true));
    lists.chain(single).chain(told)
}

/// What is read.
struct Place {
    path: PathBuf,
    device: bool,
    /// How much of it.
    bytes: usize,
}

impl Place {
    /// The device that was named, or a file in the folder.
    fn of_file(options: &Options) -> anyhow::Result<Place> {
        let path = options.dir.clone();
        if stage::is_block(&path) {
            return Place::of_device(path);
        }
        let path = path.join(format!("nvlane-bench-aio-{}", std::process::id()));
        let mut file = File::create(&path).with_context(|| path.display().to_string())?;
        // It is removed with this, also if it cannot be written.
        let place = Place { path, device: false, bytes: BYTES };
        for chunk in 0..BYTES >> 20 {
            file.write_all(&vec![chunk as u8; 1 << 20])?;
        }
        file.sync_all()?;
        Ok(place)
    }

    fn of_device(path: PathBuf) -> anyhow::Result<Place> {
        let mut place = Place { path, device: true, bytes: BYTES };
        let size = place.open(false)?.seek(SeekFrom::End(0))?;
        place.bytes = BYTES.min(usize::try_from(size)?) / BLOCK * BLOCK;
        ensure!(place.bytes > 0, "{} is empty", place.path.display());
        Ok(place)
    }

    fn open(&self, direct: bool) -> anyhow::Result<File> {
        let flags = if direct { libc::O_DIRECT } else { 0 };
        OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&self.path)
            .with_context(|| self.path.display().to_string())
    }

    fn name(&self) -> String {
        if self.device { self.path.display().to_string() } else { "a file".into() }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.device {
            // Nothing is to be done about a file that is gone already.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

struct Bench {
    report: Report,
    window: Duration,
    turns: u64,
    core: usize,
    fio: bool,
    table: Vec<Vec<String>>,
    /// The drop-in's worst ratio, and where that was.
    worst: (f64, String),
    /// Rows it has.
    dropins: usize,
}

/// Windows of some subjects, by name, with whether each polls.
type Measured = BTreeMap<&'static str, (bool, Vec<Window>)>;

/// One row of each subject.
struct Case<'a> {
    place: &'a Place,
    file: File,
    direct: bool,
    row: Row,
    /// Of [`Kind::AS_THEY_ARE`].
    as_they_are: Measured,
}

impl Case<'_> {
    /// What the subjects of one run are compared with.
    fn beside(&self, measured: &Measured) -> anyhow::Result<Windows> {
        let kernel = measured.get(KERNEL).map(|(_, windows)| windows.clone());
        let kernel = kernel.context("the kernel's AIO is not to be had")?;
        let (row, depth) = (self.row.name.clone(), self.row.depth);
        Ok(Windows { kernel, row, depth, direct: self.direct })
    }
}

/// The windows of the kernel's AIO that others are compared with.
struct Windows {
    kernel: Vec<Window>,
    row: String,
    depth: usize,
    direct: bool,
}

impl Bench {
    /// All subjects at one depth; None where the file cannot be read so.
    fn case<'a>(
        &mut self,
        place: &'a Place,
        direct: bool,
        row: Row,
    ) -> anyhow::Result<Option<Case<'a>>> {
        match place.open(direct) {
            Ok(file) => {
                let as_they_are = Measured::new();
                Ok(Some(Case { place, file, direct, row, as_they_are }))
            }
            // A file system may not have O_DIRECT.
            Err(error) if direct && !place.device => {
                self.note(format!("{}: {error:#}", row.name));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// What is left of a case, and its rows and figures.
    fn others(&mut self, case: Case<'_>) -> anyhow::Result<()> {
        // A thread of the kernel that submits spins long after the last submission: it goes last, alone, and after fio.
        let (thread, others): (Vec<Kind>, Vec<Kind>) = Kind::ALL
            .into_iter()
            .filter(|&kind| kind != Kind::DropIn)
            .partition(|&kind| kind == Kind::Setup2Thread);
        let mut measured = self.turns_of(&others, &case)?;
        let (first, second) = (case.beside(&case.as_they_are)?, case.beside(&measured)?);
        let polling = measured.values().any(|(polls, _)| *polls);
        let bound = self.bound(case.place, &second, polling);
        measured.append(&mut self.turns_of(&thread, &case)?);
        for kind in Kind::ALL {
            let (beside, from) = match kind {
                Kind::Kernel | Kind::DropIn => (&first, &case.as_they_are),
                _ => (&second, &measured),
            };
            if let Some((polls, windows)) = from.get(kind.name()) {
                self.add(beside, kind, windows);
                self.show(beside, kind.name(), *polls, windows);
            }
        }
        if let Some(windows) = bound {
            self.show(&second, fio::NAME, polling, &windows);
            if second.row.starts_with("direct") {
                let name = format!("fio_io_uring_over_aio_qd{}", second.depth);
                self.report.figure(name, second.ratios(&windows).rate);
            }
        }
        Ok(())
    }

    /// Rows and figures of a case that only what programs get as they are has a part in.
    fn as_they_are(&mut self, case: &Case<'_>) -> anyhow::Result<()> {
        let beside = case.beside(&case.as_they_are)?;
        for kind in Kind::AS_THEY_ARE {
            if let Some((polls, windows)) = case.as_they_are.get(kind.name()) {
                self.add(&beside, kind, windows);
                self.show(&beside, kind.name(), *polls, windows);
            }
        }
        Ok(())
    }

    /// Windows of some subjects, by turns.
    fn turns_of(&mut self, kinds: &[Kind], case: &Case<'_>) -> anyhow::Result<Measured> {
        let &Case { place, direct, ref file, ref row, .. } = case;
        let &Row { name: ref row, depth, list, eventfd } = row;
        let may_poll = direct && stage::has_poll_queues(&place.path);
        let mut loads = Vec::new();
        for &kind in kinds.iter().filter(|kind| direct || kind.takes_cached()) {
            match Subject::open(kind, file, depth, may_poll) {
                Ok(mut subject) => {
                    if eventfd {
                        subject.waits_by_eventfd()?;
                    }
                    if let Some(why) = subject.unpolled.as_ref().filter(|_| direct) {
                        self.note(format!("{row}: {} does not poll: {why}", kind.name()));
                    }
                    loads.push(Load::new(subject, depth, list, place.bytes));
                }
                Err(error) => self.note(format!("{row}: {}: {error:#}", kind.name())),
            }
        }
        let mut measured = Measured::new();
        for turn in 0..=self.turns {
            heed()?;
            for load in &mut loads {
                let window = load.window(self.window, turn)?;
                // The first warms up: caches, and how our library comes to know its program.
                if turn > 0 {
                    let new = || (load.polls(), Vec::new());
                    measured.entry(load.name()).or_insert_with(new).1.push(window);
                }
            }
        }
        Ok(measured)
    }

    /// fio's windows.
    fn bound(&mut self, place: &Place, case: &Windows, polling: bool) -> Option<Vec<Window>> {
        if !case.direct || !self.fio {
            return None;
        }
        let path = place.path.as_path();
        let (bytes, depth) = (place.bytes, case.depth);
        let fio = fio::Fio { path, bytes, depth, polling, core: self.core };
        let turns = if self.turns > 5 { 3 } else { 1 };
        let windows: anyhow::Result<Vec<Window>> =
            (0..turns).map(|_| fio.window(self.window)).collect();
        windows.map_err(|error| self.note(format!("{}: {error:#}", case.row))).ok()
    }

    fn note(&mut self, note: String) {
        if !self.report.machine.notes.contains(&note) {
            self.report.machine.notes.push(note);
        }
    }

    /// The figures of a subject.
    fn add(&mut self, case: &Windows, kind: Kind, windows: &[Window]) {
        let (row, depth) = (&case.row, case.depth);
        let submit = || median(windows.iter().map(|window| window.submit_ns));
        let Ratios { rate, cpu } = case.ratios(windows);
        let report = &mut self.report;
        if kind == Kind::DropIn {
            self.dropins += 1;
            if rate < self.worst.0 {
                self.worst = (rate, row.clone());
            }
            report.figure(format!("dropin_over_aio_{row}"), rate);
            match row.as_str() {
                "direct_qd1" => report.figure("dropin_cpu_saving_direct", 1.0 - cpu),
                "cached_qd1" => report.figure("dropin_cpu_saving_single", 1.0 - cpu),
                row if row.contains("_single_") => {
                    report.figure(format!("dropin_cpu_saving_{row}"), 1.0 - cpu);
                }
                _ => {}
            }
        }
        if !row.starts_with("direct_qd") {
            return;
        }
        match kind {
            Kind::Setup2 => {
                report.figure(format!("io_setup2_over_aio_qd{depth}"), rate);
                if depth == 1 {
                    report.figure("io_setup2_submit_ns", submit());
                }
            }
            Kind::Setup2Thread => {
                report.figure(format!("io_setup2_sqthread_over_aio_qd{depth}"), rate);
                if depth == 1 {
                    report.figure("io_setup2_sqthread_submit_ns", submit());
                }
            }
            Kind::Setup2Rings => {
                report.figure(format!("io_setup2_rings_over_aio_qd{depth}"), rate);
            }
            Kind::Bare => report.figure(format!("bare_over_aio_qd{depth}"), rate),
            Kind::Kernel if depth == 1 => report.figure("aio_submit_ns", submit()),
            _ => {}
        }
    }

    /// A row, with its line in the table and its bar.
    fn show(&mut self, case: &Windows, name: &str, polling: bool, windows: &[Window]) {
        let of = |value: fn(&Window) -> f64| median(windows.iter().map(value));
        let Ratios { rate, cpu } = case.ratios(windows);
        self.report.rows.push(json!({
            "row": case.row, "subject": name, "depth": case.depth, "direct": case.direct,
            "polled": polling,
            "iops": windows.iter().map(|window| window.iops).collect::<Vec<_>>(),
            "cpu_ns": windows.iter().map(|window| window.cpu_ns).collect::<Vec<_>>(),
            "submit_ns": windows.iter().map(|window| window.submit_ns).collect::<Vec<_>>(),
            "p50_ns": windows.iter().map(|window| window.p50_ns).collect::<Vec<_>>(),
        }));
        let submit = of(|window| window.submit_ns);
        self.table.push(vec![
            case.row.clone(),
            name.to_owned(),
            if polling { "yes" } else { "" }.to_owned(),
            format!("{:.0}", of(|window| window.iops)),
            format!("{rate:.2}"),
            format!("{:.0}", of(|window| window.cpu_ns)),
            format!("{cpu:.2}"),
            if submit.is_finite() { format!("{submit:.0}") } else { String::new() },
            format!("{:.1}", of(|window| window.p50_ns) / 1e3),
        ]);
        if case.row.starts_with("direct_qd") && name != KERNEL {
            let bars = &mut self.report.bars;
            let title = "rate, O_DIRECT, the kernel's AIO is 1";
            if bars.is_empty() {
                bars.push(Bars { title: title.into(), bars: Vec::new() });
            }
            bars[0].bars.push((format!("{name} qd{}", case.depth), rate, format!("{rate:.2}")));
        }
    }

    fn finish(&mut self, device: Option<&Place>, file: &Place) {
        if self.worst.0.is_finite() {
            self.report.figure("dropin_over_aio_min", self.worst.0);
            let of = self.dropins;
            self.note(format!("dropin_over_aio_min is that of {}, of {of} rows", self.worst.1));
        }
        self.report.tables.push(Table {
            title: format!(
                "4 KiB random reads from one core; direct: {}, cached: {}",
                device.map_or_else(|| "nothing".into(), Place::name),
                file.name()
            ),
            columns: vec![
                "case",
                "subject",
                "polled",
                "IOPS",
                "of kernel",
                "cpu ns",
                "of kernel",
                "submit ns",
                "p50 us",
            ],
            rows: std::mem::take(&mut self.table),
        });
    }
}

/// A subject's share of the kernel's.
struct Ratios {
    rate: f64,
    cpu: f64,
}

impl Windows {
    /// Window by window where both have as many: what was measured in one turn.
    fn ratios(&self, windows: &[Window]) -> Ratios {
        let of = |value: fn(&Window) -> f64| {
            if windows.len() == self.kernel.len() {
                return median(windows.iter().zip(&self.kernel).map(|(a, b)| value(a) / value(b)));
            }
            median(windows.iter().map(value)) / median(self.kernel.iter().map(value))
        };
        Ratios { rate: of(|window| window.iops), cpu: of(|window| window.cpu_ns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_smaller_than_usual_is_read_as_far_as_it_goes() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let bytes_of = |size: u64| {
            file.as_file().set_len(size).expect("it gets that size");
            Place::of_device(file.path().to_owned()).map(|place| place.bytes).ok()
        };
        assert_eq!(bytes_of(3 * BLOCK as u64 + 1), Some(3 * BLOCK));
        assert_eq!(bytes_of(2 * BYTES as u64), Some(BYTES));
        assert_eq!(bytes_of(BLOCK as u64 - 1), None, "less than one read");
    }
}
