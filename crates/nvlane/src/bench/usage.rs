//! What a process costs: CPU time, context switches, system calls, memory.
//!
//! CPU time is the process's own clock (`clock_getcpuclockid`), which is exact to the moment of
//! reading, unlike `/proc/PID/stat`. Context switches are summed over `/proc/PID/task/*/status`.
//! System calls are counted by the `raw_syscalls:sys_enter` tracepoint, one `perf_event_open`
//! counter per thread; since an armed tracepoint slows each call down, they are counted in windows
//! of their own and never in those that give rates and latencies.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::FromRawFd;
use std::time::Duration;

/// What had been used up at one moment; differences are what counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// CPU time, user and system, of all threads.
    pub cpu: Duration,
    /// Time that threads were ready to run while their core did something else.
    pub waited: Duration,
    /// Voluntary and involuntary context switches.
    pub switches: u64,
    /// System calls, while they are counted.
    pub system_calls: u64,
}

impl Usage {
    /// What was used since `earlier`.
    pub fn since(self, earlier: Usage) -> Usage {
        Usage {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            waited: self.waited.saturating_sub(earlier.waited),
            switches: self.switches.saturating_sub(earlier.switches),
            system_calls: self.system_calls.saturating_sub(earlier.system_calls),
        }
    }
}

/// A process under observation.
pub struct Observed {
    pid: u32,
    clock: libc::clockid_t,
    counters: Vec<File>,
}

impl Observed {
    /// Observes `pid`, which must exist.
    pub fn new(pid: u32) -> io::Result<Observed> {
        let mut clock = 0;
        // SAFETY: `clock` is a valid place for the answer.
        match unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &raw mut clock) } {
            0 => Ok(Observed { pid, clock, counters: Vec::new() }),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }

    /// What it has used until now.
    pub fn usage(&self) -> io::Result<Usage> {
        let mut usage = Usage { cpu: clock_value(self.clock)?, ..Usage::default() };
        for task in self.tasks()? {
            // A thread may end between the listing and the reading.
            let Ok(status) =
                std::fs::read_to_string(format!("/proc/{}/task/{task}/status", self.pid))
            else {
                continue;
            };
            usage.switches += status
                .lines()
                .filter(|line| line.contains("voluntary_ctxt_switches"))
                .filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok())
                .sum::<u64>();
            usage.waited += waited(&format!("/proc/{}/task/{task}/schedstat", self.pid));
        }
        for mut counter in &self.counters {
            let mut value = [0; 8];
            counter.read_exact(&mut value)?;
            usage.system_calls += u64::from_ne_bytes(value);
        }
        Ok(usage)
    }

    /// Starts to count system calls in all present threads, until [`Observed::stop_counting`].
    pub fn count_system_calls(&mut self) -> io::Result<()> {
        let tracepoint = tracepoint_id()?;
        self.counters.clear();
        for task in self.tasks()? {
            self.counters.push(open_counter(tracepoint, task)?);
        }
        Ok(())
    }

    /// Stops counting system calls.
    pub fn stop_counting(&mut self) {
        self.counters.clear();
    }

    /// Resident memory in bytes (VmRSS).
    pub fn resident_bytes(&self) -> io::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        status
            .lines()
            .find_map(|line| {
                line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok()
            })
            .map(|kib| kib * 1024)
            .ok_or_else(|| io::Error::other(format!("/proc/{}/status has no VmRSS", self.pid)))
    }

    fn tasks(&self) -> io::Result<Vec<i32>> {
        Ok(std::fs::read_dir(format!("/proc/{}/task", self.pid))?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect())
    }
}

/// CPU time of the calling thread until now.
pub fn thread_clock() -> io::Result<Duration> {
    clock_value(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time and context switches of the calling thread; system calls are its own to count.
pub fn of_this_thread() -> io::Result<Usage> {
    // SAFETY: rusage is plain numbers, and a valid place for the answer.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    if unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Usage {
        cpu: clock_value(libc::CLOCK_THREAD_CPUTIME_ID)?,
        waited: waited("/proc/thread-self/schedstat"),
        switches: (usage.ru_nvcsw + usage.ru_nivcsw) as u64,
        system_calls: 0,
    })
}

/// CPU time of another thread of this process.
pub fn of_own_thread(task: libc::pid_t) -> io::Result<Usage> {
    // The kernel's encoding of a thread's scheduler clock: MAKE_THREAD_CPUCLOCK(tid, CPUCLOCK_SCHED)
    // in linux/posix-timers_types.h.
    const SCHEDULED: libc::clockid_t = 2;
    const PER_THREAD: libc::clockid_t = 4;
    Ok(Usage {
        cpu: clock_value((!task << 3) | SCHEDULED | PER_THREAD)?,
        waited: waited(&format!("/proc/self/task/{task}/schedstat")),
        ..Usage::default()
    })
}

/// As [`of_this_thread`], with the threads of the kernel that submit for this process (SQPOLL): what they do for it is
/// what a system call would.
pub fn with_submitters() -> io::Result<Usage> {
    let mut usage = of_this_thread()?;
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?;
        // One may have ended by now.
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let number = task.file_name().to_str().and_then(|number| number.parse().ok());
        if name.starts_with("iou-sqp-")
            && let Some(number) = number
            && let Ok(submitter) = of_own_thread(number)
        {
            usage.cpu += submitter.cpu;
            usage.waited += submitter.waited;
        }
    }
    Ok(usage)
}

/// The second number of a `schedstat`: nanoseconds on a run queue. Nothing where the kernel does
/// not keep it, or the thread has ended.
fn waited(path: &str) -> Duration {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let nanoseconds = text.split_whitespace().nth(1).and_then(|number| number.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

fn clock_value(clock: libc::clockid_t) -> io::Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// The number of the tracepoint, mounting tracefs as `perf` does where nobody has.
fn tracepoint_id() -> io::Result<u64> {
    const ID: &str = "/sys/kernel/tracing/events/raw_syscalls/sys_enter/id";
    let read = || std::fs::read_to_string(ID);
    let text = read().or_else(|error| {
        // SAFETY: four valid C strings and no data; mounting has no effect on this program's memory.
        let mounted = unsafe {
            libc::mount(
                c"tracefs".as_ptr(),
                c"/sys/kernel/tracing".as_ptr(),
                c"tracefs".as_ptr(),
                0,
                std::ptr::null(),
            )
        };
        if mounted == 0 { read() } else { Err(error) }
    })?;
    text.trim().parse().map_err(io::Error::other)
}

/// `struct perf_event_attr` of linux/perf_event.h, first published size (PERF_ATTR_SIZE_VER0).
#[repr(C)]
#[derive(Default)]
struct EventAttributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
}
const _: () = assert!(size_of::<EventAttributes>() == 64);

fn open_counter(tracepoint: u64, task: i32) -> io::Result<File> {
    const TYPE_TRACEPOINT: u32 = 2;
    let attributes = EventAttributes {
        kind: TYPE_TRACEPOINT,
        size: size_of::<EventAttributes>() as u32,
        config: tracepoint,
        ..EventAttributes::default()
    };
    // SAFETY: `attributes` is a complete structure of the size it names; the rest are numbers.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attributes, task, -1, -1, 0u64)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor, and nobody else knows it.
    Ok(unsafe { File::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
    use std::time::Instant;

    /// How often another process is woken.
    const TURNS: u64 = 100;

    /// A process that sleeps until it is told something, and says it again: in each turn it reads,
    /// writes, and is switched away from.
    struct Echo {
        child: Child,
        told: ChildStdin,
        said: ChildStdout,
    }

    impl Echo {
        fn start() -> Echo {
            let mut command = Command::new("cat");
            let mut child =
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("cat");
            let (told, said) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
            let mut echo = Echo { child, told, said };
            // What it does at first is over then.
            echo.turn();
            echo
        }

        fn turn(&mut self) {
            self.told.write_all(b"x").unwrap();
            let mut said = [0];
            self.said.read_exact(&mut said).unwrap();
            let end = Instant::now() + Duration::from_secs(60);
            while !self.sleeps() {
                assert!(Instant::now() < end, "it does not sleep");
                std::thread::yield_now();
            }
        }

        fn sleeps(&self) -> bool {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
            stat.contains(" (cat) S ")
        }

        fn observed(&self) -> Observed {
            Observed::new(self.child.id()).unwrap()
        }
    }

    impl Drop for Echo {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    #[test]
    fn a_process_that_sleeps_again_and_again_is_switched_away_from_as_often() {
        let mut echo = Echo::start();
        let observed = echo.observed();
        let before = observed.usage().unwrap();
        // It may be woken while it is about to sleep, and goes on then: not every time.
        for _ in 0..2 * TURNS {
            echo.turn();
        }
        let used = observed.usage().unwrap().since(before);
        assert!(used.switches >= TURNS, "{used:?}");
        assert_eq!(used.system_calls, 0, "nobody counts them");
    }

    #[test]
    fn system_calls_of_another_process_are_counted_when_that_was_asked_for() {
        let mut echo = Echo::start();
        let mut observed = echo.observed();
        if let Err(error) = observed.count_system_calls() {
            #[expect(clippy::print_stdout, reason = "whoever runs the tests is told")]
            return println!("not checked: system calls cannot be counted here: {error}");
        }
        let before = observed.usage().unwrap();
        for _ in 0..TURNS {
            echo.turn();
        }
        let used = observed.usage().unwrap().since(before);
        assert!(used.system_calls >= TURNS, "{used:?}");
        // One that does nothing makes none.
        let idle = observed.usage().unwrap();
        assert_eq!(observed.usage().unwrap().since(idle).system_calls, 0);
        observed.stop_counting();
        assert_eq!(observed.usage().unwrap().system_calls, 0);
    }

    #[test]
    fn a_busy_process_uses_cpu_time() {
        let observed = Observed::new(std::process::id()).unwrap();
        let before = observed.usage().unwrap();
        // By the thread's clock: others may have the core for much of the time.
        let end = thread_clock().unwrap() + Duration::from_millis(10);
        while thread_clock().unwrap() < end {}
        let used = observed.usage().unwrap().since(before);
        assert!(used.cpu >= Duration::from_millis(10), "{used:?}");
        assert!(observed.resident_bytes().unwrap() > 4096);
    }

    #[test]
    fn what_a_submitting_thread_uses_counts() {
        let sqpoll = Some(uring::SqPoll { cpu: None, idle_ms: 10_000 });
        let options = uring::RingOptions { sqpoll, ..uring::RingOptions::default() };
        let _ring = uring::Ring::with_options(&options).unwrap();
        let before = with_submitters().unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        // It spins, and this thread does nothing.
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let all = with_submitters().unwrap().since(before).cpu;
            if all >= Duration::from_millis(50) {
                break;
            }
            assert!(Instant::now() < end, "{all:?}");
        }
    }

    #[test]
    fn a_sleeping_thread_is_switched_away_from() {
        // A timer that fires before the thread has let go of its core lets it go on: not every time.
        let switched = (0..20).any(|_| {
            let before = of_this_thread().unwrap();
            std::thread::sleep(Duration::from_millis(5));
            of_this_thread().unwrap().since(before).switches >= 1
        });
        assert!(switched, "none of twenty sleeps was counted");
    }
}
