//! The handshake: fixed newstyle negotiation, server's side, as a state machine.
//!
//! ```text
//!   greeting -->            client flags
//!            <-- option, data            one at a time, each answered before the next is taken
//!   replies  -->                         until GO or EXPORT_NAME: transmission
//! ```

mod option;

use crate::export::{Exports, PAYLOAD_MAX, Session, find, preferred_bytes, transmission_flags};
use crate::failure::Misbehaved;
use crate::reply::ALLOCATION_CONTEXT;
use crate::wire::{
    BASE_ALLOCATION, BlockSizes, ExportReply, Greeting, OptionHeader, OptionReply, handshake_flag,
    info, magic, option as opt, rep,
};
use option::{ExportQuery, MetaQuery};
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

/// Most data of an option that is looked at; a name has 4096 bytes at most.
pub const OPTION_BYTES_MAX: u32 = 16 * 1024;

/// Options in one handshake.
pub const OPTIONS_MAX: u32 = 256;

/// Zeroes after the reply to `NBD_OPT_EXPORT_NAME`, unless the client can do without.
const ZEROES: [u8; 124] = [0; 124];

/// What the server says when somebody has connected.
pub fn greeting() -> [u8; 18] {
    zerocopy::transmute!(Greeting {
        password: magic::PASSWORD.into(),
        magic: magic::OPTION.into(),
        flags: (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).into(),
    })
}

/// What came of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed.
    Incomplete,
    /// An option was answered.
    Answered,
    /// The client leaves: close, once what is queued was sent.
    Aborted,
    /// The handshake is over; what follows are requests.
    Agreed(Session),
}

/// The handshake of one connection.
#[derive(Debug, Default)]
pub struct Handshake {
    state: State,
    no_zeroes: bool,
    structured: bool,
    /// The export for which `base:allocation` was chosen.
    allocation_of: Option<usize>,
    options: u32,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    ClientFlags,
    Option,
    /// So many bytes of an option that is too large are still to come.
    Skip {
        option: u32,
        left: u32,
    },
}

impl Handshake {
    /// Takes the client's flags or one option from `input`; replies are appended to `output`.
    ///
    /// # Errors
    /// What cannot be answered: the connection is to be closed.
    pub fn receive(
        &mut self,
        input: &mut &[u8],
        exports: &dyn Exports,
        output: &mut Vec<u8>,
    ) -> Result<Progress, Misbehaved> {
        match self.state {
            State::ClientFlags => self.client_flags(input),
            State::Skip { option, left } => {
                let count = input.len().min(left as usize);
                *input = &input[count..];
                let left = left - count as u32;
                if left > 0 {
                    self.state = State::Skip { option, left };
                    return Ok(Progress::Incomplete);
                }
                self.state = State::Option;
                reply(output, option, rep::ERR_TOO_BIG, &[b"the option is too large"]);
                Ok(Progress::Answered)
            }
            State::Option => {
                let Ok((header, rest)) = OptionHeader::read_from_prefix(input) else {
                    return Ok(Progress::Incomplete);
                };
                if header.magic.get() != magic::OPTION {
                    return Err(Misbehaved::OptionMagic(header.magic.get()));
                }
                let (option, length) = (header.option.get(), header.length.get());
                if length <= OPTION_BYTES_MAX && rest.len() < length as usize {
                    return Ok(Progress::Incomplete);
                }
                self.options += 1;
                if self.options > OPTIONS_MAX {
                    return Err(Misbehaved::TooManyOptions(OPTIONS_MAX));
                }
                if length > OPTION_BYTES_MAX {
                    if option == opt::EXPORT_NAME {
                        return Err(Misbehaved::UnknownExport);
                    }
                    *input = rest;
                    self.state = State::Skip { option, left: length };
                    return Ok(Progress::Answered);
                }
                let (data, rest) = rest.split_at(length as usize);
                *input = rest;
                self.option(option, data, exports, output)
            }
        }
    }

    fn client_flags(&mut self, input: &mut &[u8]) -> Result<Progress, Misbehaved> {
        let Ok((flags, rest)) = U32::read_from_prefix(input) else {
            return Ok(Progress::Incomplete);
        };
        // Fixed newstyle has the value 1, no zeroes 2. A client that does not set the first may
        // use no option but EXPORT_NAME; if it does, it is answered nevertheless.
        let known = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        if flags.get() & !u32::from(known) != 0 {
            return Err(Misbehaved::ClientFlags(flags.get()));
        }
        *input = rest;
        self.no_zeroes = flags.get() & u32::from(handshake_flag::NO_ZEROES) != 0;
        self.state = State::Option;
        Ok(Progress::Answered)
    }

    fn option(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        output: &mut Vec<u8>,
    ) -> Result<Progress, Misbehaved> {
        match option {
            opt::EXPORT_NAME => return self.export_name(data, exports, output),
            opt::ABORT => {
                reply(output, option, rep::ACK, &[]);
                return Ok(Progress::Aborted);
            }
            opt::GO | opt::INFO => {
                let Some(query) = ExportQuery::parse(data) else {
                    invalid(output, option, b"the option's lengths do not add up");
                    return Ok(Progress::Answered);
                };
                return Ok(self.tell_export(option, &query, exports, output));
            }
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => {
                self.meta_context(option, data, exports, output);
            }
            opt::LIST | opt::STRUCTURED_REPLY | opt::STARTTLS if !data.is_empty() => {
                invalid(output, option, b"the option has no data");
            }
            opt::LIST => {
                for index in 0..exports.count() {
                    let name = exports.name(index).as_bytes();
                    let length = (name.len() as u32).to_be_bytes();
                    let description = exports.description(index).as_bytes();
                    reply(output, option, rep::SERVER, &[&length, name, description]);
                }
                reply(output, option, rep::ACK, &[]);
            }
            opt::STRUCTURED_REPLY => {
                self.structured = true;
                reply(output, option, rep::ACK, &[]);
            }
            opt::STARTTLS => {
                reply(output, option, rep::ERR_UNSUP, &[b"this server does not do TLS"]);
            }
            _ => reply(output, option, rep::ERR_UNSUP, &[b"unknown option"]),
        }
        Ok(Progress::Answered)
    }

    fn export_name(
        &self,
        name: &[u8],
        exports: &dyn Exports,
        output: &mut Vec<u8>,
    ) -> Result<Progress, Misbehaved> {
        let export = find(exports, name).ok_or(Misbehaved::UnknownExport)?;
        let session = self.session(export, exports, false);
        let told = ExportReply { bytes: session.bytes.into(), flags: session.flags.into() };
        output.extend_from_slice(told.as_bytes());
        if !self.no_zeroes {
            output.extend_from_slice(&ZEROES);
        }
        Ok(Progress::Agreed(session))
    }

    /// What is agreed if `export` is chosen now; `aligned` if the client has asked for the block
    /// sizes, and so has to keep to them.
    fn session(&self, export: usize, exports: &dyn Exports, aligned: bool) -> Session {
        let limits = exports.limits(export);
        Session {
            export,
            bytes: limits.bytes(),
            alignment: if aligned { limits.block_bytes() } else { 1 },
            flags: transmission_flags(&limits, self.structured),
            structured: self.structured,
            has_allocation: self.structured && self.allocation_of == Some(export),
        }
    }

    /// `NBD_OPT_INFO` and `NBD_OPT_GO`.
    fn tell_export(
        &self,
        option: u32,
        query: &ExportQuery<'_>,
        exports: &dyn Exports,
        output: &mut Vec<u8>,
    ) -> Progress {
        let Some(export) = find(exports, query.name) else {
            unknown(output, option);
            return Progress::Answered;
        };
        let wants_sizes = query.asks(info::BLOCK_SIZE);
        let session = self.session(export, exports, wants_sizes);
        let limits = exports.limits(export);
        let told = ExportReply { bytes: session.bytes.into(), flags: session.flags.into() };
        reply(output, option, rep::INFO, &[&info::EXPORT.to_be_bytes(), told.as_bytes()]);
        if query.asks(info::NAME) {
            let name = exports.name(export).as_bytes();
            reply(output, option, rep::INFO, &[&info::NAME.to_be_bytes(), name]);
        }
        if query.asks(info::DESCRIPTION) {
            let words = exports.description(export).as_bytes();
            reply(output, option, rep::INFO, &[&info::DESCRIPTION.to_be_bytes(), words]);
        }
        if wants_sizes {
            let sizes = BlockSizes {
                minimum: limits.block_bytes().into(),
                preferred: preferred_bytes(&limits).into(),
                payload_max: PAYLOAD_MAX.into(),
            };
            let kind = info::BLOCK_SIZE.to_be_bytes();
            reply(output, option, rep::INFO, &[&kind, sizes.as_bytes()]);
        }
        reply(output, option, rep::ACK, &[]);
        if option == opt::GO { Progress::Agreed(session) } else { Progress::Answered }
    }

    /// `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
    fn meta_context(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        output: &mut Vec<u8>,
    ) {
        let chooses = option == opt::SET_META_CONTEXT;
        if chooses {
            // "Replaces all previously-set metadata contexts (including when this command fails)."
            self.allocation_of = None;
        }
        if !self.structured {
            return invalid(output, option, b"structured replies come first");
        }
        let Some(query) = MetaQuery::parse(data) else {
            return invalid(output, option, b"the option's lengths do not add up");
        };
        let Some(export) = find(exports, query.export) else {
            return unknown(output, option);
        };
        let finds = if chooses { query.chooses_allocation() } else { query.lists_allocation() };
        if finds {
            let id = if chooses { ALLOCATION_CONTEXT } else { 0 };
            reply(output, option, rep::META_CONTEXT, &[&id.to_be_bytes(), BASE_ALLOCATION]);
        }
        if chooses && finds {
            self.allocation_of = Some(export);
        }
        reply(output, option, rep::ACK, &[]);
    }
}

fn invalid(output: &mut Vec<u8>, option: u32, words: &[u8]) {
    reply(output, option, rep::ERR_INVALID, &[words]);
}

fn unknown(output: &mut Vec<u8>, option: u32) {
    reply(output, option, rep::ERR_UNKNOWN, &[b"no export of that name"]);
}

fn reply(output: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let length: usize = data.iter().map(|part| part.len()).sum();
    let head = OptionReply {
        magic: magic::OPTION_REPLY.into(),
        option: option.into(),
        kind: kind.into(),
        length: u32::try_from(length).expect("names and words are short").into(),
    };
    output.extend_from_slice(head.as_bytes());
    for part in data {
        output.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests;
