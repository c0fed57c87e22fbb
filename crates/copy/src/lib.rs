//! The plan of one Copy: in which order its pieces are moved, and which may be in flight together.
//!
//! ```text
//!   ranges --Order--> pieces that can be moved one after another
//!                        |
//!                        +--Batch---> commands of so many ranges and blocks: whoever can copy by himself
//!                        '--Window--> read, write; several at once where that makes no difference
//! ```
//!
//! The blocks of all source ranges are written one after another from the first destination block on. A
//! Copy is what it would be if each range were read whole before any of it is written, and all
//! of that before the next range is read (NVM 1.1, section 3.3.2). So
//!
//! - a range that is overwritten from its start by what comes before its end is moved backwards;
//! - a piece is read only when earlier pieces that write what it reads have been written;
//! - a piece is written only when earlier pieces that read what it writes have been read.
//!
//! Destinations of pieces never overlap, so no two writes need an order. When a piece fails, earlier
//! ones go on, and nothing later is begun: all ranges below the lowest one that was not copied
//! whole were, which is what the completion of a Copy tells.
//!
//! What it does not do: move anything, hold memory, or know what a volume is. Numbers go in,
//! numbers come out.
//!
//! Key constants: none; callers give the size of pieces and how many are in flight.

#![forbid(unsafe_code)]

mod batch;
mod order;
mod window;

pub use batch::{Batch, Room};
pub use order::{Order, Piece, Range};
pub use window::Window;
