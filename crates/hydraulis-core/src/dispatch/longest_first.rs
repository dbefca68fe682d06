//! The first assignment.

use crate::capacity::Capacities;
use crate::dispatch::ranking::Ranking;
use crate::dispatch::{Assignment, Load};
use crate::error::{Error, Result};
use crate::lengths::Batch;
use crate::pack::Packer;
use crate::spec::Strategy;
use crate::units::{Millis, Tokens};

/// Replicas of each scheme that are looked at for a sequence, the earliest to end first. One that ends later may yet be
/// the better place, as it may have room in a micro-batch.
const LOOKED_AT: usize = 8;

/// Each sequence, longest first, onto the replica that admits it and by estimate then ends earliest; a second time with
/// what packing took beyond the estimates.
///
/// `by_length` holds the batch's ids, longest first. Among equals the first replica wins, which is the widest.
pub fn longest_first<'a>(
    batch: &'a Batch,
    by_length: &[usize],
    strategy: &Strategy,
    capacities: &'a Capacities,
) -> Result<Assignment<'a>> {
    let mut deal = Deal::new(batch, strategy, capacities)?;
    let first = deal.all(by_length, strategy)?;
    if deal.packers.len() == 1 {
        return Ok(first);
    }
    deal.learn(&first);
    let second = deal.all(by_length, strategy)?;
    Ok(if second.iteration_ms() < first.iteration_ms() { second } else { first })
}

/// About when the slowest replica ends if each sequence, longest first, goes to the replica that ended earliest, of
/// each scheme one; none where a sequence is not admitted.
///
/// A small part of the work of [`longest_first`], which packs the sequences as well.
pub fn estimate(batch: &Batch, by_length: &[usize], strategy: &Strategy, capacities: &Capacities) -> Option<Millis> {
    let mut deal = Deal::new(batch, strategy, capacities).ok()?;
    by_length.iter().try_for_each(|&id| deal.take(id, 1).map(drop))?;
    deal.loads.iter().map(|load| load.end).max()
}

/// Sequences dealt to a strategy's replicas one by one.
struct Deal<'a> {
    tokens: &'a [Tokens],
    /// One for each distinct scheme.
    packers: Vec<Packer<'a>>,
    /// Which of them each replica uses.
    scheme_of: Vec<usize>,
    loads: Vec<Load>,
    /// For each scheme, its replicas.
    rankings: Vec<Ranking>,
    /// For each scheme, what packing takes as a multiple of the estimate.
    paces: Vec<f64>,
}

impl<'a> Deal<'a> {
    fn new(batch: &'a Batch, strategy: &Strategy, capacities: &'a Capacities) -> Result<Deal<'a>> {
        let groups = strategy.groups();
        let packers = groups.iter().map(|(scheme, _)| Ok(Packer::new(capacities.scheme(*scheme)?, batch)));
        let packers = packers.collect::<Result<Vec<_>>>()?;
        let replicas = groups.iter().enumerate();
        let scheme_of = replicas.flat_map(|(scheme, (_, replicas))| std::iter::repeat_n(scheme, *replicas)).collect();
        let paces = vec![1.0; packers.len()];
        let mut deal =
            Deal { tokens: batch.tokens(), packers, scheme_of, loads: Vec::new(), rankings: Vec::new(), paces };
        deal.clear();
        Ok(deal)
    }

    /// Takes all sequences back.
    fn clear(&mut self) {
        self.loads = vec![Load::default(); self.scheme_of.len()];
        let replicas = |scheme: usize| self.replicas(scheme).map(|replica| (replica, Millis::ZERO));
        self.rankings = (0..self.packers.len()).map(|scheme| Ranking::new(replicas(scheme))).collect();
    }

    /// Deals all sequences anew, and packs them.
    fn all(&mut self, by_length: &[usize], strategy: &Strategy) -> Result<Assignment<'a>> {
        self.clear();
        let mut sequences = vec![Vec::new(); self.loads.len()];
        for &id in by_length {
            let replica = self.take(id, LOOKED_AT).ok_or_else(|| self.too_long(id, strategy))?;
            sequences[replica].push(id);
        }
        Ok(Assignment::new(self.packers.clone(), self.scheme_of.clone(), sequences))
    }

    /// Compares the estimates of the last deal with what packing took.
    fn learn(&mut self, packed: &Assignment) {
        for scheme in 0..self.packers.len() {
            let took: Millis = self.replicas(scheme).map(|replica| packed.times[replica]).sum();
            let estimated: Millis = self.replicas(scheme).map(|replica| self.loads[replica].end).sum();
            if estimated > Millis::ZERO {
                self.paces[scheme] *= took.0 / estimated.0;
            }
        }
    }

    fn replicas(&self, scheme: usize) -> impl Iterator<Item = usize> {
        let first = self.scheme_of.partition_point(|&other| other < scheme);
        first..self.scheme_of.partition_point(|&other| other <= scheme)
    }

    /// Takes a sequence to the replica that then ends earliest, of so many of each scheme; none if none admits it.
    fn take(&mut self, id: usize, looked_at: usize) -> Option<usize> {
        let tokens = self.tokens[id];
        let mut best: Option<(Load, usize)> = None;
        for scheme in (0..self.packers.len()).filter(|&scheme| self.packers[scheme].cost().admits(tokens)) {
            for replica in self.rankings[scheme].earliest().take(looked_at) {
                // Those that follow end no earlier, and one sequence more does not shorten them.
                if best.is_some_and(|(best, _)| self.loads[replica].end >= best.end) {
                    break;
                }
                let mut load = self.loads[replica].with(id, tokens, &self.packers[scheme]);
                load.end = load.end * self.paces[scheme];
                if best.is_none_or(|(best, other)| (load.end, replica) < (best.end, other)) {
                    best = Some((load, replica));
                }
            }
        }
        let (load, replica) = best?;
        self.rankings[self.scheme_of[replica]].change(replica, self.loads[replica].end, load.end);
        self.loads[replica] = load;
        Some(replica)
    }

    fn too_long(&self, sequence: usize, strategy: &Strategy) -> Error {
        let widest = self.packers.iter().map(Packer::cost).max_by_key(|cost| cost.longest());
        Error::SequenceTooLong {
            sequence,
            tokens: self.tokens[sequence],
            subject: format!("strategy {strategy}"),
            limit: widest.map(crate::cost::SchemeCost::longest).unwrap_or_default(),
            on: widest.map(|cost| format!(" on {}", cost.scheme())).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{CostModel, preset};
    use crate::spec::Cluster;

    fn capacities() -> Capacities {
        Capacities::new(CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap()))
    }

    #[test]
    fn an_estimate_is_the_time_where_nothing_is_packed_badly() {
        let (capacities, strategy) = (capacities(), "4x<tp4>".parse().unwrap());
        let batch = Batch::new(&[5_000, 5_000, 5_000, 5_000, 900, 900, 900, 900], None).unwrap();
        let by_length: Vec<usize> = (0..8).collect();
        let estimated = estimate(&batch, &by_length, &strategy, &capacities).unwrap();
        let dealt = longest_first(&batch, &by_length, &strategy, &capacities).unwrap();
        assert!(estimated.is_close(dealt.iteration_ms()), "{estimated:?} {:?}", dealt.iteration_ms());
        assert!(dealt.sequences().iter().all(|ids| ids.len() == 2));
    }

    #[test]
    fn what_is_not_admitted_has_no_estimate() {
        let (capacities, strategy) = (capacities(), "4x<tp4>".parse().unwrap());
        let batch = Batch::new(&[30_000, 10], None).unwrap();
        assert_eq!(estimate(&batch, &[0, 1], &strategy, &capacities), None);
        assert_eq!(longest_first(&batch, &[0, 1], &strategy, &capacities).unwrap_err().code(), "sequence_too_long");
    }

    #[test]
    fn the_second_deal_knows_what_packing_takes() {
        // Eleven long sequences make short pipelines fill worse than estimated: the plain replicas must take more.
        let (capacities, strategy) = (capacities(), "2x<tp4,pp4>+8x<tp4>".parse().unwrap());
        let lengths: Vec<i64> = (0..11).map(|i| 13_000 - 150 * i).chain((0..160).map(|i| 3_000 - 17 * i)).collect();
        let batch = Batch::new(&lengths, None).unwrap();
        let by_length: Vec<usize> = (0..lengths.len()).collect();
        let mut deal = Deal::new(&batch, &strategy, &capacities).unwrap();
        let first = deal.all(&by_length, &strategy).unwrap().iteration_ms();
        let dealt = longest_first(&batch, &by_length, &strategy, &capacities).unwrap().iteration_ms();
        assert!(dealt < first * 0.99, "{dealt:?} {first:?}");
    }
}
