//! Fewer layers for the stages that stand on slow ranks.

use crate::cost::{ClassCost, CostModel};
use crate::layout::place;
use crate::spec::{Scheme, StageSplit, Strategy};

/// Whether the scheme is the split of another scheme of the profile.
pub(super) fn is_for_slow_stages(scheme: Scheme, cost: &CostModel) -> bool {
    let usual = scheme.with_split(StageSplit::BY_COST).unwrap_or(scheme);
    scheme != usual && cost.profile().scheme(usual).is_ok()
}

/// The strategies, each followed by the one whose replicas split their layers for the ranks that they stand on, where
/// that shortens a replica's slowest stage.
pub fn with_layer_splits(strategies: Vec<Strategy>, cost: &CostModel) -> Vec<Strategy> {
    if cost.cluster().is_uniform() {
        return strategies;
    }
    let split = |strategy: &Strategy| split_for_ranks(strategy, cost);
    let mut list: Vec<Strategy> = strategies.iter().flat_map(|one| [Some(one.clone()), split(one)]).flatten().collect();
    let mut known = std::collections::BTreeSet::new();
    list.retain(|strategy| known.insert(strategy.clone()));
    list
}

/// The strategy with the best split of each replica; none if that is the strategy itself, or has no place.
fn split_for_ranks(strategy: &Strategy, cost: &CostModel) -> Option<Strategy> {
    let ranks = place(strategy, cost.cluster()).ok()?;
    let replicas = strategy.schemes().iter().zip(&ranks);
    let split = Strategy::new(replicas.map(|(&scheme, ranks)| best_split(scheme, ranks, cost)).collect()).ok()?;
    let ranks = place(&split, cost.cluster()).ok()?;
    let admits = |(&scheme, ranks): (&Scheme, &Vec<u32>)| cost.replica(scheme, ranks).is_ok();
    (split != *strategy && split.schemes().iter().zip(&ranks).all(admits)).then_some(split)
}

/// The scheme of the profile with these degrees and this layer plan whose slowest stage is the shortest on these ranks;
/// of equal ones the given one.
fn best_split(scheme: Scheme, ranks: &[u32], cost: &CostModel) -> Scheme {
    if scheme.pp() == 1 {
        return scheme;
    }
    let is_split = |other: &Scheme| other.with_split(scheme.split()) == Some(scheme) && *other != scheme;
    let splits = cost.profile().schemes.iter().map(|entry| entry.scheme).filter(is_split);
    let slowest = |scheme: Scheme| cost.replica(scheme, ranks).ok().map(|class| slowest_stage_ms(&class));
    let of = |scheme: Scheme| Some((slowest(scheme)?, scheme));
    let found = std::iter::once(scheme).chain(splits).filter_map(of).min_by(|one, other| one.0.total_cmp(&other.0));
    found.map_or(scheme, |(_, scheme)| scheme)
}

/// The time that a token of a short sequence takes on the slowest stage.
fn slowest_stage_ms(class: &ClassCost) -> f64 {
    class.linear_ms_per_token() * class.slowest_multiplier()
}
