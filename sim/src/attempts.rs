//! Commands on their way.

use multipath::{Group, Token};
use std::ops::{Index, IndexMut};

/// What a user wants done.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// On which core.
    pub core: u32,
    /// Read or write.
    pub group: Group,
    /// Size.
    pub bytes: u32,
    /// When he asked for it.
    pub begun_ns: u64,
}

/// A command on one path.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// What for.
    pub wish: Wish,
    /// Of the selector.
    pub token: Token,
    /// Nobody asked for it.
    pub is_probe: bool,
    /// The host has given it up; whatever is still under way is to be thrown away.
    pub is_abandoned: bool,
    /// Nothing is under way any more, and the host does not know.
    pub is_gone: bool,
    /// It is not sent: it waits for its turn to be sent again.
    pub is_waiting: bool,
}

/// All attempts, by number. Numbers are used again.
#[derive(Debug, Default)]
pub struct Attempts {
    slots: Vec<Option<Attempt>>,
    free: Vec<u32>,
}

impl Attempt {
    /// One that is sent.
    pub fn new(wish: Wish, token: Token, is_probe: bool) -> Attempt {
        let (is_abandoned, is_gone, is_waiting) = (false, false, false);
        Attempt { wish, token, is_probe, is_abandoned, is_gone, is_waiting }
    }

    /// One that waits to be sent again.
    pub fn waiting(wish: Wish, token: Token) -> Attempt {
        Attempt { is_waiting: true, ..Attempt::new(wish, token, false) }
    }
}

impl Attempts {
    /// Adds one.
    pub fn insert(&mut self, attempt: Attempt) -> u32 {
        if let Some(number) = self.free.pop() {
            self.slots[number as usize] = Some(attempt);
            return number;
        }
        self.slots.push(Some(attempt));
        self.slots.len() as u32 - 1
    }

    /// Takes one out.
    ///
    /// # Panics
    /// If there is none of this number.
    pub fn remove(&mut self, number: u32) -> Attempt {
        self.free.push(number);
        self.slots[number as usize].take().expect("an attempt is removed once")
    }

    /// Those that a host believes to be in flight to `port`, oldest slot first.
    pub fn of_port(&self, port: usize) -> Vec<u32> {
        let belongs = |attempt: &Attempt| {
            attempt.token.path() == port && !attempt.is_abandoned && !attempt.is_waiting
        };
        let numbers = (0..).zip(&self.slots);
        numbers
            .filter(|(_, it)| it.as_ref().is_some_and(belongs))
            .map(|(number, _)| number)
            .collect()
    }
}

impl Index<u32> for Attempts {
    type Output = Attempt;

    fn index(&self, number: u32) -> &Attempt {
        self.slots[number as usize].as_ref().expect("the attempt exists")
    }
}

impl IndexMut<u32> for Attempts {
    fn index_mut(&mut self, number: u32) -> &mut Attempt {
        self.slots[number as usize].as_mut().expect("the attempt exists")
    }
}
