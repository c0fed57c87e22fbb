//! io_uring: whether it is allowed at all, and what of it.

use super::machine::MORE_LOCKED_MEMORY;
use super::{Check, Outcome};
use reactor::{Config, Reactor};
use uring::{Error, Kind, Refusal, Ring, RingOptions, SqPoll, VARIABLE, Wait, entry};

/// Pool whose registration is tried: as much as a reactor has.
const POOL_BYTES: usize = 32 << 20;

/// The kernel thread may stay idle this long before it sleeps: it is not used.
const IDLE_MS: u32 = 1;

pub fn check(checks: &mut Vec<Check>) {
    let plain = RingOptions { entries: 8, ..RingOptions::default() };
    let (starts, outcome) = io_uring(&plain);
    let check = if starts { Check::optional } else { Check::needed };
    checks.push(check("io_uring", "io_uring", outcome));
    checks.push(Check::optional("registered_buffers", "registered buffers", buffers()));
    checks.push(Check::optional("registered_files", "registered files", files(&plain)));
    checks.push(Check::optional("big_entries", "big entries", big(&plain)));
    checks.push(Check::optional("mixed_entries", "mixed entries", mixed(&plain)));
    let polled = RingOptions { iopoll: true, ..plain };
    checks.push(Check::optional("iopoll", "polled completions", made(&polled, "IOPOLL")));
    let hybrid = RingOptions { hybrid_iopoll: true, ..polled };
    checks.push(Check::optional("hybrid_iopoll", "hybrid polling", made(&hybrid, "HYBRID_IOPOLL")));
    let thread = RingOptions { sqpoll: Some(SqPoll { cpu: None, idle_ms: IDLE_MS }), ..plain };
    checks.push(Check::optional("sqpoll", "kernel submission thread", made(&thread, "SQPOLL")));
}

/// Sets up a ring, and has it do something: a filter may allow the one and refuse the other. Without it nvlane does what it can.
/// Whether it can is said as well.
fn io_uring(options: &RingOptions) -> (bool, Outcome) {
    let tried = works(options);
    let starts = Reactor::new(&Config::default()).is_ok();
    let outcome = match &tried {
        Outcome { has: false, found, .. } if starts => {
            let instead = "epoll and threads do its work until then: files are slower, no /dev/ngXnY, no ublk";
            Outcome { found: format!("{found}. {instead}"), ..tried }
        }
        _ => tried,
    };
    (starts, outcome)
}

fn works(options: &RingOptions) -> Outcome {
    let mut ring = match Ring::with_options(options) {
        Ok(ring) => ring,
        Err(error) => return refused(&error),
    };
    // SAFETY: a no-operation points to nothing.
    let pushed = unsafe { ring.push(&entry::nop()) };
    if pushed.is_err() {
        return Outcome::never("a new ring has no room");
    }
    if let Err(source) = ring.enter(Wait::Forever) {
        return refused(&Error::explain("io_uring_enter", source));
    }
    let setup = ring.setup();
    let parts = [
        (setup.defer_taskrun, "DEFER_TASKRUN"),
        (setup.single_issuer, "SINGLE_ISSUER"),
        (setup.no_sqarray, "NO_SQARRAY"),
        (setup.registered_ring, "registered ring"),
    ];
    let granted: Vec<&str> = parts.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
    Outcome::yes(format!("works; granted: {}", granted.join(", ")))
}

/// What a refusal is told as, with the command that mends it where there is one.
pub fn refused(error: &Error) -> Outcome {
    let found = error.to_string();
    let Error::Refused { refusal, .. } = error else { return Outcome::never(found) };
    match refusal {
        Refusal::Sysctl(_) => Outcome::no(found, "sudo sysctl -w kernel.io_uring_disabled=0"),
        Refusal::Seccomp => Outcome::no(
            found,
            "podman run --security-opt seccomp=PROFILE.json ...   (docker likewise; docs/serve.md says what is in \
             PROFILE.json; SystemCallFilter=@aio besides what is there in a unit)",
        ),
        Refusal::LockedMemory => Outcome::no(found, MORE_LOCKED_MEMORY),
        Refusal::Environment => Outcome::no(found, format!("unset {VARIABLE}")),
        Refusal::SecurityModule | Refusal::NotBuilt => Outcome::never(found),
    }
}

/// A ring with these options.
fn made(options: &RingOptions, name: &str) -> Outcome {
    match Ring::with_options(options) {
        Ok(_) => Outcome::yes(format!("a ring with IORING_SETUP_{name} was set up")),
        Err(error @ Error::Refused { .. }) => refused(&error),
        Err(error) => Outcome::never(error.to_string()),
    }
}

fn big(plain: &RingOptions) -> Outcome {
    match Ring::with_options(&RingOptions { kind: Kind::Big, ..*plain }) {
        Ok(ring) if ring.supports(uring::code::UringCmd80::CODE) => {
            Outcome::yes("rings with entries of 128 bytes take NVMe commands")
        }
        Ok(_) => {
            Outcome::never("this kernel's io_uring has no IORING_OP_URING_CMD: no passthrough")
        }
        Err(error @ Error::Refused { .. }) => refused(&error),
        Err(error) => Outcome::never(error.to_string()),
    }
}

fn mixed(plain: &RingOptions) -> Outcome {
    match Ring::with_options(&RingOptions { kind: Kind::Mixed, ..*plain }) {
        Ok(ring) if ring.setup().kind == Kind::Mixed => {
            Outcome::yes("NVMe commands and small entries share a ring")
        }
        Ok(_) => Outcome::never(
            "the kernel has no rings with entries of both sizes: every entry of a ring that takes NVMe \
             commands is big then",
        ),
        Err(error @ Error::Refused { .. }) => refused(&error),
        Err(error) => Outcome::never(error.to_string()),
    }
}

fn files(plain: &RingOptions) -> Outcome {
    let tried = Ring::with_options(plain).map(|mut ring| ring.register_files(1));
    match tried {
        Ok(Ok(())) => Outcome::yes("a table of files was registered"),
        Ok(Err(error)) => Outcome::no(
            format!("registering a table of files was refused: {error}"),
            "sudo prlimit --pid $$ --nofile=65536:65536   (LimitNOFILE=65536 in a unit)",
        ),
        Err(error) => refused(&error),
    }
}

/// Registers a reactor's whole pool, buffer by buffer.
fn buffers() -> Outcome {
    let config = Config { buffer_bytes: POOL_BYTES, emulate: false, ..Config::default() };
    let reactor = match Reactor::new(&config) {
        Ok(reactor) => reactor,
        Err(error) => return Outcome::never(error.to_string()),
    };
    let pool = reactor.buffers();
    let mut held = Vec::new();
    while let Some(buffer) = pool.allocate(reactor::BufferPool::buffer_len_max()) {
        buffer.ensure_registered();
        held.push(buffer);
    }
    match pool.refusal() {
        None => {
            Outcome::yes(format!("all {} MiB of a pool were registered", pool.registered() >> 20))
        }
        Some(refusal) => Outcome::no(refusal, MORE_LOCKED_MEMORY),
    }
}
