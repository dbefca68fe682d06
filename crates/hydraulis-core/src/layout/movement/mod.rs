//! Moves elements from any layout to any other, on the same ranks or on others.
//!
//! A layout is a list of [`Holding`]s: sharded, replicated, partly held, or a union of replicas that are cut in different
//! ways; no rank holds an element twice. Between the edges of all holdings, everybody holds an interval whole or not at all:
//! the layouts are swept once, interval by interval, so the cost grows with holdings and with what is moved, not with pairs
//! of ranks.
//!
//! - [`spread`]: sources are copies of each other, and each target needs one of them.
//! - [`gather`]: sources are parts of a sum, and each target needs the whole sum.
//!
//! Both send the least elements that any movement could; each says why, and what crosses between nodes. What several
//! ranks could do is shared out within each interval, so that those who have done least do most: loads level out like water.
//!
//! A [`Movement`] is a few rounds, at most two for copies and four for sums, each after the one before. All that is under way
//! lies in places of targets: sources are only read, and no other room is needed. Within a round nothing is both
//! read and written, so its moves may go at once; only what is added goes in the order of the list.
//!
//! Moves are lists in the order of receiver, sender and element. Neighbouring ones between two ranks are joined, so a rank
//! has few long runs to pack. [`transfer()`](crate::layout::transfer()) is not made of these: at home each element lies
//! once, so there is nothing to choose, and a rank needs no more than its own trade; between nodes it adds sums up on the
//! way, in room of its own.

mod copies;
mod gather;
mod loads;
mod moves;
mod nodes;
mod spread;
mod sweep;

use std::ops::Range;

pub use gather::gather;
pub use spread::spread;

use moves::Moves;

/// Elements that a rank holds, in one run of its buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The rank.
    pub rank: u32,
    /// Which elements of the whole.
    pub elements: Range<u64>,
    /// Where the first of them lies in the rank's buffer.
    pub offset: u64,
}

/// How one layout becomes another: carried out round by round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Movement {
    /// The rounds; none is empty.
    pub rounds: Vec<Round>,
}

/// Moves that need nothing of each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Whose buffers they start in; all of them end in those of targets.
    pub reads: Side,
    /// What becomes of what is there.
    pub put: Put,
    /// The moves, by receiver, sender and element.
    pub moves: Vec<Move>,
}

/// The layout that a rank's buffer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// That of the sources.
    Sources,
    /// That of the targets.
    Targets,
}

/// What an element does where it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It takes the place of what was there.
    Replace,
    /// It is added to what was there, move by move in the order of the list.
    Add,
}

/// Elements on their way from one rank's buffer to another's, or to another place of the same rank's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The sender.
    pub from: u32,
    /// The receiver.
    pub to: u32,
    /// Where they start in the sender's buffer.
    pub from_offset: u64,
    /// Where they start in the receiver's.
    pub to_offset: u64,
    /// How many they are.
    pub elements: u64,
}

impl Movement {
    fn of(rounds: impl IntoIterator<Item = Round>) -> Movement {
        Movement { rounds: rounds.into_iter().filter(|round| !round.moves.is_empty()).collect() }
    }

    /// All moves, in the order of the rounds.
    pub fn moves(&self) -> impl Iterator<Item = &Move> {
        self.rounds.iter().flat_map(|round| &round.moves)
    }
}

impl Round {
    fn of(reads: Side, put: Put, moves: Moves) -> Round {
        Round { reads, put, moves: moves.into_vec() }
    }
}

impl Move {
    /// From the interval's start of one holding to that of another.
    fn of(interval: &Range<u64>, from: &Holding, to: &Holding) -> Move {
        Move {
            from: from.rank,
            to: to.rank,
            from_offset: from.offset + interval.start - from.elements.start,
            to_offset: to.offset + interval.start - to.elements.start,
            elements: interval.end - interval.start,
        }
    }

    /// Whether it is sent at all.
    pub fn is_sent(&self) -> bool {
        self.from != self.to
    }
}
