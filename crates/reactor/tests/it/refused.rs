//! io_uring that is refused in part.

use crate::filter::refuse;
use reactor::{Config, Error, Reactor};
use uring::{Kind, RingOptions};

#[test]
fn a_further_ring_is_refused_as_the_first_was() {
    for call in [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register] {
        let thread = std::thread::spawn(move || {
            refuse(call, libc::EPERM);
            let reactor =
                Reactor::new(&Config { kind: Kind::Big, ..Config::default() }).expect("epoll");
            assert!(reactor.refusal().is_some() && !reactor.takes_commands());
            let further =
                reactor.command_ring(&RingOptions { kind: Kind::Big, ..RingOptions::default() });
            let Err(Error::Ring(refusal)) = further.map(drop) else { panic!("it was made") };
            assert!(refusal.is_refusal(), "{refusal}");
            let strict = Config { emulate: false, ..Config::default() };
            assert!(matches!(Reactor::new(&strict).map(drop), Err(Error::Ring(_))));
        });
        thread.join().expect("as it should be");
    }
}
