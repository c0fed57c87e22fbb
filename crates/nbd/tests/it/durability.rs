//! What FUA and NO_HOLE are to the volume: the reply to a client is the same with them and without. A loss of power is
//! not, nor are the holes.

use crate::client;

use client::*;
use double::Double;
use namespace::{Queue, Request};
use nbd::{Export, Server, ServerConfig};
use nvme::Command;
use nvme::opcode::io as opcode;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

const SIMPLE: Manners = Manners { structured: false, aligned: false, allocation: false };
const DONE: Reply = Reply::Data(vec![]);

/// FUA of Write and Write Zeroes (NVM 1.1, section 3.2.6 and 3.2.8: command dword 12, bit 30).
const FUA_BIT: u32 = 1 << 30;
/// Deallocate of Write Zeroes (NVM 1.1, section 3.2.8: command dword 12, bit 25).
const DEALLOCATE_BIT: u32 = 1 << 25;

/// Both commands of a pair are noted.
struct Recorder(Rc<dyn Queue>, Arc<Mutex<Vec<Command>>>);

impl Queue for Recorder {
    fn submit(&self, request: Box<Request>) {
        let second = request.fused.as_ref().map(|second| second.command);
        self.1.lock().unwrap().extend([request.command].into_iter().chain(second));
        self.0.submit(request);
    }

    fn forget(&self) {}
}

/// A client of a volume of 64 MiB in memory, and the commands that the volume is given.
struct Recorded {
    server: Server,
    client: Client,
    commands: Arc<Mutex<Vec<Command>>>,
}

impl Recorded {
    fn start() -> Recorded {
        let commands = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&commands);
        let memory = volume::open("mem:64M", &volume::OpenOptions::default()).unwrap();
        let recorded = Double::over(memory)
            .queues(move |queue, _| Rc::new(Recorder(queue, Arc::clone(&noted))));
        let namespace = Arc::new(recorded);
        let export = Export { name: String::new(), description: String::new(), namespace };
        let server = Server::start(&ServerConfig::default(), vec![export]).unwrap();
        let address = server.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        Recorded { server, client: Client::connect(address, "", SIMPLE), commands }
    }

    /// What the volume is given for one request that succeeds: opcode, and whether with FUA. Only Write Zeroes may
    /// deallocate by the way, which it does unless NO_HOLE is among `flags`.
    fn given(&mut self, kind: u16, flags: u16, offset: u64, length: u32) -> Vec<(u8, bool)> {
        let reply = match kind {
            WRITE => self.client.write(flags, offset, &vec![7; length as usize]),
            _ => self.client.ask(kind, flags, offset, length),
        };
        assert_eq!(reply, DONE);
        let commands = std::mem::take(&mut *self.commands.lock().unwrap());
        let has = |command: &Command, bit| command.cdw12.get() & bit != 0;
        for command in &commands {
            let makes_holes = command.opcode == opcode::WRITE_ZEROES && flags & NO_HOLE == 0;
            assert_eq!(has(command, DEALLOCATE_BIT), makes_holes, "{command:?}");
        }
        commands.iter().map(|command| (command.opcode, has(command, FUA_BIT))).collect()
    }
}

/// For each flag: FUA is on what writes, and on nothing without it.
fn with_and_without(test: impl Fn(&mut Recorded, u16, bool)) {
    let mut recorded = Recorded::start();
    for (flags, has_fua) in [(0, false), (FUA, true), (0, false)] {
        test(&mut recorded, flags, has_fua);
    }
    recorded.server.stop().unwrap();
}

#[test]
fn whole_blocks_are_written_with_fua_where_the_client_wants_it() {
    with_and_without(|recorded, flags, has_fua| {
        assert_eq!(recorded.given(WRITE, flags, 4096, 4096), [(opcode::WRITE, has_fua)]);
        // More than one command takes.
        let several = recorded.given(WRITE, flags, 0, 3 << 20);
        assert!(several.len() > 1, "{several:?}");
        assert!(several.iter().all(|command| *command == (opcode::WRITE, has_fua)), "{several:?}");
    });
}

#[test]
fn zeroes_are_written_with_fua_where_the_client_wants_it() {
    with_and_without(|recorded, flags, has_fua| {
        for flags in [flags, flags | NO_HOLE] {
            let zeroes = recorded.given(WRITE_ZEROES, flags, 0, 20 << 20);
            assert!(zeroes.len() > 1, "{zeroes:?}");
            let wanted = (opcode::WRITE_ZEROES, has_fua);
            assert!(zeroes.iter().all(|command| *command == wanted), "{zeroes:?}");
        }
    });
}

/// The block is read, compared with what was read, and written: the last makes it durable.
#[test]
fn parts_of_blocks_are_written_with_fua_where_the_client_wants_it() {
    with_and_without(|recorded, flags, has_fua| {
        let merge =
            |has_fua| [(opcode::READ, false), (opcode::COMPARE, false), (opcode::WRITE, has_fua)];
        for kind in [WRITE, WRITE_ZEROES] {
            assert_eq!(recorded.given(kind, flags, 100, 7), merge(has_fua), "{kind}");
        }
    });
}

/// Dataset Management has no FUA: a Flush follows what was deallocated last.
#[test]
fn a_trim_with_fua_is_flushed_after_its_last_range() {
    with_and_without(|recorded, flags, has_fua| {
        for length in [4096, 20 << 20] {
            let mut given = recorded.given(TRIM, flags, 0, length);
            if has_fua {
                assert_eq!(given.pop(), Some((opcode::FLUSH, false)), "{length}");
            }
            assert_eq!(given.len() > 1, length > 4096, "{given:?}");
            let wanted = (opcode::DATASET_MANAGEMENT, false);
            assert!(given.iter().all(|command| *command == wanted), "{given:?}");
        }
        // Not a block of it is whole: nothing is deallocated, and what came before is made durable all the same.
        let flush: &[(u8, bool)] = if has_fua { &[(opcode::FLUSH, false)] } else { &[] };
        assert_eq!(recorded.given(TRIM, flags, 100, 7), flush);
    });
}
