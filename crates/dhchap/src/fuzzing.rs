//! The body of the fuzz target `dhchap` in fuzz/: both ends, fed whatever comes (`messages`), and each other's messages, which
//! somebody may touch (`pair`).

mod pair;

use crate::{Controller, ControllerConfig, Group, Hash, Host, HostConfig, Key, Sent, Step};
use std::sync::Arc;

/// The transaction of the host; the seeds name it.
const TRANSACTION: u16 = 0x4142;

/// The same bytes are messages, and a script of what becomes of right ones.
pub fn fuzz(input: &[u8]) {
    messages(input);
    pair::exchanges(input);
}

/// Feeds `input`, cut into messages by lengths that it tells, to a controller and to a host that never meet: whatever they are
/// sent, they answer within bounds, and nobody has proved anything. Nothing is really computed, since that takes long.
fn messages(mut input: &[u8]) {
    let (mut controller, mut host) = ends();
    let mut random = |bytes: &mut [u8]| bytes.fill(0x5a);
    while let [length, rest @ ..] = input {
        let (message, rest) = rest.split_at(rest.len().min(usize::from(*length) * 5));
        input = rest;
        if let Sent::Work(work) = controller.sent(message, &mut random) {
            controller.computed(work.skip());
        }
        if !length.is_multiple_of(3) {
            let room = usize::from(*length) * 16 + crate::MESSAGE_BYTES_MIN;
            let fetched = controller.fetch(room).expect("nothing is being computed");
            assert!(fetched.len() <= room.min(crate::MESSAGE_BYTES_MAX));
        }
        let step = match host.received(message, &mut random) {
            Step::Work(work) => host.computed(work.skip(), &mut random),
            step => step,
        };
        match step {
            Step::Send(answer) | Step::Failed(_, Some(answer)) => {
                assert!(answer.len() <= crate::MESSAGE_BYTES_MAX);
            }
            Step::Failed(_, None) => {}
            Step::Proven(_) => panic!("nobody has proved anything to the host"),
            Step::Work(_) => panic!("it was carried out"),
        }
        assert!(!controller.is_proven() && controller.agreed().is_none());
    }
}

fn ends() -> (Controller, Host) {
    let key = |byte: u8| Arc::new(Key::generate(None, &mut |bytes: &mut [u8]| bytes.fill(byte)));
    let (host_nqn, subsystem_nqn) = ("nqn.2026-11.org.example:host", "nqn.2026-11.org.example:a");
    let controller = Controller::new(ControllerConfig {
        host_nqn: host_nqn.into(),
        subsystem_nqn: subsystem_nqn.into(),
        host_keys: [key(1)].into(),
        controller_key: Some(key(2)),
        hashes: Hash::ALL.to_vec(),
        groups: Group::ALL.to_vec(),
    });
    let host = HostConfig {
        host_nqn: host_nqn.into(),
        subsystem_nqn: subsystem_nqn.into(),
        host_key: key(1),
        controller_keys: Some([key(2)].into()),
    };
    (controller, Host::new(host, TRANSACTION))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;

    #[test]
    fn seeds() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/dhchap");
        let mut count = 0;
        for entry in folder.read_dir().expect("the seeds are committed") {
            fuzz(&std::fs::read(entry.expect("a readable folder").path()).expect("a file"));
            count += 1;
        }
        assert!(count > 0, "no seeds in {}", folder.display());
    }

    proptest! {
        #[test]
        fn any_messages(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            fuzz(&bytes);
        }
    }
}
