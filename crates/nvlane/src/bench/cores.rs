//! Which core runs what: one for the server, one for the client, as the figures demand.

use anyhow::{Context, bail};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

/// Niceness of what is measured, where it may be lowered.
const NICE: i32 = -15;

/// Whether anything here may come before other work on its core: not before that was said.
static MAY_PREFER: AtomicBool = AtomicBool::new(false);

/// Says whether what is measured may come before other work. It spins on both cores, so that little is left for
/// others then: only where its figures are worth that.
pub fn may_prefer(may: bool) {
    MAY_PREFER.store(may, Ordering::Relaxed);
}

/// Pins the calling thread to `core`.
pub fn pin(core: usize) -> io::Result<()> {
    pin_task(0, core)
}

/// Pins a thread of any process to `core`; 0 is the calling thread.
pub fn pin_task(task: libc::pid_t, core: usize) -> io::Result<()> {
    let set = set_of(core);
    // SAFETY: `set` is a complete cpu_set_t that outlives the call.
    let result =
        unsafe { libc::sched_setaffinity(task, size_of::<libc::cpu_set_t>(), &raw const set) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes a child, and whatever threads it starts, run on `core` only, and before other work there.
/// It is told to end when the calling thread does, so that a bench that is killed leaves no server.
pub fn pin_child(command: &mut Command, core: usize) -> &mut Command {
    // SAFETY: between fork and exec only prctl, sched_setaffinity and setpriority are called, which
    // are system calls without state in this process, and an atomic is read.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            prefer();
            pin(core)
        })
    }
}

/// Puts the calling thread before other work on its core, so that less of it gets between; this
/// changes nothing on a quiet machine. Returns whether that is allowed, here and by the system.
pub fn prefer() -> bool {
    if !MAY_PREFER.load(Ordering::Relaxed) {
        return false;
    }
    // SAFETY: setpriority takes numbers only; 0 means the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) == 0 }
}

/// Keeps a core from sleeping until it is dropped, by a thread that runs only where nothing else wants to.
///
/// The clock of an exact guest counts instructions, and goes on to the next timer where there are none. While a guest waits for the
/// machine around it (a file, an output), which other work may keep busy, that was seconds; so it is what it takes.
pub struct Awake {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Awake {
    pub fn keep(core: usize) -> io::Result<Awake> {
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let (sender, begun) = sync_channel(1);
        let thread = std::thread::Builder::new().name("awake".into()).spawn(move || {
            let ready = pin(core).and_then(|()| be_idle());
            let is_ready = ready.is_ok();
            let _ = sender.send(ready);
            while is_ready && !told.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })?;
        let awake = Awake { ends, thread: Some(thread) };
        begun.recv().map_err(io::Error::other)??;
        Ok(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Puts the calling thread behind all other work.
fn be_idle() -> io::Result<()> {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: `none` is a complete sched_param that outlives the call; 0 means the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Fails with one clear line when the two cores cannot be had.
pub fn require(server: usize, client: usize) -> anyhow::Result<()> {
    if server == client {
        bail!("server and client need a core each, both were told to use core {server}");
    }
    for core in [server, client] {
        std::thread::spawn(move || pin(core))
            .join()
            .expect("pinning does not panic")
            .with_context(|| {
                format!("core {core} cannot be used; see --server-core, --client-core")
            })?;
    }
    Ok(())
}

fn set_of(core: usize) -> libc::cpu_set_t {
    // SAFETY: cpu_set_t is plain bits, for which zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if core < libc::CPU_SETSIZE as usize {
        // SAFETY: `core` lies within the set, as just checked.
        unsafe { libc::CPU_SET(core, &mut set) };
    }
    set
}
