//! Parts of a sum to where it is kept.

use std::convert::Infallible;
use std::ops::Range;

use crate::layout::movement::copies::Copies;
use crate::layout::movement::loads::Loads;
use crate::layout::movement::moves::Moves;
use crate::layout::movement::nodes::Nodes;
use crate::layout::movement::sweep::sweep;
use crate::layout::movement::{Movement, Put, Round, Side};
use crate::layout::{Holding, Move};

/// What brings every target the sum of the parts that sources hold, with the least that can be sent: each element is added
/// up on one target's rank, and copied from there to the others.
///
/// **Least.** Take the first rank that knows an element's sum. By then every other rank with a part has sent; after that every
/// other target receives. So `P` ranks with parts and `T` with targets send it at least `P + T - 2` times if one rank is of
/// both, else `P + T - 1` times, and here no more: the rank that adds up is of both if one is.
///
/// **Between nodes.** Where a rank of a node has a part and a target, the node's parts are added up in that target first, and
/// cross as one; else each crosses by itself, since no place but a source, which is only read, or a rank more on the way
/// could add them up. With parts and targets on disjoint ranks, one of the node with the most parts adds up. The sum crosses
/// once to every other node with targets. With the least sent, and no room beyond targets, none cross less.
///
/// **Order.** A sum is that of the parts that come straight to the rank that adds up, in rank order, and then of other nodes'
/// sums, in the order of the ranks they come from, each of its own parts in rank order. It follows from the layouts, and
/// all targets have the same bits. Which rank adds up changes within an interval, so neighbouring elements may be added in
/// different orders.
///
/// Targets begin as zeros, and stay so where nobody has a part.
pub fn gather(sources: &[Holding], targets: &[Holding], gpus_per_node: u32) -> Movement {
    let mut sums = Sums::new(Nodes::new(gpus_per_node));
    let Ok(()) = sweep(sources, targets, |interval, parts, to| {
        if !parts.is_empty() {
            sums.bring(&interval, parts, to);
        }
        Ok::<(), Infallible>(())
    });
    Movement::of([
        Round::of(Side::Sources, Put::Add, sums.parts),
        Round::of(Side::Targets, Put::Add, sums.onward),
        Round::of(Side::Targets, Put::Replace, sums.copies.direct),
        Round::of(Side::Targets, Put::Replace, sums.copies.relayed),
    ])
}

/// Four rounds that grow interval by interval.
struct Sums {
    nodes: Nodes,
    loads: Loads,
    /// Parts to where they are added: in their node, or straight to where all is added up.
    parts: Moves,
    /// What was added in other nodes, on to where all is added up.
    onward: Moves,
    /// From there to all other targets.
    copies: Copies,
}

impl Sums {
    fn new(nodes: Nodes) -> Sums {
        let (parts, onward) = (Moves::default(), Moves::default());
        Sums { nodes, loads: Loads::default(), parts, onward, copies: Copies::new(nodes) }
    }

    /// Brings all of `to` the sum of the parts of an interval. Both are in rank order, neither is empty.
    fn bring(&mut self, interval: &Range<u64>, parts: &[&Holding], to: &[&Holding]) {
        let adders = self.adders(parts, to);
        for (share, adder) in self.loads.share(interval, &adders, parts.len() + to.len()) {
            self.add_up(&share, parts, to, adder);
            let others: Vec<&Holding> = to.iter().filter(|&&one| one != adder).copied().collect();
            self.copies.bring(&share, &[adder], &others);
        }
    }

    /// The targets that any of the least movements may add up in: on ranks with a part, or in the nodes with the most.
    fn adders<'a>(&self, parts: &[&Holding], to: &[&'a Holding]) -> Vec<&'a Holding> {
        let own = with_part(parts, to);
        if !own.is_empty() {
            return own;
        }
        let near = |target: &Holding| self.nodes.near(parts, target).len();
        let counted: Vec<(usize, &[&Holding])> = self.nodes.groups(to).map(|group| (near(group[0]), group)).collect();
        let most = counted.iter().map(|&(number, _)| number).max();
        counted.iter().filter(|&&(number, _)| Some(number) == most).flat_map(|&(_, group)| group).copied().collect()
    }

    /// Brings one target the parts of all: those of another node as one, where one of its targets can add them up.
    fn add_up(&mut self, interval: &Range<u64>, parts: &[&Holding], to: &[&Holding], adder: &Holding) {
        for group in self.nodes.groups(parts) {
            let hubs = with_part(group, to);
            if group.len() == 1 || hubs.is_empty() || self.nodes.are_near(group[0], adder) {
                self.add(interval, group, adder);
                continue;
            }
            for (share, hub) in self.loads.share(interval, &hubs, group.len()) {
                self.add(&share, group, hub);
                self.onward.push(Move::of(&share, hub, adder));
            }
        }
    }

    fn add(&mut self, interval: &Range<u64>, parts: &[&Holding], target: &Holding) {
        for part in parts {
            self.parts.push(Move::of(interval, part, target));
        }
    }
}

/// The targets whose ranks have a part.
fn with_part<'a>(parts: &[&Holding], to: &[&'a Holding]) -> Vec<&'a Holding> {
    let has_part = |target: &&&Holding| parts.binary_search_by_key(&target.rank, |one| one.rank).is_ok();
    to.iter().filter(has_part).copied().collect()
}
