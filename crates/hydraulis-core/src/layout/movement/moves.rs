//! Moves as they are collected.

use std::collections::BTreeMap;

use crate::layout::Move;

/// Moves by receiver and sender, with neighbours joined.
#[derive(Default)]
pub(super) struct Moves(BTreeMap<(u32, u32), Vec<Move>>);

impl Moves {
    pub(super) fn push(&mut self, new: Move) {
        let between = self.0.entry((new.to, new.from)).or_default();
        let follows = |last: &&mut Move| {
            last.from_offset + last.elements == new.from_offset && last.to_offset + last.elements == new.to_offset
        };
        match between.last_mut().filter(follows) {
            Some(last) => last.elements += new.elements,
            None => between.push(new),
        }
    }

    pub(super) fn into_vec(self) -> Vec<Move> {
        self.0.into_values().flatten().collect()
    }
}
