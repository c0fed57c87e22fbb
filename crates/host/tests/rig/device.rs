//! A volume that takes any command, as an NVMe device with a vendor's own does, and notes what it was sent.

use super::pattern;
use double::Double;
use namespace::null::Null;
use namespace::{Data, Namespace, Queue, Request};
use nvme::limits::{Commands, CopyLimits, Passthrough};
use nvme::{Command, Limits, Status};
use reactor::{Complete, Reactor};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// More than 32 bits, and none of them by chance.
pub const RESULT: u64 = 0xfedc_ba98_7654_3210;

/// A device with commands of its own, which notes what it is sent. CDW15 is the status to answer with,
/// CDW14 for how many milliseconds to think first.
#[derive(Debug, Default)]
pub struct Device {
    seen: Mutex<Vec<(bool, Command, Vec<u8>)>>,
}

impl Device {
    pub fn volume(self: &Arc<Device>) -> Arc<dyn Namespace> {
        let device = Arc::clone(self);
        let volume = Double::over(Null::open(32 << 20, 9, None).expect("a volume"))
            .limited(|limits| Limits {
                commands: Commands { compare: true, ..Commands::default() },
                copy: CopyLimits::NONE,
                passthrough: Passthrough::ALL,
                lends_reads: false,
                immediate: false,
                ..limits
            })
            .queues(move |_, reactor| {
                let (device, reactor) = (Arc::clone(&device), Rc::clone(reactor));
                Rc::new(DeviceQueue { device, reactor })
            });
        Arc::new(volume)
    }

    /// What it was sent: whether by the admin queue, the command, its data.
    pub fn seen(&self) -> MutexGuard<'_, Vec<(bool, Command, Vec<u8>)>> {
        self.seen.lock().expect("no panic")
    }
}

struct DeviceQueue {
    device: Arc<Device>,
    reactor: Rc<Reactor>,
}

/// Completes a request after it has thought.
struct Thinking;

impl Complete for Thinking {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        // SAFETY: `carry_out` made the token from a box and gave it away.
        unsafe { Box::from_raw(token as *mut Request) }.complete();
    }
}

impl DeviceQueue {
    fn carry_out(&self, mut request: Box<Request>, admin: bool) {
        let mut data = Vec::new();
        if let Data::Buffer(buffer) = &mut request.data {
            if request.command.opcode & 3 == 1 {
                data = buffer.as_slice().to_vec();
            } else {
                let answer = pattern(7, buffer.len());
                buffer.as_mut_slice().copy_from_slice(&answer);
            }
        }
        self.device.seen().push((admin, request.command, data));
        request.status = Status(request.command.cdw15.get() as u16);
        request.result = if request.status.is_success() { RESULT } else { 0 };
        match u64::from(request.command.cdw14.get()) {
            0 => request.complete(),
            thought_ms => {
                let token = Box::into_raw(request) as u64;
                let at = Instant::now() + Duration::from_millis(thought_ms);
                self.reactor.timer(at, Rc::new(Thinking), token);
            }
        }
    }
}

impl Queue for DeviceQueue {
    fn submit(&self, request: Box<Request>) {
        self.carry_out(request, false);
    }

    fn submit_admin(&self, request: Box<Request>) {
        self.carry_out(request, true);
    }

    fn forget(&self) {}
}

/// A vendor's command with something in every dword but those that [`Device`] looks at.
pub fn vendor(opcode: u8) -> Command {
    Command {
        opcode,
        nsid: 1.into(),
        cdw2: 2.into(),
        cdw3: 3.into(),
        cdw10: 0xa000_000a.into(),
        cdw11: 11.into(),
        cdw12: 12.into(),
        cdw13: 13.into(),
        ..Command::default()
    }
}
