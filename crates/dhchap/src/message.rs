//! The messages (NVMe Base 2.1, section 8.3.4): their fixed parts as structures, what follows as slices.

use crate::{Group, Hash};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// AUTH_TYPE of messages that all protocols have.
const COMMON: u8 = 0;
/// AUTH_TYPE of DH-HMAC-CHAP's.
const DHCHAP: u8 = 1;

/// The protocol in a descriptor of Negotiate.
const PROTOCOL: u8 = 1;
/// Where the groups begin in its list.
const GROUPS_AT: usize = 30;

/// Why authentication has failed (Reason Code Explanation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer does not know its key.
    Failed,
    /// No protocol in common.
    Protocol,
    /// A secure channel is wanted and not there, or the other way round.
    SecureChannel,
    /// No hash function in common.
    Hash,
    /// No group in common, or a public value that is not of it.
    Group,
    /// A message that cannot be.
    Payload,
    /// A message out of turn.
    Message,
    /// Any other explanation.
    Other(u8),
}

impl Failure {
    pub(crate) fn code(self) -> u8 {
        match self {
            Failure::Failed => 1,
            Failure::Protocol => 2,
            Failure::SecureChannel => 3,
            Failure::Hash => 4,
            Failure::Group => 5,
            Failure::Payload => 6,
            Failure::Message => 7,
            Failure::Other(code) => code,
        }
    }

    fn of_code(code: u8) -> Failure {
        match code {
            1 => Failure::Failed,
            2 => Failure::Protocol,
            3 => Failure::SecureChannel,
            4 => Failure::Hash,
            5 => Failure::Group,
            6 => Failure::Payload,
            7 => Failure::Message,
            code => Failure::Other(code),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Failure::Failed => "the keys differ",
            Failure::Protocol => "no authentication protocol in common",
            Failure::SecureChannel => "no agreement on a secure channel",
            Failure::Hash => "no hash function in common",
            Failure::Group => "no Diffie-Hellman group in common",
            Failure::Payload => "an authentication message that cannot be",
            Failure::Message => "an authentication message out of turn",
            Failure::Other(code) => return write!(f, "authentication failed, code {code}"),
        })
    }
}

/// How every message begins.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct Head {
    kind: u8,
    id: u8,
    reserved2: U16,
    transaction: U16,
}

const NEGOTIATE: (u8, u8) = (COMMON, 0x00);
const CHALLENGE: (u8, u8) = (DHCHAP, 0x01);
const REPLY: (u8, u8) = (DHCHAP, 0x02);
const SUCCESS1: (u8, u8) = (DHCHAP, 0x03);
const SUCCESS2: (u8, u8) = (DHCHAP, 0x04);
const FAILURE2: (u8, u8) = (COMMON, 0xf0);
const FAILURE1: (u8, u8) = (COMMON, 0xf1);

fn head(name: (u8, u8), transaction: u16) -> Head {
    Head { kind: name.0, id: name.1, reserved2: 0.into(), transaction: transaction.into() }
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct NegotiateFixed {
    head: Head,
    secure_channel: u8,
    descriptors: u8,
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct Descriptor {
    protocol: u8,
    reserved1: u8,
    hashes: u8,
    groups: u8,
    list: [u8; 60],
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct ChallengeFixed {
    head: Head,
    hash_bytes: u8,
    reserved7: u8,
    hash: u8,
    group: u8,
    public_bytes: U16,
    sequence: U32,
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct ReplyFixed {
    head: Head,
    hash_bytes: u8,
    reserved7: u8,
    challenges: u8,
    reserved9: u8,
    public_bytes: U16,
    sequence: U32,
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct Success1Fixed {
    head: Head,
    hash_bytes: u8,
    reserved7: u8,
    responds: u8,
    reserved9: [u8; 7],
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct Success2Fixed {
    head: Head,
    reserved6: [u8; 10],
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct FailureFixed {
    head: Head,
    reason: u8,
    explanation: u8,
}

/// A message, as it was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    Negotiate(Negotiate),
    Challenge(Challenge<'a>),
    Reply(Reply<'a>),
    Success1 { response: Option<&'a [u8]>, hash_bytes: usize },
    Success2,
    Failure1(Failure),
    Failure2(Failure),
}

/// What a host can do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Negotiate {
    pub secure_channel: bool,
    /// DH-HMAC-CHAP is among the protocols; what else is there is let go.
    pub protocol: bool,
    pub hashes: Vec<u8>,
    pub groups: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Challenge<'a> {
    pub hash: u8,
    pub group: u8,
    pub sequence: u32,
    pub challenge: &'a [u8],
    pub public: &'a [u8],
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply<'a> {
    pub response: &'a [u8],
    pub sequence: u32,
    pub challenge: Option<&'a [u8]>,
    pub public: &'a [u8],
}

/// Reads a message and its transaction; bytes after it are let go.
pub(crate) fn read(bytes: &[u8]) -> Result<(u16, Message<'_>), Failure> {
    let (head, _) = Head::ref_from_prefix(bytes).map_err(|_| Failure::Payload)?;
    let message = match (head.kind, head.id) {
        NEGOTIATE => Message::Negotiate(read_negotiate(bytes)?),
        CHALLENGE => Message::Challenge(read_challenge(bytes)?),
        REPLY => Message::Reply(read_reply(bytes)?),
        SUCCESS1 => read_success1(bytes)?,
        SUCCESS2 => {
            fixed::<Success2Fixed>(bytes)?;
            Message::Success2
        }
        FAILURE1 => Message::Failure1(read_failure(bytes)?),
        FAILURE2 => Message::Failure2(read_failure(bytes)?),
        _ => return Err(Failure::Message),
    };
    Ok((head.transaction.get(), message))
}

fn fixed<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    bytes: &[u8],
) -> Result<(&T, &[u8]), Failure> {
    T::ref_from_prefix(bytes).map_err(|_| Failure::Payload)
}

fn read_negotiate(bytes: &[u8]) -> Result<Negotiate, Failure> {
    let (fixed, rest) = fixed::<NegotiateFixed>(bytes)?;
    let (descriptors, _) =
        <[Descriptor]>::ref_from_prefix_with_elems(rest, usize::from(fixed.descriptors))
            .map_err(|_| Failure::Payload)?;
    let secure_channel = fixed.secure_channel != 0;
    let found = descriptors.iter().find(|descriptor| descriptor.protocol == PROTOCOL);
    let Some(found) = found else {
        return Ok(Negotiate { secure_channel, protocol: false, hashes: vec![], groups: vec![] });
    };
    let (hashes, groups) = found.list.split_at(GROUPS_AT);
    let hashes = hashes.get(..usize::from(found.hashes)).ok_or(Failure::Payload)?.to_vec();
    let groups = groups.get(..usize::from(found.groups)).ok_or(Failure::Payload)?.to_vec();
    Ok(Negotiate { secure_channel, protocol: true, hashes, groups })
}

fn read_challenge(bytes: &[u8]) -> Result<Challenge<'_>, Failure> {
    let (fixed, rest) = fixed::<ChallengeFixed>(bytes)?;
    let (challenge, rest) =
        rest.split_at_checked(fixed.hash_bytes.into()).ok_or(Failure::Payload)?;
    let public = rest.get(..fixed.public_bytes.get().into()).ok_or(Failure::Payload)?;
    let (hash, group, sequence) = (fixed.hash, fixed.group, fixed.sequence.get());
    Ok(Challenge { hash, group, sequence, challenge, public })
}

fn read_reply(bytes: &[u8]) -> Result<Reply<'_>, Failure> {
    let (fixed, rest) = fixed::<ReplyFixed>(bytes)?;
    let hash_bytes = fixed.hash_bytes.into();
    let (response, rest) = rest.split_at_checked(hash_bytes).ok_or(Failure::Payload)?;
    // There is room for a challenge whether there is one or not.
    let (challenge, rest) = rest.split_at_checked(hash_bytes).ok_or(Failure::Payload)?;
    let public = rest.get(..fixed.public_bytes.get().into()).ok_or(Failure::Payload)?;
    let challenge = (fixed.challenges & 1 != 0).then_some(challenge);
    Ok(Reply { response, sequence: fixed.sequence.get(), challenge, public })
}

fn read_success1(bytes: &[u8]) -> Result<Message<'_>, Failure> {
    let (fixed, rest) = fixed::<Success1Fixed>(bytes)?;
    let hash_bytes = usize::from(fixed.hash_bytes);
    let responds = fixed.responds & 1 != 0;
    let response =
        if responds { Some(rest.get(..hash_bytes).ok_or(Failure::Payload)?) } else { None };
    Ok(Message::Success1 { response, hash_bytes })
}

fn read_failure(bytes: &[u8]) -> Result<Failure, Failure> {
    let (fixed, _) = fixed::<FailureFixed>(bytes)?;
    Ok(Failure::of_code(fixed.explanation))
}

/// Negotiate, offering `hashes` and `groups`.
pub(crate) fn negotiate(transaction: u16, hashes: &[Hash], groups: &[Group]) -> Vec<u8> {
    let head = head(NEGOTIATE, transaction);
    let fixed = NegotiateFixed { head, secure_channel: 0, descriptors: 1 };
    let mut descriptor = Descriptor::new_zeroed();
    descriptor.protocol = PROTOCOL;
    (descriptor.hashes, descriptor.groups) = (hashes.len() as u8, groups.len() as u8);
    let (first, second) = descriptor.list.split_at_mut(GROUPS_AT);
    first.iter_mut().zip(hashes).for_each(|(id, hash)| *id = hash.id());
    second.iter_mut().zip(groups).for_each(|(id, group)| *id = group.id());
    [fixed.as_bytes(), descriptor.as_bytes()].concat()
}

/// Challenge.
pub(crate) fn challenge(
    transaction: u16,
    (hash, group): (Hash, Group),
    sequence: u32,
    challenge: &[u8],
    public: &[u8],
) -> Vec<u8> {
    let fixed = ChallengeFixed {
        head: head(CHALLENGE, transaction),
        hash_bytes: hash.bytes() as u8,
        reserved7: 0,
        hash: hash.id(),
        group: group.id(),
        public_bytes: (public.len() as u16).into(),
        sequence: sequence.into(),
    };
    [fixed.as_bytes(), challenge, public].concat()
}

/// Reply, with a challenge and its sequence number where the controller is to prove who it is.
pub(crate) fn reply(
    transaction: u16,
    response: &[u8],
    challenge: Option<(&[u8], u32)>,
    public: &[u8],
) -> Vec<u8> {
    let fixed = ReplyFixed {
        head: head(REPLY, transaction),
        hash_bytes: response.len() as u8,
        reserved7: 0,
        challenges: challenge.is_some().into(),
        reserved9: 0,
        public_bytes: (public.len() as u16).into(),
        sequence: challenge.map_or(0, |(_, sequence)| sequence).into(),
    };
    let none = [0; 64];
    let challenge = challenge.map_or(&none[..response.len()], |(challenge, _)| challenge);
    [fixed.as_bytes(), response, challenge, public].concat()
}

/// Success1, with the response to the host's challenge if there was one.
pub(crate) fn success1(transaction: u16, hash: Hash, response: Option<&[u8]>) -> Vec<u8> {
    let fixed = Success1Fixed {
        head: head(SUCCESS1, transaction),
        hash_bytes: hash.bytes() as u8,
        reserved7: 0,
        responds: response.is_some().into(),
        reserved9: [0; 7],
    };
    [fixed.as_bytes(), response.unwrap_or_default()].concat()
}

/// Success2.
pub(crate) fn success2(transaction: u16) -> Vec<u8> {
    let fixed = Success2Fixed { head: head(SUCCESS2, transaction), reserved6: [0; 10] };
    fixed.as_bytes().to_vec()
}

/// Failure1, the controller's.
pub(crate) fn failure1(transaction: u16, failure: Failure) -> Vec<u8> {
    failed(FAILURE1, transaction, failure)
}

/// Failure2, the host's.
pub(crate) fn failure2(transaction: u16, failure: Failure) -> Vec<u8> {
    failed(FAILURE2, transaction, failure)
}

fn failed(name: (u8, u8), transaction: u16, failure: Failure) -> Vec<u8> {
    let (reason, explanation) = (1, failure.code());
    FailureFixed { head: head(name, transaction), reason, explanation }.as_bytes().to_vec()
}
