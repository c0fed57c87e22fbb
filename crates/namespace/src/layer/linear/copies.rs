//! Copies within `linear`, and into it.

use super::LinearQueue;
use crate::Request;
use crate::copy::{End, Ground, Place, Reader, Route, Sources, TURN_BYTES_MAX};
use ::copy::{Piece, Room};
use nvme::Command;
use std::sync::Arc;

impl Ground for LinearQueue {
    fn is_same(&self, place: &Place) -> bool {
        matches!(place, Place::Same)
    }

    fn route(&self, _copy: u64, _command: &Command, place: &Place, piece: &Piece) -> Route {
        let piece = self.cut(piece, piece.destination);
        let piece = if piece.is_same { self.cut(&piece, piece.source) } else { piece };
        let child = self.child_of(piece.destination).0;
        let mut route = Route {
            blocks: piece.blocks,
            child,
            destination: piece.destination - self.starts[child],
            fast: None,
            reader: None,
            guard: None,
        };
        let child = &self.linear.children[child];
        let (limits, now) = (child.namespace.limits().copy, self.reactor.now());
        let offered = limits.is_offered();
        if !piece.is_same {
            // Only who knows the place can copy from it.
            let fast = offered && !child.refusals.has(place, &limits, now);
            route.fast = fast.then(|| (place.clone(), piece.source));
            return route;
        }
        let from = self.child_of(piece.source).0;
        let slba = piece.source - self.starts[from];
        let is_writer = from == route.child;
        let end = End::Queue(self.children[from].clone());
        route.reader = Some(Reader { end, slba, is_writer });
        if !offered {
            return route;
        }
        if is_writer {
            let fast = !child.refusals.has(&Place::Same, &limits, now);
            route.fast = fast.then_some((Place::Same, slba));
            return route;
        }
        let namespace = Arc::clone(&self.linear.children[from].namespace);
        let Some(located) = namespace.origin(slba, piece.blocks) else { return route };
        // Blocks that a guard below keeps apart are read through it: nobody here can enter its table.
        // What is moved backwards is cut from its end, and the place known is that of its start.
        let cut = located.blocks < piece.blocks;
        let place = Place::Origin(located.origin);
        if located.guard.is_some()
            || child.refusals.has(&place, &limits, now)
            || cut && piece.is_backwards
        {
            return route;
        }
        route.blocks = located.blocks.min(piece.blocks);
        route.fast = Some((place, located.slba));
        route
    }

    fn room(&self, child: usize, _guarded: bool) -> Room {
        let limits = self.linear.children[child].namespace.limits();
        let bytes_max = if limits.immediate { TURN_BYTES_MAX as u64 } else { u64::MAX };
        Room {
            ranges: usize::from(limits.copy.ranges_max).max(1),
            range_blocks: u64::from(limits.copy.range_blocks_max).max(1),
            blocks: u64::from(limits.copy.blocks_max).min(bytes_max >> self.block_shift).max(1),
        }
    }

    fn send(&self, child: usize, request: Box<Request>, _routes: &[Route]) {
        self.children[child].submit(request);
    }

    fn refused(&self, child: usize, place: &Place) {
        let child = &self.linear.children[child];
        let limits = child.namespace.limits().copy;
        child.refusals.note(place, &limits, self.reactor.now());
    }

    fn writer(&self, child: usize) -> End {
        End::Queue(self.children[child].clone())
    }

    fn transfer_bytes_max(&self, _sources: &Sources) -> usize {
        let each = self.linear.children.iter();
        let least = each.map(|child| child.namespace.limits().transfer_bytes_max).min();
        least.expect("there is a child") as usize
    }
}

impl LinearQueue {
    /// The first blocks of `piece`, those that are within one child of which `slba` is the number
    /// of the first of all.
    fn cut(&self, piece: &Piece, slba: u64) -> Piece {
        if piece.is_backwards {
            let last = slba + piece.blocks - 1;
            let start = self.starts[self.child_of(last).0];
            return piece.first(piece.blocks.min(last + 1 - start));
        }
        let end = self.child_of(slba).1;
        piece.first(piece.blocks.min(end - slba))
    }
}
