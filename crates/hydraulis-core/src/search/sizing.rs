//! Opens the replicas that a batch needs.
//!
//! For a given time, each sequence, longest first, goes to the cheapest open replica with room, or opens a replica of
//! its cheapest class; the bound's dual prices give the costs. This is first-fit decreasing with bins of several sizes
//! (Friesen and Langston 1986). Unlike a linear program it never divides a long sequence. Bisection finds the earliest
//! time by which the opened replicas fit the cluster, as in MULTIFIT (Coffman, Garey and Johnson 1978).
//!
//! Replicas with few long sequences are packed, because estimates do not tell how these fit together. Long sequences
//! may therefore keep their replicas. The shorter ones determine the number of replicas, but are assigned again,
//! because sequences of equal length placed together pack badly.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::bound::Price;
use crate::capacity::ClassCapacity;
use crate::construct::dispatch::Load;
use crate::construct::pack::Packer;
use crate::search::task::Task;
use crate::spec::SizingBudget;
use crate::units::{Millis, Tokens, count};

/// Opens replicas for one batch.
pub(super) struct Sizing<'a> {
    task: &'a Task<'a>,
    packers: Vec<Packer<'a>>,
    prices: &'a [Price],
    gpus: u64,
    short: Tokens,
    budget: SizingBudget,
}

impl<'a> Sizing<'a> {
    /// A sizing for `gpus` ranks with the classes of `capacities` at these dual prices; sequences longer than `short`
    /// are placed.
    pub(super) fn new(
        task: &'a Task,
        capacities: &[&'a ClassCapacity],
        prices: &'a [Price],
        gpus: u32,
        short: Tokens,
    ) -> Sizing<'a> {
        let packers = capacities.iter().map(|capacity| Packer::new(capacity, task.batch, task.budget.packing));
        let (packers, budget) = (packers.collect(), task.budget.sizing);
        Sizing { task, packers, prices, gpus: u64::from(gpus), short, budget }
    }

    /// The placed sequences of each replica of each class, for the earliest time at or after `bound` by which the
    /// replicas fit the cluster.
    pub(super) fn replicas(&mut self, bound: Millis) -> Option<Vec<Vec<Vec<usize>>>> {
        let (mut early, mut step) = (bound, self.budget.first_step);
        let mut found = None;
        for _ in 0..self.budget.steps {
            let late = bound * (1.0 + step);
            found = self.opened(late, bound).map(|opened| (late, opened));
            if found.is_some() {
                break;
            }
            (early, step) = (late, 2.0 * step);
        }
        let (late, opened) = found?;
        let opened = self.halved(early, late, bound, opened);
        // One long sequence sets the bound: an estimate that is too early costs nothing if spare ranks allow more
        // replicas.
        let spare = count(opened.left) > self.budget.spare * count(self.gpus);
        let opened = if spare { self.halved(bound * self.budget.earliest, bound, bound, opened) } else { opened };
        Some(opened.replicas.into_iter().map(Open::placed).collect())
    }

    /// The replicas for the earliest time found between `early`, which is too early or was not evaluated, and the time
    /// of `opened`.
    fn halved(&mut self, mut early: Millis, mut late: Millis, bound: Millis, mut opened: Opened) -> Opened {
        for _ in 0..self.budget.halvings {
            let middle = Millis(0.5 * (early.0 + late.0));
            match self.opened(middle, bound) {
                Some(more) => (late, opened) = (middle, more),
                None => early = middle,
            }
        }
        opened
    }

    /// The replicas opened if all end by `end`; a replica with a single sequence may end by `bound`. None if they need
    /// more ranks than the cluster has.
    fn opened(&mut self, end: Millis, bound: Millis) -> Option<Opened> {
        let task = self.task;
        let mut open: Vec<Open> = self.packers.iter().map(|_| Open::default()).collect();
        let mut order: Vec<(f64, usize)> = Vec::new();
        let (mut left, mut before) = (self.gpus, Tokens(0));
        for &id in task.by_length() {
            let tokens = task.batch.tokens()[id];
            if tokens != before {
                self.sort_by_price(tokens, &mut order);
                before = tokens;
            }
            let sequence = Sequence { id, tokens, is_placed: tokens > self.short };
            if !self.fits_open(sequence, &order, end, &mut open) {
                let most_packed = self.budget.packed_sequences;
                let fresh = |&(_, class): &(f64, usize)| {
                    let mut replica = Replica::default();
                    let alone = end.max(bound);
                    replica.takes(sequence, &mut self.packers[class], alone, most_packed).then_some((class, replica))
                };
                let (class, replica) = match order.iter().find_map(fresh) {
                    Some(found) => found,
                    None => self.quickest(sequence, &order)?,
                };
                left = left.checked_sub(self.packers[class].cost().scheme().ranks())?;
                open[class].add(replica);
            }
        }
        Some(Opened { replicas: open, left })
    }

    /// For a sequence that ends in time on no replica: a replica of the class on which it ends earliest.
    fn quickest(&mut self, sequence: Sequence, order: &[(f64, usize)]) -> Option<(usize, Replica)> {
        let most_packed = self.budget.packed_sequences;
        let mut alone = |&(_, class): &(f64, usize)| {
            let mut replica = Replica::default();
            replica.takes(sequence, &mut self.packers[class], Millis(f64::INFINITY), most_packed);
            (class, replica)
        };
        order.iter().map(&mut alone).min_by(|one, other| one.1.end().cmp(&other.1.end()))
    }

    /// The classes that admit `tokens` tokens, the cheapest first.
    fn sort_by_price(&self, tokens: Tokens, order: &mut Vec<(f64, usize)>) {
        order.clear();
        let admitting = (0..self.packers.len()).filter(|&class| self.packers[class].cost().admits(tokens));
        order.extend(admitting.map(|class| (self.prices[class].at(tokens.as_f64()), class)));
        order.sort_unstable_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    }

    /// Whether an open replica takes the sequence and ends by `end`.
    fn fits_open(&mut self, sequence: Sequence, order: &[(f64, usize)], end: Millis, open: &mut [Open]) -> bool {
        let dearest = order.first().map_or(0.0, |(least, _)| self.budget.dearest * least);
        let mut near = order.iter().take_while(|(price, _)| *price <= dearest);
        let most_packed = self.budget.packed_sequences;
        near.any(|&(_, class)| open[class].earliest_takes(sequence, &mut self.packers[class], end, most_packed))
    }
}

/// A sequence to be placed.
#[derive(Clone, Copy)]
struct Sequence {
    id: usize,
    tokens: Tokens,
    is_placed: bool,
}

/// An open replica.
#[derive(Default)]
struct Replica {
    load: Load,
    /// Ids of the placed sequences, longest first.
    placed: Vec<usize>,
    /// Time by which the packing of these ends later than estimated.
    late: Millis,
}

impl Replica {
    /// Takes the sequence if the replica then ends by `end`; a replica with at most `most_packed` placed sequences is
    /// packed.
    fn takes(&mut self, sequence: Sequence, packer: &mut Packer, end: Millis, most_packed: usize) -> bool {
        let Sequence { id, tokens, is_placed } = sequence;
        let load = self.load.with(id, tokens, packer);
        let mut late = self.late;
        if is_placed {
            self.placed.push(id);
        }
        if is_placed && self.placed.len() <= most_packed {
            late = packer.time(&self.placed) - load.end;
        }
        let fits = load.end + late <= end;
        if fits {
            (self.load, self.late) = (load, late);
        } else if is_placed {
            self.placed.pop();
        }
        fits
    }

    fn end(&self) -> Millis {
        self.load.end + self.late
    }
}

/// The open replicas of all classes.
struct Opened {
    replicas: Vec<Open>,
    /// Ranks of no open replica.
    left: u64,
}

/// The open replicas of one class.
#[derive(Default)]
struct Open {
    replicas: Vec<Replica>,
    by_end: BinaryHeap<Reverse<(Millis, usize)>>,
}

impl Open {
    fn add(&mut self, replica: Replica) {
        self.by_end.push(Reverse((replica.end(), self.replicas.len())));
        self.replicas.push(replica);
    }

    /// Whether the replica that ends earliest takes the sequence and ends by `end`.
    fn earliest_takes(&mut self, sequence: Sequence, packer: &mut Packer, end: Millis, most_packed: usize) -> bool {
        let Some(mut earliest) = self.by_end.peek_mut() else { return false };
        let index = earliest.0.1;
        let replica = &mut self.replicas[index];
        let takes = replica.takes(sequence, packer, end, most_packed);
        if takes {
            *earliest = Reverse((replica.end(), index));
        }
        takes
    }

    fn placed(self) -> Vec<Vec<usize>> {
        self.replicas.into_iter().map(|replica| replica.placed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::bound::{AnyClass, Bounder};
    use crate::cancellation::NEVER_CANCELLED;
    use crate::capacity::Capacities;
    use crate::construct::usable_schemes;
    use crate::cost::{CostModel, preset};
    use crate::spec::{BoundBudget, CapacityBudget, Cluster, Scheme, SearchBudget};

    /// The schemes, and the placed sequences longer than `short` of each replica.
    fn sized(gpus: u32, lengths: &[i64], short: u64) -> (Vec<Scheme>, Vec<Vec<Vec<usize>>>) {
        let cost = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(gpus, 8).unwrap());
        let schemes = usable_schemes(&cost);
        let capacities = Capacities::new(cost, CapacityBudget::ONLINE);
        let of_schemes: Vec<&ClassCapacity> =
            schemes.iter().map(|&scheme| capacities.scheme(scheme).unwrap()).collect();
        let batch = Batch::new(lengths, None).unwrap();
        let budget = SearchBudget { refinements: 0, ..SearchBudget::ONLINE };
        let bounder = Bounder::new(&batch, BoundBudget::ONLINE);
        let task = Task::new(&batch, std::slice::from_ref(&capacities), None, &budget, NEVER_CANCELLED);
        let classes: Vec<AnyClass> = of_schemes.iter().map(|&capacity| AnyClass { capacity, level: 0 }).collect();
        let branches = bounder.of_any(&classes, &[gpus], Millis::ZERO).unwrap();
        let mut sizing = Sizing::new(&task, &of_schemes, branches.root().prices(), gpus, Tokens(short));
        let replicas = sizing.replicas(branches.least()).unwrap();
        (schemes, replicas)
    }

    #[test]
    fn replicas_fit_the_cluster_and_use_most_of_it() {
        let lengths: Vec<i64> = (0..400).map(|i| if i % 50 == 0 { 12_000 } else { 300 + i % 7 * 100 }).collect();
        let (schemes, replicas) = sized(64, &lengths, 5_000);
        let ranks: u64 = schemes.iter().zip(&replicas).map(|(scheme, own)| scheme.ranks() * own.len() as u64).sum();
        assert!((48..=64).contains(&ranks), "{replicas:?}");
        let mut placed = replicas.concat().concat();
        placed.sort_unstable();
        assert!(placed.iter().copied().eq((0..400).step_by(50)), "{replicas:?}");
    }

    #[test]
    fn ranks_that_would_be_left_over_let_short_sequences_end_earlier() {
        // The longest sequence takes five seconds; by then five replicas of four ranks would be enough for the others.
        let lengths: Vec<i64> = std::iter::once(32_768).chain((0..150).map(|i| 400 + i % 9 * 50)).collect();
        let (schemes, replicas) = sized(64, &lengths, 5_000);
        let ranks: u64 = schemes.iter().zip(&replicas).map(|(scheme, own)| scheme.ranks() * own.len() as u64).sum();
        // 36 ranks would be enough by that time.
        assert!((37..=64).contains(&ranks), "{ranks} {replicas:?}");
    }

    #[test]
    fn each_long_sequence_has_a_wide_replica() {
        // Two sequences of 30,000 tokens take 1.7 times as long on one <tp16> as on two, and nothing narrower admits
        // them in less time.
        let (schemes, replicas) = sized(64, &[30_000, 30_000, 30_000, 500, 500, 500], 5_000);
        let wide = schemes.iter().position(|scheme| scheme.tp() == 16).unwrap();
        assert_eq!(replicas[wide], [[0], [1], [2]]);
    }
}
