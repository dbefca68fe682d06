//! Merges micro-batches of replicas without a pipeline.
//!
//! Replicas that end at the same time mostly each have a micro-batch that is nearly empty and costs `c` like a full
//! one, and no move or swap of few sequences empties it. A replica can run without it if the replica takes longer
//! sequences, which have more work per token, and fills its other micro-batches, while the other replicas take many
//! short sequences.

use crate::cancellation::Cancellation;
use crate::construct::dispatch::assigner::Assigner;
use crate::construct::dispatch::share::Share;
use crate::construct::dispatch::{Assignment, Limits, refine};
use crate::error::Result;
use crate::spec::{DispatchBudget, MergeBudget};
use crate::units::Tokens;

/// Whether the budget allows this number of sequences to be assigned again.
pub fn can_merge(sequences: usize, budget: MergeBudget) -> bool {
    budget.assigned_sequences >= sequences
}

/// Assigns again with one micro-batch less, repeatedly while the iteration becomes shorter; none if it does not.
///
/// `by_length` contains all ids, longest first.
pub fn merge_micro_batches<'a>(
    assignment: &Assignment<'a>,
    tokens: &'a [Tokens],
    by_length: &[usize],
    budget: DispatchBudget,
    cancellation: Cancellation,
) -> Result<Option<Assignment<'a>>> {
    let (assigner, most) = (Assigner::again(tokens, assignment, budget), vec![None; assignment.sequences.len()]);
    let rounds = budget.merge.assigned_sequences / by_length.len();
    let mut merging =
        Merging { best: assignment.clone(), most, assigner, tokens, by_length, rounds, budget, cancellation };
    let mut is_shorter = false;
    while merging.merge_one()? {
        is_shorter = true;
    }
    Ok(is_shorter.then_some(merging.best))
}

/// The best assignment so far, and its history.
struct Merging<'a, 'b> {
    best: Assignment<'a>,
    /// Most tokens of each replica that runs with fewer micro-batches.
    most: Vec<Option<Tokens>>,
    assigner: Assigner<'a>,
    tokens: &'a [Tokens],
    by_length: &'b [usize],
    /// Assignments left in the budget.
    rounds: usize,
    budget: DispatchBudget,
    cancellation: Cancellation<'b>,
}

/// A replica that may run with one micro-batch less.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    replica: usize,
    /// Tokens that its other micro-batches may hold.
    room: Tokens,
    /// Tokens beyond that room, in micro-batches.
    excess: f64,
}

impl Merging<'_, '_> {
    /// Removes a micro-batch of the replica of some class whose last micro-batch has least; false if no iteration
    /// becomes shorter.
    fn merge_one(&mut self) -> Result<bool> {
        let tokens_of = |ids: &Vec<usize>| ids.iter().map(|&id| self.tokens[id]).sum();
        let assigned: Vec<Tokens> = self.best.sequences.iter().map(tokens_of).collect();
        let mut candidates: Vec<Candidate> =
            (0..self.best.packers.len()).filter_map(|class| self.candidate(class, &assigned)).collect();
        candidates.sort_by(|one, other| one.excess.total_cmp(&other.excess));
        for Candidate { replica, room, .. } in candidates {
            let before = self.most[replica].replace(room);
            if self.is_shorter(&assigned)? {
                return Ok(true);
            }
            self.most[replica] = before;
        }
        Ok(false)
    }

    /// The replica of a class whose last micro-batch has least.
    fn candidate(&mut self, class: usize, assigned: &[Tokens]) -> Option<Candidate> {
        let cost = self.best.packers[class].cost();
        if cost.scheme().pp() > 1 {
            return None;
        }
        let full = Tokens(cost.cap().0 - cost.cap().0 / self.budget.merge.free_part);
        let replicas = self.best.replicas(class).filter_map(|replica| {
            let micro_batches = self.best.packers[class].fewest(&self.best.sequences[replica]);
            let room = Tokens(full.0 * (micro_batches as u64).saturating_sub(1));
            let excess = (assigned[replica].as_f64() - room.as_f64()).max(0.0) / full.as_f64();
            (micro_batches > 1).then_some(Candidate { replica, room, excess })
        });
        replicas.min_by(|one, other| one.excess.total_cmp(&other.excess))
    }

    /// Assigns within the replicas' limits, and keeps a shorter iteration.
    fn is_shorter(&mut self, assigned: &[Tokens]) -> Result<bool> {
        if self.rounds == 0 {
            return Ok(false);
        }
        self.rounds -= 1;
        let assigned_again =
            Share::of(assigned, &self.most).and_then(|shares| self.assigner.by_shares(self.by_length, &shares));
        let Some(mut assigned_again) = assigned_again else { return Ok(false) };
        let has_pipelines = assigned_again.packers.iter().any(|packer| packer.cost().scheme().pp() > 1);
        let merge = self.budget.merge;
        let packings = if has_pipelines { merge.pipeline_refinements } else { merge.refinements };
        let limits = Limits { packings, more_partners: 0, budget: self.budget.refine };
        refine(&mut assigned_again, self.tokens, limits, self.cancellation)?;
        let is_shorter = assigned_again.iteration_ms() < self.best.iteration_ms();
        if is_shorter {
            self.best = assigned_again;
        }
        Ok(is_shorter)
    }
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

    /// Lengths assigned to the strategy and refined: the micro-batches and the time before merging, and after it if it
    /// succeeds.
    fn saved(strategy: &str, lengths: &[i64]) -> ((usize, f64), Option<(usize, f64)>) {
        let capacities = Capacities::new(
            CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap()),
            CapacityBudget::ONLINE,
        );
        let batch = Batch::new(lengths, None).unwrap();
        let mut by_length: Vec<usize> = (0..lengths.len()).collect();
        by_length.sort_by_key(|&id| std::cmp::Reverse(lengths[id]));
        let mut assigned_again =
            longest_first(&batch, &by_length, &strategy.parse().unwrap(), &capacities, &SearchBudget::ONLINE).unwrap();
        let limits = Limits { packings: 1_000, more_partners: 0, budget: DispatchBudget::ONLINE.refine };
        refine(&mut assigned_again, batch.tokens(), limits, NEVER_CANCELLED).unwrap();
        let measured = |assignment: &Assignment| {
            let mut assignment = assignment.clone();
            let mut ids = assignment.sequences.concat();
            ids.sort_unstable();
            assert!(ids.into_iter().eq(0..lengths.len()), "each sequence is assigned_again once");
            let micro_batches = (0..assignment.sequences.len()).map(|replica| {
                let ids = assignment.sequences[replica].clone();
                assignment.packer(replica).pack(&ids).micro_batches.len()
            });
            let micro_batches = micro_batches.sum();
            (micro_batches, assignment.iteration_ms().0)
        };
        let after =
            merge_micro_batches(&assigned_again, batch.tokens(), &by_length, DispatchBudget::ONLINE, NEVER_CANCELLED)
                .unwrap();
        (measured(&assigned_again), after.as_ref().map(measured))
    }

    /// 560 sequences of 491,000 tokens, few of them long.
    fn long_tailed() -> Vec<i64> {
        (1..=560).map(|rank| 112_000 / (6 + rank)).collect()
    }

    #[test]
    fn replicas_with_a_nearly_empty_micro_batch_run_without_it() {
        let (before, after) = saved("1x<tp16>+6x<tp8>", &long_tailed());
        let after = after.unwrap();
        assert!(after.0 < before.0 && after.1 < before.1, "{before:?} {after:?}");
    }

    #[test]
    fn pipelines_and_single_micro_batches_merge_nothing() {
        assert_eq!(saved("2x<tp8,pp2>", &[9_000; 40]).1, None);
        assert_eq!(saved("4x<tp16>", &[9_000; 8]).1, None);
    }
}
