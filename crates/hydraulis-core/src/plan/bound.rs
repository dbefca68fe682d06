//! What no plan over a strategy can beat.
//!
//! Two bounds, the greater of which holds:
//! - the longest way: each sequence passes all stages of some replica that admits it, in a micro-batch that
//!   costs at least `a s^2 + b s + c`, so `T >= max over s of min over schemes of (sum of u_j) t(s)`;
//! - the work: a replica of scheme `k` computes on its slowest stage for at least
//!   `sum over its sequences of u_k (a s^2 + b s + c s / cap_k)`, because it needs at least `tokens / cap_k`
//!   micro-batches. For any weights `y >= 0` that sum to 1 over the replicas, `T` is at least the weighted mean
//!   of their loads, hence `T >= sum over s of min over k of y_k w_k(s)`. Weights only decide how strong the
//!   bound is; they are found by giving more weight to the schemes that the minimum overloads.
//!
//! For any strategy at all the second reads in GPU time: a replica of scheme `k` on `g_k` ranks offers `g_k T`,
//! and `T` is impossible if `sum over s of min over k of g_k w_k(s)` is above `N T`, where a scheme on which `s`
//! alone would take longer than `T` is no choice for it.
//!
//! The second is the dual of the fractional assignment (Lenstra, Shmoys and Tardos 1990). Pipeline fill and
//! whole micro-batches are not counted, so the bound is weak where pipelines carry most of the work.

use serde::{Deserialize, Serialize};

use crate::cost::SchemeCost;
use crate::lengths::Batch;
use crate::units::{Millis, Tokens, count};

/// Rounds of the weight search; the bound stops rising visibly after about 40 on the 32B profile's strategies.
const ROUNDS: usize = 60;
/// The first rounds step boldly, the last ones by a hundredth of this.
const STEP: f64 = 0.5;

/// Halvings of the interval between an impossible and a possible time: far below the 0.1 % of a tie.
const BISECTIONS: usize = 40;

/// A proven lower bound on the iteration time, and what sets it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// No plan is shorter.
    pub ms: Millis,
    /// Which argument proves it.
    pub kind: BoundKind,
}

/// Which argument proves a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoundKind {
    /// This sequence alone takes that long wherever it is admitted.
    Sequence(usize),
    /// The work of all sequences, shared out perfectly, takes that long.
    Work,
}

/// The bound for replicas of `groups`: each scheme with its number of replicas. None where some sequence is
/// admitted by none of them.
pub(super) fn lower_bound(batch: &Batch, groups: &[(&SchemeCost, usize)]) -> Option<Bound> {
    let (alone, sequence) = longest_way(batch, groups)?;
    let work = work(batch, groups);
    let bound = if work > alone {
        Bound { ms: work, kind: BoundKind::Work }
    } else {
        Bound { ms: alone, kind: BoundKind::Sequence(sequence) }
    };
    // The plan sums the same terms in another order: without the margin a perfect plan could seem to beat it.
    Some(Bound { ms: bound.ms * (1.0 - 1e-9), ..bound })
}

/// The bound for any strategy on `gpus` ranks over `schemes`. None where some sequence is admitted by none.
pub(super) fn any_strategy_bound(batch: &Batch, schemes: &[&SchemeCost], gpus: u32) -> Option<Bound> {
    let groups: Vec<(&SchemeCost, usize)> = schemes.iter().map(|cost| (*cost, 1)).collect();
    let (alone, sequence) = longest_way(batch, &groups)?;
    let choices: Vec<Vec<(f64, f64)>> = batch.tokens().iter().map(|&tokens| choices(tokens, schemes)).collect();
    let needed = |ms: f64| choices.iter().map(|choices| cheapest(choices, ms)).sum::<f64>();
    // From the longest way on every sequence has a choice, and what is needed falls as time grows.
    let (mut impossible, mut possible) = (alone.0, needed(alone.0) / f64::from(gpus));
    if possible <= impossible {
        return Some(Bound { ms: alone * (1.0 - 1e-9), kind: BoundKind::Sequence(sequence) });
    }
    for _ in 0..BISECTIONS {
        let middle = 0.5 * (impossible + possible);
        if needed(middle) > f64::from(gpus) * middle { impossible = middle } else { possible = middle }
    }
    Some(Bound { ms: Millis(impossible * (1.0 - 1e-9)), kind: BoundKind::Work })
}

/// For each scheme that admits the sequence: its time alone, and the GPU time it needs at least.
fn choices(tokens: Tokens, schemes: &[&SchemeCost]) -> Vec<(f64, f64)> {
    let admitting = schemes.iter().filter(|cost| cost.admits(tokens));
    admitting.map(|cost| (through(cost, tokens).0, count(cost.scheme().ranks()) * least_cost(cost, tokens))).collect()
}

/// The least GPU time among the schemes on which the sequence alone takes at most `ms`.
fn cheapest(choices: &[(f64, f64)], ms: f64) -> f64 {
    // The margin keeps the scheme that sets the longest way a choice in spite of rounding.
    let possible = choices.iter().filter(|(alone, _)| *alone <= ms * (1.0 + 1e-9));
    possible.map(|(_, gpu_ms)| *gpu_ms).fold(f64::INFINITY, f64::min)
}

fn longest_way(batch: &Batch, groups: &[(&SchemeCost, usize)]) -> Option<(Millis, usize)> {
    let mut longest = (Millis::ZERO, 0);
    for (id, &tokens) in batch.tokens().iter().enumerate() {
        let admitting = groups.iter().map(|(cost, _)| cost).filter(|cost| cost.admits(tokens));
        let quickest = admitting.map(|cost| through(cost, tokens)).min()?;
        longest = longest.max((quickest, id));
    }
    Some(longest)
}

fn work(batch: &Batch, groups: &[(&SchemeCost, usize)]) -> Millis {
    let costs: Vec<Vec<f64>> = groups.iter().map(|(cost, _)| least_costs(batch, cost)).collect();
    let replicas: Vec<f64> = groups.iter().map(|(_, replicas)| count(*replicas)).collect();
    let mut weights = normalised(vec![1.0; groups.len()], &replicas);
    let mut best = 0.0_f64;
    for round in 0..ROUNDS {
        let (bound, loads) = weighted(&costs, &weights);
        best = best.max(bound);
        let step = STEP * (1.0 - 0.99 * count(round) / count(ROUNDS));
        let mean = loads.iter().sum::<f64>() / replicas.iter().sum::<f64>();
        for (index, weight) in weights.iter_mut().enumerate() {
            let excess = loads[index] / replicas[index] / mean - 1.0;
            *weight *= exponential(step * excess.clamp(-2.0, 2.0));
        }
        weights = normalised(weights, &replicas);
    }
    Millis(best)
}

/// `e^x` to three digits for |x| <= 1, by its Pade approximant: the library's `exp` may round differently on
/// another machine, and then the plan's bytes would differ.
fn exponential(x: f64) -> f64 {
    let even = 12.0 + x * x;
    (even + 6.0 * x) / (even - 6.0 * x)
}

/// The time of a micro-batch with this sequence alone, through all stages.
fn through(cost: &SchemeCost, tokens: Tokens) -> Millis {
    cost.micro_batch_ms([tokens].into_iter()) * cost.stage_multipliers().iter().sum()
}

/// What each sequence adds at least to a replica; infinite where it is not admitted.
fn least_costs(batch: &Batch, cost: &SchemeCost) -> Vec<f64> {
    let least = |&tokens| if cost.admits(tokens) { least_cost(cost, tokens) } else { f64::INFINITY };
    batch.tokens().iter().map(least).collect()
}

/// What a sequence adds at least to the slowest stage: its time, and its share of a full micro-batch's `c`.
fn least_cost(cost: &SchemeCost, tokens: Tokens) -> f64 {
    let slowest = cost.stage_multipliers().iter().copied().fold(0.0, f64::max);
    let fixed_per_token = cost.fixed_ms().0 / cost.cap().as_f64();
    slowest * (cost.sequence_ms(tokens).0 + fixed_per_token * tokens.as_f64())
}

/// Scales weights so that they sum to 1 over all replicas.
fn normalised(mut weights: Vec<f64>, replicas: &[f64]) -> Vec<f64> {
    let total: f64 = weights.iter().zip(replicas).map(|(weight, replicas)| weight * replicas).sum();
    for weight in &mut weights {
        *weight /= total;
    }
    weights
}

/// The bound that these weights prove, and the work that the minimum puts on each scheme.
fn weighted(costs: &[Vec<f64>], weights: &[f64]) -> (f64, Vec<f64>) {
    let mut loads = vec![0.0; costs.len()];
    let mut bound = 0.0;
    for id in 0..costs[0].len() {
        let priced = (0..costs.len()).map(|index| (weights[index] * costs[index][id], index));
        let (price, index) = priced.min_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or((0.0, 0));
        bound += price;
        loads[index] += costs[index][id];
    }
    (bound, loads)
}
