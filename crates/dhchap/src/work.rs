//! What takes long.

use crate::Group;
use std::fmt;
use zeroize::Zeroizing;

/// Exponentiations that an end of an exchange waits for: carry them out where nobody else waits.
#[derive(Clone, PartialEq, Eq)]
pub struct Work {
    /// Tells it from what was asked for earlier, of another exchange.
    pub(crate) id: u64,
    pub(crate) group: Group,
    pub(crate) exponent: Zeroizing<Vec<u8>>,
    /// The own public value is wanted.
    pub(crate) public: bool,
    /// The peer's, if the session key is wanted. It was found to be one of the group.
    pub(crate) peer: Option<Vec<u8>>,
}

/// What came of it.
#[derive(Default)]
pub struct Done {
    pub(crate) id: u64,
    pub(crate) public: Vec<u8>,
    pub(crate) shared: Zeroizing<Vec<u8>>,
}

impl Work {
    /// Carries it out: 0.7 to 60 ms.
    pub fn run(self) -> Done {
        let Work { id, group, exponent, public, peer } = self;
        Done {
            id,
            public: if public { group.public(&exponent) } else { Vec::new() },
            shared: peer.map(|peer| group.shared(&peer, &exponent)).unwrap_or_default(),
        }
    }
}

/// An identifier of something to be computed.
pub(crate) fn id(random: crate::Random) -> u64 {
    let mut bytes = [0; 8];
    random(&mut bytes);
    u64::from_le_bytes(bytes)
}

#[cfg(any(test, feature = "fuzzing"))]
impl Work {
    /// Nothing, instead of what it asks for.
    pub(crate) fn skip(self) -> Done {
        Done { id: self.id, ..Done::default() }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("group", &self.group).finish_non_exhaustive()
    }
}

impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Done").finish_non_exhaustive()
    }
}
