//! The replicas that a batch asks for.
//!
//! By a given time: each sequence, longest first, goes to the replica where it is cheapest among those that still have
//! room, or opens a new one of the scheme where it is cheapest at all; what a sequence costs where is known from the
//! bound's prices. That is first-fit decreasing with bins of several sizes (Friesen and Langston 1986), and it sees what
//! a linear program does not: two halves of a long sequence are of no use. The earliest time by which the replicas
//! opened fit the cluster is found by halving, as in MULTIFIT (Coffman, Garey and Johnson 1978).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::capacity::SchemeCapacity;
use crate::dispatch::Load;
use crate::pack::Packer;
use crate::plan::attempt::Task;
use crate::plan::bound::Price;
use crate::units::{Millis, Tokens};

/// The first time tried is later than the bound by this share; then it is twice as much, and so on.
const FIRST_STEP: f64 = 0.02;
/// Later times tried at most: up to 1.6 times the bound.
const STEPS: usize = 5;
/// Halvings of the interval found, down to a thousandth of the time.
const HALVINGS: usize = 4;
/// A replica with room is not taken where a sequence costs so many times as much as in a new one.
const DEAREST: f64 = 2.0;

/// Opens replicas for one batch.
pub(super) struct Sizing<'a> {
    task: &'a Task<'a>,
    packers: Vec<Packer<'a>>,
    prices: &'a [Price],
    gpus: u64,
}

impl<'a> Sizing<'a> {
    /// A sizing for `gpus` ranks with the schemes of `capacities`, which have these prices.
    pub(super) fn new(task: &'a Task, capacities: &[&'a SchemeCapacity], prices: &'a [Price], gpus: u32) -> Sizing<'a> {
        let packers = capacities.iter().map(|capacity| Packer::new(capacity, task.batch)).collect();
        Sizing { task, packers, prices, gpus: u64::from(gpus) }
    }

    /// The number of replicas of each scheme that is enough for the earliest time at or after `bound`.
    pub(super) fn counts(&self, bound: Millis) -> Option<Vec<usize>> {
        let ends = (0..STEPS).scan((bound, FIRST_STEP), |(before, step), _| {
            let interval = (*before, bound * (1.0 + *step));
            (*before, *step) = (interval.1, 2.0 * *step);
            Some(interval)
        });
        let found = ends.filter_map(|(early, late)| Some((early, late, self.opened(late)?)));
        let (mut early, mut late, mut counts) = found.into_iter().next()?;
        for _ in 0..HALVINGS {
            let middle = Millis(0.5 * (early.0 + late.0));
            match self.opened(middle) {
                Some(fewer) => (late, counts) = (middle, fewer),
                None => early = middle,
            }
        }
        Some(counts)
    }

    /// The replicas opened if all are to end by `end`; none where they need more ranks than there are.
    fn opened(&self, end: Millis) -> Option<Vec<usize>> {
        let mut open = vec![Open::default(); self.packers.len()];
        let mut order: Vec<(f64, usize)> = Vec::new();
        let (mut left, mut before) = (self.gpus, Tokens(0));
        for &id in self.task.by_length() {
            let tokens = self.task.batch.tokens()[id];
            if tokens != before {
                self.sort_by_price(tokens, &mut order);
                before = tokens;
            }
            if !self.fits_open(id, &order, end, &mut open) {
                let fresh = |&(_, scheme): &(f64, usize)| {
                    let load = Load::default().with(id, tokens, &self.packers[scheme]);
                    (load.end <= end).then_some((scheme, load))
                };
                let (scheme, load) = order.iter().find_map(fresh)?;
                left = left.checked_sub(self.packers[scheme].cost().scheme().ranks())?;
                open[scheme].add(load);
            }
        }
        Some(open.iter().map(|open| open.loads.len()).collect())
    }

    /// The schemes that admit so many tokens, the cheapest first.
    fn sort_by_price(&self, tokens: Tokens, order: &mut Vec<(f64, usize)>) {
        order.clear();
        let admitting = (0..self.packers.len()).filter(|&scheme| self.packers[scheme].cost().admits(tokens));
        order.extend(admitting.map(|scheme| (self.prices[scheme].at(tokens.as_f64()), scheme)));
        order.sort_unstable_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    }

    /// Whether a replica that is open takes the sequence and ends by `end`.
    fn fits_open(&self, id: usize, order: &[(f64, usize)], end: Millis, open: &mut [Open]) -> bool {
        let tokens = self.task.batch.tokens()[id];
        let dearest = order.first().map_or(0.0, |(least, _)| DEAREST * least);
        order.iter().take_while(|(price, _)| *price <= dearest).any(|&(_, scheme)| {
            let grown = |load: Load| load.with(id, tokens, &self.packers[scheme]);
            open[scheme].take_earliest(|load| Some(grown(load)).filter(|load| load.end <= end))
        })
    }
}

/// The open replicas of one scheme.
#[derive(Clone, Default)]
struct Open {
    loads: Vec<Load>,
    by_end: BinaryHeap<Reverse<(Millis, usize)>>,
}

impl Open {
    fn add(&mut self, load: Load) {
        self.by_end.push(Reverse((load.end, self.loads.len())));
        self.loads.push(load);
    }

    /// Changes the load that ends earliest; false where it may not be changed.
    fn take_earliest(&mut self, change: impl Fn(Load) -> Option<Load>) -> bool {
        let Some(mut earliest) = self.by_end.peek_mut() else { return false };
        let replica = earliest.0.1;
        let Some(load) = change(self.loads[replica]) else { return false };
        self.loads[replica] = load;
        *earliest = Reverse((load.end, replica));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::Capacities;
    use crate::cost::{CostModel, preset};
    use crate::lengths::Batch;
    use crate::plan::bound::Bounder;
    use crate::spec::{Cluster, Scheme};
    use crate::strategy::usable_schemes;
    use crate::watch::UNWATCHED;

    /// The schemes, the counts found for the lengths, and a lower bound.
    fn sized(gpus: u32, lengths: &[i64]) -> (Vec<Scheme>, Option<Vec<usize>>) {
        let cost = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(gpus, 8).unwrap());
        let schemes = usable_schemes(&cost);
        let capacities = Capacities::new(cost);
        let of_schemes: Vec<&SchemeCapacity> =
            schemes.iter().map(|&scheme| capacities.scheme(scheme).unwrap()).collect();
        let batch = Batch::new(lengths, None).unwrap();
        let (bounder, task) = (Bounder::new(&batch), Task::new(&batch, &capacities, None, 0, UNWATCHED));
        let branches = bounder.of_any(&of_schemes, gpus).unwrap();
        let counts = Sizing::new(&task, &of_schemes, branches.root().prices(), gpus).counts(branches.least());
        (schemes, counts)
    }

    #[test]
    fn replicas_fit_the_cluster_and_use_most_of_it() {
        let lengths: Vec<i64> = (0..400).map(|i| if i % 50 == 0 { 12_000 } else { 300 + i % 7 * 100 }).collect();
        let (schemes, counts) = sized(64, &lengths);
        let counts = counts.unwrap();
        let ranks: u64 = schemes.iter().zip(&counts).map(|(scheme, &count)| scheme.ranks() * count as u64).sum();
        assert!((48..=64).contains(&ranks), "{counts:?}");
    }

    #[test]
    fn each_long_sequence_has_a_wide_replica() {
        // Two of 30,000 tokens take 1.7 times as long on one <tp16> as apart on two, and nothing narrower admits them
        // in less time.
        let (schemes, counts) = sized(64, &[30_000, 30_000, 30_000, 500, 500, 500]);
        let wide = schemes.iter().position(|scheme| scheme.tp() == 16).unwrap();
        assert_eq!(counts.unwrap()[wide], 3);
    }
}
