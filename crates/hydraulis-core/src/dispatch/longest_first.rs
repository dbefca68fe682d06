//! The first assignment.

use crate::capacity::Capacities;
use crate::dispatch::Assignment;
use crate::dispatch::ranking::Ranking;
use crate::error::{Error, Result};
use crate::lengths::Batch;
use crate::pack::Packer;
use crate::spec::Strategy;
use crate::units::{Millis, Tokens};

/// Replicas of each scheme that are looked at for a sequence, the earliest to end first. One that ends later may yet be
/// the better place, as it may have room in a micro-batch.
const LOOKED_AT: usize = 8;

/// Each sequence, longest first, onto the replica that admits it and by estimate then ends earliest.
///
/// `by_length` holds the batch's ids, longest first. Among equals the first replica wins, which is the widest.
pub fn longest_first<'a>(
    batch: &'a Batch,
    by_length: &[usize],
    strategy: &Strategy,
    capacities: &'a Capacities,
) -> Result<Assignment<'a>> {
    let (packers, scheme_of) = packers(batch, strategy, capacities)?;
    let loads = loads(batch, by_length, strategy, &packers, &scheme_of)?;
    let sequences = loads.into_iter().map(|load| load.sequences).collect();
    Ok(Assignment::new(packers, scheme_of, sequences))
}

fn loads(
    batch: &Batch,
    by_length: &[usize],
    strategy: &Strategy,
    packers: &[Packer],
    scheme_of: &[usize],
) -> Result<Vec<Load>> {
    let mut loads = vec![Load::default(); scheme_of.len()];
    let replicas_of = |scheme: usize| (0..scheme_of.len()).filter(move |&replica| scheme_of[replica] == scheme);
    let mut rankings: Vec<Ranking> = (0..packers.len())
        .map(|scheme| Ranking::new(replicas_of(scheme).map(|replica| (replica, Millis::ZERO))))
        .collect();
    for &id in by_length {
        let tokens = batch.tokens()[id];
        let admitting = (0..packers.len()).filter(|&scheme| packers[scheme].cost().admits(tokens));
        let near = admitting.flat_map(|scheme| rankings[scheme].earliest().take(LOOKED_AT));
        let grown = near.map(|replica| (loads[replica].with(id, tokens, &packers[scheme_of[replica]]), replica));
        let earliest = grown.min_by_key(|(totals, replica)| (totals.estimate, *replica));
        let (totals, replica) = earliest.ok_or_else(|| too_long(id, tokens, strategy, packers))?;
        rankings[scheme_of[replica]].change(replica, loads[replica].totals.estimate, totals.estimate);
        loads[replica].take(id, totals);
    }
    Ok(loads)
}

/// One packer for each distinct scheme, and which of them each replica uses.
fn packers<'a>(
    batch: &'a Batch,
    strategy: &Strategy,
    capacities: &'a Capacities,
) -> Result<(Vec<Packer<'a>>, Vec<usize>)> {
    let groups = strategy.groups();
    let packers = groups.iter().map(|(scheme, _)| Ok(Packer::new(capacities.scheme(*scheme)?, batch)));
    let scheme_of = groups.iter().enumerate().flat_map(|(index, (_, replicas))| std::iter::repeat_n(index, *replicas));
    Ok((packers.collect::<Result<_>>()?, scheme_of.collect()))
}

fn too_long(sequence: usize, tokens: Tokens, strategy: &Strategy, packers: &[Packer]) -> Error {
    let widest = packers.iter().map(Packer::cost).max_by_key(|cost| cost.cap());
    Error::SequenceTooLong {
        sequence,
        tokens,
        subject: format!("strategy {strategy}"),
        limit: widest.map(crate::cost::SchemeCost::cap).unwrap_or_default(),
        on: widest.map(|cost| format!(" on {}", cost.scheme())).unwrap_or_default(),
    }
}

/// What a replica has taken so far.
#[derive(Clone, Debug, Default)]
struct Load {
    sequences: Vec<usize>,
    totals: Totals,
}

/// Sums over a replica's sequences, and the time they make.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    ms: Millis,
    tokens: Tokens,
    longest: Millis,
    estimate: Millis,
}

impl Load {
    fn with(&self, id: usize, tokens: Tokens, packer: &Packer) -> Totals {
        let own = packer.sequence_ms()[id];
        let ms = self.totals.ms + own;
        let longest = self.totals.longest.max(own);
        let tokens = self.totals.tokens + tokens;
        Totals { ms, tokens, longest, estimate: packer.estimate(ms, tokens, longest) }
    }

    fn take(&mut self, id: usize, totals: Totals) {
        self.sequences.push(id);
        self.totals = totals;
    }
}
