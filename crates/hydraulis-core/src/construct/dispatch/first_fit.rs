//! The assignment of few sequences by first-fit decreasing.
//!
//! With two or three sequences on each replica, "longest first to the earliest end" pairs them badly: the last of them are
//! still long. First fit asks instead whether all sequences fit by a given end: each one, longest first, goes to the first
//! replica with room, of the class on which it takes longest. Bisection finds the earliest such end, as in MULTIFIT (Coffman,
//! Garey and Johnson 1978), for machines of several speeds (Friesen and Langston 1983).

use std::cmp::Reverse;

use crate::construct::dispatch::{Assignment, Load};
use crate::construct::pack::Packer;
use crate::spec::FirstFitBudget;
use crate::units::{Millis, Tokens};

/// The shorter of this assignment and of its replicas' assignment by first fit. `by_length` contains all ids, longest first.
pub(crate) fn or_first_fit<'a>(
    assignment: Assignment<'a>,
    tokens: &[Tokens],
    by_length: &[usize],
    budget: FirstFitBudget,
) -> Assignment<'a> {
    let mut first_fit = FirstFit::new(&assignment.packers, tokens, by_length, budget);
    let mix: Vec<(usize, usize)> =
        (0..assignment.packers.len()).map(|class| (class, assignment.replicas(class).len())).collect();
    let late = assignment.iteration_ms() * (1.0 - budget.gain);
    let end = if first_fit.has_few(&mix) { first_fit.end(&mix, late) } else { None };
    let Some(end) = end else { return assignment };
    first_fit.fits(&mix, end);
    let mut sequences = vec![Vec::new(); assignment.sequences.len()];
    for (&id, &(class, place)) in by_length.iter().zip(&first_fit.places) {
        sequences[assignment.replicas(class).start + place].push(id);
    }
    let fitted = Assignment::new(assignment.packers.clone(), assignment.class_of.clone(), sequences);
    if fitted.iteration_ms() < assignment.iteration_ms() { fitted } else { assignment }
}

/// Assigns the sequences of one batch to replicas of some classes.
pub(crate) struct FirstFit<'p, 'a> {
    packers: &'p [Packer<'a>],
    tokens: &'p [Tokens],
    by_length: &'p [usize],
    budget: FirstFitBudget,
    /// The replicas of each class of the mix.
    loads: Vec<Vec<Load>>,
    /// The place in the mix, and in its replicas, of each sequence.
    places: Vec<(usize, usize)>,
    /// The classes of the mix for sequences of one length, and the first replica of each that may have room for one more.
    order: Vec<(usize, usize)>,
}

impl<'p, 'a> FirstFit<'p, 'a> {
    /// `by_length` contains all ids, longest first.
    pub(crate) fn new(
        packers: &'p [Packer<'a>],
        tokens: &'p [Tokens],
        by_length: &'p [usize],
        budget: FirstFitBudget,
    ) -> FirstFit<'p, 'a> {
        FirstFit { packers, tokens, by_length, budget, loads: Vec::new(), places: Vec::new(), order: Vec::new() }
    }

    /// Whether the replicas of a mix, numbers of replicas of the packers' classes, have few of the batch's sequences each.
    pub(crate) fn has_few(&self, mix: &[(usize, usize)]) -> bool {
        let replicas: usize = mix.iter().map(|&(_, number)| number).sum();
        self.by_length.len() <= self.budget.sequences_per_replica * replicas
    }

    /// The earliest end found, up to `late`, by which all sequences fit the mix; none if they do not fit by `late`.
    pub(crate) fn end(&mut self, mix: &[(usize, usize)], late: Millis) -> Option<Millis> {
        if !self.fits(mix, late) {
            return None;
        }
        let (mut early, mut late) = (late * self.budget.earliest, late);
        for _ in 0..self.budget.halvings {
            let middle = Millis(0.5 * (early.0 + late.0));
            if self.fits(mix, middle) {
                late = middle;
            } else {
                early = middle;
            }
        }
        Some(late)
    }

    /// Whether each sequence finds a replica that then ends by `end`.
    fn fits(&mut self, mix: &[(usize, usize)], end: Millis) -> bool {
        self.loads.resize(mix.len(), Vec::new());
        for (loads, &(_, number)) in self.loads.iter_mut().zip(mix) {
            loads.clear();
            loads.resize(number, Load::default());
        }
        self.places.clear();
        let (packers, mut length) = (self.packers, Tokens(0));
        for &id in self.by_length {
            let tokens = self.tokens[id];
            if tokens != length {
                length = tokens;
                self.order.clear();
                self.order.extend((0..mix.len()).map(|at| (at, 0)));
                self.order.sort_by_key(|&(at, _)| Reverse(packers[mix[at].0].sequence_ms()[id]));
            }
            let loads = &mut self.loads;
            let take = |(at, first): &mut (usize, usize)| {
                *first += take(&mut loads[*at][*first..], id, tokens, &packers[mix[*at].0], end)?;
                Some((*at, *first))
            };
            let Some(taken) = self.order.iter_mut().find_map(take) else { return false };
            self.places.push(taken);
        }
        true
    }
}

/// Gives the sequence to the first replica of a class that then ends by `end`, and returns the replica's place.
fn take(loads: &mut [Load], id: usize, tokens: Tokens, packer: &Packer, end: Millis) -> Option<usize> {
    if !packer.cost().admits(tokens) {
        return None;
    }
    let adds = packer.least_added(packer.sequence_ms()[id]);
    let grown = |load: &Load| (load.end + adds <= end).then(|| load.with(id, tokens, packer));
    let (place, load) = loads
        .iter()
        .enumerate()
        .find_map(|(place, load)| Some((place, grown(load).filter(|load| load.end <= end)?)))?;
    loads[place] = load;
    Some(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::capacity::Capacities;
    use crate::construct::dispatch::assignment::tests::{assert_assigned, by_length, capacities, spread_lengths};
    use crate::construct::dispatch::longest_first;
    use crate::spec::SearchBudget;

    /// The times of the longest-first assignment, and of the shorter one, after checks that it has each sequence once.
    fn times(capacities: &Capacities, strategy: &str, lengths: &[i64]) -> (Millis, Millis) {
        let (batch, by_length, budget) = (Batch::new(lengths, None).unwrap(), by_length(lengths), SearchBudget::ONLINE);
        let assignment = longest_first(&batch, &by_length, &strategy.parse().unwrap(), capacities, &budget).unwrap();
        let before = assignment.iteration_ms();
        let shorter = or_first_fit(assignment, batch.tokens(), &by_length, budget.dispatch.first_fit);
        assert_assigned(&shorter, batch.tokens());
        (before, shorter.iteration_ms())
    }

    #[test]
    fn pairs_and_triples_end_together() {
        // Longest first puts a third sequence of 2,000 tokens on a replica that has 3,000 and 2,000.
        let (before, after) = times(&capacities(), "2x<tp4>", &[3_000, 3_000, 2_000, 2_000, 2_000]);
        assert!(after < before * 0.9, "{before:?} {after:?}");
    }

    #[test]
    fn the_result_is_never_longer_and_sometimes_shorter() {
        let (capacities, mut shorter) = (capacities(), 0);
        for seed in 0..60_i64 {
            let lengths = spread_lengths(seed, 13 + seed % 20);
            for strategy in ["16x<tp4>", "8x<tp4>+2x<tp8>", "3x<tp16>+4x<tp4>", "4x<tp4,pp2>+8x<tp4>"] {
                let (before, after) = times(&capacities, strategy, &lengths);
                assert!(after <= before, "{strategy} {seed}: {before:?} {after:?}");
                shorter += usize::from(after < before * 0.99);
            }
        }
        assert!(shorter > 20, "{shorter}");
    }

    #[test]
    fn replicas_of_many_sequences_are_left_as_they_are() {
        let lengths: Vec<i64> = (0..9).map(|place| 3_000 - 300 * place).collect();
        let (batch, capacities) = (Batch::new(&lengths, None).unwrap(), capacities());
        let classes = capacities.classes(&"2x<tp4>".parse().unwrap()).unwrap();
        let packers: Vec<Packer> =
            classes.iter().map(|(class, _)| Packer::new(class, &batch, SearchBudget::ONLINE.packing)).collect();
        let by_length: Vec<usize> = (0..9).collect();
        let budget = SearchBudget::ONLINE.dispatch.first_fit;
        let first_fit = FirstFit::new(&packers, batch.tokens(), &by_length, budget);
        assert!(!first_fit.has_few(&[(0, 2)]));
        assert!(first_fit.has_few(&[(0, 3)]));
    }

    #[test]
    fn an_end_that_is_too_early_has_no_assignment() {
        let (batch, capacities) = (Batch::new(&[3_000, 3_000, 3_000], None).unwrap(), capacities());
        let classes = capacities.classes(&"2x<tp4>".parse().unwrap()).unwrap();
        let packers = [Packer::new(classes[0].0, &batch, SearchBudget::ONLINE.packing)];
        let budget = SearchBudget::ONLINE.dispatch.first_fit;
        let mut first_fit = FirstFit::new(&packers, batch.tokens(), &[0, 1, 2], budget);
        let load =
            |number: usize| (0..number).fold(Load::default(), |load, id| load.with(id, Tokens(3_000), &packers[0])).end;
        assert_eq!(first_fit.end(&[(0, 2)], load(2) * 0.999), None);
        let end = first_fit.end(&[(0, 2)], load(2) * 1.1).unwrap();
        assert!(end >= load(2) && end < load(2) * 1.02, "{end:?} {:?}", load(2));
    }
}
