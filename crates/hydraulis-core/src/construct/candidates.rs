//! The strategies to choose from when the caller names none.

use crate::construct::layer_splits::{is_for_slow_stages, with_layer_splits};
use crate::cost::{ClassCost, CostModel};
use crate::error::{Error, Result, StrategyError};
use crate::layout::{PlacementOrder, place, place_in_order};
use crate::spec::{Cluster, Scheme, Strategy};

/// The profile's own list for a cluster of this size, or else the [`mixes`]. On ranks of different memory those without
/// room are left out.
pub fn candidates(cost: &CostModel, mixes: impl FnOnce() -> Vec<Strategy>) -> Vec<Strategy> {
    let gpus = cost.cluster().gpus();
    let mut list = match cost.profile().strategies.iter().find(|list| list.gpus == gpus) {
        Some(list) => with_layer_splits(list.strategies.clone(), cost),
        None => mixes(),
    };
    if cost.cluster().memory_bytes().is_some() {
        list.retain(|strategy| usable_strategies(vec![strategy.clone()], cost).is_ok());
    }
    list
}

/// The schemes that fit the cluster and leave memory for at least one token. Where all ranks are alike, splits for slow
/// stages are none of them.
pub fn usable_schemes(cost: &CostModel) -> Vec<Scheme> {
    let roomy = cost.best().iter().filter(|scheme| scheme.cap().0 > 0).map(ClassCost::scheme);
    let alike = cost.cluster().is_uniform();
    let candidates = roomy.filter(|&scheme| !alike || !is_for_slow_stages(scheme, cost));
    candidates.filter(|&scheme| place_alone(scheme, cost).is_ok()).collect()
}

/// The distinct strategies; refused if one does not fit the cluster, or memory in any order of placement.
pub fn usable_strategies(strategies: Vec<Strategy>, cost: &CostModel) -> Result<Vec<Strategy>> {
    let orders = PlacementOrder::all(cost.cluster());
    let mut list: Vec<Strategy> = Vec::new();
    for strategy in strategies {
        let usual = has_room(&strategy, cost, &orders[0]);
        if usual.is_err() && !orders[1..].iter().any(|order| has_room(&strategy, cost, order).is_ok()) {
            usual?;
        }
        if !list.contains(&strategy) {
            list.push(strategy);
        }
    }
    if list.is_empty() { Err(nothing_fits(cost)) } else { Ok(list) }
}

/// Refuses a strategy of which a replica has no place, or no room for a token where this order places it.
fn has_room(strategy: &Strategy, cost: &CostModel, order: &PlacementOrder) -> Result<()> {
    let ranks = place_in_order(strategy, cost.cluster(), order)?;
    let mut replicas = strategy.schemes().iter().zip(&ranks);
    replicas.try_for_each(|(&scheme, ranks)| cost.replica(scheme, ranks).map(drop))
}

/// The error for a cluster without a usable scheme: it names, among the schemes that can be placed, the one that needs
/// least memory.
pub fn nothing_fits(cost: &CostModel) -> Error {
    let schemes = || cost.best().iter().map(ClassCost::scheme);
    let placed: Vec<Scheme> = schemes().filter(|&scheme| place_alone(scheme, cost).is_ok()).collect();
    let smallest = || schemes().min_by_key(|scheme| scheme.ranks());
    let refused = cost.all_too_large(&placed).or_else(|| Some(no_place(smallest()?, cost)));
    refused.unwrap_or(StrategyError::NoneGiven.into())
}

/// The error for a profile whose smallest scheme cannot be placed on the cluster.
fn no_place(smallest: Scheme, cost: &CostModel) -> Error {
    let gpus = cost.cluster().gpus();
    match place_alone(smallest, cost) {
        Err(error) if smallest.ranks() <= u64::from(gpus) => error,
        _ => {
            let (profile, needed) = (cost.profile().name.clone(), smallest.ranks());
            StrategyError::SchemesTooWide { profile, smallest, needed, gpus }.into()
        }
    }
}

fn place_alone(scheme: Scheme, cost: &CostModel) -> Result<()> {
    place(&Strategy::new(vec![scheme])?, cost.cluster()).map(drop)
}

/// For every pair of usable schemes: one replica of the first, and as many of the second as fit.
///
/// The single replica serves the long tail; with equal schemes the mix is homogeneous. On a cluster with slow ranks each
/// pair also makes a mix that leaves the slowest ranks out, and one that leaves all but the fastest out.
pub fn mixes(cost: &CostModel) -> Vec<Strategy> {
    let mut schemes = usable_schemes(cost);
    schemes.retain(|&scheme| !is_for_slow_stages(scheme, cost));
    let pairs = schemes.iter().flat_map(|&wide| schemes.iter().map(move |&narrow| (wide, narrow)));
    let sizes = sizes_without_slow_ranks(cost.cluster());
    let mixes = pairs.flat_map(|(wide, narrow)| {
        sizes.iter().filter_map(move |&ranks| widest_mix(wide, narrow, cost.cluster(), ranks))
    });
    let mut strategies: Vec<Strategy> = mixes.collect();
    strategies.sort();
    strategies.dedup();
    with_layer_splits(strategies, cost)
}

/// Numbers of ranks that a strategy may use: all, all but the slowest, and the fastest alone.
fn sizes_without_slow_ranks(cluster: &Cluster) -> Vec<u32> {
    let rates = cluster.rates().unwrap_or_default();
    let slowest = rates.iter().copied().min_by(f64::total_cmp);
    let fastest = rates.iter().copied().max_by(f64::total_cmp);
    let without_slowest = rates.iter().filter(|rate| Some(**rate) != slowest).count();
    let with_fastest = rates.iter().filter(|rate| Some(**rate) == fastest).count();
    let fewer = [without_slowest, with_fastest].map(|ranks| u32::try_from(ranks).unwrap_or(u32::MAX));
    let mut sizes = vec![cluster.gpus()];
    sizes.extend(fewer.into_iter().filter(|&ranks| ranks > 0));
    sizes.dedup();
    sizes
}

/// One `wide` replica and as many `narrow` ones as aligned ranks allow, on at most this many ranks.
fn widest_mix(wide: Scheme, narrow: Scheme, cluster: &Cluster, ranks: u32) -> Option<Strategy> {
    let left = u64::from(ranks).checked_sub(wide.ranks())?;
    let most = usize::try_from(left / narrow.ranks()).ok()?;
    (0..=most).rev().find_map(|others| {
        let mix = std::iter::once(wide).chain(std::iter::repeat_n(narrow, others)).collect();
        Strategy::new(mix).ok().filter(|strategy| place(strategy, cluster).is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::preset;

    fn of(profile: &str, gpus: u32) -> Vec<String> {
        let cost = CostModel::new(preset(profile).unwrap(), Cluster::new(gpus, 8).unwrap());
        candidates(&cost, || mixes(&cost)).iter().map(Strategy::to_string).collect()
    }

    #[test]
    fn the_profiles_list_comes_first() {
        let list = of("llama-32b-a800", 64);
        assert_eq!(list.len(), 7);
        assert_eq!(list[3], "1x<tp16>+12x<tp4>");
    }

    #[test]
    fn mixes_may_leave_slow_ranks_out() {
        let mut rates = vec![1.0; 16];
        rates[0] = 0.5;
        let cluster = Cluster::new(16, 8).unwrap().with_rates(rates).unwrap();
        let cost = CostModel::new(preset("llama-7b-a800").unwrap(), cluster);
        let list: Vec<String> = mixes(&cost).iter().map(Strategy::to_string).collect();
        for expected in ["2x<tp8>", "1x<tp8>", "8x<tp2>", "7x<tp2>"] {
            assert!(list.contains(&expected.to_owned()), "{expected} in {list:?}");
        }
    }

    #[test]
    fn mixes_fill_other_clusters() {
        let list = of("llama-7b-a800", 16);
        for expected in ["1x<tp16>", "1x<tp8>+4x<tp2>", "8x<tp2>", "1x<tp8>+8x<1>"] {
            // This profile has no coefficients of <1>, so no strategy may contain it.
            assert_eq!(list.iter().any(|name| name == expected), !expected.contains("<1>"), "{expected} in {list:?}");
        }
    }
}
