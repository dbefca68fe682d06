//! Branch and bound: makes replicas and micro-batches whole (Land and Doig 1960).
//!
//! A dual program's bound divides both. If its program uses 1.4 replicas of a class, every real plan has at most 1 or
//! at least 2. These two branches each have a bound at least as great, and the lesser of the two holds for all plans.
//! The branch of least bound is divided first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::bound::batch_sums::Price;
use crate::bound::climb::{Climb, climb};
use crate::bound::dual_program::{ClassLimits, DualProgram};
use crate::units::{Millis, count, whole};

/// Numbers nearer than this to a whole number count as whole.
pub(super) const WHOLE: f64 = 1e-3;

/// Branches that together contain every plan.
pub(crate) struct Branches<'a> {
    dual: DualProgram<'a>,
    nodes: Vec<Node<'a>>,
    /// Indices of the nodes not yet divided; the lesser index wins among equals, so that the order is deterministic.
    open: BinaryHeap<Reverse<(Millis, usize)>>,
}

/// The limits of a branch, and the solution of its dual program.
pub(crate) struct Node<'a> {
    pub(super) classes: Vec<ClassLimits<'a>>,
    pub(super) found: Climb,
}

impl<'a> Branches<'a> {
    /// One branch, with every time before `from` impossible; nothing later than `until` is proven.
    pub(super) fn new(dual: DualProgram<'a>, from: Millis, until: Millis) -> Branches<'a> {
        let mut branches = Branches { nodes: Vec::new(), open: BinaryHeap::new(), dual };
        branches.add(branches.dual.classes.clone(), from, until);
        branches
    }

    /// A lower bound of every plan.
    pub(crate) fn least(&self) -> Millis {
        self.open.peek().map_or(Millis::INFINITY, |Reverse((end, _))| *end)
    }

    /// Number of branches evaluated.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Number of classes that programs over a part of them have; none if the programs have all.
    #[cfg(test)]
    pub(super) fn active(&self) -> usize {
        self.dual.active.len()
    }

    /// The evaluated branches.
    pub(crate) fn parts(&self) -> &[Node<'a>] {
        &self.nodes[1..]
    }

    /// The undivided branch.
    pub(crate) fn root(&self) -> &Node<'a> {
        &self.nodes[0]
    }

    /// The least total price of the batch, and the value of a replica of each class by `end`, at the dual prices of the
    /// undivided branch: replicas of a lower total value cannot end by then. None if some sequence is admitted by no
    /// class.
    pub(crate) fn values(&self, end: Millis) -> Option<(f64, Vec<f64>)> {
        // The program has the limits of the branch evaluated last.
        let root = DualProgram { classes: self.root().classes.clone(), ..self.dual.clone() };
        let (prices, capacities) = (&self.root().found.duals, root.capacities_by(end));
        let (batch_price, _) = root.batch_price(prices, &capacities)?;
        Some((batch_price, prices.iter().zip(&capacities).map(|(price, by_end)| price.of_replica(by_end)).collect()))
    }

    /// Divides the branch of least bound in two; false if it cannot be divided, so that no greater bound can be proven.
    pub(crate) fn divide(&mut self, until: Millis) -> bool {
        let Some(&Reverse((end, index))) = self.open.peek() else { return false };
        let Some(parts) = self.nodes[index].divided(self.dual.budget.micro_batch_weight) else { return false };
        self.open.pop();
        for classes in parts {
            self.add(classes, end, until);
        }
        true
    }

    /// Evaluates a branch, unless no cluster with this number of ranks could contain it.
    fn add(&mut self, classes: Vec<ClassLimits<'a>>, from: Millis, until: Millis) {
        let taken: f64 = classes.iter().map(|class| class.ranks() * count(class.least)).sum();
        if taken > f64::from(self.dual.ranks[0]) {
            return;
        }
        self.dual.classes = classes;
        let found = climb(&mut self.dual, from, until);
        self.open.push(Reverse((found.end, self.nodes.len())));
        self.nodes.push(Node { classes: self.dual.classes.clone(), found });
    }
}

impl<'a> Node<'a> {
    /// The dual price of a sequence on each class.
    pub(crate) fn prices(&self) -> &[Price] {
        &self.found.prices
    }

    /// The classes with their limits.
    pub(super) fn classes(&self) -> &[ClassLimits<'a>] {
        &self.classes
    }

    /// Replicas and micro-batches of a class that its program uses, fractions included.
    pub(crate) fn used(&self, class: usize) -> (f64, f64) {
        self.found.used[class]
    }

    /// Two branches that divide a fraction used by the program: at most the whole number below it, and at least the one
    /// above. None if the program uses no fraction.
    fn divided(&self, micro_batch_weight: f64) -> Option<[Vec<ClassLimits<'a>>; 2]> {
        let mut best: Option<(f64, usize, bool, usize)> = None;
        for (index, (class, &(replicas, micro_batches))) in self.classes.iter().zip(&self.found.used).enumerate() {
            // Required replicas may stay idle: then the program uses fewer than exist. A program that serves less than
            // the whole batch may break any row at a cost, and use more replicas than exist: then nothing can be
            // divided.
            let replicas = replicas.clamp(count(class.least), count(class.most));
            let micro_batches = micro_batches.clamp(count(class.least_micro_batches), count(class.most_micro_batches));
            let of_replicas = (class.least < class.most).then_some((replicas, true, class.ranks()));
            let of_micro_batches = (micro_batches, false, micro_batch_weight * class.ranks() / replicas.max(1.0));
            for (amount, is_replicas, weight) in of_replicas.into_iter().chain([of_micro_batches]) {
                let fraction = amount - amount.floor();
                let away = fraction.min(1.0 - fraction);
                if away > WHOLE && best.is_none_or(|(score, ..)| away * weight > score) {
                    let below = usize::try_from(whole(amount)).unwrap_or(usize::MAX);
                    best = Some((away * weight, index, is_replicas, below));
                }
            }
        }
        let (_, index, is_replicas, below) = best?;
        let [mut fewer, mut more] = [self.classes.clone(), self.classes.clone()];
        if is_replicas {
            fewer[index].most = below;
            more[index].least = below + 1;
        } else {
            fewer[index].most_micro_batches = below;
            more[index].least_micro_batches = below + 1;
        }
        Some([fewer, more])
    }

    /// Whole numbers of replicas near the program's: the whole part, then one more of each where the fraction is
    /// largest, then as many as the remaining ranks allow.
    pub(crate) fn rounded(&self, gpus: u32) -> Vec<usize> {
        let whole_of = |amount: f64| usize::try_from(whole(amount + WHOLE)).unwrap_or(usize::MAX);
        let mut counts: Vec<usize> = self
            .classes
            .iter()
            .zip(&self.found.used)
            .map(|(class, used)| whole_of(used.0).clamp(class.least, class.most))
            .collect();
        let ranks: Vec<u64> = self.classes.iter().map(|class| class.capacity.cost().scheme().ranks()).collect();
        let taken: u64 = counts.iter().zip(&ranks).map(|(&replicas, ranks)| replicas as u64 * ranks).sum();
        let mut left = u64::from(gpus).saturating_sub(taken);
        let mut lacking: Vec<usize> = (0..counts.len()).collect();
        let lacks = |index: usize| self.found.used[index].0 - count(counts[index]);
        lacking.sort_by(|&one, &other| lacks(other).total_cmp(&lacks(one)).then(one.cmp(&other)));
        for _ in 0..2 {
            for &index in &lacking {
                if self.found.used[index].0 > WHOLE && counts[index] < self.classes[index].most && ranks[index] <= left
                {
                    counts[index] += 1;
                    left -= ranks[index];
                }
            }
        }
        counts
    }
}
