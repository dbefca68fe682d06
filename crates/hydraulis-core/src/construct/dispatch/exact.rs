//! The best assignment of few sequences, by branch and bound.
//!
//! Moves and swaps stop where only an exchange of three or more sequences shortens the slowest replica. With about a
//! dozen sequences every assignment that may be shorter can be tried: sequences are assigned longest first, and a
//! part of an assignment ends if a replica's estimate, or the work that is left on all ranks, is too late. Without
//! pipelines the estimates are lower bounds, so the result is the best if the budget is enough.

use crate::cancellation::Cancellation;
use crate::construct::dispatch::{Assignment, Load};
use crate::error::Result;
use crate::spec::ExactBudget;
use crate::units::{Millis, Tokens, count};

/// Whether the budget allows a try of every assignment of this number of sequences.
pub fn can_assign_exactly(sequences: usize, budget: ExactBudget) -> bool {
    sequences <= budget.sequences
}

/// The shortest assignment to the same replicas that the budget finds; none if no assignment is shorter.
///
/// `by_length` contains all ids, longest first.
pub fn assign_exactly<'a>(
    assignment: &Assignment<'a>,
    tokens: &'a [Tokens],
    by_length: &[usize],
    budget: ExactBudget,
    cancellation: Cancellation,
) -> Result<Option<Assignment<'a>>> {
    cancellation()?;
    let loads = vec![Load::default(); assignment.sequences.len()];
    let before = assignment.iteration_ms();
    let mut tree = Tree {
        best: assignment.clone(),
        tokens,
        by_length,
        ranks_left: ranks_left(assignment, tokens, by_length),
        loads,
        replica_of: Vec::new(),
        nodes: budget.nodes,
    };
    tree.assign_next();
    Ok((tree.best.iteration_ms() < before).then_some(tree.best))
}

/// The tree of partial assignments, at one of its nodes.
struct Tree<'a, 'b> {
    /// The shortest assignment so far.
    best: Assignment<'a>,
    tokens: &'a [Tokens],
    by_length: &'b [usize],
    /// Least time of all ranks together, in rank-milliseconds, for the sequences from each place of `by_length` on.
    ranks_left: Vec<f64>,
    loads: Vec<Load>,
    /// The replica of each assigned sequence.
    replica_of: Vec<usize>,
    /// Nodes that may still be visited.
    nodes: usize,
}

impl Tree<'_, '_> {
    /// Assigns the next sequence to each replica in turn, the earliest to end first, and all later ones below it.
    fn assign_next(&mut self) {
        let place = self.replica_of.len();
        if place == self.by_length.len() {
            return self.keep_shorter();
        }
        let id = self.by_length[place];
        for (_, replica) in self.children(place) {
            if self.nodes == 0 {
                return;
            }
            self.nodes -= 1;
            let before = self.loads[replica];
            self.loads[replica] = self.grown(replica, id);
            self.replica_of.push(replica);
            if self.may_be_shorter(place + 1) {
                self.assign_next();
            }
            self.replica_of.pop();
            self.loads[replica] = before;
        }
    }

    /// The replicas for the sequence at `place`, the earliest end first. Replicas of one class and load are alike, and
    /// so are sequences of one length, which take replicas in ascending order.
    fn children(&self, place: usize) -> Vec<(Millis, usize)> {
        let id = self.by_length[place];
        let is_copy = place > 0 && self.tokens[self.by_length[place - 1]] == self.tokens[id];
        let first = if is_copy { self.replica_of[place - 1] } else { 0 };
        let is_new = |replica: &usize| !(first..*replica).any(|other| self.are_alike(other, *replica));
        let admits = |replica: &usize| self.best.packer_of(*replica).cost().admits(self.tokens[id]);
        let replicas = (first..self.loads.len()).filter(admits).filter(is_new);
        let mut children: Vec<(Millis, usize)> =
            replicas.map(|replica| (self.grown(replica, id).end, replica)).collect();
        children.sort_unstable();
        children
    }

    fn are_alike(&self, one: usize, other: usize) -> bool {
        self.best.class_of[one] == self.best.class_of[other] && self.loads[one] == self.loads[other]
    }

    fn grown(&self, replica: usize, id: usize) -> Load {
        self.loads[replica].with(id, self.tokens[id], self.best.packer_of(replica))
    }

    /// Whether, by the estimates, the sequences from `place` on may end before the best assignment does.
    fn may_be_shorter(&self, place: usize) -> bool {
        // Rounding alone must not count as an improvement.
        let limit = self.best.iteration_ms() * (1.0 - 1e-9);
        let free = |(replica, load): (usize, &Load)| {
            let ranks = self.best.packer_of(replica).cost().scheme().ranks();
            (limit - load.end_of_work(self.best.packer_of(replica))).0 * count(ranks)
        };
        self.loads.iter().all(|load| load.end < limit)
            && self.loads.iter().enumerate().map(free).sum::<f64>() >= self.ranks_left[place]
    }

    /// Packs a whole assignment and keeps it if it is shorter.
    fn keep_shorter(&mut self) {
        let mut sequences = vec![Vec::new(); self.loads.len()];
        for (&id, &replica) in self.by_length.iter().zip(&self.replica_of) {
            sequences[replica].push(id);
        }
        let packed = Assignment::new(self.best.packers.clone(), self.best.class_of.clone(), sequences);
        if packed.iteration_ms() < self.best.iteration_ms() {
            self.best = packed;
        }
    }
}

/// Sums, from each place of `by_length` on, of each sequence's least time on the ranks of some replica.
fn ranks_left(assignment: &Assignment, tokens: &[Tokens], by_length: &[usize]) -> Vec<f64> {
    let least = |id: usize| {
        let packers = assignment.packers.iter().filter(|packer| packer.cost().admits(tokens[id]));
        let costs = packers.map(|packer| packer.sequence_ms()[id].0 * count(packer.cost().scheme().ranks()));
        costs.min_by(f64::total_cmp).unwrap_or_default()
    };
    let mut left = vec![0.0; by_length.len() + 1];
    for (place, &id) in by_length.iter().enumerate().rev() {
        left[place] = left[place + 1] + least(id);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::cancellation::NEVER_CANCELLED;
    use crate::capacity::Capacities;
    use crate::construct::dispatch::longest_first;
    use crate::cost::{CostModel, preset};
    use crate::spec::{CapacityBudget, Cluster, SearchBudget};

    fn capacities(least_ms: f64) -> Capacities {
        let mut profile = preset("llama-7b-a800").unwrap();
        profile.schemes.iter_mut().for_each(|entry| entry.least_ms = least_ms);
        Capacities::new(CostModel::new(profile, Cluster::new(16, 8).unwrap()), CapacityBudget::ONLINE)
    }

    /// The times of the first assignment, of the exact one, and of the best of all assignments.
    fn times(strategy: &str, lengths: &[i64], nodes: usize) -> (Millis, Millis, Millis) {
        times_with(&capacities(0.0), strategy, lengths, nodes)
    }

    fn times_with(capacities: &Capacities, strategy: &str, lengths: &[i64], nodes: usize) -> (Millis, Millis, Millis) {
        let batch = Batch::new(lengths, None).unwrap();
        let mut by_length: Vec<usize> = (0..lengths.len()).collect();
        by_length.sort_by_key(|&id| std::cmp::Reverse(lengths[id]));
        let strategy = strategy.parse().unwrap();
        let first = longest_first(&batch, &by_length, &strategy, capacities, &SearchBudget::ONLINE).unwrap();
        let budget = ExactBudget { nodes, ..SearchBudget::ONLINE.dispatch.exact };
        let exact = assign_exactly(&first, batch.tokens(), &by_length, budget, NEVER_CANCELLED).unwrap();
        let replicas = first.sequences.len();
        let any = |code: usize| {
            let mut sequences = vec![Vec::new(); replicas];
            for (place, &id) in by_length.iter().enumerate() {
                sequences[code / replicas.pow(u32::try_from(place).unwrap()) % replicas].push(id);
            }
            let admits = |(replica, ids): (usize, &Vec<usize>)| {
                ids.iter().all(|&id| first.packer_of(replica).cost().admits(batch.tokens()[id]))
            };
            let is_admitted = sequences.iter().enumerate().all(admits);
            is_admitted
                .then(|| Assignment::new(first.packers.clone(), first.class_of.clone(), sequences).iteration_ms())
        };
        let every = 0..replicas.pow(u32::try_from(lengths.len()).unwrap());
        let best = every.filter_map(any).min().unwrap();
        (first.iteration_ms(), exact.map_or(first.iteration_ms(), |exact| exact.iteration_ms()), best)
    }

    #[test]
    fn the_best_of_all_assignments_is_found() {
        let mut shorter = 0;
        for (strategy, lengths) in [
            ("2x<tp4>+2x<tp2>", [9_000, 7_000, 4_100, 4_000, 2_500, 2_400, 1_800]),
            ("2x<tp4>+2x<tp2>", [3_000, 3_000, 3_000, 2_000, 2_000, 2_000, 900]),
            ("3x<tp4>", [6_000, 5_000, 5_000, 4_000, 4_000, 3_000, 3_000]),
            ("1x<tp8>+2x<tp2>", [12_000, 3_100, 3_000, 2_900, 2_000, 1_900, 1_500]),
        ] {
            let (first, exact, best) = times(strategy, &lengths, usize::MAX);
            assert!(exact.is_close(best), "{strategy}: {exact:?}, {best:?} exists");
            shorter += usize::from(exact < first);
        }
        assert!(shorter > 0);
    }

    #[test]
    fn sequences_that_fit_into_the_least_time_take_none() {
        for seed in 0..40_i64 {
            let lengths: Vec<i64> = (0..7).map(|place| 300 + (seed * 977 + place * 1_409) % 5_000).collect();
            for least_ms in [300.0, 500.0, 700.0] {
                let (_, exact, best) = times_with(&capacities(least_ms), "3x<tp2>", &lengths, usize::MAX);
                assert!(exact.is_close(best), "{lengths:?}, {least_ms}: {exact:?}, {best:?} exists");
            }
        }
    }

    #[test]
    fn a_spent_budget_keeps_the_first_assignment() {
        let lengths = [6_000, 5_000, 5_000, 4_000, 4_000, 3_000, 3_000];
        let (first, exact, _) = times("3x<tp4>", &lengths, 0);
        assert_eq!(first, exact);
        assert!(!can_assign_exactly(200, SearchBudget::ONLINE.dispatch.exact));
    }
}
