//! Stage two: the number of a replica's micro-batches, and the sequences of each.

use hydraulis_core::batch::Batch;
use hydraulis_core::cost::ClassCost;
use hydraulis_core::{Millis, Tokens};

use crate::baseline::packs::{balanced, first_fit, sequences_ms};
use crate::numbers::count;

/// Micro-batch counts that are tried, from the smallest that fits the tokens.
const COUNTS: usize = 20;
/// Moves and swaps for one count. A few dozen reach a local optimum on all workloads of `docs/plan-bench.md`.
const IMPROVEMENTS: usize = 100;
/// A slowest pack within this share of the mean, or of the longest sequence, is not improved any further.
const CLOSE: f64 = 1e-3;

/// The micro-batches of least closed-form time `(z + c)(v + p - 1)`, where `z` is the time of the slowest pack's
/// sequences, and that time. `ids` come longest first, each admitted.
pub(super) fn pack(ids: &[usize], batch: &Batch, cost: &ClassCost) -> (Millis, Vec<Vec<usize>>) {
    let tokens: Tokens = ids.iter().map(|&id| batch.tokens()[id]).sum();
    if ids.is_empty() {
        return (Millis::ZERO, Vec::new());
    }
    let fewest = tokens.div_ceil(cost.cap());
    let counts = fewest..=ids.len().min(fewest + COUNTS - 1);
    let packed = counts.filter_map(|count| Some(improved(balanced(ids, batch, cost, count)?, batch, cost)));
    let scored = packed.map(|packs| (score(&packs, batch, cost), packs));
    scored.min_by_key(|(score, _)| *score).unwrap_or_else(|| {
        // Lengths just above half the cap, or above the cap, may not fit with any of these counts.
        let packs = first_fit(ids, batch, cost.cap());
        (score(&packs, batch, cost), packs)
    })
}

fn score(packs: &[Vec<usize>], batch: &Batch, cost: &ClassCost) -> Millis {
    let greatest = packs.iter().map(|pack| sequences_ms(pack, batch, cost)).max().unwrap_or_default();
    cost.ms_of_work(greatest) * count(packs.len() + cost.scheme().stages() - 1)
}

/// Moves sequences out of the slowest pack, or swaps them for shorter ones, while that lowers its time and no other
/// pack takes as long.
fn improved(mut packs: Vec<Vec<usize>>, batch: &Batch, cost: &ClassCost) -> Vec<Vec<usize>> {
    let mut times: Vec<Millis> = packs.iter().map(|pack| sequences_ms(pack, batch, cost)).collect();
    let longest = packs.iter().flatten().map(|&id| cost.sequence_ms(batch.tokens()[id])).max().unwrap_or_default();
    let mean = times.iter().copied().sum::<Millis>() * (1.0 / count(times.len()));
    let close = longest.max(mean) * (1.0 + CLOSE);
    for _ in 0..IMPROVEMENTS {
        let Some(greatest) = (0..packs.len()).max_by_key(|&pack| times[pack]) else { break };
        if times[greatest] <= close {
            break;
        }
        let Some(change) = best_change(&packs, &times, greatest, batch, cost) else { break };
        change.apply(&mut packs, greatest);
        for pack in [greatest, change.other] {
            times[pack] = sequences_ms(&packs[pack], batch, cost);
        }
    }
    packs
}

/// A move of one sequence of the slowest pack to another pack, or its swap with a sequence of that pack.
struct Change {
    leaves: usize,
    other: usize,
    returns: Option<usize>,
}

impl Change {
    fn apply(&self, packs: &mut [Vec<usize>], greatest: usize) {
        let leaving = packs[greatest].swap_remove(self.leaves);
        let returning = self.returns.map(|place| packs[self.other].swap_remove(place));
        packs[self.other].push(leaving);
        packs[greatest].extend(returning);
    }
}

/// The change that leaves the slower of the two packs the least time.
fn best_change(
    packs: &[Vec<usize>],
    times: &[Millis],
    greatest: usize,
    batch: &Batch,
    cost: &ClassCost,
) -> Option<Change> {
    let sequence = |id: usize| (batch.tokens()[id], cost.sequence_ms(batch.tokens()[id]));
    // Rounding alone must not count as an improvement.
    let mut least = times[greatest] * (1.0 - 1e-9);
    let mut best = None;
    for other in (0..packs.len()).filter(|&other| other != greatest) {
        let used: Tokens = packs[other].iter().map(|&id| batch.tokens()[id]).sum();
        for (leaves, &leaving) in packs[greatest].iter().enumerate() {
            let (out_tokens, out_ms) = sequence(leaving);
            let returns = packs[other].iter().enumerate().map(|(place, &id)| (Some(place), sequence(id)));
            for (returns, (in_tokens, in_ms)) in std::iter::once((None, Default::default())).chain(returns) {
                // A swap for a shorter sequence never raises the tokens of the slowest pack.
                let fits = in_tokens <= out_tokens && used + out_tokens - in_tokens <= cost.cap();
                let then = (times[greatest] - out_ms + in_ms).max(times[other] + out_ms - in_ms);
                if fits && then < least {
                    (least, best) = (then, Some(Change { leaves, other, returns }));
                }
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use hydraulis_core::cost::{CostModel, preset};
    use hydraulis_core::spec::Cluster;

    fn packed(scheme: &str, lengths: &[i64]) -> (Millis, Vec<Vec<usize>>, Millis) {
        let model = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let cost = model.scheme(scheme.parse().unwrap()).unwrap();
        let ids: Vec<usize> = (0..lengths.len()).collect();
        let (ms, packs) = pack(&ids, &Batch::new(lengths, None).unwrap(), cost);
        (ms, packs, cost.micro_batch_ms([Tokens(1_000)].into_iter()))
    }

    #[test]
    fn one_stage_takes_the_fewest_packs_that_fit() {
        let (ms, packs, _) = packed("<tp4>", &[1_000; 7]);
        assert_eq!(packs.len(), 1);
        assert!(ms > Millis::ZERO);
        assert_eq!(packed("<tp4>", &[4_000; 3]).1.len(), 3);
    }

    #[test]
    fn a_pipelines_time_is_the_closed_form() {
        // Twelve equal sequences in twelve packs on four stages: fifteen times the time of one.
        let (ms, packs, one) = packed("<tp2,pp4>", &[1_000; 12]);
        assert_eq!(packs.len(), 12);
        assert!(ms.is_close(one * 15.0), "{ms:?} {one:?}");
    }

    #[test]
    fn no_sequences_take_no_time() {
        let model = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let cost = model.scheme("<tp4,pp2>".parse().unwrap()).unwrap();
        assert_eq!(pack(&[], &Batch::new(&[5], None).unwrap(), cost), (Millis::ZERO, Vec::new()));
    }

    #[test]
    fn swaps_shorten_a_longest_first_packing() {
        let model = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let cost = model.scheme("<tp16>".parse().unwrap()).unwrap();
        // Short enough for time to be nearly linear: 3+2+2 | 3+2 becomes 3+3 | 2+2+2 by one swap.
        let batch = Batch::new(&[300, 300, 200, 200, 200], None).unwrap();
        let packs = improved(vec![vec![0, 2, 4], vec![1, 3]], &batch, cost);
        let mut tokens: Vec<u64> = packs.iter().map(|pack| pack.iter().map(|&id| batch.tokens()[id].0).sum()).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, [600, 600]);
    }
}
