//! Open windows, ordered by their remaining room.

use std::collections::BTreeMap;

use crate::batching::windows::bit_set::BitSet;

/// The end of a list.
const NONE: u32 = u32::MAX;

/// For each room, a list of the windows that have this room, last in first out.
#[derive(Debug)]
pub(super) struct Rooms {
    heads: Heads,
    next: Vec<u32>,
}

/// The first window of each room: in an ordered map for few windows, otherwise in an array with the set of rooms.
#[derive(Debug)]
enum Heads {
    Map(BTreeMap<usize, u32>),
    Array(Vec<u32>, BitSet),
}

impl Rooms {
    /// An empty collection for a few windows.
    pub(super) fn few() -> Rooms {
        Rooms { heads: Heads::Map(BTreeMap::new()), next: Vec::new() }
    }

    /// An empty collection for many windows with rooms up to `most`.
    pub(super) fn many(most: usize) -> Rooms {
        Rooms { heads: Heads::Array(vec![NONE; most + 1], BitSet::new(most + 1)), next: Vec::new() }
    }

    /// Lists a window: the next new window, or one that `take` has removed.
    pub(super) fn put(&mut self, window: u32, room: usize) {
        let at = window as usize;
        if at == self.next.len() {
            self.next.push(NONE);
        }
        self.next[at] = self.heads.replace(room, window);
    }

    /// Removes the window with the least room that is at least `needed`; returns the window and its room.
    pub(super) fn take(&mut self, needed: usize) -> Option<(u32, usize)> {
        let (room, window) = self.heads.least_from(needed)?;
        self.heads.replace(room, self.next[window as usize]);
        Some((window, room))
    }

    /// The number of windows, which is also the id of the next new window.
    pub(super) fn windows(&self) -> u32 {
        u32::try_from(self.next.len()).unwrap_or(NONE)
    }
}

impl Heads {
    /// Sets the first window of a room, or `NONE`; returns the one before it.
    fn replace(&mut self, room: usize, window: u32) -> u32 {
        match self {
            Heads::Map(map) if window == NONE => map.remove(&room).unwrap_or(NONE),
            Heads::Map(map) => map.insert(room, window).unwrap_or(NONE),
            Heads::Array(heads, occupied) => {
                if window == NONE {
                    occupied.remove(room);
                } else {
                    occupied.insert(room);
                }
                std::mem::replace(&mut heads[room], window)
            }
        }
    }

    /// The least room from `needed` on that has a window, and its first window.
    fn least_from(&self, needed: usize) -> Option<(usize, u32)> {
        match self {
            Heads::Map(map) => map.range(needed..).next().map(|(&room, &window)| (room, window)),
            Heads::Array(heads, occupied) => occupied.next(needed).map(|room| (room, heads[room])),
        }
    }
}
