//! The first assignment: longest sequence first.

use crate::batch::Batch;
use crate::capacity::{Capacities, ClassCapacity};
use crate::construct::dispatch::Assignment;
use crate::construct::dispatch::assigner::Assigner;
use crate::error::Result;
use crate::spec::{SearchBudget, Strategy};
use crate::units::Millis;

/// Assigns each sequence, longest first, to the replica that admits it and by estimate then ends earliest; then repeats
/// this with the excess of packing over the estimates.
///
/// `by_length` contains the batch's ids, longest first. Among equals the first replica wins, which is the widest.
pub fn longest_first<'a>(
    batch: &'a Batch,
    by_length: &[usize],
    strategy: &Strategy,
    capacities: &'a Capacities,
    budget: &SearchBudget,
) -> Result<Assignment<'a>> {
    let mut assigner = Assigner::new(batch, strategy, capacities, budget)?;
    let first = assigner.all(by_length).ok_or_else(|| assigner.too_long(by_length[0], strategy))?;
    if !assigner.is_mixed() {
        return Ok(first);
    }
    assigner.learn(&first);
    let second = assigner.all(by_length).ok_or_else(|| assigner.too_long(by_length[0], strategy))?;
    Ok(if second.iteration_ms() < first.iteration_ms() { second } else { first })
}

/// Estimated end of the slowest replica if each sequence, longest first, goes to the replica that ended earliest, one
/// replica of each class considered. None if a sequence is not admitted.
///
/// `classes` has each class with its number of replicas. A small part of the work of [`longest_first`], which also packs the
/// sequences.
pub fn estimate(
    batch: &Batch,
    by_length: &[usize],
    classes: &[(&ClassCapacity, usize)],
    budget: &SearchBudget,
) -> Option<Millis> {
    let mut assigner = Assigner::of_classes(batch, classes, budget);
    by_length.iter().try_for_each(|&id| assigner.take(id, 1).map(drop))?;
    assigner.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{CostModel, preset};
    use crate::spec::{CapacityBudget, Cluster};

    fn capacities() -> Capacities {
        Capacities::new(
            CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap()),
            CapacityBudget::ONLINE,
        )
    }

    #[test]
    fn an_estimate_equals_the_time_of_a_perfect_packing() {
        let (capacities, strategy) = (capacities(), "4x<tp4>".parse().unwrap());
        let batch = Batch::new(&[5_000, 5_000, 5_000, 5_000, 900, 900, 900, 900], None).unwrap();
        let by_length: Vec<usize> = (0..8).collect();
        let classes = capacities.classes(&strategy).unwrap();
        let estimated = estimate(&batch, &by_length, &classes, &SearchBudget::ONLINE).unwrap();
        let assigned_again = longest_first(&batch, &by_length, &strategy, &capacities, &SearchBudget::ONLINE).unwrap();
        assert!(estimated.is_close(assigned_again.iteration_ms()), "{estimated:?} {:?}", assigned_again.iteration_ms());
        assert!(assigned_again.sequences().iter().all(|ids| ids.len() == 2));
    }

    #[test]
    fn a_sequence_that_is_not_admitted_has_no_estimate() {
        let (capacities, strategy) = (capacities(), "4x<tp4>".parse().unwrap());
        let batch = Batch::new(&[30_000, 10], None).unwrap();
        let classes = capacities.classes(&strategy).unwrap();
        assert_eq!(estimate(&batch, &[0, 1], &classes, &SearchBudget::ONLINE), None);
        assert_eq!(
            longest_first(&batch, &[0, 1], &strategy, &capacities, &SearchBudget::ONLINE).unwrap_err().code(),
            "sequence_too_long"
        );
    }

    #[test]
    fn the_second_round_uses_packed_times() {
        // Eleven long sequences make short pipelines fill worse than estimated: the replicas without a pipeline must
        // take more.
        let (capacities, strategy) = (capacities(), "3x<tp4,pp4>+4x<tp4>".parse().unwrap());
        let lengths: Vec<i64> = (0..11).map(|i| 13_000 - 150 * i).chain((0..160).map(|i| 3_000 - 17 * i)).collect();
        let batch = Batch::new(&lengths, None).unwrap();
        let by_length: Vec<usize> = (0..lengths.len()).collect();
        let mut assigner = Assigner::new(&batch, &strategy, &capacities, &SearchBudget::ONLINE).unwrap();
        let first = assigner.all(&by_length).unwrap().iteration_ms();
        let assigned_again =
            longest_first(&batch, &by_length, &strategy, &capacities, &SearchBudget::ONLINE).unwrap().iteration_ms();
        assert!(assigned_again < first * 0.99, "{assigned_again:?} {first:?}");
    }
}
