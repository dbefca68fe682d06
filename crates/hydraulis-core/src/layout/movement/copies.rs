//! Copies of an interval to all who need it, crossing to each node once.

use std::ops::Range;

use crate::layout::movement::loads::Loads;
use crate::layout::movement::moves::Moves;
use crate::layout::movement::nodes::Nodes;
use crate::layout::{Holding, Move};

/// Two rounds of copies that grow interval by interval.
pub(super) struct Copies {
    nodes: Nodes,
    loads: Loads,
    /// From those who have it: to targets of their node, and to one in each other node.
    pub(super) direct: Moves,
    /// From that one to the other targets of its node.
    pub(super) relayed: Moves,
}

impl Copies {
    pub(super) fn new(nodes: Nodes) -> Copies {
        Copies { nodes, loads: Loads::default(), direct: Moves::default(), relayed: Moves::default() }
    }

    /// Brings all of `to` an interval that each of `from` has whole. Both are in rank order, and `from` is not empty.
    pub(super) fn bring(&mut self, interval: &Range<u64>, from: &[&Holding], to: &[&Holding]) {
        for group in self.nodes.groups(to) {
            let near = self.nodes.near(from, group[0]);
            if near.is_empty() {
                self.bring_from_afar(interval, from, group);
            } else {
                self.bring_inside(interval, &near, group);
            }
        }
    }

    /// To each by itself, from those of its node, or from another place of its own rank.
    fn bring_inside(&mut self, interval: &Range<u64>, near: &[&Holding], group: &[&Holding]) {
        for target in group {
            match near.iter().find(|one| one.rank == target.rank) {
                Some(own) => self.direct.push(Move::of(interval, own, target)),
                None => self.send(interval, near, target),
            }
        }
    }

    /// To a node where nobody has it: a part to each target there, who shares it out to the others.
    fn bring_from_afar(&mut self, interval: &Range<u64>, from: &[&Holding], group: &[&Holding]) {
        for (part, relay) in self.loads.share(interval, group, group.len() - 1) {
            self.send(&part, from, relay);
            for target in group.iter().filter(|&&target| target != relay) {
                self.relayed.push(Move::of(&part, relay, target));
            }
        }
    }

    fn send(&mut self, interval: &Range<u64>, senders: &[&Holding], target: &Holding) {
        for (part, sender) in self.loads.share(interval, senders, 1) {
            self.direct.push(Move::of(&part, sender, target));
        }
    }
}
