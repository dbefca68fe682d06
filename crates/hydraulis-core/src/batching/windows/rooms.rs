//! Open windows, ordered by their remaining room.

use crate::batching::windows::bit_set::BitSet;

/// The end of a list.
const NONE: u32 = u32::MAX;

/// For each room, a list of the windows that have this room, last in first out.
#[derive(Debug)]
pub(super) struct Rooms {
    heads: Vec<u32>,
    next: Vec<u32>,
    occupied: BitSet,
}

impl Rooms {
    /// An empty collection for rooms up to `most`.
    pub(super) fn new(most: usize) -> Rooms {
        Rooms { heads: vec![NONE; most + 1], next: Vec::new(), occupied: BitSet::new(most + 1) }
    }

    /// Lists a window: the next new window, or one that `take` has removed.
    pub(super) fn put(&mut self, window: u32, room: usize) {
        let at = window as usize;
        if at == self.next.len() {
            self.next.push(NONE);
        }
        self.next[at] = std::mem::replace(&mut self.heads[room], window);
        self.occupied.insert(room);
    }

    /// Removes the window with the least room that is at least `needed`; returns the window and its room.
    pub(super) fn take(&mut self, needed: usize) -> Option<(u32, usize)> {
        let room = self.occupied.next(needed)?;
        let window = self.heads[room];
        self.heads[room] = self.next[window as usize];
        if self.heads[room] == NONE {
            self.occupied.remove(room);
        }
        Some((window, room))
    }

    /// The number of windows, which is also the id of the next new window.
    pub(super) fn windows(&self) -> u32 {
        u32::try_from(self.next.len()).unwrap_or(NONE)
    }
}
