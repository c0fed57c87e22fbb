//! A piece of a copy: its commands, one after the other, for one target after the other.

use super::verify::difference;
use super::{
    CHECK_BYTES, CHUNK_BYTES, COPY_BYTES, COPY_BYTES_IN_FLIGHT, Engine, MEMORY, NSID, State,
};
use crate::copy::layout::Order;
use crate::copy::shared::Phase;
use crate::session::failure_text;
use namespace::checksum;
use namespace::copy::{Place, Source, Sources};
use namespace::{Data, Namespace, Part, Request};
use nvme::command::CHECKSUM;
use nvme::copy::Format;
use nvme::{Command, Limits, Status, opcode};
use reactor::Buffer;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Deallocate, in command dword 12 of Write Zeroes (NVM 1.1, Figure 83).
const DEALLOCATE: u32 = 1 << 25;
/// Largest buffer of the pool.
const BUFFER_BYTES_MAX: u64 = reactor::BufferPool::buffer_len_max() as u64;

/// A place for a piece; its memory is used again.
#[derive(Default)]
pub(super) struct Piece {
    /// Rests here between commands.
    pub(super) request: Option<Box<Request>>,
    sources: Option<Box<Sources>>,
    buffer: Option<Buffer>,
    /// What a target has, to be compared.
    other: Option<Buffer>,
    kind: Kind,
    /// Bytes before it that were handed out, which is its place in the order.
    from: u64,
    /// First byte of the copy, how many are read, how many there is memory for: see [`Engine::bytes_to`].
    position: u64,
    read_bytes: u64,
    bytes: u64,
    /// Bit i: target i has nothing there.
    empty_targets: u32,
    /// The target that is being written, and how many of its bytes are.
    target: usize,
    written: u64,
    /// `buffer` has what is to be written or compared, or the source has given its checksum.
    is_filled: bool,
    /// The checksum of what was read, where targets are compared.
    sum: u64,
    /// All of it is for Copy commands: what it counts among those in flight.
    copy_bytes: u64,
    doing: Doing,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Data,
    Hole,
    /// Compared; whether the source gives its checksum, and is not read here.
    Verify(bool),
}

/// The command in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Doing {
    #[default]
    Nothing,
    Copy,
    Read,
    /// So many bytes.
    Write(u64),
    Zero(u64),
    /// Of the target, to be compared.
    ReadBack,
    /// The checksum of the source, or of the target.
    Sum,
    SumBack,
}

impl Engine {
    /// Keeps pieces in flight.
    pub(super) fn start_pieces(&self) {
        loop {
            let mut state = self.state.borrow_mut();
            let copying = state.phase == Phase::Copying;
            if !(copying || state.phase == Phase::Verifying)
                || Self::is_closing(&state)
                || state.next >= self.layout.bytes
                || state.waiting
                || state.is_going_back
            {
                return;
            }
            let Some(&index) = state.idle.last() else { return };
            let most = self.shared.throttle().requests(state.pieces.len());
            if state.pieces.len() - state.idle.len() >= most {
                return;
            }
            if copying && !self.is_mapped(&mut state) {
                return;
            }
            let now = self.now();
            if let Some(wait) = state.pace.wait(now) {
                drop(state);
                return self.set_tick(wait);
            }
            let Some(mut piece) = self.next_piece(&state) else { return };
            if !self.give_buffers(&mut piece) {
                // Whoever has memory gives it back; what this copy has of it ends by itself.
                state.waiting = true;
                return self.reactor.buffers().wait(self.this(), MEMORY);
            }
            let counted = if piece.kind == Kind::Hole { 0 } else { piece.read_bytes };
            state.pace.started(now, counted);
            state.next = piece.from + piece.read_bytes;
            if copying && state.map.front().is_some_and(|stretch| stretch.end <= state.next) {
                state.map.pop_front();
            }
            state.copy_bytes += piece.copy_bytes;
            state.idle.pop();
            let place = &mut state.pieces[index];
            piece.request = place.request.take().or_else(|| Some(Request::new()));
            piece.sources = place.sources.take();
            *place = piece;
            drop(state);
            self.advance(index);
        }
    }

    /// Gives a piece the memory that it will need; false if there is none now.
    fn give_buffers(&self, piece: &mut Piece) -> bool {
        let volume = self.layout.extent_at(piece.position).volume;
        let zeroes = |limits: &Limits| limits.commands.write_zeroes;
        let mut targets = self.layout.targets.iter().map(|target| &self.limits[target.volume]);
        let reads = match piece.kind {
            Kind::Data => piece.copy_bytes == 0 && !self.copies_all(volume),
            Kind::Hole => !targets.all(zeroes),
            Kind::Verify(is_summed) => !is_summed,
        };
        let compares = matches!(piece.kind, Kind::Verify(_)) && !self.targets_sum();
        let (pool, bytes) = (self.reactor.buffers(), piece.bytes as usize);
        let is_given = match (reads, compares) {
            (true, true) => match pool.allocate_two(bytes) {
                Some([buffer, other]) => {
                    (piece.buffer, piece.other) = (Some(buffer), Some(other));
                    true
                }
                None => false,
            },
            (true, false) => {
                piece.buffer = pool.allocate(bytes);
                piece.buffer.is_some()
            }
            (false, true) => {
                piece.other = pool.allocate(bytes);
                piece.other.is_some()
            }
            (false, false) => true,
        };
        if let (Kind::Hole, Some(buffer)) = (piece.kind, &mut piece.buffer) {
            buffer.as_mut_slice().fill(0);
            piece.is_filled = true;
        }
        is_given
    }

    /// What comes next; none if too much is in flight.
    fn next_piece(&self, state: &State) -> Option<Piece> {
        let total = self.layout.bytes;
        let from = state.next;
        let verifying = state.phase == Phase::Verifying;
        let backwards = self.layout.order == Order::Backwards;
        let extent = match backwards {
            true => self.layout.extent_before(total - from),
            false => self.layout.extent_at(from),
        };
        let volume = extent.volume;
        let extent_left = match backwards {
            true => total - from,
            false => extent.start + extent.bytes - from,
        };
        // What fills the last block of a target is in no source.
        let is_summed = self.sums[volume] && self.layout.padded_max() == total;
        let mut kind = if verifying { Kind::Verify(is_summed) } else { Kind::Data };
        let (mut left, mut empty_targets) = (extent_left, 0);
        if !verifying && !backwards {
            let stretch = *state.map.front().expect("something is known of what comes next");
            left = left.min(stretch.end - from);
            if stretch.is_hole {
                (kind, empty_targets) = (Kind::Hole, stretch.empty_targets);
            }
        }
        let most = self.piece_bytes_max(volume, kind);
        let read_bytes = left.min(most);
        let copies = kind == Kind::Data && self.copies_all(volume);
        let copy_bytes = if copies { read_bytes } else { 0 };
        if state.copy_bytes > 0 && state.copy_bytes + copy_bytes > COPY_BYTES_IN_FLIGHT {
            return None;
        }
        let position = if backwards { total - from - read_bytes } else { from };
        let is_last = position + read_bytes == total;
        let pad = if is_last { self.layout.padded_max() - total } else { 0 };
        let bytes = read_bytes + pad;
        let piece = Piece { kind, from, position, read_bytes, bytes, ..Piece::default() };
        Some(Piece { empty_targets, copy_bytes, ..piece })
    }

    /// Bytes of a piece that its target gets: more than are read where the target's last block is filled up.
    fn bytes_to(&self, piece: &Piece) -> u64 {
        let total = self.layout.bytes;
        let is_last = piece.position + piece.read_bytes == total;
        let pad = if is_last { self.layout.padded[piece.target] - total } else { 0 };
        piece.read_bytes + pad
    }

    /// Whether all targets give checksums.
    fn targets_sum(&self) -> bool {
        self.layout.targets.iter().all(|target| self.sums[target.volume])
    }

    /// Whether no target needs what is in `volume` to be read here.
    fn copies_all(&self, volume: usize) -> bool {
        (0..self.layout.targets.len()).all(|target| self.is_copied(volume, target))
    }

    /// Source ranges of one Copy with these limits. Ranges are read one after the other, each after those before were
    /// written: what overlaps itself is one range, which is read as if whole before any of it is written.
    fn ranges_max(&self, limits: &Limits) -> u64 {
        match self.layout.order {
            Order::Free => limits.copy.ranges_max.into(),
            Order::Forwards | Order::Backwards => 1,
        }
    }

    /// Bytes of one piece from `volume`, whole blocks of everybody.
    fn piece_bytes_max(&self, volume: usize, kind: Kind) -> u64 {
        let unit = self.unit(volume);
        let targets = || self.layout.targets.iter().map(|target| &self.limits[target.volume]);
        let wanted = |usual: u64| {
            let smooth = self.shared.throttle().request_bytes().unwrap_or(u64::MAX);
            self.options.request_bytes.unwrap_or(usual.min(smooth))
        };
        let all = targets().chain([&self.limits[volume]]);
        let transfer = || {
            let most = all.clone().map(|limits| u64::from(limits.transfer_bytes_max)).min();
            most.unwrap_or(u64::MAX)
        };
        let chunk = || wanted(CHUNK_BYTES).min(transfer()).min(BUFFER_BYTES_MAX - unit);
        let bytes = match kind {
            Kind::Hole if targets().all(|limits| limits.commands.write_zeroes) => {
                // Some volumes have to write them.
                let smooth = self.shared.throttle().request_bytes().map(|_| COPY_BYTES);
                targets().map(zero_bytes_max).chain(smooth).min().unwrap_or(unit)
            }
            Kind::Data if self.copies_all(volume) => {
                targets().fold(wanted(COPY_BYTES), |most, it| {
                    let ranges = self.ranges_max(it) * u64::from(it.copy.range_blocks_max);
                    most.min(ranges.min(it.copy.blocks_max.into()) << it.block_shift)
                })
            }
            Kind::Verify(true) if self.targets_sum() => wanted(CHECK_BYTES).min(transfer()),
            Kind::Data | Kind::Hole | Kind::Verify(_) => chunk(),
        };
        (bytes - bytes % unit).max(unit)
    }

    /// Submits a piece's next command, or notes that it is finished.
    fn advance(&self, index: usize) {
        loop {
            let mut state = self.state.borrow_mut();
            let is_zero = self.is_zero(&state, state.pieces[index].from);
            let State { pieces, counts, .. } = &mut *state;
            let piece = &mut pieces[index];
            let Some(target) = self.layout.targets.get(piece.target) else {
                drop(state);
                return self.finish(index, true);
            };
            let bytes = self.bytes_to(piece);
            if piece.written >= bytes {
                (piece.target, piece.written) = (piece.target + 1, 0);
                continue;
            }
            let limits = &self.limits[target.volume];
            let extent = self.layout.extent_at(piece.position);
            match piece.kind {
                Kind::Hole if piece.empty_targets & 1 << piece.target != 0 || is_zero => {
                    counts.skipped_bytes += bytes;
                    piece.written = bytes;
                    continue;
                }
                Kind::Hole if limits.commands.write_zeroes => {
                    let rest = bytes - piece.written;
                    piece.doing = Doing::Zero(rest.min(zero_bytes_max(limits)));
                }
                Kind::Data if self.is_copied(extent.volume, piece.target) => {
                    piece.doing = Doing::Copy;
                }
                Kind::Verify(true) if !piece.is_filled => piece.doing = Doing::Sum,
                Kind::Data | Kind::Verify(_) if !piece.is_filled => piece.doing = Doing::Read,
                Kind::Data | Kind::Hole => piece.doing = self.run_of(piece, limits),
                Kind::Verify(_) if self.sums[target.volume] => piece.doing = Doing::SumBack,
                Kind::Verify(_) => piece.doing = Doing::ReadBack,
            }
            drop(state);
            return self.submit(index);
        }
    }

    /// What of the buffer is written next: all of it, or bytes that are alike as to being zero.
    fn run_of(&self, piece: &Piece, limits: &Limits) -> Doing {
        let block = limits.block_bytes();
        let whole = self.bytes_to(piece);
        let rest = whole - piece.written;
        let sparse = piece.kind == Kind::Data && limits.commands.write_zeroes;
        let Some(unit) = self.options.sparse_bytes.filter(|_| sparse) else {
            return Doing::Write(rest);
        };
        let bytes = &piece.buffer.as_ref().expect("it was read").as_slice()[..whole as usize];
        let mut chunks =
            bytes[piece.written as usize..].chunks(unit.max(block) as usize).map(|chunk| {
                let is_whole = chunk.len().is_multiple_of(block as usize);
                (chunk.len() as u64, is_whole && chunk.iter().all(|byte| *byte == 0))
            });
        let (mut len, is_zero) = chunks.next().expect("something is left");
        len += chunks.take_while(|(_, zero)| *zero == is_zero).map(|(len, _)| len).sum::<u64>();
        match is_zero {
            true => Doing::Zero(len.min(zero_bytes_max(limits))),
            false => Doing::Write(len),
        }
    }

    fn submit(&self, index: usize) {
        let mut state = self.state.borrow_mut();
        let State { pieces, counts, .. } = &mut *state;
        let piece = &mut pieces[index];
        let whole = self.bytes_to(piece);
        let target = &self.layout.targets[piece.target];
        let extent = self.layout.extent_at(piece.position);
        let source_at = extent.offset + piece.position - extent.start;
        let target_at = target.offset + piece.position + piece.written;
        let mut request = piece.request.take().expect("no command of it is in flight");
        let blocks = |code, volume: usize, at: u64, bytes: u64| {
            let shift = self.limits[volume].block_shift;
            Command::blocks(code, NSID, at >> shift, (bytes >> shift) as u32)
        };
        let mut volume = target.volume;
        match piece.doing {
            Doing::Nothing => unreachable!("there is something to do"),
            Doing::Copy => {
                counts.command_bytes += piece.read_bytes;
                let sources = piece.sources.take().unwrap_or_default();
                let sources = self.sources(sources, extent.volume, volume, source_at, piece);
                let shift = self.limits[volume].block_shift;
                let count = sources.ranges.len();
                request.command =
                    nvme::copy::command(NSID, target_at >> shift, count, Format::Short);
                request.data = Data::Sources(sources);
            }
            Doing::Read => {
                volume = extent.volume;
                request.command = blocks(opcode::io::READ, volume, source_at, piece.read_bytes);
                let buffer = piece.buffer.as_mut().expect("given before");
                request.data = part(buffer, 0, piece.read_bytes);
            }
            Doing::Write(bytes) => {
                counts.written_bytes += bytes;
                request.command = blocks(opcode::io::WRITE, volume, target_at, bytes);
                let buffer = piece.buffer.as_mut().expect("it was read");
                request.data = part(buffer, piece.written, bytes);
            }
            Doing::Zero(bytes) => {
                counts.zeroed_bytes += bytes;
                request.command = blocks(opcode::io::WRITE_ZEROES, volume, target_at, bytes);
                if !self.options.allocated && self.limits[volume].commands.deallocate {
                    let dword = request.command.cdw12.get();
                    request.command.cdw12.set(dword | DEALLOCATE);
                }
                request.data = Data::None;
            }
            Doing::ReadBack => {
                request.command = blocks(opcode::io::READ, volume, target_at, whole);
                let buffer = piece.other.as_mut().expect("given before");
                request.data = part(buffer, 0, whole);
            }
            Doing::Sum | Doing::SumBack => {
                let (mut at, mut bytes) = (target_at, whole);
                if piece.doing == Doing::Sum {
                    (volume, at, bytes) = (extent.volume, source_at, piece.read_bytes);
                }
                request.command = blocks(opcode::io::VERIFY, volume, at, bytes);
                request.command.cdw13 = CHECKSUM.into();
                request.data = Data::None;
            }
        }
        let way = Rc::clone(&self.ways[volume]);
        drop(state);
        (request.status, request.result) = (Status::SUCCESS, 0);
        request.push(self.this(), index as u64);
        way.queue.submit(request);
    }

    /// Fills in the source ranges of a piece.
    fn sources(
        &self,
        mut sources: Box<Sources>,
        source: usize,
        target: usize,
        at: u64,
        piece: &Piece,
    ) -> Box<Sources> {
        let limits = &self.limits[target];
        let most = u64::from(limits.copy.range_blocks_max);
        let (first, whole) = (at >> limits.block_shift, piece.read_bytes >> limits.block_shift);
        sources.ranges.clear();
        // What has overwritten a part of its source cannot be copied another time.
        let may_stop = self.layout.order == Order::Free;
        sources.stop = may_stop.then(|| Arc::clone(&self.gives_up));
        let fast_only = self.options.fast_only;
        let mut done = 0;
        while done < whole {
            let blocks = (whole - done).min(most);
            let place = match source == target {
                true => Place::Same,
                false => Place::Other(Rc::clone(&self.ways[source])),
            };
            let (slba, blocks) = (first + done, blocks as u32);
            sources.ranges.push(Source { place, slba, blocks, fast_only });
            done += u64::from(blocks);
        }
        assert!(sources.ranges.len() as u64 <= self.ranges_max(limits), "pieces are of that size");
        sources
    }

    /// A command of a piece has ended.
    pub(super) fn piece_ended(&self, index: usize) {
        let mut state = self.state.borrow_mut();
        let piece = &mut state.pieces[index];
        let doing = std::mem::take(&mut piece.doing);
        let Some(request) = &mut piece.request else { unreachable!("it is back") };
        let (status, result) = (request.status, request.result);
        if let Data::Sources(mut sources) = std::mem::take(&mut request.data) {
            sources.ranges.clear();
            piece.sources = Some(sources);
        }
        let is_given_up = self.gives_up.load(Ordering::Relaxed)
            && (doing, status.code()) == (Doing::Copy, Status::ABORT_REQUESTED);
        if is_given_up {
            drop(state);
            return self.finish(index, false);
        }
        // A checksum of 0 is none, but for once in 2^64: a controller that knows nothing of them has answered.
        let nothing = matches!(doing, Doing::Sum | Doing::SumBack) && result == 0;
        if nothing || !status.is_success() {
            let text = match nothing && status.is_success() {
                true => format!("{}: it gave no checksum", self.asked(piece, doing).uri()),
                false => self.failed(piece, doing, status),
            };
            state.failure.get_or_insert(text);
            drop(state);
            return self.finish(index, false);
        }
        let whole = self.bytes_to(piece);
        match doing {
            Doing::Nothing => unreachable!("a command was in flight"),
            Doing::Copy => piece.written = whole,
            Doing::Write(bytes) | Doing::Zero(bytes) => piece.written += bytes,
            Doing::Read => {
                let buffer = piece.buffer.as_mut().expect("it was read into").as_mut_slice();
                buffer[piece.read_bytes as usize..].fill(0);
                piece.is_filled = true;
                if piece.kind == Kind::Verify(false) {
                    let (start, len) = (piece.position, piece.read_bytes);
                    piece.sum = checksum::of(&buffer[..len as usize]);
                    let sum = piece.sum;
                    state.sum.add(start, len, sum);
                }
            }
            Doing::Sum => {
                (piece.sum, piece.is_filled) = (result, true);
                let (start, len) = (piece.position, piece.read_bytes);
                state.sum.add(start, len, result);
            }
            Doing::SumBack | Doing::ReadBack => {
                if let Some(what) = differs(piece, doing, result, self.offset_of(piece), whole) {
                    let target = &self.layout.targets[piece.target];
                    let uri = self.ways[target.volume].namespace.uri();
                    state.failure.get_or_insert(format!("{uri}: {what} is not what was copied"));
                    drop(state);
                    return self.finish(index, false);
                }
                piece.written = whole;
            }
        }
        drop(state);
        self.advance(index);
    }

    /// A piece is finished, or given up: then it is not counted.
    fn finish(&self, index: usize, is_whole: bool) {
        let mut state = self.state.borrow_mut();
        let State { pieces, mark, counts, copy_bytes, idle, phase, .. } = &mut *state;
        let piece = &mut pieces[index];
        let (from, to) = (piece.from, piece.from + piece.read_bytes);
        *copy_bytes -= piece.copy_bytes;
        // Others on this core need the memory too.
        (piece.buffer, piece.other) = (None, None);
        if is_whole && *phase == Phase::Verifying {
            counts.verified_bytes += piece.read_bytes;
            counts.checksummed_bytes += if self.targets_sum() { piece.read_bytes } else { 0 };
        } else if is_whole {
            mark.finished(from, to);
            counts.done_bytes += piece.read_bytes;
        }
        idle.push(index);
    }

    /// Where a piece is in its target.
    fn offset_of(&self, piece: &Piece) -> u64 {
        self.layout.targets[piece.target].offset + piece.position
    }

    /// The volume that was asked for a checksum.
    fn asked(&self, piece: &Piece, doing: Doing) -> &dyn Namespace {
        let volume = match doing {
            Doing::Sum => self.layout.extent_at(piece.position).volume,
            _ => self.layout.targets[piece.target].volume,
        };
        &*self.ways[volume].namespace
    }

    /// A failure in words.
    fn failed(&self, piece: &Piece, doing: Doing, status: Status) -> String {
        let target = &self.layout.targets[piece.target];
        let extent = self.layout.extent_at(piece.position);
        let from = extent.offset + piece.position - extent.start;
        let to = target.offset + piece.position + piece.written;
        let source = &*self.ways[extent.volume].namespace;
        let whole = self.bytes_to(piece);
        let (volume, code, doing) = match doing {
            Doing::Read => (
                source,
                opcode::io::READ,
                format!("reading {} bytes at offset {from}", piece.read_bytes),
            ),
            Doing::Copy => (
                &*self.ways[target.volume].namespace,
                opcode::io::COPY,
                format!(
                    "copying {} bytes of {} from offset {from} to {to}",
                    piece.read_bytes,
                    source.uri()
                ),
            ),
            Doing::Write(bytes) => (
                &*self.ways[target.volume].namespace,
                opcode::io::WRITE,
                format!("writing {bytes} bytes at offset {to}"),
            ),
            Doing::Zero(bytes) => (
                &*self.ways[target.volume].namespace,
                opcode::io::WRITE_ZEROES,
                format!("writing {bytes} zeroes at offset {to}"),
            ),
            Doing::ReadBack | Doing::Nothing => (
                &*self.ways[target.volume].namespace,
                opcode::io::READ,
                format!("reading {whole} bytes at offset {to} to compare them"),
            ),
            Doing::Sum => (
                source,
                opcode::io::VERIFY,
                format!("the checksum of {} bytes at offset {from}", piece.read_bytes),
            ),
            Doing::SumBack => (
                &*self.ways[target.volume].namespace,
                opcode::io::VERIFY,
                format!("the checksum of {whole} bytes at offset {to}"),
            ),
        };
        failure_text(volume, &doing, code, status)
    }
}

/// Bytes of one Write Zeroes.
fn zero_bytes_max(limits: &Limits) -> u64 {
    u64::from(limits.zero_blocks_max()) << limits.block_shift
}

/// What in a target is not what it is to be: by its checksum, by all bytes, or by the checksum of what was read, where
/// the source was not. `at` is where the piece begins, and `bytes` how many the target has of it.
fn differs(piece: &Piece, doing: Doing, given: u64, at: u64, bytes: u64) -> Option<String> {
    let len = bytes as usize;
    let read = piece.other.as_ref().map(|other| &other.as_slice()[..len]);
    let sum = match (doing, read, &piece.buffer) {
        (Doing::SumBack, ..) => given,
        (_, Some(read), Some(buffer)) => {
            let first = difference(&buffer.as_slice()[..len], read)?;
            return Some(format!("byte {}", at + first as u64));
        }
        (_, Some(read), None) => checksum::of(read),
        (_, None, _) => unreachable!("it was read into"),
    };
    let wanted = match &piece.buffer {
        // The zeroes that fill the target's last block up are in no source.
        Some(buffer) if bytes > piece.read_bytes => checksum::of(&buffer.as_slice()[..len]),
        _ => piece.sum,
    };
    let what = format!("what is in bytes {at} to {}, by its checksum,", at + bytes);
    (sum != wanted).then_some(what)
}

/// A part of a buffer for one command.
fn part(buffer: &mut Buffer, from: u64, bytes: u64) -> Data {
    let (from, bytes) = (from as usize, bytes as usize);
    assert!(from + bytes <= buffer.len());
    let fixed = buffer.ensure_registered();
    // SAFETY: the buffer rests in its piece until the command has ended, and the engine, which has the pieces, is
    // the command's sink; nobody looks at it meanwhile.
    Data::Part(unsafe { Part::new(buffer.as_mut_ptr().add(from), bytes, fixed) })
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::super::mark::tests::copied_sparse;

    #[test]
    fn zeroes_in_data_are_written_where_the_target_has_no_write_zeroes() {
        for (write_zeroes, wanted) in [(true, (0, 1 << 20)), (false, (1 << 20, 0))] {
            let (outcome, counts) = copied_sparse(write_zeroes);
            assert_eq!(outcome, Outcome::Done(None));
            assert_eq!((counts.written_bytes, counts.zeroed_bytes), wanted);
        }
    }
}
