//! Rebalances replicas so that they end together.
//!
//! With thousands of replicas, moves and swaps of single sequences exhaust their budget before every replica has been
//! the slowest. But the excess of packing over the estimate depends on a replica's long sequences, and hardly on its
//! short ones. The short sequences are therefore assigned again, with each replica's end set by its packing.

use std::cmp::Reverse;

use crate::construct::dispatch::Assignment;
use crate::construct::dispatch::assigner::Assigner;
use crate::spec::DispatchBudget;
use crate::units::{Millis, Tokens};

/// Assigns the remaining sequences of an assignment, longest first, to its replicas; none if one is not admitted.
///
/// `by_length` contains these sequences, none of them longer than a placed one.
pub fn assign_to_placed<'a>(
    placed: &Assignment<'a>,
    tokens: &'a [Tokens],
    by_length: &[usize],
    budget: DispatchBudget,
) -> Option<Assignment<'a>> {
    let mut assigner = Assigner::again(tokens, placed, budget);
    let late = late(&assigner, placed);
    assigner.add(placed.sequences.clone(), late, by_length)
}

/// Assigns the shortest sequences again; `by_length` contains all ids, longest first.
pub fn rebalance<'a>(
    assignment: &Assignment<'a>,
    tokens: &'a [Tokens],
    by_length: &[usize],
    budget: DispatchBudget,
) -> Option<Assignment<'a>> {
    let mut assigner = Assigner::again(tokens, assignment, budget);
    let late = late(&assigner, assignment);
    let (_, short) = by_length.split_at(by_length.len() - shortest(tokens, by_length, budget.rebalanced_part));
    let rank = |id: usize| (Reverse(tokens[id]), id);
    let mut sequences = assignment.sequences.clone();
    for ids in &mut sequences {
        let kept = ids.partition_point(|&id| short.first().is_none_or(|&first| rank(id) < rank(first)));
        ids.truncate(kept);
    }
    assigner.add(sequences, late, short)
}

/// Time by which each replica ends later than a new round estimates.
fn late(assigner: &Assigner, assignment: &Assignment) -> Vec<Millis> {
    let replicas = assignment.sequences.iter().zip(&assignment.times).enumerate();
    let late = |(replica, (ids, &time)): (usize, (&Vec<usize>, &Millis))| {
        if ids.is_empty() { Millis::ZERO } else { time - assigner.load(replica, ids).end }
    };
    replicas.map(late).collect()
}

/// Number of shortest sequences that contain one in `part` of all tokens.
fn shortest(tokens: &[Tokens], by_length: &[usize], part: u64) -> usize {
    let mut left = by_length.iter().map(|&id| tokens[id].0).sum::<u64>() / part;
    let fits = |id: &&usize| {
        let rest = left.checked_sub(tokens[**id].0);
        left = rest.unwrap_or_default();
        rest.is_some()
    };
    by_length.iter().rev().take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::capacity::Capacities;
    use crate::construct::dispatch::longest_first;
    use crate::cost::{CostModel, preset};
    use crate::spec::{CapacityBudget, Cluster, PackingBudget, SearchBudget};

    /// 1,200 lengths with a long tail, longest first.
    fn batch() -> Batch {
        let lengths: Vec<i64> = (0..1_200).map(|i| 30 + 400_000 / (80 + 3 * i)).collect();
        Batch::new(&lengths, None).unwrap()
    }

    fn capacities() -> Capacities {
        Capacities::new(
            CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(512, 8).unwrap()),
            CapacityBudget::ONLINE,
        )
    }

    fn is_whole(assignment: &Assignment, sequences: usize) -> bool {
        let mut ids = assignment.sequences.concat();
        ids.sort_unstable();
        ids.into_iter().eq(0..sequences) && assignment.sequences.iter().all(|ids| ids.is_sorted())
    }

    #[test]
    fn replicas_end_together_by_packed_times() {
        let (batch, capacities) = (batch(), capacities());
        let by_length: Vec<usize> = (0..batch.len()).collect();
        let strategy = "32x<tp4,pp4>".parse().unwrap();
        let assigned_again = longest_first(&batch, &by_length, &strategy, &capacities, &SearchBudget::ONLINE).unwrap();
        let rebalanced = rebalance(&assigned_again, batch.tokens(), &by_length, DispatchBudget::ONLINE).unwrap();
        let spread = |assignment: &Assignment| {
            let earliest = assignment.ends().iter().copied().min().unwrap();
            assignment.iteration_ms().0 / earliest.0 - 1.0
        };
        assert!(is_whole(&rebalanced, batch.len()));
        assert!(
            spread(&rebalanced) < 0.5 * spread(&assigned_again),
            "{} {}",
            spread(&assigned_again),
            spread(&rebalanced)
        );
        assert!(rebalanced.iteration_ms() < assigned_again.iteration_ms());
    }

    #[test]
    fn placed_sequences_stay_and_the_rest_goes_to_the_earliest_replica() {
        let (batch, capacities) = (batch(), capacities());
        let strategy = "2x<tp8>+4x<tp4>".parse().unwrap();
        let mut sequences = vec![Vec::new(); 6];
        (sequences[0], sequences[2]) = ((0..4).collect(), vec![4]);
        let placed = Assignment::of(&batch, &strategy, &capacities, sequences.clone(), PackingBudget::ONLINE).unwrap();
        let assigned_again =
            assign_to_placed(&placed, batch.tokens(), &(5..batch.len()).collect::<Vec<_>>(), DispatchBudget::ONLINE)
                .unwrap();
        assert!(is_whole(&assigned_again, batch.len()));
        assert!(assigned_again.sequences.iter().zip(&sequences).all(|(ids, placed)| ids.starts_with(placed)));
        let ends = assigned_again.ends();
        assert!(ends.iter().all(|end| end.0 > 0.97 * assigned_again.iteration_ms().0), "{ends:?}");
        // A sequence that no replica admits has no place.
        let long = Batch::new(&[32_000, 900], None).unwrap();
        let narrow =
            Assignment::of(&long, &"1x<tp4,pp2>".parse().unwrap(), &capacities, vec![vec![1]], PackingBudget::ONLINE)
                .unwrap();
        assert!(assign_to_placed(&narrow, long.tokens(), &[0], DispatchBudget::ONLINE).is_none());
    }

    #[test]
    fn the_shortest_sequences_have_their_share_of_all_tokens() {
        let tokens = [60, 30, 4, 3, 3].map(Tokens);
        assert_eq!(shortest(&tokens, &[0, 1, 2, 3, 4], 20), 1);
        assert_eq!(shortest(&[Tokens(7)], &[0], 20), 0);
    }
}
