//! Exchanges of sequences among three replicas.
//!
//! The slowest replica gives a sequence to a second one, which passes another on to a third, which may return one to the
//! slowest. With two or three sequences on each replica their lengths are far apart, and often no single move or swap fits.

use crate::construct::dispatch::Assignment;
use crate::construct::dispatch::refine::{Change, Move};
use crate::construct::dispatch::totals::Totals;
use crate::units::{Millis, Tokens};

/// The exchanges after which by estimate all three replicas end before the slowest one does now.
pub(super) fn exchanges(assignment: &Assignment, tokens: &[Tokens], slowest: usize) -> Vec<Change> {
    let totals = |replica| Totals::of(assignment, tokens, replica);
    let replicas: Vec<Totals> = (0..assignment.sequences.len()).map(totals).collect();
    let enough = replicas[slowest].time;
    let exchanges = Exchanges { replicas, tokens, slowest, enough };
    let leaving = &assignment.sequences[slowest];
    leaving.iter().flat_map(|&leaves| exchanges.of(leaves)).collect()
}

/// The exchanges that make one replica shorter.
struct Exchanges<'a> {
    replicas: Vec<Totals<'a>>,
    tokens: &'a [Tokens],
    slowest: usize,
    enough: Millis,
}

impl Exchanges<'_> {
    /// The exchanges in which the sequence `leaves` the slowest replica.
    fn of(&self, leaves: usize) -> Vec<Change> {
        let returning = self.returning(leaves);
        let mut changes = Vec::new();
        for second in self.others() {
            for &passes in self.replicas[second].sequences {
                let Some(end) = self.end(second, Some(passes), leaves) else { continue };
                let leaving = Move { id: leaves, from: self.slowest, to: second };
                for &(third, returns, shrunk) in returning.iter().filter(|(third, ..)| *third != second) {
                    let Some(last) = self.end(third, returns, passes) else { continue };
                    let passed = Move { id: passes, from: second, to: third };
                    let back = returns.map(|id| Move { id, from: third, to: self.slowest });
                    let estimate = shrunk.max(end).max(last);
                    changes.push(Change { estimate, leaves: leaving, others: [Some(passed), back] });
                }
            }
        }
        changes
    }

    /// For each other replica, that it returns no sequence, and each one that it may return, with the slowest replica's end.
    fn returning(&self, leaves: usize) -> Vec<(usize, Option<usize>, Millis)> {
        let from = &self.replicas[self.slowest];
        let shrunk = from.exchanged(Some(leaves), None);
        let mut returning = Vec::new();
        for third in self.others() {
            returning.extend((shrunk < self.enough).then_some((third, None, shrunk)));
            let ends = self.replicas[third].sequences.iter().map(|&id| (id, self.end(self.slowest, Some(leaves), id)));
            returning.extend(ends.filter_map(|(id, end)| Some((third, Some(id), end?))));
        }
        returning
    }

    /// Estimated end of a replica that a sequence enters; none if it does not admit the sequence or ends too late.
    fn end(&self, replica: usize, leaves: Option<usize>, enters: usize) -> Option<Millis> {
        let totals = &self.replicas[replica];
        let end = totals.packer.cost().admits(self.tokens[enters]).then(|| totals.exchanged(leaves, Some(enters)))?;
        (end < self.enough).then_some(end)
    }

    fn others(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.replicas.len()).filter(|&replica| replica != self.slowest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::cancellation::NEVER_CANCELLED;
    use crate::capacity::Capacities;
    use crate::construct::dispatch::assignment::tests::{assert_assigned, by_length, capacities, spread_lengths};
    use crate::construct::dispatch::{Limits, longest_first, refine};
    use crate::spec::{RefineBudget, SearchBudget};

    /// The time after refinement with and without exchanges among three replicas, after checks of both assignments.
    fn refined(capacities: &Capacities, strategy: &str, lengths: &[i64]) -> [Millis; 2] {
        let (batch, budget) = (Batch::new(lengths, None).unwrap(), SearchBudget::ONLINE);
        let strategy = strategy.parse().unwrap();
        [budget.dispatch.refine.exchanging, 0].map(|exchanging| {
            let mut assignment = longest_first(&batch, &by_length(lengths), &strategy, capacities, &budget).unwrap();
            let refine_budget = RefineBudget { exchanging, ..budget.dispatch.refine };
            let limits = Limits { packings: 10_000, more_partners: 0, budget: refine_budget };
            refine(&mut assignment, batch.tokens(), limits, NEVER_CANCELLED).unwrap();
            assert_assigned(&assignment, batch.tokens());
            for (replica, ids) in assignment.sequences.clone().iter().enumerate() {
                let packed = assignment.packer(replica).time(ids);
                assert_eq!(assignment.times[replica], packed);
            }
            assignment.iteration_ms()
        })
    }

    #[test]
    fn three_replicas_exchange_what_no_two_can() {
        let (capacities, mut shorter) = (capacities(), 0);
        for seed in 0..60_i64 {
            let lengths = spread_lengths(seed, 30 + seed % 20);
            for strategy in ["16x<tp4>", "8x<tp4>+2x<tp8,pp2>"] {
                let [with, without] = refined(&capacities, strategy, &lengths);
                assert!(with <= without, "{strategy} {seed}: {with:?} {without:?}");
                shorter += usize::from(with < without * 0.998);
            }
        }
        assert!(shorter > 20, "{shorter}");
    }
}
