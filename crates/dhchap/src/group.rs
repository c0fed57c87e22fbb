//! The groups of Diffie and Hellman (RFC 7919), and their arithmetic.

use crate::Random;
use crate::primes;
use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd, Resize};
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// A group of Diffie and Hellman.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// None: the challenge alone.
    Null,
    /// 2048 bits.
    Ffdhe2048,
    /// 3072 bits.
    Ffdhe3072,
    /// 4096 bits.
    Ffdhe4096,
    /// 6144 bits.
    Ffdhe6144,
    /// 8192 bits.
    Ffdhe8192,
}

impl Group {
    /// All, in the order in which a controller takes them where nothing else is said: the cheapest that keeps a recorded exchange from
    /// being tried against guessed keys first, no group last.
    pub const ALL: [Group; 6] = [
        Group::Ffdhe2048,
        Group::Ffdhe3072,
        Group::Ffdhe4096,
        Group::Ffdhe6144,
        Group::Ffdhe8192,
        Group::Null,
    ];

    /// Its identifier on the wire.
    pub fn id(self) -> u8 {
        match self {
            Group::Null => 0,
            Group::Ffdhe2048 => 1,
            Group::Ffdhe3072 => 2,
            Group::Ffdhe4096 => 3,
            Group::Ffdhe6144 => 4,
            Group::Ffdhe8192 => 5,
        }
    }

    /// The group of that identifier.
    pub fn of_id(id: u8) -> Option<Group> {
        Group::ALL.into_iter().find(|group| group.id() == id)
    }

    /// Bytes of a public value; none without a group.
    pub fn bytes(self) -> usize {
        self.bits() as usize / 8
    }

    fn bits(self) -> u32 {
        match self {
            Group::Null => 0,
            Group::Ffdhe2048 => 2048,
            Group::Ffdhe3072 => 3072,
            Group::Ffdhe4096 => 4096,
            Group::Ffdhe6144 => 6144,
            Group::Ffdhe8192 => 8192,
        }
    }

    /// Bits of a secret exponent: RFC 7919, section 5.2, asks for 225 to 400, here in whole words.
    fn exponent_bits(self) -> u32 {
        match self {
            Group::Null => 0,
            Group::Ffdhe2048 => 256,
            Group::Ffdhe3072 => 320,
            Group::Ffdhe4096 | Group::Ffdhe6144 => 384,
            Group::Ffdhe8192 => 448,
        }
    }

    fn prime(self) -> Option<BoxedUint> {
        let hex = match self {
            Group::Null => return None,
            Group::Ffdhe2048 => primes::FFDHE2048,
            Group::Ffdhe3072 => primes::FFDHE3072,
            Group::Ffdhe4096 => primes::FFDHE4096,
            Group::Ffdhe6144 => primes::FFDHE6144,
            Group::Ffdhe8192 => primes::FFDHE8192,
        };
        BoxedUint::from_be_hex(hex, self.bits()).into_option()
    }

    #[cfg(test)]
    pub(crate) fn prime_bytes(self) -> Vec<u8> {
        self.prime().expect("a group with numbers").to_be_bytes().to_vec()
    }

    /// A secret exponent.
    pub(crate) fn exponent(self, random: Random) -> Zeroizing<Vec<u8>> {
        let mut exponent = Zeroizing::new(vec![0; self.exponent_bits() as usize / 8]);
        random(&mut exponent);
        // As long as it claims to be.
        if let Some(first) = exponent.first_mut() {
            *first |= 0x80;
        }
        exponent
    }

    /// Whether a peer's public value may be used: 1 < value < p - 1, which leaves none of the small subgroup
    /// (RFC 7919, section 5.1).
    pub(crate) fn accepts(self, value: &[u8]) -> bool {
        let (Some(prime), Some(value)) = (self.prime(), self.number(value)) else { return false };
        value > BoxedUint::one() && value < prime.wrapping_sub(BoxedUint::one())
    }

    /// `2^exponent`.
    pub(crate) fn public(self, exponent: &[u8]) -> Vec<u8> {
        let two = BoxedUint::from(2u8).resize(self.bits().max(64));
        self.power(two, exponent).to_vec()
    }

    /// `value^exponent`, of the length of the group.
    pub(crate) fn shared(self, value: &[u8], exponent: &[u8]) -> Zeroizing<Vec<u8>> {
        match self.number(value) {
            Some(value) => self.power(value, exponent),
            None => Zeroizing::default(),
        }
    }

    fn power(self, base: BoxedUint, exponent: &[u8]) -> Zeroizing<Vec<u8>> {
        let prime = self.prime().and_then(|prime| Odd::new(prime).into_option());
        let exponent = BoxedUint::from_be_slice(exponent, self.exponent_bits().max(64));
        let (Some(prime), Ok(exponent)) = (prime, exponent) else { return Zeroizing::default() };
        let exponent = Zeroizing::new(exponent);
        let params = BoxedMontyParams::new_vartime(prime);
        let power = Zeroizing::new(BoxedMontyForm::new(base, &params).pow(&exponent));
        let number = Zeroizing::new(power.retrieve());
        let bytes = Zeroizing::new(number.to_be_bytes());
        Zeroizing::new(bytes.to_vec())
    }

    fn number(self, bytes: &[u8]) -> Option<BoxedUint> {
        if bytes.len() != self.bytes() || bytes.is_empty() {
            return None;
        }
        BoxedUint::from_be_slice(bytes, self.bits()).ok()
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Group::Null => f.write_str("null"),
            group => write!(f, "ffdhe{}", group.bits()),
        }
    }
}

impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Group, String> {
        let found = Group::ALL.into_iter().find(|group| group.to_string() == text);
        found.ok_or_else(|| {
            format!(
                "{text:?} is none of null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144 and ffdhe8192"
            )
        })
    }
}
